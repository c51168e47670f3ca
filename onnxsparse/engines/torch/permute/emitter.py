"""What functions, methods and layers of torch are as operators of ONNX, for the way of channels through them.

1. A call is looked up by what it is in torch, torch.nn.functional and operator, a method by its name, a layer by the
   class of torch.nn that it is of. A function of the user's with a known name is not known.
2. Sizes come from the run: a view is a Reshape to the shape that it had. Numbers that do not tell where channels go,
   such as strides, are left out.
3. What has no entry, or an argument that its entry does not expect, is an operator `torch.NAME`, without a rule.
4. What a call changes in place is its result from then on. Where views of it are about, all of them are blocked.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Union

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from onnxsparse.engines.torch.library import torch

OPSET, IR = 21, 10
UNKNOWN = "torch"
"""The domain of operators without a rule."""

Sizes = tuple[Any, ...]
"""Sizes of axes; one that is not known has a name, and the same name is the same size."""
_KINDS = {"bool": TensorProto.BOOL, "int64": TensorProto.INT64, "int32": TensorProto.INT32}


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the graph; `kind` is its type, as torch calls it."""

    name: str
    shape: Sizes
    kind: str = "float32"

    @property
    def rank(self) -> int:
        return len(self.shape)


Made = Union[Value, "list[Any]", None]


class NotHereError(Exception):
    """A call that its entry does not expect."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of the trace: values and plain arguments, and what it made when it was run."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    layer: Any = None
    path: str = ""
    only_first: bool = False
    """Whether nobody reads more than the first of what it made."""

    def get(self, index: int, name: str, default: Any = None) -> Any:
        return self.args[index] if index < len(self.args) else self.kwargs.get(name, default)

    def tensor(self, index: int = 0, name: str = "input") -> Value:
        found = self.get(index, name)
        if not isinstance(found, Value):
            raise NotHereError
        return found

    @property
    def tensors(self) -> list[Value]:
        return list(values_in((self.args, dict(self.kwargs))))

    @property
    def shape(self) -> Sizes:
        if not isinstance(self.result, tuple):
            raise NotHereError
        return self.result[0]  # type: ignore[no-any-return]

    @property
    def kind(self) -> str:
        return str(self.result[1])


def values_in(tree: Any) -> Iterator[Value]:
    if isinstance(tree, Value):
        yield tree
    elif isinstance(tree, Mapping):
        for one in tree.values():
            yield from values_in(one)
    elif isinstance(tree, (tuple, list)):
        for one in tree:
            yield from values_in(one)
    elif isinstance(tree, slice):
        yield from values_in((tree.start, tree.stop, tree.step))


@dataclass(eq=False)
class Emitter:
    """The graph in the making."""

    subject: Any
    names: Mapping[str, Sequence[str]]
    nodes: list[NodeProto] = field(default_factory=list)
    infos: dict[str, ValueInfoProto] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    used: dict[str, None] = field(default_factory=dict)
    constants: list[TensorProto] = field(default_factory=list)
    _values: dict[str, Made] = field(default_factory=dict)
    _groups: dict[str, set[str]] = field(default_factory=dict)
    _count: int = 0
    _title: str = ""

    # -- the graph

    def model(self, stored: Mapping[str, TensorProto]) -> ModelProto:
        """The model, with the tensors that it uses of all that are stored."""
        inputs = [self.infos.get(name) or helper.make_tensor_value_info(name, 1, None) for name in self.inputs]
        outputs = [self.infos.get(name) or helper.make_tensor_value_info(name, 1, None) for name in self.outputs]
        ends = {*self.inputs, *self.outputs}
        graph = helper.make_graph(
            self.nodes, "traced", inputs, outputs, [*(stored[name] for name in self.used), *self.constants],
            value_info=[info for name, info in self.infos.items() if name not in ends],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(UNKNOWN, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR)

    def emit(self, graph: Any, results: Mapping[Any, Any], prefix: str) -> None:
        """Add a trace; its inputs get a prefix, parameters are those of the traces before."""
        self._values, self._groups = {}, {}
        for node in graph.graph.nodes:
            self._title = prefix + node.name
            result = results.get(node)
            if node.op == "placeholder":
                self._values[node.name] = self._input(result)
            elif node.op == "get_attr":
                self._values[node.name] = self._attribute(graph, node.target)
            elif node.op == "output":
                for value in values_in(self._resolved(node.args)):
                    self.outputs.append(self.new("Identity", [value], value.shape, value.kind).name)
            else:
                self._values[node.name] = self._called(graph, node, result)

    def _input(self, result: Any) -> Made:
        if isinstance(result, list):
            return [self._input(one) for one in result]
        if result is None:
            return None
        value = self._described(self._fresh("input"), *result)
        self.inputs.append(value.name)
        return value

    def _attribute(self, graph: Any, target: str) -> Made:
        if target in self.names:
            return self.parameter(target)
        value: Any = graph
        for step in target.split("."):
            value = getattr(value, step)
        return self.constant(value) if torch().is_tensor(value) else None

    def _called(self, graph: Any, node: Any, result: Any) -> Made:
        layer = graph.get_submodule(node.target) if node.op == "call_module" else None
        name = _layer_name(layer) if layer is not None else _name_of(node)
        path = str(node.target) if layer is not None else ""
        only_first = all(_name_of(one) == "getitem" and one.args[1] == 0 for one in node.users)
        call = Call(name, self._resolved(node.args), self._resolved(node.kwargs), result, layer, path, only_first)
        if result is None and (name in _OF_SIZES or not call.tensors):
            return None
        before = len(self.nodes)
        try:
            if _in_place(name) and self._seen_elsewhere(node):
                raise NotHereError
            made = self._entry(call)
        except (NotHereError, IndexError, KeyError, TypeError, ValueError, AttributeError):
            del self.nodes[before:]
            made = self.unknown(call)
        self._follow(node, name, made)
        return made

    def _entry(self, call: Call) -> Made:
        if call.result is None:
            raise NotHereError
        if call.layer is not None:
            for kind in type(call.layer).__mro__:
                if kind.__module__.startswith("torch.nn") and kind.__name__ in LAYERS:
                    return LAYERS[kind.__name__](self, call)
            raise NotHereError
        return FUNCTIONS[call.name.rstrip("_") if _in_place(call.name) else call.name](self, call)

    def _resolved(self, tree: Any) -> Any:
        if isinstance(tree, torch().fx.Node):
            return self._values.get(tree.name)
        if isinstance(tree, Mapping):
            return {key: self._resolved(one) for key, one in tree.items()}
        if isinstance(tree, (tuple, list)):
            return tuple(self._resolved(one) for one in tree)
        if isinstance(tree, slice):
            return slice(*(self._resolved(one) for one in (tree.start, tree.stop, tree.step)))
        return tree

    # -- what is changed in place

    def _seen_elsewhere(self, node: Any) -> bool:
        target = node.args[0] if node.args else None
        return isinstance(target, torch().fx.Node) and len(self._groups.get(target.name, ())) > 1

    def _follow(self, node: Any, name: str, made: Made) -> None:
        """Views share numbers with what they are of; what was changed in place is known by its new value."""
        target = node.args[0] if node.args else None
        if not isinstance(target, torch().fx.Node):
            return
        if name in _VIEWS:
            group = self._groups.setdefault(target.name, {target.name})
            group.add(node.name)
            self._groups[node.name] = group
        elif _in_place(name) and isinstance(made, Value):
            for other in self._groups.get(target.name, {target.name}):
                old = self._values.get(other)
                if other != target.name and isinstance(old, Value):
                    self.new(f"{name}_of_a_view", [old], old.shape, domain=UNKNOWN)
            self._values[target.name] = made

    # -- values

    def _fresh(self, what: str) -> str:
        self._count += 1
        return f"{self._title}:{what}{self._count}"

    def _described(self, name: str, shape: Sizes, kind: str) -> Value:
        if kind not in ("bool", "int64", "int32"):
            kind = "float32"
        self.infos[name] = helper.make_tensor_value_info(name, _KINDS.get(kind, TensorProto.FLOAT), list(shape))
        return Value(name, tuple(shape), kind)

    def new(
        self, op: str, inputs: Sequence[Value | None], shape: Sizes, kind: str = "float32", domain: str = "",
        **attributes: Any,
    ) -> Value:  # fmt: skip
        """One more node, and what it makes."""
        return self.several(op, inputs, [(tuple(shape), kind)], domain, **attributes)[0]

    def several(
        self, op: str, inputs: Sequence[Value | None], results: Sequence[Any], domain: str = "", **attributes: Any
    ) -> list[Value]:
        made = [self._described(self._fresh(""), *one) for one in results]
        names = [one.name if one is not None else "" for one in inputs]
        title = self._title if not any(node.name == self._title for node in self.nodes[-1:]) else self._fresh(op)
        self.nodes.append(helper.make_node(op, names, [one.name for one in made], title, domain=domain, **attributes))
        return made

    def unknown(self, call: Call) -> Made:
        """Nothing is known of a call but what it reads, and the shapes of what it makes."""
        op = call.name if call.name.isidentifier() else "call"
        tensors = call.tensors
        if call.layer is not None:
            tensors += [self.parameter(f"{call.path}.{name}") for name, _ in call.layer.named_parameters()
                        if f"{call.path}.{name}" in self.names]  # fmt: skip
        flat = list(_flat(call.result))
        made = self.several(op, tensors, flat or [((), "float32")], UNKNOWN)
        return _nested(call.result, iter(made))

    def parameter(self, path: str) -> Value:
        """A parameter or buffer, by the first of its names."""
        if path not in self.names:
            raise NotHereError
        name = self.names[path][0]
        self.used[name] = None
        tensor = _at(self.subject, name)
        return Value(name, tuple(tensor.shape), str(tensor.dtype).partition(".")[2])

    def own(self, call: Call, name: str) -> Value | None:
        """A parameter of a layer; None where it has none of that name."""
        if getattr(call.layer, name, None) is None:
            return None
        return self.parameter(f"{call.path}.{name}" if call.path else name)

    def constant(self, tensor: Any) -> Value:
        array = tensor.detach().cpu()
        array = (array.float() if array.is_floating_point() else array).contiguous().numpy()
        return self.numbers(array)

    def numbers(self, array: Any) -> Value:
        name = self._fresh("constant")
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(np.shape(array)), name))
        return Value(name, tuple(np.shape(array)), str(np.asarray(array).dtype))

    # -- the operators that others are made of

    def reshaped(self, value: Value, shape: Sizes) -> Value:
        if tuple(shape) == value.shape:
            return value
        if sum(not isinstance(size, int) for size in shape) <= 1:
            target = self.numbers(np.array([size if isinstance(size, int) else -1 for size in shape], np.int64))
        else:
            target = self._described(self._fresh("shape"), ("axes",), "int64")  # so that nothing is inferred of it
            self.inputs.append(target.name)
        return self.new("Reshape", [value, target], shape, value.kind)

    def turned(self, value: Value, order: Sequence[int]) -> Value:
        return self.new("Transpose", [value], tuple(value.shape[axis] for axis in order), value.kind, perm=list(order))

    def matmul(self, left: Value, right: Value, shape: Sizes | None = None) -> Value:
        if shape is None:
            batch = left.shape[:-2] if left.rank >= right.rank else right.shape[:-2]
            shape = (*batch, left.shape[-2], right.shape[-1])
        return self.new("MatMul", [left, right], shape)

    def linear(self, value: Value, weight: Value, bias: Value | None) -> Value:
        shape = (*value.shape[:-1], weight.shape[0])
        made = self.new("MatMul", [value, self.turned(weight, (1, 0))], shape)
        return made if bias is None else self.new("Add", [made, bias], shape)

    def split(self, value: Value, axis: int, sizes: Sequence[Any]) -> list[Value]:
        axis %= value.rank
        shapes = [(*value.shape[:axis], size, *value.shape[axis + 1 :]) for size in sizes]
        given = [] if not all(isinstance(size, int) for size in sizes) else [self.numbers(np.array(sizes, np.int64))]
        return self.several("Split", [value, *given], [(shape, value.kind) for shape in shapes], axis=axis)

    def uniform(self, shape: Sizes) -> Value:
        sizes = self.numbers(np.array([size if isinstance(size, int) else 1 for size in shape], np.int64))
        return self.new("ConstantOfShape", [sizes], shape)


def _at(module: Any, path: str) -> Any:
    for step in path.split("."):
        module = getattr(module, step)
    return module


def _flat(result: Any) -> Iterator[Any]:
    if isinstance(result, tuple):
        yield result
    elif isinstance(result, list):
        for one in result:
            yield from _flat(one)


def _nested(result: Any, made: Iterator[Value]) -> Made:
    if isinstance(result, tuple):
        return next(made)
    return [_nested(one, made) for one in result] if isinstance(result, list) else None


# -- names


@cache
def _known_functions() -> dict[Any, str]:
    """Functions by identity, with the names that torch shows them by."""
    found: dict[Any, str] = {}
    for home in (torch().nn.functional, torch(), operator, torch().special, torch().linalg):
        for name in dir(home):
            one = getattr(home, name)
            if callable(one) and not isinstance(one, type) and not name.startswith("__"):
                try:
                    found.setdefault(one, name)
                except TypeError:  # cannot be hashed
                    continue
    return {**found, getattr: "getattr", len: "len"}


def _name_of(node: Any) -> str:
    if node.op == "call_method":
        return str(node.target)
    return _known_functions().get(node.target, "")


def _layer_name(layer: Any) -> str:
    return type(layer).__name__


def _in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__") and name not in _TRAILING) or name in _AUGMENTED


_TRAILING = ("and_", "or_", "not_", "is_", "requires_grad_")
_AUGMENTED = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow", "setitem")
_OF_SIZES = (
    "size", "getattr", "dim", "ndimension", "numel", "nelement", "len", "is_floating_point", "is_complex", "stride",
    "element_size", "get_device", "type", "is_contiguous", "getitem", "add", "sub", "mul", "floordiv", "truediv", "eq",
    "ne", "lt", "gt", "le", "ge", "mod", "neg", "pow", "is_tensor",
)  # fmt: skip
_VIEWS = (
    "view", "reshape", "flatten", "transpose", "permute", "squeeze", "unsqueeze", "expand", "expand_as", "view_as",
    "reshape_as", "getitem", "chunk", "split", "unbind", "narrow", "select", "t", "swapaxes", "movedim", "detach",
    "contiguous", "getattr", "unflatten", "tensor_split", "to", "Flatten", "Unflatten", "Identity",
)  # fmt: skip

Entry = Callable[[Emitter, Call], Made]
FUNCTIONS: dict[str, Entry] = {}
LAYERS: dict[str, Entry] = {}


def functions(*names: str) -> Callable[[Entry], Entry]:
    def enter(entry: Entry) -> Entry:
        FUNCTIONS.update(dict.fromkeys(names, entry))
        return entry

    return enter


def layers(*names: str) -> Callable[[Entry], Entry]:
    def enter(entry: Entry) -> Entry:
        LAYERS.update(dict.fromkeys(names, entry))
        return entry

    return enter


__all__ = [
    "FUNCTIONS",
    "LAYERS",
    "Call",
    "Emitter",
    "Made",
    "NotHereError",
    "Sizes",
    "Value",
    "functions",
    "layers",
    "values_in",
]
