"""Finding channels takes a few CPU seconds, however many layers and classes there are."""

from __future__ import annotations

import time

import onnx.shape_inference
from onnx import ModelProto, ValueInfoProto, helper

from onnxsparse.channel_classes.classes import Channels, analyse
from onnxsparse.graph.model import Model
from tests.channels.net import Net

DEEP, SECONDS = 1000, 20.0
"""CPU seconds that a slow machine may take; here it is one."""


def deep(residual: bool) -> ModelProto:
    """Five nodes a layer; each layer has a class of its own, or all have one."""
    net = Net()
    h = net.relu(net.linear(net.input("x", 1, 4, 8), "first", 8, 16))
    for at in range(DEEP):
        y = net("Sigmoid", net("Mul", net.linear(h, f"w{at}", 16, 16), net.weight(f"s{at}", 16)))
        h = net("Add", h, y) if residual else net("Neg", y)
    return unrun(net, net.linear(h, "last", 16, 6))


def unrun(net: Net, output: str) -> ModelProto:
    graph = helper.make_graph(net.nodes, "net", net.inputs, [ValueInfoProto(name=output)], net.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", net.opset)], ir_version=net.ir)
    return onnx.shape_inference.infer_shapes(model)


def timed(model: ModelProto) -> Channels:
    opened = Model.open(model)
    assert opened.flow.stores.homes
    start = time.process_time()
    found = analyse(opened)
    assert time.process_time() - start < SECONDS
    return found


def test_a_thousand_layers_in_one_class() -> None:
    found = timed(deep(residual=True))
    assert len(found.classes) == 1
    assert len(found.classes[0].members) == 4 * DEEP + 3


def test_a_thousand_layers_in_a_class_each() -> None:
    assert len(timed(deep(residual=False)).classes) == DEEP + 1


def test_a_convolution_of_many_groups() -> None:
    """A class for each group in each layer."""
    net = Net()
    h = net.conv(net.input("x", 1, 8, 4, 4), "first", 8, 256)
    for at in range(20):
        h = net.relu(net.conv(net.conv(net.relu(h), f"grouped{at}", 256, 256, group=32), f"dense{at}", 256, 256))
    assert len(timed(unrun(net, net.conv(h, "last", 256, 6))).classes) == 20 * 64 + 1
