"""Operators that move numbers without changing them, in every form that an opset or an exporter gives them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cases import for_each
from tests.channels.net import Net
from tests.channels.permuting import held


def start(net: Net, *shape: int, dims: list[str | int] | None = None) -> str:
    """Activations whose last axis has channels that may move."""
    lead = shape[:-1] or (2, 5)
    net.input("x", *lead, 8, dims=dims)
    return net.relu(net.linear("x", "first", 8, shape[-1]))


def image(net: Net, width: int = 16, dims: list[str | int] | None = None) -> str:
    net.input("x", 2, 8, 4, 6, dims=dims)
    return net.relu(net.conv("x", "first", 8, width))


MOVES = {"move": "first first_b last:0", "stay": "last:1 first:0"}
IMAGES = {"move": "first:0 first_b last:1", "stay": "last:0 first:1"}


# -- Reshape and its kin.


@for_each(
    "shape", [(2, 5, 4, 4), (10, 16), (0, 0, 16), (0, -1, 16), (-1, 16), (2, 5, 16, 1), (1, 2, 5, 16), (5, 2, 2, 8)]
)
def test_reshape_and_back(shape: tuple[int, ...]) -> None:
    net = Net()
    h = net("Sigmoid", net.reshape(start(net, 2, 5, 16), *shape))
    held(net, net.linear(net.reshape(h, 2, 5, 16), "last", 16, 6), **MOVES)


def test_reshape_that_keeps_an_empty_axis() -> None:
    """With allowzero a 0 is a size of 0, not the size from before."""
    net = Net()
    h = start(net, 2, 5, 16)
    none = net.slice(h, 0, 0, axis=1)
    none = net("Reshape", none, net.ints(2, 16, 0), allowzero=1)
    some = net("ReduceSum", net("Concat", none, net.transpose(h, 0, 2, 1), axis=2), net.ints(2), keepdims=0)
    held(net, net.linear(some, "last", 16, 6), stay="last:1")


def test_reshape_that_mixes_channels_with_tokens() -> None:
    net = Net()
    h = net.reshape(start(net, 2, 5, 16), 2, 16, 5)
    held(net, net.linear(h, "last", 5, 6), stay="first:1 last")


@for_each("axis", [0, 1, 2, 3, -1, -2])
def test_flatten(axis: int) -> None:
    """Copies of a channel move with it: each row of the result has all of them, or a part."""
    net = Net()
    h = net("Flatten", image(net), axis=axis)
    width = {0: 2 * 16 * 24, 1: 16 * 24, 2: 24, 3: 6, -1: 6, -2: 24}[axis]
    h = net("Reshape", net.linear(h, "tail", width, width), net.ints(2, 16, 4, 6))
    move = "first:0 tail:0" if axis in (0, 1) else "first:0"
    held(net, net.conv(h, "last", 16, 6), move=move, stay="last:0")


@for_each("opset", [11, 17])
def test_squeeze_and_unsqueeze(opset: int) -> None:
    net = Net(opset=opset)
    h = start(net, 2, 5, 16)
    if opset == 11:
        h = net("Squeeze", net("Unsqueeze", h, axes=[0, 4]), axes=[-1])
    else:
        h = net("Squeeze", net("Unsqueeze", h, net.ints(0, -1)), net.ints(-1))
    held(net, net.linear(net("Squeeze", net("Relu", h)), "last", 16, 6), **MOVES)


@for_each("known", [False, True])
def test_heads_of_any_batch_and_length(known: bool) -> None:
    """Sizes that are not known before it runs; with names or without."""
    net = Net()
    h = start(net, 2, 5, 16, dims=["N", "T", 8] if known else [None, None, 8])  # type: ignore[list-item]
    h = net.transpose(net.reshape(h, 0, 0, 4, 4), 0, 2, 1, 3)
    h = net.reshape(net.transpose(net("Sigmoid", h), 0, 2, 1, 3), 0, 0, 16)
    held(net, net.linear(h, "last", 16, 6), **MOVES)


@for_each("known", [False, True])
def test_pixels_of_any_number(known: bool) -> None:
    net = Net()
    h = image(net, dims=["N", 8, "H", "W"] if known else [None, 8, None, None])  # type: ignore[list-item]
    h = net.transpose(net.reshape(h, 0, 0, -1), 0, 2, 1)
    held(net, net.linear(net("Sigmoid", h), "last", 16, 6), move="first:0 last:0", stay="last:1")


def test_batches_that_become_channels() -> None:
    """(N, 8) to (-1, 16): an unknown size on each side need not be the same."""
    net = Net()
    h = start(net, 4, 8, dims=["N", 8])
    held(net, net.linear(net.reshape(h, -1, 16), "last", 16, 6), stay="last first")


def test_two_unknown_sizes_that_change_places() -> None:
    """(N, 16, W) read as (W, 16, N): the channels of one are not those of the other."""
    net = Net()
    h = net.transpose(start(net, 4, 6, 16, dims=["N", "W", 8]), 0, 2, 1)
    shape = net("Shape", h)
    turned = net("Concat", net("Gather", shape, net.ints(2)), net.ints(16), net("Gather", shape, net.ints(0)), axis=0)
    h = net("ReduceMax", net("Reshape", h, turned), axes=[2], keepdims=0)
    held(net, net.linear(h, "last", 16, 6), stay="last:1 last:0")


def test_transpose_without_an_order() -> None:
    net = Net()
    h = net("Transpose", net("Relu", net("Transpose", start(net, 2, 5, 16))))
    held(net, net.linear(h, "last", 16, 6), **MOVES)


# -- Some of the numbers, or more of them.


@for_each(("start_", "end", "step"), [(0, 8, 1), (-8, 99, 1), (15, -17, -1), (1, 16, 2), (-1, -9, -1), (3, 4, 1)])
def test_slice(start_: int, end: int, step: int) -> None:
    net = Net()
    h = net.slice(start(net, 2, 5, 16), start_, end, axis=-1, step=step)
    width = len(range(16)[slice(start_, None if step < 0 and end < -16 else end, step)])
    moves = "first:1 last:0" if width > 1 else "first:1"
    held(net, net.linear(h, "last", width, 6), move=moves, stay="last:1")


def test_slices_by_attributes() -> None:
    net = Net(opset=9)
    h = net("Slice", start(net, 2, 5, 16), starts=[0, 1], ends=[2, 99])
    h = net("Slice", h, starts=[-8], ends=[99], axes=[2])
    held(net, net.linear(h, "last", 8, 6), **MOVES)


def test_slice_of_tokens_by_unknown_bounds() -> None:
    net = Net()
    h = start(net, 2, 5, 16)
    end = net("Cast", net("ReduceMax", net.feed("n", np.array([3.0], np.float32)), keepdims=1), to=7)
    h = net("Slice", h, net.ints(0), end, net.ints(1))
    held(net, net.linear(h, "last", 16, 6), **MOVES)


def test_slice_of_channels_by_unknown_bounds() -> None:
    net = Net()
    h = start(net, 2, 5, 16)
    end = net("Cast", net.feed("n", np.array([16.0], np.float32)), to=7)
    h = net("Reshape", net("Slice", h, net.ints(0), end, net.ints(2)), net.ints(2, 5, 16))
    held(net, net.linear(h, "last", 16, 6), stay="first:1 last")


def test_slice_along_unknown_axes() -> None:
    net = Net()
    axis = net("Cast", net.feed("n", np.array([1.0], np.float32)), to=7)
    h = net("Slice", start(net, 2, 5, 16), net.ints(0), net.ints(3), axis)
    held(net, net.linear(net("Reshape", h, net.ints(2, 3, 16)), "last", 16, 6), stay="first:1 last")


def test_parts_that_are_treated_differently() -> None:
    """One half is squared before they meet again: channels stay in their half."""
    net = Net()
    left, right = net.split(start(net, 2, 5, 16), 6, 10, axis=-1)
    held(net, net.linear(net.concat(net("Mul", left, left), right, axis=-1), "last", 16, 6), **MOVES)


def test_a_channel_alone_stays() -> None:
    net = Net()
    h = start(net, 2, 5, 4)
    h = net.concat(net("Exp", net.slice(h, 2, 3, axis=2)), net.slice(h, 0, 2, axis=2), axis=2)
    held(net, net.linear(h, "last", 3, 6), move="first:1 last:0", stay="last:1")


@for_each("equal", [False, True])
def test_split_by_count(equal: bool) -> None:
    """The last part is smaller where the number of parts is given."""
    net = Net(opset=18)
    width = 16 if equal else 15
    one, other = net.many("Split", 2, start(net, 2, 5, width), axis=-1, num_outputs=2)
    h = net.concat(net("Exp", one), other, axis=2)
    held(net, net.linear(h, "last", width, 6), **MOVES)


def test_split_of_tokens_by_unknown_sizes() -> None:
    net = Net()
    sizes = net("Cast", net.feed("n", np.array([3.0, 2.0], np.float32)), to=7)
    one, _ = net.many("Split", 2, start(net, 2, 5, 16), sizes, axis=1)
    held(net, net.linear(net("Reshape", one, net.ints(2, 3, 16)), "last", 16, 6), **MOVES)


def test_split_of_channels_by_unknown_sizes() -> None:
    net = Net()
    h = start(net, 2, 5, 16)
    sizes = net("Cast", net.feed("n", np.array([12.0, 4.0], np.float32)), to=7)
    one, _ = net.many("Split", 2, h, sizes, axis=2)
    held(net, net("ReduceMax", one), stay="first:1")


def test_gather_of_channels_found_when_it_runs() -> None:
    net = Net()
    h = start(net, 2, 5, 16)
    held(net, net("ReduceMax", net("Gather", h, net.feed("n", np.array([3, 7])), axis=2)), stay="first:1")


def test_a_gathered_copy_meets_its_channel() -> None:
    """The first of one tensor and the second of another are added up, and both are one channel elsewhere."""
    net = Net()
    one, other = start(net, 2, 5, 2), net.relu(net.linear("x", "second", 8, 2))
    both = net.concat(one, other, axis=2)
    picked = net("ReduceSum", net("Gather", both, net.ints(0, 3), axis=2), net.ints(2), keepdims=1)
    y = net.linear(net("Add", one, other), "last", 2, 6)
    held(net, y, picked, stay="first:1 second:1 last")


@for_each("places", [[[1, 0], [3, 2]], [[5, 4, 3, 2, 1, 0]], [-1, -2]])
def test_gather_by_stored_places(places: list[int]) -> None:
    net = Net()
    stored = net.store("places", np.array(places))
    h = net("Gather", start(net, 2, 5, 6), stored, axis=-1)
    size = np.size(places)
    h = net.reshape(net("Sigmoid", h), 2, 5, size)
    held(net, net.linear(h, "last", size, 6), move="first:1 last:0", stay="places last:1")


def test_gather_of_one_place() -> None:
    net = Net()
    h = net.reshape(start(net, 2, 5, 24), 2, 5, 3, 8)
    q, k, v = (net("Gather", h, net.store(f"at{at}", np.array(at)), axis=2) for at in range(3))
    held(net, net.linear(net("Add", net("Mul", q, k), v), "last", 8, 6), **MOVES)


def test_gather_of_places_found_when_it_runs() -> None:
    net = Net()
    h = net("Gather", start(net, 2, 5, 16), net.feed("n", np.array([[4, 0], [2, 2]])), axis=1)
    held(net, net.linear(h, "last", 16, 6), **MOVES)


def test_a_table_is_read_in_its_order() -> None:
    """Its rows stay, also where another layer multiplies with them and forgets their order."""
    net = Net()
    h = net("Gather", net.weight("table", 11, 8), net.tokens(5))
    y = net("ReduceMax", net("MatMul", net.relu(net.linear(h, "first", 8, 8)), net.transpose("table", 1, 0)), axes=[2])
    held(net, y, move="table:1 first:0", stay="table:0")


def test_concat_of_what_moves_and_what_stays() -> None:
    net = Net()
    h = start(net, 2, 5, 16)
    h = net.concat(net.store("zeros", np.zeros((2, 5, 3), np.float32)), h, "x", axis=2)
    held(net, net.linear(h, "last", 27, 6), **MOVES)


def test_concat_of_tokens() -> None:
    net = Net()
    h = net.concat(start(net, 2, 5, 16), net.weight("more", 2, 1, 16), axis=1)
    held(net, net.linear(h, "last", 16, 6), move="first:1 more:2 last:0", stay="more:0 last:1")


def test_concat_of_one() -> None:
    net = Net()
    held(net, net.linear(net("Concat", start(net, 2, 5, 16), axis=-1), "last", 16, 6), **MOVES)


@for_each("known", [False, True])
def test_expand(known: bool) -> None:
    net = Net()
    target = net.ints(3, 2, 5, 16) if known else net("Cast", net.feed("n", np.array([3.0, 2, 5, 16], np.float32)), to=7)
    held(net, net.linear(net("Expand", start(net, 2, 5, 16), target), "last", 16, 6), **MOVES)


def test_expand_to_the_shape_of_another() -> None:
    """As exporters write it: the target is chosen by Where from a shape and ConstantOfShape."""
    net = Net()
    ones = net("ConstantOfShape", net.ints(3), value=net_integers(1))
    target = net("Where", net("Equal", net.ints(-1, 5, 16), net("Mul", ones, net.ints(-1))), ones, net.ints(-1, 5, 16))
    held(net, net.linear(net("Expand", start(net, 2, 5, 16), target), "last", 16, 6), **MOVES)


def net_integers(value: int):  # type: ignore[no-untyped-def]
    from onnx import numpy_helper

    return numpy_helper.from_array(np.array([value]))


def test_channels_begin_at_a_stored_factor() -> None:
    net = Net()
    h = net("Sin", net("Mul", net.input("x", 2, 5, 1), net.weight("frequencies", 16)))
    held(net, net.linear(h, "last", 16, 6), move="frequencies last:0", stay="last:1")


@for_each("repeats", [(1, 1, 3), (2, 3, 1), (1, 2, 2)])
def test_tile(repeats: tuple[int, ...]) -> None:
    net = Net()
    h = net("Tile", start(net, 2, 5, 8), net.ints(*repeats))
    held(net, net.linear(h, "last", 8 * repeats[2], 6), move="first:1 last:0", stay="last:1")


@for_each(("mode", "pads"), [("constant", (2, 1)), ("edge", (1, 0)), ("reflect", (2, 2)), ("constant", (-3, 0)),
                             ("edge", (-2, 3))])  # fmt: skip
def test_pad_of_channels(mode: str, pads: tuple[int, int]) -> None:
    net = Net()
    h = net("Pad", start(net, 2, 5, 16), net.ints(0, 0, pads[0], 0, 0, pads[1]), net.number(0.5), mode=mode)
    held(net, net.linear(h, "last", 16 + sum(pads), 6), move="first:1 last:0", stay="last:1")


def test_pad_of_some_axes() -> None:
    net = Net(opset=18)
    h = net("Pad", start(net, 2, 5, 16), net.ints(1, 2), "", net.ints(1))
    held(net, net.linear(h, "last", 16, 6), **MOVES)


def test_pad_by_attributes() -> None:
    net = Net(opset=10)
    h = net("Pad", image(net), pads=[0, 0, 1, 1, 0, 0, 1, 1], value=0.0)
    held(net, net.conv(h, "last", 16, 6), **IMAGES)


def test_pad_by_unknown_amounts() -> None:
    net = Net()
    pads = net("Cast", net.feed("n", np.array([0, 0, 0, 0, 1, 0], np.float32)), to=7)
    h = net("Reshape", net("Pad", start(net, 2, 5, 16), pads), net.ints(2, 6, 16))
    held(net, net.linear(h, "last", 16, 6), stay="first:1 last")


def test_pad_of_microsoft() -> None:
    net = Net()
    h = net("Pad", start(net, 2, 5, 16), net.ints(0, 1, 0, 0, 1, 0), domain="com.microsoft")
    held(net, net.linear(h, "last", 16, 6), **MOVES)


# -- Where no number is, or one.


@for_each("axis", [0, 1])
def test_axes_without_elements(axis: int) -> None:
    net = Net()
    h = start(net, 2, 5, 16)
    h = net.concat(h, net.slice(h, 0, 0, axis=axis), axis=axis)
    held(net, net.linear(h, "last", 16, 6), **MOVES)


@pytest.mark.parametrize("width", [1, 2])
def test_narrow_values(width: int) -> None:
    net = Net()
    h = net.relu(net.linear(start(net, 2, 5, 16), "narrow", 16, width))
    move = "first:1 narrow:0" + (" narrow:1 last:0" if width > 1 else "")
    held(net, net.linear(h, "last", width, 6), move=move, stay="last:1")


def test_shapes_that_are_joined_stay() -> None:
    """Sizes in stored tensors are read in their order, whatever is made of them."""
    net = Net()
    sizes = net("Concat", net.store("lead", np.array([2, 5])), net.store("rest", np.array([4, 4])), axis=0)
    h = net("Reshape", start(net, 2, 5, 16), net("Add", sizes, net.store("more", np.array([0, 0, 0, 0]))))
    held(net, net.linear(net.reshape(net.relu(h), 2, 5, 16), "last", 16, 6), **MOVES)
