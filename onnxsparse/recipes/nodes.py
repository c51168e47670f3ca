"""The tree of a YAML text: texts, lists and mappings, each with its line. Nothing is constructed from it.

1. Scalars are texts; that one stood in quotes is remembered. What it means is for the field to say that it is given to.
2. Anchors, aliases and merge keys (`<<`) are understood. An alias of an alias of an alias makes a file of some bytes as
   large as a disk: what everything would come to is counted before it is made, and limited.
3. Of a key that stands twice in one mapping the last value counts, as in PyYAML; it is told, with both lines.
4. Every error is one line that says where.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Union

import yaml

from onnxsparse.errors import PlanError
from onnxsparse.modifiers.declared import Quoted

LONGEST = 1 << 20
DEEPEST, LARGEST = 60, 200_000
MOST_TWICE = 100
MERGE = "<<"
NOTHING = ("", "~", "null", "Null", "NULL")
UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
INDENTED_BY_TAB = re.compile(r" *\t")
TAB = "a tab stands at the beginning of the line, and YAML takes spaces alone there"
PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Value = Union[str, list["Node"], list[tuple["Node", "Node"]]]


class WrongError(Exception):
    """What is wrong in a text, and in which of its lines."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


def located(called: str, line: int, text: object) -> PlanError:
    return PlanError(f"{called}, line {line}: {text}")


@dataclass(eq=False)
class Node:
    """A text, a list or a mapping; `as_is` is a text in which nothing is to be computed."""

    value: Value
    line: int
    tag: str = ""
    depth: int = 0
    size: int = 1
    as_is: bool = False

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
        return list(self.value) if self.is_list else []  # type: ignore[arg-type]

    @property
    def pairs(self) -> list[tuple[Node, Node]]:
        return list(self.value) if self.is_mapping else []  # type: ignore[arg-type]

    @property
    def is_nothing(self) -> bool:
        return isinstance(self.value, str) and not isinstance(self.value, Quoted) and self.value in NOTHING

    def become(self, other: Node) -> None:
        """Take over another's value, wherever this one is used."""
        self.value, self.tag, self.depth, self.size = other.value, other.tag, other.depth, other.size
        self.as_is = other.as_is

    def every(self) -> Iterator[Node]:
        """This node and all below it."""
        yield self
        for one in self.items:
            yield from one.every()
        for key, one in self.pairs:
            yield from key.every()
            yield from one.every()

    def plain(self) -> Any:
        """Texts in lists and dictionaries; no value is None."""
        if self.is_mapping:
            return {key.plain(): one.plain() for key, one in self.pairs}
        if self.is_list:
            return [one.plain() for one in self.items]
        return None if self.is_nothing else self.value


class Pairs(list[tuple[Node, Node]]):
    """What a mapping holds."""


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
        builder = _Builder(text)
        root = builder.root()
        if twice is not None:
            twice += [Twice(o.key, o.first + line - 1, o.second + line - 1, o.alike) for o in builder.twice]
        return root
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


class _Builder:
    """Makes nodes of the events of a parser, without recursion."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._anchors: dict[str, Node | None] = {}
        self._open: list[tuple[Node, str]] = []
        self._root: Node | None = None
        self.twice: list[Twice] = []

    def root(self) -> Node | None:
        for event in yaml.parse(self._text, PARSER):
            line = event.start_mark.line + 1 if event.start_mark is not None else 1
            if isinstance(event, yaml.DocumentStartEvent) and self._root is not None:
                raise WrongError(line, "a second document begins, and a recipe is one")
            if isinstance(event, yaml.ScalarEvent):
                self._add(self._scalar(event, line), event.anchor)
            elif isinstance(event, yaml.AliasEvent):
                self._put(self._named(str(event.anchor), line))
            elif isinstance(event, yaml.CollectionStartEvent):
                self._begin(event, line)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._end()
        return self._root

    def _scalar(self, event: Any, line: int) -> Node:
        """A text counts as one in which nothing is computed where the word is written with an escape."""
        quoted = event.style in ("'", '"', "|", ">") or event.tag == "!"
        as_is = "eval(" in event.value and "eval(" not in self._text[event.start_mark.index : event.end_mark.index]
        return Node(Quoted(event.value) if quoted else event.value, line, _tag(event, line), as_is=as_is)

    def _named(self, anchor: str, line: int) -> Node:
        found = self._anchors.get(anchor)
        if found is None:
            inside = " inside itself" if anchor in self._anchors else ", which no anchor names"
            raise WrongError(line, f"*{anchor:.60} stands for something{inside}")
        return found

    def _begin(self, event: Any, line: int) -> None:
        empty: Value = Pairs() if isinstance(event, yaml.MappingStartEvent) else []
        if len(self._open) >= DEEPEST:
            raise WrongError(line, "it is nested too deeply")
        self._open.append((Node(empty, line, _tag(event, line)), event.anchor))
        if event.anchor:
            self._anchors[event.anchor] = None

    def _end(self) -> None:
        node, anchor = self._open.pop()
        if node.is_mapping:
            flat: list[Node] = node.value  # type: ignore[assignment]
            node.value = _merged(self._keyed(flat[::2], flat[1::2]))
        inner = [*node.items, *(one for pair in node.pairs for one in pair)]
        node.depth = 1 + max((one.depth for one in inner), default=0)
        node.size = 1 + sum(one.size for one in inner)
        if node.depth > DEEPEST:
            raise WrongError(node.line, "it is nested too deeply")
        if node.size > LARGEST:
            raise WrongError(node.line, "with every alias spelled out it is too large")
        self._add(node, anchor)

    def _keyed(self, keys: list[Node], values: list[Node]) -> Pairs:
        """Keys are single words. The value of one that is there again takes the place of the first."""
        places: dict[str, int] = {}
        made = Pairs()
        for key, value in zip(keys, values):
            if key.text is None:
                raise WrongError(key.line, "a key is a single word here")
            if key.text not in places or key.text == MERGE:
                places.setdefault(key.text, len(made))
                made.append((key, value))
                continue
            first, old = made[places[key.text]]
            alike = value.text is not None and value.text == old.text and value.tag == old.tag
            if len(self.twice) < MOST_TWICE:
                self.twice.append(Twice(key.text, first.line, key.line, alike))
            made[places[key.text]] = key, value
        return made

    def _add(self, node: Node, anchor: str | None) -> None:
        if anchor:
            self._anchors[anchor] = node
        self._put(node)

    def _put(self, node: Node) -> None:
        if not self._open:
            self._root = node
            return
        self._open[-1][0].value.append(node)  # type: ignore[union-attr, arg-type]


def _tag(event: Any, line: int) -> str:
    """Only tags of our own kind mean something: `!Name`."""
    tag = str(event.tag or "")
    if tag in ("", "!"):
        return ""
    if not tag.startswith("!") or tag.startswith("!!"):
        raise WrongError(line, f"a value has no tag such as {tag[:60]}")
    return tag[1:]


def _merged(pairs: Pairs) -> Pairs:
    """With what `<<` names put in, as far as it is not there anyway; of several mappings the first counts."""
    sources = [value for key, value in pairs if key.text == MERGE and not isinstance(key.value, Quoted)]
    if not sources:
        return pairs
    own = Pairs((key, value) for key, value in pairs if key.text != MERGE or isinstance(key.value, Quoted))
    known, added = {key.text for key, _ in own}, Pairs()
    for source in sources:
        for mapping in source.items if source.is_list else [source]:
            if not mapping.is_mapping:
                raise WrongError(mapping.line, f"{MERGE} takes a mapping, or a list of them")
            fresh = [(key, value) for key, value in mapping.pairs if key.text not in known]
            known |= {key.text for key, _ in fresh}
            added += fresh
    return Pairs([*own, *added])
