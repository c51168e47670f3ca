"""Along which axis the classes lie: for kl in both engines, and for `agreement`; the graph's word, and the user's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import onnxsparse as osp
from onnxsparse import losses
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.torch import library as torch_library
from onnxsparse.errors import OnnxSparseError
from onnxsparse.graph.class_axis import axis_in
from onnxsparse.losses import class_axis
from onnxsparse.metrics import parse
from tests.engines.small_nets import net, numbers, pixels, run, tagger
from tests.messages import refusing

ENGINES = [
    pytest.param("ort", marks=pytest.mark.skipif(not ort_library.available(), reason="needs onnxruntime-training")),
    pytest.param("torch", marks=pytest.mark.skipif(not torch_library.available(), reason="needs torch")),
]


def test_the_rule() -> None:
    assert [class_axis(rank) for rank in range(6)] == [0, 0, 1, 2, 1, 1]
    assert class_axis(3, 1) == 1
    assert class_axis(4, -1) == 3
    assert class_axis(3, 7) == 2  # what does not exist says nothing


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (tagger(), -1),
        (tagger(turned=True), 1),
        (tagger(softmax=-1), -1),
        (tagger(softmax=2), 2),
        (tagger(turned=True, softmax=1), 1),
        (pixels(), 1),
    ],
)
def test_what_the_graph_says(model: ModelProto, said: int) -> None:
    assert axis_in(model, "y") == said


def test_what_a_softmax_reads_is_known_by_it() -> None:
    assert axis_in(tagger(turned=True, softmax=1), "turned") == 1


def test_a_reshape_says_nothing() -> None:
    from onnx.helper import make_node

    nodes = [make_node("MatMul", ["x", "w"], ["a"]), make_node("Reshape", ["a", "shape"], ["y"])]
    made = net(nodes, {"w": numbers(6, 8), "shape": np.array([-1, 2, 4])}, ["N", 6], {"y": ["N", 2, 4]})
    assert axis_in(made, "y") is None


CASES: dict[str, tuple[ModelProto, tuple[int, ...], str, int]] = {
    "tokens": (tagger(), (5, 6), "kl", 2),
    "turned": (tagger(turned=True), (5, 6), "kl", 1),
    "said": (tagger(), (5, 6), "kl:axis=1", 1),
    "pixels": (pixels(), (4, 6, 6), "kl", 1),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_kl_goes_along_the_classes(case: str, engine: str) -> None:
    """The loss that is told is that of the delivered file, by the definition."""
    model, shape, loss, axis = CASES[case]
    x, other = numbers(64, *shape), numbers(32, *shape, seed=9)
    found = osp.finetune(
        model, data={"x": x}, eval_data={"x": other}, pattern="unstructured", sparsity=0.5, allow=["output", "small"],
        loss=loss, steps=6, engine=engine, metrics=["loss", "agreement"], retries=0,
    )  # fmt: skip
    ours, dense = run(found.model, other)["y"], run(model, other)["y"]
    told: Any = found.report.details["metrics"]
    wanted = losses.parse(f"kl:axis={axis}").value([ours], [dense])
    assert told["loss"] == pytest.approx(wanted, rel=1e-3)
    if loss == "kl":
        assert told["agreement"] == pytest.approx(np.mean(ours.argmax(axis) == dense.argmax(axis)))


def test_agreement_along_an_axis_of_the_users() -> None:
    one, other = numbers(8, 3, 5, seed=1), numbers(8, 3, 5, seed=2)
    for text, axis in (("agreement", 2), ("agreement:axis=1", 1), ("agreement:axis=-2", 1)):
        meter = parse(text).meter()
        meter.add({"y": one}, {"y": other}, {})
        assert meter.result() == {"agreement": pytest.approx(np.mean(one.argmax(axis) == other.argmax(axis)))}
        assert parse(text).text == text
    with refusing(OnnxSparseError):
        parse("agreement:axis=3").meter().add({"y": one}, {"y": other}, {})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": "mse:scale=3"}, "takes no options"),
        ({"loss": "cross-entropy:ignore=3"}, "labels to leave out are -100"),
        ({"loss": "kl:axis=x"}, "axis takes a value of type int"),
        ({"loss": "kl:axis=1", "distillation": "nothing:axis=1"}, "distillation= is one of"),
        ({"loss": "kl:temperature=3", "temperature": 5.0}, "said twice"),
        ({"loss": "kl:axis=3"}, "no such axis"),
    ],
)
def test_what_cannot_be_meant_is_one_line(options: dict[str, Any], words: str) -> None:
    if "no such" in words and not ort_library.available():
        pytest.skip("needs onnxruntime-training")
    with pytest.raises(OnnxSparseError, match=words):
        osp.finetune(tagger(), data={"x": numbers(32, 5, 6)}, pattern="2:4", allow=["output", "small"], **options)


def test_options_of_a_loss_are_those_of_the_run() -> None:
    from onnxsparse.recipes.modifiers.training import Objective

    one = Objective(loss="kl:temperature=3,axis=1")
    assert (one.kind_of_distillation, one.softness, one.axis, one.task) == ("kl", 3.0, 1, "")
    two = Objective(loss="cross-entropy", distillation="kl:axis=-1", temperature=4.0)
    assert (two.kind_of_distillation, two.softness, two.axis, two.task) == ("kl", 4.0, -1, "cross-entropy")
