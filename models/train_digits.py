"""Makes models/digits_cnn.onnx: trains a small network on half of scikit-learn's digits and writes it as ONNX.

    python models/train_digits.py [OUT]

Needs torch and scikit-learn; takes about a minute. One thread and one seed: the same torch on the same kind of CPU
gives the same file. The graph is written node by node rather than exported, so the file has plain names and no trace
of an exporter, and the batch normalisation of the training is folded into the convolutions.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, checker, helper, numpy_helper, save
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from models.digits import held_out_half, training_half  # noqa: E402 - the script runs from anywhere

EPOCHS = 60
BATCH = 64
PENALTY = 1e-3
Tensors = dict[str, np.ndarray[Any, Any]]


class DigitsNet(nn.Module):  # type: ignore[misc, unused-ignore]
    """A stem, three convolutions, one of them residual, and a linear head: 59,802 numbers when folded."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv_bn(1, 24)
        self.wide = _conv_bn(24, 48)
        self.residual = _conv_bn(48, 48)
        self.deep = _conv_bn(48, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.stem(x))
        x = torch.relu(self.wide(x))
        x = torch.relu(self.residual(x) + x)
        x = nn.functional.max_pool2d(x, 2)
        x = torch.relu(self.deep(x))
        return self.head(x.mean(dim=(2, 3)))


def _conv_bn(inputs: int, outputs: int) -> Any:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs))


def train() -> DigitsNet:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    net = DigitsNet()
    images, labels = (torch.from_numpy(a) for a in training_half())
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)
    for _ in range(EPOCHS):
        _epoch(net, optimiser, images, labels)
        schedule.step()
    net.eval()
    return net


def _epoch(net: DigitsNet, optimiser: Any, images: Any, labels: Any) -> None:
    net.train()
    for batch in torch.randperm(len(images)).split(BATCH):
        shift = tuple(int(s) for s in torch.randint(-1, 2, (2,)))
        loss = nn.functional.cross_entropy(net(torch.roll(images[batch], shift, (2, 3))), labels[batch])
        loss = loss + PENALTY * _spread(net)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def _spread(net: DigitsNet) -> Any:
    """How far the weights are from sparse: L1 over L2, since only the direction of a normalised convolution counts."""
    convolutions = [block[0].weight for block in (net.wide, net.residual, net.deep)]
    spread = sum(w.abs().sum() / w.pow(2).sum().sqrt() * len(w) ** 0.5 for w in convolutions)
    return spread + net.head.weight.abs().sum()


def folded(conv_bn: Any, name: str) -> Tensors:
    """Fold the normalisation into the convolution before it: y = (w x - mean) * gamma / std + beta."""
    conv, norm = conv_bn
    with torch.no_grad():
        factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        weight = conv.weight * factor[:, None, None, None]
        bias = norm.bias - norm.running_mean * factor
    return {f"{name}.weight": weight.numpy(), f"{name}.bias": bias.numpy()}


def tensors(net: DigitsNet) -> Tensors:
    found: Tensors = {}
    for name in ("stem", "wide", "residual", "deep"):
        found.update(folded(getattr(net, name), name))
    found["head.weight"] = net.head.weight.detach().numpy()
    found["head.bias"] = net.head.bias.detach().numpy()
    return found


def _conv(name: str, source: str) -> Any:
    inputs = [source, f"{name}.weight", f"{name}.bias"]
    return helper.make_node("Conv", inputs, [f"{name}.out"], name, kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def _relu(name: str, source: str) -> Any:
    return helper.make_node("Relu", [source], [f"{name}.relu"], f"{name}_relu")


def nodes() -> list[Any]:
    return [
        _conv("stem", "x"),
        _relu("stem", "stem.out"),
        _conv("wide", "stem.relu"),
        _relu("wide", "wide.out"),
        _conv("residual", "wide.relu"),
        helper.make_node("Add", ["residual.out", "wide.relu"], ["residual.sum"], "residual_add"),
        _relu("residual", "residual.sum"),
        helper.make_node("MaxPool", ["residual.relu"], ["pooled"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        _conv("deep", "pooled"),
        _relu("deep", "deep.out"),
        helper.make_node("GlobalAveragePool", ["deep.relu"], ["averaged"], "average"),
        helper.make_node("Flatten", ["averaged"], ["features"], "flatten"),
        helper.make_node("Gemm", ["features", "head.weight", "head.bias"], ["logits"], "head", transB=1),
    ]


def write(weights: Tensors, path: Path) -> None:
    graph = helper.make_graph(
        nodes(),
        "digits_cnn",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.producer_name = "onnxsparse models/train_digits.py"
    checker.check_model(model, full_check=True)
    save(model, str(path))


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "models" / "digits_cnn.onnx"
    net = train()
    images, labels = (torch.from_numpy(a) for a in held_out_half())
    with torch.no_grad():
        right = (net(images).argmax(dim=1) == labels).float().mean().item()
    write(tensors(net), out)
    print(f"{out}: {100 * right:.2f} % of the held-out half")


if __name__ == "__main__":
    main()
