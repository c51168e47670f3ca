"""A graph in the making: its nodes, the tensors it needs, and the bodies inside it."""

from __future__ import annotations

import keyword
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
