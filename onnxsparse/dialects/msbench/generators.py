"""Mask generators and sparsers of a configuration, as sparsers, patterns and scores of ours.

NormalMaskGenerator with FakeSparse            the sparser `mask`; the smallest numbers go, or whole outputs
NMMaskGenerator with FakeSparse                the same with the pattern `2:4`
FPGMMaskGenerator with FakeSparse              whole outputs by the score `fpgm`
NuclearMaskGenerator with FakeSparse           whole outputs by the score `nuclear`
STRMaskGenerator with STRFakeSparse            `soft-threshold`
FCPTSMaskGenerator with FCPTSFakeSparse        `hard-threshold`
ProbMaskGenerator with ProbMaskFakeSparse      `probabilistic`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxsparse import patterns, scores
from onnxsparse.allocations.allocation import Global, pooled
from onnxsparse.dialects.msbench.configuration import Configuration, Part, number, switch
from onnxsparse.errors import OptionError, nearest
from onnxsparse.math.values import Array, Reading, Values, halved
from onnxsparse.patterns import Pattern
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.sparsers.mask_updates import Choice, corrected
from onnxsparse.train.layers import Site

PLAIN = ("FakeSparse", "DefaultFakeSparse")
PARTNERS: Mapping[str, tuple[str, ...]] = {
    "NormalMaskGenerator": PLAIN,
    "NMMaskGenerator": PLAIN,
    "FPGMMaskGenerator": PLAIN,
    "NuclearMaskGenerator": PLAIN,
    "ProbMaskGenerator": ("ProbMaskFakeSparse",),
    "STRMaskGenerator": ("STRFakeSparse",),
    "FCPTSMaskGenerator": ("FCPTSFakeSparse",),
}
NORMS = {
    "p1": "magnitude", "l1": "magnitude", "L1Normalized": "magnitude",
    "p2": "squared", "l2": "squared", "L2Normalized": "squared",
}  # fmt: skip
SINGLES = ("Magnitude", "L1Normalized", "L2Normalized")
SWITCHES = ("mask_is_static", "weight_correction")
DISTANCES = {"l1": "l1", "l2": "l2", "cos": "cosine", "cosine": "cosine"}


@dataclass(frozen=True)
class Generator:
    """What a weight is replaced with, and how its mask is chosen."""

    sparser: str
    pattern: str = "unstructured"
    score: str = "magnitude"
    func: str = "Magnitude"
    """How single numbers of different layers compare."""
    static: bool = False
    corrects: bool = False

    @property
    def masks(self) -> bool:
        return self.sparser == "mask"

    @property
    def thresholds(self) -> bool:
        """Whether a target says where thresholds begin."""
        return self.sparser.startswith(("hard-threshold", "soft-threshold"))


def generator_of(config: Configuration) -> Generator:
    """What the two parts of a configuration say together."""
    kind = _kind(config.mask_generator, config.fake_sparse)
    kwargs, beside = config.mask_generator.kwargs, config.fake_sparse.kwargs
    if kind == "STRMaskGenerator":
        return Generator(f"soft-threshold:start={_number(beside, 'sInit_value', -200.0)}")
    if kind == "FCPTSMaskGenerator":
        return Generator(f"hard-threshold:start={_number(beside, 'sInit_value', -5.0)}")
    if kind == "ProbMaskGenerator":
        return Generator(f"probabilistic:temperature={_number(kwargs, 'tau', 3.0)}")
    static, corrects = (any(switch(one.get(name), name) for one in (kwargs, beside)) for name in SWITCHES)
    return Generator("mask", *_zeros(kind, kwargs), static, corrects)


def _zeros(kind: str, kwargs: Mapping[str, Any]) -> tuple[str, str, str]:
    """Pattern, score, and how numbers of different layers compare."""
    if kind == "NMMaskGenerator":
        return "2:4", "magnitude", "Magnitude"
    if kind == "NormalMaskGenerator":
        return _normal(kwargs)
    if not switch(kwargs.get("structured"), "structured", True):
        raise OptionError(f"{kind} is of whole outputs: structured is True")
    if kind == "NuclearMaskGenerator":
        return "filter", "nuclear", "Magnitude"
    return (
        "filter",
        f"fpgm:distance={_known(kwargs.get('func') or 'l2', DISTANCES, 'a distance of filters')}",
        "Magnitude",
    )


def _normal(kwargs: Mapping[str, Any]) -> tuple[str, str, str]:
    """`structured` may be a norm itself, or a switch beside `func`."""
    said, func = kwargs.get("structured"), kwargs.get("func")
    said = said if said in NORMS else switch(said, "structured")
    if not said:
        return "unstructured", "magnitude", _known(func or SINGLES[0], {one: one for one in SINGLES}, "func of numbers")
    norm = said if isinstance(said, str) else func or "p1"
    return "filter", _known(norm, NORMS, "a norm of whole outputs"), "Magnitude"


def _known(value: Any, words: Mapping[str, str], what: str) -> str:
    if not isinstance(value, str) or value not in words:
        hint = nearest(str(value), words)
        raise OptionError(f"{what} is one of {', '.join(words)}, not {value!r:.40}{hint}")
    return words[value]


def _kind(generator: Part, sparser: Part) -> str:
    """The generator's type; either part may be left out, but they have to belong together."""
    if not generator.type:
        return next((name for name, known in PARTNERS.items() if sparser.type in known), "NormalMaskGenerator")
    known = PARTNERS[generator.type]
    if sparser.type and sparser.type not in known:
        raise OptionError(f"{generator.type} belongs to {known[0]}, not to {sparser.type}")
    return generator.type


def _number(kwargs: Mapping[str, Any], name: str, default: float) -> float:
    value = kwargs.get(name)
    return default if value is None else number(value, name)


# -- Which numbers of each layer go: how many, each layer by itself or all layers together, and where.
#
# 1. `uniform`: every layer drops the same share. Otherwise the units of all layers are put in one order, and what is
#    smallest goes, wherever it is; no layer loses its largest unit.
# 2. Single numbers of different layers compare by magnitude, or relative to the l1 or l2 norm of their layer
#    (L1Normalized, L2Normalized). Whole outputs compare by the mean of their numbers' scores.


def pattern_of(generator: Generator, singles: str = "unstructured") -> Pattern:
    """The zeros of a generator; `singles` is the pattern of single numbers."""
    return patterns.parse(singles if generator.pattern == "unstructured" else generator.pattern)


def drops_of(
    sites: Sequence[Site], numbers: Mapping[str, Array], generator: Generator, target: float | None, uniform: bool
) -> dict[str, int]:
    """How many units each layer drops."""
    pattern = pattern_of(generator)
    if uniform or target is None or not pattern.takes_sparsity:
        return {site.key: pattern.drop_count(site.shape4, target) for site in sites}
    units = {site.key: _units(site, numbers[site.key], pattern, generator) for site in sites}
    if isinstance(pattern, Unstructured):  # as many as there are numbers: chosen without sorting them
        return Global().allocate([_Scored(site.key, site.shape4, units[site.key]) for site in sites], target, pattern)
    return pooled(units, {site.key: pattern.unit_size(site.shape4) for site in sites}, target)


@dataclass(frozen=True, eq=False)
class _Scored:
    """A layer as an allocation sees it."""

    name: str
    shape4: tuple[int, ...]
    units: Array

    def unit_scores(self) -> Iterator[Array]:
        yield self.units

    def sample_scores(self) -> Array | None:
        return None


def _units(site: Site, numbers: Array, pattern: Pattern, generator: Generator) -> Array:
    """Scores that compare between layers."""
    flat = np.ascontiguousarray(numbers).reshape(-1)
    found = pattern.unit_scores(
        Values(site.matrix(flat), Reading(flat.dtype.name)), scores.parse(generator.score)
    ).astype(np.float64)
    if generator.func == "Magnitude":
        return found
    norm = halved(found, 0) if generator.func == "L1Normalized" else np.sqrt(halved(np.square(found), 0))
    return found / norm if norm else found


def chosen(site: Site, pattern: Pattern, generator: Generator, numbers: Array, drop: int) -> Array:
    """True where a number stays, in the shape of the weight."""
    choice = Choice(pattern, scores.parse(generator.score), drop, site.matrix, site.restore)
    return choice.keep(np.ascontiguousarray(numbers).reshape(-1)).reshape(site.shape)


def corrected_weight(site: Site, numbers: Array, keep: Array) -> Array:
    """What is kept of a weight, so that each output keeps its mean and deviation."""
    rows = [site.matrix(np.ascontiguousarray(one).reshape(-1)) for one in (numbers, keep)]
    flat = [one.reshape(one.shape[0] * one.shape[1], -1) for one in rows]
    return site.restore(corrected(flat[0], flat[1]).reshape(rows[0].shape)).reshape(site.shape)


def threshold_of(numbers: Array, drop: int) -> float:
    """s, so that sigmoid(s) lies between the numbers that are dropped and those that are kept."""
    sizes = np.sort(np.abs(numbers).reshape(-1).astype(np.float64))
    if drop <= 0 or not sizes.size:
        return -LARGEST
    level = (sizes[min(drop, sizes.size) - 1] + sizes[min(drop, sizes.size - 1)]) / 2
    level = min(max(level, np.exp(-LARGEST)), 1 - 1e-7)
    return float(np.log(level / (1 - level)))


LARGEST = 60.0
