"""LSTM, GRU, RNN: a hidden unit is a channel of its direction, in every gate and in every state.

The algebra, with labels over (direction, unit):

    rows of W and R, biases, peepholes      the units, once for each gate
    columns of R                            the units: a closed set in each direction
    columns of W                            what X carries: the same in all directions, a closed set
    initial and last states, Y              the units
"""

from __future__ import annotations

from dataclasses import replace

from onnxsparse.channel_classes.tensors import Axes, Field, Tensor, View
from onnxsparse.channel_classes.walk import Node, Rule, Walk
from onnxsparse.math.values import Array


def recurrent(walk: Walk, node: Node) -> list[Tensor]:
    """LSTM, GRU, RNN: W is (directions, gates x units, inputs), R (directions, gates x units, units)."""
    return _cell(walk, node, 1, 2, [*node.inputs[3:4], *node.inputs[7:8]])


def quantized(walk: Walk, node: Node) -> list[Tensor]:
    """DynamicQuantizeLSTM: W and R are turned; scales and zero points are of a direction, or of each row of a gate."""
    scales = [one for one in node.inputs[8:12] if one is not None and one.rank > 1]
    return _cell(walk, node, 2, 1, [*node.inputs[3:4], *node.inputs[7:8], *scales])


def _cell(walk: Walk, node: Node, rows: int, columns: int, lists: list[Tensor | None]) -> list[Tensor]:
    """`rows`, `columns`: the axes of W and R; `lists`: numbers of the units, (directions, some times units)."""
    x, w, r = node.input(0), node.input(1), node.input(2)
    whole = [one for one in (w, r, *lists) if one is not None]
    if x is None or w is None or r is None or x.rank != 3 or any(None in (one.shape or (None,)) for one in whole):
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    _read(walk, node, x, w, columns)
    ways, size = (r.shape or ())[0] or 0, (r.shape or ())[columns] or 0
    units = walk.labels.fresh([ways, size])
    walk.labels.close(units, (0,))
    for tensor, axes in [(r, (0, columns)), (w, (0, rows)), (r, (0, rows)), *[(one, (0, 1)) for one in lists]]:
        _unite(walk, node, units, tensor, axes)
    side = 1 if node.attributes.integer("layout", 0) else 0
    for state in node.inputs[5:7]:
        if state is not None:
            walk.freeze_axis(state, 1 - side, f"{node.called} reads it in a fixed order")
        _unite(walk, node, units, state, (side, 2))
    lengths = node.input(4)
    if lengths is not None:
        walk.freeze(lengths, f"{node.called} counts with it")
    batch = x.size(1 - side)
    state_shape = (ways, batch, size) if not side else (batch, ways, size)
    sequence = (x.size(0), ways, batch, size) if not side else (*(x.shape or ())[:2], ways, size)
    made = [_carrying(units, sequence, (1 + side, 3))]
    return made + [_carrying(units, state_shape, (side, 2))] * (len(node.shapes) - 1)


def _read(walk: Walk, node: Node, x: Tensor, w: Tensor, columns: int) -> None:
    """What X carries meets the columns of W, the same in each direction."""
    for axis in (0, 1):
        walk.freeze_axis(x, axis, f"{node.called} reads it in a fixed order")
    carried, own = walk.along(x, (2,)), walk.along(w, (columns,))
    if own is not None and (carried is not None or x.uniform):
        walk.labels.close(own)
    if own is not None and carried is not None:
        walk.labels.unite(carried, own)
        return
    for labels in (carried, None if x.uniform else own):
        if labels is not None:
            walk.labels.freeze(labels, f"its channels meet others that stay where they are at {node.called}")


def _unite(walk: Walk, node: Node, units: Array, tensor: Tensor | None, axes: Axes) -> None:
    """The units with the numbers of each gate in W, R, a bias or a state; `axes` are direction and unit there."""
    if tensor is None or tensor.uniform or axes[-1] in tensor.flat:
        return
    ways, size = units.shape
    labels = walk.along(tensor, axes if ways > 1 else axes[1:])
    if labels is None or labels.size % units.size:
        walk.freeze(tensor, f"its shape does not fit {node.called}")
        walk.labels.freeze(units, f"its channels meet others that stay where they are at {node.called}")
        return
    walk.labels.unite(labels.reshape(ways, -1, size), units[:, None])


def _carrying(units: Array, shape: tuple[int | None, ...], axes: Axes) -> Tensor:
    """Y or a state. Fields have no axes of one element."""
    ways, size = units.shape
    if size == 1:
        return Tensor(shape)
    return Tensor(shape, (Field(axes, units) if ways > 1 else Field(axes[1:], units[0]),))


def causal(walk: Walk, node: Node) -> list[Tensor]:
    """CausalConvWithState: each channel by itself, with its own filter, and its own last steps as a state."""
    x, weight, bias, state = (node.input(at) for at in range(4))
    if x is None or weight is None or x.rank != 3 or weight.rank != 3:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    parts = [_by_channel(walk, node, x, 1), _by_channel(walk, node, weight, 0)]
    parts += [_by_channel(walk, node, one, at) for one, at in ((bias, 0), (state, 1)) if one is not None]
    fields = walk.elementwise(node, parts, (1, x.size(1), 1)).fields
    return [Tensor(node.shape() or x.shape, fields), *[Tensor(shape, fields) for shape in node.shapes[1:]]]


def _by_channel(walk: Walk, node: Node, tensor: Tensor, axis: int) -> Tensor:
    """A value with only its channels: along the other axes it stays."""
    tensor = walk.resolved(tensor) if axis else tensor
    for other in range(tensor.rank):
        if other != axis:
            fields = walk.freeze_axis(tensor, other, f"{node.called} reads it in a fixed order")
            tensor = replace(tensor, fields=fields)
    views = tuple(View(one.tag, (None, one.axes[axis], None)) for one in tensor.views)
    return Tensor((1, tensor.size(axis), 1), tuple(one.moved({axis: 1}) for one in tensor.fields), views,
                  uniform=tensor.uniform)  # fmt: skip


RULES: dict[tuple[str, str], Rule] = {
    **{("", name): recurrent for name in ("LSTM", "GRU", "RNN")},
    ("", "CausalConvWithState"): causal,
    ("com.microsoft", "DynamicQuantizeLSTM"): quantized,
}

__all__ = ["RULES"]
