"""How a model is quantized: a scheme says it of kinds of layers, and a `Quantization` of every tensor of one graph.

    Scheme            asked for: integer grids of weights, inputs and outputs; what is left out, what is different
    Quantization      decided for one graph: which values and weights are rounded, on which grid, for which readers

A `Quantization` is plain data, and has a JSON form for checkpoints and for training graphs. Scales are not in it: they
come of statistics or of training, as `QParams` by the names of values and weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from onnxsparse.errors import OptionError, nearest
from onnxsparse.math.quantization import ACTIVATIONS, SYMMETRIC_ACTIVATIONS, WEIGHTS, Grid
from onnxsparse.planning.layer_kinds import is_class, means_name

T = TypeVar("T")
Entry = TypeVar("Entry", "QuantizedValue", "QuantizedWeight")
MOST = 20
Reader = tuple[str, int]
"""An input of a node: the node's first output, and the number of the input."""


@dataclass(frozen=True)
class LayerScheme:
    """How one layer is quantized; None where something stays float."""

    weights: Grid | None = WEIGHTS
    inputs: Grid | None = ACTIVATIONS
    outputs: Grid | None = None
    per_channel: bool = True
    block: int = 0
    """So many neighbours along the inputs have a scale of their own, for weights alone."""


Known = tuple[Iterable[str], Iterable[str]]
"""A layer: the names that it answers to, and what kinds it is of."""


@dataclass(frozen=True)
class Scheme:
    """How a model is quantized. Overrides and what is ignored go by the names of layers or by their kinds, which are
    classes of torch modules and operators of ONNX (see `layer_kinds`)."""

    layers: LayerScheme = LayerScheme()
    overrides: Mapping[str, LayerScheme] = field(default_factory=dict)
    """A name counts more than a kind, a longer name more than a shorter one. What is float by the rules of a device,
    such as a Softmax or an Embedding, is quantized where its kind or name is here."""
    ignore: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    """Where there are some, everything else is ignored."""
    strict: bool = False
    """Whether an entry that means no layer is an error."""
    checked: tuple[str, ...] | None = None
    """The entries that are to mean a layer, where not all are."""
    called: str = "scheme_overrides"
    """The option of a recipe that the overrides come from, for messages."""
    target: str = ""
    """The device whose rules say where pairs of QuantizeLinear and DequantizeLinear stand: '', ampere or vnni."""
    residuals: bool = True
    """Whether every operand of an addition is rounded, as onnxruntime fuses them; TensorRT fuses one into the layer
    before, and wants the others rounded."""

    def of(self, names: Iterable[str], kinds: Iterable[str] = ()) -> LayerScheme | None:
        """How a layer is quantized, by any of its names and kinds; None where it is ignored."""
        names, kinds = tuple(names), tuple(kinds)
        return None if self._ignores(names, kinds) else self._override(names, kinds) or self.layers

    def asked(self, names: Iterable[str], kinds: Iterable[str] = ()) -> LayerScheme | None:
        """What overrides say of a layer; None where none means it, or it is ignored."""
        names, kinds = tuple(names), tuple(kinds)
        return None if self._ignores(names, kinds) else self._override(names, kinds)

    def _ignores(self, names: Sequence[str], kinds: Sequence[str]) -> bool:
        if any(one in kinds or means_name(one, names) for one in self.ignore):
            return True
        return bool(self.only) and not any(means_name(one, names) for one in self.only)

    def _override(self, names: Sequence[str], kinds: Sequence[str]) -> LayerScheme | None:
        named = [one for one in self.overrides if means_name(one, names)]
        if named:
            return self.overrides[max(named, key=len)]
        return next((self.overrides[kind] for kind in kinds if kind in self.overrides), None)

    def missed(self, layers: Iterable[Known], classes: bool = True) -> list[str]:
        """A sentence for every entry that means none of the layers; an error where the scheme is strict.

        With `classes` every class of a module is among the kinds; without, as in a graph, what is ignored by a class
        may be there and have other operators, and is no error.
        """
        known = [(tuple(names), frozenset(kinds)) for names, kinds in layers]
        words = dict.fromkeys(word for names, kinds in known for word in (*names, *sorted(kinds)))
        lost, told = list[str](), list[str]()
        for option, entry in self._entries():
            if self.checked is not None and entry not in self.checked:
                continue
            if not any(entry in kinds or means_name(entry, names) for names, kinds in known):
                harmless = not self.strict or (option == "ignore" and not classes and is_class(entry))
                problem = f"{option}: {entry[:80]!r} is no layer and no module type of the model"
                (told if harmless else lost).append(f"{problem}{nearest(entry, words)}")
        if lost:
            raise OptionError(f"{'; '.join(lost[:MOST])}; rename them, or say strict: false")
        return told

    def _entries(self) -> Iterable[tuple[str, str]]:
        yield from ((self.called, entry) for entry in self.overrides)
        yield from (("ignore", entry) for entry in self.ignore)
        yield from (("submodules", entry) for entry in self.only)


ONNXRUNTIME = Scheme()
AMPERE = Scheme(LayerScheme(inputs=SYMMETRIC_ACTIVATIONS), target="ampere", residuals=False)


@dataclass(frozen=True)
class QuantizedValue:
    """A value of the graph that is rounded before some of its readers see it. One without readers is there because
    others have its scale."""

    name: str
    grid: Grid
    readers: tuple[Reader, ...] = ()
    like: str = ""
    """The value whose scale and zero point this one has."""


@dataclass(frozen=True)
class QuantizedWeight:
    """A stored tensor that becomes integers, for some of its readers. One that several layers share has an entry for
    each input and bias that it is used with; they have one scale."""

    name: str
    grid: Grid
    axis: int | None
    """Of the stored tensor: each of its indices has a scale."""
    readers: tuple[Reader, ...] = ()
    input: str = ""
    """The quantized value that it is multiplied with."""
    bias: str = ""
    """The stored tensor that is added to their product, in 32 bits."""
    block: int = 0
    looked_up: bool = False
    """A table whose rows become floats behind each look-up, and not all of them before it."""
    float_bias: bool = False
    """The bias is rounded as 32 bits would, and stored in floats: TensorRT's importer refuses a DequantizeLinear of 32
    bits."""


@dataclass(frozen=True)
class Quantization:
    """What is rounded in one graph, and why the rest is not: by the first outputs of nodes."""

    values: tuple[QuantizedValue, ...] = ()
    weights: tuple[QuantizedWeight, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Quantization:
        found = json.loads(text)
        values = tuple(QuantizedValue(**_typed(one)) for one in found["values"])
        weights = tuple(QuantizedWeight(**_typed(one)) for one in found["weights"])
        return cls(values, weights, found["left"])

    @property
    def observed(self) -> tuple[QuantizedValue, ...]:
        """The values that have scales of their own."""
        return tuple(one for one in self.values if not one.like)

    def for_all(self, of_observed: Mapping[str, T]) -> dict[str, T]:
        """What is known by the names of observed values and of weights, for values that are like others, too."""
        found = dict(of_observed)
        found.update((one.name, found[one.like]) for one in self.values if one.like in found)
        return found

    def without(self, readers: Iterable[str]) -> Quantization:
        """The same with some nodes left in float, by their first outputs."""
        gone = frozenset(readers)
        values = [_unread(one, gone) for one in self.values]
        roots = {one.like for one in values if one.readers}
        weights = [_unread(one, gone) for one in self.weights]
        left = {**self.left, **dict.fromkeys(sorted(gone), "left in float")}
        return Quantization(
            tuple(one for one in values if one.readers or one.name in roots),
            tuple(one for one in weights if one.readers),
            left,
        )


def _typed(found: dict[str, Any]) -> dict[str, Any]:
    readers = tuple((str(node), int(slot)) for node, slot in found["readers"])
    return {**found, "grid": Grid(**found["grid"]), "readers": readers}


def _unread(one: Entry, gone: frozenset[str]) -> Entry:
    """A value or weight for the readers that are left."""
    return replace(one, readers=tuple(reader for reader in one.readers if reader[0] not in gone))
