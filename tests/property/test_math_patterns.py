"""Every pattern against an oracle written from the rules with loops, for any layout, type, ties and ragged edges."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsparse import patterns, scores
from onnxsparse.math import rank
from onnxsparse.math.values import Reading, Values, storage_axes
from onnxsparse.patterns import cells, nm, transposable
from onnxsparse.patterns import pattern as ranked
from onnxsparse.scores import Random

MAGNITUDE = scores.parse("magnitude")
FLOATS = ("float64", "float32", "float16", "bfloat16")
KINDS = (*FLOATS, "int8", "uint8", "int16")
STREAMED = ["unstructured", "block:2x2", "2:4:transposable", "filter", "channel"]


@st.composite
def weights(draw, kinds=KINDS):
    """A weight in some layout, type and range; often with many ties, sometimes a strided part of a larger array."""
    shape = draw(st.tuples(st.integers(1, 2), st.integers(1, 6), st.integers(1, 13), st.sampled_from([1, 1, 3, 9])))
    order = draw(st.permutations(range(4)))
    kind = draw(st.sampled_from(kinds))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    margin = draw(st.integers(0, 1))
    larger = _numbers(
        generator, [shape[axis] + margin for axis in order], draw(st.sampled_from(["wide", "ties", "equal"]))
    )
    whole = _stored(larger, kind)
    view = whole[tuple(slice(0, shape[axis]) for axis in order)].transpose(np.argsort(order))
    return Values(view, _reading(draw, kind, shape))


def _numbers(generator, shape, data):
    if data == "wide":
        return generator.standard_normal(shape) * 20
    numbers = generator.integers(-3, 4, shape) if data == "ties" else np.full(shape, 2)
    return np.where(generator.random(shape) < 0.2, -0.0, numbers.astype(np.float64))


def _stored(numbers, kind):
    if kind == "bfloat16":
        return (numbers.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return (np.abs(numbers) if kind == "uint8" else numbers).astype(kind)


def _reading(draw, kind, shape):
    if kind in FLOATS:
        return Reading(kind)
    scale = draw(st.sampled_from([None, (1, 1, 1, 1), (shape[0], shape[1], 1, 1), (1, 1, shape[2], 1)]))
    point = draw(st.sampled_from([None, (), (1, shape[1], 1, 1)]))
    return Reading(
        kind,
        None if scale is None else (0.5 ** np.arange(np.prod(scale))).astype(np.float32).reshape(scale),
        None if point is None else np.arange(2, 2 + int(np.prod(point))).astype(kind).reshape(point),
    )


def small_blocks(elements):
    stack = ExitStack()
    for module, name in ((nm, "BLOCK"), (transposable, "BLOCK"), (ranked, "BLOCK"), (cells, "CHUNK"), (rank, "BLOCK")):
        stack.enter_context(mock.patch.object(module, name, elements))
    return stack


def importance(values):
    """|real value| per index, and the position in the stored tensor."""
    position = np.empty(values.shape, np.int64)
    axes = storage_axes(values.stored)
    position.transpose(axes)[...] = np.arange(position.size).reshape([values.shape[axis] for axis in axes])
    return np.abs(values.real().astype(np.float64)), position


def oracle_n_of_m(values, n, m):
    key, position = importance(values)
    keep = np.ones(values.shape, bool)
    groups, outs, ins, taps = values.shape
    for g, o, t in itertools.product(range(groups), range(outs), range(taps)):
        for start in range(0, ins - ins % m, m):
            members = [(key[g, o, i, t], position[g, o, i, t], i) for i in range(start, start + m)]
            for _, _, i in sorted(members)[: m - n]:
                keep[g, o, i, t] = False
    return keep


def oracle_cells(values, cell, drop):
    key, position = importance(values)
    keep = np.ones(values.shape, bool)
    found = []
    for corner in itertools.product(*(range(0, size - size % step, step) for size, step in zip(values.shape, cell))):
        box = tuple(slice(start, start + step) for start, step in zip(corner, cell))
        found.append((key[box].sum(), position[corner], box))
    for _, _, box in sorted(found, key=lambda unit: unit[:2])[:drop]:
        keep[box] = False
    return keep


def expected_after(values, keep):
    zero = np.broadcast_to(values.zero, values.shape)
    return np.where(keep, values.stored, zero)


def pruned(pattern, values, drop, score=MAGNITUDE):
    out = np.empty_like(values.stored)
    out[...] = 77
    pattern.prune(values, score, drop, out)
    return Values(out, values.reading)


def assert_same_bits(left, right):
    assert left.dtype == right.dtype
    assert np.ascontiguousarray(left).tobytes() == np.ascontiguousarray(right).tobytes()


@given(weights(), st.integers(2, 32), st.data(), st.sampled_from([1, 7, 64, 1 << 17]))
@settings(max_examples=400, deadline=None)
def test_n_of_m(values, m, data, block):
    m = data.draw(st.sampled_from([2, 4, 8, m]))
    n = data.draw(st.integers(1, m - 1))
    pattern = patterns.parse(f"{n}:{m}")
    keep = oracle_n_of_m(values, n, m)
    with small_blocks(block):
        assert np.array_equal(pattern.select(values, MAGNITUDE, 0), keep)
        once = pruned(pattern, values, 0)
        assert_same_bits(once.stored, expected_after(values, keep))
        assert_same_bits(pruned(pattern, once, 0).stored, once.stored)
        assert not pattern.check(once, 0)
    assert np.count_nonzero(~keep) == pattern.drop_count(values.shape, None)


@given(weights(), st.integers(2, 32), st.data(), st.sampled_from([1, 7, 64, 1 << 17]))
@settings(max_examples=400, deadline=None)
def test_n_of_m_violations(values, m, data, block):
    m = data.draw(st.sampled_from([2, 4, 8, m]))
    n = data.draw(st.integers(1, m - 1))
    pattern = patterns.parse(f"{n}:{m}")
    used = values.real() != 0
    _, position = importance(values)
    places = [
        (position[g, o, i, t], (g, o, i, t))
        for g, o, i, t in np.ndindex(*values.shape)
        if i % m == 0 and i + m <= values.shape[2] and np.count_nonzero(used[g, o, i : i + m, t]) > n
    ]
    with small_blocks(block):
        for found in (pattern.check(values, 0), pattern.violations(values.is_zero(), 0)):
            assert (found.count, found.checked) == (len(places), pattern.units(values.shape))
            assert found.places == tuple(place for _, place in sorted(places)[:5])


@given(weights(), st.floats(0, 1), st.sampled_from([1, 7, 64, 1 << 17]))
@settings(max_examples=300, deadline=None)
def test_unstructured(values, sparsity, block):
    pattern = patterns.parse("unstructured")
    drop = pattern.drop_count(values.shape, sparsity)
    keep = oracle_cells(values, (1, 1, 1, 1), drop)
    with small_blocks(block):
        assert np.array_equal(pattern.select(values, MAGNITUDE, drop), keep)
        once = pruned(pattern, values, drop)
        assert_same_bits(once.stored, expected_after(values, keep))
        assert_same_bits(pruned(pattern, once, drop).stored, once.stored)
        assert not pattern.check(once, drop)


@given(
    weights(), st.floats(0, 1), st.integers(1, 4), st.integers(1, 5), st.data(), st.sampled_from([1, 7, 64, 1 << 17])
)
@settings(max_examples=400, deadline=None)
def test_cells(values, sparsity, rows, columns, data, block):
    # Numbers of few bits, so that the oracle's sums are exact and ties are ties.
    values = Values(_coarse(values), values.reading)
    text = data.draw(st.sampled_from(["filter", "channel", f"block:{rows}x{columns}"]))
    pattern = patterns.parse(text)
    drop = pattern.drop_count(values.shape, sparsity)
    keep = oracle_cells(values, pattern.cell(values.shape), drop)
    with small_blocks(block):
        assert np.array_equal(pattern.select(values, MAGNITUDE, drop), keep)
        once = pruned(pattern, values, drop)
        assert_same_bits(once.stored, expected_after(values, keep))
        assert_same_bits(pruned(pattern, once, drop).stored, once.stored)
        assert not pattern.check(once, drop)
        whole = pattern.unit_scores(values, MAGNITUDE)
    assert np.array_equal(whole, pattern.unit_scores(values, MAGNITUDE))
    assert len(whole) == pattern.units(values.shape)


def _coarse(values):
    if values.reading.kind == "bfloat16":
        return values.stored & np.uint16(0xFFF0)
    if values.reading.is_float:
        return np.rint(values.stored)
    return values.stored


@pytest.mark.parametrize("text", ["2:4", "2:4:transposable", "unstructured", "block:2x3", "filter", "channel"])
@given(values=weights(), seed=st.integers(0, 5), block=st.sampled_from([7, 1 << 17]))
@settings(max_examples=60, deadline=None)
def test_random_is_stable_under_blocks_and_repetition(text, values, seed, block):
    pattern, score = patterns.parse(text), Random(seed).bind("w")
    drop = pattern.drop_count(values.shape, 0.5 if pattern.takes_sparsity else None)
    once = pruned(pattern, values, drop, score)
    with small_blocks(block):
        assert_same_bits(pruned(pattern, values, drop, score).stored, once.stored)
    assert_same_bits(pruned(pattern, once, drop, score).stored, once.stored)
    assert not pattern.check(once, drop)


@given(weights(), st.sampled_from(STREAMED), st.sampled_from([1, 7, 64]))
@settings(max_examples=200, deadline=None)
def test_streamed_scores_are_the_scores(values, text, block):
    pattern = patterns.parse(text)
    whole = pattern.unit_scores(values, MAGNITUDE)
    with small_blocks(block):
        pieces = list(pattern.unit_chunks(values, MAGNITUDE))
    assert np.array_equal(np.concatenate([*pieces, whole[:0]]), whole)
    assert all(piece.ndim == 1 for piece in pieces)
