"""What the modifiers of SparseML have in common: when they begin, when they end, how often they act.

1. Epochs are numbers, also between whole ones. `start_epoch: -1` is before the first step, `end_epoch: -1` is never,
   `update_frequency: -1` is every step.
2. Every modifier takes the three, also where it does not need them; then they are left out when it is written.
3. Values are made what their fields declare, whether they come from a recipe or from Python.
4. What no engine can do yet has its reason in `missing`; such a modifier is read, checked and written like any other,
   and refused before a run begins.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from onnxsparse.epochs.act import Act
from onnxsparse.epochs.running import Acting
from onnxsparse.errors import OptionError, nearest
from onnxsparse.modifiers.declared import as_declared, from_python
from onnxsparse.modifiers.modifier import Modifier, Part
from onnxsparse.rates import LARGEST
from onnxsparse.schedules import Span

if TYPE_CHECKING:
    from onnxsparse.runs.run import Run

Kind = TypeVar("Kind", bound="Scheduled")
ALL, ALL_PRUNABLE = "__ALL__", "__ALL_PRUNABLE__"
REGULAR = "re:"
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

    def act(self) -> Act:
        """What it does by the clock."""
        raise OptionError(f"{self.called} is read and checked, but nothing runs it yet: {self.missing}")

    def start(self, run: Run) -> Part:
        return Acting(self.act(), run)

    def advanced(self: Kind, epochs: float) -> Kind:
        """The same so many epochs later: what had no start has one now, what never ends still does not."""
        return changed(self, **self.times_after(epochs))

    def times_after(self, epochs: float) -> dict[str, Any]:
        """Every option that names an epoch, so many epochs later."""
        times = {"start_epoch": max(0.0, self.start_epoch) + epochs}
        return times if self.end_epoch == NEVER else {**times, "end_epoch": self.end_epoch + epochs}

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
    for name in value:
        if name.startswith(REGULAR):
            demand_regular(option, name[len(REGULAR) :])
        elif not name:
            raise WrongOptionError(option, "a name is empty")


def demand_regular(option: str, pattern: str) -> None:
    regex: Any = importlib.import_module("regex")
    try:
        regex.compile(pattern)
    except (regex.error, ValueError, OverflowError, RecursionError) as error:
        raise WrongOptionError(
            option, f"re:{' '.join(pattern[:60].splitlines())} is no regular expression: {error}"
        ) from None


def demand_end(modifier: Scheduled) -> None:
    """For those whose end is no limit but a part of what they compute."""
    if modifier.end_epoch == NEVER or modifier.end_epoch <= modifier.start_epoch:
        raise WrongOptionError(
            "end_epoch", f"it has to come after the start_epoch of {modifier.start_epoch}, and is {modifier.end_epoch}"
        )
