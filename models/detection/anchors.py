"""Anchors: the boxes that a one-stage head or a region proposal network moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from models.sections import Section

Array = np.ndarray[Any, Any]
Shapes = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Anchors:
    """Boxes around the centre of every cell of every level, ratio by ratio and, in each, scale by scale."""

    ratios: tuple[float, ...]
    """Height by width."""
    scales: tuple[float, ...]
    """The root of the area, in strides."""
    strides: tuple[int, ...]

    @property
    def each(self) -> int:
        """How many anchors a cell has."""
        return len(self.ratios) * len(self.scales)

    def counts(self, shapes: Shapes) -> list[int]:
        """How many anchors each level has."""
        return [height * width * self.each for height, width in shapes]

    def at(self, shapes: Shapes) -> Array:
        """(A, 4): the anchors of all levels with features of these heights and widths; row, column, then anchor."""
        return _all_levels(self, tuple((int(height), int(width)) for height, width in shapes))


@lru_cache(maxsize=64)
def _all_levels(anchors: Anchors, shapes: tuple[tuple[int, int], ...]) -> Array:
    found = np.concatenate([_level(anchors, *each) for each in zip(shapes, anchors.strides)])
    found.setflags(write=False)
    return found


def _level(anchors: Anchors, shape: tuple[int, int], stride: int) -> Array:
    roots = np.sqrt(np.asarray(anchors.ratios))[:, None]
    sides = np.asarray(anchors.scales)[None, :] * stride
    halves = np.stack([(sides / roots).ravel(), (sides * roots).ravel()], -1) / 2
    rows, columns = ((np.arange(count) + 0.5) * stride for count in shape)
    centres = np.stack(np.meshgrid(columns, rows), -1)[:, :, None, :]
    return np.concatenate([centres - halves, centres + halves], -1).reshape(-1, 4).astype(np.float32)


def read_anchors(cfg: Section, strides: Sequence[int]) -> Anchors:
    """The section `anchor_generator`."""
    _, kwargs = cfg.typed("anchor_generator", ["hand_craft"])
    ratios, scales = kwargs.numbers("anchor_ratios", above=0.0), kwargs.numbers("anchor_scales", above=0.0)
    kwargs.end()
    return Anchors(tuple(ratios), tuple(scales), tuple(int(stride) for stride in strides))
