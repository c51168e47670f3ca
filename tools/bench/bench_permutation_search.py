"""What a search for an order of columns gains, and what it costs: tables in Markdown.

    python tools/bench/bench_permutation_search.py [--sizes 256 512 1024] [--weights WEIGHTS.npz] [--peer]

Normal matrices of the given sizes, or every matrix of an `.npz`. `--peer` adds the search that ASP does by default,
written again and compiled: pairs of groups, each regrouped in the best of 35 ways, the best pairs first, and 100 random
exchanges to escape from where it ends (2:4, needs numba). CPU seconds are those of the search alone: what is imported
and compiled once in a process is so before. With and without numba: run it in two environments.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from onnxsparse.math.values import Array
from onnxsparse.permutation_search import efficacy, search_permutation

ESCAPES = 100
REGROUPINGS = np.array(
    [[0, *three, *(x for x in range(1, 8) if x not in three)] for three in itertools.combinations(range(1, 8), 3)]
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--weights", help="an .npz of matrices, in place of random ones; means are told")
    parser.add_argument("--efforts", nargs="+", default=["quick", "thorough"])
    parser.add_argument("--peer", action="store_true")
    given = parser.parse_args()
    searches = {effort: searching(effort) for effort in given.efforts}
    if given.peer:
        searches = {"ASP's default": pairs_of_groups(), **searches}
    for search in searches.values():
        search(np.random.default_rng(1).standard_normal((512, 512)))  # imports and compiles
    print(f"numba: {'yes' if importlib.util.find_spec('numba') else 'no'}\n")
    if given.weights:
        of_weights(dict(np.load(given.weights, allow_pickle=False)), searches)
    else:
        of_random(given.sizes, searches)
    return 0


def searching(effort: str) -> Callable[[Array], Array]:
    return lambda matrix: search_permutation(matrix, effort=effort)


def of_random(sizes: list[int], searches: dict[str, Callable[[Array], Array]]) -> None:
    print("| matrix | " + " | ".join(f"{name}, % | CPU s" for name in searches) + " |")
    print("|---|" + "---:|---:|" * len(searches))
    for size in sizes:
        cells = measured(np.random.default_rng(0).standard_normal((size, size)), searches)
        print(f"| {size}x{size} | " + " | ".join(f"{gain:.1f} | {cpu:.2f}" for gain, cpu in cells) + " |", flush=True)


def of_weights(weights: dict[str, Array], searches: dict[str, Callable[[Array], Array]]) -> None:
    found = np.array([[*measured(matrix, searches)] for matrix in weights.values()])
    print(f"{len(weights)} matrices\n\n| search | mean efficacy, % | gains less than the first | by at most | CPU s |")
    print("|---|---:|---:|---:|---:|")
    for at, name in enumerate(searches):
        gains, less = found[:, at, 0], found[:, 0, 0] - found[:, at, 0]
        row = f"{gains.mean():.1f} | {(less > 0).sum()} | {max(0.0, less.max()):.2f} | {found[:, at, 1].sum():.1f}"
        print(f"| {name} | {row} |")


def measured(matrix: Array, searches: dict[str, Callable[[Array], Array]]) -> Iterator[tuple[float, float]]:
    """The efficacy in per cent, and CPU seconds."""
    for search in searches.values():
        start = time.process_time()
        order = search(matrix)
        yield 100 * efficacy(matrix, order, 2, 4), time.process_time() - start


def pairs_of_groups() -> Callable[[Array], Array]:
    """ASP's default search, as a function from a matrix to an order."""
    import numba

    kept = compiled_score(numba.njit(fastmath=True))
    descend = compiled_descent(numba.njit, compiled_choice(numba.njit(fastmath=True), kept))

    def search(matrix: Array) -> Array:
        count = matrix.shape[1] // 4
        columns = np.abs(matrix).T.astype(np.float32, order="C")
        groups, random = np.arange(4 * count).reshape(count, 4), np.random.default_rng(0)
        gains, choice, changed = np.zeros((count, count)), np.zeros((count, count), int), np.ones(count, bool)
        best, most = groups.copy(), -1.0
        for _ in range(ESCAPES + 1):
            descend(columns, groups, REGROUPINGS, gains, choice, changed)
            score = sum(kept(columns, *group) for group in groups)
            if score > most:
                best, most = groups.copy(), score
            (i, j), (a, b) = random.choice(count, 2, replace=False), random.integers(0, 4, 2)
            groups[i, a], groups[j, b] = groups[j, b], groups[i, a]
            changed[[i, j]] = True
        return np.concatenate([best.ravel(), np.arange(4 * count, matrix.shape[1])])

    return search


def compiled_score(njit: Any) -> Any:
    def kept(columns: Any, a: int, b: int, c: int, d: int) -> float:
        total = np.float32(0)
        for r in range(columns.shape[1]):
            w, x, y, z = columns[a, r], columns[b, r], columns[c, r], columns[d, r]
            first, second = max(w, x), max(y, z)
            total += max(first, second) + max(min(first, second), max(min(w, x), min(y, z)))
        return float(total)

    return njit(kept)


def compiled_choice(njit: Any, kept: Any) -> Any:
    def best_of(columns: Any, eight: Any, ways: Any) -> tuple[float, int]:
        """What the best way to split eight columns gains, and which it is."""
        base, best, which = 0.0, 0.0, 0
        for way in range(len(ways)):
            p = eight[ways[way]]
            score = kept(columns, p[0], p[1], p[2], p[3]) + kept(columns, p[4], p[5], p[6], p[7])
            if way == 0:
                base = score
            elif score - base > best:
                best, which = score - base, way
        return best, which

    return njit(best_of)


def compiled_descent(njit: Any, best_of: Any) -> Any:
    def descend(columns: Any, groups: Any, ways: Any, gains: Any, choice: Any, changed: Any) -> None:
        count, eight, used = len(groups), np.empty(8, np.int64), np.zeros(len(groups), np.bool_)
        while changed.any():
            for i in range(count):
                for j in range(i + 1, count):
                    if changed[i] or changed[j]:
                        eight[:4], eight[4:] = groups[i], groups[j]
                        gains[i, j], choice[i, j] = best_of(columns, eight, ways)
            changed[:] = used[:] = False
            for pair in np.argsort(-gains.ravel()):
                i, j = pair // count, pair % count
                if gains[i, j] <= 1e-4:
                    break
                if not used[i] and not used[j]:
                    eight[:4], eight[4:] = groups[i], groups[j]
                    eight = eight[ways[choice[i, j]]]
                    groups[i], groups[j] = eight[:4], eight[4:]
                    used[i] = used[j] = changed[i] = changed[j] = True

    return njit(descend)


if __name__ == "__main__":
    raise SystemExit(main())
