"""Weights from a state dict: of a network's own names, or of a public checkpoint of a ResNet (torchvision's names).

The last layer of a public checkpoint is for the classes that it was trained on; of others it is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from onnxsparse.errors import PlanError, brief

WRAPPERS = ("state_dict", "model")
PREFIXES = ("module.", "_orig_mod.")
COUNTER = "num_batches_tracked"
LAST = ("fc.weight", "fc.bias")
SHOWN = 3


def load(network: Any, state: Mapping[str, Any]) -> list[str]:
    """Fill the network, and say what is left out and what stays as it was initialised; nothing fits: a PlanError."""
    own, given = network.state_dict(), _named(_unwrapped(state), network)
    for name, value in given.items():
        if name in own and not _fits(value, own[name]):
            raise PlanError(
                f"the checkpoint has {name} of {_shape(value)}, and the network of {_shape(own[name])}: "
                "it is of another network, or of another number of classes"
            )
    taken = {name: value for name, value in given.items() if name in own}
    if not taken:
        first = ", ".join(list(given)[:SHOWN])
        raise PlanError(
            f"the checkpoint has no weight of this network; it has {first}, and the network {next(iter(own))}"
        )
    network.load_state_dict(taken, strict=False)
    return [
        *_said("of the checkpoint are not in the network and left out", [name for name in given if name not in own]),
        *_said(
            "are not in the checkpoint and stay as they are initialised", [name for name in own if name not in taken]
        ),
    ]


def _unwrapped(state: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors by name, without what checkpoints wrap them in."""
    while True:
        inner = next((state[name] for name in WRAPPERS if isinstance(state.get(name), Mapping)), None)
        if inner is None:
            break
        state = inner
    tensors = {str(name): value for name, value in state.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise PlanError(f"the checkpoint holds no weights by name; it has {brief(list(state)[:SHOWN])}")
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name[len(prefix) :]: value for name, value in tensors.items()}
    return tensors


def _named(tensors: Mapping[str, Any], network: Any) -> dict[str, Any]:
    """By the names of the network: a ResNet alone is the backbone, and its last layer the head's where it fits."""
    own = network.state_dict()
    if any(name in own for name in tensors):
        return dict(tensors)
    parts = [name for name, _ in network.named_children()]
    found = {}
    for name, value in tensors.items():
        known = next((f"{part}.{name}" for part in parts if f"{part}.{name}" in own), name)
        other_classes = name in LAST and known in own and not _fits(value, own[known])
        found[name if other_classes else known] = value
    return found


def _fits(value: Any, own: Any) -> bool:
    return tuple(value.shape) == tuple(own.shape)


def _said(what: str, names: Sequence[str]) -> list[str]:
    """One line, with the first names; counters of batches are of no use to anybody."""
    names = [name for name in names if not name.endswith(COUNTER)]
    if not names:
        return []
    more = ", ..." if len(names) > SHOWN else ""
    return [f"{len(names)} tensors {what}: {', '.join(names[:SHOWN])}{more}"]


def _shape(value: Any) -> str:
    return " x ".join(str(size) for size in value.shape) or "one number"
