"""What layers sum up, against the runtime: rows times matrix are the outputs of each node, whatever its attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from onnx.helper import (
    make_graph,
    make_model,
    make_node,
    make_opsetid,
    make_tensor_value_info,
    np_dtype_to_tensor_dtype,
)

from onnxsparse.calibration.reductions import Reduction, reduction_of
from onnxsparse.graph.model import Model
from tests.cases import for_each

MICROSOFT = "com.microsoft"


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model(nodes: Any, feeds: dict[str, np.ndarray], stored: dict[str, np.ndarray]) -> onnx.ModelProto:
    inputs = [make_tensor_value_info(name, np_dtype_to_tensor_dtype(one.dtype), None) for name, one in feeds.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in nodes[-1].output if name]
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    opsets = [make_opsetid("", 17), make_opsetid(MICROSOFT, 1)]
    return make_model(make_graph(nodes, "g", inputs, outputs, tensors), opset_imports=opsets, ir_version=8)


def ran(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, feeds)))


def reductions(proto: onnx.ModelProto) -> dict[str, Any]:
    """What the uses of each weight sum up, by its name; constants are known."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    return {one.name: reduction_of(one.uses, stored) for one in Model.over(proto).flow.weights if one.uses}


def sums(reduction: Reduction, weight: np.ndarray, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The sums of each block, and that rows are as they are promised on the way."""
    matrix = reduction.matrix(weight)
    np.testing.assert_array_equal(reduction.restored(matrix)[0], weight.reshape(-1))
    np.testing.assert_array_equal(np.sort(np.concatenate(reduction.outputs)), np.arange(len(matrix)))
    rows = reduction.rows(values)
    assert all(block.dtype == np.float32 and block.shape[1] == reduction.width for block in rows)
    return [block @ matrix[outputs].T for block, outputs in zip(rows, reduction.outputs)]


def holds(node: onnx.NodeProto, feeds: dict[str, np.ndarray], stored: dict[str, np.ndarray], **more: Any) -> Reduction:
    """A node whose weight is `w`: what it sums up are its outputs in the runtime."""
    proto = model([node], feeds, stored)
    reduction = reductions(proto)["w"]
    assert isinstance(reduction, Reduction), reduction
    result = ran(proto, feeds)[node.output[0]]
    assert reduction.result == ("" if "after" in more else node.output[0])
    wanted, found = reduction.by_output(result), sums(reduction, more.get("weight", stored["w"]), feeds)
    for block, other in zip((more["after"](one) for one in found) if "after" in more else found, wanted):
        np.testing.assert_allclose(block, other - more.get("bias", 0), atol=more.get("atol", 1e-4), rtol=1e-4)
    assert len(found) == len(wanted) == len(reduction.outputs)
    return reduction


def relu(sums: np.ndarray) -> np.ndarray:
    return np.maximum(sums, 0)


# -- convolutions


@st.composite
def convolutions(draw: Any, transposed: bool) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]:
    """Attributes, the shape of the weight and that of the images."""
    rank, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))

    def each(low: int, high: int, times: int = 1) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank * times, max_size=rank * times))

    taps, strides, dilations = each(1, 3), each(1, 3), each(1, 2)
    attributes = {"group": group, "strides": strides, "dilations": dilations}
    auto_pad = draw(st.sampled_from(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    attributes |= {"pads": each(0, 2, 2)} if auto_pad == "NOTSET" else {"auto_pad": auto_pad}
    if auto_pad.startswith("SAME") and not transposed:
        attributes["dilations"] = [1] * rank  # the runtime takes no others
    channels, outs = (draw(st.integers(1, 3)) for _ in range(2))
    image = (draw(st.integers(1, 2)), group * channels, *each(1, 6))
    if transposed:
        attributes |= {"output_padding": [draw(st.integers(0, max(one - 1, 0))) for one in strides]}
        return attributes, (group * channels, outs, *taps), image
    return attributes, (group * outs, channels, *taps), image


def spans(attributes: dict[str, Any], taps: tuple[int, ...]) -> list[int]:
    return [dilation * (tap - 1) + 1 for dilation, tap in zip(attributes["dilations"], taps)]


@given(convolutions(transposed=False))
@settings(max_examples=150)
def test_convolutions(case: Any) -> None:
    attributes, weight, image = case
    pads, rank = attributes.get("pads", [0] * 6), len(image) - 2
    padded = [size + pads[at] + pads[at + rank] for at, size in enumerate(image[2:])]
    fits = all(have >= need for have, need in zip(padded, spans(attributes, weight[2:])))
    assume(fits or attributes.get("auto_pad", "").startswith("SAME"))
    holds(make_node("Conv", ["x", "w"], ["y"], **attributes), {"x": drawn(*image)}, {"w": drawn(*weight, seed=1)})


@given(convolutions(transposed=True), st.sampled_from([None, -1, 0]))
@settings(max_examples=150)
def test_transposed_convolutions(case: Any, more: int | None) -> None:
    attributes, weight, image = case
    pads, rank = attributes.get("pads", [0] * 6), len(image) - 2
    whole = [
        (size - 1) * attributes["strides"][at] + attributes["output_padding"][at] + span - pads[at] - pads[at + rank]
        for at, (size, span) in enumerate(zip(image[2:], spans(attributes, weight[2:])))
    ]
    assume(all(length > 0 for length in whole))
    if more is not None:
        attributes = {**attributes, "output_shape": [max(length + more, 1) for length in whole]}
        attributes.pop("pads", None)
    node = make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)
    holds(node, {"x": drawn(*image)}, {"w": drawn(*weight, seed=1)})


def test_forms_of_convolutions() -> None:
    images, last = drawn(2, 4, 5, 6), drawn(2, 5, 6, 4)
    plain = {"w": drawn(6, 2, 3, 2, seed=1)}
    node = make_node("FusedConv", ["x", "w"], ["y"], group=2, domain=MICROSOFT, activation="Relu")
    holds(node, {"x": images}, plain, after=relu)
    node = make_node("NhwcFusedConv", ["x", "w"], ["y"], group=2, domain=MICROSOFT)
    usual = holds(make_node("Conv", ["x", "w"], ["y"], group=2), {"x": last.transpose(0, 3, 1, 2)}, plain)
    other = reductions(model([node], {"x": last}, plain))["w"]
    np.testing.assert_array_equal(other.rows({"x": last}), usual.rows({"x": last.transpose(0, 3, 1, 2)}))
    result = drawn(2, 6, 3, 5)
    np.testing.assert_array_equal(other.by_output(result.transpose(0, 2, 3, 1)), usual.by_output(result))


def test_some_positions_of_each_sample() -> None:
    images, weight = drawn(3, 2, 5, 5), drawn(4, 2, 2, 2, seed=1)
    reduction = holds(make_node("Conv", ["x", "w"], ["y"]), {"x": images}, {"w": weight})
    (whole,), (some,) = reduction.rows({"x": images}), reduction.rows({"x": images}, most=5)
    np.testing.assert_array_equal(some, whole.reshape(3, 16, -1)[:, np.arange(5) * 16 // 5].reshape(15, -1))
    reduction = holds(make_node("MatMul", ["x", "w"], ["y"]), {"x": drawn(3, 4, 2, 6)}, {"w": drawn(6, 5)})
    values = {"x": drawn(3, 4, 2, 6)}
    (whole,), (some,) = reduction.rows(values), reduction.rows(values, most=3)
    np.testing.assert_array_equal(some, whole.reshape(3, 8, -1)[:, [0, 2, 5]].reshape(9, -1))
    reduction = holds(make_node("Gemm", ["x", "w"], ["y"]), {"x": drawn(7, 6)}, {"w": drawn(6, 5)})
    assert len(reduction.rows({"x": drawn(7, 6)}, most=3)[0]) == 7  # each row is a sample


# -- products


@st.composite
def batches(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast."""
    whole = draw(st.lists(st.integers(1, 3), max_size=3))
    both = []
    for _ in range(2):
        start = draw(st.integers(0, len(whole)))
        both.append(tuple(draw(st.sampled_from([1, size])) for size in whole[start:]))
    return both[0], both[1]


@given(batches(), st.sampled_from(["matrices", "vector"]), st.booleans())
@settings(max_examples=150)
def test_matrix_products(shapes: Any, kind: str, on_left: bool) -> None:
    rows, inputs, columns = 3, 4, 2
    left, right = (*shapes[0], rows, inputs), (*shapes[1], inputs, columns)
    if kind == "vector":
        left, right = (left, (inputs,)) if on_left else ((inputs,), right)
    weight, values = drawn(*(left if on_left else right)), drawn(*(right if on_left else left), seed=1)
    node = make_node("MatMul", ["w", "x"] if on_left else ["x", "w"], ["y"])
    reduction = holds(node, {"x": values}, {"w": weight})
    assert len(reduction.outputs) == np.prod(weight.shape[:-2])
    batch = shapes[0 if on_left else 1]
    if kind == "matrices" and len(shapes[0]) == len(shapes[1]) and np.prod(batch) == 1:
        fused = make_node("FusedMatMul", list(node.input), ["y"], domain=MICROSOFT, alpha=0.5)
        holds(fused, {"x": values}, {"w": weight})


@for_each(("flags", "on_left"), [(flags, left) for flags in range(16) for left in (False, True)])
def test_fused_products(flags: int, on_left: bool) -> None:
    """A matrix for each of a batch, transposed and with the axis of the batch in the middle."""
    turned, batched = (flags & 1, flags >> 1 & 1), (flags >> 2 & 1, flags >> 3)
    shapes = [(2, 3, 4), (2, 4, 5)]
    arrays = []
    for shape, turn, batch in zip(shapes, turned, batched):
        array = drawn(*shape, seed=turn)
        array = array.transpose(0, 2, 1) if turn else array
        arrays.append(np.ascontiguousarray(array.transpose(1, 0, 2) if batch else array))
    names = ["w", "x"] if on_left else ["x", "w"]
    attributes = dict(zip(("transA", "transB", "transBatchA", "transBatchB"), (*turned, *batched)))
    node = make_node("FusedMatMul", names, ["y"], domain=MICROSOFT, alpha=0.25, **attributes)
    stored = dict(zip(names, arrays))
    holds(node, {"x": stored.pop("x")}, stored)


@for_each(("flags", "on_left"), [(flags, left) for flags in range(4) for left in (False, True)])
def test_gemm(flags: int, on_left: bool) -> None:
    turned, names = (flags & 1, flags >> 1), ["w", "x"] if on_left else ["x", "w"]
    arrays = [drawn(3, 4), drawn(4, 5, seed=1)]
    arrays = [np.ascontiguousarray(one.T) if turn else one for one, turn in zip(arrays, turned)]
    stored = {**dict(zip(names, arrays)), "c": drawn(1)}
    attributes = {"transA": turned[0], "transB": turned[1], "alpha": 0.5, "beta": 2.0}
    node, values = make_node("Gemm", [*names, "c"], ["y"], **attributes), {"x": stored.pop("x")}
    holds(node, values, stored, bias=2 * stored["c"])
    node = make_node("FusedGemm", names, ["y"], domain=MICROSOFT, activation="Relu", **attributes)
    holds(node, values, stored, after=relu)


EINSUMS = [
    ("bsi,io->bso", (2, 3, 4), (4, 5)),
    ("oi,bsi->bso", (5, 4), (2, 3, 4)),
    ("bshd,hdo->bso", (2, 3, 2, 4), (2, 4, 5)),
    ("bsi,ihd->bhsd", (2, 3, 4), (4, 2, 5)),
    ("bgi,gio->bgo", (2, 3, 4), (3, 4, 5)),
    ("gio,bgi->obg", (3, 4, 5), (2, 3, 4)),
    ("...i,io->...o", (2, 3, 4), (4, 5)),
    ("...si,...io->...so", (2, 3, 4), (2, 4, 5)),
    ("...si,...io->...so", (2, 1, 3, 4), (1, 2, 4, 5)),
    ("bi,io", (2, 4), (4, 5)),
    ("btsi,io->bso", (2, 3, 4, 5), (5, 6)),
    ("bbi,io->bo", (3, 3, 4), (4, 5)),
]


@for_each(("equation", "left", "right"), EINSUMS)
def test_einsum(equation: str, left: Any, right: Any) -> None:
    found = 0
    for names in (["w", "x"], ["x", "w"]):
        stored = dict(zip(names, (drawn(*left), drawn(*right, seed=1))))
        node, feeds = make_node("Einsum", names, ["y"], equation=equation), {"x": stored.pop("x")}
        if isinstance(reductions(model([node], feeds, stored)).get("w"), Reduction):
            found += 1
            holds(node, feeds, stored)
    assert found


# -- integers


def quantized(array: np.ndarray, kind: Any, axis: int | None = None) -> dict[str, np.ndarray]:
    """Integers, with a scale and a zero point for all or for each index of an axis."""
    others = tuple(one for one in range(array.ndim) if one != axis)
    largest = np.abs(array).max(axis=others if axis is not None else None)
    zero = np.zeros_like(largest) if np.dtype(kind).kind == "i" else np.full_like(largest, 128)
    scale = (largest / 127).astype(np.float32)
    shape = [-1 if one == axis else 1 for one in range(array.ndim)] if axis is not None else []
    steps = np.rint(array / scale.reshape(shape)) + zero.reshape(shape)
    return {"": steps.astype(kind), "_scale": scale, "_zero": zero.astype(kind)}


def dequantized(one: dict[str, np.ndarray], axis: int | None = None) -> np.ndarray:
    shape = [-1 if other == axis else 1 for other in range(one[""].ndim)] if one["_scale"].size > 1 else []
    steps = one[""].astype(np.float32) - one["_zero"].astype(np.float32).reshape(shape)
    return (steps * one["_scale"].reshape(shape)).astype(np.float32)


def named(name: str, parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name + ending: array for ending, array in parts.items()}


def test_quantized_convolutions() -> None:
    x, w = quantized(drawn(2, 4, 5, 6), np.uint8), quantized(drawn(6, 2, 3, 2, seed=1), np.int8, 0)
    out = {"y_scale": np.float32(0.05), "y_zero": np.uint8(100)}
    names = ["x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero"]
    stored = {**named("x", x), **named("w", w), **out}
    feeds = {"x": stored.pop("x")}

    def rounded(sums: np.ndarray) -> np.ndarray:
        return np.clip(np.rint(sums / out["y_scale"]) + 100, 0, 255)

    weight = dequantized(w, 0)
    node = make_node("QLinearConv", names, ["y"], group=2, pads=[1, 0, 1, 0])
    reduction = holds(node, feeds, stored, weight=weight, after=rounded, atol=1.01)
    assert reduction.inputs == ("x",)
    last = make_node("QLinearConv", names, ["y"], group=2, pads=[1, 0, 1, 0], channels_last=1, domain=MICROSOFT)
    turned = {"x": np.ascontiguousarray(feeds["x"].transpose(0, 2, 3, 1))}
    holds(last, turned, stored, weight=weight, after=rounded, atol=1.01)
    node = make_node("ConvInteger", ["x", "w", "x_zero", "w_zero"], ["y"], group=2, strides=[2, 1])
    stored |= {"w": w[""].view(np.uint8), "w_zero": np.uint8(3)}
    holds(node, feeds, stored, weight=stored["w"].astype(np.float32) - 3, atol=0)


def test_scales_and_zero_points_of_the_graph() -> None:
    """What is not stored has to be given with the values."""
    w = quantized(drawn(4, 3), np.int8)
    nodes = [
        make_node("DynamicQuantizeLinear", ["x"], ["q", "q_scale", "q_zero"]),
        make_node("MatMulInteger", ["q", "w", "q_zero", "w_zero"], ["y"]),
    ]
    proto = model(nodes, {"x": drawn(2, 5, 4)}, named("w", w))
    reduction = reductions(proto)["w"]
    assert reduction.inputs == ("q", "q_zero")
    proto.graph.output.extend([onnx.ValueInfoProto(name=name) for name in ("q", "q_zero")])
    values = ran(proto, {"x": drawn(2, 5, 4)})
    (found,), (wanted,) = sums(reduction, w[""].astype(np.float32), values), reduction.by_output(values["y"])
    np.testing.assert_array_equal(found, wanted)


@for_each("on_left", [False, True])
def test_quantized_products(on_left: bool) -> None:
    a, b = quantized(drawn(3, 4), np.uint8), quantized(drawn(4, 5, seed=1), np.int8 if not on_left else np.uint8)
    names, own = ("w", "x") if on_left else ("x", "w"), a if on_left else b
    stored = {**named(names[0], a), **named(names[1], b), "y_scale": np.float32(0.05), "y_zero": np.uint8(100)}
    feeds, weight = {"x": stored.pop("x")}, dequantized(own)
    (left, right), both = names, [f"{name}{ending}" for name in names for ending in ("", "_scale", "_zero")]

    def rounded(sums: np.ndarray) -> np.ndarray:
        return np.clip(np.rint(sums / np.float32(0.05)) + 100, 0, 255)

    node = make_node("QLinearMatMul", [*both, "y_scale", "y_zero"], ["y"])
    holds(node, feeds, stored, weight=weight, after=rounded, atol=1.01)
    ends = [f"{name}{ending}" for ending in ("_scale", "_zero") for name in names]
    holds(
        make_node("MatMulIntegerToFloat", [left, right, *ends], ["y"], domain=MICROSOFT), feeds, stored, weight=weight
    )
    node = make_node("MatMulInteger", [left, right, *ends[2:]], ["y"])
    holds(node, feeds, stored, weight=own[""].astype(np.float32) - own["_zero"].astype(np.float32), atol=0)
    gemm = make_node("QGemm", both, ["y"], domain=MICROSOFT, alpha=0.5, transB=0)
    holds(gemm, feeds, stored, weight=weight)
    gemm = make_node("QGemm", [*both, "", "y_scale", "y_zero"], ["y"], domain=MICROSOFT)
    holds(gemm, feeds, stored, weight=weight, after=rounded, atol=1.01)


def test_a_product_that_quantizes_its_input_itself() -> None:
    w = quantized(drawn(4, 5, seed=1), np.int8)
    node = make_node("DynamicQuantizeMatMul", ["x", "w", "w_scale", "w_zero"], ["y"], domain=MICROSOFT)
    holds(node, {"x": drawn(3, 4)}, named("w", w), weight=dequantized(w), atol=0.1)


# -- weights that are cut, joined or put into another order


def joint(nodes: Any, feeds: dict[str, np.ndarray], stored: dict[str, np.ndarray], ends: dict[str, Any]) -> None:
    """Each use of each weight makes up its part of the outputs of its node."""
    proto = model(nodes, feeds, {**stored, **{name: np.array(value) for name, value in ends.items()}})
    proto.graph.output.extend(onnx.ValueInfoProto(name=node.output[0]) for node in nodes[:-1] if "x" in node.input)
    values = {**feeds, **ran(proto, feeds)}
    uses = [(weight.name, use) for weight in Model.over(proto).flow.weights for use in weight.uses]
    assert {name for name, _ in uses} == set(stored)
    for name, use in uses:
        reduction = reduction_of([use])
        assert isinstance(reduction, Reduction), reduction
        matrix, rows = reduction.matrix(stored[name]), reduction.rows(values)
        for block, outputs, wanted in zip(rows, reduction.outputs, reduction.by_output(values[reduction.result])):
            np.testing.assert_allclose(block @ matrix[outputs].T, wanted, atol=1e-4)


@for_each("turned", [False, True])
def test_parts_of_a_weight(turned: bool) -> None:
    """Queries, keys and values of one tensor; and matrices of a batch."""
    weight = drawn(4, 15)
    split = make_node("Split", ["w", "sizes"], ["q", "k", "v"], axis=0 if turned else 1)
    between = [make_node("Transpose", [one], [f"{one}_turned"]) for one in "qkv"] if turned else []
    names = [node.output[0] for node in between] or list(split.output)
    products = [make_node("MatMul", ["x", name], [f"y_{name}"]) for name in names]
    stored = {"w": np.ascontiguousarray(weight.T) if turned else weight}
    joint([split, *between, *products], {"x": drawn(2, 3, 4)}, stored, {"sizes": [3, 7, 5]})
    split = make_node("Split", ["w", "sizes"], ["q", "k"], axis=0)
    products = [make_node("MatMul", ["x", name], [f"y_{name}"]) for name in split.output]
    joint([split, *products], {"x": drawn(1, 3, 4)}, {"w": drawn(5, 4, 3)}, {"sizes": [2, 3]})


def test_weights_side_by_side() -> None:
    join = make_node("Concat", ["u", "v"], ["w"], axis=1)
    joint(
        [join, make_node("MatMul", ["x", "w"], ["y"])], {"x": drawn(2, 3, 4)}, {"u": drawn(4, 3), "v": drawn(4, 2)}, {}
    )
    join = make_node("Concat", ["u", "v"], ["w"], axis=0)
    product = make_node("MatMul", ["x", "w"], ["y"])
    for batch in (5, 1):
        joint([join, product], {"x": drawn(2, batch, 3, 4)}, {"u": drawn(2, 4, 3), "v": drawn(3, 4, 3)}, {})
    image, stored = {"x": drawn(2, 4, 5, 5)}, {"u": drawn(2, 4, 3, 3), "v": drawn(3, 4, 3, 3)}
    joint([join, make_node("Conv", ["x", "w"], ["y"])], image, stored, {})


def test_outputs_in_another_order() -> None:
    cuts = [make_node("Slice", ["v", f"at{at}", f"at{at + 1}", "axis"], [f"v{at}"]) for at in range(3)]
    join = make_node("Concat", ["v2", "v0", "v1"], ["w"], axis=0)
    ends = {"at0": [0], "at1": [1], "at2": [4], "at3": [6], "axis": [0]}
    image, conv = {"x": drawn(2, 4, 5, 5)}, make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    joint([*cuts, join, conv], image, {"v": drawn(6, 4, 3, 3)}, ends)
    joint([*cuts, join, make_node("MatMul", ["w", "x"], ["y"])], {"x": drawn(2, 4, 5)}, {"v": drawn(6, 4)}, ends)
    grouped = make_node("Conv", ["x", "w"], ["y"], group=2)
    joint([*cuts, join, grouped], image, {"v": drawn(6, 2, 3, 3)}, ends)


# -- attention, and what has none


def test_the_projection_of_fused_attention() -> None:
    node = make_node("Attention", ["x", "w", "b"], ["y"], domain=MICROSOFT, num_heads=2)
    reduction = reductions(model([node], {"x": drawn(2, 3, 4)}, {"w": drawn(4, 12), "b": drawn(12)}))["w"]
    assert reduction.result == ""
    np.testing.assert_array_equal(reduction.rows({"x": drawn(2, 3, 4)})[0], drawn(2, 3, 4).reshape(6, 4))


@for_each(
    ("node", "dims", "reason"),
    [
        (make_node("Gather", ["w", "x"], ["y"]), (5, 4), "a lookup table sums nothing up"),
        (make_node("DeformConv", ["x", "w", "x"], ["y"]), (4, 3, 2, 2), "between the places of a grid"),
        (make_node("Einsum", ["x", "w"], ["y"], equation="...i,io->o"), (3, 2), "axes that its dots stand for"),
    ],
)
def test_what_has_no_reduction(node: onnx.NodeProto, dims: Any, reason: str) -> None:
    proto = model([node], {"x": drawn(1)}, {"w": drawn(*dims)})
    found = reductions(proto)["w"]
    assert isinstance(found, str)
    assert reason in found
