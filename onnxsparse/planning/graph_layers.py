"""What a quantization scheme may call the nodes of a graph: by their names and tensors, and by torch modules.

1. A node answers to its own name, to those of its results and of its stored tensors, to the torch names that the
   metadata record for these (see `graph/torch_match`), and to the module that its exporter says it came from.
2. Its kinds are the module types that its operator stands for, and the class of that module, where that is said.
3. Products of two computed values are those of attention where a Softmax stands behind (QK) or before them (PV).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from onnx import ModelProto, NodeProto, TensorProto

from onnxsparse.graph.initializers import stored_of
from onnxsparse.graph.torch_match import KEY, scope_of
from onnxsparse.planning.layer_kinds import OUTPUTS, PRODUCT, SIDES, kinds_of_node
from onnxsparse.planning.quantization import LayerScheme, Scheme

CLASSES = "pkg.torch.onnx.class_hierarchy"
"""Metadata of torch's newer exporter: the classes of the modules around a node, and the operator of torch."""
PRODUCTS = ("MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose")
BETWEEN = {
    "Add", "Cast", "Clip", "Div", "Dropout", "Expand", "Identity", "Max", "Min", "Mul", "Reshape", "Squeeze", "Sub",
    "Transpose", "Unsqueeze", "Where",
}  # fmt: skip
"""What stands between a product of attention and its Softmax."""
VIEWS = ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast", "Identity")
FARTHEST = 12
Names = tuple[tuple[str, ...], tuple[str, ...]]


class GraphLayers:
    """The nodes of a graph, as a scheme sees them."""

    def __init__(self, proto: ModelProto) -> None:
        self._proto = proto
        self._stored = {tensor.name: tensor for tensor in proto.graph.initializer} | _constants(proto)
        self._made = {name: node for node in proto.graph.node for name in node.output}

    def known_as(self, node: NodeProto) -> Names:
        """The names that a node answers to, and what kinds it is of."""
        stored = self._stored_of(node)
        torch = (one for name in stored for one in self._torch.get(name, ()))
        names = (node.name, scope_of(node) or "", *node.output, *stored, *torch)
        rank = max((len(self._stored[name].dims) for name in stored), default=0)
        role = self._roles.get(node.output[0], "") if node.output else ""
        kinds = (*_class_of(node), *kinds_of_node(node.op_type, rank, not stored and node.op_type in PRODUCTS, role))
        return tuple(dict.fromkeys(name for name in names if name)), tuple(dict.fromkeys(kinds))

    def of(self, node: NodeProto, scheme: Scheme) -> LayerScheme | None:
        """How a scheme quantizes a node that multiplies."""
        names, kinds = self.known_as(node)
        if any(kind in scheme.overrides for kind in kinds if kind.startswith(SIDES)):
            kinds = tuple(kind for kind in kinds if kind not in PRODUCT)  # the module around them is another one
        layer = scheme.of(names, kinds)
        behind = scheme.asked((), self._outputs_of(node)) if layer is not None else None
        return layer if layer is None or behind is None else replace(layer, outputs=behind.inputs)

    def asked(self, node: NodeProto, scheme: Scheme) -> LayerScheme | None:
        """What a scheme says of a node that multiplies nothing: by its operator, its own name, or that of a module.

        A module is one that holds no other and multiplies nothing: of a Linear the scheme means the product, and not
        the addition of the bias.
        """
        names, kinds = self.known_as(node)
        if scheme.of(names, kinds) is None or not scheme.overrides:
            return None
        scope = self._scope(node)
        if scope in self._simple:
            return scheme.asked((scope, node.name), self._simple[scope])
        own = (node.name, *kinds_of_node(node.op_type))
        return next((scheme.overrides[one] for one in own if one in scheme.overrides), None)

    def is_inside(self, node: NodeProto, other: NodeProto | None) -> bool:
        """Whether two nodes are of one simple module, so that what goes from one to the other is its own."""
        return other is not None and self._scope(node) == self._scope(other) and self._scope(node) in self._simple

    def all(self) -> Iterator[Names]:
        """What every node is known as, and the modules that products of attention are made of."""
        for node in self._proto.graph.node:
            names, kinds = self.known_as(node)
            yield names, (*kinds, *self._outputs_of(node))

    def _outputs_of(self, node: NodeProto) -> tuple[str, ...]:
        """The module types that stand for what a product of attention gives."""
        role = self._roles.get(node.output[0], "") if node.output else ""
        return tuple(f"{one}{role}" for one in OUTPUTS) if role and not self._stored_of(node) else ()

    def _stored_of(self, node: NodeProto) -> list[str]:
        return [name for name in map(self._behind_views, node.input) if name in self._stored]

    def _behind_views(self, name: str) -> str:
        """The stored tensor that a node reads through views, or what it reads."""
        while name in self._made and self._made[name].op_type in VIEWS:
            name = self._made[name].input[0]
        return name

    def _scope(self, node: NodeProto) -> str:
        return scope_of(node) or ""

    @cached_property
    def _simple(self) -> Mapping[str, tuple[str, ...]]:
        """The modules that hold no other and multiply nothing, and the kinds of all that is in them."""
        scopes = {self._scope(node) for node in self._proto.graph.node}
        products = {self._scope(node) for node in self._proto.graph.node if node.op_type in PRODUCTS}
        outer = {scope[:at] for scope in scopes for at, letter in enumerate(scope) if letter == "."}
        found: dict[str, tuple[str, ...]] = dict.fromkeys(sorted(scopes - products - outer - {""}), ())
        for node in self._proto.graph.node:
            if self._scope(node) in found:
                found[self._scope(node)] += (*_class_of(node), *kinds_of_node(node.op_type))
        return found

    @cached_property
    def _torch(self) -> Mapping[str, list[str]]:
        """By stored tensor, what the metadata record that it is in torch."""
        found: dict[str, list[str]] = {}
        for entry in self._proto.metadata_props:
            if entry.key == KEY:
                for name, tensors in _recorded(entry.value).items():
                    for tensor in tensors:
                        found.setdefault(tensor, []).append(name)
        return found

    @cached_property
    def _roles(self) -> Mapping[str, str]:
        """Which product of attention a node is, by its first output."""
        made, read = self._made, dict[str, list[NodeProto]]()
        for node in self._proto.graph.node:
            for name in node.input:
                read.setdefault(name, []).append(node)
        found: dict[str, str] = {}
        for node in self._proto.graph.node:
            if node.op_type == "Softmax":
                before = _nearest([node.input[0]], lambda name: [made[name]] if name in made else [], False)
                behind = _nearest([node.output[0]], lambda name: read.get(name, []), True)
                found.update(dict.fromkeys(before, "QK"))
                found.update(dict.fromkeys(behind, "PV"))
        return found


def _constants(proto: ModelProto) -> dict[str, TensorProto]:
    """What Constant nodes hold, by the names of what they give."""
    nodes = (node for node in proto.graph.node if node.op_type == "Constant" and node.domain in ("", "ai.onnx"))
    return {node.output[0]: tensor for node in nodes if (tensor := stored_of(node)) is not None}


def missed(scheme: Scheme, *graphs: ModelProto) -> list[str]:
    """A sentence for every entry of a scheme that means nothing in any of some graphs; an error where it is strict."""
    return scheme.missed((names for proto in graphs for names in GraphLayers(proto).all()), classes=False)


def _nearest(names: list[str], step: Callable[[str], list[NodeProto]], onwards: bool) -> set[str]:
    """The products that are next to some values, one way or the other, by their first outputs."""
    found, seen = set[str](), set(names)
    for _ in range(FARTHEST):
        nodes, names = [node for name in names for node in step(name)], []
        found.update(node.output[0] for node in nodes if node.op_type in PRODUCTS)
        for node in nodes:
            if node.op_type in BETWEEN:
                names += [name for name in (node.output if onwards else node.input) if name and name not in seen]
        seen.update(names)
    return found


def _recorded(text: str) -> dict[str, list[str]]:
    """Nothing where the record cannot be read: whoever needs the match says so."""
    try:
        return {name: [str(row[0]) for row in rows] for name, rows in json.loads(text)["matched"].items()}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError):
        return {}


def _class_of(node: NodeProto) -> Iterable[str]:
    """The class of the innermost module around a node."""
    for entry in node.metadata_props if hasattr(node, "metadata_props") else ():
        if entry.key == CLASSES:
            try:
                listed = ast.literal_eval(entry.value)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                return
            if isinstance(listed, list) and len(listed) > 1:
                yield str(listed[-2]).rpartition(".")[2]
