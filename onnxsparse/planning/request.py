"""From the options of a command to the plan they ask for: by a rule, a plan file, the user's own masks, or the zeros
that a model has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from onnxsparse import patterns
from onnxsparse.data.array_files import load_arrays
from onnxsparse.errors import LeftOutError, OptionError, PlanError, brief
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Weight
from onnxsparse.math.values import Array
from onnxsparse.options import Masks, Path, SparsityOptions
from onnxsparse.patterns import Pattern
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.planning.plan import Plan, PlanRow, does_not_fit, make_plan, ties_of, with_copies
from onnxsparse.planning.plan_file import plan_from_file, read_plan, with_masks
from onnxsparse.planning.recorded import readable
from onnxsparse.planning.rule import Rule
from onnxsparse.planning.stored_params import count_zeros, weight_param
from onnxsparse.report.rows import NOTHING


def planned(
    model: Model, plan: Path | None, masks: Masks | None, options: SparsityOptions, hold: bool = False
) -> tuple[Plan, list[str]]:
    """The plan that the options, a plan file or masks ask for, and remarks on it.

    With `hold` it may be that nothing asks for zeros: then those that the model has are kept.
    """
    if plan is not None:
        _refuse_beside("--plan", {**vars(options), "masks": masks}, ("allow", "tie_equal"))
        made, said = _from_file(model, path_of(plan, "plan"))
        return (_tied(made) if made.rule.ties or options.tie_equal else made), said
    if masks is not None:
        _refuse_beside("--masks", vars(options), ("pattern", "target", "sparsity", "include", "exclude", "allow"))
        return _from_masks(model, masks, Rule.of(options)), []
    if hold and not any(vars(options).values()):
        made = held(model)
        return made, [_said_of(made)]
    return make_plan(model, Rule.of(options).demand()), []


def _refuse_beside(source: str, options: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """What a plan or masks decide cannot be decided again beside them."""
    given = [f"--{name}" for name, value in options.items() if value not in (None, [], ()) and name not in allowed]
    if given:
        raise OptionError(f"{source} decides that already; leave {', '.join(given)} out")


def _from_file(model: Model, path: str) -> tuple[Plan, list[str]]:
    file = read_plan(path)
    try:
        rule = Rule.make(target=file.target or None, score=file.score)
    except OptionError as error:
        raise PlanError(f"{path}: {error}") from error
    return plan_from_file(file, model, replace(rule, sparsity=file.sparsity, ties=file.ties))


def _tied(made: Plan) -> Plan:
    """The same plan, with the masks of copies those of what they are copies of."""
    made = replace(made, rule=replace(made.rule, ties=True))
    ties = ties_of(made)
    rows = with_copies(made.rows, [row for row in made.rows if row.weight not in ties], ties)
    return replace(made, rows=tuple(rows))


def _from_masks(model: Model, masks: Masks, rule: Rule) -> Plan:
    arrays: Any = dict(masks) if isinstance(masks, Mapping) else load_arrays(path_of(masks, "masks"))
    called = "masks" if isinstance(masks, Mapping) else os.fspath(masks)
    if not isinstance(arrays, Mapping):
        raise PlanError(f"{called} is a single array; masks come as an .npz with one array for each tensor name")
    plan = make_plan(model, replace(rule, pattern=None, sparsity=None))
    return with_masks(Plan(plan.rows, rule), arrays, called)


SOME = 0.01
"""The share of a weight from which on its zeros are no accident."""
NO_ZEROS = "it has no zeros to hold"


def held(model: Model) -> Plan:
    """The plan that keeps the zeros of every weight, by the pattern that is recorded of it where that holds."""
    known = readable(model)
    pruned, target = (known.pruned, known.target) if known is not None else ({}, "")
    rows = tuple(_held(weight, *pruned.get(weight.name, ("", 0))) for weight in model.weights)
    return Plan(rows, Rule.make(target=target or None), holds=True)


def _held(weight: Weight, recorded: str, drop: int) -> PlanRow:
    zeros = 0 if weight.refusal or not weight.uses else count_zeros(weight) or 0
    if not zeros or (not recorded and zeros < SOME * weight.tensor.size):
        return PlanRow(weight, reason=weight.refusal or NO_ZEROS, chosen=True)
    return held_row(weight, weight_param(weight).numbers().reshape(-1) != 0, recorded, drop)


def held_row(weight: Weight, keep: Array, recorded: str = "", drop: int = 0) -> PlanRow:
    """The row that keeps the zeros of one weight, by the pattern that is recorded of it where that holds."""
    with suppress(OptionError):  # whoever recorded it may have had more plug-ins
        pattern = patterns.parse(recorded or "unstructured")
        if recorded and not does_not_fit(weight, pattern) and not _breaks(weight, pattern, keep, drop):
            return PlanRow(weight, pattern, drop, keep=keep)
    return PlanRow(weight, Unstructured(), int(keep.size - np.count_nonzero(keep)), keep=keep)


SPARSE = 0.2
"""The share of all weights from which on a model is sparse, whether anything records it or not."""


def sparse_weights(model: Model) -> list[str]:
    """The weights whose zeros a training must not lose where nobody speaks of them: those of a model that records
    some, or that is sparse to the eye.
    """
    known, rows = readable(model), held(model).planned
    size = sum(one.tensor.size for one in model.weights)
    zeros = sum(count_zeros(row.weight) or 0 for row in rows)
    return [row.name for row in rows] if (known and known.pruned) or zeros > SPARSE * size else []


def _said_of(made: Plan) -> str:
    if not made.planned:
        return "no zeros are asked for, and no weight has some to hold: the model trains dense"
    count = len(made.planned)
    return f"no zeros are asked for: those that {count} weight{'s have' if count > 1 else ' has'} are held"


def _breaks(weight: Weight, pattern: Pattern, keep: Array, drop: int) -> bool:
    return any(pattern.violations(use.matrix(~keep), drop) for use in weight.uses)


def demand_whole(made: Plan, strict: bool, some: bool = True) -> None:
    """Under --strict nothing may stay dense that the user did not exclude, and there has to be something to prune.

    Without `some` it may be nothing: a recipe that acts by epochs says itself what it prunes.
    """
    if strict and some and not made.planned:
        which = f", '{made.rows[0].name}' first ({made.rows[0].reason})" if made.rows else ""
        why = f"all {len(made.rows)} weights stay dense{which}" if made.rows else "the model has no weights"
        raise LeftOutError(f"--strict: {NOTHING}: {why}; nothing was written")
    if strict and made.left_out:
        first = made.left_out[0]
        reason = first.reason or f"{first.ragged} numbers outside whole groups"
        several = len(made.left_out) > 1
        count = f"{len(made.left_out)} weights stay" if several else "1 weight stays"
        which = "first " if several else ""
        raise LeftOutError(f"--strict: {count} dense, {which}'{first.name}' ({reason}); nothing was written")


def path_of(value: object, name: str) -> str:
    """A path the user gave, as text."""
    if not isinstance(value, (str, os.PathLike)):
        raise OptionError(f"{name} is a path, not {value!r:.60}")
    path = str(os.fspath(value))
    if "\0" in path:
        raise OptionError(f"{name} is a path, and no path holds a zero byte, as {brief(path)} does")
    return path
