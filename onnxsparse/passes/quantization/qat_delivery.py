"""Delivery of a converted export of quantization-aware training: its report, the proof of its zeros, and its file."""

from __future__ import annotations

from dataclasses import replace

from onnxsparse.errors import OptionError, brief
from onnxsparse.graph.model import Model
from onnxsparse.passes.delivery import Delivered, demand_unread, finish
from onnxsparse.passes.quantization.qat_export import Conversion
from onnxsparse.passes.quantization.quantizing import TARGETS
from onnxsparse.passes.quantization.report import quantization_report, with_sizes
from onnxsparse.passes.quantization.zero_points import demand_record, demand_zeros, zeros_of
from onnxsparse.planning.recorded import PREFIX
from onnxsparse.report.rows import Report

TITLE = "int8, by the scales of its training"


def delivered(model: Model, called: str, device: str, target: str | None, overwrite: bool) -> Delivered:
    """Convert a model, and write it where every zero is proven to be a zero point and the record of its zeros holds."""
    if device not in TARGETS:
        raise OptionError(f"--target is one of {', '.join(filter(None, TARGETS))}, not {brief(device)}")
    demand_unread(target, model)
    work = Conversion(model, device)
    before = Model.over(work.float_proto)
    weights = work.quantization.weights
    title = f"{TITLE}, for {device}" if device else TITLE
    notes = [*work.notes, *(f"'{name}': {why}" for name, why in work.quantization.left.items())]
    if work.repeated:
        notes.append(f"{work.repeated} values were rounded twice on one grid, and are once")
    report = quantization_report(before, work.quantization, called, title, notes, target)
    zeros = zeros_of(work.float_proto, weights)
    made = work.written()
    details: dict[str, object] = {"values": len(work.quantization.values), "biases": len(work.facts().biases)}
    result = Model.over(made)
    result.set_metadata({PREFIX + "quantization": title})
    report = with_sizes(replace(report, details=details), model, result)

    def check(report: Report, written: Model) -> Report:
        demand_zeros(written, weights, work.params, zeros)
        return replace(report, notes=(*report.notes, *demand_record(written, before)))

    return finish(result, report, target, overwrite, check=check)
