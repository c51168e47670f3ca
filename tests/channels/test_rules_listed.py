"""What is decided for each operator stands in operators.txt: channels move through it, it stands, or it is blocked.

    moves       it has a rule by which channels go on along some axis; a test of this folder names it
    positional  what it makes has places that follow from the order of what it reads, or from nothing that it reads
    blocked     it has no rule, or one that says why: what it reads stays

`python tests/channels/test_rules_listed.py` writes the list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import onnx.defs

from onnxsparse.channel_classes.rules import control, elementwise, indexing, normalization, quantized, table
from onnxsparse.graph import operators

HERE = Path(__file__).resolve().parent
LIST = HERE / "operators.txt"
ENGINES = HERE.parent / "engines" / "operators.txt"
DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
STANDING = (indexing.stands, elementwise.unseen, elementwise.filled, control.length)


def every() -> list[tuple[str, str]]:
    """Operators of ONNX, of whatever opset, and those of Microsoft that this package knows."""
    found = {(one.domain, one.name) for one in onnx.defs.get_all_schemas_with_history() if one.domain in DOMAINS}
    found |= {*operators.FACTS, *operators.REFUSED, *table()}
    found |= {(operators.MICROSOFT, name) for name in operators._WITHOUT_WEIGHTS}
    for line in ENGINES.read_text().splitlines():
        if line and not line.startswith("["):
            domain, _, name = line.rpartition(":")
            found.add((domain, re.sub(r"_\d+$", "", name)))
    return sorted(found)


def decided() -> Iterator[str]:
    rules = table()
    for domain, name in every():
        rule = rules.get((domain, name))
        kind = "blocked" if rule in (None, quantized.packed) else "positional" if rule in STANDING else "moves"
        yield f"{f'{domain}:{name}' if domain else name}: {kind}"


def test_every_operator_is_decided() -> None:
    assert LIST.read_text().splitlines() == [*decided()], "is that so? Then run this file"


def test_what_moves_is_in_a_test() -> None:
    """By its name, as a string of a module of this folder."""
    named = {name for path in HERE.glob("*.py") for name in re.findall(r'"(\w+)"', path.read_text())}
    named |= {*elementwise.UNARY, *normalization.REDUCING}  # tests go through these tables
    moving = [line.partition(": ")[0].rpartition(":")[2] for line in decided() if line.endswith("moves")]
    missing = sorted(set(moving) - named)
    assert not missing, missing


if __name__ == "__main__":
    LIST.write_text("\n".join(decided()) + "\n")
