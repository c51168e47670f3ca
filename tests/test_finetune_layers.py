"""PerLayerDistillationModifier on ONNX models: both engines, teachers in files, projections, resumed runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxsparse as osp
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.torch import library as torch_library
from onnxsparse.errors import OnnxSparseError
from tests.test_finetune_recipes import ENGINES, HAS_ORT, arrays, images

pytestmark = pytest.mark.skipif(
    not (ort_library.available() or torch_library.available()), reason="needs an engine that trains"
)
FRAME = """
modifiers:
- !EpochRangeModifier {start_epoch: 0, end_epoch: 4}
- !SetLearningRateModifier {start_epoch: 0, learning_rate: 0.01}
"""
LAYERS = "- !PerLayerDistillationModifier {start_epoch: 1, %s}\n"


class StoppedError(Exception):
    pass


def taught(model: Path, recipe: str, **more: Any) -> tuple[Any, list[float]]:
    told: list[float] = []
    data = {"x": images(96)["x"]}
    given = {"data": data, "watch": lambda row: told.append(row["loss"]), **more}
    return osp.finetune(model, recipe=osp.Recipe.load(recipe), **given), told


def other(model: Path, path: Path) -> Path:
    """A teacher whose last layer is turned around."""
    proto = onnx.load(model)
    for one in proto.graph.initializer:
        if one.name.startswith("head"):
            one.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(one), one.name))
    onnx.save(proto, path)
    return path


def values(model: Any, name: str) -> Any:
    """What a layer gives for the data."""
    runtime = pytest.importorskip("onnxruntime")
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    weight = next(node for node in proto.graph.node if name in node.input)
    proto.graph.output.add(name=weight.output[0])
    session = runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run([weight.output[0]], {session.get_inputs()[0].name: images(96)["x"]})[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_layer_comes_nearer_to_that_of_a_teacher(digits_cnn: Path, tmp_path: Path, engine: str) -> None:
    teacher = other(digits_cnn, tmp_path / "teacher.onnx")
    options = f"student_layer_names: [head], project_features: false, gain: 4, teacher: '{teacher}'"
    result, losses = taught(digits_cnn, FRAME + LAYERS % options, engine=engine)
    assert losses[0] == pytest.approx(0, abs=1e-4)  # before it begins there is the dense model alone
    wanted = values(onnx.load(teacher), "head.weight")
    far = [np.square(values(one, "head.weight") - wanted).mean() for one in (onnx.load(digits_cnn), result.model)]
    assert far[1] < 0.8 * far[0]
    assert {one.name for one in result.model.graph.initializer} == {
        one.name for one in onnx.load(digits_cnn).graph.initializer
    }


@pytest.mark.parametrize(
    ("project", "normalize"), [("true", "true"), pytest.param("false", "false", marks=pytest.mark.slow)]
)
@pytest.mark.skipif(not (ort_library.available() and torch_library.available()), reason="needs both engines")
def test_both_engines_do_the_same(digits_cnn: Path, tmp_path: Path, project: str, normalize: str) -> None:
    teacher = other(digits_cnn, tmp_path / "teacher.onnx")
    options = f"project_features: {project}, normalize: {normalize}, gain: 0.1, teacher: '{teacher}'"
    both = "- !DistillationModifier {start_epoch: 0, temperature: 3}\n"
    calm = FRAME.replace("0.01", "0.001")  # so that rounding does not grow
    one, two = (taught(digits_cnn, calm + LAYERS % options + both, engine=engine) for engine in ("ort", "torch"))
    assert one[1] == pytest.approx(two[1], rel=1e-3, abs=1e-4)
    for ours, theirs in zip(arrays(one[0]).values(), arrays(two[0]).values()):
        np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-2)


@HAS_ORT
def test_gradients_with_layers_are_proven(digits_cnn: Path) -> None:
    options = "student_layer_names: ['re:stem', head], teacher_layer_names: [stem, head], gain: 1"
    result, _ = taught(digits_cnn, FRAME + LAYERS % options, engine="ort", check=True)
    assert not any("gradient of it is wrong" in note for note in result.report.notes)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_that_was_stopped_ends_as_if_it_had_not(digits_cnn: Path, tmp_path: Path, engine: str) -> None:
    recipe = FRAME + LAYERS % "gain: 0.5"
    whole, losses = taught(digits_cnn, recipe, engine=engine)
    told: list[float] = []

    def watch(row: Any) -> None:
        told.append(row["loss"])
        if len(told) == 8:
            raise StoppedError

    more = {"engine": engine, "checkpoint": tmp_path / "run"}
    with pytest.raises(StoppedError):
        taught(digits_cnn, recipe, watch=watch, **more)
    again, rest = taught(digits_cnn, recipe, resume=True, **more)
    assert rest == losses[-len(rest) :]
    assert len(rest) < len(losses)
    for ours, theirs in zip(arrays(whole).values(), arrays(again).values()):
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("student_layer_names: [heat]", r"student_layer_names: the model has no layer heat"),
        ("student_layer_names: ['re:.*'], teacher_layer_names: [head]", "layers of the model and 1 of the teacher are"),
        ("teacher: nope.onnx", "teacher: there is no file nope.onnx"),
        (
            "student_layer_names: [stem], teacher_layer_names: [head], project_features: false",
            "of the teacher .*; take layers of the same sizes",
        ),
    ],
)
def test_layers_that_cannot_learn(digits_cnn: Path, options: str, what: str) -> None:
    engine = "ort" if ort_library.available() else "torch"
    with pytest.raises(OnnxSparseError, match=what):
        taught(digits_cnn, FRAME + LAYERS % options, engine=engine)


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
        "engine": "torch" if torch_library.available() else "ort",
    }
    told: list[float] = []
    recipe = osp.Recipe.load(FRAME + LAYERS % options)
    osp.finetune(tmp_path / "0.onnx", recipe=recipe, watch=lambda row: told.append(row["loss"]), **given)
    assert told[-1] < told[len(told) // 4 + 1]
    with pytest.raises(OnnxSparseError, match="the model has no layer c"):
        osp.finetune(tmp_path / "0.onnx", recipe=osp.Recipe.load(FRAME + LAYERS % "student_layer_names: [c]"), **given)
