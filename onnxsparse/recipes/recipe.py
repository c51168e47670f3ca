"""The recipe: a list of modifiers, perhaps in stages, and its texts.

modifiers:
- !EpochRangeModifier
  start_epoch: 0.0
  end_epoch: 3.0
- !GMPruningModifier
  start_epoch: 0.0
  end_epoch: 2.0
  update_frequency: 0.1
  init_sparsity: 0.05
  final_sparsity: 0.9
  params: __ALL_PRUNABLE__
"""

from __future__ import annotations

import dataclasses
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union

import yaml

from onnxsparse.errors import OptionError, OutputError, PlanError
from onnxsparse.recipes import writing
from onnxsparse.recipes.entries import PASSED
from onnxsparse.recipes.layout import METADATA, MODIFIERS, STAGES
from onnxsparse.recipes.modifiers.modifier import (
    NEVER,
    Modifier,
    Scheduled,
    changed,
    from_python,
    plain,
    reads_as_other,
)
from onnxsparse.recipes.reading import UNSAID, Path, Read, is_page, is_text, sections, text_of
from onnxsparse.recipes.variables import Variables, as_text
from onnxsparse.recipes.yaml_tree import Twice
from onnxsparse.version import __version__

Kind = TypeVar("Kind", bound=Modifier)
NONE = -1
FRAMEWORK = "framework_metadata"
Metadata = Mapping[str, Any]
Given = Union["Recipe", str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Stage:
    """Modifiers under one name."""

    name: str
    modifiers: tuple[Modifier, ...]
    metadata: Metadata | None = None

    def __post_init__(self) -> None:
        if MODIFIERS in self.name or self.name in ("", STAGES, METADATA):
            raise PlanError(f"a stage cannot be called {self.name!r:.60}; that means something else in a recipe")
        object.__setattr__(self, "modifiers", in_order(self.modifiers))
        object.__setattr__(self, "metadata", _settled(self.metadata))


@dataclass(frozen=True)
class NotApplied:
    """A modifier that nothing runs, and why."""

    tag: str
    reason: str


@dataclass(frozen=True)
class Recipe:
    """What happens when in a run: modifiers in the order in which they act."""

    modifiers: tuple[Modifier, ...] = ()
    stages: tuple[Stage, ...] = ()
    metadata: Metadata | None = None
    strict: bool = field(default=True, compare=False)
    """Whether what nothing runs is an error; otherwise it is left out, and said."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    twice: tuple[Twice, ...] = field(default=(), compare=False)
    """Keys that its text has twice, of which the last counts; they are among the notes, too."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", _settled(self.metadata))
        other = next((one for one in self.modifiers if not isinstance(one, Modifier)), None)
        if other is not None:
            raise PlanError(f"a recipe is made of modifiers, and not of {other!r:.60}")
        if self.stages:
            stages = sorted(self.stages, key=_stage_place)
            object.__setattr__(self, "stages", tuple(stages))
            object.__setattr__(self, "modifiers", tuple(one for stage in stages for one in stage.modifiers))
        else:
            object.__setattr__(self, "modifiers", in_order(self.modifiers))
        _check_whole(self.modifiers, float(self.max_epochs))

    # -- what it says

    def only(self, kind: type[Kind]) -> Kind:
        """The one modifier of a kind; the default one where there is none."""
        found = [one for one in self.modifiers if isinstance(one, kind)]
        if len(found) > 1:
            raise PlanError(f"the recipe has {len(found)} modifiers !{kind.name}; one is enough")
        return found[0] if found else kind()

    def whole(self, kinds: Sequence[type[Modifier]]) -> Recipe:
        """The recipe with a default modifier for each kind that it lacks, in this order before the others."""
        own = [self.only(kind) for kind in kinds]
        return self.holding((*own, *(one for one in self.modifiers if not any(one is other for other in own))))

    def holding(self, modifiers: Iterable[Modifier]) -> Recipe:
        """The same recipe with other modifiers, and without stages."""
        return Recipe(tuple(modifiers), (), self.metadata, self.strict, self.notes)

    @property
    def min_epochs(self) -> int:
        """The epoch in which anything begins; -1 where nothing says it."""
        starts = (epochs_of(one)[0] for one in self.modifiers)
        return min((math.floor(start) for start in starts if start > NONE), default=NONE)

    @property
    def max_epochs(self) -> int:
        """How long a run has to be, by every start and end; -1 where nothing says it."""
        ends = (end for one in self.modifiers for end in epochs_of(one) if end > NONE)
        return max(map(math.ceil, ends), default=NONE)

    @property
    def not_applied(self) -> tuple[NotApplied, ...]:
        """What nothing runs."""
        return tuple(NotApplied(writing.tag_of(one), one.missing) for one in self.modifiers if one.missing)

    def driven(self) -> Recipe:
        """What can be run of it; an error where that is not all, unless the recipe was read with `strict=False`."""
        left = self.not_applied
        if left and self.strict:
            places = {writing.tag_of(one): getattr(one, "called", "") for one in reversed(self.modifiers)}
            named = "; ".join(f"{places[one.tag] or '!' + one.tag} ({one.reason})" for one in dict.fromkeys(left))
            raise PlanError(
                f"the recipe asks for what nothing runs yet: {named}; take it out, or read the recipe with --lenient"
            )
        words = tuple(f"not applied: !{one.tag}: {one.reason}" for one in dict.fromkeys(left))
        driven = self.holding(one for one in self.modifiers if not one.missing)
        return dataclasses.replace(driven, notes=(*self.notes, *words))

    def within(self, epochs: float) -> Recipe:
        """The recipe in a run of so many epochs: every time that it says is scaled alike."""
        of = self.max_epochs
        if of <= 0 or epochs == of:
            return self
        try:
            made = self.holding(one.within(epochs, of) if isinstance(one, Scheduled) else one for one in self.modifiers)
        except OptionError as error:
            raise PlanError(f"the recipe of {of} epochs cannot last {epochs:g}: {error}") from None
        note = f"the {of} epochs of the recipe are scaled to {epochs:g}, with every time that it says in epochs"
        return dataclasses.replace(made, notes=(*self.notes, note))

    # -- its texts

    def __repr__(self) -> str:
        return f"Recipe({', '.join(f'!{writing.tag_of(one)}' for one in self.modifiers)})"

    def __str__(self) -> str:
        """The canonical text, which reads back as the same recipe."""
        if self.stages:
            return writing.text_of((one.name, one.modifiers, one.metadata) for one in self.stages)
        return writing.text_of([("", self.modifiers, self.metadata)])

    def to_yaml(self) -> str:
        """The text as it is saved: the canonical one, or a short one where all modifiers are our own."""
        if self.stages or self.metadata or any(has_epochs(one) for one in self.modifiers):
            return str(self)
        return yaml.dump({"modifiers": [_Tagged(one) for one in self.modifiers]}, Dumper=_Dumper, sort_keys=False)

    def save(self, path: Path, overwrite: bool = False) -> None:
        """Write the canonical text; in a page of Markdown between the lines where it is looked for."""
        from onnxsparse.files import write_text

        if not overwrite and os.path.exists(path):
            raise OutputError(f"{os.fspath(path)} exists; choose another name, or overwrite it")
        text = f"---\n{self}---\n" if is_page(path) else str(self)
        write_text(os.fspath(path), text, overwrite=overwrite)

    @classmethod
    def from_yaml(
        cls, text: str, called: str = "the recipe", variables: Variables = None, strict: bool = True
    ) -> Recipe:
        """The recipe that a text holds."""
        found = sections(text, called, variables, strict)
        made = _assembled(found.sections, found.staged, called, strict)
        passed = (text for section in found.sections for one in section.modifiers for text in getattr(one, PASSED, ()))
        notes = tuple(f"{called}: {one}" for one in (*found.twice, *passed))
        return dataclasses.replace(made, notes=notes, twice=found.twice) if notes else made

    @classmethod
    def load(
        cls, source: Path, variables: Variables = None, strict: bool = True, metadata: Metadata | None = None
    ) -> Recipe:
        """The recipe of a file, or of a text of several lines: YAML, JSON, or a page of Markdown that begins with it.

        `variables` gives variables of the recipe other values. With `strict=False` modifiers that nobody knows are
        kept, and left out of a run; `not_applied` names them.
        """
        if not isinstance(source, (str, os.PathLike)):
            raise PlanError(f"a recipe is named by a path or given as a text, not by {type(source).__name__}")
        if is_text(source):
            made = cls.from_yaml(str(source), variables=variables, strict=strict)
        else:
            made = cls.from_yaml(text_of(source), os.fspath(source), variables, strict)
        return made if metadata is None else made.described(metadata)

    @staticmethod
    def compose_staged(base: Recipe | Path, additional: Recipe | Path, keep_original_epochs: bool = False) -> Recipe:
        """Two recipes as stages, the second after the first."""
        return compose_staged(base, additional, keep_original_epochs)

    def described(self, metadata: Metadata) -> Recipe:
        """With other metadata, in every stage, and the versions that made it."""
        versions = {"python_version": platform.python_version(), "onnxsparse_version": __version__}
        made = {**_told(metadata), FRAMEWORK: versions}
        old = [self.metadata, *(stage.metadata for stage in self.stages)]
        notes = ("the metadata of the recipe was replaced",) if any(old) else ()
        stages = tuple(dataclasses.replace(stage, metadata=made) for stage in self.stages)
        whole = None if stages else made
        return dataclasses.replace(self, stages=stages, metadata=whole, notes=(*self.notes, *notes))


def _check_whole(modifiers: Iterable[Modifier], last: float) -> None:
    """What a modifier does to the end of the recipe is known when all others are."""
    for one in modifiers:
        if isinstance(one, Scheduled):
            try:
                one.check_until(last)
            except OptionError as error:
                raise PlanError(f"{one.called}: {error}") from None


def _told(metadata: Any) -> Metadata:
    """What a program knows of a run, as a recipe can hold it: any other object is its text."""
    if not isinstance(metadata, Mapping):
        raise PlanError(f"metadata are names with values, not {type(metadata).__name__}")
    return {_word(name): _plainly(value) for name, value in metadata.items()}


def _plainly(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _told(value)
    if isinstance(value, (list, tuple)):
        return [_plainly(one) for one in value]
    if isinstance(value, float):
        return float(value)  # also one of numpy
    return value if value is None or isinstance(value, int) else _word(value)


def _word(value: Any) -> str:
    return as_text(str(value), "a text of the metadata")


def _settled(metadata: Metadata | None) -> Metadata | None:
    """Lists as tuples: as they are read back."""
    return None if metadata is None else plain(from_python(metadata))


def _assembled(found: list[Read], staged: bool, called: str, strict: bool) -> Recipe:
    for one in found:
        if one.metadata not in (None, UNSAID) and not isinstance(one.metadata, dict):
            raise PlanError(f"{called}, line 1: the metadata of a recipe are names with values")
    nothing: Metadata | None = {} if any(isinstance(one.metadata, dict) for one in found) else None
    found = [dataclasses.replace(one, metadata=nothing) if one.metadata == UNSAID else one for one in found]
    if not staged:
        return Recipe(found[0].modifiers, (), found[0].metadata, strict)
    with_metadata = [one.name for one in found if one.metadata is not None]
    if with_metadata and len(with_metadata) < len(found):
        raise PlanError(
            f"{called}, line 1: either all stages have metadata or none has; only {with_metadata[0]:.40} has"
        )
    return Recipe((), tuple(Stage(one.name, one.modifiers, one.metadata) for one in found), None, strict)


# -- the order in which modifiers act
#
# 1. Sorted by the end, with those that never end last, then by the start, then by the identifier. What ends later acts
#    later in a step, and so has the last word.
# 2. Those of our own come first, in the order in which they are written: they are the frame of a run.
# 3. Every start and end counts for how long a run is, not only those of an EpochRangeModifier.


def epochs_of(modifier: Modifier) -> tuple[float, float]:
    """Start and end of a modifier; -1 where it has none."""
    found = (getattr(modifier, "start_epoch", -1.0), getattr(modifier, "end_epoch", -1.0))
    return found[0], found[1]


def has_epochs(modifier: Modifier) -> bool:
    return hasattr(modifier, "start_epoch")


def in_order(modifiers: Iterable[Modifier]) -> tuple[Modifier, ...]:
    """Modifiers as they act."""
    modifiers = tuple(modifiers)
    own = [one for one in modifiers if not has_epochs(one)]
    return (*own, *sorted((one for one in modifiers if has_epochs(one)), key=_place))


def _place(modifier: Modifier) -> tuple[float, float, str]:
    start, end = epochs_of(modifier)
    return (math.inf if end < 0 else end), start, writing.identifier(modifier)


def _stage_place(stage: Stage) -> tuple[float, float, str]:
    """By the latest end that there is, the earliest start, and the last identifier."""
    timed = [one for one in stage.modifiers if has_epochs(one)]
    latest = max((epochs_of(one)[1] for one in timed), default=-1.0)
    start = min((epochs_of(one)[0] for one in timed), default=-1.0)
    return math.inf if latest < 0 else latest, start, max(map(writing.identifier, timed), default="")


# -- two recipes become one
#
# 1. The second begins where the first ends: its epochs are moved by the first one's last epoch. What never ends in the
#    first ends there, but for what is set once and for quantization, which does not end.
# 2. With `keep_original_epochs` no epoch moves.
# 3. A recipe without stages becomes one: `stage_0` before and `stage_1` after, `pre_<first>` before a staged one, and
#    `stage_<n + 1>` after one with n stages. No two stages have one name.


def compose_staged(base: Given, additional: Given, keep_original_epochs: bool = False) -> Recipe:
    """The stages of one recipe, and those of another after them: what was done to a model, and what is done next."""
    first, second = (one if isinstance(one, Recipe) else Recipe.load(one) for one in (base, additional))
    before = f"pre_{second.stages[0].name}" if second.stages else "stage_0"
    after = f"stage_{len(first.stages) + 1}" if first.stages else "stage_1"
    earlier, later = _stages(first, before), _stages(second, after)
    names = [stage.name for stage in (*earlier, *later)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PlanError(f"both recipes have a stage {twice:.60}; rename one of the two")
    if not keep_original_epochs:
        end = float(max(first.max_epochs, 0))
        earlier = [_with(stage, [_until(one, end) for one in stage.modifiers]) for stage in earlier]
        later = [
            _with(stage, [one.advanced(end) if isinstance(one, Scheduled) else one for one in stage.modifiers])
            for stage in later
        ]
    stages = [*earlier, *later]
    if any(stage.metadata is not None for stage in stages):
        stages = [dataclasses.replace(stage, metadata=stage.metadata or {}) for stage in stages]
    return Recipe((), tuple(stages), None, first.strict and second.strict, (*first.notes, *second.notes))


def _stages(recipe: Recipe, name: str) -> Sequence[Stage]:
    return recipe.stages or (Stage(name, recipe.modifiers, recipe.metadata),)


def _with(stage: Stage, modifiers: Iterable[Modifier]) -> Stage:
    return dataclasses.replace(stage, modifiers=tuple(modifiers))


def _until(modifier: Modifier, end: float) -> Modifier:
    if not isinstance(modifier, Scheduled) or modifier.end_epoch != NEVER or "end_epoch" in modifier.unwritten:
        return modifier
    return changed(modifier, end_epoch=max(end, modifier.start_epoch))


# -- the short text


class _Tagged:
    def __init__(self, modifier: Modifier) -> None:
        self.modifier = modifier


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent(dumper: _Dumper, tagged: _Tagged) -> yaml.Node:
    """What is not there by default anyway: an option that may be left out is."""
    values = {}
    for one in dataclasses.fields(tagged.modifier):  # type: ignore[arg-type]
        value = getattr(tagged.modifier, one.name)
        if not (value == one.default and (value is None or value == ())):
            values[one.name] = list(value) if isinstance(value, tuple) else value
    return dumper.represent_mapping(f"!{tagged.modifier.name}", values)


def _written(dumper: _Dumper, text: str) -> yaml.Node:
    """In quotes where a reader would otherwise see something else."""
    style = "'" if reads_as_other(text) or text == "None" else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(_Tagged, _represent)
_Dumper.add_representer(str, _written)
