"""SmoothQuant (Xiao et al. 2023): what is hard to round in values moves into the weights that read them.

    y = W x = (W S) (S^-1 x)        S_j = max|x_j|^a / max_o |W_oj|^(1 - a)        a is the strength

1. Without mappings the values are those that a normalization gives, also one that is written out and ends in a product
   with a stored vector; S^-1 goes into its scale and bias. A mapping may name a layer in its place.
2. Only what layers read whose inputs are rounded, and nothing else: a value that a shortcut reads, too, stays.
3. A channel that is always zero, or that no weight reads, stays as it is. No other number becomes zero, and no zero
   becomes another number, so that a sparse weight keeps its zeros. The float model computes the same, but for the last
   bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.passes.quantization.equalization import Channels, by_channel, channels_between, ranges_of, scaled_by
from onnxsparse.planning.graph_layers import GraphLayers
from onnxsparse.planning.layer_kinds import module_meant
from onnxsparse.planning.quantization import Quantization

NORMALIZATIONS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "Mul")
Mapped = tuple[Sequence[str], str]
"""Layers that read a value, and the normalization or layer that gives it."""


@dataclass(frozen=True)
class Aim:
    """Which values are meant: by mappings, or without any all that a normalization gives; but for some of these."""

    mappings: Sequence[Mapped] = ()
    ignore: Sequence[str] = ()

    def of(self, proto: ModelProto, between: Sequence[Channels]) -> list[Channels]:
        """Those that are meant, of all that can be scaled, perhaps none; an error where a mapping means none."""
        layers = GraphLayers(proto)
        there = [
            _Value(one, _names(layers, one.maker), [_names(layers, node) for node in one.readers]) for one in between
        ]
        for mapping in self.mappings:
            if not any(one.is_of(mapping) for one in there):
                raise OptionError(_missed(*mapping))
        return [one.channels for one in there if not _means(self.ignore, one.maker) and self._maps(one)]

    def nowhere(self, what: str) -> str:
        """A note where no value is meant: many networks have no such normalization, and recipes are for many."""
        beside = ", but for those that are ignored," if self.ignore else ""
        return (
            f"nothing was {what}: there is no normalization{beside} that rounded layers alone read; "
            "mappings can name layers in its place"
        )

    def _maps(self, value: _Value) -> bool:
        if not self.mappings:
            return value.channels.maker.op_type in NORMALIZATIONS
        return any(value.is_of(mapping) for mapping in self.mappings)


@dataclass(frozen=True)
class _Value:
    """A value whose channels can be scaled, and what the nodes around it are known as."""

    channels: Channels
    maker: Sequence[str]
    readers: Sequence[Sequence[str]]

    def is_of(self, mapping: Mapped) -> bool:
        readers, maker = mapping
        return _means([maker], self.maker) and all(_means(readers, names) for names in self.readers)


def _names(layers: GraphLayers, node: NodeProto) -> list[str]:
    return list(layers.known_as(node)[0])


def _means(entries: Sequence[str], names: Sequence[str]) -> bool:
    return any(module_meant(entry, names) for entry in entries)


def _missed(readers: Sequence[str], maker: str) -> str:
    means = ", ".join(readers)
    return f"mappings: {maker!r:.60} gives no value that is read by rounded layers alone, and by those of {means:.120}"


@dataclass(frozen=True)
class Smoothing:
    """How much moves, and behind which normalizations."""

    aim: Aim = field(default_factory=Aim)
    strength: float = 0.5

    def scaled(self, proto: ModelProto, quantization: Quantization, feeds: Iterable[Mapping[str, Array]]) -> list[str]:
        """Move it in a float graph, in place, and say where, or that it is nowhere."""
        chosen = self.aim.of(proto, channels_between(proto, quantization, NORMALIZATIONS))
        if not chosen:
            return [self.aim.nowhere("smoothed")]
        stored, ranges = {tensor.name: tensor for tensor in proto.graph.initializer}, ranges_of(proto, chosen, feeds)
        done = [one for one in chosen if scaled_by(one, factors(one, ranges[one.value], stored, self.strength), stored)]
        return said("smoothed", f"by a strength of {self.strength:g}", done)


def factors(channels: Channels, widths: Array, stored: Mapping[str, TensorProto], strength: float) -> Array:
    """What the channels are divided by."""
    largest = np.zeros(len(widths))
    for reader in channels.readers:
        weight = np.abs(by_channel(reader, numpy_helper.to_array(stored[reader.input[1]]), len(widths)))
        largest = np.maximum(largest, weight.max(axis=(1, 3)).reshape(-1))
    alive = (widths > 0) & (largest > 0)
    wide, heavy = np.where(alive, widths, 1.0), np.where(alive, largest, 1.0)
    found: Array = np.where(alive, wide**strength / heavy ** (1.0 - strength), 1.0)
    return found


def said(what: str, how: str, done: Sequence[Channels], most: int = 5) -> list[str]:
    """A note on values that were scaled; none where there is none."""
    names = [one.maker.name or one.value for one in done]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    values = "1 value was" if len(done) == 1 else f"{len(done)} values were"
    return [f"{values} {what}, {how}: {', '.join(names[:most])}{more}"] if done else []


__all__ = ["NORMALIZATIONS", "Aim", "Smoothing", "factors", "said"]
