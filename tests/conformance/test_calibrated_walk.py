"""Every little model pruned by samples: nothing fails, the pattern holds, and every row says what was done and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from graphs.builders import CASES
from graphs.expectations import EVERYTHING
from graphs.running import refusal

from onnxsparse.calibration.moments import Samples
from onnxsparse.calibration.sensitivity import nothing_known
from onnxsparse.graph.model import Model
from onnxsparse.options import SparsityOptions
from onnxsparse.passes.calibrate import Calibration, named_states
from onnxsparse.passes.delivery import deliver
from onnxsparse.planning.request import planned

pytest.importorskip("onnxruntime")


def calibrated(name: str, pattern: str) -> Any:
    """A little model on random samples, of which each is a batch, as it is delivered."""
    built, generator = CASES[name].build(), np.random.default_rng(0)
    model = Model.over(onnx.ModelProto.FromString(built.model.SerializeToString()))
    plan, _ = planned(model, None, None, SparsityOptions(pattern=pattern, allow=EVERYTHING))

    def like(array: Any) -> np.ndarray:
        array = np.asarray(array)
        floats = array.dtype.kind == "f" and array.size > 1
        return generator.standard_normal(array.shape).astype(array.dtype) if floats else array

    feeds = [dict(built.feeds), *({key: like(one) for key, one in built.feeds.items()} for _ in range(2))]
    with named_states(model):
        done = Calibration(model, plan, Samples(feeds, [1] * 3, 1), nothing_known).swept(plan)
    return done.plan, deliver(model, done.plan, done.numbers, done.tags, None)


@pytest.mark.parametrize("part", range(4))
def test_every_little_model_holds_its_pattern_and_every_row_says_what_was_done(part: int) -> None:
    names = [name for name, case in CASES.items() if case.build().runs and not case.build().files]
    wrong = []
    for name in names[part::4]:
        if refusal(name):
            continue
        plan, made = calibrated(name, "2:4")
        if not made.report.ok or not all(row.reason for row in plan.planned):
            wrong.append(name)
    assert not wrong
