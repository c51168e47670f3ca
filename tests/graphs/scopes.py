"""Weights inside If, Loop and Scan bodies, and names that mean different things there."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper

from .case import (
    Array,
    Built,
    Expected,
    Use,
    add,
    case,
    expect,
    feed,
    graph,
    model,
    node,
    output_info,
    tensor,
    value_info,
    weights,
)

RIGHT = Use("MatMul", (0,), (1,))


def branch(
    nodes: Sequence[NodeProto], output: str, initializers: Sequence[TensorProto] = (), name: str = "b"
) -> GraphProto:
    return helper.make_graph(list(nodes), name, [], [output_info(output, 2)], list(initializers))


def if_model(
    then: GraphProto, other: GraphProto, wanted: Sequence[Expected], outer: Sequence[TensorProto] = ()
) -> Built:
    feeds = {"c": np.array(True), "x": feed(4, 16)}
    choice = node("If", "c", "y", then_branch=then, else_branch=other)
    return Built(model(graph([choice], feeds, [("y", 2)], outer)), feeds, tuple(wanted))


@case
def if_with_initializers() -> Built:
    v, w = weights(16, 8), weights(16, 8, seed=2)
    then = branch([node("MatMul", "x v", "a")], "a", [tensor("v", v)], "then")
    other = branch([node("MatMul", "x w", "b")], "b", [tensor("w", w)], "else")
    return if_model(then, other, [expect("v", v, RIGHT), expect("w", w, RIGHT)])


@case
def if_with_constants() -> Built:
    v, w = weights(16, 8), weights(8, 16, seed=2)
    then = branch([node("Constant", "", "v", value=tensor("", v)), node("MatMul", "x v", "a")], "a")
    nodes = [node("Constant", "", "w", value=tensor("", w)), node("Transpose", "w", "t"), node("MatMul", "x t", "b")]
    wanted = [expect("v", v, RIGHT, storage="constant"), expect("w", w, Use("MatMul", (1,), (0,)), storage="constant")]
    return if_model(then, branch(nodes, "b"), wanted)


@case
def if_captures_outer_weight() -> Built:
    """One tensor outside, used in both branches."""
    w = weights(16, 8)
    then, other = branch([node("MatMul", "x w", "a")], "a"), branch([node("Gemm", "x w", "b")], "b")
    return if_model(then, other, [expect("w", w, RIGHT, Use("Gemm", (0,), (1,)))], [tensor("w", w)])


@case
def if_captures_along_two_axes() -> Built:
    w = weights(16, 16)
    then, other = branch([node("MatMul", "x w", "a")], "a"), branch([node("Gemm", "x w", "b", transB=1)], "b")
    wanted = expect("w", w, RIGHT, Use("Gemm", (1,), (0,)), reason="two axes")
    return if_model(then, other, [wanted], [tensor("w", w)])


@case
def if_branches_use_one_name() -> Built:
    """`w` in one branch is not `w` in the other."""
    v, w = weights(16, 8), weights(8, 16, seed=2)
    then = branch([node("MatMul", "x w", "a")], "a", [tensor("w", v)])
    other = branch([node("Gemm", "x w", "b", transB=1)], "b", [tensor("w", w)])
    return if_model(then, other, [expect("w", v, RIGHT), expect("w", w, Use("Gemm", (1,), (0,)))])


@case
def if_shadows_outer_name() -> Built:
    """Not allowed by the standard, met all the same: the inner `w` hides the outer one."""
    outer, inner = weights(16, 8), weights(16, 12, seed=2)
    then = branch([node("MatMul", "x w", "a"), node("Slice", "a s e ax", "a2")], "a2", [tensor("w", inner)])
    then.initializer.extend(tensor(key, np.array([value])) for key, value in (("s", 0), ("e", 8), ("ax", 1)))
    built = if_model(
        then,
        branch([node("MatMul", "x w", "b")], "b"),
        [expect("w", outer, RIGHT), expect("w", inner, RIGHT)],
        [tensor("w", outer)],
    )
    return Built(built.model, built.feeds, built.expected, runs=False, checks=False)


@case
def if_in_if_in_if() -> Built:
    v, w = weights(16, 8), weights(16, 8, seed=2)
    nodes = [node("Constant", "", "v", value=tensor("", v)), node("MatMul", "x v", "p"), node("MatMul", "x w", "q")]
    body = branch([*nodes, node("Add", "p q", "r")], "r")
    for level in range(3):
        plain = branch([node("MatMul", "x w", f"e{level}")], f"e{level}")
        choice = node("If", "c", f"i{level}", then_branch=body, else_branch=plain)
        body = branch([choice], f"i{level}")
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
