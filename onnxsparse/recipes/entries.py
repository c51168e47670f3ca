"""From a recipe's entry to a modifier. A tag is only ever looked up among the plug-ins, never imported.

1. Several modifiers may have one tag; the options say which is meant.
2. Options of the newer form have other names there: `start` for `start_epoch`, `targets` for `params`.
3. `log_types` means nothing and is passed over, as ever. The classes of the newer form pass over whatever they do not
   know: so it is here, and said, but for what looks like a typing mistake and is no word of another modifier.
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
from onnxsparse.recipes.elsewhere import OPTIONS, is_elsewhere, kept, options_of_class
from onnxsparse.recipes.layout import Entry, Option
from onnxsparse.recipes.modifiers.magnitude import CUBIC
from onnxsparse.recipes.modifiers.modifier import NEVER, Modifier, Scheduled, as_declared, number, switch
from onnxsparse.recipes.variables import Scope
from onnxsparse.recipes.writing import UnknownModifier
from onnxsparse.recipes.yaml_tree import Node, Pairs, WrongError

SUFFIX = "Modifier"
PASSED_OVER = "log_types"
PASSED = "_passed_over"
"""What is said of the options of a modifier that were passed over."""
TIMED = ("start_epoch", "end_epoch", "update_frequency")
OLDER = {"GradualKSModifier": "GMPruningModifier", "ConstantKSModifier": "ConstantPruningModifier"}
TAG = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
NEWER_QUANTIZATION = ("LegacyQuantization", "vLLMQuantization")
"""What the newer form calls QuantizationModifier with either of its options."""
WHEN_CALIBRATED = ("post_oneshot_calibration",)
"""An option of theirs that says nothing of training."""
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
    if not (entry.newer and not strict):
        return _modifier(entry, scope, strict)
    try:
        return _modifier(entry, scope, strict)
    except WrongError as error:
        if TAG.fullmatch(entry.tag) is None:
            raise
        return kept(entry.tag, _written(entry, scope), True, f"it is not understood: {error}")


def _modifier(entry: Entry, scope: Scope, strict: bool) -> Modifier:
    _as_known(entry, scope)
    written = _written(entry, scope) if entry.tag in OPTIONS else {}
    if is_elsewhere(entry.tag, written):
        for option in entry.options:
            _demand_option(option, entry.tag, options_of_class(entry.tag))
        return kept(entry.tag, written, entry.newer, OPTIONS[entry.tag][0])
    forms = _forms(entry.tag, entry.newer)
    if len(forms) > 1:
        written = written or _written(entry, scope)
        forms = [cls for cls in forms if not issubclass(cls, Scheduled) or cls.is_meant(written)]
    if not forms and entry.tag in plugins.broken("modifiers"):
        raise WrongError(entry.line, plugins.broken("modifiers")[entry.tag])
    if not forms:
        hint = _hint(entry.tag) or " (`onnxsparse list modifiers` shows all that are known)"
        if strict or TAG.fullmatch(entry.tag) is None:
            raise WrongError(entry.line, f"unknown modifier !{entry.tag:.60}{hint}")
        return UnknownModifier.of(entry.tag, _written(entry, scope))
    # of several forms the first that knows most of the options
    cls = max(forms, key=lambda cls: sum(option.name in _fields(cls) for option in entry.options))
    options = [option for option in entry.options if not (issubclass(cls, Scheduled) and option.name == PASSED_OVER)]
    values = _values(cls, entry, options, scope)
    if entry.newer:  # what has no time there is due at once, always and to the end
        values = {**dict.fromkeys(set(TIMED) & set(_fields(cls)), NEVER), **values}
    made = _made(cls, entry, values)
    passed = [option.name for option in options if entry.newer and _named(cls, option.name, entry) not in values]
    object.__setattr__(made, PASSED, tuple(f"!{entry.tag} has no option {name:.60}; passed over" for name in passed))
    return made


def _written(entry: Entry, scope: Scope) -> dict[str, Any]:
    return {option.name: scope.filled(option.value).plain() for option in entry.options}


def _demand_option(option: Option, tag: str, known: Iterable[str]) -> None:
    """An option that nobody knows is no mistake of typing where no name is near."""
    hint = "" if option.name in known else nearest(option.name, known)
    if hint:
        raise WrongError(option.line, f"!{tag} has no option {option.name[:60]!r}{hint}")


def _as_known(entry: Entry, scope: Scope) -> None:
    """MagnitudePruningModifier of the newer form in the words of the other, as far as that has them."""
    if not entry.newer or entry.tag.removesuffix(SUFFIX) != "MagnitudePruning":
        return
    values = {option.name: scope.filled(option.value).plain() for option in entry.options}
    arguments, schedule = values.get("scheduler_args") or {}, values.get("update_scheduler") or CUBIC
    exponent = number(arguments.get("exponent", 2)) if isinstance(arguments, dict) else None
    runs = schedule in ("linear", CUBIC) or (schedule, exponent) == ("polynomial_decay", 3)
    left_out = {"apply_globally", "scheduler_args"} if runs else set()
    if runs and schedule == "polynomial_decay":
        left_out |= {"update_scheduler"}
    if not runs and "scheduler_args" not in values:
        entry.options.append(Option("scheduler_args", Node.around(Pairs(), entry.line), entry.line))
    if runs and switch(values.get("apply_globally")):
        entry.tag = "GlobalMagnitudePruningModifier"
    entry.options = [option for option in entry.options if option.name not in left_out]


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
        hint = "" if name in fields else nearest(name, fields)
        if name not in fields and entry.newer and (not hint or name in _known_words()):
            continue
        if name not in fields and issubclass(cls, Scheduled) and name in cls.not_taken:
            raise WrongError(option.line, f"!{entry.tag} takes no {name}: {cls.not_taken[name]}")
        if name not in fields:
            raise WrongError(option.line, f"!{entry.tag} has no option {option.name[:60]!r}{hint}")
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
def _known_words() -> frozenset[str]:
    """Options of all modifiers, by all their names."""
    classes = (cls for cls in plugins.ours("modifiers").values() if issubclass(cls, Scheduled))
    own = {name for cls in classes for name in _fields(cls)}
    return frozenset({*own, *NEWER, *WHEN_CALIBRATED, *(name for tag in OPTIONS for name in options_of_class(tag))})


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
    if newer and tag.removesuffix(SUFFIX) in NEWER_QUANTIZATION:
        tag = "QuantizationModifier"
    names = (tag, tag + SUFFIX) if newer else (tag,)
    return [cls for cls in known if cls.name in names] + [cls for cls in known if cls.tag in names]
