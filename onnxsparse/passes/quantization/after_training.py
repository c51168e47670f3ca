"""Quantization after training, from the samples to the delivered file: scales, figures, what may be lost, the proof.

1. The samples are opened and looked at before anything is run.
2. Both models are measured where the user asks for it; with a limit of what may be lost the most sensitive layers stay
   in float (see `sensitivity`).
3. What a sparse file records of its zeros goes with it, and has to hold in the integers (see `zero_points`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onnxsparse.calibration.feeding import Feeds
from onnxsparse.data import Field, open_data
from onnxsparse.errors import MissingExtraError, OptionError, brief
from onnxsparse.graph.model import Model
from onnxsparse.metrics import parse as parse_metric
from onnxsparse.passes.delivery import Delivered, finish
from onnxsparse.passes.quantization.figures import Figures, MaxLoss, metrics_for
from onnxsparse.passes.quantization.quantizing import Asked, Quantizing
from onnxsparse.passes.quantization.report import quantization_report, saturation_note, with_sizes
from onnxsparse.passes.quantization.sensitivity import Chosen, within
from onnxsparse.passes.quantization.zero_points import demand_record, demand_zeros, zeros_of
from onnxsparse.planning.model_inputs import SampleAxes, fields_of, with_empty_past
from onnxsparse.planning.quantization import Quantization
from onnxsparse.planning.recorded import PREFIX
from onnxsparse.report.rows import Report

FEW = 64
"""Samples below which it is said that they are few."""
NAMED = 12
"""Layers left in float that a line names."""


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
        if self.max_loss is not None and self.data is None and self.eval_data is None:
            raise OptionError("--max-loss is measured on --eval-data, or on the samples; pass --data")
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
    if asked.samples_needed and asked.scales is None and samples.data is None:
        raise OptionError(
            "--scheme int8 takes the ranges of values from samples: pass --data, or do without by --dynamic or "
            "--scheme w8"
        )
    runs = samples.data is not None or samples.eval_data is not None
    if runs and importlib.util.find_spec("onnxruntime") is None:
        raise MissingExtraError("quantize runs the model on the samples: pip install 'onnxsparse[runtime]'")
    work = Quantizing(model, asked)
    if work.unscaled and samples.data is None:
        raise OptionError(
            f"--scales has no scale for {len(work.unscaled)} values (the first: '{work.unscaled[0]}'); pass --data, "
            "too, for theirs"
        )
    fields = with_empty_past(fields_of(model, axes))
    feeds = _feeds(work, samples, fields, axes)
    work.observe(feeds)
    measured = _measured(work, feeds, fields, samples, axes)
    zeros = zeros_of(work.proto, measured.quantization.weights)
    made = work.written(measured.quantization)
    notes = [*work.notes, *work.refined, *_said_of_samples(feeds, asked), *_said_of_cpu(work), *measured.notes]
    report = quantization_report(work.float_model, measured.quantization, called, asked.text, notes, target)
    details = {
        "scheme": asked.scheme,
        "dynamic": asked.dynamic,
        "observer": asked.observer if asked.samples_needed and feeds else "",
        "samples": feeds.count if feeds else 0,
        "values": len(measured.quantization.values),
        **measured.details,
    }
    result = Model.over(made)
    result.set_metadata({PREFIX + "quantization": work.text})
    report = with_sizes(replace(report, details=details), model, result)

    def check(report: Report, written: Model) -> Report:
        demand_zeros(written, measured.quantization.weights, work.params, zeros)
        return replace(report, notes=(*report.notes, *demand_record(written, work.float_model)))

    return finish(result, report, target, overwrite, check=check)


def _feeds(work: Quantizing, samples: Samples, fields: Sequence[Field], axes: SampleAxes) -> Feeds | None:
    if samples.data is None:
        return None
    wants_labels = samples.labels is not None and samples.eval_data is None
    data = open_data(samples.data, fields, samples.labels, wants_labels, None)
    return Feeds(work.proto, data, samples.count, axes.inputs, axes.states)


def _said_of_samples(feeds: Feeds | None, asked: Asked) -> list[str]:
    if feeds is None:
        return []
    few = f"{feeds.count} samples are few: ranges that others go beyond are clipped; a few hundred are better"
    return [*feeds.notes, *([few] if asked.samples_needed and feeds.count < FEW else [])]


def _said_of_cpu(work: Quantizing) -> list[str]:
    unsigned = work.asked.dynamic or any(not value.grid.signed for value in work.quantization.values)
    return saturation_note(unsigned and not work.asked.reduce_range)


def _measured(
    work: Quantizing, feeds: Feeds | None, fields: Sequence[Field], samples: Samples, axes: SampleAxes
) -> Measured:
    """The figures of both models, and with a limit the layers that stay in float for it."""
    limit, whole = samples.max_loss, work.quantization
    if samples.eval_data is None and limit is None:
        return Measured(whole, {})
    on, own = "the samples", feeds
    if samples.eval_data is not None:
        found = open_data(samples.eval_data, fields, samples.labels, samples.labels is not None, None)
        on, own = "--eval-data", Feeds(work.proto, found, None, axes.inputs, axes.states, stage="measure")
    assert own is not None
    figures = Figures(work.proto, own, metrics_for(work.proto, own, samples.metrics, axes.outputs), axes.outputs)
    chosen = None
    if limit is not None:
        known = feeds or own
        quiet = Feeds(work.proto, known.data, known.limit, axes.inputs, axes.states, stage="")
        moved = Figures(work.proto, quiet, [parse_metric("distance")], axes.outputs)
        chosen = within(limit, whole, work.moves, work.written, figures, moved)
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
    yield f"{figures.metrics[0].text}: {limit.beside(chosen.lost)}"
    shown = ", ".join(f"'{name}' {distance:.3g}" for name, distance in chosen.left[:NAMED])
    more = f" and {len(chosen.left) - NAMED} more, which --json lists" if len(chosen.left) > NAMED else ""
    if shown:
        yield f"left in float, with the distance by which each alone moves the outputs: {shown}{more}"
