"""A list of modifiers, and its YAML form. A tag is only ever looked up among the plug-ins, never imported.

modifiers:
- !training
  epochs: 3
- !pruning
  pattern: unstructured
  sparsity: '0.9'
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

Kind = TypeVar("Kind", bound=Modifier)
LONGEST = 1 << 20


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
        if len(text) > LONGEST:
            raise PlanError(f"{called} is longer than {LONGEST >> 20} MB, which no recipe is")
        try:
            found = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader of our own
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f", line {mark.line + 1}" if mark is not None else ""
            raise PlanError(f"{called}{where}: {getattr(error, 'problem', None) or 'it is not YAML'}") from error
        except RecursionError:
            raise PlanError(f"{called} is nested too deeply") from None
        if not isinstance(found, dict) or not isinstance(found.get("modifiers"), list):
            raise PlanError(f"{called} is no recipe: it has no list `modifiers`")
        return cls(tuple(_modifier(entry, called) for entry in found["modifiers"]))

    @classmethod
    def load(cls, path: str) -> Recipe:
        try:
            with open(path, encoding="utf-8") as file:
                return cls.from_yaml(file.read(LONGEST + 1), path)
        except OSError as error:
            raise PlanError(f"cannot read the recipe {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise PlanError(f"the recipe {path} is not text in UTF-8") from error


@dataclass(frozen=True)
class _Entry:
    """What stands under a tag in a file."""

    tag: str
    options: dict[str, Any]
    line: int


class _Tagged:
    def __init__(self, modifier: Modifier) -> None:
        self.modifier = modifier


class _Dumper(yaml.SafeDumper):
    pass


class _Loader(yaml.SafeLoader):
    pass


def _represent(dumper: _Dumper, tagged: _Tagged) -> yaml.Node:
    fields = dataclasses.fields(tagged.modifier)  # type: ignore[arg-type]
    values = {field.name: getattr(tagged.modifier, field.name) for field in fields}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    chosen = {name: value for name, value in plain.items() if value is not None and value != []}
    return dumper.represent_mapping(f"!{tagged.modifier.name}", chosen)


def _construct(loader: _Loader, tag: str, node: yaml.Node) -> _Entry:
    options = loader.construct_mapping(node, deep=True) if isinstance(node, yaml.MappingNode) else {}
    return _Entry(tag, {str(name): value for name, value in options.items()}, node.start_mark.line + 1)


_Dumper.add_representer(_Tagged, _represent)
_Loader.add_multi_constructor("!", _construct)


def _modifier(entry: object, called: str) -> Modifier:
    if not isinstance(entry, _Entry):
        raise PlanError(f"{called}: an entry of `modifiers` has no tag such as !pruning")
    where = f"{called}, line {entry.line}"
    known = plugins.every("modifiers")
    cls = known.get(entry.tag)
    if cls is None:
        raise PlanError(f"{where}: unknown modifier !{entry.tag:.60}{nearest(entry.tag, known)}")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in entry.options:
        if name not in fields:
            raise PlanError(f"{where}: !{entry.tag} has no option {name[:60]!r}{nearest(name, fields)}")
    try:
        values = {name: _value(fields[name], value) for name, value in entry.options.items()}
        made = cls(**values)
    except (TypeError, ValueError, OptionError) as error:
        raise PlanError(f"{where}: !{entry.tag}: {error}") from error
    assert isinstance(made, Modifier)
    return made


def _value(field: dataclasses.Field[Any], value: Any) -> Any:
    """A value in the type of its field; what YAML reads as another kind of number or as text is understood."""
    wanted = str(field.type)
    if value is None or (isinstance(value, bool) and "bool" in wanted):
        return value
    if "tuple" in wanted:
        return tuple(str(one) for one in (value if isinstance(value, list) else [value]))
    for name, make in (("int", _whole), ("float", float), ("str", str)):
        if name in wanted and not isinstance(value, (bool, dict, list)):
            return make(value)
    raise OptionError(f"{field.name} does not take {value!r:.60}")


def _whole(value: Any) -> int:
    if float(value) != int(float(value)):
        raise OptionError(f"{value!r:.40} is not a whole number")
    return int(float(value))
