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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnxsparse.dialects.msbench.configuration import Configuration, Part, number, switch
from onnxsparse.errors import OptionError, nearest

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
