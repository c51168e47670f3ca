"""What the torch tests share: small models, and the same numbers from onnxruntime and from a module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxsparse.torch import to_module

MICROSOFT = "com.microsoft"
Array = np.ndarray[Any, Any]
_KINDS = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float64): TensorProto.DOUBLE,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.bool_): TensorProto.BOOL,
}


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    stored: Mapping[str, Array] | None = None,
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
    fixed: bool = False,
    functions: Sequence[onnx.FunctionProto] = (),
) -> ModelProto:
    """A model with inputs of the types of `feeds`; their shapes are open unless `fixed`."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [
            helper.make_tensor_value_info(name, _KINDS[one.dtype], one.shape if fixed else [None] * one.ndim)
            for name, one in feeds.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(one, name) for name, one in (stored or {}).items()],
    )
    domains = dict.fromkeys(("", MICROSOFT, "ai.onnx.ml", *(one.domain for one in functions)), 1)
    imports = [helper.make_opsetid(name, opset if name == "" else one) for name, one in domains.items()]
    made = helper.make_model(graph, opset_imports=imports, functions=list(functions))
    made.ir_version = 8 if opset < 21 else 10
    return made


def runtime(source: ModelProto | str | Path, feeds: Mapping[str, Array]) -> list[Any]:
    """What onnxruntime computes, node by node as written."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = source.SerializeToString() if isinstance(source, ModelProto) else str(source)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, dict(feeds))
    return found


def apply(module: Any, feeds: Mapping[str, Array]) -> tuple[Any, ...]:
    found = module(*(torch.from_numpy(np.array(feeds[name])) for name in module.onnx_names["inputs"]))
    return found if isinstance(found, tuple) else (found,)


def assert_equal(got: Any, wanted: Array, tolerance: float = 2e-5) -> None:
    """Equal up to a part of the output's range."""
    mine = got.detach().numpy()
    assert mine.shape == wanted.shape
    assert mine.dtype == wanted.dtype
    scale = max(float(np.abs(wanted.astype(np.float64)).max(initial=0)), 1e-3)
    assert np.abs(mine.astype(np.float64) - wanted).max(initial=0) <= tolerance * scale


def assert_same(source: ModelProto | str | Path, feeds: Mapping[str, Array], tolerance: float = 2e-5) -> Any:
    """The module of a model, once it was seen to compute what onnxruntime computes."""
    module = to_module(source)
    for got, wanted in zip(apply(module, feeds), runtime(source, feeds)):
        assert_equal(got, wanted, tolerance)
    return module


def without_gradient(module: Any, feeds: Mapping[str, Array]) -> list[str]:
    """The weight matrices that no gradient reaches."""
    results = [one for one in apply(module, feeds) if one.is_floating_point()]
    generator = torch.Generator().manual_seed(0)
    sum((one * torch.randn(one.shape, generator=generator)).sum() for one in results).backward()
    matrices = [(name, one) for name, one in module.named_parameters() if one.dim() > 1]
    return [name for name, one in matrices if one.grad is None or not one.grad.abs().sum() > 0]
