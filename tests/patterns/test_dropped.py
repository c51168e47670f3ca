"""How many elements dropped units are, where the units at the edges are smaller."""

from __future__ import annotations

import pytest

from onnxsparse.patterns.cells import Block, Tile


@pytest.mark.parametrize(
    ("inputs", "drop", "gone"), [(3, 58, 174), (3, 72, 216), (4, 58, 232), (6, 144, 432), (6, 0, 0)]
)
def test_tiles_at_the_edges_are_smaller(inputs: int, drop: int, gone: int) -> None:
    assert Tile(1, 4).dropped((1, 8, inputs, 9), drop) == gone


def test_blocks_are_whole() -> None:
    assert Block(1, 4).dropped((1, 8, 6, 9), 5) == 20
