"""Assembling the training graph: masks and sparsers on the weights, a loss at the end, then the gradient graph."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.helper import make_tensor_value_info

from onnxsparse import sparsers
from onnxsparse.engines.distillation import LAYER, DistillationTarget
from onnxsparse.engines.engine import LossSpec, Spec, unit_of
from onnxsparse.engines.fake_quantization import FakeQuantize
from onnxsparse.engines.layer_terms import PROJECTION, unlike
from onnxsparse.engines.ort import library, losses
from onnxsparse.engines.ort.fake_quantization import rounded
from onnxsparse.engines.ort.prepare import Prepared
from onnxsparse.engines.ort.rewrites import EAGER, FUSED
from onnxsparse.engines.ort.rewrites.norms import Statistics
from onnxsparse.engines.ort.rewrites.rewrite import operator
from onnxsparse.engines.ort.sparsers import write
from onnxsparse.errors import ModelError, OptionError, nearest
from onnxsparse.graph.edit import Writer
from onnxsparse.losses import Scale, axis_of_labels, chosen_axis, labels_unlike

# -- From a prepared graph to one that the engine can differentiate: masks on the weights, a loss at the end.
#
# 1. Every masked weight is read through its sparser; the nodes of the sparsers come first.
# 2. The values of the dense model come in as inputs, one for each distillation target; labels as one more.
# 3. The first output is the loss. The user's own float outputs follow, for measuring.

FLOAT, NAMED = 1, 3
_NONE = Statistics()


@dataclass
class Assembled:
    """Names in the training graph: of trained arrays and of frozen ones, by tag and role, and of what is fed."""

    model: ModelProto
    loss: str
    measured: str = ""  # the loss that is reported, where that is not the one that trains
    unit: str = ""  # of that, in words
    trained: dict[str, str] = field(default_factory=dict)  # `tag` or `tag/role` -> initializer
    frozen: dict[str, str] = field(default_factory=dict)
    teacher: dict[str, str] = field(default_factory=dict)  # distillation target -> input
    taught: list[dict[str, str]] = field(default_factory=list)  # of each pair of layers: input, value, teacher's file
    labels: str = ""
    classes: int = 0  # that the labels may name
    outputs: list[str] = field(default_factory=list)
    anchors: list[str] = field(default_factory=list)  # initializers that need a gradient, or the engine dies
    still: list[str] = field(default_factory=list)  # keys of `trained` that must not move by their gradients
    switch: str = ""  # the frozen number that says whose statistics count
    follows: dict[str, tuple[str, float]] = field(
        default_factory=dict
    )  # key of a running statistic -> output, momentum
    ranges: dict[str, tuple[str, str]] = field(default_factory=dict)  # key of fake quantization -> two outputs
    shares: dict[str, float] = field(default_factory=dict)  # key of a learned scale -> what is taken of its gradient

    def drop(self, name: str) -> str:
        """Leave a stored tensor out, with all that its sparser trains; returns its tag."""
        tag = next(key for key, other in self.trained.items() if other == name).partition("/")[0]
        for kept in (self.trained, self.frozen):
            for key in [key for key in kept if key.partition("/")[0] == tag]:
                del kept[key]
        return tag

    def names(self) -> dict[str, object]:
        """What another process has to know of the graph, for JSON."""
        return {key: value for key, value in vars(self).items() if key != "model"}

    @property
    def moving(self) -> list[str]:
        """Initializers that train by their gradients."""
        return [name for key, name in self.trained.items() if key not in self.follows]

    @property
    def frozen_names(self) -> list[str]:
        """Initializers that are written from outside."""
        statistics = [self.trained[key] for key in self.follows]
        return [*self.frozen.values(), *statistics, *([self.switch] if self.switch else [])]

    @property
    def extra(self) -> list[str]:
        """Outputs beside the loss and the user's own."""
        measured = [self.measured] if self.measured else []
        ranges = [output for pair in self.ranges.values() for output in pair]
        return measured + ranges + list(dict.fromkeys(output for output, _ in self.follows.values()))


def assemble(
    prepared: Prepared,
    spec: Spec,
    scales: Mapping[str, Scale],
    statistics: Statistics = _NONE,
    fake: Mapping[str, FakeQuantize] | None = None,
) -> Assembled:
    """Turn the prepared graph, in place, into one whose first output is the loss; `fake` is what is rounded in it, by
    the names of the scales."""
    model = prepared.model
    opset = max(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    writer = Writer(model.graph, opset)
    made = Assembled(model, "")
    _mask(writer, prepared, spec, made)
    tags = {name: tag for name, tag in prepared.weights.items() if name in statistics.follows}
    made.switch, made.follows = statistics.switch, {tag: statistics.follows[name] for name, tag in tags.items()}
    front = writer.nodes
    rounding = rounded(writer, fake or {}, _shapes(prepared))
    made.trained.update(rounding.trained)
    made.frozen.update(rounding.frozen)
    made.ranges, made.shares = rounding.ranges, rounding.shares
    _lose(writer, prepared, spec.objective, scales, made)
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in (*front, *model.graph.node, *writer.nodes)]
    nodes = once(nodes, set(made.moving), writer)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    domains = {entry.domain for entry in model.opset_import}
    if any(node.domain == "com.microsoft" for node in nodes) and "com.microsoft" not in domains:
        model.opset_import.add(domain="com.microsoft", version=1)
    del model.graph.output[:]
    model.graph.output.append(make_tensor_value_info(made.loss, FLOAT, []))
    return made


def _mask(writer: Writer, prepared: Prepared, spec: Spec, made: Assembled) -> None:
    stored = {tensor.name: tensor for tensor in writer.graph.initializer}
    renamed: dict[str, str] = {}
    for name, tag in prepared.weights.items():
        made.trained[tag] = name
        text = spec.sparsers.get(tag)
        if text is None:
            continue
        written = write(writer, sparsers.parse(text), name, numpy_helper.to_array(stored[name]))
        renamed[name] = written.effective
        made.trained.update({f"{tag}/{role}": other for role, other in written.trained.items()})
        made.frozen.update({f"{tag}/{role}": other for role, other in written.frozen.items()})
    for node in writer.graph.node:
        for place, name in enumerate(node.input):
            if name in renamed:
                node.input[place] = renamed[name]


def once(nodes: Sequence[NodeProto], trained: Collection[str], writer: Writer) -> list[NodeProto]:
    """A node that reads a trained tensor twice gets it by an Identity the second time: the engine fails otherwise."""
    found: list[NodeProto] = []
    for node in nodes:
        for place, name in enumerate(node.input):
            if name in trained and name in node.input[:place]:
                writer.nodes = []
                node.input[place] = writer.node("Identity", name)
                found += writer.nodes
        found.append(node)
    return found


def _lose(
    writer: Writer, prepared: Prepared, objective: LossSpec, scales: Mapping[str, Scale], made: Assembled
) -> None:
    distillation = _distil(writer, prepared, objective, scales, made) if objective.hardness > 0 else ""
    told = _told(writer, prepared, objective, scales, made) if distillation else ""
    task = _task(writer, prepared, objective, made) if objective.hardness < 1 else ""
    made.loss = _mixed(writer, task, distillation, objective.hardness)
    made.measured = _mixed(writer, task, told, objective.hardness) if told else ""
    if objective.terms:
        made.measured = made.measured or made.loss
        made.loss = _with_layers(writer, prepared, objective, made)
    made.unit = unit_of(objective, [scales[one.name] for one in prepared.signals if one.stated and one.name in scales])
    made.outputs = [signal.name for signal in prepared.signals if signal.kind == "output"]


def _with_layers(writer: Writer, prepared: Prepared, objective: LossSpec, made: Assembled) -> str:
    """The loss with what layers add that learn from layers."""
    total, shapes = made.loss, _shapes(prepared)
    for place, term in enumerate(objective.terms):
        if term.student not in shapes:
            raise ModelError(f"the graph is cut before the layer '{term.student}'; try --engine torch")
        shape, axis, student = list(shapes[term.student]), term.axis % len(shapes[term.student]), term.student
        if term.projection:
            matrix = made.trained[f"{PROJECTION}/{term.projected_by}"] = writer.constant(term.start(), "projection")
            student, shape[axis] = (
                losses.write_projection(writer, student, matrix, len(shape), axis),
                term.projection[0],
            )
        if not term.teacher and shapes.get(term.taught) != tuple(shape):
            raise OptionError(unlike(term, shape, shapes.get(term.taught, ())))
        fed = writer.input(f"taught_{place}", "float32", shape)
        made.taught.append({"input": fed, "value": term.taught, "teacher": term.teacher})
        distance = losses.write_imitation(writer, student, fed, term.epsilon if term.normalize else None)
        total = writer.node("Add", total, writer.node("Mul", distance, writer.constant(term.gain, "gain")))
    return total


def _mixed(writer: Writer, task: str, distillation: str, hardness: float) -> str:
    return losses.write_mix(writer, task, distillation, hardness) if task and distillation else task or distillation


def _told(writer: Writer, prepared: Prepared, objective: LossSpec, scales: Mapping[str, Scale], made: Assembled) -> str:
    """The distance that is reported: of what the user's own file shows. Nothing where no more than that trains."""
    shown = [one.name for one in prepared.signals if one.stated and one.name in made.teacher]
    if objective.distillation == "kl" or not shown or len(shown) == len(made.teacher):
        return ""
    others = [f"'{name}'" for name in made.teacher if name not in shown]
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    prepared.notes.append(
        f"{', '.join(others[:NAMED])}{more} before the outputs train along; the loss on samples held out is without"
    )
    return losses.write_distill(writer, shown, [made.teacher[name] for name in shown], [scales[one] for one in shown])


def _distil(
    writer: Writer, prepared: Prepared, objective: LossSpec, scales: Mapping[str, Scale], made: Assembled
) -> str:
    shapes = _shapes(prepared)
    if objective.distillation == "kl":
        chosen = [logits_of(prepared.signals, name) for name in objective.distilled or (objective.output,)]
    else:
        chosen = [signal for signal in prepared.signals if signal.name in scales and signal.kind != LAYER]
    made.teacher = {one.name: writer.input(f"dense_{n}", "float32", shapes[one.name]) for n, one in enumerate(chosen)}
    student, dense = list(made.teacher), list(made.teacher.values())
    if objective.distillation == "kl":
        axes = [_class_axis(prepared, objective, signal, shapes[signal.name]) for signal in chosen]
        triples = zip(student, dense, axes)
        return losses.write_mean(
            writer, [losses.write_kl(writer, ours, fed, objective.temperature, axis) for ours, fed, axis in triples]
        )
    return losses.write_distill(writer, student, dense, [scales[name] for name in student])


def _class_axis(prepared: Prepared, objective: LossSpec, signal: DistillationTarget, shape: tuple[int, ...]) -> int:
    """The axis of the classes: where labels are of them, the one that these leave."""
    labelled = objective.task == "cross-entropy" and signal == logits_of(prepared.signals, objective.output)
    known = axis_of_labels(shape, (prepared.batch, *objective.label_shape)) if labelled else None
    return chosen_axis("kl", signal.name, shape, objective.axis, known or signal.axis)


def _task(writer: Writer, prepared: Prepared, objective: LossSpec, made: Assembled) -> str:
    raw = objective.task in ("cross-entropy", "bce")
    student = (logits_of if raw else output_of)(prepared.signals, objective.output).name
    shape = _shapes(prepared)[student]
    _demand_labels(objective, shape, prepared.batch, student)
    made.labels = writer.input("labels", objective.label_dtype, (prepared.batch, *objective.label_shape))
    if objective.task == "cross-entropy":
        axis = axis_of_labels(shape, (prepared.batch, *objective.label_shape)) or 1
        made.classes = shape[axis]
        last, smoothing = axis if axis > 1 else 0, objective.smoothing
        return losses.write_cross_entropy(writer, student, made.labels, last=last, smoothing=smoothing)
    writers: dict[str, Callable[[Writer, str, str], str]] = {
        "mse": losses.write_mse,
        "l1": losses.write_l1,
        "bce": losses.write_bce,
    }
    return writers[objective.task](writer, student, made.labels)


def _demand_labels(objective: LossSpec, shape: tuple[int, ...], batch: int, name: str) -> None:
    """Labels of another shape would be stretched in silence, or read beyond their end."""
    given, classes = (batch, *objective.label_shape), objective.task == "cross-entropy"
    if classes and len(shape) < 2:
        raise OptionError(f"cross-entropy needs classes along axis 1, but output '{name}' has shape {list(shape)}")
    if axis_of_labels(shape, given) is None if classes else given != shape:
        wanted = [shape[2:], shape[1:-1]] if classes else [shape[1:]]
        more = "where they are one-hot rows, save their .argmax(-1)" if classes and given == shape else ""
        raise OptionError(labels_unlike(objective.task, name, given[1:], wanted, more))


def output_of(signals: Sequence[DistillationTarget], wanted: str) -> DistillationTarget:
    """The graph output that labels belong to."""
    outputs = [signal for signal in signals if signal.kind == "output"]
    for signal in outputs:
        if not wanted or signal.original == wanted:
            return signal
    names = [signal.original for signal in outputs]
    called = f" {wanted!r}" if wanted else ""
    raise OptionError(f"the model has no float output{called} that labels could belong to{nearest(wanted, names)}")


def logits_of(signals: Sequence[DistillationTarget], wanted: str) -> DistillationTarget:
    """What comes before the softmax or sigmoid of an output, or the output itself."""
    output = output_of(signals, wanted)
    return next((one for one in signals if one.kind == "tap" and one.original == output.original), output)


def _shapes(prepared: Prepared) -> dict[str, tuple[int, ...]]:
    values = (*prepared.model.graph.output, *prepared.model.graph.value_info)
    return {value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim) for value in values}


# -- The gradient graph of a training graph, by the engine's own tool.
#
# Stored vectors of up to eight numbers that are equal are one to the engine before it writes gradients, and one that
# several nodes read may not have several (see `rewrites`). As parameters that do not train they stay apart.

SHARED = 8
BLOCKS = "onnxruntime.training.onnxblock.optim"


def generate(
    model: ModelProto,
    trained: Sequence[str],
    frozen: Iterable[str],
    outputs: Sequence[str],
    folder: str | os.PathLike[str],
    decay: float | None = None,
) -> None:
    """Write the artifacts of a graph whose first output is the loss into a folder; with the engine's own AdamW of a
    weight decay where one is given."""
    training = library.training()
    optimizer = None if decay is None else importlib.import_module(BLOCKS).AdamW(weight_decay=decay)
    # Its optimizer graph (1.19.2) takes onnx's own IR version, which a newer onnx has beyond what it loads itself.
    onnx.IR_VERSION = library.LAST_IR  # type: ignore[assignment]
    model.ir_version = min(max(model.ir_version, 8), library.LAST_IR)
    training.artifacts.generate_artifacts(
        model,
        requires_grad=list(trained),
        frozen_params=_apart(model, trained, list(frozen)),
        optimizer=optimizer,
        artifact_directory=folder,
        additional_output_names=list(outputs),
    )


def _apart(model: ModelProto, trained: Sequence[str], frozen: list[str]) -> list[str]:
    """The frozen parameters, and the small vectors that have to be ones."""
    known = {*trained, *frozen}
    read = {name for node in model.graph.node if operator(node) in EAGER | FUSED for name in node.input}
    small = [one for one in model.graph.initializer if one.data_type == TensorProto.FLOAT and len(one.dims) == 1]
    return frozen + [one.name for one in small if 1 < one.dims[0] <= SHARED and one.name in read - known]
