"""AWQ (Lin et al. 2023): weights that large inputs meet are widened, so that rounding changes them less.

    y = W x = (W S) (S^-1 x)        S_j = mean|x_j|^r / mean_o(|W_oj| / widest of its scale)^(1 - r)

1. r goes over an even grid from 0. What counts is the error of the outputs of all layers that read the value: tr(EGE')
   with E = Q(W S) S^-1 - W and the sums G of x x' over the samples. S = 1 is tried first, so that no error grows.
2. S is divided by the root of its largest times its smallest. S^-1 goes into what gives the value: a normalization, or
   a layer in front, whose own rounding does not change, since a row has scales of its own.
3. Only what Gemm and MatMul read, by stored matrices, and nothing else. Zeros stay zeros, and channels that are always
   zero as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from onnxsparse.calibration.collecting import collect
from onnxsparse.calibration.statistics import Statistics
from onnxsparse.math.quantization import of_weight
from onnxsparse.math.values import Array
from onnxsparse.passes.quantization.equalization import Channels, by_channel, channels_between, scaled_by
from onnxsparse.passes.quantization.smoothing import NORMALIZATIONS, Aim, said
from onnxsparse.passes.quantization.weight_only import scales_of
from onnxsparse.planning.quantization import Quantization, QuantizedWeight

LEAST = 1e-4
"""Where a mean is nothing, and a scale would be."""


class Products(Statistics):
    """The products of the channels of a value with each other, and the sums of their magnitudes."""

    def __init__(self) -> None:
        self.count, self.products, self.magnitudes = 0, np.array(0.0), np.array(0.0)

    def add(self, batch: Array) -> None:
        rows = batch.reshape(-1, batch.shape[-1]).astype(np.float64)
        self.products, self.magnitudes = self.products + rows.T @ rows, self.magnitudes + np.abs(rows).sum(axis=0)
        self.count += len(rows)

    def merge(self, other: Statistics) -> None:
        assert isinstance(other, Products)
        self.products, self.magnitudes = self.products + other.products, self.magnitudes + other.magnitudes
        self.count += other.count

    def state(self) -> dict[str, Array]:
        return {"count": np.array(self.count), "products": self.products, "magnitudes": self.magnitudes}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.count, self.products, self.magnitudes = int(state["count"]), state["products"], state["magnitudes"]


@dataclass(frozen=True)
class ActivationAware:
    """How fine the search is, and behind which normalizations and layers."""

    aim: Aim = field(default_factory=Aim)
    steps: int = 20
    duo: Sequence[bool] = (True,)
    """Whether the widths of weights count as well as those of inputs; both are tried where both are named."""

    def scaled(self, proto: ModelProto, quantization: Quantization, feeds: Iterable[Mapping[str, Array]]) -> list[str]:
        """Widen weights of a float graph, in place, and say where, or that it is nowhere."""
        between = channels_between(proto, quantization, NORMALIZATIONS, values_rounded=False)
        chosen = self.aim.of(proto, [one for one in between if _by_rows(one)])
        if not chosen:
            return [self.aim.nowhere("scaled")]
        stored = {tensor.name: tensor for tensor in proto.graph.initializer}
        weights, done = {weight.name: weight for weight in quantization.weights}, list[Channels]()
        found = collect(proto, [one.value for one in chosen], feeds, lambda _: Products())
        for one in chosen:
            readers = [_Reader(node, stored[node.input[1]], weights[node.input[1]]) for node in one.readers]
            best = self._best(readers, found[one.value])
            if (best != 1).any() and scaled_by(one, best, stored):
                done.append(one)
        return said("scaled for their readers", f"by the best of {self.steps} powers", done)

    def _best(self, readers: Sequence[_Reader], known: Products) -> Array:
        """The scales that leave the least error."""
        best = np.ones(len(known.magnitudes))
        least = sum(reader.error(best, known.products) for reader in readers)
        for tried in self._tried(readers, known.magnitudes / max(known.count, 1)):
            error = sum(reader.error(tried, known.products) for reader in readers)
            if error < least:
                best, least = tried, error
        return best

    def _tried(self, readers: Sequence[_Reader], inputs: Array) -> Iterator[Array]:
        means = np.concatenate([reader.relative for reader in readers]).mean(axis=0)
        for duo in self.duo:
            for power in np.arange(self.steps) / self.steps:
                weights = means ** (1 - power) + LEAST if duo else 1.0
                scale = np.maximum(inputs**power / weights, LEAST)
                yield np.where(inputs > 0, scale / np.sqrt(scale.max() * scale.min()), 1.0)


@dataclass(frozen=True)
class _Reader:
    """A layer that reads a value: its node, its matrix, and how that is rounded."""

    node: NodeProto
    tensor: TensorProto
    weight: QuantizedWeight

    @property
    def relative(self) -> Array:
        """Magnitudes relative to the widest number with the same scale: (outputs, inputs)."""
        numbers = numpy_helper.to_array(self.tensor)
        grid = self.weight.grid
        scale, _ = of_weight(numbers, grid, self.weight.axis, self.weight.block).spread(numbers)
        return self._rows(np.abs(numbers) / (scale * ((grid.high - grid.low) // 2)))

    def error(self, scale: Array, products: Array) -> float:
        """What rounding adds to its outputs, squared and summed, when its inputs are divided by this."""
        numbers = numpy_helper.to_array(self.tensor)
        dense = self._rows(numbers).astype(np.float64)
        wide = (self._rows(numbers) * scale.astype(np.float32)).astype(np.float32)
        stored = self._stored(wide)
        error = self._rows(scales_of(stored, self.weight).fake(stored)) / scale - dense
        return float(np.sum((error @ products) * error))

    def _rows(self, numbers: Array) -> Array:
        found: Array = by_channel(self.node, numbers, self._inputs)[0, :, :, 0]
        return found

    @property
    def _inputs(self) -> int:
        return int(self.tensor.dims[0 if self._turned else 1])

    @property
    def _turned(self) -> bool:
        return not (self.node.op_type == "Gemm" and any(one.name == "transB" and one.i for one in self.node.attribute))

    def _stored(self, rows: Array) -> Array:
        return np.ascontiguousarray(rows.T if self._turned else rows)


def _by_rows(channels: Channels) -> bool:
    """Whether the channels are the last axis of the value, and the inputs of what reads it."""
    return channels.maker.op_type != "Conv" and all(node.op_type in ("Gemm", "MatMul") for node in channels.readers)


__all__ = ["ActivationAware", "Products"]
