"""Choosing weights by name: of a tensor, of a layer, globs, `re:` patterns, operator kinds.

What a plain name means, the same in recipes, configurations and on the command line; the first that fits counts:

1. a stored tensor, by its name here or in torch;
2. a node, as it is called: `/blocks/1/conv/Conv`, with or without the first slash, or with dots;
3. a layer. It is the path of its node without the last component, whatever that is called: `blocks/1/conv`, or
   `blocks.1.conv`. Where the name of a node holds no path, the layer is the node itself. What stands before
   `.weight` in the name of a tensor is a layer, too. TensorFlow calls a weight by who reads it, and so it still tells
   its layer where the exporter folded a normalization into it and called the node as that;
4. the torch module that the exporter's path tells, which says the path of a module in a list twice, with or without
   `.weight`: `/a/a.0/Conv` is of `a.0`;
5. the end of such a path, if it has a dot in it.

A name that fits the nodes of two layers is an error that lists them. The weights of one node are one layer.
"""

from __future__ import annotations

import fnmatch
import importlib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from onnxsparse.errors import OptionError, brief, nearest
from onnxsparse.graph.weights import Weight

REGEX_SECONDS = 2.0
LONGEST, MOST_REPEATS = 2000, 10_000
MOST_LISTED = 8
GLOB = ("*", "?", "[")
WEIGHT = ".weight"
READ = re.compile(r"(.+)/(?:ReadVariableOp(?:_\d+)?|merged_input|read)(?::\d+)?")
"""What TensorFlow and tf2onnx call the tensor that an operator, or the copy of a variable, reads."""

Matcher = Callable[[str], bool]


@dataclass(frozen=True)
class Named:
    """The names a weight answers to. Two weights that share one of the nodes `of` are of one layer."""

    tensor: str
    more: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    of: frozenset[object] = frozenset()
    refused: bool = False

    @property
    def every(self) -> tuple[str, ...]:
        """All but the operators."""
        return (self.tensor, *self.more, *self.nodes, *self.layers)

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.every, *self.operators)

    @cached_property
    def modules(self) -> frozenset[str]:
        return frozenset(map(module_path, (*self.nodes, *self.layers)))


def named(weight: Weight, more: tuple[str, ...] = ()) -> Named:
    """What a weight answers to; `more` are its tensor's names elsewhere."""
    nodes = weight.layers or ((weight.refused_by,) if weight.refused_by else ())
    layers = [
        *(layer for tensor in (weight.name, weight.tensor.name, *more) for layer in layers_of_tensor(tensor)),
        *(layer for node in nodes for layer in layers_of_node(node)),
    ]
    return Named(
        weight.name, more, _unique(other for node in nodes for other in names_of_node(node)), _unique(layers),
        _unique(use.op for use in weight.uses), frozenset([use.reader for use in weight.uses] or nodes),
        bool(weight.refusal) or not weight.uses,
    )  # fmt: skip


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))


def names_of_node(node: str) -> tuple[str, ...]:
    """What a node itself is called."""
    bare = node.strip("/")
    return _unique((node, bare, bare.replace("/", "."), module_path(bare)))


def layers_of_node(node: str) -> tuple[str, ...]:
    """What the layer of a node is called: `/a/b/conv/Conv` is of `a/b/conv` and `a.b.conv`."""
    path = node.strip("/").rpartition("/")[0]
    return _unique((path, path.replace("/", "."), module_path(path)))


def layers_of_tensor(name: str) -> tuple[str, ...]:
    """The layers that the name of a weight tells."""
    read = READ.fullmatch(name)
    told = [name[: -len(WEIGHT)]] if name.endswith((WEIGHT, f"/{WEIGHT[1:]}")) else []
    return _unique([*told, read[1].rpartition("/")[0] if read else ""])


def module_path(layer: str) -> str:
    """The torch module of a node: exporters say the whole path of a module in a list again behind that of the list."""
    steps: list[str] = []
    for step in layer.strip("/").split("/"):
        if steps and step.startswith(f"{steps[-1]}."):
            steps.pop()
        steps.append(step)
    return ".".join(steps)


class NamedWeights:
    """The weights of a model, to be looked up by plain names."""

    def __init__(self, known: Iterable[Named]) -> None:
        self._known = list(known)
        self._own = self._by(lambda one: (one.tensor, *one.more))
        self._nodes = self._by(lambda one: one.nodes)
        self._layers = self._by(lambda one: one.layers)
        self._modules = self._by(lambda one: one.modules)
        self._ends = self._by(lambda one: (end for module in one.modules for end in _ends(module)))

    def _by(self, names: Callable[[Named], Iterable[str]]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for place, one in enumerate(self._known):
            for name in dict.fromkeys(names(one)):
                found.setdefault(name, []).append(place)
        return found

    def meant(self, entry: str, where: str, way_out: str = "") -> list[int]:
        """The places of the weights that a plain name means: those of one layer, or none."""
        if entry in self._own:
            return self._own[entry]
        bare = entry.strip("/")
        path = bare.replace("/", ".").removesuffix(WEIGHT)
        plain, dotted = (entry, bare), (path,)
        tiers = ((self._nodes, plain), (self._layers, plain), (self._modules, dotted), (self._ends, dotted))
        for known, said in tiers:
            found = sorted({place for name in said if name for place in known.get(name, ())})
            found = [place for place in found if not self._known[place].refused] or found
            if found:
                _demand_one([self._known[place] for place in found], entry, where, way_out)
                return found
        return []


def _ends(module: str) -> Iterable[str]:
    """The ends of a path that have a dot in them."""
    steps = module.split(".")
    return (".".join(steps[at:]) for at in range(1, len(steps) - 1))


def _demand_one(found: Sequence[Named], entry: str, where: str, way_out: str) -> None:
    """A plain name is of one layer, that is of one node, or of one weight that several read."""
    if len(found) == 1 or frozenset.intersection(*(one.of for one in found)):
        return
    layers: dict[object, list[Named]] = {}
    for one in found:
        layers.setdefault(one.of or one.tensor, []).append(one)
    listed = [_listed(weights) for weights in layers.values()]
    more = f" and {len(listed) - MOST_LISTED} more" if len(listed) > MOST_LISTED else ""
    raise OptionError(
        f"{where} {_line(entry)} fits {len(listed)} layers: {', '.join(listed[:MOST_LISTED])}{more}; "
        f"name one of them{way_out}"
    )


def _listed(weights: Sequence[Named]) -> str:
    """A layer by its node, and its weights."""
    tensors = ", ".join(_line(one.tensor) for one in weights)
    return f"{_line(weights[0].nodes[0])} ({tensors})" if weights[0].nodes else tensors


def _line(text: str) -> str:
    return " ".join(text[:120].splitlines())


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
        return {one.tensor: self._reason(one.tensor, included, excluded) for one in known}

    def _reason(self, name: str, included: dict[str, str], excluded: dict[str, str]) -> str:
        if name in excluded:
            return f"excluded by --exclude {excluded[name]}"
        return "not among --include" if self.include and name not in included else ""

    def _matched(self, known: list[Named], entries: tuple[str, ...], option: str) -> dict[str, str]:
        matched: dict[str, str] = {}
        weights = NamedWeights(known if entries else ())
        for entry in entries:
            if not isinstance(entry, str):
                raise OptionError(f"a name is text, not {brief(entry)}, in {option}")
            hits = _hits(known, weights, entry, option)
            if not hits:
                names = {name for one in known for name in one.all}
                raise OptionError(
                    f"{option} {entry[:80]} matches no weight{_likely(entry, names)}; see `onnxsparse inspect -v`"
                )
            matched.update(dict.fromkeys(hits, entry))
        return matched


def _hits(known: list[Named], weights: NamedWeights, entry: str, option: str) -> list[str]:
    """The tensors that an entry means: a plain name one layer; an operator, a glob and `re:` all that fit."""
    hits = [one.tensor for one in known if entry in one.operators]
    if entry.startswith("re:") or any(letter in entry for letter in GLOB):
        matches = matcher(entry, option)
        hits += [one.tensor for one in known if any(matches(name) for name in one.all)]
    if hits or entry.startswith("re:"):
        return hits
    return [known[place].tensor for place in weights.meant(entry, option, ", or all by a glob or `re:`")]


def _likely(entry: str, names: set[str]) -> str:
    parts = [part.strip() for part in entry.split(",")]
    if len(parts) > 1 and all(part in names for part in parts):
        return f": write one after the other, {' '.join(parts)[:120]}, not with commas"
    return nearest(entry, names)


def matcher(entry: str, option: str, start: bool = False) -> Matcher:
    """A test of names for one entry; a plain name is compared whole, and as a glob.

    A pattern may lie anywhere in a name; with `start` it begins where the name does.
    """
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
            return (pattern.match if start else pattern.search)(name, timeout=REGEX_SECONDS) is not None
        except TimeoutError:
            raise OptionError(f"{option} {entry[:80]} takes too long to match; write a simpler expression") from None

    return matches
