"""Losses as nodes of a training graph: the same as the definitions in `onnxsparse.losses`.

1. Each function appends nodes and returns the name of a float without axes. Several outputs count by their mean.
2. Only operators whose gradients are right in the engine are used; forms that lose a gradient at one point, as |x| does
   at 0, are avoided where that matters.
3. Nothing here checks targets: `Loss.check` does, before a batch is fed. A label outside the classes makes the engine
   read memory that is not its own.
4. The hardness of a mix is an initializer of its own, to be made a parameter that does not train if it has to change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnxsparse.engines.ort.writer import Writer
from onnxsparse.errors import OptionError
from onnxsparse.losses import Loss
from onnxsparse.losses.bce import BCE
from onnxsparse.losses.cross_entropy import CrossEntropy
from onnxsparse.losses.distill import Distill
from onnxsparse.losses.kl import KL
from onnxsparse.losses.l1 import L1
from onnxsparse.losses.mse import MSE

Names = Sequence[str]


def write_loss(writer: Writer, loss: Loss, student: Names, target: Names) -> str:
    """The nodes of a loss of outputs and targets, all by name."""
    if isinstance(loss, Distill):
        return write_distill(writer, student, target, loss.scales or [1.0] * len(student))
    if isinstance(loss, KL):
        return write_kl(writer, student, target, loss.temperature, loss.axis)
    if isinstance(loss, CrossEntropy):
        return write_cross_entropy(writer, student, target, loss.ignore)
    simple: dict[type[Loss], Callable[[Writer, Names, Names], str]] = {MSE: write_mse, L1: write_l1, BCE: write_bce}
    if type(loss) not in simple:
        raise OptionError(f"onnxruntime-training has no nodes for the loss {loss.text}")
    return simple[type(loss)](writer, student, target)


def write_cross_entropy(writer: Writer, student: Names, labels: Names, ignore: int = -100) -> str:
    """Labels are int64, of the logits' shape without axis 1. With every label ignored the loss is 0."""
    return _mean(writer, [_cross_entropy(writer, *pair, ignore) for pair in zip(student, labels)])


def write_mse(writer: Writer, student: Names, target: Names) -> str:
    """The mean square of the differences."""
    return _mean(writer, [_mean_square(writer, *pair) for pair in zip(student, target)])


def write_l1(writer: Writer, student: Names, target: Names) -> str:
    """The mean size of the differences; the gradient of none is 0."""
    sizes = [writer.node("Abs", writer.node("Sub", *pair)) for pair in zip(student, target)]
    return _mean(writer, [_mean_of(writer, size) for size in sizes])


def write_bce(writer: Writer, student: Names, target: Names) -> str:
    """The cross-entropy of yes and no, of logits; finite for every finite logit."""
    return _mean(writer, [_binary(writer, *pair) for pair in zip(student, target)])


def write_distill(writer: Writer, student: Names, teacher: Names, scales: Sequence[float]) -> str:
    """Mean square differences to the dense model's tensors, each over its scale."""
    parts = [
        writer.node("Mul", _mean_square(writer, ours, theirs), writer.constant(1.0 / scale, "distill_share"))
        for ours, theirs, scale in zip(student, teacher, scales)
    ]
    return _mean(writer, parts)


def write_kl(writer: Writer, student: Names, teacher: Names, temperature: float = 2.0, axis: int = -1) -> str:
    """The divergence from the dense model's softmax along an axis."""
    return _mean(writer, [_divergence(writer, *pair, temperature, axis) for pair in zip(student, teacher)])


def write_mix(writer: Writer, task: str, distillation: str, hardness: float) -> str:
    """(1 - hardness) * task + hardness * distillation"""
    share = writer.constant(float(hardness), "hardness")
    rest = writer.node("Sub", writer.constant(1.0, "one"), share)
    return writer.node("Add", writer.node("Mul", rest, task), writer.node("Mul", share, distillation))


def _cross_entropy(writer: Writer, logits: str, labels: str, ignore: int) -> str:
    # Against LogSoftmax with GatherElements the gradient is as right, and five times faster on pictures of labels.
    names = [writer.fresh("cross_entropy"), writer.fresh("log_probability")]
    return writer.many("SoftmaxCrossEntropyLoss", logits, labels, to=names, ignore_index=ignore, reduction="mean")[0]


def _mean_square(writer: Writer, one: str, other: str) -> str:
    difference = writer.node("Sub", one, other)
    return _mean_of(writer, writer.node("Mul", difference, difference))


def _binary(writer: Writer, logits: str, target: str) -> str:
    """max(x, 0) - x z + log(1 + exp(-|x|)), with x - 2 max(x, 0) for -|x|: so the gradient at 0 is right, too."""
    positive = writer.node("Relu", logits)
    minus_size = writer.node("Sub", writer.node("Sub", logits, positive), positive)
    rest = writer.node("Log", writer.node("Add", writer.node("Exp", minus_size), writer.constant(1.0, "one")))
    hit = writer.node("Sub", positive, writer.node("Mul", logits, target))
    return _mean_of(writer, writer.node("Add", hit, rest))


def _divergence(writer: Writer, student: str, teacher: str, temperature: float, axis: int) -> str:
    softer = writer.constant(1.0 / temperature, "softer")
    ours, theirs = (
        writer.node("LogSoftmax", writer.node("Mul", logits, softer), axis=axis) for logits in (student, teacher)
    )
    terms = writer.node("Mul", writer.node("Exp", theirs), writer.node("Sub", theirs, ours))
    lanes = writer.node("ReduceSum", terms, writer.constant([axis], "axis"), keepdims=0)
    return writer.node("Mul", _mean_of(writer, lanes), writer.constant(float(temperature) ** 2, "temperature_squared"))


def _mean_of(writer: Writer, name: str) -> str:
    return writer.node("ReduceMean", name, keepdims=0)


def _mean(writer: Writer, parts: Names) -> str:
    total = parts[0]
    for part in parts[1:]:
        total = writer.node("Add", total, part)
    return total if len(parts) == 1 else writer.node("Mul", total, writer.constant(1.0 / len(parts), "share"))
