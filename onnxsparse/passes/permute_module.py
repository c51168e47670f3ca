"""The order of the channels of a torch module, found in a graph of it and proven on a copy of it.

1. With example inputs the graph is the module's export to ONNX; without, or where it has none, a trace by torch.fx.
2. Stored tensors of the graph are the parameters and buffers of the same names. A class that holds anything else,
   such as a constant that was computed while the graph was made, stays as it is.
3. Where the outputs of the copy change, classes are taken out until they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxsparse import patterns
from onnxsparse.channel_classes.classes import Channels, Member, analyse
from onnxsparse.channel_classes.ordering import Reader, best_orders
from onnxsparse.channel_classes.permutation import Move, MovedTensor, Permutation
from onnxsparse.engines.torch.distributed import joined, meet
from onnxsparse.engines.torch.permute.export import exported
from onnxsparse.engines.torch.permute.moves import names_of, tensors_of
from onnxsparse.engines.torch.permute.proof import Inputs, Trial, UnprovenError
from onnxsparse.engines.torch.permute.trace import traced
from onnxsparse.errors import OnnxSparseError, OptionError, PlanError, brief, one_line
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Weight
from onnxsparse.math.values import Array, Reading, Values
from onnxsparse.patterns.nm import NM, NOfM
from onnxsparse.planning.given_scores import GivenScores
from onnxsparse.planning.names import NameFilter, named
from onnxsparse.planning.stored_params import WeightParam, weight_param
from onnxsparse.scores import Magnitude

Orders = Mapping[int, Array]
Moves = Mapping[str, MovedTensor]


def found_for(
    module: Any,
    inputs: Inputs | None,
    pattern: NOfM,
    *,
    names: NameFilter | Collection[str],
    scores: Any = None,
    effort: str = "quick",
    seed: int = 0,
) -> tuple[Permutation, str]:
    """The best order that is proven, and why there is none where nothing could be traced or proven.

    `names` are a filter, or the parameters that count. For masks along both axes an order is searched by the one, and
    taken where it is better for both.
    """
    facts = {"pattern": pattern.text, "effort": effort, "seed": seed}
    try:
        proto, trial = _graph_and_trial(module, inputs)
    except UnprovenError as error:
        return Permutation({}, facts), str(error)
    model = Model.over(proto)
    channels = _of_module(analyse(model), module)
    readers = _readers(model, module, pattern, names, scores)
    moves = partial(_moves, channels, names_of(module))
    searched = best_orders(channels, readers, effort, seed)
    orders = _gaining(channels, searched, readers, pattern, moves)
    trial.train_too(at_random=not _meets_all(proto, module))
    proven = _proven(orders, lambda some: trial.holds(list(moves(some).values())))
    if proven and not trial.shows(moves(proven)):
        return Permutation({}, facts), "its outputs are the same whatever its parameters are, which proves nothing"
    found = Permutation(moves(proven), {**facts, "kept": _kept(readers, moves(proven), pattern)})
    return found, _reason(orders, proven, trial)


def given_for(module: Any, inputs: Inputs | None, permutation: Permutation, where: str) -> tuple[Permutation, str]:
    """A given permutation, where the module's outputs stay the same under it; and why that could not be found out."""
    try:
        trial = Trial(module, inputs) if inputs is not None else Trial(module, *traced(module, None).inputs)
    except UnprovenError as error:
        return permutation, str(error)
    if trial.holds(list(permutation.tensors.values())):
        return permutation, ""
    if not trial.repeats():
        return permutation, "the module does not give the same outputs twice"
    raise PlanError(
        f"{where} does not fit this module: its outputs would not be the same, so nothing moved; match= says which "
        "tensor each parameter is"
    )


def decided(decide: Callable[[], tuple[Permutation, str]]) -> tuple[Permutation, str]:
    """What the first of several processes decides, by its numbers, is what all of them do."""
    if joined() == 1:
        return decide()

    def told() -> dict[str, str]:
        try:
            found, reason = decide()
        except OnnxSparseError as error:
            return {"error": str(error)}
        except Exception as error:  # the others would wait for what never comes
            return {"error": f"{type(error).__name__}: {one_line(error)}"}
        return {"permutation": found.to_json(), "reason": reason}

    answer = meet("cpu").told(told)
    if "error" in answer:
        raise OptionError(answer["error"])
    return Permutation.from_json(answer["permutation"], "the permutation of the first process"), answer["reason"]


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


def pattern_of(text: Any) -> NOfM:
    parsed = patterns.parse(text) if isinstance(text, str) else text
    if not isinstance(parsed, NOfM):
        raise OptionError(f"pattern {brief(text)}: channels are permuted for a pattern N:M, such as 2:4")
    return parsed


def _readers(
    model: Model, module: Any, pattern: NOfM, names: NameFilter | Collection[str], scores: Any
) -> list[Reader]:
    others = {own[0]: tuple(own[1:]) for own in names_of(module).values()}
    weights = [one for one in model.weights if one.uses and not one.refusal and one.tensor.name in others]
    if isinstance(names, NameFilter):
        left = names.choose([named(weight, others[weight.tensor.name]) for weight in weights])
        chosen = [one for one in weights if not left[one.name]]
    else:
        chosen = [one for one in weights if {one.tensor.name, *others[one.tensor.name]} & set(names)]
    chosen = [one for one in chosen if one.uses[0].shape4[2] > pattern.m]
    given = None if scores is None else _given_scores(scores, module, weights)
    if given is not None:
        given.demand(chosen)
    return [
        Reader(one.tensor, one.uses[0], pattern.n, pattern.m, partial(_scores, weight_param(one), given))
        for one in chosen
    ]


def _given_scores(scores: Any, module: Any, weights: Sequence[Weight]) -> GivenScores:
    """Scores by the first name of a parameter, as arrays."""
    if isinstance(scores, Mapping):
        first = {name: own[0] for name, own in names_of(module).items()}
        scores = {first.get(name, name): as_array(one) for name, one in scores.items()}
    return GivenScores.of(scores, weights)


def as_array(tensor: Any) -> Any:
    if getattr(tensor, "is_meta", False):
        raise OptionError("scores have no numbers, they are on the device meta")
    plain = tensor.detach().cpu() if hasattr(tensor, "detach") else tensor
    return (
        plain.float().numpy()
        if hasattr(plain, "is_floating_point") and plain.is_floating_point()
        else np.asarray(plain)
    )


def _scores(param: WeightParam, given: GivenScores | None) -> Array:
    if given is not None:
        return param.use.matrix(given.scores(param.weight).reshape(-1))
    found: Array = np.abs(param.whole().real())
    if not np.isfinite(found).all():
        raise OptionError(f"parameter '{param.name}' holds NaN or infinity, by which nothing can be ranked")
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


def _gaining(
    channels: Channels, orders: Orders, readers: Sequence[Reader], pattern: NOfM, moves: Callable[[Orders], Moves]
) -> Orders:
    """The orders of those classes of whose readers, all of them together, the pattern keeps more.

    The search looks at rows with equal groups alone, and at one axis: where a reader loses, or where the pattern is
    along both, its classes are looked at one by one.
    """
    whole = moves(orders)
    left = {one.tensor for one in readers if not isinstance(pattern, NM) or _gain(one, whole, pattern) < 0}
    found = {}
    for one in channels.classes if orders else ():
        own = [reader for reader in readers if any(member.tensor is reader.tensor for member in one.members)]
        if one.number in orders:
            alone = moves({one.number: orders[one.number]}) if any(reader.tensor in left for reader in own) else None
            if alone is None or sum(_gain(reader, alone, pattern) for reader in own) > 0:
                found[one.number] = orders[one.number]
    return found


def _gain(reader: Reader, moves: Moves, pattern: NOfM) -> float:
    """What the pattern keeps more of the scores of a reader."""
    if reader.tensor.name not in moves:
        return 0.0
    scores = reader.scores()
    stored = reader.use.restore(scores).reshape(reader.tensor.shape)
    moved = reader.use.matrix(moves[reader.tensor.name](stored).reshape(-1))
    return _kept_of(moved, pattern) - _kept_of(scores, pattern)


def _kept(readers: Sequence[Reader], moves: Moves, pattern: NOfM) -> dict[str, float]:
    """The shares of the scores that the pattern keeps in all weights that are read, before and after."""
    whole = before = gained = 0.0
    for reader in readers:
        scores = reader.scores()
        whole += float(scores.sum(dtype=np.float64))
        before += _kept_of(scores, pattern)
        gained += _gain(reader, moves, pattern)
    return {"before": round(before / (whole or 1), 6), "after": round((before + gained) / (whole or 1), 6)}


def _kept_of(scores: Array, pattern: NOfM) -> float:
    drop = pattern.drop_count(scores.shape, None)
    mask = pattern.select(Values(scores, Reading(scores.dtype.name)), Magnitude(), drop)
    return float(scores[mask].sum(dtype=np.float64))


__all__ = ["found_for", "pattern_of"]
