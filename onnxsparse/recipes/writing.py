"""The canonical text of a recipe: every value spelled out, options by name, modifiers in the order in which they act.

    version: 1.1.0

    modifiers:
        - !EpochRangeModifier
            end_epoch: 70.0
            start_epoch: 0.0

It reads back as the same recipe, and is written as the same text again. Texts that YAML would take for something else
are quoted, such as '2:4'.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from onnxsparse.recipes.layout import METADATA, MODIFIERS
from onnxsparse.recipes.modifiers.modifier import FARTHEST, NEVER, Modifier, Scheduled, number, plain, reads_as_other

if TYPE_CHECKING:
    pass

VERSION = "1.1.0"
BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_./]*")
SIMPLE = re.compile(r"[\x20-\x7e]*")
OTHERS = ("null", "none", "~", "", "y", "n")
ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


@dataclass(frozen=True)
class UnknownModifier(Modifier):
    """An entry with a tag that no plug-in has: kept as it is written, where that is asked for, and never in a run."""

    name: ClassVar[str] = "unknown"
    missing: ClassVar[str] = "no modifier of that name is known"

    written_tag: str
    options: tuple[tuple[str, Any], ...]
    newer: bool = dataclasses.field(default=False, compare=False)
    """Whether it is written without a tag, as an entry of the newer form."""

    @classmethod
    def of(cls, tag: str, options: dict[str, Any]) -> UnknownModifier:
        return cls(tag, tuple((name, plain(value)) for name, value in sorted(options.items())))

    @property
    def start_epoch(self) -> float:
        return self._epoch("start_epoch")

    @property
    def end_epoch(self) -> float:
        return self._epoch("end_epoch")

    def _epoch(self, name: str) -> float:
        found = number(dict(self.options).get(name))
        return NEVER if found is None or not NEVER <= found <= FARTHEST else found


def tag_of(modifier: Modifier) -> str:
    """What a modifier is called in a recipe."""
    if isinstance(modifier, UnknownModifier):
        return modifier.written_tag
    return modifier.tag or modifier.name


def options_of(modifier: Modifier) -> dict[str, Any]:
    """The options that are written, by name in the order of the alphabet."""
    if isinstance(modifier, UnknownModifier):
        return dict(modifier.options)
    fields = sorted(dataclasses.fields(modifier), key=lambda field: field.name)  # type: ignore[arg-type]
    values = {field.name: (getattr(modifier, field.name), field.default) for field in fields}
    unwritten = modifier.unwritten if isinstance(modifier, Scheduled) else ()
    return {
        name: value
        for name, (value, default) in values.items()
        if not (value == default and (value is None or name in unwritten))
    }


def identifier(modifier: Modifier) -> str:
    """Tag and digest of all options: another value makes another identifier."""
    texts = sorted(f"{name}:{value_text(value)}" for name, value in options_of(modifier).items())
    digest = hashlib.md5(str(texts).encode("utf-8", "surrogatepass"), usedforsecurity=False)
    return f"{tag_of(modifier)}-{digest.hexdigest()}"


def text_of(sections: Iterable[tuple[str, tuple[Modifier, ...], Mapping[str, Any] | None]]) -> str:
    """A recipe of one section without a name, or of stages."""
    blocks = [f"version: {VERSION}\n"]
    for name, modifiers, metadata in sections:
        head = [f"{_key(name)}:"] if name else []
        indent = "  " if name else ""
        if metadata is not None:
            head += [f"{indent}{METADATA}:{_nested(metadata, indent + '  ')}", ""]
        key = _key(f"{name}_{MODIFIERS}" if name else MODIFIERS)
        head.append(f"{indent}{key}:" + ("" if modifiers else " []"))
        blocks.append("\n".join([*head, "\n\n".join(_entry(one, indent) for one in modifiers)]).rstrip("\n") + "\n")
    return "\n".join(blocks)


def _entry(modifier: Modifier, indent: str) -> str:
    lines = [f"{indent}    - !{tag_of(modifier)}"]
    if isinstance(modifier, UnknownModifier) and modifier.newer:
        lines = [f"{indent}    - {tag_of(modifier)}:" + ("" if modifier.options else " {}")]
    lines += [f"{indent}        {_key(name)}: {value_text(value)}" for name, value in options_of(modifier).items()]
    return "\n".join(lines)


def _nested(metadata: Mapping[str, Any], indent: str) -> str:
    """Mappings one below the other, everything else on its line."""
    if not metadata:
        return " {}"
    lines = ""
    for name, value in metadata.items():
        inner = _nested(value, indent + "  ") if isinstance(value, Mapping) else f" {value_text(value)}"
        lines += f"\n{indent}{_key(name)}:{inner}"
    return lines


def _key(name: Any) -> str:
    return value_text(name) if isinstance(name, str) else _flow(name)


def value_text(value: Any) -> str:
    """A value as it stands after its name."""
    if isinstance(value, str) and BARE.fullmatch(value) and value.lower() not in OTHERS and not reads_as_other(value):
        return value
    return _flow(value)


def _flow(value: Any) -> str:
    """A value inside brackets."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        return _number(value)
    return "null" if value is None else str(value)


def _number(value: float) -> str:
    """With a dot before the exponent, without which other readers of YAML see a text."""
    text = repr(value)
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")
    return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(text, text)


def _quoted(text: str) -> str:
    """In single quotes where every letter is plain; `eval(` is written so that nothing is computed."""
    if SIMPLE.fullmatch(text) and "eval(" not in text:
        return "'" + text.replace("'", "''") + "'"
    letters = (ESCAPED.get(one) or (one if one.isprintable() else f"\\U{ord(one):08x}") for one in text)
    return '"' + "".join(letters).replace("eval(", "\\x65val(") + '"'
