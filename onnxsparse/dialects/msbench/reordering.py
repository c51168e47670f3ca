"""Permuting the channels of a network before AmpereScheduler chooses its masks, by the same engines as `permute`.

1. A torch module is permuted in place. Of an ONNX model another network is made, which is what is trained from then on;
   what comes out of it records its order.
2. A run that goes on has the order that its checkpoint says, whatever numbers it begins with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onnxsparse.channel_classes.permutation import Permutation
from onnxsparse.errors import OnnxSparseError
from onnxsparse.graph.model import Model
from onnxsparse.passes import permuting
from onnxsparse.passes.given_permutation import recorded
from onnxsparse.patterns.nm import NOfM
from onnxsparse.planning.rule import WORDS
from onnxsparse.train.layers import Network, Site
from onnxsparse.train.stepped_model import SteppedModel

CHECKPOINT = "the permutation of the checkpoint"


@dataclass(frozen=True)
class Reordered:
    """A network whose channels were permuted, the record of that for its checkpoints, and why nothing moved."""

    network: Any
    record: str = ""
    reason: str = ""


def reordered(network: Network, sites: Sequence[Site], pattern: NOfM, given: str) -> Reordered:
    """The network for these layers; `given` is the record that a checkpoint has."""
    if not sites and not given:
        return Reordered(network)
    if isinstance(network, SteppedModel):
        return _of_onnx(network, [site.name for site in sites], pattern, given)
    return _of_torch(network, [site.key for site in sites], pattern)


def _of_onnx(network: SteppedModel, names: Sequence[str], pattern: NOfM, given: str) -> Reordered:
    live, text = network.with_live_weights(), f"{pattern.n}:{pattern.m}"
    apply, known = Permutation.unpacked(given, CHECKPOINT) if given else None, recorded(live, "the model")
    if apply is not None and known is not None:  # a checkpoint has what moved since the first order
        apply = known.inverse().then(apply)
    try:
        found = permuting.asked_for(live, permuting.Asked(text, include=names, allow=tuple(WORDS), apply=apply))
    except OnnxSparseError as error:
        if given:
            raise
        return Reordered(network, reason=str(error))
    whole = permuting.plant(live, found)
    made = SteppedModel(Model.open(live.take_proto()), network.options, network.source)
    return Reordered(made, whole.packed())


def _of_torch(network: Any, weights: Sequence[str], pattern: NOfM) -> Reordered:
    from onnxsparse.engines.torch.permute.moves import demand_movable, move
    from onnxsparse.passes.permute_module import decided, found_for

    try:
        demand_movable(network.module)
        found, reason = decided(lambda: found_for(network.module, None, pattern, names=weights))
    except OnnxSparseError as error:
        return Reordered(network, reason=str(error))
    move(network.module, found.tensors.values())
    return Reordered(network, reason=reason)


__all__ = ["Reordered", "reordered"]
