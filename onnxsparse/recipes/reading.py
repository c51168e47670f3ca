"""Reading a recipe: from a text or a file to its sections, with every variable put in.

In Markdown the recipe stands between two fences, `---` or `+++`:

1. Comments (`<!-- -->`) before the first fence are passed over.
2. A fence is a whole line, and its twin as far from the margin, so `---` inside a value ends nothing.
3. Of several blocks the first counts that has a list of modifiers: a page may begin with a header of its own.
4. A YAML text without such a block is taken as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

from onnxsparse.errors import PlanError, absent, nearest
from onnxsparse.recipes.entries import modifier_of
from onnxsparse.recipes.layout import Layout, Section, laid_out
from onnxsparse.recipes.modifiers.modifier import PLACE, Modifier, plain
from onnxsparse.recipes.variables import Scope, Variables, given
from onnxsparse.recipes.yaml_tree import LONGEST, Node, Twice, WrongError, located, read

Path = Union[str, "os.PathLike[str]"]
MARKDOWN = (".md", ".markdown")
ZOO = "zoo:"
UNSAID = "None"
"""How SparseML writes the metadata of a stage that has none."""
FENCE = re.compile(r"^([ \t]*)(---|\+\+\+)[ \t]*\r?$", re.MULTILINE)
COMMENT = re.compile(r"\s*<!--.*?-->", re.DOTALL)
LIST = re.compile(r"modifiers[\w.-]{0,99}[\"']?[ \t]*:|^[ \t]*(?:- +)?![A-Za-z]", re.MULTILINE)


@dataclass(frozen=True)
class Read:
    """One section: its modifiers as they are written, and what is told about it, which may be UNSAID."""

    name: str
    modifiers: tuple[Modifier, ...]
    metadata: Any


def is_text(source: Path) -> bool:
    """Whether it is a recipe itself, and not the path of one."""
    return isinstance(source, str) and ("\n" in source or "\r" in source)


def is_page(path: Path) -> bool:
    """Whether a file is one of Markdown."""
    return os.fspath(path).lower().endswith(MARKDOWN)


def text_of(path: Path) -> str:
    """What stands in a file."""
    name = os.fspath(path)
    if name.startswith(ZOO):
        raise PlanError(absent(name))
    try:
        with open(name, encoding="utf-8-sig") as file:
            return file.read(LONGEST + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            with open(name, "rb") as raw:
                lines = raw.read(4 * LONGEST).split(b"\n")
            first = next((place for place, line in enumerate(lines, 1) if not _is_utf8(line)), 1)
            raise PlanError(f"{name}, line {first}: it is not text in UTF-8") from error
        raise PlanError(f"cannot read the recipe {name!r:.200}: {getattr(error, 'strerror', error)}") from error


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True)
class Text:
    """What stands in a text: its sections, whether they are stages, and keys that it has twice."""

    sections: list[Read]
    staged: bool
    twice: tuple[Twice, ...]


def sections(text: str, called: str, variables: Variables, strict: bool) -> Text:
    """The sections of a recipe."""
    values = given(variables)
    try:
        inner, line = _found(text, called)
    except WrongError as error:
        raise located(called, error.line, error) from None
    twice: list[Twice] = []
    root = read(inner, called, line, twice)
    try:
        layout = laid_out(root)
        _override(layout, values, inner)
        outer, place = Scope(layout.variables), (called, line - 1)
        found = [_read(section, layout.staged, outer, strict, place) for section in layout.sections]
        outer.demand_whole()
        return Text(found, layout.staged, tuple(twice))
    except WrongError as error:
        raise located(called, line - 1 + error.line, error) from None


def _found(text: str, called: str) -> tuple[str, int]:
    """The recipe of a page, or of a text that is YAML or a page, and the line in which it begins."""
    if called.lower().endswith((".yaml", ".yml", ".json")):
        return text, 1
    blocks = _blocks(text)
    found = next((block for block in blocks if LIST.search(text, *block)), None)
    if found is None and not is_page(called):
        return text, 1
    if not blocks:
        raise WrongError(1, "there is no recipe between two lines of --- in this page")
    begin, end = found or blocks[0]
    return text[begin:end], text.count("\n", 0, begin) + 1


def _blocks(text: str) -> list[tuple[int, int]]:
    """What stands between one fence and the next of its kind, as far from the margin."""
    begin = 0
    while (comment := COMMENT.match(text, begin)) is not None:
        begin = comment.end()
    before: dict[tuple[str, str], int] = {}
    blocks = []
    for fence in FENCE.finditer(text, begin):
        if (kind := (fence[1], fence[2])) in before:
            blocks.append((before[kind], fence.start()))
        before[kind] = fence.end()
    return sorted(blocks)


def _override(layout: Layout, values: Mapping[str, Node], text: str) -> None:
    """Wherever a variable stands, in every stage. One that is not there is a mistake, unless it is asked for."""
    places = [layout.variables, *(section.variables for section in layout.sections)]
    known = {name for place in places for name in place}
    for name, value in values.items():
        if name not in known and _asked_for(name, text):
            layout.variables[name] = value
        elif name not in known:
            hint = nearest(name, known) or (f" (it has: {', '.join(sorted(known)[:20])})" if known else "")
            raise PlanError(f"the recipe has no variable {name!r:.60}{hint}")
        for place in places:
            if name in place:
                place[name].become(value)


def _asked_for(name: str, text: str) -> bool:
    """Whether it stands in a line behind `eval(`."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    lines = (line.partition("eval(")[2] for line in text.split("\n"))
    return any(word.search(rest) for rest in lines)


def _read(section: Section, staged: bool, outer: Scope, strict: bool, place: tuple[str, int]) -> Read:
    scope = Scope(section.variables, outer) if staged else outer
    modifiers = tuple(modifier_of(entry, scope, strict) for entry in section.entries)
    for made, entry in zip(modifiers, section.entries):
        object.__setattr__(made, PLACE, f"{place[0]}, line {place[1] + entry.line}")
    scope.demand_whole()
    metadata = None if section.metadata is None else plain(section.metadata.plain())
    unsaid = section.metadata is not None and metadata is None
    return Read(section.name, modifiers, UNSAID if unsaid else metadata)
