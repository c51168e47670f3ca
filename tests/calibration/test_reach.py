"""What calibration reaches, with the runtime as judge: functions, integers, normalisation, kinds of numbers; and what
it says of samples. Nothing here needs gradients.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.helper import (
    make_function,
    make_graph,
    make_model,
    make_node,
    make_opsetid,
    make_tensor_value_info,
    np_dtype_to_tensor_dtype,
)

import onnxsparse as osp
from onnxsparse.calibration.moments import Samples
from onnxsparse.calibration.moves import Outputs
from onnxsparse.calibration.sample_checks import doubts, sound
from onnxsparse.calibration.streams import Cut, Store
from onnxsparse.errors import ModelError
from onnxsparse.graph.model import Model

pytest.importorskip("onnxruntime")
EVERYTHING = ("stem", "depthwise", "small", "output")
HALF: dict[str, Any] = {"pattern": "unstructured", "sparsity": 0.5}


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model(nodes: Any, shape: list[Any], stored: dict[str, np.ndarray], functions: Any = ()) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    inputs = [make_tensor_value_info("x", np_dtype_to_tensor_dtype(np.dtype("float32")), shape)]
    outputs = [make_tensor_value_info(nodes[-1].output[0], 1, None)]
    opsets = [make_opsetid("", 17), make_opsetid("local", 1)]
    graph = make_graph(nodes, "g", inputs, outputs, tensors)
    return make_model(graph, opset_imports=opsets, ir_version=8, functions=list(functions))


def ran(proto: onnx.ModelProto, x: np.ndarray, *names: str) -> list[np.ndarray]:
    import onnxruntime as ort

    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = ort.InferenceSession(copy.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(list(names) or None, {"x": x})


def pruned(proto: onnx.ModelProto, x: np.ndarray, **options: Any) -> osp.Result:
    return osp.prune(proto, data={"x": x}, sensitivity="measured", allow=EVERYTHING, **{**HALF, **options})


def numbers(proto: onnx.ModelProto | None) -> dict[str, np.ndarray]:
    assert proto is not None
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


# -- functions


def test_a_weight_in_a_function_becomes_what_it_becomes_outside() -> None:
    """Called twice it is a tied weight: with the statistics of both calls."""
    w, v, x = drawn(16, 16), drawn(16, 4, seed=1), drawn(256, 16, seed=2)
    constant = make_node("Constant", [], ["w"], value=numpy_helper.from_array(w, "w"))
    body = [constant, make_node("MatMul", ["a", "w"], ["p"]), make_node("Relu", ["p"], ["b"])]
    dense = make_function("local", "Dense", ["a"], ["b"], body, [make_opsetid("", 17)])
    calls = [make_node("Dense", ["x"], ["h"], domain="local"), make_node("Dense", ["h"], ["i"], domain="local")]
    with_function = model([*calls, make_node("MatMul", ["i", "v"], ["y"])], ["n", 16], {"v": v}, [dense])
    plain = [
        make_node("MatMul", ["x", "w"], ["p1"]), make_node("Relu", ["p1"], ["h"]),
        make_node("MatMul", ["h", "w"], ["p2"]), make_node("Relu", ["p2"], ["i"]),
    ]  # fmt: skip
    without = model([*plain, make_node("MatMul", ["i", "v"], ["y"])], ["n", 16], {"w": w, "v": v})
    made, wanted = pruned(with_function, x), pruned(without, x)
    assert made.model is not None
    inside = numpy_helper.to_array(made.model.functions[0].node[0].attribute[0].t)
    np.testing.assert_array_equal(inside, numbers(wanted.model)["w"])
    assert len(made.model.graph.node) == 3
    assert all(row.reason.startswith("refitted") for row in made.report.rows)


# -- integers


def quantized() -> tuple[onnx.ModelProto, np.ndarray]:
    x = drawn(256, 3, 8, 8)
    x[:, 1:] = 0.5 * x[:, 1:] + 0.5 * x[:, :1]
    nodes = [
        make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]), make_node("Relu", ["c"], ["r"]),
        make_node("Conv", ["r", "v", "d"], ["e"]), make_node("Relu", ["e"], ["s"]),
        make_node("GlobalAveragePool", ["s"], ["g"]), make_node("Flatten", ["g"], ["y"]),
    ]  # fmt: skip
    stored = {"w": drawn(8, 3, 3, 3), "b": drawn(8), "v": drawn(8, 8, 3, 3, seed=1), "d": drawn(8, seed=2)}
    made = osp.quantize(model(nodes, ["n", 3, 8, 8], stored), data={"x": x}).model
    assert made is not None
    return made, x


def test_scales_of_integers_grow_with_refitted_numbers_and_biases_follow() -> None:
    proto, x = quantized()
    made = pruned(proto, x, sparsity=0.6)
    assert osp.verify(made.model).report.ok
    old, new = numbers(proto), numbers(made.model)
    assert all(row.reason.startswith("refitted") for row in made.report.rows if row.status == "pruned")
    assert (new["v_scale"] >= old["v_scale"]).all()
    assert (new["v_scale"] > old["v_scale"]).any()
    np.testing.assert_allclose(new["d_scale"] / old["d_scale"], new["v_scale"] / old["v_scale"], rtol=1e-5)
    plain = osp.prune(proto, sparsity=0.6, pattern="unstructured", allow=EVERYTHING).model
    (dense,), (refitted,), (cut,) = ran(proto, x), ran(made.model, x), ran(plain, x)
    assert np.square(refitted - dense).mean() < 0.2 * np.square(cut - dense).mean()


def test_integers_whose_scale_others_read_are_only_cut() -> None:
    """The scale of the weight is read by another DequantizeLinear as well."""
    proto, x = quantized()
    node = next(one for one in proto.graph.node if one.op_type == "DequantizeLinear" and one.input[0] == "v")
    twin = make_node("DequantizeLinear", ["v", node.input[1], node.input[2]], ["unused"], axis=0)
    twin.input[0] = "w"
    proto.graph.node.append(twin)
    made = pruned(proto, x)
    row = next(row for row in made.report.rows if row.name == "v")
    assert row.reason.startswith("not refitted: other numbers have the same scale")
    old, new = numbers(proto)["v"], numbers(made.model)["v"]
    np.testing.assert_array_equal(new, np.where(new == 0, 0, old))


# -- normalisation


def test_the_mean_behind_a_kept_normalisation_is_what_it_was() -> None:
    x = np.abs(drawn(128, 4, 6, 6)) + 0.3
    nodes = [
        make_node("Conv", ["x", "w"], ["c"]), make_node("Relu", ["c"], ["r"]), make_node("MaxPool", ["r"], ["p"],
        kernel_shape=[2, 2]), make_node("BatchNormalization", ["p", "one", "zero", "mean", "var"], ["n"]),
        make_node("Conv", ["n", "v"], ["e"]), make_node("GlobalAveragePool", ["e"], ["y"]),
    ]  # fmt: skip
    w = drawn(16, 4, 3, 3)
    stored = {"w": w, "v": drawn(8, 16, 1, 1), "one": np.ones(16, np.float32), "zero": np.zeros(16, np.float32)}
    stored.update({"mean": np.zeros(16, np.float32), "var": np.ones(16, np.float32)})
    before = model(nodes, ["n", 4, 6, 6], stored)
    (p,) = ran(before, x, "p")
    stored.update({"mean": p.mean((0, 2, 3)), "var": p.var((0, 2, 3)) + 1e-3})
    before = model(nodes, ["n", 4, 6, 6], stored)
    after = pruned(before, x, sparsity=0.8).model
    (dense,), (made,) = ran(before, x, "n"), ran(after, x, "n")
    held = onnx.ModelProto.FromString(after.SerializeToString())  # the same net with the statistics of the file
    for tensor in held.graph.initializer:
        if tensor.name in ("mean", "var"):
            tensor.CopyFrom(numpy_helper.from_array(stored[tensor.name], tensor.name))
    (still,) = ran(held, x, "n")
    assert np.abs((made - dense).mean((0, 2, 3))).max() < 0.5 * np.abs((still - dense).mean((0, 2, 3))).max()


# -- measured moves


def test_measured_moves_are_those_of_the_whole_model() -> None:
    w, v, x = drawn(6, 8), drawn(8, 3, seed=1), drawn(40, 6, seed=2)
    nodes = [
        make_node("MatMul", ["x", "w"], ["h"]), make_node("Tanh", ["h"], ["t"]),
        make_node("MatMul", ["t", "v"], ["z"]), make_node("Softmax", ["z"], ["y"]),
    ]  # fmt: skip
    proto = model(nodes, ["n", 6], {"w": w, "v": v})
    cut = Cut(Model.over(proto))
    outputs = Outputs(cut, Samples([{"x": x[:20]}, {"x": x[20:]}], [20, 20]), Store())
    changed = w + 0.1 * drawn(6, 8, seed=3)
    (dense,), (moved,) = ran(proto, x, "z"), ran(model(nodes, ["n", 6], {"w": changed, "v": v}), x, "z")
    wanted = np.square(moved - dense).mean() / dense.var()
    assert outputs.moved(0, {"w": changed}) == pytest.approx(wanted, rel=1e-4)
    assert outputs.moved(0, {"w": w}) == 0
    one_by_one = list(outputs.moves(0, "w", [changed, w]))
    (dense,), (moved,) = ran(proto, x[:20], "z"), ran(model(nodes, ["n", 6], {"w": changed, "v": v}), x[:20], "z")
    whole = ran(proto, x, "z")[0].var()
    assert one_by_one == pytest.approx([np.square(moved - dense).mean() / whole, 0.0], rel=1e-4)


# -- what is said of samples


def test_samples_that_say_nothing_are_left_out_and_counted() -> None:
    x = drawn(8, 5, 5)
    x[1, 0, 0], x[6] = np.nan, 0.25
    found = sound(Samples([{"x": x[:4]}, {"x": x[4:]}], [4, 4], 1), {}, ())
    assert found.notes == (
        "1 of 8 samples hold numbers that are not finite and are left out",
        "1 of 8 samples hold one number only and are left out",
    )
    assert [feed["x"].shape for feed in found.feeds] == [(4, 5, 5), (4, 5, 5)]
    assert all(np.isfinite(feed["x"]).all() and feed["x"].std((1, 2)).all() for feed in found.feeds)
    with pytest.raises(osp.OnnxSparseError):
        sound(Samples([{"x": np.full((2, 5, 5), np.nan, np.float32)}], [2]), {}, ())


def first_layers() -> dict[str, onnx.ModelProto]:
    w, b = drawn(8, 3, 3, 3) / 5, drawn(8)
    conv = make_node("Conv", ["x", "w", "b"], ["c"])
    norm = make_node("BatchNormalization", ["c", "one", "b", "mean", "one"], ["y"])
    norms = {"one": np.ones(8, np.float32), "mean": b}
    scales = {"s": np.array(6 / 255, np.float32), "z": np.array(128, np.uint8)}
    rounded = [make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), make_node("DequantizeLinear", ["q", "s", "z"],
               ["d"]), make_node("Conv", ["d", "w", "b"], ["y"])]  # fmt: skip
    shape = ["n", 3, 9, 9]
    return {
        "folded": model([conv, make_node("Relu", ["c"], ["y"])], shape, {"w": w, "b": b}),
        "kept": model([conv, norm], shape, {"w": w, "b": b, **norms}),
        "rounded": model(rounded, shape, {"w": w, "b": b, **scales}),
    }


def test_wrong_preparation_is_told_and_right_one_is_not() -> None:
    right = drawn(32, 3, 9, 9)
    pixels = np.clip(right * 50 + 120, 0, 255)
    for name, proto in first_layers().items():
        cut = Cut(Model.over(proto))
        assert not doubts(cut, Samples([{"x": right}], [32])), name
        assert doubts(cut, Samples([{"x": pixels}], [32])), name
        assert doubts(cut, Samples([{"x": right / 255}], [32])), name


def test_weights_of_inputs_that_never_vary_go_first() -> None:
    x = drawn(128, 16)
    x[:, 3], x[:, 7] = 0.0, 0.0
    w = drawn(16, 8)
    w[[3, 7]] = 50.0
    nodes = [make_node("MatMul", ["x", "w"], ["h"]), make_node("MatMul", ["h", "v"], ["y"])]
    made = pruned(model(nodes, ["n", 16], {"w": w, "v": drawn(8, 4)}), x, sparsity=0.2)
    assert not numbers(made.model)["w"][[3, 7]].any()
    assert any("never vary" in note and note.endswith(": w 2 of 16") for note in made.report.notes)


# -- kinds of numbers


@pytest.mark.parametrize("kind", ["float16", "float64"])
def test_other_floats_are_refitted_in_their_own_kind(kind: str) -> None:
    x = drawn(256, 6) @ drawn(6, 12, seed=1) + 0.1 * drawn(256, 12, seed=2)
    nodes = [
        make_node("Cast", ["x"], ["k"], to=int(np_dtype_to_tensor_dtype(np.dtype(kind)))),
        make_node("MatMul", ["k", "w"], ["h"]), make_node("Cast", ["h"], ["y"], to=1),
    ]  # fmt: skip
    proto = model(nodes, ["n", 12], {"w": drawn(12, 8, seed=3).astype(kind)})
    made = pruned(proto, x)
    found = numbers(made.model)["w"]
    assert found.dtype == kind
    assert (found == 0).sum() == 48
    assert made.report.rows[0].reason.startswith("refitted")


def test_numbers_that_overflow_in_sums_are_refused() -> None:
    """Their sums are no numbers, by which every weight would cost nothing."""
    proto = model([make_node("MatMul", ["x", "w"], ["y"])], ["n", 8], {"w": drawn(8, 4)})
    with pytest.raises(ModelError, match="no finite moments"):
        pruned(proto, drawn(64, 8) * np.float32(1e25))


def test_something_stays_of_every_weight(tmp_path: Path) -> None:
    """A layer of few numbers beside a large one: the plan that is written down can be read."""
    nodes = [make_node("Conv", ["x", "w"], ["h"]), make_node("Conv", ["h", "v"], ["y"])]
    proto, x = model(nodes, ["n", 1, 6, 6], {"w": drawn(1, 1, 1, 1), "v": drawn(64, 1, 3, 3)}), drawn(64, 1, 6, 6)
    options: dict[str, Any] = {"data": {"x": x}, "pattern": "unstructured", "sparsity": 0.95, "allow": EVERYTHING}
    made = osp.plan(proto, output=tmp_path / "plan.yaml", sensitivity="measured", **options)
    assert all((row.sparsity or 0) < 1 for row in made.report.rows)
    again = osp.prune(proto, plan=tmp_path / "plan.yaml", data={"x": x})
    assert all(array.any() for array in numbers(again.model).values())


def test_layers_make_up_for_zeros_of_weights_that_are_not_calibrated() -> None:
    """`w` is read along both of its axes, and goes by magnitude; what `v` is refitted to comes of its zeros."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]), make_node("Tanh", ["a"], ["b"]),
        make_node("Gemm", ["b", "w"], ["c"], transB=1), make_node("Tanh", ["c"], ["d"]),
        make_node("MatMul", ["d", "v"], ["y"]),
    ]  # fmt: skip
    proto, x = model(nodes, ["n", 8], {"w": drawn(8, 8) * 0.5, "v": drawn(8, 4, seed=1)}), drawn(512, 8, seed=2)
    made, plain = pruned(proto, x), osp.prune(proto, **HALF, allow=EVERYTHING)
    assert [row.reason.partition(":")[0] for row in made.report.rows] == [
        "not calibrated, pruned by magnitude", "refitted",
    ]  # fmt: skip
    np.testing.assert_array_equal(numbers(made.model)["w"], numbers(plain.model)["w"])
    assert made.model is not None
    (y,), (e, z) = ran(proto, x), ran(made.model, x, "d", "y")
    kept = numbers(made.model)["v"] != 0
    best = sum(
        np.linalg.lstsq(e[:, own], y[:, row], rcond=None)[1].sum() for row, own in enumerate(kept.T)
    )  # what least squares leave of the outputs, given these inputs and this mask
    assert np.square(z - y).sum() < 1.1 * best
