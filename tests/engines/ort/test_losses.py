"""The losses written as nodes, trained through the engine, against their definitions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxsparse import losses
from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.losses import write_cross_entropy, write_loss, write_mix
from onnxsparse.errors import OptionError
from onnxsparse.graph.edit import Writer
from onnxsparse.losses import Distill, Loss
from tests.messages import refusing

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")

TOLERANCE = 1e-5
SMOOTHED = "cross-entropy:smoothing=0.1"
TEXTS = ("cross-entropy", SMOOTHED, "mse", "l1", "bce", "distill", "kl", "kl:temperature=0.7,axis=1")


class Bench:
    """A graph that trains its outputs themselves: weights S0, S1, ... times one are the outputs."""

    def __init__(self, folder, students, targets, write, opset=17):
        graph = onnx.GraphProto(name="bench")
        self.names = [f"S{place}" for place in range(len(students))]
        for name, student in zip(self.names, students):
            graph.initializer.append(numpy_helper.from_array(np.zeros(student.shape, np.float32), name))
        writer = Writer(graph, opset)
        inputs = [writer.input("target", target.dtype, target.shape) for target in targets]
        one = writer.constant(1.0)
        outputs = [writer.node("Mul", name, one) for name in self.names]
        writer.node("Identity", write(writer, outputs, inputs), to="loss")
        graph.node.extend(writer.nodes)
        graph.output.append(helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
        self.open(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), str(folder))

    def open(self, model, folder):
        training = library.training()
        with library.quiet(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(onnx, "IR_VERSION", 10)
            training.artifacts.generate_artifacts(
                model, requires_grad=self.names, frozen_params=[], artifact_directory=folder
            )
            self.state = training.api.CheckpointState.load_checkpoint(f"{folder}/checkpoint")
            self.module = training.api.Module(
                f"{folder}/training_model.onnx",
                self.state,
                f"{folder}/eval_model.onnx",
                session_options=library.options(),
            )

    def run(self, students, targets):
        for name, student in zip(self.names, students):
            self.state.parameters[name].data[...] = student
        self.module.lazy_reset_grad()
        out = self.module(*targets)
        value = out[0] if isinstance(out, (list, tuple)) else out
        return float(value), [self.state.parameters[name].grad.copy() for name in self.names]


def tensors(seed, shape, name, size=4.0):
    generator = np.random.Generator(np.random.Philox(key=seed))
    student = (generator.standard_normal(shape) * size).astype(np.float32)
    if name == "cross-entropy":
        return student, generator.integers(0, shape[1], shape[:1] + shape[2:])
    target = generator.random(shape) if name == "bce" else generator.standard_normal(shape) * size
    return student, target.astype(np.float32)


def same(found, loss, students, targets, tolerance=TOLERANCE, nothing=0.0):
    value, gradients = found
    assert value == pytest.approx(loss.value(students, targets), rel=tolerance, abs=nothing)
    for one, other in zip(gradients, loss.gradient(students, targets)):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * np.abs(other).max())


def bench(folder, loss, students, targets, opset=17):
    return Bench(folder, students, targets, lambda *given: write_loss(given[0], loss, *given[1:]), opset)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("shape", [(6, 5), (3, 4, 5), (2, 3, 4, 5)], ids=str)
def test_value_and_gradient_are_those_of_the_definition(tmp_path, text, shape):
    loss = losses.parse(text)
    loss = loss.bind([0.02]) if isinstance(loss, Distill) else loss
    student, target = tensors(1, shape, loss.name)
    made = bench(tmp_path, loss, [student], [target])
    same(made.run([student], [target]), loss, [student], [target])
    student, target = tensors(2, shape, loss.name, 0.01)
    # Two softmaxes that almost agree: float32 keeps few digits of their difference.
    close = (1e-4, 1e-6) if loss.name == "kl" else (TOLERANCE, 0.0)
    same(made.run([student], [target]), loss, [student], [target], *close)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("opset", [13, 18, 21])
def test_in_every_opset_of_the_engine(tmp_path, text, opset):
    loss = losses.parse(text)
    student, target = tensors(3, (4, 3, 2), loss.name)
    made = bench(tmp_path, loss, [student], [target], opset)
    same(made.run([student], [target]), loss, [student], [target])


@pytest.mark.parametrize("text", TEXTS)
def test_several_outputs(tmp_path, text):
    loss = losses.parse(text)
    loss = loss.bind([3.0, 1e-6, 0.5]) if isinstance(loss, Distill) else loss
    pairs = [tensors(seed, shape, loss.name) for seed, shape in enumerate([(4, 3), (2, 3, 2, 2), (1, 7)])]
    students, targets = [list(given) for given in zip(*pairs)]
    same(bench(tmp_path, loss, students, targets).run(students, targets), loss, students, targets)


@pytest.mark.parametrize("text", ["cross-entropy:ignore=-100", "cross-entropy:smoothing=0.2"])
def test_labels_that_are_ignored(tmp_path, text):
    loss = losses.parse(text)
    student, labels = tensors(4, (3, 5, 4), loss.name)
    made = bench(tmp_path, loss, [student], [labels])
    labels[:, ::2] = -100
    same(made.run([student], [labels]), loss, [student], [labels])
    labels[...] = -100
    assert made.run([student], [labels])[0] == 0
    assert not made.run([student], [labels])[1][0].any()


def test_large_logits(tmp_path):
    """Where a sigmoid or a softmax is full; and at 0, where |x| has no slope."""
    logits = np.array([[0, 0, 300, -300, 1e4, -1e4, 1e20, -1e20]], np.float32)
    target = np.array([[0, 1, 0, 1, 1, 0, 0.5, 0.5]], np.float32)
    loss = losses.parse("bce")
    same(bench(tmp_path, loss, [logits], [target]).run([logits], [target]), loss, [logits], [target])


@pytest.mark.parametrize("text", ["cross-entropy", "kl"])
def test_a_full_softmax(tmp_path, text):
    loss = losses.parse(text)
    student, target = tensors(5, (6, 4), loss.name, 1e4)
    same(bench(tmp_path, loss, [student], [target]).run([student], [target]), loss, [student], [target])


def test_a_mix_of_task_and_distillation(tmp_path):
    task, distillation = losses.parse("cross-entropy"), losses.parse("kl:temperature=3")
    student, labels = tensors(6, (5, 4), "cross-entropy")
    teacher = tensors(7, (5, 4), "kl")[1]

    def write(writer, outputs, inputs):
        one = write_loss(writer, task, outputs, inputs[:1])
        return write_mix(writer, one, write_loss(writer, distillation, outputs, inputs[1:]), 0.7)

    value, gradients = Bench(tmp_path, [student], [labels, teacher], write).run([student], [labels, teacher])
    assert value == pytest.approx(
        losses.mixed(task.value([student], [labels]), distillation.value([student], [teacher]), 0.7), rel=TOLERANCE
    )
    wanted = 0.3 * task.gradient([student], [labels])[0] + 0.7 * distillation.gradient([student], [teacher])[0]
    np.testing.assert_allclose(gradients[0], wanted, rtol=TOLERANCE, atol=TOLERANCE * np.abs(wanted).max())


def test_a_loss_that_has_no_nodes_is_refused():
    class Odd(Loss):
        """Comes from elsewhere."""

        name, target = "odd", "numbers"

        def _value(self, student, target, place):
            return 0.0

        def _gradient(self, student, target, place):
            return student

    with refusing(OptionError):
        write_loss(Writer(onnx.GraphProto(), 17), Odd(), ["a"], ["b"])


@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 3, 4, 5)], ids=str)
def test_classes_along_the_last_axis(tmp_path, shape):
    loss = losses.parse("cross-entropy:smoothing=0.3")
    student, _ = tensors(3, shape, "mse")
    target = np.random.Generator(np.random.Philox(key=4)).integers(0, shape[-1], shape[:-1])
    target.reshape(-1)[0] = -100

    def write(writer, students, targets):
        return write_cross_entropy(writer, students[0], targets[0], last=len(shape) - 1, smoothing=0.3)

    same(Bench(tmp_path, [student], [target], write).run([student], [target]), loss, [student], [target])
