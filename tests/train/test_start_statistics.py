"""What calibration makes of statistics of BatchNormalization reaches a training in scales and biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onnxsparse as osp
from onnxsparse.engines.ort import library as ort
from onnxsparse.engines.torch import library as torch
from onnxsparse.planning.trainable import send_back
from onnxsparse.recipes.flags import recipe_of
from onnxsparse.train import start
from onnxsparse.train.start import started, with_statistics
from onnxsparse.train.task import ask
from tests.cases import for_each

pytestmark = pytest.mark.skipif(not (ort.available() or torch.available()), reason="needs an engine that trains")
WIDTH, STATISTICS = 16, ("m", "v")


def net(path: Path, shared: bool = False) -> Path:
    """A convolution, its normalization, and a classifier; `shared`: the scale is read by a second node, too."""
    draw = np.random.default_rng(0)
    arrays = {
        "w": draw.standard_normal((WIDTH, 4, 3, 3)), "s": draw.uniform(0.5, 2, WIDTH), "b": draw.standard_normal(WIDTH),
        "m": draw.standard_normal(WIDTH), "v": draw.uniform(5, 40, WIDTH), "f": draw.standard_normal((WIDTH, 5)),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], "norm", epsilon=0.01),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["g"]),
        *([helper.make_node("Add", ["g", "s"], ["h"])] if shared else []),
        helper.make_node("MatMul", ["h" if shared else "g", "f"], ["y"], "head"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])
    stored = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "net", [x], [y], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def samples() -> dict[str, Any]:
    drawn = np.random.default_rng(1).standard_normal((320, 4, 8, 8))
    return {"x": (drawn + np.linspace(0, 2, 4)[:, None, None]).astype(np.float32)}


def stored_numbers(model: Any) -> dict[str, Any]:
    return {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}


def task_of(path: Path, **options: Any) -> Any:
    return ask(
        str(path), recipe_of({"pattern": "unstructured", "sparsity": 0.9, "batch_size": 16, **options}), samples()
    )


def found(path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Any, dict[str, Any]]:
    """The task with its start, and the file as calibration had it, by the names of its tensors."""
    task = task_of(path, **options)
    whole, pruned = dict[str, Any](), start.pruned

    def look(*given: Any) -> Any:
        outcome: Any = pruned(*given)
        with task.model.restored():
            send_back(outcome.calibrated.numbers, outcome.calibrated.tags)
            whole.update(stored_numbers(task.model.copy_proto()))
        return outcome

    with monkeypatch.context() as patch:
        patch.setattr(start, "pruned", look)
        return started(task), whole


def outputs(path: Path, numbers: dict[str, Any]) -> Any:
    """What the net gives with other numbers."""
    proto = onnx.load(path)
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in numbers.items())
    made: Any = ReferenceEvaluator(proto).run(None, samples())
    return made[0]


def test_a_start_does_what_the_calibrated_file_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The statistics are those of the file; scale and bias say what they came to."""
    path = net(tmp_path / "net.onnx")
    task, whole = found(path, monkeypatch)
    dense = stored_numbers(onnx.load(path))
    assert not np.allclose(whole["m"], dense["m"], rtol=1e-2)
    assert task.start is not None
    with task.model.restored():
        send_back(task.start, task.every)
        ours = stored_numbers(task.model.copy_proto())
    assert all((ours[name] == dense[name]).all() for name in STATISTICS)
    assert np.allclose(outputs(path, ours), outputs(path, whole), rtol=1e-4, atol=1e-4)


def test_mean_and_variance_become_scale_and_bias(tmp_path: Path) -> None:
    """Also a variance that grew, which least squares leave as it is."""
    path, draw = net(tmp_path / "net.onnx"), np.random.default_rng(2)
    task, dense = task_of(path), stored_numbers(onnx.load(path))
    moved = {"m": draw.standard_normal(WIDTH), "v": draw.uniform(1, 90, WIDTH), "w": dense["w"] / 2}
    tags = {tensor.name: home.tag for tensor, home in task.model.flow.stores.homes.items()}
    made = with_statistics(task.model, {tags[name]: array for name, array in moved.items()}, task.every)
    ours = {**dense, **{name: made[tag] for name, tag in tags.items() if tag in made}}
    wanted = {**dense, **{name: array.astype(np.float32) for name, array in moved.items()}}
    assert set(made) == {tags[name] for name in ("w", "s", "b")}
    assert np.allclose(outputs(path, ours), outputs(path, wanted), rtol=1e-4, atol=1e-4)


@for_each(("shared", "options"), [(False, {"train_bn": True}), (True, {})])
def test_scales_stay_where_statistics_train_or_others_read_them(
    shared: bool, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = net(tmp_path / "net.onnx", shared)
    task, whole = found(path, monkeypatch, **options)
    assert task.start is not None
    with task.model.restored():
        send_back(task.start, task.every)
        ours = stored_numbers(task.model.copy_proto())
    assert (ours["s"] == whole["s"]).all()
    statistics = whole if options else stored_numbers(onnx.load(path))
    assert all((ours[name] == statistics[name]).all() for name in STATISTICS)


def test_what_is_delivered_without_a_step_that_helps_is_the_start(tmp_path: Path) -> None:
    """At a rate of nothing the file has the numbers of the start, and its loss is that of the start."""
    path = net(tmp_path / "net.onnx")
    result = osp.finetune(path, data=samples(), pattern="unstructured", sparsity=0.9, batch_size=16, steps=4, lr=1e-12)
    assert result.model is not None
    details: Any = result.report.details
    dense = stored_numbers(onnx.load(path))
    ours = stored_numbers(result.model)
    assert not np.allclose(ours["b"], dense["b"], rtol=1e-2)
    assert details["loss"] <= details["loss_without_training"]
