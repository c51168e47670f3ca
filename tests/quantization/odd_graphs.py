"""Small odd graphs to quantize: each a model in the words of ONNX's parser, with weights from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Union

import numpy as np
import onnx.parser
from onnx import ModelProto, numpy_helper

from onnxsparse.math.values import Array

Weights = Mapping[str, Union[Sequence[int], Array, float]]


class Case(NamedTuple):
    """A graph, what its inputs are, and how much of its result rounding may change."""

    text: str
    weights: Weights
    feeds: Mapping[str, Array]
    opset: int = 17
    near: float = 0.06


def drawn(shape: Sequence[int], seed: int = 0, kind: Any = np.float32) -> Array:
    made: Array = np.random.default_rng([seed, *shape]).normal(size=shape).astype(kind)
    return made


def model_of(case: Case) -> ModelProto:
    opsets = f'"" : {case.opset}, "com.microsoft" : 1, "own" : 1'
    model = onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{opsets}]> {case.text}")
    for place, (name, given) in enumerate(case.weights.items()):
        model.graph.initializer.append(numpy_helper.from_array(_numbers(given, place + 1), name))
    return model


def _numbers(given: Sequence[int] | Array | float, seed: int) -> Array:
    """An array as it is given, a number, or one of a shape, such that sums of its products stay small."""
    if isinstance(given, np.ndarray):
        return given
    if isinstance(given, float):
        return np.array(given, np.float32)
    return (drawn(given, seed) / np.sqrt(max(np.prod(given[1:]), 1))).astype(np.float32)


IMAGE = {"x": drawn([2, 3, 8, 8])}
ROWS = {"x": drawn([4, 6])}
C = [8, 3, 3, 3]


def image(body: str, weights: Weights, out: str = "y", near: float = 0.06, opset: int = 17) -> Case:
    return Case(f"g (float[N,3,8,8] x) => (float[?,?,?,?] {out}) {{ {body} }}", weights, IMAGE, opset, near)


def rows(body: str, weights: Weights, near: float = 0.06, opset: int = 17) -> Case:
    return Case(f"g (float[N,6] x) => (float[?,?] y) {{ {body} }}", weights, ROWS, opset, near)


def conv(source: str, weight: str, to: str, more: str = "", pads: str = "1,1,1,1", attributes: str = "") -> str:
    return f"{to} = Conv <pads=[{pads}]{attributes}> ({source}, {weight}{more})\n"


SECOND = conv("h", "V", "y")
V = [4, 8, 3, 3]

CASES: dict[str, Callable[[], Case]] = {
    "conv": lambda: image(conv("x", "W", "y"), {"W": C}),
    "conv_bias_relu_conv": lambda: image(
        conv("x", "W", "a", ", b") + "h = Relu(a)\n" + SECOND, {"W": C, "b": [8], "V": V}
    ),
    "clip": lambda: image(
        conv("x", "W", "a") + "h = Clip(a, lo, hi)\n" + SECOND,
        {"W": C, "V": V, "lo": 0.0, "hi": 1.5},
    ),
    "clipped_input": lambda: image(
        "r = Relu(x)\nc = Clip(r, lo, hi)\n" + conv("c", "W", "y"), {"W": C, "lo": -1.0, "hi": 1.5}
    ),
    "constant_bias": lambda: image(
        "b = Constant <value = float[2] {0.5, -1.0}> ()\n" + conv("x", "W", "y", ", b"), {"W": [2, 3, 3, 3]}
    ),
    "bias_read_twice": lambda: image(
        conv("x", "W", "a", ", b") + "b4 = Reshape(b, sh)\ny = Mul(a, b4)\n",
        {"W": C, "b": [8], "sh": np.array([1, 8, 1, 1])},
    ),
    "shared_bias": lambda: image(
        conv("x", "W", "a", ", b") + "r = Relu(a)\n" + conv("r", "V", "c", ", b") + "y = Add(a, c)\n",
        {"W": C, "V": [8, 8, 3, 3], "b": [8]},
    ),
    "shared_weight_and_bias": lambda: image(
        conv("x", "W", "a", ", b", "0,0,0,0") + "r = Relu(a)\n" + conv("r", "W", "y", ", b"),
        {"W": [3, 3, 3, 3], "b": [3]},
    ),
    "all_zero": lambda: image(conv("x", "W", "y", ", b"), {"W": np.zeros(C, np.float32), "b": [8]}, near=0.01),
    "zero_channels_and_a_large_bias": lambda: image(
        conv("x", "W", "a", ", b") + "h = Relu(a)\n" + SECOND,
        {"W": drawn(C) * (np.arange(8) % 2).reshape(8, 1, 1, 1).astype(np.float32), "b": drawn([8]) * 30, "V": V},
    ),
    "tiny_channels": lambda: image(
        conv("x", "W", "y", ", b"),
        {"W": drawn(C) * np.float32(10.0) ** -np.arange(0, 40, 5).reshape(8, 1, 1, 1).astype(np.float32), "b": [8]},
    ),
    "residual": lambda: image(
        conv("x", "W", "a")
        + "h = Relu(a)\n"
        + conv("h", "V", "c")
        + "s = Add(c, h)\nr = Relu(s)\n"
        + conv("r", "V", "y"),
        {"W": C, "V": [8, 8, 3, 3]},
    ),
    "two_branches_added": lambda: image(
        conv("x", "W", "a") + conv("x", "V", "c") + "s = Add(a, c)\nh = Relu(s)\n" + conv("h", "U", "y"),
        {"W": C, "V": C, "U": V},
    ),
    "added_to_itself": lambda: image(conv("x", "W", "a") + "h = Add(a, a)\n" + SECOND, {"W": C, "V": V}),
    "concat_of_other_ranges": lambda: image(
        conv("x", "W", "a") + conv("x", "U", "c") + "h = Concat <axis=1> (a, c)\n" + SECOND,
        {"W": [4, 3, 3, 3], "U": drawn([4, 3, 3, 3]) * 5, "V": V},
    ),
    "concat_of_constant": lambda: image(
        conv("x", "W", "a", "", "0,0,0,0") + "h = Concat <axis=0> (a, k)\n" + SECOND,
        {"W": C, "k": [1, 8, 6, 6], "V": V},
    ),
    "concat_twice": lambda: image(
        conv("x", "W", "a")
        + conv("x", "U", "c")
        + "d = Concat <axis=1> (a, c)\ne = Concat <axis=1> (d, a)\n"
        + conv("d", "V", "p")
        + conv("e", "T", "q")
        + "y = Add(p, q)\n",
        {"W": [4, 3, 3, 3], "U": [4, 3, 3, 3], "V": V, "T": [4, 12, 3, 3]},
    ),
    "spatial_pyramid": lambda: image(
        conv("x", "W", "a") + "m = MaxPool <kernel_shape=[3,3], pads=[1,1,1,1]> (a)\n"
        "n = MaxPool <kernel_shape=[3,3], pads=[1,1,1,1]> (m)\nh = Concat <axis=1> (a, m, n)\n" + SECOND,
        {"W": C, "V": [4, 24, 3, 3]},
    ),
    "pools": lambda: image(
        conv("x", "W", "a")
        + "r = Relu(a)\nm = MaxPool <kernel_shape=[2,2], strides=[2,2]> (r)\n"
        + conv("m", "V", "c")
        + "v = AveragePool <kernel_shape=[2,2]> (c)\ng = GlobalAveragePool(v)\n"
        + conv("g", "U", "y", "", "0,0,0,0"),
        {"W": C, "V": V, "U": [5, 4, 1, 1]},
    ),
    "pool_with_places": lambda: image(
        conv("x", "W", "a") + "h, i = MaxPool <kernel_shape=[2,2]> (a)\n" + SECOND, {"W": C, "V": V}
    ),
    "views": lambda: image(
        conv("x", "W", "a") + "t = Transpose <perm=[0,2,3,1]> (a)\nu = Transpose <perm=[0,3,1,2]> (t)\n"
        "d = DepthToSpace <blocksize=2> (u)\n" + conv("d", "V", "y"),
        {"W": C, "V": [4, 2, 3, 3]},
    ),
    "split": lambda: image(
        conv("x", "W", "a")
        + "p, q = Split <axis=1> (a)\n"
        + conv("p", "V", "b")
        + conv("q", "U", "c")
        + "y = Add(b, c)\n",
        {"W": C, "V": [4, 4, 3, 3], "U": [4, 4, 3, 3]},
        opset=13,
    ),
    "one_part_of_a_split": lambda: image(
        conv("x", "W", "a") + "p, q = Split <axis=1> (a)\n" + conv("p", "V", "b") + "s = Sigmoid(q)\ny = Add(b, s)\n",
        {"W": C, "V": [4, 4, 3, 3]},
        opset=13,
    ),
    "resize": lambda: image(
        conv("x", "W", "a") + 'h = Resize <mode="nearest"> (a, , sc)\n' + SECOND,
        {"W": C, "V": V, "sc": np.array([1, 1, 2, 2], np.float32)},
    ),
    "resize_linear": lambda: image(
        conv("x", "W", "a") + 'h = Resize <mode="linear"> (a, , sc)\n' + SECOND,
        {"W": C, "V": V, "sc": np.array([1, 1, 2, 2], np.float32)},
    ),
    "pads": lambda: image(
        conv("x", "W", "a") + 'p = Pad (a, n)\nh = Pad <mode="reflect"> (p, n)\n' + SECOND,
        {"W": C, "V": V, "n": np.array([0, 0, 1, 1, 0, 0, 1, 1])},
    ),
    "pad_of_ones": lambda: image(
        "p = Pad (x, n, one)\n" + conv("p", "W", "a") + "q = Pad (a, n, one)\nh = Relu(q)\n" + SECOND,
        {"W": C, "V": V, "n": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "one": 9.0},
    ),
    "silu": lambda: image(conv("x", "W", "a") + "s = Sigmoid(a)\nh = Mul(a, s)\n" + SECOND, {"W": C, "V": V}),
    "hard_swish": lambda: image(conv("x", "W", "a") + "h = HardSwish(a)\n" + SECOND, {"W": C, "V": V}),
    "leaky": lambda: image(conv("x", "W", "a") + "h = LeakyRelu(a)\n" + SECOND, {"W": C, "V": V}),
    "prelu": lambda: image(conv("x", "W", "a") + "h = PRelu(a, s)\n" + SECOND, {"W": C, "V": V, "s": [8, 1, 1]}),
    "squeeze_and_excite": lambda: image(
        conv("x", "W", "a")
        + "r = Relu(a)\ng = GlobalAveragePool(r)\n"
        + conv("g", "U", "e", "", "0,0,0,0")
        + "s = Sigmoid(e)\nh = Mul(r, s)\n"
        + SECOND,
        {"W": C, "U": [8, 8, 1, 1], "V": V},
    ),
    "output_read_inside": lambda: Case(
        "g (float[N,3,8,8] x) => (float[?,?,?,?] h, float[?,?,?,?] y) { "
        + conv("x", "W", "a")
        + "h = Relu(a)\n"
        + SECOND
        + " }",
        {"W": C, "V": V},
        IMAGE,
    ),
    "input_is_output": lambda: Case(
        "g (float[N,3,8,8] x) => (float[N,3,8,8] x, float[?,?,?,?] y) { " + conv("x", "W", "y") + " }", {"W": C}, IMAGE
    ),
    "weight_is_output": lambda: Case(
        "g (float[N,3,8,8] x) => (float[8,3,3,3] W, float[?,?,?,?] y) { " + conv("x", "W", "y") + " }", {"W": C}, IMAGE
    ),
    "weight_is_input": lambda: Case(
        "g (float[N,3,8,8] x, float[8,3,3,3] W) => (float[?,?,?,?] y) { " + conv("x", "W", "y") + " }", {"W": C}, IMAGE
    ),
    "weight_read_as_floats": lambda: image(
        conv("x", "W", "a") + "s = ReduceMean <keepdims=0> (W)\ny = Mul(a, s)\n", {"W": drawn(C) + 1}
    ),
    "input_read_by_two": lambda: image(conv("x", "W", "a") + conv("x", "V", "b") + "y = Add(a, b)\n", {"W": C, "V": C}),
    "grouped": lambda: image(
        conv("x", "W", "a") + "h = Relu(a)\n" + conv("h", "V", "c", ", b", attributes=", group=4") + "y = Neg(c)\n",
        {"W": C, "V": [12, 2, 3, 3], "b": [12]},
    ),
    "depthwise": lambda: image(
        conv("x", "W", "a", ", b", attributes=", group=3") + "h = Relu(a)\n" + SECOND,
        {"W": [6, 1, 3, 3], "b": [6], "V": [4, 6, 3, 3]},
    ),
    "conv_1d": lambda: Case(
        "g (float[N,3,9] x) => (float[?,?,?] y) { a = Conv <pads=[1,1]> (x, W, b)\nh = Relu(a)\ny = Conv(h, V)\n }",
        {"W": [8, 3, 3], "b": [8], "V": [4, 8, 3]},
        {"x": drawn([2, 3, 9])},
    ),
    "conv_3d": lambda: Case(
        "g (float[N,2,5,5,5] x) => (float[?,?,?,?,?] y) { a = Conv(x, W, b)\nh = Relu(a)\ny = Conv(h, V)\n }",
        {"W": [6, 2, 2, 2, 2], "b": [6], "V": [4, 6, 2, 2, 2]},
        {"x": drawn([2, 2, 5, 5, 5])},
    ),
    "transposed": lambda: image(
        conv("x", "W", "a") + "t = ConvTranspose <strides=[2,2]> (a, T, b)\nh = Relu(t)\n" + conv("h", "V", "y"),
        {"W": C, "T": [8, 6, 2, 2], "b": [6], "V": [4, 6, 3, 3]},
    ),
    "transposed_in_groups": lambda: image(
        conv("x", "W", "a") + "y = ConvTranspose <strides=[2,2], group=2> (a, T, b)\n",
        {"W": C, "T": [8, 3, 2, 2], "b": [6]},
    ),
    "one_channel": lambda: image(
        conv("x", "W", "h", ", b") + conv("h", "V", "y"), {"W": [1, 3, 3, 3], "b": [1], "V": [2, 1, 3, 3]}
    ),
    "batch_normalization": lambda: image(
        conv("x", "W", "a") + "n = BatchNormalization(a, s, t, m, v)\nh = Relu(n)\n" + SECOND,
        {"W": C, "V": V, "s": [8], "t": [8], "m": [8], "v": np.linspace(0.1, 3, 8, dtype=np.float32)},
    ),
    "transposed_batch_normalization": lambda: image(
        "a = ConvTranspose <group=3> (x, W, b)\ny = BatchNormalization(a, s, t, m, v)\n",
        {"W": [3, 2, 2, 2], "b": [6], "s": [6], "t": [6], "m": [6], "v": np.linspace(0.1, 3, 6, dtype=np.float32)},
    ),
    "scaled_conv": lambda: image(
        conv("x", "W", "a") + "c = Mul(a, s)\nd = Add(t, c)\ne = Div(d, two)\nf = Sub(e, one)\nh = Relu(f)\n" + SECOND,
        {"W": C, "V": V, "s": [1, 8, 1, 1], "t": [8, 1, 1], "two": 2.0, "one": -np.ones(1, np.float32)},
    ),
    "shared_weight_and_normalization": lambda: image(
        conv("x", "W", "a") + "n = BatchNormalization(a, s, t, m, v)\nr = Relu(n)\n" + conv("r", "W", "y"),
        {"W": [3, 3, 3, 3], "s": [3], "t": [3], "m": [3], "v": np.ones(3, np.float32)},
    ),
    "gemm": lambda: rows(
        "a = Gemm <transB=1> (x, W, b)\nh = Relu(a)\ny = Gemm(h, V, c)\n",
        {"W": [8, 6], "b": [8], "V": [8, 5], "c": [5]},
    ),
    "gemm_alpha_beta": lambda: rows("y = Gemm <alpha=0.5, beta=2.0> (x, W, b)\n", {"W": [6, 5], "b": [5]}),
    "gemm_row_bias": lambda: rows("y = Gemm(x, W, b)\n", {"W": [6, 5], "b": [1, 5]}),
    "gemm_scalar_bias": lambda: rows("y = Gemm(x, W, b)\n", {"W": [6, 5], "b": 0.3}),
    "gemm_matrix_bias": lambda: Case(
        "g (float[4,6] x) => (float[4,5] y) { y = Gemm(x, W, b)\n }", {"W": [6, 5], "b": [4, 5]}, ROWS
    ),
    "gemm_column_bias": lambda: Case(
        "g (float[4,6] x) => (float[4,4] y) { h = Gemm(x, W, b)\ny = Gemm(h, V)\n }",
        {"W": [6, 4], "b": drawn([4, 1]), "V": [4, 4]},
        ROWS,
    ),
    "gemm_on_the_left": lambda: Case(
        "g (float[6,4] x) => (float[5,4] y) { y = Gemm(W, x)\n }", {"W": [5, 6]}, {"x": drawn([6, 4])}
    ),
    "gemm_turned": lambda: Case(
        "g (float[6,4] x) => (float[4,5] y) { y = Gemm <transA=1, transB=1> (x, W, b)\n }",
        {"W": [5, 6], "b": [5]},
        {"x": drawn([6, 4])},
    ),
    "matmul_and_add": lambda: rows(
        "a = MatMul(x, W)\nb = Add(a, t)\nh = Relu(b)\ny = MatMul(h, V)\n", {"W": [6, 8], "t": [8], "V": [8, 5]}
    ),
    "matmul_on_the_left": lambda: Case(
        "g (float[N,6,4] x) => (float[?,?,?] y) { y = MatMul(W, x)\n }", {"W": [5, 6]}, {"x": drawn([2, 6, 4])}
    ),
    "matmul_batched": lambda: Case(
        "g (float[3,4,6] x) => (float[?,?,?] y) { a = MatMul(x, W)\nh = Relu(a)\ny = MatMul(h, V)\n }",
        {"W": [3, 6, 8], "V": [1, 8, 5]},
        {"x": drawn([3, 4, 6])},
    ),
    "matmul_vector": lambda: Case("g (float[N,6] x) => (float[?] y) { y = MatMul(x, W)\n }", {"W": [6]}, ROWS),
    "attention": lambda: Case(
        "g (float[N,5,6] x) => (float[?,?,?] y) { q = MatMul(x, Q)\nk = MatMul(x, K)\nv = MatMul(x, V)\n"
        "t = Transpose <perm=[0,2,1]> (k)\ns = MatMul(q, t)\np = Softmax(s)\no = MatMul(p, v)\nz = MatMul(o, O)\n"
        "r = Add(x, z)\ny = LayerNormalization(r, g, b)\n }",
        {"Q": [6, 6], "K": [6, 6], "V": [6, 6], "O": [6, 6], "g": np.ones(6, np.float32), "b": [6]},
        {"x": drawn([2, 5, 6])},
    ),
    "tied_table": lambda: Case(
        "g (int64[N,5] x) => (float[?,?,?] y) { e = Gather(T, x)\nt = Transpose <perm=[1,0]> (T)\ny = MatMul(e, t)\n }",
        {"T": [20, 6]},
        {"x": np.arange(10).reshape(2, 5)},
    ),
    "tied_gemm": lambda: Case(
        "g (int64[N] x) => (float[?,?] y) { e = Gather(T, x)\ny = Gemm <transB=1> (e, T)\n }",
        {"T": [20, 6]},
        {"x": np.arange(10)},
    ),
    "table": lambda: Case(
        "g (int64[N,5] x, float[N,5,6] z) => (float[?,?,?] y) { e = Gather(T, x)\ns = Add(e, z)\ny = MatMul(s, W)\n }",
        {"T": [20, 6], "W": [6, 4]},
        {"x": np.arange(10).reshape(2, 5), "z": drawn([2, 5, 6])},
    ),
    "read_along_two_axes": lambda: Case(
        "g (float[N,6] x) => (float[?,6] y) { a = MatMul(x, W)\nh = Relu(a)\ny = Gemm <transB=1> (h, W)\n }",
        {"W": [6, 6]},
        ROWS,
    ),
    "view_of_weight": lambda: rows("t = Transpose <perm=[1,0]> (W)\ny = MatMul(x, t)\n", {"W": [5, 6]}),
    "reshaped_weight": lambda: rows("t = Reshape(W, s)\ny = MatMul(x, t)\n", {"W": [3, 2, 5], "s": np.array([6, -1])}),
    "half_storage": lambda: rows("w = Cast <to=1> (W)\ny = MatMul(x, w)\n", {"W": drawn([6, 5], 0, np.float16)}),
    "identities": lambda: rows("v = Identity(W)\nw = Identity(v)\ny = MatMul(x, w)\n", {"W": [6, 5]}),
    "lstm": lambda: Case(
        "g (float[5,N,3] x) => (float[?,?,?,?] y) { y = LSTM <hidden_size=4> (x, W, R, B)\n }",
        {"W": [1, 16, 3], "R": [1, 16, 4], "B": [1, 32]},
        {"x": drawn([5, 2, 3])},
    ),
    "gru_both_ways": lambda: Case(
        'g (float[5,N,3] x) => (float[?,?,?] y) { , y = GRU <hidden_size=4, direction="bidirectional"> (x, W, R)\n }',
        {"W": [2, 12, 3], "R": [2, 12, 4]},
        {"x": drawn([5, 2, 3])},
    ),
    "einsum": lambda: Case(
        'g (float[N,6] x) => (float[?,?] y) { y = Einsum <equation="ij,jk->ik"> (x, W)\n }', {"W": [6, 5]}, ROWS
    ),
    "computed_weight": lambda: image(
        "m = ReduceMean <keepdims=0> (x)\nw = Mul(W, m)\n" + conv("x", "w", "y"),
        {"W": C},
    ),
    "half": lambda: Case(
        "g (float16[N,6] x) => (float16[?,?] y) { y = MatMul(x, W)\n }",
        {"W": drawn([6, 5], 0, np.float16)},
        {"x": drawn([4, 6], 0, np.float16)},
    ),
    "double": lambda: Case(
        "g (double[N,6] x) => (double[?,?] y) { y = MatMul(x, W)\n }",
        {"W": drawn([6, 5], 0, np.float64)},
        {"x": drawn([4, 6], 0, np.float64)},
    ),
    "branches": lambda: Case(
        "g (float[N,6] x, bool c) => (float[?,?] y) { z = If(c) <"
        "then_branch = t () => (float[?,?] p) { p = MatMul(x, W) }, "
        "else_branch = e () => (float[?,?] q) { q = MatMul(x, V) }>\ny = MatMul(z, U)\n }",
        {"W": [6, 5], "V": [6, 5], "U": [5, 5]},
        {"x": ROWS["x"], "c": np.array(True)},
    ),
    "old": lambda: Case(
        "g (float[N,3,8,8] x) => (float[?,?] y) { a = Conv <pads=[1,1,1,1]> (x, W)\nr = Clip <min=0.0, max=2.0> (a)\n"
        "g = GlobalAveragePool(r)\ns = Squeeze <axes=[2,3]> (g)\ny = Gemm(s, V, b)\n }",
        {"W": C, "V": [8, 5], "b": [5]},
        IMAGE,
        9,
    ),
    "function": lambda: Case(
        "g (float[N,6] x) => (float[?,?] y) { a = own.layer(x, W)\ny = own.layer(a, V)\n }\n"
        '<domain: "own", opset_import: ["" : 17]> layer (x, w) => (y) { m = MatMul(x, w)\ny = Relu(m)\n }',
        {"W": [6, 8], "V": [8, 5]},
        ROWS,
    ),
    "two_inputs": lambda: Case(
        "g (float[N,3,8,8] x, float[N,3,8,8] z, int64 k) => (float[?,?,?,?] y) { "
        + conv("x", "W", "a")
        + conv("z", "W", "b")
        + "s = Add(a, b)\nf = Cast <to=1> (k)\ny = Mul(s, f)\n }",
        {"W": C},
        {"x": IMAGE["x"], "z": drawn([2, 3, 8, 8], 3), "k": np.array(2)},
    ),
    "dynamic": lambda: Case(
        "g (float[N,3,H,W] x) => (float[?,?] y) { "
        + conv("x", "K", "a")
        + "h = Relu(a)\ns = Shape(h)\nn = Gather(s, zero)\nm = Unsqueeze(n, axis)\nt = Concat <axis=0> (m, rest)\n"
        "p = GlobalAveragePool(h)\nf = Reshape(p, t)\ny = Gemm(f, V)\n }",
        {"K": C, "zero": np.array(0), "axis": np.array([0]), "rest": np.array([8]), "V": [8, 5]},
        IMAGE,
    ),
    "relu_read_twice": lambda: image(
        conv("x", "W", "a") + "r = Relu(a)\n" + conv("r", "V", "c") + "y = Add(a, c)\n", {"W": C, "V": [8, 8, 3, 3]}
    ),
    "both_stored": lambda: rows(
        "k = MatMul(V, U)\na = MatMul(x, W)\ny = Add(a, k)\n", {"V": [1, 4], "U": [4, 5], "W": [6, 5]}
    ),
    "dense_blocks": lambda: image(
        conv("x", "W", "a")
        + "r = Relu(a)\nd = Concat <axis=1> (x, r)\n"
        + conv("d", "U", "b")
        + "s = Relu(b)\nh = Concat <axis=1> (d, s)\n"
        + SECOND,
        {"W": [5, 3, 3, 3], "U": [4, 8, 3, 3], "V": [4, 12, 3, 3]},
    ),
    "subtracted": lambda: image(
        conv("x", "W", "a") + conv("x", "U", "b") + "h = Sub(a, b)\n" + SECOND, {"W": C, "U": C, "V": V}
    ),
    "multiplied": lambda: image(
        conv("x", "W", "a") + conv("x", "U", "b") + "h = Mul(a, b)\n" + SECOND, {"W": C, "U": C, "V": V}
    ),
}
