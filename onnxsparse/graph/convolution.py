"""A convolution as a chip sees it: kernel, stride, dilation, channels and groups, read from the node of a use."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.weights import Use

FAMILIES = ("Conv", "ConvTranspose")


@dataclass(frozen=True)
class Convolution:
    """`inputs` and `outputs` are channels of one group."""

    kernel: tuple[int, ...]
    inputs: int
    outputs: int
    groups: int = 1
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()

    @property
    def depthwise(self) -> bool:
        """Every input channel has filters of its own."""
        return self.groups > 1 and self.inputs == 1

    def along(self, numbers: tuple[int, ...], axis: int) -> int:
        """A stride or dilation along an axis; 1 where none is given."""
        return numbers[axis] if axis < len(numbers) else 1

    @property
    def stride(self) -> int:
        return math.prod(self.strides)


def convolution_of(use: Use) -> Convolution | None:
    """What a use says of its convolution; None for every other layer."""
    if use.family not in FAMILIES:
        return None
    group, out, inputs, taps = use.shape4
    attributes = Attributes(use.source, {})
    kernel = attributes.integers("kernel_shape") or list(use.layout.shape[2:])
    if math.prod(kernel) != taps:  # an operator with another order of axes, or attributes of a caller
        kernel = [taps]
    strides, dilations = attributes.integers("strides") or [], attributes.integers("dilations") or []
    return Convolution(tuple(kernel), inputs, out, group, tuple(strides), tuple(dilations))
