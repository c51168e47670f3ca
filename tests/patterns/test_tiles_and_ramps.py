"""Tiles without a rest, and N:M on its way."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsparse import patterns
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Reading, Values
from onnxsparse.patterns.cells import Tile
from onnxsparse.patterns.nm import NM, NMRamp
from onnxsparse.scores import Magnitude

SHAPES = st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(1, 9), st.integers(1, 3))


def values(shape: tuple[int, ...], seed: int, transposed: bool = False) -> Values:
    array = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    array = np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) if transposed else array
    return Values(array, Reading("float32"))


def tiles_of(array: np.ndarray, rows: int, columns: int) -> list[np.ndarray]:
    group, out, inputs, taps = array.shape
    return [
        array[g, o : o + rows, i : i + columns, t]
        for g in range(group)
        for o in range(0, out, rows)
        for i in range(0, inputs, columns)
        for t in range(taps)
    ]


@settings(deadline=None)
@given(SHAPES, st.integers(1, 3), st.integers(1, 5), st.floats(0, 1), st.integers(0, 99), st.booleans())
def test_tiles_go_by_their_mean(shape, rows, columns, level, seed, transposed) -> None:
    pattern, given_values = Tile(rows, columns), values(shape, seed, transposed)
    drop = pattern.drop_count(shape, level)
    keep = pattern.select(given_values, Magnitude(), drop)
    tiles = tiles_of(np.abs(given_values.stored.astype(np.float64)), rows, columns)
    kept = tiles_of(keep, rows, columns)
    assert len(tiles) == pattern.units(shape)
    assert drop == math.floor(level * len(tiles) + 0.5)
    assert all(tile.all() or not tile.any() for tile in kept)
    gone = [not tile.any() for tile in kept]
    assert sum(gone) == drop
    means = [tile.mean() for tile in tiles]
    largest = max((mean for mean, went in zip(means, gone) if went), default=0)
    assert largest <= min((mean for mean, went in zip(means, gone) if not went), default=9) + 1e-12
    assert not pattern.violations(~keep, drop)
    assert drop == len(tiles) or pattern.violations(~keep, drop + 1).count == 1


def test_tiles_have_no_rest() -> None:
    assert patterns.parse("tile:1x4") == Tile(1, 4)
    assert Tile(1, 4).ragged((1, 3, 6, 1)) == 0
    with pytest.raises(OptionError, match="tile:RxC"):
        patterns.parse("tile:4")
    with pytest.raises(OptionError, match="empty"):
        patterns.parse("tile:0x4")


@settings(deadline=None)
@given(SHAPES, st.integers(1, 3), st.integers(1, 3), st.floats(0, 1), st.integers(0, 99), st.booleans())
def test_groups_of_the_smallest_loss_come_first(shape, n, more, level, seed, transposed) -> None:
    m = n + more
    pattern, given_values = NMRamp(n, m), values(shape, seed, transposed)
    drop = pattern.drop_count(shape, level)
    keep = pattern.select(given_values, Magnitude(), drop)
    sizes = tiles_of(np.abs(given_values.stored.astype(np.float64)), 1, m)
    losses, zeros = [], []
    for tile, kept in zip(sizes, tiles_of(keep, 1, m)):
        if tile.size < m:
            assert kept.all()
            continue
        losses.append(np.sort(tile.reshape(-1))[: m - n].sum())
        zeros.append(m - int(kept.sum()))
    assert set(zeros) <= {0, m - n}
    assert sum(count > 0 for count in zeros) == drop
    done = [loss for loss, count in zip(losses, zeros) if count]
    rest = [loss for loss, count in zip(losses, zeros) if not count]
    assert max(done, default=0) <= min(rest, default=99) + 1e-12


def test_the_end_of_the_way_is_the_pattern() -> None:
    given_values, pattern = values((1, 8, 16, 9), 3), NMRamp(2, 4)
    whole = pattern.select(given_values, Magnitude(), pattern.drop_count((1, 8, 16, 9), 0.5))
    assert (whole == NM(2, 4).select(given_values, Magnitude(), 0)).all()
    part = pattern.select(given_values, Magnitude(), pattern.drop_count((1, 8, 16, 9), 0.25))
    assert (whole.size - part.sum()) == whole.size // 4
    assert (part | whole == part).all()
