"""Arithmetic in `eval(...)`: numbers, names of variables, `+ - * / // % **`, brackets, and six functions.

Python's own parser makes the tree (`ast.parse`), of a text that holds nothing else; it is computed here, node by node,
and nothing is executed. Every step is bounded before it is taken: how long a text is, how deep it goes, how large a
number gets, and how many digits one is rounded to.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Union

from onnxsparse.errors import OptionError, nearest

Number = Union[int, float]
NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
NAME = re.compile(r"[A-Za-z_]\w*")
ATOM = re.compile(f"{NUMBER.pattern}|{NAME.pattern}")
STRANGE = re.compile(r"[^x +\-*/%(),]")
ADJOINING = re.compile(r"x +(x+)|\) *([x(]+)|, *(\))")
LONGEST, DEEPEST, MOST_DIGITS = 1000, 50, 60
MOST_PLACES = 400
"""Beyond, no float has a digit; Python makes the power of ten first, however large."""


def _round(value: Number, *places: Number) -> Number:
    if len(places) > 1 or not all(isinstance(one, int) for one in places):
        raise TypeError("round() takes a number, and how many places as a whole one")
    if any(abs(one) > MOST_PLACES for one in places):
        raise OverflowError(f"round() takes at most {MOST_PLACES} places")
    return round(value, *places)  # type: ignore[arg-type]


def _power(left: Number, right: Number) -> Number:
    """Of numbers that fit; anything larger overflows before it is made."""
    if isinstance(left, int) and isinstance(right, int) and right > 0:
        if abs(left) > 1 and right * math.log10(abs(left)) > MOST_DIGITS:
            raise OverflowError("it is too large")
        return int(left**right)
    made = left**right
    if isinstance(made, complex):
        raise ArithmeticError("it is no real number")
    return made


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs, "float": float, "int": int, "max": lambda *all_: max(all_), "min": lambda *all_: min(all_),
    "round": _round,
}  # fmt: skip
OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: _power, ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}  # fmt: skip
Look = Callable[[str], Number]


def compute(text: str, look: Look) -> Number:
    """The number that an expression comes to; `look` says what a name stands for."""
    if len(text) > LONGEST:
        raise OptionError(f"an expression has at most {LONGEST} characters")
    text = text.strip()
    try:
        return _value(_tree(text), text, look)
    except (RecursionError, MemoryError):
        raise OptionError("an expression is nested too deeply") from None
    except (ArithmeticError, TypeError, ValueError) as error:
        raise OptionError(f"{text:.60} has no value: {error}") from None


def _tree(text: str) -> ast.expr:
    """The tree of a text in which every number and name is written as a name of x, so that no other syntax can occur:
    no keyword, no attribute, no number such as 0x1. What an atom is says the text, at its place."""
    masked = re.sub(r"\s", " ", ATOM.sub(lambda found: "x" * len(found[0]), text))
    strange, odd = STRANGE.search(masked), ADJOINING.search(masked)
    if strange is not None:
        raise OptionError(f"{text[strange.start() :]!r:.40} is no part of an expression")
    if masked.count("(") > masked.count(")"):
        raise OptionError(f"a bracket is not closed in {text!r:.80}")
    if odd is not None:
        raise OptionError(f"{text[slice(*odd.span(odd.lastindex or 0))]!r:.40} is too much in {text!r:.80}")
    if max(masked.count("(", 0, at) - masked.count(")", 0, at) for at in range(len(masked) + 1)) >= DEEPEST:
        raise OptionError("an expression is nested too deeply")
    try:
        return ast.parse(masked, mode="eval").body
    except SyntaxError as error:
        rest = "" if masked[-1:] in "+-*/%(," else text[(error.offset or 1) - 1 :]
        problem = f"{rest!r:.40} is out of place" if rest else "something is missing at the end"
        raise OptionError(f"{problem} in {text!r:.80}") from None


def _value(node: ast.expr, text: str, look: Look) -> Number:
    if isinstance(node, ast.BinOp):
        return _bounded(OPERATORS[type(node.op)](_value(node.left, text, look), _value(node.right, text, look)))
    if isinstance(node, ast.UnaryOp):
        return _bounded(OPERATORS[type(node.op)](_value(node.operand, text, look)))
    written = text[node.col_offset : node.end_col_offset]
    if isinstance(node, ast.Name):
        if NAME.fullmatch(written):
            return look(written)
        if NUMBER.fullmatch(written):
            return _bounded(float(written) if set(written) & set(".eE") else int(written))
    elif isinstance(node, ast.Call) and node.args and not node.keywords:
        name = text[node.func.col_offset : node.func.end_col_offset]
        if name not in FUNCTIONS:
            raise OptionError(f"there is no function {name!r:.40}{nearest(name, FUNCTIONS)} in {text!r:.80}")
        return _bounded(FUNCTIONS[name](*[_value(one, text, look) for one in node.args]))
    raise OptionError(f"{written!r:.40} is out of place in {text!r:.80}")


def _bounded(value: Any) -> Number:
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) >= 10**MOST_DIGITS:
            raise OverflowError("it is too large")
        return value
    if not isinstance(value, float) or not math.isfinite(value):
        raise OverflowError("it is no finite number")
    return value
