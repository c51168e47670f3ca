"""Constant parts of the copy are computed, the trained weights left alone.

1. The runtime does it (its basic level): while the trained weights, and only those, are listed as inputs with a default
   it neither folds nor fuses them, and their names survive.
2. Where the runtime writes a graph that cannot be used, nodes that hang on constants and fixed shapes alone are
   computed one part at a time.
"""

from __future__ import annotations

import importlib
import os
import tempfile

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, numpy_helper
from onnx.helper import make_tensor_value_info

from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.draft import Draft, keep
from onnxsparse.engines.ort.lift import lift
from onnxsparse.engines.ort.reach import downstream, part, reduce_to
from onnxsparse.engines.ort.runner import Runner
from onnxsparse.engines.ort.scopes import CONTROL_FLOW, bodies, reads
from onnxsparse.engines.ort.shapes import shapes_of

RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
LARGEST = 1 << 24  # elements of a folded value that no constant as large went into


def fold(draft: Draft) -> None:
    """Fold the draft in place, by the runtime if it can."""
    outputs = [value.name for value in draft.graph.output]
    folded = _by_runtime(draft)
    if folded is None:
        draft.note("the runtime's own folding of constants could not be used")
    else:
        draft.model = folded
    _by_parts(draft)  # the runtime stops after some rounds
    lift(draft, set(draft.tags.values()))
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
    return saved if _usable(draft, saved) else None


def _saved(model: ModelProto) -> ModelProto:
    runtime = importlib.import_module("onnxruntime")
    options = library.options()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory(prefix="onnxsparse-") as folder, library.quiet():
        options.optimized_model_filepath = os.path.join(folder, "folded.onnx")
        runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def _usable(draft: Draft, saved: ModelProto) -> bool:
    """The trained weights are there, and no operator of a domain that the graph did not have."""
    stored = {tensor.name: tuple(tensor.dims) for tensor in saved.graph.initializer}
    before = {name: tuple(tensor.dims) for name, tensor in draft.tensors().items() if name in draft.tags}
    domains = {node.domain for node in draft.graph.node}
    same = {value.name for value in saved.graph.output} == {value.name for value in draft.graph.output}
    new = {node.domain for node in saved.graph.node} - domains - {"", "ai.onnx"}
    return same and not new and all(stored.get(name) == dims for name, dims in before.items())


def strip_imports(model: ModelProto) -> None:
    """Only domains that nodes use are imported."""
    used = {"" if node.domain == "ai.onnx" else node.domain for node in _every(model.graph.node)} | {""}
    named = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import}
    keep(model.opset_import, [onnx.helper.make_opsetid(name, named.get(name, 1)) for name in sorted(used)])


def _every(nodes: object) -> list[NodeProto]:
    found = []
    for node in nodes:  # type: ignore[attr-defined]
        found += [node, *(inner for body in bodies(node) for inner in _every(body.node))]
    return found


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
    for name, value in Runner(part(draft.model, frontier), fold=False)({}).items():
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
