"""The plan of a recipe that prunes by epochs: its modifiers bound to the parameters of a stored model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from onnxsparse.acts.act import FinalMask, TimedAct
from onnxsparse.acts.params import REGULAR, Param, is_renamed
from onnxsparse.errors import OptionError
from onnxsparse.graph.biases_and_scales import vectors
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import FLOAT_KINDS
from onnxsparse.graph.torch_match import recorded_match
from onnxsparse.graph.weights import Weight
from onnxsparse.math.values import Array
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.planning.defaults import words_of
from onnxsparse.planning.names import named
from onnxsparse.planning.plan import Plan, PlanRow, does_not_fit
from onnxsparse.planning.recorded import readable
from onnxsparse.planning.request import held_row, sparse_weights
from onnxsparse.planning.rule import Rule
from onnxsparse.planning.stored_params import as_float32, weight_param
from onnxsparse.recipes.modifiers.constant import ConstantPruningModifier
from onnxsparse.recipes.modifiers.masked import Masked, names_in
from onnxsparse.recipes.modifiers.modifier import Scheduled

# -- The plan of a recipe that prunes by epochs: the acts of its modifiers, bound once, and the final mask of each
# weight.
#
# 1. The last modifier that prunes a weight says what it comes to, unless an earlier one holds more; one that only holds
#    zeros says it where no other does.
# 2. A weight that no modifier names stays dense, as the recipe says. But where none prunes or holds anything, a sparse
#    model keeps the zeros that it has: nobody tunes one to lose them.
# 3. Counts that depend on the training, and zeros that were held, are those of the result.


UNNAMED = "no modifier of the recipe prunes it"
NO_ZEROS = "the recipe holds its zeros, of which it has none"
LET_GO = "its masks were let go at the end_epoch of the recipe"


@dataclass(frozen=True, eq=False)
class ByEpochs:
    """What the modifiers of a recipe mean in a model."""

    params: Sequence[Param]
    acts: Sequence[TimedAct]
    """One for each modifier, in their order: those that the run has."""
    goals: Mapping[str, FinalMask]
    plan: Plan

    @property
    def masked(self) -> list[str]:
        """The tags of all that has to have a mask, weights or not."""
        return list(self.goals)

    def done(self, arrays: Mapping[str, Array]) -> Plan:
        """The plan as it came out."""
        return replace(self.plan, rows=tuple(self._row(row, arrays) for row in self.plan.rows))

    def _row(self, row: PlanRow, arrays: Mapping[str, Array]) -> PlanRow:
        tag = row.weight.tag
        if row.pattern is None or tag not in arrays:
            return row
        goal = self.goals[tag]
        if not goal.stays:
            return PlanRow(row.weight, reason=LET_GO, chosen=True)
        if goal.keep is not None:
            by = "" if isinstance(row.pattern, Unstructured) else row.pattern.text
            return held_row(row.weight, (arrays[tag] != 0).reshape(-1), by, row.drop)
        return replace(row, drop=_zero_units(row, arrays[tag])) if goal.shared else row


def by_epochs(model: Model, modifiers: Iterable[Scheduled]) -> ByEpochs:
    """Bind every modifier to the model; what cannot be is refused."""
    params = params_of(model)
    goals: dict[str, FinalMask] = {}
    left: dict[str, str] = {}
    acts = []
    for modifier in modifiers:
        act = modifier.act()
        act.bind_graph(model, params)
        act.bind(params)
        acts.append(act)
        left.update(act.left_dense())
        for tag, goal in act.final_masks().items():
            goals[tag] = _beside(goals[tag], goal) if tag in goals else goal
    known = readable(model)
    pruned = known.pruned if known is not None else {}
    removed = {tag for act in acts for tag in act.removed()}
    rows = tuple(
        _planned(weight, goals.get(weight.tag), left.get(weight.tag, ""), *pruned.get(weight.name, ("", 0)))
        for weight in model.weights
        if weight.tag not in removed
    )
    for act in acts:
        act.demand_plan(rows)
    holds = _holds(rows, goals, pruned)
    return ByEpochs(params, acts, goals, Plan(rows, _rule(known.target if known and holds else ""), holds))


def _rule(target: str) -> Rule:
    try:
        return Rule.make(target=target or None)
    except OptionError:  # of a plug-in that is not installed
        return Rule.make()


def _holds(rows: Sequence[PlanRow], goals: Mapping[str, FinalMask], pruned: Mapping[str, tuple[str, int]]) -> bool:
    """Whether nothing but the zeros of the file is in the plan, and all that is recorded of them."""
    by = {row.name: (row.pattern.text, row.drop) for row in rows if row.pattern is not None}
    return all(goal.keep is not None for goal in goals.values()) and all(
        by.get(name) == one for name, one in pruned.items()
    )


def sparse_but_free(model: Model, found: ByEpochs) -> list[str]:
    """The weights that have zeros, of a sparse model that is trained by modifiers none of which speaks of zeros."""
    known = {param.name for param in found.params if not param.refusal}
    return [] if found.goals else [name for name in sparse_weights(model) if name in known]


def passed_over(params: Sequence[Param], bound: Iterable[tuple[Scheduled, TimedAct]]) -> str:
    """What to say where patterns pass weights over because an exporter renamed these; nothing where none does."""
    naming = [(one, act) for one, act in bound if isinstance(one, (Masked, ConstantPruningModifier))]
    if not any(name.startswith(REGULAR) for one, _ in naming for name in names_in(one)):
        return ""
    reached = {tag for _, act in naming for tag in (*(one.tag for one in act.masked()), *act.left_dense())}
    weights = [param for param in params if param.prunable and not param.refusal]
    lost = [one for one in weights if one.tag not in reached]
    renamed = [one for one in lost if is_renamed(one)]
    if not reached or not renamed:
        return ""
    return (
        f"{len(lost)} of {len(weights)} prunable weights are reached by no modifier (first {renamed[0].name}): "
        "exporters rename them; record_match keeps the names of torch in a file, and layers may be named"
    )


def _beside(earlier: FinalMask, later: FinalMask) -> FinalMask:
    """What two come to: zeros of both are there, so a count is known when the run is over."""
    if later.keep is not None or earlier.keep is not None:
        return later if later.keep is None else earlier
    if not (earlier.stays and later.stays):
        return earlier if earlier.stays else later
    more = earlier if earlier.pattern == later.pattern and earlier.drop > later.drop else later
    return replace(more, shared=True)


def _planned(weight: Weight, goal: FinalMask | None, left: str, recorded: str, drop: int) -> PlanRow:
    if goal is None and left:
        return PlanRow(weight, reason=left)
    if goal is None:
        return PlanRow(weight, reason=weight.refusal or UNNAMED, chosen=not weight.refusal)
    if goal.keep is not None and goal.drop == 0:
        return PlanRow(weight, reason=NO_ZEROS, chosen=True)
    if goal.keep is not None:
        return held_row(weight, goal.keep, recorded, drop)
    misfit = does_not_fit(weight, goal.pattern)
    if misfit is not None:
        raise OptionError(f"the recipe prunes {weight.name} by {goal.pattern.text}: {misfit.text}")
    return PlanRow(weight, goal.pattern, goal.drop, keep=goal.keep)


def _zero_units(row: PlanRow, array: Array) -> int:
    """How many units of its pattern are zero in a weight."""
    assert row.pattern is not None
    if not row.pattern.takes_sparsity:
        return row.drop
    zero = row.use.matrix(array.reshape(-1)) == 0
    units = row.pattern.units(zero.shape)
    return units - row.pattern.violations(zero, units).count


# -- The parameters of an ONNX model, with every name they answer to.
#
# 1. A parameter is a stored float tensor that can train: a weight, a bias, the scale of a normalization. Running
#    statistics and other constants are none.
# 2. It answers to its own name, to the torch name that the model's metadata records, and, as a weight, to the names of
#    the layers that read it.
# 3. Weights of recurrent layers are no `__ALL_PRUNABLE__`, and neither are fixed filterbanks.


RECURRENT = ("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM")
FIXED = "basis"


def params_of(model: Model) -> list[Param]:
    """Every parameter, in the order of the file; weights that cannot train say why."""
    torch = _torch_names(model)
    weights = {weight.tensor: weight for weight in model.weights}
    small = {tensor for tensor in vectors(model) if tensor not in weights and tensor.shape}
    found = []
    for tensor, home in model.flow.stores.homes.items():
        more = torch.get(tensor.name, ())
        if tensor in weights:
            found.append(_weight(weights[tensor], more))
        elif tensor in small:
            numbers = partial(as_float32, tensor)
            found.append(Param(home.tag, tensor.name, tuple(tensor.shape), numbers=numbers, names=more))
    return found


def _refusal(weight: Weight) -> str:
    if weight.refusal or not weight.uses:
        return weight.refusal or "nothing reads it as a weight"
    if weight.tensor.kind not in FLOAT_KINDS:
        return f"it is stored as {weight.tensor.kind}"
    if weight.twins:
        return "another tensor has the same bytes"
    masked = any(use.masks for use in weight.uses)
    return "a mask is applied to it in the graph already; run `onnxsparse fold` first" if masked else ""


def _weight(weight: Weight, more: tuple[str, ...]) -> Param:
    tensor, refusal = weight.tensor, _refusal(weight)
    tag, name, names = weight.tag, weight.name, (tensor.name, *more)
    answers = named(weight, names)
    if refusal:
        known = replace(answers, refused=True)
        return Param(tag, name, tuple(tensor.shape), names=names, refusal=refusal, named=known)
    own = weight_param(weight)
    prunable = FIXED not in words_of(own) and not set(answers.operators) & set(RECURRENT)
    return Param(
        tag, name, own.shape, own.matrix, own.restore, own.numbers, names, (*answers.nodes, *answers.layers), prunable,
        named=answers,
    )  # fmt: skip


def _torch_names(model: Model) -> Mapping[str, tuple[str, ...]]:
    """By tensor, the names that a recorded match has for it; parts of a tensor do not name the whole."""
    match = recorded_match(model)
    found: dict[str, list[str]] = {}
    for name, one in match.matched.items() if match is not None else ():
        for place in (one, *one.copies):
            found.setdefault(place.tensor, []).append(name)
    return {tensor: tuple(names) for tensor, names in found.items() if len(names) == 1}
