"""Whatever stands in `eval(...)` is computed at once, or refused in one line that says where."""

from __future__ import annotations

import random
import re
import time

import pytest

from onnxsparse.errors import OptionError, PlanError
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.expressions import compute
from tests.cases import for_each
from tests.messages import refusing

SECONDS = 0.1
PIECES = [
    "9" * 60, "1e308", "-999999999", "2", "0", ".5", "7", "10", "-", "+", "*", "/", "//", "%", "**", "(", ")", ",",
    "round(", "abs(", "max(", "min(", "int(", "float(", "n",
]  # fmt: skip


def seconds_of(text: str) -> tuple[float, str]:
    """How long a recipe with an expression takes, and how it is refused."""
    begin = time.process_time()
    try:
        Recipe.load(text)
        problem = ""
    except PlanError as error:
        problem = str(error)
    return time.process_time() - begin, problem


def recipe_of(expression: str) -> str:
    return f"n: 3\nmodifiers:\n- !EpochRangeModifier\n  start_epoch: 0\n  end_epoch: eval({expression})\n"


@for_each(
    "expression",
    [
        "round(5, -999999999)",
        "round(5.5, -999999999)",
        "round(1e300, 9999999999999)",
        "abs(round(int(5), -(10**9)))",
        "round(max(1, 2), min(-10**58, 3))",
        "2**99999999999",
        "9**9**9**9",
        "(-3)**(10**50)",
        "10**59 * 10**59",
        "1e308 * 10",
        "int(1e308)",
        "abs(-1e308) ** 2",
        "(-8) ** 0.5",
        "1 << 999999999",
        "'a' * 999999999",
        "n" + " * n" * 400,
    ],
)
def test_what_could_take_for_ever_is_refused_with_its_line(expression: str) -> None:
    seconds_of(recipe_of("1"))  # imports
    seconds, problem = seconds_of(recipe_of(expression))
    assert seconds < SECONDS
    assert re.fullmatch(r"the recipe, line 5: [^\n]{1,300}", problem), problem


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("round(2.5)", 2),
        ("round(1234, -2)", 1200),
        ("round(2.567, 2)", 2.57),
        ("round(1.5, 0)", 2.0),
        ("round(5, -400)", 0),
        ("0 ** 999999999", 0),
        ("(-1) ** (10 ** 50)", 1),
        ("2 ** 100", 2**100),
    ],
)
def test_what_is_small_is_what_python_makes_of_it(expression: str, value: float) -> None:
    found = compute(expression, lambda _: 0)
    assert (found, type(found)) == (value, type(value))


def test_no_expression_takes_longer() -> None:
    """Grammatical ones, nested at random, and ones that are pieces in any order."""
    draw, computed = random.Random(3), 0
    for _ in range(3000):
        text = grown(draw, draw.randint(1, 6)) if draw.random() < 0.7 else "".join(draw.choices(PIECES, k=20))
        begin, problem = time.process_time(), ""
        try:
            assert abs(compute(text, lambda _: 3)) < 10**309
            computed += 1
        except OptionError as error:
            problem = str(error)
        assert time.process_time() - begin < SECONDS, text
        assert "\n" not in problem
        assert len(problem) < 300
    assert computed > 300


def grown(draw: random.Random, depth: int) -> str:
    if depth == 0:
        return draw.choice(["2", "10", "7", ".5", "1e9", "-999999999", "n", "9" * 59, "0", "400", "-400"])
    inner = [grown(draw, draw.randint(0, depth - 1)) for _ in range(2)]
    return draw.choice(
        [
            f"({inner[0]} {draw.choice('+-*/%')} {inner[1]})",
            f"({inner[0]} {draw.choice(['**', '//'])} {inner[1]})",
            f"round({inner[0]}, {inner[1]})",
            f"{draw.choice(['max', 'min'])}({inner[0]}, {inner[1]})",
            f"{draw.choice(['int', 'abs', 'float', 'round', '-'])}({inner[0]})",
        ]
    )


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "eval(1)" * 140_000 + "\nmodifiers: []\n",
        "a: " + "x" * 500_000 + "\nb: " + "eval(a)" * 60_000 + "\nmodifiers: []\n",
        "b: [" + "eval(1+1)," * 90_000 + "1]\nmodifiers: []\n",
        "b: [" + "eval(" + "1+" * 490 + "1)," * 1 + "eval(1)]\n" + "modifiers: []\n",
        "a: " + "9" * 900_000 + "\nb: eval(a + a)\nmodifiers: []\n",
        "".join(f"v{i}: eval(v{i + 1} + v{i + 1})\n" for i in range(39)) + "v39: 1\nmodifiers: []\n",
        "".join(f"s{i}: {{v: eval(w + 1), a_modifiers: []}}\n" for i in range(9000)) + "w: eval(1 + 1)\n",
    ],
    ids=["many", "long texts", "a list", "one that is fine", "digits", "a chain", "stages"],
)
def test_nor_do_all_of_a_recipe(text: str) -> None:
    """Beside what it takes to read the text."""
    from onnxsparse.recipes.yaml_tree import read

    def beyond() -> tuple[float, str]:
        begin = time.process_time()
        read(text, "the recipe")
        reading = time.process_time() - begin
        seconds, problem = seconds_of(text)
        return seconds - reading, problem

    for _ in range(3):  # a machine that does other things, too, is slower now and then
        seconds, problem = beyond()
        if seconds < 5 * SECONDS:
            break
    assert seconds < 5 * SECONDS, problem
    assert re.fullmatch(r"(the recipe, line \d+: [^\n]{1,300})?", problem), problem


def test_a_name_from_outside_is_looked_for_at_once() -> None:
    text = "a: " + "eval(1) " * 100_000 + "\nmodifiers: []\n"
    begin = time.process_time()
    with refusing(PlanError):
        Recipe.load(text, {"b": 1})
    assert time.process_time() - begin < 1
