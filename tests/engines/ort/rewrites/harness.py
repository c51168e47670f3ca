"""One operator in a graph with trained weights: its outputs and its gradient against the plain runtime.

1. The first input is `x * w`, with `x` a graph input and `w` trained; the others are initializers, trained where they
   hold floats and are not named as fixed.
2. The outputs of the rewritten graph have to be those of the original one.
3. The gradient of `sum(outputs * r)` has to agree with central differences of the original graph along random
   directions, for the best of several step sizes: a kink looks like a wrong gradient at some of them. Where it does
   not, it has to agree near by: the first place may lie right on a kink.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from onnxsparse.engines.ort import library, rewrites
from onnxsparse.engines.ort.shapes import infer_shapes
from onnxsparse.graph.edit import Writer
from onnxsparse.math.values import Array

onnxruntime = pytest.importorskip("onnxruntime")

STEPS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3)


@dataclass
class Case:
    """A node to try; `fixed` names the places of inputs that are not trained, '' inputs are None."""

    op: str
    inputs: list[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("y",)
    domain: str = ""
    opset: int = 17
    fixed: tuple[int, ...] = ()
    read: tuple[str, ...] = ()
    """Outputs that the loss reads; all float ones when empty."""
    front: bool = True
    """Whether the first input is trained."""

    def model(self) -> ModelProto:
        """The graph with this node, as a user's file would hold it."""
        names = [self._name(place) for place in range(len(self.inputs))]
        nodes: list[NodeProto] = []
        stored = [
            numpy_helper.from_array(array, name) for array, name in zip(self.inputs[1:], names[1:]) if array is not None
        ]
        first = self.inputs[0]
        assert first is not None
        if self._has_front:
            stored.append(numpy_helper.from_array(np.ones_like(first), "w"))
            nodes.append(helper.make_node("Mul", ["x", "w"], ["in0"], name="front"))
        else:
            names[0] = "x"
        nodes.append(
            helper.make_node(self.op, names, [*self.outputs], name="tried", domain=self.domain, **self.attributes)
        )
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(first.dtype), first.shape)],
            [ValueInfoProto(name=name) for name in (self.read or self.outputs) if name],
            stored,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        if self.domain:
            opsets.append(helper.make_opsetid(self.domain, 1))
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def trained(self) -> list[str]:
        """Names of the trained initializers."""
        return ["w"] * self._has_front + [
            self._name(place)
            for place, array in enumerate(self.inputs)
            if place and array is not None and array.dtype == np.float32 and place not in self.fixed
        ]

    @property
    def _has_front(self) -> bool:
        return self.front and self.inputs[0] is not None and self.inputs[0].dtype == np.float32

    def _name(self, place: int) -> str:
        return f"in{place}" if self.inputs[place] is not None else ""


def check(case: Case, tolerance: float = 1e-2, exact: float = 1e-4) -> ModelProto:
    """Hold the rewritten graph against the plain one; returns the rewritten model."""
    model = case.model()
    infer_shapes(model)
    original = ModelProto.FromString(model.SerializeToString())
    notes = rewrites.apply(model, set(case.trained()))
    assert not notes, notes
    assert [value.name for value in model.graph.output] == [value.name for value in original.graph.output]
    before, after = outputs(original, case), outputs(model, case)
    for name, one, two in zip(original.graph.output, before, after):
        assert (one.shape, one.dtype) == (two.shape, two.dtype), name.name
        np.testing.assert_allclose(two, one, rtol=exact, atol=exact * max(1.0, float(np.abs(one).max(initial=0))))
    if case.trained():
        worst = gradient_error(original, model, case)
        if worst >= tolerance:
            worst = gradient_error(moved(original, case), moved(model, case), case)
        assert worst < tolerance, f"the gradient is off by {worst:.3g}"
    return model


def moved(model: ModelProto, case: Case) -> ModelProto:
    """The model with its trained weights a little to the side."""
    random = np.random.default_rng(11)
    copy = ModelProto.FromString(model.SerializeToString())
    weights = {tensor.name: tensor for tensor in copy.graph.initializer}
    for name in case.trained():
        array = numpy_helper.to_array(weights[name])
        shifted = array * (1 + 0.1 * random.standard_normal(array.shape))
        weights[name].CopyFrom(numpy_helper.from_array(shifted.astype(np.float32), name))
    return copy


def refused(case: Case) -> list[str]:
    """What is said of a graph that cannot be rewritten."""
    model = case.model()
    return rewrites.apply(model, set(case.trained()))


def rewritten(case: Case, trained: set[str]) -> ModelProto:
    """The rewritten graph with other weights trained."""
    model = case.model()
    assert not rewrites.apply(model, trained)
    return model


def outputs(model: ModelProto, case: Case, weights: dict[str, Array] | None = None) -> list[Array]:
    """What the plain runtime gives, with `weights` in place of initializers."""
    probe = ModelProto.FromString(model.SerializeToString())
    for tensor in probe.graph.initializer:
        if weights and tensor.name in weights:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    session = onnxruntime.InferenceSession(probe.SerializeToString(), library.options(fold=False))
    return list(session.run(None, {"x": case.inputs[0]}))


class Differences:
    """Central differences of `sum(outputs * r)`: weights become inputs, so one session serves all of them."""

    def __init__(self, model: ModelProto, case: Case, factors: dict[str, Array]) -> None:
        probe = ModelProto.FromString(model.SerializeToString())
        self.names, self.case, self.factors = case.trained(), case, factors
        self.weights = {t.name: numpy_helper.to_array(t) for t in probe.graph.initializer if t.name in self.names}
        for name, array in self.weights.items():
            probe.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape))
        self.session = onnxruntime.InferenceSession(probe.SerializeToString(), library.options(fold=False))
        self.outputs = [value.name for value in probe.graph.output if value.name in factors]

    def along(self, directions: dict[str, Array], step: float) -> float:
        up, down = self._run(directions, step), self._run(directions, -step)
        return (
            sum(
                float(np.sum((one.astype(np.float64) - two) * self.factors[name]))
                for name, one, two in zip(self.outputs, up, down)
            )
            / step
            / 2
        )

    def _run(self, directions: dict[str, Array], step: float) -> list[Array]:
        feeds = {name: np.asarray(self.weights[name] + step * directions[name], np.float32) for name in self.names}
        return list(self.session.run(self.outputs, {"x": self.case.inputs[0], **feeds}))


def gradient_error(original: ModelProto, model: ModelProto, case: Case, tries: int = 3) -> float:
    """The largest error along a direction, relative to the gradient's usual size along one."""
    random = np.random.default_rng(5)
    factors = {
        value.name: random.standard_normal(array.shape).astype(np.float32)
        for value, array in zip(original.graph.output, outputs(original, case))
        if array.dtype == np.float32
    }
    gradients = engine_gradients(model, case, factors)
    if not all(np.isfinite(gradient).all() for gradient in gradients.values()):
        return float("inf")
    differences = Differences(original, case, factors)
    worst = 0.0
    for name in case.trained():
        for _ in range(tries):
            directions = {other: np.zeros_like(gradient) for other, gradient in gradients.items()}
            directions[name] = random.choice([-1.0, 1.0], gradients[name].shape).astype(np.float32)
            given = float(np.sum(gradients[name].astype(np.float64) * directions[name]))
            usual = float(np.linalg.norm(gradients[name].astype(np.float64)))
            found = [differences.along(directions, step) for step in STEPS]
            worst = max(worst, min(abs(one - given) / max(usual, abs(one), 1e-3) for one in found))
    return worst


def engine_gradients(model: ModelProto, case: Case, factors: dict[str, Array]) -> dict[str, Array]:
    """The engine's gradient of `sum(outputs * r)` for each trained weight."""
    training = library.training()
    copy = ModelProto.FromString(model.SerializeToString())
    _append_loss(copy, factors)
    frozen = [t.name for t in copy.graph.initializer if t.name not in case.trained()]
    onnx_ir, onnx.IR_VERSION = onnx.IR_VERSION, 10
    try:
        with tempfile.TemporaryDirectory() as folder, library.quiet():
            training.artifacts.generate_artifacts(
                copy, requires_grad=case.trained(), frozen_params=frozen, artifact_directory=folder
            )
            state = training.api.CheckpointState.load_checkpoint(str(Path(folder) / "checkpoint"))
            module = training.api.Module(
                str(Path(folder) / "training_model.onnx"), state, session_options=library.options()
            )
            module.train()
            module(case.inputs[0])
            return {name: np.array(state.parameters[name].grad) for name in case.trained()}
    finally:
        onnx.IR_VERSION = onnx_ir


def _append_loss(model: ModelProto, factors: dict[str, Array]) -> None:
    writer = Writer(model.graph, 13)
    total = ""
    for name, factor in factors.items():
        part = writer.node("Mul", name, writer.constant(factor))
        part = writer.node("Reshape", part, writer.constant([-1]))
        part = writer.node("ReduceSum", part, writer.constant([0]), keepdims=0)
        total = writer.node("Add", total, part) if total else part
    writer.node("Identity", total, to="loss")
    model.graph.node.extend(writer.nodes)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
