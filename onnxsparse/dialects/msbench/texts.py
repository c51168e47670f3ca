"""YAML and JSON as plain values; what a text says twice is an error, as nobody knows which of the two is meant."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml

from onnxsparse.passes.planfile import PlainLoader

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
    left, seen = [root], set()
    while left:
        node = left.pop()
        if id(node) in seen:  # an anchor
            continue
        seen.add(id(node))
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


def read_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise WrittenTwiceError(f"{twice!r:.60} is there twice in one object")
    return found
