"""Operators on images, and those that choose or write by indices."""

from __future__ import annotations

import numpy as np

from tests.cases import for_each
from tests.channels.net import Net, generator
from tests.channels.permuting import held, held_by_reference

MICROSOFT = "com.microsoft"


def start(net: Net, *lead: int, width: int = 16, name: str = "first") -> str:
    source = "x" if net.inputs else net.input("x", *(lead or (2, 5)), 8)
    return net("Sigmoid", net.linear(source, name, 8, width))


def image(net: Net, width: int = 16, name: str = "first") -> str:
    return net.relu(net.conv("x" if net.inputs else net.image(8), name, 8, width))


TOKENS = {"move": "first:1 last:0", "stay": "last:1 first:0"}
IMAGES = {"move": "first:0 last:1", "stay": "last:0 first:1"}
STANDING = {"stay": "first last"}


# -- Pooling and resizing.


@for_each(("op", "more"), [("MaxPool", {"kernel_shape": [2, 2]}), ("AveragePool", {"kernel_shape": [3, 3]}),
                           ("LpPool", {"kernel_shape": [2, 2], "p": 2}), ("GlobalAveragePool", {}),
                           ("GlobalMaxPool", {}), ("GlobalLpPool", {"p": 2})])  # fmt: skip
def test_pools(op: str, more: dict[str, list[int]]) -> None:
    net = Net()
    held(net, net.conv(net(op, image(net), **more), "last", 16, 6), **IMAGES)


def test_the_indices_of_a_pool_count_over_channels() -> None:
    net = Net()
    h, indices = net.many("MaxPool", 2, image(net), kernel_shape=[2, 2], strides=[2, 2])
    held(net, net.conv(net("MaxUnpool", h, indices, kernel_shape=[2, 2], strides=[2, 2]), "last", 16, 6), **STANDING)


def test_a_pool_with_channels_last() -> None:
    net = Net()
    point = net.store("point", np.array(3, np.uint8))
    h = net("QuantizeLinear", net.transpose(image(net), 0, 2, 3, 1), net.number(0.1), point)
    h = net("DequantizeLinear", net("NhwcMaxPool", h, domain=MICROSOFT, kernel_shape=[2, 2]), net.number(0.1), point)
    held(net, net.linear(h, "last", 16, 6), move="first:0 last:0", stay="last:1")


@for_each("by", ["scales", "sizes"])
@for_each("mode", ["nearest", "linear"])
def test_resize(by: str, mode: str) -> None:
    net = Net()
    scales = net.store("scales", np.array([1, 1, 2, 1.5], np.float32))
    inputs = ["", scales] if by == "scales" else ["", "", net.ints(2, 16, 12, 9)]
    held(net, net.conv(net("Resize", image(net), *inputs, mode=mode), "last", 16, 6), **IMAGES)


def test_resize_of_some_axes() -> None:
    net = Net(opset=18)
    h = net("Resize", image(net), "", "", net.ints(12, 9), axes=[2, 3])
    held(net, net.conv(h, "last", 16, 6), **IMAGES)


def test_resize_of_channels() -> None:
    """They are mixed with their neighbours."""
    net = Net()
    scales = net.store("scales", np.array([1, 2, 1, 1], np.float32))
    h = net("Resize", image(net), "", scales, mode="nearest")
    held(net, net.conv(h, "last", 32, 6), **STANDING)


def test_resize_with_a_crop() -> None:
    net = Net()
    roi = net.store("roi", np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32))
    sizes = net.ints(2, 16, 6, 6)
    h = net("Resize", image(net), roi, "", sizes, coordinate_transformation_mode="tf_crop_and_resize", mode="linear")
    held(net, net.conv(h, "last", 16, 6), **STANDING)


def test_upsample() -> None:
    net = Net(opset=9)
    scales = net.store("scales", np.array([1, 1, 2, 2], np.float32))
    held(net, net.conv(net("Upsample", image(net), scales, mode="nearest"), "last", 16, 6), **IMAGES)


@for_each("domain", ["", MICROSOFT])
def test_grid_sample(domain: str) -> None:
    net = Net()
    h = image(net)
    grid = net.feed("grid", generator("grid").uniform(-1, 1, (2, 3, 4, 2)).astype(np.float32))
    held(net, net.conv(net("GridSample", h, grid, domain=domain), "last", 16, 6), **IMAGES)


def test_regions() -> None:
    net = Net()
    h = image(net)
    boxes = net.feed("boxes", np.array([[0, 0, 4, 4], [1, 1, 5, 5], [0, 2, 3, 5]], np.float32))
    batch = net.store("batch", np.array([0, 1, 1]))
    h = net("RoiAlign", h, boxes, batch, output_height=3, output_width=3)
    held(net, net.conv(h, "last", 16, 6), **IMAGES)


def test_the_maximum_of_regions() -> None:
    net = Net()
    h = image(net)
    boxes = net.feed("boxes", np.array([[0, 0, 0, 4, 4], [1, 1, 1, 5, 5]], np.float32))
    held(net, net.conv(net("MaxRoiPool", h, boxes, pooled_shape=[3, 3]), "last", 16, 6), **IMAGES)


@for_each("op", ["MaxPool", "Conv", "GridSample", "MaxRoiPool", "DepthToSpace", "SpaceToDepth", "Col2Im"])
def test_channels_in_the_place_of_pixels_stay(op: str) -> None:
    """What reads its pixels in their order does so where they are channels elsewhere."""
    net = Net(opset=18)
    h = start(net, 2, 8)
    images = net.reshape(h, 2, 8, 2, 8)
    if op == "MaxPool":
        made = net(op, h, kernel_shape=[2])
    elif op == "Conv":
        made = net(op, h, net.weight("w", 3, 8, 2))
    elif op == "Col2Im":
        made = net(op, h, net.ints(5, 5), net.ints(2, 2))  # 16 blocks, as many as there are columns
    elif op in ("DepthToSpace", "SpaceToDepth"):
        made = net(op, images, blocksize=2)
    elif op == "GridSample":
        made = net(op, images, net.store("grid", generator("grid").uniform(-1, 1, (2, 3, 4, 2)).astype(np.float32)))
    else:
        made = net(op, images, net.store("boxes", np.float32([[0, 2, 0, 7, 1]])), pooled_shape=[1, 4])
    held(net, made, stay="first:1")


def test_a_grid_that_is_made_of_channels_stays() -> None:
    net = Net()
    h = net("Unsqueeze", start(net), net.ints(3))
    made = net("GridSample", net.weight("image", 2, 3, 6, 6), net.concat(h, h, axis=3))
    held(net, made, stay="first:1")


# -- Pixels and channels.


@for_each("mode", ["DCR", "CRD"])
@for_each("known", [False, True])
def test_depth_to_space(mode: str, known: bool) -> None:
    net = Net()
    net.input("x", 2, 8, 6, 6, dims=None if known else ["N", 8, "H", "W"])
    h = net("DepthToSpace", image(net, 32), blocksize=2, mode=mode)
    held(net, net.conv(h, "last", 8, 6), **IMAGES)


def test_space_to_depth() -> None:
    net = Net()
    h = net("SpaceToDepth", image(net, 4), blocksize=2)
    held(net, net.conv(h, "last", 16, 6), **IMAGES)


def test_there_and_back() -> None:
    net = Net()
    h = net("SpaceToDepth", image(net, 4), blocksize=2)
    h = net("DepthToSpace", net.relu(net.conv(h, "middle", 16, 16)), blocksize=2, mode="CRD")
    held(net, net.conv(h, "last", 4, 6), move="first:0 middle:0 middle:1 last:1", stay="last:0")


def test_images_from_columns() -> None:
    net = Net(opset=18)
    h = net.transpose(start(net, 2, 9, width=32), 0, 2, 1)
    h = net("Col2Im", h, net.ints(4, 4), net.ints(2, 2))
    held(net, net.conv(h, "last", 8, 6), move="first:1 last:1", stay="last:0")


# -- Indices.


@for_each("stored", [False, True])
def test_gather_elements(stored: bool) -> None:
    """Along the tokens; indices that are stored for each channel move with it."""
    net = Net()
    h = start(net)
    places = generator("places").integers(0, 5, (2, 3, 16))
    h = net("GatherElements", h, net.store("places", places) if stored else net.feed("places", places), axis=1)
    moves = {"move": "first:1 places:2 last:0", "stay": "places:0 places:1"}
    held(net, net.linear(h, "last", 16, 6), **(moves if stored else STANDING))


def test_gather_elements_with_one_index_for_all_channels() -> None:
    net = Net()
    h = start(net)
    places = net("Expand", net.feed("places", generator("places").integers(0, 5, (2, 3, 1))), net.ints(2, 3, 16))
    held(net, net.linear(net("GatherElements", h, places, axis=1), "last", 16, 6), **TOKENS)


def test_gather_elements_of_channels() -> None:
    net = Net()
    h = start(net)
    places = net.store("places", generator("places").integers(0, 16, (2, 5, 16)))
    held(net, net.linear(net("GatherElements", h, places, axis=-1), "last", 16, 6), **STANDING)


@for_each("batch", [0, 1])
def test_gather_nd(batch: int) -> None:
    net = Net()
    h = start(net)
    places = np.array([[[0], [4]], [[1], [2]]]) if batch else np.array([[0, 1], [1, 4], [0, 0]])
    h = net("GatherND", h, net.feed("places", places), batch_dims=batch)
    held(net, net.linear(h, "last", 16, 6), **TOKENS)


def test_gather_nd_of_channels() -> None:
    net = Net()
    h = net("GatherND", start(net), net.store("places", np.array([[0, 1, 3], [1, 4, 15], [0, 0, 2]])))
    held(net, net.linear(h, "last", 3, 6), **STANDING)


def test_gather_nd_of_a_table() -> None:
    net = Net()
    h = net("GatherND", net.weight("table", 11, 16), net("Unsqueeze", net.tokens(5), net.ints(2)))
    held(net, net.linear(h, "last", 16, 6), move="table:1 last:0", stay="table:0")


def test_scatter_nd() -> None:
    net = Net()
    h = start(net)
    h = net("ScatterND", h, net.feed("places", np.array([[0, 1], [1, 4]])), net.weight("new", 2, 16))
    held(net, net.linear(h, "last", 16, 6), move="first:1 new:1 last:0", stay="new:0 last:1")


def test_scatter_nd_of_channels() -> None:
    net = Net()
    h = start(net)
    places = np.array([[[0, 1, 2]], [[1, 4, 9]]])
    h = net("ScatterND", h, net.store("places", places), net.weight("new", 2, 1))
    held(net, net.linear(h, "last", 16, 6), **STANDING)


@for_each(("op", "opset"), [("ScatterElements", 17), ("Scatter", 9)])
def test_scatter_elements(op: str, opset: int) -> None:
    net = Net(opset=opset)
    h = start(net)
    places = net.store("places", generator("places").permuted(np.tile(np.arange(5), (2, 16, 1)), axis=2)[..., :2]
                       .transpose(0, 2, 1).copy())  # fmt: skip
    h = net(op, h, places, net.weight("new", 2, 2, 16), axis=1)
    held(net, net.linear(h, "last", 16, 6), move="first:1 places:2 new:2 last:0", stay="new:0 new:1 last:1")


def test_scatter_elements_of_some_channels() -> None:
    """Only the first channels are written to."""
    net = Net()
    h = start(net)
    places = net.store("places", np.zeros((2, 1, 5), np.int64))
    h = net("ScatterElements", h, places, net.weight("new", 2, 1, 5), axis=1)
    held(net, net.linear(h, "last", 16, 6), stay="first:1 new last")


def test_scatter_elements_along_channels() -> None:
    """Each number is written to the channel that its index names."""
    net = Net()
    h = start(net)
    places = net.store("places", generator("places").permuted(np.tile(np.arange(16), (2, 5, 1)), axis=2))
    h = net("ScatterElements", h, places, net.weight("new", 2, 5, 16), axis=2)
    held(net, net.linear(h, "last", 16, 6), stay="first:1 places new last")


def of_each_channel(net: Net, h: str) -> str:
    """(2, 16): for each channel the token where it is largest."""
    return net("ArgMax", h, axis=1, keepdims=0)


@for_each("op", ["Gather", "GatherND", "ScatterND"])
def test_indices_that_are_channels_stay(op: str) -> None:
    """What is found by them stands where they stand."""
    net = Net()
    places, table = of_each_channel(net, start(net)), net.weight("table", 5, 6)
    deep = net("Unsqueeze", places, net.ints(2))
    made = {
        "Gather": lambda: net("Gather", table, places),
        "GatherND": lambda: net("GatherND", table, deep),
        "ScatterND": lambda: net("ScatterND", table, deep, net.weight("new", 2, 16, 6), reduction="add"),
    }[op]()
    held(net, made, stay="first:1 table:0")


def test_updates_that_are_channels_stay() -> None:
    """Each row that is written is of one channel, and its index says where."""
    net = Net()
    rows = net("ReduceMax", net("MatMul", net.weight("left", 6, 5), start(net)), axes=[0], keepdims=0)
    places = net.store("places", np.arange(16)[:, None] % 7)
    h = net("ScatterND", net.weight("table", 7, 6), places, net.transpose(rows, 1, 0), reduction="add")
    held(net, h, stay="first:1 places table:0")


def test_a_cache_that_is_written() -> None:
    """Judged by the reference of onnx, since onnxruntime has no such operator."""
    net = Net(opset=24, ir=10)
    h = start(net)
    h = net("TensorScatter", net.weight("cache", 2, 9, 16), h)
    held_by_reference(net, net.linear(h, "last", 16, 6), move="first:1 cache:2 last:0", stay="cache:1 last:1")


def test_what_is_compressed() -> None:
    net = Net()
    h = start(net)
    kept = net.feed("kept", np.array([True, False, True, True, False]))
    held(net, net.linear(net("Compress", h, kept, axis=1), "last", 16, 6), **TOKENS)


@for_each("axis", [None, 2])
def test_channels_that_are_compressed(axis: int | None) -> None:
    net = Net()
    h = start(net)
    kept = net.store("kept", np.array([True, False] * 8))
    h = net("Compress", h, kept, **({} if axis is None else {"axis": axis}))
    h = h if axis else net("Expand", h, net.ints(2, 8))
    held(net, net.linear(h, "last", 8, 6), **STANDING)


def test_a_condition_that_is_of_channels_stays() -> None:
    net = Net()
    kept = net("Greater", net("ReduceMean", start(net), axes=[0, 1], keepdims=0), net.number(0.5))
    held(net, net("ReduceSum", net("Compress", net.weight("table", 16, 6), kept, axis=0)), stay="first:1 table:0")


def test_reversed_sequences() -> None:
    net = Net()
    h = start(net)
    lengths = net.feed("lengths", np.array([3, 5]))
    held(net, net.linear(net("ReverseSequence", h, lengths, batch_axis=0, time_axis=1), "last", 16, 6), **TOKENS)


@for_each("domain", ["", MICROSOFT])
def test_triangles(domain: str) -> None:
    net = Net()
    h = net.transpose(start(net, 2, 3, 3), 0, 3, 1, 2)
    h = net.transpose(net("Trilu", h, domain=domain), 0, 2, 3, 1)
    held(net, net.linear(h, "last", 16, 6), **TOKENS)


def test_triangles_of_channels() -> None:
    net = Net()
    held(net, net.linear(net("Trilu", start(net)), "last", 16, 6), **STANDING)


def test_crops_around_the_centre() -> None:
    net = Net(opset=18)
    h = net("CenterCropPad", image(net), net.ints(4, 7), axes=[2, 3])
    held(net, net.conv(h, "last", 16, 6), **IMAGES)


@for_each("op", ["NonZero", "OneHot", "Unique", "Det", "Bernoulli", "Multinomial", "NegativeLogLikelihoodLoss"])
def test_what_depends_on_all_places_stays(op: str) -> None:
    net = Net()
    h = start(net, 4, 16) if op == "Det" else start(net)
    made = {
        "NonZero": lambda: net("NonZero", net("Round", h)),
        "OneHot": lambda: net(
            "OneHot", net("Mul", h, net.number(9)), net.number(9), net.store("v", np.float32([0, 1]))
        ),
        "Unique": lambda: net("Unique", h, axis=1),
        "Det": lambda: net("Det", h),
        "Bernoulli": lambda: net("Bernoulli", h, seed=3.0),
        "Multinomial": lambda: net("Multinomial", net("ReduceMax", h, axes=[1], keepdims=0), sample_size=9, seed=3.0),
        "NegativeLogLikelihoodLoss": lambda: net(
            "NegativeLogLikelihoodLoss",
            net.transpose(h, 0, 2, 1),
            net.feed("target", generator("target").integers(0, 16, (2, 5))),
        ),
    }[op]()
    held(net, made, stay="first:1")
