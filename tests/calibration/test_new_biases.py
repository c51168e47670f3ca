"""`--add-bias`: layers without a bias get the one that the refit finds, and nothing else changes, by the runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.helper import make_function, make_node, make_opsetid, make_tensor_value_info

import onnxsparse as osp
from onnxsparse.calibration import workers
from onnxsparse.calibration.new_biases import NewBias, new_biases, put_biases
from onnxsparse.calibration.stored_numbers import in_kind
from onnxsparse.cli import main
from onnxsparse.engines.ort import library
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.options import SparsityOptions
from onnxsparse.planning.request import planned
from tests.calibration.test_reach import drawn, model, numbers, pruned, quantized, ran
from tests.cases import for_each
from tests.messages import refusing

pytest.importorskip("onnxruntime")

OPSETS = [make_opsetid("", 17)]


def net() -> onnx.ModelProto:
    """One layer of each kind that can get a bias, and none that has one."""
    nodes = [
        make_node("Conv", ["x", "conv.weight"], ["c"], "conv", pads=[1, 1, 1, 1]), make_node("Relu", ["c"], ["r"]),
        make_node("ConvTranspose", ["r", "t"], ["d"], "turned"), make_node("Relu", ["d"], ["s"]),
        make_node("GlobalAveragePool", ["s"], ["p"]), make_node("Flatten", ["p"], ["f"]),
        make_node("MatMul", ["f", "m"], ["h"], "hidden"), make_node("Relu", ["h"], ["q"]),
        make_node("Gemm", ["q", "g"], ["y"], "head", transB=1),
    ]  # fmt: skip
    stored = {"conv.weight": drawn(12, 3, 3, 3), "t": drawn(12, 16, 2, 2, seed=1), "m": drawn(16, 20, seed=2)}
    made = model(nodes, ["n", 3, 8, 8], {**stored, "g": drawn(7, 20, seed=3)})
    made.graph.output[0].CopyFrom(make_tensor_value_info("y", 1, ["n", 7]))
    return made


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.maximum(drawn(96, 3, 8, 8, seed=4), 0)


def reasons(made: osp.Result) -> dict[str, str]:
    return {row.name: row.reason for row in made.report.rows}


def found(made: osp.Result) -> Any:
    details = made.report.details["calibration"]
    assert isinstance(details, dict)
    return details["biases"]


def test_a_new_bias_is_the_mean_of_what_is_missing(images: np.ndarray) -> None:
    """One batch, so that no sample is held out: behind every layer the means are those of the dense net."""
    x, proto, names = images[:16], net(), ("c", "d", "h", "y")
    made = pruned(proto, x, solver="bias", add_bias=True, allocation="uniform")
    assert made.model is not None
    onnx.checker.check_model(made.model, full_check=True)
    assert osp.verify(made.model).report.ok
    for dense, sparse in zip(ran(proto, x, *names), ran(made.model, x, *names)):
        axes = tuple(axis for axis in range(dense.ndim) if axis != 1)
        assert np.abs(sparse - dense).max() > 1e-2
        np.testing.assert_allclose(sparse.mean(axes), dense.mean(axes), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("solver", ["least-squares", "obs", "bias"])
def test_new_biases_bring_the_outputs_nearer(images: np.ndarray, solver: str) -> None:
    proto, unseen = net(), images[64:]
    (dense,) = ran(proto, unseen)
    errors = []
    for add_bias in (False, True):
        made = pruned(proto, images[:64], sparsity=0.7, solver=solver, add_bias=add_bias)
        errors.append(np.square(ran(made.model, unseen)[0] - dense).mean())
    assert errors[1] <= errors[0]


def test_each_new_bias_is_told(images: np.ndarray) -> None:
    proto = net()
    made, plain = pruned(proto, images, add_bias=True), pruned(proto, images)
    names = {"conv.weight": "conv.bias", "t": "t_bias", "m": "m_bias", "g": "g_bias"}
    assert {one["weight"]: one["name"] for one in found(made)} == names
    assert found(made)[2] == {
        "name": "m_bias",
        "weight": "m",
        "node": "MatMul 'hidden'",
        "size": 20,
        "dtype": "float32",
    }
    assert all(reasons(made)[weight].endswith(f"; bias '{bias}' created") for weight, bias in names.items())
    assert any(note.startswith("4 biases were created: 'conv.bias'") for note in made.report.notes)
    assert set(numbers(made.model)) == {*names, *names.values()}
    assert all(numbers(made.model)[bias].any() for bias in names.values())
    assert set(numbers(plain.model)) == set(names)
    assert [node.op_type for node in plain.model.graph.node] == [node.op_type for node in proto.graph.node]
    assert "biases" not in str(plain.report.details)
    assert net() == proto  # the caller's model is as it was


def test_names_are_new_and_values_keep_theirs(images: np.ndarray) -> None:
    nodes = [make_node("MatMul", ["x", "m"], ["m_bias"]), make_node("Identity", ["m_bias"], ["y"])]
    proto = model(nodes, ["n", 8], {"m": drawn(8, 8)})
    proto.graph.output.append(make_tensor_value_info("m_bias", 1, None))
    x = drawn(64, 8, seed=1) + 1
    made = pruned(proto, x, add_bias=True).model
    assert made is not None
    assert [(node.op_type, list(node.output)) for node in made.graph.node] == [
        ("MatMul", ["m_bias_without_bias"]), ("Add", ["m_bias"]), ("Identity", ["y"]),
    ]  # fmt: skip
    first, second = ran(made, x)
    np.testing.assert_array_equal(first, second)


def tied() -> tuple[onnx.ModelProto, np.ndarray]:
    calls = [
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("Relu", ["a"], ["b"]),
        make_node("MatMul", ["b", "w"], ["y"]),
    ]
    return model(calls, ["n", 16], {"w": drawn(16, 16)}), drawn(64, 16, seed=1)


def in_a_function() -> tuple[onnx.ModelProto, np.ndarray]:
    constant = make_node("Constant", [], ["w"], value=numpy_helper.from_array(drawn(16, 16), "w"))
    body = [constant, make_node("MatMul", ["a", "w"], ["p"]), make_node("Relu", ["p"], ["b"])]
    function = make_function("local", "Dense", ["a"], ["b"], body, OPSETS)
    nodes = [make_node("Dense", ["x"], ["h"], domain="local"), make_node("MatMul", ["h", "v"], ["y"])]
    return model(nodes, ["n", 16], {"v": drawn(16, 8, seed=2)}, [function]), np.abs(drawn(64, 16, seed=1))


def of_integers() -> tuple[onnx.ModelProto, np.ndarray]:
    """Without the bias of its second convolution."""
    proto, x = quantized()
    conv = [node for node in proto.graph.node if node.op_type == "Conv"][1]
    del conv.input[2]
    return proto, x


def on_the_left() -> tuple[onnx.ModelProto, np.ndarray]:
    nodes = [make_node("MatMul", ["w", "x"], ["y"])]
    return model(nodes, ["n", 16, 4], {"w": drawn(16, 16)}), drawn(64, 16, 4, seed=1)


def scaled() -> tuple[onnx.ModelProto, np.ndarray]:
    return model([make_node("Gemm", ["x", "w"], ["y"], beta=0.5)], ["n", 16], {"w": drawn(16, 16)}), drawn(
        64, 16, seed=1
    )


def shared() -> tuple[onnx.ModelProto, np.ndarray]:
    nodes = [make_node("Gemm", ["x", "w", "b"], ["h"]), make_node("Add", ["h", "b"], ["y"])]
    return model(nodes, ["n", 16], {"w": drawn(16, 16), "b": drawn(16, seed=2)}), drawn(64, 16, seed=1)


def behind() -> tuple[onnx.ModelProto, np.ndarray]:
    nodes = [make_node("MatMul", ["x", "w"], ["h"]), make_node("Add", ["h", "one"], ["y"])]
    return model(nodes, ["n", 16], {"w": drawn(16, 16), "one": np.ones(1, np.float32)}), drawn(64, 16, seed=1)


@for_each(
    "case",
    [
        (tied, "w", "several nodes read its weight"),
        (in_a_function, "w", "it is read inside of a function"),
        (of_integers, "v", "its weight is stored as int8"),
        (on_the_left, "w", "its weight is the first input of its MatMul"),
        (scaled, "w", "its Gemm multiplies a bias by beta"),
        (shared, "w", "it has one that is no stored vector of its own"),
        (behind, "w", "the constant of the Add behind it is no stored vector of its own"),
    ],
    ids=lambda case: case[0].__name__,
)
def test_why_a_layer_gets_none(case: Any) -> None:
    build, weight, why = case
    proto, x = build()
    made = pruned(proto, x, add_bias=True)
    assert reasons(made)[weight].endswith(f"; no bias created: {why}")
    assert osp.verify(made.model).report.ok
    if build is in_a_function:
        assert [one["weight"] for one in found(made)] == ["v"]
        assert [node.op_type for node in made.model.graph.node] == ["Dense", "MatMul", "Add"]
        plain = pruned(proto, x).model
        dense, with_bias, without = (ran(one, x)[0] for one in (proto, made.model, plain))
        assert np.square(with_bias - dense).mean() < np.square(without - dense).mean()
    else:
        assert found(made) == []
        assert any(note.startswith("no bias was created") for note in made.report.notes)


def test_layers_that_have_a_bias_are_as_without() -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]), make_node("Add", ["b", "a"], ["h"]), make_node("Relu", ["h"], ["r"]),
        make_node("Gemm", ["r", "v", "c"], ["y"]),
    ]  # fmt: skip
    stored = {"w": drawn(16, 16), "b": drawn(16, seed=1), "v": drawn(16, 8, seed=2), "c": drawn(8, seed=3)}
    proto, x = model(nodes, ["n", 16], stored), drawn(64, 16, seed=4)
    made, plain = pruned(proto, x, add_bias=True), pruned(proto, x)
    assert found(made) == []
    assert made.model == plain.model
    assert reasons(made) == reasons(plain)


def test_a_bias_that_stays_zero_is_not_created() -> None:
    """Samples that are held out have other means: the layer stays as it was."""
    proto, x = model([make_node("Gemm", ["x", "w"], ["y"])], ["n", 16], {"w": drawn(16, 16)}), drawn(160, 16, seed=1)
    x += np.where(np.arange(160) < 120, 3, -3).astype(np.float32)[:, None]
    made = osp.prune(
        proto, data=lambda: iter([{"x": part} for part in np.split(x, 4)]), samples=160, sensitivity="measured",
        pattern="unstructured", sparsity=0.9, allow=("output", "small"), solver="bias", add_bias=True,
    )  # fmt: skip
    assert reasons(made)["w"].startswith("a refit did harm")
    assert found(made) == []
    assert set(numbers(made.model)) == {"w"}


def test_recurrent_layers_get_none() -> None:
    nodes = [make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=8)]
    proto = model(nodes, [5, "n", 8], {"w": drawn(1, 32, 8), "r": drawn(1, 32, 8, seed=1)})
    opened = Model.open(proto)
    plan, _ = planned(opened, None, None, SparsityOptions(pattern="2:4"))
    new = new_biases(opened, plan)
    assert not new.made
    assert set(new.reasons.values()) == {"only Conv, ConvTranspose, Gemm, MatMul can get one, not LSTM"}


@pytest.mark.parametrize("kind", ["float16", "float64", "bfloat16"])
def test_new_biases_have_the_kind_that_the_node_adds_up(kind: str) -> None:
    data_type = onnx.TensorProto.DataType.Value({"float64": "DOUBLE"}.get(kind, kind.upper()))
    x, raw = drawn(64, 12, seed=1) + 1, in_kind(drawn(12, 8), kind)
    weight = onnx.TensorProto(name="w", data_type=data_type, dims=raw.shape, raw_data=raw.tobytes())
    if kind == "bfloat16":  # of which the runtime has no product
        nodes = [make_node("Cast", ["w"], ["v"], to=1), make_node("Gemm", ["x", "v"], ["y"])]
    else:
        nodes = [make_node("Cast", ["x"], ["k"], to=data_type), make_node("MatMul", ["k", "w"], ["h"]),
                 make_node("Cast", ["h"], ["y"], to=1)]  # fmt: skip
    proto = model(nodes, ["n", 12], {})
    proto.graph.initializer.append(weight)
    made = pruned(proto, x, add_bias=True)
    assert [one["dtype"] for one in found(made)] == ["float32" if kind == "bfloat16" else kind]
    assert made.model.graph.initializer[0].data_type == data_type
    (dense,), (sparse,) = ran(proto, x), ran(made.model, x)
    np.testing.assert_allclose(sparse.mean(0), dense.mean(0), atol=0.3)


def test_a_bias_of_bfloat16_is_stored_as_its_bits() -> None:
    proto = model([make_node("Gemm", ["x", "w"], ["y"])], ["n", 2], {"w": drawn(2, 3)})
    numbers = in_kind(np.array([1.0, -2.0, 0.5]), "bfloat16")
    put_biases(proto, [NewBias("w", "Gemm", "y", "w_bias", "bfloat16", numbers)])
    tensor = proto.graph.initializer[1]
    assert list(proto.graph.node[0].input) == ["x", "w", "w_bias"]
    assert onnx.numpy_helper.to_array(tensor).astype(np.float32).tolist() == [1.0, -2.0, 0.5]
    assert NewBias("w", "Gemm", "y", "b", "bfloat16", np.array([0x8000], np.uint16)).is_zero


def test_before_ir_4_it_is_a_constant(images: np.ndarray) -> None:
    proto = net()
    proto.ir_version = 3
    proto.graph.input.extend(
        make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in proto.graph.initializer
    )
    made = pruned(proto, images, add_bias=True)
    assert made.model is not None
    onnx.checker.check_model(made.model)
    assert len(found(made)) == 4
    assert [node.op_type for node in made.model.graph.node][:5] == ["Constant"] * 4 + ["Conv"]
    assert len(made.model.graph.initializer) == 4
    assert ran(made.model, images)[0].shape == (96, 7)


def test_weights_beside_the_file_stay_there(images: np.ndarray, tmp_path: Path) -> None:
    dense, out = tmp_path / "dense.onnx", tmp_path / "sparse.onnx"
    onnx.save(net(), dense, save_as_external_data=True, location="dense.data", size_threshold=0)
    made = osp.prune(dense, output=out, data={"x": images}, pattern="2:4", sensitivity="measured", add_bias=True)
    assert len(found(made)) == 2
    assert (tmp_path / "sparse.onnx.data").exists()
    assert osp.verify(out).report.ok
    loaded = onnx.load(out, load_external_data=False)
    inside = {tensor.name for tensor in loaded.graph.initializer if tensor.data_location != onnx.TensorProto.EXTERNAL}
    assert inside == {"t_bias", "m_bias"}


def test_the_same_bytes_however_it_is_run(images: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SMALL", 0)
    dense, run = tmp_path / "dense.onnx", tmp_path / "run"
    onnx.save(net(), dense)

    def made(**options: Any) -> bytes:
        out = tmp_path / "out.onnx"
        how = "gradients" if library.available() else "measured"
        osp.prune(dense, output=out, data={"x": images}, add_bias=True, pattern="unstructured", sparsity=0.7,
                  sensitivity=how, allow=("stem", "output", "small"), overwrite=True, **options)  # fmt: skip
        return out.read_bytes()

    whole = made(workers=1)
    assert made(workers=2) == whole
    assert made(checkpoint=run) == whole
    last = max(run.glob("step-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    (last / "manifest.json").write_text("{}")  # the last layer is done again
    assert made(checkpoint=run, resume=True) == whole
    with pytest.raises(OptionError, match="of another run"):
        osp.prune(dense, data={"x": images}, pattern="unstructured", sparsity=0.7, checkpoint=run, resume=True)


def test_within_a_measured_loss_there_are_more_zeros(images: np.ndarray) -> None:
    x, gone = np.concatenate([images, images[::-1] * 1.1]), []
    for add_bias in (False, True):
        made = pruned(net(), x, sparsity=None, max_loss=0.2, metrics="distance", solver="bias", add_bias=add_bias)
        lost = made.report.details["max_loss"]
        assert isinstance(lost, dict)
        assert lost["lost"] <= 0.2
        gone.append(sum(row.zeros or 0 for row in made.report.rows))
    assert len(found(made)) > 0
    assert gone[1] > gone[0]


def test_layers_left_dense_get_none(images: np.ndarray) -> None:
    x = np.concatenate([images, images[::-1] * 1.1])
    whole = pruned(net(), x, pattern="2:4", sparsity=None, max_loss=9, metrics="distance", add_bias=True)
    figures = whole.report.details["metrics"]
    assert isinstance(figures, dict)
    limit = figures["distance"] / 2
    made = pruned(net(), x, pattern="2:4", sparsity=None, max_loss=limit, metrics="distance", add_bias=True)
    left = {row.name for row in made.report.rows if row.reason.startswith("left dense")}
    assert left
    assert {one["weight"] for one in found(made)} == {one["weight"] for one in found(whole)} - left


@for_each("command", ["plan", "mask", "prune"])
def test_what_refits_nothing_refuses(command: str) -> None:
    given: dict[str, Any] = {"pattern": "2:4", "data": {"x": np.zeros((4, 3, 8, 8), np.float32)}, "add_bias": True}
    call: Any = {"plan": osp.plan, "mask": osp.insert_masks, "prune": osp.prune}[command]
    with refusing(OptionError):
        call(net(), **given, **({"solver": "zero"} if command == "prune" else {}))


def test_on_the_command_line(images: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dense, data, out = tmp_path / "dense.onnx", tmp_path / "x.npz", tmp_path / "out.onnx"
    onnx.save(net(), dense)
    np.savez(data, x=images)
    words = [str(dense), "-o", str(out), "--pattern", "2:4", "--data", str(data), "--sensitivity", "measured"]
    assert main(["prune", *words, "--add-bias", "--include", "m"]) == 0
    told = capsys.readouterr().out
    assert "1 bias was created: 'm_bias'" in told
    assert "bias 'm_bias' created" in told
    assert main(["plan", *words, "--add-bias", "--overwrite"]) == 2
