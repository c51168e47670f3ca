"""Layout of a recipe file: where modifiers stand, and which keys are variables.

1. Every key with `modifiers` in its name holds a list of entries `- !Tag`; several lists are one, in their order. A
   recipe may also be a single entry, a list of entries, or have an entry as the value of a key.
2. Without such a key at the root, every key that holds a mapping with one is a stage.
3. In the newer form the list is a mapping of names to options, as is `stages` around the stages.
4. `__metadata__` is kept. All other keys are variables. An entry anywhere else is an error, and not passed over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxsparse.errors import nearest
from onnxsparse.recipes.yaml_tree import Node, Pairs, WrongError

MODIFIERS, METADATA, STAGES = "modifiers", "__metadata__", "stages"
EXAMPLE = "- !GMPruningModifier"


@dataclass
class Option:
    """One option, as it is written."""

    name: str
    value: Node
    line: int


@dataclass
class Entry:
    """What stands under a tag; of the newer form the names are others."""

    tag: str
    options: list[Option]
    line: int
    newer: bool = False


@dataclass
class Section:
    """One stage, or a recipe without stages."""

    name: str
    entries: list[Entry] = field(default_factory=list)
    variables: dict[str, Node] = field(default_factory=dict)
    metadata: Node | None = None


@dataclass
class Layout:
    sections: list[Section]
    variables: dict[str, Node]
    staged: bool = False


def laid_out(root: Node | None) -> Layout:
    """The sections of a recipe."""
    if root is None or (root.is_nothing and not root.tag):
        raise WrongError(1, f"this is no recipe, which has a list `{MODIFIERS}:` of entries such as {EXAMPLE}")
    if root.tag:
        return Layout([Section("", [_entry(root)])], {})
    if root.is_list:
        return Layout([Section("", [_entry(one) for one in root.items])], {})
    if not root.is_mapping:
        raise WrongError(root.line, f"this is no recipe, which has a list `{MODIFIERS}:` of entries such as {EXAMPLE}")
    keys = _keys(root)
    if any(MODIFIERS in name or value.tag for name, value in keys.items()):
        section = _section("", keys)
        return Layout([section], section.variables)
    return _staged(root, keys)


def _keys(mapping: Node) -> dict[str, Node]:
    return {str(key.text): value for key, value in mapping.pairs}


def _staged(root: Node, keys: dict[str, Node]) -> Layout:
    flat: dict[str, Node] = {}
    for name, value in keys.items():
        inner = _keys(value) if name == STAGES and value.is_mapping and not _is_stage(value) else {name: value}
        for one in inner.keys() & flat.keys():
            raise WrongError(inner[one].line, f"`{one:.60}` is there twice")
        flat.update(inner)
    stages = {name: value for name, value in flat.items() if _is_stage(value)}
    variables = {name: value for name, value in flat.items() if name not in stages and name != METADATA}
    if not stages:
        word = next((name for name in variables if nearest(name, [MODIFIERS])), "")
        hint = f"{word!r:.60}: did you mean {MODIFIERS}?" if word else f"such a list has `{MODIFIERS}` in its name"
        entry = next((one.line for value in variables.values() for one in value.every() if one.tag), root.line)
        raise WrongError(entry, f"no modifiers are found; {hint}")
    _demand_none(variables)
    for name in stages.keys() & {"", STAGES}:
        raise WrongError(stages[name].line, f"a stage cannot be called {name!r}")
    return Layout([_section(name, _keys(value)) for name, value in stages.items()], variables, True)


def _is_stage(value: Node) -> bool:
    return value.is_mapping and not value.tag and any(MODIFIERS in (key.text or "") for key, _ in value.pairs)


def _section(name: str, keys: dict[str, Node]) -> Section:
    made = Section(name)
    for key, value in keys.items():
        if key == METADATA:
            made.metadata = value
        elif value.tag:
            made.entries.append(_entry(value))
        elif MODIFIERS in key:
            made.entries += _listed(key, value)
        else:
            made.variables[key] = value
    _demand_none(made.variables)
    return made


def _demand_none(variables: dict[str, Node]) -> None:
    for name, value in variables.items():
        for one in value.every():
            if one.tag:
                place = f"a list with `{MODIFIERS}` in its name"
                raise WrongError(one.line, f"!{one.tag:.60} stands under `{name:.60}`; modifiers stand in {place}")


def _listed(key: str, value: Node) -> list[Entry]:
    if value.is_nothing:
        return []
    if value.is_mapping:
        return [Entry(name, _options(one, f"{name:.60}"), one.line, newer=True) for name, one in _keys(value).items()]
    if not value.is_list:
        raise WrongError(value.line, f"`{key:.60}` is a list of entries such as {EXAMPLE}")
    return [_untagged(one) or _entry(one) for one in value.items]


def _untagged(node: Node) -> Entry | None:
    """An entry of the newer form in a list: a name with its options."""
    if node.tag or not node.is_mapping or len(node.pairs) != 1:
        return None
    ((name, options),) = node.pairs
    if not options.is_mapping:
        return None
    return Entry(str(name.text), _options(options, f"{name.text:.60}"), options.line, newer=True)


def _entry(node: Node) -> Entry:
    if not node.tag:
        raise WrongError(node.line, f"an entry of `{MODIFIERS}` has no tag such as {EXAMPLE[2:]}")
    return Entry(node.tag, _options(node, f"!{node.tag:.60}"), node.line)


def _options(node: Node, called: str) -> list[Option]:
    if node.is_nothing or node.text == "":
        return []
    if not isinstance(node.value, Pairs):
        raise WrongError(node.line, f"under {called} come options, such as `start_epoch: 1`")
    found = []
    for key, value in node.value:
        inner = next((one for one in value.every() if one.tag), None)
        if inner is not None:
            raise WrongError(inner.line, f"a value has no tag such as !{inner.tag:.60}")
        found.append(Option(str(key.text), value, key.line))
    return found
