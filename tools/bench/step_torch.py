"""The peer of the step benchmarks: an ONNX graph trained in torch, eager, on one thread, towards its own dense outputs.

    python tools/bench/step_torch.py MODEL DATA.npz --batch 32 --steps 100

Prints JSON: the median of the steps in CPU milliseconds, and the peak of resident memory. A step multiplies the pruned
weights with their masks, takes the loss and its gradients, and has AdamW move the weights; the dense outputs are kept
from before. Needs torch and onnx, and knows the operators of the benchmarks' networks only.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch.nn import functional

SPARSITY = 0.8


class Net:
    """Runs the nodes of a graph one by one. `numbers` holds what is stored, floats as parameters."""

    def __init__(self, path: str) -> None:
        graph = onnx.load(path).graph
        stored = {one.name: torch.from_numpy(numpy_helper.to_array(one).copy()) for one in graph.initializer}
        self.numbers = {name: one.requires_grad_() if one.is_floating_point() else one for name, one in stored.items()}
        self.masks: dict[str, Any] = {}
        self._output = graph.output[0].name
        self._nodes = [
            (node, {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}) for node in graph.node
        ]

    @property
    def parameters(self) -> list[Any]:
        return [one for one in self.numbers.values() if one.requires_grad]

    def mask(self) -> None:
        """Masks on all weights, at random: which places are pruned does not matter to time."""
        generator = torch.Generator().manual_seed(0)
        for name, one in self.numbers.items():
            if one.requires_grad and one.ndim > 1:
                self.masks[name] = (torch.rand(one.shape, generator=generator) >= SPARSITY).float()

    def __call__(self, x: Any) -> Any:
        values: dict[str, Any] = {**self.numbers, "": None, "x": x}
        values.update({name: self.numbers[name] * mask for name, mask in self.masks.items()})
        for node, options in self._nodes:
            values[node.output[0]] = _run(node.op_type, [values[name] for name in node.input], options)
        return values[self._output]


def _run(kind: str, given: list[Any], options: dict[str, Any]) -> Any:
    simple = {"Relu": torch.relu, "Add": torch.add, "Mul": torch.mul, "Div": torch.div, "MatMul": torch.matmul}
    if kind in simple:
        return simple[kind](*given)
    if kind == "Conv":
        return _conv(given, options)
    if kind == "Gemm":
        return functional.linear(given[0], given[1] if options.get("transB") else given[1].T, given[2])
    if kind == "LayerNormalization":
        return functional.layer_norm(given[0], given[1].shape, given[1], given[2], options.get("epsilon", 1e-5))
    return _shaped(kind, given, options)


def _shaped(kind: str, given: list[Any], options: dict[str, Any]) -> Any:
    x = given[0]
    if kind == "Reshape":
        return x.reshape([size or x.shape[place] for place, size in enumerate(given[1].tolist())])
    if kind == "Transpose":
        return x.permute(options["perm"])
    if kind == "Softmax":
        return torch.softmax(x, options.get("axis", -1))
    if kind == "Flatten":
        return x.flatten(1)
    if kind == "GlobalAveragePool":
        return x.mean((2, 3), keepdim=True)
    if kind == "ReduceMean":
        axes = given[1].tolist() if len(given) > 1 else options["axes"]
        return x.mean(list(axes), keepdim=bool(options.get("keepdims", 1)))
    if kind == "MaxPool":
        return functional.max_pool2d(x, options["kernel_shape"], options["strides"])
    raise SystemExit(f"{kind} is not among the operators of this benchmark")


def _conv(given: list[Any], options: dict[str, Any]) -> Any:
    pads = options.get("pads", [0, 0, 0, 0])
    bias = given[2] if len(given) > 2 else None
    return functional.conv2d(
        given[0], given[1], bias, options.get("strides", 1), pads[:2], groups=options.get("group", 1)
    )


class Training:
    """Batches in a fixed order, towards what the dense graph says."""

    def __init__(self, net: Net, x: Any, batch: int) -> None:
        self._net, self._x, self._batch = net, x, batch
        with torch.no_grad():
            self._dense = torch.cat([net(part) for part in x.split(batch)])
        self._scale = float(self._dense.var())
        net.mask()
        self._optimizer = torch.optim.AdamW(net.parameters, lr=1e-4, weight_decay=0.0)

    def step(self, number: int) -> None:
        rows = torch.arange(number * self._batch, (number + 1) * self._batch) % len(self._x)
        loss = functional.mse_loss(self._net(self._x[rows]), self._dense[rows]) / self._scale
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


def peak() -> int:
    """Bytes; of this process only, whatever started it."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=100)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    training = Training(Net(chosen.model), torch.from_numpy(np.load(chosen.data)["x"]), chosen.batch)
    spent = []
    for number in range(chosen.steps):
        start = time.process_time()
        training.step(number)
        spent.append(1e3 * (time.process_time() - start))
    print(json.dumps({"ms": float(np.median(spent)), "peak": peak()}))


if __name__ == "__main__":
    main()
