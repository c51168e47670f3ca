"""Channel permutation search: an order of the columns of a matrix under which N:M pruning keeps more.

The objective is the kept score: the sum, over rows and groups of m columns, of the n largest. Columns are exchanged by
assignment problems:

1. Take one column out of every group. With T[g, r] the n-th largest of those that stay in group g, column x adds

       gain[x, g] = sum over r of max(T[g, r], X[x, r])

   to the group it is put in, but for what no choice changes. The assignment of columns to groups with the largest sum
   of gains is the best of all (C / m)! ways to put them back, and putting them back as they were is one of them.
2. An epoch takes out every column once. Which columns go together is drawn anew in every epoch: with fixed places the
   search stalls early.
3. Annealing: the gains get random noise, less from epoch to epoch, and at last none, until nothing improves.

A group with fewer than m places stays dense, as in the pattern `N:M`: there T is 0, and all its columns go out at once.

Scores are rounded to integers of 15 bits before any sum. So every sum is exact, and numpy, numba, any BLAS and any
number of threads give the same order. What is returned is compared with the given order on the scores as they are.
The assignment of channels is known from RIA (ICLR 2024), the objective and the figures to compare with from ASP.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxsparse import patterns, progress
from onnxsparse.errors import MissingExtraError, OptionError, brief, nearest
from onnxsparse.math.values import Array
from onnxsparse.patterns.nm import NM

LANES = 512
"""Rows in a piece. So many numbers of 15 bits add up to less than 2**24: float32 holds every sum exactly."""

TOP = 2**15 - 1
LARGEST_SCORE = 1e290  # sums of larger ones would overflow
LOW_HALVES = np.uint64(0x0000FFFF0000FFFF)
NOISE = math.sqrt(4 * (2**32 - 1) / 12)  # the standard deviation of a sum of four uniform numbers of 16 bits


@dataclass(frozen=True)
class Effort:
    """How long is searched: by counts, never in seconds. A unit of work is a comparison of two scores."""

    per_score: float
    """Work for each score of the matrix, so that a search takes longer the larger the matrix is, within limits."""
    limits: tuple[float, float]
    epochs: tuple[int, int]
    """The fewest and the most in one annealing; what is left of the work goes to further ones from the beginning."""

    def epochs_and_runs(self, rows: int, columns: int, epoch: float) -> tuple[int, int]:
        """For a matrix of that shape, where an epoch is so much work."""
        least = self.limits[0] * min(1.0, columns / FEW_COLUMNS)
        work = min(max(self.per_score * rows * columns, least), self.limits[1])
        fewest, most = self.epochs
        return int(min(max(work / epoch, fewest), most)), int(max(1.0, work / epoch / most))


EFFORTS = {
    "quick": Effort(9e3, (1.2e9, 12e9), (4, 150)),
    "thorough": Effort(330e3, (10e9, 600e9), (60, 1500)),
}
FEW_COLUMNS = 32
PER_PAIR, PER_ROUND = 300, 300e3
"""Work beside comparisons: of the assignment problem for each of its entries, and of every round."""
HOT, COLD = 0.08, 0.007
"""Noise at the start and at the end of annealing, in spreads of what exchanging two columns gains."""
LARGEST_ASSIGNMENT = 1024
"""Groups in one assignment problem; more of them are dealt out at random in every round."""
COMPILING_PAYS = 3e9
"""Comparisons from which on compiling a loop with numba takes less time than it saves."""


def search_permutation(matrix: Any, pattern: str = "2:4", effort: str = "quick", seed: int = 0) -> Array:
    """Search an order of the columns of a matrix under which N:M pruning by magnitude keeps more.

    `matrix` has a weight's outputs as rows and its inputs as columns; |matrix| is the score. `pattern` is any N:M,
    `effort` is `quick` or `thorough`. Returns an array in which element i is the column that comes to place i:
    `matrix[:, order]` is the better matrix. The same input and seed give the same order, on every machine. It needs
    scipy, of the extra `[permute]`; numba, of the same, makes it faster.
    """
    parsed = patterns.parse(pattern)
    if not isinstance(parsed, NM):
        raise OptionError(f"pattern {brief(pattern)}: columns are permuted for a pattern N:M, such as 2:4")
    return search_columns(np.abs(_matrix(matrix)), parsed.n, parsed.m, effort=effort, seed=seed)


def search_columns(
    rows: Array,
    n: int,
    m: int,
    *,
    effort: str = "quick",
    seed: int = 0,
    groups: Array | None = None,
    movable: Array | None = None,
) -> Array:
    """Search an order of columns under which n of every m keep more of the scores in `rows`, none of them negative.

    `groups` says for every place to which group it belongs (default: place // m); one with fewer than m places stays
    dense, as the rest of a weight does. Where `movable` is False the column stays at its place, though it counts in
    its group. Returns an int64 array in which element i is the column that comes to place i: the identity where
    nothing is gained, and never an order that keeps less than the identity.
    """
    rows, chosen, _ = _matrix(rows), _effort(effort), NM(n, m)
    places = _places(rows.shape[1], m, groups)
    stays = np.arange(rows.shape[1])
    search = _Search(places.of_movable(_movable(movable, len(stays))), n, len(stays), _seed(seed))
    scale, caps = _ranges(rows, n)
    if search.size < 2 or not scale:
        return stays
    assign = _solver()
    order = search.run(_rounded(rows, scale, caps), chosen, assign)
    return order if _kept(rows, n, places, order) > _kept(rows, n, places, stays) else stays


def kept_score(rows: Array, n: int, m: int, order: Array | None = None, groups: Array | None = None) -> float:
    """The sum of scores that n of every m keep, with column order[i] at place i; exact but for its last bit."""
    rows, _ = _matrix(rows), NM(n, m)
    _ranges(rows, n)
    columns = np.arange(rows.shape[1]) if order is None else np.asarray(order)
    return _kept(rows, n, _places(rows.shape[1], m, groups), columns)


def efficacy(matrix: Array, order: Array, n: int, m: int) -> float:
    """What an order gains of what N:M loses against unstructured pruning to the same density: 0 for the identity.

    (permuted - plain) / (unstructured - plain), of the sums of kept |w|; 0 where nothing is lost.
    """
    scores = np.abs(_matrix(matrix))
    plain, permuted = kept_score(scores, n, m), kept_score(scores, n, m, order)
    keep = scores.shape[1] // m * n * len(scores) + scores.shape[1] % m * len(scores)
    flat = np.sort(scores, axis=None)
    unstructured = math.fsum(flat[flat.size - keep :].tolist())
    return (permuted - plain) / (unstructured - plain) if unstructured > plain else 0.0


# -- what is given


def _matrix(matrix: Any) -> Array:
    array = np.asarray(matrix)
    if array.ndim != 2:
        raise OptionError(f"columns are permuted in a matrix, and this has {array.ndim} axes, not 2")
    if array.dtype.kind in "OSUMmcV" and array.dtype.name not in ("bfloat16",):
        raise OptionError(f"columns are permuted by numbers, and this is of type {array.dtype}")
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def _ranges(rows: Array, n: int) -> tuple[float, Array]:
    """The largest number that matters, and in each row the (n + 1)-th largest.

    The n largest of a row are kept wherever they are: they may as well be as large as the next one. So a few outliers
    do not take the bits of the others.
    """
    caps = np.zeros(len(rows))
    for start in range(0, len(rows), LANES):
        piece = rows[start : start + LANES].astype(np.float64)
        if piece.size and not (piece.min() >= 0 and piece.max() <= LARGEST_SCORE):
            raise OptionError("scores have to be finite numbers of at least 0")
        if piece.shape[1] > n:
            at = piece.shape[1] - n - 1
            caps[start : start + LANES] = np.partition(piece, at, axis=1)[:, at]
    return float(caps.max(initial=0.0)), caps


def _rounded(rows: Array, scale: float, caps: Array) -> Array:
    """The scores as integers from 0 to TOP, in pieces: (piece, column, row)."""
    height = min(LANES, len(rows))
    pieces = np.zeros((-(-len(rows) // height), rows.shape[1], height), np.int16)
    for at, piece in enumerate(pieces):
        part = slice(at * height, (at + 1) * height)
        scores = np.minimum(rows[part].astype(np.float64), caps[part, np.newaxis])
        scores /= scale
        scores *= TOP
        piece[:, : len(scores)] = np.rint(scores, out=scores).T
    return pieces


def _effort(effort: str) -> Effort:
    if effort not in EFFORTS:
        hint = nearest(str(effort), EFFORTS) or f" (known: {', '.join(EFFORTS)})"
        raise OptionError(f"effort {brief(effort)} is not known{hint}")
    return EFFORTS[effort]


def _seed(seed: int) -> int:
    if not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**64:
        raise OptionError(f"seed {brief(seed)}: it is a whole number from 0 to 2**64 - 1")
    return int(seed)


def _movable(movable: Array | None, count: int) -> Array:
    flags = np.ones(count, bool) if movable is None else np.asarray(movable, bool)
    if flags.shape != (count,):
        raise OptionError(f"movable has the shape {flags.shape}, and there are {count} columns")
    return flags


# -- places


@dataclass(frozen=True)
class _Places:
    """Places by group: those of whole groups as a table, and those that stay dense."""

    whole: Array
    dense: Array
    movable: Array
    """How many places of each whole group have columns that move: the first ones of its row in the table."""

    def of_movable(self, movable: Array) -> _Places:
        """Where columns move; the movable first in each group."""
        first = np.argsort(~movable[self.whole], axis=1, kind="stable")
        whole = np.take_along_axis(self.whole, first, axis=1)
        counts = movable[whole].sum(axis=1)
        return _Places(whole[counts > 0], self.dense[movable[self.dense]], counts[counts > 0])


def _places(count: int, m: int, groups: Array | None) -> _Places:
    names = np.arange(count) // m if groups is None else np.asarray(groups)
    if names.shape != (count,) or names.dtype.kind not in "iu":
        raise OptionError(f"groups has to have a whole number for each of the {count} columns")
    _, group, sizes = np.unique(names, return_inverse=True, return_counts=True)
    if sizes.size and sizes.max() > m:
        raise OptionError(f"a group of {sizes.max()} places is larger than the {m} of the pattern")
    by_group = np.argsort(group, kind="stable")
    full = sizes[group[by_group]] == m
    whole = by_group[full].reshape(-1, m)
    return _Places(whole, by_group[~full], np.full(len(whole), m))


# -- the search


class _Search:
    """The order of columns, as it is improved."""

    def __init__(self, places: _Places, n: int, count: int, seed: int) -> None:
        self._whole, self._dense, self._movable, self._n = places.whole, places.dense, places.movable, n
        self._order = np.arange(count)
        self._random = np.random.Philox(key=seed)
        self.size = len(places.whole) + len(places.dense) if len(places.whole) else 0

    def run(self, pieces: Array, effort: Effort, assign: Callable[..., Any]) -> Array:
        """Anneal, as often as the effort allows, and return the best order."""
        start, best, most = self._order, self._order, 0.0
        rounds, height = int(self._movable.max()), pieces.shape[0] * pieces.shape[2]
        pairs = float(rounds * self.size * min(self.size, LARGEST_ASSIGNMENT))
        epochs, runs = effort.epochs_and_runs(height, len(start), pairs * (height + PER_PAIR) + rounds * PER_ROUND)
        add = _adder(pairs * height * epochs * runs)
        done = progress.Counter("permute", runs * epochs)
        for _ in range(runs):
            self._order, gained = start.copy(), 0.0
            for epoch in range(epochs):
                gained += self._epoch(pieces, assign, add, rounds, HOT * (COLD / HOT) ** (epoch / epochs))
                done.add(1)
            gained += self._descend(pieces, assign, add, rounds, epochs // 2 + 1)
            if gained > most:
                best, most = self._order, gained
        return best

    def _descend(
        self, pieces: Array, assign: Callable[..., Any], add: Callable[..., None], rounds: int, epochs: int
    ) -> float:
        """Without noise, until an epoch gains nothing; returns what was gained."""
        gained = 0.0
        for _ in range(epochs):
            more = self._epoch(pieces, assign, add, rounds, 0.0)
            gained += more
            if not more:
                break
        return gained

    def _epoch(
        self, pieces: Array, assign: Callable[..., Any], add: Callable[..., None], rounds: int, noise: float
    ) -> float:
        """Take every column out once, and put it where it gains most; returns what was gained."""
        keys = self._random.random_raw(self._whole.size).reshape(self._whole.shape)
        keys[np.arange(self._whole.shape[1]) >= self._movable[:, np.newaxis]] = 2**64 - 1
        whole = np.take_along_axis(self._whole, np.argsort(keys, axis=1, kind="stable"), axis=1)
        gained = 0.0
        for step in range(rounds):
            slot = step % self._movable
            turned = (slot[:, np.newaxis] + np.arange(whole.shape[1])) % whole.shape[1]
            table = np.take_along_axis(whole, turned, axis=1)
            for part, gains in self._gains(pieces, table, add):
                gained += self._assign(part, gains, assign, noise)
        return gained

    def _gains(self, pieces: Array, table: Array, add: Callable[..., None]) -> Iterator[tuple[Array, Array]]:
        """The first place of every group and all dense ones, in parts, each with gain[column, place]."""
        places = np.concatenate([table[:, 0], self._dense])
        mixed = np.argsort(self._random.random_raw(self.size), kind="stable")
        parts = np.array_split(mixed, -(-self.size // LARGEST_ASSIGNMENT))
        gains = [np.zeros((len(part), len(part))) for part in parts]
        thresholds = np.zeros((self.size, pieces.shape[2]), np.int16)
        for piece in pieces:
            thresholds[: len(table)] = _largest(piece[self._order[table[:, 1:].T]], self._n)[-1]
            for part, gain in zip(parts, gains):
                add(thresholds[part], piece[self._order[places[part]]], gain)
        return zip([places[part] for part in parts], gains)

    def _assign(self, places: Array, gains: Array, assign: Callable[..., Any], noise: float) -> float:
        wanted = gains + self._noise(gains, noise) if noise else gains
        # The same problem, of which scipy solves the most in its first look at each row.
        wanted = wanted - wanted.max(axis=1, keepdims=True)
        wanted -= wanted.max(axis=0)
        _, chosen = assign(wanted, maximize=True)
        self._order[places[chosen]] = self._order[places]
        return float(gains[np.arange(len(gains)), chosen].sum() - np.trace(gains))

    def _noise(self, gains: Array, noise: float) -> Array:
        """Whole numbers, nearly normal: sums of four uniform ones, which are the same on every machine."""
        own = np.diagonal(gains)
        exchanged = gains + gains.T
        exchanged -= own[:, np.newaxis]
        exchanged -= own
        spread = np.abs(exchanged, out=exchanged).sum() / max(1, gains.size - len(gains))
        bits = self._random.random_raw(gains.size).reshape(gains.shape)
        halves = (bits & LOW_HALVES) + (bits >> np.uint64(16) & LOW_HALVES)
        uniform = (halves & np.uint64(2**32 - 1)) + (halves >> np.uint64(32))
        centred = uniform.astype(np.float64) - 2 * (2**16 - 1)
        centred *= round(noise * 2**20) / 2**20 * spread / NOISE
        rounded: Array = np.rint(centred, out=centred)
        return rounded


def _largest(columns: Array, n: int) -> list[Array]:
    """The n largest along the first axis, the largest first."""
    tops: list[Array] = []
    for column in columns:
        for at, top in enumerate(tops):
            tops[at], column = np.maximum(top, column), np.minimum(top, column)
        if len(tops) < n:
            tops.append(column)
    return tops


def _solver() -> Callable[..., Any]:
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise MissingExtraError("a permutation search needs scipy: pip install 'onnxsparse[permute]'") from None
    return linear_sum_assignment  # type: ignore[no-any-return, unused-ignore]


# -- sums of maxima


def _adder(comparisons: float) -> Callable[..., None]:
    """Which function adds up gains: all give the same numbers."""
    if comparisons < COMPILING_PAYS and not _compiled.cache_info().currsize:
        return _add
    try:
        return _compiled()
    except (ImportError, OSError):  # not there, or not made for this numpy or this system
        return _add


def _add(thresholds: Array, columns: Array, gains: Array) -> None:
    """Add the sum over rows of max(threshold, column) for each pair; exact, whatever order BLAS adds in."""
    ones = np.ones(thresholds.shape[1], np.float32)
    wide, scratch = thresholds.astype(np.float32), np.empty(thresholds.shape, np.float32)
    for gain, column in zip(gains, columns.astype(np.float32)):
        gain += np.maximum(wide, column, out=scratch) @ ones


@functools.cache
def _compiled() -> Callable[..., None]:
    import numba

    @numba.njit(nogil=True)  # type: ignore[untyped-decorator, misc, unused-ignore]
    def add(thresholds: Array, columns: Array, gains: Array) -> None:
        for x in range(columns.shape[0]):
            for g in range(thresholds.shape[0]):
                total = np.int32(0)
                for r in range(thresholds.shape[1]):
                    threshold, score = np.int32(thresholds[g, r]), np.int32(columns[x, r])
                    total = np.int32(total + (threshold if threshold > score else score))
                gains[x, g] += total

    return add  # type: ignore[no-any-return, unused-ignore]


# -- exact sums


def _kept(rows: Array, n: int, places: _Places, order: Array) -> float:
    """The kept score, by a sum that carries the rounding error of every addition along."""
    if not rows.size:
        return 0.0
    height = max(1, min(LANES, 2**16 // rows.shape[1]))
    sums, errors = np.zeros((2, rows.shape[1], height))
    for start in range(0, len(rows), height):
        columns = rows[start : start + height].T.astype(np.float64)
        kept = _largest(columns[order[places.whole.T]], n) if len(places.whole) else []
        for part in (*kept, columns[order[places.dense]]):
            _add_exactly(part, sums[: len(part), : part.shape[1]], errors[: len(part), : part.shape[1]])
    return math.fsum([*sums.ravel().tolist(), *errors.ravel().tolist()])


def _add_exactly(part: Array, sums: Array, errors: Array) -> None:
    """Knuth's two-sum: what each addition to `sums` rounds off goes to `errors`."""
    total = sums + part
    added = total - sums
    errors += (sums - (total - added)) + (part - added)
    sums[...] = total
