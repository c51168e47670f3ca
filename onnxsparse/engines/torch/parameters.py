"""Trainable parameters and buffers of a converted module: which stored tensors they are, and the table of their names.

A stored tensor is a parameter if its numbers reach a weight slot:

1. A weight slot is an input that an operator multiplies with, adds, looks up in, or scales its result with.
2. So is a stored vector that is added to, or multiplied with, what depends on the model's inputs. A single number is
   none of these.
3. Between a stored tensor and its slot may lie whatever moves numbers or computes with stored ones only. A 0/1 mask on
   the way, and a single number that scales, are no parameters.
4. Only floats are; everything else is a buffer.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

from onnxsparse.engines.torch.error_messages import module_class
from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import ModelError
from onnxsparse.graph.storage import FLOAT_KINDS, StoredTensor
from onnxsparse.graph.stores import Stores, keys

Sources = Optional[frozenset[StoredTensor]]  # what a value is made of; None where it depends on the model's inputs

_MICROSOFT = "com.microsoft"
_LAYER_NORM = (1, 2)
_RECURRENT = (1, 2, 3)
SLOTS: dict[tuple[str, str], tuple[int, ...]] = {
    ("", "Conv"): (1, 2),
    ("", "ConvTranspose"): (1, 2),
    ("", "DeformConv"): (1, 3),
    ("", "Gemm"): (0, 1, 2),
    ("", "MatMul"): (0, 1),
    ("", "Einsum"): (0, 1, 2, 3),
    ("", "Gather"): (0,),
    ("", "LSTM"): (*_RECURRENT, 7),
    ("", "GRU"): _RECURRENT,
    ("", "RNN"): _RECURRENT,
    ("", "PRelu"): (1,),
    ("", "BatchNormalization"): _LAYER_NORM,
    ("", "InstanceNormalization"): _LAYER_NORM,
    ("", "GroupNormalization"): _LAYER_NORM,
    ("", "LayerNormalization"): _LAYER_NORM,
    ("", "RMSNormalization"): (1,),
    ("", "SimplifiedLayerNormalization"): (1,),
    ("", "SkipLayerNormalization"): (2, 3, 4),
    ("", "SkipSimplifiedLayerNormalization"): (2, 3),
    (_MICROSOFT, "Attention"): (1, 2),
    (_MICROSOFT, "MultiHeadAttention"): (3,),
    (_MICROSOFT, "BiasAdd"): (1,),
    (_MICROSOFT, "BiasDropout"): (1,),
    (_MICROSOFT, "BiasGelu"): (1,),
    (_MICROSOFT, "BiasSplitGelu"): (1,),
    (_MICROSOFT, "EmbedLayerNormalization"): (2, 3, 4, 5, 6),
    (_MICROSOFT, "FastGelu"): (1,),
    (_MICROSOFT, "FusedConv"): (1, 2),
    (_MICROSOFT, "FusedGemm"): (0, 1, 2),
    (_MICROSOFT, "FusedMatMul"): (0, 1),
    (_MICROSOFT, "FusedMatMulActivation"): (0, 1),
    (_MICROSOFT, "GemmFastGelu"): (1, 2),
    (_MICROSOFT, "GroupNorm"): _LAYER_NORM,
    (_MICROSOFT, "LayerNormalization"): _LAYER_NORM,
    (_MICROSOFT, "SimplifiedLayerNormalization"): (1,),
    (_MICROSOFT, "SkipGroupNorm"): (1, 2, 4),
    (_MICROSOFT, "SkipLayerNormalization"): (2, 3, 4),
    (_MICROSOFT, "SkipSimplifiedLayerNormalization"): (2, 3),
    (_MICROSOFT, "TransposeMatMul"): (0, 1),
}
TABLES = ("Gather",)  # look-ups, in what has rows
BESIDE = ("Add", "Mul")  # a stored vector beside what depends on the inputs
# operators through which numbers are followed, and the inputs that carry them; None for all. A norm, a variance or a
# size that is computed from stored numbers is none of what they are for
PATHS: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("Add", "Concat", "Div", "Einsum", "Gather", "Gemm", "MatMul", "Mul", "Sub", "Sum"), None),
    **dict.fromkeys(("Cast", "CastLike", "Dropout", "Exp", "Expand", "Flatten", "Identity", "Neg", "Pad"), (0,)),
    **dict.fromkeys(("Relu", "Reshape", "Sigmoid", "Slice", "Split", "Squeeze", "Tanh", "Tile"), (0,)),
    **dict.fromkeys(("Transpose", "Unsqueeze"), (0,)),
    "Where": (1, 2),
}
SCALING = ("Add", "Div", "Mul", "Sub", "Where")  # a single number or a mask beside a weight is none
FILLING = ("Expand", "Tile", "Pad")  # one number, many times over, is none that was learned


def own(tensor: StoredTensor) -> Sources:
    return frozenset({tensor}) if tensor.kind in FLOAT_KINDS else frozenset()


def reached(domain: str, operator: str, sources: Sequence[Sources]) -> set[StoredTensor]:
    """The stored tensors that a node makes parameters, from what each of its inputs is made of."""
    found: set[StoredTensor] = set()
    for slot in SLOTS.get((domain, operator), ()):
        if slot < len(sources) and sources[slot]:
            found |= sources[slot] or set()
    if operator in TABLES:
        found = {tensor for tensor in found if len(tensor.shape) > 1}
    if domain == "" and operator in BESIDE and None in sources:
        for one in sources:
            found |= {tensor for tensor in one or () if _vector(tensor)}
    return found


def _vector(tensor: StoredTensor) -> bool:
    return tensor.size > 1 and sum(size != 1 for size in tensor.shape) == 1


def onward(domain: str, operator: str, sources: Sequence[Sources]) -> Sources:
    """What the result of a node is made of."""
    if domain != "" or operator not in PATHS:
        return frozenset() if sources and None not in sources else None
    carried = PATHS[operator]
    given = [sources[index] for index in carried if index < len(sources)] if carried else list(sources)
    if None in given:
        return None
    parts = [one for one in given if one]
    if operator in SCALING and len(parts) > 1:
        parts = _without_scales(parts)
    if operator in FILLING:
        parts = [frozenset(tensor for tensor in part if tensor.size > 1) for part in parts]
    return frozenset().union(*parts)


def _without_scales(parts: list[frozenset[StoredTensor]]) -> list[frozenset[StoredTensor]]:
    kept = [part for part in parts if not all(tensor.size == 1 or _mask(tensor) for tensor in part)]
    return kept or parts


def _mask(tensor: StoredTensor) -> bool:
    """Zeros and ones, both of them."""
    first = tensor.read(0, min(tensor.size, 4096))
    if not np.isin(first, (0, 1)).all():
        return False
    numbers = tensor.read()
    return bool(np.isin(numbers, (0, 1)).all() and numbers.min() < numbers.max())


# -- From drafts to modules: stored tensors become parameters and buffers, and a table says which is which.
#
# The table, `module.onnx_names`, is a plain dict: the names of inputs and outputs, and for each parameter the scope and
# the name of its tensor in the file. It survives a deep copy and saving.


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


# -- Names of tensors in a module: as in the file, dots as steps into it, without what Python or torch cannot take.


_FOREIGN = re.compile(r"[^0-9A-Za-z_.]+")


class Targets:
    """The names given out in one module, each once; none is the beginning of another's path."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._folders: set[str] = set()
        self._blank = torch().fx.GraphModule(torch().nn.Module(), torch().fx.Graph())

    def fresh(self, name: str) -> str:
        wanted = self._path(name)
        found, count = wanted, 1
        while not self._free(found):
            flat = wanted.replace(".", "_")
            found, count = (flat if count == 1 and flat != wanted else f"{flat}_{count}"), count + 1
        self._taken.add(found)
        self._folders.update(_folders(found))
        return found

    def _free(self, path: str) -> bool:
        return not {path} & self._taken and not {path} & self._folders and not self._taken & set(_folders(path))

    def _path(self, name: str) -> str:
        steps = [step for step in _FOREIGN.sub("_", name).split(".") if step] or ["tensor"]
        taken = (keyword.iskeyword(step) or hasattr(self._blank, step) for step in steps)
        return ".".join(f"{step}_" if unfit else step for step, unfit in zip(steps, taken))


def _folders(path: str) -> list[str]:
    steps = path.split(".")
    return [".".join(steps[:depth]) for depth in range(1, len(steps))]


# -- A graph in the making: its nodes, the tensors it needs, and the bodies inside it.


Argument = Optional[Any]


@dataclass(eq=False)
class Value:
    """What a name stands for. Its node in the graph is made when it is first needed."""

    sources: Sources = None
    node: Any = None
    stored: StoredTensor | None = None
    outer: Value | None = None  # the value around a body that this is a capture of, under this name
    name: str = ""


@dataclass(frozen=True)
class Child:
    """A module of the graph, made from the modules of its bodies."""

    make: Callable[..., Any]
    drafts: tuple[Draft, ...]
    labels: tuple[str, ...]


@dataclass(eq=False)
class Draft:
    graph: Any = field(default_factory=lambda: torch().fx.Graph())
    targets: Targets = field(default_factory=Targets)
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    children: dict[str, Child] = field(default_factory=dict)
    captures: list[Value] = field(default_factory=list)
    _nodes: dict[object, Any] = field(default_factory=dict)
    _last_input: Any = None

    def input(self, name: str) -> Any:
        """A new placeholder, behind those there are."""
        root = self._last_input if self._last_input is not None else self.graph._root
        with self.graph.inserting_after(root):
            made = self.graph.create_node("placeholder", clean(name), name=clean(name))
        made.target = made.name  # which no other input has
        self._last_input = made
        return made

    def node(self, value: Value) -> Any:
        """The graph node of a value of this draft."""
        if value.node is None:
            value.node = self._attribute(value.stored) if value.outer is None else self._capture(value)
        return value.node

    def _capture(self, value: Value) -> Any:
        assert value.outer is not None
        if value.outer not in self._nodes:
            self.captures.append(value.outer)
            self._nodes[value.outer] = self.input(value.name)
        return self._nodes[value.outer]

    def _attribute(self, stored: StoredTensor | None) -> Any:
        assert stored is not None
        if stored not in self._nodes:
            target = self.targets.fresh(stored.name)
            self.tensors[target] = stored
            self._nodes[stored] = self.graph.create_node("get_attr", target, name=clean(target))
        return self._nodes[stored]

    def call(self, function: Any, args: tuple[Argument, ...], kwargs: dict[str, Argument], name: str) -> Any:
        node = self.graph.create_node("call_function", function, args, kwargs, clean(name))
        node.meta["is_wrapped"] = True  # so that a saved module, traced again when it is loaded, keeps its operators
        return node

    def call_child(self, child: Child, name: str, args: tuple[Argument, ...]) -> Any:
        target = self.targets.fresh(name)
        self.children[target] = child
        return self.graph.create_node("call_module", target, args, {}, clean(name))


def clean(name: str) -> str:
    """A Python name."""
    word = "".join(letter if letter.isascii() and (letter.isalnum() or letter == "_") else "_" for letter in name)
    free = word and not word[0].isdigit() and not keyword.iskeyword(word) and word != "self"
    return word if free else f"_{word}"
