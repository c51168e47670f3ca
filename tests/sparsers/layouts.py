"""Weights of many layouts for tests: flat in stored order, and as (group, out, in, tap)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from onnxsparse import scores
from onnxsparse.sparsers.mask_updates import Choice


@dataclass(frozen=True)
class Layout:
    """Stored axes of the given sizes; each role takes some of them, in order (the outer first)."""

    sizes: tuple[int, ...]
    roles: tuple[tuple[int, ...], ...]

    @property
    def shape4(self):
        return tuple(int(np.prod([self.sizes[axis] for axis in role], dtype=int)) for role in self.roles)

    @property
    def order(self):
        return [axis for role in self.roles for axis in role]

    def matrix(self, flat):
        return flat.reshape(self.sizes).transpose(self.order).reshape(self.shape4)

    def restore(self, matrix):
        return matrix.reshape([self.sizes[axis] for axis in self.order]).transpose(np.argsort(self.order)).reshape(-1)

    @property
    def copies(self):
        """Whether no view can show the matrix."""
        flat = np.empty(int(np.prod(self.sizes)))
        return not np.shares_memory(self.matrix(flat), flat)

    def choice(self, pattern, drop, score=None):
        return Choice(pattern, score or scores.parse("magnitude"), drop, self.matrix, self.restore)

    def units_of(self, text):
        """The unit of every flat place as a number that grows with stored order, -1 where a place belongs to none."""
        if text == "unstructured":
            return np.arange(int(np.prod(self.sizes)))
        index = dict(zip("goit", np.indices(self.shape4)))
        size = dict(zip("goit", self.shape4))
        step, ragged = {"g": 1, "o": 1, "i": 1, "t": 1}, np.zeros(self.shape4, bool)
        if text == "filter":
            step.update(i=size["i"], t=size["t"])
        elif text == "channel":
            step.update(o=size["o"], t=size["t"])
        elif text.startswith("block"):
            step["o"], step["i"] = (int(part) for part in text.partition(":")[2].split("x"))
        elif ":" in text:
            step["i"] = int(text.partition(":")[2])
        names = np.zeros(self.shape4, int)
        for role in "goit":
            names = names * (size[role] // step[role] + 1) + index[role] // step[role]
            ragged |= index[role] >= size[role] // step[role] * step[role]
        in_order = names.reshape(-1) if self.copies else self.restore(names)  # a copy has an order of its own
        numbered = {}
        for name in in_order:
            numbered.setdefault(name, len(numbered))
        return np.where(self.restore(ragged), -1, [numbered[name] for name in self.restore(names)])


@st.composite
def layouts(draw):
    """Any order of the four axes in memory, sometimes with an output axis in two parts, which no view can show."""
    sizes = draw(st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(1, 9), st.sampled_from([1, 1, 4])))
    order = draw(st.permutations(range(4)))
    roles = tuple((order.index(role),) for role in range(4))
    stored = tuple(sizes[role] for role in order)
    if draw(st.booleans()):
        return Layout(stored, roles)
    parts = (2, *stored)
    inner = tuple(tuple(axis + 1 for axis in role) for role in roles)
    return Layout(parts, (inner[0], (0, *inner[1]), *inner[2:]))


def numbers(seed, count, ties):
    """Some numbers, often with equal ones and signed zeros."""
    generator = np.random.default_rng(seed)
    if not ties:
        return generator.standard_normal(count).astype(np.float32)
    found = generator.integers(-2, 3, count).astype(np.float32)
    return np.where(generator.random(count) < 0.2, np.float32(-0.0), found)
