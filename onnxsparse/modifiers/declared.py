"""A value as the field of a modifier declares it: `float | None`, `tuple[str, ...]`, `dict[float, tuple[str, ...]]`.

YAML would read `2:4` as 124 and `1e-3` as a text; here the field alone decides.

1. Out of a recipe come texts. What can be read as several of the declared types is the first of bool, whole number,
   number, text; in quotes it is a text, where the field takes one.
2. Out of Python come values; a list is a tuple, a whole number a number, where the field takes that.
3. A field that takes lists only, takes a single value as a list of one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from onnxsparse.errors import OptionError


class Quoted(str):
    """A text that stood in quotes: it is one, where the field takes texts."""

    __slots__ = ()


class Computed(str):
    """A text with something computed in it, which as a whole may be a number."""

    number: float | int | None = None


WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
CALLED = {"bool": "true or false", "int": "whole number", "float": "number", "str": "text"}
ANY = "Any"


def as_declared(declared: str, value: Any) -> Any:
    """The value in the first of the declared types that takes it, or an OptionError that says what it is not."""
    types = alternatives(declared)
    if ANY in types:
        return plain(value)
    if value is None or (value == "None" and "None" in types and type(value) is str):
        if "None" in types:
            return None
        raise OptionError("it has no value")
    if isinstance(value, Mapping):
        return _mapping(types, value)
    if isinstance(value, (list, tuple)):
        return _several(types, value)
    return _single(types, value)


def from_python(value: Any) -> Any:
    """Texts of a program are texts; those of a recipe are told apart where it is read."""
    if type(value) is str:
        return Quoted(value)
    if isinstance(value, (list, tuple)):
        return [from_python(one) for one in value]
    if isinstance(value, Mapping):
        return {from_python(key): from_python(one) for key, one in value.items()}
    return value


def reads_as_other(text: str) -> bool:
    """Whether a text has to be in quotes to be one."""
    return switch(text) is not None or number(text) is not None


def plain(value: Any) -> Any:
    """What a value is where no field says it. There is one nan, so that a list with it is equal to its copy."""
    if isinstance(value, Mapping):
        return {_key(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(plain(one) for one in value)
    if not isinstance(value, str) or isinstance(value, Quoted):
        return str(value) if isinstance(value, str) else _one_nan(value)
    found = next((made for read in (switch, _digits, number) if (made := read(value)) is not None), None)
    return str(value) if found is None else _one_nan(found)


def _one_nan(value: Any) -> Any:
    return math.nan if isinstance(value, float) and math.isnan(value) else value


def _digits(value: str) -> int | None:
    """Without a dot it is a whole number."""
    return None if set(value) & set(".eE") else whole(value)


def _key(key: Any) -> Any:
    return plain(key) if isinstance(key, str) else key


def _mapping(types: tuple[str, ...], value: Mapping[Any, Any]) -> dict[Any, Any]:
    inner = next((_inside(one) for one in types if one.startswith("dict[")), None)
    if inner is None:
        raise OptionError("it takes no mapping of names to values")
    keys, values = _split(inner, ",", 1)
    return {as_declared(keys, key): as_declared(values, one) for key, one in value.items()}


def _several(types: tuple[str, ...], value: list[Any] | tuple[Any, ...]) -> tuple[Any, ...]:
    """Of several kinds of lists the first that fits."""
    kinds = [_split(_inside(one), ",", 1)[0] for one in types if one.startswith("tuple[")]
    if not kinds:
        raise OptionError("it takes one value, not a list")
    for kind in kinds[:-1]:
        try:
            return tuple(as_declared(kind, one) for one in value)
        except OptionError:
            continue
    return tuple(as_declared(kinds[-1], one) for one in value)


def _single(types: tuple[str, ...], value: Any) -> Any:
    if "str" in types and isinstance(value, Quoted):
        return str(value)
    for name, read in _READERS.items():
        found = read(value) if name in types else None
        if found is None and name == "bool" and name in types:
            found = _bit(value, types)
        if found is not None:
            return found
    kind = next((one for one in types if one.startswith("tuple[")), None)
    if kind is not None and not any(name in types for name in _READERS):
        return (as_declared(_split(_inside(kind), ",", 1)[0], value),)
    asked = [CALLED[name] for name in CALLED if name in types]
    asked += ["list"] * any(one.startswith("tuple[") for one in types)
    asked += ["mapping"] * any(one.startswith("dict[") for one in types)
    raise OptionError(f"{_shown(value)} is no {' or '.join(asked)}")


def _shown(value: Any) -> str:
    return repr(str(value)[:60]) if isinstance(value, str) else repr(value)[:60]


@functools.cache
def alternatives(declared: str) -> tuple[str, ...]:
    """The types of a declaration."""
    return tuple(_split(declared, "|"))


def _split(text: str, mark: str, most: int = -1) -> list[str]:
    """Parted at a mark that stands in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == mark and not depth and (most < 0 or len(parts) <= most):
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _inside(declared: str) -> str:
    return declared[declared.index("[") + 1 : -1]


def switch(value: Any) -> bool | None:
    if isinstance(value, str):
        return WORDS.get(value.lower())
    return value if isinstance(value, bool) else None


def whole(value: Any) -> int | None:
    """All digits count, however many; `1e3` is a whole number too."""
    if isinstance(value, int):
        return None if isinstance(value, bool) else value
    if isinstance(value, str) and not isinstance(value, Computed):
        try:
            return int(value)
        except ValueError:
            pass
    found = number(value)
    return int(found) if found is not None and math.isfinite(found) and found == int(found) else None


def number(value: Any) -> float | None:
    """With the dot that YAML puts before inf and nan."""
    if isinstance(value, Computed):
        return None if value.number is None else float(value.number)
    if isinstance(value, bool):
        return None
    try:
        return float(value.replace(".inf", "inf").replace(".nan", "nan") if isinstance(value, str) else value)
    except (ValueError, TypeError, OverflowError):
        return None


def _bit(value: Any, types: tuple[str, ...]) -> bool | None:
    """0 and 1 are false and true where no number is meant."""
    read = None if {"int", "float"} & set(types) else number(value)
    return bool(read) if read in (0, 1) else None


def text(value: Any) -> str | None:
    return str(value) if isinstance(value, str) else None


_READERS = {"bool": switch, "int": whole, "float": number, "str": text}
