"""A graph in the making: its nodes, the tensors it needs, and the bodies inside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.naming import Targets
from onnxsparse.engines.torch.parameters import Sources
from onnxsparse.graph.storage import StoredTensor

Argument = Optional[Any]


@dataclass(eq=False)
class Value:
    """What a name stands for. Its node in the graph is made when it is first needed."""

    sources: Sources = None
    node: Any = None
    stored: StoredTensor | None = None
    outer: Value | None = None  # the value around a body that this is a capture of


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
            self._last_input = self.graph.create_node("placeholder", clean(name), name=clean(name))
        return self._last_input

    def node(self, value: Value) -> Any:
        """The graph node of a value of this draft."""
        if value.node is None:
            value.node = self._capture(value.outer) if value.outer is not None else self._attribute(value.stored)
        return value.node

    def _capture(self, outer: Value) -> Any:
        if outer not in self._nodes:
            self.captures.append(outer)
            self._nodes[outer] = self.input(outer.stored.name if outer.stored else str(outer.node))
        return self._nodes[outer]

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
    return word if word and not word[0].isdigit() else f"_{word}"
