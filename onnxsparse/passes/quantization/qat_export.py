"""From fake quantization to integers: an export of quantization-aware training becomes an int8 model of equal outputs.

    float weight, fake quantized   ->  integers under the tensor's name, and DequantizeLinear
    value, fake quantized          ->  one pair of QuantizeLinear and DequantizeLinear for all who read it rounded alike
    bias of a product of both      ->  32-bit integers at the product of the two scales
    BatchNormalization behind it   ->  folded into the scales of the integers and into the bias

1. The integers are those that the fake quantization gives. What is folded multiplies their scales: a normalization
   with a negative factor turns their signs, one with the factor 0 leaves nothing of a channel.
2. A weight that is 0 is exactly the zero point. uint8 weights become int8 by a shift of both.
3. Rounding twice on one grid is rounding once; on two grids both stay. A normalization with another fake quantization
   before it stays.
4. Where fewer integers are in use than the type has, Clip bounds the floats before QuantizeLinear; it is not needed
   where nothing is below zero and int8 has just the integers from 0 to 127.
5. Only the rounding of biases is new. One that does not fit into 32 bits stays float.
The way: fake quantizers are taken out, weights get the numbers that they are rounded to, and `write_qdq` does the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.helper import make_node

from onnxsparse.errors import ModelError
from onnxsparse.graph.edit import FreshNames, Unread, all_names, called, copied, keep, reads, remove_nodes, rename_reads
from onnxsparse.graph.model import Model
from onnxsparse.math.quantization import WIDEST_BIAS, Grid, QParams, as_signed, of_bias, rescaled
from onnxsparse.math.values import Array
from onnxsparse.passes.quantization.fake_quantizers import FakeQuantizer, FakeQuantizers, same
from onnxsparse.passes.quantization.float_graph import plain_graph
from onnxsparse.passes.quantization.folding import fold_scaling
from onnxsparse.passes.quantization.qdq import write_qdq
from onnxsparse.planning.quantization import Quantization, QuantizedValue, QuantizedWeight

NOT_NEGATIVE = {"Relu", "Sigmoid", "Softmax", "HardSigmoid", "Abs"}
PASSING = {
    "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Reshape", "Flatten", "Transpose", "Squeeze",
    "Unsqueeze", "Identity", "Dropout",
}  # fmt: skip
"""Operators whose results are not negative where their first input is not."""
SCALING = {"BatchNormalization", "Conv", "ConvTranspose", "Gemm", "Mul", "Div", "Add", "Sub"}
BIASED = ("Conv", "ConvTranspose", "Gemm")
"""Operators whose third input is added to the product of the first two."""


class WeightFacts(NamedTuple):
    """A tensor that became integers."""

    name: str
    shape: tuple[int, ...]
    per_channel: bool
    zeros: int
    """How many are exactly the zero point."""
    size: int


@dataclass(frozen=True)
class Facts:
    """What was converted, and what was not and why, by the outputs of nodes."""

    weights: tuple[WeightFacts, ...]
    values: tuple[str, ...]
    biases: tuple[str, ...]
    repeated: int
    """Fake quantizations that rounded again what was on the same grid."""
    left: dict[str, str]
    notes: tuple[str, ...]


def converted(model: Model | ModelProto, target: str = "") -> tuple[ModelProto, Facts]:
    """A fake-quantized model with integers, and what was done; the model that is given stays as it is.

    For `target` 'ampere' every zero point has to be 0, which is checked.
    """
    conversion = Conversion(model if isinstance(model, Model) else Model.over(model), target)
    return conversion.written(), conversion.facts()


class Conversion:
    """A model whose fake quantizers are taken out, what is rounded in it and how, and then its form with integers."""

    def __init__(self, model: Model, target: str = "") -> None:
        proto, notes = plain_graph(model)
        self._proto, self._graph, self._target = proto, proto.graph, target
        opset = next((one.version for one in proto.opset_import if one.domain in ("", "ai.onnx")), 1)
        self._search = FakeQuantizers(proto.graph, opset)
        self._left = dict(self._search.left)
        self._fresh = FreshNames(all_names(proto))
        self._params: dict[str, QParams] = {}
        self._weights: dict[str, FakeQuantizer] = {}
        self._roots: dict[str, str] = {}
        self._joints: dict[str, str] = {}
        """Of each Identity in the place of a fake quantizer: its output, and the value that is to be rounded."""
        self._aliases = list[str]()
        self._sources: dict[str, str] = {}
        """What values in front of pairs were made for is called in the model that was given."""
        found = self._without_repeated()
        if not found:
            raise ModelError(self._nothing())
        self._take_out(found)
        self.notes = [*notes, *self._fold()]
        biases = {name: self._bias(name) for name in self._weights}
        if self._target == "ampere":
            self._demand_zero_points()
        self.repeated = len(self._search.found) - len(found)
        self.quantization = Quantization(tuple(self._values()), tuple(self._integers(biases)), self._left)
        self.float_proto = copied(self._proto)
        """What the model computes without rounding its values; weights have the numbers that they are rounded to."""

    @property
    def params(self) -> Mapping[str, QParams]:
        """Of every rounded value and weight."""
        return self._params

    def written(self) -> ModelProto:
        """The model with integers."""
        write_qdq(self._proto, self.quantization, self._params)
        self._remove_joints()
        return self._proto

    def _nothing(self) -> str:
        for name, why in self._left.items():
            return f"no fake quantization of the model can be converted: '{name}': {why}"
        return "the model has no fake quantization: no pairs of QuantizeLinear and DequantizeLinear, and no FakeQuant"

    # -- taking fake quantizers out

    def _without_repeated(self) -> list[FakeQuantizer]:
        """Who reads a fake quantizer behind another one that does the same reads that one; returns the others."""
        kept: dict[str, FakeQuantizer] = {}
        outputs = {entry.name for entry in self._graph.output}
        names: dict[str, str] = {}
        for one in self._search.found:
            source = names.get(one.source, one.source)
            if source in kept and one.same_as(kept[source]) and one.output not in outputs:
                names[one.output] = source
            else:
                kept[one.output] = replace(one, source=source)
        rename_reads(self._graph.node, names)
        Unread(self._proto).remove(names)
        return [*kept.values()]

    def _take_out(self, found: list[FakeQuantizer]) -> None:
        """Weights get their rounded numbers; before every reader of another value stands an Identity for the pair."""
        _trim_fake_quant(self._proto)
        unread = [name for one in found for name in self._taken_out(one)]
        unread += self._computed_stored()
        Unread(self._proto).remove(unread)
        self._name_weights()

    def _computed_stored(self) -> list[str]:
        """Store what layers and scaling behind them read that is computed from stored tensors; returns the names."""
        names: dict[str, str] = {}
        for node in self._graph.node:
            if node.op_type not in SCALING or self._search.known.has(node.output[0]):
                continue
            for slot, name in enumerate(node.input):
                numbers = self._search.known.numbers(name) if self._search.known.computes(name) else None
                if numbers is not None and numbers.dtype == np.float32:
                    names[name] = names.get(name) or self._stored(name, numbers)
                    node.input[slot] = names[name]
        return [*names]

    def _name_weights(self) -> None:
        """Those that are still read get the names of the tensors that they come from, where nobody else reads these."""
        taken = {tensor.name for tensor in self._graph.initializer}
        names: dict[str, str] = {}
        for name, root in self._roots.items():
            if name in taken and root not in taken:
                names[name] = root
                taken.add(root)
        for tensor in self._graph.initializer:
            tensor.name = names.get(tensor.name, tensor.name)
        rename_reads(self._graph.node, names)
        self._weights = {names.get(name, name): one for name, one in self._weights.items() if name in taken}
        self._params = {names.get(name, name): params for name, params in self._params.items()}

    def _taken_out(self, one: FakeQuantizer) -> list[str]:
        """Take one out; returns what nobody reads afterwards."""
        numbers = self._search.known.numbers(one.source)
        if numbers is None:
            return self._value_taken_out(one)
        nodes = [node for node in self._graph.node if one.output in node.input]
        slots = [(node, slot) for node in nodes for slot, name in enumerate(node.input) if name == one.output]
        if not slots:
            return [one.output]
        if len(slots) < self._reads(one.output):
            self._left[one.output] = "it is read in a body, or an output of the model"
            return []
        bias = all(slot == 2 and node.op_type in BIASED for node, slot in slots)
        name = self._weight(one, numbers, bias)
        for node, slot in slots:
            node.input[slot] = name
        return [one.output]

    def _reads(self, name: str) -> int:
        outputs = sum(name == entry.name for entry in self._graph.output)
        return int(outputs + sum(reads(node).count(name) for node in self._graph.node))

    def _weight(self, one: FakeQuantizer, numbers: Array, bias: bool) -> str:
        """A new initializer with the rounded numbers; a bias gets integers of its own later."""
        for name, other in self._weights.items():
            if other.source == one.source and other.same_as(one):
                return name
        along = one.params.axis
        if along is not None and not one.params.block and not _goes_along(numbers.shape, along, one.params.scale.size):
            raise ModelError(f"'{one.output}' has {one.params.scale.size} scales along axis {along} of {numbers.shape}")
        integers, params = as_signed(one.integers(numbers), one.params)
        if along is not None:
            params = replace(params, axis=along % numbers.ndim)
        stored = [tensor for tensor in self._search.known.stored(one.source) if _count(tensor) == numbers.size]
        root = stored[0].name if len(stored) == 1 else one.source
        name = self._stored(root, params.dequantize(integers))
        self._roots[name] = root
        if not bias:
            self._params[name], self._weights[name] = params, one
        return name

    def _stored(self, stem: str, numbers: Array) -> str:
        name = self._fresh(stem)
        self._graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(numbers, np.float32), name))
        return name

    def _value_taken_out(self, one: FakeQuantizer) -> list[str]:
        at, last = next((at, node) for at, node in enumerate(self._graph.node) if one.output in node.output)
        before, params, source = list[NodeProto](), one.params, one.source
        if self._target == "ampere" and params.grid == Grid(8, False, False) and (params.zero_point == 128).all():
            params = as_signed(np.zeros(1, np.uint8), params)[1]
        elif one.limited and (one.low, one.high) == (0, 127) and self._never_negative(one):
            params = replace(params, grid=Grid(8))
        elif one.limited:
            before.append(self._clip(one))
            source = before[-1].output[0]
        if source in self._params and not same(self._params[source], params):
            before.append(make_node("Identity", [source], [self._fresh(f"{one.source}_again")]))
            source = before[-1].output[0]
            self._aliases.append(source)
        self._params[source] = params
        self._sources[source] = one.source
        self._joints[one.output] = source
        joint = make_node("Identity", [source], [one.output], self._fresh(f"{one.output}_joint"))
        freed = [name for name in last.input if name]
        self._graph.node[at].CopyFrom(joint)
        for node in reversed(before):
            self._graph.node.insert(at, node)
        return freed

    def _clip(self, one: FakeQuantizer) -> NodeProto:
        """Bounds in floats. They are multiples of the scale, so rounding gives the very integers."""
        params = one.params
        bounds = [params.dequantize(np.full(params.scale.shape, end, params.grid.dtype)) for end in (one.low, one.high)]
        clipped = self._fresh(f"{one.source}_clipped")
        if params.axis is None:
            ends = [self._stored(f"{one.source}_{end}", bound) for end, bound in zip(("low", "high"), bounds)]
            return make_node("Clip", [one.source, *ends], [clipped], self._fresh(f"{clipped}_node"))
        raise ModelError(
            f"'{one.output}' is quantized along an axis to fewer integers than {params.grid.text} has, which no pair "
            "of QuantizeLinear and DequantizeLinear can say; train activations with one scale"
        )

    def _never_negative(self, one: FakeQuantizer) -> bool:
        """Whether a value with the zero point 0 cannot be negative, by the operators that it comes from."""
        makers = {name: node for node in self._graph.node for name in node.output}
        at = makers.get(one.source)
        while at is not None and at.op_type in PASSING:
            at = makers.get(at.input[0])
        return bool((one.params.zero_point == 0).all()) and at is not None and at.op_type in NOT_NEGATIVE

    # -- what is behind a product

    def _fold(self) -> list[str]:
        """Fold normalizations into scales and biases; those stay that the same integers cannot carry."""
        before, stored = copied(self._proto), self._numbers()
        only = set(self._weights)
        notes = fold_scaling(self._proto, only)
        scaled = {name: rescaled(self._params[name], stored[name], new) for name, new in self._numbers().items()}
        kept = [name for name, params in scaled.items() if params is None]
        if kept:
            self._left.update(dict.fromkeys(kept, "the scaling behind it stays: its integers cannot carry it"))
            self._proto.CopyFrom(before)
            self._graph = self._proto.graph
            notes = fold_scaling(self._proto, only - {*kept})
        for name, params in scaled.items():
            self._params[name] = params or self._params[name]
        return notes

    def _numbers(self) -> dict[str, Array]:
        stored = (tensor for tensor in self._graph.initializer if tensor.name in self._weights)
        return {tensor.name: numpy_helper.to_array(tensor) for tensor in stored}

    # -- what is rounded

    def _values(self) -> Iterator[QuantizedValue]:
        readers: dict[str, list[tuple[str, int]]] = {}
        for output, source in self._joints.items():
            readers.setdefault(source, []).append((output, 0))
        for source, them in readers.items():
            yield QuantizedValue(source, self._params[source].grid, tuple(them))

    def _integers(self, biases: dict[str, str]) -> Iterator[QuantizedWeight]:
        for name in self._weights:
            params = self._params[name]
            slots = tuple(self._slots(name))
            product = self._product(name)
            given = self._joints.get(product.input[0], "") if product is not None else ""
            yield QuantizedWeight(name, params.grid, params.axis, slots, given, biases[name], params.block)

    def _slots(self, name: str) -> Iterator[tuple[str, int]]:
        for node in self._graph.node:
            yield from ((node.output[0], slot) for slot, one in enumerate(node.input) if one == name)

    def _product(self, name: str) -> NodeProto | None:
        """The only node that multiplies with a weight, and adds a bias."""
        nodes = [node for node in self._graph.node if name in node.input]
        return nodes[0] if len(nodes) == 1 and nodes[0].op_type in BIASED and nodes[0].input[1] == name else None

    def _bias(self, name: str) -> str:
        """The bias that becomes 32-bit integers; '' where none does, with the reason in `left`."""
        product = self._product(name)
        if product is None or len(product.input) < 3 or not product.input[2]:
            return ""
        bias, stored = product.input[2], {tensor.name: tensor for tensor in self._graph.initializer}
        if self._target == "ampere":
            return ""  # TensorRT has no DequantizeLinear for 32 bits, and adds floats to the products
        given = self._joints.get(product.input[0])
        if bias not in stored or given is None or self._params[given].scale.size > 1:
            why = "it is no stored tensor" if bias not in stored else f"the input of {called(product)} is not rounded"
            self._left[bias] = f"the bias stays float: {why}"
            return ""
        numbers = numpy_helper.to_array(stored[bias])
        if self._params[name].scale.size not in (1, numbers.size):  # the groups of a ConvTranspose share scales
            self._left[bias] = "the bias stays float: several of its numbers share a scale of the weight"
            return ""
        steps = np.abs(numbers) / of_bias(self._params[given], self._params[name]).scale.astype(np.float64)
        if numbers.ndim != 1 or not (steps <= WIDEST_BIAS)[~self._empty(name, numbers.size)].all():
            self._left[bias] = "the bias stays float: it does not fit into 32 bits at the scale of the products"
            return ""
        return str(bias)

    def _empty(self, name: str, outputs: int) -> Array:
        """The outputs of which a weight is all zero: `write_qdq` chooses their scales by their biases."""
        params = self._params[name]
        numbers = next(numpy_helper.to_array(one) for one in self._graph.initializer if one.name == name)
        if params.axis is None or numbers.shape[params.axis] != outputs:
            return np.zeros(outputs, bool)
        others = tuple(axis for axis in range(numbers.ndim) if axis != params.axis)
        return np.asarray(~numbers.any(axis=others))

    def _demand_zero_points(self) -> None:
        wrong = [
            f"{self._sources.get(name, name)} ({params.grid.text}, {max(params.zero_point.ravel(), key=abs)})"
            for name, params in self._params.items()
            if not params.grid.signed or (params.zero_point != 0).any()
        ]
        if wrong:
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            raise ModelError(
                f"--target ampere takes int8 with the zero point 0, and {', '.join(wrong[:3])}{more} are otherwise; "
                "train with symmetric int8 activations, or leave --target out"
            )

    # -- the end

    def _remove_joints(self) -> None:
        """Readers read what comes out of the pairs; an output of the model gives its name to it."""
        outputs = {entry.name for entry in self._graph.output}
        names: dict[str, str] = {}
        gone = list[NodeProto]()
        makers = {name: node for node in self._graph.node for name in node.output}
        for name in (*self._aliases, *self._joints):
            node = makers[name]
            source = names.get(node.input[0], node.input[0])
            if name not in outputs:
                names[name] = source
            elif source in outputs or makers[source].op_type != "DequantizeLinear":
                continue
            else:
                names[source] = makers[source].output[0] = name
            gone.append(node)
        remove_nodes(self._graph, gone)
        while chained := {name: names[source] for name, source in names.items() if source in names}:
            names.update(chained)
        rename_reads(self._graph.node, names)
        self._drop_declarations()

    def _drop_declarations(self) -> None:
        """Those of values that are no more."""
        made = {name for node in self._graph.node for name in node.output}
        keep(self._graph.value_info, [entry for entry in self._graph.value_info if entry.name in made])

    def facts(self) -> Facts:
        """What was done, of the model that was written."""
        quantization = self.quantization
        stored = {tensor.name: tensor for tensor in self._graph.initializer}
        weights = []
        for one in quantization.weights:
            integers, params = numpy_helper.to_array(stored[one.name]), self._params[one.name]
            zeros = int((params.dequantize(integers) == 0).sum())
            weights.append(WeightFacts(one.name, integers.shape, params.scale.size > 1, zeros, integers.size))
        biases = [one.bias for one in quantization.weights if one.bias]
        biases = [name for name in biases if stored[name].data_type == TensorProto.INT32]
        values = tuple(one.name for one in quantization.values)
        return Facts(tuple(weights), values, tuple(biases), self.repeated, self._left, tuple(self.notes))


def _goes_along(shape: tuple[int, ...], axis: int, scales: int) -> bool:
    return -len(shape) <= axis < len(shape) and shape[axis] == scales


def _count(tensor: TensorProto) -> int:
    return int(np.prod(tensor.dims, dtype=np.int64))


def _trim_fake_quant(proto: ModelProto) -> None:
    """FakeQuant also gives a mask for gradients; without its name nodes that are not read can go."""
    read = Counter(name for node in proto.graph.node for name in reads(node))
    for node in proto.graph.node:
        if node.op_type == "FakeQuant" and not any(read[name] for name in node.output[1:]):
            del node.output[1:]
