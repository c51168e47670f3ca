"""Weights inside If, Loop and Scan bodies and inside local functions, and names that mean different things there."""

from __future__ import annotations

import functools
from typing import Sequence

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto, helper

from .case import Array, Built, Expected, Use, add, case, expect, feed, graph, model, node, output_info, tensor, value_info, weights

RIGHT = Use("MatMul", (0,), (1,))
LOCAL = {"local": 1}


def _branch(nodes: Sequence[NodeProto], output: str, initializers: Sequence[TensorProto] = (), name: str = "b") -> GraphProto:
    return helper.make_graph(list(nodes), name, [], [output_info(output, 2)], list(initializers))


def _if_model(then: GraphProto, other: GraphProto, wanted: Sequence[Expected], outer: Sequence[TensorProto] = ()) -> Built:
    feeds = {"c": np.array(True), "x": feed(4, 16)}
    choice = node("If", "c", "y", then_branch=then, else_branch=other)
    return Built(model(graph([choice], feeds, [("y", 2)], outer)), feeds, tuple(wanted))


@case
def if_with_initializers() -> Built:
    v, w = weights(16, 8), weights(16, 8, seed=2)
    then = _branch([node("MatMul", "x v", "a")], "a", [tensor("v", v)], "then")
    other = _branch([node("MatMul", "x w", "b")], "b", [tensor("w", w)], "else")
    return _if_model(then, other, [expect("v", v, RIGHT), expect("w", w, RIGHT)])


@case
def if_with_constants() -> Built:
    v, w = weights(16, 8), weights(8, 16, seed=2)
    then = _branch([node("Constant", "", "v", value=tensor("", v)), node("MatMul", "x v", "a")], "a")
    nodes = [node("Constant", "", "w", value=tensor("", w)), node("Transpose", "w", "t"), node("MatMul", "x t", "b")]
    wanted = [expect("v", v, RIGHT, storage="constant"), expect("w", w, Use("MatMul", (1,), (0,)), storage="constant")]
    return _if_model(then, _branch(nodes, "b"), wanted)


@case
def if_captures_outer_weight() -> Built:
    """One tensor outside, used in both branches."""
    w = weights(16, 8)
    then, other = _branch([node("MatMul", "x w", "a")], "a"), _branch([node("Gemm", "x w", "b")], "b")
    return _if_model(then, other, [expect("w", w, RIGHT, Use("Gemm", (0,), (1,)))], [tensor("w", w)])


@case
def if_captures_along_two_axes() -> Built:
    w = weights(16, 16)
    then, other = _branch([node("MatMul", "x w", "a")], "a"), _branch([node("Gemm", "x w", "b", transB=1)], "b")
    wanted = expect("w", w, RIGHT, Use("Gemm", (1,), (0,)), reason="two axes")
    return _if_model(then, other, [wanted], [tensor("w", w)])


@case
def if_branches_use_one_name() -> Built:
    """`w` in one branch is not `w` in the other."""
    v, w = weights(16, 8), weights(8, 16, seed=2)
    then = _branch([node("MatMul", "x w", "a")], "a", [tensor("w", v)])
    other = _branch([node("Gemm", "x w", "b", transB=1)], "b", [tensor("w", w)])
    return _if_model(then, other, [expect("w", v, RIGHT), expect("w", w, Use("Gemm", (1,), (0,)))])


@case
def if_shadows_outer_name() -> Built:
    """Not allowed by the standard, met all the same: the inner `w` hides the outer one."""
    outer, inner = weights(16, 8), weights(16, 12, seed=2)
    then = _branch([node("MatMul", "x w", "a"), node("Slice", "a s e ax", "a2")], "a2", [tensor("w", inner)])
    then.initializer.extend(tensor(key, np.array([value])) for key, value in (("s", 0), ("e", 8), ("ax", 1)))
    built = _if_model(then, _branch([node("MatMul", "x w", "b")], "b"), [expect("w", outer, RIGHT), expect("w", inner, RIGHT)], [tensor("w", outer)])
    return Built(built.model, built.feeds, built.expected, runs=False, checks=False)


@case
def if_in_if_in_if() -> Built:
    v, w = weights(16, 8), weights(16, 8, seed=2)
    nodes = [node("Constant", "", "v", value=tensor("", v)), node("MatMul", "x v", "p"), node("MatMul", "x w", "q")]
    body = _branch([*nodes, node("Add", "p q", "r")], "r")
    for level in range(3):
        plain = _branch([node("MatMul", "x w", f"e{level}")], f"e{level}")
        choice = node("If", "c", f"i{level}", then_branch=body, else_branch=plain)
        body = _branch([choice], f"i{level}")
    feeds = {"c": np.array(True), "x": feed(4, 16)}
    whole = graph([*body.node, node("Identity", "i2", "y")], feeds, [("y", 2)], [tensor("w", w)])
    wanted = (expect("v", v, RIGHT, storage="constant"), expect("w", w, RIGHT))
    return Built(model(whole), feeds, wanted)


def _loop_body(w_inside: bool, w: Array) -> GraphProto:
    return helper.make_graph(
        [node("MatMul", "state w", "next"), node("Identity", "go_in", "go")],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_in", TensorProto.BOOL, []),
            value_info("state", feed(4, 16)),
        ],
        [helper.make_tensor_value_info("go", TensorProto.BOOL, []), output_info("next", 2)],
        [tensor("w", w)] if w_inside else [],
    )


def _loop(w_inside: bool) -> Built:
    w, feeds = weights(16, 16), {"x": feed(4, 16)}
    outer = [tensor("n", np.array(3)), tensor("t", np.array(True))] + ([] if w_inside else [tensor("w", w)])
    whole = graph([node("Loop", "n t x", "y", body=_loop_body(w_inside, w))], feeds, [("y", 2)], outer)
    return Built(model(whole), feeds, (expect("w", w, RIGHT),))


add("loop_with_initializer", "scopes", functools.partial(_loop, True))
add("loop_captures_outer_weight", "scopes", functools.partial(_loop, False))


@case
def loop_carries_the_weight() -> Built:
    """The weight enters as a loop state: it could change on the way, so it is not one constant."""
    w, feeds = weights(16, 16), {"x": feed(4, 16)}
    body = _loop_body(False, w)
    body.input.append(value_info("w", w))
    body.node.append(node("Identity", "w", "w_next"))
    body.output.append(value_info("w_next", w))
    outer = [tensor("n", np.array(3)), tensor("t", np.array(True)), tensor("outer_w", w)]
    whole = graph([node("Loop", "n t x outer_w", "y unused", body=body)], feeds, [("y", 2)], outer)
    wanted = expect("outer_w", w, RIGHT, reason="not traceable", lenient=True)
    return Built(model(whole), feeds, (wanted,))


def _scan(w_inside: bool) -> Built:
    w, feeds = weights(16, 8), {"x": feed(5, 4, 16)}
    body = helper.make_graph(
        [node("MatMul", "row w", "out")],
        "body",
        [value_info("row", feed(4, 16))],
        [output_info("out", 2)],
        [tensor("w", w)] if w_inside else [],
    )
    outer = [] if w_inside else [tensor("w", w)]
    whole = graph([node("Scan", "x", "y", body=body, num_scan_inputs=1)], feeds, [("y", 3)], outer)
    return Built(model(whole), feeds, (expect("w", w, RIGHT),))


add("scan_with_initializer", "scopes", functools.partial(_scan, True))
add("scan_captures_outer_weight", "scopes", functools.partial(_scan, False))


@case
def scan_runs_over_the_weight() -> Built:
    """The weight is a scanned input (layers, in, out): each step sees one slice of it."""
    w, feeds = weights(3, 16, 16), {"x": feed(4, 16)}
    body = helper.make_graph(
        [node("MatMul", "state w_step", "next")],
        "body",
        [value_info("state", feed(4, 16)), value_info("w_step", weights(16, 16))],
        [output_info("next", 2)],
    )
    whole = graph([node("Scan", "x w", "y", body=body, num_scan_inputs=1)], feeds, [("y", 2)], [tensor("w", w)])
    wanted = expect("w", w, Use("MatMul", (1,), (2,)), reason="not traceable", lenient=True)
    return Built(model(whole), feeds, (wanted,))


def function(name: str, inputs: str, outputs: str, nodes: Sequence[NodeProto], attributes: Sequence[str] = ()) -> FunctionProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, inputs.split(), outputs.split(), list(nodes), imports, list(attributes))


def refer(made: NodeProto, attribute: str, parameter: str, kind: int) -> NodeProto:
    made.attribute.append(AttributeProto(name=attribute, ref_attr_name=parameter, type=kind))  # type: ignore[arg-type]
    return made


def _called(nodes: Sequence[NodeProto], functions: Sequence[FunctionProto], wanted: Sequence[Expected], stored: dict, outs: str = "y") -> Built:  # type: ignore[type-arg]
    feeds = {"x": feed(4, 16)}
    tensors = [tensor(name, values) for name, values in stored.items()]
    whole = graph(nodes, feeds, [(out, 2) for out in outs.split()], tensors)
    return Built(model(whole, domains=LOCAL, functions=functions), feeds, tuple(wanted))


@case
def function_holds_constant() -> Built:
    w = weights(16, 8)
    body = [node("Constant", "", "w", value=tensor("", w)), node("MatMul", "a w", "b")]
    call = node("Dense", "x", "y", domain="local")
    return _called([call], [function("Dense", "a", "b", body)], [expect("w", w, RIGHT, storage="constant")], {})


@case
def function_takes_weight() -> Built:
    w = weights(16, 8)
    dense = function("Dense", "a k", "b", [node("MatMul", "a k", "b")])
    return _called([node("Dense", "x w", "y", domain="local")], [dense], [expect("w", w, RIGHT)], {"w": w})


@case
def function_inside_name_hides_outer_name() -> Built:
    """`w` of the model is one tensor, `w` of the function another."""
    outer, inner = weights(16, 16), weights(16, 8, seed=3)
    body = [node("Constant", "", "w", value=tensor("", inner)), node("MatMul", "a w", "b")]
    nodes = [node("MatMul", "x w", "h"), node("Dense", "h", "y", domain="local")]
    wanted = [expect("w", outer, RIGHT), expect("w", inner, RIGHT, storage="constant")]
    return _called(nodes, [function("Dense", "a", "b", body)], wanted, {"w": outer})


@case
def function_called_twice_with_its_constant() -> Built:
    w = weights(16, 16)
    body = [node("Constant", "", "w", value=tensor("", w)), node("MatMul", "a w", "b")]
    nodes = [node("Dense", "x", "h", domain="local"), node("Dense", "h", "y", domain="local")]
    return _called(nodes, [function("Dense", "a", "b", body)], [expect("w", w, RIGHT, storage="constant")], {})


@case
def function_called_with_two_weights() -> Built:
    v, w = weights(16, 16), weights(16, 8, seed=4)
    dense = function("Dense", "a k", "b", [node("MatMul", "a k", "b")])
    nodes = [node("Dense", "x v", "h", domain="local"), node("Dense", "h w", "y", domain="local")]
    return _called(nodes, [dense], [expect("v", v, RIGHT), expect("w", w, RIGHT)], {"v": v, "w": w})


@case
def function_called_along_two_axes() -> Built:
    """The call decides transB, so the constant inside is summed over one axis here and the other there."""
    w = weights(16, 16)
    gemm = refer(node("Gemm", "a w", "b"), "transB", "flip", AttributeProto.INT)
    body = [node("Constant", "", "w", value=tensor("", w)), gemm]
    nodes = [node("Dense", "x", "h", domain="local", flip=0), node("Dense", "h", "y", domain="local", flip=1)]
    uses = (Use("Gemm", (0,), (1,)), Use("Gemm", (1,), (0,)))
    wanted = expect("w", w, *uses, storage="constant", reason="two axes")
    return _called(nodes, [function("Dense", "a", "b", body, ["flip"])], [wanted], {})


def _gemm_by_reference(flip: int) -> Built:
    w = weights(8, 16) if flip else weights(16, 8)
    gemm = refer(node("Gemm", "a k", "b"), "transB", "flip", AttributeProto.INT)
    refer(gemm, "alpha", "gain", AttributeProto.FLOAT)
    dense = function("Dense", "a k", "b", [gemm], ["flip", "gain"])
    call = node("Dense", "x w", "y", domain="local", flip=flip, gain=0.5)
    return _called([call], [dense], [expect("w", w, Use("Gemm", (flip,), (1 - flip,)))], {"w": w})


add("function_transposes_by_reference", "scopes", functools.partial(_gemm_by_reference, 1))
add("function_does_not_transpose_by_reference", "scopes", functools.partial(_gemm_by_reference, 0))


@case
def function_default_attribute_transposes() -> Built:
    """The call leaves the attribute out; the default of the function counts."""
    w = weights(8, 16)
    gemm = refer(node("Gemm", "a k", "b"), "transB", "flip", AttributeProto.INT)
    dense = function("Dense", "a k", "b", [gemm])
    dense.attribute_proto.append(helper.make_attribute("flip", 1))
    built = _called([node("Dense", "x w", "y", domain="local")], [dense], [expect("w", w, Use("Gemm", (1,), (0,)))], {"w": w})
    return Built(built.model, built.feeds, built.expected)


@case
def function_weight_is_an_attribute_of_the_call() -> Built:
    """The tensor is stored in the calling node; each call has its own."""
    v, w = weights(16, 16), weights(16, 8, seed=4)
    constant = refer(node("Constant", "", "k"), "value", "kernel", AttributeProto.TENSOR)
    dense = function("Dense", "a", "b", [constant, node("MatMul", "a k", "b")], ["kernel"])
    nodes = [
        node("Dense", "x", "h", domain="local", kernel=tensor("v", v)),
        node("Dense", "h", "y", domain="local", kernel=tensor("w", w)),
    ]
    wanted = [expect("", v, RIGHT, storage="call attribute"), expect("", w, RIGHT, storage="call attribute")]
    return _called(nodes, [dense], wanted, {})


@case
def function_in_function() -> Built:
    """The weight passes through two calls and a Transpose between them."""
    w, v = weights(8, 16), weights(8, 8, seed=2)
    inner = function("Inner", "p k", "q", [node("MatMul", "p k", "q")])
    body = [
        node("Transpose", "k", "t"),
        node("Inner", "a t", "h", domain="local"),
        node("Constant", "", "v", value=tensor("", v)),
        node("Inner", "h v", "b", domain="local"),
    ]
    outer = function("Outer", "a k", "b", body)
    wanted = [expect("w", w, Use("MatMul", (1,), (0,))), expect("v", v, RIGHT, storage="constant")]
    return _called([node("Outer", "x w", "y", domain="local")], [inner, outer], wanted, {"w": w})


@case
def function_passes_reference_on() -> Built:
    """An attribute handed through two levels of calls."""
    w = weights(8, 16)
    inner = function("Inner", "p k", "q", [refer(node("Gemm", "p k", "q"), "transB", "flip", AttributeProto.INT)], ["flip"])
    call = refer(node("Inner", "a k", "b", domain="local"), "flip", "turn", AttributeProto.INT)
    outer = function("Outer", "a k", "b", [call], ["turn"])
    nodes = [node("Outer", "x w", "y", domain="local", turn=1)]
    return _called(nodes, [inner, outer], [expect("w", w, Use("Gemm", (1,), (0,)))], {"w": w})


@case
def function_with_the_name_of_an_operator() -> Built:
    """`MatMul` of another domain is what its body says: x times the transpose."""
    w = weights(8, 16)
    body = [node("Gemm", "a k", "b", transB=1)]
    return _called([node("MatMul", "x w", "y", domain="local")], [function("MatMul", "a k", "b", body)], [expect("w", w, Use("Gemm", (1,), (0,)))], {"w": w})


@case
def function_called_inside_if() -> Built:
    w = weights(16, 8)
    dense = function("Dense", "a k", "b", [node("MatMul", "a k", "b")])
    then = _branch([node("Dense", "x w", "p", domain="local")], "p")
    other = _branch([node("MatMul", "x w", "q")], "q")
    built = _if_model(then, other, [expect("w", w, RIGHT)], [tensor("w", w)])
    built.model.functions.append(dense)
    built.model.opset_import.append(helper.make_opsetid("local", 1))
    return built
