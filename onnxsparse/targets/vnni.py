"""Processors that multiply bytes and add up four products at once: AVX512-VNNI, AVX-VNNI, and ARM's dot products.

1. One instruction multiplies 4 neighbouring inputs with 4 weights and adds the products to a sum of 32 bits. So a
   sparse kernel skips blocks of 4 weights along the inputs of one output, and nothing smaller.
2. Inputs are unsigned bytes and weights signed ones: a float32 file counts as "once it is quantized".
3. A processor with AVX2 or AVX512 alone adds two products of bytes in 16 bits first, which saturates: weights of 7 bits
   do not (`quantize --reduce-range`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.graph.weights import Use, Weight
from onnxsparse.targets.target import Target, Verdict

BLOCK = 4
_FAMILIES = ("Conv", "Gemm", "MatMul", "Attention")
_KINDS = ("float32", "int8")


@dataclass(frozen=True)
class Vnni(Target):
    """Blocks of 4 inputs in int8 for CPUs with byte dot products."""

    name: ClassVar[str] = "vnni"
    syntax: ClassVar[str] = "vnni"

    @property
    def text(self) -> str:
        return "vnni"

    @property
    def pattern(self) -> str:
        return f"block:1x{BLOCK}"

    def judge(self, weight: Weight, use: Use) -> Verdict:
        _, _, inputs, _ = use.shape4
        if use.family not in _FAMILIES:
            return Verdict(f"no kernel skips blocks of {use.op}", "--pattern unstructured prunes it all the same")
        if weight.tensor.kind not in _KINDS:
            kind = weight.tensor.kind
            return Verdict(
                f"byte dot products take signed weights of 8 bits, not {kind}", "convert it to float32 first"
            )
        if inputs % BLOCK:
            return Verdict(f"{inputs} input channels are not a multiple of {BLOCK}", "pad the channels in the model")
        return Verdict(pays=False, remark="few runtimes have kernels that skip blocks of 4; onnxruntime has none")

    def next_step(self, path: str, quantized: bool) -> str:
        return ""

    def note(self, kinds: set[str]) -> str:
        if "float32" in kinds:
            return "float32 weights: blocks of 4 are skipped once `onnxsparse quantize --target vnni` made them int8."
        return ""
