"""Reading the plan record back from a model's metadata."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from onnxsparse.errors import ModelError
from onnxsparse.graph.model import Model

PREFIX = "onnxsparse."
MASKED = "onnxsparse.mask."
SCHEDULE = "schedule"
ORIGINS = ("input_digest", "input_sha256")
"""What the dense file is recognised by: as it is written, and as earlier files have it."""
MOMENT = ("scheduler", "recipe", "iteration", "epoch", "level", "target", "seed", "temperature", "expected")
"""What of a moment a person wants to know; the rest is what the next masks go on from."""


@dataclass(frozen=True)
class Recorded:
    """The plan that a file carries: pattern text and count by weight, and the reasons of the dense ones."""

    pruned: dict[str, tuple[str, int]]
    dense: dict[str, tuple[str, bool]]
    target: str = ""
    before: dict[str, tuple[int, int]] = field(default_factory=dict)
    """How many outputs of a pruned weight were zero altogether before, and how many of its numbers."""


def recorded(model: Model) -> Recorded | None:
    """The plan in the metadata, of masks in the graph first; None when there is none."""
    metadata = model.metadata
    for prefix in (MASKED, PREFIX):
        if prefix + "plan" in metadata:
            return _read(metadata[prefix + "plan"], metadata.get(prefix + "target", ""))
    return None


def readable(model: Model) -> Recorded | None:
    """The same where a rule was named: a record that cannot be read then counts as none."""
    try:
        return recorded(model)
    except ModelError:
        return None


def recorded_level(model: Model) -> str:
    """The level that was asked for, as it is recorded; '' where none is."""
    metadata = model.metadata
    return metadata.get(MASKED + "sparsity") or metadata.get(PREFIX + "sparsity", "")


def recorded_moment(model: Model) -> dict[str, Any]:
    """Where the schedule of the masks in a file stands; nothing where none is recorded, or it cannot be read."""
    try:
        found: Any = json.loads(model.metadata.get(MASKED + SCHEDULE, "{}"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _read(text: str, target: str) -> Recorded:
    try:
        data: Any = json.loads(text)
        pruned = {str(name): (str(row[0]), int(row[1])) for name, row in data["pruned"].items()}
        longer = {str(name): row for name, row in data["pruned"].items() if len(row) > 3}
        before = {name: (int(row[2]), int(row[3])) for name, row in longer.items()}
        dense = {str(name): (str(row[0]), bool(row[1])) for name, row in data["dense"].items()}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ModelError(
            "the onnxsparse.plan in the model's metadata is damaged; name a --pattern or --target"
        ) from error
    return Recorded(pruned, dense, target, before)
