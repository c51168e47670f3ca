"""From drafts to modules: stored tensors become parameters and buffers, and a table says which is which.

The table, `module.onnx_names`, is a plain dict: the names of inputs and outputs, and for each parameter the scope and
the name of its tensor in the file. It survives a deep copy and saving.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from onnxsparse.engines.torch.draft import Draft
from onnxsparse.engines.torch.explaining import module_class
from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import ModelError
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.graph.stores import Stores, keys

TABLE = "onnx_names"
PRESERVED = "_user_preserved_attributes"  # what torch.fx keeps when it copies a module


class Pool:
    """Each stored tensor as one torch tensor; several names for the same bytes of a data file are one, too."""

    def __init__(self, parameters: set[StoredTensor], stores: Stores) -> None:
        self._parameters = {_bytes(tensor) for tensor in parameters}
        self._keys = keys(stores)
        self._made: dict[Hashable, Any] = {}
        self.table: dict[str, list[str]] = {}

    def tensor(self, stored: StoredTensor, path: str, followed: bool) -> Any:
        place = _bytes(stored)
        if place not in self._made:
            made = as_tensor(stored)
            self._made[place] = torch().nn.Parameter(made) if place in self._parameters else made
        if place in self._parameters or followed:
            self.table[path] = list(self._keys[stored])
        return self._made[place]


def _bytes(tensor: StoredTensor) -> Hashable:
    return (tensor.span, tensor.kind, tensor.shape) if tensor.external else tensor


def as_tensor(stored: StoredTensor) -> Any:
    if not stored.readable:
        raise ModelError(
            f"tensor '{stored.name}' of type {stored.kind} cannot be read: {stored.problem or 'no numbers'}"
        )
    array = stored.array()
    if stored.kind == "bfloat16":
        return torch().from_numpy(array.view(np.int16)).view(torch().bfloat16)
    return torch().from_numpy(array if array.flags.writeable and sys.byteorder == "little" else array.copy())


def materialize(draft: Draft, pool: Pool, inputs: Sequence[str], outputs: Sequence[str], train_bn: bool) -> Any:
    """The module of the whole model, with its table."""
    followed = _statistics(draft) if train_bn else set()
    module = _module(draft, pool, "", followed)
    table = {"inputs": list(inputs), "outputs": list(outputs), "tensors": pool.table}
    setattr(module, TABLE, table)
    module.meta[PRESERVED] = {TABLE: table}
    return module


def _module(draft: Draft, pool: Pool, prefix: str, followed: set[Any]) -> Any:
    root = torch().nn.Module()
    for target, stored in draft.tensors.items():
        path = prefix + target
        _place(root, target, pool.tensor(stored, path, stored in followed))
    for target, child in draft.children.items():
        parts = [
            _module(body, pool, f"{prefix}{target}.{label}.", followed | _statistics(body, bool(followed)))
            for body, label in zip(child.drafts, child.labels)
        ]
        _place(root, target, child.make(*parts))
    return module_class()(root, draft.graph, "OnnxModule")


def _place(root: Any, target: str, thing: Any) -> None:
    *folders, name = target.split(".")
    for folder in folders:
        if folder not in root._modules:
            root.add_module(folder, torch().nn.Module())
        root = root._modules[folder]
    if isinstance(thing, torch().Tensor) and not isinstance(thing, torch().nn.Parameter):
        root.register_buffer(name, thing)
    else:
        setattr(root, name, thing)


def _statistics(draft: Draft, wanted: bool = True) -> set[Any]:
    """The running means and variances that batch normalizations change while they train."""
    modules = (node for node in draft.graph.nodes if node.op == "call_module")
    plain = [node for node in modules if not draft.children[node.target].drafts]
    read = [_source(one) for node in plain for one in node.args[3:5]]
    return {draft.tensors[one.target] for one in read if one.op == "get_attr"} if wanted else set()


def _source(node: Any) -> Any:
    """What exporters put behind Identity, where several tensors have the same numbers."""
    while node.op == "call_function" and getattr(node.target, "__name__", "") == "Identity":
        node = node.args[0]
    return node
