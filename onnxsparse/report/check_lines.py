"""What `finetune --check` says of a training graph."""

from __future__ import annotations

from typing import Any

from onnxsparse.report.rows import Report


def check_lines(report: Report) -> list[str]:
    """A line for each thing that is not as it should be, between what was checked and the verdict."""
    found: dict[str, Any] = dict(report.details)
    count, lost = found["checked"], len(found["unreached"])
    trains = f"{count} tensor{' trains' if count == 1 else 's train'}"
    return [
        f"training graph of batch {found['batch']}: {trains}, {lost} cannot",
        f"the dense model against itself: loss {found['loss_at_rest']:.3g}",
        *(f"note: {note}" for note in report.notes),
        *(f"not reached: {name}: {reason}" for name, reason in found["unreached"].items()),
        *(f"no gradient: {name}" for name in found["silent"]),
        *(f"WRONG gradient: {name}" for name in found["wrong"]),
        "every gradient agrees with finite differences" if report.ok else "some gradients are WRONG",
    ]
