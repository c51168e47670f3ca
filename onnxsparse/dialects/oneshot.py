"""`oneshot` of SparseML's newer form: what a recipe does to a model at once, from samples and without training.

1. SparseGPTModifier and WandaPruningModifier prune, in the order of the recipe; then GPTQModifier and every
   QuantizationModifier round what is left, with the zeros held; SmoothQuantModifier or AWQModifier prepares
   that. With `quantize: true` SparseGPTModifier rounds by what that does to the outputs of a layer, as GPTQModifier
   does.
2. What only speaks of epochs, or holds zeros that nothing here moves, is passed over with a note. Everything else is
   refused by its name, unless the recipe was read leniently: then it is left out, and said.
3. The report is that of the last step, `prune` or `quantize`, with the notes of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onnxsparse.acts.params import ALL, ALL_PRUNABLE
from onnxsparse.api import Result, load
from onnxsparse.data.images import as_images
from onnxsparse.errors import OptionError, PlanError, brief
from onnxsparse.graph.model import Model, Source
from onnxsparse.options import Axes, Path
from onnxsparse.passes import delivery
from onnxsparse.passes.delivery import Delivered, called, demand_unread, target_of
from onnxsparse.passes.one_shot_pruning import OneShotPruning as Pruned
from onnxsparse.passes.one_shot_pruning import pruned_at_once
from onnxsparse.passes.quantization.activation_aware import ActivationAware
from onnxsparse.passes.quantization.after_training import Samples, quantized
from onnxsparse.passes.quantization.quantizing import AskedByScheme
from onnxsparse.passes.quantization.refining import Refinements
from onnxsparse.passes.quantization.smoothing import Aim, Smoothing
from onnxsparse.passes.sources import taken
from onnxsparse.planning.graph_layers import missed
from onnxsparse.planning.macs import set_sizes
from onnxsparse.planning.model_inputs import SampleAxes, sample_axes
from onnxsparse.planning.quantization import Scheme
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.modifiers.constant import ConstantPruningModifier
from onnxsparse.recipes.modifiers.modifier import Modifier
from onnxsparse.recipes.modifiers.one_shot import (
    AWQModifier,
    GPTQModifier,
    OneShot,
    OneShotPruning,
    OneShotRounding,
    SmoothQuantModifier,
    SparseGPTModifier,
    pairs_of,
)
from onnxsparse.recipes.modifiers.parameters import EpochRangeModifier, SparsificationLoggingModifier
from onnxsparse.recipes.modifiers.quantization import Quantizing
from onnxsparse.recipes.modifiers.quantization_groups import GroupQuantizationModifier
from onnxsparse.recipes.writing import tag_of

SAMPLES = 256
UNSMOOTHED = "!SmoothQuantModifier: weights alone are rounded, so it does nothing"
PASSIVE = (ConstantPruningModifier, EpochRangeModifier, SparsificationLoggingModifier)


def oneshot(
    source: Source,
    recipe: Recipe | Path,
    data: Any,
    *,
    output: Path | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
    batch_axis: Axes = None,
    state: Axes = None,
    dims: Mapping[str, int] | None = None,
    resize: str | Sequence[int] | None = None,
    mean: str | float | Sequence[float] | None = None,
    std: str | float | Sequence[float] | None = None,
    layout: str | None = None,
    overwrite: bool = False,
) -> Result:
    """Prune and round a model by what a recipe has done at once, from samples: SparseGPT, Wanda, GPTQ.

    Arguments:
        source: the model: a path, its bytes, a ModelProto, or another model in memory; it is never changed.
        recipe: what is done: a recipe with SparseGPTModifier, WandaPruningModifier, SmoothQuantModifier,
            AWQModifier, GPTQModifier or QuantizationModifier; a path, a text of several lines or a Recipe. Example:
            recipe="recipe.yaml"
        data: samples without labels, as the model is fed: an .npz with one array for each input, first axis =
            samples; a folder of such files, or of images; an .npy for each input; or module:function, a function
            that yields dictionaries of arrays; or a mapping of arrays, such a function, a loader of batches, or a
            CalibrationDataReader of onnxruntime or polygraphy. Example: data="samples.npz"
        output: the model to write; without it `Result.model` has it in memory. Default: None. Example:
            output="sparse.onnx"
        samples: how many samples (default 256): of more, those that seed= draws. Example: samples=512
        seed: for which samples are taken (default 0). Example: seed=1
        batch_axis: INPUT=AXIS: the axis of the samples where it is not the first (default: the one named as such).
            Example: batch_axis={"state": 1}
        state: INPUT=OUTPUT: an input that is the output of the step before, in sequences of samples. Default: None.
            Example: state={"state": "stateN"}
        dims: the size of a dynamic dimension, such as dims={"height": 224}, or dims={"x.2": 224} for one without a
            name, for multiply-accumulates. Default: None. Example: dims={"height": 224}
        resize: HxW, to which images are scaled; what is too long on one side is cut off evenly (default: the size
            that the model declares). Example: resize="224x224"
        mean: what is taken from pixels between 0 and 1, a number or one for each channel. Default: None. Example:
            mean="0.485,0.456,0.406"
        std: what they are divided by then, in the same form. Default: None. Example: std="0.229,0.224,0.225"
        layout: NCHW or NHWC (default: by the model). Example: layout=NHWC
        overwrite: replace the output if it exists. Default: False. Example: overwrite=True
    """
    asked = asked_of(recipe if isinstance(recipe, Recipe) else Recipe.load(recipe))
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise OptionError(f"--samples takes a number from 1, not {brief(samples)}")
    source = taken(source)
    path = target_of(output, source, overwrite)
    model = load(source)
    demand_unread(path, model, data, recipe)
    set_sizes(model, dims)
    axes = sample_axes(model, batch_axis, state)
    (found,) = as_images([data], resize, mean, std, layout)
    return Result(*_Run(called(source), found, samples, seed, axes, path, overwrite).done(model, asked))


# -- what a recipe asks for


@dataclass(frozen=True)
class Asked:
    """What is done at once, in its order, and what is said of the rest of a recipe."""

    pruning: Sequence[Pruned]
    scheme: Scheme | None
    refined: Refinements
    notes: Sequence[str]


def asked_of(recipe: Recipe) -> Asked:
    """What a recipe asks for; an error where that is not all of it."""
    notes, left = [*recipe.notes], [one for one in recipe.modifiers if not isinstance(one, (OneShot, Quantizing))]
    notes += [f"!{tag_of(one)}: nothing is trained, so it does nothing" for one in left if isinstance(one, PASSIVE)]
    other = [one for one in left if not isinstance(one, PASSIVE)]
    if other and recipe.strict:
        raise PlanError(f"oneshot cannot run {_named(other[0])}; take it out, or read the recipe with --lenient")
    notes += [f"not applied: {_named(one)}" for one in other]
    notes += [f"!{tag_of(one)}: {said}" for one in recipe.modifiers if isinstance(one, OneShot) for said in one.idle()]
    pruning = [_pruned(one) for one in recipe.modifiers if isinstance(one, OneShotPruning) and _prunes(one)]
    scheme, refined, said = _rounding([*recipe.modifiers, *_inside(recipe)])
    if not pruning and scheme is None:
        raise PlanError("the recipe has nothing that is done at once: SparseGPTModifier, WandaPruningModifier or "
                        "GPTQModifier")  # fmt: skip
    return Asked(pruning, scheme, refined, (*notes, *said))


def _named(one: Modifier) -> str:
    called, why = getattr(one, "called", f"!{tag_of(one)}"), one.missing
    return f"{called} ({why or 'it is of a training run'})"


def _prunes(one: OneShotPruning) -> bool:
    return one.pattern != "unstructured" or any(one.levels)


def _pruned(one: OneShotPruning) -> Pruned:
    targets = () if {aim.upper() for aim in one.aims} & {ALL, ALL_PRUNABLE} else one.aims
    return Pruned(
        one.pattern, one.levels, one.score, one.solver, targets, one.ignore, one.outliers, one.damping, one.keeps_zeros
    )


def _inside(recipe: Recipe) -> Iterator[Modifier]:
    """The modifiers that stand as `quantize:` of a SparseGPTModifier."""
    for one in recipe.modifiers:
        if isinstance(one, SparseGPTModifier) and isinstance(one.quantize, Mapping):
            yield from Recipe.from_yaml(_stage(one.quantize), f"quantize of !{tag_of(one)}").modifiers


def _stage(modifiers: Mapping[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump({"inside_stage": {"inside_modifiers": _plain(modifiers)}}))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _rounding(modifiers: Sequence[Modifier]) -> tuple[Scheme | None, Refinements, list[str]]:
    """How everything is rounded: the scheme of the one modifier that says it."""
    own = [one for one in modifiers if isinstance(one, OneShotRounding)]
    plain = [one for one in modifiers if isinstance(one, Quantizing)]
    saying = [one for one in own if one.says]
    asking = [one for one in modifiers if isinstance(one, SparseGPTModifier) and one.quantize]
    scaling = [one for one in modifiers if isinstance(one, (AWQModifier, SmoothQuantModifier))]
    by_gram: list[OneShot] = [*(one for one in own if isinstance(one, GPTQModifier)), *asking]
    rounding = [*by_gram, *scaling]
    if len(saying) + len(plain) > 1:
        raise PlanError("the recipe says twice what is rounded; one GPTQModifier or QuantizationModifier is enough")
    if not saying and not plain:
        if rounding:
            raise PlanError(f"{rounding[0].called}: nothing says what is rounded: give it a scheme or "
                            "config_groups, or the recipe a QuantizationModifier")  # fmt: skip
        return None, Refinements(), []
    damping = next((one.damping for one in by_gram), Refinements.damping)
    scheme, said = _scheme_of(saying[0] if saying else plain[0])
    refined = Refinements(rounding=bool(by_gram), damping=damping, scaling=_scaling(scaling))
    return scheme, refined, [said] if said else []


def _scaling(modifiers: Sequence[AWQModifier | SmoothQuantModifier]) -> Smoothing | ActivationAware | None:
    if len(modifiers) > 1:
        raise PlanError(f"{modifiers[1].called}: channels are scaled once; one modifier is enough, with all mappings")
    for one in modifiers:
        aim = Aim(pairs_of(one.mappings), one.ignore or ())
        if isinstance(one, AWQModifier):
            return ActivationAware(Aim(aim.mappings), one.n_grid, one.duo)
        return Smoothing(aim, one.smoothing_strength)
    return None


def _scheme_of(asking: OneShotRounding | Quantizing) -> tuple[Scheme, str]:
    """What is rounded on which grid, and what of that means nothing."""
    one = asking.grids if isinstance(asking, OneShotRounding) else asking
    said = f"!{tag_of(asking)}: {one.meaningless}" if one.meaningless else ""
    try:
        scheme = one.afterwards() if isinstance(one, GroupQuantizationModifier) else one.scheme_of()
    except OptionError as error:
        raise PlanError(f"{asking.called}: {error}") from None
    return replace(scheme, strict=False), said.replace("in training", "from the samples")


# -- doing it


@dataclass(frozen=True)
class _Run:
    """One call: the samples, and where the model goes."""

    called: str
    data: Any
    samples: int
    seed: int
    axes: SampleAxes
    path: str | None
    overwrite: bool

    def done(self, model: Model, asked: Asked) -> Delivered:
        """All of it, one after the other; the last step writes the file."""
        notes, details, made = [*asked.notes], dict[str, Any](), None
        for number, one in enumerate(asked.pruning):
            last = number + 1 == len(asked.pruning) and asked.scheme is None
            made = self._prune(model, one, self.path if last else None, [] if not last else notes, details)
            if last or made.proto is None:
                return made
            notes += made.report.notes
            model = Model.over(made.proto)
        assert asked.scheme is not None
        return self._quantize(model, asked.scheme, asked.refined, notes, details)

    def _prune(
        self, model: Model, one: Pruned, path: str | None, notes: Sequence[str], details: dict[str, Any]
    ) -> Delivered:
        found, said = pruned_at_once(model, one, self.data, self.samples, self.seed, self.axes)
        details.update(found.details)
        return delivery.deliver(
            model, found.plan, found.numbers, found.tags, path, self.overwrite,
            name=self.called, notes=[*notes, *said], details=details, command="prune",
        )  # fmt: skip

    def _quantize(
        self, model: Model, scheme: Scheme, refined: Refinements, notes: Sequence[str], details: Mapping[str, Any]
    ) -> Delivered:
        given, how = Samples(self.data, self.samples), AskedByScheme.of(scheme, refined)
        if isinstance(refined.scaling, Smoothing) and how.weights_alone:
            notes, how = [*notes, UNSMOOTHED], AskedByScheme.of(scheme, replace(refined, scaling=None))
        missing = missed(scheme, model.proto)
        done = quantized(model, self.called, how, given, self.axes, self.path, self.overwrite)
        report = replace(
            done.report, notes=(*notes, *missing, *done.report.notes),
            details={**details, **done.report.details},
        )  # fmt: skip
        return done._replace(report=report)


__all__ = ["asked_of", "oneshot"]
