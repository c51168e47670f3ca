"""Trainable tensors of a model, and writing their trained values back into it.

1. Every weight that is stored as floats trains, pruned or not, but for fixed filterbanks and for lookup tables that
   are not pruned; biases and the scales of normalizations train along.
2. Each stored tensor has a tag: its number in the model. The copy that is trained carries the tags in the doc strings
   of its tensors, which survive whatever else is done to the copy. Lists of floats in a Constant become tensors there.
3. Trained numbers go back by tag into the user's own graph, as the edit of the stored tensor, in its own type.
What it does not do: change the graph, or touch a tensor that did not train.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

from onnx import ModelProto, NodeProto

from onnxsparse.graph.biases_and_scales import statistics, vectors
from onnxsparse.graph.edit import every_tensor
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import FLOAT_KINDS, StoredTensor
from onnxsparse.graph.stores import FloatsAttribute
from onnxsparse.graph.weights import Weight
from onnxsparse.math.values import Array, to_bfloat16
from onnxsparse.planning.defaults import words_of
from onnxsparse.planning.plan import Plan
from onnxsparse.planning.stored_params import StoredParam, vector_param, weight_param

FIXED = ("basis", "embedding")


def trainables(model: Model, plan: Plan, with_statistics: bool = False) -> dict[str, StoredParam]:
    """Everything that trains, by tag."""
    planned = {row.weight for row in plan.planned}
    homes = model.flow.stores.homes
    chosen: dict[StoredTensor, StoredParam] = {
        weight.tensor: weight_param(weight) for weight in model.weights if _trains(weight, weight in planned, plan)
    }
    extra = [*vectors(model), *(statistics(model) if with_statistics else ())]
    # Names of the same bytes would be trained apart, and only one of them could be stored.
    weights = {weight.tensor for weight in model.weights} | model.flow.stores.sharing(every_tensor(model.proto))
    chosen.update({tensor: vector_param(tensor, homes[tensor].tag) for tensor in extra if tensor not in weights})
    return {chosen[tensor].tag: chosen[tensor] for tensor in homes if tensor in chosen}


def _trains(weight: Weight, planned: bool, plan: Plan) -> bool:
    if weight.tensor.kind not in FLOAT_KINDS or weight.twins or not weight.uses:
        return False
    if planned:
        return True
    if weight.refusal:
        return False
    words = words_of(weight_param(weight))
    return not any(word in words for word in FIXED) or weight.name in plan.rule.trained


def tagged(model: Model, tags: Mapping[str, StoredParam]) -> ModelProto:
    """A whole copy of a model, with the tags in it."""
    with ExitStack() as marks:
        for tag, one in tags.items():
            marks.enter_context(_marked(one.tensor, tag, model.flow.stores.homes[one.tensor].node))
        return model.copy_proto()


@contextmanager
def _marked(tensor: StoredTensor, tag: str, node: NodeProto | None) -> Iterator[None]:
    """While the model is copied, a tensor has its tag as doc string; a list of floats, which has none, is a tensor."""
    attribute = tensor.attribute if isinstance(tensor, FloatsAttribute) and _is_own(tensor, node) else None
    listed = None if attribute is None else attribute.SerializeToString()
    proto, text = tensor.proto, tensor.proto.doc_string if tensor.proto.HasField("doc_string") else None
    if isinstance(tensor, FloatsAttribute) and attribute is not None:
        tensor.become_tensor()
    tensor.proto.doc_string = tag
    try:
        yield
    finally:
        tensor.proto = proto
        if attribute is not None and listed is not None:
            attribute.ParseFromString(listed)
        proto.ClearField("doc_string") if text is None else setattr(proto, "doc_string", text)


def _is_own(tensor: FloatsAttribute, node: NodeProto | None) -> bool:
    """Whether the list stands in the node itself, and not in the call of a function around it."""
    return node is not None and any(attribute is tensor.attribute for attribute in node.attribute)


def send_back(trained: Mapping[str, Array], tags: Mapping[str, StoredParam]) -> None:
    """Make the trained numbers the edits of the stored tensors."""
    for tag in trained:
        tags[tag].tensor.edit = _Sent(partial(trained.__getitem__, tag), tags[tag].tensor)


class _Sent:
    """Numbers in the type of the tensor they go into."""

    def __init__(self, read: Callable[[], Array], tensor: StoredTensor) -> None:
        self._read, self._tensor = read, tensor

    def __call__(self) -> Iterator[Array]:
        flat = self._read().reshape(-1)
        yield to_bfloat16(flat) if self._tensor.kind == "bfloat16" else flat.astype(self._tensor.dtype, copy=False)
