"""A small convolutional net and samples for it, for tests of calibration; no tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

CHANNELS, SIZE, CLASSES = 24, 10, 7


def conv_net(path: Path, seed: int = 0) -> Path:
    """Two convolutions, a pool and a Gemm."""
    draw = np.random.default_rng(seed)
    shapes = {"w1": (CHANNELS, 3, 3, 3), "b1": (CHANNELS,), "w2": (CHANNELS, CHANNELS, 3, 3), "b2": (CHANNELS,)}
    shapes.update(w3=(CLASSES, CHANNELS), b3=(CLASSES,))
    arrays = {name: (draw.standard_normal(shape) * 0.3).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "conv2", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], "gemm", transB=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, SIZE, SIZE])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", CLASSES])
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "net", [x], [y], stored)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def samples(path: Path, count: int = 96, seed: int = 1) -> Path:
    drawn = np.random.default_rng(seed).standard_normal((count, 3, SIZE, SIZE)).astype(np.float32)
    np.savez(path, x=drawn)
    return path
