"""The functions of the operators, against onnx's own node tests and against onnxruntime."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

import onnx
from onnx import defs
from onnx.helper import make_node

from onnxsparse.engines.torch import operators
from onnxsparse.engines.torch.convert import signature
from tests.engines.torch.running import Array, assert_same, model, numbers, without_gradient
from tools.bench import conformance_torch as conformance

ENOUGH = 0.95


def test_the_node_tests_of_onnx(repository: Path) -> None:
    """Nearly all pass, what fails has a reason, and the table in the documentation says the same."""
    outcomes = [conformance.run(case) for case in conformance.cases()]
    failed = [one for one in outcomes if one.problem]
    assert len(failed) <= (1 - ENOUGH) * len(outcomes)
    assert not [(one.name, one.problem) for one in failed if not one.reason]
    written = (repository / "docs" / "torch_conformance.md").read_text(encoding="utf-8")
    if f"with onnx {onnx.__version__}." in written:
        assert conformance.table(outcomes) == written


@pytest.mark.parametrize("name", sorted(name for domain, name in operators.table() if not domain and "_" not in name))
def test_parameters_have_the_names_of_the_schema(name: str) -> None:
    """Attributes of the newest schema are parameters, and there are as many inputs as it has."""
    if not defs.has(name):
        pytest.skip("not an operator of ONNX itself")
    schema = defs.get_schema(name)
    form = signature(operators.table()["", name])
    assert set(schema.attributes) <= form.attributes
    if form.inputs is not None:
        newest = list(inspect.signature(operators.table()["", name]).parameters)[: len(schema.inputs)]
        assert len(newest) == len(schema.inputs)


def recurrent(operator: str, gates: int, direction: str, **more: Any) -> tuple[Any, dict[str, Array], dict[str, Array]]:
    """A layer of 3 inputs and 4 hidden, over 5 steps of a batch of 2."""
    directions = 2 if direction == "bidirectional" else 1
    names = ["x", "w", "r", "b", "lengths" if more.pop("lengths", False) else "", "h"]
    stored = {
        "w": numbers(directions, gates * 4, 3, seed=1),
        "r": numbers(directions, gates * 4, 4, seed=2),
        "b": numbers(directions, gates * 8, seed=3),
        "h": numbers(directions, 2, 4, seed=4),
    }
    if operator == "LSTM":
        names += ["c", "p" if more.pop("peepholes", False) else ""]
        stored.update(c=numbers(directions, 2, 4, seed=5), p=numbers(directions, 12, seed=6))
    feeds: dict[str, Array] = {"x": numbers(5, 2, 3)}
    if "lengths" in names:
        feeds["lengths"] = np.array([5, 3], np.int32)
    outputs = ["y", "last", "cell"][: 3 if operator == "LSTM" else 2]
    node = make_node(operator, names, outputs, hidden_size=4, direction=direction, **more)
    return node, feeds, {name: one for name, one in stored.items() if name in names}


LAYERS: list[tuple[str, int, dict[str, Any]]] = [
    ("RNN", 1, {}),
    ("RNN", 1, {"activations": ["Relu"]}),
    ("RNN", 1, {"activations": ["LeakyRelu"], "activation_alpha": [0.3], "clip": 0.8}),
    ("RNN", 1, {"lengths": True}),
    ("GRU", 3, {}),
    ("GRU", 3, {"linear_before_reset": 1}),
    ("GRU", 3, {"linear_before_reset": 1, "lengths": True}),
    ("GRU", 3, {"activations": ["HardSigmoid", "Softsign"]}),
    ("LSTM", 4, {}),
    ("LSTM", 4, {"peepholes": True}),
    ("LSTM", 4, {"lengths": True}),
    ("LSTM", 4, {"clip": 0.5}),
    ("LSTM", 4, {"activations": ["Sigmoid", "Relu", "Tanh"]}),
]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer[0]}-{'-'.join(layer[2])}")
def test_recurrent_layers(layer: tuple[str, int, dict[str, Any]], direction: str) -> None:
    operator, gates, more = layer
    more = dict(more)
    if "activations" in more and direction == "bidirectional":
        more = {key: one * 2 if isinstance(one, list) else one for key, one in more.items()}
    node, feeds, stored = recurrent(operator, gates, direction, **more)
    module = assert_same(model([node], feeds, stored, outputs=list(node.output)), feeds)
    assert {name for name, _ in module.named_parameters()} == set(stored) & {"w", "r", "b", "p"}
    assert not without_gradient(module, feeds)


def test_a_state_of_another_batch_is_an_error() -> None:
    """torch's own layer would crash."""
    node, feeds, stored = recurrent("LSTM", 4, "forward")
    module = assert_same(model([node], feeds, stored, outputs=list(node.output)), feeds)
    with pytest.raises(ValueError, match="another batch"):
        module(torch.zeros(5, 3, 3))


IMAGE, LINE, BLOCK = numbers(2, 4, 9, 8), numbers(2, 4, 11), numbers(1, 2, 5, 6, 7)
# operator, input, weights, attributes
CASES: list[tuple[str, Array, list[Array], dict[str, Any]]] = [
    ("Conv", IMAGE, [numbers(6, 4, 3, 3), numbers(6)], {"pads": [0, 1, 2, 0], "strides": [2, 1]}),
    ("Conv", IMAGE, [numbers(8, 1, 3, 3)], {"group": 4, "auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ("Conv", LINE, [numbers(6, 2, 3), numbers(6)], {"group": 2, "dilations": [2], "pads": [3, 1]}),
    ("Conv", BLOCK, [numbers(3, 2, 2, 3, 2)], {"pads": [1, 1, 0, 0, 1, 1]}),
    ("ConvTranspose", IMAGE, [numbers(4, 3, 3, 3), numbers(3)], {"strides": [2, 2], "pads": [1, 0, 0, 1]}),
    ("ConvTranspose", IMAGE, [numbers(4, 3, 4, 4)], {"strides": [2, 2], "pads": [1, 1, 1, 1], "group": 2}),
    ("ConvTranspose", IMAGE, [numbers(4, 3, 3, 3)], {"strides": [2, 3], "output_padding": [1, 2]}),
    ("ConvTranspose", IMAGE, [numbers(4, 3, 3, 3), numbers(3)], {"strides": [3, 2], "output_shape": [28, 17]}),
    ("ConvTranspose", LINE, [numbers(4, 3, 5)], {"strides": [2], "auto_pad": "SAME_UPPER"}),
    ("MaxPool", IMAGE, [], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 0, 1], "ceil_mode": 1}),
    ("MaxPool", LINE, [], {"kernel_shape": [3], "dilations": [2], "pads": [1, 1]}),
    ("AveragePool", IMAGE, [], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 2]}),
    ("AveragePool", IMAGE, [], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    ("AveragePool", BLOCK, [], {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2], "auto_pad": "SAME_LOWER"}),
    ("LpPool", IMAGE, [], {"kernel_shape": [2, 2], "p": 1, "pads": [1, 0, 0, 1]}),
    ("LRN", IMAGE, [], {"size": 3, "alpha": 0.3, "bias": 1.5}),
    ("InstanceNormalization", IMAGE, [numbers(4), numbers(4, seed=2)], {"epsilon": 0.01}),
    ("LpNormalization", IMAGE, [], {"axis": 1, "p": 1}),
    ("PRelu", IMAGE, [numbers(4, 1, 1)], {}),
    ("Einsum", IMAGE, [numbers(8, 5)], {"equation": "nchw,wk->nchk"}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{'-'.join(case[3])}")
def test_layers_on_images(case: tuple[str, Array, list[Array], dict[str, Any]]) -> None:
    operator, x, weights, attributes = case
    stored = {f"w{index}": one for index, one in enumerate(weights)}
    feeds = {"x": x}
    module = assert_same(model([make_node(operator, ["x", *stored], ["y"], **attributes)], feeds, stored), feeds)
    assert {name for name, _ in module.named_parameters()} == set(stored)
    assert not without_gradient(module, feeds) if stored else True


RESIZES: list[tuple[dict[str, Any], list[float]]] = [
    ({"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, [1, 1, 2, 2]),
    ({"mode": "nearest"}, [1, 1, 0.6, 1.7]),
    ({"mode": "linear"}, [1, 1, 2, 0.5]),
    ({"mode": "linear", "coordinate_transformation_mode": "align_corners"}, [1, 1, 1.5, 3]),
    ({"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}, [1, 1, 2.5, 2]),
    ({"mode": "linear", "antialias": 1}, [1, 1, 0.4, 0.6]),
    ({"mode": "cubic"}, [1, 1, 2, 1.3]),
    ({"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}, [1, 1, 1.8, 0.7]),
]


@pytest.mark.parametrize("case", RESIZES, ids=lambda case: "-".join(str(one) for one in case[0].values()))
@pytest.mark.parametrize("by", ["scales", "sizes"])
def test_resizing(case: tuple[dict[str, Any], list[float]], by: str) -> None:
    attributes, factors = case
    feeds = {"x": IMAGE}
    sizes = np.array([int(size * factor) for size, factor in zip(IMAGE.shape, factors)])
    stored: dict[str, Array] = {"scales": np.array(factors, np.float32), "sizes": sizes}
    names = ["x", "", "scales"] if by == "scales" else ["x", "", "", "sizes"]
    proto = model([make_node("Resize", names, ["y"], **attributes)], feeds, {by: stored[by]}, opset=18)
    assert_same(proto, feeds, 1e-4)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pads_of_every_mode_and_rank(mode: str) -> None:
    feeds = {"x": numbers(3, 4, 5, 2, 3)}
    stored = {"pads": np.array([1, 0, 2, 0, 1, 2, 1, 0, 1, 1])}
    assert_same(model([make_node("Pad", ["x", "pads"], ["y"], mode=mode)], feeds, stored, opset=19), feeds)


@pytest.mark.parametrize("cut", [([4, 3], [0, -9], [1, 0], [-2, -1]), ([-3, 1], [9, 99], [0, 2], [1, 2])])
def test_slices_in_both_directions(cut: tuple[list[int], ...]) -> None:
    feeds = {"x": numbers(6, 5, 4)}
    stored = {name: np.array(one) for name, one in zip(("starts", "ends", "axes", "steps"), cut)}
    assert_same(model([make_node("Slice", ["x", *stored], ["y"])], feeds, stored), feeds)


def test_boxes_are_chosen_as_in_the_runtime() -> None:
    generator = np.random.default_rng(3)
    feeds = {
        "boxes": generator.random((2, 20, 4)).astype(np.float32),
        "scores": generator.random((2, 3, 20)).astype(np.float32),
    }
    stored = {"most": np.array([4]), "overlap": np.float32([0.4]), "least": np.float32([0.3])}
    node = make_node("NonMaxSuppression", [*feeds, *stored], ["y"])
    assert_same(model([node], feeds, stored), feeds)
