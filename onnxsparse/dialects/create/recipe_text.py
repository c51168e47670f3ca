"""The recipe that a few words ask for: its text, with variables, as `Recipe.load` and SparseML read it.

    asked = Wanted("magnitude", quantization=True, variables=RecipeVariables(target="vnni"))
    print(text_of(asked))

1. Of `num_epochs` the last 5 (2 of fewer than 15, at most half) are for quantization. In the first half of the others
   sparsity rises, in the second half the weights settle. AC/DC has phases of whole epochs.
2. N:M is there at once, and then trained: there is no level between none and 1 - N/M. Movement pruning gathers its
   scores first.
3. M-FAC, and OBS without a sampler, wait between two updates until there are gradients: about a fifth of the time in
   which sparsity rises, or as many steps as they store gradients.
4. What a variable says is referred to by `eval(...)`, so that a recipe is changed in one place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

import yaml

from onnxsparse.acts.params import ALL_PRUNABLE
from onnxsparse.dialects.create.schemas import MASKS, TENSORRT, RecipeVariables
from onnxsparse.errors import OptionError, brief, nearest
from onnxsparse.recipes.modifiers.masked import BLOCK4, GROUPS, NEAR

CONSTANT, MAGNITUDE, NOTHING = "constant", "magnitude", ""
WORDS = {
    "true": MAGNITUDE, "false": NOTHING, MAGNITUDE: MAGNITUDE, "acdc": "acdc", "mfac": "mfac", "movement": "movement",
    "obs": "obs", CONSTANT: CONSTANT, "transfer": CONSTANT, "sparse-transfer": CONSTANT,
}  # fmt: skip
"""What each word of `pruning` means."""
RATES = ("linear", "cosine", "cyclic_linear")
TAGS = {"acdc": "ACDC", "mfac": "MFAC", "movement": "Movement", "obs": "OBS"}
GRADIENTS = {"mfac": (64, 10000), "obs": (1024, 50)}
"""How many gradients a method stores, and the size of its blocks of the Fisher matrix."""
GROUP = 4
"""What vnni and tensorrt take at once along the inputs of a layer."""
FIRST, UPDATES, ROUNDS, LONG = 0.05, 20, 5, 15.0
"""The first sparsity, how often it rises, how often by gradients, and the epochs from which quantization gets five."""

Modifier = tuple[str, Mapping[str, Any]]
Levels = Mapping[float, Sequence[str]]
Params = Union[str, Sequence[str], Levels]


@dataclass(frozen=True)
class Wanted:
    """What a recipe is to do. `params` are the weights that are pruned: a word for all, names, or names by level."""

    method: str = MAGNITUDE
    quantization: bool = True
    lr: str = "linear"
    distillation: bool = False
    variables: RecipeVariables = field(default_factory=RecipeVariables)
    params: Params = ALL_PRUNABLE
    steps_per_epoch: float | None = None
    sampled: bool = False
    """Whether gradients of samples can be had at any time."""
    notes: Sequence[str] = ()
    """Comments at the head of the text."""

    def __post_init__(self) -> None:
        if self.lr not in RATES:
            hint = nearest(str(self.lr), RATES) or f" (known: {', '.join(RATES)})"
            raise OptionError(f"lr {brief(self.lr)} is no schedule of the learning rate{hint}")
        if not self.prunes:
            return
        _ = self.mask_type, self.is_global  # what contradicts itself is refused here
        asked = self.variables.sparsity if "sparsity" in self.variables.fields_set else self.level
        if self.level is not None and asked is not None and abs(asked - self.level) > NEAR:
            text = f"sparsity {asked:g} contradicts {self.mask_type}, which is {self.level:g}: leave one of them out"
            raise OptionError(f"recipe_variables: {text}")

    @property
    def prunes(self) -> bool:
        """Whether it makes zeros."""
        return self.method not in (CONSTANT, NOTHING)

    @property
    def mask_type(self) -> str | tuple[int, ...]:
        """By default that of the target."""
        said, target = self.variables.mask_type, self.variables.target
        demanded = mask_of(target)
        if demanded is None or "mask_type" not in self.variables.fields_set:
            return demanded or said
        if said != demanded and not (said == TENSORRT and demanded == MASKS[TENSORRT]):
            text = f"target {target} demands mask_type {demanded}, not {said}: leave one of them out"
            raise OptionError(f"recipe_variables: {text}")
        return said

    @property
    def level(self) -> float | None:
        """The sparsity that N:M is; None of any other mask."""
        text = MASKS[TENSORRT] if self.mask_type == TENSORRT else self.mask_type
        found = GROUPS.fullmatch(text) if isinstance(text, str) else None
        return None if found is None else round(1 - int(found[1]) / int(found[2]), 6)

    @property
    def is_global(self) -> bool:
        """Whether one threshold decides for all layers."""
        asked, given = self.variables.global_sparsity, "global_sparsity" in self.variables.fields_set
        why = "movement pruning goes layer by layer" if self.method == "movement" else ""
        why = why or (f"{self.mask_type} is the same in every layer" if self.level is not None else "")
        why = why or ("each layer has a level of its own" if isinstance(self.params, Mapping) else "")
        if why and asked and given and self.prunes:
            raise OptionError(f"recipe_variables: global_sparsity: {why}; leave it out")
        return asked and not why


def mask_of(target: str | None) -> str | None:
    """The mask type that a target demands."""
    return None if target is None else MASKS[target.partition(":")[0]]


def method_of(pruning: Any, quantization: bool) -> str:
    """What `pruning` means; without pruning what is quantized keeps the zeros that it has."""
    word = str(pruning).lower().replace("/", "") if isinstance(pruning, (bool, str)) else pruning
    if word in (None, ""):
        return NOTHING
    if not isinstance(word, str) or word not in WORDS:
        hint = nearest(word, WORDS) if isinstance(word, str) else ""
        raise OptionError(f"pruning {brief(pruning)} is not known{hint or ' (known: ' + ', '.join(WORDS) + ')'}")
    return CONSTANT if word == "false" and quantization else WORDS[word]


def truth(value: Any, name: str) -> bool:
    """A switch, or the word for one."""
    word = value.lower() if isinstance(value, str) else value
    found = {"true": True, "false": False}.get(word) if isinstance(word, str) else word
    if not isinstance(found, bool):
        raise OptionError(f"{name} is True or False, not {brief(value)}")
    return found


def text_of(wanted: Wanted) -> str:
    """The recipe, which says in its variables what it was asked for."""
    times = _Times.of(wanted)
    variables = _variables(wanted, times)
    groups: dict[str, list[Modifier]] = {"training_modifiers": _training()}
    if wanted.prunes:
        groups["pruning_modifiers"] = [_pruning(wanted)]
    elif wanted.method == CONSTANT:
        groups["pruning_modifiers"] = [("ConstantPruning", {"start_epoch": 0.0, "params": ALL_PRUNABLE})]
    if wanted.quantization:
        groups["quantization_modifiers"] = [_quantization(wanted)]
    if wanted.distillation:
        groups["distillation_modifiers"] = [_distillation()]
    parts = ["".join(f"# {line}\n" for line in wanted.notes), _dumped(variables)]
    parts += [f"{name}:\n" + "\n".join(map(_entry, modifiers)) for name, modifiers in groups.items()]
    return "\n".join(part for part in parts if part)


@dataclass(frozen=True)
class _Times:
    """How the epochs are divided, when the first update comes and how far updates lie apart."""

    rounding: float
    active: float
    settling: float
    first: float
    every: float
    gradients: int

    @classmethod
    def of(cls, wanted: Wanted) -> _Times:
        epochs = wanted.variables.num_epochs
        rounding = (5.0 if epochs >= LONG else min(2.0, epochs / 2)) if wanted.quantization else 0.0
        active = (epochs - rounding) / 2
        if wanted.method == "acdc":
            active = float(max(1, math.floor(active)))
            if active > epochs - rounding:
                raise OptionError(
                    f"recipe_variables: acdc has phases of whole epochs, and num_epochs {epochs:g} leaves it none"
                )
            every = float(max(1, math.floor(active / 8)))
            return cls(rounding, active, epochs - rounding - active, 0.0, every, 0)
        every = 1.0 if active > UPDATES else active / UPDATES
        first, every, gradients = _by_gradients(wanted, active, every)
        return cls(rounding, active, epochs - rounding - active, first, every, gradients)


def _by_gradients(wanted: Wanted, active: float, every: float) -> tuple[float, float, int]:
    """The first update, how far updates lie apart, and how many gradients each has."""
    if wanted.method == "movement" and wanted.level is not None:
        # At the start it would be by one gradient. The start and the end are the only updates, and lie near: what comes
        # back between them begins at zero, and 2:4 has no place for zeros that could be weights.
        return active * (1 - 1 / UPDATES), active, 0
    if wanted.method not in GRADIENTS:
        return 0.0, every, 0
    count, _ = GRADIENTS[wanted.method]
    if wanted.sampled:
        return 0.0, max(every, active / ROUNDS), count
    if wanted.steps_per_epoch is None:
        return active / ROUNDS, active / ROUNDS, count
    count = max(1, min(count, math.floor(active * wanted.steps_per_epoch / ROUNDS)))
    apart = min(active, max(every, count / wanted.steps_per_epoch))
    return apart, apart, count


def _variables(wanted: Wanted, times: _Times) -> dict[str, Any]:
    said = wanted.variables
    found: dict[str, Any] = {
        "lr_func": wanted.lr, "init_lr": said.init_lr, "final_lr": said.final_lr, "num_epochs": said.num_epochs,
    }  # fmt: skip
    if wanted.quantization:
        found |= {
            "num_qat_epochs": times.rounding, "num_qat_finetuning_epochs": times.rounding / 2,
            "quantization_submodules": None,
        }  # fmt: skip
    if wanted.prunes:
        level = said.sparsity if wanted.level is None else wanted.level
        levels = tuple(wanted.params) if isinstance(wanted.params, Mapping) else (level,)
        found |= {
            "num_pruning_active_epochs": times.active, "num_pruning_finetuning_epochs": times.settling,
            "pruning_start_epoch": times.first,
            "pruning_init_sparsity": min(FIRST, *levels) if wanted.level is None else level,
            "pruning_final_sparsity": dict(wanted.params) if isinstance(wanted.params, Mapping) else level,
            "pruning_update_frequency": times.every,
            "mask_type": list(wanted.mask_type) if isinstance(wanted.mask_type, tuple) else wanted.mask_type,
            "global_sparsity": wanted.is_global,
            "_num_pruning_epochs": "eval(num_pruning_active_epochs + num_pruning_finetuning_epochs)",
        }  # fmt: skip
    if wanted.method in GRADIENTS:
        size = GRADIENTS[wanted.method][1]
        whole = size - size % GROUP if wanted.mask_type == BLOCK4 else size  # no block of four lies in two blocks
        found |= {"num_grads": times.gradients, "fisher_block_size": whole}
    if wanted.distillation:
        found |= {"distillation_hardness": said.hardness, "distillation_temperature": said.temperature}
    return found


def _training() -> list[Modifier]:
    length = {"start_epoch": 0.0, "end_epoch": "eval(num_epochs)"}
    rates = {name: f"eval({name})" for name in ("lr_func", "init_lr", "final_lr")}
    return [("EpochRange", length), ("LearningRateFunction", {**length, **rates})]


def _pruning(wanted: Wanted) -> Modifier:
    method, levels = wanted.method, isinstance(wanted.params, Mapping)
    options: dict[str, Any] = {
        "start_epoch": "eval(pruning_start_epoch)",
        "end_epoch": "eval(num_pruning_active_epochs)",
        "update_frequency": "eval(pruning_update_frequency)",
        "mask_type": "eval(mask_type)",
        "leave_enabled": True,
        "params": [] if levels else wanted.params if isinstance(wanted.params, str) else list(wanted.params),
    }
    if method == "acdc":
        options |= {"compression_sparsity": "eval(pruning_final_sparsity)"}
    else:
        options |= {
            "init_sparsity": "eval(pruning_init_sparsity)", "final_sparsity": "eval(pruning_final_sparsity)",
            "inter_func": "cubic",
        }  # fmt: skip
    if method in ("acdc", *GRADIENTS):
        options["global_sparsity"] = "eval(global_sparsity)"
    if method in GRADIENTS:
        options |= {"num_grads": "eval(num_grads)", "fisher_block_size": "eval(fisher_block_size)"}
    tag = TAGS.get(method) or ("GlobalMagnitude" if wanted.is_global else "Magnitude")
    return f"{tag}Pruning", options


def _quantization(wanted: Wanted) -> Modifier:
    begin = "_num_pruning_epochs + " if wanted.prunes else ""
    still = f"eval({begin}num_qat_epochs - num_qat_finetuning_epochs)"
    return "Quantization", {
        "start_epoch": "eval(_num_pruning_epochs)" if wanted.prunes else 0.0,
        "submodules": "eval(quantization_submodules)",
        "disable_quantization_observer_epoch": still,
        "freeze_bn_stats_epoch": still,
        "tensorrt": mask_of(wanted.variables.target) == MASKS[TENSORRT],
        "quantize_linear_activations": False,
        "quantize_conv_activations": False,
        "quantize_embedding_activations": False,
        "exclude_module_types": ["LayerNorm", "Tanh"],
    }


def _distillation() -> Modifier:
    return "Distillation", {
        "start_epoch": 0.0,
        "end_epoch": "eval(num_epochs)",
        "hardness": "eval(distillation_hardness)",
        "temperature": "eval(distillation_temperature)",
    }


def _entry(modifier: Modifier) -> str:
    """With a tag, and its options below."""
    name, options = modifier
    lines = _dumped(options).splitlines()
    return "\n".join([f"  - !{name}Modifier", *(f"    {line}" for line in lines)]) + "\n"


def _dumped(values: Mapping[str, Any]) -> str:
    """PyYAML quotes `2:4`, which is 124 otherwise, and gives `1e-07` the dot without which it is a text."""
    return yaml.safe_dump(dict(values), sort_keys=False, width=10**6, allow_unicode=True)
