"""Operators on images: each channel by itself, whatever happens along the axes of the pixels."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np

from onnxsparse.channel_classes.rules.normalization import reduced
from onnxsparse.channel_classes.tensors import Field, Sizes, Tensor
from onnxsparse.channel_classes.walk import Node, Rule, Walk
from onnxsparse.math.values import Array

MICROSOFT = "com.microsoft"


def pool(walk: Walk, node: Node) -> list[Tensor]:
    """Pooling; the indices of MaxPool count over all channels, so that none may move where they are read."""
    tensor = node.input(0)
    if tensor is None or tensor.shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    if any(node.proto.output[1:]):
        return walk.blocked(node, f"{node.called} counts its indices over all channels")
    pixels = range(1, tensor.rank - 1) if _channels_last(node) else range(2, tensor.rank)
    return [by_pixels(walk, node, tensor, pixels)]


def _channels_last(node: Node) -> bool:
    return node.op == "NhwcMaxPool" or bool(node.attributes.integer("channels_last"))


def by_pixels(walk: Walk, node: Node, tensor: Tensor, pixels: Collection[int]) -> Tensor:
    """The value after something that reads its pixels in their order and makes others of them."""
    tensor = standing_along(walk, node, tensor, pixels)
    sizes = tuple(None if axis in pixels else size for axis, size in enumerate(tensor.shape or ()))
    return Tensor(node.shape() or sizes, tensor.fields)


def standing_along(walk: Walk, node: Node, tensor: Tensor, axes: Iterable[int]) -> Tensor:
    """The value where nothing moves along some axes."""
    tensor = walk.resolved(tensor)
    for axis in axes:
        fields = walk.freeze_axis(tensor, axis, f"{node.called} reads it in a fixed order")
        tensor = replace(tensor, fields=fields)
    return tensor


def global_pool(walk: Walk, node: Node) -> list[Tensor]:
    """Global pooling: blind to the order of the pixels."""
    tensor = node.input(0)
    if tensor is None or tensor.shape is None or tensor.rank < 2:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    pixels = range(1, tensor.rank - 1) if _channels_last(node) else range(2, tensor.rank)
    return [reduced(walk, tensor, pixels, True)]


def resize(walk: Walk, node: Node) -> list[Tensor]:
    """Resize, Upsample: axes that keep their size keep their channels, unless it takes a part of the image."""
    tensor, shape = node.input(0), node.shape()
    if tensor is None or tensor.shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    if shape is not None and len(shape) != tensor.rank:
        return walk.blocked(node, f"the shapes at {node.called} do not fit together")
    held = node.attributes.integers("axes")
    axes = range(tensor.rank) if held is None else [axis % tensor.rank for axis in held]
    crops = node.attributes.text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    same = [axis for axis, size in enumerate(tensor.shape) if shape is not None and size and shape[axis] == size]
    changed = [axis for axis in axes if crops or axis not in same]
    tensor = standing_along(walk, node, tensor, changed)
    sizes = tuple(None if axis in changed else size for axis, size in enumerate(tensor.shape or ()))
    return [Tensor(shape or sizes, tensor.fields)]


def sampled(walk: Walk, node: Node) -> list[Tensor]:
    """GridSample, RoiAlign, MaxRoiPool: where they read stands in other inputs, in a fixed order."""
    tensor = node.input(0)
    if tensor is None or tensor.shape is None or tensor.rank < 3:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    for other in node.inputs[1:]:
        if other is not None:
            walk.freeze(other, f"{node.called} reads it in a fixed order")
    axes = [axis for axis in range(tensor.rank) if axis != 1]
    tensor = standing_along(walk, node, tensor, axes)
    sizes = tuple(size if axis == 1 else None for axis, size in enumerate(tensor.shape or ()))
    return [Tensor(node.shape() or sizes, tensor.fields)]


# -- Pixels that become channels, and channels that become pixels.


def depth_to_space(walk: Walk, node: Node) -> list[Tensor]:
    """DepthToSpace: the channels that become the pixels of one block move together."""
    tensor, block = node.input(0), node.attributes.integer("blocksize")
    labels = _channels(walk, node, tensor)
    if tensor is None or tensor.rank != 4 or (labels is not None and len(labels) % (block * block)):
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    if labels is not None:
        crd = node.attributes.text("mode", "DCR") == "CRD"
        every = np.arange(len(labels))
        places = every.reshape(-1, block * block) if crd else every.reshape(block * block, -1).T
        walk.labels.keep_copies(labels, places)
        walk.labels.unite(labels[places], labels[places[:, :1]])
        labels = labels[places[:, 0]]
    n, c, h, w = tensor.shape or (None,) * 4
    inner = None if c is None else c // (block * block)
    return [_of_channels(node.shape() or (n, inner, *(_times(size, block) for size in (h, w))), labels)]


def space_to_depth(walk: Walk, node: Node) -> list[Tensor]:
    """SpaceToDepth: the pixels of a block of one channel move together."""
    tensor, block = node.input(0), node.attributes.integer("blocksize")
    labels = _channels(walk, node, tensor)
    if tensor is None or tensor.rank != 4:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    n, c, h, w = tensor.shape or (None,) * 4
    shape = (n, _times(c, block * block), *(None if size is None else size // block for size in (h, w)))
    return [_of_channels(node.shape() or shape, None if labels is None else np.tile(labels, block * block))]


def col2im(walk: Walk, node: Node) -> list[Tensor]:
    """Col2Im: (N, C * pixels of a block, blocks) to (N, C, ...); the pixels of a block move together."""
    tensor, block = node.input(0), node.numbers(2)
    if tensor is None or tensor.rank != 3 or block is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    labels = _channels(walk, node, tensor)
    if labels is not None:
        blocks = labels.reshape(-1, int(np.prod(block, dtype=np.int64)))
        walk.labels.unite(blocks, blocks[:, :1])
        labels = blocks[:, 0]
    return [_of_channels(node.shape() or (None,) * (2 + len(block)), labels)]


def _channels(walk: Walk, node: Node, tensor: Tensor | None) -> Array | None:
    """The labels along axis 1, where nothing moves along the others."""
    if tensor is None or tensor.rank < 3:
        return None
    tensor = standing_along(walk, node, tensor, [axis for axis in range(tensor.rank) if axis != 1])
    own = tensor.field_on(1)
    return None if own is None else own.labels


def _of_channels(shape: Sizes, labels: Array | None) -> Tensor:
    return Tensor(shape, (Field((1,), labels),) if labels is not None and len(labels) > 1 else ())


def _times(size: int | None, factor: int) -> int | None:
    return None if size is None else size * factor


RULES: dict[tuple[str, str], Rule] = {
    **{("", name): pool for name in ("MaxPool", "AveragePool", "LpPool")},
    **{("", name): global_pool for name in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")},
    **{(MICROSOFT, name): pool for name in ("QLinearAveragePool", "NhwcMaxPool")},
    (MICROSOFT, "QLinearGlobalAveragePool"): global_pool,
    ("", "Resize"): resize,
    ("", "Upsample"): resize,
    **{("", name): sampled for name in ("GridSample", "RoiAlign", "MaxRoiPool")},
    (MICROSOFT, "GridSample"): sampled,
    ("", "DepthToSpace"): depth_to_space,
    ("", "SpaceToDepth"): space_to_depth,
    ("", "Col2Im"): col2im,
}

__all__ = ["RULES", "by_pixels", "standing_along"]
