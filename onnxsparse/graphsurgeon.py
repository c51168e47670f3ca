"""Masks, pruning and verification on graphs of onnx-graphsurgeon, in place, in the middle of a surgery.

    import onnx_graphsurgeon as gs
    import onnxsparse as osp

    graph = osp.graphsurgeon.import_onnx("model.onnx")
    osp.graphsurgeon.prune(graph, target="ampere")            # surgery before and after it, as you like
    model = osp.graphsurgeon.export_onnx(graph)               # gs.export_onnx, and the record of the plan

Options are those of the functions of the same name in `onnxsparse`. Nodes and tensors that stay are the same objects;
where a function raises, the graph is as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx import ModelProto

from onnxsparse import api
from onnxsparse.api import Result
from onnxsparse.dialects import masking
from onnxsparse.errors import OptionError, brief
from onnxsparse.graph.model import Model, Source
from onnxsparse.graph.surgeon import is_graph, put_back
from onnxsparse.passes.sources import RECORD, Kept, graph_of, keep, of_graph, taken

__all__ = ["export_onnx", "fold_masks", "import_onnx", "insert_masks", "prune", "verify"]


def insert_masks(graph: Any, **options: Any) -> Result:
    """Put a mask-multiply before every weight that the options would prune; the weights stay as they are."""
    return _in_place("insert_masks", masking.insert_masks, graph, options)


def prune(graph: Any, **options: Any) -> Result:
    """Write zeros into the constants of the graph, by a pattern or for a target."""
    return _in_place("prune", api.prune, graph, options)


def fold_masks(graph: Any, **options: Any) -> Result:
    """Fold every mask in the graph into its weight and take the nodes out; with `discard` the masks are dropped."""
    return _in_place("fold_masks", api.fold_masks, graph, options)


def verify(graph: Any, **options: Any) -> Result:
    """Check the zeros against a plan file, a pattern, a device, or the record beside the graph; nothing changes."""
    return api.verify(of_graph(_graph(graph, "verify")), **options)


def import_onnx(source: Source) -> Any:
    """A graph for a model, as `gs.import_onnx` makes it of a ModelProto, with the model's record beside it."""
    return graph_of(_whole(source))


def export_onnx(graph: Any, record: Any = None) -> ModelProto:
    """The model of a graph, as `gs.export_onnx` makes it, with the record of what was done to it as metadata.

    `graph.copy()` and `gs.import_onnx` know no record: `record` is then the graph, or the model, that has it. Weights
    of the plan that are gone, or hold other numbers since, are said in the log.
    """
    graph = _graph(graph, "export_onnx")
    if record is None:
        return of_graph(graph)
    if is_graph(record):
        kept = vars(record).get(RECORD)
        return of_graph(graph, kept if isinstance(kept, Kept) else None)
    return of_graph(graph, Kept.of(_whole(record)))


def _whole(source: Any) -> ModelProto:
    """A model with its data in memory."""
    return Model.open(taken(source)).take_proto()


def _graph(graph: Any, called: str) -> Any:
    if not is_graph(graph):
        raise OptionError(
            f"osp.graphsurgeon.{called} works on an onnx_graphsurgeon.Graph, not on {brief(graph)}; "
            "osp.graphsurgeon.import_onnx makes one of any model"
        )
    return graph


def _in_place(called: str, function: Callable[..., Result], graph: Any, options: dict[str, Any]) -> Result:
    """Run a pass on the model of a graph and bring what it made into the graph."""
    if not options.keys().isdisjoint(("output", "overwrite")):
        raise OptionError(
            f"osp.graphsurgeon.{called} changes the graph itself; save what osp.graphsurgeon.export_onnx returns"
        )
    result = function(of_graph(_graph(graph, called)), **options)
    if result.proto is None:  # a fold that does not hold makes no model, and the report says why
        return result
    put_back(graph, result.proto)
    keep(graph, result.proto)
    result.made = graph
    return result
