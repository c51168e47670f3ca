"""The second opinion's operators against ONNX's own, in their forms of every opset, whole and at single positions."""

from __future__ import annotations

import math
from typing import Any, Callable

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxsparse.graph.constants import Constant, NoNumbersError, Unknown, origins
from onnxsparse.graph.evaluator import Arrival, Evaluator
from onnxsparse.graph.stores import Stores
from onnxsparse.graph.strided_view import Window
from tests.cases import for_each

Array = np.ndarray
F, I8, U8, I64 = np.float32, np.int8, np.uint8, np.int64


def drawn(*shape: int, dtype: Any = F, seed: int = 0) -> Array:
    values = np.random.default_rng([seed, *shape]).normal(0, 3, shape)
    return (values * 20).astype(dtype) if np.dtype(dtype).kind in "iu" else values.astype(dtype)


def ints(*values: int) -> Array:
    return np.array(values, I64)


def one_node(op: str, inputs: list[Array | None], opset: int, outputs: int = 1, **attributes: Any) -> onnx.ModelProto:
    names = ["" if array is None else f"i{at}" for at, array in enumerate(inputs)]
    made = [f"o{at}" for at in range(outputs)]
    node = helper.make_node(op, names, made, name="n", **attributes)
    stored = [
        numpy_helper.from_array(np.asarray(array), f"i{at}") for at, array in enumerate(inputs) if array is not None
    ]
    graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name=name) for name in made], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def arrivals(model: onnx.ModelProto) -> list[Arrival]:
    return Evaluator(model, Stores({}, None)).arrivals


def outputs(model: onnx.ModelProto) -> list[Constant | Unknown]:
    return [arrival.value for arrival in arrivals(model) if not arrival.op]


def by_rule(model: onnx.ModelProto) -> list[Array]:
    found = []
    for value in outputs(model):
        assert isinstance(value, Constant), value.reason
        whole = value.numbers()
        assert whole.shape == value.shape
        np.testing.assert_array_equal(value.at(np.arange(whole.size)), whole.reshape(-1))
        found.append(whole)
    return found


X, M, V = drawn(4, 6, 5), drawn(6, 5, seed=1), drawn(5, seed=2)
FORMS: dict[str, tuple[str, list[Array | None], int, int, dict[str, Any]]] = {
    "identity": ("Identity", [X], 13, 1, {}),
    "dropout": ("Dropout", [X], 13, 1, {}),
    "transpose": ("Transpose", [X], 13, 1, {"perm": [2, 0, 1]}),
    "transpose all": ("Transpose", [X], 13, 1, {}),
    "reshape": ("Reshape", [X, ints(0, -1)], 13, 1, {}),
    "reshape zero": ("Reshape", [drawn(0, 4), ints(4, 0)], 14, 1, {"allowzero": 1}),
    "squeeze": ("Squeeze", [drawn(1, 3, 1), ints(-1)], 13, 1, {}),
    "squeeze all": ("Squeeze", [drawn(1, 3, 1)], 13, 1, {}),
    "squeeze 11": ("Squeeze", [drawn(1, 3, 1)], 11, 1, {"axes": [0]}),
    "unsqueeze": ("Unsqueeze", [M, ints(-1, 1)], 13, 1, {}),
    "unsqueeze 11": ("Unsqueeze", [M], 11, 1, {"axes": [0, 3]}),
    "flatten": ("Flatten", [X], 13, 1, {"axis": -1}),
    "flatten 0": ("Flatten", [X], 13, 1, {"axis": 0}),
    "expand": ("Expand", [drawn(3, 1), ints(2, 1, 4)], 13, 1, {}),
    "tile": ("Tile", [M, ints(2, 3)], 13, 1, {}),
    "slice": ("Slice", [X, ints(1, -9), ints(9, 3), ints(-1, 0)], 13, 1, {}),
    "slice back": ("Slice", [X, ints(-1, 4), ints(-9, 0), ints(1, 2), ints(-2, -1)], 13, 1, {}),
    "slice 9": ("Slice", [X], 9, 1, {"starts": [1, 2], "ends": [3, 100], "axes": [0, 2]}),
    "slice no axes": ("Slice", [X, ints(1), ints(3)], 10, 1, {}),
    "split": ("Split", [X, ints(1, 2, 3)], 13, 3, {"axis": 1}),
    "split even": ("Split", [X], 13, 2, {"axis": -2}),
    "split 11": ("Split", [X], 11, 2, {"axis": 1, "split": [2, 4]}),
    "split 18": ("Split", [X], 18, 2, {"axis": 2, "num_outputs": 2}),
    "concat": ("Concat", [X, X[:, :2], X], 13, 1, {"axis": -2}),
    "gather": ("Gather", [X, np.array([[0, -1], [2, 2]], I64)], 13, 1, {"axis": 1}),
    "gather one": ("Gather", [X, np.array(-2, I64)], 13, 1, {"axis": 2}),
    "pad": ("Pad", [M, ints(1, 0, 2, 3), np.array(1.5, F)], 13, 1, {}),
    "trilu": ("Trilu", [M, np.array(1, I64)], 14, 1, {"upper": 0}),
    "shape": ("Shape", [X], 15, 1, {"start": -2}),
    "shape 13": ("Shape", [X], 13, 1, {}),
    "size": ("Size", [X], 13, 1, {}),
    "constant of shape": ("ConstantOfShape", [ints(2, 3)], 13, 1, {}),
    "range": ("Range", [np.array(5, I64), np.array(-4, I64), np.array(-3, I64)], 13, 1, {}),
    "reduce prod": ("ReduceProd", [ints(2, 3, 4)], 13, 1, {"keepdims": 0}),
    "add": ("Add", [X, M], 14, 1, {}),
    "sub": ("Sub", [X, V], 14, 1, {}),
    "mul": ("Mul", [V, X], 14, 1, {}),
    "div": ("Div", [X, M], 14, 1, {}),
    "div integers": ("Div", [ints(-7, 7, -6, 5), ints(2, -2, 3, 5)], 14, 1, {}),
    "pow": ("Pow", [np.abs(X), np.array(2.0, F)], 15, 1, {}),
    "max": ("Max", [X, M, V], 13, 1, {}),
    "min": ("Min", [X, V], 13, 1, {}),
    "neg": ("Neg", [X], 13, 1, {}),
    "abs": ("Abs", [X], 13, 1, {}),
    "sqrt": ("Sqrt", [np.abs(X)], 13, 1, {}),
    "round": ("Round", [np.array([0.5, 1.5, -2.5, 2.4], F)], 11, 1, {}),
    "clip": ("Clip", [X, np.array(-1.0, F)], 13, 1, {}),
    "where": ("Where", [M > 0, X, np.array(0.0, F)], 16, 1, {}),
    "greater": ("Greater", [X, V], 13, 1, {}),
    "not": ("Not", [M > 0], 13, 1, {}),
    "and": ("And", [M > 0, V > 0], 13, 1, {}),
    "cast float16": ("Cast", [X * 1e4], 13, 1, {"to": TensorProto.FLOAT16}),
    "cast int8": ("Cast", [X], 13, 1, {"to": TensorProto.INT8}),
    "cast bool": ("Cast", [np.array([0.0, -0.0, 0.5, np.nan], F)], 13, 1, {"to": TensorProto.BOOL}),
    "cast double": ("Cast", [drawn(3, dtype=np.int32)], 13, 1, {"to": TensorProto.DOUBLE}),
    "cast like": ("CastLike", [X, np.zeros(1, np.float16)], 15, 1, {}),
    "quantize": ("QuantizeLinear", [X * 30, np.array(0.5, F), np.array(-3, I8)], 13, 1, {}),
    "quantize uint8": ("QuantizeLinear", [X * 60, np.array(0.5, F)], 13, 1, {}),
    "quantize axis": ("QuantizeLinear", [X, V * V + 0.1, np.arange(5, dtype=U8)], 13, 1, {"axis": 2}),
    "quantize int16": ("QuantizeLinear", [X, np.array(0.001, F), np.array(9, np.int16)], 21, 1, {}),
    "quantize 10": ("QuantizeLinear", [X, np.array(0.1, F), np.array(7, U8)], 10, 1, {}),
    "dequantize": ("DequantizeLinear", [drawn(3, 4, dtype=I8), np.array(0.1, F), np.array(5, I8)], 19, 1, {}),
    "dequantize int32": ("DequantizeLinear", [drawn(3, 4, dtype=np.int32), np.array(0.1, F)], 19, 1, {}),
    "dequantize axis": ("DequantizeLinear", [drawn(5, 4, dtype=I8), V, np.arange(5, dtype=I8)], 19, 1, {"axis": -2}),
    "dequantize half": ("DequantizeLinear", [drawn(5, 4, dtype=I8), V.astype(np.float16)], 19, 1, {"axis": 0}),
    "dequantize blocks": (
        "DequantizeLinear", [drawn(6, 4, dtype=I8), drawn(3, 4), drawn(3, 4, dtype=I8)], 21, 1,
        {"axis": 0, "block_size": 2},
    ),
    "dequantize uint16": (
        "DequantizeLinear", [drawn(6, dtype=np.uint16), np.array(0.1, F), np.array(3, np.uint16)], 21, 1, {},
    ),
}  # fmt: skip


FROM_SHAPES = ("Shape", "Size", "ConstantOfShape", "Range")
"""What they make holds no number of a tensor, so it arrives nowhere on its own."""


def _tied(model: onnx.ModelProto, dtype: Any) -> onnx.ModelProto:
    """The same times a stored one."""
    model.graph.initializer.append(numpy_helper.from_array(np.ones((), dtype), "one"))
    model.graph.node.append(helper.make_node("Mul", ["o0", "one"], ["tied"]))
    model.graph.output[0].name = "tied"
    return model


@for_each("name", FORMS)
def test_an_operator_makes_what_onnx_says(name: str) -> None:
    op, inputs, opset, count, attributes = FORMS[name]
    model = one_node(op, inputs, opset, count, **attributes)
    with np.errstate(all="ignore"):
        wanted = ReferenceEvaluator(model).run(None, {})
    found = by_rule(_tied(model, wanted[0].dtype) if op in FROM_SHAPES else model)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        assert one.dtype == np.asarray(other).dtype
        np.testing.assert_array_equal(one, other)


OLD: dict[str, tuple[str, list[Array], int, dict[str, Any], Callable[..., Array]]] = {
    "mul 6 axis": ("Mul", [X, drawn(4, 6)], 6, {"broadcast": 1, "axis": 0}, lambda a, b: a * b[:, :, None]),
    "add 6 axis": ("Add", [X, drawn(6)], 6, {"broadcast": 1, "axis": 1}, lambda a, b: a + b[None, :, None]),
    "div 6 suffix": ("Div", [X, V], 6, {"broadcast": 1}, lambda a, b: a / b),
    "concat 3": ("Concat", [M, M], 3, {}, lambda a, b: np.concatenate([a, b], 1)),
    "reshape 1": ("Reshape", [X], 1, {"shape": [-1, 5]}, lambda a: a.reshape(-1, 5)),
    "cast 5": ("Cast", [X], 5, {"to": "INT32"}, lambda a: a.astype(np.int32)),
    "clip 6": ("Clip", [X], 6, {"min": -1.0, "max": 2.0}, lambda a: a.clip(-1, 2)),
}


@pytest.mark.parametrize("name", OLD)
def test_an_operator_of_an_old_opset_means_what_it_meant(name: str) -> None:
    op, inputs, opset, attributes, meaning = OLD[name]
    np.testing.assert_array_equal(by_rule(one_node(op, list(inputs), opset, **attributes))[0], meaning(*inputs))


def test_bfloat16_is_rounded_to_the_nearest_even() -> None:
    numbers = np.array([1.0, 1.00390625, 1.01171875, -3.3e38, np.inf, 1e-40, 0.1], F)
    model = one_node("Cast", [numbers], 13, to=TensorProto.BFLOAT16)
    wanted = helper.make_tensor("t", TensorProto.BFLOAT16, numbers.shape, numbers)
    np.testing.assert_array_equal(by_rule(model)[0], numpy_helper.to_array(wanted).astype(F))


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "reason"),
    [
        ("Erf", [M], {}, "Erf"),
        ("MatMul", [M, M.T], {}, "MatMul"),
        ("Cast", [M], {"to": TensorProto.STRING}, "string"),
        ("Dropout", [M, np.array(0.5, F), np.array(True)], {}, "training"),
        ("Reshape", [M, ints(7, -1)], {}, "does not fit"),
    ],
)
def test_what_is_not_known_is_named(op: str, inputs: list[Array], attributes: dict[str, Any], reason: str) -> None:
    value = outputs(one_node(op, list(inputs), 13, **attributes))[0]
    assert isinstance(value, Unknown)
    assert reason in value.reason
    assert {tensor.name for tensor in value.tensors} >= {"i0"}


def test_a_long_chain_of_doubling_is_not_walked_twice_for_every_step() -> None:
    nodes = [helper.make_node("Add", [f"t{at}", f"t{at}"], [f"t{at + 1}"]) for at in range(80)]
    stored = [numpy_helper.from_array(np.ones((2, 2), F), "t0")]
    graph = helper.make_graph(nodes, "g", [], [onnx.ValueInfoProto(name="t80")], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    assert by_rule(model)[0][0, 0] == 2.0**80


M42 = drawn(4, 2)


@pytest.mark.parametrize(
    ("op", "inputs", "opset", "attributes", "wanted"),
    [
        ("Slice", [M42, ints(-10), ints(-20), ints(0), ints(-1)], 17, {}, M42[:1]),
        ("Slice", [M42, ints(-5, 1), ints(-6, -9), ints(0, 1), ints(-1, -2)], 17, {}, M42[:1, 1:]),
        ("Slice", [M42, ints(9), ints(-(2**63)), ints(0), ints(-3)], 17, {}, M42[::-3]),
        ("Squeeze", [drawn(1, 4, 1), ints()], 13, {}, drawn(1, 4, 1)[0, :, 0]),
        ("Mod", [ints(-7, 7, -121, 7), ints(3, -3, 127, -128)], 13, {"fmod": 1}, ints(-1, 1, -121, 7)),
        ("Mod", [ints(-7, 7, -121, 7), ints(3, -3, 127, -128)], 13, {}, ints(2, -2, 6, -121)),
        ("QuantizeLinear", [np.array([0, 1, -1], F), np.array(0, F)], 13, {}, np.array([0, 255, 0], U8)),
        ("QuantizeLinear", [M42 * 0, np.array(0, F), np.array(3, I8)], 13, {}, np.full((4, 2), -128, I8)),
    ],
)
def test_where_readings_differ_onnxruntime_is_followed(
    op: str, inputs: list[Array | None], opset: int, attributes: dict[str, Any], wanted: Array
) -> None:
    np.testing.assert_array_equal(by_rule(one_node(op, inputs, opset, **attributes))[0], wanted)


@pytest.mark.parametrize("moved", ["Expand", "Tile"])
@pytest.mark.parametrize("reader", ["ReduceMax", "Dropout", "Trilu", "Range", "Pad"])
def test_a_few_bytes_do_not_become_gigabytes(moved: str, reader: str) -> None:
    """Constants of billions of elements that a few nodes ask for are refused before they are computed."""
    size = ints(1 << 20, 1 << 19)
    nodes = [helper.make_node(moved, ["one", "size"], ["large"]), helper.make_node("Abs", ["large"], ["computed"])]
    inputs = {
        "ReduceMax": ["computed"], "Dropout": ["m", "", "large"], "Trilu": ["m", "large"],
        "Range": ["large", "large", "large"], "Pad": ["computed", "pads"],
    }[reader]  # fmt: skip
    nodes.append(helper.make_node(reader, inputs, ["o"]))
    arrays = {"one": np.ones((1, 1), np.int64), "size": size, "m": drawn(4, 4), "pads": ints(0, 0, 1, 1)}
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", [], [onnx.ValueInfoProto(name="o")], stored)
    value = outputs(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))[0]
    if isinstance(value, Constant):
        with pytest.raises(NoNumbersError, match="too large"):
            value.numbers()


def test_more_axes_than_numpy_has_are_no_internal_error() -> None:
    nodes = [
        helper.make_node("Reshape", ["w", "s"], ["a"]),
        helper.make_node("Mul", ["a", "m"], ["b"]),
        helper.make_node("Expand", ["a", "s"], ["c"]),
    ]
    stored = [
        numpy_helper.from_array(array, name)
        for name, array in (("w", drawn(2, 2)), ("s", ints(*[1] * 70, 2, 2)), ("m", drawn(2)))
    ]
    graph = helper.make_graph(nodes, "g", [], [onnx.ValueInfoProto(name=name) for name in "bc"], stored)
    values = outputs(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert len(values) == 2
    assert all(isinstance(value, Unknown) for value in values)


# -- chains


Step = Callable[[Array], Array]


class Chain:
    """A tensor on its way, the constants that its nodes take, and its sizes now."""

    def __init__(self, shape: list[int]) -> None:
        self.constants: list[tuple[str, Array]] = [("w", drawn(*shape, seed=3))]
        self.nodes: list[onnx.NodeProto] = []
        self.now, self.sizes = "w", list(shape)

    def constant(self, array: Array) -> str:
        self.constants.append((f"c{len(self.constants)}", array))
        return self.constants[-1][0]

    def add(self, op: str, inputs: list[str], **attributes: Any) -> None:
        self.nodes.append(helper.make_node(op, inputs, [f"t{len(self.nodes)}"], **attributes))
        self.now = str(self.nodes[-1].output[0])

    def model(self) -> onnx.ModelProto:
        self.add("Identity", [self.now])
        stored = [numpy_helper.from_array(array, name) for name, array in self.constants]
        graph = helper.make_graph(self.nodes, "g", [], [onnx.ValueInfoProto(name=self.now)], stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _turn(draw: Callable[..., Any], chain: Chain, axis: int) -> None:
    perm = draw(st.permutations(range(len(chain.sizes))))
    chain.add("Transpose", [chain.now], perm=perm)
    chain.sizes = [chain.sizes[at] for at in perm]


def _merge(draw: Callable[..., Any], chain: Chain, axis: int) -> None:
    total = math.prod(chain.sizes)
    last = draw(st.sampled_from([size for size in range(1, 7) if total % size == 0]))
    chain.sizes = [total // last, last]
    chain.add("Reshape", [chain.now, chain.constant(ints(*chain.sizes))])


def _cut(draw: Callable[..., Any], chain: Chain, axis: int) -> None:
    start = draw(st.integers(0, chain.sizes[axis] - 1))
    bounds = (start, chain.sizes[axis], axis)
    chain.add("Slice", [chain.now, *(chain.constant(ints(at)) for at in bounds)])
    chain.sizes[axis] -= start


def _back(draw: Callable[..., Any], chain: Chain, axis: int) -> None:
    chain.add("Slice", [chain.now, *(chain.constant(ints(at)) for at in (-1, -9999, axis, -1))])


def _join(draw: Callable[..., Any], chain: Chain, axis: int) -> None:
    if math.prod(chain.sizes) < 200:
        other = chain.constant(drawn(*chain.sizes, seed=4))
        chain.add("Concat", draw(st.permutations([chain.now, other])), axis=axis)
        chain.sizes[axis] *= 2


def _scale(draw: Callable[..., Any], chain: Chain, axis: int) -> None:
    factor = [size if at == axis else 1 for at, size in enumerate(chain.sizes)]
    operator = draw(st.sampled_from(["Mul", "Add", "Div"]))
    chain.add(operator, [chain.now, chain.constant(drawn(*factor, seed=5))])


def _pick(draw: Callable[..., Any], chain: Chain, axis: int) -> None:
    size = chain.sizes[axis]
    places = draw(st.lists(st.integers(-size, size - 1), min_size=1, max_size=4))
    chain.add("Gather", [chain.now, chain.constant(ints(*places))], axis=axis)
    chain.sizes[axis] = len(places)


def _spread(draw: Callable[..., Any], chain: Chain, axis: int) -> None:
    if math.prod(chain.sizes) < 200:
        chain.sizes = [2, *chain.sizes]
        chain.add("Expand", [chain.now, chain.constant(ints(*chain.sizes))])


def _round(draw: Callable[..., Any], chain: Chain, axis: int) -> None:
    chain.add("Cast", [chain.now], to=TensorProto.FLOAT16)
    chain.add("Cast", [chain.now], to=TensorProto.FLOAT)


STEPS = (_turn, _merge, _cut, _back, _join, _scale, _pick, _spread, _round)


@st.composite
def chains(draw: Callable[..., Any]) -> onnx.ModelProto:
    """A tensor through movements and arithmetic, in any order."""
    chain = Chain(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3)))
    for _ in range(draw(st.integers(1, 7))):
        draw(st.sampled_from(STEPS))(draw, chain, draw(st.integers(0, len(chain.sizes) - 1)))
    return chain.model()


@settings(max_examples=150, deadline=None)
@given(chains())
def test_any_chain_whole_and_at_positions_is_what_onnx_says(model: onnx.ModelProto) -> None:
    with np.errstate(all="ignore"):
        wanted = ReferenceEvaluator(model).run(None, {})[0]
    np.testing.assert_array_equal(by_rule(model)[0], wanted)


@settings(max_examples=100, deadline=None)
@given(chains())
def test_the_element_that_a_number_is_made_from_is_the_only_one_that_changes_it(model: onnx.ModelProto) -> None:
    value = outputs(model)[0]
    assert isinstance(value, Constant)
    tensor = next((one for one in value.tensors if one.name == "w"), None)
    whole = None if tensor is None else origins(value, tensor)
    if tensor is None or whole is None:
        return
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    numbers = numpy_helper.to_array(changed.graph.initializer[0]).copy()
    at = numbers.size // 2
    numbers.reshape(-1)[at] = np.inf
    changed.graph.initializer[0].CopyFrom(numpy_helper.from_array(numbers, "w"))
    before, after = by_rule(model)[0], by_rule(changed)[0]
    same = (before == after) | (np.isnan(before) & np.isnan(after)) | ~np.isfinite(before)
    assert not (~same & (whole != at)).any()


def test_a_window_reads_where_numpy_reads() -> None:
    flat = np.arange(24 * 6)
    window = Window.whole((4, 6, 6)).transposed([2, 0, 1]).sliced(0, 4, 2, -3)
    assert window is not None
    cut = window.reshaped((2, 2, 12))
    assert cut is not None
    wanted = flat.reshape(4, 6, 6).transpose(2, 0, 1)[4::-3].reshape(2, 2, 12)
    np.testing.assert_array_equal(cut.of(flat), wanted)
    np.testing.assert_array_equal(flat[cut.at(np.arange(48))], wanted.reshape(-1))
