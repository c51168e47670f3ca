"""Sensitivity: how much each output of each layer matters to the outputs of the model, by gradients of the dense net.

The gradient g of a random projection of the outputs, with respect to what a layer gives, says of a small error d there
that the outputs move by the sum of g d. From it come

    S_o = E sum over positions of g_o^2             how much an output counts among those of its layer
    E (sum over outputs and positions of g d)^2     what an error of the whole layer does: one that is alike in many
                                                    positions counts for more than one that is not

in units of the outputs' variance. Both are means over samples and draws. How much of the second comes from errors that
are alike in all positions of a sample is a number for each layer, its `share`: see `pooling`, which makes S of it, too.

Where a layer is a matrix product, its positions (words of a text, patches of a picture, steps) count by gradients, too:
samples are padded to one length, and of some words the outputs make more than of others. With the squares e_p of the
gradients at a position p, over all outputs of the layer, an error there counts by

    0                            where no gradient comes, such as padding behind a mask
    (1 - a) + a e_p / mean e     elsewhere, the mean over a batch

Random projections say e_p roughly: `FOLLOWED`, which is a, is what was best on texts. Convolutions take all positions
alike: on pictures weights gained nothing. So does a layer that has one position for each sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from onnxsparse import progress
from onnxsparse.calibration.layers import CalibratedLayer
from onnxsparse.calibration.output_gradients import WITHOUT
from onnxsparse.calibration.pooling import Energies
from onnxsparse.errors import ModelError
from onnxsparse.math.values import Array

PROBED, PROBE_BYTES = 64, 1 << 28
"""Of so many of the first samples gradients are kept, if they take no more than this; of one batch at least."""

FOLLOWED = 0.25
"""How much of the weight of a position follows its gradients."""

Blocks = Sequence[Array]
"""Gradients of one node for one batch, for each block of its layer (positions, outputs)."""


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """What gradients say of layers. A layer that none reaches is in neither mapping."""

    rows: Mapping[CalibratedLayer, Array] = field(default_factory=dict)
    probes: Mapping[tuple[CalibratedLayer, int], Sequence[Sequence[Blocks]]] = field(default_factory=dict)
    """By layer and node: for each of the first batches the gradients of each draw."""
    unreached: Mapping[str, str] = field(default_factory=dict)
    """By value that a layer gives: why no gradient comes to it."""
    engine: str = ""
    notes: Sequence[str] = ()
    shares: Mapping[CalibratedLayer, float] = field(default_factory=dict)
    """Of the error of a layer that of the means over samples, where a layer is one node."""
    positions: Mapping[tuple[CalibratedLayer, int], Sequence[Blocks]] = field(default_factory=dict)
    """By layer and node: for each batch and block how much each position counts, where that is not alike."""

    def position_weights(self, layer: CalibratedLayer, which: int, batch: int) -> Blocks:
        """Of one node and batch, by block; nothing where all positions count alike."""
        found = self.positions.get((layer, which), ())
        return found[batch] if found else ()


def nothing_known(*_: object) -> Sensitivity:
    """Without gradients: curves are measured then, and the outputs of a layer count by what they vary."""
    return Sensitivity()


def sensitivity_of(
    layers: Sequence[CalibratedLayer],
    gradients: Iterable[Mapping[str, Array]],
    sizes: Sequence[int],
    draws: int,
) -> Sensitivity:
    """Sum gradients up as they come: of each batch, one mapping for each draw; `sizes` are the samples of batches."""
    nodes = {one.result: (layer, which) for layer in layers for which, one in enumerate(layer.reductions) if one.result}
    energies = {layer: Energies(layer.shape[0]) for layer in layers}
    probes: dict[tuple[CalibratedLayer, int], list[list[Blocks]]] = {}
    squares = {key: PositionEnergies() for key in nodes.values() if key[0].reductions[key[1]].weighs_positions}
    reached, left, total = set[CalibratedLayer](), PROBE_BYTES, max(sum(sizes), 1)
    wild: dict[str, bool] = {}
    """What has gradients that are not finite, and whether it has others."""
    progress.advance("take gradients", 0, len(sizes) * draws)
    for number, found in enumerate(gradients):
        batch, draw = divmod(number, draws)
        probing = batch == 0 or (left > 0 and sum(sizes[: batch + 1]) <= PROBED)
        for name, gradient in found.items():
            layer, which = nodes[name]
            finite = np.isfinite(gradient)
            if name in wild or not finite.all():
                wild[name] = bool(finite.any()) or wild.get(name, number > 0)  # before it all were
                gradient = np.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
            blocks = layer.reductions[which].by_output(gradient)
            reached.add(layer)
            for outputs, block in zip(layer.reductions[which].outputs, blocks):
                energies[layer].add(outputs, block, sizes[batch], 1 / (draws * total))
            if (layer, which) in squares:
                squares[layer, which].add(batch, blocks)
            if probing:
                left -= gradient.nbytes
                kept = probes.setdefault((layer, which), [])
                kept.extend([] for _ in range(batch + 1 - len(kept)))
                kept[batch].append([np.ascontiguousarray(block) for block in blocks])
        assert draw < draws
        progress.advance("take gradients", number + 1, len(sizes) * draws)
    alive = [layer for layer in layers if layer in reached and energies[layer].plain.any()]
    split = {layer: energies[layer].split() for layer in alive if len(layer.reductions) == 1}
    rows = {layer: split[layer][0] if layer in split else energies[layer].plain for layer in alive}
    shares = {layer: share for layer, (_, share) in split.items()}
    kept_probes = {key: kept for key, kept in probes.items() if key[0] in rows}
    weights = {key: one.weights(sizes) for key, one in squares.items() if key[0] in rows}
    positions = {key: one for key, one in weights.items() if len(one) == len(sizes)}
    return Sensitivity(rows, kept_probes, notes=_noted(wild), shares=shares, positions=positions)


def _noted(wild: Mapping[str, bool]) -> list[str]:
    """What is said of values whose gradients are not finite for all samples; those that have no others are an error."""
    never = next((name for name, others in wild.items() if not others), "")
    if never:
        raise ModelError(f"the gradient of '{never}' is no number for any sample; {WITHOUT}")
    more = f" and of {len(wild) - 1} more" if len(wild) > 1 else ""
    return (
        [f"the gradient of '{next(iter(wild))}'{more} is no number for some samples: these count nothing there"]
        if wild
        else []
    )


def first_batches(sizes: Sequence[int]) -> int:
    """How many batches hold the first samples: one at least."""
    sums = np.cumsum(sizes)
    return max(1, len(list(takewhile(lambda total: total <= PROBED, sums))))


class PositionEnergies:
    """Squares of gradients of one node, for each batch and block by position."""

    def __init__(self) -> None:
        self._found: list[list[Array]] = []

    def add(self, batch: int, blocks: Sequence[Array]) -> None:
        """The gradients of each block (positions, outputs) of one draw."""
        squares = [np.einsum("po,po->p", block, block, dtype=np.float64) for block in blocks]
        if batch == len(self._found):
            self._found.append(squares)
        else:
            self._found[batch] = [one + other for one, other in zip(self._found[batch], squares)]

    def weights(self, sizes: Sequence[int]) -> list[list[Array]]:
        """Of each batch and block the weight of each position; nothing where all count alike."""
        if any(len(one) <= size for blocks, size in zip(self._found, sizes) for one in blocks):
            return []
        return [[_weights(one) for one in blocks] for blocks in self._found]


def _weights(squares: Array) -> Array:
    """Of positions of which none counts all count alike: nothing is known of them."""
    reached = squares > 0
    if not reached.any():
        return np.ones(len(squares), np.float32)
    mean = squares[reached].mean()
    found: Array = (reached * ((1 - FOLLOWED) + FOLLOWED * squares / mean)).astype(np.float32)
    return found


@dataclass(eq=False)
class Probe:
    """The inputs of a layer, of batches whose gradients are kept."""

    layer: CalibratedLayer
    sensitivity: Sensitivity
    sizes: Sequence[int]
    inputs: dict[int, list[Blocks]] = field(default_factory=dict)

    @property
    def wanted(self) -> bool:
        return (self.layer, 0) in self.sensitivity.probes

    def take(self, which: int, batch: int, rows: Blocks) -> None:
        """The rows of one batch at one node."""
        gradients = self.sensitivity.probes.get((self.layer, which), ())
        if batch < len(gradients):
            self.inputs.setdefault(which, []).append(rows)

    def moves(self) -> Moves:
        """What it knows, without the layer."""
        nodes = [
            NodeProbe(self.layer.reductions[which].outputs, inputs, self.sensitivity.probes[self.layer, which])
            for which, inputs in self.inputs.items()
        ]
        draws = [len(batch) for batch in self.sensitivity.probes[self.layer, 0]][: len(self.inputs.get(0, ()))]
        return Moves(nodes, draws, self.sizes)


@dataclass(frozen=True, eq=False)
class NodeProbe:
    """Of one node of a layer: the outputs of each block, its inputs by batch, its gradients by batch and draw."""

    outputs: Sequence[Array]
    inputs: Sequence[Blocks]
    gradients: Sequence[Sequence[Blocks]]

    def projected(self, batch: int, draw: int, change: Array, bias: Array, size: int) -> Array:
        """The sum of gradient times change, of every sample; of positions that all share, an even part of it."""
        found = np.zeros(size)
        for rows, gradient, own in zip(self.inputs[batch], self.gradients[batch][draw], self.outputs):
            products = np.einsum("po,po->p", rows @ change[own].T + bias[own], gradient, dtype=np.float64)
            shared = len(products) % size
            found += products.sum() / np.sqrt(size) if shared else products.reshape(size, -1).sum(axis=1)
        return found


@dataclass(frozen=True, eq=False)
class Moves:
    """What new weights of a layer do to the outputs of the model."""

    nodes: Sequence[NodeProbe]
    draws: Sequence[int]
    """How many each batch has."""
    sizes: Sequence[int]

    @property
    def nbytes(self) -> int:
        """Of the inputs and gradients."""
        inputs = sum(block.nbytes for node in self.nodes for batch in node.inputs for block in batch)
        drawn = (blocks for node in self.nodes for batch in node.gradients for blocks in batch)
        return inputs + sum(block.nbytes for blocks in drawn for block in blocks)

    def squared(self, change: Array, bias: Array) -> float:
        """By how much the outputs move when the matrix changes and something is added to each output, squared."""
        change, bias, total, count = change.astype(np.float32), bias.astype(np.float32), 0.0, 0
        for batch, (draws, size) in enumerate(zip(self.draws, self.sizes)):
            for draw in range(draws):
                own = [node for node in self.nodes if batch < len(node.inputs)]
                moves = sum(node.projected(batch, draw, change, bias, size) for node in own)
                total += float(np.square(moves).sum())
                count += size
        return total / max(count, 1)


__all__ = ["Moves", "PositionEnergies", "Probe", "Sensitivity", "first_batches", "nothing_known", "sensitivity_of"]
