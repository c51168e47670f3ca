"""Opset and IR version conversion of the copy to what onnxruntime-training loads: opset 13 to 21, IR 8 to 10.

1. Older operator sets are converted to 13 by onnx; constants that this makes have to be lifted again.
2. Newer ones are only relabelled: every operator must mean in 21 what it means there, which its schema tells: the same
   inputs, outputs and attributes (types may have been added). Operators that are new are inlined where their schema
   holds a function, and named where not.
"""

from __future__ import annotations

import onnx
import onnx.inliner
import onnx.shape_inference
import onnx.version_converter
from onnx import ModelProto, NodeProto
from onnx.defs import OpSchema
from onnx.helper import make_attribute, make_node, make_tensor_value_info

from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.draft import Draft
from onnxsparse.engines.ort.library import short
from onnxsparse.engines.ort.shapes import shapes_of
from onnxsparse.errors import ModelError
from onnxsparse.graph.edit import FreshNames, called, keep, scopes

FIRST_OPSET, FIRST_IR = 13, 8
FIRST_RUN = 7  # the runtime has no kernels of older arithmetic
LAST_PLAIN_RESIZE = 10
_OWN = ("", "ai.onnx")
_PLACED = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def raise_opset(draft: Draft) -> None:
    """An old draft is converted to opset 13, the first that `gradients.FACTS` speaks of; it may hold Constants then."""
    given = draft.opset
    if given < FIRST_OPSET:
        _upgrade(draft)
        draft.note(f"its operator set {given} was taken to {draft.opset} in the copy")
    draft.model.ir_version = max(draft.model.ir_version, FIRST_IR)


def lower_opset(draft: Draft) -> None:
    """A draft newer than onnxruntime-training 1.19.2, which loads opset 21 and IR 10 at most, is relabelled."""
    given = draft.opset
    if given > library.LAST_OPSET:
        _relabel(draft)
        draft.note(f"its operator set {given} was called {draft.opset} in the copy")
    draft.model.ir_version = min(draft.model.ir_version, library.LAST_IR)


def _upgrade(draft: Draft) -> None:
    draft.model.ir_version = max(draft.model.ir_version, FIRST_IR)
    draft.model = upgraded(draft.model, draft.opset)


def upgraded(model: ModelProto, given: int) -> ModelProto:
    """A model of an older operator set as one of opset 13; it may hold Constants then, and no metadata."""
    if given < FIRST_RUN:
        _place_broadcast(model, given)
    try:
        made = onnx.version_converter.convert_version(model, FIRST_OPSET)
    except Exception as error:  # the converter is C++ and raises what it likes
        raise ModelError(
            f"the model's operator set {given} cannot be converted to {FIRST_OPSET}: {short(error)}"
        ) from error
    del made.graph.value_info[:]  # the converter leaves some without a type
    if given <= LAST_PLAIN_RESIZE:
        _place_resized(made)
    return made


def _place_broadcast(model: ModelProto, given: int) -> None:
    """Arithmetic once named the axis of its second input; axes of size 1 after it say the same."""
    shapes = {name: shaped.sizes for name, shaped in shapes_of(model, []).items()}
    names, nodes = FreshNames.of(model.graph), []
    for node in model.graph.node:
        axis = _named_axis(node)
        if axis is not None:
            left, right = (shapes.get(name) for name in node.input)
            if left is None or right is None:
                raise ModelError(f"the shapes that {called(node)} of operator set {given} works on are not known")
            nodes += _spread(node, names, len(right), len(left) - axis % len(left))
        nodes.append(node)
    keep(model.graph.node, nodes)


def _named_axis(node: NodeProto) -> int | None:
    given = {one.name: one.i for one in node.attribute}
    if node.op_type == "PRelu":
        return 1  # one slope for each channel
    return given.get("axis") if "broadcast" in given else None


def _spread(node: NodeProto, names: FreshNames, rank: int, wanted: int) -> list[NodeProto]:
    keep(node.attribute, [one for one in node.attribute if one.name != "axis"])
    if wanted <= rank or not rank:
        return []
    wide = names(f"{node.input[1]}_spread")
    made = make_node("Unsqueeze", [node.input[1]], [wide], axes=list(range(rank, wanted)))
    node.input[1] = wide
    return [made]


def _place_resized(model: ModelProto) -> None:
    """Resize had one way to place its samples, and the converter does not say it."""
    for node in (node for graph in scopes(model.graph) for node in graph.node if node.op_type == "Resize"):
        kept = [one for one in node.attribute if one.name not in _PLACED]
        keep(node.attribute, [*kept, *(make_attribute(name, value) for name, value in _PLACED.items())])


def _relabel(draft: Draft) -> None:
    given = draft.opset
    unknown = _unknown(draft.model, given)
    if unknown:
        for op in sorted(unknown):
            draft.model = _without(draft.model, op)
        unknown = _unknown(draft.model, given)
    if unknown:
        raise ModelError(
            f"the training engine knows operator sets up to {library.LAST_OPSET}, and the model (operator set {given}) "
            f"uses {', '.join(sorted(unknown))} as it was defined later; export it with an operator set of "
            f"{library.LAST_OPSET} or less"
        )
    others = [entry for entry in draft.model.opset_import if entry.domain not in _OWN]
    keep(draft.model.opset_import, [onnx.helper.make_opsetid("", library.LAST_OPSET), *others])


def _unknown(model: ModelProto, opset: int) -> set[str]:
    nodes = [node for graph in scopes(model.graph) for node in graph.node if node.domain in _OWN]
    return {node.op_type for node in nodes if not _same_before(node, opset)}


def _same_before(node: NodeProto, opset: int) -> bool:
    """Whether the node means the same in the last operator set that the engine knows."""
    new, old = _schema(node.op_type, opset), _schema(node.op_type, library.LAST_OPSET)
    if new is None or old is None or old.deprecated:
        return False
    if new.since_version <= library.LAST_OPSET:
        return True
    used = {attribute.name for attribute in node.attribute}
    defaults = all(_default(new, name) == _default(old, name) for name in old.attributes)
    fits = len(node.input) <= old.max_input and len(node.output) <= old.max_output
    names = [one.name for one in old.inputs] == [one.name for one in new.inputs][: len(old.inputs)]
    return defaults and fits and names and used <= set(old.attributes) and set(old.attributes) <= set(new.attributes)


def _schema(op: str, opset: int) -> OpSchema | None:
    try:
        return onnx.defs.get_schema(op, opset)
    except Exception:  # SchemaError, which has moved between versions of onnx
        return None


def _default(schema: OpSchema, name: str) -> bytes:
    entry = schema.attributes.get(name)
    return entry.default_value.SerializeToString() if entry is not None else b"absent"


def _without(model: ModelProto, op: str) -> ModelProto:
    """An operator in the words of its schema's function, where it has one."""
    try:
        return onnx.inliner.inline_selected_functions(_typed(model), [("", op)], inline_schema_functions=True)
    except Exception:  # an onnx without this, or an operator without a function: it is named later
        return model


def _typed(model: ModelProto) -> ModelProto:
    """Some functions are written for the types at hand, so these have to be known, of initializers too."""
    copy = onnx.shape_inference.infer_shapes(model)
    known = {value.name for value in (*copy.graph.value_info, *copy.graph.input)}
    for tensor in copy.graph.initializer:
        if tensor.name not in known:
            copy.graph.value_info.append(make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return copy
