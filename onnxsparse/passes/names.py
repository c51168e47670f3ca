"""Choosing weights by name: tensor or layer names, globs, `re:` patterns, operator kinds."""

from __future__ import annotations

import fnmatch
import importlib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from onnxsparse.errors import OptionError, nearest

REGEX_SECONDS = 2.0
LONGEST, MOST_REPEATS = 2000, 10_000

Matcher = Callable[[str], bool]


@dataclass(frozen=True)
class Named:
    """The names a weight answers to."""

    tensor: str
    layers: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return (self.tensor, *self.layers, *self.operators)


@dataclass(frozen=True)
class NameFilter:
    """`include` narrows to what it matches (everything when empty), `exclude` takes away."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def choose(self, weights: Iterable[Named]) -> dict[str, str]:
        """For every weight by tensor name the reason why it is left out, or an empty string."""
        known = list(weights)
        included = self._matched(known, self.include, "--include")
        excluded = self._matched(known, self.exclude, "--exclude")
        return {named.tensor: self._reason(named.tensor, included, excluded) for named in known}

    def _reason(self, name: str, included: dict[str, str], excluded: dict[str, str]) -> str:
        if name in excluded:
            return f"excluded by --exclude {excluded[name]}"
        return "not among --include" if self.include and name not in included else ""

    def _matched(self, known: list[Named], entries: tuple[str, ...], option: str) -> dict[str, str]:
        matched: dict[str, str] = {}
        for entry in entries:
            matches = matcher(entry, option)
            hits = [named.tensor for named in known if any(matches(name) for name in named.all)]
            if not hits:
                names = {name for named in known for name in named.all}
                raise OptionError(
                    f"{option} {entry[:80]} matches no weight{_likely(entry, names)}; see `onnxsparse inspect`"
                )
            matched.update(dict.fromkeys(hits, entry))
        return matched


def _likely(entry: str, names: set[str]) -> str:
    parts = [part.strip() for part in entry.split(",")]
    if len(parts) > 1 and all(part in names for part in parts):
        return f": write one after the other, {' '.join(parts)[:120]}, not with commas"
    return nearest(entry, names)


def matcher(entry: str, option: str) -> Matcher:
    """A test of names for one entry; a plain name is compared whole, and as a glob."""
    if not entry.startswith("re:"):
        return lambda name: name == entry or fnmatch.fnmatchcase(name, entry)
    regex: Any = importlib.import_module("regex")
    if len(entry) > LONGEST or math.prod(int(count) for count in re.findall(r"\{(\d{1,9})", entry)) > MOST_REPEATS:
        raise OptionError(f"{option} {entry[:80]} is too large an expression; write a simpler one")
    try:
        pattern = regex.compile(entry[3:])
    except (regex.error, ValueError, OverflowError, RecursionError) as error:
        raise OptionError(f"{option} {entry[:80]} is not a regular expression: {error}") from None

    def matches(name: str) -> bool:
        try:
            return pattern.search(name, timeout=REGEX_SECONDS) is not None
        except TimeoutError:
            raise OptionError(f"{option} {entry[:80]} takes too long to match; write a simpler expression") from None

    return matches
