"""Values of a recipe: texts, made into what the field of a modifier says.

YAML would read `2:4` as 124 and `1e-3` as a text; here the field alone decides. What can be read as several of its
types is the first of bool, whole number, number, text; in quotes it is a text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Union

from onnxsparse.errors import OptionError


class Quoted(str):
    """A text that stood in quotes: it is one, where the field takes texts."""

    __slots__ = ()


Plain = Union[str, list[str], None]
WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def as_field_says(declared: str, value: Plain) -> Any:
    """The value in one of the types of a field, spelled as in its declaration: `float | None`, `tuple[str, ...]`."""
    types = [one.strip() for one in declared.split("|")]
    if value is None:
        if "None" in types:
            return None
        raise OptionError("it has no value")
    if any(one.startswith("tuple") for one in types):
        return tuple(map(str, value)) if isinstance(value, list) else (str(value),)
    if isinstance(value, list):
        raise OptionError("it takes one value, not a list")
    if isinstance(value, Quoted) and "str" in types:
        return str(value)
    for name, read in _READERS.items():
        found = read(value) if name in types else None
        if found is not None:
            return found
    raise OptionError(f"{value[:60]!r} is no {' or '.join(_CALLED[name] for name in _CALLED if name in types)}")


def reads_as_other(text: str) -> bool:
    """Whether a text has to be in quotes to be one."""
    return _switch(text) is not None or _number(text) is not None


def _switch(text: str) -> bool | None:
    return WORDS.get(text.lower())


def _whole(text: str) -> int | None:
    """All digits count, however many; `1e3` is a whole number too."""
    try:
        return int(text)
    except ValueError:
        number = _number(text)
    return int(number) if number is not None and math.isfinite(number) and number == int(number) else None


def _number(text: str) -> float | None:
    """With the dot that YAML puts before inf and nan."""
    try:
        return float(text.replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        return None


_READERS: dict[str, Callable[[str], Any]] = {"bool": _switch, "int": _whole, "float": _number, "str": str}
_CALLED = {"bool": "true or false", "int": "whole number", "float": "number", "str": "text"}
