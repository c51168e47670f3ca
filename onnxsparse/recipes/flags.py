"""From options of `finetune` to a recipe: `options.FinetuneOptions` says which field of which modifier each is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from onnxsparse import targets
from onnxsparse.errors import OptionError
from onnxsparse.options import FinetuneOptions, options_of
from onnxsparse.planning.rule import listed, of_level
from onnxsparse.recipes.modifiers.distillation import DistillationModifier as Distillation
from onnxsparse.recipes.modifiers.modifier import Modifier, Scheduled
from onnxsparse.recipes.modifiers.parameters import TrainableParamsModifier as TrainableParams
from onnxsparse.recipes.modifiers.pruning import CALIBRATED, Pruning
from onnxsparse.recipes.modifiers.quantization import TrainQuantized
from onnxsparse.recipes.modifiers.rates import LearningRateFunctionModifier as LearningRateFunction
from onnxsparse.recipes.modifiers.rates import LearningRateModifier as LearningRate
from onnxsparse.recipes.modifiers.rates import SetLearningRateModifier as SetLearningRate
from onnxsparse.recipes.modifiers.rates import SetWeightDecayModifier as SetWeightDecay
from onnxsparse.recipes.modifiers.training import BUILT_IN, OWN, TASKS, KeepBest, Objective, Training
from onnxsparse.recipes.recipe import Recipe

DEFAULTS: tuple[type[Modifier], ...] = (Training, Objective, Pruning, KeepBest)
KINDS: tuple[type[Modifier], ...] = (*DEFAULTS, TrainQuantized)
"""What flags make, the last only where they ask for it."""


def _fields() -> Iterator[tuple[str, tuple[type[Modifier], str]]]:
    kinds = {kind.name: kind for kind in KINDS}
    for one in options_of(FinetuneOptions).values():
        kind, _, name = one.recipe.partition(".")
        if kind:
            yield one.name, (kinds[kind], name)


FLAGS = dict(_fields())
"""The modifier and its field that an option of `finetune` becomes."""
RATES = (SetLearningRate, LearningRate, LearningRateFunction)
ALONE = (*RATES, Distillation)
"""Beside these labels count alone: a rate fits the loss it was chosen for, and a modifier says how much it teaches."""
WAYS = {"--target": ": `scheme: tensorrt` in its QuantizationModifier makes int8 as ampere takes it"}
"""What of the recipe stands for an option that means nothing beside it, where that is not plain."""
PACE = ("lr", "lr_schedule", "warm_up")
BY_GROUPS = (SetLearningRate, LearningRateFunction, SetWeightDecay)


def asked_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of all arguments of a call those that a recipe is made of."""
    return {name: given[name] for name in (*FLAGS, "level") if name in given}


def recipe_of(flags: Mapping[str, Any], recipe: Recipe | None = None) -> Recipe:
    """The recipe that flags ask for, or the one that is given, with the default of whatever it does not mention."""
    given = {name: value for name, value in flags.items() if value is not None and value != [] and value != ()}
    recipe = None if recipe is None else _of_one_group(recipe.driven())
    if given.get("learn_scales") and "quantize" not in given:
        raise OptionError("--learn-scales is of what is rounded; pass --quantize int8 too")
    if not given.get("learn_scales"):
        given.pop("learn_scales", None)
    if "level" in given:  # a level of a device is a sparsity of the whole network, by that device's rules
        _refuse(["level"] if recipe is not None else [])
        device = targets.parse(given["target"]) if "target" in given else None
        given["sparsity"] = of_level(given.pop("level"), given.get("sparsity"), device)
    if recipe is not None and any(isinstance(one, Scheduled) for one in recipe.modifiers):
        return _with_training_settings(given, recipe)
    if recipe is not None:
        _refuse(given)
        return recipe.whole(DEFAULTS)
    options: dict[type[Modifier], dict[str, Any]] = {kind: {} for kind in DEFAULTS}
    options[Pruning]["init"] = CALIBRATED
    for name, value in given.items():
        kind, option = FLAGS[name]
        options.setdefault(kind, {})[option] = _plain(name, value)
    return Recipe(tuple(_made(kind, said) for kind, said in options.items()))


def _of_one_group(recipe: Recipe) -> Recipe:
    """All that trains is one group, number 0: what speaks of others alone is left out, where the recipe is lenient."""
    if recipe.strict:
        return recipe
    others = [one for one in recipe.modifiers if isinstance(one, BY_GROUPS) and 0 not in (one.param_groups or (0,))]
    notes = [f"{one.called}: it is left out: all parameters of a run are in group 0" for one in others]
    kept = recipe.holding(one for one in recipe.modifiers if one not in others) if others else recipe
    return replace(kept, notes=(*recipe.notes, *notes))


def _made(kind: type[Modifier], said: Mapping[str, Any]) -> Modifier:
    """A modifier of what options say; what is wrong with one of them is told by the name of the option."""
    try:
        return kind(**said)
    except OptionError as error:
        raise OptionError(_by_option(kind, said, error.as_flags)) from None
    except (TypeError, AttributeError, ValueError) as error:
        wrong = [name for name in said if _culprit(kind, name, said[name])]
        if not wrong:
            raise
        told = f"{_flag(kind, wrong[0])} means nothing as {said[wrong[0]]!r:.40}; see its help"
        raise OptionError(told) from error


def _by_option(kind: type[Modifier], said: Mapping[str, Any], text: str) -> str:
    """The text of an error with the option that it is about, where it names none."""
    if "--" in text:
        return text
    for name in said:
        for word in (name, name.replace("_", "-")):
            if text.startswith(f"{word} is "):
                return _flag(kind, name) + text[len(word) :]
    wrong = [name for name in said if _culprit(kind, name, said[name])]
    return f"{_flag(kind, wrong[0])}: {text}" if len(wrong) == 1 else text


def _culprit(kind: type[Modifier], name: str, value: Any) -> bool:
    """Whether an option is wrong by itself."""
    try:
        kind(**{name: value})
    except (OptionError, TypeError, AttributeError, ValueError):
        return True
    return False


def _flag(kind: type[Modifier], name: str) -> str:
    option = next((option for option, place in FLAGS.items() if place == (kind, name)), name)
    known = options_of(FinetuneOptions).get(option)
    return f"{option}=" if known is not None and not known.flags else f"--{option.replace('_', '-')}"


def takes_training_flags(recipe: Recipe) -> bool:
    """Whether flags say what is not the recipe's to say: optimizer, batch and the like."""
    known = [type(one) for one in recipe.modifiers]
    return Training not in known and any(issubclass(one, Scheduled) for one in known)


def _refuse(names: Iterable[str]) -> None:
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in names)
    if flags:
        raise OptionError(f"the recipe says that already; leave {flags} out, or change the recipe{WAYS.get(flags, '')}")


def _with_training_settings(given: Mapping[str, Any], recipe: Recipe) -> Recipe:
    """Modifiers that act by epochs in the frame that flags make: optimizer, batch and loss are not theirs to say."""
    if any(isinstance(one, Pruning) for one in recipe.modifiers):
        raise OptionError("!pruning goes by shares of the run, the other modifiers by epochs; leave one kind out")
    own = {type(one) for one in recipe.modifiers} | {Pruning}
    last = recipe.max_epochs > 0
    idle = {*(("steps",) if last else ()), *(PACE if _paces(recipe) else ())}
    _refuse(name for name in given if FLAGS[name][0] in own or name in idle)
    if "epochs" in given:
        length: Any = _made(Training, {"epochs": given["epochs"]})
        recipe = recipe.within(length.epochs)
    options: dict[type[Modifier], dict[str, Any]] = {kind: {} for kind in (Training, Objective)}
    for name, value in given.items():
        kind, option = FLAGS[name]
        options.setdefault(kind, {})[option] = _plain(name, value)
    options[Training] = {**_settings_of_rates(recipe), **options[Training]}
    loss = str(options[Objective].get("loss")).partition(":")[0]
    if loss in TASKS and any(isinstance(one, ALONE) for one in recipe.modifiers):
        options[Objective].setdefault("hardness", 0.0)
    new = [_made(kind, said) for kind, said in options.items() if kind not in own]
    framed = recipe.holding((*new, *(_lasting(one, recipe) for one in recipe.modifiers)))
    _demand_driver(framed)
    return framed


def _paces(recipe: Recipe) -> bool:
    """Whether the recipe says every rate from the first step on, so that nobody else's is ever used."""
    first = [one for one in recipe.modifiers if isinstance(one, RATES) and one.start_epoch <= 0]
    return any(not isinstance(one, LearningRate) or one.init_lr is not None for one in first)


def _demand_driver(recipe: Recipe) -> None:
    """An optimizer that does not take what modifiers say is refused before anything runs."""
    optimizer = recipe.only(Training).optimizer
    for one in recipe.modifiers:
        if optimizer == OWN and isinstance(one, (*RATES, SetWeightDecay)):
            raise OptionError(f"!{one.name} sets what an optimizer of your own decides; leave one of the two out")
        if optimizer == BUILT_IN and isinstance(one, (SetWeightDecay, TrainableParams)):
            raise OptionError(f"!{one.name} needs another optimizer than {BUILT_IN}, such as adamw")


def _settings_of_rates(recipe: Recipe) -> dict[str, Any]:
    """How long it is; and where modifiers say absolute rates, an optimizer that takes them, and no schedule beside."""
    epochs = {"epochs": float(recipe.max_epochs)} if recipe.max_epochs > 0 else {}
    if not any(isinstance(one, RATES) for one in recipe.modifiers):
        return epochs
    return {**epochs, "optimizer": "sgd", "rate_schedule": "constant", "warm_up": 0.0}


def _lasting(modifier: Modifier, recipe: Recipe) -> Modifier:
    """A frame in the recipe that does not say how long it is lasts as long as the others."""
    if not isinstance(modifier, Training) or modifier.epochs is not None or modifier.steps is not None:
        return modifier
    return replace(modifier, epochs=float(recipe.max_epochs)) if recipe.max_epochs > 0 else modifier


def _plain(name: str, value: Any) -> Any:
    return tuple(listed(value)) if name in ("include", "exclude", "allow") else value
