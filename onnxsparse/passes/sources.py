"""Model sources: a path, bytes, ModelProto, graphsurgeon, onnx_ir or torch.onnx object becomes a ModelProto, once.

1. Paths and ModelProtos stay as they are. Bytes are those of a whole file; a graph of onnx-graphsurgeon is exported, an
   `onnx_ir.Model` serialised with its external data, and a `torch.onnx.ONNXProgram` has a ModelProto of its own.
2. What is none of these is an error of one line, whatever its class makes of `repr`, `isinstance` or `__fspath__`.
3. A graph of onnx-graphsurgeon has no place for metadata. It is kept beside the graph, with a digest of every weight
   that the plan in it names. When the graph becomes a model again, each row of the plan is looked up:
   a weight that is the same stays in it, under its new name where it has one; one that is gone, or has another shape,
   is taken out; one with other numbers stays, because `verify` tells whether they hold. The last two are said.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from onnxsparse.errors import ModelError, OptionError, brief, one_line
from onnxsparse.graph import surgeon
from onnxsparse.graph.edit import every_tensor
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Weight
from onnxsparse.planning.recorded import MASKED, PREFIX

LOG = logging.getLogger("onnxsparse")
RECORD = "_onnxsparse_record"
WAYS = "a path, a ModelProto, its bytes, an onnx_graphsurgeon.Graph, an onnx_ir.Model or a torch.onnx.ONNXProgram"
NO_MODEL = "are no ONNX model; pass those of a whole .onnx file, or its path as text"
HEADER = ("domain", "model_version", "doc_string")


def taken(source: Any, opened: bool = False) -> Any:
    """A path or a ModelProto for whatever a model is given as; with `opened` a Model may be one, too."""
    kind = type(source)
    if issubclass(kind, ModelProto) or (opened and issubclass(kind, Model)):
        return source
    if issubclass(kind, (str, os.PathLike)):
        return _path(source)
    found = proto_of(source)
    if found is None:
        raise OptionError(f"a model is {WAYS}, not {brief(source)}")
    return found


def proto_of(source: object) -> ModelProto | None:
    """The model that something holds in memory; None where it is of no kind that is known."""
    kind = type(source)
    if issubclass(kind, ModelProto):
        return source  # type: ignore[return-value]
    if issubclass(kind, (bytes, bytearray, memoryview)):
        return _parsed(bytes(source))  # type: ignore[call-overload]
    if surgeon.is_graph(source):
        return of_graph(source)
    for package, module in (("onnx_ir", "onnx_ir"), ("onnxscript", "onnxscript.ir")):
        if surgeon.is_a(source, package, "Model"):
            return _serialised(source, module)
    if surgeon.is_a(source, "torch", "ONNXProgram"):
        made: ModelProto = source.model_proto  # type: ignore[attr-defined]
        return made
    return None


def _path(source: Any) -> str:
    try:
        path = os.fsdecode(os.fspath(source))
    except Exception as error:  # its class may do anything
        raise OptionError(f"a model is {WAYS}, not {brief(source)}, whose path is none: {one_line(error)}") from error
    if "\0" in path:
        raise OptionError(f"no path holds a zero byte, as {brief(path)} does")
    return path


def _parsed(data: bytes) -> ModelProto:
    try:
        made: ModelProto = ModelProto.FromString(data)
    except DecodeError as error:
        raise ModelError(f"the bytes {NO_MODEL}") from error
    if not made.HasField("graph"):
        raise ModelError(f"the bytes {NO_MODEL}")
    return made


def _serialised(model: Any, module: str) -> ModelProto:
    """A model of onnx_ir; its external tensors know a folder that the ModelProto does not."""
    try:
        made: ModelProto = importlib.import_module(module).serde.serialize_model(model)
        values = [value for graph in model.graphs() for value in graph.initializers.values()]
        stored = {value.name: value.const_value for value in values}
        for tensor in every_tensor(made):
            if tensor.data_location == TensorProto.EXTERNAL and tensor.name in stored:
                tensor.raw_data = stored[tensor.name].tobytes()
                del tensor.external_data[:]
                tensor.ClearField("data_location")
    except Exception as error:  # a model in the middle of a change fails in as many ways as there are
        raise ModelError(f"{module} does not serialise the model: {one_line(error)}") from error
    return made


# -- the record of a graph


@dataclass(frozen=True)
class Kept:
    """What a graph cannot hold: the metadata and header of its model, and digests of the weights in its plan."""

    metadata: Mapping[str, str]
    header: Mapping[str, Any]
    digests: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, proto: ModelProto) -> Kept:
        model = Model.over(proto)
        header = {name: getattr(proto, name) for name in HEADER if getattr(proto, name)}
        metadata, named = model.metadata, set()
        for prefix in _planned(metadata):
            named |= set(_plan(metadata, prefix).get("pruned", ()))
        weights = {name: one for name, one in _weights(model).items() if name in named} if named else {}
        digests = {name: _digest(one, MASKED + "plan" in metadata) for name, one in weights.items()}
        return cls(metadata, header, digests, {name: one.shape for name, one in weights.items()})


def of_graph(graph: Any, record: Kept | None = None) -> ModelProto:
    """The model of a graph, with what is recorded of it as far as it still fits."""
    proto = surgeon.exported(graph)
    kept = vars(graph).get(RECORD) if record is None else record
    if not isinstance(kept, Kept):
        return proto
    for name, value in kept.header.items():
        setattr(proto, name, value)
    for key, text in _fitting(kept, proto).items():
        proto.metadata_props.add(key=key, value=text)
    return proto


def graph_of(proto: ModelProto) -> Any:
    """A graph of onnx-graphsurgeon for a model, with its record beside it."""
    graph = surgeon.imported(proto)
    keep(graph, proto)
    return graph


def keep(graph: Any, proto: ModelProto) -> None:
    """Keep what the model of a graph records, beside the graph."""
    vars(graph)[RECORD] = Kept.of(proto)


def _fitting(kept: Kept, proto: ModelProto) -> dict[str, str]:
    """The metadata with rows for the weights that are there; what is not as it was is said."""
    metadata, prefixes = dict(kept.metadata), _planned(kept.metadata)
    if not prefixes:
        return metadata
    weights = _weights(Model.over(proto))
    masked = MASKED + "plan" in metadata
    digests = {name: _digest(one, masked) for name, one in weights.items()}
    for prefix in prefixes:
        plan = _plan(metadata, prefix)
        if not plan:
            continue
        gone: list[str] = []
        pruned = {}
        for name, row in plan["pruned"].items():
            found = _found(name, kept, digests)
            if found is None or weights[found].shape != kept.shapes.get(name, weights[found].shape):
                gone.append(name)
            else:
                pruned[found] = row
        other = [name for name in pruned if name in kept.digests and digests[name] != kept.digests[name]]
        dense = {name: row for name, row in plan["dense"].items() if name in weights and name not in pruned}
        metadata[prefix + "plan"] = json.dumps(
            {**plan, "pruned": pruned, "dense": dense}, separators=(",", ":"), ensure_ascii=False
        )
        what = "its mask" if masked and prefix == MASKED else "its numbers"
        _say(gone, "is gone from the graph or has another shape; it was taken out of the recorded plan")
        _say(other, f"is not as it was when the plan was made: {what} changed since; verify tells whether they hold")
    return metadata


def _found(name: str, kept: Kept, digests: Mapping[str, str]) -> str | None:
    """What a weight is called now; a renamed one is told by its numbers, where they are those of one weight only."""
    if name in digests:
        return name
    same = [other for other, digest in digests.items() if digest == kept.digests.get(name)]
    return same[0] if len(same) == 1 and same[0] not in kept.digests else None


def _say(names: list[str], what: str) -> None:
    if names:
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        LOG.warning("onnx-graphsurgeon: weight '%s'%s %s", names[0], more, what)


def _planned(metadata: Mapping[str, str]) -> Iterable[str]:
    return [prefix for prefix in (MASKED, PREFIX) if prefix + "plan" in metadata]


def _plan(metadata: Mapping[str, str], prefix: str) -> dict[str, Any]:
    """The plan as it is recorded; of a damaged one nothing, which is said where somebody asks for it."""
    try:
        plan: Any = json.loads(metadata[prefix + "plan"])
    except (ValueError, RecursionError):
        return {}
    whole = isinstance(plan, dict) and all(isinstance(plan.get(part), dict) for part in ("pruned", "dense"))
    return plan if whole else {}


def _weights(model: Model) -> dict[str, Weight]:
    return {one.name: one for one in model.weights}


def _digest(weight: Weight, masked: bool) -> str:
    """What the record is about: the numbers of a weight, or while masks are in the graph, what they keep."""
    tensor = weight.tensor
    digest = hashlib.blake2b(f"{tensor.kind} {tensor.shape}".encode(), digest_size=16)
    masks = [mask for use in weight.uses for mask in use.masks] if masked else []
    if masked:
        for kept in masks:
            digest.update(kept.stored().tobytes())
    elif tensor.readable:
        digest.update(tensor.read().tobytes())
    return f"{digest.hexdigest()} {len(masks)}" if masked else digest.hexdigest()
