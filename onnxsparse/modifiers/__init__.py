"""What happens when in a run: one file for each modifier. `parse_tag` turns a recipe's tag into one."""

from __future__ import annotations

from onnxsparse import plugins
from onnxsparse.modifiers.modifier import Modifier, Part

__all__ = ["Modifier", "Part", "available"]


def available() -> list[plugins.Entry]:
    """Describe every modifier."""
    return plugins.available("modifiers")
