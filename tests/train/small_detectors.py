"""Detectors with their post-processing inside, as exporters write them, small enough to be trained in a test."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, checker, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

SIDE = 32
CHOICE = {"most": np.int64(12), "iou": np.float32(0.5), "least": np.float32(0.85)}
"""Few boxes are as likely as that: how many come out hangs on the picture."""


def one_stage() -> ModelProto:
    """Two levels whose heads an exporter copied, the second one with a normalization folded in; one NMS behind them."""
    rng = np.random.default_rng(0)
    head = _weight(rng, 16, 16, 3, 3)
    stored = {
        **_backbone(rng),
        "head.0": head,
        "head.1": head * rng.uniform(0.5, 2.0, (16, 1, 1, 1)).astype(np.float32),
        "scores": _weight(rng, 4, 16, 1, 1),
        "boxes": _weight(rng, 4, 16, 1, 1),
        "anchors": rng.random((1, 80, 4)).astype(np.float32),
        "flat": np.array([1, 4, -1]),
        "one": np.array([1]),
        "two": np.array([2]),
        **CHOICE,
    }
    nodes = [
        *_features(),
        make_node("MaxPool", ["f"], ["g"], kernel_shape=[2, 2], strides=[2, 2]),
        *(node for level, feature in enumerate("fg") for node in _head(level, feature)),
        make_node("Concat", ["scores.0", "scores.1"], ["logits"], axis=2),
        make_node("Sigmoid", ["logits"], ["p"]),
        make_node("Concat", ["boxes.0", "boxes.1"], ["deltas"], axis=2),
        make_node("Transpose", ["deltas"], ["turned"], perm=[0, 2, 1]),
        make_node("Exp", ["turned"], ["grown"]),
        make_node("Mul", ["grown", "anchors"], ["decoded"]),
        make_node("NonMaxSuppression", ["decoded", "p", "most", "iou", "least"], ["kept"]),
        make_node("Gather", ["kept", "two"], ["column"], axis=1),
        make_node("Squeeze", ["column", "one"], ["places"]),
        make_node("Gather", ["decoded", "places"], ["found"], axis=1),
    ]
    ends = [make_tensor_value_info("found", TensorProto.FLOAT, [1, "count", 4])]
    return _model(nodes, stored, [*ends, make_tensor_value_info("kept", TensorProto.INT64, ["count", 3])])


def two_stage() -> ModelProto:
    """Proposals out of NMS, RoiAlign, and two layers behind it; how many boxes come out hangs on the picture."""
    rng = np.random.default_rng(0)
    corners = np.stack([np.arange(64) % 8 * 4 - 4, np.arange(64) // 8 * 4 - 4], 1)
    stored = {
        **_backbone(rng),
        "rpn": _weight(rng, 1, 16, 1, 1),
        "offsets": _weight(rng, 4, 16, 1, 1),
        "fc": _weight(rng, 32, 16 * 9),
        "classes": _weight(rng, 8, 32),
        "anchors": np.concatenate([corners, corners + 12], 1).astype(np.float32),
        "flat": np.array([1, 1, -1]),
        "rows": np.array([4, -1]),
        "pooled_rows": np.array([-1, 16 * 9]),
        "zero": np.array([0]),
        "one": np.array([1]),
        "two": np.array([2]),
        **CHOICE,
    }
    nodes = [
        *_features(),
        make_node("Conv", ["f", "rpn"], ["logits"]),
        make_node("Conv", ["f", "offsets"], ["deltas"]),
        make_node("Reshape", ["logits", "flat"], ["row"]),
        make_node("Sigmoid", ["row"], ["p"]),
        make_node("Reshape", ["deltas", "rows"], ["columns"]),
        make_node("Transpose", ["columns"], ["turned"]),
        make_node("Add", ["turned", "anchors"], ["decoded"]),
        make_node("Unsqueeze", ["decoded", "zero"], ["batch"]),
        make_node("NonMaxSuppression", ["batch", "p", "most", "iou", "least"], ["kept"]),
        make_node("Gather", ["kept", "two"], ["column"], axis=1),
        make_node("Squeeze", ["column", "one"], ["places"]),
        make_node("Gather", ["decoded", "places"], ["rois"]),
        make_node("Shape", ["places"], ["count"]),
        make_node("ConstantOfShape", ["count"], ["pictures"], value=numpy_helper.from_array(np.zeros(1, np.int64))),
        make_node(
            "RoiAlign", ["f", "rois", "pictures"], ["pooled"],
            output_height=3, output_width=3, sampling_ratio=2, spatial_scale=0.25,
        ),
        make_node("Reshape", ["pooled", "pooled_rows"], ["vectors"]),
        make_node("Gemm", ["vectors", "fc"], ["h"], transB=1),
        make_node("Relu", ["h"], ["hidden"]),
        make_node("Gemm", ["hidden", "classes"], ["scores"], transB=1),
        make_node("Softmax", ["scores"], ["probabilities"], axis=1),
    ]  # fmt: skip
    return _model(nodes, stored, [make_tensor_value_info("probabilities", TensorProto.FLOAT, ["count", 8])])


def two_levels() -> ModelProto:
    """The same, each proposal pooled from the level of its size: how many a level has hangs on the picture."""
    made = two_stage()
    (pool,) = (node for node in made.graph.node if node.op_type == "RoiAlign")
    place = list(made.graph.node).index(pool)
    nodes = [
        make_node("MaxPool", ["f"], ["g"], kernel_shape=[2, 2], strides=[2, 2]),
        make_node("Gather", ["rois", "zero"], ["left"], axis=1),
        make_node("Less", ["left", "middle"], ["is.f"]),
        make_node("Not", ["is.f"], ["is.g"]),
        make_node("Shape", ["is.f"], ["many"], end=1),
        make_node("Concat", ["many", "pooled_sizes"], ["sizes"], axis=0),
        make_node("ConstantOfShape", ["sizes"], ["filled"]),
    ]
    for level, before, after, scale in (("f", "filled", "half", 0.25), ("g", "half", "pooled", 0.125)):
        nodes += [
            make_node("Squeeze", [f"is.{level}", "one"], [f"own.{level}"]),
            make_node("NonZero", [f"own.{level}"], [f"found.{level}"]),
            make_node("Transpose", [f"found.{level}"], [f"rows.{level}"]),
            make_node("Squeeze", [f"found.{level}", "zero"], [f"places.{level}"]),
            make_node("Gather", ["rois", f"places.{level}"], [f"rois.{level}"]),
            make_node("Mul", [f"places.{level}", "none"], [f"pictures.{level}"]),
            make_node(
                "RoiAlign", [level, f"rois.{level}", f"pictures.{level}"], [f"part.{level}"],
                output_height=3, output_width=3, sampling_ratio=2, spatial_scale=scale,
            ),
            make_node("ScatterND", [before, f"rows.{level}", f"part.{level}"], [after]),
        ]  # fmt: skip
    every = [*made.graph.node[:place], *nodes, *made.graph.node[place + 1 :]]
    del made.graph.node[:]
    made.graph.node.extend(every)
    stored = {"none": np.int64(0), "middle": np.float32(8), "pooled_sizes": np.array([16, 3, 3])}
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items())
    checker.check_model(made)
    return made


def pictures(count: int = 40) -> Any:
    return np.random.default_rng(1).standard_normal((count, 4, SIDE, SIDE)).astype(np.float32)


def _weight(rng: np.random.Generator, *shape: int) -> Any:
    return (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)


def _backbone(rng: np.random.Generator) -> dict[str, Any]:
    return {"c1": _weight(rng, 16, 4, 3, 3), "c2": _weight(rng, 16, 16, 3, 3)}


def _features() -> list[NodeProto]:
    first = make_node("Conv", ["x", "c1"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2])
    second = make_node("Conv", ["b", "c2"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2])
    return [first, make_node("Relu", ["a"], ["b"]), second, make_node("Relu", ["c"], ["f"])]


def _head(level: int, feature: str) -> list[NodeProto]:
    made = [
        make_node("Conv", [feature, f"head.{level}"], [f"h.{level}"], pads=[1, 1, 1, 1]),
        make_node("Relu", [f"h.{level}"], [f"r.{level}"]),
    ]
    for kind in ("scores", "boxes"):
        made.append(make_node("Conv", [f"r.{level}", kind], [f"{kind}_map.{level}"]))
        made.append(make_node("Reshape", [f"{kind}_map.{level}", "flat"], [f"{kind}.{level}"]))
    return made


def _model(nodes: list[NodeProto], stored: dict[str, Any], outputs: list[Any]) -> ModelProto:
    picture = make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, SIDE, SIDE])
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()]
    graph = make_graph(nodes, "detector", [picture], outputs, tensors)
    made = make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)
    checker.check_model(made)
    return made
