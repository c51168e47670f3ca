"""What may stand in `eval(...)`: numbers, names of variables, `+ - * / // % **`, brackets, and six functions.

It is read by the grammar below and computed with it; no Python is run. Whatever else stands there is an error. Every
step is bounded before it is taken: how long a text is, how deep it goes, how large a number gets, and how many digits
one is rounded to.

    sum     = product (("+" | "-") product)*
    product = signed (("*" | "/" | "//" | "%") signed)*
    signed  = ("-" | "+") signed | power
    power   = atom ("**" signed)?
    atom    = number | name | function "(" sum ("," sum)* ")" | "(" sum ")"
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Union

from onnxsparse.errors import OptionError, nearest

Number = Union[int, float]
TOKEN = re.compile(r"\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|([A-Za-z_]\w*)|(\*\*|//|[-+*/%(),]))")
LONGEST, DEEPEST, MOST_DIGITS = 1000, 50, 60
MOST_PLACES = 400
"""Beyond, no float has a digit; Python makes the power of ten first, however large."""


def _round(value: Number, *places: Number) -> Number:
    if len(places) > 1 or not all(isinstance(one, int) for one in places):
        raise TypeError("round() takes a number, and how many places as a whole one")
    if any(abs(one) > MOST_PLACES for one in places):
        raise OverflowError(f"round() takes at most {MOST_PLACES} places")
    return round(value, *places)  # type: ignore[arg-type]


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "float": float,
    "int": int,
    "max": max,
    "min": min,
    "round": _round,
}
SUMS = {"+": operator.add, "-": operator.sub}
PRODUCTS = {"*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod}
Look = Callable[[str], Number]


def compute(text: str, look: Look) -> Number:
    """The number that an expression comes to; `look` says what a name stands for."""
    if len(text) > LONGEST:
        raise OptionError(f"an expression has at most {LONGEST} characters")
    try:
        return _bounded(_Reader(text, look).whole())
    except (ArithmeticError, TypeError, ValueError) as error:
        raise OptionError(f"{text.strip():.60} has no value: {error}") from None


class _Reader:
    def __init__(self, text: str, look: Look) -> None:
        self._text, self._look, self._depth = text, look, 0
        self._tokens = _tokens(text)
        self._at = 0

    def whole(self) -> Number:
        found = self._sum()
        if self._at < len(self._tokens):
            raise self._wrong(f"{self._tokens[self._at]!r:.40} is too much")
        return found

    def _wrong(self, problem: str) -> OptionError:
        return OptionError(f"{problem} in {self._text.strip()!r:.80}")

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _sum(self) -> Number:
        self._depth += 1
        if self._depth > DEEPEST:
            raise OptionError("an expression is nested too deeply")
        found = self._product()
        while self._next() in SUMS:
            found = _bounded(SUMS[self._take()](found, self._product()))
        self._depth -= 1
        return found

    def _product(self) -> Number:
        found = self._signed()
        while self._next() in PRODUCTS:
            found = _bounded(PRODUCTS[self._take()](found, self._signed()))
        return found

    def _signed(self) -> Number:
        sign = 1
        while self._next() in SUMS:
            sign = -sign if self._take() == "-" else sign
        found = self._power()
        return -found if sign < 0 else found

    def _power(self) -> Number:
        found = self._atom()
        if self._next() != "**":
            return found
        self._take()
        self._depth += 1
        if self._depth > DEEPEST:
            raise OptionError("an expression is nested too deeply")
        exponent = self._signed()
        self._depth -= 1
        return _power(found, exponent)

    def _atom(self) -> Number:
        if not self._next():
            raise self._wrong("something is missing at the end")
        token = self._take()
        if token == "(":  # noqa: S105 - a bracket is no password
            return self._closed(self._sum())
        if token[0].isdigit() or token[0] == ".":
            return _bounded(float(token) if set(token) & set(".eE") else int(token))
        if not (token[0].isalpha() or token[0] == "_"):
            raise self._wrong(f"{token!r} is out of place")
        return self._call(token) if self._next() == "(" else self._look(token)

    def _call(self, name: str) -> Number:
        if name not in FUNCTIONS:
            raise self._wrong(f"there is no function {name!r:.40}{nearest(name, FUNCTIONS)}")
        self._take()
        arguments = [self._sum()]
        while self._next() == ",":
            self._take()
            arguments.append(self._sum())
        self._closed(0)
        if len(arguments) > 1 or name not in ("max", "min"):
            return _bounded(FUNCTIONS[name](*arguments))
        return arguments[0]

    def _closed(self, found: Number) -> Number:
        if self._next() != ")":
            raise self._wrong("a bracket is not closed")
        self._take()
        return found


def _tokens(text: str) -> list[str]:
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        token = TOKEN.match(text, at)
        if token is None:
            raise OptionError(f"{text[at:].strip()!r:.40} is no part of an expression")
        found.append(token[0].strip())
        at = token.end()
    return found


def _power(left: Number, right: Number) -> Number:
    """Of numbers that fit; anything larger overflows before it is made."""
    if isinstance(left, int) and isinstance(right, int) and right > 0:
        if abs(left) > 1 and right * math.log10(abs(left)) > MOST_DIGITS:
            raise OverflowError("it is too large")
        return int(left**right)
    made = left**right
    if isinstance(made, complex):
        raise ArithmeticError("it is no real number")
    return _bounded(made)


def _bounded(value: Any) -> Number:
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) >= 10**MOST_DIGITS:
            raise OverflowError("it is too large")
        return value
    if not isinstance(value, float) or not math.isfinite(value):
        raise OverflowError("it is no finite number")
    return value
