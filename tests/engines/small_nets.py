"""Small models of dense layers and convolutions, and data for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from onnxsparse.math.values import Array


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.Generator(np.random.Philox(key=seed)).standard_normal(shape).astype(np.float32)


def net(
    nodes: Sequence[NodeProto],
    stored: Mapping[str, Array],
    x: Sequence[int | str],
    outputs: Mapping[str, Sequence[int | str]],
    opset: int = 17,
) -> ModelProto:
    values = [make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()]
    graph = make_graph(list(nodes), "net", [make_tensor_value_info("x", TensorProto.FLOAT, x)], values, held)
    made = make_model(graph, opset_imports=[make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(made, full_check=True)
    return made


def tagger(turned: bool = False, softmax: int | None = None, time: int = 5, classes: int = 7) -> ModelProto:
    """Scores of classes for each of `time` places, [N, time, classes] or turned round, as logits or as shares."""
    nodes = [
        make_node("MatMul", ["x", "w1"], ["a"]),
        make_node("Relu", ["a"], ["b"]),
        make_node("MatMul", ["b", "w2"], ["c"]),
        make_node("Add", ["c", "bias"], ["logits"]),
    ]
    last, shape = "logits", ["N", time, classes]
    if turned:
        nodes.append(make_node("Transpose", [last], ["turned"], perm=[0, 2, 1]))
        last, shape = "turned", ["N", classes, time]
    if softmax is not None:
        nodes.append(make_node("Softmax", [last], ["shares"], axis=softmax))
        last = "shares"
    nodes[-1].output[0] = "y"
    stored = {"w1": numbers(6, 32, seed=1), "w2": numbers(32, classes, seed=2), "bias": numbers(classes, seed=3)}
    return net(nodes, stored, ["N", time, 6], {"y": shape})


def pixels(classes: int = 3) -> ModelProto:
    """Scores of classes for each pixel, [N, classes, 6, 6]."""
    nodes = [
        make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        make_node("Relu", ["a"], ["b"]),
        make_node("Conv", ["b", "w2"], ["y"]),
    ]
    stored = {"w1": numbers(16, 4, 3, 3, seed=1), "w2": numbers(classes, 16, 1, 1, seed=2)}
    return net(nodes, stored, ["N", 4, 6, 6], {"y": ["N", classes, 6, 6]})


def run(model: ModelProto | None, x: Array) -> dict[str, Any]:
    assert model is not None
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, {"x": x})))
