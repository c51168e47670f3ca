"""Operators that choose or write by indices found when the model runs, and those that read an axis in its order.

Along the axes that are indexed nothing moves; along the others channels go on.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnxsparse.channel_classes.rules.spatial import standing_along
from onnxsparse.channel_classes.tensors import Tensor
from onnxsparse.channel_classes.walk import Node, Rule, Walk

MICROSOFT = "com.microsoft"
STANDING = (
    "AffineGrid", "Bernoulli", "BlackmanWindow", "DFT", "Det", "HammingWindow", "HannWindow", "MaxUnpool",
    "MelWeightMatrix", "Multinomial", "NegativeLogLikelihoodLoss", "NonMaxSuppression", "NonZero", "OneHot", "STFT",
    "SoftmaxCrossEntropyLoss", "Unique",
)  # fmt: skip
"""What these make has places that follow from the order of all that they read."""


def stands(walk: Walk, node: Node) -> list[Tensor]:
    return walk.blocked(node, f"{node.called} depends on the order of what it reads")


def _unknown(walk: Walk, node: Node) -> list[Tensor]:
    return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")


def _freeze(walk: Walk, node: Node, tensor: Tensor | None) -> None:
    if tensor is not None:
        walk.freeze(tensor, f"{node.called} reads it in a fixed order")


def gather_elements(walk: Walk, node: Node) -> list[Tensor]:
    """GatherElements: along the other axes an index is beside what it chooses from."""
    tensor, indices = node.input(0), node.input(1)
    if tensor is None or indices is None or not tensor.rank or indices.rank != tensor.rank:
        return _unknown(walk, node)
    axis = node.attributes.integer("axis") % tensor.rank
    tensor = standing_along(walk, node, tensor, _unlike(indices, tensor, axis))
    indices = standing_along(walk, node, indices, [axis])
    return [Tensor(indices.shape, walk.merged([tensor, indices], node))]


def _unlike(indices: Tensor, tensor: Tensor, axis: int) -> list[int]:
    """The axis, and those of which only the first places may be read."""
    sizes = zip(indices.shape or (), tensor.shape or ())
    return [at for at, (one, other) in enumerate(sizes) if at == axis or one is None or one != other]


def scatter_elements(walk: Walk, node: Node) -> list[Tensor]:
    """ScatterElements: along the other axes indices and updates are beside what they write to."""
    tensor, indices, updates = (node.input(at) for at in range(3))
    if tensor is None or indices is None or updates is None or not tensor.rank:
        return _unknown(walk, node)
    if indices.rank != tensor.rank or updates.rank != tensor.rank:
        return _unknown(walk, node)
    axes = _unlike(indices, tensor, node.attributes.integer("axis") % tensor.rank)
    parts = [standing_along(walk, node, one, axes) for one in (tensor, indices, updates)]
    return [Tensor(tensor.shape, walk.merged(parts, node))]


def gather_nd(walk: Walk, node: Node) -> list[Tensor]:
    """GatherND: the axes behind those that an index names go on."""
    tensor, indices = node.input(0), node.input(1)
    depth = indices.size(indices.rank - 1) if indices is not None and indices.rank else None
    if tensor is None or indices is None or tensor.shape is None or indices.shape is None or depth is None:
        return _unknown(walk, node)
    named = node.attributes.integer("batch_dims") + depth
    _freeze(walk, node, indices)
    tensor = standing_along(walk, node, tensor, range(named))
    moved = {axis: axis - named + indices.rank - 1 for axis in range(named, tensor.rank)}
    fields = tuple(one.moved(moved) for one in tensor.fields)
    return [Tensor((*indices.shape[:-1], *(tensor.shape or ())[named:]), fields)]


def scatter_nd(walk: Walk, node: Node) -> list[Tensor]:
    """ScatterND: updates are laid beside the axes behind those that an index names."""
    tensor, indices, updates = (node.input(at) for at in range(3))
    depth = indices.size(indices.rank - 1) if indices is not None and indices.rank else None
    if tensor is None or updates is None or depth is None or tensor.shape is None or updates.shape is None:
        return _unknown(walk, node)
    _freeze(walk, node, indices)
    tensor = standing_along(walk, node, tensor, range(depth))
    lead = updates.rank - (tensor.rank - depth)
    updates = standing_along(walk, node, updates, range(lead))
    fields = tuple(one.moved({axis: axis - lead + depth for axis in one.axes}) for one in updates.fields)
    beside = (*(1 for _ in range(depth)), *(updates.shape or ())[lead:])
    return [Tensor(tensor.shape, walk.merged([tensor, Tensor(beside, fields, uniform=updates.uniform)], node))]


def tensor_scatter(walk: Walk, node: Node) -> list[Tensor]:
    """TensorScatter: a cache that is written along one axis, from an index for each of the batch."""
    cache, update = node.input(0), node.input(1)
    if cache is None or update is None or cache.rank < 2 or update.rank != cache.rank:
        return _unknown(walk, node)
    axes = [0, node.attributes.integer("axis", -2) % cache.rank]
    _freeze(walk, node, node.input(2))
    parts = [standing_along(walk, node, one, axes) for one in (cache, update)]
    return [Tensor(cache.shape, walk.merged(parts, node))]


def along_others(walk: Walk, node: Node) -> list[Tensor]:
    """Compress, ReverseSequence, Trilu, CenterCropPad: nothing moves along their own axes."""
    tensor, axes = node.input(0), None
    if tensor is not None and tensor.rank:
        axes = _own_axes(node, tensor)
    if tensor is None or tensor.shape is None or axes is None:
        return stands(walk, node)
    for other in node.inputs[1:]:
        _freeze(walk, node, other)
    held = {axis % tensor.rank for axis in axes}
    tensor = standing_along(walk, node, tensor, held)
    same = node.op in ("ReverseSequence", "Trilu")
    sizes = tuple(None if at in held and not same else size for at, size in enumerate(tensor.shape or ()))
    return [Tensor(node.shape() or sizes, tensor.fields), *(Tensor(shape) for shape in node.shapes[1:])]


def _own_axes(node: Node, tensor: Tensor) -> Iterable[int] | None:
    if node.op == "ReverseSequence":
        return [node.attributes.integer("batch_axis", 1), node.attributes.integer("time_axis", 0)]
    if node.op == "Trilu":
        return [-2, -1] if tensor.rank > 1 else None
    if node.op == "CenterCropPad":
        return node.attributes.integers("axes") or range(tensor.rank)
    named = any(attribute.name == "axis" for attribute in node.proto.attribute)
    return [node.attributes.integer("axis")] if named else None


RULES: dict[tuple[str, str], Rule] = {
    **{("", name): stands for name in STANDING},
    ("", "GatherElements"): gather_elements,
    **{("", name): scatter_elements for name in ("ScatterElements", "Scatter")},
    **{(domain, "GatherND"): gather_nd for domain in ("", MICROSOFT)},
    ("", "ScatterND"): scatter_nd,
    ("", "TensorScatter"): tensor_scatter,
    **{("", name): along_others for name in ("CenterCropPad", "Compress", "ReverseSequence", "Trilu")},
    **{(MICROSOFT, name): along_others for name in ("Trilu",)},
}

__all__ = ["RULES", "stands"]
