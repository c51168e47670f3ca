"""The order of the channels of a torch module, found in a graph of it and proven on a copy of it.

1. With example inputs the graph is the module's export to ONNX; without, or where it has none, a trace by torch.fx.
2. Stored tensors of the graph are the parameters and buffers of the same names. A class that holds anything else,
   such as a constant that was computed while the graph was made, stays as it is.
3. Where the outputs of the copy change, classes are taken out until they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxsparse import patterns
from onnxsparse.channels.classes import Channels, Member, analyse
from onnxsparse.channels.ordering import Gain, Reader, best_orders
from onnxsparse.channels.permutation import Move, MovedTensor, Permutation
from onnxsparse.engines.torch.permute.export import exported
from onnxsparse.engines.torch.permute.moves import names_of, tensors_of
from onnxsparse.engines.torch.permute.proof import Inputs, Trial, UnprovenError
from onnxsparse.engines.torch.permute.trace import traced
from onnxsparse.errors import ModelError, OptionError, brief
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Weight
from onnxsparse.math.values import Array
from onnxsparse.patterns.nm import NM
from onnxsparse.planning.names import NameFilter, named
from onnxsparse.planning.stored_params import weight_param

Scores = Mapping[str, Any]
Orders = Mapping[int, Array]


def found_for(
    module: Any,
    inputs: Inputs | None,
    pattern: NM,
    *,
    names: NameFilter,
    scores: Scores | None = None,
    effort: str = "quick",
    seed: int = 0,
) -> tuple[Permutation, str]:
    """The best order that is proven, and why there is none where nothing could be traced or proven."""
    facts = {"pattern": f"{pattern.n}:{pattern.m}", "effort": effort, "seed": seed}
    try:
        proto, trial = _graph_and_trial(module, inputs)
    except UnprovenError as error:
        return Permutation({}, facts), str(error)
    model = Model.over(proto)
    channels = _of_module(analyse(model), module)
    readers = _readers(model, module, pattern, names, scores)
    orders, gains = best_orders(channels, readers, effort, seed)
    moves = partial(_moves, channels, names_of(module))
    if not _meets_all(proto, module):
        trial.train_too()
    proven = _proven(orders, lambda some: trial.holds(list(moves(some).values())))
    reason = _reason(orders, proven, trial)
    return Permutation(moves(proven), {**facts, "kept": _kept(gains, orders, proven)}), reason


def _graph_and_trial(module: Any, inputs: Inputs | None) -> tuple[ModelProto, Trial]:
    if inputs is None:
        found = traced(module, None)
        return found.proto, Trial(module, *found.inputs)
    trial = Trial(module, inputs)
    try:
        return exported(module, inputs), trial
    except UnprovenError as error:
        try:
            return traced(module, inputs).proto, trial
        except UnprovenError:
            raise error from None


def _meets_all(proto: ModelProto, module: Any) -> bool:
    """Whether every parameter of the module is in the graph."""
    stored = {one.name for one in proto.graph.initializer}
    names = names_of(module)
    return all(stored & set(names[name]) for name, _ in module.named_parameters())


def _of_module(channels: Channels, module: Any) -> Channels:
    """Without the classes that hold a number of something else than a parameter or buffer."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors_of(module).items()}
    own = [
        one
        for one in channels.classes
        if all(shapes.get(member.name) == tuple(member.tensor.shape) or _alike(member) for member in one.members)
    ]
    return replace(channels, classes=tuple(own))


def _alike(member: Member) -> bool:
    """Whether all numbers are equal, as the scales are that an exporter makes for a norm without any."""
    numbers = member.tensor.read()
    return bool(numbers.size) and bool((numbers == numbers[0]).all())


# -- what is to be pruned


def pattern_of(text: Any) -> NM:
    parsed = patterns.parse(text) if isinstance(text, str) else text
    if not isinstance(parsed, NM):
        raise OptionError(f"pattern {brief(text)}: channels are permuted for a pattern N:M, such as 2:4")
    return parsed


def _readers(model: Model, module: Any, pattern: NM, names: NameFilter, scores: Scores | None) -> list[Reader]:
    other = _other_names(module)
    weights = [weight for weight in model.weights if weight.uses and not weight.refusal and weight.tensor.name in other]
    left = names.choose([named(weight, tuple(other[weight.tensor.name])) for weight in weights])
    chosen = [weight for weight in weights if not left[weight.name]]
    given = _scores_of(scores, module)
    found = []
    for weight in chosen:
        use = weight.uses[0]
        if use.shape4[2] > pattern.m:
            found.append(Reader(weight.tensor, use, pattern.n, pattern.m, partial(_scored, weight, given)))
    return found


def _other_names(module: Any) -> dict[str, list[str]]:
    return {name: [one for one in names if one != name] for name, names in names_of(module).items()}


def _scores_of(scores: Scores | None, module: Any) -> dict[str, Array]:
    """Scores by each name of their parameter."""
    if scores is None:
        return {}
    if not isinstance(scores, Mapping):
        raise OptionError("scores are a mapping from parameters' names to arrays of their shape, none of them negative")
    names, tensors, found = names_of(module), tensors_of(module), {}
    for name, one in scores.items():
        if name not in tensors:
            raise OptionError(f"scores: the module has no parameter called {brief(name)}")
        array = np.asarray(one.detach().float().cpu().numpy() if hasattr(one, "detach") else one)
        if array.shape != tuple(tensors[name].shape) or array.dtype.kind not in "biuf":
            raise OptionError(
                f"scores: those of '{name}' have the shape {list(array.shape)}, it has {list(tensors[name].shape)}"
            )
        if not np.isfinite(array).all() or (array < 0).any():
            raise OptionError(f"scores: those of '{name}' have to be finite numbers of at least 0")
        found.update(dict.fromkeys(names[name], array))
    return found


def _scored(weight: Weight, given: Mapping[str, Array]) -> Array:
    param = weight_param(weight)
    if weight.tensor.name in given:
        return np.asarray(param.use.matrix(np.ascontiguousarray(given[weight.tensor.name]).reshape(-1)), np.float32)
    found: Array = np.abs(param.whole().real()).astype(np.float32)
    if not np.isfinite(found).all():
        raise ModelError(f"parameter '{weight.tensor.name}' holds NaN or infinity, by which nothing can be ranked")
    return found


# -- moves, and the proof of them


def _moves(channels: Channels, names: Mapping[str, Sequence[str]], orders: Orders) -> dict[str, MovedTensor]:
    """What moves in each parameter and buffer, under each of its names."""
    found = {}
    for tensor, moves in channels.rearranged(orders).items():
        made = tuple(Move(axes, order) for axes, order in moves)
        for name in names.get(tensor.name, ()):
            found[name] = MovedTensor(name, tuple(tensor.shape), made)
    return found


def _proven(orders: Orders, holds: Callable[[Orders], bool]) -> dict[int, Array]:
    """The orders of all classes under which the outputs stay what they are: those that fail are halved."""
    if not orders or holds(orders):
        return dict(orders)
    if len(orders) == 1:
        return {}
    numbers = sorted(orders)
    halves = (numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :])
    one, other = (_proven({number: orders[number] for number in half}, holds) for half in halves)
    both = {**one, **other}
    return both if not one or not other or holds(both) else max(one, other, key=len)


def _reason(orders: Orders, proven: Orders, trial: Trial) -> str:
    if not orders or proven:
        return ""
    if not trial.repeats():
        return "it does not give the same outputs twice"
    return "its outputs would not be the same"


def _kept(gains: Mapping[int, Gain], orders: Orders, proven: Orders) -> dict[str, float]:
    """The shares of all scores that the pattern keeps in the weights that are read, before and after."""
    whole = sum(one.whole for one in gains.values()) or 1.0
    before = sum(one.before for one in gains.values())
    after = sum(one.after if number in proven or number not in orders else one.before for number, one in gains.items())
    return {"before": round(before / whole, 6), "after": round(after / whole, 6)}


__all__ = ["found_for", "pattern_of"]
