"""Quantization-aware training: both engines, masks held, resumed bit for bit, and the integers that come of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper
from onnx.helper import make_node

import onnxsparse as osp
from onnxsparse import checkpoints
from onnxsparse.engines.engine import Batch
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.torch import library as torch_library
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.math.quantization import from_range, of_weight
from onnxsparse.passes.delivery import deliver
from onnxsparse.recipes import Recipe
from onnxsparse.train import checkpointing
from onnxsparse.train.engine_choice import Means
from onnxsparse.train.loop import Run
from onnxsparse.train.task import ask
from tests.engines.small_nets import net, numbers

HAS_ORT = pytest.mark.skipif(not ort_library.available(), reason="needs onnxruntime-training")
HAS_TORCH = pytest.mark.skipif(not torch_library.available(), reason="needs torch")
# Where torch is, that is what is tried; the other engine has an environment of its own.
ELSEWHERE = [pytest.mark.slow] if torch_library.available() else []
ENGINES = [pytest.param("ort", marks=[HAS_ORT, *ELSEWHERE]), pytest.param("torch", marks=HAS_TORCH)]
STEPS = 24
FRAME = "- !training {{steps: {steps}, batch: 16}}\n- !objective {{}}\n- !keep-best {{checks: 3}}\n"
PRUNED = (
    "- !pruning {pattern: unstructured, sparsity: 0.6, allocation: uniform, end: 0.3, updates: 4, "
    "allow: [small, stem, output]}\n"
)
ROUNDED = "- !quantization {begin: 0.5, freeze: 0.8}\n"


def convolutions() -> ModelProto:
    nodes = [
        make_node("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 1, 1, 1]),
        make_node("Relu", ["a"], ["b"]),
        make_node("Conv", ["b", "w2"], ["c"], pads=[1, 1, 1, 1]),
        make_node("Add", ["b", "c"], ["d"]),
        make_node("GlobalAveragePool", ["d"], ["e"]),
        make_node("Flatten", ["e"], ["f"]),
        make_node("Gemm", ["f", "w3", "b3"], ["y"], transB=1),
    ]
    stored = {
        "w1": numbers(8, 2, 3, 3, seed=1) / 3, "b1": numbers(8, seed=2) / 5, "w2": numbers(8, 8, 3, 3, seed=3) / 8,
        "w3": numbers(5, 8, seed=4), "b3": numbers(5, seed=5),
    }  # fmt: skip
    return net(nodes, stored, ["N", 2, 6, 6], {"y": ["N", 5]})


def data(count: int = 160) -> dict[str, np.ndarray]:
    return {"x": numbers(count, 2, 6, 6, seed=9)}


def recipe(*more: str, steps: int = STEPS) -> Recipe:
    return Recipe.load("modifiers:\n" + FRAME.format(steps=steps) + "".join(more or (PRUNED, ROUNDED)))


def trained(folder: Path, engine: str, made: Recipe, **more: Any) -> tuple[Run, Any]:
    task = ask(convolutions(), made, data(), means=Means(engine), **more)
    run = Run(task, task.engines(str(folder)))
    return run, run.go()


def delivered(run: Run, outcome: Any) -> ModelProto:
    task = run.task
    integers = outcome.integers
    made = deliver(task.model, task.plan, outcome.arrays, task.tags, None, change=integers.write, check=integers.check)
    assert made.proto is not None
    return made.proto


def outputs(model: ModelProto, x: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {"x": x})[0]
    return found


def stored(model: ModelProto) -> dict[str, np.ndarray]:
    return {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("learned", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_is_delivered_computes_what_was_trained(tmp_path: Path, engine: str, learned: bool) -> None:
    rounded = f"- !quantization {{begin: 0.5, freeze: 0.8, learn_scales: {str(learned).lower()}}}\n"
    run, outcome = trained(tmp_path, engine, recipe(PRUNED, rounded))
    model, x = delivered(run, outcome), data(32)["x"]
    onnx.checker.check_model(model, full_check=True)
    found, dense = stored(model), outputs(convolutions(), x)
    assert [found[name].dtype for name in ("w1", "w2", "w3")] == [np.int8] * 3
    by_name = {run.task.tags[tag].tensor.name: array for tag, array in outcome.arrays.items()}
    for name in ("w1", "w2", "w3"):
        assert not found[name][by_name[name] == 0].any()
        assert 0.5 < np.mean(found[name] == 0) < 0.7
        assert np.abs(found[name]).max() == 127 or learned
    trained_outputs = run.engine.evaluate(Batch({"x": x}))[1]["y"]
    steps = max(array.max() for name, array in found.items() if name.endswith("_scale") and array.ndim == 0)
    # The runtime may round a sum to the other neighbour; biases have 32 bits there and are floats in training.
    np.testing.assert_allclose(outputs(model, x), trained_outputs, atol=float(steps))
    assert np.abs(trained_outputs - dense).mean() > 1e-4


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_layer_computes_with_numbers_rounded_as_in_numpy(tmp_path: Path, engine: str, symmetric: bool) -> None:
    weight = np.diag(numbers(6, seed=1)).astype(np.float32)  # one product for each output: there is nothing to sum up
    model = net([make_node("MatMul", ["x", "w"], ["y"])], {"w": weight}, ["N", 6], {"y": ["N", 6]})
    pruned = "- !pruning {%s, allow: [small, stem, output]}\n" % (
        "target: ampere" if symmetric else "pattern: unstructured, sparsity: 0.1"
    )
    x = np.abs(numbers(64, 6, seed=3)) - np.float32(0.4)
    begun = recipe(pruned, "- !quantization {begin: 0.0, freeze: 0.9}\n")
    task = ask(model, begun, {"x": x}, means=Means(engine))
    run = Run(task, task.engines(str(tmp_path)))
    run._begin(None)
    run.trainee.calibrate()
    batches = [one["x"] for one in task.calibration()]
    low, high = (float(np.mean([end(one) for one in batches])) for end in (np.min, np.max))
    (value,) = task.quantization.observed
    rounded = from_range(low, high, value.grid).fake(x) @ of_weight(weight, axis=1).fake(weight)
    np.testing.assert_array_equal(run.engine.evaluate(Batch({"x": x}))[1]["y"], rounded)


@pytest.mark.skipif(not (ort_library.available() and torch_library.available()), reason="needs both engines")
@pytest.mark.parametrize("learned", ["false", pytest.param("true", marks=pytest.mark.slow)])
def test_both_engines_come_to_the_same_numbers(tmp_path: Path, learned: str) -> None:
    more = f"- !quantization {{begin: 0.2, freeze: 0.8, learn_scales: {learned}}}\n"
    frame = "- !training {steps: 10, batch: 16, optimizer: sgd, rate: 0.01}\n- !objective {}\n"
    made = Recipe.load("modifiers:\n" + frame + PRUNED + more)
    (_, one), (_, other) = (trained(tmp_path / engine, engine, made) for engine in ("ort", "torch"))
    losses = [[row.loss for row in outcome.history.rows] for outcome in (one, other)]
    np.testing.assert_allclose(*losses, rtol=2e-3, atol=1e-6)
    for tag, array in one.arrays.items():
        np.testing.assert_allclose(array, other.arrays[tag], atol=0.01 * np.abs(array).max())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("learned", ["false", pytest.param("true", marks=pytest.mark.slow)])
def test_a_resumed_run_is_the_run_that_was_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, learned: str
) -> None:
    copies, clean = list[Path](), checkpoints.clean

    def and_copy(path: str, keep: int = 2) -> None:
        clean(path, keep)
        copies.append(tmp_path / f"copy-{len(copies)}")
        shutil.copytree(path, copies[-1])

    made = recipe(PRUNED, f"- !quantization {{begin: 0.4, freeze: 0.7, learn_scales: {learned}}}\n", steps=12)

    def run(folder: Path, **more: Any) -> bytes:
        task = ask(convolutions(), made, data(), means=Means(engine))
        one = Run(task, task.engines(str(folder)), folder=str(folder), **more)
        outcome = one.go()
        assert not more.get("resume") or any(note.startswith("resumed") for note in outcome.notes)
        return delivered(one, outcome).SerializeToString()

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "clean", and_copy)
        patched.setattr(checkpointing, "APART", 0.0)
        wanted = run(tmp_path / "one", every=1)
    for copy in (copies[3], copies[6], copies[9]):  # before it rounds, while it observes, and behind that
        assert run(copy, resume=True) == wanted


def test_scales_stand_still_once_observing_has_ended(tmp_path: Path) -> None:
    engine = "torch" if torch_library.available() else "ort"
    if not (ort_library.available() or torch_library.available()):
        pytest.skip("needs an engine that trains")
    seen: list[dict[str, bytes]] = []
    task = ask(convolutions(), recipe(), data(), means=Means(engine))
    run = Run(task, task.engines(str(tmp_path)))
    after = run.acts[-1].after_step
    run.acts[-1].after_step = lambda trainee, step: (  # type: ignore[method-assign]
        after(trainee, step),
        seen.append({key: array.tobytes() for key, array in trainee.scales().items()}),
    )
    run.go()
    assert [bool(one) for one in seen] == [False] * 12 + [True] * 12
    assert seen[13] != seen[14]
    assert seen[19] == seen[20] == seen[-1]


BY_EPOCHS = """modifiers:
- !ConstantPruningModifier {{start_epoch: 0, params: __ALL_PRUNABLE__}}
- !QuantizationModifier
  start_epoch: 1
  disable_quantization_observer_epoch: 2
  {more}
- !EpochRangeModifier {{start_epoch: 0, end_epoch: 3}}
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_recipe_by_epochs_says_when_and_what(engine: str) -> None:
    model = convolutions()
    for tensor in model.graph.initializer:
        if tensor.name == "w2":
            array = numpy_helper.to_array(tensor).copy()
            array[np.abs(array) < 0.1] = 0
            zeros = array == 0
            tensor.CopyFrom(numpy_helper.from_array(array, "w2"))
    made = Recipe.load(BY_EPOCHS.format(more="ignore: [Gemm]"))
    result = osp.finetune(model, data=data(), recipe=made, engine=engine, lr=1e-3)
    assert result.model is not None
    found = stored(result.model)
    assert found["w2"].dtype == np.int8
    assert not found["w2"][zeros].any()
    assert found["w3"].dtype == np.float32
    assert {row.name: row.quantized for row in result.report.rows} == {
        "w1": "int8, axis 0", "w2": "int8, axis 0", "w3": "",
    }  # fmt: skip
    assert "float: the scheme ignores it" in result.report.row("w3").reason


@pytest.mark.parametrize("engine", ENGINES)
def test_the_command(tmp_path: Path, engine: str) -> None:
    path, out = str(tmp_path / "net.onnx"), str(tmp_path / "out.onnx")
    onnx.save(convolutions(), path)
    labels = np.argmax(outputs(convolutions(), data()["x"]), 1).astype(np.int64)
    held_out = {**data(), "labels": labels}
    result = osp.finetune(
        path, data=data(), output=out, engine=engine, steps=10, batch_size=16, quantize="int8", eval_data=held_out,
        metrics=["accuracy"], pattern="unstructured", sparsity=0.5, allow=["small", "stem", "output"],
    )  # fmt: skip
    assert osp.verify(out).report.ok
    accuracy = np.mean(outputs(onnx.load(out), data()["x"]).argmax(1) == labels)
    assert abs(result.report.details["metrics"]["accuracy"] - accuracy) < 0.02
    text = (tmp_path / "out.recipe.yaml").read_text()
    assert "!quantization" in text
    again = osp.finetune(path, data=data(), recipe=tmp_path / "out.recipe.yaml", engine=engine)
    assert again.model is not None
    assert again.model.SerializeToString() == onnx.load(out).SerializeToString()


def sparse(**asked: Any) -> ModelProto:
    found = osp.prune(convolutions(), allow=["small", "stem", "output"], **asked).model
    assert found is not None
    return found


def records(model: ModelProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in model.metadata_props if entry.key != "onnxsparse.quantization"}


@pytest.mark.parametrize("engine", ENGINES)
def test_without_a_pattern_the_zeros_that_are_there_stay(engine: str) -> None:
    before = sparse(target="ampere")
    result = osp.finetune(before, data=data(), quantize="int8", steps=6, batch_size=16, engine=engine, strict=True)
    assert result.model is not None
    found = stored(result.model)
    for name in ("w2", "w3"):
        np.testing.assert_array_equal(found[name] == 0, stored(before)[name] == 0)
    assert found["w1"].dtype == np.int8
    assert not any(array.any() for name, array in found.items() if name.endswith("_zero_point"))  # as ampere wants it
    assert records(result.model) == records(before)
    assert osp.verify(result.model).report.ok
    assert [(row.pattern, row.dtype) for row in result.report.rows] == [
        ("dense", "int8"), ("2:4", "int8"), ("2:4", "int8"),
    ]  # fmt: skip
    assert "--int8" in result.report.next_step
    assert any("those that 2 weights have are held" in note for note in result.report.notes)


@pytest.mark.parametrize("kind", ["unstructured", "block:2x2", "2:4, damaged", "mixed", "none"])
def test_zeros_are_held_by_what_is_recorded_or_one_by_one(kind: str) -> None:
    pattern = kind.partition(",")[0]
    level = {} if pattern == "2:4" else {"sparsity": 0.5}
    model = convolutions() if kind == "none" else sparse(pattern=pattern.replace("mixed", "block:2x2"), **level)
    for tensor in model.graph.initializer:
        if (tensor.name, kind) in (("w3", "2:4, damaged"), ("w3", "mixed")):
            some = numbers(5, 8, seed=4) * (np.arange(40).reshape(5, 8) % 3 > 0 if kind == "mixed" else 1)
            tensor.CopyFrom(numpy_helper.from_array(some.astype(np.float32), "w3"))
    if kind == "unstructured":
        del model.metadata_props[:]
    recipe = Recipe.load("modifiers:\n" + FRAME.format(steps=4) + "- !pruning {}\n" + ROUNDED)
    plan = ask(model, recipe, data()).plan
    held = {row.name: row.pattern.text for row in plan.planned if row.pattern is not None}
    for row in plan.planned:
        np.testing.assert_array_equal(row.keep, stored(model)[row.name].ravel() != 0)
    assert (
        held
        == {
            "unstructured": {"w1": "unstructured", "w2": "unstructured", "w3": "unstructured"},
            "block:2x2": {"w1": "block:2x2", "w2": "block:2x2", "w3": "block:2x2"},
            "2:4, damaged": {"w2": "2:4"},
            "mixed": {"w1": "block:2x2", "w2": "block:2x2", "w3": "unstructured"},
            "none": {},
        }[kind]
    )


def test_zeros_that_a_recipe_lets_go_are_named() -> None:
    frame = (
        "modifiers:\n- !EpochRangeModifier {start_epoch: 0, end_epoch: 2}\n- !QuantizationModifier {start_epoch: 1}\n"
    )
    some, every = (f"- !ConstantPruningModifier {{params: {one}}}\n" for one in ("[w2]", "__ALL_PRUNABLE__"))
    said = [ask(sparse(pattern="2:4"), Recipe.load(frame + more), data()).notes for more in (some, every, "")]
    lost = [any("the zeros of 1 weight are lost" in note and "'w3': 2:4" in note for note in notes) for notes in said]
    assert lost == [True, False, False]
    assert "no modifier of the recipe prunes or holds anything: the zeros of 2 weights are held" in said[2]


@pytest.mark.skipif(not torch_library.available(), reason="needs torch")
def test_half_precision_rounds_in_whole(tmp_path: Path) -> None:
    frame = "- !training {steps: 12, batch: 16, precision: bfloat16}\n- !objective {}\n- !keep-best {checks: 2}\n"
    made = Recipe.load("modifiers:\n" + frame + PRUNED + ROUNDED)
    run, outcome = trained(tmp_path, "torch", made)
    x = data(32)["x"]
    near = outputs(delivered(run, outcome), x) - run.engine.evaluate(Batch({"x": x}))[1]["y"]
    assert np.abs(near).max() < 0.1


REFUSED = {
    "learn_scales": ({"learn_scales": True}, OptionError, "quantize"),
    "optimizer": ({"quantize": "int8", "learn_scales": True, "optimizer": "ort-adamw"}, OptionError, "adamw"),
    "scheme": ({"quantize": "int4"}, OptionError, "int8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(name: str) -> None:
    given, kind, said = REFUSED[name]
    with pytest.raises(kind, match=said):
        osp.finetune(convolutions(), data=data(), **given)


def test_models_that_cannot_be_rounded_are_refused() -> None:
    integers = osp.quantize(convolutions(), data=data(32)).model
    assert integers is not None
    with pytest.raises(ModelError, match="quantized already"):
        osp.finetune(integers, data=data(), quantize="int8")
    masked = osp.insert_masks(convolutions(), pattern="2:4", allow=["small", "stem", "output"]).model
    assert masked is not None
    with pytest.raises(OptionError, match="fold"):
        osp.finetune(masked, data=data(), quantize="int8")
    plain = net([make_node("Mul", ["x", "w"], ["y"])], {"w": numbers(4, 4)}, ["N", 4, 4], {"y": ["N", 4, 4]})
    with pytest.raises(ModelError, match="nothing of the model can be quantized"):
        osp.finetune(plain, data={"x": numbers(64, 4, 4)}, quantize="int8")
