"""The table of facts against the engine: what it calls wrong is wrong, what it calls missing is missing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxsparse.engines.ort import gradients, library, rewrites
from onnxsparse.engines.ort.shapes import infer_shapes
from tests.cases import for_each
from tests.engines.ort.rewrites.harness import Case, gradient_error
from tests.engines.ort.rewrites.numbers import floats, whole

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")

X = floats(2, 4, 7, 7)
SAME = {"auto_pad": "SAME_UPPER", "kernel_shape": [3, 3], "strides": [2, 2]}

WRONG = [
    Case("Conv", [X, floats(4, 4, 3, 3)], SAME),
    Case("AveragePool", [X], SAME),
    Case("AveragePool", [X], {"kernel_shape": [2, 2], "dilations": [2, 2]}, opset=19),
    Case("MaxPool", [X], {"kernel_shape": [2, 2], "storage_order": 1}, outputs=("y", "k"), read=("y",)),
    Case("BatchNormalization", [X, *[abs(floats(4)) for _ in range(4)]], fixed=(3, 4)),
    Case("Where", [np.arange(12).reshape(3, 4) % 3 == 0, floats(4), floats(3, 4)]),
    Case("ScatterND", [floats(4, 3), np.array([[0], [2]]), floats(2, 3)], {"reduction": "add"}),
    Case("ScatterElements", [floats(4, 3), np.array([[0, 1, 2]]), floats(1, 3)], {"reduction": "add"}),
    Case("LayerNormalization", [floats(2, 4), floats(4), floats(4)], outputs=("y", "m", "s")),
]

MISSING = [
    *[Case(op, [X]) for op in ("Softplus", "Elu", "HardSwish", "Floor", "Sign", "GlobalMaxPool", "Sum", "ReduceMax")],
    Case("DepthToSpace", [floats(1, 4, 2, 2)], {"blocksize": 2}),
    Case("LpNormalization", [X]),
    Case("LRN", [X], {"size": 3}),
    Case("Einsum", [X], {"equation": "abcd->ab"}),
    Case("PRelu", [X, floats(4, 1, 1)]),
    Case("Pad", [floats(3, 4), whole(0, 1, 0, 1)], {"mode": "reflect"}),
    Case("ConvTranspose", [X, floats(4, 2, 2, 2)]),
    Case("Resize", [X, None, np.array([1, 1, 2, 2], np.float32)], fixed=(2,)),
    Case("LayerNormalization", [X, floats(7)]),
    Case("RNN", [floats(2, 1, 3), floats(1, 4, 3), floats(1, 4, 4)], {"hidden_size": 4}, outputs=("y",)),
    Case("FusedMatMul", [floats(2, 3), floats(4, 3)], {"transB": 1}, domain="com.microsoft"),
    Case("Det", [floats(3, 3)]),
]


def title(case: Case) -> str:
    return case.op


def shaped(case: Case) -> onnx.ModelProto:
    model = case.model()
    infer_shapes(model)
    return model


@pytest.mark.parametrize("case", WRONG, ids=title)
def test_what_is_wrong_is_wrong_and_found(case: Case) -> None:
    model = shaped(case)
    assert gradient_error(model, model, case) > 0.03
    assert [node.name for node, _ in gradients.blocked(model, set(case.trained()))] == ["tried"]


@for_each("case", MISSING, ids=title)
def test_what_is_missing_is_missing_and_found(case: Case) -> None:
    model = shaped(case)
    with pytest.raises(Exception):  # noqa: B017, PT011 -- the engine raises what it likes
        gradient_error(model, model, case)
    assert [node.name for node, _ in gradients.blocked(model, set(case.trained()))] == ["tried"]


DEATH = """
import sys
from tests.engines.ort.rewrites.harness import Case, gradient_error
from tests.engines.ort.rewrites.numbers import floats
from onnxsparse.engines.ort.shapes import infer_shapes
op, gates = sys.argv[1], int(sys.argv[2])
outputs = ("Y", "Yh", "Yc") if op == "LSTM" else ("Y", "Yh")
inputs = [floats(3, 2, 3), floats(1, gates * 4, 3), floats(1, gates * 4, 4), floats(1, gates * 8), None]
inputs += [floats(1, 2, 4) for _ in outputs[1:]]
case = Case(op, inputs, {"hidden_size": 4}, outputs=outputs, fixed=(1, 2))
model = case.model()
infer_shapes(model)
gradient_error(model, model, case)
"""


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_frozen_recurrent_weights_end_the_process(op: str, gates: int) -> None:
    ended = subprocess.run([sys.executable, "-c", DEATH, op, str(gates)], capture_output=True, check=False)
    assert ended.returncode < 0


def chain(*nodes: tuple[Any, ...], domain: str = "") -> onnx.ModelProto:
    """x goes through `w` and then from node to node: (operator, attributes)."""
    made = [helper.make_node("MatMul", ["x", "w"], ["v0"])]
    made += [
        helper.make_node(op, [f"v{place}"], [f"v{place + 1}"], name=f"n{place}", domain=domain, **more)
        for place, (op, more) in enumerate(nodes)
    ]
    graph = helper.make_graph(
        made,
        "g",
        [helper.make_tensor_value_info("x", 1, [2, 4])],
        [onnx.ValueInfoProto(name=f"v{len(nodes)}")],
        [numpy_helper.from_array(floats(4, 4), "w")],
    )
    opsets = [helper.make_opsetid(name, 17) for name in {"", domain}]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_nothing_is_blocked_without_a_gradient() -> None:
    assert gradients.blocked(chain(("Det", {})), set()) == []
    assert gradients.blocked(chain(("Shape", {}), ("Cast", {"to": 1}), ("Floor", {})), {"w"}) == []
    assert [reason for _, reason in gradients.blocked(chain(("Relu", {}), ("Det", {})), {"w"})] == [
        "the engine has no gradient for it"
    ]


def test_an_unknown_operator_is_blocked() -> None:
    (found,) = gradients.blocked(chain(("Wonder", {}), domain="somebody"), {"w"})
    assert found[0].op_type == "Wonder"
    assert "not known" in found[1]


def test_a_rewritten_graph_is_free() -> None:
    model = chain(("HardSwish", {}), ("Elu", {}), ("LpNormalization", {}), ("ReduceMax", {"axes": [1]}))
    assert len(gradients.blocked(model, {"w"})) == 4
    assert rewrites.apply(model, {"w"}) == []
    assert gradients.blocked(model, {"w"}) == []


def test_every_rewrite_is_in_the_table() -> None:
    assert set(rewrites.known()) <= set(gradients.FACTS)


def test_weights_of_recurrent_layers_are_found_behind_what_hands_them_on() -> None:
    nodes = [
        helper.make_node("Concat", ["a", "b"], ["ab"], axis=0),
        helper.make_node("Unsqueeze", ["ab", "axis"], ["w"]),
        helper.make_node("Transpose", ["r0"], ["r"]),
        helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=1),
    ]
    stored = [numpy_helper.from_array(floats(2, 1), name) for name in ("a", "b")]
    stored += [numpy_helper.from_array(floats(1, 4, 1), "r0"), numpy_helper.from_array(whole(0), "axis")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [1, 1, 1])], [], stored)
    assert gradients.must_train(helper.make_model(graph)) == {"a", "b", "r0"}
