"""NVIDIA Ampere and later: sparse tensor cores.

1. For every output and kernel tap, among every 4 consecutive inputs of the reduction at least 2 are zero; in a grouped
   convolution the 4 lie inside the group.
2. The hardware uses it in FP16, BF16, INT8 (and FP8). A float32 file counts as "2:4 once built in fp16 or int8".
3. Alignment depends on the library that runs the layer, so it is a profile: see PROFILES.
4. It pays from about 256 channels; below, the dense kernel is usually as fast.
5. TensorRT's sparse INT8 kernels take int8 and give int8: a layer whose output stays in floats is dense.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import ClassVar

from onnxsparse.errors import OptionError, nearest
from onnxsparse.graph.weights import Use, Weight
from onnxsparse.targets.target import Target, Verdict

PAYS_FROM = 256
_GEMMS = ("Conv", "Gemm", "MatMul", "Einsum", "Attention")
_HALVES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Profile:
    """What one library demands: multiples of the output and input channels, operators, element types."""

    out: int
    inputs: int
    families: tuple[str, ...]
    kinds: tuple[str, ...]
    imported: tuple[str, ...] = ()  # the only operators that the device's own importer reads, where it has one


PROFILES = {
    "tensorrt": Profile(1, 4, _GEMMS, (*_HALVES, "int8"), ("Conv", "Gemm", "MatMul", "Einsum")),
    "asp": Profile(8, 16, _GEMMS, _HALVES),
    "cusparselt-fp16": Profile(16, 16, (*_GEMMS, "Recurrent"), _HALVES),
    "cusparselt-int8": Profile(32, 32, (*_GEMMS, "Recurrent"), ("float32", "float16", "bfloat16", "int8")),
    "cutlass-fp16": Profile(32, 64, (*_GEMMS, "Recurrent"), _HALVES),
}


@dataclass(frozen=True)
class Ampere(Target):
    """2:4 for NVIDIA Ampere and later GPUs."""

    name: ClassVar[str] = "ampere"
    syntax: ClassVar[str] = "ampere[:" + "|".join(PROFILES) + "]"
    profile: str = field(default="tensorrt", metadata={"option": False})

    @classmethod
    def read(cls, text: str) -> Ampere | None:
        match = re.fullmatch(r"ampere(?::(.*))?", text)
        if match is None:
            return None
        profile = match[1] or "tensorrt"
        if profile not in PROFILES:
            hint = nearest(profile, PROFILES) or f" (known: {', '.join(PROFILES)})"
            raise OptionError(f"target ampere has no profile {profile[:60]!r}{hint}")
        return cls(profile)

    @property
    def text(self) -> str:
        return f"ampere:{self.profile}"

    @property
    def pattern(self) -> str:
        return "2:4"

    @property
    def integer_sides(self) -> bool:
        return self.profile == "tensorrt"

    def judge(self, weight: Weight, use: Use) -> Verdict:
        rules = PROFILES[self.profile]
        _, out, inputs, _ = use.shape4
        if use.family not in rules.families:
            return Verdict(
                f"{self.profile} has no 2:4 kernel for {use.op}", "use --pattern 2:4 to prune it all the same"
            )
        if rules.imported and use.op not in rules.imported:
            return Verdict(f"{self.profile} does not import {use.op}", _FORM)
        if weight.tensor.kind not in rules.kinds:
            return Verdict(
                f"{self.profile} has no 2:4 kernel for {weight.tensor.kind}", "convert the model to float16 or int8"
            )
        if inputs % rules.inputs:
            return Verdict(f"{inputs} input channels are not a multiple of {rules.inputs} ({self.profile})", _PAD)
        if out % rules.out:
            return Verdict(f"{out} output channels are not a multiple of {rules.out} ({self.profile})", _PAD)
        return _worth(min(out, inputs))

    def next_step(self, path: str, quantized: bool) -> str:
        types = "--int8 --fp16" if quantized else "--fp16"
        return f"trtexec --sparsity=enable {types} --onnx={shlex.quote(path)}"

    def note(self, kinds: set[str]) -> str:
        if "float32" in kinds:
            return "float32 weights: 2:4 is used once the engine is built in fp16 or int8; TF32 and FP32 run dense."
        return ""


_FORM = "prune the model before it is optimised for another runtime, or quantize it with Q/DQ nodes"
_PAD = "pad the channels in the model, or choose another profile"


def _worth(channels: int) -> Verdict:
    if channels < PAYS_FROM:
        return Verdict(pays=False, remark=f"{channels} channels; sparse kernels usually win from about {PAYS_FROM}")
    return Verdict()
