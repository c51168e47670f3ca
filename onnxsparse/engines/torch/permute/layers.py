"""Layers of torch and their functions as operators of ONNX: element by element, sums over channels, norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxsparse.engines.torch.permute.emitter import (
    Call,
    Emitter,
    NotHereError,
    Value,
    functions,
    layers,
    values_in,
)

_UNARY = {
    "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "neg": "Neg",
    "abs": "Abs", "erf": "Erf", "elu": "Elu", "selu": "Selu", "celu": "Celu", "softplus": "Softplus", "mish": "Mish",
    "leaky_relu": "LeakyRelu", "gelu": "Gelu", "hardswish": "HardSwish", "hardsigmoid": "HardSigmoid", "sign": "Sign",
    "floor": "Floor", "ceil": "Ceil", "round": "Round", "sin": "Sin", "cos": "Cos", "reciprocal": "Reciprocal",
    "softsign": "Softsign", "logical_not": "Not", "isnan": "IsNaN",
}  # fmt: skip
_SAME = (
    "contiguous", "clone", "detach", "to", "float", "half", "double", "bfloat16", "int", "long", "bool", "type",
    "type_as", "requires_grad_", "cpu", "cuda", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
    "feature_alpha_dropout", "positive", "pos", "alias", "data",
)  # fmt: skip


@functions(
    *_UNARY,
    *_SAME,
    "relu6",
    "silu",
    "hardtanh",
    "logsigmoid",
    "hardshrink",
    "softshrink",
    "tanhshrink",
    "threshold",
    "rsqrt",
    "square",
    "expm1",
    "log1p",
    "log2",
    "log10",
    "sinh",
    "cosh",
    "tan",
    "atan",
    "asin",
    "acos",
    "nan_to_num",
    "isinf",
    "isfinite",
    "invert",
    "bitwise_not",
    "absolute",
    "trunc",
    "frac",
    "erfc",
    "exp2",
    "sinc",
    "logit",
    "rrelu",
    "not_",
    "deg2rad",
    "sgn",
    "erfinv",
)
def unary(emitter: Emitter, call: Call) -> Value:
    """Numbers that stay in their places."""
    op = "Identity" if call.name in _SAME else _UNARY.get(call.name.rstrip("_"), "Sigmoid")
    value = call.tensor()
    if call.shape != value.shape:
        raise NotHereError
    return emitter.new(op, [value], call.shape, call.kind)


@layers(
    "ReLU",
    "ReLU6",
    "Sigmoid",
    "Tanh",
    "SiLU",
    "GELU",
    "ELU",
    "SELU",
    "CELU",
    "LeakyReLU",
    "Hardswish",
    "Hardsigmoid",
    "Hardtanh",
    "Mish",
    "Softplus",
    "Softsign",
    "LogSigmoid",
    "Hardshrink",
    "Softshrink",
    "Tanhshrink",
    "Threshold",
    "RReLU",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "AlphaDropout",
    "FeatureAlphaDropout",
    "Identity",
)
def activation(emitter: Emitter, call: Call) -> Value:
    known = {"ReLU": "Relu", "GELU": "Gelu", "Sigmoid": "Sigmoid", "Tanh": "Tanh"}
    op = "Identity" if "Dropout" in call.name or call.name == "Identity" else known.get(call.name, "Sigmoid")
    return emitter.new(op, [call.tensor()], call.shape, call.kind)


_MANY = {"add": "Add", "iadd": "Add", "sub": "Sub", "isub": "Sub", "mul": "Mul", "imul": "Mul", "multiply": "Mul",
         "div": "Div", "truediv": "Div", "itruediv": "Div", "divide": "Div", "true_divide": "Div", "pow": "Pow",
         "where": "Where", "maximum": "Max", "minimum": "Min"}  # fmt: skip


@functions(
    *_MANY,
    "rsub",
    "floordiv",
    "floor_divide",
    "mod",
    "fmod",
    "remainder",
    "eq",
    "ne",
    "lt",
    "gt",
    "le",
    "ge",
    "and_",
    "or_",
    "xor",
    "logical_and",
    "logical_or",
    "logical_xor",
    "addcmul",
    "addcdiv",
    "lerp",
    "masked_fill",
    "clamp",
    "clamp_min",
    "clamp_max",
    "clip",
    "atan2",
    "subtract",
    "hypot",
    "bitwise_and",
    "bitwise_or",
    "copysign",
    "xlogy",
)
def many(emitter: Emitter, call: Call) -> Value:
    """Values that meet element by element; plain numbers do not count."""
    return emitter.new(_MANY.get(call.name.rstrip("_"), "Add"), call.tensors, call.shape, call.kind)


@functions("zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros",
           "new_ones", "new_full", "new_empty")  # fmt: skip
def filled(emitter: Emitter, call: Call) -> Value:
    return emitter.uniform(call.shape)


@functions("arange", "linspace", "rand", "randn", "rand_like", "randn_like", "eye")
def in_fixed_places(emitter: Emitter, call: Call) -> Value:
    return emitter.new("Range", [], call.shape, call.kind)


@functions("getattr")
def attribute(emitter: Emitter, call: Call) -> Value:
    name, value = call.args[1], call.tensor()
    if name in ("T", "mT") and value.rank >= 2:
        order = [*range(value.rank)][::-1] if name == "T" else [*range(value.rank - 2), value.rank - 1, value.rank - 2]
        return emitter.turned(value, order)
    if name in ("data", "real"):
        return emitter.new("Identity", [value], value.shape, value.kind)
    raise NotHereError


@functions("prelu")
def prelu(emitter: Emitter, call: Call) -> Value:
    return _prelu(emitter, call.tensor(), call.tensor(1, "weight"))


@layers("PReLU")
def prelu_layer(emitter: Emitter, call: Call) -> Value:
    slope = emitter.own(call, "weight")
    assert slope is not None
    return _prelu(emitter, call.tensor(), slope)


def _prelu(emitter: Emitter, value: Value, slope: Value) -> Value:
    along = (*slope.shape, *[1] * (value.rank - 2)) if value.rank > 1 else slope.shape
    return emitter.new("PRelu", [value, emitter.reshaped(slope, along)], value.shape)


@functions("glu")
def glu(emitter: Emitter, call: Call) -> Value:
    return _glu(emitter, call.tensor(), call.get(1, "dim", -1), call)


@layers("GLU")
def glu_layer(emitter: Emitter, call: Call) -> Value:
    return _glu(emitter, call.tensor(), call.layer.dim, call)


def _glu(emitter: Emitter, value: Value, axis: int, call: Call) -> Value:
    half = call.shape[axis]
    one, gate = emitter.split(value, axis, [half, half])
    return emitter.new("Mul", [one, emitter.new("Sigmoid", [gate], call.shape)], call.shape)


# -- sums over channels


@functions("linear")
def linear(emitter: Emitter, call: Call) -> Value:
    bias = call.get(2, "bias")
    weight = call.tensor(1, "weight")
    if weight.rank != 2:
        raise NotHereError
    return emitter.linear(call.tensor(), weight, bias if isinstance(bias, Value) else None)


@layers("Linear")
def linear_layer(emitter: Emitter, call: Call) -> Value:
    weight = emitter.own(call, "weight")
    assert weight is not None
    return emitter.linear(call.tensor(), weight, emitter.own(call, "bias"))


@functions("matmul", "mm", "bmm", "imatmul")
def matmul(emitter: Emitter, call: Call) -> Value:
    return emitter.new("MatMul", [call.tensor(), call.tensor(1, "other")], call.shape)


@functions("addmm", "baddbmm")
def matmul_and_add(emitter: Emitter, call: Call) -> Value:
    made = emitter.new("MatMul", [call.tensor(1, "mat1"), call.tensor(2, "mat2")], call.shape)
    return emitter.new("Add", [made, call.tensor()], call.shape)


@functions("einsum")
def einsum(emitter: Emitter, call: Call) -> Value:
    equation = call.args[0].replace(" ", "")
    tensors = list(values_in(call.args[1:]))
    if "->" not in equation or "." in equation:
        raise NotHereError
    return emitter.new("Einsum", tensors, call.shape, equation=equation)


@functions("conv1d", "conv2d", "conv3d")
def conv(emitter: Emitter, call: Call) -> Value:
    return _conv(emitter, call, call.tensor(1, "weight"), call.get(2, "bias"), call.get(6, "groups", 1), "Conv")


@functions("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(emitter: Emitter, call: Call) -> Value:
    weight, bias = call.tensor(1, "weight"), call.get(2, "bias")
    return _conv(emitter, call, weight, bias, call.get(6, "groups", 1), "ConvTranspose")


@layers("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")
def conv_layer(emitter: Emitter, call: Call) -> Value:
    weight = emitter.own(call, "weight")
    assert weight is not None
    op = "ConvTranspose" if call.layer.transposed else "Conv"
    return _conv(emitter, call, weight, emitter.own(call, "bias"), call.layer.groups, op)


def _conv(emitter: Emitter, call: Call, weight: Value, bias: Any, groups: int, op: str) -> Value:
    value = call.tensor()
    if value.rank != weight.rank:
        raise NotHereError  # without a batch the channels are elsewhere
    inputs = [value, weight, *([bias] if isinstance(bias, Value) else [])]
    # Strides and pads are left out. A kernel of too many axes keeps sizes from being inferred without them: they are
    # those of the run.
    return emitter.new(op, inputs, call.shape, group=int(groups), kernel_shape=[1] * (weight.rank - 1))


# -- norms


@functions("batch_norm")
def batch_norm(emitter: Emitter, call: Call) -> Value:
    mean, variance = call.get(1, "running_mean"), call.get(2, "running_var")
    return _batch_norm(emitter, call, call.get(3, "weight"), call.get(4, "bias"), mean, variance)


@layers("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
def batch_norm_layer(emitter: Emitter, call: Call) -> Value:
    return _batch_norm(emitter, call, *(emitter.own(call, name) for name in _NORM))


_NORM = ("weight", "bias", "running_mean", "running_var")


def _batch_norm(emitter: Emitter, call: Call, *numbers: Any) -> Value:
    value = call.tensor()
    held = [one if isinstance(one, Value) else emitter.uniform((1,)) for one in numbers]
    return emitter.new("BatchNormalization", [value, *held], value.shape)


@layers("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d")
def instance_norm_layer(emitter: Emitter, call: Call) -> Value:
    if call.tensor().rank != int(call.name[-2]) + 2:
        raise NotHereError
    return _instance_norm(emitter, call.tensor(), *(emitter.own(call, name) for name in _NORM))


@functions("instance_norm")
def instance_norm(emitter: Emitter, call: Call) -> Value:
    mean, variance = call.get(1, "running_mean"), call.get(2, "running_var")
    return _instance_norm(emitter, call.tensor(), call.get(3, "weight"), call.get(4, "bias"), mean, variance)


def _instance_norm(emitter: Emitter, value: Value, *numbers: Any) -> Value:
    """In evaluation by running statistics, where there are some: then a batch normalization follows."""
    given = [one if isinstance(one, Value) else emitter.uniform((1,)) for one in numbers]
    made = emitter.new("InstanceNormalization", [value, *given[:2]], value.shape)
    return emitter.new("BatchNormalization", [made, *given], value.shape)


@functions("group_norm")
def group_norm(emitter: Emitter, call: Call) -> Value:
    groups, weight, bias = call.get(1, "num_groups"), call.get(2, "weight"), call.get(3, "bias")
    return _group_norm(emitter, call.tensor(), groups, weight, bias)


@layers("GroupNorm")
def group_norm_layer(emitter: Emitter, call: Call) -> Value:
    weight, bias = emitter.own(call, "weight"), emitter.own(call, "bias")
    return _group_norm(emitter, call.tensor(), call.layer.num_groups, weight, bias)


def _group_norm(emitter: Emitter, value: Value, groups: int, *numbers: Any) -> Value:
    held = [one if isinstance(one, Value) else emitter.uniform((1,)) for one in numbers]
    return emitter.new("GroupNormalization", [value, *held], value.shape, num_groups=groups)


@functions("layer_norm")
def layer_norm(emitter: Emitter, call: Call) -> Value:
    shape, weight, bias = call.get(1, "normalized_shape"), call.get(2, "weight"), call.get(3, "bias")
    return layer_normed(emitter, call.tensor(), shape, weight, bias)


@functions("rms_norm")
def rms_norm(emitter: Emitter, call: Call) -> Value:
    return layer_normed(emitter, call.tensor(), call.get(1, "normalized_shape"), call.get(2, "weight"))


@layers("LayerNorm", "RMSNorm")
def layer_norm_layer(emitter: Emitter, call: Call) -> Value:
    numbers = [emitter.own(call, "weight"), emitter.own(call, "bias")]
    return layer_normed(emitter, call.tensor(), call.layer.normalized_shape, *numbers)


def layer_normed(emitter: Emitter, value: Value, shape: Sequence[int], *numbers: Any) -> Value:
    """Without numbers of its own; these are a factor and a sum behind it."""
    axes = value.rank - len(tuple(shape))
    scale = emitter.uniform(value.shape[axes:])
    made = emitter.new("LayerNormalization", [value, scale], value.shape, axis=axes)
    for op, one in zip(("Mul", "Add"), numbers):
        made = emitter.new(op, [made, one], value.shape) if isinstance(one, Value) else made
    return made


@functions("local_response_norm")
def local_response_norm(emitter: Emitter, call: Call) -> Value:
    return emitter.new("LRN", [call.tensor()], call.shape, size=int(call.get(1, "size", 1)))


@layers("LocalResponseNorm")
def local_response_norm_layer(emitter: Emitter, call: Call) -> Value:
    return emitter.new("LRN", [call.tensor()], call.shape, size=int(call.layer.size))


@functions("normalize")
def normalize(emitter: Emitter, call: Call) -> Value:
    axis = call.get(2, "dim", 1)
    if not isinstance(axis, int):
        raise NotHereError
    return emitter.new("LpNormalization", [call.tensor()], call.shape, axis=axis)


@functions("softmax", "log_softmax", "softmin")
def softmax(emitter: Emitter, call: Call) -> Value:
    return emitter.new("Softmax", [call.tensor()], call.shape, axis=int(call.get(1, "dim")))


@layers("Softmax", "LogSoftmax", "Softmin", "Softmax2d")
def softmax_layer(emitter: Emitter, call: Call) -> Value:
    axis = -3 if call.name == "Softmax2d" else int(call.layer.dim)
    return emitter.new("Softmax", [call.tensor()], call.shape, axis=axis)
