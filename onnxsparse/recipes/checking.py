"""Linter for recipes: what a recipe says that its writer may not mean, found before anything runs.

`wrong` cannot be run as it is, `refused` is known and has nothing that runs it, `warning` runs, but perhaps not to what
was meant, and `note` is worth knowing. Steps are looked at where it is known how many an epoch has, names where a model
is given. A rule is a method of `_Linter`.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from onnxsparse.acts.params import ALL, ALL_PRUNABLE, REGULAR, compiled, named
from onnxsparse.errors import OnnxSparseError, OptionError
from onnxsparse.planning.graph_layers import missed
from onnxsparse.recipes.modifiers.constant import ConstantPruningModifier
from onnxsparse.recipes.modifiers.distillation import DistillationModifier, demand_file
from onnxsparse.recipes.modifiers.layer_distillation import PerLayerDistillationModifier
from onnxsparse.recipes.modifiers.layer_pruning import LayerPruningModifier
from onnxsparse.recipes.modifiers.magnitude import FROM_PARAM, ACDCPruningModifier, GradualPruning
from onnxsparse.recipes.modifiers.masked import Masked, names_in
from onnxsparse.recipes.modifiers.modifier import NEVER, PLACE, Modifier, Scheduled
from onnxsparse.recipes.modifiers.one_shot import OneShot
from onnxsparse.recipes.modifiers.parameters import EpochRangeModifier
from onnxsparse.recipes.modifiers.quantization import EPOCHS, Quantizing
from onnxsparse.recipes.modifiers.rates import (
    LearningRateFunctionModifier,
    LearningRateModifier,
    SetLearningRateModifier,
)
from onnxsparse.recipes.modifiers.structured import StructuredPruningModifier
from onnxsparse.recipes.modifiers.training import Training
from onnxsparse.recipes.recipe import Recipe, has_epochs
from onnxsparse.recipes.writing import tag_of

WRONG, REFUSED, WARNING, NOTE = "wrong", "refused", "warning", "note"
LEVELS = (WRONG, REFUSED, WARNING, NOTE)
"""What is a note is worth knowing, and nothing is wrong with it."""
BY_ONE_SHOT = "`onnxsparse oneshot` runs it, and a training does not"
LEAST_USEFUL = 0.4
"""Below this share of zeros no runtime is faster."""
ADAM = ("adam", "adamw", "ort-adamw")
RATES = (LearningRateModifier, LearningRateFunctionModifier, SetLearningRateModifier)
NEAR = 1e-6
LITTLE = 0.05
"""Of an epoch: drifting by less is worth a note, and no warning."""


@dataclass(frozen=True)
class Finding:
    """One thing that is found, and in which modifier."""

    level: str
    tag: str
    text: str
    line: int | None = None

    def __str__(self) -> str:
        place = [f"line {self.line}"] if self.line is not None else []
        return ": ".join([self.level, *place, *([f"!{self.tag}"] if self.tag else []), self.text])


def check(
    recipe: Recipe,
    *,
    model: Any = None,
    data_size: int | None = None,
    batch_size: int | None = None,
    steps_per_epoch: int | None = None,
    optimizer: str | None = None,
) -> list[Finding]:
    """Everything that is found in a recipe; nothing where all is well."""
    made = None if data_size is None else steps_of_data(recipe, data_size, batch_size)[0]
    linter = _Linter(recipe, model, steps_per_epoch, made, optimizer)
    for rule in RULES:
        rule(linter)
    return sorted(linter.findings, key=lambda finding: LEVELS.index(finding.level))


def steps_of_data(recipe: Recipe, data_size: int, batch_size: int | None = None) -> tuple[int, int]:
    """How many steps of `finetune` make an epoch, and how many samples it holds out and does not train on."""
    from onnxsparse.data.samples import held_out

    training = next((one for one in recipe.modifiers if isinstance(one, Training)), Training())
    held = held_out(data_size)
    return max(1, (data_size - held) // ((batch_size or training.batch) * training.accumulate)), held


class _Linter:
    """A recipe and what is known beside it; each rule adds what it finds."""

    def __init__(self, recipe: Recipe, model: Any, steps: int | None, made: int | None, optimizer: str | None) -> None:
        self.recipe, self.model, self.last = recipe, model, recipe.max_epochs
        self.findings: list[Finding] = []
        self.training, self.scheduled = self._every(Training), self._every(Scheduled)
        self.masked, self.held, self.rates = (self._every(kind) for kind in (Masked, ConstantPruningModifier, RATES))
        self.steps_of_data = made
        self.steps = steps or (self.training[0].steps_per_epoch if self.training else None) or made
        self.optimizer = optimizer or (self.training[0].optimizer if self.training else None)

    def _every(self, kind: Any) -> list[Any]:
        return [one for one in self.recipe.modifiers if isinstance(one, kind)]

    def _add(self, level: str, modifier: Modifier | None, text: str) -> None:
        """What is found in a modifier, or in the whole recipe."""
        place = ("", None) if modifier is None else (tag_of(modifier), _line_of(modifier))
        self.findings.append(Finding(level, place[0], text, place[1]))

    def _warn(self, modifier: Modifier | None, text: str) -> None:
        self._add(WARNING, modifier, text)

    @cached_property
    def _opened(self) -> Any:
        from onnxsparse.graph.model import Model

        return Model.open(self.model)

    @cached_property
    def _params(self) -> list[Any]:
        """All parameters of the model."""
        from onnxsparse.recipes.plan_by_epochs import params_of

        return [] if self.model is None else params_of(self._opened)

    def _bound(self, modifiers: list[Any]) -> Iterator[tuple[Any, Any]]:
        """Modifiers and their acts, of those that can be bound to the model; of others `names` speaks."""
        for one in modifiers if self.model is not None else ():
            try:
                act = one.act()
                act.bind(self._params)
            except OnnxSparseError:
                continue
            yield one, act

    def _prunable(self) -> list[Any]:
        return [param for param in self._params if param.prunable and not param.refusal]

    # -- what cannot run

    def doubled(self) -> None:
        """Keys that the text has twice."""
        for one in self.recipe.twice:
            self.findings.append(Finding(NOTE if one.alike else WARNING, "", str(one), one.second))

    def two_clocks(self) -> None:
        """Our own pruning goes by shares of the run, the others by epochs."""
        if any(map(has_epochs, self.recipe.modifiers)):
            for one in self.recipe.modifiers:
                if one.name in ("pruning", "levels"):
                    text = "it goes by shares of the run and the other modifiers by epochs; leave one out"
                    self._add(WRONG, one, text)

    def refused(self) -> None:
        level, text = (REFUSED, "nothing runs it yet") if self.recipe.strict else (NOTE, "it is left out")
        for one in self.recipe.modifiers:
            if isinstance(one, OneShot):
                whole = self.recipe.strict or self.at_once
                self._add(NOTE if self.at_once else level, one, BY_ONE_SHOT if whole else f"{text}: {BY_ONE_SHOT}")
            elif one.missing:
                self._add(level, one, f"{text}: {one.missing}")

    @cached_property
    def at_once(self) -> bool:
        """Whether the recipe is one for `onnxsparse oneshot`, in which no modifier trains."""
        kinds = [isinstance(one, OneShot) for one in self.recipe.modifiers if not isinstance(one, Quantizing)]
        return bool(kinds) and all(kinds)

    def meaningless(self) -> None:
        """What is written and changes nothing."""
        for one in self._every(Quantizing):
            if not one.missing and one.meaningless:
                self._add(NOTE, one, one.meaningless)

    def layers(self) -> None:
        """Names and module types in a scheme that mean nothing in the model."""
        for one in self._every(Quantizing) if self.model is not None else ():
            try:
                for text in () if one.missing else missed(one.scheme_of(), self._opened.proto):
                    self._add(NOTE, one, text)
            except OptionError as error:
                self._add(WRONG, one, str(error))

    def teachers(self) -> None:
        """Files that are not there; where there is a model, `names` says so."""
        for one in self._every((DistillationModifier, PerLayerDistillationModifier)) if self.model is None else ():
            try:
                demand_file(one.called, one.teacher)
            except OptionError as error:
                self._add(WRONG, one, str(error).removeprefix(f"{one.called}: "))

    def names(self) -> None:
        """The modifiers are bound to the model; where that fails, each by itself."""
        driven = [one for one in self.scheduled if not one.missing]
        _ = self.model is None or self._opened  # a model that cannot be read is no fault of a modifier
        if self.model is not None and self._problem(driven):
            for one in driven:
                problem = self._problem([one])
                if problem:
                    self._add(WRONG, one, problem)

    def patterns(self) -> None:
        """Regular expressions that are none; where there is a model, `names` says so of what runs."""
        for one in self.scheduled:
            if self.model is None or one.missing:
                for problem in _wrong_patterns(one):
                    self._add(WRONG, one, problem)

    def _problem(self, modifiers: list[Any]) -> str:
        """Why modifiers cannot act on the model."""
        from onnxsparse.recipes.plan_by_epochs import by_epochs

        try:
            by_epochs(self._opened, modifiers)
        except OnnxSparseError as error:
            return str(error).removeprefix(f"{modifiers[0].called}: ")
        return ""

    # -- how sparse

    def low(self) -> None:
        for one in self.masked:
            level = max(_levels(one), default=1.0)  # where layers have their own, low ones stand beside high ones
            if level < LEAST_USEFUL:
                self._warn(one, f"it ends at {level:g}, and below {LEAST_USEFUL} zeros make nothing faster")

    def rises(self) -> None:
        for one in self._every(GradualPruning):
            last = max(_levels(one))
            if one.init_sparsity != FROM_PARAM and one.init_sparsity > last:
                self._warn(one, f"it begins at {one.init_sparsity:g} and ends at {last:g}: zeros come back")
            if one.end_epoch == NEVER and one.init_sparsity != last:
                self._warn(one, "with end_epoch -1 it never comes to its final_sparsity")

    def let_go(self) -> None:
        """Zeros that nothing holds when the masks are gone."""
        for one in self.masked:
            if getattr(one, "leave_enabled", True) or _end_of(one) >= self.last:
                continue
            if not any(keep.start_epoch <= one.end_epoch <= _end_of(keep) for keep in self.held):
                self._warn(one, f"its masks are let go at {one.end_epoch:g}, and the zeros with them")

    def quantized(self) -> None:
        """Rounding moves zeros, unless a mask holds them."""
        free = [one for one in self.masked if not getattr(one, "leave_enabled", True)]
        for one in self._every(Quantizing):
            start = one.start_epoch
            if any(_end_of(keep) > start and keep.start_epoch <= max(start, 0) for keep in self.held):
                continue
            lost = "zeros are lost while it trains: add !ConstantPruningModifier"
            if any(_end_of(mask) <= self.last for mask in free):
                self._warn(one, f"the {lost}, or leave_enabled: true")

    def sparse(self) -> None:
        """A sparse model, and nothing that speaks of its zeros."""
        from onnxsparse.recipes.plan_by_epochs import by_epochs, sparse_but_free

        driven = [one for one in self.scheduled if not one.missing]
        if self.model is None or not driven or self._problem(driven):
            return
        names = sparse_but_free(self._opened, by_epochs(self._opened, driven))
        if names:
            self._add(
                NOTE,
                None,
                "no modifier prunes or holds anything, and the model is sparse: finetune holds the zeros of "
                f"{len(names)} of its weights; in a loop of your own they are lost without !ConstantPruningModifier",
            )

    # -- which weights

    def overlaps(self) -> None:
        """Two that prune the same weights at once: both hold their zeros, so one does not come to what it says."""
        for first, second in combinations(self.masked, 2):
            meeting = max(first.start_epoch, second.start_epoch) < min(_end_of(first), _end_of(second))
            if meeting and self._share(first, second):
                line = _line_of(first)
                where = f"!{tag_of(first)}" + ("" if line is None else f" of line {line}")
                self._warn(second, f"it prunes what {where} prunes at the same time; the zeros of both stay")

    def _share(self, *both: Masked) -> bool:
        """By what they mask in the model; without one, or where a name is not in it, as they are spelt."""
        tags = [{param.tag for param in act.masked()} for _, act in self._bound(list(both))] if self._params else []
        if len(tags) == 2:
            return bool(tags[0] & tags[1])
        ours, theirs = map(names_in, both)
        return any(_means(one, other) or _means(other, one) for one in ours for other in theirs)

    def along(self) -> None:
        """Scales and biases that a word or a pattern for many means, too."""
        for one, act in self._bound(self.masked):
            if act.warning:
                self._warn(one, act.warning)

    def missed(self) -> None:
        """Weights that patterns pass over, because most have other names here than in torch."""
        from onnxsparse.recipes.plan_by_epochs import passed_over

        text = passed_over(self._params, list(self._bound([*self.masked, *self.held])))
        if text:
            self._warn(None, text)

    def taken_out(self) -> None:
        """Weights that are pruned, and whose layers are not in the result."""
        for layers in self._every(LayerPruningModifier) if self.model is not None else ():
            act = layers.act()
            try:
                act.bind_graph(self._opened, self._params)
            except OnnxSparseError:  # `names` speaks of it
                continue
            removed = act.removed()
            for one, masks in self._bound(self.masked):
                gone = [param for param in masks.masked() if param.tag in removed]
                if gone:
                    by_name = named(self._params, names_in(one), one.called)
                    level = WARNING if by_name & {param.tag for param in gone} else NOTE
                    what = gone[0].name if len(gone) == 1 else f"{len(gone)} weights (first {gone[0].name})"
                    text = f"it prunes {what}, and !{tag_of(layers)} takes the layer out of the model for good"
                    self._add(level, one, text)

    def groups(self) -> None:
        """Groups say what goes together, not what is pruned."""
        for one in self._every(StructuredPruningModifier):
            if one.param_groups and (isinstance(one.params, str) or not one.params):
                last = [param.name for param in self._prunable()][-1:]
                named = f", {last[0]} among them" if last else ""
                text = f"param_groups say what goes together; params says what is pruned, which is all layers{named}"
                self._warn(one, f"{text}, also the one of the outputs; name them in params")

    def nothing_to_hold(self) -> None:
        for one, act in self._bound([] if self.masked else self.held):
            if not any(goal.drop for goal in act.final_masks().values()):
                self._warn(one, "there is nothing to hold: what it names has no zeros, and no modifier makes some")

    # -- the learning rate

    def adam(self) -> None:
        if self.optimizer is not None and self.optimizer.partition(":")[0].lower() in ADAM:
            for one in self.rates:
                text = f"{self.optimizer} finds its own steps; a learning rate is rarely worth moving for it"
                self._warn(one, text)

    def two_rates(self) -> None:
        for first, second in combinations(self.rates, 2):
            groups = [set(getattr(one, "param_groups", None) or ()) for one in (first, second)]
            if all(groups) and not groups[0] & groups[1]:
                continue
            start, end = max(first.start_epoch, second.start_epoch), min(_until(first), _until(second))
            if start < end or (start == end == first.start_epoch == second.start_epoch):
                text = f"it moves the learning rate at epoch {max(start, 0):g}, as !{tag_of(first)} does"
                self._warn(second, text)

    def late(self) -> None:
        """What begins when the run is over."""
        if not any(frame.epochs is not None or frame.steps is not None for frame in self.training):
            for one in self._every(Quantizing):
                for option in ("start_epoch", *EPOCHS):
                    epoch = getattr(one, option)
                    if epoch is not None and epoch >= self.last > 0:
                        self._warn(one, f"{option} is {epoch:g}, where the run ends: nothing comes after it")
            for one in self.rates:
                if one.start_epoch >= self.last > 0:
                    text = f"it begins at {one.start_epoch:g}, where the run ends: nothing comes after it"
                    self._warn(one, text)

    # -- times

    def length(self) -> None:
        last = self.last
        if (
            self.scheduled
            and not self.at_once
            and last < 0
            and not any(one.epochs or one.steps for one in self.training)
        ):
            self._warn(None, "nothing says how long the run is: add !EpochRangeModifier, or say --epochs")
        for one in sorted(self._every(EpochRangeModifier), key=_end_of)[-1:]:
            if math.ceil(min(_end_of(one), last)) < last:
                self._warn(one, f"it ends at {one.end_epoch:g}, but other modifiers make the run last {last} epochs")
        for one in self.training:
            if one.epochs is not None and one.epochs < last:
                self._warn(one, f"it lasts {one.epochs:g} epochs, and modifiers go on to {last}: their end never comes")

    @property
    def _timed(self) -> list[Any]:
        """Those whose frequency means something."""
        return [one for one in self.scheduled if "update_frequency" not in one.unwritten]

    def frequency(self) -> None:
        for one in self._timed:
            lasts = one.end_epoch - max(one.start_epoch, 0)
            if isinstance(one, ACDCPruningModifier) and lasts < 3 * one.update_frequency:
                self._warn(one, "there is time for no more than two phases, dense and pruned")
            elif one.end_epoch != NEVER and one.update_frequency > lasts > 0:
                often = f"update_frequency {one.update_frequency:g}"
                self._warn(one, f"the next update after the first comes at its end: {often}")

    def misfit(self) -> None:
        """Steps that are said, and others that the data make: then every epoch of the recipe is another one."""
        said, made = self.steps, self.steps_of_data
        if said is not None and made is not None and said != made:
            tag = "training" if any(frame.steps_per_epoch == said for frame in self.training) else ""
            text = f"{said} steps per epoch are said, and the data make {made}: all epochs are off"
            self.findings.append(Finding(WARNING, tag, text))

    def between_steps(self) -> None:
        """Times that fall between two steps."""
        count = self.steps
        if count is None:
            return
        for one in self._timed:
            often, exact = f"update_frequency {one.update_frequency:g}", one.update_frequency * count
            if 0 <= exact < 1 - NEAR:
                self._warn(one, f"{often} is less than a step of {count} per epoch")
            elif exact > 0 and _off(exact):
                met = math.ceil(exact) / count
                level = NOTE if met - one.update_frequency < LITTLE else WARNING
                self._add(level, one, f"{often} is {exact:g} steps: it acts every {met:g} epochs")
        for one in self.scheduled:
            for option in ("start_epoch", "end_epoch", *EPOCHS):
                epoch = getattr(one, option, None) or 0
                if epoch > 0 and _off(epoch * count):
                    met = math.ceil(epoch * count) / count
                    text = f"{option} {epoch:g} lies between two of {count} steps per epoch: it acts at {met:g}"
                    self._add(NOTE, one, text)


def _wrong_patterns(modifier: Modifier) -> Iterator[str]:
    """What is wrong with the regular expressions of a modifier, by option."""
    for field in dataclasses.fields(modifier):  # type: ignore[arg-type]
        for name in _texts(getattr(modifier, field.name)):
            if name.startswith(REGULAR):
                try:
                    compiled(name[len(REGULAR) :], field.name)
                except OptionError as error:
                    yield str(error)


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, tuple)):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(one)


RULES: tuple[Callable[[_Linter], None], ...] = (
    _Linter.doubled, _Linter.two_clocks, _Linter.refused, _Linter.meaningless, _Linter.layers, _Linter.teachers,
    _Linter.low, _Linter.rises, _Linter.let_go, _Linter.two_rates, _Linter.length, _Linter.frequency, _Linter.late,
    _Linter.names, _Linter.patterns, _Linter.overlaps, _Linter.along, _Linter.missed, _Linter.taken_out,
    _Linter.groups, _Linter.nothing_to_hold, _Linter.quantized, _Linter.sparse, _Linter.adam, _Linter.misfit,
    _Linter.between_steps,
)  # fmt: skip
"""In this order they are told, what is worse before all others."""


def _line_of(modifier: Modifier) -> int | None:
    """Where it stands in its file."""
    line = str(getattr(modifier, PLACE, "")).rpartition(", line ")[2]
    return int(line) if line.isdigit() else None


def _end_of(modifier: Scheduled) -> float:
    return math.inf if modifier.end_epoch == NEVER else modifier.end_epoch


def _until(modifier: Scheduled) -> float:
    """One that sets the rate once is over at once."""
    return modifier.start_epoch + NEAR if isinstance(modifier, SetLearningRateModifier) else _end_of(modifier)


def _off(steps: float) -> bool:
    return abs(steps - round(steps)) > NEAR * max(1.0, steps)


def _levels(modifier: Masked) -> tuple[float, ...]:
    """How sparse it is in the end, of a modifier that says it."""
    if isinstance(modifier, ACDCPruningModifier):
        return (modifier.compression_sparsity,)
    last = modifier.final_sparsity if isinstance(modifier, GradualPruning) else modifier.levels
    return (last,) if isinstance(last, float) else tuple(last)


def _means(one: str, other: str) -> bool:
    """Whether the first name means the second, as they are spelt: a layer is its weight, an expression what it matches,
    and the words for all are everything."""
    if one.upper() in (ALL, ALL_PRUNABLE):
        return True
    if not one.startswith(REGULAR):
        return one.removesuffix(".weight") == other.removesuffix(".weight")
    if other.startswith(REGULAR):
        return one == other
    regex: Any = importlib.import_module("regex")
    try:
        matches = [regex.match(one[len(REGULAR) :], name, timeout=1.0) for name in (other, f"{other}.weight")]
    except TimeoutError:
        return False
    return any(found is not None for found in matches)
