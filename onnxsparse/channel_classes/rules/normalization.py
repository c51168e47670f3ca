"""Operators that look at all channels alike: norms, softmax, reductions; those that look at their order are frozen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from onnxsparse.channel_classes.rules.elementwise import along_axis
from onnxsparse.channel_classes.tensors import Field, Sizes, Tensor, collapsed
from onnxsparse.channel_classes.walk import FEW, Node, Rule, Walk

COERCED = 13
"""The opset from which Softmax is along one axis; before it the value was read as a matrix, cut at this axis."""
REDUCING = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip


def batch(walk: Walk, node: Node) -> list[Tensor]:
    """BatchNormalization, InstanceNormalization: numbers of each channel, along axis 1.

    In training mode and for an instance they are those of the value, over all its other axes.
    """
    tensor = node.input(0)
    if tensor is None or tensor.shape is None or tensor.rank < 2:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    if node.op == "BatchNormalization" and node.opset < 9 and not node.attributes.integer("spatial", 1):
        return walk.blocked(node, f"{node.called} has numbers for each pixel")
    training = node.attributes.integer("training_mode") or any(node.proto.output[1:])
    if node.op == "InstanceNormalization" or training:
        tensor = over(walk, tensor, [axis for axis in range(tensor.rank) if axis != 1 and (axis or training)])
    numbers = [along_axis(one, 1, tensor.rank) for one in node.inputs[1:] if one is not None]
    made = walk.elementwise(node, [tensor, *numbers], tensor.shape)
    own = made.field_on(1) if len(node.shapes) > 1 else None
    beside = [axis for axis in own.axes if axis != 1] if own is not None else []
    statistics = (Field((0,), collapsed(walk.labels, own, beside)),) if own is not None else ()
    return [made] + [Tensor((tensor.size(1),), statistics)] * (len(node.shapes) - 1)


def layer(walk: Walk, node: Node) -> list[Tensor]:
    """LayerNormalization, RMSNormalization: over the last axes, with numbers that broadcast along them."""
    tensor = node.input(0)
    if tensor is None or tensor.shape is None or not tensor.rank:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    axis = node.attributes.integer("axis", -1) % tensor.rank
    statistics = reduced(walk, tensor, range(axis, tensor.rank), True)
    tensor = over(walk, tensor, range(axis, tensor.rank))
    made = walk.elementwise(node, [tensor, *node.inputs[1:]], tensor.shape)
    return [made] + [statistics] * (len(node.shapes) - 1)


def skip_layer(walk: Walk, node: Node) -> list[Tensor]:
    """SkipLayerNormalization and its simplified form: a residual sum with its bias, then a layer norm."""
    simple = node.op.startswith("SkipSimplified")
    parts = [node.input(0), node.input(1), node.input(3 if simple else 4)]
    scales = [node.input(2), None if simple else node.input(3)]
    total = walk.elementwise(node, parts)
    if total.shape is None or not total.rank:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    statistics = reduced(walk, total, [total.rank - 1], True)
    normed = over(walk, total, [total.rank - 1])
    made = walk.elementwise(node, [normed, *scales], normed.shape)
    return [made, statistics, statistics, total]


def over(walk: Walk, tensor: Tensor, axes: Iterable[int]) -> Tensor:
    """The value after something that looks at all numbers along these axes alike, and keeps them in their places."""
    held = set(axes)
    tensor = _as_one(walk, walk.resolved(tensor), held, 1)
    for own in tensor.fields:
        if set(own.axes) & held:
            walk.close(own, held & set(own.axes))
    return tensor


def group(walk: Walk, node: Node) -> list[Tensor]:
    """GroupNormalization: the channels of a group stay in it; before opset 21 its numbers are of the groups."""
    tensor = node.input(0)
    if tensor is None or tensor.shape is None or tensor.rank < 2:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    fused = node.proto.domain == "com.microsoft"
    axis = tensor.rank - 1 if fused and node.attributes.integer("channels_last", 1) else 1
    groups, size = node.attributes.integer("groups" if fused else "num_groups", 1), tensor.size(axis)
    if size is None or groups < 1 or size % groups:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    tensor = over(walk, tensor, [at for at in range(1, tensor.rank) if at != axis])
    labels = walk.along(tensor, (axis,)) if tensor.field_on(axis) else None
    if labels is not None:
        walk.labels.close(labels.reshape(groups, -1), (0,))
        others = tuple(one for one in tensor.fields if axis not in one.axes)
        tensor = Tensor(tensor.shape, (Field((axis,), labels), *others))
    numbers = []
    for one in node.inputs[1:3]:
        if one is not None and (one.shape != (groups,) or tensor.size(axis) == groups):
            numbers.append(along_axis(one, axis, tensor.rank))
        elif one is not None:
            walk.freeze(one, f"{node.called} has one number for each group")
    return [walk.elementwise(node, [tensor, *numbers], tensor.shape)]


def softmax(walk: Walk, node: Node) -> list[Tensor]:
    """Softmax along one axis; before opset 13 along all from it on."""
    tensor = node.input(0)
    if tensor is None or tensor.shape is None or not tensor.rank:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    axis = node.attributes.integer("axis", -1 if node.opset >= COERCED else 1) % tensor.rank
    return [over(walk, tensor, [axis] if node.opset >= COERCED else range(axis, tensor.rank))]


def normalize(walk: Walk, node: Node) -> list[Tensor]:
    """LpNormalization, MeanVarianceNormalization."""
    tensor = node.input(0)
    if tensor is None or tensor.shape is None or not tensor.rank:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    axes = node.attributes.integers("axes") or [0, 2, 3] if node.op == "MeanVarianceNormalization" else None
    axis = node.attributes.integer("axis", -1)
    return [over(walk, tensor, [one % tensor.rank for one in (axes if axes is not None else [axis])])]


def reduce(walk: Walk, node: Node) -> list[Tensor]:
    """A sum, mean or extreme over axes."""
    tensor = node.input(0)
    if tensor is None or tensor.shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    axes = node.numbers(1, "axes")
    if node.input(1) is not None and axes is None:
        return walk.blocked(node, f"the axes at {node.called} are not known before it runs")
    if not axes:
        if node.attributes.integer("noop_with_empty_axes"):
            return [tensor]
        axes = list(range(tensor.rank))
    kept = node.attributes.integer("keepdims", 1) == 1
    return [reduced(walk, tensor, [axis % max(tensor.rank, 1) for axis in axes], kept)]


def reduced(walk: Walk, tensor: Tensor, axes: Sequence[int], kept: bool) -> Tensor:
    """The value after a reduction that is blind to the order of its terms."""
    tensor = over(walk, _as_one(walk, walk.resolved(tensor), set(axes), FEW), axes)
    places: dict[int, int] = {}
    for axis in range(tensor.rank):
        if kept or axis not in axes:
            places[axis] = len(places)
    fields = []
    for own in tensor.fields:
        rest = [axis for axis in own.axes if axis not in axes]
        if len(rest) == len(own.axes):
            fields.append(own.moved(places))
    shape: Sizes = tuple(
        1 if axis in axes else size for axis, size in enumerate(tensor.shape or ()) if kept or axis not in axes
    )
    return Tensor(shape, tuple(fields), uniform=tensor.uniform)


def _as_one(walk: Walk, tensor: Tensor, axes: set[int], few: int) -> Tensor:
    """Of channels inside of others the outer ones that meet move as one: values of several layers side by side.

    So do the inner ones where they are fewer than `few`, rather than each of them inside of its group.
    """
    fields = []
    for own in tensor.fields:
        meeting = [axis for axis in own.axes if axis in axes]
        size = int(np.prod([own.labels.shape[own.index(axis)] for axis in meeting], dtype=np.int64))
        if meeting and len(meeting) < len(own.axes) and (own.axes[-1] not in axes or size < few):
            rest = tuple(axis for axis in own.axes if axis not in axes)
            own = Field(rest, collapsed(walk.labels, own, meeting))
        fields.append(own)
    return replace(tensor, fields=tuple(fields))


def ordered(walk: Walk, node: Node) -> list[Tensor]:
    """ArgMax, TopK, CumSum, LRN: what they make depends on the order along an axis, Hardmax by its ties."""
    tensor = node.input(0)
    if tensor is None or tensor.shape is None or not tensor.rank:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    tensor = walk.resolved(tensor)
    axis = _ordered_axis(node)
    if axis is None:
        return walk.blocked(node)
    axis %= tensor.rank
    coerced = node.op == "Hardmax" and node.opset < COERCED
    for at in range(axis, tensor.rank if coerced else axis + 1):
        why = f"{node.called} depends on the order of its channels"
        tensor = replace(tensor, fields=walk.freeze_axis(tensor, at, why))
    fields = tensor.fields
    if node.op.startswith("Arg") and not node.attributes.integer("keepdims", 1):
        places = {at: at - (at > axis) for at in range(tensor.rank)}
        fields = tuple(one.moved(places) for one in fields)
        sizes = tuple(size for at, size in enumerate(tensor.shape or ()) if at != axis)
        return [Tensor(node.shape() or sizes, fields)]
    sizes = tuple(None if at == axis else size for at, size in enumerate(tensor.shape or ()))
    same = node.op in ("CumSum", "CumProd", "LRN", "Hardmax", "ReverseSequence")
    return [Tensor(node.shape(at) or (tensor.shape if same else sizes), fields) for at in range(len(node.shapes))]


def _ordered_axis(node: Node) -> int | None:
    if node.op in ("CumSum", "CumProd"):
        numbers = node.numbers(1)
        return numbers[0] if numbers else None
    if node.op == "LRN":
        return 1
    default = {"TopK": -1, "Hardmax": -1 if node.opset >= COERCED else 1}.get(node.op, 0)
    return node.attributes.integer("axis", default)


RULES: dict[tuple[str, str], Rule] = {
    **{("", name): batch for name in ("BatchNormalization", "InstanceNormalization")},
    **{(domain, "LayerNormalization"): layer for domain in ("", "com.microsoft")},
    **{
        (domain, name): layer
        for domain in ("", "com.microsoft")
        for name in ("RMSNormalization", "SimplifiedLayerNormalization")
    },
    **{("com.microsoft", name): skip_layer for name in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")},
    **{("", name): softmax for name in ("Softmax", "LogSoftmax")},
    **{("", name): normalize for name in ("LpNormalization", "MeanVarianceNormalization")},
    **{("", name): reduce for name in REDUCING},
    **{("", name): ordered for name in ("ArgMax", "ArgMin", "TopK", "CumSum", "CumProd", "LRN", "Hardmax")},
    **{(domain, "GroupNormalization"): group for domain in ("",)},
    ("com.microsoft", "GroupNorm"): group,
}

__all__ = ["RULES", "over", "reduced"]
