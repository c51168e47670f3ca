"""What nobody knows stays in the recipe as it is written: only where that is asked for, and never in a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from onnxsparse.modifiers.declared import number, plain
from onnxsparse.modifiers.modifier import Modifier
from onnxsparse.modifiers.scheduled import FARTHEST, NEVER


@dataclass(frozen=True)
class UnknownModifier(Modifier):
    """An entry with a tag that no plug-in has."""

    name: ClassVar[str] = "unknown"
    missing: ClassVar[str] = "no modifier of that name is known"

    written_tag: str
    options: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, tag: str, options: dict[str, Any]) -> UnknownModifier:
        return cls(tag, tuple((name, plain(value)) for name, value in sorted(options.items())))

    @property
    def start_epoch(self) -> float:
        return self._epoch("start_epoch")

    @property
    def end_epoch(self) -> float:
        return self._epoch("end_epoch")

    def _epoch(self, name: str) -> float:
        found = number(dict(self.options).get(name))
        return NEVER if found is None or not NEVER <= found <= FARTHEST else found
