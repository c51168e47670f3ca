"""From a recipe's entry to a modifier. A tag is only ever looked up among the plug-ins, never imported.

1. Several modifiers may have one tag; the options say which is meant.
2. Options of the newer form have other names there: `start` for `start_epoch`, `targets` for `params`.
3. `log_types` means nothing and is passed over, as ever.
4. Two modifiers had other names before SparseML 0.1; they are read, and written with those of today.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterable
from typing import Any

from onnxsparse import plugins
from onnxsparse.errors import LONG, OptionError, nearest
from onnxsparse.recipes.layout import Entry, Option
from onnxsparse.recipes.modifiers.modifier import Modifier, Scheduled, as_declared
from onnxsparse.recipes.variables import Scope
from onnxsparse.recipes.writing import UnknownModifier
from onnxsparse.recipes.yaml_tree import Node, WrongError

SUFFIX = "Modifier"
PASSED_OVER = "log_types"
OLDER = {"GradualKSModifier": "GMPruningModifier", "ConstantKSModifier": "ConstantPruningModifier"}
TAG = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
NEWER = {
    "start": "start_epoch",
    "end": "end_epoch",
    "update": "update_frequency",
    "targets": "params",
    "update_scheduler": "inter_func",
    "mask_structure": "mask_type",
}
NEWER_MASKS = {"channel": "filter", "filter": "channel"}
"""The newer form counts the dimensions the other way round."""
BLOCK = re.compile(r"block_(\d+),\s*(\d+)")


def modifier_of(entry: Entry, scope: Scope, strict: bool) -> Modifier:
    """The modifier that an entry means; without `strict` one that nobody knows is kept as it is written."""
    forms = _forms(entry.tag, entry.newer)
    if not forms and entry.tag in plugins.broken("modifiers"):
        raise WrongError(entry.line, plugins.broken("modifiers")[entry.tag])
    if not forms:
        hint = _hint(entry.tag) or " (`onnxsparse list modifiers` shows all that are known)"
        if strict or TAG.fullmatch(entry.tag) is None:
            raise WrongError(entry.line, f"unknown modifier !{entry.tag:.60}{hint}")
        written = {option.name: scope.filled(option.value).plain() for option in entry.options}
        return UnknownModifier.of(entry.tag, written)
    # of several forms the first that knows most of the options
    cls = max(forms, key=lambda cls: sum(option.name in _fields(cls) for option in entry.options))
    options = [option for option in entry.options if not (issubclass(cls, Scheduled) and option.name == PASSED_OVER)]
    return _made(cls, entry, _values(cls, entry, options, scope))


def _made(cls: Any, entry: Entry, values: dict[str, Any]) -> Modifier:
    try:
        made = cls(**values)
    except (TypeError, ValueError, OverflowError, OptionError) as error:
        named = getattr(error, "option", None)
        line = next((option.line for option in entry.options if _named(cls, option.name, entry) == named), entry.line)
        raise WrongError(line, f"!{entry.tag}: {error}") from error
    assert isinstance(made, Modifier)
    return made


def _values(cls: Any, entry: Entry, options: Iterable[Option], scope: Scope) -> dict[str, Any]:
    fields = _fields(cls)
    values: dict[str, Any] = {}
    for option in options:
        name = _named(cls, option.name, entry)
        if name not in fields:
            raise WrongError(option.line, f"!{entry.tag} has no option {option.name[:60]!r}{nearest(name, fields)}")
        if name in values:
            raise WrongError(option.line, f"{option.name} of !{entry.tag} is there twice")
        try:
            values[name] = as_declared(fields[name], _plain(scope.filled(option.value), name, entry))
        except OptionError as error:
            raise WrongError(option.line, f"{option.name} of !{entry.tag}: {error}") from None
    return values


def _named(cls: Any, name: str, entry: Entry) -> str:
    name = name.replace("-", "_")
    newer = NEWER.get(name, name)
    return newer if entry.newer and name not in _fields(cls) and newer in _fields(cls) else name


def _plain(node: Node, name: str, entry: Entry) -> Any:
    found = node.plain()
    if not (entry.newer and name == "mask_type" and isinstance(found, str)):
        return found
    block = BLOCK.fullmatch(found)
    return [block[1], block[2]] if block is not None else NEWER_MASKS.get(found, found)


@functools.cache
def _fields(cls: Any) -> dict[str, str]:
    return {field.name: str(field.type) for field in dataclasses.fields(cls)}


def _hint(tag: str) -> str:
    """The nearest names, by what is their own: almost all end alike."""
    known = [cls.tag or cls.name for cls in plugins.every("modifiers").values() if issubclass(cls, Modifier)]
    bare = {name.removesuffix(SUFFIX): name for name in known}
    close = difflib.get_close_matches(tag[:LONG].removesuffix(SUFFIX), bare, n=3, cutoff=0.6)
    return f" (did you mean {', '.join(bare[name] for name in close)}?)" if close else ""


def _forms(tag: str, newer: bool) -> list[type[Modifier]]:
    """Every modifier with a tag; the newer form may leave the end of its name out."""
    known = [cls for cls in plugins.every("modifiers").values() if issubclass(cls, Modifier)]
    tag = OLDER.get(tag, tag)
    names = (tag, tag + SUFFIX) if newer else (tag,)
    return [cls for cls in known if cls.name in names] + [cls for cls in known if cls.tag in names]
