"""Large tensors pass through in pieces: the same bytes whatever the size of the pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse.passes import prune
from onnxsparse.planning import stored_params

RULES: list[dict[str, Any]] = [
    {"pattern": "2:4"},
    {"pattern": "3:7"},
    {"pattern": "2:4:transposable"},
    {"pattern": "3:5:transposable-greedy"},
    {"pattern": "unstructured", "sparsity": 0.7},
    {"pattern": "unstructured", "sparsity": 0.7, "allocation": "global"},
    {"pattern": "unstructured", "sparsity": 0.7, "allocation": "erk"},
    {"pattern": "unstructured", "sparsity": 0.5, "score": "random", "seed": 3},
]


def network(kind: Any, ties: bool) -> onnx.ModelProto:
    """Products along either axis, a convolution, and a Transpose before one; with ties only a few values occur."""
    random = np.random.default_rng(5)

    def weight(name: str, *shape: int) -> TensorProto:
        values = random.integers(-3, 4, shape) if ties else random.standard_normal(shape)
        return numpy_helper.from_array(values.astype(kind), name)

    stored = [weight("a", 64, 96), weight("b", 40, 96), weight("c", 32, 36, 3, 3), weight("d", 3, 3, 20, 32)]
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["y0"]),
        helper.make_node("Gemm", ["y0", "b"], ["y1"], transB=1),
        helper.make_node("Conv", ["z", "c"], ["z1"]),
        helper.make_node("Transpose", ["d"], ["dt"], perm=[3, 2, 0, 1]),
        helper.make_node("Conv", ["w", "dt"], ["w1"]),
    ]
    elem = TensorProto.FLOAT16 if kind == np.float16 else TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(name, elem, None) for name in "xzw"]
    outputs = [helper.make_tensor_value_info(name, elem, None) for name in ("y1", "z1", "w1")]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, stored))


def bytes_of(result: osp.Result) -> bytes:
    assert result.model is not None
    return result.model.SerializeToString()


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: "-".join(str(value) for value in rule.values()))
def test_small_pieces_and_files_give_the_same_as_memory(
    rule: dict[str, Any], kind: Any, ties: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(kind, ties)
    whole = bytes_of(osp.prune(model, **rule))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    monkeypatch.setattr(stored_params, "SLAB", 700)
    monkeypatch.setattr(prune, "HELD", 1000)
    monkeypatch.setattr(prune, "BLOCK", 300)
    osp.prune(path, output=tmp_path / "out.onnx", **rule)
    assert (tmp_path / "out.onnx").read_bytes() == whole
    assert osp.verify(tmp_path / "out.onnx").report.ok


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: "-".join(str(value) for value in rule.values()))
def test_external_data_gives_the_same_numbers(rule: dict[str, Any], tmp_path: Path) -> None:
    model = network(np.float32, ties=True)
    expected = {t.name: numpy_helper.to_array(t) for t in osp.prune(model, **rule).model.graph.initializer}  # type: ignore[union-attr]
    path = tmp_path / "in" / "model.onnx"
    path.parent.mkdir()
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="model.data")
    osp.prune(path, output=tmp_path / "model.onnx", **rule)
    found = onnx.load(tmp_path / "model.onnx")
    assert {t.name for t in found.graph.initializer} == set(expected)
    for tensor in found.graph.initializer:
        assert (numpy_helper.to_array(tensor) == expected[tensor.name]).all()


def test_missing_zeros_are_counted_over_all_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model = osp.prune(network(np.float32, ties=False), pattern="unstructured", sparsity=0.7).model
    assert model is not None
    broken = model.graph.initializer[0]
    numbers = numpy_helper.to_array(broken).copy()
    numbers.reshape(-1)[np.flatnonzero(numbers == 0)[[0, 1000, -1]]] = 1
    broken.CopyFrom(numpy_helper.from_array(numbers, broken.name))
    monkeypatch.setattr(stored_params, "SLAB", 700)
    row = next(row for row in osp.verify(model).report.rows if row.name == broken.name)
    assert (row.status, row.zeros, row.violations) == ("violated", int((numbers == 0).sum()), 3)
