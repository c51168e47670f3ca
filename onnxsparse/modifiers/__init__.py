"""What happens when in a run: one class for each modifier. A recipe's tag is looked up among them."""

from __future__ import annotations

from dataclasses import replace

from onnxsparse import plugins
from onnxsparse.recipes.modifiers.modifier import Modifier

__all__ = ["Modifier", "available"]


def available() -> list[plugins.Entry]:
    """Describe every modifier; what nothing runs yet says so."""
    missing = {cls.name: getattr(cls, "missing", "") for cls in plugins.every("modifiers").values()}
    found = sorted(plugins.available("modifiers"), key=lambda entry: entry.syntax.lower())
    return [_described(entry, missing.get(entry.syntax, "")) for entry in found]


def _described(entry: plugins.Entry, missing: str) -> plugins.Entry:
    return replace(entry, description=f"{entry.description} Nothing runs it yet: {missing}.") if missing else entry
