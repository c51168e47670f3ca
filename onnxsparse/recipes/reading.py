"""What stands in the YAML of a recipe: tags with options, each with its line. Every scalar is a text here.

1. A plain empty value, `null` or `~` is no value; whatever is quoted is a text.
2. Anchors are refused: an alias of an alias of an alias makes a file of some bytes as large as a disk.
3. Every error is one line that says where.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from onnxsparse.errors import PlanError, nearest
from onnxsparse.recipes.values import Plain, Quoted

LONGEST = 1 << 20
NOTHING, TEXT = "tag:yaml.org,2002:null", "tag:yaml.org,2002:str"
LIST = "tag:yaml.org,2002:seq"
MODIFIERS = "modifiers"
EXAMPLE = "- !pruning"


@dataclass(frozen=True)
class Option:
    """One option of a modifier."""

    name: str
    value: Plain
    line: int


@dataclass(frozen=True)
class Entry:
    """What stands under a tag."""

    tag: str
    options: tuple[Option, ...]
    line: int


class _WrongError(Exception):
    """What is wrong at a node."""

    def __init__(self, node: Any, text: str) -> None:
        super().__init__(text)
        self.line: int = node.start_mark.line + 1


class _Composer(yaml.SafeLoader):
    """Nodes of a text: plain scalars are texts, but for those that mean nothing. Nothing is constructed."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - a class attribute of yaml's
        key: [(tag, pattern) for tag, pattern in found if tag == NOTHING]
        for key, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise _WrongError(
                self.peek_event(),  # type: ignore[no-untyped-call]
                "a recipe has no anchors (&name and *name)",
            )
        return super().compose_node(parent, index)


def entries(text: str, called: str) -> list[Entry]:
    """The modifiers of a recipe, as they are written."""
    if len(text) > LONGEST:
        raise PlanError(f"{called} is longer than {LONGEST >> 20} MB, which no recipe is")
    try:
        return _entries(yaml.compose(text, _Composer))
    except _WrongError as error:
        raise PlanError(f"{called}, line {error.line}: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it is not YAML"
        raise PlanError(f"{called}{where}: {problem}") from error
    except RecursionError:
        raise PlanError(f"{called} is nested too deeply") from None


def _entries(root: Any) -> list[Entry]:
    if root is None or not isinstance(root, yaml.MappingNode):
        raise _WrongError(
            root or _Nowhere, f"this is no recipe, which has a list `{MODIFIERS}:` of entries such as {EXAMPLE}"
        )
    found: list[Entry] = []
    seen: set[str] = set()
    for key, value in root.value:
        name = _text(key, "a key")
        if name != MODIFIERS:
            raise _WrongError(key, f"a recipe has no {name[:60]!r}{nearest(name, [MODIFIERS])}, only `{MODIFIERS}`")
        if name in seen:
            raise _WrongError(key, f"`{MODIFIERS}` is there twice")
        seen.add(name)
        found += _listed(value)
    return found


class _Nowhere:
    """The place of what is not there."""

    class start_mark:  # noqa: N801 - as yaml spells it
        line = 0


def _listed(node: Any) -> list[Entry]:
    if not isinstance(node, yaml.SequenceNode):
        raise _WrongError(node, f"`{MODIFIERS}` is a list of entries such as {EXAMPLE}")
    return [_entry(one) for one in node.value]


def _entry(node: Any) -> Entry:
    tag = str(node.tag or "")
    if not tag.startswith("!") or tag == "!":
        raise _WrongError(node, f"an entry of `{MODIFIERS}` has no tag such as !pruning")
    if isinstance(node, yaml.ScalarNode) and not node.value:
        return Entry(tag[1:], (), node.start_mark.line + 1)
    if not isinstance(node, yaml.MappingNode):
        raise _WrongError(node, f"under {tag[:60]} come options, such as `seed: 1`")
    options = tuple(_option(key, value) for key, value in node.value)
    return Entry(tag[1:], options, node.start_mark.line + 1)


def _option(key: Any, value: Any) -> Option:
    name = _text(key, "the name of an option")
    if isinstance(value, yaml.SequenceNode) and value.tag == LIST:
        found: Plain = [_text(one, f"an entry of {name[:60]}") for one in value.value]
    else:
        found = _value(value, name)
    return Option(name, found, key.start_mark.line + 1)


def _value(node: Any, name: str) -> str | None:
    """A text, or None for no value."""
    if isinstance(node, yaml.ScalarNode) and node.tag == NOTHING:
        return None
    return _text(node, name[:60])


def _text(node: Any, what: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _WrongError(node, f"{what} is a single word or number here")
    if node.tag not in (TEXT, NOTHING):
        raise _WrongError(node, f"a value has no tag such as {str(node.tag)[:60]}")
    return Quoted(node.value) if node.style else str(node.value)
