"""Searching an order of columns: what it gains, what it never loses, and that nothing installed decides the result."""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import subprocess
import sys
import types
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import onnxsparse as osp
from onnxsparse import permutation_search, progress
from onnxsparse.errors import MissingExtraError, OptionError
from onnxsparse.permutation_search import efficacy, kept_score, search_columns, search_permutation
from tests.cases import for_each
from tests.messages import refusing

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")


def normal(rows, columns, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, columns))


def kept_by_loops(rows, n, m, order, groups):
    """The kept score from its definition, rounded once."""
    kept = []
    for row in rows.tolist():
        for group in sorted({*groups}):
            members = sorted((row[order[place]] for place in range(len(order)) if groups[place] == group), reverse=True)
            kept += members[:n] if len(members) == m else members
    return math.fsum(kept)


@st.composite
def searches(draw):
    """Small matrices with ties, zeros, large ranges; groups in any order, some short; columns that stay."""
    rows, columns = draw(st.integers(0, 6)), draw(st.integers(0, 14))
    m = draw(st.integers(2, 6))
    n = draw(st.integers(1, m - 1))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kinds = {
        "ties": random.integers(0, 3, (rows, columns)),
        "floats": random.random((rows, columns), np.float32),
        "outliers": np.exp(random.normal(0, 8, (rows, columns))),
        "columns twice": np.repeat(random.random((rows, (columns + 1) // 2)), 2, axis=1)[:, :columns],
    }
    groups = random.permutation(np.arange(columns) // m * 7 - 5) if draw(st.booleans()) else None
    if groups is not None and columns > 2 and draw(st.booleans()):
        groups[random.integers(0, columns)] = 1000
    movable = random.random(columns) < draw(st.sampled_from([0.2, 0.8, 1.0])) if draw(st.booleans()) else None
    return kinds[draw(st.sampled_from(sorted(kinds)))], n, m, groups, movable


@given(searches(), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_an_order_is_never_worse_than_the_identity(search, seed):
    rows, n, m, groups, movable = search
    order = search_columns(rows, n, m, seed=seed, groups=groups, movable=movable)
    count = rows.shape[1]
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(count))
    assert movable is None or (order[~movable] == np.flatnonzero(~movable)).all()
    names = np.arange(count) // m if groups is None else groups
    before, after = (kept_by_loops(rows, n, m, which, names) for which in (np.arange(count), order))
    assert after > before or (after == before and (order == np.arange(count)).all())
    assert kept_score(rows, n, m, order, groups) == pytest.approx(after, rel=1e-15)
    assert (search_columns(rows, n, m, seed=seed, groups=groups, movable=movable) == order).all()


@for_each(("n", "m", "columns"), [(2, 4, 8), (1, 2, 6), (1, 4, 8), (3, 4, 9), (2, 3, 8), (1, 3, 7)])
def test_small_matrices_reach_the_best_of_all_orders(n, m, columns):
    """Not guaranteed, but on matrices as small as these a local search that works ends nowhere else."""
    for seed in range(3):
        rows = np.abs(normal(3, columns, seed))
        best = max(kept_score(rows, n, m, np.array(order)) for order in splits(columns, m))
        assert kept_score(rows, n, m, search_columns(rows, n, m)) == pytest.approx(best, rel=1e-3)


def splits(columns, m):
    """One order for every way to split columns into groups of m and a rest."""

    def split(left):
        if len(left) < m:
            yield left
            return
        for rest in itertools.combinations(left, len(left) % m) if len(left) == columns else [()]:
            others = [one for one in left if one not in rest]
            for more in itertools.combinations(others[1:], m - 1):
                first = [others[0], *more]
                for tail in split([one for one in others if one not in first]):
                    yield [*first, *tail, *rest]

    return split(list(range(columns)))


@for_each(("size", "effort", "least"), [(256, "quick", 31.0), (512, "quick", 23.0), (256, "thorough", 32.5)])
def test_normal_matrices(size, effort, least):
    matrix = normal(size, size)
    order = search_permutation(matrix, effort=effort)
    assert 100 * efficacy(matrix, order, 2, 4) >= least


def test_signs_do_not_count():
    matrix = normal(16, 32)
    assert (search_permutation(matrix) == search_permutation(np.abs(matrix))).all()
    assert (search_permutation(matrix) == search_columns(np.abs(matrix), 2, 4)).all()


@for_each("kind", ["float16", "float32", "int8", "int32", "uint8", "bool"])
def test_types_of_numbers(kind):
    numbers = (np.maximum(normal(20, 24), 0) * 20).astype(kind)
    order = search_permutation(numbers, "1:4")
    exact = np.abs(numbers.astype(np.float64))
    assert (order == search_columns(exact, 1, 4)).all()
    assert kept_score(exact, 1, 4, order) > kept_score(exact, 1, 4)


def test_the_seed_counts_and_nothing_else():
    matrix = normal(48, 64)
    assert (search_permutation(matrix, seed=1) == search_permutation(matrix.copy(order="F"), seed=1)).all()
    assert (search_permutation(matrix, seed=1) != search_permutation(matrix, seed=2)).any()


def test_where_nothing_can_be_gained_columns_stay():
    for rows in (np.zeros((5, 16)), np.ones((5, 16)), np.ones((1, 16)), normal(5, 4), normal(5, 7)[:, :3]):
        assert (search_columns(np.abs(rows), 2, 4) == np.arange(rows.shape[1])).all()
    apart = np.zeros(16, int) + np.arange(16) // 3  # no group is whole: all of it stays dense
    assert (search_columns(np.abs(normal(5, 16)), 2, 4, groups=apart) == np.arange(16)).all()


def test_one_row():
    rows = np.arange(16.0)[np.newaxis] ** 2
    order = search_columns(rows, 2, 4)
    assert kept_score(rows, 2, 4, order) == kept_score(rows, 8, 16)


def test_more_work_keeps_more():
    """Epochs go up to a limit, then further runs from the beginning; the best counts."""
    rows = np.abs(normal(40, 24))
    quick, thorough = (search_columns(rows, 2, 4, effort=effort) for effort in ("quick", "thorough"))
    assert kept_score(rows, 2, 4, thorough) >= kept_score(rows, 2, 4, quick) > kept_score(rows, 2, 4)


def test_a_rest_takes_columns_that_would_lose_most():
    rows = np.ones((8, 9)) + np.arange(9) / 100
    rows[:, :3] += 1
    order = search_columns(rows, 1, 4)
    assert kept_score(rows, 1, 4, order) > kept_score(rows, 1, 4)


def test_an_outlier_does_not_hide_the_others():
    rows = np.abs(normal(64, 64))
    without = kept_score(rows, 2, 4, search_columns(rows, 2, 4)) - kept_score(rows, 2, 4)
    rows[5, 9] = 1e12
    rows[7, 3] = 1e9
    order = search_columns(rows, 2, 4)
    rows[5, 9] = rows[7, 3] = 0
    assert kept_score(rows, 2, 4, order) - kept_score(rows, 2, 4) > 0.8 * without


def test_sums_are_exact():
    rows = np.array([[1e17, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    assert kept_score(rows, 2, 4) == math.fsum([1e17, 1, 1, 1, 1])


def test_many_groups_are_dealt_out(monkeypatch):
    monkeypatch.setattr(permutation_search, "LARGEST_ASSIGNMENT", 5)
    matrix = normal(64, 128)
    assert efficacy(matrix, search_permutation(matrix), 2, 4) > 0.2


def test_more_rows_than_a_piece_holds():
    matrix = normal(1300, 32)
    assert efficacy(matrix, search_permutation(matrix), 2, 4) > 0.05


def test_progress_is_told():
    told = []
    with progress.listening(lambda stage, done, total: told.append((stage, done, total))):
        search_permutation(normal(8, 16))
    assert told[0][1] < told[-1][1] == told[-1][2]
    assert {stage for stage, _, _ in told} == {"permute"}


def test_what_is_refused():
    rows = np.ones((4, 8))
    for matrix in (np.ones(4), np.ones((2, 2, 2)), [["a", "b"]], np.ones((2, 8)) * 1j):
        with refusing(OptionError):
            search_permutation(matrix)
    for value in (np.nan, np.inf, -1.0):
        with refusing(OptionError):
            search_columns(np.full((2, 8), value), 2, 4)
    for keywords in (
        {"effort": "thorogh"},
        {"effort": 3},
        {"seed": -1},
        {"seed": 0.5},
        {"groups": np.zeros(8, int)},
        {"groups": np.zeros(7, int)},
        {"groups": np.zeros(8)},
        {"movable": np.ones(7, bool)},
    ):
        with refusing(OptionError):
            search_columns(rows, 2, 4, **keywords)
    for pattern in ("unstructured", "block:4x1", "4:2", "two"):
        with refusing(OptionError):
            search_permutation(rows, pattern)


def test_without_scipy_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with refusing(MissingExtraError):
        search_permutation(normal(8, 16))


def test_neither_scipy_nor_numba_is_imported_before_a_search():
    script = "import sys, onnxsparse as osp; osp.search_permutation; assert not {'scipy', 'numba'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


# -- nothing that is installed decides the result


@pytest.fixture
def compiled(monkeypatch):
    """Searches of any size take the compiled loop."""
    monkeypatch.setattr(permutation_search, "COMPILING_PAYS", 0)
    permutation_search._compiled.cache_clear()
    yield
    permutation_search._compiled.cache_clear()


CASES = [(16, 24, "2:4", "quick"), (24, 30, "1:4", "quick"), (20, 33, "4:8", "quick")]


def test_the_loop_for_numba_adds_the_same_numbers(compiled, monkeypatch):
    """The loop itself, in plain Python; whoever has numba runs it compiled in the next test."""
    plain = types.ModuleType("numba")
    plain.njit = lambda **options: lambda function: function
    monkeypatch.setitem(sys.modules, "numba", plain)
    random = np.random.default_rng(0)
    thresholds, columns = random.integers(0, 2**15, (2, 7, 512)).astype(np.int16)
    both = np.zeros((2, 7, 7))
    permutation_search._compiled()(thresholds, columns, both[0])
    permutation_search._add(thresholds, columns, both[1])
    assert (both[0] == both[1]).all()
    assert both[0, 2, 3] == np.maximum(columns[2], thresholds[3]).sum(dtype=np.int64)


@needs_numba
def test_numba_gives_the_same_order(compiled, monkeypatch):
    fast = [search_permutation(normal(rows, columns), p, effort=e) for rows, columns, p, e in CASES]
    assert permutation_search._compiled.cache_info().currsize
    permutation_search._compiled.cache_clear()
    monkeypatch.setitem(sys.modules, "numba", None)
    slow = [search_permutation(normal(rows, columns), p, effort=e) for rows, columns, p, e in CASES]
    assert not permutation_search._compiled.cache_info().currsize
    assert all((one == other).all() for one, other in zip(fast, slow))


def test_any_number_of_threads_gives_the_same_order(repository: Path):
    script = (
        "import zlib, numpy as np, onnxsparse as osp\n"
        "matrix = np.random.default_rng(0).standard_normal((600, 96))\n"
        "print(zlib.crc32(osp.search_permutation(matrix).tobytes()))\n"
    )
    said = set()
    for threads in ("1", "2", "7"):
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        environment = {**os.environ, **dict.fromkeys(names, threads)}
        run = subprocess.run(
            [sys.executable, "-c", script],
            cwd=repository,
            env=environment,
            check=True,
            timeout=300,
            capture_output=True,
        )
        said.add(int(run.stdout))
    assert said == {zlib.crc32(search_permutation(normal(600, 96)).tobytes())}


def test_the_name_is_public():
    assert osp.search_permutation is search_permutation
