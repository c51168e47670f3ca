"""Whether a model has an output to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import onnxsparse as osp
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.torch import library as torch_library
from onnxsparse.errors import ModelError
from onnxsparse.graph.model import Model
from onnxsparse.train.objective import demand_floats
from tests.messages import refusing


def model(*outputs: str) -> Model:
    given = [make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in ("x", *outputs)]
    nodes = [make_node("Relu", ["x"], [name]) for name in outputs]
    return Model.open(make_model(make_graph(nodes, "g", given[:1], given[1:]), opset_imports=[make_opsetid("", 17)]))


def ending(*nodes: NodeProto, outputs: Sequence[tuple[str, int, Sequence[int | str]]], **stored: Any) -> Model:
    """A layer and what comes behind its results `f`, of 48 columns."""
    weights = {"w": np.ones((16, 48), np.float32), **stored}
    values = [make_tensor_value_info(name, kind, shape) for name, kind, shape in outputs]
    graph = make_graph(
        [make_node("MatMul", ["x", "w"], ["f"]), *nodes],
        "g",
        [make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16])],
        values,
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    return Model.open(make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8))


BOXES = [
    make_node("Reshape", ["f", "shape"], ["g"]),
    make_node("Split", ["g", "parts"], ["boxes", "sides"], axis=2),
    make_node("Transpose", ["sides"], ["scores"], perm=[0, 2, 1]),
    make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["found"], name="nms"),
]
SIZES = {"shape": np.array([-1, 8, 6]), "parts": np.array([4, 2]), "most": np.array([4])}
PICKED = make_node("GatherND", ["boxes", "found"], ["y"])


@pytest.mark.parametrize(
    ("ends", "what"),
    [
        (([make_node("ArgMax", ["f"], ["y"], name="top", axis=1)], [("y", TensorProto.INT64, ["N", 1])]),
         "'y' is int64, from ArgMax 'top'"),
        ((BOXES, [("found", TensorProto.INT64, ["K", 3])]), "'found' is int64, from NonMaxSuppression 'nms'"),
        (([*BOXES, PICKED], [("y", TensorProto.FLOAT, ["K"])]), "how many numbers 'y' holds hangs on what NonMaxSupp"),
        (([*BOXES, PICKED], [("y", TensorProto.FLOAT, ["K"]), ("found", TensorProto.INT64, ["K", 3])]),
         "holds hangs on what NonMaxSuppression 'nms' finds; 'found' is int64"),
    ],
)  # fmt: skip
def test_no_float_output_to_learn_from(ends: Any, what: str) -> None:
    nodes, outputs = ends
    with pytest.raises(ModelError, match=f"no float output to learn from: .*{what}.*until=.auto. trains the part"):
        demand_floats(ending(*nodes, outputs=outputs, **SIZES))


def test_a_float_output_beside_others_is_enough() -> None:
    outputs = [("found", TensorProto.INT64, ["K", 3]), ("boxes", TensorProto.FLOAT, ["N", 8, 4])]
    demand_floats(ending(*BOXES, outputs=outputs, **SIZES))
    demand_floats(model("y"))


@pytest.mark.parametrize("engine", ["ort", "torch"])
def test_it_is_refused_alike_in_both_engines(engine: str) -> None:
    if not {"ort": ort_library, "torch": torch_library}[engine].available():
        pytest.skip(f"needs the engine {engine}")
    proto = ending(*BOXES, outputs=[("found", TensorProto.INT64, ["K", 3])], **SIZES).proto
    with refusing(ModelError):
        osp.finetune(proto, data={"x": np.ones((64, 16), np.float32)}, pattern="2:4", steps=2, engine=engine)
