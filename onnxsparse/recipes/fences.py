"""Where in a text the recipe stands: in Markdown between two fences, `---` or `+++`, each a line of its own.

1. Comments (`<!-- -->`) before the first fence are passed over.
2. A fence is a whole line, and its twin as far from the margin, so `---` inside a value ends nothing.
3. Of several blocks the first counts that has a list of modifiers: a page may begin with a header of its own.
4. A YAML text without such a block is taken as it is.
"""

from __future__ import annotations

import re

from onnxsparse.recipes.yaml_tree import WrongError

FENCE = re.compile(r"^([ \t]*)(---|\+\+\+)[ \t]*\r?$", re.MULTILINE)
COMMENT = re.compile(r"\s*<!--.*?-->", re.DOTALL)
LIST = re.compile(r"modifiers[\w.-]{0,99}[\"']?[ \t]*:|^[ \t]*(?:- +)?![A-Za-z]", re.MULTILINE)


def of_markdown(text: str) -> tuple[str, int]:
    """The recipe of a page, and the line in which it begins."""
    blocks = _blocks(text)
    if not blocks:
        raise WrongError(1, "there is no recipe between two lines of --- in this page")
    return _located(text, *next((block for block in blocks if LIST.search(text, *block)), blocks[0]))


def of_text(text: str) -> tuple[str, int]:
    """The recipe of a text that is YAML, or a page."""
    found = next((block for block in _blocks(text) if LIST.search(text, *block)), None)
    return (text, 1) if found is None else _located(text, *found)


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


def _located(text: str, begin: int, end: int) -> tuple[str, int]:
    return text[begin:end], text.count("\n", 0, begin) + 1
