"""How weights are stored and who shares them: one tensor for several readers, weights through operators, old forms."""

from __future__ import annotations

import dataclasses

import numpy as np
from onnx import helper, numpy_helper

from tests.channels.net import Net, Reduction, Trap, generator
from tests.channels.traps import trap


def _stem(channels: int = 16, **more: object) -> tuple[Net, str]:
    net = Net(**more)  # type: ignore[arg-type]
    return net, net.relu(net.conv(net.image(8), "first", 8, channels))


def _conv(net: Net, x: str, weight: str) -> str:
    return net("Conv", x, weight)


# -- one tensor, several readers


@trap
def weight_of_two_layers_in_one_class() -> Trap:
    """A universal block: the same weight twice in a row, so its rows and columns are one class."""
    net, h = _stem()
    weight = net.weight("both", 16, 16, 1, 1, axis=1)
    h = net.relu(_conv(net, net.relu(_conv(net, h, weight)), weight))
    return net.trap(net.conv(h, "last", 16, 6), move="both last", stay="first")


@trap
def weight_of_two_layers_in_two_classes() -> Trap:
    """Siamese branches: the weight ties the channels of both, before it and behind it."""
    net = Net()
    x = net.image(8)
    one, two = net.conv(x, "first", 8, 16), net.conv(x, "second", 8, 16)
    weight = net.weight("both", 12, 16, 1, 1, axis=1)
    y = [net.conv(net.relu(_conv(net, h, weight)), name, 12, 6) for h, name in ((one, "last"), (two, "other"))]
    return net.trap(*y, move="both last other", stay="first second")


@trap
def weight_of_a_layer_and_of_the_output() -> Trap:
    """A head shared with a layer whose result is an output: its rows are the caller's, and so is the class of both."""
    net, h = _stem()
    weight = net.weight("both", 16, 16, 1, 1, axis=1)
    inner = net.relu(_conv(net, h, weight))
    return net.trap(_conv(net, inner, weight), stay="first both")


@trap
def bias_of_two_layers() -> Trap:
    """Equal vectors are stored once by some exporters: two layers that share nothing else have one order now."""
    net, h = _stem()
    bias = net.weight("bias", 16)
    one = net("Conv", h, net.weight("one", 16, 16, 1, 1, axis=1), bias)
    two = net("Conv", h, net.weight("two", 16, 16, 1, 1, axis=1), bias)
    y = net.conv(net.relu(one), "reads_one", 16, 6), net.conv(net("Tanh", two), "reads_two", 16, 6)
    return net.trap(*y, move="one two reads_one reads_two", stay="first")


@trap
def zeros_of_two_layers() -> Trap:
    """The shared vector belongs to a free class and to an output: numbers that are all equal need not move."""
    net, h = _stem()
    zeros = net.store("zeros", np.zeros(16, np.float32))
    one = net("Conv", h, net.weight("one", 16, 16, 1, 1, axis=1), zeros)
    two = net("Conv", net.relu(one), net.weight("two", 16, 16, 1, 1, axis=1), zeros)
    return net.trap(two, move="one two", stay="first")


@trap
def bias_through_identities() -> Trap:
    """torch merges equal tensors by Identity: an alias of a stored tensor is that tensor."""
    net, h = _stem()
    bias = net.weight("bias", 16)
    alias = net("Identity", net("Identity", bias))
    one = net("Conv", h, net.weight("one", 16, 16, 1, 1, axis=1), bias)
    two = net("Conv", net.relu(one), net.weight("two", 16, 16, 1, 1, axis=1), alias)
    return net.trap(net.conv(net.relu(two), "last", 16, 6), move="one two last", stay="first")


@trap
def weight_that_is_also_a_factor() -> Trap:
    """The weights of a depthwise layer scale the channels elsewhere."""
    net, h = _stem()
    weight = net.weight("depthwise", 16, 1, 1, 1, axis=1)
    h = net("Conv", h, weight, group=16)
    h = net("Add", net.relu(h), net("Mul", h, net("Reshape", weight, net.ints(1, 16, 1, 1))))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def weight_that_is_also_an_image() -> Trap:
    """A weight of 16 x 16 is added to 16 x 16 pixels; these do not move, so neither do its rows or columns."""
    net = Net()
    h = net.relu(net.conv(net.image(8, 16), "first", 8, 16))
    weight = net.weight("last", 16, 16, axis=0)
    tokens = net.transpose(net.reshape(h, 2, 16, 256), 0, 2, 1)
    return net.trap(net("MatMul", tokens, weight), net("Add", h, weight), stay="first last")


@trap
def weight_that_is_regularized() -> Trap:
    """The sum of the squares of a weight is an output: no order shows in it."""
    net, h = _stem()
    y = net.conv(h, "last", 16, 6)
    return net.trap(y, net("ReduceSumSquare", "last", keepdims=0), move="last", stay="first")


@trap
def embedding_and_its_rows_as_weights() -> Trap:
    """Columns of a table are the stream, its rows are words; it is also read word by word by a product."""
    net = Net()
    table = net.weight("table", 16, 16, axis=1)
    h = net("Gather", table, net.tokens(5, 16))
    scores = net("Gemm", net.reshape(h, 10, 16), table, transB=1)
    mixed = net("MatMul", net("Softmax", scores, axis=-1), table)
    return net.trap(net.linear(mixed, "last", 16, 6), move="table last")


@trap
def looked_up_rows_and_positions() -> Trap:
    """A factor for each place is added to the rows of a table: which rows these are, is the caller's order."""
    net = Net()
    rows = net("Gather", net.weight("table", 11, 16), net.tokens(5))
    h = net("Add", rows, net.weight("places", 5, 1, axis=0))
    h = net("Add", h, net("Gather", net.weight("types", 2, 16), net.feed("type", np.array([[0, 1, 1, 0, 1]]))))
    scores = net("MatMul", h, net.transpose(h, 0, 2, 1))
    mixed = net("MatMul", net("Softmax", scores, axis=-1), h)
    y = net("ReduceMean", net.linear(mixed, "last", 16, 6), axes=[1])
    return net.trap(y, move="last", stay="places")


@trap
def table_of_experts() -> Trap:
    """A matrix is looked up by number from a stack of four: the numbers are the caller's, columns are free."""
    net, h = _stem()
    stack = net.weight("stack", 4, 6, 16, 1, 1, axis=2)
    chosen = net.feed("chosen", np.array(2, np.int64))
    return net.trap(_conv(net, h, net("Gather", stack, chosen, axis=0)), move="stack", stay="first")


# -- weights through operators


@trap
def weights_through_moves() -> Trap:
    """Transpose, Reshape, Squeeze, Identity and Unsqueeze between the store and the product."""
    net, h = _stem()
    turned = net.transpose(net.weight("turned", 16, 12, 1, 1, axis=0), 1, 0, 2, 3)
    h = net.relu(_conv(net, h, turned))
    flat = net("Reshape", net.weight("flat", 20, 12, axis=1), net.ints(20, 12, 1, 1))
    h = net.relu(_conv(net, h, net("Identity", flat)))
    squeezed = net("Squeeze", net.weight("squeezed", 1, 16, 20, 1, 1, axis=2), net.ints(0))
    h = net("GlobalAveragePool", net.relu(_conv(net, h, squeezed)))
    last = net.transpose(net.weight("last", 6, 16, axis=1), 1, 0)
    y = net("MatMul", net("Flatten", h), last)
    return net.trap(y, move="turned flat squeezed last", stay="first")


@trap
def weight_stored_flat() -> Trap:
    """All numbers of a weight in one row: columns move in strides."""
    net, h = _stem()
    weight = net("Reshape", net.weight("flat", 96), net.ints(6, 16, 1, 1))
    return net.trap(_conv(net, h, weight), stay="first")


@trap
def weight_scaled_in_the_graph() -> Trap:
    """A norm that is folded when the model runs: the weight times a stored vector of its rows, and of its columns."""
    net, h = _stem()
    weight = net("Mul", net.weight("middle", 16, 16, 1, 1, axis=1), net.weight("rows", 16, 1, 1, 1, around=1.0))
    h = net.relu(_conv(net, h, net("Mul", weight, net.weight("columns", 16, 1, 1, around=1.0))))
    return net.trap(net.conv(h, "last", 16, 6), move="middle last", stay="first")


@trap
def weight_norm() -> Trap:
    """g * v / |v|, with the norm over each filter."""
    net, h = _stem()
    v = net.weight("v", 16, 16, 1, 1, axis=1)
    weight = net("Mul", net.weight("g", 16, 1, 1, 1), net("Div", v, net("ReduceL2", v, axes=[1, 2, 3])))
    return net.trap(net.conv(net.relu(_conv(net, h, weight)), "last", 16, 6), move="v last", stay="first")


@trap
def weight_standardized() -> Trap:
    """Mean and variance of each filter are taken in the graph."""
    net, h = _stem()
    v = net.weight("v", 16, 16, 1, 1, axis=1)
    centred = net("Sub", v, net("ReduceMean", v, axes=[1, 2, 3]))
    variance = net("ReduceMean", net("Mul", centred, centred), axes=[1, 2, 3])
    weight = net("Div", centred, net("Sqrt", net("Add", variance, net.number(1e-5))))
    return net.trap(net.conv(net.relu(_conv(net, h, weight)), "last", 16, 6), move="v last", stay="first")


@trap
def weights_joined_in_the_graph() -> Trap:
    """Three matrices become one for the product, and its result is cut in three."""
    net = Net()
    h = net.linear(net.input("x", 2, 5, 8), "first", 8, 16)
    joined = net.concat(*(net.weight(name, 16, 12, axis=0) for name in ("a", "b", "c")), axis=1)
    a, b, c = net.split(net("MatMul", h, joined), 12, 12, 12, axis=2)
    h = net("Mul", net("Sigmoid", a), net("Add", b, net("Tanh", c)))
    return net.trap(net.linear(h, "last", 12, 6), move="a b c last", stay="first")


@trap
def weight_cut_in_the_graph() -> Trap:
    """One stored matrix, of which each half is a layer; a third layer reads all of it."""
    net, h = _stem()
    whole = net.weight("whole", 24, 16, 1, 1, axis=1)
    upper, lower = net.split(whole, 12, 12, axis=0)
    y = [net.conv(net.relu(_conv(net, h, one)), name, 12, 6) for one, name in ((upper, "last"), (lower, "other"))]
    every = _conv(net, h, whole)
    return net.trap(*y, net("GlobalMaxPool", net("ReduceSum", every, net.ints(1))), move="whole last other",
                    stay="first")  # fmt: skip


@trap
def weight_gathered_in_the_graph() -> Trap:
    """Rows of a stored matrix in another order, by stored indices."""
    net, h = _stem()
    order = net.ints(*generator("order").permutation(16).tolist())
    weight = net("Gather", net.weight("middle", 16, 16, 1, 1, axis=1), order, axis=0)
    return net.trap(net.conv(net.relu(_conv(net, h, weight)), "last", 16, 6), move="middle last", stay="first")


@trap
def weight_with_flipped_columns() -> Trap:
    """The columns are read from the last to the first."""
    net, h = _stem()
    weight = net("Gather", net.weight("last", 6, 16, 1, 1, axis=1), net.ints(*range(15, -1, -1)), axis=1)
    return net.trap(_conv(net, h, weight), move="last", stay="first")


@trap
def weight_masked_in_the_graph() -> Trap:
    """A stored mask times a weight: both have its rows and columns."""
    net, h = _stem()
    mask = net.store("mask", generator("mask").integers(0, 2, (16, 16, 1, 1)).astype(np.float32))
    weight = net("Mul", net.weight("middle", 16, 16, 1, 1, axis=1), mask)
    return net.trap(net.conv(net.relu(_conv(net, h, weight)), "last", 16, 6), move="middle last", stay="first")


@trap
def low_rank_weight() -> Trap:
    """A product of two stored matrices is the weight: the rank between them is a class of its own."""
    net, h = _stem()
    product = net("MatMul", net.weight("left", 12, 8, axis=1), net.weight("right", 8, 16, axis=0))
    y = net("Gemm", net("Flatten", net("GlobalAveragePool", h)), product, transB=1)
    return net.trap(net.gemm(net.relu(y), "last", 12, 6), move="last", stay="first")


@trap
def lora() -> Trap:
    """A weight and a product of two narrow ones, with a factor of rank 0."""
    net = Net()
    h = net.linear(net.input("x", 2, 5, 8), "first", 8, 16)
    narrow = net("MatMul", net("MatMul", h, net.weight("down", 16, 8, axis=0)), net.weight("up", 8, 16, axis=0))
    h = net("Add", net.linear(h, "middle", 16, 16), net("Mul", narrow, net.number(0.5)))
    return net.trap(net.linear(net.relu(h), "last", 16, 6), move="down up middle last", stay="first")


@trap
def weight_made_by_a_network() -> Trap:
    """Dynamic filters: the numbers of the filter are computed from the input."""
    net, h = _stem()
    made = net.gemm(net("Flatten", net("GlobalAveragePool", h)), "makes", 16, 96)
    weight = net.reshape(net("ReduceMean", made, axes=[0]), 6, 16, 1, 1)
    return net.trap(_conv(net, h, weight), stay="first")


# -- forms of storage


@trap
def weights_in_constant_nodes() -> Trap:
    net, h = _stem(constants=True)
    h = net.relu(net.batch_norm(net.conv(h, "middle", 16, 16, k=3), "bn", 16))
    return net.trap(net.conv(h, "last", 16, 6), move="middle last", stay="first")


@trap
def constants_as_attributes() -> Trap:
    """A bias as `value_floats`, and a scale as `value_float`."""
    net, h = _stem()
    bias = generator("floats").standard_normal(16).astype(np.float32).tolist()
    net.nodes.append(helper.make_node("Constant", [], ["bias"], value_floats=bias))
    net.nodes.append(helper.make_node("Constant", [], ["half"], value_float=0.5))
    h = net("Conv", net("Mul", h, "half"), net.weight("middle", 16, 16, 1, 1, axis=1), "bias")
    return net.trap(net.conv(net.relu(h), "last", 16, 6), move="middle", stay="first")


@trap
def sparse_initializer() -> Trap:
    """A bias of which only five numbers are stored, with their places."""
    net, h = _stem()
    values = numpy_helper.from_array(generator("sparse").standard_normal(5).astype(np.float32), "sparse_bias")
    places = numpy_helper.from_array(np.array([1, 4, 6, 11, 15], np.int64), "places")
    sparse = helper.make_sparse_tensor(values, places, [16])
    net.nodes.append(helper.make_node("Constant", [], ["bias"], sparse_value=sparse))
    h = net("Add", h, net.reshape("bias", 16, 1, 1))
    return net.trap(net.conv(h, "last", 16, 6), stay="first")


@trap
def initializers_as_inputs() -> Trap:
    """IR version 3 names every stored tensor among the inputs."""
    net, h = _stem(opset=9, ir=3)
    h = net.relu(net.conv(h, "middle", 16, 16))
    y = net.conv(h, "last", 16, 6)
    for tensor in net.initializers:
        net.inputs.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return net.trap(y, move="middle last", stay="first")


@trap
def external_data() -> Trap:
    net, h = _stem()
    h = net("Add", h, net.relu(net.conv(h, "middle", 16, 16)))
    return dataclasses.replace(net.trap(net.conv(h, "last", 16, 6), move="middle last", stay="first"), external=True)


@trap
def external_data_of_two_tensors_in_one_place() -> Trap:
    """Two equal weights share their bytes in the file; they move differently."""
    net, h = _stem()
    weight = generator("twin").standard_normal((16, 16, 1, 1)).astype(np.float32) / 4
    for name in ("twin_1", "twin_2"):
        h = net.relu(_conv(net, h, net.store(name, weight)))
        net.reductions[name] = Reduction(1)
    made = net.trap(net.conv(h, "last", 16, 6), move="twin_1 twin_2 last", stay="first")
    return dataclasses.replace(made, external=True)


@trap
def numbers_in_typed_fields() -> Trap:
    """float_data in place of raw_data."""
    net, h = _stem()
    y = net.conv(net.relu(net.conv(h, "middle", 16, 16)), "last", 16, 6)
    for tensor in net.initializers:
        if tensor.data_type == 1:
            values = numpy_helper.to_array(tensor)
            tensor.CopyFrom(helper.make_tensor(tensor.name, 1, values.shape, values.ravel().tolist()))
    return net.trap(y, move="middle last", stay="first")


@trap
def unused_and_equal_tensors() -> Trap:
    """Tensors without a reader, one of them a copy of a weight that moves."""
    net, h = _stem()
    y = net.conv(net.relu(net.conv(h, "middle", 16, 16)), "last", 16, 6)
    net.store("copy", numpy_helper.to_array(next(t for t in net.initializers if t.name == "middle")))
    net.weight("unused", 16)
    return net.trap(y, move="middle last", stay="first")


@trap
def opset_21() -> Trap:
    """Split by a number of outputs, ReduceMean and Squeeze with axes as inputs, a Reshape that allows zeros."""
    net, h = _stem(opset=21, ir=10)
    value, gate = net.many("Split", 2, net.conv(h, "middle", 16, 32), axis=1, num_outputs=2)
    h = net("Mul", value, net("HardSwish", gate))
    pooled = net("Squeeze", net("ReduceMean", h, net.ints(2, 3)), net.ints(2, 3))
    flat = net("Reshape", pooled, net.ints(-1, 16), allowzero=1)
    return net.trap(net.gemm(net("Gelu", flat, approximate="tanh"), "last", 16, 6), move="middle last", stay="first")


@trap
def opset_8() -> Trap:
    """Upsample with a scale for each axis, BatchNormalization with `spatial`, and no attribute left out."""
    net, h = _stem(opset=8, ir=3)
    net.nodes[0].attribute.append(helper.make_attribute("kernel_shape", [1, 1]))
    h = net("Upsample", net.batch_norm(h, "bn", 16), mode="nearest", scales=[1.0, 1.0, 2.0, 2.0])
    y = net.conv(h, "last", 16, 6)
    for tensor in net.initializers:
        net.inputs.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return net.trap(y, move="last", stay="first")


@trap
def scalars_of_rank_0() -> Trap:
    """Quantizers and products with scalars of rank 0, which no copy may turn into rank 1."""
    net, h = _stem()
    scale, point = net.number(2.0**-4), net.store("point", np.array(7, np.uint8))
    h = net("Clip", net("Mul", h, net.number(0.7)), net.number(0.1), net.number(6.0))
    h = net("DequantizeLinear", net("QuantizeLinear", h, scale, point), scale, point)
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")
