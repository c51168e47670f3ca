"""What a random graph is made of: values, stored tensors that reach their reader by random ways, and usual steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.channels.net import Array, Net, Reduction, generator


@dataclasses.dataclass(frozen=True)
class Val:
    name: str
    shape: tuple[int, ...]

    @property
    def kind(self) -> str:
        return {4: "image", 3: "tokens", 2: "vector"}[len(self.shape)]

    @property
    def channels(self) -> int:
        return self.shape[1] if len(self.shape) == 4 else self.shape[-1]

    def with_channels(self, name: str, channels: int) -> Val:
        if len(self.shape) == 4:
            return Val(name, (self.shape[0], channels, *self.shape[2:]))
        return Val(name, (*self.shape[:-1], channels))


class RandomNet(Net):
    """Stored weights reach their reader by random ways that keep their numbers, and some are shared."""

    def __init__(self, seed: str) -> None:
        self.dice = np.random.default_rng(np.frombuffer(seed.encode(), np.uint8))
        super().__init__(opset=17, constants=bool(self.dice.random() < 0.2))
        self.made_before: dict[tuple[tuple[int, ...], int | None, int], list[str]] = {}

    def weight(self, name: str, *shape: int, axis: int | None = None, splits: int = 1, around: float = 0.0) -> str:
        alike = self.made_before.setdefault((shape, axis, splits), [])
        if alike and self.dice.random() < 0.12:
            return alike[int(self.dice.integers(len(alike)))]
        arrived = self._by_a_way(self.name(name), shape, axis, splits, around)
        alike.append(arrived)
        return arrived

    def _by_a_way(self, name: str, shape: tuple[int, ...], axis: int | None, splits: int, around: float) -> str:
        way, rank = self.dice.random(), len(shape)
        if way < 0.08 and rank > 1 and splits == 1:
            perm = [int(one) for one in self.dice.permutation(rank)]
            stored = [0] * rank
            for at, source in enumerate(perm):
                stored[source] = shape[at]
            own = None if axis is None else perm[axis]
            return self.transpose(super().weight(name, *stored, axis=own, around=around), *perm)
        super().weight(name, *shape, axis=axis, splits=splits, around=around)
        if way < 0.12:
            return self("Identity", name)
        if way < 0.16:
            return self("Cast", self("Cast", name, to=TensorProto.DOUBLE), to=TensorProto.FLOAT)
        if way < 0.20 and axis is not None:
            factor = [1] * rank
            factor[int(self.dice.integers(rank))] = 0
            sizes = [shape[at] if one == 0 else 1 for at, one in enumerate(factor)]
            return self("Mul", name, self.store(f"{name}_factor", self._near_one(f"{name}_factor", sizes)))
        if way < 0.24:
            flat = self.ints(*shape) if rank < 3 else self.ints(*shape[:2], -1, *shape[3:])
            return self("Reshape", name, flat)
        if way < 0.28 and rank == 4 and splits == 1:
            return self._quantized(name, shape)
        return name

    def _near_one(self, name: str, sizes: Sequence[int]) -> Array:
        return (1 + 0.3 * generator(name).standard_normal(sizes)).astype(np.float32)

    def _quantized(self, name: str, shape: tuple[int, ...]) -> str:
        """Codes with a scale for each row, in place of the floats that were stored."""
        self._forget(name)
        codes = generator(name).integers(-127, 128, shape).astype(np.int8)
        scales = (2.0 ** -generator(f"{name}_s").integers(7, 9, shape[0])).astype(np.float32)
        stored = self.store(name, codes), self.store(f"{name}_scale", scales)
        if name in self.reductions:
            spread = (-1, *(1 for _ in shape[1:]))
            self.reductions[name] = Reduction(self.reductions[name].axis, scale=f"{name}_scale", spread=spread)
        return self("DequantizeLinear", *stored, self.store(f"{name}_zero", np.zeros(shape[0], np.int8)), axis=0)

    def _forget(self, name: str) -> None:
        (self.nodes if self.constants else self.initializers).pop()

    def one_of(self, *choices: int) -> int:
        return int(choices[int(self.dice.integers(len(choices)))])


Step = Callable[[RandomNet, Val, Sequence[Val]], "Val | None"]
STEPS: dict[str, tuple[tuple[str, ...], Step]] = {}


def step(*kinds: str) -> Callable[[Step], Step]:
    """Registers a step for values of these kinds; it returns None where it does not fit."""

    def register(function: Step) -> Step:
        STEPS[function.__name__.strip("_")] = kinds, function
        return function

    return register


ANY = ("image", "tokens", "vector")


# -- layers that write new channels


@step("image")
def conv(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    group, cout = net.one_of(1, 1, 1, 2, 4), net.one_of(8, 12, 16, 24)
    if x.channels % group:
        return None
    return x.with_channels(net.conv(x.name, "conv", x.channels, cout, net.one_of(1, 3), group), cout)


@step("image")
def depthwise(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    cout = x.channels * net.one_of(1, 1, 2)
    return x.with_channels(net.conv(x.name, "depthwise", x.channels, cout, 3, x.channels), cout)


@step("image")
def conv_transpose(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    group, cout = net.one_of(1, 1, 2), net.one_of(8, 12, 16)
    if x.channels % group or x.shape[2] > 6:
        return None
    name = net.conv_transpose(x.name, "up", x.channels, cout, group)
    return Val(name, (x.shape[0], cout, 2 * x.shape[2], 2 * x.shape[3]))


@step("tokens")
def linear(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    cout = net.one_of(8, 16, 24)
    return x.with_channels(net.linear(x.name, "linear", x.channels, cout, bool(net.one_of(0, 1))), cout)


@step("vector")
def gemm(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    cout = net.one_of(8, 16, 24)
    return x.with_channels(net.gemm(x.name, "gemm", x.channels, cout), cout)


@step("tokens", "vector")
def einsum(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    cout = net.one_of(8, 16)
    weight = net.weight("einsum", cout, x.channels, axis=1)
    return x.with_channels(net("Einsum", x.name, weight, equation="...d,od->...o"), cout)


@step("tokens")
def left_matrix(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    """The stored matrix is the first operand of the product."""
    cout = net.one_of(8, 16)
    turned = net.transpose(x.name, 0, 2, 1)
    product = net("MatMul", net.weight("left", cout, x.channels, axis=1), turned)
    return x.with_channels(net.transpose(product, 0, 2, 1), cout)


@step("tokens")
def recurrent(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    op, ways, units = ("LSTM", "GRU", "RNN")[net.one_of(0, 1, 2)], net.one_of(1, 2), net.one_of(8, 12)
    rows = units * {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    stored = [net.weight("w", ways, rows, x.channels, axis=2), net.weight("r", ways, rows, units, axis=2)]
    stored.append(net.weight("b", ways, 2 * rows))
    state = [net.weight("start", ways, x.shape[0], units) for _ in range(1 + (op == "LSTM"))]
    direction = "bidirectional" if ways == 2 else ("forward", "reverse")[net.one_of(0, 1)]
    states = ["", *state] if net.one_of(0, 1) else []
    y = net(op, net.transpose(x.name, 1, 0, 2), *stored, *states, hidden_size=units, direction=direction)
    return x.with_channels(net.reshape(net.transpose(y, 2, 0, 1, 3), 0, 0, ways * units), ways * units)


# -- a number for each channel, and none

ACTIVATIONS = ("Relu", "Tanh", "Sigmoid", "HardSwish", "Elu", "Softplus", "Abs", "Erf", "Identity")


@step(*ANY)
def activation(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    return Val(net(ACTIVATIONS[int(net.dice.integers(len(ACTIVATIONS)))], x.name), x.shape)


@step(*ANY)
def scalar(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    op = ("Add", "Mul", "Max", "Div", "Sub")[net.one_of(0, 1, 2, 3, 4)]
    return Val(net(op, x.name, net.number(0.7)), x.shape)


def _per_channel(net: RandomNet, x: Val, name: str, around: float = 0.0) -> str:
    tail = (1,) * (len(x.shape) - 2) if len(x.shape) == 4 else ()
    lead = (1,) * net.one_of(0, 1) if len(x.shape) == 4 else ()
    return net.weight(name, *lead, x.channels, *tail, around=around)


@step(*ANY)
def scale_and_shift(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    h = net("Mul", x.name, _per_channel(net, x, "scale", 1.0))
    return Val(net("Add", _per_channel(net, x, "shift"), h), x.shape)


@step("image")
def prelu(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    sizes = [(x.channels, 1, 1), (1, 1, 1), (x.shape[3],), (x.shape[2], 1)][net.one_of(0, 0, 1, 2, 3)]
    return Val(net("PRelu", x.name, net.weight("slope", *sizes)), x.shape)


@step("image")
def along_the_width(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    return Val(net("Add", x.name, net.weight("columns", x.shape[3])), x.shape)


@step(*ANY)
def where(net: RandomNet, x: Val, others: Sequence[Val]) -> Val:
    limit = _per_channel(net, x, "limit") if net.one_of(0, 1) else net.number(0.1)
    return Val(net("Where", net("Greater", x.name, limit), x.name, net("Neg", x.name)), x.shape)


# -- norms


@step("image")
def batch_norm(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    return Val(net.batch_norm(x.name, net.name("bn"), x.channels), x.shape)


@step("image")
def instance_norm(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    if x.shape[2] * x.shape[3] < 4:
        return None
    stored = net.weight("scale", x.channels, around=1.0), net.weight("shift", x.channels)
    return Val(net("InstanceNormalization", x.name, *stored), x.shape)


@step("image")
def group_norm(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    groups = net.one_of(2, 4)
    if x.channels % groups:
        return None
    stored = [net.weight(name, groups, around=1.0) for name in ("of_groups", "shift_of_groups")]
    h = net("InstanceNormalization", net.reshape(x.name, 0, groups, -1), *stored)
    return Val(net("Reshape", h, net("Shape", x.name)), x.shape)


@step("tokens", "vector")
def layer_norm(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    return Val(net.layer_norm(x.name, net.name("ln"), x.channels), x.shape)


@step("image")
def layer_norm_of_pixels(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    h = net.layer_norm(net.transpose(x.name, 0, 2, 3, 1), net.name("ln"), x.channels)
    return Val(net.transpose(h, 0, 3, 1, 2), x.shape)


@step("tokens", "vector")
def rms_norm(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    mean = net("ReduceMean", net("Mul", x.name, x.name), axes=[-1])
    return Val(net("Div", x.name, net("Sqrt", net("Add", mean, net.number(1e-2)))), x.shape)


@step("image")
def lrn(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    return Val(net("LRN", x.name, size=3, alpha=0.5, bias=1.0), x.shape)


@step(*ANY)
def softmax(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    axis = net.one_of(*range(1, len(x.shape)))
    return Val(net("Mul", net("Softmax", x.name, axis=axis), net.number(4.0)), x.shape)


@step(*ANY)
def cumsum(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    axis = net.store(net.name("axis"), np.array(net.one_of(*range(1, len(x.shape))), np.int64))
    return Val(net("CumSum", x.name, axis), x.shape)


@step(*ANY)
def over_a_mean(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    axis = net.one_of(*range(1, len(x.shape)))
    op = ("ReduceMean", "ReduceMax", "ReduceL2")[net.one_of(0, 1, 2)]
    return Val(net("Sub", x.name, net(op, x.name, axes=[axis])), x.shape)


# -- gates


@step("image")
def squeeze_and_excite(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    h = net.relu(net.conv(net("GlobalAveragePool", x.name), "squeeze", x.channels, 8))
    return Val(net("Mul", x.name, net("Sigmoid", net.conv(h, "excite", 8, x.channels))), x.shape)


@step("image")
def eca(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    row = net.transpose(net.reshape(net("GlobalAveragePool", x.name), 0, 0, 1), 0, 2, 1)
    mixed = net("Conv", row, net.weight("neighbours", 1, 1, 3), pads=[1, 1])
    gate = net("Unsqueeze", net.transpose(mixed, 0, 2, 1), net.ints(3))
    return Val(net("Mul", x.name, net("Sigmoid", gate)), x.shape)


@step("image")
def spatial_attention(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    pooled = net.concat(net("ReduceMean", x.name, axes=[1]), net("ReduceMax", x.name, axes=[1]))
    return Val(net("Mul", x.name, net("Sigmoid", net.conv(pooled, "gate", 2, 1, 3))), x.shape)


@step(*ANY)
def glu(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    if x.channels % 2 or x.channels < 16:
        return None
    axis, half = (1 if len(x.shape) == 4 else len(x.shape) - 1), x.channels // 2
    if net.one_of(0, 0, 1):
        parts = [net.slice(x.name, at, x.channels, axis=axis, step=2) for at in (0, 1)]
    else:
        parts = net.split(x.name, half, half, axis=axis)
    return x.with_channels(net("Mul", parts[0], net("Sigmoid", parts[1])), half)


@step("image")
def maxout(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    if x.channels % 2 or x.channels < 16:
        return None
    first = net.one_of(0, 1)
    sizes = (2, x.channels // 2) if first else (x.channels // 2, 2)
    five = net.reshape(x.name, 0, *sizes, *x.shape[2:])
    return x.with_channels(net("ReduceMax", five, axes=[1 if first else 2], keepdims=0), x.channels // 2)


# -- the order of channels


def _axis(x: Val) -> int:
    return 1 if len(x.shape) == 4 else len(x.shape) - 1


@step(*ANY)
def shuffle(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    groups, axis = net.one_of(2, 4), _axis(x)
    if x.channels % groups:
        return None
    sizes = [0] * axis + [groups, x.channels // groups] + list(x.shape[axis + 1 :])
    perm = list(range(len(sizes)))
    perm[axis], perm[axis + 1] = axis + 1, axis
    return Val(net.reshape(net.transpose(net.reshape(x.name, *sizes), *perm), *x.shape), x.shape)


@step(*ANY)
def chunk_and_swap(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    cut = int(net.dice.integers(1, x.channels))
    left, right = net.split(x.name, cut, x.channels - cut, axis=_axis(x))
    return Val(net.concat(right, left, axis=_axis(x)), x.shape)


@step(*ANY)
def half_worked_on(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    cut = int(net.dice.integers(1, x.channels))
    left, right = net.split(x.name, cut, x.channels - cut, axis=_axis(x))
    return Val(net.concat(left, net("Tanh", right), axis=_axis(x)), x.shape)


@step(*ANY)
def slice_of_channels(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    bounds = [(0, x.channels, 2), (2, x.channels, 1), (-8, 2**31, 1), (-1, -(2**31), -1)]
    start, end, jump = bounds[net.one_of(0, 1, 2, 3)]
    count = len(range(x.channels)[slice(start, None if jump < 0 else end, jump)])
    if count < 4:
        return None
    return x.with_channels(net.slice(x.name, start, end, _axis(x), jump), count)


@step(*ANY)
def gather_of_channels(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    count = x.channels if net.one_of(0, 1) else net.one_of(6, 8)
    taken = net.dice.permutation(x.channels)
    if count != x.channels:
        taken = net.dice.integers(-x.channels, x.channels, count)
    return x.with_channels(net("Gather", x.name, net.ints(*taken.tolist()), axis=_axis(x)), count)


@step("image")
def pad_of_channels(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    before, after = net.one_of(0, 1, 4), net.one_of(0, 3, 4)
    name = net("Pad", x.name, net.ints(0, before, 0, 0, 0, after, 0, 0))
    return x.with_channels(name, x.channels + before + after)


@step(*ANY)
def tile(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    if x.channels > 16:
        return None
    repeats = [2 if at == _axis(x) else 1 for at in range(len(x.shape))]
    return x.with_channels(net("Tile", x.name, net.ints(*repeats)), 2 * x.channels)


@step("image")
def depth_to_space(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    if x.channels % 4 or x.channels < 16 or x.shape[2] > 6:
        return None
    n, c, height, width = x.shape
    name = [
        lambda: net("DepthToSpace", x.name, blocksize=2, mode="DCR"),
        lambda: net("DepthToSpace", x.name, blocksize=2, mode="CRD"),
        lambda: net.reshape(
            net.transpose(net.reshape(x.name, 0, c // 4, 2, 2, height, width), 0, 1, 4, 2, 5, 3),
            0, c // 4, 2 * height, 2 * width),
    ][net.one_of(0, 1, 2)]()  # fmt: skip
    return Val(name, (n, c // 4, 2 * height, 2 * width))


@step("image")
def space_to_depth(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    n, c, height, width = x.shape
    if c > 8 or height % 2 or width % 2:
        return None
    if net.one_of(0, 1):
        name = net("SpaceToDepth", x.name, blocksize=2)
    else:
        six = net.transpose(net.reshape(x.name, 0, c, height // 2, 2, width // 2, 2), 0, 1, 3, 5, 2, 4)
        name = net.reshape(six, 0, 4 * c, height // 2, width // 2)
    return Val(name, (n, 4 * c, height // 2, width // 2))


@step("image")
def channels_taken_for_pixels(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    """A Reshape that mixes channels and rows."""
    c, height, width = x.shape[1:]
    return Val(net.transpose(net.reshape(x.name, 0, height, c, width), 0, 2, 1, 3), x.shape)


# -- pixels and tokens


@step("image")
def pool(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    if x.shape[2] % 2 or x.shape[3] % 2:
        return None
    op = ("MaxPool", "AveragePool")[net.one_of(0, 1)]
    return Val(net(op, x.name, kernel_shape=[2, 2], strides=[2, 2]), (*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2))


@step("image")
def resize(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    if x.shape[2] > 6:
        return None
    scales = net.store(net.name("scales"), np.array([1, 1, 2, 1], np.float32))
    return Val(net("Resize", x.name, "", scales, mode="nearest"), (*x.shape[:2], 2 * x.shape[2], x.shape[3]))


@step("image")
def to_tokens(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    flat = net.reshape(x.name, 0, 0, -1)
    return Val(net.transpose(flat, 0, 2, 1), (x.shape[0], x.shape[2] * x.shape[3], x.channels))


@step("tokens")
def to_image(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    height = next((size for size in (6, 4, 3, 2) if x.shape[1] % size == 0), 1)
    width = x.shape[1] // height
    return Val(
        net.reshape(net.transpose(x.name, 0, 2, 1), 0, 0, height, width), (x.shape[0], x.channels, height, width)
    )


@step("image", "tokens")
def flatten(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    size = math.prod(x.shape[1:])
    if size > 128:
        return None
    if len(x.shape) == 4 and net.one_of(0, 1):
        return Val(net.reshape(net.transpose(x.name, 0, 2, 3, 1), 0, -1), (x.shape[0], size))
    return Val(net("Flatten", x.name), (x.shape[0], size))


@step("image", "tokens")
def pooled(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    if len(x.shape) == 4:
        return Val(net("Flatten", net("GlobalAveragePool", x.name)), (x.shape[0], x.channels))
    return Val(net("ReduceMean", x.name, axes=[1], keepdims=0), (x.shape[0], x.channels))


@step("vector")
def to_heads_and_back(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    heads = net.one_of(2, 4)
    if x.channels % heads:
        return None
    three = net.reshape(x.name, 0, heads, -1)
    axis = net.one_of(1, 2)
    three = net("Sub", three, net("ReduceMean", three, axes=[axis]))
    return Val(net.reshape(three, *x.shape), x.shape)


@step("tokens")
def windows(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    if x.shape[1] % 2:
        return None
    four = net.transpose(net.reshape(x.name, 0, -1, 2, x.channels), 0, 2, 1, 3)
    mean = net("ReduceMean", four, axes=[2])
    back = net.transpose(net("Sub", four, mean), 0, 2, 1, 3)
    return Val(net.reshape(back, *x.shape), x.shape)


@step("tokens")
def attention(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    heads, size = net.one_of(1, 2), 8
    width = heads * size
    form = net.one_of(0, 1, 2, 3)
    if form == 0:
        parts = [net.linear(x.name, part, x.channels, width) for part in "qkv"]
    else:
        packed = net.linear(x.name, "qkv", x.channels, 3 * width)
        if form == 1:
            parts = net.split(packed, width, width, width, axis=2)
        elif form == 2:
            five = net.reshape(packed, 0, 0, 3, heads, size)
            parts = [net.reshape(net("Gather", five, net.ints(at), axis=2), 0, 0, width) for at in range(3)]
        else:
            four = net.split(net.reshape(packed, 0, 0, heads, 3 * size), size, size, size, axis=3)
            parts = [net.reshape(one, 0, 0, width) for one in four]
    q, k, v = (net.transpose(net.reshape(part, 0, 0, heads, size), 0, 2, 1, 3) for part in parts)
    scores = net("Mul", net("MatMul", q, net.transpose(k, 0, 1, 3, 2)), net.number(0.3))
    mixed = net("MatMul", net("Softmax", scores, axis=-1), v)
    return x.with_channels(net.reshape(net.transpose(mixed, 0, 2, 1, 3), 0, 0, width), width)


@step("tokens")
def fused_attention(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    domain = "com.microsoft"
    if net.one_of(0, 1):
        stored = net.weight("qkv", x.channels, 48, axis=0), net.weight("qkv_b", 48)
        return x.with_channels(net("Attention", x.name, *stored, domain=domain, num_heads=2), 16)
    parts = [net.linear(x.name, part, x.channels, 16) for part in "qkv"]
    return x.with_channels(net("MultiHeadAttention", *parts, domain=domain, num_heads=2), 16)


@step("tokens")
def mixer(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    """Tokens are mixed by a stored matrix."""
    turned = net.transpose(x.name, 0, 2, 1)
    inner = net.relu(net.linear(turned, "tokens_in", x.shape[1], 8))
    mixed = net.transpose(net.linear(inner, "tokens_out", 8, x.shape[1]), 0, 2, 1)
    return Val(net("Add", x.name, mixed), x.shape)


# -- values that meet


def _fitting(x: Val, others: Sequence[Val], axis: int | None) -> list[Val]:
    def without(val: Val) -> tuple[int, ...]:
        return val.shape if axis is None else (*val.shape[:axis], *val.shape[axis + 1 :])

    return [one for one in others if len(one.shape) == len(x.shape) and without(one) == without(x)]


@step(*ANY)
def joined(net: RandomNet, x: Val, others: Sequence[Val]) -> Val | None:
    fitting = _fitting(x, others, _axis(x))
    other = fitting[int(net.dice.integers(len(fitting)))]
    if x.channels + other.channels > 48:
        return None
    parts = [x, other] if net.one_of(0, 1) else [other, x]
    return x.with_channels(net.concat(*(one.name for one in parts), axis=_axis(x)), x.channels + other.channels)


@step(*ANY)
def added(net: RandomNet, x: Val, others: Sequence[Val]) -> Val:
    fitting = _fitting(x, others, None)
    other = fitting[int(net.dice.integers(len(fitting)))]
    return Val(net(("Add", "Mul", "Max")[net.one_of(0, 0, 1, 2)], x.name, other.name), x.shape)


@step("tokens", "vector")
def residual(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    inner = net.relu(net.linear(x.name, "up", x.channels, 16))
    return Val(net("Add", x.name, net.linear(inner, "down", 16, x.channels)), x.shape)


@step("image")
def residual_of_convs(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    inner = net.relu(net.conv(x.name, "in", x.channels, 12, 3))
    return Val(net("Add", net.conv(inner, "out", 12, x.channels, net.one_of(1, 3)), x.name), x.shape)


@step("vector")
def gram(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    if x.channels > 8:
        return None
    square = net("Mul", net("Unsqueeze", x.name, net.ints(2)), net("Unsqueeze", x.name, net.ints(1)))
    return Val(net("Flatten", net("Tanh", square)), (x.shape[0], x.channels**2))


@step(*ANY)
def from_outside(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    """An input of the model with the same channels."""
    return Val(net("Add", x.name, net.input(net.name("side"), *x.shape)), x.shape)


# -- bodies


@step(*ANY)
def under_if(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    first = len(net.nodes)
    bodies = []
    for make in (lambda: net("Tanh", x.name), lambda: chunk_and_swap(net, x, ()).name):
        out = make() if net.one_of(0, 1) else net("Neg", x.name)
        nodes, net.nodes = net.nodes[first:], net.nodes[:first]
        bodies.append(helper.make_graph(nodes, net.name("body"), [], [untyped(out)]))
    condition = "condition" if "condition" in net.feeds else net.feed("condition", np.array(True))
    return Val(net("If", condition, then_branch=bodies[0], else_branch=bodies[1]), x.shape)


@step("image", "tokens")
def under_loop(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    """Two turns of a residual block with one weight."""
    first, carried = len(net.nodes), net.name("carried")
    outside = {key: list(names) for key, names in net.made_before.items()}
    inside = Val(carried, x.shape)
    block = residual_of_convs if x.kind == "image" else residual
    out = net("Tanh", block(net, inside, ()).name)
    going = net("Identity", f"{carried}_going")
    net.made_before = outside  # what a weight became on its way inside has no name out here
    nodes, net.nodes = net.nodes[first:], net.nodes[:first]
    constants = [one for one in nodes if one.op_type == "Constant"]
    net.nodes += constants
    ins = [
        helper.make_tensor_value_info(f"{carried}_turn", TensorProto.INT64, []),
        helper.make_tensor_value_info(f"{carried}_going", TensorProto.BOOL, []),
        untyped(carried),
    ]
    outs = [helper.make_tensor_value_info(going, TensorProto.BOOL, []), untyped(out)]
    body = helper.make_graph([one for one in nodes if one.op_type != "Constant"], net.name("body"), ins, outs)
    trips = net.store(net.name("trips"), np.array(2, np.int64))
    return Val(net("Loop", trips, "", x.name, body=body), x.shape)


@step("image")
def function(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    """Conv and Relu as a local function, with the weight handed over."""
    if not net.functions:
        nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
        opsets = [helper.make_opsetid("", net.opset)]
        net.functions.append(helper.make_function("local", "Block", ["x", "w"], ["y"], nodes, opsets))
    weight = net.weight("called", 12, x.channels, 1, 1, axis=1)
    return x.with_channels(net("Block", x.name, weight, domain="local"), 12)


def untyped(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
