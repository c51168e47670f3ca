"""The base classes of modifiers: options with types that a recipe may write, and what acts by epochs."""

from __future__ import annotations

import ast
import dataclasses
import functools
import math
from abc import ABC
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from onnxsparse.acts.act import Act, Run, TimedAct
from onnxsparse.acts.params import ALL, ALL_PRUNABLE
from onnxsparse.errors import OptionError, nearest
from onnxsparse.plugins import Plugin
from onnxsparse.rates import LARGEST
from onnxsparse.schedules import Span

# -- What a modifier is: options in a recipe, and the act that they make.
#
# The options are the fields of a dataclass and never change. What changes while a run lasts belongs to the act
# (`acts.act`): the loop calls its hooks at every step, and a checkpoint holds its state.


class Modifier(Plugin, ABC):
    """One entry of a recipe."""

    kind: ClassVar[str] = "modifiers"
    tag: ClassVar[str] = ""
    """What it is called in a recipe, where that is not its name."""
    missing: ClassVar[str] = ""
    """What no engine has that it would need: it is read and written, and refused before a run."""

    def start(self, run: Run) -> Act:
        """What it does in a run that has not begun; what goes by epochs has its act from the plan instead."""
        raise OptionError(f"!{self.tag or self.name} has no act of its own in a run")


# -- What the modifiers of SparseML have in common: when they begin, when they end, how often they act.
#
# 1. Epochs are numbers, also between whole ones. `start_epoch: -1` is before the first step, `end_epoch: -1` is never,
#    `update_frequency: -1` is every step.
# 2. Every modifier takes the three, also where it does not need them; then they are left out when it is written.
# 3. Values are made what their fields declare, whether they come from a recipe or from Python.
# 4. What no engine can do yet has its reason in `missing`; such a modifier is read, checked and written like any other,
#    and refused before a run begins.


Kind = TypeVar("Kind", bound="Scheduled")
NEVER = -1.0
FARTHEST = 1e9
"""No epoch comes later, so that its steps can be counted."""
PLACE = "_place"
"""Where a modifier stands in a file: no option, so two of different places may be equal."""


class _Required:
    """In the place of a default: there is none."""

    def __str__(self) -> str:
        return "required"


REQUIRED: Any = _Required()
"""The default of a field that has to be given, wherever it stands among the others."""


class WrongOptionError(OptionError):
    """One option of a modifier is wrong; a recipe knows its line."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"{option}: {problem}")
        self.option = option


@dataclass(frozen=True)
class Scheduled(Modifier):
    """A modifier of SparseML."""

    not_taken: ClassVar[Mapping[str, str]] = {}
    """Options of its kin that it has not, and why."""
    unwritten: ClassVar[tuple[str, ...]] = ("update_frequency",)
    """Options that are left out where they are at their default, because SparseML does not know them here."""

    start_epoch: float = NEVER
    end_epoch: float = NEVER
    update_frequency: float = NEVER

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, self._made(field))
        self._check_times()
        self.check()

    @classmethod
    def is_meant(cls, options: Mapping[str, Any]) -> bool:  # noqa: ARG003 - most have a tag of their own
        """Whether options can mean this one, of several with a tag."""
        return True

    def check(self) -> None:
        """Refuse options that mean nothing, each by its name."""

    def check_until(self, epoch: float) -> None:
        """Refuse what cannot be in a recipe that ends at an epoch."""

    @property
    def span(self) -> Span:
        return Span(self.start_epoch, self.end_epoch, self.update_frequency)

    @property
    def called(self) -> str:
        """How it is called where something is wrong with it."""
        place = getattr(self, PLACE, "")
        tag = self.tag or self.name
        return f"{place}: !{tag}" if place else f"!{tag}"

    def act(self) -> TimedAct:
        """What it does by the clock; it is made and bound once, before the plan."""
        raise OptionError(f"{self.called} is read and checked, but nothing runs it yet: {self.missing}")

    def advanced(self: Kind, epochs: float) -> Kind:
        """The same so many epochs later: what had no start has one now, what never ends still does not."""
        return changed(self, **self.times_after(epochs))

    def times_after(self, epochs: float) -> dict[str, Any]:
        """Every option that names an epoch, so many epochs later."""
        times = {"start_epoch": max(0.0, self.start_epoch) + epochs}
        return times if self.end_epoch == NEVER else {**times, "end_epoch": self.end_epoch + epochs}

    def within(self: Kind, epochs: float, of: float) -> Kind:
        """The same in a run of `epochs` where it was written for one of `of`."""
        return changed(self, **self.times_within(epochs, of))

    def times_within(self, epochs: float, of: float) -> dict[str, Any]:
        """Every option that names an epoch or counts epochs, scaled to the length of another run."""
        return scaled_epochs(self, ("start_epoch", "end_epoch", "update_frequency"), epochs, of)

    def _made(self, field: dataclasses.Field[Any]) -> Any:
        value = getattr(self, field.name)
        if value is REQUIRED:
            raise WrongOptionError(field.name, "it has to be given")
        try:
            return as_declared(str(field.type), from_python(value))
        except OptionError as error:
            raise WrongOptionError(field.name, str(error)) from None

    def _check_times(self) -> None:
        for option in ("start_epoch", "end_epoch", "update_frequency"):
            value = getattr(self, option)
            if value != NEVER and not 0 <= value <= FARTHEST:
                raise WrongOptionError(option, f"it is -1 or a number from 0 to {FARTHEST:g}, not {value}")
        if self.end_epoch != NEVER and self.end_epoch < self.start_epoch:
            raise WrongOptionError(
                "end_epoch", f"{self.end_epoch} lies before the start_epoch of {self.start_epoch}; -1 is never"
            )


def changed(modifier: Kind, **options: Any) -> Kind:
    """The same with other options, and from the same place in a file."""
    try:
        made = dataclasses.replace(modifier, **options)
    except OptionError as error:
        raise OptionError(f"{modifier.called}: {error}") from None
    if hasattr(modifier, PLACE):
        object.__setattr__(made, PLACE, getattr(modifier, PLACE))
    return made


def scaled_epochs(modifier: Scheduled, options: Iterable[str], epochs: float, of: float) -> dict[str, Any]:
    """Some options times `epochs` by `of`; at once, never and at every step stay what they are."""
    values = {option: getattr(modifier, option) for option in options}
    return {option: value * epochs / of for option, value in values.items() if value is not None and value > 0}


# -- checks that several share


def demand_known(option: str, value: str, known: Iterable[str]) -> None:
    known = tuple(known)
    if value not in known:
        hint = nearest(value, known) or f" (known: {', '.join(known)})"
        raise WrongOptionError(option, f"{value!r:.40} is not known{hint}")


def demand_between(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise WrongOptionError(option, f"it is a number from {low:g} to {high:g}, not {value}")


def demand_inside(option: str, value: float, low: float, high: float) -> None:
    if not low < value < high:
        raise WrongOptionError(option, f"it is a number between {low:g} and {high:g}, not {value}")


def demand_positive(option: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise WrongOptionError(option, f"it is a number above 0, not {value}")


def demand_from(option: str, value: float, low: float) -> None:
    if not low <= value < math.inf:
        raise WrongOptionError(option, f"it is a number from {low:g}, not {value}")


def demand_trainable(option: str, value: float | tuple[float, ...]) -> None:
    """Numbers that a parameter can have."""
    for one in value if isinstance(value, tuple) else (value,):
        if not -LARGEST <= one <= LARGEST:
            raise WrongOptionError(option, f"{one} is no number that a parameter can have")


def demand_params(option: str, value: str | tuple[str, ...]) -> None:
    """A single word is one of the two for all; names and patterns stand in a list."""
    if isinstance(value, str):
        if value.upper() not in (ALL, ALL_PRUNABLE):
            raise WrongOptionError(
                option, f"{value!r:.60} is neither {ALL} nor {ALL_PRUNABLE}; a name stands in a list"
            )
        return
    if "" in value:  # a pattern that is none is refused where names are looked up, as in SparseML
        raise WrongOptionError(option, "a name is empty")


def demand_end(modifier: Scheduled) -> None:
    """For those whose end is no limit but a part of what they compute."""
    if modifier.end_epoch == NEVER or modifier.end_epoch <= modifier.start_epoch:
        raise WrongOptionError(
            "end_epoch", f"it has to come after the start_epoch of {modifier.start_epoch}, and is {modifier.end_epoch}"
        )


# -- Converting a value to the type that a modifier's field declares: `float | None`, `dict[float, tuple[str, ...]]`.
#
# YAML would read `2:4` as 124 and `1e-3` as a text; here the field alone decides. Its annotation is parsed, and not
# evaluated by `typing.get_type_hints`: Python 3.9 cannot evaluate `float | None`.
#
# 1. Out of a recipe come texts. What can be read as several of the declared types is the first of bool, whole number,
#    number, text; in quotes it is a text, where the field takes one.
# 2. Out of Python come values; a list is a tuple, a whole number a number, where the field takes that.
# 3. A field that takes lists only, takes a single value as a list of one.


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
