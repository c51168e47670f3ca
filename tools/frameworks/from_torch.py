"""PyTorch: the two exporters of torch, and the one call that picks between them."""

from __future__ import annotations

from tools.frameworks.samples import FOLDER, digits, save

x, y, x_test, y_test = digits()

# <page>
import torch
from torch import nn

import onnxsparse as osp

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1, bias=False),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, bias=False),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(256, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
)
images, labels = torch.from_numpy(x).view(-1, 1, 8, 8), torch.from_numpy(y)
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
for _ in range(400):
    batch = torch.randint(0, len(images), (64,))
    loss = nn.functional.cross_entropy(net(images[batch]), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

net.eval()
found = osp.torch.export(net, images[:2], FOLDER / "named.onnx")  # every parameter under its own name
assert found.ok

dynamic = {"dynamic_axes": {"x": {0: "batch"}}, "input_names": ["x"]}
torch.onnx.export(net, (images[:2],), str(FOLDER / "torchscript.onnx"), dynamo=False, **dynamic)
batch = {"input": {0: torch.export.Dim("batch")}}
torch.onnx.export(net, (images[:2],), str(FOLDER / "dynamo.onnx"), dynamo=True, dynamic_shapes=batch)
# </page>

for file in ("named", "torchscript", "dynamo"):
    save(FOLDER / f"{file}.onnx", x.reshape(-1, 1, 8, 8), x_test.reshape(-1, 1, 8, 8), labels=y_test)
