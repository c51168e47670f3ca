"""What a scheduler puts into a checkpoint of the user's own loop, and what it gets back from there.

1. Facts, which are plain numbers and texts, and arrays by name: tensors beside a torch module, else of NumPy.
2. A module's numbers are in its own state; that holds neither masks nor duals, so they are here. An ONNX model in
   training is here as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.loops.network import Network
from onnxsparse.values import Array

MASK, KEPT = "mask/", "kept/"


def saved(network: Any, kind: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a scheduler of a kind, and of its network as far as nobody else has it."""
    if network.is_torch:
        arrays, about = _around(network), {"used": dict(network.used)}
        arrays = {name: _tensor(array) for name, array in arrays.items()}
    else:
        live, about = network.state()
        arrays = {name: np.array(array) for name, array in live.items()}
    plain = json.loads(json.dumps({"type": kind, "facts": facts, "network": about}))  # no type of ours
    return {**plain, "arrays": arrays}


def _around(network: Network) -> dict[str, Array]:
    masks = {f"{MASK}{key}": keep for key, keep in network.masks().items()}
    return {**masks, **{f"{KEPT}{name}": array for name, array in network.kept.items()}}


def _tensor(array: Array) -> Any:
    from onnxsparse.engines.torch.library import torch

    return torch().from_numpy(np.array(array))


def put_back(network: Any, kind: str, state: Any) -> Mapping[str, Any]:
    """Make a network what it was; what is left are the scheduler's own facts."""
    if not isinstance(state, Mapping) or not {"type", "facts", "network", "arrays"} <= set(state):
        raise OptionError(f"load_state_dict takes what state_dict returned, not {state!r:.60}")
    if state["type"] != kind:
        raise OptionError(f"the state is of a {state['type']!s:.60}, and this is a {kind}")
    arrays = {
        name: np.asarray(array.cpu() if hasattr(array, "cpu") else array) for name, array in state["arrays"].items()
    }
    if network.is_torch:
        _put_around(network, state["network"]["used"], arrays)
    else:
        network.restore(arrays, state["network"])
    found: Mapping[str, Any] = state["facts"]
    return found


def _put_around(network: Network, used: Mapping[str, str], arrays: Mapping[str, Array]) -> None:
    unknown = set(used) - {site.key for site in network.sites}
    if unknown:
        raise OptionError(f"the state is of another network: this one has no layer {sorted(unknown)[0]!r:.60}")
    if dict(network.used) != dict(used):
        network.use(used)
    network.set_masks({name[len(MASK) :]: array for name, array in arrays.items() if name.startswith(MASK)})
    network.kept.clear()
    network.kept.update({name[len(KEPT) :]: np.array(a) for name, a in arrays.items() if name.startswith(KEPT)})
