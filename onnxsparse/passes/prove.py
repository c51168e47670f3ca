"""Proof over trust: what was pruned is read again and checked by `verify` before the file gets its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnxsparse.errors import OnnxSparseError
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Weight
from onnxsparse.passes.expect import expected_of
from onnxsparse.passes.inspect import count_zeros
from onnxsparse.passes.plan import PlanRow, names_of
from onnxsparse.passes.verify import Checked, Verify
from onnxsparse.report.rows import Row


def proved(rows: Sequence[Row], written: Model, made: Sequence[PlanRow]) -> list[Row]:
    """The rows with the zeros that really are in the file; a pattern that does not hold there is a defect of ours."""
    names = names_of(written.weights)
    weights = {names[id(weight)]: weight for weight in written.weights}
    expected = [replace(expected_of(row), weight=weights[row.name]) for row in made]
    checked = {entry.expected.name: entry for entry in Verify(expected, None, finite=True)()}
    broken = next((name for name, entry in checked.items() if entry.status != "holds"), None)
    if broken is not None:
        raise OnnxSparseError(
            f"the pattern does not hold in '{broken}' after pruning; nothing was written, please report this"
        )
    return [replace(row, zeros=_zeros(row.name, checked, weights)) for row in rows]


def _zeros(name: str, checked: Mapping[str, Checked], weights: Mapping[str, Weight]) -> int | None:
    if name in checked:
        return checked[name].zeros
    return count_zeros(weights[name]) if name in weights else None
