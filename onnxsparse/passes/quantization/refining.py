"""What is done, beyond the ranges of values, for a quantized model to stay near the float one, and in what order.

    scaling     before the values are observed: channels are scaled (see `smoothing` and `activation_aware`)
    equalize    before the values are observed: the channels between two layers become as wide (see `equalization`)
    rounding    then: weights are rounded by what that does to the outputs of a layer (see `rounding`)
    bias        last: what rounding adds on average is taken off the biases (see `bias_correction`)

The first samples are enough for it: the range of a channel and the mean of an error need fewer than the range of all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnx import ModelProto

from onnxsparse.engines.inference import Feed
from onnxsparse.errors import OptionError, brief, nearest
from onnxsparse.graph.edit import copied
from onnxsparse.math.quantization import QParams
from onnxsparse.passes.quantization.activation_aware import ActivationAware
from onnxsparse.passes.quantization.bias_correction import correct_biases
from onnxsparse.passes.quantization.equalization import channel_ranges, equalize
from onnxsparse.passes.quantization.rounding import DAMPING, round_weights
from onnxsparse.passes.quantization.smoothing import Smoothing
from onnxsparse.planning.quantization import Quantization

WORDS = ("equalize", "rounding", "bias")
EQUALIZED = "equalized"
"""In the metadata of a file whose channels are."""
SAMPLES = 64
"""Of the first batches, so many or a few more; with 256 nothing came out better."""


@dataclass(frozen=True)
class Refinements:
    """Which of it is done."""

    equalize: bool = False
    rounding: bool = False
    bias: bool = False
    damping: float = DAMPING
    scaling: Smoothing | ActivationAware | None = None

    @classmethod
    def parse(cls, text: str | None, weights_alone: bool) -> Refinements:
        """What a text such as `equalize,bias` asks for; by default what helped most networks."""
        if text is None:
            return cls(rounding=True, bias=True) if weights_alone else cls(equalize=True, bias=True)
        words = [word.strip() for word in text.split(",") if word.strip() not in ("", "none")]
        for word in words:
            if word not in WORDS:
                raise OptionError(
                    f"--refine takes {', '.join(WORDS)} or none, not {brief(word)}{nearest(word, (*WORDS, 'none'))}"
                )
        return cls(equalize="equalize" in words, rounding="rounding" in words, bias="bias" in words)

    def scaled(
        self, proto: ModelProto, quantization: Quantization, feeds: Iterable[Feed], some: Iterable[Feed]
    ) -> list[str]:
        """Scale the channels of a float graph, in place, by all samples, or equalize them by some; what was done."""
        notes = [] if self.scaling is None else self.scaling.scaled(proto, quantization, feeds)
        if self.equalize:
            notes += equalize(proto, quantization, channel_ranges(proto, quantization, some))
        return notes

    def refined(
        self, proto: ModelProto, quantization: Quantization, params: dict[str, QParams], feeds: Iterable[Feed]
    ) -> tuple[dict[str, QParams], list[str]]:
        """Round the weights and correct the biases of a float graph, in place; the scales, and what was done."""
        feeds, notes, exact = list(feeds), list[str](), None
        if self.rounding:
            exact = copied(proto)
            params = round_weights(proto, quantization, params, feeds, self.damping)
            notes.append("weights were rounded by what that does to the outputs of their layers")
        corrected = correct_biases(proto, quantization, params, feeds, exact) if self.bias else 0
        if corrected:
            biases = "1 bias was" if corrected == 1 else f"{corrected} biases were"
            notes.append(f"{biases} corrected by the mean of what rounding adds")
        return params, notes


def first(feeds: Iterable[Feed], samples: int = SAMPLES) -> list[Feed]:
    """The first batches, until there are as many samples."""
    found, count = list[Feed](), 0
    for feed in feeds:
        found.append(feed)
        count += max((len(array) for array in feed.values() if array.ndim), default=1)
        if count >= samples:
            break
    return found
