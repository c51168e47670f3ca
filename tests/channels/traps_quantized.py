"""Integers, scales and zero points. Scales are powers of two, so that sums are exact in any order."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from tests.channels.net import Array, Net, Reduction, Trap, generator
from tests.channels.traps import trap

STEP = 2.0**-4


def _scales(name: str, count: int) -> Array:
    """Powers of two that differ from channel to channel."""
    return (2.0 ** -generator(name).integers(5, 8, count)).astype(np.float32)


def _codes(name: str, *shape: int) -> Array:
    return generator(name).integers(-127, 128, shape).astype(np.int8)


def _through(net: Net, x: str, step: float = STEP) -> str:
    """An activation, quantized and back, with one scale and a zero point of its own."""
    stored = net.number(step), net.store(net.name("point"), np.array(3, np.int8))
    return net("DequantizeLinear", net("QuantizeLinear", x, *stored), *stored)


def _weight(net: Net, name: str, *shape: int, axis: int, out: int) -> str:
    """Codes with a scale and a zero point for each output channel, dequantized."""
    scales = _scales(f"{name}_scale", shape[out])
    spread = tuple(-1 if at == out else 1 for at in range(len(shape)))
    net.reductions[name] = Reduction(axis, scale=f"{name}_scale", spread=spread)
    stored = net.store(name, _codes(name, *shape)), net.store(f"{name}_scale", scales)
    return net("DequantizeLinear", *stored, net.store(f"{name}_point", np.zeros(shape[out], np.int8)), axis=out)


def _bias(net: Net, name: str, count: int) -> str:
    """int32 with a scale for each channel."""
    stored = net.store(name, generator(name).integers(-500, 500, count).astype(np.int32))
    return net("DequantizeLinear", stored, net.store(f"{name}_scale", _scales(f"{name}_scale", count)), axis=0)


def _conv(net: Net, x: str, name: str, cin: int, cout: int, k: int = 1, group: int = 1) -> str:
    weight = _weight(net, name, cout, cin // group, k, k, axis=1, out=0)
    return net("Conv", x, weight, _bias(net, f"{name}_b", cout), pads=[k // 2] * 4, group=group)


@trap
def qdq_convs() -> Trap:
    net = Net()
    h = _through(net, net.relu(_conv(net, _through(net, net.image(8)), "first", 8, 16, 3)))
    h = _through(net, net("Add", h, _through(net, _conv(net, h, "middle", 16, 16, 3))), 0.25)
    return net.trap(_conv(net, h, "last", 16, 6), move="middle last", stay="first")


@trap
def qdq_depthwise_and_grouped() -> Trap:
    net = Net()
    h = _through(net, _conv(net, _through(net, net.image(8)), "first", 8, 16))
    h = _through(net, net.relu(_conv(net, h, "depthwise", 16, 16, 3, group=16)))
    h = _through(net, net.relu(_conv(net, h, "grouped", 16, 16, 3, group=2)), 0.25)
    return net.trap(_conv(net, h, "last", 16, 6), move="grouped last", stay="first")


@trap
def qdq_of_activations_per_channel() -> Trap:
    """The activation has a scale for each channel, which moves along."""
    net = Net()
    h = net.conv(net.image(8), "first", 8, 16)
    stored = net.store("scale", _scales("scale", 16)), net.store("point", _codes("point", 16))
    h = net("DequantizeLinear", net("QuantizeLinear", h, *stored, axis=1), *stored, axis=1)
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def qdq_scale_of_the_reduction_axis() -> Trap:
    """The weight's scales belong to its input channels: they move with the columns."""
    net = Net()
    h = net.linear(net.input("x", 5, 8), "first", 8, 16)
    scales = _scales("scales", 16)
    net.reductions["last"] = Reduction(0, scale="scales", spread=(-1, 1))
    weight = net("DequantizeLinear", net.store("last", _codes("last", 16, 6)), net.store("scales", scales), axis=0)
    return net.trap(net("MatMul", h, weight), move="last", stay="first")


@trap
def qdq_weights_of_floats() -> Trap:
    """Quantization-aware training: the weight is stored in float and quantized in the graph, channel by channel."""
    net = Net()
    h = net.conv(net.image(8), "first", 8, 16)
    for name, out in (("middle", 16), ("last", 6)):
        stored = net.store(f"{name}_scale", _scales(name, out)), net.store(f"{name}_point", np.zeros(out, np.int8))
        codes = net("QuantizeLinear", net.weight(name, out, 16, 1, 1, axis=1), *stored, axis=0)
        h = net("Conv", net.relu(h), net("DequantizeLinear", codes, *stored, axis=0))
    return net.trap(h, move="middle last", stay="first")


@trap
def qdq_weight_transposed() -> Trap:
    """The scales belong to axis 0 of the stored tensor, which is axis 1 at the product."""
    net = Net()
    h = _through(net, net.linear(net.input("x", 5, 8), "first", 8, 16))
    middle = net.transpose(_weight(net, "middle", 16, 16, axis=1, out=0), 1, 0)
    h = _through(net, net("Add", net("MatMul", h, middle), _bias(net, "bias", 16)))
    return net.trap(net("MatMul", h, _weight(net, "last", 16, 6, axis=0, out=1)), move="middle last", stay="first")


@trap
def qdq_by_blocks() -> Trap:
    """Opset 21: a scale for each block of eight input channels."""
    net = Net(opset=21, ir=10)
    h = net.linear(net.input("x", 5, 8), "first", 8, 16)
    scales = _scales("scales", 12).reshape(2, 6)
    stored = net.store("last", _codes("last", 16, 6)), net.store("scales", scales)
    weight = net("DequantizeLinear", *stored, axis=0, block_size=8)
    return net.trap(net("MatMul", h, weight), stay="first")


@trap
def qdq_of_four_bits() -> Trap:
    """Two codes in a byte."""
    net = Net(opset=21, ir=10)
    h = net.linear(net.input("x", 5, 8), "first", 8, 16)
    codes = generator("last").integers(-7, 8, (16, 6))
    net.initializers.append(helper.make_tensor("last", TensorProto.INT4, (16, 6), codes.ravel().tolist()))
    net.reductions["last"] = Reduction(0)
    weight = net("DequantizeLinear", "last", net.number(2.0**-5))
    return net.trap(net("MatMul", h, weight), move="last", stay="first")


@trap
def qlinear_convs() -> Trap:
    """Codes, scales, zero points and int32 biases are inputs of one operator."""
    net = Net()
    scale, point = net.number(STEP), net.store("point", np.array(128, np.uint8))
    h = net("QuantizeLinear", net.image(8), scale, point)
    for name, cin, cout in (("first", 8, 16), ("middle", 16, 16), ("last", 16, 6)):
        scales = _scales(name, cout)
        net.reductions[name] = Reduction(1, scale=f"{name}_scale", spread=(-1, 1, 1, 1))
        weight = net.store(name, _codes(name, cout, cin, 1, 1)), net.store(f"{name}_scale", scales)
        bias = net.store(f"{name}_b", generator(f"{name}_b").integers(-900, 900, cout).astype(np.int32))
        zeros = net.store(f"{name}_point", np.zeros(cout, np.int8))
        h = net("QLinearConv", h, scale, point, *weight, zeros, scale, point, bias)
    return net.trap(net("DequantizeLinear", h, scale, point), move="middle last", stay="first")


@trap
def matmul_integer() -> Trap:
    """Dynamic quantization: one scale for all activations, found when the model runs, then a stored scale a column."""
    net = Net()
    h = net.linear(net.input("x", 5, 8), "first", 8, 16)
    for name, cout in (("middle", 16), ("last", 6)):
        scales = _scales(name, cout)
        net.reductions[name] = Reduction(0, scale=f"{name}_scale", spread=(-1,))
        h, step, point = net.many("DynamicQuantizeLinear", 3, h)
        stored = net.store(name, _codes(name, 16, cout)), point, net.store(f"{name}_point", np.zeros(cout, np.int8))
        product = net("Cast", net("MatMulInteger", h, *stored), to=1)
        factor = net("Mul", step, net.store(f"{name}_scale", scales))
        h = net.relu(net("Add", net("Mul", product, factor), net.weight(f"{name}_b", cout)))
    return net.trap(h, move="middle last", stay="first")


@trap
def conv_integer() -> Trap:
    net = Net()
    h = net.conv(net.image(8), "first", 8, 16)
    h, step, point = net.many("DynamicQuantizeLinear", 3, h)
    net.reductions["last"] = Reduction(1, zero=128)
    codes = (_codes("last", 6, 16, 1, 1).astype(np.int16) + 128).astype(np.uint8)
    weight = net.store("last", codes), point, net.store("last_point", np.array(128, np.uint8))
    product = net("Cast", net("ConvInteger", h, *weight), to=1)
    return net.trap(net("Mul", product, step), move="last", stay="first")


@trap
def dynamic_quantized_lstm() -> Trap:
    """com.microsoft: weights are stored as (directions, input, gates * units), with a scale for every column."""
    net = Net()
    h = net.linear(net.input("x", 4, 2, 8), "first", 8, 16)
    net.reductions.update(w=Reduction(1), r=Reduction(1))
    stored = [net.store("w", _codes("w", 1, 16, 48)), net.store("r", _codes("r", 1, 12, 48)), net.weight("b", 1, 96)]
    of_w = net.store("w_scale", _scales("w", 48)[None] / 4), net.store("w_point", np.zeros((1, 48), np.int8))
    of_r = net.store("r_scale", _scales("r", 48)[None] / 4), net.store("r_point", np.zeros((1, 48), np.int8))
    y = net("DynamicQuantizeLSTM", h, *stored, "", "", "", "", *of_w, *of_r, domain="com.microsoft", hidden_size=12)
    return net.trap(net.linear(net("Squeeze", y, net.ints(1)), "last", 12, 6), stay="first")


@trap
def half_precision() -> Trap:
    net = Net(dtype=np.float16)
    h = net.relu(net.batch_norm(net.conv(net.image(8), "first", 8, 16), "bn", 16))
    h = net("Add", h, net.relu(net.conv(h, "middle", 16, 16)))
    return net.trap(net.conv(h, "last", 16, 6), move="middle last", stay="first")


@trap
def half_precision_widened() -> Trap:
    """Stored in float16 and cast where it is used."""
    net = Net()
    h = net.conv(net.image(8), "first", 8, 16)
    net.dtype = np.dtype(np.float16)
    weight, bias = net.weight("middle", 16, 16, 1, 1, axis=1), net.weight("middle_b", 16)
    net.dtype = np.dtype(np.float32)
    h = net("Conv", net.relu(h), net("Cast", weight, to=1), net("Cast", bias, to=1))
    return net.trap(net.conv(net.relu(h), "last", 16, 6), move="middle last", stay="first")


@trap
def double_precision() -> Trap:
    net = Net(dtype=np.float64)
    h = net.linear(net.input("x", 5, 8), "first", 8, 16)
    h = net("Add", h, net.linear(net.relu(net.linear(h, "up", 16, 24)), "down", 24, 16))
    return net.trap(net.linear(net.layer_norm(h, "norm", 16), "last", 16, 6), move="up down last", stay="first")
