"""Recipes as YAML: what is written comes back, and what is wrong is said in one line."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onnxsparse import optimizers, plugins, rates, schedules, sparsers
from onnxsparse.errors import OnnxSparseError, OptionError, PlanError
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.modifiers.levels import Levels
from onnxsparse.recipes.modifiers.modifier import Scheduled
from onnxsparse.recipes.modifiers.pruning import REGROW, Pruning
from onnxsparse.recipes.modifiers.quantization import TrainQuantized
from onnxsparse.recipes.modifiers.training import DISTILLATIONS, TASKS, KeepBest, Objective, Training
from onnxsparse.recipes.yaml_tree import LONGEST
from tests.cases import for_each
from tests.messages import refusing

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
WORDS = st.one_of(
    TEXT, st.sampled_from(["null", "~", "true", "2:4", "1e-3", "1E3", "inf", "0.9", "", " ", "0x10", "!x", "&a", "*a"])
)
SHARE, POSITIVE, RATE = st.floats(0, 1), st.integers(1, 10**9), st.floats(1e-30, 1e9)


def texts(kind) -> st.SearchStrategy[str]:
    """The texts of all plug-ins of a kind with their defaults."""
    return st.sampled_from([cls().text for cls in plugins.ours(kind.__name__.rpartition(".")[2]).values()])


def maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | strategy


@st.composite
def trainings(draw) -> Training:
    epochs = draw(maybe(RATE))
    return Training(
        epochs,
        None if epochs is not None else draw(maybe(POSITIVE)),
        draw(maybe(POSITIVE)),
        draw(POSITIVE),
        draw(texts(optimizers)),
        draw(maybe(RATE)),
        draw(texts(rates)),
        *(draw(st.floats(0, 1e30)) for _ in range(3)),
        draw(st.booleans()),
        draw(st.integers(0, 2**64 - 1)),
    )


@st.composite
def objectives(draw) -> Objective:
    loss = draw(st.sampled_from((*TASKS, *DISTILLATIONS)))
    hardness = draw(maybe(SHARE)) if loss in TASKS else None
    return Objective(loss, hardness, draw(RATE), draw(st.sampled_from(DISTILLATIONS)), draw(WORDS))


@st.composite
def prunings(draw) -> Pruning:
    begin, end = sorted(draw(st.tuples(SHARE, SHARE)))
    names = st.lists(WORDS, max_size=3).map(tuple)
    return Pruning(
        *(draw(maybe(WORDS)) for _ in range(2)),
        draw(maybe(WORDS | SHARE)),
        *(draw(maybe(WORDS)) for _ in range(2)),
        *(draw(names) for _ in range(3)),
        draw(maybe(texts(schedules))),
        draw(st.floats(0, 1, exclude_max=True)),
        begin,
        end,
        draw(POSITIVE),
        draw(st.sampled_from(REGROW)),
        draw(SHARE),
        draw(texts(sparsers)),
    )


@st.composite
def levels(draw) -> Levels:
    found = draw(st.lists(st.integers(0, 99), min_size=1, max_size=5, unique=True))
    return Levels(",".join(str(level) for level in sorted(found)))


@st.composite
def quantizations(draw) -> TrainQuantized:
    begin, freeze = sorted(draw(st.lists(st.integers(0, 100), min_size=2, max_size=2, unique=True)))
    return TrainQuantized(begin=begin / 100, freeze=freeze / 100, learn_scales=draw(st.booleans()))


MODIFIERS = st.one_of(
    trainings(), objectives(), prunings(), levels(), quantizations(),
    st.builds(KeepBest, st.integers(1, 9), st.integers(0, 20)),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(MODIFIERS, max_size=4))
def test_what_is_written_comes_back(modifiers: list) -> None:
    recipe = Recipe(tuple(modifiers))
    text = recipe.to_yaml()
    assert Recipe.from_yaml(text) == recipe
    assert Recipe.from_yaml(text).to_yaml() == text


OWN = ("training", "objective", "pruning", "keep-best", "levels", "quantization")


def test_every_modifier_is_tried_above() -> None:
    assert {name for name, cls in plugins.ours("modifiers").items() if not issubclass(cls, Scheduled)} == set(OWN)


def read(options: str, tag: str = "pruning"):
    return Recipe.from_yaml(f"modifiers:\n- !{tag}\n" + "".join(f"  {line}\n" for line in options.splitlines()))


@for_each(
    ("text", "made"),
    [
        ("pattern: 2:4", Pruning("2:4")),
        ("pattern: 12:16", Pruning("12:16")),
        ("pattern: '2:4'", Pruning("2:4")),
        ("sparsity: 0.9", Pruning(sparsity=0.9)),
        ("sparsity: '0.9'", Pruning(sparsity="0.9")),
        ("sparsity: 1e-1", Pruning(sparsity=0.1)),
        ("begin: .25\nend: 1", Pruning(begin=0.25, end=1.0)),
        ("start-sparsity: 2e-1", Pruning(start_sparsity=0.2)),
        ("updates: 1e3", Pruning(updates=1000)),
        ("updates: 12.0", Pruning(updates=12)),
        ("include: head", Pruning(include=("head",))),
        ("include: [1, 2024-01-01, no]", Pruning(include=("1", "2024-01-01", "no"))),
        ("include: []", Pruning()),
        ("pattern:", Pruning()),
        ("pattern: null\nsparsity: ~", Pruning()),
        ("sparser: probabilistic:anneal=true", Pruning(sparser="probabilistic:anneal=true")),
    ],
)
def test_values_are_what_their_option_says(text: str, made: Pruning) -> None:
    assert read(text).modifiers == (made,)


def test_numbers_of_any_length() -> None:
    assert read("seed: 18446744073709551615\nrate: 1e-3\ntrain_bn: yes", "training").modifiers == (
        Training(seed=2**64 - 1, rate=1e-3, train_bn=True),
    )
    assert read("").modifiers == (Pruning(),)


@for_each(
    ("text", "says"),
    [
        ("", "no recipe"),
        ("[1]", "line 1: an entry of `modifiers` has no tag such as !GMPruningModifier"),
        ("5", "line 1: this is no recipe"),
        ("modifiers: 3", "line 1: `modifiers` is a list"),
        ("modifier:\n- !pruning", "line 2: no modifiers are found; 'modifier': did you mean modifiers?"),
        ("modifiers:\n- pruning", "line 2: an entry of `modifiers` has no tag"),
        ("modifiers:\n- {a: 1}", "line 2: an entry of `modifiers` has no tag"),
        ("modifiers:\n- !prunning", "line 2: unknown modifier !prunning (did you mean pruning"),
        ("modifiers:\n- !zzz", "(`onnxsparse list modifiers` shows"),
        ("modifiers:\n- !pruning 5", "line 2: under !pruning come options"),
        ("modifiers:\n- !pruning [1]", "line 2: under !pruning come options"),
        ("modifiers:\n- !pruning\n  sparsiti: 1", "line 3: !pruning has no option 'sparsiti' (did you mean sparsity"),
        ("modifiers:\n- !pruning\n  start-sparsity: 0\n  start_sparsity: 0", "line 4: start_sparsity of"),
        ("modifiers:\n- !pruning\n  pattern: [2, 4]", "line 3: pattern of !pruning: it takes one value, not a list"),
        ("modifiers:\n- !pruning\n  pattern: {2: 4}", "line 3: pattern of !pruning: it takes no mapping"),
        ("modifiers:\n- !pruning\n  include: [[a]]", "line 3: include of !pruning: it takes one value, not a list"),
        ("modifiers:\n- !pruning\n  updates: 1.5", "line 3: updates of !pruning: '1.5' is no whole number"),
        ("modifiers:\n- !pruning\n  updates: .inf", "line 3: updates of !pruning: '.inf' is no whole number"),
        ("modifiers:\n- !pruning\n  end: soon", "line 3: end of !pruning: 'soon' is no number"),
        ("modifiers:\n- !pruning\n  end: .nan", "line 2: !pruning: a schedule lies within 0 to 1"),
        ("modifiers:\n- !pruning\n  end:", "line 3: end of !pruning: it has no value"),
        ("modifiers:\n- !training\n  train_bn: 2", "line 3: train_bn of !training: '2' is no true or false"),
        ("modifiers:\n- !training\n\n  # more\n  optimizer: adamm", "line 2: !training: unknown optimizer 'adamm'"),
        ("modifiers:\n- !training\n  epochs: 1\n  steps: 1", "line 2: !training: epochs= and steps="),
        ("modifiers:\n- !pruning\n  include: &a [*a]", "line 3: *a stands for something inside itself"),
        ("modifiers:\n- !pruning\n  include: *a", "line 3: *a stands for something, which no anchor names"),
        ("modifiers:\n- !pruning\n  <<: 5", "line 3: << takes a mapping"),
        ("modifiers:\n- !!python/object/apply:os.system [ls]", "line 2: a value has no tag"),
        ("modifiers:\n- !pruning\n  pattern: !!python/name:os.system x", "line 3: a value has no tag"),
        ("modifiers:\n- !pruning\n  end: !!int 1", "line 3: a value has no tag"),
        ("modifiers:\n- !pruning\n  include: !!set [a]", "line 3: a value has no tag"),
        ("modifiers: [", "line 1: "),
        ("modifiers:\n\t- !pruning", "line 2: "),
        ("a: b: c", "line 1: "),
        ("modifiers: []\n---\nmodifiers: []", "line 2: "),
        ("\x00", "line 1: the character '\\x00' cannot"),
        ("[" * 5000, "line 1: it is nested too deeply"),
        ("x" * (LONGEST + 1), "line 1: it is longer than 1 MB"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, says: str) -> None:
    with pytest.raises(PlanError) as caught:
        Recipe.from_yaml(text, "r.yaml")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


VALID = Recipe((Training(), Objective(), Pruning("2:4", include=("a", "b")), KeepBest())).to_yaml()
PIECES = st.sampled_from(
    ["!", "!!", "&a ", "*a", "- ", ": ", "\n", "  ", "[", "]", "{", "}", "? ", "<<", "%YAML 1.9\n", "---", "...", "|",
     ">", "'", '"', "\\", "#", ",", "\t", "\x85", "\ufeff", "1e999", "9" * 400, ".nan", "!!int x", "!!set", "0o9", "@"]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(VALID)), st.integers(0, 12), PIECES | TEXT), max_size=4))
def test_no_text_ends_in_a_traceback(changes: list) -> None:
    text = VALID
    for at, gone, put in changes:
        text = text[:at] + put + text[at + gone :]
    made, problem = outcome_of(text)
    if made is None:
        assert "\n" not in problem
        assert re.match(r"r.yaml, line [1-9]\d*: .", problem)
    else:
        assert Recipe.from_yaml(made.to_yaml()) == made


def outcome_of(text: str) -> tuple[Recipe | None, str]:
    try:
        return Recipe.from_yaml(text, "r.yaml"), ""
    except OnnxSparseError as error:
        return None, str(error)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
@example("modifiers:\n- !training\n  steps: 1_0_0\n")
def test_nor_does_any_other(text: str) -> None:
    outcome_of(text)


def test_an_alias_bomb_is_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 12)]
    with refusing(PlanError):
        Recipe.from_yaml("\n".join(lines))


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(VALID, encoding="utf-8")
    assert Recipe.load(str(path)).to_yaml() == VALID
    path.write_bytes(b"modifiers: \xff")
    with refusing(PlanError):
        Recipe.load(str(path))
    with refusing(PlanError):
        Recipe.load(str(tmp_path / "none.yaml"))
    with refusing(PlanError):
        Recipe.load(str(tmp_path))


def test_other_readers_of_yaml_see_the_same_numbers() -> None:
    """A recipe that we write is plain YAML: nothing in it means something else elsewhere."""
    plain = yaml.safe_load(VALID.replace("!", "#"))
    assert "modifiers" in plain


def test_one_of_a_kind() -> None:
    recipe = Recipe((Pruning("2:4"), Training(steps=5)))
    assert recipe.only(Pruning) == Pruning("2:4")
    assert recipe.only(KeepBest) == KeepBest()
    assert recipe.whole((Training, Pruning, KeepBest)).modifiers == (Training(steps=5), Pruning("2:4"), KeepBest())
    with refusing(PlanError):
        Recipe((Pruning(), Pruning())).only(Pruning)


@pytest.mark.parametrize("cls", [plugins.ours("modifiers")[name] for name in OWN])
def test_every_option_of_a_modifier_can_stand_in_a_recipe(cls: type) -> None:
    """Types are those that a recipe can hold, and all have defaults."""
    known = {"str", "int", "float", "bool", "None", "tuple[str, ...]"}
    for field in dataclasses.fields(cls):
        assert {one.strip() for one in str(field.type).split("|")} <= known
        assert field.default is not dataclasses.MISSING


@pytest.mark.parametrize(
    "make",
    [
        lambda: Training(steps=2.5),
        lambda: Training(batch=8.0),
        lambda: Training(rate=float("nan")),
        lambda: Training(weight_decay=float("inf")),
        lambda: Pruning(end=float("nan")),
        lambda: Pruning(updates=0),
        lambda: KeepBest(checks=0.5),
    ],
)
def test_options_that_mean_nothing_are_refused_in_python_too(make) -> None:
    with pytest.raises(OptionError):
        make()
