"""Whatever stands in a recipe: it is one, or an error of one line that says where."""

from __future__ import annotations

import random
import re
import runpy
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsparse.errors import OnnxSparseError
from onnxsparse.recipes import Recipe, yaml_tree
from onnxsparse.recipes.checking import check as found_in
from tests.recipes.sparseml import LONG, NEWER, PAGE, SAMPLE, STAGED

TEXTS = {"sample": SAMPLE, "page": PAGE, "long": LONG, "staged": STAGED, "newer": NEWER}
PIECES = [
    "!", "!!", "!a ", "&a ", "*a", "*epochs", "- ", ": ", "\n", "  ", "[", "]", "{", "}", "? ", "<<: ", "%YAML 1.9\n",
    "---\n", "+++\n", "...", "|", ">", "'", '"', "\\", "#", ",", "\t", "\x85", "\ufeff", "1e999", "9" * 400, ".nan",
    "!!int x", "!!set", "0o9", "@", "eval(", ")", "eval(n)", "eval(num_epochs", "**9**9**9", "-1", "null", "True",
    "modifiers", "_stage", "__metadata__: ", "params: ", "start_epoch: ", "2:4", "re:(", "\x00", "\ud800", "é",
    "1e308", ".inf",
    "<!--", "-->", "!QuantizationModifier", "!LearningRateModifier", "lr_kwargs: {}", "end_epoch: eval(x)",
]  # fmt: skip


def outcome_of(text: str, strict: bool = True) -> tuple[Recipe | None, str]:
    try:
        return Recipe.load(text + "\n", strict=strict), ""
    except OnnxSparseError as error:
        return None, str(error)


def check(text: str, strict: bool = True) -> bool:
    made, problem = outcome_of(text, strict)
    if made is None:
        assert re.fullmatch(r"the recipe, line [1-9]\d*: [^\n]+", problem), problem
        assert len(problem) < 500
        breaks = len(re.findall("\r\n|[\n\r\x85\u2028\u2029]", text))  # what YAML takes for the end of a line
        assert int(problem.split()[3][:-1]) <= breaks + 2
        return False
    again = Recipe.load(str(made), strict=strict)
    assert again == made
    assert str(again) == str(made)
    assert all("\n" not in str(finding) for finding in found_in(made, steps_per_epoch=3, optimizer="adam"))
    return True


CHANGES = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(PIECES) | st.text(max_size=5)), max_size=4
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(TEXTS)), CHANGES, st.booleans())
def test_no_change_ends_in_a_traceback(name: str, changes: list[tuple[float, int, str]], strict: bool) -> None:
    text = TEXTS[name]
    for where, gone, put in changes:
        at = int(where * len(text))
        text = text[:at] + put + text[at + gone :]
    check(text, strict)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=80))
def test_nor_does_any_text(text: str) -> None:
    check(text)


@pytest.mark.parametrize("name", TEXTS)
def test_without_the_fast_parser_it_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Recipe.load(TEXTS[name])
    monkeypatch.setattr(yaml_tree, "PARSER", yaml.SafeLoader)
    assert Recipe.load(TEXTS[name]) == made
    for wrong in (
        "a: [\n",
        "a: {b: c\n",
        "\tmodifiers: []\n",
        "a: b: c\n",
        "'\n",
        "---\n---\n",
        "x: *y\n",
        "[" * 99 + "\n",
    ):
        assert not check(wrong)


@pytest.mark.parametrize("seed", range(4))
def test_lines_in_any_order(seed: int) -> None:
    """Lines that are moved, doubled, taken out and indented: most are errors, some are other recipes."""
    draw = random.Random(seed)
    valid = 0
    for _ in range(60):
        lines = TEXTS[draw.choice(sorted(TEXTS))].splitlines()
        for _ in range(draw.randint(1, 3)):
            at, to = draw.randrange(len(lines)), draw.randrange(len(lines))
            line = draw.choice(["", " ", "  "]) + (lines.pop(at) if draw.random() < 0.7 else lines[at])
            lines.insert(to, line.replace(*draw.choice([("0", "1"), (":", ""), ("e", "E"), ("1", ""), ("", "")])))
        valid += check("\n".join(lines))
    assert 0 < valid < 60


def test_a_recipe_of_a_thousand_lines_is_read_at_once(repository: Path) -> None:
    tool = runpy.run_path(str(repository / "tools" / "bench" / "bench_reading.py"))
    text = tool["thousand"]()
    assert text.count("\n") >= 1000
    assert check(text)
    assert min(tool["seconds"](text) for _ in range(3)) <= 0.2
