"""What trains in a model, and the way back of trained numbers into it.

1. Every weight that is stored as floats trains, pruned or not, but for fixed filterbanks and for lookup tables that
   are not pruned; biases and the scales of normalizations train along.
2. Each stored tensor has a tag: its number in the model. The copy that is trained carries the tags in the doc strings
   of its tensors, which survive whatever else is done to the copy. Lists of floats in a Constant become tensors there.
3. Trained numbers go back by tag into the user's own graph, as the edit of the stored tensor, in its own type.
What it does not do: change the graph, or touch a tensor that did not train.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto

from onnxsparse.graph.every import every_tensor
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import FLOAT_KINDS, StoredTensor
from onnxsparse.graph.stores import FloatsAttribute
from onnxsparse.graph.vectors import statistics, vectors
from onnxsparse.graph.weights import Weight
from onnxsparse.math.values import Array, Reading, Values
from onnxsparse.passes.matrices import Matrix
from onnxsparse.passes.plan import Plan, names_of
from onnxsparse.passes.words import words_of

MARK = "onnxsparse:"
FIXED = ("basis", "embedding")


@dataclass(frozen=True, eq=False)
class Trainable:
    """A stored tensor that trains: its tag, its name in reports, and the weight it is, if it is one."""

    tag: str
    name: str
    tensor: StoredTensor
    weight: Weight | None = None

    def numbers(self) -> Array:
        """What is stored, as float32."""
        return as_float32(self.tensor)


def as_float32(tensor: StoredTensor) -> Array:
    flat = Values(tensor.read(), Reading(tensor.kind)).real()
    return flat.astype(np.float32, copy=False).reshape(tensor.shape)


def trainables(model: Model, plan: Plan, with_statistics: bool = False) -> dict[str, Trainable]:
    """Everything that trains, by tag."""
    planned = {id(row.weight) for row in plan.planned}
    names = names_of(model.weights)
    chosen: dict[StoredTensor, tuple[str, Weight | None]] = {}
    for weight in model.weights:
        if _trains(weight, id(weight) in planned, plan):
            chosen[weight.tensor] = names[id(weight)], weight
    extra = [*vectors(model), *(statistics(model) if with_statistics else ())]
    # Names of the same bytes would be trained apart, and only one of them could be stored.
    weights = {weight.tensor for weight in model.weights} | model.flow.stores.sharing(every_tensor(model.proto))
    chosen.update({tensor: (tensor.name, None) for tensor in extra if tensor not in weights})
    tags = {tensor: f"{MARK}{number}" for number, tensor in enumerate(model.flow.stores.homes)}
    return {tags[tensor]: Trainable(tags[tensor], *_named(tensor, chosen)) for tensor in tags if tensor in chosen}


def _named(
    tensor: StoredTensor, chosen: Mapping[StoredTensor, tuple[str, Weight | None]]
) -> tuple[str, StoredTensor, Weight | None]:
    name, weight = chosen[tensor]
    return name, tensor, weight


def _trains(weight: Weight, planned: bool, plan: Plan) -> bool:
    if weight.tensor.kind not in FLOAT_KINDS or weight.twins or not weight.uses:
        return False
    if planned:
        return True
    if weight.refusal:
        return False
    words = words_of(Matrix(weight.name, weight, weight.uses[0]))
    return not any(word in words for word in FIXED) or weight.name in plan.rule.trained


def tagged(model: Model, tags: Mapping[str, Trainable]) -> ModelProto:
    """A whole copy of a model as it was opened, with the tags in it."""
    copy = Model.open(model.path) if model.path is not None else Model.open(model.proto)
    _ = copy.weights
    for number, tensor in enumerate(copy.flow.stores.homes):
        if f"{MARK}{number}" in tags:
            if isinstance(tensor, FloatsAttribute) and _is_own(tensor, copy.flow.stores.homes[tensor].node):
                tensor.become_tensor()
            tensor.proto.doc_string = f"{MARK}{number}"
    return copy.take_proto()


def _is_own(tensor: FloatsAttribute, node: NodeProto | None) -> bool:
    """Whether the list stands in the node itself, and not in the call of a function around it."""
    return node is not None and any(attribute is tensor.attribute for attribute in node.attribute)


def send_back(trained: Mapping[str, Array], tags: Mapping[str, Trainable]) -> None:
    """Make the trained numbers the edits of the stored tensors."""
    for tag, array in trained.items():
        tags[tag].tensor.edit = _Sent(array, tags[tag].tensor)


class _Sent:
    """Numbers in the type of the tensor they go into."""

    def __init__(self, array: Array, tensor: StoredTensor) -> None:
        self._array, self._tensor = array, tensor

    def __call__(self) -> Iterator[Array]:
        flat = self._array.reshape(-1)
        yield _bfloat16(flat) if self._tensor.kind == "bfloat16" else flat.astype(self._tensor.dtype, copy=False)


def _bfloat16(flat: Array) -> Array:
    """Rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(flat, np.float32).view(np.uint32)
    rounded: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded
