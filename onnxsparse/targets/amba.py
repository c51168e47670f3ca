"""Ambarella CVflow: levels of unstructured zeros, of which a chip exploits the density of each layer.

1. A level is a network sparsity in per cent; every layer has its own, in whole per cents, at most 99 %.
2. Below a chip's target density a convolution is bound by its inputs and outputs, and more zeros gain nothing:

       density = 1 / (f0 * min(0.046875, 0.03125 C/K sh d_in/d_tr, f3 C/K sh sw d_in/d_out) * kw kh channels d_kernel/8)

   with at most 1; (kh, kw) is the effective kernel, (sh, sw) the stride, C and K the channels of a group, and
   `channels` K, or K/C for depthwise. f0 and f3 belong to the family of the chip. d are bits: of the data, of its
   transport (8 where all are 8, else 16), of the output and of the kernel.
3. The effective kernel: its dilated length k + (k - 1)(dilation - 1), of which the compiler leaves a last piece: up to
   dilation 5 the remainder modulo 11 (11 for none); above, 1 where dilation + 1 > 11, else the last of a walk in pieces
   of dilation + 1, each of which advances by its length + dilation - 1.
4. No layer, and no output of one, may be zero altogether.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import ClassVar

from onnxsparse.errors import OptionError, nearest
from onnxsparse.graph.weights import Convolution, Use, Weight
from onnxsparse.targets.target import Target, Verdict

PIECE, SPLIT_FROM = 11, 5
"""The longest piece of a kernel, and the dilation above which it is walked."""
_FAMILIES_OF_NODES = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "Attention")


@dataclass(frozen=True)
class Family:
    """The two factors of a family of chips."""

    f0: float
    f3: float


_CV2, _CV22, _CV2FS = Family(1, 0.0234375), Family(2, 0.0234375), Family(2, 0.03515625)
CHIPS = {
    "cv2": _CV2,
    "cv2aq": _CV2,
    "cv22": _CV22,
    "cv22aq": _CV22,
    "cv25": _CV22,
    "cv25aq": _CV22,
    "cv2fs": _CV2FS,
    "cv22fs": _CV2FS,
}


@dataclass(frozen=True)
class Bits:
    """The width of what goes in, comes out, and is multiplied with."""

    data: int = 8
    out: int = 8
    kernel: int = 8

    @property
    def transport(self) -> int:
        return 8 if self.data == self.out == self.kernel == 8 else 16


@dataclass(frozen=True)
class Amba(Target):
    """Levels of unstructured zeros for Ambarella's CVflow chips."""

    name: ClassVar[str] = "amba"
    syntax: ClassVar[str] = "amba[:" + "|".join(CHIPS) + "]"
    allocation: ClassVar[str] = "energy"
    allows: ClassVar[tuple[str, ...]] = ("stem", "small", "depthwise")
    tolerance: ClassVar[float | None] = 0.015
    chip: str = field(default="", metadata={"option": False})

    @classmethod
    def read(cls, text: str) -> Amba | None:
        match = re.fullmatch(r"amba(?::(.*))?", text)
        if match is None:
            return None
        chip = match[1] or ""
        if chip and chip not in CHIPS:
            hint = nearest(chip, CHIPS) or f" (known: {', '.join(CHIPS)})"
            raise OptionError(f"target amba has no chip {chip[:60]!r}{hint}")
        return cls(chip)

    @property
    def text(self) -> str:
        return f"amba:{self.chip}" if self.chip else "amba"

    @property
    def pattern(self) -> str:
        return "alive"

    def judge(self, weight: Weight, use: Use) -> Verdict:
        if use.family not in _FAMILIES_OF_NODES:
            return Verdict(f"levels are of convolutions and matrices, not of {use.op}", "--pattern unstructured does")
        return Verdict()

    def target_density(self, layer: Convolution) -> float | None:
        return target_density(self.chip, layer) if self.chip else None

    def next_step(self, path: str, quantized: bool) -> str:
        return ""


def effective_length(kernel: int, dilation: int) -> int:
    """What the compiler leaves of one side of a kernel."""
    dilated = kernel + (kernel - 1) * (dilation - 1)
    if dilation <= SPLIT_FROM:
        return dilated % PIECE or PIECE
    return 1 if dilation + 1 > PIECE else _last_piece(dilated, dilation)


def _last_piece(dilated: int, dilation: int) -> int:
    at, piece = 0, 0
    while at < dilated:
        piece = min(dilation + 1, dilated - at)
        at += piece + dilation - 1
    return piece


def effective_kernel(layer: Convolution) -> tuple[int, ...]:
    sides = enumerate(layer.kernel)
    return tuple(effective_length(side, layer.along(layer.dilations, axis)) for axis, side in sides)


def target_density(chip: str, layer: Convolution, bits: Bits = Bits()) -> float:
    """The density below which more zeros gain nothing."""
    family = CHIPS[chip]
    ratio = layer.inputs / layer.outputs
    tall = layer.along(layer.strides, 0)
    bound = min(
        0.046875,
        0.03125 * ratio * tall * bits.data / bits.transport,
        family.f3 * ratio * layer.stride * bits.data / bits.out,
    )
    channels = layer.outputs / layer.inputs if layer.depthwise else layer.outputs
    work = math.prod(effective_kernel(layer)) * channels * bits.kernel / 8
    return min(1.0, 1 / (family.f0 * bound * work))
