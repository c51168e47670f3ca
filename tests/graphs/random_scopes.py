"""What random graphs are put together from: dice that forget one throw at a time, and scopes that collect nodes.

Every choice is drawn from a generator of its own, named by its path (`w0/use1/s2`), so a step can be dropped without
changing what the others draw: this is how a failing graph is made small. A scope is the model's graph, a body, or a
local function; what a function needs from outside becomes a parameter, and each call gives it something of its own.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Callable

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper

from .case import Array, tensor

LOCAL = "local"
KINDS: Mapping[str, int] = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}
Shape = tuple[int, ...]


def numpy_kind(kind: str) -> Any:
    return helper.tensor_dtype_to_np_dtype(KINDS[kind])


@dataclasses.dataclass(frozen=True)
class Val:
    """A name in a graph, with the shape and the type that it has there."""

    name: str
    shape: Shape
    kind: str = "float32"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


class Dice:
    """Draws by path. Steps whose path was dropped are not wanted; those that were taken are remembered."""

    def __init__(self, seed: str, dropped: Collection[str] = ()) -> None:
        self.seed, self.dropped = seed, frozenset(dropped)
        self.taken: list[str] = []

    def at(self, path: str) -> random.Random:
        return random.Random(f"{self.seed}/{path}")

    def wants(self, path: str, chance: float = 1.0) -> bool:
        if self.at(f"{path}?").random() >= chance or path in self.dropped:
            return False
        self.taken.append(path)
        return True


@dataclasses.dataclass
class Parameter:
    formal: str
    given: Callable[[Scope, int], str]


@dataclasses.dataclass
class Referred:
    """An attribute of a function: what each call gives."""

    name: str
    given: Callable[[int], Any]


class Scope:
    """Nodes and stored tensors of one graph, body or function."""

    def __init__(self, build: Building, kind: str, outer: Scope | None = None) -> None:
        self.build, self.kind, self.outer = build, kind, outer
        self.nodes: list[NodeProto] = []
        self.stored: list[TensorProto] = []
        self.parameters: list[Parameter] = []
        self.referred: list[Referred] = []
        self.results: list[Val] = []
        self.made: list[Val] = []

    # -- what all kinds of graph share

    def add(self, op: str, inputs: Sequence[Val | str], kind: str, shape: Sequence[int], **attributes: Any) -> Val:
        return self.many(op, inputs, [(kind, tuple(shape))], **attributes)[0]

    def many(
        self, op: str, inputs: Sequence[Val | str], outputs: Sequence[tuple[str, Shape]], **attributes: Any
    ) -> list[Val]:
        domain, doc = attributes.pop("domain", ""), attributes.pop("doc", "")
        names = [one.name if isinstance(one, Val) else one for one in inputs]
        made = [Val(self.build.name("t"), shape, kind) for kind, shape in outputs]
        node = helper.make_node(op, names, [one.name for one in made], name=f"{op}_{made[0].name}", domain=domain)
        node.doc_string = doc
        for key, value in attributes.items():
            node.attribute.append(_attribute(key, value))
        self.nodes.append(node)
        self.made += made
        return made

    def emit(self, value: Val) -> None:
        """Hand a value out of this graph."""
        self.results.append(value)

    def constant(self, values: Array, prefix: str, kind: str = "", plain: bool = False) -> Val:
        """A stored tensor of this graph: an initializer, or a Constant node."""
        kind = kind or str(np.asarray(values).dtype)
        name = self.build.name(prefix)
        made = stored_tensor(name, values, kind)
        draw = self.build.dice.at(f"storage/{name}").random()
        if self.kind == "function" or (draw < 0.3 and not plain and (self.build.opset > 8 or kind == "float32")):
            made.name = ""
            node = helper.make_node("Constant", [], [name], name=f"Constant_{name}", value=made)
            node.doc_string = f"stored {name}"
            self.nodes.append(node)
        else:
            self.stored.append(made)
        return Val(name, tuple(np.shape(values)), kind)

    def ints(self, *values: int) -> Val:
        return self.constant(np.array(values, np.int64), "i")

    # -- what a function gets by parameters, and a graph has itself

    def source(self, path: str, make: Callable[[random.Random], Array], prefix: str, kind: str) -> Val:
        """A stored tensor of here, or one that every call of the function gives, often another one each time."""
        dice = self.build.dice
        if self.kind != "function" or dice.at(f"{path}/param").random() < 0.35:
            return self.constant(make(dice.at(path)), prefix, kind)
        self.build.tags.add("function with other masks")

        def given(caller: Scope, call: int) -> str:
            own = dice.at(f"{path}/call{call}").random() < 0.7
            return caller.source(f"{path}/c{call if own else 0}", make, prefix, kind).name

        shape = tuple(np.shape(make(dice.at(path))))
        return Val(self.parameter(given), shape, kind)

    def runtime(self, path: str, make: Callable[[random.Random], Array], kind: str) -> Val:
        """An input of the model."""
        if self.kind == "body" and self.outer is not None:
            return self.outer.runtime(path, make, kind)
        values = make(self.build.dice.at(path))
        if self.kind == "function":
            return Val(
                self.parameter(lambda caller, call: caller.runtime(f"{path}/c{call}", make, kind).name),
                tuple(np.shape(values)),
                kind,
            )
        name = self.build.name("x")
        self.build.inputs[name] = (kind, [make(self.build.dice.at(f"{path}/{turn}")) for turn in range(2)])
        return Val(name, tuple(np.shape(values)), kind)

    def parameter(self, given: Callable[[Scope, int], str]) -> str:
        formal = self.build.name("p")
        self.parameters.append(Parameter(formal, given))
        return formal

    def refer(self, given: Callable[[int], Any]) -> str:
        name = self.build.name("a")
        self.referred.append(Referred(name, given))
        return name

    # -- finished graphs

    def graph(self, inputs: Sequence[Val], outputs: Sequence[Val]) -> onnx.GraphProto:
        """The graph of a body; an output that is not made here is made by an Identity."""
        outputs = [self.own(value) for value in outputs]
        return helper.make_graph(
            self.nodes,
            self.build.name("body"),
            [info(one) for one in inputs],
            [info(one) for one in outputs],
            self.stored,
        )

    def own(self, value: Val) -> Val:
        return self.add("Identity", [value], value.kind, value.shape)

    def function(self, formal: Val, outputs: Sequence[Val]) -> onnx.FunctionProto:
        outputs = [self.own(value) for value in outputs]
        imports = [helper.make_opsetid("", self.build.opset), helper.make_opsetid(LOCAL, 1)]
        made = helper.make_function(
            LOCAL,
            self.build.name("F"),
            [formal.name, *(one.formal for one in self.parameters)],
            [one.name for one in outputs],
            self.nodes,
            imports,
            [one.name for one in self.referred],
        )
        self.build.functions.append(made)
        return made

    def call(
        self, function: onnx.FunctionProto, inner: Scope, value: Val, outputs: Sequence[Val], number: int
    ) -> list[Val]:
        inputs: list[Val | str] = [value, *(one.given(self, number) for one in inner.parameters)]
        attributes = {one.name: one.given(number) for one in inner.referred}
        return self.many(function.name, inputs, [(one.kind, one.shape) for one in outputs], domain=LOCAL, **attributes)


class Building:
    """One model while it grows."""

    def __init__(self, seed: str, dropped: Collection[str]) -> None:
        self.dice = Dice(seed, dropped)
        self.opset = 17
        self.tags: set[str] = set()
        self.functions: list[onnx.FunctionProto] = []
        self.inputs: dict[str, tuple[str, list[Array]]] = {}
        self._count = 0

    def name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"


class Ref(str):
    """The name of a function's attribute that an attribute of a node refers to; with its type after a colon."""


def _attribute(key: str, value: Any) -> AttributeProto:
    if isinstance(value, Ref):
        name, _, kind = value.partition(":")
        return AttributeProto(name=key, ref_attr_name=name, type=int(kind))  # type: ignore[arg-type]
    return helper.make_attribute(key, value)


def stored_tensor(name: str, values: Array, kind: str) -> TensorProto:
    if kind == "bfloat16":
        bits = (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return helper.make_tensor(name, KINDS[kind], np.shape(values), bits.tobytes(), raw=True)
    return tensor(name, np.asarray(values).astype(numpy_kind(kind)))


def info(value: Val) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, KINDS[value.kind], value.shape)
