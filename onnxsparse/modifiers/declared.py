"""Converting a value to the type that a modifier's field declares: `float | None`, `dict[float, tuple[str, ...]]`.

YAML would read `2:4` as 124 and `1e-3` as a text; here the field alone decides. Its annotation is parsed, and not
evaluated by `typing.get_type_hints`: Python 3.9 cannot evaluate `float | None`.

1. Out of a recipe come texts. What can be read as several of the declared types is the first of bool, whole number,
   number, text; in quotes it is a text, where the field takes one.
2. Out of Python come values; a list is a tuple, a whole number a number, where the field takes that.
3. A field that takes lists only, takes a single value as a list of one.
"""

from __future__ import annotations

import ast
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
BITS: dict[float | None, bool] = {0.0: False, 1.0: True}
CALLED = {
    "bool": "true or false", "int": "whole number", "float": "number", "str": "text", "tuple": "list",
    "dict": "mapping",
}  # fmt: skip
ANY = "Any"
Types = tuple[tuple[str, tuple[str, ...]], ...]


def as_declared(declared: str, value: Any) -> Any:
    """The value in the first of the declared types that takes it, or an OptionError that says what it is not."""
    types = alternatives(declared)
    names = {name for name, _ in types}
    if ANY in names:
        return plain(value)
    if value is None or (value == "None" and "None" in names and type(value) is str):
        if "None" in names:
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
        return {plain(key) if isinstance(key, str) else key: plain(one) for key, one in value.items()}
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


def _mapping(types: Types, value: Mapping[Any, Any]) -> dict[Any, Any]:
    for name, inner in types:
        if name == "dict":
            return {as_declared(inner[0], key): as_declared(inner[1], one) for key, one in value.items()}
    raise OptionError("it takes no mapping of names to values")


def _several(types: Types, value: list[Any] | tuple[Any, ...]) -> tuple[Any, ...]:
    """Of several kinds of lists the first that fits."""
    kinds = [inner[0] for name, inner in types if name == "tuple"]
    if not kinds:
        raise OptionError("it takes one value, not a list")
    for kind in kinds[:-1]:
        try:
            return tuple(as_declared(kind, one) for one in value)
        except OptionError:
            continue
    return tuple(as_declared(kinds[-1], one) for one in value)


def _single(types: Types, value: Any) -> Any:
    names = dict(types)
    if "str" in names and isinstance(value, Quoted):
        return str(value)
    for name, read in _READERS.items():
        found = read(value) if name in names else None
        if found is None and name == "bool" and name in names and not {"int", "float"} & set(names):
            found = BITS.get(number(value))  # where no number is meant
        if found is not None:
            return found
    if "tuple" in names and not set(_READERS) & set(names):
        return _several(types, [value])
    asked = " or ".join(called for name, called in CALLED.items() if name in names)
    shown = repr(str(value)[:60]) if isinstance(value, str) else repr(value)[:60]
    raise OptionError(f"{shown} is no {asked}")


@functools.cache
def alternatives(declared: str) -> Types:
    """The types of a declaration, each with what it holds: `float | dict[str, Any]` is a float, or a dict of two."""
    try:
        node = ast.parse(declared, mode="eval").body
    except SyntaxError:  # the text of a type, where a module has no `from __future__ import annotations`
        return ((declared, ()),)
    found = []
    while isinstance(node, ast.BinOp):
        found.append(node.right)
        node = node.left
    return tuple(map(_named, [node, *reversed(found)]))


def _named(node: ast.expr) -> tuple[str, tuple[str, ...]]:
    if not isinstance(node, ast.Subscript):
        return ast.unparse(node), ()
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return ast.unparse(node.value), tuple(map(ast.unparse, inner))


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


def text(value: Any) -> str | None:
    return str(value) if isinstance(value, str) else None


_READERS = {"bool": switch, "int": whole, "float": number, "str": text}
