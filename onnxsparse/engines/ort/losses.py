"""Losses as nodes of a training graph: the same as the definitions in `onnxsparse.losses`.

1. Each function appends nodes and returns the name of a float without axes.
2. Only operators whose gradients are right in the engine are used; forms that lose a gradient at one point, as |x| does
   at 0, are avoided where that matters.
3. Nothing here checks targets: `Loss.check` does, before a batch is fed. A label outside the classes makes the engine
   read memory that is not its own.
4. The hardness of a mix is an initializer of its own, to be made a parameter that does not train if it has to change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx import TensorProto

from onnxsparse.errors import OptionError
from onnxsparse.graph.edit import Writer
from onnxsparse.losses import BCE, KL, L1, MSE, Columns, CrossEntropy, Distill, Loss, Scale, Scores, class_axis

Names = Sequence[str]


def write_loss(writer: Writer, loss: Loss, student: Names, target: Names) -> str:
    """The nodes of a loss of outputs and targets, all by name; several outputs count by their mean."""
    if isinstance(loss, Distill):
        return write_distill(writer, student, target, loss.scales or [1.0] * len(student))
    return write_mean(writer, [_write_one(writer, loss, *pair) for pair in zip(student, target)])


def write_cross_entropy(
    writer: Writer, student: str, labels: str, ignore: int = -100, last: int = 0, smoothing: float = 0.0
) -> str:
    """Labels are int64, of the logits' shape without the axis of the classes. That is the second one, or axis `last`
    where one is given, which is the last. With every label ignored the loss is 0."""
    if last > 1:
        student = writer.node("Transpose", student, perm=[0, last, *range(1, last)])
    # Against LogSoftmax with GatherElements the gradient is as right, and five times faster on pictures of labels.
    names = [writer.fresh("cross_entropy"), writer.fresh("log_probability")]
    hard = writer.many("SoftmaxCrossEntropyLoss", student, labels, to=names, ignore_index=ignore, reduction="mean")[0]
    if not smoothing:
        return hard
    return write_mix(writer, hard, _write_uniform(writer, student, labels, ignore), smoothing, "smoothing")


LEAST_SHARE = 1e-9
"""Of labels that count: a smaller one is none, which the loss is not to be divided by."""


def _write_uniform(writer: Writer, student: str, labels: str, ignore: int) -> str:
    """The cross-entropy of classes that are all as likely, over the labels that count."""
    # By a LogSoftmax of its own: the engine has no gradient of the second output of SoftmaxCrossEntropyLoss.
    logs = writer.node("LogSoftmax", student, axis=1)
    ignored = writer.node("Equal", labels, writer.constant(ignore, "ignored"))
    counts = writer.cast(writer.node("Not", ignored), TensorProto.FLOAT)
    share = writer.node("Max", _mean_of(writer, counts), writer.constant(LEAST_SHARE, "least_share"))
    every = writer.node("Mul", logs, writer.node("Unsqueeze", counts, writer.constant([1], "axis")))
    return writer.node("Neg", writer.node("Div", _mean_of(writer, every), share))


def write_mse(writer: Writer, student: str, target: str) -> str:
    """The mean square of the differences."""
    difference = writer.node("Sub", student, target)
    return _mean_of(writer, writer.node("Mul", difference, difference))


def write_l1(writer: Writer, student: str, target: str) -> str:
    """The mean size of the differences; the gradient of none is 0."""
    return _mean_of(writer, writer.node("Abs", writer.node("Sub", student, target)))


def write_bce(writer: Writer, student: str, target: str) -> str:
    """The cross-entropy of yes and no, of logits: max(x, 0) - x z + log(1 + exp(-|x|)), finite for every finite x."""
    positive = writer.node("Relu", student)
    # -|x| is written as x - 2 max(x, 0): together the gradient is right at 0, too, where |x| has none.
    minus_size = writer.node("Sub", writer.node("Sub", student, positive), positive)
    rest = writer.node("Log", writer.node("Add", writer.node("Exp", minus_size), writer.constant(1.0, "one")))
    hit = writer.node("Sub", positive, writer.node("Mul", student, target))
    return _mean_of(writer, writer.node("Add", hit, rest))


def write_kl(writer: Writer, student: str, teacher: str, temperature: float = 2.0, axis: int = -1) -> str:
    """The divergence from the dense model's softmax along an axis, both softened, times the temperature squared."""
    softer = writer.constant(1.0 / temperature, "softer")
    ours, theirs = (
        writer.node("LogSoftmax", writer.node("Mul", logits, softer), axis=axis) for logits in (student, teacher)
    )
    terms = writer.node("Mul", writer.node("Exp", theirs), writer.node("Sub", theirs, ours))
    lanes = writer.node("ReduceSum", terms, writer.constant([axis], "axis"), keepdims=0)
    return writer.node("Mul", _mean_of(writer, lanes), writer.constant(float(temperature) ** 2, "temperature_squared"))


FAR = 1e10
"""Scales beyond it, or below its reciprocal: there the square of a difference may leave float32."""


def write_distill(writer: Writer, student: Names, teacher: Names, scales: Sequence[Scale]) -> str:
    """Mean square differences to the dense model's tensors, each over its scale, and the mean of them."""
    return write_mean(writer, [_write_share(writer, *triple) for triple in zip(student, teacher, scales)])


def _write_share(writer: Writer, ours: str, theirs: str, scale: Scale) -> str:
    if isinstance(scale, Scores):
        distance = _write_share(writer, ours, theirs, scale.distance)
        return writer.node("Add", distance, write_kl(writer, ours, theirs, temperature=1.0))
    if isinstance(scale, Columns):
        return _of_roots(writer, ours, theirs, writer.constant(scale.array**-0.5, "distill_roots"))
    if 1 / FAR <= scale <= FAR:
        return writer.node("Mul", write_mse(writer, ours, theirs), writer.constant(1.0 / scale, "distill_share"))
    return _of_roots(writer, ours, theirs, writer.constant(scale**-0.5, "distill_root"))


def _of_roots(writer: Writer, ours: str, theirs: str, root: str) -> str:
    difference = writer.node("Mul", writer.node("Sub", ours, theirs), root)
    return _mean_of(writer, writer.node("Mul", difference, difference))


def write_projection(writer: Writer, value: str, matrix: str, rank: int, axis: int) -> str:
    """A value times a matrix, outputs first, along one of its axes."""
    turned = [place for place in range(rank) if place != axis] + [axis]
    last = value if axis == rank - 1 else writer.node("Transpose", value, perm=turned)
    found = writer.node("MatMul", last, writer.node("Transpose", matrix, perm=[1, 0]))
    back = [turned.index(place) for place in range(rank)]
    return found if axis == rank - 1 else writer.node("Transpose", found, perm=back)


def write_imitation(writer: Writer, student: str, taught: str, epsilon: float | None) -> str:
    """The mean square of the differences, over that of what is learned where there is an epsilon."""
    distance = write_mse(writer, student, taught)
    if epsilon is None:
        return distance
    size = _mean_of(writer, writer.node("Mul", taught, taught))
    return writer.node("Div", distance, writer.node("Add", size, writer.constant(epsilon, "epsilon")))


def write_mix(writer: Writer, task: str, distillation: str, hardness: float, called: str = "hardness") -> str:
    """(1 - hardness) * task + hardness * distillation"""
    share = writer.constant(float(hardness), called)
    rest = writer.node("Sub", writer.constant(1.0, "one"), share)
    return writer.node("Add", writer.node("Mul", rest, task), writer.node("Mul", share, distillation))


def _write_one(writer: Writer, loss: Loss, student: str, target: str) -> str:
    if isinstance(loss, KL):
        return write_kl(writer, student, target, loss.temperature, class_axis(_rank(writer, target), loss.axis))
    if isinstance(loss, CrossEntropy):
        return write_cross_entropy(writer, student, target, loss.ignore, smoothing=loss.smoothing)
    simple: dict[type[Loss], Callable[[Writer, str, str], str]] = {MSE: write_mse, L1: write_l1, BCE: write_bce}
    if type(loss) not in simple:
        raise OptionError(f"onnxruntime-training has no nodes for the loss {loss.text}")
    return simple[type(loss)](writer, student, target)


def _rank(writer: Writer, fed: str) -> int:
    """How many axes a value that is fed has."""
    return next(len(value.type.tensor_type.shape.dim) for value in writer.graph.input if value.name == fed)


def _mean_of(writer: Writer, name: str) -> str:
    return writer.node("ReduceMean", name, keepdims=0)


def write_mean(writer: Writer, parts: Names) -> str:
    """The mean of numbers."""
    total = parts[0]
    for part in parts[1:]:
        total = writer.node("Add", total, part)
    return total if len(parts) == 1 else writer.node("Mul", total, writer.constant(1.0 / len(parts), "share"))
