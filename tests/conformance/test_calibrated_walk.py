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
from onnxsparse.passes.added_biases import with_biases
from onnxsparse.passes.calibrate import Calibration, named_states
from onnxsparse.passes.delivery import deliver, in_model
from onnxsparse.planning.request import planned
from onnxsparse.solvers import parse

pytest.importorskip("onnxruntime")


def calibrated(name: str, pattern: str, add_bias: bool = False) -> Any:
    """A little model on random samples, of which each is a batch, as it is delivered."""
    built, generator = CASES[name].build(), np.random.default_rng(0)
    model = Model.over(onnx.ModelProto.FromString(built.model.SerializeToString()))
    plan, _ = planned(model, None, None, SparsityOptions(pattern=pattern, allow=EVERYTHING))

    def like(array: Any) -> np.ndarray:
        array = np.asarray(array)
        floats = array.dtype.kind == "f" and array.size > 1
        return generator.standard_normal(array.shape).astype(array.dtype) if floats else array

    feeds = [dict(built.feeds), *({key: like(one) for key, one in built.feeds.items()} for _ in range(2))]
    biased = with_biases(model, plan) if add_bias else None
    of, samples = model if biased is None else biased.model, Samples(feeds, [1] * 3, 0 if add_bias else 1)
    with named_states(of):
        own = in_model(of, plan)
        solver = parse("bias") if add_bias else None
        done = Calibration(of, own, samples, nothing_known, None, solver).swept(own)
    done = done if biased is None else biased.of_file(done)
    return done.plan, deliver(model, done.plan, done.numbers, done.tags, None, biases=done.biases)


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


@pytest.mark.parametrize("part", range(2))
def test_every_little_model_runs_with_new_biases(part: int) -> None:
    """In the runtime that is there, with the outputs that they had."""
    import onnxruntime as ort

    names = [name for name, case in CASES.items() if case.build().runs and not case.build().files]
    wrong, added = [], 0
    for name in names[part::2]:
        if refusal(name):
            continue
        plan, made = calibrated(name, "2:4", add_bias=True)
        new = sum("' created" in row.reason for row in plan.planned)
        if not new:
            wrong += [] if made.report.ok else [name]
            continue
        built = CASES[name].build()
        session = ort.InferenceSession(made.proto.SerializeToString(), providers=["CPUExecutionProvider"])
        session.run(None, dict(built.feeds))
        same = [value.name for value in made.proto.graph.output] == [value.name for value in built.model.graph.output]
        wrong += [] if made.report.ok and same else [name]
        added += new
    assert not wrong
    assert added > 20
