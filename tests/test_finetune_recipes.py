"""Recipes by epochs in `finetune`: every example everywhere, the frame that flags make, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxsparse as osp
from onnxsparse.errors import LeftOutError, OnnxSparseError, OptionError
from tests.engine_marks import ENGINES, HAS_ORT, HAS_TORCH, TRAINS
from tests.examples_of_recipes import examples
from tests.messages import refusing

pytestmark = TRAINS
EXAMPLES = examples(["wide.weight", "residual.weight"], "deep")
PRUNED = {"sample": {"wide.weight": 0.85, "residual.weight": 0.85}, "gradual": {"deep.weight": 0.8}}
FIRST = ("sample", "constant")
CASES = [
    *(pytest.param("torch", name, marks=HAS_TORCH) for name in EXAMPLES),
    *(pytest.param("ort", name, marks=HAS_ORT) for name in FIRST),
    *(pytest.param("ort", name, marks=[HAS_ORT, pytest.mark.slow]) for name in EXAMPLES if name not in FIRST),
]


def images(count: int = 96) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "x": random.standard_normal((count, 1, 8, 8)).astype(np.float32),
        "labels": (np.arange(count) % 10).astype(np.int64),
    }


def tune(model: Path, recipe: str, **more: Any) -> Any:
    lr = None if "LearningRate" in recipe else 1e-3
    given = {"data": images(), "loss": "cross-entropy", "lr": lr, **more}
    return osp.finetune(model, recipe=osp.Recipe.load(recipe), **given)


def arrays(result: Any) -> dict[str, np.ndarray]:
    assert result.model is not None
    return {one.name: numpy_helper.to_array(one) for one in result.model.graph.initializer}


def zeros(found: dict[str, np.ndarray]) -> dict[str, int]:
    return {name: int(array.size - np.count_nonzero(array)) for name, array in found.items()}


def counted(level: float, size: int) -> int:
    return math.floor(level * size + 0.5)


@pytest.mark.parametrize(("engine", "name"), CASES)
def test_every_example(digits_cnn: Path, engine: str, name: str) -> None:
    lasts = {} if osp.Recipe.load(EXAMPLES[name]).max_epochs > 0 else {"epochs": 2}
    result = tune(digits_cnn, EXAMPLES[name], engine=engine, **lasts)
    found, wanted = arrays(result), PRUNED.get(name, {})
    assert zeros(found) == {
        one: counted(wanted[one], array.size) if one in wanted else 0 for one, array in found.items()
    }
    dense = {one.name: numpy_helper.to_array(one) for one in onnx.load(digits_cnn).graph.initializer}
    moved = any((found[one] != dense[one]).any() for one in dense)
    assert moved or any("stopped at step" in note for note in result.report.notes)  # 0.1 is too much for this net
    statuses = {row.name: row.status for row in result.report.rows}
    assert {one for one, status in statuses.items() if status == "pruned"} == set(wanted)


@HAS_TORCH
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_in_a_plain_loop(digits_cnn: Path, name: str) -> None:
    from onnxsparse.dialects.sparseml import ScheduledModifierManager

    torch, data = pytest.importorskip("torch"), images(64)
    net = osp.torch.to_module(digits_cnn)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    manager = ScheduledModifierManager.from_yaml(EXAMPLES[name])
    stepper = manager.modify(net, optimizer, steps_per_epoch=2)
    for _ in range(max(manager.max_epochs, 2)):
        for start in (0, 32):
            x, labels = (torch.from_numpy(data[key][start : start + 32]) for key in ("x", "labels"))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), labels).backward()
            stepper.step()
    manager.finalize(net)
    wanted = PRUNED.get(name, {})
    found = {one: array.detach().numpy() for one, array in net.named_parameters()}
    assert zeros(found) == {
        one: counted(wanted[one], array.size) if one in wanted else 0 for one, array in found.items()
    }


GMP = """
modifiers:
- !GMPruningModifier
    start_epoch: 0
    end_epoch: 2
    update_frequency: 0.5
    init_sparsity: 0.05
    final_sparsity: %s
    params: __ALL_PRUNABLE__
    mask_type: %s
    leave_enabled: %s
"""
CALLED = {
    "ort": "onnxruntime-training",
    "torch": "torch",
}
LONGER = "- !EpochRangeModifier {start_epoch: 0, end_epoch: 4}\n"
PLAIN = GMP % (0.8, "unstructured", "true")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("mask_type", "level"), [("2:4", 0.5), ("block4", 0.5), ("[8, 1]", 0.5)])
def test_masks_that_are_delivered(digits_cnn: Path, engine: str, mask_type: str, level: float) -> None:
    recipe = (GMP % (level, mask_type, "true")).replace("__ALL_PRUNABLE__", "['wide', 'deep', 'residual']")
    result = tune(digits_cnn, recipe, engine=engine)
    found = arrays(result)
    assert zeros(found)["deep.weight"] == found["deep.weight"].size // 2
    if mask_type == "2:4":
        groups = found["wide.weight"].reshape(48, 6, 4, 9) != 0
        assert (groups.sum(2) == 2).all()


GRADIENTS = {
    "movement": PLAIN.replace("!GM", "!Movement"),
    "obs": PLAIN.replace("!GM", "!OBS") + "    num_grads: 3\n    fisher_block_size: 4\n    damp: 0.001\n",
    "m-fac": PLAIN.replace("!GM", "!MFAC") + "    num_grads: 3\n    damp: 0.001\n    use_gradient_buffering: %s\n",
}


BY_GRADIENTS = [("movement", ""), ("obs", ""), ("m-fac", "null"), ("m-fac", "true")]
GRADIENT_CASES = [
    *(pytest.param("torch", *case, marks=HAS_TORCH) for case in BY_GRADIENTS),
    *(
        pytest.param("ort", *case, marks=HAS_ORT if case[0] == "obs" else [HAS_ORT, pytest.mark.slow])
        for case in BY_GRADIENTS
    ),
]


@pytest.mark.parametrize(("engine", "name", "buffered"), GRADIENT_CASES)
def test_what_goes_by_gradients(digits_cnn: Path, engine: str, name: str, buffered: str) -> None:
    text = GRADIENTS[name] % buffered if buffered else GRADIENTS[name]
    recipe = text.replace("__ALL_PRUNABLE__", "[wide, deep]")
    result = tune(digits_cnn, recipe, engine=engine)
    found = {one: array for one, array in arrays(result).items() if one in ("wide.weight", "deep.weight")}
    assert sum(zeros(found).values()) == pytest.approx(0.8 * sum(array.size for array in found.values()), abs=1.5)
    assert result.report.details["steps"] > 0
    assert any("3 gradients" in note for note in result.report.notes) is bool(buffered == "true")


@pytest.mark.parametrize("engine", ENGINES)
def test_together_let_go_and_whole_filters(digits_cnn: Path, engine: str) -> None:
    result = tune(digits_cnn, PLAIN.replace("!GMP", "!GlobalMagnitudeP"), engine=engine)
    weights = {name: array for name, array in arrays(result).items() if name.endswith("weight")}
    size = sum(array.size for array in weights.values())
    assert sum(zeros(weights).values()) == counted(0.8, size)
    rows = {row.name: row for row in result.report.rows}
    assert all(rows[name].zeros == count for name, count in zeros(weights).items())

    free = tune(digits_cnn, GMP % (0.8, "unstructured", "false") + LONGER, engine=engine)
    assert sum(zeros(arrays(free)).values()) < 0.3 * size
    assert "let go at the end_epoch" in free.report.rows[0].reason

    recipe = """
    modifiers:
    - !StructuredPruningModifier
        start_epoch: 0
        end_epoch: 1
        update_frequency: 0.5
        init_sparsity: 0.0
        final_sparsity: 0.5
        params: [wide, deep]
    """
    found = arrays(tune(digits_cnn, recipe, engine=engine))
    for name in ("wide.weight", "deep.weight"):
        gone = ~(found[name] != 0).any((1, 2, 3))
        assert gone.sum() == len(gone) // 2


@pytest.mark.parametrize("engine", ENGINES)
def test_what_modifiers_say_of_the_optimizer(digits_cnn: Path, engine: str) -> None:
    recipe = """
    modifiers:
    - !EpochRangeModifier {start_epoch: 0, end_epoch: 4}
    - !LearningRateFunctionModifier {start_epoch: 0, end_epoch: 4, lr_func: linear, init_lr: 0.008, final_lr: 0.0}
    - !TrainableParamsModifier {params: ['re:.*weight'], trainable: false}
    - !SetParamModifier {params: [head.bias], val: 0.25, start_epoch: 3.5}
    - !TrainableParamsModifier {params: [head.bias], trainable: false, start_epoch: 3.5}
    - !SparsificationLoggingModifier {start_epoch: 0, update_frequency: 1.0}
    """
    told: list[dict[str, Any]] = []
    result = tune(digits_cnn, recipe, engine=engine, watch=told.append, lr=None)
    dense = {one.name: numpy_helper.to_array(one) for one in onnx.load(digits_cnn).graph.initializer}
    found = arrays(result)
    for name, array in found.items():
        assert (array == dense[name]).all() == name.endswith("weight")
    assert (found["head.bias"] == 0.25).all()
    rates = {row["step"]: row["rate"] for row in told}
    assert [rates[step] for step in (1, 3, 5)] == pytest.approx([0.008, 0.006, 0.004])


@pytest.mark.parametrize("keys", ["[3]", "[-2]"])
def test_a_teacher_is_heard_on_an_output_that_is_there(digits_cnn: Path, keys: str) -> None:
    recipe = f"modifiers:\n- !DistillationModifier {{start_epoch: 0, end_epoch: 1, distill_output_keys: {keys}}}\n"
    with refusing(OptionError):
        tune(digits_cnn, recipe)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_report_says_what_the_recipe_leaves_open(digits_cnn: Path, engine: str) -> None:
    rated = PLAIN + "- !SetLearningRateModifier {learning_rate: 0.001}\n"
    frame = f"trained for 2 epochs (4 steps) by sgd:momentum=0.5, in batches of 32, in {CALLED[engine]}"
    options = {"data": images(), "engine": engine, "optimizer": "sgd:momentum=0.5"}
    idle = "the labels of the data are not used, the dense model teaches alone: --loss cross-entropy learns from them"
    notes = tune(digits_cnn, rated, loss=None, **options).report.notes
    assert idle in notes
    assert frame in notes
    assert idle not in tune(digits_cnn, rated, **options).report.notes
    assert idle not in tune(digits_cnn, PLAIN, loss=None, **{**options, "optimizer": None}).report.notes


def test_strict_wants_a_recipe_to_end_better_than_pruning_alone(digits_cnn: Path, tmp_path: Path) -> None:
    options = {"lr": None, "output": tmp_path / "out.onnx"}
    harmful = PLAIN + "- !SetLearningRateModifier {learning_rate: 0.2}\n"
    with refusing(LeftOutError):
        tune(digits_cnn, harmful, strict=True, **options)
    assert not list(tmp_path.iterdir())
    report = tune(digits_cnn, harmful, **options).report
    assert (report.details["helped"], report.details["trained"]) == (False, True)
    assert sum(note.startswith("training did not help: its last weights") for note in report.notes) == 1


def test_the_recipe_beside_the_result_does_it_again(digits_cnn: Path, tmp_path: Path) -> None:
    recipe = EXAMPLES["sample"].replace("70.0", "3.0").replace("40", "2").replace("[43, 60]", "[1, 2]")
    first = tune(digits_cnn, recipe, output=tmp_path / "one.onnx")
    again = osp.finetune(digits_cnn, data=images(), recipe=tmp_path / "one.recipe.yaml", output=tmp_path / "two.onnx")
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
    assert first.report.details["loss"] == again.report.details["loss"]


def test_keeping_the_best_never_goes_behind_the_last_masks(digits_cnn: Path) -> None:
    for more in ({"checks": 4}, {"retries": 0}):
        found = arrays(tune(digits_cnn, PLAIN, **more))
        assert zeros(found)["deep.weight"] == counted(0.8, found["deep.weight"].size)
    found = arrays(tune(digits_cnn, PLAIN + LONGER, checks=4))
    assert zeros(found)["deep.weight"] == counted(0.8, found["deep.weight"].size)


@pytest.mark.parametrize(
    ("recipe", "options", "what"),
    [
        (PLAIN, {"steps": 3}, "leave steps= out"),
        (PLAIN, {"epochs": -3}, "epochs= is a number above 0"),
        (PLAIN, {"sparsity": 0.5}, "leave sparsity= out"),
        (PLAIN, {"masks": {}}, "leave masks= out"),
        (PLAIN.replace("__ALL_PRUNABLE__", "[deap]"), {}, r"'deap' is no parameter.*deep"),
        (GMP % (0.5, "[5, 1]", "true"), {}, "blocks of 5 by 1 do not divide"),
        (EXAMPLES["decay"], {"optimizer": "ort-adamw"}, "needs another optimizer than ort-adamw"),
        (EXAMPLES["rate"], {"optimizer": lambda params: None}, "sets what an optimizer of your own decides"),
        ("modifiers:\n- !LayerPruningModifier {layers: [deep]}\n", {"epochs": 1}, "'deep' cannot be skipped: it gives"),
        ("modifiers:\n- !LayerThinningModifier {param_group_dependency_map: {wide.weight: [deep.weight]}}\n",
         {"epochs": 1}, "residual.weight gives the same channels as wide.weight"),
        ("modifiers:\n- !pruning {pattern: '2:4'}\n- !EpochRangeModifier {start_epoch: 0, end_epoch: 1}\n", {},
         "leave one kind out"),
        ("modifiers:\n- !SetLearningRateModifier {learning_rate: 0.1, param_groups: [1]}\n", {"epochs": 1},
         r"param_groups \[1\] are not there"),
        ("modifiers:\n- !training {batch: 8}\n- !EpochRangeModifier {start_epoch: 0, end_epoch: 1}\n",
         {"batch_size": 4}, "leave batch_size= out"),
    ],
)  # fmt: skip
def test_what_is_refused_before_anything_runs(
    digits_cnn: Path, recipe: str, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(OnnxSparseError, match=what):
        tune(digits_cnn, recipe, **{"lr": None, **options})


def test_steps_of_a_function_need_an_epoch(digits_cnn: Path) -> None:
    def loader() -> Any:
        yield images(32)

    with refusing(OptionError):
        tune(digits_cnn, PLAIN, data=loader)
    result = tune(digits_cnn, PLAIN, data=loader, steps_per_epoch=3)
    assert result.report.details["steps"] == 6


TEACHING = """
modifiers:
- !EpochRangeModifier {start_epoch: 0, end_epoch: 6}
- !SetLearningRateModifier {learning_rate: 0.01}
- !TrainableParamsModifier {params: ['re:stem'], trainable: false}
- !DistillationModifier {hardness: 1.0, temperature: 2.0, start_epoch: 1, teacher: '%s'}
"""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("squashed", [False, True])
def test_a_teacher_in_a_file(digits_cnn: Path, tmp_path: Path, engine: str, squashed: bool) -> None:
    """A teacher whose classes are turned around is learned from, whether it gives logits or probabilities."""
    other = onnx.load(digits_cnn)
    for one in other.graph.initializer:
        if one.name.startswith("head"):
            one.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(one), one.name))
    if squashed:
        name = other.graph.output[0].name
        for node in other.graph.node:
            node.output[:] = ["raw" if one == name else one for one in node.output]
        other.graph.node.append(onnx.helper.make_node("Softmax", ["raw"], [name], axis=1))
    onnx.save(other, tmp_path / "teacher.onnx")
    told: list[dict[str, Any]] = []
    more = {"engine": engine, "data": {"x": images(160)["x"]}, "lr": None, "loss": None, "watch": told.append}
    result = tune(digits_cnn, TEACHING % (tmp_path / "teacher.onnx"), **more)
    losses = [row["loss"] for row in told]
    assert losses[-1] < 0.5 * max(losses)
    assert not any("stopped" in note for note in result.report.notes)
    with refusing(OptionError):
        tune(digits_cnn, TEACHING % (tmp_path / "nobody.onnx"), **more)


def test_weights_without_a_whole_unit_stay_dense(digits_cnn: Path) -> None:
    """The stem reads a single channel."""
    text = """
modifiers:
- !GMPruningModifier
    {start_epoch: 0, end_epoch: 1, update_frequency: 1, init_sparsity: 0.05, final_sparsity: 0.5, mask_type: 2:4,
     params: __ALL_PRUNABLE__}
"""
    report = tune(digits_cnn, text).report
    dense = [row for row in report.rows if "fewer than a group of 2:4" in row.reason]
    assert dense
    assert len(dense) < len(report.rows)


TRAINED_SPARSE = {
    "rigl": """
modifiers:
  - !RigLPruningModifier
      start_epoch: 0.0
      end_epoch: 2.0
      update_frequency: 0.5
      final_sparsity: 0.7
      sparsity_strategy: uniform
      num_grads: 2
      params: ['wide.weight', 'deep.weight']
""",
    "top-kast": """
modifiers:
  - !TopKASTPruningModifier
      start_epoch: 0.0
      end_epoch: 2.0
      update_frequency: 0.5
      forward_sparsity: 0.7
      backward_sparsity: 0.4
      global_sparsity: false
      params: ['wide.weight', 'deep.weight']
""",
    "powers": """
modifiers:
  - !PowerpropagationModifier
      start_epoch: 0.0
      end_epoch: 2.0
      alpha: 2.0
      params: __ALL_PRUNABLE__
  - !GMPruningModifier
      start_epoch: 0.0
      end_epoch: 1.5
      update_frequency: 0.5
      init_sparsity: 0.05
      final_sparsity: 0.7
      params: ['wide.weight', 'deep.weight']
""",
}


SPARSE_CASES = [
    *(pytest.param("torch", name, marks=HAS_TORCH) for name in TRAINED_SPARSE),
    pytest.param("ort", "powers", marks=HAS_ORT),
    *(pytest.param("ort", name, marks=[HAS_ORT, pytest.mark.slow]) for name in TRAINED_SPARSE if name != "powers"),
]


@pytest.mark.parametrize(("engine", "name"), SPARSE_CASES)
def test_sparse_training_ends_at_its_level(digits_cnn: Path, engine: str, name: str) -> None:
    result = tune(digits_cnn, TRAINED_SPARSE[name], engine=engine)
    found = arrays(result)
    wanted = {one: 0.7 if one in ("wide.weight", "deep.weight") else 0 for one in found}
    assert zeros(found) == {one: counted(wanted[one], array.size) for one, array in found.items()}
    assert {row.name for row in result.report.rows if row.status == "pruned"} == {"wide.weight", "deep.weight"}
    assert "trained for 2 epochs" in str(result.report.notes)
