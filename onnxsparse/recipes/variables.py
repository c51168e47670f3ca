"""Variables of a recipe, and evaluation of `eval(...)`.

1. `eval(name)` as a whole value stands for what the variable holds, also for a list or a word. Any other expression is
   computed; its names stand for numbers.
2. Inside a longer value the result is put in as text: `block.eval(n).*`. Where the whole then is an expression, such
   as `1 + eval(n)`, and a number is asked for, it is that number.
3. A variable may be given another value from outside; then everything that leans on it has that, aliases too.
4. A stage sees its own variables before those of the recipe.
5. What all of a recipe's expressions come to is bounded, in time and in size, before any of it is made.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import re
from collections.abc import Mapping
from numbers import Real
from typing import Any, Union

from onnxsparse.errors import OptionError, PlanError, nearest
from onnxsparse.recipes.expressions import Number, compute
from onnxsparse.recipes.modifiers.modifier import Computed, Quoted, number, reads_as_other
from onnxsparse.recipes.yaml_tree import DEEPEST, LARGEST, Node, Pairs, WrongError, read

CALL = re.compile(r"\beval\(")
OPEN = len("eval(")
CHAIN = 40
LONGEST_TEXT, LONGEST_NUMBER = 1 << 20, 400
EFFORT, EACH = 60_000, 10
"""Letters of expressions in one recipe, with so many more for each of them: about 50 ms."""
ASSIGNED = re.compile(r"\s*([^\s=:]+)\s*[=:]\s*(.*?)\s*", re.DOTALL)
Variables = Union[Mapping[str, Any], str, None]


class Scope:
    """The variables that a part of a recipe sees."""

    def __init__(self, own: Mapping[str, Node], outer: Scope | None = None) -> None:
        self._own, self._outer, self._whole = own, outer, False
        self._known: dict[str, Node] = {}
        self._open: list[str] = outer._open if outer is not None else []
        self._made: list[int] = outer._made if outer is not None else [0]
        self._effort: list[int] = outer._effort if outer is not None else [0]

    def names(self) -> list[str]:
        return [*self._own, *(self._outer.names() if self._outer is not None else [])]

    def knows(self, name: str) -> bool:
        return name in self._own or (self._outer is not None and self._outer.knows(name))

    def demand_whole(self) -> None:
        """Every variable can be computed, whether it is used or not."""
        if self._outer is not None:
            self._outer.demand_whole()
        if self._whole:
            return
        self._whole = True
        for name, node in self._own.items():
            self._of(name, node.line)

    def filled(self, node: Node) -> Node:
        """The node with everything computed in it."""
        if node.text is not None:
            call = None if node.as_is else CALL.search(node.text)
            return node if call is None else self._text(node, node.text, call.start())
        if node.is_list:
            inner = [self.filled(one) for one in node.items]
            return node if all(map(operator.is_, inner, node.items)) else self._around(node, inner)
        values = [self.filled(one) for _, one in node.pairs]
        if all(map(operator.is_, values, [one for _, one in node.pairs])):
            return node
        return self._around(node, Pairs(zip([key for key, _ in node.pairs], values)))

    def _around(self, node: Node, value: list[Node] | Pairs) -> Node:
        made = Node.around(value, node.line, node.tag)
        return self._counted(made, made.size)

    def _counted(self, node: Node, size: int) -> Node:
        self._made[0] += size
        if node.depth > DEEPEST or self._made[0] > LARGEST:
            raise WrongError(node.line, "with every variable put in it is too large")
        return node

    def _spend(self, letters: int, line: int) -> None:
        self._effort[0] += EACH + letters
        if self._effort[0] > EFFORT:
            raise WrongError(line, "the expressions of the recipe are too many, or too long")

    def _text(self, node: Node, text: str, begin: int) -> Node:
        end = _closing(text, begin + OPEN - 1, node.line)
        if text[:begin].strip() or text[end:].strip():
            return self._longer(node, text)
        inner = text[begin + OPEN : end - 1]
        self._spend(len(inner), node.line)
        if self.knows(inner.strip()):
            found = self._of(inner.strip(), node.line)
            made = dataclasses.replace(found, line=node.line)
            return self._counted(made, made.size)
        return Node(repr(self._number(inner, node.line)), node.line)

    def _longer(self, node: Node, text: str) -> Node:
        parts, at, length = [], 0, 0
        while (call := CALL.search(text, at)) is not None:
            end = _closing(text, call.end() - 1, node.line)
            self._spend(end - call.end(), node.line)
            parts += [text[at : call.start()], self._shown(text[call.end() : end - 1], node.line)]
            at, length = end, length + len(parts[-1])
            if length > LONGEST_TEXT:
                raise WrongError(node.line, "with every variable put in it is too long")
        made = Computed("".join([*parts, text[at:]]))
        try:
            made.number = compute(made, _unknown)
        except OptionError:
            made.number = None
        return self._counted(Node(made, node.line), 1 + len(made) // 100)

    def _shown(self, inner: str, line: int) -> str:
        if self.knows(inner.strip()):
            found = self._of(inner.strip(), line)
            if found.text is None:
                raise WrongError(line, f"{inner.strip():.60} is no single value, and stands inside a longer one")
            return found.text
        value = self._number(inner, line)
        return repr(int(value) if value == int(value) else value)

    def _number(self, inner: str, line: int) -> Number:
        try:
            return compute(inner, lambda name: self._look(name, line))
        except OptionError as error:
            raise WrongError(line, str(error)) from None

    def _look(self, name: str, line: int) -> Number:
        found = self._of(name, line)
        value = None if found.text is None else _as_number(found.text)
        if value is None:
            raise WrongError(line, f"the variable {name:.60} is no number")
        return value

    def _of(self, name: str, line: int) -> Node:
        """What a variable comes to."""
        if name not in self._own:
            if self._outer is not None:
                return self._outer._of(name, line)
            raise WrongError(line, f"there is no variable {name!r:.60}{nearest(name, self.names())}")
        if name not in self._known:
            if name in self._open:
                raise WrongError(self._own[name].line, f"the variable {name:.60} leans on itself")
            if len(self._open) >= CHAIN:
                raise WrongError(line, "too many variables lean on each other")
            self._open.append(name)
            self._known[name] = self.filled(self._own[name])
            self._open.pop()
        return self._known[name]


def _unknown(name: str) -> Number:
    raise OptionError(f"{name} is no number")


def _as_number(text: str) -> Number | None:
    if len(text) > LONGEST_NUMBER:
        return None
    try:
        return int(text)
    except ValueError:
        return number(text)


def _closing(text: str, begin: int, line: int) -> int:
    """The place after the bracket that closes the one at a place."""
    depth = 0
    for at in range(begin, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if not depth:
            return at + 1
    raise WrongError(line, f"a bracket is not closed in {text!r:.60}")


# -- values from outside


def given(variables: Variables) -> dict[str, Node]:
    """Variables as a mapping, as JSON, or as `name=value,name=value`."""
    if variables is None:
        return {}
    if isinstance(variables, str):
        return _from_text(as_text(variables, "the variables"))
    if not isinstance(variables, Mapping):
        raise PlanError(f"variables are a mapping, JSON or name=value,..., not {type(variables).__name__}")
    return {str(name): _node(value, str(name)) for name, value in variables.items()}


def words(variables: Variables) -> dict[str, Any]:
    """The same as texts and lists of texts, for what reads them itself."""

    def plain(node: Node) -> Any:
        if node.text is None and not node.is_list:
            raise OptionError("a variable of a recipe that is created is a value, or a list of values")
        return node.text if node.text is not None else [plain(one) for one in node.items]

    return {name: plain(node) for name, node in given(variables).items()}


def _from_text(text: str) -> dict[str, Node]:
    if text.strip().startswith("{"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PlanError(f"the variables are no JSON: {error}") from None
        return {str(name): _node(value, str(name)) for name, value in found.items()}
    made: dict[str, Node] = {}
    for part in filter(str.strip, _parts(text)):
        match = ASSIGNED.fullmatch(part)
        if match is None or set(match[1]) & set("{!}"):
            raise PlanError(f"variables are given as name=value,name=value, not as {part.strip()!r:.60}")
        made[match[1]] = _written(match[2], match[1])
    return made


def _parts(text: str) -> list[str]:
    """Parted at commas outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if letter in "'\"" and quote in ("", letter):
            quote = "" if quote else letter
        depth += 0 if quote else (letter in "[{(") - (letter in "]})")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _written(text: str, name: str) -> Node:
    """Lists, mappings and quotes as in a recipe; everything else is a plain value."""
    if text[:1] in ("[", "{", "'", '"'):
        found = read(text, f"the variable {name:.60}")
        if found is not None:
            return found
    return Node(text, 1)


def _node(value: Any, name: str, depth: int = 0) -> Node:
    if depth > DEEPEST:
        raise PlanError(f"the variable {name:.60} is nested too deeply")
    if isinstance(value, Mapping):
        return Node.around(Pairs((_node(k, name, depth + 1), _node(v, name, depth + 1)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return Node.around([_node(one, name, depth + 1) for one in value])
    if isinstance(value, str):
        value = as_text(value, f"the variable {name:.60}")
        return Node(value if CALL.search(value) or not reads_as_other(value) else Quoted(value), 1)
    if value is None or isinstance(value, Real):
        return Node("" if value is None else _digits(value, name), 1)
    raise PlanError(f"the variable {name:.60} is of type {type(value).__name__}, which no recipe has")


def as_text(text: str, called: str) -> str:
    """Half a letter can stand in no file."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PlanError(f"{called} cannot be text: {text[error.start]!a} is no letter") from None
    return text


def _digits(value: Real, name: str) -> str:
    try:
        return str(value)
    except ValueError:
        raise PlanError(f"the variable {name:.60} is a number of too many digits") from None
