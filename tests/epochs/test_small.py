"""Scales and biases that a recipe prunes along with the weights are said, with their zeros, in a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import onnxsparse as osp
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.torch import library as torch_library

pytestmark = pytest.mark.skipif(
    not (ort_library.available() or torch_library.available()), reason="needs an engine that trains"
)
RECIPE = """
modifiers:
- !GMPruningModifier
    start_epoch: 0
    end_epoch: 1
    update_frequency: 0.5
    init_sparsity: 0.0
    final_sparsity: 0.5
    params: %s
"""


def normalized() -> onnx.ModelProto:
    """A convolution with a normalization behind it, and a head."""
    random = np.random.default_rng(0)
    shapes = {"conv.weight": (6, 3, 3, 3), "bn.weight": (6,), "bn.bias": (6,), "mean": (6,), "var": (6,), "w": (6, 4)}
    stored = [numpy_helper.from_array(random.uniform(0.1, 1, s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        make_node("Conv", ["x", "conv.weight"], ["c"], "/conv/Conv"),
        make_node("BatchNormalization", ["c", "bn.weight", "bn.bias", "mean", "var"], ["n"], "/bn/BatchNormalization"),
        make_node("GlobalAveragePool", ["n"], ["p"], "/pool"),
        make_node("Flatten", ["p"], ["f"], "/flat"),
        make_node("MatMul", ["f", "w"], ["y"], "/head/MatMul"),
    ]
    ends = (make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8]),)
    graph = make_graph(nodes, "net", ends, [make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])], stored)
    return make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)


def notes(path: Path, params: str) -> list[str]:
    random = np.random.default_rng(0)
    data = {"x": random.standard_normal((96, 3, 8, 8)).astype(np.float32), "labels": np.arange(96) % 4}
    onnx.save(normalized(), path)
    recipe = osp.Recipe.load(RECIPE % params)
    result = osp.finetune(path, recipe=recipe, data=data, loss="cross-entropy", lr=1e-3)
    return [note for note in result.report.notes if "scale" in note]


def test_a_run_says_what_is_pruned_along(tmp_path: Path) -> None:
    said, zeros = notes(tmp_path / "m.onnx", "['re:.*weight']")
    assert "!GMPruningModifier: it prunes 1 scale or bias too (bn.weight), which can make the model useless" in said
    assert zeros == "zeros in scales and biases: bn.weight 3 of 6"


def test_a_run_that_prunes_weights_says_nothing(tmp_path: Path) -> None:
    assert notes(tmp_path / "m.onnx", "__ALL_PRUNABLE__") == []
