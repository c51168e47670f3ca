"""Levels of a chip from end to end: planned, pruned, verified, by the record, by a plan, and broken on purpose."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import onnxsparse as osp
from onnxsparse.cli import main
from onnxsparse.engines.ort import library
from tests.messages import refusing


def random(seed, *shape):
    return np.random.Generator(np.random.Philox(key=seed)).standard_normal(shape).astype(np.float32)


def model(height=16, depthwise=True):
    """Conv, depthwise Conv with stride 2, pointwise Conv, Gemm."""
    stored = {
        "stem": random(1, 16, 3, 3, 3),
        "deep": random(2, 16, 1, 3, 3) if depthwise else random(2, 16, 16, 3, 3),
        "point": random(3, 64, 16, 1, 1),
        "head": random(4, 10, 64),
    }
    nodes = [
        make_node("Conv", ["x", "stem"], ["a"], "one", pads=[1, 1, 1, 1]),
        make_node("Conv", ["a", "deep"], ["b"], "two", strides=[2, 2], group=16 if depthwise else 1),
        make_node("Conv", ["b", "point"], ["c"], "three"),
        make_node("GlobalAveragePool", ["c"], ["d"], "pool"),
        make_node("Flatten", ["d"], ["e"], "flat"),
        make_node("Gemm", ["e", "head"], ["y"], "four", transB=1),
    ]
    side = ["h", "w"] if height is None else [height, height]
    graph = make_graph(
        nodes,
        "net",
        [make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, *side])],
        [make_tensor_value_info("y", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)


def edited(proto, name, change):
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for tensor in made.graph.initializer:
        if tensor.name == name:
            numbers = numpy_helper.to_array(tensor).copy()
            change(numbers)
            tensor.CopyFrom(numpy_helper.from_array(numbers, name))
    return made


def reasons(report):
    return {row.name: row.reason for row in report.rows if row.status == "violated"}


@pytest.mark.parametrize("target", ["amba", "amba:cv22", "amba:cv2fs"])
@pytest.mark.parametrize("level", [30, 50, 70])
def test_what_is_pruned_for_a_level_verifies(target, level):
    sparse = osp.prune(model(), target=target, level=level)
    for found in (osp.verify(sparse.model, target=target, level=level), osp.verify(sparse.model)):
        assert found.report.ok, [*found.report.notes, *reasons(found.report).items()]
    sizes = {row.name: row.size for row in sparse.report.rows}
    shares = {row.name: 100 * row.zeros / row.size for row in sparse.report.rows}
    # whole per cents, to the nearest element
    assert all(abs(share - round(share)) <= 50 / sizes[name] for name, share in shares.items())


def test_another_level_does_not_hold():
    sparse = osp.prune(model(), target="amba", level=50).model
    found = osp.verify(sparse, target="amba", level=70)
    assert not found.report.ok
    assert any("more than 1.5 % apart" in note for note in found.report.notes)
    assert osp.verify(sparse, target="amba").report.ok


def test_wasted_zeros_are_counted_and_do_not_hold():
    sparse = osp.prune(model(depthwise=False), pattern="unstructured", sparsity=0.7).model
    found = osp.verify(sparse, target="amba:cv22")
    (name, reason) = next(iter(reasons(found.report).items()))
    row = found.report.row(name)
    assert "wasted zeros" in reason
    assert row.wasted == row.zeros - int(np.floor((1 - row.target_density) * row.size + 0.5)) > 0


def test_an_output_that_is_zero_does_not_hold():
    def erase(numbers):
        numbers[3] = 0

    sparse = osp.prune(model(), target="amba", level=50).model
    found = osp.verify(edited(sparse, "point", erase), target="amba", level=50)
    assert reasons(found.report) == {"point": "1 outputs are zero altogether (3)"}


def test_no_output_is_emptied_even_where_it_is_the_smallest():
    def shrink(numbers):
        numbers[5] *= 1e-4

    sparse = osp.prune(edited(model(), "point", shrink), target="amba", level=70)
    assert osp.verify(sparse.model).report.ok


def test_what_was_excluded_has_to_be_dense():
    def erase(numbers):
        numbers[:, ::2] = 0

    sparse = osp.prune(model(), target="amba", level=30, exclude=["head"])
    assert sparse.report.row("head").zeros == 0
    assert osp.verify(sparse.model).report.ok
    assert "excluded" in reasons(osp.verify(edited(sparse.model, "head", erase)).report)["head"]


def test_a_promised_zero_that_is_gone():
    def fill(numbers):
        numbers[numbers == 0] = 1

    sparse = osp.prune(model(), target="amba", level=50).model
    found = osp.verify(edited(sparse, "stem", fill), target="amba", level=50)
    assert "stem" in reasons(found.report)


def test_a_level_out_of_reach_goes_as_far_as_the_limits_and_says_so():
    sparse = osp.prune(model(), target="amba:cv22", level=95)
    assert any("out of reach" in note for note in sparse.report.notes)
    found = osp.verify(sparse.model, target="amba:cv22", level=95)
    assert found.report.ok
    assert any("every layer stands at its limit" in note for note in found.report.notes)


def test_sizes_are_asked_for_and_not_guessed():
    with refusing(osp.OnnxSparseError):
        osp.prune(model(height=None), target="amba", level=50)
    given = osp.prune(model(height=None), target="amba", level=50, dims={"h": 16, "w": 16})
    fixed = osp.prune(model(), target="amba", level=50)
    assert [row.zeros for row in given.report.rows] == [row.zeros for row in fixed.report.rows]
    assert given.report.totals.macs == fixed.report.totals.macs
    assert osp.prune(model(height=None), target="amba", level=50, dims={"x.2": 16, "x.3": 16}).report.ok


def test_multiply_accumulates_by_hand():
    report = osp.prune(model(), target="amba", level=50).report
    by_hand = {"stem": 16 * 16 * 16 * 27, "deep": 16 * 7 * 7 * 9, "point": 64 * 7 * 7 * 16, "head": 640}
    assert {row.name: row.macs for row in report.rows} == by_hand
    left = {row.name: round(row.macs * (1 - row.zeros / row.size)) for row in report.rows}
    assert report.totals.macs_left == sum(left.values())


def test_on_the_command_line(tmp_path, capsys):
    onnx.save(model(), tmp_path / "dense.onnx")
    dense, plan, sparse = (str(tmp_path / name) for name in ("dense.onnx", "plan.yaml", "sparse.onnx"))
    assert main(["plan", dense, "-o", plan, "--target", "amba:cv22", "--level", "60"]) == 0
    shown = capsys.readouterr().out
    assert "target density" in shown
    assert "wasted" in shown
    assert main(["prune", dense, "-o", sparse, "--plan", plan, "-q"]) == 0
    assert main(["verify", sparse, "--target", "amba:cv22", "--level", "60", "--plan", plan]) == 0
    assert main(["verify", sparse, "--target", "amba:cv22", "--level", "30", "--plan", plan]) == 1
    report = tmp_path / "report.json"
    assert main(["verify", sparse, "--target", "amba:cv22", "--json", str(report), "-q"]) == 0
    rows = {row["name"]: row for row in json.loads(report.read_text())["rows"]}
    assert rows["stem"]["target_density"] is not None
    assert rows["head"]["target_density"] is None


def test_a_batch_that_the_file_fixes_is_said():
    def batched(size):
        made = model()
        for value in (*made.graph.input, *made.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = size
        return made

    one, four = (osp.prune(batched(size), target="amba", level=50) for size in (1, 4))
    assert [4 * row.macs for row in one.report.rows] == [row.macs for row in four.report.rows]
    assert not any("divide by" in note for note in one.report.notes)
    for report in (four.report, osp.verify(four.model).report, osp.inspect(batched(4)).report):
        assert any("the file takes 4 at once: for one, divide by 4" in note for note in report.notes)


@pytest.mark.parametrize("loudness", [[], ["-q"]])
def test_the_verdict_says_what_is_not_met(tmp_path, capsys, loudness):
    onnx.save(model(), tmp_path / "dense.onnx")
    dense, plan, sparse = (str(tmp_path / name) for name in ("dense.onnx", "plan.yaml", "sparse.onnx"))
    assert main(["prune", dense, "-o", sparse, "--target", "amba", "--level", "50", "-q"]) == 0
    assert main(["plan", dense, "-o", plan, "--target", "amba", "--level", "70", "-q"]) == 0
    capsys.readouterr()

    def verdict(*options):
        assert main(["verify", sparse, "--target", "amba", *options, *loudness]) == 1
        return next(line for line in capsys.readouterr().out.splitlines() if line.startswith("DOES NOT HOLD"))

    said = verdict("--level", "70")
    assert "4 of 4 weights hold" in said
    assert "level 70 %: more than 1.5 % apart" in said
    assert "network sparsity 50" in said or "network sparsity 49" in said
    assert "more zeros of alive needed" in verdict("--plan", plan)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pattern": "2:4", "level": 50}, "level= belongs to"),
        ({"target": "ampere", "level": 50}, "level= belongs to"),
        ({"target": "amba", "level": 100}, "from 0 to below 100"),
        ({"target": "amba", "level": "many"}, "a level such as 70"),
        ({"target": "amba", "level": 50, "sparsity": 0.5}, "leave one out"),
        ({"target": "amba"}, "a level is needed"),
    ],
)
def test_what_means_nothing(options, said):
    with pytest.raises(osp.OnnxSparseError, match=said):
        osp.prune(model(), **options)


@pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
@pytest.mark.parametrize("asked", [{"sparsity": 0.6}, {"level": 60}])
def test_one_level_is_fine_tuned(tmp_path, asked):
    data = {"x": random(9, 64, 3, 16, 16)}
    result = osp.finetune(
        model(), data=data, output=tmp_path / "sparse.onnx", target="amba:cv22", steps=8, batch_size=8, **asked
    )
    assert any("level 60 %" in note for note in result.report.notes)
    found = osp.verify(tmp_path / "sparse.onnx", target="amba:cv22", level=60)
    assert found.report.ok, found.report.notes
    recipe = (tmp_path / "sparse.recipe.yaml").read_text()
    assert "allocation: energy" in recipe
    assert "sparsity: 0.6" in recipe


@pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
def test_one_level_is_fine_tuned_on_the_command_line(tmp_path):
    source, out, samples = (str(tmp_path / name) for name in ("model.onnx", "sparse.onnx", "x.npz"))
    onnx.save(model(), source)
    np.savez(samples, x=random(9, 64, 3, 16, 16))
    words = ["finetune", source, "-o", out, "--data", samples, "--target", "amba:cv22", "--steps", "8", "-q"]
    assert main([*words, "--batch-size", "8", "--level", "60%"]) == 0
    assert main(["verify", out, "--target", "amba:cv22", "--level", "60", "-q"]) == 0
    assert main([*words, "--overwrite", "--level", "60", "--sparsity", "0.6"]) == 2


def test_what_stays_dense_may_have_zeros_of_its_own():
    """An output that was zero before is no fault of the pruning, and a filterbank is no layer that was pruned."""

    def erase(numbers):
        numbers[7] = 0

    capped = osp.prune(edited(model(), "point", erase), target="amba:cv22", level=50).model
    assert osp.verify(capped).report.ok
    sparse = osp.prune(edited(model(), "point", erase), target="amba", level=50).model
    assert osp.verify(sparse).report.ok

    def erase_another(numbers):
        numbers[3] = 0

    found = osp.verify(edited(sparse, "point", erase_another), target="amba", level=50)
    assert reasons(found.report) == {"point": "2 outputs are zero altogether (3, 7)"}


def test_sizes_that_are_not_inferred_are_seen_in_a_run():
    """A Reshape by numbers that are computed from the shape: inference knows nothing behind it."""
    pytest.importorskip("onnxruntime")
    proto = model()
    nodes = list(proto.graph.node)
    made = [
        make_node("Shape", ["a"], ["shape"], "shape"),
        make_node("ReduceMax", ["a"], ["most"], "most", keepdims=0),
        make_node("Cast", ["most"], ["number"], "number", to=TensorProto.INT64),
        make_node("Mul", ["number", "zero"], ["nothing"], "nothing"),
        make_node("Add", ["shape", "nothing"], ["same"], "same"),
        make_node("Reshape", ["a", "same"], ["turned"], "turn"),
    ]
    nodes[1].input[0] = "turned"
    del proto.graph.node[:]
    proto.graph.node.extend([nodes[0], *made, *nodes[1:]])
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "zero"))
    plain = osp.prune(model(), target="amba", level=50).report
    seen = osp.prune(proto, target="amba", level=50).report
    assert {row.name: row.zeros for row in plain.rows} == {row.name: row.zeros for row in seen.rows}


def test_a_level_below_one_per_cent_was_meant_as_a_share():
    with refusing(osp.OnnxSparseError):
        osp.plan(model(), target="amba", level=0.7)
    with refusing(osp.OnnxSparseError):
        osp.levels(model(), data={}, output="never", levels="0.3,0.4")


def test_a_dimension_that_there_is_not():
    with refusing(osp.OnnxSparseError):
        osp.plan(model(None), target="amba", level=70, dims={"hight": 16})
    with refusing(osp.OnnxSparseError):
        osp.plan(model(), target="amba", level=70, dims={"x.9": 16})


def test_what_is_written_with_commas(tmp_path, capsys):
    onnx.save(model(None), tmp_path / "a.onnx")
    words = ["plan", str(tmp_path / "a.onnx"), "-o", str(tmp_path / "p.yaml"), "--target", "amba", "--level", "50"]
    assert main([*words, "--dim", "h=16,w=16", "--exclude", "head,point"]) == 2
    assert "--exclude head,point matches no weight: write one after the other, head point" in capsys.readouterr().err
    assert main([*words, "--dim", "h=16,w=16", "--exclude", "head", "point"]) == 0


def test_a_narrow_terminal_shows_verdicts_whole(tmp_path, capsys, monkeypatch):
    osp.prune(model(), output=tmp_path / "a.onnx", target="amba:cv22", level=50)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["verify", str(tmp_path / "a.onnx"), "--target", "amba:cv22", "--level", "50"]) == 0
    table = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert "target density" in table[0]
    assert len(table) == 5
    assert all(line.endswith(("holds", "unchecked")) and len(line) <= 80 for line in table[1:])
