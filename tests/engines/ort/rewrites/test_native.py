"""Operators that the engine differentiates itself. In each of these forms they are right, and stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, numpy_helper
from onnx.helper import make_node

from onnxsparse.engines.ort import library
from onnxsparse.math.values import Array
from tests.engines.ort.rewrites.harness import Case, check, engine_gradients, outputs

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")

Shape = tuple[int, ...]


def uniform(*shape: int, low: float = -1.0, high: float = 1.0, seed: int = 0) -> Array:
    random = np.random.Generator(np.random.Philox(key=seed))
    return random.uniform(low, high, shape).astype(np.float32)


def positive(*shape: int, seed: int = 0) -> Array:
    return uniform(*shape, low=0.4, high=2.0, seed=seed)


def whole(*numbers: Any) -> Array:
    return np.array(numbers, np.int64)


X = uniform(2, 3, 4)
MS = "com.microsoft"

OF_ONE_VALUE = (
    "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Erf", "Exp", "Neg", "Abs", "Sin", "Cos", "Identity", "Softmax",
    "LogSoftmax", "Flatten",
)  # fmt: skip
OF_A_POSITIVE_VALUE = ("Reciprocal", "Sqrt", "Log")
OF_TWO_VALUES = ("Add", "Sub", "Mul", "Div", "Max", "Min")
PAIRS: list[tuple[Shape, Shape]] = [
    ((3, 4), (3, 4)), ((3, 1), (1, 4)), ((2, 1, 4), (3, 1)), ((4,), (2, 3, 4)), ((), (3, 4)), ((3, 4), ()),
    ((1, 1, 1), (3,)), ((1,), ()),
]  # fmt: skip
PRODUCTS: list[tuple[Shape, Shape]] = [
    ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)),
    ((2, 1, 3, 4), (1, 5, 4, 2)), ((1, 3, 4), (2, 4, 5)), ((2, 3, 4), (1, 4, 5)), ((1, 4), (4, 1)),
    ((2, 2, 3, 4), (4, 5)),
]  # fmt: skip


def held(case: Case) -> None:
    model = check(case)
    assert [node.op_type for node in model.graph.node if node.name == "tried"] == [case.op]


@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("op", OF_ONE_VALUE)
def test_functions(op: str, opset: int) -> None:
    held(Case(op, [X], opset=opset))


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("op", OF_A_POSITIVE_VALUE)
def test_functions_of_positive_values(op: str, opset: int) -> None:
    held(Case(op, [positive(3, 4)], opset=opset))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Flatten"])
def test_along_an_axis(op: str, axis: int) -> None:
    held(Case(op, [X], {"axis": axis}))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str) -> None:
    held(Case("Gelu", [X], {"approximate": approximate}, opset=20))


@pytest.mark.parametrize(
    "case",
    [
        Case("Gelu", [X], domain=MS),
        Case("FastGelu", [X], domain=MS),
        Case("FastGelu", [X, uniform(4, seed=1)], domain=MS),
        Case("QuickGelu", [X], domain=MS),
        Case("QuickGelu", [X], {"alpha": 0.7}, domain=MS),
        Case("BiasGelu", [X, uniform(4, seed=1)], domain=MS),
    ],
    ids=lambda case: case.op,
)
def test_gelu_of_microsoft(case: Case) -> None:
    held(case)


@pytest.mark.parametrize("op", OF_TWO_VALUES)
def test_two_values(op: str) -> None:
    for one, other in PAIRS:
        held(Case(op, [positive(*one), positive(*other, seed=1)]))
    held(Case(op, [positive(2, 1, 4), positive(3, 1, seed=1)], opset=21, fixed=(1,)))
    held(Case(op, [positive(2, 1, 4), positive(3, 1, seed=1)], opset=13))


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_extremes_of_many(op: str) -> None:
    held(Case(op, [X]))
    held(Case(op, [X, uniform(4, seed=1), uniform(3, 1, seed=2)]))
    held(Case(op, [uniform(3, 4), uniform(4, seed=1), uniform(2, 3, 1, seed=2), uniform(seed=3)], fixed=(1,)))


@pytest.mark.parametrize("exponent", [2.0, 3.0, 1.0, 0.0, -1.0])
def test_powers_of_any_number(exponent: float) -> None:
    held(Case("Pow", [X, np.array(exponent, np.float32)], fixed=(1,)))


def test_powers_of_positive_numbers() -> None:
    held(Case("Pow", [positive(3, 4), np.array(0.5, np.float32)], fixed=(1,)))
    held(Case("Pow", [positive(3, 4), np.array([0.3, 1.0, 2.5, -2.0], np.float32)], fixed=(1,)))


@pytest.mark.parametrize(("one", "other"), PRODUCTS, ids=str)
@pytest.mark.parametrize("fixed", [(), (1,)], ids=["both", "first"])
def test_matmul(one: Shape, other: Shape, fixed: Shape) -> None:
    held(Case("MatMul", [uniform(*one), uniform(*other, seed=1)], fixed=fixed))


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("added", [None, (3, 5), (5,), (1, 5), (3, 1), (), (1,), (1, 1)], ids=str)
def test_gemm(added: Shape | None, opset: int) -> None:
    last = [] if added is None else [uniform(*added, seed=2)]
    for trans_a, trans_b, factors in (
        (0, 0, {}),
        (1, 0, {"alpha": 0.5, "beta": 2.0}),
        (0, 1, {}),
        (1, 1, {"alpha": -1.5}),
    ):
        one, other = uniform(*(4, 3)[:: 1 if trans_a else -1]), uniform(*(5, 4)[:: 1 if trans_b else -1], seed=1)
        held(Case("Gemm", [one, other, *last], {"transA": trans_a, "transB": trans_b, **factors}, opset=opset))


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [None, [0], [-1], [0, 2], [-2, -1], [0, 1, 2]], ids=str)
def test_sums_and_means(axes: list[int] | None, keepdims: int) -> None:
    attribute: dict[str, Any] = {} if axes is None else {"axes": axes}
    listed: list[Array | None] = [] if axes is None else [whole(*axes)]
    held(Case("ReduceMean", [X], {"keepdims": keepdims, **attribute}, opset=13))
    for op, opset in (("ReduceMean", 18), ("ReduceSum", 13), ("ReduceSum", 21)):
        held(Case(op, [X, *listed], {"keepdims": keepdims}, opset=opset))


@pytest.mark.parametrize("op", ["ReduceL2", "ReduceLogSumExp"])
@pytest.mark.parametrize("axes", [[1], [-1], [0, 2]], ids=str)
def test_reductions_that_keep_their_axes(op: str, axes: list[int]) -> None:
    held(Case(op, [X], {"axes": axes}, opset=17))
    held(Case(op, [X, whole(*axes)], opset=20))


FORMS = [
    Case("Transpose", [X], {"perm": [2, 0, 1]}),
    Case("Transpose", [X], {"perm": [2, 0, 1]}, opset=21),
    *(Case("Reshape", [X, whole(*to)], opset=opset) for to in ([6, 4], [0, -1], [-1]) for opset in (13, 21)),
    *(Case("Unsqueeze", [X, whole(*axes)], opset=opset) for axes in ([0], [-1], [1, -1], [3, 0]) for opset in (13, 21)),
    Case("Unsqueeze", [uniform(), whole(0)]),
    *(Case("Squeeze", [uniform(1, 3, 1, 2), whole(*axes)]) for axes in ([0], [-2], [0, 2])),
    Case("Squeeze", [uniform(1, 3, 1, 2)]),
    Case("Squeeze", [uniform(1, 3, 1, 2)], opset=21),
    Case("Concat", [X, uniform(3, 3, 4, seed=1)], {"axis": 0}),
    Case("Concat", [X, uniform(2, 1, 4, seed=1), uniform(2, 5, 4, seed=2)], {"axis": 1}),
    Case("Concat", [X, uniform(2, 3, 2, seed=1), uniform(2, 3, 4, seed=2)], {"axis": -1}, fixed=(2,)),
    Case("Concat", [X], {"axis": 0}),
    Case("Split", [uniform(2, 6), whole(1, 3, 2)], {"axis": 1}, outputs=("a", "b", "c")),
    Case("Split", [uniform(2, 6), whole(1, 3, 2)], {"axis": -1}, outputs=("a", "b", "c"), opset=18),
    Case("Split", [uniform(6, 2)], outputs=("a", "b", "c")),
    Case("Split", [uniform(2, 6)], {"axis": 1, "num_outputs": 3}, outputs=("a", "b", "c"), opset=18),
    Case("Split", [uniform(2, 7)], {"axis": 1, "num_outputs": 3}, outputs=("a", "b", "c"), opset=18),
    Case("Slice", [X, whole(1), whole(3), whole(1)]),
    Case("Slice", [X, whole(-2, 0), whole(9, -1), whole(1, -1)]),
    Case("Slice", [X, whole(0), whole(2**62), whole(-1), whole(2)]),
    Case("Slice", [X, whole(0, 1), whole(1, 9)]),
    *(
        Case("Gather", [X, np.array(places)], {"axis": axis}, opset=opset)
        for axis, opset in ((0, 13), (1, 17), (-1, 21))
        for places in ([1, 0, 1], [-1, 0, -2], 1, -1, [[1, 0], [0, 0]])
    ),
    Case("GatherElements", [X, np.array([[[0, 1, 2, 2]], [[-1, 0, -3, 1]]])], {"axis": 1}),
    Case("GatherElements", [X, np.array([[[0, 1, 3], [3, 3, -1]]])], {"axis": -1}),
    Case("GatherND", [X, np.array([[0, 1], [1, -1], [0, 1]])]),
    Case("GatherND", [X, np.array([[1], [2]])], {"batch_dims": 1}),
    Case("GatherND", [X, np.array([[1, 1, 1], [0, 0, 2]])]),
    Case("ScatterND", [X, np.array([[0, 1], [1, -1]]), uniform(2, 4, seed=1)]),
    Case("ScatterND", [X, np.array([[1]]), uniform(1, 3, 4, seed=1)], opset=18),
    Case("ScatterElements", [X, np.array([[[0, 0, -1, 1], [-1, 1, 0, 2]]]), uniform(1, 2, 4, seed=1)], {"axis": 1}),
    Case("Tile", [X, whole(2, 1, 3)]),
    Case("Tile", [X, whole(1, 1, 1)]),
    Case("Expand", [uniform(3, 1), whole(2, 3, 4)]),
    Case("Expand", [X, whole(1, 4)]),
    Case("Expand", [uniform(), whole(2, 3)]),
    *(Case("Trilu", [X, np.array(k)], {"upper": upper}) for k in (0, 1, -1) for upper in (0, 1)),
    *(
        Case("TopK", [X, whole(2)], {"axis": axis, "largest": largest}, outputs=("y", "i"), read=("y",))
        for axis in (0, 1, -1)
        for largest in (0, 1)
    ),
    Case("TopK", [X, whole(2)], {"sorted": 0}, outputs=("y", "i"), read=("y",)),
    Case("Clip", [X, np.array(-0.5, np.float32), np.array(0.4, np.float32)], fixed=(1, 2)),
    Case("Clip", [X, None, np.array(0.4, np.float32)], fixed=(2,)),
    Case("Clip", [X, np.array(-0.5, np.float32)], fixed=(1,), opset=21),
    Case("Clip", [X]),
    Case("Where", [X > 0, X, uniform(2, 3, 4, seed=1)]),
    Case("Where", [(X > 0)[:1], X, uniform(2, 3, 4, seed=1)]),
    Case("Where", [X > 0, X, uniform(seed=1)], fixed=(2,)),
]


def _title(case: Case) -> str:
    return f"{case.op}-{case.opset}"


@pytest.mark.parametrize("case", FORMS, ids=_title)
def test_moved_and_picked(case: Case) -> None:
    held(case)


FLAT: list[list[NodeProto]] = [
    [make_node("ArgMax", ["v"], ["flat"], axis=1)],
    [make_node("ArgMin", ["v"], ["flat"], axis=1)],
    [make_node("TopK", ["v", "two"], ["values", "flat"], axis=1), make_node("ReduceSum", ["values"], ["unread"])],
    *([make_node(op, ["v", "half"], ["flat"])] for op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")),
    *([make_node(op, ["v"], ["flat"])] for op in ("IsNaN", "IsInf", "Shape", "Size")),
    [make_node("Greater", ["v", "half"], ["more"]), make_node("Not", ["more"], ["flat"])],
    [make_node("NonZero", ["v"], ["places"]), make_node("ReduceSum", ["places"], ["flat"])],
    [make_node("Cast", ["v"], ["flat"], to=TensorProto.INT64)],
    [make_node("Cast", ["v"], ["flat"], to=TensorProto.BOOL)],
    [make_node("Cast", ["v"], ["whole"], to=TensorProto.INT32), make_node("Mul", ["whole", "whole"], ["flat"])],
]


@pytest.mark.parametrize("nodes", FLAT, ids=lambda nodes: nodes[0].op_type)
def test_numbers_that_are_no_floats_let_no_gradient_through(nodes: list[NodeProto]) -> None:
    """y = v * sum(float(flat(v))), whose gradient is that sum."""
    x = np.array([[0.5, -1.0, 2.5], [3.0, 0.25, -0.75]], np.float32)
    ends = [
        make_node("Cast", ["flat"], ["floats"], to=TensorProto.FLOAT),
        make_node("ReduceSum", ["floats"], ["sum"], keepdims=0),
        make_node("Mul", ["v", "sum"], ["y"]),
    ]
    case = Case("Identity", [x])
    model = case.model()
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float32), "half"))
    model.graph.initializer.append(numpy_helper.from_array(whole(2), "two"))
    front, tried = model.graph.node
    tried.output[0] = "v"
    del model.graph.node[:]
    model.graph.node.extend([front, tried, *nodes, *ends])
    factor = outputs(model, case)[0] / x
    gradient = engine_gradients(model, case, {"y": np.ones_like(x)})["w"]
    np.testing.assert_allclose(gradient, factor * x, rtol=1e-5)
