"""YAML tree with line numbers: texts, lists and mappings. Nothing is constructed from it.

1. Scalars are texts; that one stood in quotes is kept. What it means is for the field to say that it is given to.
2. Anchors, aliases and merge keys (`<<`) are understood. An alias of an alias of an alias makes a file of some bytes as
   large as a disk: what everything would come to is counted before it is made, and limited.
3. Of a key that stands twice in one mapping the last value counts, as in PyYAML; it is told, with both lines.
4. Every error is one line that says where.

PyYAML's parser gives the events; its composer (`yaml.compose`) would lose the line of an alias, which an alias inside
itself is told by, refuse an anchor that is given again, and recurse before it knows how deep.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from onnxsparse.errors import PlanError
from onnxsparse.recipes.modifiers.modifier import Quoted

LONGEST = 1 << 20
DEEPEST, LARGEST = 60, 200_000
MOST_TWICE = 100
MERGE = "<<"
NOTHING = ("", "~", "null", "Null", "NULL")
UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
INDENTED_BY_TAB = re.compile(r" *\t")
TAB = "a tab stands at the beginning of the line, and YAML takes spaces alone there"
PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class WrongError(Exception):
    """What is wrong in a text, and in which of its lines."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


def located(called: str, line: int, text: object) -> PlanError:
    return PlanError(f"{called}, line {line}: {text}")


class Pairs(list[tuple["Node", "Node"]]):
    """What a mapping holds."""


@dataclass(eq=False)
class Node:
    """A text, a list of nodes or pairs of them; `as_is` is a text in which nothing is to be computed."""

    value: Any
    line: int
    tag: str = ""
    as_is: bool = False
    depth: int = 0
    size: int = 1

    @classmethod
    def around(cls, value: list[Node] | Pairs, line: int = 1, tag: str = "") -> Node:
        """A list or a mapping, with how deep and how large it is when every alias is spelled out."""
        inner = [one for pair in value for one in pair] if isinstance(value, Pairs) else value
        depth = 1 + max((one.depth for one in inner), default=0)
        return cls(value, line, tag, depth=depth, size=1 + sum(one.size for one in inner))

    @property
    def text(self) -> str | None:
        return self.value if isinstance(self.value, str) else None

    @property
    def is_list(self) -> bool:
        return isinstance(self.value, list) and not self.is_mapping

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.value, Pairs)

    @property
    def items(self) -> list[Node]:
        return self.value if self.is_list else []

    @property
    def pairs(self) -> list[tuple[Node, Node]]:
        return self.value if self.is_mapping else []

    @property
    def is_nothing(self) -> bool:
        return self.text in NOTHING and not isinstance(self.value, Quoted)

    def become(self, other: Node) -> None:
        """Take over another's value, wherever this one is used."""
        vars(self).update(vars(other), line=self.line)

    def every(self) -> Iterator[Node]:
        """This node and all below it."""
        yield self
        for one in [*self.items, *(one for pair in self.pairs for one in pair)]:
            yield from one.every()

    def plain(self) -> Any:
        """Texts in lists and dictionaries; no value is None."""
        if self.is_mapping:
            return {key.plain(): one.plain() for key, one in self.pairs}
        if self.is_list:
            return [one.plain() for one in self.items]
        return None if self.is_nothing else self.value


@dataclass(frozen=True)
class Twice:
    """A key that stands twice in one mapping, and in which lines; `alike` with the same text."""

    key: str
    first: int
    second: int
    alike: bool

    def __str__(self) -> str:
        value = ", with the same value" if self.alike else "; the last one counts"
        return f"`{self.key:.60}` is there twice, in line {self.first} and in line {self.second}{value}"


def read(text: str, called: str, line: int = 1, twice: list[Twice] | None = None) -> Node | None:
    """The root of a text that begins at a line of a file; None where nothing stands in it.

    Keys that stand there twice are added to `twice`.
    """
    try:
        _demand_text(text)
        tree = _Tree(text)
        if twice is not None:
            twice += [Twice(o.key, o.first + line - 1, o.second + line - 1, o.alike) for o in tree.twice]
        return tree.root
    except WrongError as error:
        raise located(called, line - 1 + error.line, error) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it is not YAML"
        at = min(mark.line, text.rstrip("\n").count("\n")) if mark is not None else 0
        problem = TAB if INDENTED_BY_TAB.match(text.split("\n")[at]) else problem
        raise located(called, line + at, problem) from error


def _demand_text(text: str) -> None:
    if len(text) > LONGEST:
        raise WrongError(1, f"it is longer than {LONGEST >> 20} MB, which no recipe is")
    found = UNPRINTABLE.search(text[1:] if text.startswith("\ufeff") else text)
    if found is not None:
        line = text.count("\n", 0, found.start() + 1) + 1
        raise WrongError(line, f"the character {found[0]!a} cannot stand in YAML")


class _Tree:
    """Makes nodes of the events of a parser."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._events: Iterator[Any] = iter(yaml.parse(text, PARSER))
        self._anchors: dict[str, Node | None] = {}
        self.twice: list[Twice] = []
        self.root: Node | None = None
        for event in self._events:
            line = event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
                raise WrongError(line, "a second document begins, and a recipe is one")
            if isinstance(event, yaml.NodeEvent):
                self.root = self._node(event, 0)

    def _node(self, event: Any, depth: int) -> Node:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            return self._named(str(event.anchor), line)
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event, line)
        else:
            if depth >= DEEPEST:
                raise WrongError(line, "it is nested too deeply")
            tag = _tag(event.tag, line)
            self._anchors[event.anchor] = None  # until it is whole nothing inside may stand for it
            inner = self._inside(depth + 1)
            is_list = isinstance(event, yaml.SequenceStartEvent)
            node = Node.around(inner if is_list else _merged(self._keyed(inner[::2], inner[1::2])), line, tag)
            if node.depth > DEEPEST:
                raise WrongError(line, "it is nested too deeply")
            if node.size > LARGEST:
                raise WrongError(line, "with every alias spelled out it is too large")
        self._anchors[event.anchor] = node
        return node

    def _inside(self, depth: int) -> list[Node]:
        found = []
        for event in self._events:
            if isinstance(event, yaml.CollectionEndEvent):
                break
            found.append(self._node(event, depth))
        return found

    def _scalar(self, event: Any, line: int) -> Node:
        """A text counts as one in which nothing is computed where the word is written with an escape."""
        quoted = event.style in ("'", '"', "|", ">") or event.tag == "!"
        as_is = "eval(" in event.value and "eval(" not in self._text[event.start_mark.index : event.end_mark.index]
        return Node(Quoted(event.value) if quoted else event.value, line, _tag(event.tag, line), as_is)

    def _named(self, anchor: str, line: int) -> Node:
        found = self._anchors.get(anchor)
        if found is None:
            inside = " inside itself" if anchor in self._anchors else ", which no anchor names"
            raise WrongError(line, f"*{anchor:.60} stands for something{inside}")
        return found

    def _keyed(self, keys: list[Node], values: list[Node]) -> Pairs:
        """Keys are single words. The value of one that is there again takes the place of the first."""
        places: dict[str, int] = {}
        made = Pairs()
        for key, value in zip(keys, values):
            if key.text is None:
                raise WrongError(key.line, "a key is a single word here")
            place = places.setdefault(key.text, len(made))
            if place == len(made) or key.text == MERGE:
                made.append((key, value))
                continue
            first, old = made[place]
            alike = value.text is not None and value.text == old.text and value.tag == old.tag
            if len(self.twice) < MOST_TWICE:
                self.twice.append(Twice(key.text, first.line, key.line, alike))
            made[place] = key, value
        return made


def _tag(tag: str | None, line: int) -> str:
    """Only tags of our own kind mean something: `!Name`."""
    if tag in (None, "", "!"):
        return ""
    assert tag is not None
    if not tag.startswith("!") or tag.startswith("!!"):
        raise WrongError(line, f"a value has no tag such as {tag[:60]}")
    return tag[1:]


def _merged(pairs: Pairs) -> Pairs:
    """With what `<<` names put in, as far as it is not there anyway; of several mappings the first counts."""
    own, added = Pairs(), Pairs()
    sources = []
    for key, value in pairs:
        if key.text == MERGE and not isinstance(key.value, Quoted):
            sources += value.items if value.is_list else [value]
        else:
            own.append((key, value))
    known = {key.text for key, _ in own}
    for mapping in sources:
        if not mapping.is_mapping:
            raise WrongError(mapping.line, f"{MERGE} takes a mapping, or a list of them")
        fresh = [(key, value) for key, value in mapping.pairs if key.text not in known]
        known |= {key.text for key, _ in fresh}
        added += fresh
    return Pairs([*own, *added])
