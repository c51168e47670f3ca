"""States of torch's own objects as arrays and JSON, so that nothing of a file is ever executed.

What is nested becomes a tree of small lists, each with the kind of what it was first; tensors become arrays by name.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array

Tree = Any
_LISTS = {"list": list, "tuple": tuple, "set": set, "deque": deque}
_MAPS = {"dict": dict, "counter": Counter, "ordered": OrderedDict}


def taken_apart(value: Any, name: str, arrays: dict[str, Array]) -> Tree:
    """A value as a tree for JSON; its tensors go into `arrays`, under names that begin with `name`."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["plain", value]
    if torch().is_tensor(value):
        return _tensor(value, name, arrays)
    for kind, form in _LISTS.items():
        if type(value) is form:
            return [kind, *(taken_apart(one, f"{name}.{place}", arrays) for place, one in enumerate(value))]
    for kind, form in _MAPS.items():
        if type(value) is form or (kind == "dict" and type(value) is defaultdict):
            pairs = enumerate(value.items())
            return [kind, *([_key(key, name), taken_apart(one, f"{name}.{n}", arrays)] for n, (key, one) in pairs)]
    raise OptionError(
        f"a checkpoint cannot hold the state of your {name.partition('/')[0]}: a {type(value).__name__} is in it, "
        "which is neither numbers nor words"
    )


def put_together(tree: Tree, arrays: Mapping[str, Array], device: Any) -> Any:
    """The value again; tensors that were not on the host go to `device`."""
    kind, *rest = tree
    if kind == "plain":
        return rest[0]
    if kind == "tensor":
        name, dtype, host = rest
        made = torch().from_numpy(arrays[name].copy()).view(getattr(torch(), dtype))
        return made if host else made.to(device)
    if kind in _LISTS:
        return _LISTS[kind](put_together(one, arrays, device) for one in rest)
    return _MAPS[kind]({key: put_together(one, arrays, device) for key, one in rest})


def _tensor(value: Any, name: str, arrays: dict[str, Array]) -> Tree:
    """What numpy has no type for goes as its bits."""
    host = value.detach().cpu().contiguous()
    dtype = str(host.dtype).partition(".")[2]
    bits = host.view(torch().int16) if dtype == "bfloat16" else host.view(torch().uint8) if "float8" in dtype else host
    arrays[name] = bits.numpy()
    return ["tensor", name, dtype, value.device.type == "cpu"]


def _key(key: Any, name: str) -> Any:
    """JSON would make words of numbers as keys of an object; in a list they stay what they are."""
    if key is None or isinstance(key, (bool, int, float, str)):
        return key
    return taken_apart(key, name, {})[1]
