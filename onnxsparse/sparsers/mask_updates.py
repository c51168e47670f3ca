"""Mask updates in training: choose again which places of a weight stay, and write mask and weight in place.

Weight and mask are live arrays in stored order (the C order of the tensor in the file); a mask is 1 where a place is
kept, as float, uint8 or bool.

1. What is masked counts as zero, whatever an optimizer did to the hidden number: it is the first to go again. So a
   pruned place stays pruned while the drop count grows.
2. The masks are those that pruning gives for `weight * mask`: among equals the earlier place in stored order goes.
3. A hidden number is +0.0 afterwards; a place that grows back starts there (unless it is told to `revive`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.math.values import BLOCK, Array, Reading, Values
from onnxsparse.patterns.nm import NOfM
from onnxsparse.patterns.pattern import Pattern
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.scores import Magnitude, Score

View = Callable[[Array], Array]

PIECE = BLOCK // 2
CERTAIN = 1e300
"""Larger than any score; a sum of 10**8 of them is still finite."""


@dataclass(frozen=True, eq=False)
class Choice:
    """How the places of one weight are chosen: `matrix` shows stored numbers as (group, out, in, tap), `restore` undoes
    it (flat, in stored order); both make views where memory allows."""

    pattern: Pattern
    score: Score
    drop: int
    matrix: View
    restore: View

    def keep(self, numbers: Array) -> Array:
        """True where a place stays, flat in stored order, by float numbers in stored order."""
        flat, reading = numbers.reshape(-1), Reading(numbers.dtype.name)
        if isinstance(self.pattern, Unstructured):  # needs no axes
            return self.pattern.select(Values(flat.reshape(1, 1, 1, -1), reading), self.score, self.drop).reshape(-1)
        return self.restore(self.pattern.select(Values(self.matrix(flat), reading), self.score, self.drop))


@dataclass(frozen=True, eq=False)
class Renewal:
    """What a renewal did: the flat places that grew back, how many were dropped, and how many are kept now."""

    grown: Array
    dropped: int
    kept: int

    @property
    def changed(self) -> int:
        return self.grown.size + self.dropped


def renew(weight: Array, mask: Array, choice: Choice, scores: Array | None = None, revive: bool = False) -> Renewal:
    """Choose again by `weight * mask`, or by `scores` (the larger the more important); write mask and weight in place.

    With `revive` a place that grows back wakes with the number it had while it was hidden, and without `scores` the
    hidden numbers are what is ranked.
    """
    if not revive:
        hide(weight, mask)
    return write(weight, mask, choice.keep(weight if scores is None else _counted_from_zero(scores)))


def hide(weight: Array, mask: Array) -> None:
    """Make every masked number +0.0, whatever it was (a product would leave -0.0, and NaN)."""
    for numbers, kept in _pieces(weight, mask):
        _erase(numbers, kept != 0)


def write(weight: Array, mask: Array, keep: Array) -> Renewal:
    """Make `keep` (flat, in stored order) the mask, and every number outside +0.0."""
    grown, dropped, start = [np.zeros(0, np.int64)], 0, 0
    for numbers, old, new in _pieces(weight, mask, keep):
        was = old != 0
        changed = was != new
        if changed.any():
            fresh = np.flatnonzero(changed & new)
            dropped += int(np.count_nonzero(changed)) - fresh.size
            grown.append(fresh + start)
            np.copyto(old, new, casting="unsafe")
        _erase(numbers, new)
        start += numbers.size
    return Renewal(np.concatenate(grown), dropped, int(np.count_nonzero(keep)))


def exchange(weight: Array, mask: Array, gains: Array, choice: Choice, share: float) -> Renewal:
    """Drop the smallest kept units and grow as many others, those of the largest |gain| (the dense gradient, say).

    Exactly floor(share * kept units + 0.5) are exchanged, fewer only where there are not so many to grow; what was just
    dropped does not come back (along both axes it does where nothing else fits). Units are those of the pattern,
    elements for N:M, which stay in their groups. The number of kept units, `choice.drop`, is as before. `choice.score`
    is not asked: small is small in magnitude.
    """
    hide(weight, mask)
    kept = mask.reshape(-1) != 0
    return write(weight, mask, exchanged(weight.reshape(-1), kept, gains.reshape(-1), choice, share))


def exchanged(
    numbers: Array, kept: Array, gains: Array, choice: Choice, share: float, return_at_once: bool = False
) -> Array:
    """The mask after such an exchange, by flat arrays; nothing is written.

    With `return_at_once` what was just dropped may grow again by its gain, as in RigL as published, and `kept` may be
    more than `choice` leaves, as in its first update.
    """
    if not 0 <= share <= 1:
        raise OptionError(f"a share of exchanged places lies between 0 and 1, not at {share}")
    stays = _without_smallest(numbers, kept, choice, share, return_at_once)
    candidates = ~stays if return_at_once else ~kept
    return replace(choice, score=Magnitude()).keep(_ordered(stays, candidates, gains, choice))


def _without_smallest(numbers: Array, kept: Array, choice: Choice, share: float, return_at_once: bool) -> Array:
    """The places that stay when the smallest kept units go."""
    small = _ranked(numbers, kept)
    if isinstance(choice.pattern, NOfM):
        return _without_smallest_elements(small, kept, choice, choice.pattern, share)
    kept_units = choice.pattern.units(choice.matrix(small).shape) - choice.drop
    count = _rounded(share * kept_units)
    count = count if return_at_once else min(count, choice.drop)
    return replace(choice, score=Magnitude(), drop=choice.drop + count).keep(small)


def _without_smallest_elements(small: Array, kept: Array, choice: Choice, pattern: NOfM, share: float) -> Array:
    """The same for single elements of whole groups; what lies outside stays."""
    view = choice.matrix(small)
    outside = np.ones(view.shape, bool)
    outside[tuple(slice(0, size - size % step) for size, step in zip(view.shape, pattern.cell(view.shape)))] = False
    view[outside] = CERTAIN
    small, pruned = choice.restore(view), int(kept.size - np.count_nonzero(kept))
    count = min(_rounded(share * (kept.size - pruned - pattern.ragged(view.shape))), pruned)
    return replace(choice, pattern=Unstructured(), score=Magnitude(), drop=pruned + count).keep(small)


def _ordered(stays: Array, candidates: Array, gains: Array, choice: Choice) -> Array:
    """Numbers in the order of survivors, then what may grow by gain, then the rest."""
    numbers = _ranked(gains, candidates)
    if isinstance(choice.pattern, NOfM):  # more than all of a cell together, so that sums still show the gains
        numbers[stays] = 2 * choice.pattern.unit_size(choice.matrix(numbers).shape) * (numbers.max(initial=0) or 1.0)
    else:
        numbers[stays] = CERTAIN
    return numbers


def _ranked(numbers: Array, candidates: Array) -> Array:
    """The size of the candidates, above 0 and below CERTAIN, and 0 elsewhere."""
    sizes: Array = np.abs(numbers, dtype=np.float64)
    sizes += np.finfo(np.float64).tiny
    np.fmin(sizes, CERTAIN / 2, out=sizes)
    sizes[~candidates] = 0
    return sizes


def _rounded(number: float) -> int:
    return int(np.floor(number + 0.5))


def _counted_from_zero(scores: Array) -> Array:
    """Scores without negative ones: those of a rank lie at 0 or above."""
    lowest = scores.min(initial=0)
    return scores if lowest >= 0 else scores - np.float64(lowest)


def _pieces(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Flat pieces that fit the cache together, as views: what is written there is written into the arrays."""
    if not all(array.flags.c_contiguous for array in arrays):
        raise ValueError("a weight and its mask are renewed in place, as they lie in memory")
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, PIECE):
        yield tuple(one[start : start + PIECE] for one in flat)


def _erase(numbers: Array, keep: Array) -> None:
    """Multiply the bits, in place: +0.0 outside, and the very same numbers inside."""
    bits = numbers.view(f"u{numbers.itemsize}")
    np.multiply(bits, keep.astype(bits.dtype), out=bits)


# What is kept of a weight, scaled and shifted so that every output keeps its mean and its standard deviation.
#
# With kept numbers w of n in all, k kept, and new ones a w + b: the sum over all places has to be n mean, and the sum
# of squares n (std^2 + mean^2). So b = (n mean - a S1) / k with S1 = sum(w), S2 = sum(w^2), and
#
#     a^2 (S2 - S1^2 / k) = n (std^2 + mean^2) - (n mean)^2 / k
#
# Where no number does that (too few are kept, or all are alike) the output stays as it is.

ALIKE = 1e-12


def corrected(weight: Array, keep: Array) -> Array:
    """Rows are outputs; `keep` is True where a number stays. Everything else is +0.0."""
    wide, kept = weight.astype(np.float64), np.where(keep, weight, 0).astype(np.float64)
    n, k = wide.shape[1], np.count_nonzero(keep, axis=1)
    mean, first, second = wide.mean(axis=1), kept.sum(axis=1), np.square(kept).sum(axis=1)
    some = np.maximum(k, 1)
    wanted = np.square(wide).sum(axis=1) - np.square(n * mean) / some
    spread = second - np.square(first) / some
    possible = (k > 1) & (spread > ALIKE * second) & (wanted >= 0)
    scale = np.sqrt(np.where(possible, wanted, 1) / np.where(possible, spread, 1))
    shift = np.where(possible, (n * mean - scale * first) / some, 0)
    made = np.where(keep, kept * scale[:, None] + shift[:, None], 0)
    return np.where(possible[:, None], made, kept).astype(weight.dtype)
