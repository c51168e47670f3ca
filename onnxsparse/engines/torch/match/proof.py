"""Verifying a match: model and module must compute the same, before and after a parameter is masked in both.

1. Each parameter is masked alone, at random places, and put back. Parameters that share a stored tensor go together.
2. A mask that the outputs do not show proves nothing. Nor is tried what is no parameter, what is computed from others,
   and a bias that a batch normalization was folded into: there the two sides differ by more than a factor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxsparse.engines.torch import convert
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.match.candidates import bare, entries
from onnxsparse.engines.torch.match.rules import BY_FOLD
from onnxsparse.engines.torch.parameters import TABLE
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import Array
from onnxsparse.graph.torch_match import Match, Matched

CLOSE = 1e-3  # of the range of an output
SEEN = 10.0  # how much more than the two sides' difference a mask has to change

Key = tuple[str, str]


@dataclass(frozen=True)
class Proof:
    """The parameters whose place is proven, and why the others are not."""

    proved: tuple[str, ...]
    open: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Proof({len(self.proved)} parameters proved, {len(self.open)} not)"


def proved(model: Model, module: Any, match: Match, inputs: Any, seed: int = 0) -> Proof:
    """Mask every matched parameter on both sides and compare the outputs for `inputs`, in eval mode."""
    trial = _Trial(model, module, match, inputs if isinstance(inputs, (tuple, list)) else (inputs,))
    generator = np.random.Generator(np.random.Philox(key=seed))
    modes = [(part, part.training) for part in trial.module.modules()]
    try:
        trial.module.eval()
        with torch().no_grad():
            return trial.run(generator)
    finally:
        for part, training in modes:
            part.training = training


class _Trial:
    def __init__(self, model: Model, module: Any, match: Match, inputs: Sequence[Any]) -> None:
        self.module, self.match, self.inputs = bare(module), match, inputs
        self.other = convert.to_module(model).eval()
        table = getattr(self.other, TABLE)["tensors"]
        self.stored = {tuple(key): _at(self.other, path) for path, key in table.items()}
        self.entries = {entry.name: entry for entry in entries(module)}
        self.before: list[Any] = []

    def run(self, generator: np.random.Generator) -> Proof:
        first, self.before = _outputs(self.other, self.inputs), _outputs(self.module, self.inputs)
        if not _near(first, self.before):
            return Proof((), dict.fromkeys(self.match, "the outputs differ before anything is masked"))
        reasons = {name: self._untried(name) for name in self.match}
        for group in self._groups([name for name, reason in reasons.items() if not reason]):
            reasons.update(dict.fromkeys(group, self._differs(group, generator)))
        right = tuple(name for name, reason in reasons.items() if not reason)
        return Proof(right, {name: reason for name, reason in reasons.items() if reason})

    def _untried(self, name: str) -> str:
        entry = self.entries[name]
        if entry.local not in entry.module._parameters or len(entry.values) > 1:
            return "it is no parameter of its own"
        if any(key not in self.stored for key in _keys(self.match[name])):
            return "its tensor is no parameter of the model"
        folded = self.match[name].how == BY_FOLD and len(entry.shape) == 1
        return "a batch normalization was folded into it" if folded else ""

    def _groups(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Parameters that lie in the same elements of a stored tensor."""
        waiting = list(names)
        while waiting:
            group = [waiting.pop(0)]
            spots = set(_spots(self.match[group[0]]))
            for name in list(waiting):
                if spots & set(_spots(self.match[name])):
                    spots |= set(_spots(self.match[name]))
                    group.append(name)
                    waiting.remove(name)
            yield group

    def _differs(self, group: Sequence[str], generator: np.random.Generator) -> str:
        """Why masking the group does not prove it; empty where it does."""
        kept = [(tensor, tensor.clone()) for tensor in self._tensors(group)]
        try:
            self._mask(group, generator)
            mine, theirs = _outputs(self.module, self.inputs), _outputs(self.other, self.inputs)
        finally:
            for tensor, numbers in kept:
                tensor.copy_(numbers)
        if not _near(mine, theirs):
            return "masked in both, the outputs differ"
        shown = _distance(mine, self.before) > SEEN * max(_distance(mine, theirs), 1e-7)
        return "" if shown else "masking it does not show in the outputs"

    def _tensors(self, group: Sequence[str]) -> Iterator[Any]:
        for name in group:
            yield self.entries[name].values[0]
            yield from (self.stored[key] for key in _keys(self.match[name]))

    def _mask(self, group: Sequence[str], generator: np.random.Generator) -> None:
        """One mask for all that share elements; the first of the group draws it."""
        drawn: dict[tuple[Key, int], Array] = {}
        for name in group:
            entry, places = self.entries[name], [self.match[name], *self.match[name].copies]
            known = [drawn[spot] for spot in _spots(self.match[name]) if spot in drawn]
            mask = known[0][_local(places, drawn)] if known else generator.random(entry.shape) < 0.5
            entry.values[0].mul_(torch().from_numpy(np.ascontiguousarray(mask)).to(entry.values[0].device))
            for place in places:
                self._lay(place, mask, drawn)

    def _lay(self, place: Matched, mask: Array, drawn: dict[tuple[Key, int], Array]) -> None:
        spot = ((place.scope, place.tensor), place.start)
        if spot in drawn:
            return
        flat = np.ones(self.stored[spot[0]].numel(), bool)
        flat[place.places()] = mask
        drawn[spot] = flat
        stored = self.stored[spot[0]]
        stored.mul_(torch().from_numpy(flat).reshape(stored.shape).to(stored.device))


def _local(places: Sequence[Matched], drawn: Mapping[tuple[Key, int], Array]) -> Array:
    return next(one.places() for one in places if ((one.scope, one.tensor), one.start) in drawn)


def _keys(matched: Matched) -> list[Key]:
    return [(one.scope, one.tensor) for one in (matched, *matched.copies)]


def _spots(matched: Matched) -> list[tuple[Key, int]]:
    return [((one.scope, one.tensor), one.start) for one in (matched, *matched.copies)]


def _at(module: Any, path: str) -> Any:
    for step in path.split("."):
        module = getattr(module, step)
    return module.detach()


def _outputs(module: Any, inputs: Sequence[Any]) -> list[Any]:
    leaves = torch().utils._pytree.tree_leaves(module(*inputs))
    return [one.detach().clone() for one in leaves if isinstance(one, torch().Tensor)]


def _near(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and _distance(one, other) <= CLOSE


def _distance(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The largest difference of two lists of outputs, as a part of each output's range."""
    return max((_apart(a, b) for a, b in zip(one, other)), default=0.0)


def _apart(one: Any, other: Any) -> float:
    if one.shape != other.shape:
        return float("inf")
    if not one.numel():
        return 0.0
    reach = max(float(other.double().abs().max()), 1e-9)
    return float((one.double() - other.double()).abs().max()) / reach
