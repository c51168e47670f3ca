"""Sequences of tensors that are only a way to say Split, Concat or a single tensor.

1. Elements that SequenceAt takes out of SplitToSequence come out of a Split.
2. An element that SequenceAt takes out of SequenceConstruct is the tensor that went in; ConcatFromSequence of one is a
   Concat.
3. Other sequences stay. Shapes have to be fixed: how many parts there are depends on them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto, numpy_helper
from onnx.helper import get_attribute_value, make_node

from onnxsparse.engines.ort.draft import Draft
from onnxsparse.engines.ort.scopes import Names, bodies, reads
from onnxsparse.engines.ort.shapes import Shaped, shapes_of


def without_sequences(draft: Draft) -> bool:
    """Write them in plain words; whether there were any."""
    if not any(node.op_type in ("SplitToSequence", "SequenceConstruct") for node in draft.graph.node):
        return False
    work = _Sequences(draft)
    nodes = [made for node in draft.graph.node for made in work.written(node)]
    if work.changed:
        draft.place(nodes)
    return work.changed


class _Sequences:
    def __init__(self, draft: Draft) -> None:
        self.draft, self.stored, self.names = draft, draft.tensors(), Names(draft.graph)
        self.shapes = shapes_of(draft.model, [])
        self.elements: dict[str, list[str]] = {}  # of sequences that are no more
        self.changed = False

    def written(self, node: NodeProto) -> list[NodeProto]:
        """The nodes in place of this one."""
        made = [node]
        if node.op_type == "SplitToSequence" and self._plain(node.output[0]):
            made = self._split(node) or made
        elif node.op_type == "SequenceConstruct" and self._plain(node.output[0]):
            self.elements[node.output[0]] = list(node.input)
            made = []
        elif node.input and node.input[0] in self.elements:
            made = [self._taken(node)]
        self.changed |= made != [node]
        return made

    def _plain(self, sequence: str) -> bool:
        """Whether all that reads the sequence can do without it."""
        readers = [node for node in self.draft.graph.node if sequence in reads(node)]
        ends = {value.name for value in self.draft.graph.output}
        return sequence not in ends and all(self._understood(node) for node in readers)

    def _understood(self, node: NodeProto) -> bool:
        if any(True for _ in bodies(node)):
            return False
        if node.op_type == "SequenceAt":
            return node.input[1] in self.stored
        return node.op_type == "ConcatFromSequence" and not _attributes(node).get("new_axis", 0)

    def _split(self, node: NodeProto) -> list[NodeProto]:
        given = _attributes(node)
        shaped = self.shapes.get(node.input[0])
        sizes = _parts(shaped, given.get("axis", 0), self._length(node))
        if sizes is None or (len(node.input) < 2 and not given.get("keepdims", 1)):
            return []
        names = [self.names.fresh(f"{node.output[0]}_{number}") for number in range(len(sizes))]
        lengths = self.names.fresh("split")
        self.draft.graph.initializer.append(numpy_helper.from_array(np.array(sizes, np.int64), lengths))
        self.elements[node.output[0]] = names
        return [make_node("Split", [node.input[0], lengths], names, axis=given.get("axis", 0))]

    def _length(self, node: NodeProto) -> list[int] | int | None:
        """Of the parts, each or all; 1 where it is not said."""
        if len(node.input) < 2 or not node.input[1]:
            return 1
        stored = self.stored.get(node.input[1])
        found: list[int] | int | None = None if stored is None else numpy_helper.to_array(stored).tolist()
        return found

    def _taken(self, node: NodeProto) -> NodeProto:
        elements = self.elements[node.input[0]]
        if node.op_type == "SequenceAt":
            place = int(numpy_helper.to_array(self.stored[node.input[1]]).reshape(-1)[0])
            return make_node("Identity", [elements[place]], [node.output[0]])
        return make_node("Concat", elements, [node.output[0]], axis=_attributes(node)["axis"])


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}


def _parts(shaped: Shaped | None, axis: int, sizes: list[int] | int | None) -> list[int] | None:
    """Lengths of the parts; one number is the length of all but perhaps the last."""
    if isinstance(sizes, list):
        return sizes
    if sizes is None or shaped is None or shaped.sizes is None:
        return None
    whole = shaped.sizes[axis]
    return [min(sizes, whole - start) for start in range(0, whole, sizes)]
