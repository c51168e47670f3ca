"""Mask generators and sparsers of a configuration, as sparsers and patterns of ours.

NormalMaskGenerator with FakeSparse            the sparser `mask`; the smallest numbers go, or whole outputs
STRMaskGenerator with STRFakeSparse            `soft-threshold`
ProbMaskGenerator with ProbMaskFakeSparse      `probabilistic`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnxsparse.dialects.msbench.configuration import Configuration, Part
from onnxsparse.errors import OptionError

PARTNERS: Mapping[str, tuple[str, ...]] = {
    "NormalMaskGenerator": ("FakeSparse", "DefaultFakeSparse"),
    "ProbMaskGenerator": ("ProbMaskFakeSparse",),
    "STRMaskGenerator": ("STRFakeSparse",),
}
NORMS = {"p1": 1, "l1": 1, "L1Normalized": 1, "p2": 2, "l2": 2, "L2Normalized": 2}


@dataclass(frozen=True)
class Generator:
    """What a weight is replaced with, and how its mask is chosen."""

    sparser: str
    structured: int = 0  # the norm by which whole outputs go; 0 for single numbers
    static: bool = False
    corrects: bool = False

    @property
    def masks(self) -> bool:
        return self.sparser == "mask"


def generator_of(config: Configuration) -> Generator:
    """What the two parts of a configuration say together."""
    kind = _kind(config.mask_generator, config.fake_sparse)
    kwargs = config.mask_generator.kwargs
    if kind == "STRMaskGenerator":
        return Generator(f"soft-threshold:start={_number(config.fake_sparse.kwargs, 'sInit_value', -200.0)}")
    if kind == "ProbMaskGenerator":
        return Generator(f"probabilistic:temperature={_number(kwargs, 'tau', 3.0)}")
    return Generator("mask", _norm(kwargs), bool(kwargs.get("mask_is_static")), bool(kwargs.get("weight_correction")))


def _kind(generator: Part, sparser: Part) -> str:
    """The generator's type; either part may be left out, but they have to belong together."""
    if not generator.type:
        return next((name for name, known in PARTNERS.items() if sparser.type in known), "NormalMaskGenerator")
    known = PARTNERS[generator.type]
    if sparser.type and sparser.type not in known:
        raise OptionError(f"{generator.type} belongs to {known[0]}, not to {sparser.type}")
    return generator.type


def _norm(kwargs: Mapping[str, Any]) -> int:
    """`structured` may be a norm itself, or a switch beside `func`."""
    said, func = kwargs.get("structured"), kwargs.get("func")
    if not said:
        if func not in (None, "Magnitude"):
            raise OptionError(f"func {func!r:.40} is of whole outputs; set structured, too")
        return 0
    norm = said if isinstance(said, str) else func or "p1"
    if norm not in NORMS:
        raise OptionError(f"a norm of whole outputs is one of {', '.join(NORMS)}, not {norm!r:.40}")
    return NORMS[norm]


def _number(kwargs: Mapping[str, Any], name: str, default: float) -> float:
    value = kwargs.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise OptionError(f"{name} is a number, not {value!r:.40}")
    return float(value)
