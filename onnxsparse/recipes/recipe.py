"""A list of modifiers, and its YAML form. A tag is only ever looked up among the plug-ins, never imported.

modifiers:
- !training
  epochs: 3
- !pruning
  pattern: unstructured
  sparsity: 0.9
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml

from onnxsparse import plugins
from onnxsparse.errors import OptionError, PlanError, nearest
from onnxsparse.modifiers.modifier import Modifier
from onnxsparse.recipes.reading import LONGEST, Entry, entries
from onnxsparse.recipes.values import as_field_says, reads_as_other

Kind = TypeVar("Kind", bound=Modifier)


@dataclass(frozen=True)
class Recipe:
    """Modifiers in the order in which they act."""

    modifiers: tuple[Modifier, ...]

    def only(self, kind: type[Kind]) -> Kind:
        """The one modifier of a kind; the default one where there is none."""
        found = [one for one in self.modifiers if isinstance(one, kind)]
        if len(found) > 1:
            raise PlanError(f"the recipe has {len(found)} modifiers !{kind.name}; one is enough")
        return found[0] if found else kind()

    def whole(self, kinds: Sequence[type[Modifier]]) -> Recipe:
        """The recipe with a default modifier for each kind that it lacks, in this order before the others."""
        own = [self.only(kind) for kind in kinds]
        return Recipe((*own, *(one for one in self.modifiers if not any(one is other for other in own))))

    def to_yaml(self) -> str:
        return yaml.dump({"modifiers": [_Tagged(one) for one in self.modifiers]}, Dumper=_Dumper, sort_keys=False)

    @classmethod
    def from_yaml(cls, text: str, called: str = "the recipe") -> Recipe:
        return cls(tuple(_modifier(entry, called) for entry in entries(text, called)))

    @classmethod
    def load(cls, path: str) -> Recipe:
        try:
            with open(path, encoding="utf-8") as file:
                return cls.from_yaml(file.read(LONGEST + 1), path)
        except OSError as error:
            raise PlanError(f"cannot read the recipe {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise PlanError(f"the recipe {path} is not text in UTF-8") from error


class _Tagged:
    def __init__(self, modifier: Modifier) -> None:
        self.modifier = modifier


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent(dumper: _Dumper, tagged: _Tagged) -> yaml.Node:
    """What is not there by default anyway: an option that may be left out is."""
    values = {}
    for field in dataclasses.fields(tagged.modifier):  # type: ignore[arg-type]
        value = getattr(tagged.modifier, field.name)
        if not (value == field.default and (value is None or value == ())):
            values[field.name] = list(value) if isinstance(value, tuple) else value
    return dumper.represent_mapping(f"!{tagged.modifier.name}", values)


def _written(dumper: _Dumper, text: str) -> yaml.Node:
    """In quotes where `values` would otherwise read something else."""
    style = "'" if reads_as_other(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(_Tagged, _represent)
_Dumper.add_representer(str, _written)


def _modifier(entry: Entry, called: str) -> Modifier:
    where = f"{called}, line {entry.line}"
    known = plugins.every("modifiers")
    cls = known.get(entry.tag)
    if cls is None:
        hint = nearest(entry.tag, known) or " (`onnxsparse list modifiers` shows all that are known)"
        raise PlanError(f"{where}: unknown modifier !{entry.tag:.60}{hint}")
    values = _values(entry, {field.name: field for field in dataclasses.fields(cls)}, called)  # type: ignore[arg-type]
    try:
        made = cls(**values)
    except (TypeError, ValueError, OverflowError, OptionError) as error:
        raise PlanError(f"{where}: !{entry.tag}: {error}") from error
    assert isinstance(made, Modifier)
    return made


def _values(entry: Entry, fields: dict[str, dataclasses.Field[Any]], called: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for option in entry.options:
        where = f"{called}, line {option.line}"
        name = option.name.replace("-", "_")
        if name not in fields:
            raise PlanError(f"{where}: !{entry.tag} has no option {option.name[:60]!r}{nearest(name, fields)}")
        if name in values:
            raise PlanError(f"{where}: {option.name} of !{entry.tag} is there twice")
        try:
            values[name] = as_field_says(str(fields[name].type), option.value)
        except OptionError as error:
            raise PlanError(f"{where}: {option.name} of !{entry.tag}: {error}") from None
    return values
