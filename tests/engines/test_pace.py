"""Rates, decays and what is held, by tag: each engine moves every array as it is told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import onnxsparse as osp
from onnxsparse.acts.act import Act
from onnxsparse.engines.engine import Pace
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.torch import library as torch_library
from onnxsparse.errors import OptionError
from onnxsparse.recipes.modifiers.modifier import Modifier
from onnxsparse.recipes.modifiers.pruning import Pruning
from onnxsparse.recipes.modifiers.training import KeepBest, Objective, Training
from tests.messages import refusing

ENGINES = [
    pytest.param("ort", marks=pytest.mark.skipif(not ort_library.available(), reason="needs onnxruntime-training")),
    pytest.param("torch", marks=pytest.mark.skipif(not torch_library.available(), reason="needs torch")),
]
RATE = 0.01


@dataclass(frozen=True)
class Paced(Modifier):
    """Says how fast each array goes, and writes down how it moved."""

    name: ClassVar[str] = "paced"
    pace: ClassVar[Pace] = Pace(RATE)
    seen: ClassVar[list[Any]] = []

    def start(self, run: Any) -> Act:
        return PacedAct(self, run)


def paced(*by_tag: Any, decay: float = 0.0) -> Paced:
    made = type("Fresh", (Paced,), {"pace": Pace(RATE, decay, 0.0, *by_tag), "seen": []})()
    assert isinstance(made, Paced)
    return made


class PacedAct(Act):
    def __init__(self, options: Paced, run: Any) -> None:
        self.options, self.run = options, run

    def before_step(self, trainee: Any, step: int) -> None:
        trainee.settings = self.options.pace

    def before_update(self, trainee: Any, step: int) -> None:
        engine = self.run.engine
        self.before = {tag: array.copy() for tag, array in engine.weights.items()}
        self.gradients = {tag: np.array(array) for tag, array in engine.gradients().items()}

    def after_step(self, trainee: Any, step: int) -> None:
        after = {tag: array.copy() for tag, array in self.run.engine.weights.items()}
        self.options.seen.append((self.before, self.gradients, after))


def moved(model: Path, engine: str, given: Paced, optimizer: str = "sgd:momentum=0.0", sparser: str = "mask") -> Any:
    data = {"x": np.random.default_rng(0).standard_normal((128, 1, 8, 8)).astype(np.float32)}
    pruning = Pruning(pattern="unstructured", sparsity=0.5, sparser=sparser)
    training = Training(steps=2, optimizer=optimizer, batch=32)
    recipe = osp.Recipe((training, Objective(), pruning, KeepBest(retries=0), given))
    osp.finetune(model, data=data, recipe=recipe, engine=engine)
    return given.seen[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_tag_goes_at_its_own_pace(digits_cnn: Path, engine: str) -> None:
    before, _, _ = moved(digits_cnn, engine, paced())
    slow, still, decayed, *_ = sorted(before)
    given = paced({slow: RATE / 8}, {decayed: 0.25}, frozenset([still]), decay=0.5)
    before, gradients, after = moved(digits_cnn, engine, given)
    assert (after[still] == before[still]).all()
    for tag in set(gradients) - {still}:
        decay = 0.25 if tag == decayed else 0.5 if before[tag].ndim > 1 else 0.0
        rate = RATE / 8 if tag == slow else RATE
        wanted = before[tag] - rate * (gradients[tag] + decay * before[tag])
        np.testing.assert_allclose(after[tag], wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_sparser_trains_has_a_tag_too(digits_cnn: Path, engine: str) -> None:
    before, _, _ = moved(digits_cnn, engine, paced(), sparser="soft-threshold")
    extra = sorted(tag for tag in before if "/" in tag)
    assert len(extra) > 1
    given = paced({extra[0]: 0.0}, {}, frozenset(extra[1:]))
    before, _, after = moved(digits_cnn, engine, given, sparser="soft-threshold")
    assert all((after[tag] == before[tag]).all() for tag in extra)
    assert any((after[tag] != before[tag]).any() for tag in before if "/" not in tag)


@pytest.mark.skipif(not ort_library.available(), reason="needs onnxruntime-training")
@pytest.mark.parametrize("by_tag", [({"t0": 0.1},), ({}, {"t0": 0.1}), ({}, {}, frozenset(["t0"]))])
def test_the_engines_own_optimizer_refuses(digits_cnn: Path, by_tag: tuple[Any, ...]) -> None:
    with refusing(OptionError):
        moved(digits_cnn, "ort", paced(*by_tag), "ort-adamw")


def test_held_gradients_count_nowhere() -> None:
    gradients = {"a": np.ones(2, np.float32), "b": np.full(2, np.nan, np.float32)}
    pace = Pace(0.1)
    assert pace.uniform
    assert pace.moving(gradients) is gradients
    assert list(replace(pace, held=frozenset("b")).moving(gradients)) == ["a"]
