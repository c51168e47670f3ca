"""What a scheduler puts into a checkpoint of the user's own loop, and what it gets back from there.

1. Facts, which are plain numbers and texts, and arrays by name: tensors beside a torch module, else of NumPy.
2. A module's numbers are in its own state, which is that of the plain module. What a sparser trains beside them, the
   numbers under the zeros, masks and duals are here. An ONNX model in training is here as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxsparse.errors import OptionError


def saved(network: Any, kind: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a scheduler of a kind, and of its network as far as nobody else has it."""
    live, about = network.state()
    plain = json.loads(json.dumps({"type": kind, "facts": facts, "network": about}))  # no type of ours
    return {**plain, "arrays": live if network.is_torch else {name: np.array(array) for name, array in live.items()}}


def put_back(network: Any, kind: str, state: Any) -> Mapping[str, Any]:
    """Make a network what it was; what is left are the scheduler's own facts."""
    if not isinstance(state, Mapping) or not {"type", "facts", "network", "arrays"} <= set(state):
        raise OptionError(f"load_state_dict takes what state_dict returned, not {state!r:.60}")
    if state["type"] != kind:
        raise OptionError(f"the state is of a {state['type']!s:.60}, and this is a {kind}")
    arrays = state["arrays"]
    if not network.is_torch:
        arrays = {name: np.asarray(one.cpu() if hasattr(one, "cpu") else one) for name, one in arrays.items()}
    network.restore(arrays, state["network"])
    found: Mapping[str, Any] = state["facts"]
    return found
