"""Inspecting a model: every weight, how each use reads it, how many zeros it has, and what holds it back.

1. Every weight is a row: `prunable`, or `dense` with the reason and what to do about it.
2. Zeros are counted as the hardware would see them; multiply-accumulates where the sizes are known.
What it does not do: decide how many would go, for which a plan has a rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Weight
from onnxsparse.passes.model_pass import Check
from onnxsparse.planning.defaults import words_of
from onnxsparse.planning.plan import way_out
from onnxsparse.planning.rows import of_one_run, plain_row, totals_of, unknown_sizes, with_macs
from onnxsparse.planning.stored_params import count_zeros, weight_param
from onnxsparse.report.rows import DENSE, Report, Row


@dataclass(frozen=True)
class Inspect(Check):
    """Reports every weight of a model, which reports call `called`."""

    called: str

    def call(self, model: Model) -> Report:
        rows, sized = with_macs(list(map(_inspected, model.weights)), model.weights, model)
        notes = (*of_one_run(model, rows), *unknown_sizes(model, rows, model.weights))
        totals = totals_of(rows, model, {"prunable"}, sized)
        return Report("inspect", self.called, "", tuple(rows), totals, notes=notes)


def _inspected(weight: Weight) -> Row:
    words = words_of(weight_param(weight)) if weight.uses and not weight.refusal else {}
    row = plain_row(weight, DENSE if weight.refusal or words else "prunable")
    text = weight.refusal or ", ".join(f"{word} ({seen})" for word, seen in words.items())
    masked = "a mask is applied to it in the graph" if row.masked else ""
    advice = f"stays dense by default; --allow {','.join(words)}" if words else way_out(weight.refusal)
    return replace(row, zeros=count_zeros(weight), reason=text or masked, advice=advice, words=tuple(words))
