"""Writes a detector's post-processing beside its exported parts, and one file of both.

    PATH.post.onnx         from the last part's outputs to boxes, scores and labels
    PATH.proposals.onnx    of two stages: from the first part's outputs to proposals and their pooled features
    PATH.whole.onnx        all parts and what is between them, from the image to boxes, scores and labels

Tensors of one name are one tensor, so files run one after the other by names. All take one image of a fixed size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from models.export.detector_nodes import Level
from models.export.one_stage import retina_graph
from models.export.two_stage import Feature, Pooling, bbox_graph, proposals_graph
from models.export.whole import joined
from models.networks.network import OneStage, TwoStage
from onnxsparse.errors import ModelError
from onnxsparse.files import Staged, put
from onnxsparse.planning.recorded import PREFIX

ANSWERS = ("boxes", "scores", "labels")
CLASSES = f"{PREFIX}classes"
"""Key of the metadata: {label: {id, name}} as JSON."""


def finish(
    network: Any,
    files: Mapping[str, str],
    image: Any,
    path: str,
    whole: bool,
    categories: Mapping[int, Mapping[str, Any]] | None = None,
) -> list[str]:
    """The files written; a classifier has nothing behind its network.

    `categories`, by label, are the metadata CLASSES of the files that have labels.
    """
    if not isinstance(network, (OneStage, TwoStage)):
        return []
    parts = [onnx.load(files[net.name]) for net in network.nets]
    size = np.asarray(image.shape[2:], np.float32)
    if isinstance(network, OneStage):
        post = _one_stage(network, parts[0], size)
        made = {f"{path}.post.onnx": post}
        order = [parts[0], post]
    else:
        proposals, post = _two_stage(network, parts, size)
        made = {f"{path}.proposals.onnx": proposals, f"{path}.post.onnx": post}
        order = [parts[0], proposals, parts[1], post]
    if categories:
        text = json.dumps(categories, separators=(",", ":"), ensure_ascii=False)
        post.metadata_props.add(key=CLASSES, value=text)
    if whole:
        made[f"{path}.whole.onnx"] = joined(order, ANSWERS, "detector")
    _write(made)
    return list(made)


def _one_stage(network: OneStage, part: ModelProto, size: Any) -> ModelProto:
    decoder, by = network.post.decoder, network.post.predictor.predictor
    return retina_graph(_levels(network.post, part, network.levels), decoder.classes, decoder.deltas, by, size)


def _two_stage(network: TwoStage, parts: Sequence[ModelProto], size: Any) -> tuple[ModelProto, ModelProto]:
    first, second = (net.outputs for net in network.nets)
    rpn, pre = network.rpn_post, network.pre
    names = first[2 * network.levels :]
    features = [Feature(name, _shape(parts[0], name), stride) for name, stride in zip(names, pre.strides)]
    pooling = Pooling(pre.pool_size, pre.sampling_ratio, pre.base_scale)
    levels, by = _levels(rpn, parts[0], network.levels), rpn.predictor.test
    pooled = network.nets[1].inputs[0]
    proposals = proposals_graph(levels, features, rpn.decoder.deltas, by, pooling, pooled, size)
    classes = _shape(parts[1], second[0])[1]
    return proposals, bbox_graph(second[0], second[1], classes, network.post.decoder, size)


def _levels(post: Any, part: ModelProto, count: int) -> list[Level]:
    """The levels as they were exported, with their anchors."""
    shapes = [_shape(part, f"cls_{level}")[2:] for level in range(count)]
    ends = np.cumsum(post.decoder.anchors.counts(shapes))[:-1]
    anchors = np.split(post.anchors(shapes), ends)
    return [Level(f"cls_{at}", f"loc_{at}", anchors[at], (shape[0], shape[1])) for at, shape in enumerate(shapes)]


def _shape(part: ModelProto, name: str) -> tuple[int, ...]:
    for one in part.graph.output:
        if one.name == name:
            return tuple(dim.dim_value for dim in one.type.tensor_type.shape.dim)
    raise ModelError(f"the exported part has no output '{name}'")


def _write(made: Mapping[str, ModelProto]) -> None:
    with Staged(True) as staged:
        for path, proto in made.items():
            with staged.create(path) as file:
                put(file, proto.SerializeToString())
        staged.commit()
