"""What happens when in a run: one file for each modifier. `parse_tag` turns a recipe's tag into one."""

from __future__ import annotations

from dataclasses import replace

from onnxsparse import plugins
from onnxsparse.modifiers.modifier import Modifier, Part

__all__ = ["Modifier", "Part", "available"]


def available() -> list[plugins.Entry]:
    """Describe every modifier; what nothing runs yet says so."""
    missing = {cls.name: getattr(cls, "missing", "") for cls in plugins.every("modifiers").values()}
    return [_described(entry, missing.get(entry.syntax, "")) for entry in plugins.available("modifiers")]


def _described(entry: plugins.Entry, missing: str) -> plugins.Entry:
    return replace(entry, description=f"{entry.description} Nothing runs it yet: {missing}.") if missing else entry
