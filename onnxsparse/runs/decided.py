"""The recipe that a run went by, with every default that was decided on the way filled in."""

from __future__ import annotations

from dataclasses import replace

from onnxsparse.modifiers.pruning import Pruning
from onnxsparse.modifiers.training import OWN, Training
from onnxsparse.passes.plan import Plan
from onnxsparse.recipes import Recipe


def decided(recipe: Recipe, plan: Plan, per_epoch: int, pruned_share: float) -> Recipe:
    """What a recipe came to with a plan; `per_epoch` is the steps of an epoch, or 0 where nobody knows them."""
    known = {
        Training: _decided_training(recipe.only(Training), per_epoch, pruned_share),
        Pruning: _decided_pruning(recipe.only(Pruning), plan),
    }
    return Recipe(tuple(known.get(type(one), one) for one in recipe.modifiers))


def _decided_training(training: Training, per_epoch: int, pruned_share: float) -> Training:
    if training.steps is None and training.epochs is None:
        training = replace(training, steps=training.total(per_epoch))
    rate = training.base_rate(pruned_share)
    warm_up = training.warm_up_at(training.total(per_epoch))
    return replace(training, rate=None if training.optimizer == OWN else rate, warm_up=warm_up)


def _decided_pruning(pruning: Pruning, plan: Plan) -> Pruning:
    rule = plan.rule
    if rule.pattern is None or not rule.pattern.takes_sparsity:
        return pruning
    fixed = any(row.keep is not None for row in plan.planned)
    schedule = pruning.schedule or ("one-shot" if fixed else "cubic")
    return replace(pruning, allocation=rule.allocation.text, score=rule.score.text, schedule=schedule)
