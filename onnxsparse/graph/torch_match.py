"""Which torch parameter a stored tensor is (a match), how it lies there, and the record of that in the metadata.

The record is JSON under `onnxsparse.torch.match`: for every parameter its tensor, scope, layout, how it was found,
shape and first element, once for each copy. A parameter lies in the tensor that an exporter stored it in as

    same         element for element; axes of size 1 may come or go
    transposed   a matrix with its two axes swapped
    swapped      more axes, the first two swapped
    lstm, gru    the gates in the order of ONNX (iofc, zrh) instead of torch's (ifco, rzn)

To read a record takes no torch: the names of a module's parameters are names of weights for a recipe in any engine.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import NodeProto

from onnxsparse.errors import ModelError, OptionError
from onnxsparse.graph.attributes import text
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import Array
from onnxsparse.graph.stores import keys

KEY = "onnxsparse.torch.match"
SAME, TRANSPOSED, SWAPPED = "same", "transposed", "swapped"
PLAIN = (SAME, TRANSPOSED, SWAPPED)
GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}

Shape = tuple[int, ...]


def squeezed(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)


def fits(layout: str, shape: Shape) -> bool:
    """Whether a parameter of that shape can lie so, and differently than under `same`."""
    if layout in GATES:
        return bool(shape) and shape[0] % len(GATES[layout]) == 0
    if layout == SAME:
        return True
    return len(shape) > 1 and min(shape[:2]) > 1 and (len(shape) == 2) == (layout == TRANSPOSED)


def arranged(array: Any, layout: str) -> Any:
    """A parameter (of torch or numpy) in the order of its stored tensor."""
    if layout in (TRANSPOSED, SWAPPED):
        return array.swapaxes(0, 1)
    if layout in GATES:
        order = list(GATES[layout])
        return array.reshape(len(order), -1)[order]
    return array


def places(shape: Shape, layout: str, start: int) -> Array:
    """For every element of a parameter, where it is in its flat stored tensor."""
    order = arranged(np.arange(int(np.prod(shape))).reshape(shape), layout).reshape(-1)
    found = np.empty(order.size, np.int64)
    found[order] = np.arange(start, start + order.size)
    return found.reshape(shape)


@dataclass(frozen=True)
class Matched:
    """Where a parameter is: the stored tensor, its scope, how it lies there from element `start`, and how it was found.

    `copies` are further tensors with the same parameter, such as the transposed copy of a tied embedding.
    """

    tensor: str
    scope: str
    layout: str
    how: str
    shape: tuple[int, ...]
    start: int = 0
    copies: tuple[Matched, ...] = ()

    def places(self) -> Array:
        """For each element of the parameter, where it is in the flat stored tensor."""
        return places(self.shape, self.layout, self.start)


@dataclass(frozen=True)
class Match(Mapping[str, Matched]):
    """The parameters and buffers that were found, by name; `refused` has the reasons for all others.

    `aliases` are further names of tied parameters. `folded` are tensors of batch normalizations that have none of
    their own any more, and the stored tensor that each became part of.
    """

    matched: Mapping[str, Matched] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    folded: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Match({self.summary})"

    @property
    def summary(self) -> str:
        """How many of how many tensors were found, in one line."""
        total = len(self.matched) + len(self.folded) + len(self.refused)
        rest = [f"{len(part)} {word}" for part, word in ((self.folded, "folded"), (self.refused, "refused")) if part]
        return ", ".join([f"{len(self.matched)} of {total} tensors of the module found", *rest])

    def __getitem__(self, name: str) -> Matched:
        return self.matched[self.aliases.get(name, name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.matched)

    def __len__(self) -> int:
        return len(self.matched)


# -- the record


def record_match(model: Model, match: Match) -> None:
    """Write the match into the metadata, over an earlier one."""
    _demand_own(model, match)
    rows = {name: [_row(one) for one in (matched, *matched.copies)] for name, matched in match.matched.items()}
    parts = {"matched": rows, "aliases": match.aliases, "folded": match.folded, "refused": match.refused}
    content = {name: dict(part) for name, part in parts.items()}
    model.set_metadata({KEY: json.dumps(content, separators=(",", ":"), ensure_ascii=False)})


def _demand_own(model: Model, match: Match) -> None:
    """Every tensor that it names is in the file, and large enough for what is to lie in it."""
    if not isinstance(match, Match):
        raise OptionError(f"match is what osp.torch.match returns, not a {type(match).__name__}")
    sizes = {key: tensor.size for tensor, key in keys(model.flow.stores).items()}
    for name, first in match.matched.items():
        for one in (first, *first.copies):
            size = sizes.get((one.scope, one.tensor))
            if size is None or one.start + math.prod(one.shape) > size:
                what = "is not in this one" if size is None else f"has {size} numbers in this one, too few for it"
                raise OptionError(
                    f"the match was made from another file: tensor '{one.tensor}' of parameter '{name}' {what}; "
                    "match this file and the module"
                )


def recorded_match(model: Model) -> Match | None:
    """The match that stands in the metadata, if one does."""
    text = model.metadata.get(KEY)
    if text is None:
        return None
    try:
        content = json.loads(text)
        matched = {str(name): _read_rows(rows) for name, rows in content["matched"].items()}
        rest = [{str(name): str(one) for name, one in content[part].items()} for part in _TEXTS]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ModelError(f"the metadata entry '{KEY}' cannot be read; match the model and the module again") from error
    return Match(matched, *rest)


_TEXTS = ("aliases", "folded", "refused")


def _row(matched: Matched) -> list[Any]:
    return [matched.tensor, matched.scope, matched.layout, matched.how, list(matched.shape), matched.start]


def _read_rows(rows: list[list[Any]]) -> Matched:
    first, *copies = [_read_row(*row) for row in rows]
    return Matched(**{**vars(first), "copies": tuple(copies)})


def _read_row(tensor: str, scope: str, layout: str, how: str, shape: list[int], start: int) -> Matched:
    numbers = [start, *shape]
    if layout not in (*PLAIN, *GATES) or any(not isinstance(one, int) or one < 0 for one in numbers):
        raise ValueError(layout)
    return Matched(str(tensor), str(scope), layout, str(how), tuple(shape), start)


# -- Which part of a module a node came from, as its exporter says.
#
# The newer exporter says it in its metadata (`pkg.torch.onnx.name_scopes`), the older one in the names of nodes
# (`/encoder/encoder.0/norm1/LayerNormalization`). A scope is the path of a module, "" for the module as a whole, None
# where nothing says so.


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
