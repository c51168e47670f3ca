"""Distillation from outputs and from layers in runs on ONNX models: both engines, teachers in files, resumed runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import onnxsparse as osp
from onnxsparse.dialects.sparseml.distillation import OutputTeacher
from onnxsparse.engines.engine import LossSpec, Spec
from onnxsparse.engines.inference import Session
from onnxsparse.errors import OnnxSparseError
from onnxsparse.graph.model import Model
from onnxsparse.losses import KL, CrossEntropy
from onnxsparse.recipes.checking import check
from onnxsparse.recipes.modifiers.distillation import DistillationModifier
from onnxsparse.recipes.modifiers.layer_distillation import PerLayerDistillationModifier
from onnxsparse.train.onnx_trainee import OnnxTrainee
from tests.engine_marks import ENGINES, HAS_ORT, HAS_TORCH, TRAINS
from tests.test_finetune_recipes import arrays

pytestmark = TRAINS
FRAME = """
modifiers:
- !EpochRangeModifier {start_epoch: 0, end_epoch: 4}
- !SetLearningRateModifier {start_epoch: 0, learning_rate: 0.02}
"""
LAYERS = "- !PerLayerDistillationModifier {start_epoch: %d, %s}\n"
SIZES = {
    "stem.weight": (6, 1, 3, 3),
    "body.weight": (6, 8),
    "body.bias": (8,),
    "head.weight": (5, 8),
    "side.weight": (8, 7),
}


class StoppedError(Exception):
    pass


def net(path: Path, seed: int = 0, outputs: Sequence[str] = ("classes",)) -> Path:
    """A convolution, a matrix product with a bias, and classifiers."""
    random = np.random.default_rng(seed)
    stored = [
        numpy_helper.from_array((random.standard_normal(shape) * 0.4).astype(np.float32), name)
        for name, shape in SIZES.items()
    ]
    nodes = [
        make_node("Conv", ["x", "stem.weight"], ["a"], "/stem/Conv"),
        make_node("Relu", ["a"], ["b"]),
        make_node("GlobalAveragePool", ["b"], ["c"]),
        make_node("Flatten", ["c"], ["d"]),
        make_node("MatMul", ["d", "body.weight"], ["e"], "/body/MatMul"),
        make_node("Add", ["e", "body.bias"], ["f"], "/body/Add"),
        make_node("Relu", ["f"], ["g"]),
        make_node("Gemm", ["g", "head.weight"], ["classes"], "/head/Gemm", transB=1),
        make_node("MatMul", ["g", "side.weight"], [outputs[1] if outputs[1:] else "side"], "/side/MatMul"),
        make_node("ArgMax", ["classes"], ["best"], axis=1, keepdims=0),
    ]
    floats = [make_tensor_value_info(name, TensorProto.FLOAT, ["N", size]) for name, size in zip(outputs, (5, 7))]
    declared = [*floats, *(make_tensor_value_info(name, TensorProto.INT64, ["N"]) for name in outputs[2:])]
    given = [make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 6, 6])]
    graph = make_graph(nodes, "net", given, declared, stored)
    onnx.save(make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def student(tmp_path: Path) -> Path:
    return net(tmp_path / "student.onnx")


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    return net(tmp_path / "teacher.onnx", 1)


def samples(count: int = 48) -> dict[str, Any]:
    random = np.random.default_rng(3)
    return {"x": random.standard_normal((count, 1, 6, 6)).astype(np.float32), "labels": np.arange(count) % 5}


def taught(model: Path, recipe: str, **more: Any) -> tuple[Any, list[float]]:
    told: list[float] = []
    given = {"data": {"x": samples()["x"]}, "batch_size": 12, "watch": lambda row: told.append(row["loss"]), **more}
    return osp.finetune(model, recipe=osp.Recipe.load(recipe), **given), told


def values(model: Any, names: Sequence[str], count: int = 48) -> list[np.ndarray]:
    """What a model gives for the first samples by these names."""
    proto = onnx.ModelProto()
    proto.CopyFrom(onnx.load(model) if isinstance(model, Path) else model)
    known = {one.name for one in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    found = Session(proto).run({"x": samples()["x"][:count]})
    return [found[name] for name in names]


# -- layers


@pytest.mark.parametrize("engine", ENGINES)
def test_a_layer_comes_nearer_to_that_of_a_teacher(student: Path, teacher: Path, engine: str) -> None:
    options = f"student_layer_names: [body], project_features: false, gain: 0.5, teacher: '{teacher}'"
    result, losses = taught(student, FRAME + LAYERS % (1, options), engine=engine)
    assert losses[0] == pytest.approx(0, abs=1e-4)  # before it begins there is the dense model alone
    (wanted,) = values(teacher, ["f"])
    far = [np.square(values(one, ["f"])[0] - wanted).mean() for one in (student, result.model)]
    assert far[1] < 0.8 * far[0]
    assert set(arrays(result)) == set(SIZES)


@pytest.mark.parametrize(
    ("project", "normalize"), [("true", "true"), pytest.param("false", "false", marks=pytest.mark.slow)]
)
@HAS_ORT
@HAS_TORCH
def test_both_engines_do_the_same(student: Path, teacher: Path, project: str, normalize: str) -> None:
    options = f"project_features: {project}, normalize: {normalize}, gain: 0.1, teacher: '{teacher}'"
    both = "- !DistillationModifier {start_epoch: 0, temperature: 3}\n"
    one, two = (taught(student, FRAME + LAYERS % (0, options) + both, engine=engine) for engine in ("ort", "torch"))
    assert one[1] == pytest.approx(two[1], rel=1e-3, abs=1e-4)
    for ours, theirs in zip(arrays(one[0]).values(), arrays(two[0]).values()):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


@HAS_ORT
def test_gradients_with_layers_are_proven(student: Path) -> None:
    options = "student_layer_names: ['re:stem', head], teacher_layer_names: [stem, head], gain: 1"
    result, _ = taught(student, FRAME + LAYERS % (0, options), engine="ort", check=True)
    assert not any("gradient of it is wrong" in note for note in result.report.notes)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_that_was_stopped_ends_as_if_it_had_not(student: Path, tmp_path: Path, engine: str) -> None:
    recipe = FRAME + LAYERS % (1, "gain: 0.5")
    whole, losses = taught(student, recipe, engine=engine)
    told: list[float] = []

    def watch(row: Any) -> None:
        told.append(row["loss"])
        if len(told) == 8:
            raise StoppedError

    more = {"engine": engine, "checkpoint": tmp_path / "run"}
    with pytest.raises(StoppedError):
        taught(student, recipe, watch=watch, **more)
    again, rest = taught(student, recipe, resume=True, **more)
    assert rest == losses[-len(rest) :]
    assert len(rest) < len(losses)
    for ours, theirs in zip(arrays(whole).values(), arrays(again).values()):
        assert np.array_equal(ours, theirs)


WRONG_LAYERS = [
    ("student_layer_names: [heat]", "student_layer_names: the model has no layer heat"),
    ("student_layer_names: ['re:.*'], teacher_layer_names: [head]", "layers of the model and 1 of the teacher are"),
    ("teacher: nope.onnx", "teacher: there is no file nope.onnx"),
    (
        "student_layer_names: [stem], teacher_layer_names: [head], project_features: false",
        "'a' has 6 channels and 'classes' of the teacher 5; take layers of the same sizes, or project_features",
    ),
    (
        "teacher: '%s', student_layer_names: [head], teacher_layer_names: [tail]",
        "teacher_layer_names: the model has no layer tail",
    ),
]


@pytest.mark.parametrize(("options", "what"), WRONG_LAYERS)
def test_layers_that_cannot_learn_are_found_before_the_run(
    student: Path, teacher: Path, tmp_path: Path, options: str, what: str
) -> None:
    options = options.replace("%s", str(teacher))
    recipe = FRAME + LAYERS % (3, options)
    told: list[Any] = []
    with pytest.raises(OnnxSparseError, match=f"line 5: !PerLayerDistillationModifier: .*{what}"):
        taught(student, recipe, watch=told.append, output=tmp_path / "out.onnx")
    assert not told
    (found,) = check(osp.Recipe.load(recipe), model=student)
    assert (found.level, found.line) == ("wrong", 5)
    assert what in found.text


# -- outputs


OUTPUTS = ("classes", "side", "best")
LEARNED = "- !DistillationModifier {start_epoch: 0, temperature: 3, hardness: 0.4, teacher: '%s', %s}\n"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("keys", "names"),
    [("['side', 0]", ["classes", "side"]), pytest.param("[-2]", ["side"], marks=pytest.mark.slow)],
)
def test_any_outputs_are_learned_by_their_mean(tmp_path: Path, engine: str, keys: str, names: list[str]) -> None:
    student, teacher = net(tmp_path / "student.onnx", 0, OUTPUTS), net(tmp_path / "teacher.onnx", 1, OUTPUTS)

    def far(one: Any) -> float:
        return KL(3.0).value(values(one, names, 1), values(teacher, names, 1))

    recipe = FRAME + LEARNED % (teacher, f"distill_output_keys: {keys}")
    data = {name: np.repeat(array[:1], 48, axis=0) for name, array in samples().items()}  # all batches are alike
    more = {"data": data, "loss": "cross-entropy", "loss_output": "classes"}
    result, losses = taught(student, recipe, engine=engine, **more)
    task = CrossEntropy().value(values(student, ["classes"], 1), [data["labels"][:1]])
    assert losses[0] == pytest.approx(0.6 * task + 0.4 * far(student), rel=1e-4)
    assert far(result.model) < far(student)


WRONG_OUTPUTS = [
    ("[other]", "distill_output_keys: the model has no output 'other' (it has classes, side, best)"),
    ("[3]", "distill_output_keys: the model has no output 3"),
    ("[0, best]", "distill_output_keys: the output best is not of floats"),
    ("[classes, side]", "gives no output side (it gives classes, renamed)"),
]


@pytest.mark.parametrize(("keys", "what"), WRONG_OUTPUTS)
def test_outputs_that_cannot_learn_are_found_before_the_run(tmp_path: Path, keys: str, what: str) -> None:
    student = net(tmp_path / "student.onnx", 0, OUTPUTS)
    teacher = net(tmp_path / "renamed.onnx", 1, ("classes", "renamed"))
    recipe = osp.Recipe.load(FRAME + LEARNED % (teacher, f"distill_output_keys: {keys}"))
    (found,) = check(recipe, model=student)
    assert what in found.text
    with pytest.raises(OnnxSparseError) as caught:
        osp.finetune(student, data=samples(), loss="cross-entropy", recipe=recipe)
    assert what in str(caught.value)


# -- when


@pytest.mark.parametrize(
    ("span", "steps"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"start_epoch": 0.5, "end_epoch": 1.5}, [1, 2, 3]),
        ({"start_epoch": 0.0, "end_epoch": 1.2}, [0, 1, 2, 3]),
        ({"start_epoch": 0.6, "end_epoch": 0.9}, []),  # between two steps
        ({"start_epoch": 2.0, "end_epoch": 9.0}, [4, 5]),
    ],
)
def test_a_run_has_a_teacher_at_the_steps_at_which_a_loop_has_one(
    student: Path, span: dict[str, float], steps: list[int]
) -> None:
    """The step of the end is the last one."""
    loop = OutputTeacher(DistillationModifier(**span), None, None)
    heard = []
    for step in range(6):
        heard += [step] if loop.is_active(step / 2) else []
        loop.step(step / 2)
    assert heard == steps
    trainee, model = OnnxTrainee(lambda spec: Any, (), 2, 6), Model.open(student)
    for modifier in (DistillationModifier(**span), PerLayerDistillationModifier(**span)):
        act, plain = modifier.act(), Spec(1, objective=LossSpec("cross-entropy", hardness=0.0))
        act.bind_graph(model, ())
        segments = [0, *(at for at in act.boundaries(trainee) if at < 6)]
        begins = [max(at for at in segments if at <= step) for step in range(6)]
        assert [step for step in range(6) if act.shape(trainee, plain, begins[step]) != plain] == steps


def in_modules(seed: int) -> onnx.ModelProto:
    """Two modules of three nodes each, as torch's exporter names them, and a head."""
    rng = np.random.default_rng(seed)
    shapes = {"a.conv.weight": (6, 1, 3, 3), "b.conv.weight": (5, 6, 3, 3), "head": (5, 4)}
    stored = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 3, name)
        for name, shape in shapes.items()
    ]
    nodes = []
    for name, given in (("a", "x"), ("b", "a_out")):
        nodes += [
            onnx.helper.make_node("Conv", [given, f"{name}.conv.weight"], [f"{name}_c"], f"/{name}/conv/Conv"),
            onnx.helper.make_node("Sigmoid", [f"{name}_c"], [f"{name}_s"], f"/{name}/act/Sigmoid"),
            onnx.helper.make_node("Mul", [f"{name}_c", f"{name}_s"], [f"{name}_out"], f"/{name}/act/Mul"),
        ]
    nodes += [
        onnx.helper.make_node("ReduceMean", ["b_out"], ["mean"], "/ReduceMean", axes=[2, 3], keepdims=0),
        onnx.helper.make_node("MatMul", ["mean", "head"], ["y"], "/head/MatMul"),
    ]
    ends = [onnx.helper.make_tensor_value_info("x", 1, ["n", 1, 8, 8])]
    graph = onnx.helper.make_graph(nodes, "g", ends, [onnx.helper.make_tensor_value_info("y", 1, ["n", 4])], stored)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def test_a_module_of_several_nodes_is_a_layer(tmp_path: Path) -> None:
    for seed in (0, 1):
        onnx.save(in_modules(seed), tmp_path / f"{seed}.onnx")
    options = f"student_layer_names: [a, b], teacher_layer_names: [a, b], gain: 4, teacher: '{tmp_path / '1.onnx'}'"
    given = {
        "data": {"x": np.random.default_rng(2).standard_normal((64, 1, 8, 8), np.float32)},
        "engine": "auto",
    }
    told: list[float] = []
    recipe = osp.Recipe.load(FRAME + LAYERS % (0, options))
    osp.finetune(tmp_path / "0.onnx", recipe=recipe, watch=lambda row: told.append(row["loss"]), **given)
    assert told[-1] < told[len(told) // 4 + 1]
    with pytest.raises(OnnxSparseError, match="the model has no layer c"):
        osp.finetune(
            tmp_path / "0.onnx", recipe=osp.Recipe.load(FRAME + LAYERS % (0, "student_layer_names: [c]")), **given
        )
