"""One definition of the distance, one number in both engines: the units come from the same numbers, whatever is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto
from onnx.helper import make_node

import onnxsparse as osp
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.torch import library as torch_library
from onnxsparse.losses import (
    BY_COLUMN,
    IN_VARIANCES,
    KL,
    LOUDEST,
    Columns,
    Distill,
    Scores,
    are_scores,
    heard,
    scale_along,
)
from onnxsparse.train.batches import Feeding
from tests.engines.small_nets import net, numbers, run

both = pytest.mark.skipif(
    not (ort_library.available() and torch_library.available()), reason="needs both engines in one environment"
)
ALIKE = 1e-3
UNITS = np.float32([100, 3, 1e-2, 1e-3])
X = numbers(160, 8)


def trunk(width: int = 16) -> tuple[list[Any], dict[str, Any]]:
    nodes = [make_node("MatMul", ["x", "w1"], ["a"]), make_node("Relu", ["a"], ["b"])]
    nodes.append(make_node("MatMul", ["b", "w2"], ["c"]))
    return nodes, {"w1": numbers(8, 48, seed=1), "w2": numbers(48, width, seed=2) / 8}


def columns() -> ModelProto:
    """Two columns that vary by 1e6 as much, one that stands still, and shares of which all are rare."""
    nodes, stored = trunk(4)
    nodes += [make_node("Mul", ["c", "units"], ["d"]), make_node("Add", ["d", "shift"], ["y"])]
    return net(nodes, {**stored, "units": np.float32([1e3, 1, 1e-3, 0]), "shift": np.float32([5, 0, 0, 2])}, ["N", 8],
               {"y": ["N", 4]})  # fmt: skip


def detector() -> ModelProto:
    """[N, 6, 4]: four numbers of a box in units of their own, two scores behind a sigmoid, joined by Concat."""
    nodes, stored = trunk(24)
    nodes += [
        make_node("Reshape", ["c", "shape"], ["g"]),
        make_node("Split", ["g", "parts"], ["boxes", "scores"], axis=1),
        make_node("Mul", ["boxes", "units"], ["far"]),
        make_node("Sub", ["scores", "rare"], ["logits"]),
        make_node("Sigmoid", ["logits"], ["shares"]),
        make_node("Concat", ["far", "shares"], ["y"], axis=1),
    ]
    sizes = {"shape": np.array([-1, 6, 4]), "parts": np.array([4, 2])}
    more = {"units": UNITS.reshape(1, 4, 1) * 100, "rare": np.float32([7])}
    return net(nodes, {**stored, **sizes, **more}, ["N", 8], {"y": ["N", 6, 4]})


def several() -> ModelProto:
    """An output of logits, one of shares, one that no weight moves, and one of three axes."""
    nodes, stored = trunk(12)
    nodes += [
        make_node("Softmax", ["c"], ["shares"], axis=1),
        make_node("Mul", ["x", "two"], ["input"]),
        make_node("Reshape", ["c", "shape"], ["turned"]),
        make_node("Mul", ["turned", "units"], ["places"]),
    ]
    stored.update({"two": np.float32([2]), "shape": np.array([-1, 3, 4]), "units": UNITS})
    outputs = {"c": ["N", 12], "shares": ["N", 12], "input": ["N", 8], "places": ["N", 3, 4]}
    return net(nodes, stored, ["N", 8], outputs)


def rare() -> ModelProto:
    """Probabilities of 1e-18 beside logits: what hardly varies over the samples moves with the weights."""
    nodes, stored = trunk(4)
    nodes += [make_node("Sub", ["c", "much"], ["low"]), make_node("Exp", ["low"], ["tiny"])]
    return net(nodes, {**stored, "much": np.float32([40])}, ["N", 8], {"c": ["N", 4], "tiny": ["N", 4]})


def chosen() -> ModelProto:
    """The three largest of the scores: what one engine matches before the choice is not in the loss of any."""
    nodes, stored = trunk(12)
    nodes.append(make_node("TopK", ["c", "k"], ["y", "places"], axis=1))
    made = net(nodes[:-1], stored, ["N", 8], {"c": ["N", 12]})
    made.graph.node.append(nodes[-1])
    wide = net([make_node("Identity", ["x"], ["y"])], {"k": np.array([3])}, ["N", 3], {"y": ["N", 3]})
    made.graph.initializer.extend(wide.graph.initializer)
    del made.graph.output[:]
    made.graph.output.extend(wide.graph.output)
    return made


def classes(scale: float = 4.0) -> ModelProto:
    """Scores of ten classes, one of which is mostly likely."""
    nodes, stored = trunk(10)
    stored["w2"] = (stored["w2"] - stored["w2"].mean(axis=1, keepdims=True)) * np.float32(scale)
    return net([*nodes, make_node("Identity", ["c"], ["y"])], stored, ["N", 8], {"y": ["N", 10]})


NETS = {
    "classes": classes,
    "columns": columns,
    "detector": detector,
    "several": several,
    "rare": rare,
    "chosen": chosen,
}


def tuned(model: ModelProto, engine: str, **options: Any) -> Any:
    given = {"pattern": "2:4", "allow": ["output", "small"], "init": "plain", "steps": 3, "retries": 0, **options}
    return osp.finetune(model, data={"x": X}, engine=engine, optimizer="sgd", lr=1e-3, batch_size=16, **given).report


@both
@pytest.mark.parametrize("name", NETS)
def test_both_engines_report_the_same_loss(name: str) -> None:
    one, other = (tuned(NETS[name](), engine).details for engine in ("ort", "torch"))
    for key in ("loss_without_training", "loss"):
        assert one[key] == pytest.approx(other[key], rel=ALIKE), key
    assert one["loss_without_training"] > 1e-4
    assert one["loss_unit"] == other["loss_unit"]
    for key in ("metrics_without_training", "metrics"):
        assert one[key]["distance"] == pytest.approx(other[key]["distance"], rel=ALIKE), key


@both
@pytest.mark.parametrize(
    ("loss", "labels"), [("cross-entropy", True), ("cross-entropy:smoothing=0.1", True), ("kl", False)]
)
def test_so_do_other_losses(loss: str, labels: bool) -> None:
    model = several()
    data = {"x": X, **({"labels": run(model, X)["c"].argmax(1)} if labels else {})}
    options: dict[str, Any] = {"pattern": "2:4", "allow": ["output", "small"], "steps": 2, "retries": 0, "loss": loss}
    one, other = (osp.finetune(model, data=data, engine=e, **options).report.details for e in ("ort", "torch"))
    assert one["loss_without_training"] == pytest.approx(other["loss_without_training"], rel=ALIKE)
    assert one["loss_unit"] == other["loss_unit"] != ""


@pytest.mark.parametrize("engine", ["ort", "torch"])
@pytest.mark.parametrize("name", ["columns", "detector", "classes"])
def test_it_is_the_definition_s(engine: str, name: str) -> None:
    """In numpy, from outputs in plain inference alone."""
    if not {"ort": ort_library, "torch": torch_library}[engine].available():
        pytest.skip(f"needs the engine {engine}")
    model = NETS[name]()
    report = tuned(model, engine)
    feeding = _feeding(model)
    seen = feeding.first(64)["x"]
    held = np.concatenate([batch.arrays["x"] for batch in feeding.probe()])
    names = ["y", "logits"] if name == "detector" else ["y"]
    wide = _with_outputs(model, names)
    pruned = osp.prune(wide, pattern="2:4", allow=["output", "small"]).model
    dense = [run(wide, held)[one] for one in names]
    ours = [run(pruned, held)[one] for one in names]
    values = [run(wide, seen)[one] for one in names]
    scales = [scale_along(one, one.ndim, None, squashed=name == "detector" and one is values[0]) for one in values]
    if name == "classes":
        wanted = Distill().bind([Scores(scales[0])]).value(ours, dense)
        assert report.details["loss_without_training"] == pytest.approx(wanted, rel=ALIKE)
        assert report.details["loss_unit"] == f"{IN_VARIANCES}, and the divergence of the classes, in nats"
        return
    wanted = Distill().bind(scales).value(ours, dense)
    assert report.details["loss_without_training"] == pytest.approx(wanted, rel=ALIKE)
    assert isinstance(scales[0], Columns)
    assert report.details["loss_unit"] == BY_COLUMN
    assert any("vary by unlike amounts" in note for note in report.notes)


def _feeding(model: ModelProto) -> Feeding:
    from onnxsparse.data import open_data
    from onnxsparse.graph.model import Model
    from onnxsparse.planning.model_inputs import fields_of

    return Feeding(open_data({"x": X}, fields_of(Model.open(model)), None, False, False), 16, 0)


def _with_outputs(model: ModelProto, names: list[str]) -> ModelProto:
    made = ModelProto.FromString(model.SerializeToString())
    for name in names:
        if all(one.name != name for one in made.graph.output):
            made.graph.output.add(name=name).type.tensor_type.elem_type = 1
    return made


# -- the definition


def test_columns_lie_where_variances_are_unlike() -> None:
    """Boxes beside scores along axis 1, with nothing in the graph that says so."""
    rows = numbers(64, 4, 9) * UNITS.reshape(1, 4, 1)
    found = scale_along(rows, 3)
    assert isinstance(found, Columns)
    assert found.axis == -2
    np.testing.assert_allclose(found.each, rows.astype(float).var(axis=(0, 2)))
    said = scale_along(rows, 3, said=2)
    assert not isinstance(said, Columns)


def test_shares_among_columns_are_of_one_kind() -> None:
    shares = np.abs(numbers(64, 3)) * np.float32([0.2, 0.01, 1e-4])
    rows = np.concatenate([numbers(64, 1) * 100, shares], axis=1)
    found = scale_along(rows, 2, squashed=True)
    assert isinstance(found, Columns)
    assert found.shares == (1, 2, 3)
    np.testing.assert_allclose(found.each[1:], shares.astype(float).var())
    assert len(set(scale_along(rows, 2).each)) == 4  # type: ignore[union-attr]


def test_what_moves_far_more_than_it_varies_is_measured_by_that() -> None:
    steady = numbers(16, 3)
    moved = steady + np.float32([0, 0.1, 100])
    assert heard(1.0, steady, steady) == 1.0
    assert heard(1.0, steady, moved) == pytest.approx((0.01 + 1e4) / 3 / LOUDEST, rel=1e-5)
    columns = heard(Columns(-1, (1.0, 1.0, 1.0)), steady, moved)
    assert isinstance(columns, Columns)
    assert columns.each == pytest.approx((1.0, 1.0, 1e4 / LOUDEST), rel=1e-5)
    assert heard(1.0, steady, steady * np.inf) == 1.0


def test_of_class_scores_the_divergence_counts_beside_the_distance() -> None:
    dense, ours = numbers(6, 4) * 3, numbers(6, 4, seed=1)
    loss, distance, divergence = Distill().bind([Scores(2.5)]), Distill().bind([2.5]), KL(1.0)
    assert loss.value([ours], [dense]) == pytest.approx(
        distance.value([ours], [dense]) + divergence.value([ours], [dense])
    )
    found, nearby = loss.gradient([ours], [dense])[0], ours.astype(np.float64)
    for place in ((0, 0), (3, 2), (5, 3)):
        step = np.zeros_like(nearby)
        step[place] = 1e-6
        slope = (loss.value([nearby + step], [dense]) - loss.value([nearby - step], [dense])) / 2e-6
        assert found[place] == pytest.approx(slope, rel=1e-5)


def test_what_looks_like_class_scores() -> None:
    plain = numbers(64, 10) * 6
    scores = plain - plain.mean(axis=1, keepdims=True)
    assert are_scores(scores, 2)
    assert are_scores(scores.reshape(4, 16, 10), 2)  # batches of them
    others = {
        "no class is likely": scores / 10,
        "always the same class": np.sort(scores, axis=1),
        "numbers that a softmax was never behind": plain,
        "too few": scores[:8],
        "one number": scores[:, :1],
        "shares": np.eye(10, dtype=np.float32)[scores.argmax(1)],
        "not finite": np.where(scores > 10, np.inf, scores),
    }
    assert [name for name, array in others.items() if are_scores(array, 2)] == []
    assert not are_scores(scores.reshape(4, 16, 10), 3)


@pytest.mark.parametrize("engine", ["ort", "torch"])
def test_a_plain_loss_names_its_unit(engine: str) -> None:
    if not {"ort": ort_library, "torch": torch_library}[engine].available():
        pytest.skip(f"needs the engine {engine}")
    nodes, stored = trunk()
    report = tuned(net(nodes, stored, ["N", 8], {"c": ["N", 16]}), engine)
    assert report.details["loss_unit"] == IN_VARIANCES
    assert not any("vary" in note for note in report.notes)
