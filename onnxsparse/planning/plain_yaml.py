"""Safe and strict YAML: numbers are numbers, and no key may stand twice in one mapping.

Texts such as 2:4 and 1e-5 mean what they look like. Of a key that stands twice YAML says nothing and PyYAML takes the
last one in silence; whoever edited the file meant one of the two, so it is an error with both lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same in C, where it is installed


class PlainLoader(SAFE):  # type: ignore[misc]
    """Safe YAML in which 2:4 is a text (old YAML reads it as a base-60 number) and 1e-5 is a number."""


_NUMBERS = (
    ("tag:yaml.org,2002:int", re.compile(r"[-+]?[0-9]+$"), "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$"),
        "-+.0123456789",
    ),
)
PlainLoader.yaml_implicit_resolvers = {
    first: [entry for entry in entries if entry[0].rpartition(":")[2] in ("bool", "null", "merge")]
    for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _regexp, _first in _NUMBERS:
    PlainLoader.add_implicit_resolver(_tag, _regexp, list(_first))


MERGE = "<<"


class WrittenTwiceError(Exception):
    """One key of a mapping is there twice."""


def read_yaml(text: str) -> Any:
    """What a text in YAML says; anchors and merge keys are resolved."""
    loader = PlainLoader(text)  # a SafeLoader
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _demand_once(node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _demand_once(root: yaml.Node) -> None:
    """As it is written, before merge keys bring in more: those give way to what is said in place."""
    left, seen = [root], set[yaml.Node]()
    while left:
        node = left.pop()
        if node in seen:  # an anchor
            continue
        seen.add(node)
        if isinstance(node, yaml.MappingNode):
            _demand_keys([key for key, _ in node.value])
            left += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            left += node.value


def _demand_keys(keys: Sequence[yaml.Node]) -> None:
    lines: dict[str, int] = {}
    for key in keys:
        if not isinstance(key, yaml.ScalarNode) or key.value == MERGE:
            continue
        line = key.start_mark.line + 1
        if key.value in lines:
            raise WrittenTwiceError(f"line {line}: {key.value!r:.60} is there already, in line {lines[key.value]}")
        lines[key.value] = line
