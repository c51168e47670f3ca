"""Quantized operators: what moves with codes, scales, zero points and int32 biases, judged by the runtime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.channels.net import Net, generator
from tests.channels.permuting import held
from tests.channels.traps_quantized import STEP

MICROSOFT = "com.microsoft"


def codes(net: Net, name: str, *shape: int, kind: type = np.int8) -> str:
    low, high = (-100, 100) if kind is np.int8 else (20, 230)
    return net.store(name, generator(name).integers(low, high, shape).astype(kind))


def scales(net: Net, name: str, *shape: int) -> str:
    return net.store(name, (2.0 ** -generator(name).integers(5, 8, shape)).astype(np.float32))


def points(net: Net, name: str, *shape: int, kind: type = np.int8) -> str:
    return net.store(name, (generator(name).integers(-3, 4, shape) + (0 if kind is np.int8 else 128)).astype(kind))


def start(net: Net, width: int = 16) -> str:
    """Activations (2, 5, width) with channels that may move along the last axis."""
    return net.relu(net.linear(net.input("x", 2, 5, 8), "first", 8, width))


def image(net: Net, width: int = 16) -> str:
    return net.relu(net.conv(net.image(8), "first", 8, width))


def quantized(net: Net, x: str, step: float = STEP) -> tuple[str, str, str]:
    stored = net.number(step), net.store(net.name("point"), np.array(7, np.uint8))
    return net("QuantizeLinear", x, *stored), *stored


def dequantized(net: Net, x: str) -> str:
    return net("DequantizeLinear", x, net.number(STEP), net.store(net.name("point"), np.array(7, np.uint8)))


@pytest.mark.parametrize("axis", [1, -1])
def test_scales_of_an_axis_move_with_it(axis: int) -> None:
    net = Net()
    weight = net("DequantizeLinear", codes(net, "w", 16, 6), scales(net, "s", 6), points(net, "z", 6), axis=axis)
    other = net("DequantizeLinear", codes(net, "v", 6, 3), scales(net, "t", 6), axis=-2)
    h = net("MatMul", net("MatMul", start(net), weight), other)
    held(net, h, move="first:1 first_b w:0 w:1 s z v:0 t", stay="first:0 v:1")


def test_one_scale_for_all() -> None:
    net = Net()
    h, step, point = quantized(net, start(net))
    h = net("DequantizeLinear", h, step, point)
    weight = net("DequantizeLinear", codes(net, "w", 16, 6), net.number(0.01))
    held(net, net("MatMul", h, weight), move="first:1 w:0", stay="w:1")


def test_a_scale_of_one_element_has_no_place() -> None:
    net = Net()
    weight = net("DequantizeLinear", codes(net, "w", 1, 16), scales(net, "s", 1), axis=0)
    h = net("Mul", start(net), weight)
    held(net, net.linear(h, "last", 16, 6), move="first:1 w:1 last:0", stay="s")


def test_a_bias_of_int32_moves_with_the_filters() -> None:
    net = Net()
    bias = net.store("b", generator("b").integers(-900, 900, 12).astype(np.int32))
    weight = net("DequantizeLinear", codes(net, "w", 12, 16, 1, 1), scales(net, "s", 12), axis=0)
    h = net("Conv", image(net), weight, net("DequantizeLinear", bias, scales(net, "t", 12), axis=0))
    held(net, net.conv(net.relu(h), "last", 12, 6), move="first:0 w:0 w:1 s b t last:1", stay="last:0")


@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_keep_their_channels(axis: int) -> None:
    """Along the axis of the blocks numbers move inside a block; along the other scales move with them."""
    net = Net(opset=21, ir=10)
    shape = [16, 12]
    shape[axis] //= 4
    stored = codes(net, "w", 16, 12), scales(net, "s", *shape), points(net, "z", *shape)
    h = net("MatMul", start(net), net("DequantizeLinear", *stored, axis=axis, block_size=4))
    held(net, net.linear(h, "last", 12, 6), move=f"w:0 w:1 s:{1 - axis} z:{1 - axis}", stay=f"s:{axis} z:{axis} last:1")


def test_blocks_of_activations() -> None:
    net = Net(opset=21, ir=10)
    stored = scales(net, "s", 10, 4), points(net, "z", 10, 4, kind=np.uint8)
    h = net("QuantizeLinear", net.reshape(start(net), 10, 16), *stored, axis=1, block_size=4)
    h = net("DequantizeLinear", h, *stored, axis=1, block_size=4)
    held(net, net.linear(h, "last", 16, 6), move="first:1 last:0", stay="s z")


def test_codes_of_8_bit_floats() -> None:
    net = Net(opset=19, ir=9)
    values = generator("w").standard_normal((16, 6))
    net.initializers.append(helper.make_tensor("w", TensorProto.FLOAT8E4M3FN, (16, 6), values.ravel().tolist()))
    held(net, net("MatMul", start(net), net("DequantizeLinear", "w", net.number(1.0))), stay="w:1")


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("group", [1, 4, 16])
def test_qlinear_conv(group: int, per_channel: bool) -> None:
    net = Net()
    h, step, point = quantized(net, image(net))
    own = (16,) if per_channel else ()
    weight = codes(net, "w", 16, 16 // group, 3, 3), scales(net, "s", *own), net.store("z", np.zeros(own, np.int8))
    bias = net.store("b", generator("b").integers(-900, 900, 16).astype(np.int32))
    h = net("QLinearConv", h, step, point, *weight, net.number(0.5), point, bias, group=group, pads=[1] * 4)
    h = net("DequantizeLinear", h, net.number(0.5), point)
    held(net, net.conv(h, "last", 16, 6), move="w:0 b last:1" + (" s" if per_channel else ""), stay="last:0")


def test_qlinear_conv_with_channels_last() -> None:
    net = Net()
    h = net.transpose(image(net), 0, 2, 3, 1)
    h, step, point = quantized(net, h)
    weight = codes(net, "w", 12, 16, 3, 3), scales(net, "s", 12), net.store("z", np.zeros(12, np.int8))
    h = net("QLinearConv", h, step, point, *weight, net.number(0.5), point, domain=MICROSOFT, channels_last=1)
    h = net("DequantizeLinear", h, net.number(0.5), point)
    held(net, net.linear(h, "last", 12, 6), move="first:0 w:0 w:1 s last:0", stay="last:1")


def test_conv_integer() -> None:
    net = Net()
    h, _, point = quantized(net, image(net))
    product = net("ConvInteger", h, codes(net, "w", 12, 16, 1, 1, kind=np.uint8), point, net.store("z", np.uint8(99)))
    h = net("Mul", net("Cast", product, to=1), net.number(1e-3))
    held(net, net.conv(h, "last", 12, 6), move="first:0 w:0 w:1 last:1", stay="last:0")


@pytest.mark.parametrize("per_column", [False, True])
def test_qlinear_matmul(per_column: bool) -> None:
    net = Net()
    h, step, point = quantized(net, start(net))
    own = (12,) if per_column else ()
    weight = codes(net, "w", 16, 12), scales(net, "s", *own), points(net, "z", *own)
    h = net("QLinearMatMul", h, step, point, *weight, net.number(0.5), point)
    h = net("DequantizeLinear", h, net.number(0.5), point)
    held(net, net.linear(h, "last", 12, 6), move="first:1 w:0 w:1 last:0" + (" s z" if per_column else ""))


def test_matmul_integer() -> None:
    net = Net()
    h, _, point = quantized(net, start(net))
    h = net("MatMulInteger", h, codes(net, "w", 16, 12), point, points(net, "z", 12))
    h = net("Mul", net("Cast", h, to=1), net.number(1e-3))
    held(net, net.linear(h, "last", 12, 6), move="first:1 w:0 w:1 z last:0", stay="last:1")


def test_matmul_integer_to_float() -> None:
    net = Net()
    h, step, point = quantized(net, start(net))
    stored = codes(net, "w", 16, 12), step, scales(net, "s", 12), point, points(net, "z", 12), net.weight("b", 12)
    h = net("MatMulIntegerToFloat", h, *stored, domain=MICROSOFT)
    held(net, net.linear(h, "last", 12, 6), move="first:1 w:0 w:1 s z b last:0", stay="last:1")


def test_dynamic_quantization() -> None:
    """The scale of all activations does not depend on their order."""
    net = Net()
    h, step, point = net.many("DynamicQuantizeLinear", 3, start(net))
    h = net("Cast", net("MatMulInteger", h, codes(net, "w", 16, 12), point), to=1)
    h = net("Mul", h, net("Mul", step, scales(net, "s", 12)))
    held(net, net.linear(h, "last", 12, 6), move="first:1 w:0 w:1 s last:0", stay="last:1")


def test_dynamic_quantization_of_a_part() -> None:
    """The extremes of the first half are not those of another."""
    net = Net()
    left, right = net.split(start(net), 8, 8, axis=2)
    left, step, point = net.many("DynamicQuantizeLinear", 3, left)
    h = net.concat(net("DequantizeLinear", left, step, point), right, axis=2)
    held(net, net.linear(h, "last", 16, 6), move="first:1 last:0")


def test_dynamic_quantize_matmul() -> None:
    net = Net()
    stored = codes(net, "w", 16, 12), scales(net, "s", 12), points(net, "z", 12), net.weight("b", 12)
    h = net("DynamicQuantizeMatMul", start(net), *stored, domain=MICROSOFT)
    held(net, net.linear(h, "last", 12, 6), move="first:1 w:0 w:1 s z b last:0", stay="last:1")


@pytest.mark.parametrize("turned", [0, 1])
def test_qgemm(turned: int) -> None:
    net = Net()
    h, step, point = quantized(net, net.reshape(start(net), 10, 16))
    weight = codes(net, "w", *((12, 16) if turned else (16, 12))), scales(net, "s", 12), points(net, "z", 12)
    bias = net.store("b", generator("b").integers(-900, 900, 12).astype(np.int32))
    h = net("QGemm", h, step, point, *weight, bias, net.number(0.5), point, domain=MICROSOFT, transB=turned)
    h = net("DequantizeLinear", h, net.number(0.5), point)
    held(net, net.linear(h, "last", 12, 6), move="first:1 w:0 w:1 s z b last:0", stay="last:1")


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_two_quantized_values_meet(op: str) -> None:
    net = Net()
    h, step, point = quantized(net, start(net))
    other = codes(net, "w", 16, kind=np.uint8)
    h = net(op, h, step, point, other, net.number(0.01), point, net.number(0.1), point, domain=MICROSOFT)
    held(
        net,
        net.linear(net("DequantizeLinear", h, net.number(0.1), point), "last", 16, 6),
        move="first:1 w last:0",
        stay="last:1",
    )


def test_qlinear_concat() -> None:
    net = Net()
    h, step, point = quantized(net, start(net))
    g, other, zero = quantized(net, net.linear("x", "second", 8, 8), 0.01)
    h = net("QLinearConcat", net.number(0.1), point, h, step, point, g, other, zero, domain=MICROSOFT, axis=-1)
    h = net("DequantizeLinear", h, net.number(0.1), point)
    held(net, net.linear(h, "last", 24, 6), move="first:1 second:1 last:0", stay="last:1")


@pytest.mark.parametrize("op", ["QLinearLeakyRelu", "QLinearSigmoid"])
def test_quantized_activations(op: str) -> None:
    net = Net()
    h, step, point = quantized(net, start(net))
    h = dequantized(net, net(op, h, step, point, net.number(STEP), point, domain=MICROSOFT))
    held(net, net.linear(h, "last", 16, 6), move="first:1 last:0", stay="last:1")


@pytest.mark.parametrize(
    ("op", "more"), [("QLinearGlobalAveragePool", {}), ("QLinearAveragePool", {"kernel_shape": [2, 2]})]
)
@pytest.mark.parametrize("last", [0, 1])
def test_quantized_pools(op: str, more: dict[str, list[int]], last: int) -> None:
    net = Net()
    h = image(net)
    h, step, point = quantized(net, net.transpose(h, 0, 2, 3, 1) if last else h)
    h = net(op, h, step, point, net.number(STEP), point, domain=MICROSOFT, channels_last=last, **more)
    h = dequantized(net, net.transpose(h, 0, 3, 1, 2) if last else h)
    held(net, net.conv(h, "last", 16, 6), move="first:0 last:1", stay="last:0")


def test_qlinear_softmax() -> None:
    net = Net()
    h, step, point = quantized(net, start(net))
    h = net("QLinearSoftmax", h, step, point, net.number(1 / 256), point, domain=MICROSOFT, axis=2, opset=13)
    h = net("DequantizeLinear", h, net.number(1 / 256), point)
    held(net, net.linear(h, "last", 16, 6), move="first:1 last:0", stay="last:1")


def test_packed_weights_stay() -> None:
    net = Net()
    packed = net.store("w", generator("w").integers(0, 256, (12, 1, 16)).astype(np.uint8))
    h = net.linear(start(net), "middle", 16, 32)
    h = net("MatMulNBits", h, packed, scales(net, "s", 12), domain=MICROSOFT, K=32, N=12, bits=4, block_size=32)
    held(net, net.linear(h, "last", 12, 6), move="first:1 middle:0", stay="middle:1 w s last:0")
