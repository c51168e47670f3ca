"""What functions, methods and layers of torch are as operators of ONNX, for the way of channels through them.

1. A call is looked up by what it is in torch, torch.nn.functional and operator, a method by its name, a layer by the
   class of torch.nn that it is of. A function of the user's with a known name is not known.
2. Sizes come from the run: a view is a Reshape to the shape that it had. Numbers that do not tell where channels go,
   such as strides, are left out.
3. What has no entry, or an argument that its entry does not expect, is an operator `torch.NAME`, without a rule.
4. What a call changes in place is its result from then on. Where views of it are about, all of them are blocked.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Optional, Union

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from onnxsparse.engines.torch.library import torch

OPSET, IR = 21, 10
UNKNOWN = "torch"
"""The domain of operators without a rule."""

Sizes = tuple[Optional[int], ...]
_KINDS = {"bool": TensorProto.BOOL, "int64": TensorProto.INT64, "int32": TensorProto.INT32}


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the graph; `kind` is its type, as torch calls it."""

    name: str
    shape: Sizes
    kind: str = "float32"

    @property
    def rank(self) -> int:
        return len(self.shape)


Made = Union[Value, "list[Any]", None]


class NotHereError(Exception):
    """A call that its entry does not expect."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of the trace: values and plain arguments, and what it made when it was run."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    layer: Any = None
    path: str = ""

    def get(self, index: int, name: str, default: Any = None) -> Any:
        found = self.args[index] if index < len(self.args) else self.kwargs.get(name, default)
        return found

    def tensor(self, index: int = 0, name: str = "input") -> Value:
        found = self.get(index, name)
        if not isinstance(found, Value):
            raise NotHereError
        return found

    @property
    def tensors(self) -> list[Value]:
        return list(_values((self.args, dict(self.kwargs))))

    @property
    def shape(self) -> Sizes:
        if not isinstance(self.result, tuple):
            raise NotHereError
        return self.result[0]  # type: ignore[no-any-return]

    @property
    def kind(self) -> str:
        return str(self.result[1])


def _values(tree: Any) -> Iterator[Value]:
    if isinstance(tree, Value):
        yield tree
    elif isinstance(tree, Mapping):
        for one in tree.values():
            yield from _values(one)
    elif isinstance(tree, (tuple, list)):
        for one in tree:
            yield from _values(one)
    elif isinstance(tree, slice):
        yield from _values((tree.start, tree.stop, tree.step))


@dataclass(eq=False)
class Emitter:
    """The graph in the making."""

    subject: Any
    names: Mapping[str, Sequence[str]]
    nodes: list[NodeProto] = field(default_factory=list)
    infos: dict[str, ValueInfoProto] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    used: dict[str, None] = field(default_factory=dict)
    constants: list[TensorProto] = field(default_factory=list)
    _values: dict[str, Made] = field(default_factory=dict)
    _groups: dict[str, set[str]] = field(default_factory=dict)
    _count: int = 0
    _title: str = ""

    # -- the graph

    def model(self, stored: Mapping[str, TensorProto]) -> ModelProto:
        """The model, with the tensors that it uses of all that are stored."""
        inputs = [self.infos.get(name) or helper.make_tensor_value_info(name, 1, None) for name in self.inputs]
        outputs = [self.infos.get(name) or helper.make_tensor_value_info(name, 1, None) for name in self.outputs]
        ends = {*self.inputs, *self.outputs}
        graph = helper.make_graph(
            self.nodes, "traced", inputs, outputs, [*(stored[name] for name in self.used), *self.constants],
            value_info=[info for name, info in self.infos.items() if name not in ends],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(UNKNOWN, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR)

    def emit(self, graph: Any, results: Mapping[Any, Any], prefix: str) -> None:
        """Add a trace; its inputs get a prefix, parameters are those of the traces before."""
        self._values, self._groups = {}, {}
        for node in graph.graph.nodes:
            self._title = prefix + node.name
            result = results.get(node)
            if node.op == "placeholder":
                self._values[node.name] = self._input(result)
            elif node.op == "get_attr":
                self._values[node.name] = self._attribute(graph, node.target)
            elif node.op == "output":
                for value in _values(self._resolved(node.args)):
                    self.outputs.append(self.new("Identity", [value], value.shape, value.kind).name)
            else:
                self._values[node.name] = self._called(graph, node, result)

    def _input(self, result: Any) -> Made:
        if isinstance(result, list):
            return [self._input(one) for one in result]
        if result is None:
            return None
        value = self._described(self._fresh("input"), *result)
        self.inputs.append(value.name)
        return value

    def _attribute(self, graph: Any, target: str) -> Made:
        if target in self.names:
            return self.parameter(target)
        value: Any = graph
        for step in target.split("."):
            value = getattr(value, step)
        return self.constant(value) if torch().is_tensor(value) else None

    def _called(self, graph: Any, node: Any, result: Any) -> Made:
        layer = graph.get_submodule(node.target) if node.op == "call_module" else None
        name = _layer_name(layer) if layer is not None else _name_of(node)
        path = str(node.target) if layer is not None else ""
        call = Call(name, self._resolved(node.args), self._resolved(node.kwargs), result, layer, path)
        if result is None and (name in _OF_SIZES or not call.tensors):
            return None
        before = len(self.nodes)
        try:
            if _in_place(name) and self._seen_elsewhere(node):
                raise NotHereError
            made = self._entry(call)
        except (NotHereError, IndexError, KeyError, TypeError, ValueError, AttributeError):
            import os, traceback
            if os.environ.get("DBG"): traceback.print_exc()
            del self.nodes[before:]
            made = self.unknown(call)
        self._follow(node, name, made)
        return made

    def _entry(self, call: Call) -> Made:
        if call.result is None:
            raise NotHereError
        if call.layer is not None:
            for kind in type(call.layer).__mro__:
                if kind.__module__.startswith("torch.nn") and kind.__name__ in LAYERS:
                    return LAYERS[kind.__name__](self, call)
            raise NotHereError
        return FUNCTIONS[call.name.rstrip("_") if _in_place(call.name) else call.name](self, call)

    def _resolved(self, tree: Any) -> Any:
        if isinstance(tree, torch().fx.Node):
            return self._values.get(tree.name)
        if isinstance(tree, Mapping):
            return {key: self._resolved(one) for key, one in tree.items()}
        if isinstance(tree, (tuple, list)):
            return tuple(self._resolved(one) for one in tree)
        if isinstance(tree, slice):
            return slice(*(self._resolved(one) for one in (tree.start, tree.stop, tree.step)))
        return tree

    # -- what is changed in place

    def _seen_elsewhere(self, node: Any) -> bool:
        target = node.args[0] if node.args else None
        return isinstance(target, torch().fx.Node) and len(self._groups.get(target.name, ())) > 1

    def _follow(self, node: Any, name: str, made: Made) -> None:
        """Views share numbers with what they are of; what was changed in place is known by its new value."""
        target = node.args[0] if node.args else None
        if not isinstance(target, torch().fx.Node):
            return
        if name in _VIEWS:
            group = self._groups.setdefault(target.name, {target.name})
            group.add(node.name)
            self._groups[node.name] = group
        elif _in_place(name) and isinstance(made, Value):
            for other in self._groups.get(target.name, {target.name}):
                old = self._values.get(other)
                if other != target.name and isinstance(old, Value):
                    self.new(f"{name}_of_a_view", [old], old.shape, domain=UNKNOWN)
            self._values[target.name] = made

    # -- values

    def _fresh(self, what: str) -> str:
        self._count += 1
        return f"{self._title}:{what}{self._count}"

    def _described(self, name: str, shape: Sizes, kind: str) -> Value:
        if kind not in ("bool", "int64", "int32"):
            kind = "float32"
        self.infos[name] = helper.make_tensor_value_info(name, _KINDS.get(kind, TensorProto.FLOAT), list(shape))
        return Value(name, tuple(shape), kind)

    def new(
        self, op: str, inputs: Sequence[Value | None], shape: Sizes, kind: str = "float32", domain: str = "",
        **attributes: Any,
    ) -> Value:  # fmt: skip
        """One more node, and what it makes."""
        return self.several(op, inputs, [(tuple(shape), kind)], domain, **attributes)[0]

    def several(
        self, op: str, inputs: Sequence[Value | None], results: Sequence[Any], domain: str = "", **attributes: Any
    ) -> list[Value]:
        made = [self._described(self._fresh(""), *one) for one in results]
        names = [one.name if one is not None else "" for one in inputs]
        title = self._title if not any(node.name == self._title for node in self.nodes[-1:]) else self._fresh(op)
        self.nodes.append(helper.make_node(op, names, [one.name for one in made], title, domain=domain, **attributes))
        return made

    def unknown(self, call: Call) -> Made:
        """Nothing is known of a call but what it reads, and the shapes of what it makes."""
        op = call.name if call.name.isidentifier() else "call"
        tensors = call.tensors
        if call.layer is not None:
            tensors += [self.parameter(f"{call.path}.{name}") for name, _ in call.layer.named_parameters()
                        if f"{call.path}.{name}" in self.names]  # fmt: skip
        flat = list(_flat(call.result))
        made = self.several(op, tensors, flat or [((), "float32")], UNKNOWN)
        return _nested(call.result, iter(made))

    def parameter(self, path: str) -> Value:
        """A parameter or buffer, by the first of its names."""
        if path not in self.names:
            raise NotHereError
        name = self.names[path][0]
        self.used[name] = None
        tensor = _at(self.subject, name)
        return Value(name, tuple(tensor.shape), str(tensor.dtype).partition(".")[2])

    def own(self, call: Call, name: str) -> Value | None:
        """A parameter of a layer; None where it has none of that name."""
        if getattr(call.layer, name, None) is None:
            return None
        return self.parameter(f"{call.path}.{name}" if call.path else name)

    def constant(self, tensor: Any) -> Value:
        array = tensor.detach().cpu()
        array = (array.float() if array.is_floating_point() else array).contiguous().numpy()
        return self.numbers(array)

    def numbers(self, array: Any) -> Value:
        name = self._fresh("constant")
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(np.shape(array)), name))
        return Value(name, tuple(np.shape(array)), str(np.asarray(array).dtype))

    # -- the operators that others are made of

    def reshaped(self, value: Value, shape: Sizes) -> Value:
        if tuple(shape) == value.shape and None not in shape:
            return value
        if sum(size is None for size in shape) <= 1:
            target = self.numbers(np.array([-1 if size is None else size for size in shape], np.int64))
        else:
            target = self._described(self._fresh("shape"), (len(shape),), "int64")
            self.inputs.append(target.name)
        return self.new("Reshape", [value, target], shape, value.kind)

    def turned(self, value: Value, order: Sequence[int]) -> Value:
        return self.new("Transpose", [value], [value.shape[axis] for axis in order], value.kind, perm=list(order))

    def matmul(self, left: Value, right: Value, shape: Sizes | None = None) -> Value:
        if shape is None:
            batch = left.shape[:-2] if left.rank >= right.rank else right.shape[:-2]
            shape = (*batch, left.shape[-2], right.shape[-1])
        return self.new("MatMul", [left, right], shape)

    def linear(self, value: Value, weight: Value, bias: Value | None) -> Value:
        shape = (*value.shape[:-1], weight.shape[0])
        made = self.new("MatMul", [value, self.turned(weight, (1, 0))], shape)
        return made if bias is None else self.new("Add", [made, bias], shape)

    def split(self, value: Value, axis: int, sizes: Sequence[int | None]) -> list[Value]:
        axis %= value.rank
        shapes = [(*value.shape[:axis], size, *value.shape[axis + 1 :]) for size in sizes]
        given = [] if None in sizes else [self.numbers(np.array(sizes, np.int64))]
        return self.several("Split", [value, *given], [(shape, value.kind) for shape in shapes], axis=axis)

    def uniform(self, shape: Sizes) -> Value:
        sizes = self.numbers(np.array([size or 1 for size in shape], np.int64))
        return self.new("ConstantOfShape", [sizes], shape)


def _at(module: Any, path: str) -> Any:
    for step in path.split("."):
        module = getattr(module, step)
    return module


def _flat(result: Any) -> Iterator[Any]:
    if isinstance(result, tuple):
        yield result
    elif isinstance(result, list):
        for one in result:
            yield from _flat(one)


def _nested(result: Any, made: Iterator[Value]) -> Made:
    if isinstance(result, tuple):
        return next(made)
    return [_nested(one, made) for one in result] if isinstance(result, list) else None


# -- names


@cache
def _known_functions() -> dict[Any, str]:
    """Functions by identity, with the names that torch shows them by."""
    found: dict[Any, str] = {}
    for home in (torch().nn.functional, torch(), operator, torch().special, torch().linalg):
        for name in dir(home):
            one = getattr(home, name)
            if callable(one) and not isinstance(one, type) and not name.startswith("__"):
                try:
                    found.setdefault(one, name)
                except TypeError:  # cannot be hashed
                    continue
    return {**found, getattr: "getattr", len: "len"}


def _name_of(node: Any) -> str:
    if node.op == "call_method":
        return str(node.target)
    return _known_functions().get(node.target, "")


def _layer_name(layer: Any) -> str:
    return type(layer).__name__


def _in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__") and name not in _TRAILING) or name in _AUGMENTED


_TRAILING = ("and_", "or_", "not_", "is_", "requires_grad_")
_AUGMENTED = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow", "setitem")
_OF_SIZES = (
    "size", "getattr", "dim", "ndimension", "numel", "nelement", "len", "is_floating_point", "is_complex", "stride",
    "element_size", "get_device", "type", "is_contiguous", "getitem", "add", "sub", "mul", "floordiv", "truediv", "eq",
    "ne", "lt", "gt", "le", "ge", "mod", "neg", "pow", "is_tensor",
)  # fmt: skip
_VIEWS = (
    "view", "reshape", "flatten", "transpose", "permute", "squeeze", "unsqueeze", "expand", "expand_as", "view_as",
    "reshape_as", "getitem", "chunk", "split", "unbind", "narrow", "select", "t", "swapaxes", "movedim", "detach",
    "contiguous", "getattr", "unflatten", "tensor_split", "to", "Flatten", "Unflatten", "Identity",
)  # fmt: skip

Entry = Callable[[Emitter, Call], Made]
FUNCTIONS: dict[str, Entry] = {}
LAYERS: dict[str, Entry] = {}


def functions(*names: str) -> Callable[[Entry], Entry]:
    def enter(entry: Entry) -> Entry:
        FUNCTIONS.update(dict.fromkeys(names, entry))
        return entry

    return enter


def layers(*names: str) -> Callable[[Entry], Entry]:
    def enter(entry: Entry) -> Entry:
        LAYERS.update(dict.fromkeys(names, entry))
        return entry

    return enter


# -- element by element

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
    *_UNARY, *_SAME, "relu6", "silu", "hardtanh", "logsigmoid", "hardshrink", "softshrink", "tanhshrink", "threshold",
    "rsqrt", "square", "expm1", "log1p", "log2", "log10", "sinh", "cosh", "tan", "atan", "asin", "acos", "nan_to_num",
    "isinf", "isfinite", "invert", "bitwise_not", "absolute", "trunc", "frac", "erfc", "exp2", "sinc", "logit", "rrelu",
    "not_", "deg2rad", "sgn", "erfinv",
)
def unary(emitter: Emitter, call: Call) -> Value:
    """Numbers that stay in their places."""
    op = "Identity" if call.name in _SAME else _UNARY.get(call.name.rstrip("_"), "Sigmoid")
    value = call.tensor()
    if call.shape != value.shape:
        raise NotHereError
    return emitter.new(op, [value], call.shape, call.kind)


@layers(
    "ReLU", "ReLU6", "Sigmoid", "Tanh", "SiLU", "GELU", "ELU", "SELU", "CELU", "LeakyReLU", "Hardswish", "Hardsigmoid",
    "Hardtanh", "Mish", "Softplus", "Softsign", "LogSigmoid", "Hardshrink", "Softshrink", "Tanhshrink", "Threshold",
    "RReLU", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "Identity",
)
def activation(emitter: Emitter, call: Call) -> Value:
    known = {"ReLU": "Relu", "GELU": "Gelu", "Sigmoid": "Sigmoid", "Tanh": "Tanh"}
    op = "Identity" if "Dropout" in call.name or call.name == "Identity" else known.get(call.name, "Sigmoid")
    return emitter.new(op, [call.tensor()], call.shape, call.kind)


_MANY = {"add": "Add", "iadd": "Add", "sub": "Sub", "isub": "Sub", "mul": "Mul", "imul": "Mul", "multiply": "Mul",
         "div": "Div", "truediv": "Div", "itruediv": "Div", "divide": "Div", "true_divide": "Div", "pow": "Pow",
         "where": "Where", "maximum": "Max", "minimum": "Min"}  # fmt: skip


@functions(
    *_MANY, "rsub", "floordiv", "floor_divide", "mod", "fmod", "remainder", "eq", "ne", "lt", "gt", "le", "ge", "and_",
    "or_", "xor", "logical_and", "logical_or", "logical_xor", "addcmul", "addcdiv", "lerp", "masked_fill", "clamp",
    "clamp_min", "clamp_max", "clip", "atan2", "subtract", "hypot", "bitwise_and", "bitwise_or", "copysign", "xlogy",
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
    tensors = list(_values(call.args[1:]))
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
    return emitter.new(op, inputs, call.shape, group=int(groups), kernel_shape=list(weight.shape[2:]))


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
    return _layer_norm(emitter, call.tensor(), shape, weight, bias)


@functions("rms_norm")
def rms_norm(emitter: Emitter, call: Call) -> Value:
    return _layer_norm(emitter, call.tensor(), call.get(1, "normalized_shape"), call.get(2, "weight"))


@layers("LayerNorm", "RMSNorm")
def layer_norm_layer(emitter: Emitter, call: Call) -> Value:
    numbers = [emitter.own(call, "weight"), emitter.own(call, "bias")]
    return _layer_norm(emitter, call.tensor(), call.layer.normalized_shape, *numbers)


def _layer_norm(emitter: Emitter, value: Value, shape: Sequence[int], *numbers: Any) -> Value:
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


# -- pooling and reductions

_POOLS = [
    f"{what}pool{axes}d" for axes in (1, 2, 3) for what in ("max_", "avg_", "adaptive_avg_", "adaptive_max_", "lp_")
]


@functions(*_POOLS, "interpolate", "upsample", "upsample_nearest", "upsample_bilinear")
def spatial(emitter: Emitter, call: Call) -> Value:
    return _spatial(emitter, call, int(call.name[-2]) if call.name[-1] == "d" and call.name[-2].isdigit() else 0)


@layers(
    *(f"{what}Pool{axes}d" for axes in (1, 2, 3) for what in ("Max", "Avg", "AdaptiveAvg", "AdaptiveMax", "LP")),
    "Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d",
)  # fmt: skip
def spatial_layer(emitter: Emitter, call: Call) -> Value:
    return _spatial(emitter, call, int(call.name[-2]) if "Pool" in call.name else 0)


def _spatial(emitter: Emitter, call: Call, axes: int) -> Value:
    value = call.tensor()
    if value.rank < 3 or (axes and value.rank != axes + 2) or call.shape[:2] != value.shape[:2]:
        raise NotHereError  # without a batch the channels are elsewhere
    op = "Resize" if not axes else "AveragePool"
    extra = {"kernel_shape": [1] * axes} if axes else {}
    return emitter.new(op, [value], call.shape, **extra)


@functions("mean", "sum", "amax", "amin", "prod", "var", "std", "logsumexp", "norm", "all", "any", "nansum", "nanmean",
           "vector_norm")  # fmt: skip
def reduction(emitter: Emitter, call: Call) -> Value:
    place, name = (2, "dim") if call.name in ("norm", "vector_norm") else (1, "dim")
    return _reduced(emitter, call.tensor(), call.get(place, name), call.shape)


@functions("max", "min")
def extreme(emitter: Emitter, call: Call) -> Made:
    if isinstance(call.get(1, "other"), Value):
        return many(emitter, call)
    if isinstance(call.result, tuple):
        return _reduced(emitter, call.tensor(), None, call.shape)
    (shape, _), (_, kind) = call.result
    axis = call.get(1, "dim")
    places = emitter.new("ArgMax", [call.tensor()], shape, kind, axis=axis, keepdims=int(len(shape) == call.tensor().rank))
    return [_reduced(emitter, call.tensor(), axis, shape), places]


@functions("argmax", "argmin")
def place_of_extreme(emitter: Emitter, call: Call) -> Value:
    keeps = int(len(call.shape) == call.tensor().rank)
    return emitter.new("ArgMax", [call.tensor()], call.shape, "int64", axis=int(call.get(1, "dim")), keepdims=keeps)


def _reduced(emitter: Emitter, value: Value, axes: Any, shape: Sizes) -> Value:
    found = list(range(value.rank)) if axes is None or axes == () else [axes] if isinstance(axes, int) else list(axes)
    if not all(isinstance(axis, int) for axis in found):
        raise NotHereError
    given = emitter.numbers(np.array(found, np.int64))
    return emitter.new("ReduceMean", [value, given], shape, keepdims=int(len(shape) == value.rank))


# -- the same numbers along other axes


@functions("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "ravel", "view_as", "reshape_as")
def reshape(emitter: Emitter, call: Call) -> Value:
    if any(isinstance(one, torch().dtype) for one in call.args):
        raise NotHereError
    return emitter.reshaped(call.tensor(), call.shape)


@layers("Flatten", "Unflatten")
def reshape_layer(emitter: Emitter, call: Call) -> Value:
    return emitter.reshaped(call.tensor(), call.shape)


@functions("transpose", "swapaxes", "swapdims")
def transpose(emitter: Emitter, call: Call) -> Value:
    value = call.tensor()
    one, other = (axis % value.rank for axis in (call.get(1, "dim0"), call.get(2, "dim1")))
    order = list(range(value.rank))
    order[one], order[other] = other, one
    return emitter.turned(value, order)


@functions("permute")
def permute(emitter: Emitter, call: Call) -> Value:
    given = call.args[1:] or (call.kwargs["dims"],)
    axes = given[0] if isinstance(given[0], (tuple, list)) else given
    return emitter.turned(call.tensor(), [axis % call.tensor().rank for axis in axes])


@functions("t")
def t(emitter: Emitter, call: Call) -> Value:
    return emitter.turned(call.tensor(), [*range(call.tensor().rank)][::-1])


@functions("movedim", "moveaxis")
def movedim(emitter: Emitter, call: Call) -> Value:
    value = call.tensor()
    source, target = call.get(1, "source") % value.rank, call.get(2, "destination") % value.rank
    order = [axis for axis in range(value.rank) if axis != source]
    order.insert(target, source)
    return emitter.turned(value, order)


@functions("expand", "expand_as", "broadcast_to")
def expand(emitter: Emitter, call: Call) -> Value:
    sizes = emitter.numbers(np.array([size or 1 for size in call.shape], np.int64))
    return emitter.new("Expand", [call.tensor(), sizes], call.shape, call.kind)


@functions("repeat", "tile")
def repeat(emitter: Emitter, call: Call) -> Value:
    given = call.args[1] if isinstance(call.args[1], (tuple, list)) else call.args[1:]
    value = call.tensor()
    times = [1] * (value.rank - len(given)) + [int(one) for one in given]
    wide = emitter.reshaped(value, (*[1] * (len(times) - value.rank), *value.shape))
    return emitter.new("Tile", [wide, emitter.numbers(np.array(times, np.int64))], call.shape, call.kind)


@functions("pixel_shuffle")
def pixel_shuffle(emitter: Emitter, call: Call) -> Value:
    return _pixel_shuffle(emitter, call, call.get(1, "upscale_factor"))


@layers("PixelShuffle")
def pixel_shuffle_layer(emitter: Emitter, call: Call) -> Value:
    return _pixel_shuffle(emitter, call, call.layer.upscale_factor)


def _pixel_shuffle(emitter: Emitter, call: Call, block: int) -> Value:
    return emitter.new("DepthToSpace", [call.tensor()], call.shape, blocksize=block, mode="CRD")


@functions("pixel_unshuffle")
def pixel_unshuffle(emitter: Emitter, call: Call) -> Value:
    return _pixel_unshuffle(emitter, call, call.get(1, "downscale_factor"))


@layers("PixelUnshuffle")
def pixel_unshuffle_layer(emitter: Emitter, call: Call) -> Value:
    return _pixel_unshuffle(emitter, call, call.layer.downscale_factor)


def _pixel_unshuffle(emitter: Emitter, call: Call, block: int) -> Value:
    n, c, h, w = call.tensor().shape
    if h is None or w is None:
        raise NotHereError
    cut = emitter.reshaped(call.tensor(), (n, c, h // block, block, w // block, block))
    return emitter.reshaped(emitter.turned(cut, (0, 1, 3, 5, 2, 4)), call.shape)


@functions("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(emitter: Emitter, call: Call) -> Value:
    return _channel_shuffle(emitter, call, call.get(1, "groups"))


@layers("ChannelShuffle")
def channel_shuffle_layer(emitter: Emitter, call: Call) -> Value:
    return _channel_shuffle(emitter, call, call.layer.groups)


def _channel_shuffle(emitter: Emitter, call: Call, groups: int) -> Value:
    n, c, *rest = call.tensor().shape
    assert c is not None
    cut = emitter.reshaped(call.tensor(), (n, groups, c // groups, *rest))
    order = [0, 2, 1, *range(3, len(rest) + 3)]
    return emitter.reshaped(emitter.turned(cut, order), call.shape)


# -- some of the numbers, or more of them


@functions("cat", "concat", "concatenate")
def cat(emitter: Emitter, call: Call) -> Value:
    return emitter.new("Concat", list(_values(call.get(0, "tensors"))), call.shape, call.kind, axis=call.get(1, "dim", 0))


@functions("stack")
def stack(emitter: Emitter, call: Call) -> Value:
    parts, axis = list(_values(call.get(0, "tensors"))), call.get(1, "dim", 0) % len(call.shape)
    wide = [emitter.reshaped(one, (*one.shape[:axis], 1, *one.shape[axis:])) for one in parts]
    return emitter.new("Concat", wide, call.shape, call.kind, axis=axis)


@functions("chunk", "split", "split_with_sizes", "tensor_split", "unsafe_chunk", "unsafe_split")
def split(emitter: Emitter, call: Call) -> Made:
    axis = call.get(2, "dim", 0)
    return list(emitter.split(call.tensor(), axis, [shape[axis] for shape, _ in call.result]))


@functions("unbind")
def unbind(emitter: Emitter, call: Call) -> Made:
    axis = call.get(1, "dim", 0)
    parts = emitter.split(call.tensor(), axis, [1] * len(call.result))
    return [emitter.reshaped(part, shape) for part, (shape, _) in zip(parts, call.result)]


@functions("select")
def select(emitter: Emitter, call: Call) -> Value:
    value, axis, place = call.tensor(), call.get(1, "dim"), call.get(2, "index")
    cut = _sliced(emitter, value, axis % value.rank, slice(place, place + 1 or None))
    return emitter.reshaped(cut, call.shape)


@functions("narrow")
def narrow(emitter: Emitter, call: Call) -> Value:
    value, axis, start = call.tensor(), call.get(1, "dim"), call.get(2, "start")
    return _sliced(emitter, value, axis % value.rank, slice(start, start + call.get(3, "length")))


@functions("getitem")
def getitem(emitter: Emitter, call: Call) -> Made:
    if isinstance(call.args[0], list):
        found: Made = call.args[0][call.args[1]]
        return found
    value, index = call.tensor(), call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
    if any(isinstance(one, (Value, list, tuple)) for one in index):
        raise NotHereError
    return emitter.reshaped(_indexed(emitter, value, index), call.shape)


def _indexed(emitter: Emitter, value: Value, index: Sequence[Any]) -> Value:
    """The value after its slices; axes that are taken one of stay, with one element."""
    taken = sum(one is not None and one is not Ellipsis for one in index)
    if Ellipsis not in index:
        index = (*index, Ellipsis)
    at = index.index(Ellipsis)
    whole = [*index[:at], *[slice(None)] * (value.rank - taken), *index[at + 1 :]]
    for axis, one in enumerate([one for one in whole if one is not None]):
        if isinstance(one, bool) or not isinstance(one, (int, slice)):
            raise NotHereError
        if isinstance(one, int):
            one = slice(one, one + 1 or None)
        if one != slice(None):
            value = _sliced(emitter, value, axis, one)
    return value


def _sliced(emitter: Emitter, value: Value, axis: int, place: slice) -> Value:
    size = value.shape[axis]
    if size is None or not all(one is None or isinstance(one, int) for one in (place.start, place.stop, place.step)):
        raise NotHereError
    start, stop, step = place.indices(size)
    bounds = [emitter.numbers(np.array([one], np.int64)) for one in (start, stop, axis, step)]
    shape = (*value.shape[:axis], len(range(start, stop, step)), *value.shape[axis + 1 :])
    return emitter.new("Slice", [value, *bounds], shape, value.kind)


@functions("index_select")
def index_select(emitter: Emitter, call: Call) -> Value:
    return emitter.new("Gather", [call.tensor(), call.tensor(2, "index")], call.shape, axis=call.get(1, "dim"))


@functions("pad")
def pad(emitter: Emitter, call: Call) -> Value:
    return _padded(emitter, call, call.get(1, "pad"), call.get(2, "mode", "constant"))


@layers(
    *(f"{what}Pad{axes}d" for axes in (1, 2, 3) for what in ("Zero", "Constant", "Reflection", "Replication", "Circular"))
)
def pad_layer(emitter: Emitter, call: Call) -> Value:
    modes = {"Reflection": "reflect", "Replication": "replicate", "Circular": "circular"}
    mode = next((mode for start, mode in modes.items() if call.name.startswith(start)), "constant")
    return _padded(emitter, call, call.layer.padding, mode)


def _padded(emitter: Emitter, call: Call, pads: Sequence[int], mode: str) -> Value:
    value, count = call.tensor(), len(pads) // 2
    before, after = [0] * value.rank, [0] * value.rank
    for at in range(count):
        before[value.rank - 1 - at], after[value.rank - 1 - at] = pads[2 * at], pads[2 * at + 1]
    names = {"replicate": "edge", "circular": "wrap"}
    given = emitter.numbers(np.array([*before, *after], np.int64))
    return emitter.new("Pad", [value, given], call.shape, mode=names.get(mode, mode))


@functions("embedding")
def embedding(emitter: Emitter, call: Call) -> Value:
    return emitter.new("Gather", [call.tensor(1, "weight"), call.tensor()], call.shape)


@layers("Embedding")
def embedding_layer(emitter: Emitter, call: Call) -> Value:
    return emitter.new("Gather", [emitter.own(call, "weight"), call.tensor()], call.shape)


# -- attention


@functions("scaled_dot_product_attention")
def attention(emitter: Emitter, call: Call) -> Value:
    query, key, value = call.tensor(0, "query"), call.tensor(1, "key"), call.tensor(2, "value")
    if call.get(7, "enable_gqa", False):
        raise NotHereError
    mask = call.get(3, "attn_mask")
    return _attended(emitter, query, key, value, [mask] if isinstance(mask, Value) else [])[0]


def _attended(
    emitter: Emitter, query: Value, key: Value, value: Value, masks: Sequence[Value]
) -> tuple[Value, Value]:
    last = key.rank - 1
    scores = emitter.matmul(query, emitter.turned(key, [*range(last - 1), last, last - 1]))
    for mask in masks:
        scores = emitter.new("Add", [scores, mask], scores.shape)
    weights = emitter.new("Softmax", [scores], scores.shape, axis=-1)
    return emitter.matmul(weights, value), weights


@layers("MultiheadAttention")
def multihead_attention(emitter: Emitter, call: Call) -> Made:
    query, key, value = call.tensor(0, "query"), call.tensor(1, "key"), call.tensor(2, "value")
    mask, padding = call.get(5, "attn_mask"), call.get(3, "key_padding_mask")
    masks = [one for one in (mask, padding) if isinstance(one, Value)]
    made, weights = _multihead(emitter, call.layer, call.path, query, key, value, masks)
    if not isinstance(call.result[1], tuple):
        return [made, None]
    shape = call.result[1][0]
    return [made, weights if len(shape) == 4 else _reduced(emitter, weights, 1, shape)]


def _multihead(
    emitter: Emitter, layer: Any, path: str, query: Value, key: Value, value: Value, masks: Sequence[Value]
) -> tuple[Value, Value]:
    if query.rank != 3 or layer.bias_k is not None or layer.add_zero_attn:
        raise NotHereError
    projected = _projected(emitter, layer, path, (query, key, value))
    first, second = (0, 1) if layer.batch_first else (1, 0)
    apart = []
    for one in projected:
        cut = emitter.reshaped(one, (*one.shape[:2], layer.num_heads, layer.head_dim))
        apart.append(emitter.turned(cut, (first, 2, second, 3)))
    shaped = [_mask(emitter, one, query.shape[first], layer.num_heads) for one in masks]
    made, weights = _attended(emitter, apart[0], apart[1], apart[2], shaped)
    back = emitter.turned(made, (0, 2, 1, 3) if layer.batch_first else (2, 0, 1, 3))
    whole = emitter.reshaped(back, query.shape)
    bias = emitter.parameter(f"{path}.out_proj.bias") if layer.out_proj.bias is not None else None
    return emitter.linear(whole, emitter.parameter(f"{path}.out_proj.weight"), bias), weights


def _mask(emitter: Emitter, mask: Value, batch: int | None, heads: int) -> Value:
    """Over (batch, heads, query, key): of all heads together, of the keys alone, or of every head."""
    if mask.rank == 3:
        return emitter.reshaped(mask, (batch, heads, *mask.shape[1:]))
    return mask if mask.rank == 2 else emitter.reshaped(mask, (batch, 1, 1, mask.shape[-1]))


def _projected(emitter: Emitter, layer: Any, path: str, inputs: tuple[Value, Value, Value]) -> list[Value]:
    bias = emitter.parameter(f"{path}.in_proj_bias") if layer.in_proj_bias is not None else None
    width = layer.embed_dim
    if layer.in_proj_weight is None:
        weights = [emitter.parameter(f"{path}.{name}_proj_weight") for name in "qkv"]
    elif inputs[0] is inputs[1] is inputs[2]:
        whole = emitter.linear(inputs[0], emitter.parameter(f"{path}.in_proj_weight"), bias)
        return emitter.split(whole, 2, [width] * 3)
    else:
        weights = emitter.split(emitter.parameter(f"{path}.in_proj_weight"), 0, [width] * 3)
    biases = [None] * 3 if bias is None else emitter.split(bias, 0, [width] * 3)
    return [emitter.linear(one, weight, added) for one, weight, added in zip(inputs, weights, biases)]


@layers("TransformerEncoderLayer")
def encoder_layer(emitter: Emitter, call: Call) -> Value:
    masks = [one for one in (call.get(1, "src_mask"), call.get(2, "src_key_padding_mask")) if isinstance(one, Value)]
    return _encoded(emitter, call.layer, call.path, call.tensor(0, "src"), masks)


def _encoded(emitter: Emitter, layer: Any, path: str, value: Value, masks: Sequence[Value]) -> Value:
    def attend(one: Value) -> Value:
        return _multihead(emitter, layer.self_attn, f"{path}.self_attn", one, one, one, masks)[0]

    def feed(one: Value) -> Value:
        return _fed(emitter, layer, path, one)

    for norm, part in (("norm1", attend), ("norm2", feed)):
        value = _beside(emitter, layer, path, norm, part, value)
    return value


def _beside(
    emitter: Emitter, layer: Any, path: str, norm: str, part: Callable[[Value], Value], value: Value
) -> Value:
    """A part of a transformer with what goes by it, normed before or behind."""
    if layer.norm_first:
        return emitter.new("Add", [value, part(_norm(emitter, layer, path, norm, value))], value.shape)
    return _norm(emitter, layer, path, norm, emitter.new("Add", [value, part(value)], value.shape))


def _norm(emitter: Emitter, layer: Any, path: str, name: str, value: Value) -> Value:
    norm = getattr(layer, name)
    if type(norm) is not torch().nn.LayerNorm:
        raise NotHereError
    held = [emitter.parameter(f"{path}.{name}.{one}") for one, number in norm.named_parameters() if number is not None]
    return _layer_norm(emitter, value, norm.normalized_shape, *held)


def _fed(emitter: Emitter, layer: Any, path: str, value: Value) -> Value:
    for name in ("linear1", "linear2"):
        bias = emitter.parameter(f"{path}.{name}.bias") if getattr(layer, name).bias is not None else None
        value = emitter.linear(value, emitter.parameter(f"{path}.{name}.weight"), bias)
        value = emitter.new("Relu", [value], value.shape) if name == "linear1" else value
    return value


@layers("TransformerDecoderLayer")
def decoder_layer(emitter: Emitter, call: Call) -> Value:
    masks = [one for one in call.tensors if one not in (call.args[0], call.args[1])]
    if masks:
        raise NotHereError
    return _decoded(emitter, call.layer, call.path, call.tensor(0, "tgt"), call.tensor(1, "memory"))


def _decoded(emitter: Emitter, layer: Any, path: str, value: Value, memory: Value) -> Value:
    def attend(one: Value) -> Value:
        return _multihead(emitter, layer.self_attn, f"{path}.self_attn", one, one, one, ())[0]

    def look(one: Value) -> Value:
        return _multihead(emitter, layer.multihead_attn, f"{path}.multihead_attn", one, memory, memory, ())[0]

    def feed(one: Value) -> Value:
        return _fed(emitter, layer, path, one)

    for norm, part in (("norm1", attend), ("norm2", look), ("norm3", feed)):
        value = _beside(emitter, layer, path, norm, part, value)
    return value


@layers("TransformerEncoder")
def encoder(emitter: Emitter, call: Call) -> Value:
    value = call.tensor(0, "src")
    masks = [one for one in (call.get(1, "mask"), call.get(2, "src_key_padding_mask")) if isinstance(one, Value)]
    for at, layer in enumerate(call.layer.layers):
        value = _encoded(emitter, layer, f"{call.path}.layers.{at}", value, masks)
    return value if call.layer.norm is None else _norm(emitter, call.layer, call.path, "norm", value)


@layers("TransformerDecoder")
def decoder(emitter: Emitter, call: Call) -> Value:
    value, memory = call.tensor(0, "tgt"), call.tensor(1, "memory")
    if len(call.tensors) > 2:
        raise NotHereError
    for at, layer in enumerate(call.layer.layers):
        value = _decoded(emitter, layer, f"{call.path}.layers.{at}", value, memory)
    return value if call.layer.norm is None else _norm(emitter, call.layer, call.path, "norm", value)


__all__ = ["FUNCTIONS", "LAYERS", "Call", "Emitter", "Value"]
