"""Combinations: a weight that crosses scopes, types and quantisation at once."""

from __future__ import annotations

import functools

import numpy as np
from onnx import TensorProto, helper

from .case import Built, Use, add, case, codes, expect, feed, graph, model, node, simple, tensor, value_info, weights
from .functions import LOCAL, function
from .scopes import branch, if_model

RIGHT = Use("MatMul", (0,), (1,))
CONV = Use("Conv", (1,), (0,), (2, 3))


@case
def transposed_outside_used_inside() -> Built:
    """The Transpose is in the main graph, the product in the branches."""
    w = weights(8, 16)
    then, other = branch([node("MatMul", "x t", "a")], "a"), branch([node("MatMul", "x t", "b")], "b")
    use = Use("MatMul", (1,), (0,))
    built = if_model(then, other, [expect("w", w, use, use)], [tensor("w", w)])
    built.model.graph.node.insert(0, node("Transpose", "w", "t"))
    return built


@case
def constant_outside_used_inside() -> Built:
    w = weights(16, 8)
    then, other = (
        branch([node("MatMul", "x w", "a")], "a"),
        branch([node("Identity", "w", "i"), node("MatMul", "x i", "b")], "b"),
    )
    built = if_model(then, other, [expect("w", w, RIGHT, RIGHT, storage="constant")])
    built.model.graph.node.insert(0, node("Constant", "", "w", value=tensor("", w)))
    return built


@case
def two_functions_use_one_inner_name() -> Built:
    v, w = weights(16, 12), weights(12, 8, seed=2)
    first = function("First", "a", "b", [node("Constant", "", "k", value=tensor("", v)), node("MatMul", "a k", "b")])
    second = function("Second", "a", "b", [node("Constant", "", "k", value=tensor("", w)), node("MatMul", "a k", "b")])
    feeds = {"x": feed(4, 16)}
    nodes = [node("First", "x", "h", domain="local"), node("Second", "h", "y", domain="local")]
    wanted = (expect("k", v, RIGHT, storage="constant"), expect("k", w, RIGHT, storage="constant"))
    return Built(model(graph(nodes, feeds, [("y", 2)]), domains=LOCAL, functions=[first, second]), feeds, wanted)


@case
def used_in_graph_and_in_function() -> Built:
    """Once directly, once as an input of a call that transposes: two axes."""
    w, feeds = weights(16, 16), {"x": feed(4, 16)}
    dense = function("Dense", "a k", "b", [node("Gemm", "a k", "b", transB=1)])
    nodes = [node("MatMul", "x w", "h"), node("Dense", "h w", "y", domain="local")]
    wanted = expect("w", w, RIGHT, Use("Gemm", (1,), (0,)), reason="two axes")
    return Built(
        model(graph(nodes, feeds, [("y", 2)], [tensor("w", w)]), domains=LOCAL, functions=[dense]), feeds, (wanted,)
    )


@case
def function_holds_if() -> Built:
    """A branch inside a function captures the function's input, which is the weight."""
    w, feeds = weights(16, 8), {"x": feed(4, 16), "c": np.array(True)}
    then, other = branch([node("MatMul", "a k", "p")], "p"), branch([node("Gemm", "a k", "q")], "q")
    body = [node("If", "flag", "b", then_branch=then, else_branch=other)]
    dense = function("Dense", "a k flag", "b", body)
    call = node("Dense", "x w c", "y", domain="local")
    wanted = expect("w", w, RIGHT, Use("Gemm", (0,), (1,)))
    return Built(
        model(graph([call], feeds, [("y", 2)], [tensor("w", w)]), domains=LOCAL, functions=[dense]), feeds, (wanted,)
    )


@case
def function_with_optional_input_left_out() -> Built:
    w, feeds = weights(16, 8), {"x": feed(4, 16)}
    dense = function("Dense", "a k bias", "b", [node("Gemm", "a k bias", "b")])
    call = node("Dense", "x w", "y", domain="local")
    wanted = expect("w", w, Use("Gemm", (0,), (1,)))
    return Built(
        model(graph([call], feeds, [("y", 2)], [tensor("w", w)]), domains=LOCAL, functions=[dense]), feeds, (wanted,)
    )


@case
def overridable_initializer() -> Built:
    """IR 8, listed as an input with a default all the same."""
    w, feeds = weights(16, 8), {"x": feed(4, 16)}
    whole = graph([node("MatMul", "x w", "y")], feeds, [("y", 2)], [tensor("w", w)])
    whole.input.append(value_info("w", w))
    return Built(model(whole), feeds, (expect("w", w, RIGHT),))


def _integers_in_int32_data(elem_type: int, dtype: str) -> Built:
    w = codes(16, 8, unsigned=dtype == "uint8")
    stored = helper.make_tensor("w", elem_type, w.shape, w.ravel().tolist())
    zero = np.asarray(np.array(5, dtype))
    nodes = [node("DequantizeLinear", "w s z", "d"), node("MatMul", "x d", "y")]
    feeds = {"x": feed(4, 16)}
    whole = graph(nodes, feeds, [("y", 2)], [stored, tensor("s", np.asarray(np.float32(0.02))), tensor("z", zero)])
    real = (w.astype(np.float32) - 5) * np.float32(0.02)
    return Built(model(whole), feeds, (expect("w", real, RIGHT, dtype=dtype, zero=zero),))


add("int8_in_int32_data", "combined", functools.partial(_integers_in_int32_data, TensorProto.INT8, "int8"))
add("uint8_in_int32_data", "combined", functools.partial(_integers_in_int32_data, TensorProto.UINT8, "uint8"))


@case
def qdq_everywhere() -> Built:
    """Activation, weight and bias all behind Q and DQ; the int32 bias is no weight."""
    w, b = codes(6, 8, 3, 3), np.arange(6, dtype=np.int32) * 50
    scale = np.geomspace(0.001, 0.1, 6).astype(np.float32)
    small, zero = np.asarray(np.float32(0.05)), np.asarray(np.uint8(120))
    nodes = [
        node("QuantizeLinear", "x s z", "xq"),
        node("DequantizeLinear", "xq s z", "xd"),
        node("DequantizeLinear", "w ws", "wd", axis=0),
        node("DequantizeLinear", "b ws", "bd", axis=0),
        node("Conv", "xd wd bd", "c"),
        node("QuantizeLinear", "c s z", "cq"),
        node("DequantizeLinear", "cq s z", "y"),
    ]
    real = w.astype(np.float32) * scale[:, None, None, None]
    stored = {"w": w, "b": b, "ws": scale, "s": small, "z": zero}
    return simple(nodes, {"x": feed(1, 8, 5, 5)}, [("y", 4)], stored, [expect("w", real, CONV, dtype="int8")])


@case
def scale_from_constant_nodes() -> Built:
    """Scale and zero point are Constant nodes behind Identity."""
    w, scale = codes(8, 16), np.geomspace(0.01, 0.5, 8).astype(np.float32)
    zero = np.arange(8, dtype=np.int8)
    nodes = [
        node("Constant", "", "s0", value=tensor("", scale)),
        node("Identity", "s0", "s"),
        node("Constant", "", "z0", value=tensor("", zero)),
        node("Identity", "z0", "z"),
        node("DequantizeLinear", "w s z", "d", axis=-2),
        node("Gemm", "x d", "y", transB=1),
    ]
    real = (w.astype(np.float32) - zero[:, None]) * scale[:, None]
    wanted = expect("w", real, Use("Gemm", (1,), (0,)), dtype="int8", zero=zero[:, None])
    return simple(nodes, {"x": feed(4, 16)}, [("y", 2)], {"w": w}, [wanted])


@case
def float16_gemm_under_dequantize_of_other_tensor() -> Built:
    """Mixed types: a float16 branch and an int8 branch with the same x."""
    w, v = weights(16, 8), codes(16, 8, seed=3)
    nodes = [
        node("Cast", "x", "h", to=TensorProto.FLOAT16),
        node("MatMul", "h w", "a"),
        node("DequantizeLinear", "v s", "d"),
        node("MatMul", "x d", "b"),
    ]
    stored = {"w": w.astype(np.float16), "v": v, "s": np.asarray(np.float32(0.02))}
    wanted = [expect("w", w, RIGHT, dtype="float16"), expect("v", v * np.float32(0.02), RIGHT, dtype="int8")]
    return simple(nodes, {"x": feed(4, 16)}, [("a", 2, TensorProto.FLOAT16), ("b", 2)], stored, wanted)


@case
def dequantized_by_two_scales() -> Built:
    """One int8 tensor read with two scales: magnitudes agree in order, so one mask serves both."""
    w = codes(16, 8)
    nodes = [
        node("DequantizeLinear", "w s", "d"),
        node("DequantizeLinear", "w t", "e"),
        node("MatMul", "x d", "a"),
        node("MatMul", "x e", "b"),
    ]
    stored = {"w": w, "s": np.asarray(np.float32(0.02)), "t": np.asarray(np.float32(0.5))}
    wanted = expect("w", w * np.float32(0.02), RIGHT, RIGHT, dtype="int8", reason="two readings", lenient=True)
    return simple(nodes, {"x": feed(4, 16)}, [("a", 2), ("b", 2)], stored, [wanted])


@case
def constant_image_is_no_weight() -> Built:
    """The constant is the data of the Conv, the weight comes from outside."""
    feeds = {"w": feed(6, 8, 3, 3)}
    return simple([node("Conv", "image w", "y")], feeds, [("y", 4)], {"image": weights(1, 8, 6, 6)}, [])


@case
def product_of_two_constants() -> Built:
    """Both operands are stored; whoever folds it first sees one tensor. Listed, whatever is done."""
    v, w = weights(8, 16), weights(16, 8, seed=3)
    nodes = [node("MatMul", "v w", "p"), node("Add", "x p", "y")]
    lost = {"reason": "not traceable", "lenient": True}
    wanted = [expect("v", v, Use("MatMul", (1,), (0,)), **lost), expect("w", w, RIGHT, **lost)]
    return simple(nodes, {"x": feed(8, 8)}, [("y", 2)], {"v": v, "w": w}, wanted)


@case
def one_tensor_reshaped_two_ways() -> Built:
    """A Conv (6, 16, 1, 1) that is also a Gemm through Reshape, along the same axis."""
    w = weights(6, 16, 1, 1)
    nodes = [
        node("Reshape", "w s", "r"),
        node("Gemm", "x r", "a", transB=1),
        node("Conv", "image w", "b"),
    ]
    feeds = {"x": feed(4, 16), "image": feed(1, 16, 3, 3)}
    wanted = expect("w", w, Use("Gemm", (1,), (0,)), CONV)
    return simple(nodes, feeds, [("a", 2), ("b", 4)], {"w": w, "s": np.array([6, 16])}, [wanted])


@case
def same_axis_but_other_groups() -> Built:
    """(12, 5) whole and as two batches of 6: both along axis 0, with other groups of four."""
    w = weights(12, 5)
    nodes = [node("MatMul", "x w", "a"), node("Reshape", "w s", "r"), node("MatMul", "z r", "b")]
    feeds = {"x": feed(4, 12), "z": feed(2, 4, 6)}
    wanted = expect("w", w, RIGHT, Use("MatMul", (0,), (1,), splits=2), reason="two axes", lenient=True)
    return simple(nodes, feeds, [("a", 2), ("b", 3)], {"w": w, "s": np.array([2, 6, 5])}, [wanted])


@case
def nodes_with_one_name() -> Built:
    """The standard lets node names repeat (the runtime does not): two Gemms called `fc` sum over different axes."""
    w = weights(16, 16)
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], name="fc"),
        helper.make_node("Gemm", ["x", "w"], ["b"], name="fc", transB=1),
    ]
    uses = (Use("Gemm", (0,), (1,)), Use("Gemm", (1,), (0,)))
    wanted = expect("w", w, *uses, reason="two axes")
    return simple(nodes, {"x": feed(4, 16)}, [("a", 2), ("b", 2)], {"w": w}, [wanted], runs=False)


@case
def branches_with_one_name() -> Built:
    """Two unnamed Ifs with bodies of one name and nodes of one name; only the axis differs."""
    w, feeds = weights(16, 16), {"x": feed(4, 16), "c": np.array(True)}
    nodes = []
    for number, flip in enumerate((0, 1)):
        bodies = []
        for side in ("then_branch", "else_branch"):
            made = helper.make_node("Gemm", ["x", "w"], [f"{side}{number}"], name="fc", transB=flip)
            bodies.append(branch([made], f"{side}{number}", name="body"))
        nodes.append(helper.make_node("If", ["c"], [f"y{number}"], then_branch=bodies[0], else_branch=bodies[1]))
    uses = (Use("Gemm", (0,), (1,)), Use("Gemm", (1,), (0,)))
    wanted = expect("w", w, *uses, reason="two axes")
    return Built(model(graph(nodes, feeds, [("y0", 2), ("y1", 2)], [tensor("w", w)])), feeds, (wanted,))


@case
def weight_is_both_operands() -> Built:
    """w @ w: both slots of one node, both axes."""
    w = weights(16, 16)
    nodes = [node("MatMul", "w w", "p"), node("Add", "x p", "y")]
    uses = (Use("MatMul", (1,), (0,)), Use("MatMul", (0,), (1,)))
    wanted = expect("w", w, *uses, reason="two axes", lenient=True)
    return simple(nodes, {"x": feed(16, 16)}, [("y", 2)], {"w": w}, [wanted])
