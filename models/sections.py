"""Sections of a configuration, read word by word: what is unknown or of a wrong type is an OptionError by its name.

section = Section("net: neck", {"outplanes": 256})
section.whole("outplanes")
section.end()               refuses what was not asked for, with the nearest of the words that were
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from onnxsparse.errors import OptionError, brief, nearest

REQUIRED = object()
MANY = 6
"""Of more known words than these only the nearest are named."""


class Section:
    """A mapping of a configuration; every word that is asked for is known."""

    def __init__(self, where: str, values: Any) -> None:
        values = {} if absent(values) else values
        if not isinstance(values, Mapping):
            raise OptionError(f"{where} is a mapping, not {brief(values)}")
        self.where, self.values = where, values
        self._known: list[str] = []

    def has(self, name: str) -> bool:
        self._known.append(name)
        return not absent(self.values.get(name))

    def any(self, name: str, default: Any = REQUIRED) -> Any:
        """The value as it is written; an error where it is missing and has no default."""
        if self.has(name):
            return self.values[name]
        if default is REQUIRED:
            unread = [str(one) for one in self.values if one not in self._known]
            raise OptionError(f"{self.where} needs {name}{nearest(name, unread, 1)}")
        return default

    def whole(self, name: str, default: Any = REQUIRED, least: int = 1) -> int:
        found = self.any(name, default)
        if isinstance(found, bool) or not isinstance(found, int) or found < least:
            self.refuse(name, f"a whole number of at least {least}", found)
        return found

    def number(
        self, name: str, default: Any = REQUIRED, least: float | None = None, most: float = float("inf")
    ) -> float:
        found = self.any(name, default)
        real = isinstance(found, (int, float)) and not isinstance(found, bool)
        if not real or abs(found) == float("inf") or found != found or (least is not None and found < least):
            self.refuse(name, "a number" if least is None else f"a number of at least {least:g}", found)
        if found > most:
            self.refuse(name, f"a number of at most {most:g}", found)
        return float(found)

    def numbers(self, name: str, default: Any = REQUIRED, count: int = 0, above: float = -float("inf")) -> list[float]:
        """A list of numbers: so many, or one at least."""
        found = self.any(name, default)
        fits = isinstance(found, Sequence) and not isinstance(found, str) and len(found) == (count or len(found) or 1)
        if not fits or any(isinstance(one, bool) or not isinstance(one, (int, float)) for one in found):
            self.refuse(name, f"a list of {count or 'one or more'} numbers", found)
        if not all(above < one < float("inf") for one in found):
            self.refuse(name, f"a list of numbers above {above:g}", found)
        return [float(one) for one in found]

    def share(self, name: str, default: Any = REQUIRED) -> float:
        """A number in (0, 1)."""
        found = self.number(name, default)
        if not 0 < found < 1:
            self.refuse(name, "a number between 0 and 1", found)
        return found

    def flag(self, name: str, default: Any = REQUIRED) -> bool:
        found = self.any(name, default)
        if not isinstance(found, bool):
            self.refuse(name, "true or false", found)
        return bool(found)

    def word(self, name: str, known: Sequence[str], default: Any = REQUIRED) -> str:
        """One of the words that are known."""
        found = self.any(name, default)
        if found not in known:
            hint = nearest(found, known) if isinstance(found, str) else ""
            few = ("one of " if len(known) > 1 else "") + ", ".join(known)
            self.refuse(name, few if len(known) <= MANY or not hint else f"one of {len(known)} words", found, hint)
        return str(found)

    def wholes(self, name: str, default: Any = REQUIRED, least: int = 0) -> list[int]:
        """A list of whole numbers."""
        found = self.any(name, default)
        fits = isinstance(found, Sequence) and not isinstance(found, str)
        if not fits or any(isinstance(one, bool) or not isinstance(one, int) or one < least for one in found):
            self.refuse(name, f"a list of whole numbers of at least {least}", found)
        return list(found)

    def part(self, name: str) -> Section:
        """A section inside; where it is missing, an empty one."""
        return Section(f"{self.where}.{name}", self.any(name, None))

    def typed(self, name: str, known: Sequence[str], default: Any = REQUIRED) -> tuple[str, Section]:
        """A part of `type` and `kwargs`."""
        self.any(name, default)
        part = self.part(name)
        kind, kwargs = part.word("type", known, default), part.part("kwargs")
        part.end()
        return kind, kwargs

    def end(self) -> None:
        """Everything was read: what is left is unknown."""
        for name in self.values:
            if name not in self._known:
                known = sorted(set(self._known))
                hint = nearest(str(name), known) or (f" (known: {', '.join(known)})" if known else "")
                raise OptionError(f"{self.where} has no {name!s:.60}{hint}")

    def refuse(self, name: str, wanted: str, found: Any, hint: str = "") -> NoReturn:
        raise OptionError(f"{self.where}.{name} is {wanted}, not {brief(found)}{hint}")


def absent(value: Any) -> bool:
    """Published files write None, which YAML reads as a text."""
    return value is None or (isinstance(value, str) and value == "None")
