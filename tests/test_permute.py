"""`permute` and `channels`: outputs stay, a pattern costs less, what moved is recorded, applied and undone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse.channel_classes import classes
from onnxsparse.channel_classes.permutation import METADATA, Move, MovedTensor, Permutation
from onnxsparse.engines.ort import library
from onnxsparse.errors import LeftOutError, MissingExtraError, ModelError, OptionError, PlanError
from onnxsparse.graph.model import Model
from onnxsparse.passes import compare, permutation_process, permutation_proof, permuting
from onnxsparse.passes.compare import DiedError
from tests.channels.net import session
from tests.messages import refusing

pytest.importorskip("onnxruntime")
pytest.importorskip("scipy")

pytestmark = pytest.mark.usefixtures("short_searches")
WIDTH = 32
Array = Any


@pytest.fixture(autouse=True)
def proof_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process for each proof takes longer than all else here; tests/channels and tests/test_cli.py have it."""

    def at_once(folder: str, module: str, job: dict[str, Any], names: dict[str, str]) -> Any:
        return permutation_process.done(folder, job, lambda *_: None)

    monkeypatch.setattr(permutation_proof, "worked", at_once)


def numbers(name: str, *shape: int) -> Array:
    seed = sum(map(ord, name))
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def mlp(dtype: type = np.float32, names: str = "{}", transposed: bool = False, seed: int = 0) -> ModelProto:
    """Two hidden layers of 32 and 64 channels; every name through `names`; matrices as MatMul or as Gemm have them."""
    sizes = {"one": (16, WIDTH), "two": (WIDTH, 2 * WIDTH), "three": (2 * WIDTH, 16)}
    stored, nodes, flowing = [], [], "x"
    for layer, (inputs, outputs) in sizes.items():
        matrix = (numbers(layer, inputs, outputs) + seed).astype(dtype)
        bias = numbers(layer + "b", outputs).astype(dtype)
        stored += [(names.format(f"{layer}.weight"), matrix.T.copy() if transposed else matrix)]
        stored += [(names.format(f"{layer}.bias"), bias)]
        reads = [flowing, stored[-2][0], stored[-1][0]]
        nodes.append(helper.make_node("Gemm", reads, [f"{layer}.sum"], name=layer, transB=int(transposed)))
        nodes.append(helper.make_node("Relu", [f"{layer}.sum"], [f"{layer}.out"], name=f"{layer}_relu"))
        flowing = f"{layer}.out"
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    values = [helper.make_tensor_value_info(name, kind, ["batch", 16]) for name in ("x", flowing)]
    graph = helper.make_graph(nodes, "mlp", values[:1], values[1:], [numpy_helper.from_array(a, n) for n, a in stored])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def outputs(model: ModelProto | str | Path, batch: int = 4) -> list[Array]:
    proto = model if isinstance(model, ModelProto) else onnx.load(model)
    run = session(proto)
    x = (
        np.random.default_rng(5)
        .standard_normal((batch, 16))
        .astype(helper.tensor_dtype_to_np_dtype(proto.graph.input[0].type.tensor_type.elem_type))
    )
    found: list[Array] = run.run(None, {run.get_inputs()[0].name: x})
    return found


def stored(model: ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def record(model: ModelProto) -> Permutation:
    (text,) = (entry.value for entry in model.metadata_props if entry.key == METADATA)
    return Permutation.unpacked(text, "a test")


def assert_permuted(before: ModelProto, after: ModelProto, tolerance: float = 1e-5) -> None:
    """The record made the file from what it was, and its inverse gives the bytes back; the outputs are the same."""
    old, new, whole = stored(before), stored(after), record(after)
    made, back = whole.apply(old), whole.inverse().apply(new)
    for name in old:
        assert made[name].tobytes() == new[name].tobytes(), name
        assert back[name].tobytes() == old[name].tobytes(), name
    for one, other in zip(outputs(before), outputs(after)):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * float(np.abs(one).max()))


def figures(result: osp.Result) -> dict[str, dict[str, float]]:
    found: Any = result.report.details["permutation"]
    return {one["name"]: one for one in found["weights"]}


# -- what it does


def test_the_outputs_stay_and_the_pattern_keeps_more() -> None:
    dense = mlp()
    bytes_before = dense.SerializeToString()
    result = osp.permute(dense)
    assert result.model is not None
    assert dense.SerializeToString() == bytes_before
    assert_permuted(dense, result.model)
    found = figures(result)
    assert [name for name, one in found.items() if one["after"] > one["before"]] == ["two.weight", "three.weight"]
    assert {row.name: row.status for row in result.report.rows} == {
        "one.weight": "moved", "two.weight": "permuted", "three.weight": "permuted",
    }  # fmt: skip
    assert result.report.details["permutation"]["proven"] is True  # type: ignore[index]


def test_the_figures_are_those_of_the_files() -> None:
    """The share that 2:4 keeps, before and after, by sorting groups of four; and the efficacy of it."""
    dense = mlp()
    result = osp.permute(dense, effort="thorough", seed=3)
    assert result.model is not None
    for name, one in figures(result).items():
        shares = []
        for model in (dense, result.model):
            groups = np.abs(stored(model)[name]).T.reshape(-1, 4).astype(np.float64)
            shares.append(np.sort(groups, axis=1)[:, 2:].sum() / groups.sum())
        assert [one["before"], one["after"]] == pytest.approx(shares, rel=1e-6)
        flat = np.sort(np.abs(stored(dense)[name]), axis=None).astype(np.float64)
        assert one["unstructured"] == pytest.approx(flat[flat.size // 2 :].sum() / flat.sum(), rel=1e-6)
        gain = (one["after"] - one["before"]) / (one["unstructured"] - one["before"])
        assert one["efficacy"] == pytest.approx(gain)


@pytest.mark.parametrize("pattern", ["2:4:transposable", "2:4:transposable-greedy"])
def test_a_pattern_along_both_axes_is_counted_by_its_own_masks(pattern: str) -> None:
    """The order is searched along the inputs, and kept only where the masks of `prune` keep more."""
    dense = mlp()
    result, sparse = osp.permute(dense, pattern=pattern), osp.prune(dense, pattern=pattern, permute=True).model
    plain = osp.prune(dense, pattern=pattern).model
    assert plain is not None
    assert sparse is not None
    assert "searched for 2:4 along the inputs" in "".join(result.report.notes)
    kept = [0.0, 0.0]
    for name, one in figures(result).items():
        sizes = [np.abs(stored(model)[name]).sum(dtype=np.float64) for model in (plain, sparse)]
        whole = np.abs(stored(dense)[name])
        assert [one["before"], one["after"]] == pytest.approx([size / whole.sum() for size in sizes], rel=1e-5), name
        largest = np.sort(whole, axis=None)[whole.size // 2 :].sum() / whole.sum()
        assert one["unstructured"] == pytest.approx(largest, rel=1e-5)
        kept = [known + size for known, size in zip(kept, sizes)]
    assert kept[1] > kept[0]
    assert result.model is not None
    assert_permuted(dense, result.model)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / f"{place}.onnx" for place in range(3)]
    for path, seed in zip(paths, (7, 7, 8)):
        osp.permute(mlp(), output=path, seed=seed)
    assert paths[0].read_bytes() == paths[1].read_bytes() != paths[2].read_bytes()


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_types(dtype: type) -> None:
    dense = mlp(dtype)
    result = osp.permute(dense)
    assert result.model is not None
    assert_permuted(dense, result.model, {np.float16: 1e-2, np.float64: 1e-12}[dtype])


def constants(model: ModelProto, listed: bool) -> ModelProto:
    """The tensors as Constant nodes; vectors as lists of floats where that is asked for."""
    made = ModelProto()
    made.CopyFrom(model)
    del made.graph.initializer[:]
    nodes = []
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        more = {"value_floats": array.tolist()} if listed and array.ndim == 1 else {"value": tensor}
        nodes.append(helper.make_node("Constant", [], [tensor.name], **more))
    old = [*made.graph.node]
    del made.graph.node[:]
    made.graph.node.extend([*nodes, *old])
    return made


@pytest.mark.parametrize("listed", [False, True])
def test_constant_nodes_move_as_initializers_do(listed: bool) -> None:
    dense, plain = constants(mlp(), listed), osp.permute(mlp()).model
    made = osp.permute(dense).model
    assert made is not None
    assert plain is not None
    for one, other in zip(outputs(dense), outputs(made)):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4)
    table = {node.output[0]: node.attribute[0] for node in made.graph.node if node.op_type == "Constant"}
    for name, wanted in stored(plain).items():
        one = table[name]
        array = np.array(one.floats, np.float32) if one.floats else numpy_helper.to_array(one.t)
        assert array.tobytes() == wanted.tobytes(), name


def test_data_beside_the_model_streams_and_stays_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxsparse.passes import permute

    monkeypatch.setattr(permute, "WHOLE", 64)
    monkeypatch.setattr(permute, "PIECE", 100)
    dense = mlp()
    path, out = tmp_path / "dense.onnx", tmp_path / "out.onnx"
    onnx.save(dense, path, save_as_external_data=True, location="dense.bin", size_threshold=0)
    osp.permute(path, output=out)
    assert (tmp_path / "out.onnx.data").stat().st_size == (tmp_path / "dense.bin").stat().st_size
    plain = osp.permute(mlp()).model
    assert plain is not None
    made = onnx.load(out)
    assert {name: one.tobytes() for name, one in stored(made).items()} == {
        name: one.tobytes() for name, one in stored(plain).items()
    }


def test_two_names_of_the_same_bytes_move_together(tmp_path: Path) -> None:
    """A layer that is run twice, its matrix under two names for one place in the data file."""
    dense = mlp()
    graph = dense.graph
    square = numbers("square", WIDTH, WIDTH)
    graph.initializer.extend([numpy_helper.from_array(square, name) for name in ("again.a", "again.b")])
    nodes = [*graph.node]
    del graph.node[:]
    again = [
        helper.make_node("MatMul", ["one.out", "again.a"], ["a"], name="a"),
        helper.make_node("Relu", ["a"], ["ra"], name="ra"),
        helper.make_node("MatMul", ["ra", "again.b"], ["b"], name="b"),
        helper.make_node("Relu", ["b"], ["rb"], name="rb"),
    ]
    nodes[2].input[0] = "rb"
    graph.node.extend([*nodes[:2], *again, *nodes[2:]])
    path = tmp_path / "dense.onnx"
    onnx.save(dense, path, save_as_external_data=True, location="dense.bin", size_threshold=0)
    held = onnx.load(path, load_external_data=False)
    places = {tensor.name: tensor for tensor in held.graph.initializer}
    del places["again.b"].external_data[:]
    places["again.b"].external_data.extend(places["again.a"].external_data)
    onnx.save(held, path)
    out = tmp_path / "out.onnx"
    osp.permute(path, output=out)
    made = onnx.load(out)
    assert stored(made)["again.a"].tobytes() == stored(made)["again.b"].tobytes() != square.tobytes()
    assert {"again.a", "again.b"} <= set(record(made).tensors)
    for one, other in zip(outputs(path), outputs(out)):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * float(np.abs(one).max()))


# -- the record


def test_the_record_is_of_all_that_moved() -> None:
    """A file that is permuted again records what has moved since the first order; what is undone is forgotten."""
    dense = mlp()
    once, other = osp.permute(dense, seed=1).model, osp.permute(dense, pattern="1:4").model
    assert once is not None
    assert other is not None
    twice = osp.permute(once, apply=record(other)).model
    assert twice is not None
    assert_permuted(dense, twice)
    again = osp.permute(twice, pattern="1:4", seed=9).model
    assert again is not None
    assert_permuted(dense, again)
    back = osp.permute(again, apply=record(again).inverse()).model
    assert back is not None
    assert not any(entry.key == METADATA for entry in back.metadata_props)
    assert {name: one.tobytes() for name, one in stored(back).items()} == {
        name: one.tobytes() for name, one in stored(dense).items()
    }


def test_the_record_survives_what_comes_after(tmp_path: Path) -> None:
    permuted = tmp_path / "permuted.onnx"
    osp.permute(mlp(), output=permuted)
    (text,) = (entry.value for entry in onnx.load(permuted).metadata_props if entry.key == METADATA)
    masked, folded, sparse = (tmp_path / f"{name}.onnx" for name in ("masked", "folded", "sparse"))
    osp.insert_masks(permuted, output=masked, pattern="2:4")
    osp.fold_masks(masked, output=folded)
    osp.prune(permuted, output=sparse, pattern="2:4")
    for path in (masked, folded, sparse):
        assert [entry.value for entry in onnx.load(path).metadata_props if entry.key == METADATA] == [text]
    assert osp.verify(folded).report.ok


def test_the_file_of_a_permutation(tmp_path: Path) -> None:
    out, file = tmp_path / "out.onnx", tmp_path / "permutation.json"
    osp.permute(mlp(), output=out, save_permutation=file)
    assert json.loads(file.read_text())["pattern"] == "2:4"
    assert_permuted(mlp(), onnx.load(out))
    assert Permutation.load(file).to_json() == record(onnx.load(out)).to_json()
    with refusing(osp.OnnxSparseError):
        osp.permute(mlp(), save_permutation=file)


@pytest.mark.parametrize("other", ["model", "data", "output", "output's data", "scores", "applied", "-"])
def test_the_file_of_a_permutation_replaces_no_other_file_of_the_command(other: str, tmp_path: Path) -> None:
    dense, out, first = tmp_path / "dense.onnx", tmp_path / "out.onnx", tmp_path / "first.onnx"
    onnx.save(mlp(), dense, save_as_external_data=True, location="dense.data", size_threshold=0)
    onnx.save(osp.permute(mlp()).model, first)
    scores = {name: np.abs(one) for name, one in stored(mlp()).items() if one.ndim == 2}
    np.savez(tmp_path / "scores.npz", **scores)
    (tmp_path / "link").symlink_to(tmp_path)
    file = {
        "model": tmp_path / "link" / "dense.onnx",
        "data": tmp_path / "dense.data",
        "output": tmp_path / "link" / "out.onnx",
        "output's data": tmp_path / "out.onnx.data",
        "scores": tmp_path / "scores.npz",
        "applied": first,
        "-": "-",
    }[other]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    given: dict[str, Any] = {"scores": tmp_path / "scores.npz"} if other == "scores" else {"apply": first}
    with refusing(OptionError):
        osp.permute(dense, output=out, save_permutation=file, overwrite=True, **given)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


# -- the same order elsewhere


def test_a_teacher_gets_the_same_order(tmp_path: Path) -> None:
    """By the file, by the permuted model, and by the record at hand: other numbers, the same places."""
    out, file, teacher = tmp_path / "out.onnx", tmp_path / "permutation.json", mlp(seed=1)
    osp.permute(mlp(), output=out, save_permutation=file)
    made = [osp.permute(teacher, apply=one).model for one in (file, out, onnx.load(out), record(onnx.load(out)))]
    for one in made:
        assert one is not None
        assert_permuted(teacher, one)
        assert record(one).to_json() == record(onnx.load(out)).to_json()


@pytest.mark.parametrize("transposed", [False, True])
def test_a_newer_export_has_other_names(transposed: bool) -> None:
    """The order of the channels is that of the first export, whatever its tensors are called, and how they lie."""
    first = osp.permute(mlp()).model
    assert first is not None
    newer = mlp(names="onnx::{}_7" if not transposed else "{}", transposed=transposed)
    made = osp.permute(newer, apply=record(first)).model
    assert made is not None
    for one, other in zip(stored(first).values(), stored(made).values()):
        assert (other.T if transposed and one.ndim == 2 else other).tobytes() == (
            one.T.copy().T if transposed and one.ndim == 2 else one
        ).tobytes()
    assert_permuted(newer, made)


def test_a_record_that_is_not_legal_is_refused() -> None:
    permuted = osp.permute(mlp()).model
    assert permuted is not None
    whole = record(permuted)
    torn = Permutation({**whole.tensors, "two.weight": whole.inverse().tensors["two.weight"]}, whole.facts)
    with refusing(OptionError):
        osp.permute(mlp(), apply=torn)
    blocked = mlp()
    blocked.graph.output.append(helper.make_tensor_value_info("one.out", TensorProto.FLOAT, ["batch", WIDTH]))
    with refusing(OptionError):
        osp.permute(blocked, apply=whole)
    with refusing(OptionError):
        osp.permute(
            mlp(names="other.{}", transposed=False),
            apply=Permutation({"w": MovedTensor("w", (7,), (Move((0,), np.arange(7)[::-1]),))}),
        )


@pytest.mark.parametrize("order", [[1, 0], [0, 0], [1, 0] * 8, [[1, 0], [0, 1]]])
def test_a_permutation_put_together_by_hand_has_to_fit_its_tensors(order: Any) -> None:
    made = Permutation({"one.bias": MovedTensor("one.bias", (WIDTH,), (Move((0,), np.array(order)),))})
    with refusing(OptionError):
        osp.permute(mlp(), apply=made)


@pytest.mark.parametrize("option", ["output", "save_permutation", "apply", "scores"])
def test_a_path_with_a_zero_byte_is_one_line(option: str) -> None:
    with refusing(OptionError):
        osp.permute(mlp(), **{option: "a\0"})


def test_what_has_another_name_moves_with_its_channels() -> None:
    """A head that the record does not know moves with the layer before it; one of another shape is refused."""
    first, teacher, wider = osp.permute(mlp()).model, mlp(seed=1), mlp(seed=1)
    assert first is not None
    head = next(one for one in teacher.graph.initializer if one.name == "three.weight")
    head.name = next(node for node in teacher.graph.node if node.name == "three").input[1] = "head"
    result = osp.permute(teacher, apply=record(first))
    assert result.model is not None
    assert "'three.weight'" in "".join(result.report.notes)
    assert_permuted(teacher, result.model)
    moved = record(first).tensors["three.weight"](stored(teacher)["head"])
    assert moved.tobytes() == stored(result.model)["head"].tobytes()
    head = next(one for one in wider.graph.initializer if one.name == "three.weight")
    head.CopyFrom(numpy_helper.from_array(numbers("wide", 2 * WIDTH, 24), "three.weight"))
    bias = next(one for one in wider.graph.initializer if one.name == "three.bias")
    bias.CopyFrom(numpy_helper.from_array(numbers("wider", 24), "three.bias"))
    wider.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 24
    with refusing(OptionError):
        osp.permute(wider, apply=record(first))


def renamed(model: ModelProto, names: dict[str, str]) -> ModelProto:
    for tensor in model.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    return model


def test_a_record_of_which_a_part_is_missing_is_refused() -> None:
    """The second hidden layer and the head are there; a narrower first one has taken the place of the other."""
    first, narrow = osp.permute(mlp()).model, mlp(seed=1)
    assert first is not None
    by_name = {one.name: one for one in narrow.graph.initializer}
    by_name["one.weight"].CopyFrom(numpy_helper.from_array(numbers("a", 16, 24), "one.weight"))
    by_name["one.bias"].CopyFrom(numpy_helper.from_array(numbers("b", 24), "one.bias"))
    by_name["two.weight"].CopyFrom(numpy_helper.from_array(numbers("c", 24, 2 * WIDTH), "two.weight"))
    renamed(narrow, {"one.weight": "narrow", "one.bias": "narrow.bias", "two.weight": "matrix"})
    with refusing(OptionError) as caught:
        osp.permute(narrow, apply=record(first))
    assert all(f"'{name}'" in str(caught.value) for name in ("one.weight", "one.bias", "two.weight"))
    assert "'two.bias'" not in str(caught.value)


@pytest.mark.parametrize("kinds", [["weight"], ["bias"], ["weight", "bias"]])
def test_a_newer_export_may_rename_a_part_of_the_tensors(kinds: list[str]) -> None:
    first, newer = osp.permute(mlp()).model, mlp(seed=1)
    assert first is not None
    layers = ("one", "two", "three")
    names = {f"{layer}.{kind}": f"onnx::{layer}_{kind}" for layer in layers for kind in kinds}
    made = osp.permute(renamed(newer, names), apply=record(first)).model
    assert made is not None
    moved = record(first).apply(stored(mlp(seed=1)))
    for name, one in moved.items():
        assert stored(made)[names.get(name, name)].tobytes() == one.tobytes(), name


def test_what_names_do_not_tell_shapes_do() -> None:
    """The names of the head alone are those of the record, which say nothing of the first hidden layer."""
    first = osp.permute(mlp()).model
    assert first is not None
    names = {name: f"newer.{name}" for name in ("one.weight", "one.bias", "two.weight", "two.bias")}
    made = osp.permute(renamed(mlp(seed=1), names), apply=record(first)).model
    assert made is not None
    moved = record(first).apply(stored(mlp(seed=1)))
    for name, one in moved.items():
        assert stored(made)[names.get(name, name)].tobytes() == one.tobytes(), name


def test_the_same_record_is_not_applied_twice(tmp_path: Path) -> None:
    """Whatever the tensors of the file are called; its inverse puts them back."""
    out, file = tmp_path / "out.onnx", tmp_path / "permutation.json"
    osp.permute(mlp(), output=out, save_permutation=file)
    for again in (file, out):
        with refusing(OptionError):
            osp.permute(out, apply=again)
    other = osp.permute(mlp(names="other.{}"), apply=file).model
    with refusing(OptionError):
        osp.permute(other, apply=file)
    back = osp.permute(out, apply=Permutation.load(file).inverse()).model
    assert back is not None
    assert {name: one.tobytes() for name, one in stored(back).items()} == {
        name: one.tobytes() for name, one in stored(mlp()).items()
    }


def test_a_fine_tune_keeps_the_record() -> None:
    if not library.available():
        pytest.skip("needs onnxruntime-training")
    permuted = osp.permute(mlp()).model
    assert permuted is not None
    data = {"x": np.random.default_rng(0).standard_normal((64, 16)).astype(np.float32)}
    trained = osp.finetune(permuted, data=data, pattern="2:4", steps=2).model
    assert trained is not None
    assert record(trained).to_json() == record(permuted).to_json()


# -- proof


def wrong_rule(monkeypatch: pytest.MonkeyPatch, operator: str) -> None:
    """A rule that takes an operator for an elementwise one."""
    known = classes.table()
    monkeypatch.setattr(classes, "table", lambda: {**known, ("", operator): known["", "Relu"]})


def with_sums(model: ModelProto, layer: str) -> ModelProto:
    """The model with a cumulative sum over the channels of a layer."""
    made = ModelProto()
    made.CopyFrom(model)
    at = next(place for place, node in enumerate(made.graph.node) if node.name == layer) + 1
    nodes = [*made.graph.node]
    made.graph.initializer.append(numpy_helper.from_array(np.array(1), "axis"))
    sums = helper.make_node("CumSum", [f"{layer}.sum", "axis"], [f"{layer}.summed"], name="sums")
    nodes[at].input[0] = f"{layer}.summed"
    del made.graph.node[:]
    made.graph.node.extend([*nodes[:at], sums, *nodes[at:]])
    return made


def test_a_class_that_fails_the_proof_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_rule(monkeypatch, "CumSum")
    dense = with_sums(mlp(), "two")
    result = osp.permute(dense)
    assert result.model is not None
    (rolled,) = result.report.details["permutation"]["rolled_back"]  # type: ignore[index]
    assert rolled["size"] == 2 * WIDTH
    assert "three.weight" in rolled["members"]
    assert "rolled back" in result.report.row("three.weight").reason
    assert figures(result)["two.weight"]["after"] > figures(result)["two.weight"]["before"]
    assert_permuted(dense, result.model)
    assert set(record(result.model).tensors) == {"one.weight", "one.bias", "two.weight"}


def test_a_record_is_applied_as_a_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a class of it fails the proof, a part of the order would be that of neither model."""
    first = osp.permute(mlp()).model
    assert first is not None
    wrong_rule(monkeypatch, "CumSum")
    with pytest.raises(PlanError, match="outputs change with the order of 'two"):
        osp.permute(with_sums(mlp(), "two"), apply=record(first))


def test_where_nothing_is_left_the_file_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_rule(monkeypatch, "CumSum")
    dense = with_sums(with_sums_of_one(mlp()), "two")
    dense.graph.output[0].name = "three.sum"
    result = osp.permute(dense)
    assert result.model is not None
    assert len(result.report.details["permutation"]["rolled_back"]) == 2  # type: ignore[index]
    assert result.model.SerializeToString() == dense.SerializeToString()
    assert any("nothing is left to move" in note for note in result.report.notes)


def with_sums_of_one(model: ModelProto) -> ModelProto:
    made = with_sums(model, "one")
    made.graph.initializer[-1].name = "axis_of_one"
    for node in made.graph.node:
        if node.op_type == "CumSum":
            node.name, node.input[1] = "sums_of_one", "axis_of_one"
    return made


@pytest.mark.parametrize("operator", ["Round", "Sign", "ArgMax"])
def test_a_model_that_jumps_is_held_to_what_rounding_does(operator: str) -> None:
    """Its outputs are steps: most elements are equal, and those at an edge are no fault of the order."""
    dense = mlp()
    more = {"axis": 1} if operator == "ArgMax" else {}
    dense.graph.node.append(helper.make_node(operator, ["three.sum"], ["steps"], name="steps", **more))
    dense.graph.output[0].name = "steps"
    if operator == "ArgMax":
        kind = dense.graph.output[0].type.tensor_type
        kind.elem_type = TensorProto.INT64
        kind.shape.dim[1].dim_value = 1
    result = osp.permute(dense)
    assert not result.report.details["permutation"]["rolled_back"]  # type: ignore[index]
    assert result.report.totals.done == 2


def test_open_sizes_are_run_with_others_than_were_analysed() -> None:
    result = osp.permute(mlp())
    proof: Any = result.report.details["permutation"]["proof"]  # type: ignore[index]
    assert [one["x"] for one in proof["shapes"]] == [[2, 16], [1, 16], [3, 16]]


def ending_in(*steps: NodeProto, keep: bool = False, **constants: Array) -> ModelProto:
    """The model with more operators behind it, and the output of the last, beside the former if that is kept."""
    made = mlp()
    made.graph.node.extend(steps)
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(one), name) for name, one in constants.items())
    last = helper.make_tensor_value_info(steps[-1].output[0], TensorProto.FLOAT, None)
    if not keep:
        del made.graph.output[:]
    made.graph.output.append(last)
    return made


def binary(operator: str, constant: str) -> NodeProto:
    return helper.make_node(operator, ["three.sum", constant], ["end"], name="last")


IDLE = {
    "nan": ending_in(binary("Mul", "c"), c=np.float32(np.nan)),
    "infinite": ending_in(binary("Add", "c"), c=np.float32(np.inf)),
    "constant": ending_in(binary("Mul", "c"), c=np.float32(0)),
    "nearly constant": ending_in(binary("Add", "c"), c=np.float32(1e30)),
    "empty": ending_in(helper.make_node("Slice", ["three.sum", "c", "c", "axis"], ["end"]), c=[0], axis=[1]),
}


@pytest.mark.parametrize("kind", list(IDLE))
def test_outputs_that_are_the_same_for_all_inputs_prove_nothing(kind: str) -> None:
    with refusing(ModelError):
        osp.permute(IDLE[kind])
    result = osp.permute(IDLE[kind], unproven=True)
    assert result.report.details["permutation"]["proven"] is False  # type: ignore[index]


def test_an_output_that_proves_nothing_beside_one_that_does_is_named() -> None:
    result = osp.permute(ending_in(binary("Mul", "c"), keep=True, c=np.float32(np.nan)))
    proof: Any = result.report.details["permutation"]["proof"]  # type: ignore[index]
    assert proof["uninformative"] == ["output 'end' is NaN for all random inputs"]
    assert "output 'end' is NaN for all random inputs: it proves nothing" in str(result)


@pytest.mark.parametrize("scale", [10.0, 0.3])
def test_a_random_output_is_told_from_rounding(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process draws other numbers."""
    monkeypatch.setattr(permutation_proof, "worked", compare.worked)
    noise = helper.make_node("RandomNormalLike", ["three.sum"], ["drawn"], name="noise", scale=scale)
    with pytest.raises(ModelError, match=r"'end' is random.*RandomNormalLike 'noise'.*unproven=True"):
        osp.permute(ending_in(noise, helper.make_node("Add", ["three.sum", "drawn"], ["end"])))


def test_without_a_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permutation_proof.importlib.util, "find_spec", lambda name: None)
    with refusing(MissingExtraError):
        osp.permute(mlp())
    result = osp.permute(mlp(), unproven=True)
    assert result.model is not None
    assert record(result.model).facts["proven"] is False
    assert_permuted(mlp(), result.model)
    assert "NOT proven" in str(result)


# -- scores


def test_scores_decide_in_place_of_magnitudes(tmp_path: Path) -> None:
    dense = mlp()
    scores = {name: np.abs(numbers(name + "s", *one.shape)) for name, one in stored(dense).items() if one.ndim == 2}
    np.savez(tmp_path / "scores.npz", **scores)
    results = [osp.permute(dense, scores=one) for one in (scores, tmp_path / "scores.npz")]
    made = [one.model.SerializeToString() for one in results if one.model is not None]
    assert made[0] == made[1]
    assert made[0] != osp.permute(dense).model.SerializeToString()  # type: ignore[union-attr]
    one = figures(results[0])["two.weight"]
    groups = scores["two.weight"].T.reshape(-1, 4).astype(np.float64)
    assert one["before"] == pytest.approx(np.sort(groups, axis=1)[:, 2:].sum() / groups.sum())


def test_masks_of_prune_are_by_the_scores_that_moved_along() -> None:
    dense = mlp()
    scores = {name: np.abs(numbers(name + "s", *one.shape)) for name, one in stored(dense).items() if one.ndim == 2}
    made = osp.prune(dense, pattern="2:4", permute=True, scores=scores).model
    assert made is not None
    moved = record(made).apply(scores)
    for name, one in moved.items():
        groups = one.T.reshape(-1, 4)
        keep = np.argsort(np.argsort(groups, axis=1), axis=1) > 1
        assert ((stored(made)[name].T.reshape(-1, 4) != 0) == keep).all(), name


@pytest.mark.parametrize(
    "scores",
    [
        {"two.wieght": np.ones((WIDTH, 64))},
        {"two.weight": np.ones((WIDTH, 64))},
        {name: -np.abs(one) for name, one in stored(mlp()).items() if one.ndim == 2},
        {name: np.abs(one).T for name, one in stored(mlp()).items() if one.ndim == 2},
        {name: one.astype(str) for name, one in stored(mlp()).items() if one.ndim == 2},
        {name: np.full(one.shape, 1.7e308) for name, one in stored(mlp()).items() if one.ndim == 2},
        "no-such-file.npz",
    ],
)
def test_scores_that_do_not_fit_are_one_line(scores: Any) -> None:
    with refusing(OptionError):
        osp.permute(mlp(), scores=scores)


# -- prune


def test_prune_permutes_first() -> None:
    plain, better = osp.prune(mlp(), pattern="2:4"), osp.prune(mlp(), pattern="2:4", permute=True)
    assert better.model is not None
    assert plain.model is not None
    assert osp.verify(better.model).report.ok
    kept = [np.abs(stored(one)["three.weight"]).sum() for one in (plain.model, better.model)]
    assert kept[1] > kept[0]
    whole = record(better.model)
    dense = whole.apply(stored(mlp()))
    for name, one in stored(better.model).items():
        assert ((one == dense[name]) | (one == 0)).all(), name


@pytest.mark.parametrize(
    "given",
    [
        {"pattern": "unstructured", "sparsity": 0.5, "permute": True},
        {"pattern": "2:4", "permute": True, "masks": {}},
        {"pattern": "2:4", "scores": {}},
        {"pattern": "2:4", "unproven": True},
        {"pattern": "2:4", "permute": True, "effort": "slow"},
        {"pattern": "2:4", "effort": "thorough"},
        {"permute": True},
        {"permute": True, "pattern": "2:4", "sparsity": 0.5},
        {"permute": True, "pattern": "2:4", "include": [1]},
        {"permute": True, "target": "ampere", "strict": True, "exclude": "*"},
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permuting, "best_orders", lambda *_: pytest.fail("it was searched"))
    with refusing(OptionError, LeftOutError):
        osp.prune(mlp(), **given)


def test_a_pruned_model_is_not_torn() -> None:
    pruned = osp.prune(mlp(), pattern="2:4").model
    assert pruned is not None
    with refusing(OptionError):
        osp.permute(pruned, pattern="1:4")


def halved(model: ModelProto, name: str, group: int) -> ModelProto:
    """The model with half of each group of zeros in one matrix (inputs, outputs), and no record of it."""
    tensor = next(one for one in model.graph.initializer if one.name == name)
    groups = numpy_helper.to_array(tensor).T.reshape(-1, group).copy()
    np.put_along_axis(groups, np.argsort(np.abs(groups), axis=1)[:, : group // 2], 0, axis=1)
    tensor.CopyFrom(numpy_helper.from_array(groups.reshape(tensor.dims[1], -1).T.copy(), name))
    return model


@pytest.mark.parametrize("group", [4, 8])
def test_groups_of_zeros_that_nothing_records_are_not_torn(group: int) -> None:
    """A layer that another tool pruned holds its channels; the others find their order."""
    first, sparse = osp.permute(mlp()).model, halved(mlp(), "two.weight", group)
    assert first is not None
    sparse.graph.initializer.append(numpy_helper.from_array(20 * numbers("side", WIDTH, 48), "side.weight"))
    sparse.graph.node.append(helper.make_node("MatMul", ["one.out", "side.weight"], ["side"], name="side"))
    sparse.graph.output.append(helper.make_tensor_value_info("side", TensorProto.FLOAT, ["batch", 48]))
    with refusing(OptionError):
        osp.permute(sparse, apply=record(first))
    for pattern in ("2:4", "1:4"):
        result = osp.permute(sparse, pattern=pattern)
        assert result.model is not None
        assert f"'two.weight' is {group // 2}:{group} already" in " ".join(result.report.notes)
        assert (stored(result.model)["two.weight"].T.reshape(-1, group) == 0).sum(axis=1).min() == group // 2
        assert figures(result)["three.weight"]["after"] > figures(result)["three.weight"]["before"]
        assert_permuted(sparse, result.model)


# -- channels


def test_classes_and_what_blocks_the_rest() -> None:
    report = osp.channels(mlp()).report
    found: Any = report.details["classes"]
    assert [(one["size"], one["readers"]) for one in found] == [(WIDTH, ["two.weight"]), (2 * WIDTH, ["three.weight"])]
    assert found[0]["members"] == [
        {"tensor": "one.weight", "axes": [1], "numbers": 16},
        {"tensor": "one.bias", "axes": [0], "numbers": 1},
        {"tensor": "two.weight", "axes": [0], "numbers": 64},
    ]
    assert [row.status for row in report.rows] == ["blocked", "free", "free"]
    assert "inputs keep their order" in report.row("one.weight").advice


def test_an_operator_without_a_rule_is_named() -> None:
    report = osp.channels(with_sums(mlp(), "two")).report
    assert [row.status for row in report.rows] == ["blocked", "free", "blocked"]
    assert "CumSum 'sums'" in report.row("three.weight").reason
    assert report.row("three.weight").advice


def test_the_function_keeps_its_name_beside_the_room() -> None:
    from onnxsparse.channel_classes.labels import Labels

    assert Labels
    assert osp.channels.__name__ == "channels"
    assert osp.channels(mlp()).report.command == "channels"


# -- interruption


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(permutation_proof, "worked", stop)
    return iter(())  # type: ignore[return-value]


def test_an_interrupted_run_leaves_nothing(tmp_path: Path, interrupted: object) -> None:
    with pytest.raises(KeyboardInterrupt):
        osp.permute(mlp(), output=tmp_path / "out.onnx", save_permutation=tmp_path / "out.json")
    assert not list(tmp_path.iterdir())


# -- what the runtime does not take


def test_a_model_that_does_not_run_is_not_proven() -> None:
    """It is refused, with the way out; then it is permuted as the record says."""
    dense = mlp()
    dense.graph.node.append(helper.make_node("Nobody", ["three.out"], ["y"], name="own", domain="own"))
    dense.opset_import.append(helper.make_opsetid("own", 1))
    dense.graph.output[0].name = "y"
    with pytest.raises(ModelError, match="unproven=True"):
        osp.permute(dense)
    result = osp.permute(dense, unproven=True)
    assert result.model is not None
    assert record(result.model).facts["proven"] is False


def test_sizes_that_the_runtime_dies_of_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    real = permutation_process.done

    def dying(folder: str, module: str, job: dict[str, Any], names: dict[str, str]) -> Any:
        for place, case in enumerate(job["cases"]):
            if job["job"] == "reference" and case["shapes"]["x"][0] == 2:
                death = DiedError("onnxruntime died")
                death.place = place
                raise death
        return real(folder, job, lambda *_: None)

    monkeypatch.setattr(permutation_proof, "worked", dying)
    proof: Any = osp.permute(mlp()).report.details["permutation"]["proof"]  # type: ignore[index]
    assert [one["x"] for one in proof["shapes"]] == [[1, 16], [3, 16]]


@pytest.mark.parametrize("name", ["one.weight", "one.bias", "two.weight", "two.bias", "three.weight", "three.bias"])
def test_two_numbers_at_the_wrong_place_are_seen(name: str, tmp_path: Path) -> None:
    """The proof is not blind: two rows of one tensor alone that change places."""
    path, wrong = tmp_path / "dense.onnx", mlp()
    onnx.save(wrong, path)
    (tensor,) = (one for one in wrong.graph.initializer if one.name == name)
    array = numpy_helper.to_array(tensor).copy()
    array[[0, 1]] = array[[1, 0]]
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    onnx.save(wrong, tmp_path / "wrong.onnx")
    proof = permutation_proof.Proof(Model.open(path), str(tmp_path))
    proof.begin()
    assert not proof.refusal(str(path))
    assert "of its norm away" in proof.refusal(str(tmp_path / "wrong.onnx"))


# -- what reports say


def test_a_weight_that_loses_is_not_counted_among_those_that_gain() -> None:
    """The order of another model, whose weights gain by it; here most of the scores are of a weight that loses."""
    dense, other = mlp(), mlp(names="{}", seed=0)
    for tensor in other.graph.initializer:
        if tensor.name == "two.weight":
            tensor.CopyFrom(numpy_helper.from_array(numbers("else", WIDTH, 2 * WIDTH), tensor.name))
    best = osp.permute(dense).model
    assert best is not None
    result = osp.permute(best, apply=record(osp.permute(other).model or other))
    losing = [name for name, one in figures(result).items() if one["after"] < one["before"]]
    assert losing
    said = str(result)
    assert f"{2 - len(losing)} of 3 weights to be pruned gain, {len(losing)} lose" in said
    assert said.count("keeps less") == len(losing)


def test_only_weights_that_are_to_be_pruned_are_listed() -> None:
    result = osp.permute(mlp(), include="three")
    assert result.report.row("one.weight").reason
    assert "no better order:" not in str(result)


def convolutions(side: int) -> ModelProto:
    """A convolution, a depthwise one, and a matrix behind Flatten that reads `side` x `side` pixels of each channel."""
    shapes = {"wide": (16, 8, 1, 1), "deep": (16, 1, 3, 3), "head": (16 * side * side, 8)}
    nodes = [
        helper.make_node("Conv", ["x", "wide"], ["a"]),
        helper.make_node("Conv", ["a", "deep"], ["b"], group=16, pads=[1, 1, 1, 1]),
        helper.make_node("Flatten", ["b"], ["f"]),
        helper.make_node("MatMul", ["f", "head"], ["y"]),
    ]
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8, side, side]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8]),
    ]
    stored = [numpy_helper.from_array(numbers(name, *shape), name) for name, shape in shapes.items()]
    graph = helper.make_graph(nodes, "convolutions", values[:1], values[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("side", "said"), [(4, "each group of 4 lies within one channel"), (3, "")])
def test_groups_within_one_channel_have_no_better_order(side: int, said: str) -> None:
    row = osp.permute(convolutions(side), allow="output,stem,small").report.row("head")
    assert said in row.reason
    assert bool(said) == (row.status != "permuted")


def test_a_depthwise_weight_has_no_reduction() -> None:
    row = osp.channels(convolutions(4)).report.row("deep")
    assert "there is no reduction" in row.reason
    assert "move with those of the layers around it" in row.advice


def test_rows_behind_a_length_that_was_assumed_are_not_free() -> None:
    """The first rows of a table, as many as the input is long; those behind them are used by longer ones."""
    nodes = [
        helper.make_node("Shape", ["x"], ["length"], start=1, end=2),
        helper.make_node("Slice", ["table", "zero", "length", "zero"], ["rows"]),
        helper.make_node("Add", ["x", "rows"], ["sum"]),
        helper.make_node("MatMul", ["sum", "matrix"], ["y"]),
    ]
    stored = {"table": numbers("table", 64, 8), "matrix": numbers("matrix", 8, 8), "zero": np.zeros(1, np.int64)}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "length", 8]) for name in ("x", "y")]
    constants = [numpy_helper.from_array(one, name) for name, one in stored.items()]
    graph = helper.make_graph(nodes, "table", values[:1], values[1:], constants)
    report = osp.channels(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)).report
    assert not report.details["classes"]


def test_inputs_that_the_model_does_not_run_on_are_counted() -> None:
    dense = mlp()
    dense.graph.node.insert(0, helper.make_node("Reshape", ["x", "two_rows"], ["x2"]))
    dense.graph.node[1].input[0] = "x2"
    dense.graph.initializer.append(numpy_helper.from_array(np.array([2, 16]), "two_rows"))
    result = osp.permute(dense)
    proof: Any = result.report.details["permutation"]["proof"]  # type: ignore[index]
    assert proof["inputs"] == 3
    assert "does not run on 2 of 5 random inputs: onnxruntime cannot run the model on x [3, 16]" in str(result)


def test_prune_says_what_was_proven() -> None:
    assert "proven on 5 random inputs" in str(osp.prune(mlp(), pattern="2:4", permute=True))
    assert "NOT proven" in str(osp.prune(mlp(), pattern="2:4", permute=True, unproven=True))


def test_below_answers_that_are_whole_numbers_floats_are_compared(tmp_path: Path) -> None:
    """Two small numbers at the wrong place change no answer of the few rows that are run."""
    dense = mlp()
    dense.graph.node.append(helper.make_node("ArgMax", ["three.out"], ["answer"], axis=1))
    del dense.graph.output[:]
    dense.graph.output.append(helper.make_tensor_value_info("answer", TensorProto.INT64, ["batch", 1]))
    (bias,) = (one for one in dense.graph.initializer if one.name == "one.bias")
    array = 0.2 * numpy_helper.to_array(bias)
    bias.CopyFrom(numpy_helper.from_array(array, bias.name))
    proof = permutation_proof.Proof(Model.open(dense), str(tmp_path))
    proof.begin()
    assert not proof.refusal(proof.write("same"))
    array[[0, 1]] = array[[1, 0]]
    bias.CopyFrom(numpy_helper.from_array(array, bias.name))
    wrong = permutation_proof.Proof(Model.open(dense), str(tmp_path)).write("wrong")
    assert "'three.out' is" in proof.refusal(wrong)
    result = osp.permute(dense)
    assert result.model is not None
    assert [one.name for one in result.model.graph.output] == ["answer"]
