"""Under `filter` output layers stay dense until --allow output: a class whose filter is zero always says the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import onnxsparse as osp

HEAD = '<ir_version: 8, opset_import: ["" : 17, "own" : 1]>\n'


def model(text, functions="", **weights):
    made = parser.parse_model(HEAD + text + functions)
    random = np.random.default_rng(0)
    for name, shape in weights.items():
        numbers = shape if isinstance(shape, np.ndarray) else random.standard_normal(shape)
        made.graph.initializer.append(numpy_helper.from_array(numbers.astype(np.float32), name))
    return made


def held(made, pattern="filter", allow=(), sparsity=0.5):
    sparsity = None if pattern == "2:4" else sparsity
    rows = osp.plan(made, pattern=pattern, sparsity=sparsity, allow=allow).report.rows
    return {row.name for row in rows if "output" in row.words}


def chain(tail, outputs="y"):
    body = f"h = MatMul(x, a)  r = Relu(h)  {tail}"
    given = ", ".join(f"float[N, K] {name}" for name in outputs)
    return f"agraph (float[N, 16] x) => ({given}) {{ {body} }}"


SQUARES = {"a": (16, 16), "b": (16, 16), "c": (16, 16)}


@pytest.mark.parametrize(
    ("tail", "outputs", "heads"),
    [
        ("y = MatMul(r, b)", "y", "b"),
        ("z = MatMul(r, b)  y = Softmax(z)", "y", "b"),
        ("z = MatMul(r, b)  m = ReduceMax(z)  s = Sub(z, m)  e = Exp(s)  n = ReduceSum(e)  y = Div(e, n)", "y", "b"),
        ("z = MatMul(r, b)  w = MatMul(r, c)  y = Concat<axis = 1>(z, w)", "y", "bc"),
        ("z = MatMul(r, b)  w = Relu(z)  y = MatMul(w, c)", "y", "c"),
        ("z = MatMul(r, b)  y = MatMul(z, c)", "yr", "ac"),
        ("z = MatMul(r, b)  y = Add(x, z)", "y", "b"),
        ("z = MatMul(r, b)  y = Add(r, z)", "y", ""),
        ("z = MatMul(r, b)  g = Sigmoid(z)  y = Mul(g, z)", "y", "b"),
        ("z = MatMul(r, b)  t = Transpose(r)  y = MatMul(z, t)", "y", ""),
        ("z = MatMul(r, b)  s = Shape(z)  y = Reshape(z, s)", "y", "b"),
    ],
)
def test_what_reaches_an_output_without_another_layer(tail, outputs, heads):
    assert held(model(chain(tail, outputs), **SQUARES)) == set(heads)


def test_in_bodies_and_functions():
    call = chain("y = own.f(r, b)")
    function = '<domain: "own", opset_import: ["" : 17]> f (v, w) => (o) { p = MatMul(v, w)  o = Relu(p) }'
    assert held(model(call, function, **SQUARES)) == {"b"}
    first, second = (f"{name}_() => (float[N, K] o) {{ o = MatMul(r, {name}) }}" for name in "bc")
    branches = f"<then_branch = {first}, else_branch = {second}>"
    choice = chain(f"q = Constant<value_int = 1>()  k = Cast<to = 9>(q)  y = If(k) {branches}")
    assert held(model(choice, **SQUARES)) == {"b", "c"}


def test_fixed_mathematics_is_no_layer():
    """A box head of a detector ends in an expectation over bins: its weights are 0, 1, 2, ..."""
    text = """agraph (float[N, 16, 4, 4] x) => (float[N, 1, 4, 4] y) {
        h = Conv(x, a)  r = Relu(h)  z = Conv(r, b)  y = Conv(z, bins) }"""
    bins = np.arange(32).reshape(1, 32, 1, 1)
    assert held(model(text, a=(16, 16, 1, 1), b=(32, 16, 1, 1), bins=bins)) == {"b"}


def test_only_filter_and_only_unless_allowed():
    made = model(chain("y = MatMul(r, b)"), **SQUARES)
    for pattern in ("channel", "unstructured", "2:4", "block:4x4"):
        assert not held(made, pattern)
    assert held(made) == {"b"}
    assert not held(made, allow=["output"])
    pruned = osp.prune(made, pattern="filter", sparsity=0.5)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in pruned.model.graph.initializer}
    assert (weights["b"] != 0).all()
    assert (~weights["a"].any(axis=0)).sum() == 8
    assert osp.verify(pruned.model).report.ok
    assert "--allow output" in pruned.report.row("b").advice


def test_a_model_of_output_layers_alone_is_pruned():
    """There is nothing else that the user could have meant."""
    made = helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "one",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [None, 16])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None, 32])],
            [numpy_helper.from_array(np.random.default_rng(1).standard_normal((16, 32)).astype(np.float32), "w")],
        )
    )
    assert not held(made)
    assert osp.prune(made, pattern="filter", sparsity=0.25).report.row("w").status == "pruned"
