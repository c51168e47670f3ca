from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxsparse.engines.ort import library, rewrites
from tests.cases import for_each
from tests.engines.ort.rewrites.harness import Case, check, outputs, refused
from tests.engines.ort.rewrites.numbers import floats

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
MS = "com.microsoft"
T, B, WIDTH, H = 5, 2, 3, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
EVERY = {"LSTM": ("Y", "Yh", "Yc"), "GRU": ("Y", "Yh"), "RNN": ("Y", "Yh")}


def layer(op: str, directions: int = 1, time: int = T, bias: bool = True, states: bool = True) -> list[Any]:
    """Inputs of a layer."""
    rows = GATES[op] * H
    made: list[Any] = [floats(time, B, WIDTH), 0.5 * floats(directions, rows, WIDTH), 0.5 * floats(directions, rows, H)]
    made += [0.5 * floats(directions, 2 * rows) if bias else None, None]
    return made + [floats(directions, B, H) for _ in EVERY[op][1:] if states]


def options(**more: Any) -> dict[str, Any]:
    return {"hidden_size": H, **more}


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_a_whole_forward_layer_stays(op: str) -> None:
    model = check(Case(op, layer(op), options(), outputs=EVERY[op]))
    assert [node.name for node in model.graph.node] == ["front", "tried"]


@for_each("op", ["LSTM", "GRU", "RNN"])
@for_each("direction", ["forward", "reverse", "bidirectional"])
@for_each("read", [0, 1])
def test_directions(op: str, direction: str, read: int) -> None:
    inputs = layer(op, 2 if direction == "bidirectional" else 1)
    check(Case(op, inputs, options(direction=direction), outputs=EVERY[op], read=(EVERY[op][read],)))
    check(Case(op, inputs, options(direction=direction), outputs=EVERY[op]))


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("outputs", [("Y",), ("", "Yh")])
def test_parts_that_are_left_out(op: str, outputs: tuple[str, ...]) -> None:
    check(Case(op, layer(op, bias=False, states=False)[:3], options(), outputs=outputs))
    check(Case(op, layer(op, states=False)[:4], options(), outputs=outputs, front=False))
    check(Case(op, layer(op, time=1), options(), outputs=outputs))


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
@pytest.mark.parametrize("fixed", [(1,), (2,), (1, 2, 3, 5, 6)])
def test_weights_that_are_not_trained(op: str, fixed: tuple[int, ...]) -> None:
    check(Case(op, layer(op), options(), outputs=("Y",), fixed=fixed))


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_only_the_bias_is_trained(op: str) -> None:
    check(Case(op, layer(op, states=False)[:4], options(), outputs=("Y",), front=False, fixed=(1, 2)))


@for_each("reset", [0, 1])
@for_each("bias", [True, False])
@for_each("more", [{}, {"clip": 1.5}, {"activations": ["Sigmoid", "Relu"]}])
def test_gated_units(reset: int, bias: bool, more: dict[str, Any]) -> None:
    check(Case("GRU", layer("GRU", bias=bias), options(linear_before_reset=reset, **more), outputs=EVERY["GRU"]))


@pytest.mark.parametrize(
    "more",
    [
        {"clip": 1.5},
        {"input_forget": 1},
        {"activations": ["Sigmoid", "LeakyRelu", "Tanh"], "activation_alpha": [0.1]},
        {
            "activations": ["ScaledTanh", "Affine", "Tanh"],
            "activation_alpha": [0.7, 0.6],
            "activation_beta": [0.5, 0.2],
        },
    ],
)
def test_options_of_long_memory(more: dict[str, Any]) -> None:
    check(Case("LSTM", layer("LSTM"), options(**more), outputs=EVERY["LSTM"]))


def test_peepholes_of_two_directions() -> None:
    inputs = [*layer("LSTM", 2), floats(2, 3 * H)]
    check(Case("LSTM", inputs, options(direction="bidirectional"), outputs=EVERY["LSTM"]))


def test_lengths() -> None:
    same, other = layer("LSTM"), layer("LSTM")
    same[4], other[4] = np.array([T, T], np.int32), np.array([T, T - 1], np.int32)
    check(Case("LSTM", same, options(), outputs=EVERY["LSTM"]))
    assert refused(Case("LSTM", other, options())) == ["LSTM tried: its sequences have different lengths"]


def test_what_cannot_be_written_step_by_step() -> None:
    assert "300 steps" in refused(Case("RNN", layer("RNN", time=300), options()))[0]


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_the_batch_first(op: str) -> None:
    """The runtime has no kernel for it, so the layer with time first stands in."""
    inputs = layer(op)
    first = Case(op, inputs, options(), outputs=EVERY[op])
    turned = [array if array is None or array.ndim != 3 else array.transpose(1, 0, 2) for array in inputs]
    turned[1:4] = inputs[1:4]
    swapped = Case(op, turned, options(layout=1), outputs=EVERY[op])
    expected = outputs(first.model(), first)
    model = swapped.model()
    declare(model, {"y": (1,), **{name: np.moveaxis(one, -2, 0).shape for name, one in zip(EVERY[op], expected)}})
    assert not rewrites.apply(model, set(swapped.trained()))
    found = outputs(model, swapped)
    np.testing.assert_allclose(found[0], expected[0].transpose(2, 0, 1, 3), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], expected[1].transpose(1, 0, 2), rtol=1e-4, atol=1e-5)


def declare(model: onnx.ModelProto, shapes: dict[str, tuple[int, ...]]) -> None:
    """Outputs get a type by hand."""
    for value in model.graph.output:
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, 1, shapes[value.name]))
