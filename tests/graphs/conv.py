"""Conv and ConvTranspose: one, two and three dimensions, groups, and the two kinds that stay dense unless allowed."""

from __future__ import annotations

import functools
from typing import Optional

from .case import Built, Use, add, case, expect, feed, node, simple, untied, weights

ConvCase = tuple[str, tuple[int, ...], int, Optional[str], Optional[str]]

# name, shape of the weight, groups, word for --allow, reason
CONVS: tuple[ConvCase, ...] = (
    ("conv_1d", (6, 8, 3), 1, None, None),
    ("conv_2d", (6, 8, 3, 3), 1, None, None),
    ("conv_3d", (4, 8, 2, 2, 2), 1, None, None),
    ("conv_pointwise", (8, 16, 1, 1), 1, None, None),
    ("conv_uneven_kernel", (6, 8, 1, 5), 1, None, None),
    ("conv_of_256", (8, 16, 3, 3), 1, None, None),
    ("conv_grouped_2", (8, 8, 3, 3), 2, None, None),
    ("conv_grouped_4_of_1d", (8, 4, 3), 4, None, None),
    ("conv_grouped_3d", (4, 4, 2, 2, 2), 2, None, None),
    ("conv_one_filter", (1, 8, 3, 3), 1, None, None),
    ("conv_ragged_by_1", (4, 5, 3, 3), 1, None, None),
    ("conv_ragged_by_2", (4, 6, 3, 3), 1, None, None),
    ("conv_ragged_by_3_grouped", (4, 7, 3), 2, None, None),
    ("conv_stem", (8, 3, 3, 3), 1, "stem", None),
    ("conv_stem_of_one", (8, 1, 3, 3), 1, "stem", None),
    ("conv_depthwise", (8, 1, 3, 3), 8, "depthwise", None),
    ("conv_depthwise_multiplier", (16, 1, 3, 3), 8, "depthwise", None),
    ("conv_depthwise_1d", (8, 1, 5), 8, "depthwise", None),
)

TRANSPOSED: tuple[ConvCase, ...] = (
    ("convtranspose_1d", (8, 6, 3), 1, None, None),
    ("convtranspose_2d", (8, 6, 3, 3), 1, None, None),
    ("convtranspose_3d", (8, 4, 2, 2, 2), 1, None, None),
    ("convtranspose_grouped", (8, 3, 2, 2), 2, None, None),
    ("convtranspose_grouped_4", (16, 2, 3), 4, None, None),
    ("convtranspose_ragged", (6, 4, 2, 2), 1, None, None),
    ("convtranspose_ragged_per_group", (12, 4, 2, 2), 2, None, None),
    ("convtranspose_depthwise", (8, 1, 2, 2), 8, "depthwise", None),
)


def _conv(entry: ConvCase) -> Built:
    _, shape, groups, word, reason = entry
    w, b = weights(*shape), weights(shape[0], seed=5)
    x = feed(2, shape[1] * groups, *([6] * (len(shape) - 2)))
    use = Use("Conv", (1,), (0,), tuple(range(2, len(shape))), out_splits=groups)
    conv = node("Conv", "x w b", "y", group=groups)
    return simple(
        [conv], {"x": x}, [("y", len(shape))], {"w": w, "b": b}, [expect("w", w, use, word=word, reason=reason)]
    )


def _transposed(entry: ConvCase) -> Built:
    _, shape, groups, word, reason = entry
    w = weights(*shape)
    x = feed(2, shape[0], *([4] * (len(shape) - 2)))
    use = Use("ConvTranspose", (0,), (1,), tuple(range(2, len(shape))), splits=groups)
    conv = node("ConvTranspose", "x w", "y", group=groups)
    return simple([conv], {"x": x}, [("y", len(shape))], {"w": w}, [expect("w", w, use, word=word, reason=reason)])


for _entry in CONVS:
    add(_entry[0], "conv", functools.partial(_conv, _entry))
for _entry in TRANSPOSED:
    add(_entry[0], "conv", functools.partial(_transposed, _entry))


@case
def conv_hwio_through_transpose() -> Built:
    """The layout of tf2onnx: (kh, kw, in, out)."""
    w = weights(3, 3, 8, 6)
    nodes = [node("Transpose", "w", "t", perm=[3, 2, 0, 1]), node("Conv", "x t", "y")]
    use = Use("Conv", (2,), (3,), (0, 1))
    return simple(nodes, {"x": feed(2, 8, 6, 6)}, [("y", 4)], {"w": w}, [expect("w", w, use)])


@case
def conv_weight_from_two_dimensions() -> Built:
    """A Linear weight used as a pointwise Conv, through Unsqueeze."""
    w, axes = weights(6, 16), untied(2).astype("int64") * 0 + [2, 3]
    nodes = [node("Unsqueeze", "w axes", "u"), node("Conv", "x u", "y")]
    use = Use("Conv", (1,), (0,))
    return simple(nodes, {"x": feed(2, 16, 4, 4)}, [("y", 4)], {"w": w, "axes": axes}, [expect("w", w, use)])


@case
def conv_shared_by_two_branches() -> Built:
    w = weights(8, 8, 3, 3)
    nodes = [node("Conv", "x w", "a", pads=[1, 1, 1, 1]), node("Conv", "a w", "y", dilations=[2, 2])]
    use = Use("Conv", (1,), (0,), (2, 3))
    return simple(nodes, {"x": feed(1, 8, 8, 8)}, [("y", 4)], {"w": w}, [expect("w", w, use, use)])


@case
def conv_and_its_transpose_share() -> Built:
    """Tied auto-encoder: Conv sums over axis 1, ConvTranspose over axis 0."""
    w = weights(8, 8, 3, 3)
    nodes = [node("Conv", "x w", "a"), node("ConvTranspose", "a w", "y")]
    uses = (Use("Conv", (1,), (0,), (2, 3)), Use("ConvTranspose", (0,), (1,), (2, 3)))
    wanted = expect("w", w, *uses, reason="two axes")
    return simple(nodes, {"x": feed(1, 8, 6, 6)}, [("y", 4)], {"w": w}, [wanted])


@case
def conv_shared_with_other_groups() -> Built:
    """The same axis in both, whatever the groups."""
    w = weights(8, 4, 3, 3)
    nodes = [node("Conv", "x w", "a", group=2), node("Conv", "z w", "b")]
    taps = (2, 3)
    uses = (Use("Conv", (1,), (0,), taps, out_splits=2), Use("Conv", (1,), (0,), taps))
    feeds = {"x": feed(1, 8, 6, 6), "z": feed(1, 4, 6, 6)}
    return simple(nodes, feeds, [("a", 4), ("b", 4)], {"w": w}, [expect("w", w, *uses)])
