"""The joint refit behind a calibration, as `prune --data` has it: nearer to the dense model, under the same masks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxsparse as osp
from onnxsparse.calibration.moves import squared_moves
from onnxsparse.cli import main
from onnxsparse.engines.engine import DivergedError
from onnxsparse.engines.ort import library
from onnxsparse.errors import OptionError
from onnxsparse.passes import calibration_asked
from onnxsparse.passes.calibrate import Calibrated
from onnxsparse.passes.loss_budget import Within
from onnxsparse.passes.quantization.figures import MaxLoss
from onnxsparse.train import joint_refit
from tests.calibration.nets import conv_net, samples

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(not library.available(), reason="training needs onnxruntime-training")
LEVEL: dict[str, Any] = {"pattern": "unstructured", "sparsity": 0.9}
STEPS = 60


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return conv_net(tmp_path_factory.mktemp("net") / "net.onnx")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return samples(tmp_path_factory.mktemp("data") / "data.npz")


@pytest.fixture(scope="module")
def apart(net: Path, data: Path) -> osp.Result:
    return osp.prune(net, data=data, joint_steps=0, **LEVEL)


@pytest.fixture(scope="module")
def joined(net: Path, data: Path) -> osp.Result:
    return osp.prune(net, data=data, joint_steps=STEPS, **LEVEL)


def numbers_of(result: osp.Result) -> dict[str, Any]:
    assert result.model is not None
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in result.model.graph.initializer}


def joint(result: osp.Result) -> Any:
    found: Any = result.report.details["calibration"]
    return found.get("joint")


def distance(net: Path, result: osp.Result) -> float:
    """Between the outputs, on samples that nobody has seen."""
    import onnxruntime

    assert result.model is not None
    images = np.random.default_rng(9).standard_normal((200, 3, 10, 10)).astype(np.float32)
    files = str(net), result.model.SerializeToString()
    dense, ours = (onnxruntime.InferenceSession(file).run(None, {"x": images})[0] for file in files)
    return float(np.square(ours - dense).mean() / dense.var())


def test_it_comes_nearer_to_the_dense_model(net: Path, apart: osp.Result, joined: osp.Result) -> None:
    found = joint(joined)
    assert (found["steps"], found["taken"]) == (STEPS, True)
    assert found["after"] < found["before"]
    assert distance(net, joined) < 0.95 * distance(net, apart)
    assert any(f"refitted together in {STEPS} steps" in note for note in joined.report.notes)
    assert joint(apart) is None


def test_masks_and_what_is_not_pruned_stay(net: Path, apart: osp.Result, joined: osp.Result) -> None:
    dense = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(net).graph.initializer}
    before, after = numbers_of(apart), numbers_of(joined)
    for row in joined.report.rows:
        if row.status == "pruned":
            assert ((after[row.name] == 0) == (before[row.name] == 0)).all()
            assert (after[row.name] != before[row.name]).any()
            assert "refitted together with all layers" in row.reason
            assert "numbers stay" not in row.reason
        else:
            assert (after[row.name] == dense[row.name]).all()
    assert osp.verify(joined.model).report.ok


def test_the_same_bytes_again(net: Path, data: Path, joined: osp.Result, tmp_path: Path) -> None:
    again = osp.prune(net, data=data, joint_steps=STEPS, workers=2, **LEVEL)
    assert joined.model is not None
    assert again.model is not None
    assert again.model.SerializeToString() == joined.model.SerializeToString()
    whole = tmp_path / "run"
    for resume in (False, True):
        kept = osp.prune(net, data=data, joint_steps=STEPS, checkpoint=whole, resume=resume, **LEVEL)
        assert kept.model is not None
        assert kept.model.SerializeToString() == joined.model.SerializeToString()


def test_what_does_harm_is_left_out(net: Path, data: Path, apart: osp.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_refit, "mixed", lambda arrays, *_: {"x": arrays["x"][:4] * 50})
    made = osp.prune(net, data=data, joint_steps=40, **LEVEL)
    assert joint(made)["taken"] is False
    assert any("did not help on samples held out (" in note for note in made.report.notes)
    assert all((one == numbers_of(apart)[name]).all() for name, one in numbers_of(made).items())


def test_what_diverges_is_tried_at_a_smaller_rate(net: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates, walk = list[float](), joint_refit._walk

    def wild(job: Any, engine: Any, steps: int, rate: float) -> None:
        rates.append(rate)
        if len(rates) == 1:
            raise DivergedError("the loss is no finite number")
        walk(job, engine, steps, rate)

    monkeypatch.setattr(joint_refit, "_walk", wild)
    found = joint(osp.prune(net, data=data, joint_steps=40, **LEVEL))
    assert found["taken"] is True
    assert [found["rate"]] == rates[1:] == [rates[0] / joint_refit.SMALLER]


def test_small_networks_have_it_by_default_and_large_ones_not(
    net: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration_asked, "JOINT_STEPS", joint_refit.FEWEST)
    assert joint(osp.prune(net, data=data, **LEVEL))["steps"] == joint_refit.FEWEST
    assert joint(osp.prune(net, data=data, solver="bias", **LEVEL)) is None
    assert joint(osp.prune(net, data=data, sensitivity="measured", **LEVEL)) is None
    monkeypatch.setattr(joint_refit, "WORK", 1e6)
    large = osp.prune(net, data=data, **LEVEL)
    assert joint(large) is None
    assert any(
        "million multiply-accumulates a sample; --joint-steps asks for it" in note for note in large.report.notes
    )


def test_normalization_that_is_kept_goes_along(tmp_path: Path) -> None:
    """Statistics that the sweep estimates anew are in scales and biases then."""
    path = conv_net(tmp_path / "net.onnx")
    model = onnx.load(path)
    draw = np.random.default_rng(3)
    stored = {"scale": 1.0, "shift": 0.0, "mean": 0.1, "variance": 2.0}
    for name, value in stored.items():
        array = (value + 0.1 * draw.random(24)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model.graph.node[1].input[0] = "n1"
    norm = onnx.helper.make_node("BatchNormalization", ["c1", *stored], ["n1"], "norm")
    model.graph.node.insert(1, norm)
    onnx.save(model, path)
    data = samples(tmp_path / "data.npz")
    made, plain = (osp.prune(path, data=data, joint_steps=steps, **LEVEL) for steps in (STEPS, 0))
    assert joint(made)["taken"]
    assert distance(path, made) < distance(path, plain)


def test_within_a_limit_the_figures_are_those_of_what_is_written(net: Path, data: Path) -> None:
    given: dict[str, Any] = {"pattern": "unstructured", "max_loss": 0.3, "metrics": "distance", "data": data}
    made, plain = (osp.prune(net, joint_steps=steps, **given) for steps in (STEPS, 0))
    assert made.report.details["metrics"] != plain.report.details["metrics"]
    limit: Any = made.report.details["max_loss"]
    assert limit["lost"] <= 0.3


def test_wrong_words(net: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match="joint_steps= takes a number from 0 to 1000000, not -1"):
        osp.prune(net, data=data, joint_steps=-1, **LEVEL)
    with pytest.raises(OptionError, match=r"least-squares., not of bias"):
        osp.prune(net, data=data, joint_steps=5, solver="bias", **LEVEL)
    words = [str(net), "--data", str(data), "--pattern", "2:4", "--joint-steps", "5"]
    assert main(["plan", *words, "-o", str(tmp_path / "plan.yaml")]) == 2
    assert "--joint-steps is of refitted weights, and plan refits none" in capsys.readouterr().err
    assert main(["prune", str(net), "--pattern", "2:4", "-o", str(tmp_path / "o.onnx"), "--joint-steps", "5"]) == 2
    assert "--joint-steps needs samples: pass --data" in capsys.readouterr().err


def small_net(
    path: Path, before: list[Any], inputs: list[Any], more: dict[str, Any], batch: int | str = "n", shift: bool = False
) -> Path:
    """Two layers behind the nodes that come `before` them, which give `h` of 16 numbers; `shift` is added to them."""
    draw = np.random.default_rng(4)
    shapes = {"w1": (16, 32), "b1": (32,), "w2": (32, 5)}
    arrays = {name: (draw.standard_normal(shape) * 0.3).astype(np.float32) for name, shape in shapes.items()}
    make = onnx.helper.make_node
    nodes = [
        *before,
        make("MatMul", ["h", "w1"], ["m"], "first"),
        make("Add", ["m", "b1"], ["a"]),
        make("Relu", ["a"], ["r"]),
        make("MatMul", ["r", "w2"], ["z" if shift else "y"], "second"),
        *([make("Add", ["z", "shift"], ["y"])] if shift else []),
    ]
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in {**arrays, **more}.items()]
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [batch, 5])
    graph = onnx.helper.make_graph(nodes, "net", inputs, [output], stored)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def declared(name: str, shape: list[int | str], kind: int = onnx.TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def drawn(*shape: int) -> Any:
    return np.random.default_rng(6).standard_normal(shape).astype(np.float32)


def said(result: osp.Result) -> str:
    return next(note for note in result.report.notes if "refitted together" in note)


ALL: dict[str, Any] = {"pattern": "2:4", "allow": ["stem", "output", "small"], "joint_steps": 20}


@pytest.mark.parametrize("rows", [8, 32, 100])  # the samples that are held out, a batch, and more
def test_an_input_that_all_samples_share_may_be_as_long_as_a_batch(rows: int, tmp_path: Path) -> None:
    make = onnx.helper.make_node
    before = [make("ReduceMean", ["shared"], ["mean"], axes=[0], keepdims=0), make("Add", ["x", "mean"], ["h"])]
    inputs = [declared("x", ["n", 16]), declared("shared", [rows, 16])]
    path = small_net(tmp_path / "net.onnx", before, inputs, {})
    made = osp.prune(path, data={"x": drawn(40, 16), "shared": drawn(rows, 16)}, **ALL)
    assert "refitted together in 20 steps" in said(made)


def test_a_layer_may_read_what_all_samples_share(tmp_path: Path) -> None:
    make = onnx.helper.make_node
    before = [
        make("Identity", ["x"], ["h"]),
        make("MatMul", ["shared", "ws"], ["p"], "of shared"),
        make("ReduceSum", ["p"], ["shift"], keepdims=0),
    ]
    inputs = [declared("x", ["n", 16]), declared("shared", [7, 16])]
    path = small_net(tmp_path / "net.onnx", before, inputs, {"ws": drawn(16, 5)}, shift=True)
    made = osp.prune(
        path, data={"x": drawn(64, 16), "shared": drawn(7, 16)}, **{**ALL, "pattern": "unstructured"}, sparsity=0.6
    )
    assert all(row.status == "pruned" for row in made.report.rows)


@pytest.mark.parametrize("engine", ["ort", pytest.param("torch", id="torch")])
def test_a_file_that_takes_seven_samples_at_once(engine: str, tmp_path: Path) -> None:
    if engine == "torch":
        pytest.importorskip("torch")
    before = [onnx.helper.make_node("Reshape", ["x", "shape"], ["h"])]
    path = small_net(tmp_path / "net.onnx", before, [declared("x", [7, 4, 4])], {"shape": np.array([7, 16])}, 7)
    made = osp.prune(path, data={"x": drawn(40, 4, 4)}, engine=engine, **ALL)
    assert "refitted together in 20 steps" in said(made)


def test_what_all_samples_share_may_not_vary_between_batches(tmp_path: Path) -> None:
    before = [onnx.helper.make_node("Mul", ["x", "factor"], ["h"])]
    path = small_net(tmp_path / "net.onnx", before, [declared("x", ["n", 16]), declared("factor", [])], {})
    batches = [{"x": drawn(32, 16), "factor": np.float32(1 + number)} for number in range(3)]
    made = osp.prune(path, data=lambda: iter(batches), **ALL)
    assert "the layers were not refitted together: 'factor' is not the same in all batches" in said(made)


def test_mixed_samples_that_the_model_refuses(tmp_path: Path) -> None:
    make = onnx.helper.make_node
    before = [make("Sub", ["ids", "offset"], ["place"]), make("Gather", ["table", "place"], ["rows"])]
    before.append(make("ReduceMean", ["rows"], ["h"], axes=[1], keepdims=0))
    inputs = [declared(name, ["n", size], onnx.TensorProto.INT64) for name, size in (("ids", 10), ("offset", 1))]
    path = small_net(tmp_path / "net.onnx", before, inputs, {"table": drawn(20, 16)})
    draw = np.random.default_rng(3)
    offset = draw.integers(0, 1000, (64, 1))
    made = osp.prune(path, data={"ids": offset + draw.integers(0, 20, (64, 10)), "offset": offset}, **ALL)
    assert "the layers were not refitted together: the model does not take samples that are mixed" in said(made)
    assert "correct these samples" not in said(made)


def test_mixed_samples_without_a_loss(tmp_path: Path) -> None:
    make = onnx.helper.make_node
    before = [make("Slice", ["x", "zero", "one", "one"], ["least"]), make("Sub", ["x", "least"], ["above"])]
    before.append(make("Sqrt", ["above"], ["h"]))
    stored = {"zero": np.array([0]), "one": np.array([1])}
    path = small_net(tmp_path / "net.onnx", before, [declared("x", ["n", 16])], stored)
    made = osp.prune(path, data={"x": np.sort(100 * drawn(64, 1) + drawn(64, 16))}, **ALL)
    assert "for samples that are mixed the loss is no finite number" in said(made)


def test_what_no_engine_trains_is_named(tmp_path: Path) -> None:
    """Two normalizations share a scale, so that new statistics cannot be moved into it."""
    make, names = onnx.helper.make_node, ["scale", "shift", "mean", "variance"]
    draw = np.random.default_rng(2)
    stored = {name: (1 + 0.1 * draw.random(16)).astype(np.float32) for name in (*names, "mean2", "variance2")}
    before = [
        make("MatMul", ["x", "w0"], ["c"], "lowest"),
        make("BatchNormalization", ["c", *names], ["n"]),
        make("MatMul", ["n", "w0b"], ["c2"], "next"),
        make("BatchNormalization", ["c2", "scale", "shift", "mean2", "variance2"], ["h"]),
    ]
    stored.update(w0=drawn(16, 16), w0b=drawn(16, 16))
    path = small_net(tmp_path / "net.onnx", before, [declared("x", ["n", 16])], stored)
    made = osp.prune(path, data={"x": drawn(64, 16)}, **ALL)
    assert "the layers were not refitted together: the sweep changed '" in said(made)


def test_a_bias_that_stays_as_it_is_hinders_nothing(tmp_path: Path) -> None:
    """The body of a function reads it, where it does not train."""
    path = small_net(tmp_path / "net.onnx", [], [declared("h", ["n", 16])], {})
    model = onnx.load(path)
    body = [onnx.helper.make_node("MatMul", ["i", "w"], ["p"]), onnx.helper.make_node("Add", ["p", "b"], ["o"])]
    opset = onnx.helper.make_opsetid("", 17)
    model.functions.append(onnx.helper.make_function("own", "Dense", ["i", "w", "b"], ["o"], body, [opset]))
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    del model.graph.node[:2]
    model.graph.node.insert(0, onnx.helper.make_node("Dense", ["h", "w1", "b1"], ["a"], domain="own"))
    onnx.save(model, path)
    plain = osp.prune(path, data={"h": drawn(64, 16)}, **{**ALL, "joint_steps": 0})
    made = osp.prune(path, data={"h": drawn(64, 16)}, **ALL)
    changed = (numbers_of(plain)["b1"] != onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[1])).any()
    assert ("not refitted together" in said(made)) == bool(changed)


def test_beyond_a_limit_it_is_left_out_and_said() -> None:
    limit = MaxLoss.parse("0.1")
    found: Any = Calibrated(None, {"w": np.zeros(2)}, {})  # type: ignore[arg-type]
    moved: Any = Calibrated(None, {"w": np.ones(2)}, {}, {"joint": {"steps": 5, "taken": True, "rate": 0.1}})  # type: ignore[arg-type]

    class Figures:
        def __call__(self, _: object) -> dict[str, float]:
            return {"accuracy": 0.5}

        def lost(self, *_: object) -> float:
            return 0.4

    figures: Any = Figures()
    kept = Within(found, {"accuracy": 0.9}, 0.0, 1).or_else(moved, figures, limit, lambda one: one)  # type: ignore[arg-type, return-value]
    assert kept.found.numbers is found.numbers
    assert kept.found.details["joint"] == {"steps": 5, "taken": False}
    assert "which lost 0.4, more than --max-loss allows: left out" in kept.found.notes[-1]


def test_outputs_of_another_size_moved_by_all_that_they_vary() -> None:
    dense = drawn(9, 4)
    assert squared_moves(2.0, dense, dense[:8]) == pytest.approx(4 * dense.var() * dense.size)


def test_options_in_a_reason_are_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the worker that makes graphs says them, too."""
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("torch takes the model")
    make = onnx.helper.make_node
    path = small_net(tmp_path / "net.onnx", [], [declared("h", ["n", 16])], {"zero": np.float32(0)})
    model = onnx.load(path)
    model.graph.node.append(make("ReduceMax", ["y"], ["top"], axes=[1], keepdims=0))
    model.graph.node.append(make("Greater", ["top", "zero"], ["chosen"]))
    model.graph.node.append(make("Compress", ["y", "chosen"], ["some"], axis=0))
    model.graph.output[0].CopyFrom(declared("some", ["k", 5]))
    onnx.save(model, path)
    np.savez(tmp_path / "data.npz", h=drawn(64, 16))
    words = ["--data", str(tmp_path / "data.npz"), "--pattern", "2:4", "-o", str(tmp_path / "out.onnx")]
    assert main(["prune", str(path), *words]) == 2
    assert "try --engine torch" in capsys.readouterr().err
