"""Plug-in discovery by kind and name. A name from a user or a file is only ever looked up, never imported.

Our own: every concrete class of that kind that `onnxsparse.<kind>`, a module or a folder of modules, defines; a module
may define several. Third parties: installed entry points of the group `onnxsparse.<kind>`; they are loaded only when a
word is not one of ours, or to list them.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from onnxsparse.errors import OptionError, nearest

if TYPE_CHECKING:
    from typing_extensions import TypeGuard


HOMES = {"modifiers": "onnxsparse.recipes.modifiers", "observers": "onnxsparse.calibration.observers"}
"""Where plug-ins of a kind are, unless it is `onnxsparse.<kind>`."""


class Plugin:
    """What every plug-in is: a dataclass with a name, whose fields are its options."""

    kind: ClassVar[str]
    name: ClassVar[str]
    syntax: ClassVar[str] = ""

    @property
    def text(self) -> str:
        """The canonical text, which `read` makes the same plug-in of: the name, and every option with its value."""
        values = {option.name: getattr(self, option.name) for option in options(type(self))}
        given = ",".join(f"{name}={_written(value)}" for name, value in values.items() if value is not None)
        return f"{self.name}:{given}" if given else self.name

    @classmethod
    def read(cls, text: str) -> Plugin | None:
        """Make the plug-in from `name` or `name:option=value,...`; None when the text speaks of another one."""
        word, _, rest = text.partition(":")
        if word != cls.name:
            return None
        return cls(**_options_from(cls, rest))


@dataclass(frozen=True)
class Option:
    """One option of a plug-in."""

    name: str
    type: str
    default: str


@dataclass(frozen=True)
class Entry:
    """One line of `onnxsparse list`."""

    syntax: str
    description: str
    options: tuple[Option, ...]


def parse(kind: str, text: str) -> Plugin:
    """Return the plug-in that a text stands for; an unknown word is an OptionError with the nearest known ones."""
    if not isinstance(text, str):
        raise OptionError(f"a {singular(kind)} is named by a text, not by {text!r:.60}")
    for classes in (ours, installed):
        for cls in classes(kind).values():
            made = cls.read(text.strip())
            if made is not None:
                return made
    failed = broken(kind).get(text.strip().partition(":")[0])
    if failed is not None:
        raise OptionError(failed)
    known = [cls.syntax or cls.name for cls in every(kind).values()]
    word = text.strip()
    hint = nearest(word, known) or f" (known: {', '.join(known)})"
    raise OptionError(f"unknown {singular(kind)} {word[:60]!r}{hint}")


def available(kind: str) -> list[Entry]:
    """Describe every plug-in of a kind."""
    lines = {name: (inspect.getdoc(cls) or "").partition("\n")[0] for name, cls in every(kind).items()}
    found = [Entry(cls.syntax or name, lines[name], tuple(options(cls))) for name, cls in every(kind).items()]
    return found + [Entry(name, problem, ()) for name, problem in broken(kind).items()]


def every(kind: str) -> dict[str, type[Plugin]]:
    """All plug-ins of a kind by name; ours go before installed ones of the same name."""
    return {**ours(kind), **{name: cls for name, cls in installed(kind).items() if name not in ours(kind)}}


@functools.cache
def ours(kind: str) -> dict[str, type[Plugin]]:
    """Our own plug-ins of a kind, by name, in the order of the alphabet."""
    modules = _modules(home_of(kind))
    defined = ((module, cls) for module in modules for cls in vars(module).values() if _is_plugin(cls, kind))
    found = [cls for module, cls in defined if cls.__module__ == module.__name__]
    return {cls.name: cls for cls in sorted(found, key=lambda cls: cls.name.lower())}


def home_of(kind: str) -> str:
    """The module or folder of a kind."""
    return HOMES.get(kind, f"onnxsparse.{kind}")


def _modules(home: str) -> Iterator[ModuleType]:
    """A module; of a folder also every public module in it."""
    whole = importlib.import_module(home)
    yield whole
    names = sorted(module.name for module in pkgutil.iter_modules(getattr(whole, "__path__", ())))
    yield from (importlib.import_module(f"{home}.{name}") for name in names if not name.startswith("_"))


@functools.cache
def installed(kind: str) -> dict[str, type[Plugin]]:
    """The plug-ins that other installed packages announce, by name."""
    found = (cls for _, cls in _announced(kind) if not isinstance(cls, str))
    return {cls.name: cls for cls in found}


def broken(kind: str) -> dict[str, str]:
    """What is wrong with the announced plug-ins that do not load, by their announced name."""
    return {name: problem for name, problem in _announced(kind) if isinstance(problem, str)}


def _announced(kind: str) -> tuple[tuple[str, type[Plugin] | str], ...]:
    return tuple((entry.name, _load(entry, kind)) for entry in _entry_points(f"onnxsparse.{kind}"))


def options(cls: type[Plugin]) -> Iterator[Option]:
    """The options of a plug-in: its dataclass fields, but for those with `metadata={"option": False}`.

    A field that may be None is an option that nobody has to choose; `metadata={"default": ...}` says what happens then.
    """
    if not dataclasses.is_dataclass(cls):
        return
    for field in dataclasses.fields(cls):
        if field.metadata.get("option", True):
            default = "" if field.default in (dataclasses.MISSING, None) else str(field.default)
            kind = getattr(field.type, "__name__", str(field.type)).partition(" | None")[0]
            yield Option(field.name, kind, field.metadata.get("default", default))


def _is_plugin(cls: Any, kind: str) -> TypeGuard[type[Plugin]]:
    return (
        inspect.isclass(cls)
        and issubclass(cls, Plugin)
        and not inspect.isabstract(cls)
        and hasattr(cls, "name")
        and cls.kind == kind
    )


def _entry_points(group: str) -> Iterable[importlib.metadata.EntryPoint]:
    if sys.version_info >= (3, 10):
        return importlib.metadata.entry_points(group=group)
    return importlib.metadata.entry_points().get(group, ())


def _load(entry: importlib.metadata.EntryPoint, kind: str) -> type[Plugin] | str:
    """The plug-in, or what is wrong with it: one that is broken must not stop the others."""
    try:
        cls = entry.load()
    except Exception as error:  # whatever a foreign package does when it is imported
        problem = " ".join(str(error).split())
        return f"the installed plug-in {entry.name} ({entry.value}) does not load: {problem}"
    if not _is_plugin(cls, kind):
        return f"the installed plug-in {entry.name} ({entry.value}) is not one of onnxsparse.{kind}"
    return cls


def singular(kind: str) -> str:
    """What one plug-in of a kind is called."""
    return kind[: -len("es")] if kind.endswith("sses") else kind[: -len("s")]


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _options_from(cls: type[Plugin], text: str) -> dict[str, object]:
    known = {option.name: option.type for option in options(cls)}
    given: dict[str, object] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in known or name in given:
            raise OptionError(f"{cls.name} has no option {name[:60]!r} (or it was given twice){nearest(name, known)}")
        given[name] = _converted(cls.name, name, known[name], value)
    return given


def _converted(plugin: str, name: str, type_name: str, value: str) -> object:
    try:
        if type_name == "bool":
            return {"true": True, "false": False}[value.lower()]
        return {"int": int, "float": float, "str": str}[type_name](value)
    except (KeyError, ValueError):
        raise OptionError(f"{plugin}: {name} takes a value of type {type_name}, not {value[:60]!r}") from None
