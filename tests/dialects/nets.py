"""The same small network as an ONNX model and as a torch module, data for it, and what masks have to be."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

SHAPES = {
    "stem.weight": (16, 3, 3, 3),
    "deep.weight": (16, 1, 3, 3),
    "point.weight": (32, 16, 1, 1),
    "wide.weight": (32, 32, 3, 3),
    "head.weight": (8, 32),
}
SIZE, CLASSES = 12, 8


def random(seed, *shape):
    return np.random.Generator(np.random.Philox(key=seed)).standard_normal(shape).astype(np.float32)


def numbers():
    """Scaled so that activations stay about 1."""
    scale = {name: 1 / math.sqrt(math.prod(shape[1:])) for name, shape in SHAPES.items()}
    return {name: random(place, *shape) * np.float32(scale[name]) for place, (name, shape) in enumerate(SHAPES.items())}


def onnx_model(batch="N"):
    nodes = [
        make_node("Conv", ["x", "stem.weight"], ["a"], "/stem/Conv", pads=[1, 1, 1, 1], strides=[2, 2]),
        make_node("Relu", ["a"], ["b"], "/relu"),
        make_node("Conv", ["b", "deep.weight"], ["c"], "/deep/Conv", pads=[1, 1, 1, 1], group=16),
        make_node("Conv", ["c", "point.weight"], ["d"], "/point/Conv"),
        make_node("Relu", ["d"], ["e"], "/relu2"),
        make_node("Conv", ["e", "wide.weight"], ["f"], "/wide/Conv", pads=[1, 1, 1, 1], strides=[2, 2]),
        make_node("GlobalAveragePool", ["f"], ["g"], "/pool"),
        make_node("Flatten", ["g"], ["h"], "/flat"),
        make_node("Gemm", ["h", "head.weight"], ["y"], "/head/Gemm", transB=1),
    ]
    graph = make_graph(
        nodes,
        "net",
        [make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, SIZE, SIZE])],
        [make_tensor_value_info("y", TensorProto.FLOAT, [batch, CLASSES])],
        [numpy_helper.from_array(array, name) for name, array in numbers().items()],
    )
    return make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)


def torch_module():
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 3, 2, 1, bias=False)
            self.deep = nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False)
            self.point = nn.Conv2d(16, 32, 1, bias=False)
            self.wide = nn.Conv2d(32, 32, 3, 2, 1, bias=False)
            self.head = nn.Linear(32, CLASSES, bias=False)

        def forward(self, x):
            x = self.point(self.deep(torch.relu(self.stem(x))))
            return self.head(self.wide(torch.relu(x)).mean((2, 3)))

    net = Net()
    net.load_state_dict({name: torch.from_numpy(array) for name, array in numbers().items()})
    return net


def batch(step, size=8):
    x = random(1000 + step, size, 3, SIZE, SIZE)
    return x, (np.abs(x).sum((1, 2, 3)).astype(np.int64)) % CLASSES


def as_matrix(array, groups=1):
    """(outputs, inputs of one output and taps)"""
    return array.reshape(array.shape[0], -1)


def smallest_dropped(array, drop):
    """Keep all but the `drop` smallest, of equals the later ones; every output keeps its largest."""
    flat = np.abs(array).reshape(-1)
    rows = np.abs(array).reshape(array.shape[0], -1)
    safe = {
        row * rows.shape[1] + max(range(rows.shape[1]), key=lambda at: (rows[row, at], at)) for row in range(len(rows))
    }
    keep = np.ones(flat.size, bool)
    for at in [at for at in np.argsort(flat, kind="stable") if at not in safe][:drop]:
        keep[at] = False
    return keep.reshape(array.shape)


def two_of_four(array):
    """The 2 largest of every 4 inputs, for every output and tap; of equals the later ones."""
    turned = np.moveaxis(array.reshape(*array.shape[:2], -1), 1, 2)
    keep = np.zeros(turned.shape, bool)
    for place in np.ndindex(*turned.shape[:2]):
        for start in range(0, turned.shape[2] // 4 * 4, 4):
            four = np.abs(turned[(*place, slice(start, start + 4))])
            for at in np.argsort(four, kind="stable")[2:]:
                keep[(*place, start + at)] = True
    return np.moveaxis(keep, 2, 1).reshape(array.shape)
