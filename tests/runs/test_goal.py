"""Which output a teacher is heard on."""

from __future__ import annotations

import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.modifiers.distillation import DistillationModifier
from onnxsparse.runs.goal import demand_keys


def model(*outputs: str) -> Model:
    given = [make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in ("x", *outputs)]
    nodes = [make_node("Relu", ["x"], [name]) for name in outputs]
    return Model.open(make_model(make_graph(nodes, "g", given[:1], given[1:]), opset_imports=[make_opsetid("", 17)]))


@pytest.mark.parametrize("key", [0, -1, "y"])
def test_a_single_output(key: int | str) -> None:
    demand_keys(model("y"), [DistillationModifier(distill_output_keys=(key,))], "")


@pytest.mark.parametrize(("key", "loss"), [(0, ""), ("y", ""), ("z", "z"), (1, "z")])
def test_the_output_of_the_loss(key: int | str, loss: str) -> None:
    demand_keys(model("y", "z"), [DistillationModifier(distill_output_keys=(key,))], loss)


@pytest.mark.parametrize(
    ("key", "loss", "what"),
    [
        (2, "", r"the model has no output 2 \(it has y, z\); name one of those"),
        ("logits", "", "the model has no output 'logits'"),
        ("z", "", "names z, and the loss is of y; pass --loss-output z"),
        (0, "z", "names y, and the loss is of z"),
    ],
)
def test_another_output(key: int | str, loss: str, what: str) -> None:
    with pytest.raises(OptionError, match=f"!DistillationModifier: distill_output_keys:? ?{what}"):
        demand_keys(model("y", "z"), [DistillationModifier(distill_output_keys=(key,))], loss)
