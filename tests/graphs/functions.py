"""Weights of local functions: inside, as inputs, as attributes of the call, and names that mean different things."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from onnx import AttributeProto, FunctionProto, NodeProto, helper

from .case import Built, Expected, Use, add, case, expect, feed, graph, model, node, tensor, weights
from .scopes import branch, if_model

RIGHT = Use("MatMul", (0,), (1,))
LOCAL = {"local": 1}


def function(
    name: str, inputs: str, outputs: str, nodes: Sequence[NodeProto], attributes: Sequence[str] = ()
) -> FunctionProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, inputs.split(), outputs.split(), list(nodes), imports, list(attributes))


def refer(made: NodeProto, attribute: str, parameter: str, kind: int) -> NodeProto:
    made.attribute.append(AttributeProto(name=attribute, ref_attr_name=parameter, type=kind))  # type: ignore[arg-type]
    return made


def _called(
    nodes: Sequence[NodeProto],
    functions: Sequence[FunctionProto],
    wanted: Sequence[Expected],
    stored: dict,
    outs: str = "y",
) -> Built:  # type: ignore[type-arg]
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
    built = _called(
        [node("Dense", "x w", "y", domain="local")], [dense], [expect("w", w, Use("Gemm", (1,), (0,)))], {"w": w}
    )
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
    inner = function(
        "Inner", "p k", "q", [refer(node("Gemm", "p k", "q"), "transB", "flip", AttributeProto.INT)], ["flip"]
    )
    call = refer(node("Inner", "a k", "b", domain="local"), "flip", "turn", AttributeProto.INT)
    outer = function("Outer", "a k", "b", [call], ["turn"])
    nodes = [node("Outer", "x w", "y", domain="local", turn=1)]
    return _called(nodes, [inner, outer], [expect("w", w, Use("Gemm", (1,), (0,)))], {"w": w})


@case
def function_with_the_name_of_an_operator() -> Built:
    """`MatMul` of another domain is what its body says: x times the transpose."""
    w = weights(8, 16)
    body = [node("Gemm", "a k", "b", transB=1)]
    return _called(
        [node("MatMul", "x w", "y", domain="local")],
        [function("MatMul", "a k", "b", body)],
        [expect("w", w, Use("Gemm", (1,), (0,)))],
        {"w": w},
    )


@case
def function_called_inside_if() -> Built:
    w = weights(16, 8)
    dense = function("Dense", "a k", "b", [node("MatMul", "a k", "b")])
    then = branch([node("Dense", "x w", "p", domain="local")], "p")
    other = branch([node("MatMul", "x w", "q")], "q")
    built = if_model(then, other, [expect("w", w, RIGHT)], [tensor("w", w)])
    built.model.functions.append(dense)
    built.model.opset_import.append(helper.make_opsetid("local", 1))
    return built
