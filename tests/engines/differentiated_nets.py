"""Small networks whose gradients are taken, and the runtime's own word on them: finite differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from onnxsparse.calibration.output_gradients import output_gradients
from onnxsparse.engines.inference import Session
from onnxsparse.engines.random_projection import Projection, giving, projection_of
from onnxsparse.graph.edit import copied, keep
from onnxsparse.math.values import Array
from tests.engines.small_nets import numbers

FLOAT = TensorProto.FLOAT


@dataclass(frozen=True)
class Net:
    """A model, the inner values whose gradients are asked for, and what a sample is."""

    proto: ModelProto
    names: Sequence[str]
    x: tuple[int, ...]

    def feed(self, count: int, seed: int) -> dict[str, Array]:
        kind = self.proto.graph.input[0].type.tensor_type.elem_type
        return {"x": numbers(count, *self.x, seed=100 + seed).astype(onnx.helper.tensor_dtype_to_np_dtype(kind))}

    def feeds(self, *counts: int) -> list[dict[str, Array]]:
        return [self.feed(count, seed) for seed, count in enumerate(counts)]


def net(
    nodes: Sequence[NodeProto],
    stored: Mapping[str, Array],
    x: tuple[int, ...],
    outputs: Mapping[str, Sequence[int | str]],
    names: Sequence[str],
    kind: int = FLOAT,
    opset: int = 17,
) -> Net:
    values = [make_tensor_value_info(name, kind, list(shape)) for name, shape in outputs.items()]
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()]
    graph = make_graph(list(nodes), "net", [make_tensor_value_info("x", kind, ["N", *x])], values, held)
    made = make_model(graph, opset_imports=[make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(made, full_check=True)
    return Net(made, names, x)


def images() -> Net:
    """Normalization, a residual, a grouped convolution with automatic pads, pools, softmax at the end, two outputs."""
    nodes = [
        make_node("Conv", ["x", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        make_node("BatchNormalization", ["c1", "scale", "shift", "mean", "var"], ["n1"]),
        make_node("Softplus", ["n1"], ["r1"]),
        make_node("Conv", ["r1", "w2"], ["c2"], group=3, auto_pad="SAME_UPPER"),
        make_node("Add", ["c2", "r1"], ["sum"]),
        make_node("HardSwish", ["sum"], ["h"]),
        make_node("AveragePool", ["h"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        make_node("GlobalAveragePool", ["p"], ["g"]),
        make_node("Flatten", ["g"], ["f"]),
        make_node("Gemm", ["f", "w3", "b3"], ["logits"], transB=1),
        make_node("Softmax", ["logits"], ["y"]),
        make_node("Conv", ["r1", "w4"], ["map"], strides=[2, 2]),
    ]
    stored = {
        "w1": numbers(6, 3, 3, 3, seed=1) / 3,
        "w2": numbers(6, 2, 3, 3, seed=2) / 3,
        "w3": numbers(5, 6, seed=3),
        "b3": numbers(5, seed=4),
        "w4": numbers(2, 6, 1, 1, seed=5),
        "scale": numbers(6, seed=6),
        "shift": numbers(6, seed=7),
        "mean": numbers(6, seed=8),
        "var": abs(numbers(6, seed=9)) + 0.5,
    }
    outputs = {"y": ["N", 5], "map": ["N", 2, 4, 4]}
    return net(nodes, stored, (3, 8, 8), outputs, ["c1", "c2", "logits", "map"])


def attention() -> Net:
    """A block of a transformer."""
    nodes = [
        *(make_node("MatMul", ["x", f"w{one}"], [one]) for one in "qkv"),
        make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        make_node("MatMul", ["q", "kt"], ["s"]),
        make_node("Mul", ["s", "root"], ["scaled"]),
        make_node("Softmax", ["scaled"], ["shares"], axis=-1),
        make_node("MatMul", ["shares", "v"], ["mixed"]),
        make_node("MatMul", ["mixed", "wo"], ["out"]),
        make_node("Add", ["out", "x"], ["residual"]),
        make_node("LayerNormalization", ["residual", "gain", "bias"], ["norm"], axis=-1),
        make_node("MatMul", ["norm", "w1"], ["h"]),
        make_node("Erf", ["h"], ["active"]),
        make_node("MatMul", ["active", "w2"], ["h2"]),
        make_node("Add", ["h2", "norm"], ["y"]),
    ]
    stored = {f"w{one}": numbers(8, 8, seed=place) / 3 for place, one in enumerate("qkvo")}
    stored.update(gain=numbers(8, seed=5), bias=numbers(8, seed=6), root=np.array(0.35, np.float32))
    stored.update(w1=numbers(8, 16, seed=7) / 3, w2=numbers(16, 8, seed=8) / 4)
    names = ["q", "k", "v", "s", "mixed", "out", "h", "h2"]
    return net(nodes, stored, (5, 8), {"y": ["N", 5, 8]}, names)


def dense(last: str = "Sigmoid", kind: int = FLOAT) -> Net:
    """Layers of which one is read twice by one node; shares at the end."""
    nodes = [
        make_node("MatMul", ["x", "w1"], ["a"]),
        make_node("Mul", ["a", "a"], ["squares"]),
        make_node("Tanh", ["squares"], ["b"]),
        make_node("MatMul", ["b", "w2"], ["c"]),
        make_node(last, ["c"], ["y"]),
    ]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    stored = {"w1": numbers(6, 7, seed=1) / 2, "w2": numbers(7, 4, seed=2)}
    stored = {name: array.astype(dtype) for name, array in stored.items()}
    return net(nodes, stored, (6,), {"y": ["N", 4]}, ["a", "c"], kind)


def sequences() -> Net:
    """An LSTM behind a dense layer."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["before"]),
        make_node("Transpose", ["before"], ["steps"], perm=[1, 0, 2]),
        make_node("LSTM", ["steps", "W", "R", "B"], ["", "last"], hidden_size=4),
        make_node("Squeeze", ["last", "first"], ["state"]),
        make_node("Gemm", ["state", "v"], ["y"]),
    ]
    stored = {
        "w": numbers(3, 5, seed=1),
        "W": numbers(1, 16, 5, seed=2) / 2,
        "R": numbers(1, 16, 4, seed=3) / 2,
        "B": numbers(1, 32, seed=4),
        "first": np.array([0]),
        "v": numbers(4, 3, seed=5),
    }
    return net(nodes, stored, (6, 3), {"y": ["N", 3]}, ["before", "state", "y"])


def rounded() -> Net:
    """Whole numbers stored, and values rounded to whole numbers and back."""

    def pair(value: str, scale: str, zero: str) -> list[NodeProto]:
        return [
            make_node("QuantizeLinear", [value, scale, zero], [f"{value}_q"]),
            make_node("DequantizeLinear", [f"{value}_q", scale, zero], [f"{value}_r"]),
        ]

    nodes = [
        *pair("x", "sx", "zx"),
        make_node("DequantizeLinear", ["w1", "s1", "z1"], ["w1_r"], axis=1),
        make_node("MatMul", ["x_r", "w1_r"], ["a"]),
        make_node("Tanh", ["a"], ["b"]),
        *pair("b", "sb", "zb"),
        make_node("DequantizeLinear", ["w2", "s2"], ["w2_r"]),
        make_node("MatMul", ["b_r", "w2_r"], ["y"]),
    ]
    stored = {
        "sx": np.float32(0.04),
        "zx": np.uint8(128),
        "sb": np.float32(1 / 127),
        "zb": np.int8(0),
        "w1": (numbers(6, 7, seed=1) * 30).astype(np.int8),
        "s1": abs(numbers(7, seed=2)) / 60,
        "z1": np.zeros(7, np.int8),
        "w2": (numbers(7, 4, seed=3) * 40).astype(np.int8),
        "s2": np.float32(0.02),
    }
    return net(nodes, {name: np.asarray(one) for name, one in stored.items()}, (6,), {"y": ["N", 4]}, ["a", "y"])


def looping() -> Net:
    """A loop over a state: what torch differentiates, and onnxruntime-training does not."""
    body = make_graph(
        [
            make_node("Tanh", ["state"], ["active"]),
            make_node("MatMul", ["active", "w2"], ["next"]),
            make_node("Identity", ["going"], ["still"]),
        ],
        "body",
        [
            make_tensor_value_info("step", TensorProto.INT64, []),
            make_tensor_value_info("going", TensorProto.BOOL, []),
            make_tensor_value_info("state", FLOAT, ["N", 4]),
        ],
        [make_tensor_value_info("still", TensorProto.BOOL, []), make_tensor_value_info("next", FLOAT, ["N", 4])],
    )
    nodes = [
        make_node("MatMul", ["x", "w1"], ["a"]),
        make_node("Loop", ["times", "", "a"], ["b"], body=body),
        make_node("MatMul", ["b", "w3"], ["y"]),
    ]
    stored = {"w1": numbers(6, 4, seed=1) / 2, "w2": numbers(4, 4, seed=2) / 2, "w3": numbers(4, 3, seed=3)}
    return net(nodes, {**stored, "times": np.array(3)}, (6,), {"y": ["N", 3]}, ["a", "y"])


NETS: dict[str, Callable[[], Net]] = {
    "images": images,
    "attention": attention,
    "dense": dense,
    "plain outputs": lambda: dense("Neg"),
    "sequences": sequences,
}


def demand_slopes(net: Net, engine: str) -> None:
    """The gradients are those of the projection, by the runtime: along random directions, and for all values."""
    feeds = net.feeds(4, 4, 3)
    gradients = output_gradients(net.proto, net.names, feeds, engine, draws=1, seed=5)
    assert (gradients.engine, dict(gradients.unreached)) == (engine, {})
    projection = projection_of(net.proto, feeds, 1, 5, {})
    for place, (feed, found) in enumerate(zip(feeds, gradients)):
        assert list(found) == list(net.names)
        for name, gradient in found.items():
            way = numbers(*gradient.shape, seed=place)
            slope, promised = slope_of(net, projection, place, feed, name, way), float((gradient * way).sum())
            assert slope == pytest.approx(promised, rel=0.02, abs=0.02 * float(np.linalg.norm(gradient))), (name, place)


def slope_of(net: Net, projection: Projection, place: int, feed: Mapping[str, Array], name: str, way: Array) -> float:
    """How the projection of the first draw moves when an inner value does: a central difference in the runtime."""
    session = Session(giving(_with_probe(net.proto, name, way.shape), projection.targets), optimized=False)
    factors = projection.factors(place, 0)

    def at(step: float) -> float:
        found = session.run({**feed, "probe": (step * way).astype(np.float32)})
        return sum(float((factor.astype(np.float64) * found[one]).sum()) for one, factor in factors.items())

    return (at(STEP) - at(-STEP)) / (2 * STEP)


STEP = 1e-2


def _with_probe(proto: ModelProto, name: str, shape: Sequence[int]) -> ModelProto:
    copy, nodes = copied(proto), list[NodeProto]()
    for node in copy.graph.node:
        nodes.append(node)
        if name in node.output:
            node.output[list(node.output).index(name)] = f"{name}_before"
            nodes.append(make_node("Add", [f"{name}_before", "probe"], [name]))
    keep(copy.graph.node, nodes)
    copy.graph.input.append(make_tensor_value_info("probe", FLOAT, list(shape)))
    return copy
