"""The ways to export that `tools/bench/match_torch.py` tries: networks, what wraps them, what is done to the files."""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch.nn.utils import parametrizations, parametrize, prune

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

BUILD = importlib.import_module("tests.engines.torch.nets").build
MORE_NETS = importlib.import_module("tests.engines.torch.more_nets")
MAIN = ("resnet18", "encoder", "mixed")
NETS = (*MAIN, *MORE_NETS.MORE)
OPSETS = range(13, 21)


@dataclass(frozen=True)
class Way:
    """A way to export; `kind` is the type of the numbers, `after` what another tool does to the file."""

    dynamo: bool
    fold: bool
    training: bool
    opset: int
    trained: bool = True
    wrapper: str = ""
    kind: str = "float32"
    after: str = ""

    @property
    def title(self) -> str:
        words = ["dynamo" if self.dynamo else "TorchScript", "folded" if self.fold else "plain"]
        words += ["training" if self.training else "eval", "trained" if self.trained else "new"]
        words += [word for word in (self.wrapper, self.after, self.kind if self.kind != "float32" else "") if word]
        return ", ".join(words)


def ways(net: str) -> Iterator[Way]:
    both = (False, True)
    opsets = OPSETS if net in MAIN else (17,)
    for fold, training, opset, trained in itertools.product(both, both, opsets, both):
        yield Way(False, fold, training, opset, trained)
    for fold, training, opset, trained in itertools.product(both, both, (18, 20) if net in MAIN else (18,), both):
        yield Way(True, fold, training, opset, trained)
    for dynamo, fold, trained in itertools.product(both, both, both):
        yield Way(dynamo, fold, False, 18, trained, after="optimized by onnxruntime")
    for dynamo, trained in itertools.product(both, both):
        yield Way(dynamo, True, False, 18, trained, kind="float16")
        yield Way(dynamo, True, False, 21 if dynamo else 20, trained, after="Q/DQ")
    for dynamo, wrapper in itertools.product(both, WRAPPERS):
        yield Way(dynamo, True, False, 18, True, wrapper)


# -- networks


def network(net: str, way: Way) -> tuple[Any, Any]:
    module, x = BUILD(net) if net in MAIN else MORE_NETS.build_more(net)
    if way.trained:
        train(module, x)
    elif net in MAIN:
        for part in module.modules():
            if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
                part.reset_parameters()
    if way.wrapper in CHANGED:
        WRAPPERS[way.wrapper](module)
    kind = getattr(torch, way.kind)
    return module.to(kind).train(way.training), x.to(kind) if x.is_floating_point() else x


def train(module: Any, x: Any) -> None:
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    for _ in range(4):
        loss = module(x if not x.is_floating_point() else torch.randn(x.shape)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _weights(module: Any) -> list[tuple[Any, str]]:
    kinds = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)
    plain = [one for one in module.modules() if type(one) in kinds or isinstance(one, kinds[1])]
    tied = Counter(
        id(one.weight) for one in (*plain, *(x for x in module.modules() if isinstance(x, torch.nn.Embedding)))
    )
    return [(one, "weight") for one in plain[1:] if tied[id(one.weight)] == 1]


def _pruned(module: Any) -> None:
    for owner, name in _weights(module):
        prune.l1_unstructured(owner, name, 0.5)


def _normed(module: Any) -> None:
    for owner, name in _weights(module):
        parametrizations.weight_norm(owner, name)


class Halved(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    def forward(self, weight: Any) -> Any:
        return 0.5 * weight


def _parametrized(module: Any) -> None:
    for owner, name in _weights(module):
        parametrize.register_parametrization(owner, name, Halved())


def _distributed(module: Any) -> Any:
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return torch.nn.parallel.DistributedDataParallel(module)


class Outer(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A user's own module around the network."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Any) -> Any:
        return self.net(x)


CHANGED = ("pruned", "weight norm", "parametrized")
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "pruned": _pruned,
    "weight norm": _normed,
    "parametrized": _parametrized,
    "DistributedDataParallel": _distributed,
    "torch.compile": lambda net: torch.compile(net, backend="eager"),
    "another module around": Outer,
    "exported inside of another module": lambda net: net,
}


# -- files


def export(module: Any, x: Any, way: Way, path: Path) -> None:
    mode = torch.onnx.TrainingMode.TRAINING if way.training else torch.onnx.TrainingMode.EVAL
    script = {"dynamo": False, "do_constant_folding": way.fold, "training": mode}
    options: dict[str, Any] = {"dynamo": True, "optimize": way.fold, "external_data": False} if way.dynamo else script
    module = Outer(module) if way.wrapper == "exported inside of another module" else module
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
            torch.onnx.export(module.train(way.training), (x,), str(path), opset_version=way.opset, **options)
    finally:
        logging.disable(logging.NOTSET)
    if way.after == "Q/DQ":
        onnx.save(quantized(onnx.load(path)), str(path))
    elif way.after:
        optimized(path)


def optimized(path: Path) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path.with_suffix(".basic.onnx"))
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    path.with_suffix(".basic.onnx").replace(path)


def quantized(model: onnx.ModelProto) -> onnx.ModelProto:
    """With every stored matrix rounded by QuantizeLinear and DequantizeLinear before it is used, as QAT does."""
    model.opset_import[0].version = max(model.opset_import[0].version, 21)
    model.ir_version = max(model.ir_version, 10)
    graph = model.graph
    stored = {one.name: one for one in graph.initializer if len(one.dims) > 1}
    nodes = []
    for index, node in enumerate(graph.node):
        if node.op_type in ("Conv", "Gemm", "MatMul") and node.input[1] in stored:
            name, scale = node.input[1], f"scale_{index}"
            largest = float(np.abs(numpy_helper.to_array(stored[name])).max())
            graph.initializer.append(numpy_helper.from_array(np.array(4 * largest / 32767, np.float32), scale))
            graph.initializer.append(numpy_helper.from_array(np.array(0, np.int16), f"zero_{index}"))
            nodes.append(helper.make_node("QuantizeLinear", [name, scale, f"zero_{index}"], [f"q_{index}"]))
            nodes.append(helper.make_node("DequantizeLinear", [f"q_{index}", scale, f"zero_{index}"], [f"d_{index}"]))
            node.input[1] = f"d_{index}"
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return model
