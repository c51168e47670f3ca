"""Quantizing a model after training: scales from samples, integers in place of weights, and what is delivered.

1. The float graph is a copy; what is rounded in it is decided before anything is run.
2. Values get their scales from what the samples say of them, weights from their own numbers; the scale of a weight
   grows where its bias would not fit into 32 bits.
3. With a limit of what may be lost the most sensitive layers stay in float (see `sensitivity`).
4. What a sparse file records of its zeros goes with it, and has to hold in the integers (see `zero_points`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from onnxsparse.calibration.collecting import collect
from onnxsparse.calibration.feeding import Feeds
from onnxsparse.calibration.statistics import Range
from onnxsparse.data import Field, open_data
from onnxsparse.engines.inference import Feed
from onnxsparse.errors import MissingExtraError, ModelError, OptionError, brief, nearest
from onnxsparse.graph.edit import copied
from onnxsparse.graph.model import Model
from onnxsparse.math.quantization import QParams, from_range, of_weight, widened_for_bias
from onnxsparse.math.values import Array
from onnxsparse.metrics import parse as parse_metric
from onnxsparse.options import Names
from onnxsparse.passes.delivery import Delivered, finish
from onnxsparse.passes.quantization.figures import Figures, MaxLoss, metrics_for
from onnxsparse.passes.quantization.float_graph import float_graph
from onnxsparse.passes.quantization.placement import quantization_of
from onnxsparse.passes.quantization.qdq import write_qdq
from onnxsparse.passes.quantization.report import quantization_report, saturation_note, with_sizes
from onnxsparse.passes.quantization.sensitivity import Chosen, within
from onnxsparse.passes.quantization.zero_points import demand_record, demand_zeros, zeros_of
from onnxsparse.planning.model_inputs import SampleAxes, fields_of
from onnxsparse.planning.names import NameFilter, named
from onnxsparse.planning.quantization import AMPERE, ONNXRUNTIME, Quantization, QuantizedWeight, Scheme
from onnxsparse.planning.recorded import PREFIX
from onnxsparse.report.rows import Report

SCHEMES = ("int8",)
TARGETS = {"": ONNXRUNTIME, "ampere": AMPERE, "vnni": replace(ONNXRUNTIME, target="vnni")}
OBSERVERS = ("minmax",)
INTEGERS = ("QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger")
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Asked:
    """How a model is to be quantized."""

    scheme: str = "int8"
    target: str = ""
    per_tensor: bool = False
    observer: str = "minmax"
    reduce_range: bool = False
    include: Names = ()
    exclude: Names = ()

    def __post_init__(self) -> None:
        for option, value, known in (
            ("scheme", self.scheme, SCHEMES),
            ("target", self.target, tuple(TARGETS)),
            ("observer", self.observer, OBSERVERS),
        ):
            if value not in known:
                words = [word for word in known if word]
                raise OptionError(
                    f"--{option} is one of {', '.join(words)}, not {brief(value)}{nearest(str(value), words)}"
                )

    @property
    def layers(self) -> Scheme:
        """What is rounded on which grid."""
        scheme = TARGETS[self.target]
        weights = scheme.layers.weights
        assert weights is not None
        layers = replace(
            scheme.layers, weights=replace(weights, reduced=self.reduce_range), per_channel=not self.per_tensor
        )
        return replace(scheme, layers=layers)

    @property
    def text(self) -> str:
        """In words, for the report."""
        words = [self.scheme, *([f"for {self.target}"] if self.target else [])]
        return ", ".join([" ".join(words), "per tensor" if self.per_tensor else "per channel", self.observer])


class Quantizing:
    """One model on its way: its float graph, what is rounded in it, and the scales as far as they are known."""

    def __init__(self, model: Model, asked: Asked) -> None:
        _demand_float(model)
        self.asked = asked
        self.proto, self.notes = float_graph(model)
        self.float_model = Model.over(copied(self.proto))
        self.quantization = self._chosen(quantization_of(self.proto, asked.layers))
        self.params: dict[str, QParams] = {}
        if not self.quantization.weights:
            raise OptionError(f"there is nothing to quantize: {self._why_nothing()}")

    def _chosen(self, found: Quantization) -> Quantization:
        """Without the layers that `--include` and `--exclude` leave in float."""
        names = NameFilter(_listed(self.asked.include), _listed(self.asked.exclude))
        weights = self.float_model.weights
        why = names.choose([named(weight) for weight in weights])
        reasons = {weight.tensor.name: why[weight.name] for weight in weights if why[weight.name]}
        gone = {reader: reasons[one.name] for one in found.weights if one.name in reasons for reader, _ in one.readers}
        left = found.without(gone)
        return replace(left, left={**left.left, **gone})

    def _why_nothing(self) -> str:
        reasons = list(dict.fromkeys(self.quantization.left.values()))
        kinds = {weight.tensor.kind for weight in self.float_model.weights} - {"float32"}
        if reasons:
            return "; ".join(reasons[:3])
        if kinds:
            return (
                f"its weights are {', '.join(sorted(kinds))}, and float32 is what is quantized; convert the model first"
            )
        return "no Conv, Gemm or MatMul has a constant weight"

    def observe(self, feeds: Iterable[Feed]) -> None:
        """The scales of all values, by what samples say of them; then those of the weights."""
        self.params = {**observed(self.proto, self.quantization, feeds, self.asked.observer), **self.params}
        for name, params in self.params.items():
            if not np.isfinite(params.scale).all():
                raise ModelError(f"the value '{name}' is NaN or infinite for some of these samples; look at the model")
        for weight in self.quantization.weights:
            self.params[weight.name] = self._of_weight(weight)

    def _of_weight(self, weight: QuantizedWeight) -> QParams:
        params = of_weight(self._stored(weight.name), weight.grid, weight.axis, weight.block)
        inputs = self.params.get(weight.input)
        if not weight.bias or inputs is None or weight.block:
            return params
        bias = self._stored(weight.bias)
        return widened_for_bias(params, inputs, bias) if bias.size in (1, params.scale.size) else params

    def _stored(self, name: str) -> Array:
        found: Array = numpy_helper.to_array(next(one for one in self.proto.graph.initializer if one.name == name))
        return found

    def written(self, quantization: Quantization) -> ModelProto:
        """A copy of the float graph with this rounded in it."""
        proto = copied(self.proto)
        write_qdq(proto, quantization, self.params)
        return proto


def observed(
    proto: ModelProto, quantization: Quantization, feeds: Iterable[Feed], observer: str = "minmax"
) -> dict[str, QParams]:
    """Scale and zero point of every value, by its least and greatest number."""
    assert observer == "minmax"
    grids = {value.name: value.grid for value in quantization.observed}
    found = collect(proto, grids, feeds, lambda _: Range())
    return {name: from_range(one.low, one.high, grids[name]) for name, one in found.items()}


def _demand_float(model: Model) -> None:
    """What cannot be quantized as it is, in one line that says what to do."""
    if model.file_size > LARGEST:
        raise ModelError("the model is over 2 GB, and is quantized in one message of protobuf, which holds no more")
    if model.flow.mask_sites:
        raise OptionError("masks are in the graph: fold them into the weights first (`onnxsparse fold`)")
    rounded = next((node.op_type for node in model.proto.graph.node if node.op_type in INTEGERS), "")
    if rounded:
        raise OptionError(f"the model is quantized already ({rounded}); quantize the float model it was made from")
    half = next((one.name for one in model.proto.graph.input if one.type.tensor_type.elem_type in _HALVES), "")
    if half:
        kind = TensorProto.DataType.Name(_kind_of(model, half)).lower()
        raise OptionError(f"the input '{half}' is {kind}: convert the model to float32 first, and quantize that")


_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def _kind_of(model: Model, name: str) -> Any:
    return next(one.type.tensor_type.elem_type for one in model.proto.graph.input if one.name == name)


def _listed(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


# -- from the samples to the model that is delivered


@dataclass(frozen=True)
class Samples:
    """What a quantization is calibrated and measured on, as the user named it."""

    data: Any = None
    count: int | None = None
    labels: str | None = None
    eval_data: Any = None
    metrics: Sequence[Any] = ()
    max_loss: MaxLoss | None = None

    def __post_init__(self) -> None:
        if self.count is not None and (
            isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1
        ):
            raise OptionError(f"--samples takes a number from 1, not {brief(self.count)}")
        if self.data is None:
            raise OptionError("--scheme int8 takes the ranges of values from samples; pass them with --data")
        if self.metrics and self.eval_data is None and self.max_loss is None:
            raise OptionError("--metric measures on --eval-data, or says what --max-loss is of; pass one of them too")


@dataclass(frozen=True)
class Measured:
    """What was measured, and what of the quantization is left by that."""

    quantization: Quantization
    details: dict[str, Any]
    notes: tuple[str, ...] = ()


def quantized(
    model: Model,
    called: str,
    asked: Asked,
    samples: Samples,
    axes: SampleAxes,
    target: str | None,
    overwrite: bool,
) -> Delivered:
    """Quantize a model and deliver it; nothing of a run that fails or is stopped has its name."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise MissingExtraError("quantize runs the model on the samples: pip install 'onnxsparse[runtime]'")
    work = Quantizing(model, asked)
    fields = fields_of(model, axes)
    data = open_data(
        samples.data, fields, samples.labels, samples.labels is not None and samples.eval_data is None, None
    )
    feeds = Feeds(work.proto, data, samples.count, axes.inputs, axes.states)
    work.observe(feeds)
    measured = _measured(work, feeds, fields, samples, axes)
    zeros = zeros_of(work.proto, measured.quantization.weights)
    made = work.written(measured.quantization)
    notes = [*work.notes, *data.notes, *_said_of_cpu(work), *measured.notes]
    report = quantization_report(work.float_model, measured.quantization, called, asked.text, notes, target)
    details = {
        "scheme": asked.scheme,
        "observer": asked.observer,
        "samples": feeds.count,
        "values": len(measured.quantization.values),
        **measured.details,
    }
    report = with_sizes(replace(report, details=details), work.proto, made)
    result = Model.over(made)
    result.set_metadata({PREFIX + "quantization": asked.text})

    def check(report: Report, written: Model) -> Report:
        demand_zeros(written, measured.quantization.weights, work.params, zeros)
        demand_record(written, work.float_model)
        return report

    return finish(result, report, target, overwrite, check=check)


def _said_of_cpu(work: Quantizing) -> list[str]:
    grids = [value.grid for value in work.quantization.values]
    return saturation_note(any(not grid.signed for grid in grids) and not work.asked.reduce_range)


def _measured(work: Quantizing, feeds: Feeds, fields: Sequence[Field], samples: Samples, axes: SampleAxes) -> Measured:
    """The figures of both models, and with a limit the layers that stay in float for it."""
    limit, whole = samples.max_loss, work.quantization
    if samples.eval_data is None and limit is None:
        return Measured(whole, {})
    if axes.states:
        raise OptionError("--eval-data and --max-loss do not measure along sequences yet; leave them out with --state")
    on, own = "the samples", feeds
    if samples.eval_data is not None:
        found = open_data(samples.eval_data, fields, samples.labels, samples.labels is not None, None)
        on, own = "--eval-data", Feeds(work.proto, found, None, axes.inputs, stage="")
    figures = Figures(work.proto, own, metrics_for(work.proto, own, samples.metrics, axes.outputs), axes.outputs)
    chosen = None
    if limit is not None:
        quiet = Feeds(work.proto, feeds.data, feeds.limit, axes.inputs, stage="")
        moved = Figures(work.proto, quiet, [parse_metric("distance")], axes.outputs)
        chosen = within(limit, whole, work.written, figures, moved)
        whole = replace(chosen.quantization, left={**chosen.quantization.left, **_too_sensitive(limit, chosen)})
    details = {
        "measured_on": on, "metrics_dense": figures.dense, "metrics": figures(work.written(whole)),
        **({"max_loss": _told(limit, chosen, figures)} if limit is not None and chosen is not None else {}),
    }  # fmt: skip
    return Measured(whole, details, () if chosen is None else tuple(_notes_on(limit, chosen, figures)))


def _too_sensitive(limit: MaxLoss, chosen: Chosen) -> dict[str, str]:
    return {name: f"left in float for --max-loss {limit.text}" for name, _ in chosen.left}


def _told(limit: MaxLoss, chosen: Chosen, figures: Figures) -> dict[str, Any]:
    left = [{"layer": name, "distance": distance} for name, distance in chosen.left]
    return {
        "limit": limit.text,
        "metric": figures.metrics[0].text,
        "lost": chosen.lost,
        "left": left,
        "runs": chosen.tried,
    }


def _notes_on(limit: MaxLoss | None, chosen: Chosen, figures: Figures) -> Iterator[str]:
    assert limit is not None
    yield f"{figures.metrics[0].text}: {limit.told(chosen.lost)} is lost, and {limit.text} may be"
    for name, distance in chosen.left:
        yield f"left in float: '{name}', which alone moves the outputs by {distance:.3g}"
