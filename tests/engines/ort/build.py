"""Small graphs for the tests of preparing, and what every prepared one has to hold."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from onnxsparse.engines.ort.prepare import Prepared, prepare

FLOAT, HALF, DOUBLE = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE
INT64, BOOL = TensorProto.INT64, TensorProto.BOOL


def numbers(*shape: int, seed: int = 0, dtype: object = np.float32) -> np.ndarray:
    return np.random.Generator(np.random.Philox(key=seed)).standard_normal(shape).astype(dtype)


def tensor(array: np.ndarray, name: str, tag: str = "") -> TensorProto:
    made = numpy_helper.from_array(array, name)
    made.doc_string = tag
    return made


def constant(array: np.ndarray, name: str, tag: str = "") -> NodeProto:
    return make_node("Constant", [], [name], value=tensor(array, name, tag))


def info(name: str, shape: list[object] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, stored=(), opset: int = 17, functions=(), extra=(), ir: int = 8) -> ModelProto:
    graph = make_graph(nodes, "graph", inputs, outputs, list(stored))
    imports = [make_opsetid("", opset), *(make_opsetid(domain, 1) for domain in extra)]
    return make_model(graph, opset_imports=imports, functions=list(functions), ir_version=ir)


def ready(proto: ModelProto, feeds: dict[str, np.ndarray], batch: int = 4, tags=("t0",)) -> Prepared:
    """The prepared model, which must do what the given one does for each sample."""
    given = ModelProto()
    given.CopyFrom(proto)
    made = prepare(proto, set(tags), feeds, batch)
    onnx.checker.check_model(made.model, full_check=True)
    assert set(made.weights.values()) | set(made.unreached) == set(tags)
    assert [value.name for value in made.model.graph.output] == [signal.name for signal in made.signals]
    return made


def stored_in(made: Prepared) -> dict[str, np.ndarray]:
    return {one.name: numpy_helper.to_array(one) for one in made.model.graph.initializer}


def operators(made: Prepared) -> list[str]:
    return [node.op_type for node in made.model.graph.node]


X = info("x", ["N", 6])
FEED = {"x": numbers(8, 6)}
W = numbers(6, 5, seed=1)
