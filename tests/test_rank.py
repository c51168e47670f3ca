"""The k smallest, exactly, whatever the sample says."""

from __future__ import annotations

from contextlib import ExitStack
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsparse.math import rank


def limits(**names):
    stack = ExitStack()
    for name, number in names.items():
        stack.enter_context(mock.patch.object(rank, name, number))
    return stack


def chunked(keys, size):
    return lambda: (keys[start : start + size] for start in range(0, keys.size, size))


def expected(keys, count):
    drop = np.zeros(keys.size, bool)
    drop[np.argsort(keys, kind="stable")[:count]] = True
    return drop


def wide(generator, size, dtype):
    """Floats of all magnitudes: denormal, zero and infinite ones too."""
    kind = np.dtype(dtype)
    if kind.kind == "u":
        return generator.integers(0, np.iinfo(kind).max, size, dtype=kind, endpoint=True)
    return (
        generator.integers(0, int(np.array(np.inf, kind).view(f"u{kind.itemsize}")) + 1, size)
        .astype(f"u{kind.itemsize}")
        .view(kind)
    )


def tiny(generator, size, dtype):
    """Numbers around the smallest normal float."""
    kind = np.dtype(dtype)
    smallest = np.finfo(kind).smallest_normal if kind.kind == "f" else 1
    return (generator.random(size) * 2 * smallest).astype(kind)


@st.composite
def arrays(draw):
    dtype = draw(st.sampled_from(["uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]))
    size, seed = draw(st.integers(0, 3000)), draw(st.integers(0, 99999))
    generator = np.random.default_rng(seed)
    few, wave = generator.integers(0, 3, size), 100 * (np.arange(size) % 64 == 0)
    data = draw(st.sampled_from(["few", "wave", "all", "zero", "wide", "tiny"]))
    if data in ("wide", "tiny"):
        return {"wide": wide, "tiny": tiny}[data](generator, size, dtype)
    return {"few": few, "wave": wave, "all": np.abs(generator.standard_normal(size)), "zero": few * 0}[data].astype(
        dtype
    )


@given(
    arrays(),
    st.floats(0, 1),
    st.integers(1, 4000),
    st.sampled_from([1, 4, 64, 1 << 16]),
    st.sampled_from([0, 5, 1 << 25]),
)
@settings(max_examples=500, deadline=None)
def test_streamed_selection_is_a_stable_sort(keys, share, chunk, sample, collected):
    count = int(share * keys.size)
    with limits(SAMPLE=sample, MOST_COLLECTED=collected, BLOCK=100):
        key, below, ties = rank.threshold(chunked(keys, chunk), count)
        kept = list(rank.kept(chunked(keys, chunk)(), key, ties))
        assert np.array_equal(rank.smallest(keys, count), expected(keys, count))
    assert np.array_equal(~np.concatenate([*kept, np.zeros(0, bool)]), expected(keys, count))
    assert below + ties == count


@given(arrays(), st.floats(0, 1), st.floats(0, 1), st.sampled_from([4, 1 << 16]), st.sampled_from([0, 1 << 25]))
@settings(max_examples=300, deadline=None)
def test_many_streams_share_one_cut(keys, share, where, sample, collected):
    count, middle = int(share * keys.size), int(where * keys.size)
    drop = expected(keys, count)
    with limits(SAMPLE=sample, MOST_COLLECTED=collected):
        found = rank.cut([chunked(keys[:middle], 77), lambda: (), chunked(keys[middle:], 91)], count)
    assert found.counts == (np.count_nonzero(drop[:middle]), 0, np.count_nonzero(drop[middle:]))


def test_a_misleading_sample_costs_passes_but_no_exactness():
    keys = np.arange(200_000, dtype=np.uint32)[::-1].copy()
    keys[:: 1 << 6] = 7  # whatever a stride picks is 7
    drop = expected(keys, 90_000)
    assert np.array_equal(rank.smallest(keys, 90_000), drop)


@pytest.mark.parametrize("count", [0, 5, 9])
def test_more_than_there_is(count):
    keys = np.array([3, 1, 2, 1, 0], np.uint32)
    assert np.count_nonzero(rank.smallest(keys, count)) == min(count, 5)


def test_few_passes_over_a_large_stream():
    keys = np.abs(np.random.default_rng(0).standard_normal(1_000_000)).astype(np.float32)
    passes = []

    def stream():
        passes.append(1)
        return chunked(keys, 1 << 16)()

    key, below, ties = rank.threshold(stream, 700_000)
    assert len(passes) == 2
    assert below + ties == 700_000
    assert key == int(np.sort(keys)[699_999].view(np.uint32))


@pytest.mark.parametrize(("size", "length", "stride"), [(1, 4, 4), (4099, 128, 128), (100_000, 128, 4096)])
def test_runs_lie_in_order_one_in_each_stride(size, length, stride):
    found = list(rank.runs(size, length, stride))
    assert [start // stride for start, _ in found] == list(range(len(found)))
    assert all(0 < stop - start <= length for start, stop in found)
    assert all(stop <= min(size, at + max(stride, length)) for (_, stop), at in zip(found, range(0, size, stride)))
    assert len({start % stride for start, _ in found}) > len(found) // 2 or stride == length


@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_a_sample_of_runs_brackets_streams_whose_neighbours_are_alike(scale):
    """Rows of different sizes make runs differ: the bracket widens, and stays as narrow as for single keys without."""
    random = np.random.default_rng(1)
    keys = np.abs(random.standard_normal((1000, 1000)) * np.exp(scale * random.standard_normal((1000, 1))))
    keys = keys.astype(np.float32).reshape(-1)
    sample = np.concatenate([keys[start:stop] for start, stop in rank.runs(keys.size, 100, 1000)])
    passes = []

    def stream():
        passes.append(1)
        return chunked(keys, 1 << 16)()

    key, below, ties = rank.threshold(stream, 800_000, rank.Sample(sample, keys.size, 100))
    assert (key, below + ties) == (int(np.sort(keys)[799_999].view(np.uint32)), 800_000)
    assert len(passes) == 1


def test_what_is_no_number_stays():
    keys = np.array([1, np.nan, 2, np.inf, 3], np.float32)
    keep, _ = rank.kept_of(keys, int(np.array(2.5, np.float32).view(np.uint32)), 0)
    assert keep.tolist() == [False, True, False, True, True]


def test_floats_are_cut_where_their_bits_are():
    keys = np.abs(np.random.default_rng(5).standard_normal(300_000)).astype(np.float32)
    keys[::7] = np.float32(0.5)
    for count in (1, 1000, 100_000, 299_999):
        assert rank.threshold(lambda: (keys,), count) == rank.threshold(lambda: (keys.view(np.uint32),), count)
