"""Canonical form of a model: functions inlined, stored tensors as initializers, float32, constants folded."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Collection

import numpy as np
import onnx
import onnx.inliner
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    numpy_helper,
)
from onnx.helper import make_node, make_tensor_value_info

from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.draft import Draft
from onnxsparse.engines.ort.library import Runner
from onnxsparse.engines.ort.shapes import shapes_of
from onnxsparse.graph.edit import (
    CONTROL_FLOW,
    RANDOM,
    FreshNames,
    bodies,
    downstream,
    extracted,
    keep,
    reads,
    reduce_to,
    rename_reads,
    scopes,
)
from onnxsparse.graph.initializers import constants_as_initializers, inlined, without_identities

# -- Stored tensors become initializers of the main graph.
#
# 1. Local functions are inlined.
# 2. Constants of all scopes, and initializers of bodies, move to the main graph, under new names where names clash.
# 3. A tensor that came out several times (a function called twice) is one tensor again: the tag says so.
# 4. Identity of an initializer is the initializer.
# 5. Initializers are no inputs of the graph.
# 6. A whole number that is fed, one and the same for all samples, is a constant.


def inline_functions(draft: Draft) -> None:
    """Local functions are inlined: neither the runtime's own folding nor the engine looks into them."""
    draft.model = inlined(draft.model)


def lift(draft: Draft) -> None:
    """All stored tensors to the main graph, where the engine looks for what it trains; `draft.tags` names these."""
    graph, wanted = draft.graph, draft.wanted
    for tensor in graph.initializer:  # tools that rebuild the model drop the tags, and keep the names
        if tensor.name in draft.tags:
            tensor.doc_string = draft.tags[tensor.name]
    names = FreshNames.of(graph)
    constants_as_initializers(graph)
    for node in graph.node:
        for body in bodies(node):
            _raise(body, graph, names)
    _one_each(draft, wanted)
    stored = {tensor.name for tensor in graph.initializer}
    while without_identities(graph, stored):
        pass
    keep(graph.input, [value for value in graph.input if value.name not in stored])
    draft.tags = {tensor.name: tensor.doc_string for tensor in graph.initializer if tensor.doc_string in wanted}


def _raise(body: GraphProto, main: GraphProto, names: FreshNames) -> None:
    """Initializers of a body, and of the bodies in it, become ones of the main graph."""
    table = {}
    for tensor in body.initializer:
        table[tensor.name] = names(tensor.name)
        tensor.name = table[tensor.name]
        main.initializer.append(tensor)
    del body.initializer[:]
    rename_reads(body.node, table)
    for value in body.output:  # a body gives what it computes
        if value.name in table:
            body.node.append(make_node("Identity", [table[value.name]], [value.name]))
    for node in body.node:
        for inner in bodies(node):
            _raise(inner, main, names)


def _one_each(draft: Draft, wanted: Collection[str]) -> None:
    graph, kept = draft.graph, []
    first: dict[str, str] = {}
    table: dict[str, str] = {}
    outputs = {value.name for value in graph.output}
    for tensor in graph.initializer:
        tag = tensor.doc_string if tensor.doc_string in wanted else ""
        if tag and tag in first and tensor.name not in outputs:
            table[tensor.name] = first[tag]
            continue
        if tag:
            first.setdefault(tag, tensor.name)
        kept.append(tensor)
    if table:
        keep(graph.initializer, kept)
        rename_reads(graph.node, table)


def fix_numbers(draft: Draft) -> None:
    """Whole numbers and flags that every sample feeds alike become constants."""
    samples, fixed = draft.samples, set[str]()
    for value in draft.graph.input:
        array = samples.arrays.get(value.name)
        kind = value.type.tensor_type
        if array is None or kind.elem_type in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE):
            continue
        sizes = [dim.dim_value for dim in kind.shape.dim] if kind.HasField("shape") else [0]
        if all(size == 1 for size in sizes) and np.all(array == array.flat[0]) and array.dtype.kind in "iub":
            number = np.full(sizes, array.flat[0], onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
            draft.graph.initializer.append(numpy_helper.from_array(number, value.name))
            draft.note(f"the input '{value.name}' is {array.flat[0]} in all samples and was made a constant")
            fixed.add(value.name)
    keep(draft.graph.input, [value for value in draft.graph.input if value.name not in fixed])
    samples.without(fixed)


# -- The copy computes in float32 throughout, whatever the user's file is stored in.
#
# 1. Tensors of half, brain and double precision, in initializers and attributes, become float32.
# 2. Casts, `dtype` attributes and declared types follow.
# 3. A finite double beyond the range of float32 becomes the largest float32, not an infinity.

OTHER_FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_KINDS = {"Cast": ("to",)}  # elsewhere the attribute is `dtype`


def single_precision(draft: Draft) -> None:
    """All is float32: for that the gradients of the engine (1.19.2) were measured, and for nothing else."""
    changed = False
    for graph in scopes(draft.graph):
        for tensor in graph.initializer:
            changed |= _narrow(tensor)
        for node in graph.node:
            changed |= _narrow_attributes(node)
        changed |= _declared(graph)
    if changed:
        draft.note("it computes in another precision than float32; the copy is trained in float32")


def _narrow(tensor: TensorProto) -> bool:
    if tensor.data_type not in OTHER_FLOATS:
        return False
    array = numpy_helper.to_array(tensor)
    limit = float(np.finfo(np.float32).max)
    finite = np.isfinite(array.astype(np.float64))
    wide = array.astype(np.float64)
    values = np.where(finite, np.clip(wide, -limit, limit), wide).astype(np.float32)
    name, text = tensor.name, tensor.doc_string
    tensor.CopyFrom(numpy_helper.from_array(values.reshape(array.shape), name))
    tensor.doc_string = text
    return True


def _narrow_attributes(node: NodeProto) -> bool:
    changed = False
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            changed |= _narrow(attribute.t)
        elif attribute.name in _KINDS.get(node.op_type, ("dtype",)) and attribute.i in OTHER_FLOATS:
            attribute.i, changed = TensorProto.FLOAT, True
    return changed


def _declared(graph: GraphProto) -> bool:
    changed = False
    for value in (*graph.input, *graph.output, *graph.value_info):
        changed |= _narrow_type(value.type)
    return changed


def _narrow_type(kind: TypeProto) -> bool:
    if kind.HasField("sequence_type"):
        return _narrow_type(kind.sequence_type.elem_type)
    if kind.HasField("optional_type"):
        return _narrow_type(kind.optional_type.elem_type)
    if kind.HasField("tensor_type") and kind.tensor_type.elem_type in OTHER_FLOATS:
        kind.tensor_type.elem_type = TensorProto.FLOAT
        return True
    return False


# -- Constant parts of the copy are computed, the trained weights left alone.
#
# 1. The runtime does it (its basic level): while the trained weights, and only those, are listed as inputs with a
#    default it neither folds nor fuses them, and their names survive.
# 2. Where the runtime writes a graph that cannot be used, nodes that hang on constants and fixed shapes alone are
#    computed one part at a time.

LARGEST = 1 << 24  # elements of a folded value that no constant as large went into


def fold(draft: Draft) -> None:
    """What hangs on constants alone is computed, by the runtime if it can: a shape that is computed in the graph is one
    that the rewrites do not know, and weights behind Identity or Transpose are not found."""
    outputs = [value.name for value in draft.graph.output]
    folded = _by_runtime(draft)
    if folded is None:
        draft.note("the runtime's own folding of constants could not be used")
    else:
        draft.model = folded
    _by_parts(draft)  # the runtime stops after some rounds
    lift(draft)
    reduce_to(draft.model, outputs)
    strip_imports(draft.model)


def _by_runtime(draft: Draft) -> ModelProto | None:
    listed = ModelProto()
    listed.CopyFrom(draft.model)
    stored = draft.tensors()
    for name in draft.tags:
        tensor = stored[name]
        listed.graph.input.append(make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
    try:
        saved = _saved(listed)
    except Exception:  # the runtime raises types of its own; the other way is tried if the graph is a graph at all
        Runner(draft.model, fold=False)
        return None
    return saved if _is_usable(draft, saved) else None


def _saved(model: ModelProto) -> ModelProto:
    runtime = importlib.import_module("onnxruntime")
    options = library.options()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory(prefix="onnxsparse-") as folder, library.quiet():
        options.optimized_model_filepath = os.path.join(folder, "folded.onnx")
        runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def _is_usable(draft: Draft, saved: ModelProto) -> bool:
    """The trained weights are there, and no operator of a domain that the graph did not have."""
    stored = {tensor.name: tuple(tensor.dims) for tensor in saved.graph.initializer}
    before = {name: tuple(tensor.dims) for name, tensor in draft.tensors().items() if name in draft.tags}
    domains = {node.domain for node in draft.graph.node}
    same = {value.name for value in saved.graph.output} == {value.name for value in draft.graph.output}
    new = {node.domain for node in saved.graph.node} - domains - {"", "ai.onnx"}
    return same and not new and all(stored.get(name) == dims for name, dims in before.items())


def strip_imports(model: ModelProto) -> None:
    """Only domains that nodes use are imported."""
    used = {"" if node.domain == "ai.onnx" else node.domain for graph in scopes(model.graph) for node in graph.node} | {
        ""
    }
    named = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import}
    keep(model.opset_import, [onnx.helper.make_opsetid(name, named.get(name, 1)) for name in sorted(used)])


def _by_parts(draft: Draft) -> None:
    """Shape nodes of fixed values first, then all that hangs on constants."""
    shapes = shapes_of(draft.model, [])
    for node in draft.graph.node:
        shaped = shapes.get(node.input[0]) if node.op_type in ("Shape", "Size") else None
        if shaped is not None and shaped.sizes is not None:
            _answer(draft, node, shaped.sizes)
    keep(draft.graph.node, [node for node in draft.graph.node if node.op_type != "_Answered"])
    ready = _constant_values(draft)
    if not ready:
        return
    nodes = [node for node in draft.graph.node if not all(name in ready for name in node.output if name)]
    asked = {name for node in nodes for name in reads(node)} | {value.name for value in draft.graph.output}
    frontier = sorted(asked & ready)
    for name, value in Runner(extracted(draft.model, frontier), fold=False)({}).items():
        draft.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    keep(draft.graph.node, nodes)


def _answer(draft: Draft, node: NodeProto, sizes: tuple[int, ...]) -> None:
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    part_ = np.array(sizes[bounds.get("start", 0) : bounds.get("end", len(sizes))], np.int64)
    value = part_ if node.op_type == "Shape" else np.array(np.prod(sizes), np.int64)
    draft.graph.initializer.append(numpy_helper.from_array(value, node.output[0]))
    node.op_type = "_Answered"


def _constant_values(draft: Draft) -> set[str]:
    """Outputs of nodes that neither an input, a trained weight nor chance can change."""
    chance = [node for node in draft.graph.node if node.op_type in RANDOM or node.op_type in CONTROL_FLOW]
    sources = {value.name for value in draft.graph.input} | set(draft.tags)
    sources |= {name for node in chance for name in node.output if name}
    moving = downstream(draft.graph, sources)
    found = {name for node in draft.graph.node for name in node.output if name} - moving
    return found if _reasonable(draft, found) else set()


def _reasonable(draft: Draft, names: set[str]) -> bool:
    sizes = [shaped.sizes for name, shaped in shapes_of(draft.model, []).items() if name in names]
    return all(size is None or np.prod(size) <= LARGEST for size in sizes)
