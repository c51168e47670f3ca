"""Thinning: channels are taken out of a graph, and out of every stored tensor that holds their numbers.

1. Channels are those of channel classes. All numbers of one that goes are cut out; sizes that follow from it are
   renewed: declared shapes, groups of depthwise convolutions, shapes of Reshape, sizes of Resize.
2. It goes through operators that treat each channel by itself, and through sums of products with stored weights.
   What else reads the channels blocks them, and is named: what mixes them, or needs to know how many there are.
3. At least one channel of a class stays: kernels of runtimes do not expect tensors without numbers.
What it does not do: decide which channels go. The model computes what it did where the weights that read them
(`readers_of`) have zeros there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx.shape_inference
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from onnxsparse.channel_classes.bare import bare_copy
from onnxsparse.channel_classes.classes import ChannelClass, Channels, Member
from onnxsparse.channel_classes.permutation import METADATA
from onnxsparse.channel_classes.tensors import Field
from onnxsparse.errors import ModelError, PlanError
from onnxsparse.graph.attributes import Attributes, label
from onnxsparse.graph.edit import FreshNames, all_names, downstream, reads
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.graph.torch_match import Match, record_match, recorded_match
from onnxsparse.math.values import Array
from onnxsparse.passes.permuting import channels_of

Kept = Mapping[int, Array]
"""By the number of a class: True for each of its channels that stays, in their order."""
Sizes = dict[int, tuple[int, int]]
"""By axis: how many there were, and how many there are."""

EACH = frozenset(
    (
        "Abs", "Add", "AveragePool", "BatchNormalization", "Cast", "Ceil", "Celu", "Clip", "Concat", "DequantizeLinear",
        "Div", "Dropout", "Elu", "Erf", "Exp", "Flatten", "Floor", "Gelu", "GlobalAveragePool", "GlobalLpPool",
        "GlobalMaxPool", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization", "LeakyRelu", "Log", "LpPool",
        "Max", "MaxPool", "Mean", "Min", "Mish", "Mul", "Neg", "PRelu", "Pad", "Pow", "QuantizeLinear", "Reciprocal",
        "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Reshape", "Resize",
        "Round", "Selu", "Shape", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh",
        "ThresholdedRelu", "Transpose", "Unsqueeze", "Upsample", "Where",
    )
)  # fmt: skip
"""Operators that treat each channel by itself, as far as channels are not along an axis that they reduce."""
SUMS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
GIVES, READS, ALONE, TIED = "gives", "reads", "alone", "tied"
Roles = Mapping[tuple[StoredTensor, int], str]
SIZED = {"Reshape": 1, "Resize": 3}
"""Inputs that say the sizes of the result."""


def thinned(model: Model, kept: Kept) -> ModelProto:
    """A copy of a model without the channels of its classes (`channels_of`) that are not kept."""
    copy = Model.over(model.copy_proto())
    copy.sizes = model.sizes
    thin(copy, channels_of(copy), kept)
    return copy.proto


def thin(model: Model, channels: Channels, kept: Kept) -> None:
    """The same in place, for a model that is whole in memory and the channels that were found in it."""
    gone = np.concatenate([_gone(channels.classes[number], keep) for number, keep in kept.items()] or [_NONE])
    if gone.size:
        _Thinning(model, channels, gone).cut()


def blocking(model: Model, channels: Channels, one: ChannelClass) -> str:
    """Why the channels of a class cannot be taken out; '' where they can."""
    why = next(_Thinning(model, channels, one.channels).refusals(), "")
    return why or ("" if readers_of(one, roles_of(model)) else "no weight reads them")


_NONE = np.empty(0, np.int64)


def _gone(one: ChannelClass, keep: Array) -> Array:
    if len(keep) != one.size or not keep.any():
        raise PlanError(f"of the {one.size} channels of '{one.members[0].name}' at least one has to stay")
    return one.channels[~keep]


# -- numbers of channels


def roles_of(model: Model) -> Roles:
    """What the indices of an axis of a weight are: outputs, inputs, both, where each channel goes by itself, or the one
    in one place and the other in another."""
    found: dict[tuple[StoredTensor, int], str] = {}
    for weight in model.weights:
        for use in weight.uses:
            groups, outputs, inputs, _ = (use.stored_axes(run) for run in use.runs)
            alone = use.shape4[0] > 1 and use.shape4[2] == 1
            for axes, role in ((groups, ALONE), (outputs, ALONE if alone else GIVES), (inputs, READS)):
                for axis in axes:
                    known = found.setdefault((weight.tensor, axis), role)
                    found[weight.tensor, axis] = role if known == role else TIED
    return found


def readers_of(one: ChannelClass, roles: Roles) -> tuple[Member, ...]:
    """The weights that sum over the channels of a class."""
    return tuple(member for member in one.members if roles.get((member.tensor, member.axes[-1])) == READS)


def zeros_in(one: ChannelClass, member: Member, numbers: Array) -> Array:
    """For each channel of a class whether all its numbers in a tensor are zero; `numbers` has the tensor's shape."""
    rest = tuple(axis for axis in range(numbers.ndim) if axis not in member.axes)
    zero = (numbers.transpose([*member.axes, *rest]) == 0).reshape(*member.labels.shape, -1).all(-1)
    order = np.argsort(one.channels)
    places = np.minimum(np.searchsorted(one.channels, member.labels, sorter=order), one.size - 1)
    own = one.channels[order[places]] == member.labels
    found = np.ones(one.size, bool)
    np.logical_and.at(found, order[places[own]], zero[own])
    return found


def places_in(member: Member, channels: Array) -> Array:
    """True at the places of a tensor where numbers of these channels are, in its shape."""
    found = np.isin(member.labels, channels)
    order = np.argsort(member.axes)
    sizes = [size if axis in member.axes else 1 for axis, size in enumerate(member.tensor.shape)]
    return np.broadcast_to(found.transpose(order).reshape(sizes), member.tensor.shape)


# -- the cut


@dataclass(frozen=True, eq=False)
class _Thinning:
    """Some channels of a model on their way out."""

    model: Model
    channels: Channels
    gone: Array

    @cached_property
    def _fed(self) -> set[str]:
        """The values that depend on inputs of the model."""
        graph = self.model.proto.graph
        stored = {tensor.name for tensor in graph.initializer}
        return downstream(graph, [value.name for value in graph.input if value.name not in stored], False)

    @cached_property
    def _roles(self) -> Roles:
        return roles_of(self.model)

    @cached_property
    def _makers(self) -> dict[str, NodeProto]:
        return {name: node for node in self.model.proto.graph.node for name in node.output if name}

    @cached_property
    def _readers(self) -> dict[str, list[NodeProto]]:
        found: dict[str, list[NodeProto]] = {}
        for node in self.model.proto.graph.node:
            for name in dict.fromkeys(reads(node)):
                found.setdefault(name, []).append(node)
        return found

    def _held(self, names: Iterable[str]) -> Array:
        """Those of the channels that values have."""
        own = [one.labels.reshape(-1) for name in names for one in self.channels.values.get(name, ())]
        return np.intersect1d(np.concatenate([_NONE, *own]), self.gone)

    def _sizes(self, name: str) -> Sizes:
        """The axes of a value that get shorter."""
        found: Sizes = {}
        for own in self.channels.values.get(name, ()):
            stays = ~np.isin(own.labels, self.gone)
            for at, axis in enumerate(own.axes):
                line = np.moveaxis(stays, at, 0).reshape(stays.shape[at], -1).any(1)
                if not line.all():
                    found[axis] = line.size, int(np.count_nonzero(line))
        return found

    # -- what stands in the way

    def refusals(self) -> Iterator[str]:
        homes, graph = self.model.flow.stores.homes, self.model.proto.graph
        for member in self.channels.members:
            if np.isin(member.labels, self.gone).any():
                if homes[member.tensor].container is not graph:
                    yield f"'{member.name}' is in a body or a function of the graph"
                elif not _is_line(~np.isin(member.labels, self.gone)):
                    yield f"'{member.name}' has other channels in each of its groups"
                elif (member.tensor, member.axes[-1]) not in self._roles and not _is_vector(member):
                    yield f"'{member.name}' is no weight of a layer that is known"
                elif self._roles.get((member.tensor, member.axes[-1])) == TIED:
                    yield f"'{member.name}' is read both ways round"
        for node in graph.node:
            why = self._refusal(node)
            if why:
                yield f"{node.op_type} '{label(node)}' {why}"

    def _refusal(self, node: NodeProto) -> str:
        held = self._held(reads(node))
        if not held.size:
            return ""
        if node.domain not in ("", "ai.onnx") or node.op_type not in EACH | SUMS:
            return "reads them, and is no operator that treats each channel by itself"
        if any(len(one.axes) > 1 and np.isin(one.labels, self.gone).any() for one in self._fields(node)):
            return "has them along several axes, such as heads"
        if node.op_type == "Shape":
            return "" if self._is_of_others(node) else "tells how many there are, and something is computed with it"
        lost = np.setdiff1d(held, self._held(node.output))
        if node.op_type in EACH:
            return self._unresized(node) if not lost.size else "mixes them"
        stored = [name for name in node.input if name not in self._fed]
        if np.setdiff1d(lost, self._held(stored)).size or not {*node.input[:2]} - {*stored}:
            return "sums over them, and both its factors are computed"
        groups = Attributes(node, {}).integer("group", 1)
        inputs = self.channels.values.get(node.input[0], ())
        depthwise = any(one.axes == (1,) and len(one.labels) == groups for one in inputs)
        return "is a convolution in groups, which keep their channels" if groups > 1 and not depthwise else ""

    def _fields(self, node: NodeProto) -> list[Field]:
        return [own for name in node.output for own in self.channels.values.get(name, ())]

    def _is_of_others(self, node: NodeProto) -> bool:
        """Whether only sizes along other axes are taken of the shape of a value."""
        axes = set(self._sizes(node.input[0]))
        for reader in self._readers.get(node.output[0], ()):
            taken = self._constant(reader.input[1]) if reader.op_type == "Gather" else None
            if taken is None or (taken < 0).any() or set(taken.reshape(-1).tolist()) & axes:
                return False
        return not Attributes(node, {}).integer("start", 0)

    def _unresized(self, node: NodeProto) -> str:
        if node.op_type == "Pad" and self._sizes(node.input[0]) != self._sizes(node.output[0]):
            return "adds to them"
        if Attributes(node, {}).integer("block_size", 0):
            return "has a scale for each of their blocks"
        slot = SIZED.get(node.op_type, len(node.input))
        if slot >= len(node.input) or not node.input[slot]:
            return ""
        changed = self._sizes(node.output[0])
        known = self._constant(node.input[slot])
        if not changed or known is not None or (node.op_type == "Reshape" and self._pieces(node.input[slot])):
            return ""
        return "has sizes that are computed"

    # -- doing it

    def cut(self) -> None:
        why = next(self.refusals(), "")
        if why:
            raise PlanError(f"channels cannot be taken out: {why}")
        fits = _fits(self.model)
        for node in list(self.model.proto.graph.node):
            self._renew(node)
        shapes = {tensor: tensor.shape for tensor in self.channels.by_tensor}
        for tensor, members in self.channels.by_tensor.items():
            self._cut(tensor, members)
        graph = self.model.proto.graph
        for value in (*graph.value_info, *graph.input):
            self._redeclare(value)
        self.model.drop_metadata_key(METADATA)
        self.model.forget()
        self._rematch({tensor.name for tensor in self.channels.by_tensor if tensor.shape != shapes[tensor]})
        if fits and not _fits(self.model):
            raise PlanError("channels cannot be taken out: the shapes of the graph would not fit together any more")

    def _cut(self, tensor: StoredTensor, members: Iterable[Member]) -> None:
        array, before = None, tensor.shape
        for member in members:
            stays = ~np.isin(member.labels, self.gone)
            if not stays.all():
                line = stays.reshape(-1, stays.shape[-1])[0]
                array = np.compress(line, tensor.array() if array is None else array, member.axes[-1])
        if array is not None and array.shape != before:
            del tensor.proto.dims[:]
            tensor.proto.dims.extend(array.shape)
            tensor.store(np.ascontiguousarray(array).reshape(-1))

    def _rematch(self, cut: Collection[str]) -> None:
        """Parameters of torch whose tensors became smaller do not lie in them any more."""
        try:
            match = recorded_match(self.model)
        except ModelError:  # whoever reads it says that it is damaged
            return
        if match is None:
            return
        gone = {name for name, one in match.matched.items() if any(each.tensor in cut for each in (one, *one.copies))}
        matched = {name: one for name, one in match.matched.items() if name not in gone}
        aliases = {name: one for name, one in match.aliases.items() if one not in gone}
        refused = {**match.refused, **dict.fromkeys(sorted(gone), "channels were taken out of it")}
        record_match(self.model, Match(matched, aliases, match.folded, refused))

    def _redeclare(self, value: ValueInfoProto) -> None:
        dims = value.type.tensor_type.shape.dim
        for axis, (before, after) in self._sizes(value.name).items():
            if axis < len(dims) and dims[axis].dim_value == before:
                dims[axis].dim_value = after

    def _renew(self, node: NodeProto) -> None:
        """Numbers that a node has for the sizes that change."""
        if node.op_type in ("Conv", "ConvTranspose"):
            inputs = self._sizes(node.input[0]).get(1)
            for attribute in node.attribute:
                if attribute.name == "group" and attribute.i > 1 and inputs:
                    attribute.i = inputs[1]
        slot = SIZED.get(node.op_type, len(node.input))
        changed = self._sizes(node.output[0]) if slot < len(node.input) and node.input[slot] else {}
        if not changed or node.domain not in ("", "ai.onnx"):
            return
        known = self._constant(node.input[slot])
        if known is not None:
            node.input[slot] = self._with_sizes(node.input[slot], known, changed)
        elif self._pieces(node.input[slot]):
            node.input[slot] = self._joined(node, slot, changed)

    def _with_sizes(self, name: str, known: Array, changed: Sizes) -> str:
        """A constant with the new sizes; what stands for a size that the runtime finds stays."""
        sizes = known.copy()
        for axis, (_, after) in changed.items():
            sizes[axis] = after if sizes[axis] > 0 else sizes[axis]
        return name if np.array_equal(sizes, known) else self._stored(name, sizes)

    def _stored(self, name: str, numbers: Array) -> str:
        """Another constant, for the old one may be read elsewhere."""
        made = self._fresh(f"{name}_thinned")
        self.model.proto.graph.initializer.append(numpy_helper.from_array(numbers, made))
        return made

    @cached_property
    def _fresh(self) -> FreshNames:
        return FreshNames(all_names(self.model.proto))

    def _pieces(self, name: str) -> list[str]:
        """The single sizes that a shape is put together of, where it is."""
        node = self._makers.get(name)
        joins = node is not None and node.op_type == "Concat" and node.domain in ("", "ai.onnx")
        shape = {info.name: info for info in self.model.proto.graph.value_info}
        pieces = list(node.input) if node is not None and joins else []
        return pieces if all(self._is_single(piece, shape) for piece in pieces) else []

    def _is_single(self, name: str, declared: Mapping[str, ValueInfoProto]) -> bool:
        known, maker = self._constant(name), self._makers.get(name)
        if known is not None:
            return known.shape == (1,)
        sizes = [dim.dim_value for dim in declared[name].type.tensor_type.shape.dim] if name in declared else []
        return sizes == [1] or (maker is not None and maker.op_type == "Unsqueeze")

    def _joined(self, node: NodeProto, slot: int, changed: Sizes) -> str:
        """The shape with other constants among its pieces; those that are computed follow by themselves."""
        pieces = self._pieces(node.input[slot])
        for axis, (_, after) in changed.items():
            known = self._constant(pieces[axis])
            if known is not None and known[0] > 0:
                pieces[axis] = self._stored(pieces[axis], np.array([after], known.dtype))
        maker = self._makers[node.input[slot]]
        if pieces == list(maker.input):
            return str(node.input[slot])
        made = NodeProto()
        made.CopyFrom(maker)
        made.name, made.output[0] = self._fresh(f"{maker.name}_thinned"), self._fresh(f"{maker.output[0]}_thinned")
        made.input[:] = pieces
        nodes = self.model.proto.graph.node
        at = next(place for place, one in enumerate(nodes) if one.output[:] == maker.output[:])
        nodes.insert(at + 1, made)
        return str(made.output[0])

    def _constant(self, name: str) -> Array | None:
        """The numbers of a stored list of integers."""
        tensor = self._stored_lists.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    @cached_property
    def _stored_lists(self) -> dict[str, TensorProto]:
        graph = self.model.proto.graph
        found = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                found[node.output[0]] = node.attribute[0].t
        return {
            name: one
            for name, one in found.items()
            if one.data_type in (TensorProto.INT64, TensorProto.INT32) and len(one.dims) <= 1
        }


def _is_vector(member: Member) -> bool:
    return sum(size != 1 for size in member.tensor.shape) <= 1


def _is_line(stays: Array) -> bool:
    """Whether the same places along the last axis go, whatever the others."""
    return bool((stays == stays.reshape(-1, stays.shape[-1])[0]).all())


def _fits(model: Model) -> bool:
    """Whether the sizes in the graph agree with one another."""
    try:
        onnx.shape_inference.infer_shapes(bare_copy(model, {}), strict_mode=True, data_prop=True)
    except Exception:  # whatever the inference makes of an odd graph
        return False
    return True


__all__ = [
    "ALONE", "GIVES", "READS", "Kept", "Roles", "blocking", "places_in", "readers_of", "roles_of", "thin", "thinned",
    "zeros_in",
]  # fmt: skip
