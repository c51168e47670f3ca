"""Which axis of a value the samples lie along, followed through a graph of one sample.

1. It is the first one of the inputs; Transpose, Squeeze, Gather and recurrent layers move it, Reshape keeps its place
   in memory: as many elements go round before it as before.
2. Where it gets lost (the axis is reduced or indexed) the value has none, and neither have those made of it.
3. Operators that are not named here keep axes, aligned at the last one.
4. Where Reshape joins the samples with another axis, that is the one after them (heads) unless it is the last one,
   which holds features: then it is the one before (time steps).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from onnx import NodeProto, TensorProto, numpy_helper
from onnx.helper import get_attribute_value

from onnxsparse.engines.ort.shapes import Shaped

_RECURRENT = ("LSTM", "GRU", "RNN")
_REDUCING = ("ArgMax", "ArgMin")


class SampleAxis:
    """Ask `of` for a value after `follow` has seen the nodes before it, in order."""

    def __init__(self, inputs: Iterable[str], shapes: Mapping[str, Shaped], stored: Mapping[str, TensorProto]) -> None:
        self._shapes, self._stored = shapes, stored
        self._known = dict.fromkeys(inputs, 0)
        self._inner: set[str] = set()  # values whose axis has the samples inside, not outside

    def of(self, name: str) -> int | None:
        return self._known.get(name)

    def follow(self, node: NodeProto) -> None:
        moving = next((slot for slot, name in enumerate(node.input) if name in self._known), None)
        if moving is None:
            return
        for place, name in enumerate(node.output):
            axis = self._after(node, moving, place) if name else None
            if axis is None or axis < 0:
                continue
            self._known[name] = axis
            joined = node.op_type not in ("Reshape", "Flatten") and node.input[moving] in self._inner
            if joined:
                self._inner.add(name)

    def _after(self, node: NodeProto, slot: int, place: int) -> int | None:
        axis, given = self._known[node.input[slot]], _attributes(node)
        before, after = self._sizes(node.input[slot]), self._sizes(node.output[place])
        if node.op_type in _RECURRENT:
            return 1 if place else 2
        if before is None or after is None:
            return None
        if node.op_type == "Transpose":
            return list(given.get("perm", range(len(before))[::-1])).index(axis)
        if node.op_type in ("Reshape", "Flatten"):
            return self._reshaped(node, slot, before, after)
        if node.op_type == "Gather":
            return self._gathered(node, slot, axis, given.get("axis", 0), len(before))
        if node.op_type in ("Squeeze", "Unsqueeze") or node.op_type.startswith("Reduce") or node.op_type in _REDUCING:
            return self._fewer_or_more(node, given, axis, before, after)
        return axis + len(after) - len(before)

    def _reshaped(self, node: NodeProto, slot: int, before: tuple[int, ...], after: tuple[int, ...]) -> int | None:
        """The axis that as many elements go round before it; of several, that of size 1."""
        name = node.input[slot]
        outer = math.prod(before[: self._known[name] + (name in self._inner)])
        places = [place for place in range(len(after)) if math.prod(after[:place]) == outer]
        alone = next((place for place in places if after[place] == 1), None)
        if alone is not None or not places:
            return alone
        if places[0] and places[0] == len(after) - 1:
            self._inner.add(node.output[0])
            return places[0] - 1
        return places[0]

    def _gathered(self, node: NodeProto, slot: int, axis: int, along: int, rank: int) -> int | None:
        along %= len(self._sizes(node.input[0]) or [0])
        if slot == 1:
            return along + axis
        indices = self._sizes(node.input[1])
        if along == axis or indices is None:
            return None
        return axis if along > axis else axis + len(indices) - 1

    def _fewer_or_more(
        self, node: NodeProto, given: Mapping[str, Any], axis: int, before: tuple[int, ...], after: tuple[int, ...]
    ) -> int | None:
        if len(before) == len(after):
            return axis
        axes = given.get("axes", [given["axis"]] if "axis" in given else self._listed(node))
        if axes is None:
            return None
        wider = max(len(before), len(after))
        changed = {one % wider for one in axes}
        rest = [one for one in range(wider) if one not in changed]
        if len(after) > len(before):
            return rest[axis]
        return rest.index(axis) if axis in rest else None

    def _listed(self, node: NodeProto) -> list[int] | None:
        stored = self._stored.get(node.input[1]) if len(node.input) > 1 else None
        return None if stored is None else [int(one) for one in numpy_helper.to_array(stored).reshape(-1)]

    def _sizes(self, name: str) -> tuple[int, ...] | None:
        shaped = self._shapes.get(name)
        return None if shaped is None else shaped.sizes


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}
