"""The modifiers of a recipe: options and act of each one in one place; a module may hold several.

Whoever writes a modifier imports from here: its options derive from `Scheduled`, its act from `TimedAct`, which is
bound to `Param`s and acts on a `Trainee`.
"""

from __future__ import annotations

from dataclasses import replace

from onnxsparse import plugins
from onnxsparse.acts.act import TimedAct
from onnxsparse.acts.params import Param, find
from onnxsparse.acts.trainee import Trainee
from onnxsparse.recipes.modifiers.modifier import REQUIRED, Modifier, Scheduled, demand_params, demand_positive
from onnxsparse.recipes.modifiers.one_shot import RUN_BY

__all__ = [
    "REQUIRED", "Modifier", "Param", "Scheduled", "TimedAct", "Trainee", "available", "demand_params",
    "demand_positive", "find",
]  # fmt: skip


def available() -> list[plugins.Entry]:
    """Describe every modifier; what nothing runs yet says so."""
    missing = {cls.name: getattr(cls, "missing", "") for cls in plugins.every("modifiers").values()}
    found = sorted(plugins.available("modifiers"), key=lambda entry: entry.syntax.lower())
    return [_described(entry, missing.get(entry.syntax, "")) for entry in found]


def _described(entry: plugins.Entry, missing: str) -> plugins.Entry:
    if missing == RUN_BY:
        return replace(entry, description=f"{entry.description} Run by `onnxsparse oneshot`.")
    return replace(entry, description=f"{entry.description} Nothing runs it yet: {missing}.") if missing else entry
