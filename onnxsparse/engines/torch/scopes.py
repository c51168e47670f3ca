"""Which part of a module a node came from, as its exporter says.

The newer exporter says it in its metadata (`pkg.torch.onnx.name_scopes`), the older one in the names of nodes
(`/encoder/encoder.0/norm1/LayerNormalization`). A scope is the path of a module, "" for the module as a whole, None
where nothing says so.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from onnx import NodeProto

from onnxsparse.graph.attributes import text

_SCOPES = "pkg.torch.onnx.name_scopes"
_WRAPPED = re.compile(r"^(?:(?:module|_orig_mod)\.)+|(?<=\.)_orig_mod\.")
_PARAMETRIZED = re.compile(r"parametrizations\.([^.]+)\.original$")
_INSIDE = re.compile(r"(?:^|\.)parametrizations(?:\.|$).*")


def plain(name: str) -> str:
    """The name of a tensor without what wrappers and parametrizations put into it."""
    return _PARAMETRIZED.sub(r"\1", _WRAPPED.sub("", name))


def scope_of(node: NodeProto) -> str | None:
    """The path of the module that a node came from."""
    for entry in node.metadata_props if hasattr(node, "metadata_props") else ():
        if entry.key == _SCOPES:
            listed = re.findall(r"'([^']*)'", text(entry.value))
            return _bare(listed[-2]) if len(listed) > 1 else None
    name = text(node.name)
    return _bare(_path(name)) if name.startswith("/") else None


def _path(name: str) -> str:
    """`/layers/layers.0/layers.0.0/conv1/Conv` is `layers.0.0.conv1`: a child of a list repeats the list."""
    path, before = "", ""
    for step in name.split("/")[1:-1]:
        path += step[len(before) :] if before and step.startswith(before + ".") else f".{step}"
        before = step
    return path[1:]


def _bare(path: str) -> str:
    return _INSIDE.sub("", plain(f"{path}.")[:-1])


@dataclass(frozen=True)
class Naming:
    """How names and scopes of a file are turned into those of the module at hand.

    `theirs` and `mine` are what the names of the file, and those of the module, have before what both share.
    """

    theirs: str
    mine: str
    paths: Collection[str]

    def name(self, name: str) -> str:
        if self.theirs:
            return name[len(self.theirs) :] if name.startswith(self.theirs) else name
        return self.mine + name

    def scope(self, scope: str | None) -> str | None:
        """None for what is outside of the module."""
        if scope is None:
            return None
        dotted = f"{scope}." if scope else ""
        if self.theirs and not dotted.startswith(self.theirs):
            return None
        found = dotted[len(self.theirs) :] if self.theirs else self.mine + dotted
        return self._once(found[:-1] if found else "")

    def _once(self, scope: str) -> str | None:
        """A module that is called again has `_1` after its name; where that is another one, nothing is known."""
        first = ".".join(re.sub(r"_\d+$", "", step) for step in scope.split("."))
        if first == scope or first not in self.paths:
            return scope
        return None if scope in self.paths else first
