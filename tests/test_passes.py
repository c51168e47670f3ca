"""All passes and checks have one shape: listed, called, logged and refused alike."""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
import re
import sys
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxsparse import passes
from onnxsparse.errors import OptionError, PlanError
from onnxsparse.graph.model import Model
from onnxsparse.passes.fold_masks import FoldMasks
from onnxsparse.passes.insert_masks import InsertMasks
from onnxsparse.passes.inspect import Inspect
from onnxsparse.passes.model_pass import Changed, Check, Pass
from onnxsparse.passes.prune import Prune
from onnxsparse.passes.verify import Verify
from onnxsparse.planning.plan import make_plan
from onnxsparse.planning.rule import Rule

for module in pkgutil.iter_modules(passes.__path__):
    importlib.import_module(f"{passes.__name__}.{module.name}")

CHANGES = sorted(Pass.__subclasses__(), key=lambda one: one.__name__)
CHECKS = sorted(Check.__subclasses__(), key=lambda one: one.__name__)


def model(opset: int = 13) -> Model:
    weight = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="layer")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16]) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", values[:1], values[1:], [numpy_helper.from_array(weight, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return Model.open(made)


def planned(opened: Model) -> Any:
    return make_plan(opened, Rule.make("2:4", allow=("small",)))


def test_the_passes_are_these() -> None:
    changes = ["FoldMasks", "FoldSoft", "InsertMasks", "InsertSoft", "Permute", "Prune"]
    assert [one.__name__ for one in CHANGES] == changes
    assert [one.__name__ for one in CHECKS] == ["CheckFold", "Compare", "Inspect", "Verify"]


@pytest.mark.parametrize("one", [*CHANGES, *CHECKS], ids=lambda one: one.__name__)
def test_a_pass_is_call_of_model(one: type) -> None:
    """`call(model)` and, where something may stand against it, `refusal(model)`; the rest of it is its own."""
    given = inspect.signature(one.call)  # type: ignore[attr-defined]
    assert list(given.parameters) == ["self", "model"]
    assert given.return_annotation == ("Changed" if issubclass(one, Pass) else "Report")
    own = {name for name in vars(one) if not name.startswith("_") and inspect.isfunction(vars(one)[name])}
    assert own - {"call", "refusal"} <= {"demand", "after"}
    assert one.__doc__


@pytest.mark.parametrize("one", [*CHANGES, *CHECKS], ids=lambda one: one.__name__)
def test_its_module_says_what_it_does_in_numbered_sentences(one: type) -> None:
    said = sys.modules[one.__module__].__doc__ or ""
    assert re.search(r"^1\. ", said, re.MULTILINE), one.__module__
    assert re.search(r"^2\. ", said, re.MULTILINE), one.__module__


def test_passes_follow_each_other_and_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    opened = model()
    made = planned(opened)
    with caplog.at_level(logging.DEBUG, "onnxsparse"):
        changed = InsertMasks(made)(opened)
        folded = FoldMasks()(opened)
        report = Verify("m", Rule.make("2:4", allow=("small",)))(Model.over(opened.take_proto()))
    assert [one.name for one in changed.weights] == [one.name for one in folded.weights] == ["w"]
    assert report.ok
    assert [row.status for row in report.rows] == ["holds"]
    assert [line.getMessage() for line in caplog.records] == [
        "InsertMasks: 1 weights, 0 left", "FoldMasks: 1 weights, 0 left", "Verify: 1 weights, ok",
    ]  # fmt: skip


def test_what_stands_against_a_pass_is_said_before_anything_is_done() -> None:
    opened = model(opset=8)
    before = opened.proto.SerializeToString()
    with pytest.raises(OptionError, match='form="where" needs opset 9'):
        InsertMasks(planned(opened), "where")(opened)
    with pytest.raises(PlanError, match="weight 'w' of the plan is one of another model"):
        Prune(planned(model()))(opened)
    assert opened.proto.SerializeToString() == before
    assert not any(tensor.edit for tensor in opened.flow.stores.homes)


def test_a_check_changes_nothing() -> None:
    opened = model()
    before = opened.proto.SerializeToString()
    assert Inspect("m")(opened).row("w").size == 256
    assert opened.proto.SerializeToString() == before


def test_changed_says_what_became_of_each_weight() -> None:
    (weight,) = model().weights
    assert Changed({weight: ""}).weights == (weight,)
    assert not Changed({weight: ""}).left
    assert (Changed() | Changed({weight: "no"})).left == {weight: "no"}
