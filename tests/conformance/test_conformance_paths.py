"""Small models, one for each way in which a path between a stored tensor and an operator can be told wrong.

Each is run through every command, and what the commands claim is held against what the runtime shows at every operator
(`path_claims`, `runtime_judge`). To refuse is right; to be wrong without a word is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import numpy as np
import onnx
import pytest
from graphs.case import Array, codes, feed, node, output_info, tensor, untied, value_info
from graphs.functions import refer
from graphs.path_claims import wrong_claims
from graphs.random_paths import RandomCase
from graphs.random_scopes import KINDS
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto, helper

from tests.cases import for_each

osp: Any = pytest.importorskip("onnxsparse")

Made = Callable[[], RandomCase]
PATHS: dict[str, Made] = {}
X = {"x": feed(3, 8)}
HALF = np.tile(np.array([[1, 1, 0, 0], [0, 1, 0, 1], [1, 0, 0, 1], [0, 0, 1, 1]], np.float32), (2, 2))  # 2:4 along both
W = untied(8, 8) / 4


def path(function: Made) -> Made:
    PATHS[function.__name__] = function
    return function


def slot(op: str, inputs: str, outputs: str, index: int = 1, more: str = "", **attributes: object) -> NodeProto:
    """A node that takes a weight, and says at which input."""
    made = node(op, inputs, outputs, **attributes)
    made.doc_string = f"weight slots {index} {more}".strip()
    return made


def case(
    nodes: Sequence[NodeProto],
    stored: Mapping[str, Array],
    outputs: Sequence[tuple[Any, ...]] = (("y", 2),),
    feeds: Mapping[str, Array] = X,
    opset: int = 17,
    functions: Sequence[FunctionProto] = (),
    files: Mapping[str, bytes] | None = None,
) -> RandomCase:
    tensors = [made if isinstance(made, TensorProto) else tensor(name, made) for name, made in stored.items()]
    graph = helper.make_graph(
        list(nodes),
        "paths",
        [value_info(name, values) for name, values in feeds.items()],
        [output_info(*one) for one in outputs],
        tensors,
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8, functions=list(functions))
    other = {
        name: np.asarray(values if values.dtype == bool else values + values.dtype.type(1))
        for name, values in feeds.items()
    }
    return RandomCase("paths", model, [feeds, other], files or {}, (), frozenset())


def function(
    name: str, inputs: str, outputs: str, nodes: Sequence[NodeProto], attributes: Sequence[str] = ()
) -> FunctionProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, inputs.split(), outputs.split(), list(nodes), imports, list(attributes))


def body(
    nodes: Sequence[NodeProto], inputs: Sequence[Any], outputs: Sequence[Any], stored: Mapping[str, Array] = {}
) -> GraphProto:
    tensors = [tensor(name, values) for name, values in stored.items()]
    shown = [helper.make_tensor_value_info(name, KINDS[kind], shape) for name, kind, shape in (*inputs, *outputs)]
    return helper.make_graph(list(nodes), "body", shown[: len(inputs)], shown[len(inputs) :], tensors)


def number(value: float, kind: str = "float32") -> Array:
    return np.array(value, kind)


def masked_by(nodes: Sequence[NodeProto], stored: Mapping[str, Array]) -> RandomCase:
    """A weight times what `nodes` make of `stored`, called `mask`, and a product."""
    return case([*nodes, node("Mul", "w mask", "t"), slot("MatMul", "x t", "y")], {"w": W, **stored})


# -- a mask's own path


@path
def mask_times_a_factor() -> RandomCase:
    return masked_by([node("Mul", "m s", "mask")], {"m": HALF, "s": number(3)})


@path
def mask_times_a_factor_that_makes_it_one() -> RandomCase:
    return masked_by([node("Mul", "m s", "mask")], {"m": HALF * 4, "s": number(0.25)})


@path
def mask_by_a_divisor() -> RandomCase:
    return masked_by([node("Div", "m s", "mask")], {"m": HALF, "s": number(2)})


@path
def divisor_by_a_mask_of_bytes() -> RandomCase:
    nodes = [node("Cast", "m", "f", to=1), node("Div", "f s", "mask")]
    return masked_by(nodes, {"m": (HALF * 255).astype(np.uint8), "s": number(255)})


@path
def mask_with_a_zero_point() -> RandomCase:
    """0 and 1 with zero point 1 are -1 and 0: the other half is kept, with its sign turned."""
    nodes = [node("DequantizeLinear", "m s z", "mask")]
    return masked_by(nodes, {"m": HALF.astype(np.uint8), "s": number(1), "z": number(1, "uint8")})


@path
def mask_with_a_scale() -> RandomCase:
    nodes = [node("DequantizeLinear", "m s z", "mask")]
    return masked_by(nodes, {"m": HALF.astype(np.int8), "s": number(0.5), "z": number(0, "int8")})


@path
def mask_that_is_quantized_with_two_zero_points() -> RandomCase:
    nodes = [node("QuantizeLinear", "m s z", "q"), node("DequantizeLinear", "q s v", "mask")]
    return masked_by(nodes, {"m": HALF, "s": number(1), "z": number(5, "uint8"), "v": number(6, "uint8")})


@path
def mask_that_is_turned_by_not() -> RandomCase:
    nodes = [node("Not", "m", "n"), node("Cast", "n", "mask", to=1)]
    return masked_by(nodes, {"m": HALF.astype(bool)})


@path
def mask_of_sixteen_bits_that_look_like_a_float16() -> RandomCase:
    return masked_by([node("Cast", "m", "mask", to=1)], {"m": (HALF * 0x3C00).astype(np.uint16)})


@path
def mask_of_sixteen_bits_that_look_like_a_bfloat16() -> RandomCase:
    return masked_by([node("Cast", "m", "mask", to=1)], {"m": (HALF * 0x3F80).astype(np.uint16)})


@path
def mask_of_bytes_below_zero() -> RandomCase:
    return masked_by([node("Cast", "m", "mask", to=1)], {"m": (HALF * -1).astype(np.int8)})


@path
def mask_of_bfloat16() -> RandomCase:
    bits = (HALF.view(np.uint32) >> 16).astype(np.uint16)
    made = helper.make_tensor("m", TensorProto.BFLOAT16, HALF.shape, bits.tobytes(), raw=True)
    return masked_by([node("Cast", "m", "mask", to=1)], {"m": made})  # type: ignore[dict-item]


@path
def mask_in_two_pieces_that_are_not_alike() -> RandomCase:
    return masked_by([node("Concat", "m n", "mask", axis=1)], {"m": HALF[:, :4], "n": HALF[:, 4:] * 2})


@path
def mask_within_a_larger_one() -> RandomCase:
    stored = {"m": np.concatenate([1 - HALF, HALF]), "a": np.array([8]), "b": np.array([16]), "c": np.array([0])}
    return masked_by([node("Slice", "m a b c", "mask")], stored)


@path
def mask_that_is_no_number() -> RandomCase:
    broken = HALF.copy()
    broken[0, 0] = np.nan
    return masked_by([node("Identity", "m", "mask")], {"m": broken})


@path
def mask_over_a_weight_that_is_infinite() -> RandomCase:
    w = W.copy()
    w[0, 2] = np.inf
    return case([node("Mul", "w m", "t"), slot("MatMul", "x t", "y")], {"w": w, "m": HALF})


@path
def where_with_another_number_than_zero() -> RandomCase:
    return _where("c w o", {"o": number(0.5)})


@path
def where_with_zeros_and_ones() -> RandomCase:
    return _where("c w o", {"o": np.array([0, 0, 0, 0, 0, 0, 0, 1], np.float32)})


@path
def where_with_a_sum_that_is_not_zero() -> RandomCase:
    return _where("c w o", {"a": number(0), "b": number(1)}, [node("Add", "a b", "o")])


@path
def where_that_keeps_the_other_half() -> RandomCase:
    return _where("c o w", {"o": number(0)})


@path
def where_with_a_third_input_of_a_run() -> RandomCase:
    nodes = [node("Where", "c w r", "t"), slot("MatMul", "x t", "y")]
    return case(nodes, {"w": W, "c": HALF.astype(bool)}, feeds={**X, "r": number(0.0)})


def _where(inputs: str, stored: Mapping[str, Array], nodes: Sequence[NodeProto] = ()) -> RandomCase:
    own = [*nodes, node("Where", inputs, "t"), slot("MatMul", "x t", "y")]
    return case(own, {"w": W, "c": HALF.astype(bool), **stored})


@path
def masks_in_a_row() -> RandomCase:
    nodes = [node("Mul", "w m", "a"), node("Mul", "s a", "b"), node("Mul", "n b", "t"), slot("MatMul", "x t", "y")]
    return case(nodes, {"w": W, "m": HALF, "n": HALF.T.copy(), "s": number(2)})


# -- other readers


def _read(nodes: Sequence[NodeProto], stored: Mapping[str, Array] = {}, rank: int = 2) -> RandomCase:
    own = [node("Mul", "w m", "t"), slot("MatMul", "x t", "y"), *nodes]
    return case(own, {"w": W, "m": HALF, **stored}, [("y", 2), ("z", rank)])


@path
def negated_weight_is_an_output() -> RandomCase:
    return _read([node("Neg", "w", "z")])


@path
def magnitudes_of_a_weight_are_an_output() -> RandomCase:
    return _read([node("Abs", "w", "a"), node("ReduceMax", "a", "z")])


@path
def weight_beside_another_is_an_output() -> RandomCase:
    return _read([node("Concat", "w o", "z", axis=0)], {"o": np.ones((2, 8), np.float32)})


@path
def part_of_a_weight_is_an_output() -> RandomCase:
    return _read([node("Slice", "w a b", "z")], {"a": np.array([0]), "b": np.array([4])})


@path
def weight_behind_identity_is_an_output() -> RandomCase:
    return _read([node("Identity", "w", "z")])


@path
def weight_times_an_input_is_an_output() -> RandomCase:
    nodes = [node("Mul", "w m", "t"), slot("MatMul", "x t", "y"), node("Mul", "w r", "z")]
    return case(nodes, {"w": W, "m": HALF}, [("y", 2), ("z", 2)], {**X, "r": feed(8, 8)})


@path
def weight_is_an_output_itself() -> RandomCase:
    return case([slot("MatMul", "x w", "y")], {"w": W}, [("y", 2), ("w", 2)])


# -- functions that are called twice


def _twice(
    nodes: Sequence[NodeProto],
    inputs: str,
    calls: Sequence[NodeProto],
    stored: Mapping[str, Array],
    attributes: Sequence[str] = (),
) -> RandomCase:
    made = function("Dense", inputs, "o", nodes, attributes)
    return case(calls, stored, [("y", 2), ("z", 2)], functions=[made])


@path
def function_called_twice_with_other_masks() -> RandomCase:
    nodes = [node("Mul", "k m", "t"), slot("MatMul", "x t", "o")]
    calls = [node("Dense", "x w m", "y", domain="local"), node("Dense", "x w n", "z", domain="local")]
    return _twice(nodes, "x k m", calls, {"w": W, "m": HALF, "n": 1 - HALF})


@path
def function_called_twice_with_a_mask_and_with_ones() -> RandomCase:
    nodes = [node("Mul", "k m", "t"), slot("MatMul", "x t", "o")]
    calls = [node("Dense", "x w m", "y", domain="local"), node("Dense", "x w n", "z", domain="local")]
    return _twice(nodes, "x k m", calls, {"w": W, "m": HALF, "n": np.ones((8, 8), np.float32)})


@path
def function_called_twice_with_other_zero_points() -> RandomCase:
    nodes = [node("DequantizeLinear", "k s z", "t"), slot("MatMul", "x t", "o")]
    calls = [node("Dense", "x w s p", "y", domain="local"), node("Dense", "x w s q", "z", domain="local")]
    stored = {"w": codes(8, 8), "s": number(0.1), "p": number(0, "int8"), "q": number(7, "int8")}
    return _twice(nodes, "x k s z", calls, stored)


@path
def function_called_twice_with_other_zero_points_along_an_axis() -> RandomCase:
    nodes = [node("DequantizeLinear", "k s z", "t", axis=1), slot("MatMul", "x t", "o")]
    calls = [node("Dense", "x w s p", "y", domain="local"), node("Dense", "x w s q", "z", domain="local")]
    points = np.arange(8, dtype=np.int8)
    stored = {"w": codes(8, 8), "s": np.full(8, 0.1, np.float32), "p": points, "q": points[::-1].copy()}
    return _twice(nodes, "x k s z", calls, stored)


@path
def function_called_twice_with_other_permutations() -> RandomCase:
    turn = refer(node("Transpose", "k", "t"), "perm", "order", AttributeProto.INTS)
    calls = [
        node("Dense", "x w", "y", domain="local", order=[0, 1]),
        node("Dense", "x w", "z", domain="local", order=[1, 0]),
    ]
    return _twice([turn, slot("MatMul", "x t", "o")], "x k", calls, {"w": W}, ["order"])


@path
def function_called_twice_with_transb_and_without() -> RandomCase:
    turn = refer(slot("Gemm", "x k", "o"), "transB", "turned", AttributeProto.INT)
    calls = [node("Dense", "x w", "y", domain="local", turned=0), node("Dense", "x w", "z", domain="local", turned=1)]
    return _twice([turn], "x k", calls, {"w": W}, ["turned"])


@path
def function_called_twice_with_other_factors() -> RandomCase:
    factor = refer(node("Constant", "", "f"), "value_float", "by", AttributeProto.FLOAT)
    nodes = [factor, node("Mul", "m f", "n"), node("Mul", "k n", "t"), slot("MatMul", "x t", "o")]
    calls = [node("Dense", "x w m", "y", domain="local", by=1.0), node("Dense", "x w m", "z", domain="local", by=2.0)]
    return _twice(nodes, "x k m", calls, {"w": W, "m": HALF}, ["by"])


@path
def function_with_its_own_weight_called_with_other_masks() -> RandomCase:
    constant = node("Constant", "", "w", value=tensor("", W))
    constant.doc_string = "stored w"
    nodes = [constant, node("Mul", "w m", "t"), slot("MatMul", "x t", "o")]
    calls = [node("Dense", "x m", "y", domain="local"), node("Dense", "x n", "z", domain="local")]
    return _twice(nodes, "x m", calls, {"m": HALF, "n": 1 - HALF})


@path
def function_within_a_function_called_with_other_masks() -> RandomCase:
    inner = function("Masked", "k m", "o", [node("Mul", "k m", "o")])
    nodes = [node("Masked", "k m", "t", domain="local"), slot("MatMul", "x t", "o")]
    outer = function("Dense", "x k m", "o", nodes)
    calls = [node("Dense", "x w m", "y", domain="local"), node("Dense", "x w n", "z", domain="local")]
    stored = {"w": W, "m": HALF, "n": 1 - HALF}
    return case(calls, stored, [("y", 2), ("z", 2)], functions=[inner, outer])


# -- what is shuffled


def _shuffled(axis: int, name: str = "w") -> list[NodeProto]:
    return [node("Split", name, "a b", axis=axis), node("Concat", "b a", "t", axis=axis)]


@path
def mask_behind_a_shuffle() -> RandomCase:
    m = np.concatenate([HALF[:4], np.ones((4, 8), np.float32)])
    nodes = [*_shuffled(0), node("Mul", "t m", "u"), slot("MatMul", "x u", "y")]
    return case(nodes, {"w": W, "m": m})


@path
def mask_between_two_shuffles() -> RandomCase:
    m = np.concatenate([HALF[:, :4], np.ones((8, 4), np.float32)], 1)
    back = [node("Split", "u", "c d", axis=1), node("Concat", "d c", "v", axis=1)]
    nodes = [*_shuffled(1), node("Mul", "t m", "u"), *back, slot("MatMul", "x v", "y")]
    return case(nodes, {"w": W, "m": m})


@path
def scales_behind_a_shuffle() -> RandomCase:
    stored = {"w": codes(8, 8), "s": np.geomspace(0.01, 3, 8).astype(np.float32), "z": np.arange(8, dtype=np.int8)}
    nodes = [*_shuffled(1), node("DequantizeLinear", "t s z", "u", axis=1), slot("MatMul", "x u", "y")]
    return case(nodes, stored)


@path
def scales_along_the_reduction_behind_a_shuffle() -> RandomCase:
    stored = {"w": codes(8, 8), "s": np.geomspace(0.01, 3, 8).astype(np.float32), "z": np.arange(8, dtype=np.int8)}
    nodes = [*_shuffled(0), node("DequantizeLinear", "t s z", "u", axis=0), slot("MatMul", "x u", "y")]
    return case(nodes, stored)


@path
def zero_points_of_an_operator_behind_a_shuffle() -> RandomCase:
    nodes = [*_shuffled(1), slot("MatMulInteger", "r t _ z", "y")]
    stored = {"w": codes(8, 8), "z": np.arange(8, dtype=np.int8)}
    return case(nodes, stored, [("y", 2, TensorProto.INT32)], {"r": np.arange(24, dtype=np.uint8).reshape(3, 8)})


@path
def pieces_of_which_one_is_taken_twice() -> RandomCase:
    w = W * np.concatenate([HALF[:4], np.ones((4, 8))]).astype(np.float32)
    nodes = [node("Split", "w", "a b", axis=1), node("Concat", "a a", "t", axis=1), slot("MatMul", "x t", "y")]
    return case(nodes, {"w": w})


@path
def shuffled_rows_in_groups_that_cross() -> RandomCase:
    """Pieces of two rows each: what lay in one group of four lies in two."""
    nodes = [
        node("Split", "w p", "a b c d", axis=0),
        node("Concat", "a c b d", "t", axis=0),
        slot("MatMul", "x t", "y"),
        slot("MatMul", "x w", "z"),
    ]
    return case(nodes, {"w": W, "p": np.array([2, 2, 2, 2])}, [("y", 2), ("z", 2)])


@path
def half_of_a_shuffle_is_dense() -> RandomCase:
    w = np.concatenate([W[:, :4] * HALF[:, :4], W[:, 4:]], 1)
    m = np.concatenate([HALF[:, :4], np.ones((8, 4), np.float32)], 1)
    nodes = [*_shuffled(1), node("Mul", "t m", "u"), slot("MatMul", "x u", "y")]
    return case(nodes, {"w": w, "m": m})


# -- one use is masked, another is not


@path
def masked_first_and_dense_second() -> RandomCase:
    nodes = [node("Mul", "w m", "t"), slot("MatMul", "x t", "y"), slot("MatMul", "x w", "z")]
    return case(nodes, {"w": W, "m": HALF}, [("y", 2), ("z", 2)])


@path
def dense_first_and_masked_second() -> RandomCase:
    nodes = [slot("MatMul", "x w", "y"), node("Mul", "w m", "t"), slot("MatMul", "x t", "z")]
    return case(nodes, {"w": W, "m": HALF}, [("y", 2), ("z", 2)])


# -- what becomes of a stored zero


@path
def floats_cast_and_dequantized_with_a_zero_point() -> RandomCase:
    nodes = [node("Cast", "w", "q", to=3), node("DequantizeLinear", "q s z", "t"), slot("MatMul", "x t", "y")]
    stored = {"w": codes(8, 8).astype(np.float32), "s": number(0.1), "z": number(9, "int8")}
    return case(nodes, stored)


@path
def quantized_and_dequantized_with_two_zero_points() -> RandomCase:
    nodes = [
        node("QuantizeLinear", "w s z", "q"),
        node("DequantizeLinear", "q s v", "t"),
        slot("MatMul", "x t", "y"),
    ]
    return case(nodes, {"w": W, "s": number(0.05), "z": number(3, "int8"), "v": number(9, "int8")})


@path
def quantized_with_a_zero_point_for_an_operator_without() -> RandomCase:
    nodes = [node("QuantizeLinear", "w s z", "q"), slot("MatMulInteger", "r q", "y")]
    stored = {"w": W, "s": number(0.05), "z": number(3, "uint8")}
    return case(nodes, stored, [("y", 2, TensorProto.INT32)], {"r": np.arange(24, dtype=np.uint8).reshape(3, 8)})


@path
def mask_before_dequantize() -> RandomCase:
    nodes = [
        node("Cast", "w", "f", to=1),
        node("Mul", "f m", "g"),
        node("Cast", "g", "q", to=3),
        node("DequantizeLinear", "q s z", "t"),
        slot("MatMul", "x t", "y"),
    ]
    return case(nodes, {"w": codes(8, 8), "m": HALF, "s": number(0.1), "z": number(9, "int8")})


@path
def factor_before_dequantize() -> RandomCase:
    nodes = [
        node("Cast", "w", "f", to=1),
        node("Mul", "f a", "g"),
        node("Cast", "g", "q", to=3),
        node("DequantizeLinear", "q s z", "t"),
        slot("MatMul", "x t", "y"),
    ]
    stored = {"w": (codes(8, 8) // 2).astype(np.int8), "a": number(2), "s": number(0.1), "z": number(10, "int8")}
    return case(nodes, stored)


@path
def one_integer_weight_with_two_zero_points() -> RandomCase:
    nodes = [
        node("DequantizeLinear", "w s z", "t"),
        slot("MatMul", "x t", "y"),
        node("DequantizeLinear", "w s v", "u"),
        slot("MatMul", "x u", "o"),
    ]
    stored = {"w": codes(8, 8), "s": number(0.1), "z": number(1, "int8"), "v": number(4, "int8")}
    return case(nodes, stored, [("y", 2), ("o", 2)])


@path
def table_dequantized_with_two_zero_points() -> RandomCase:
    nodes = [
        slot("Gather", "w r", "t", 0, "table"),
        node("DequantizeLinear", "t s z", "y"),
        node("DequantizeLinear", "t s v", "o"),
    ]
    stored = {"w": codes(8, 8, unsigned=True), "s": number(0.1), "z": number(100, "uint8"), "v": number(128, "uint8")}
    return case(nodes, stored, [("y", 2), ("o", 2)], {"r": np.array([0, 3, 5])})


# -- weights that meet a run, or that a body hands out


@path
def second_use_meets_an_input() -> RandomCase:
    nodes = [
        slot("MatMul", "x w", "y"),
        node("Mul", "w r", "t"),
        node("Transpose", "t", "u", perm=[1, 0]),
        slot("MatMul", "x u", "z"),
    ]
    return case(nodes, {"w": W}, [("y", 2), ("z", 2)], {**X, "r": number(2.0)})


@path
def only_use_meets_an_input() -> RandomCase:
    nodes = [node("Mul", "w r", "t"), slot("MatMul", "x t", "y")]
    return case(nodes, {"w": W}, feeds={**X, "r": feed(8)})


@path
def loop_hands_out_a_weight() -> RandomCase:
    turned = [node("Transpose", "v", "u"), slot("MatMul", "x u", "y")]
    stored = {"w": W, "n": np.array(2), "g": np.array(True)}
    return case([*_looped("w"), *turned, slot("MatMul", "x w", "z")], stored, [("y", 2), ("z", 2)])


@path
def loop_hands_out_the_only_use() -> RandomCase:
    return case([*_looped("w"), slot("MatMul", "x v", "y")], {"w": W, "n": np.array(2), "g": np.array(True)})


def _looped(name: str) -> list[NodeProto]:
    inputs = [("i", "int64", ()), ("c", "bool", ()), ("k", "float32", (8, 8))]
    nodes = [node("Identity", "c", "d"), node("Identity", "k", "l")]
    inner = body(nodes, inputs, [("d", "bool", ()), ("l", "float32", (8, 8))])
    return [node("Loop", f"n g {name}", "v", body=inner)]


@path
def sequence_map_hands_out_a_weight() -> RandomCase:
    inner = body([node("Mul", "k m", "l")], [("k", "float32", (8, 8))], [("l", "float32", (8, 8))])
    nodes = [
        node("SequenceConstruct", "w", "a"),
        node("SequenceMap", "a", "b", body=inner),
        node("SequenceAt", "b i", "v"),
        node("Transpose", "v", "u"),
        slot("MatMul", "x u", "y"),
        slot("MatMul", "x w", "z"),
    ]
    return case(nodes, {"w": W, "m": HALF, "i": np.array(0)}, [("y", 2), ("z", 2)])


@path
def if_hands_out_one_of_two_weights() -> RandomCase:
    branches = [
        body([node("Identity", name, out)], [], [(out, "float32", (8, 8))]) for name, out in (("w", "l"), ("v", "k"))
    ]
    nodes = [
        node("If", "c", "t", then_branch=branches[0], else_branch=branches[1]),
        slot("MatMul", "x t", "y"),
        slot("Gemm", "x w", "z", transB=1),
    ]
    stored = {"w": W, "v": untied(8, 8, seed=2) / 4}
    return case(nodes, stored, [("y", 2), ("z", 2)], {**X, "c": np.array(True)})


@path
def scan_over_the_rows_of_a_weight() -> RandomCase:
    inner = body([node("Identity", "k", "l")], [("k", "float32", (8,))], [("l", "float32", (8,))])
    nodes = [
        node("Scan", "w", "v", body=inner, num_scan_inputs=1),
        slot("Gemm", "x v", "y", transB=1),
        slot("MatMul", "x w", "z"),
    ]
    return case(nodes, {"w": W}, [("y", 2), ("z", 2)])


@path
def stored_with_one_axis_and_a_factor_of_a_run() -> RandomCase:
    nodes = [
        node("Reshape", "w h", "k"),
        slot("MatMul", "x k", "y"),
        node("Mul", "w r", "l"),
        node("Reshape", "l h", "m"),
        slot("Gemm", "x m", "z", transB=1),
    ]
    stored = {"w": W.reshape(-1), "h": np.array([8, 8])}
    return case(nodes, stored, [("y", 2), ("z", 2)], {**X, "r": number(2.0)})


@path
def stored_with_one_axis_behind_a_node_that_is_not_followed() -> RandomCase:
    nodes = [node("Neg", "w", "l"), node("Reshape", "l h", "k"), slot("MatMul", "x k", "y")]
    return case(nodes, {"w": W.reshape(-1), "h": np.array([8, 8])})


@path
def used_along_both_axes() -> RandomCase:
    return case([slot("MatMul", "x w", "y"), slot("Gemm", "x w", "z", transB=1)], {"w": W}, [("y", 2), ("z", 2)])


# -- twins


def _twins(nodes: Sequence[NodeProto], late: int = 0, **stored: Array) -> RandomCase:
    """`w` and `v` are the same bytes of one data file; `v` may begin some rows later."""
    made = []
    for name, offset in (("w", 0), ("v", late * 32)):
        one = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[8, 8], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "weights.bin"), ("offset", offset), ("length", 256)):
            one.external_data.add(key=key, value=str(value))
        made.append(one)
    files = {"weights.bin": (untied(8 + late, 8) / 4).tobytes()}
    return case(nodes, {"w": made[0], "v": made[1], **stored}, [("y", 2), ("z", 2)], files=files)  # type: ignore[dict-item]


@path
def twin_of_a_masked_weight() -> RandomCase:
    nodes = [node("Mul", "w m", "t"), slot("MatMul", "x t", "y"), slot("MatMul", "x v", "z")]
    return _twins(nodes, m=HALF)


@path
def twins_with_other_masks() -> RandomCase:
    nodes = [
        node("Mul", "w m", "t"),
        slot("MatMul", "x t", "y"),
        node("Mul", "v n", "u"),
        slot("MatMul", "x u", "z"),
    ]
    return _twins(nodes, m=HALF, n=1 - HALF)


@path
def twin_along_the_other_axis() -> RandomCase:
    return _twins([slot("MatMul", "x w", "y"), slot("Gemm", "x v", "z", transB=1)])


@path
def twin_that_begins_later() -> RandomCase:
    nodes = [node("Mul", "w m", "t"), slot("MatMul", "x t", "y"), slot("MatMul", "x v", "z")]
    return _twins(nodes, late=2, m=HALF)


@path
def twin_is_an_output() -> RandomCase:
    nodes = [node("Mul", "w m", "t"), slot("MatMul", "x t", "y"), node("Neg", "v", "z")]
    return _twins(nodes, m=HALF)


# -- old operators, old notes


@path
def scan_of_opset_8() -> RandomCase:
    inputs = [("k", "float32", (8, 8)), ("q", "float32", (3, 8))]
    nodes = [node("Identity", "k", "l"), node("Transpose", "k", "t"), slot("MatMul", "q t", "p")]
    inner = body(nodes, inputs, [("l", "float32", (8, 8)), ("p", "float32", (3, 8))])
    own = [
        node("Unsqueeze", "w", "u", axes=[0]),
        node("Scan", "_ u x", "v y", body=inner, num_scan_inputs=1),
        slot("MatMul", "r w", "z"),
    ]
    return case(own, {"w": W}, [("y", 4), ("z", 2)], {"x": feed(1, 2, 3, 8), "r": feed(3, 8)}, opset=8)


def _broadcast(op: str, axis: int, rows: Array) -> RandomCase:
    """Opset 6: axis 0 means that the numbers belong to the rows, not to the columns."""
    own = node(op, "w m", "t", broadcast=1, axis=axis)
    own.doc_string = "broadcast as 8 1" if axis == 0 else "broadcast as 8"
    return case([own, slot("MatMul", "x t", "y")], {"w": W, "m": rows}, opset=6)


@path
def rows_masked_in_opset_6() -> RandomCase:
    return _broadcast("Mul", 0, np.array([1, 0, 1, 0, 1, 1, 0, 0], np.float32))


@path
def columns_masked_in_opset_6() -> RandomCase:
    return _broadcast("Mul", 1, np.array([1, 0, 1, 0, 1, 1, 0, 0], np.float32))


@path
def rows_divided_in_opset_6() -> RandomCase:
    return _broadcast("Div", 0, np.geomspace(0.01, 3, 8).astype(np.float32))


@path
def rows_moved_in_opset_6() -> RandomCase:
    return _broadcast("Add", 0, np.array([1, 0, 1, 0, 1, 1, 0, 0], np.float32))


@path
def shuffled_in_opset_6() -> RandomCase:
    nodes = [node("Split", "w", "a b", axis=1), node("Concat", "b a", "t", axis=1), node("Mul", "t m", "u")]
    m = np.concatenate([HALF[:, :4], np.ones((8, 4), np.float32)], 1)
    return case([*nodes, slot("MatMul", "x u", "y")], {"w": W, "m": m}, opset=6)


@path
def split_in_uneven_parts_in_opset_8() -> RandomCase:
    nodes = [
        node("Split", "w", "a b", axis=0, split=[2, 6]),
        node("Concat", "b a", "t", axis=0),
        node("Mul", "t m", "u"),
    ]
    return case(
        [*nodes, slot("MatMul", "x u", "y")],
        {"w": W, "m": np.concatenate([HALF[:6], np.ones((2, 8), np.float32)])},
        opset=8,
    )


@path
def masked_in_opset_8() -> RandomCase:
    """There is no Where yet, whatever form is asked for."""
    return case([slot("MatMul", "x w", "y")], {"w": W}, opset=8)


@path
def old_note_of_a_shape() -> RandomCase:
    """The file says of a value that it is 4 x 16; the operators say 16 x 4."""
    nodes = [
        node("Reshape", "w h", "t"),
        node("Shape", "t", "s"),
        node("Reshape", "w s", "u"),
        slot("MatMul", "x u", "y"),
    ]
    made = case(nodes, {"w": W, "h": np.array([16, 4])}, feeds={"x": feed(3, 16)})
    made.model.graph.value_info.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, [4, 16]))
    return made


@path
def old_note_of_the_shape_of_an_input() -> RandomCase:
    """A value that only a run knows is said to be 4 x 16; the weight is reshaped like it."""
    nodes = [
        node("Identity", "r", "t"),
        node("Shape", "t", "s"),
        node("Reshape", "w s", "u"),
        slot("MatMul", "x u", "y"),
    ]
    made = case(nodes, {"w": W}, feeds={"x": feed(3, 16), "r": feed(16, 4)})
    made.model.graph.value_info.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, [4, 16]))
    return made


OPTIONS: Sequence[Mapping[str, Any]] = (
    {"pattern": "2:4"},
    {"pattern": "unstructured", "sparsity": 0.5},
    {"pattern": "filter", "sparsity": 0.5},
)


@for_each("name", PATHS)
@pytest.mark.filterwarnings("ignore:.*value.* encountered")
def test_what_is_claimed_is_so(name: str) -> None:
    made = PATHS[name]()
    onnx.checker.check_model(made.model) if not made.files else None
    wrong = [one for options in OPTIONS for one in wrong_claims(dataclasses.replace(made), options)]
    assert not wrong, "\n".join(map(str, wrong))
