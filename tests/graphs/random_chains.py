"""Random chains of Identity, Transpose, Reshape, Squeeze and Unsqueeze between a stored tensor and a MatMul.

The expected rows come from doing the same steps to an array of indices. Reshapes merge neighbours, or split one axis
where its parts allow (2 x 3 merged to 6 is not split to 3 x 2), so every axis stays a product of parts of stored axes
and nothing gives a tool the right to refuse.
"""

from __future__ import annotations

import math
from typing import Any, Callable

import numpy as np
from hypothesis import strategies as st
from onnx import NodeProto

from .case import Array, Built, Use, codes, expect, feed, node, simple, untied

Step = Callable[[Array], Array]


class Chain:
    """Nodes and constants so far, and what the steps did to the indices."""

    def __init__(self, shape: list[int]) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.now = np.arange(math.prod(shape)).reshape(shape)
        self.parts = [[size] for size in shape]
        self.name = "w"

    def add(self, op: str, result: Array, constant: list[int] | None = None, **attributes: Any) -> None:
        made = f"t{len(self.nodes)}"
        inputs = self.name
        if constant is not None:
            self.constants[f"c_{made}"] = np.array(constant, np.int64)
            inputs += f" c_{made}"
        self.nodes.append(node(op, inputs, made, **attributes))
        self.name, self.now = made, result


def _transpose(draw: Callable[..., Any], chain: Chain) -> None:
    perm = draw(st.permutations(range(chain.now.ndim)))
    chain.parts = [chain.parts[axis] for axis in perm]
    chain.add("Transpose", chain.now.transpose(perm), perm=list(perm))


def _merge(draw: Callable[..., Any], chain: Chain) -> None:
    shape = list(chain.now.shape)
    if len(shape) > 2:
        at = draw(st.integers(0, len(shape) - 2))
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
        chain.parts[at : at + 2] = [chain.parts[at] + chain.parts[at + 1]]
        chain.add("Reshape", chain.now.reshape(shape), shape)


def _split(draw: Callable[..., Any], chain: Chain) -> None:
    shape = list(chain.now.shape)
    at = draw(st.integers(0, len(shape) - 1))
    cuts = {part: cut for part in range(2, shape[at]) for cut in [_cut(chain.parts[at], part)] if cut}
    if cuts and len(shape) < 5:
        part = draw(st.sampled_from(sorted(cuts)))
        shape[at : at + 1] = [shape[at] // part, part]
        chain.parts[at : at + 1] = cuts[part]
        chain.add("Reshape", chain.now.reshape(shape), shape)


def _cut(parts: list[int], inner: int) -> list[list[int]]:
    """The parts of an axis on either side of a cut that leaves `inner` elements inside; empty if it falls across."""
    left, right = list(parts), []
    while left and inner % left[-1] == 0:
        inner //= left[-1]
        right.insert(0, left.pop())
    if inner == 1:
        return [left, right]
    if not left or left[-1] % inner:
        return []
    outer = left.pop() // inner
    return [[*left, outer], [inner, *right]]


def _unsqueeze(draw: Callable[..., Any], chain: Chain) -> None:
    if chain.now.ndim < 5:
        at = draw(st.integers(0, chain.now.ndim))
        chain.parts.insert(at, [])
        chain.add("Unsqueeze", np.expand_dims(chain.now, at), [at])


def _squeeze(draw: Callable[..., Any], chain: Chain) -> None:
    ones = [at for at, size in enumerate(chain.now.shape) if size == 1]
    if ones and chain.now.ndim > 2:
        at = draw(st.sampled_from(ones))
        del chain.parts[at]
        chain.add("Squeeze", np.squeeze(chain.now, at), [at - chain.now.ndim])


def _identity(draw: Callable[..., Any], chain: Chain) -> None:
    chain.add("Identity", chain.now)


STEPS = (_transpose, _transpose, _merge, _split, _unsqueeze, _squeeze, _identity)


@st.composite
def chains(draw: Callable[..., Any], longest: int = 6) -> Built:
    """A model with one weight `w`, and the rows it must be pruned along. Reduction axes are not predicted."""
    shape = draw(
        st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), min_size=2, max_size=4).filter(
            lambda s: 16 <= math.prod(s) <= 600
        )
    )
    chain = Chain(shape)
    for _ in range(draw(st.integers(1, longest))):
        draw(st.sampled_from(STEPS))(draw, chain)
    right = draw(st.booleans())
    k_last = chain.now if not right else np.swapaxes(chain.now, -1, -2)
    x_shape = (3, k_last.shape[-1]) if right else (k_last.shape[-1], 3)
    product = node("MatMul", f"x {chain.name}" if right else f"{chain.name} x", "y")
    rows = k_last.reshape(-1, k_last.shape[-1])

    def layout(stored: Array) -> Array:
        return stored.ravel()[rows][None, :, :, None]

    w = untied(*shape)
    wanted = expect("w", w, Use("MatMul", (0,), (), layout=layout))
    stored = {"w": w, **chain.constants}
    rank = max(chain.now.ndim, 2)
    return simple([*chain.nodes, product], {"x": feed(*x_shape)}, [("y", rank)], stored, [wanted])


def _dequantize(draw: Callable[..., Any], chain: Chain) -> tuple[Array, Array]:
    """DequantizeLinear with a scale and zero point for each index of one axis; both in the stored order."""
    axis = draw(st.integers(0, chain.now.ndim - 1))
    count = chain.now.shape[axis]
    scale = np.geomspace(0.001, 1.7, count).astype(np.float32)
    zero = (np.arange(count) * 7 % 11 - 5).astype(np.int8)
    made = f"d{len(chain.nodes)}"
    chain.constants["scale"], chain.constants["zero"] = scale, zero
    written = axis - chain.now.ndim if draw(st.booleans()) else axis
    chain.nodes.append(node("DequantizeLinear", f"{chain.name} scale zero", made, axis=written))
    chain.name = made
    shape = [-1 if at == axis else 1 for at in range(chain.now.ndim)]
    spread = [np.zeros(chain.now.size, part.dtype) for part in (scale, zero)]
    for flat, part in zip(spread, (scale, zero)):
        flat[chain.now.ravel()] = np.broadcast_to(part.reshape(shape), chain.now.shape).ravel()
    return spread[0], spread[1]


@st.composite
def quantized_chains(draw: Callable[..., Any]) -> Built:
    """An int8 weight, steps, DequantizeLinear along some axis, more steps, MatMul."""
    shape = draw(st.lists(st.sampled_from([2, 3, 4, 8]), min_size=2, max_size=3).filter(lambda s: math.prod(s) >= 32))
    chain = Chain(shape)
    for _ in range(draw(st.integers(0, 3))):
        draw(st.sampled_from(STEPS))(draw, chain)
    scale, zero = _dequantize(draw, chain)
    for _ in range(draw(st.integers(0, 3))):
        draw(st.sampled_from(STEPS))(draw, chain)
    rows = np.swapaxes(chain.now, -1, -2).reshape(-1, chain.now.shape[-2])
    w = codes(*shape, seed=draw(st.integers(0, 3)))
    real = ((w.ravel().astype(np.int32) - zero).astype(np.float32) * scale).reshape(shape)
    use = Use("MatMul", (0,), (), layout=lambda stored: stored.ravel()[rows][None, :, :, None])
    wanted = expect("w", real, use, dtype="int8", zero=zero.reshape(shape))
    x = feed(3, chain.now.shape[-2])
    nodes = [*chain.nodes, node("MatMul", f"x {chain.name}", "y")]
    return simple(nodes, {"x": x}, [("y", max(chain.now.ndim, 2))], {"w": w, **chain.constants}, [wanted])


@st.composite
def convolutions(draw: Callable[..., Any]) -> Built:
    """Conv or ConvTranspose of one to three dimensions with any groups, dilations and strides, HWIO or not."""
    taps = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    groups, inside, outside = (draw(st.integers(1, high)) for high in (4, 9, 5))
    transposed, last = draw(st.booleans()), draw(st.booleans())
    shape = [groups * inside, outside, *taps] if transposed else [groups * outside, inside, *taps]
    axes = list(range(len(shape)))
    perm = [*axes[2:], 1, 0] if last else axes
    w = untied(*[shape[axis] for axis in perm])
    back = [perm.index(axis) for axis in axes]
    op = "ConvTranspose" if transposed else "Conv"
    role = {"splits": groups} if transposed else {"out_splits": groups}
    use = Use(op, (back[0] if transposed else back[1],), (back[1] if transposed else back[0],), tuple(back[2:]), **role)
    stride = draw(st.integers(1, 2))
    layer = node(op, "x t", "y", group=groups, strides=[stride] * len(taps), dilations=[stride] * len(taps))
    nodes = [node("Transpose", "w", "t", perm=back), layer]
    x = feed(1, groups * inside, *([7] * len(taps)))
    return simple(nodes, {"x": x}, [("y", len(shape))], {"w": w}, [expect("w", w, use)])
