"""More steps of random graphs: transformers in other forms, tables, fused operators, bodies with weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, helper

from tests.channels.net import generator
from tests.channels.random_steps import ANY, RandomNet, Val, step, untyped

MICROSOFT = "com.microsoft"


# -- tokens


@step("tokens")
def positions(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    """A stored table with a row for each token; or one that is broadcast over the channels."""
    sizes = (x.shape[1], x.channels) if net.one_of(0, 0, 1) else (x.shape[1], 1)
    return Val(net("Add", x.name, net.weight("positions", *sizes)), x.shape)


@step("tokens")
def class_token(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    """A stored row before the tokens, as many times as the batch has samples."""
    if x.shape[1] > 30:
        return None
    one = net("Expand", net.weight("token", 1, 1, x.channels), net.ints(x.shape[0], 1, 1))
    return Val(net.concat(one, x.name, axis=1), (x.shape[0], x.shape[1] + 1, x.channels))


@step("tokens")
def some_tokens(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    """All but the first, or every other one, or the last as a vector."""
    count = x.shape[1]
    if count < 4:
        return None
    form = net.one_of(0, 1, 2)
    if form == 0:
        return Val(net.slice(x.name, 1, 2**31, 1), (x.shape[0], count - 1, x.channels))
    if form == 1:
        return Val(net.slice(x.name, 0, count, 1, 2), (x.shape[0], (count + 1) // 2, x.channels))
    last = net.store(net.name("last"), np.array(-1, np.int64))
    return Val(net("Gather", x.name, last, axis=1), (x.shape[0], x.channels))


@step("tokens")
def rolled_tokens(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    parts = net.slice(x.name, 1, x.shape[1], 1), net.slice(x.name, 0, 1, 1)
    return Val(net.concat(*parts, axis=1), x.shape)


@step("tokens")
def conv_over_tokens(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    """A Conv1d with the tokens as positions, dense or depthwise."""
    group, cout = (x.channels, x.channels) if net.one_of(0, 1) else (1, net.one_of(8, 12))
    turned = net.transpose(x.name, 0, 2, 1)
    stored = net.weight("conv1d", cout, x.channels // group, 3, axis=1), net.weight("conv1d_b", cout)
    made = net("Conv", turned, *stored, group=group, pads=[1, 1])
    return x.with_channels(net.transpose(made, 0, 2, 1), cout)


@step("tokens")
def as_rows(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    """Batch and tokens become one axis for a Gemm."""
    cout = net.one_of(8, 16)
    rows = net.gemm(net.reshape(x.name, -1, x.channels), "rows", x.channels, cout)
    return x.with_channels(net.reshape(rows, -1, x.shape[1], cout), cout)


@step("tokens")
def over_the_root_of_a_size(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    """Shape -> Gather -> Cast -> Sqrt -> Div."""
    at = net.store(net.name("at"), np.array(net.one_of(1, 2), np.int64))
    count = net("Gather", net("Shape", x.name), at)
    return Val(net("Div", x.name, net("Sqrt", net("Cast", count, to=TensorProto.FLOAT))), x.shape)


# -- heads


def _heads(net: RandomNet, x: Val, heads: int) -> str:
    """(N, H, T, D), with the shape written or computed."""
    if net.one_of(0, 1):
        four = net.reshape(x.name, 0, 0, heads, x.channels // heads)
    else:
        lead = net("Slice", net("Shape", x.name), net.ints(0), net.ints(2))
        four = net("Reshape", x.name, net("Concat", lead, net.ints(heads, -1), axis=0))
    return net.transpose(four, 0, 2, 1, 3)


def _back(net: RandomNet, four: str, x: Val) -> Val:
    return Val(net.reshape(net.transpose(four, 0, 2, 1, 3), *x.shape), x.shape)


@step("tokens")
def in_heads(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    """Something for each head, for each place in a head, or over either."""
    heads = net.one_of(2, 4)
    if x.channels % heads or x.channels // heads < 2:
        return None
    size = x.channels // heads
    four = _heads(net, x, heads)
    form = net.one_of(0, 1, 2, 3, 4)
    if form == 0:
        four = net("Mul", four, net.weight("of_heads", heads, 1, 1, around=1.0))
    elif form == 1:
        four = net("Mul", four, net.weight("of_places", size, around=1.0))
    elif form == 2:
        four = net.layer_norm(four, net.name("ln"), size)
    elif form == 3:
        four = net("Softmax", four, axis=net.one_of(1, 3))
    else:
        four = net("Add", four, net.weight("of_both", heads, 1, size))
    return _back(net, four, x)


@step("tokens")
def rotary(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    """Halves of each head against each other, with stored cosines; or neighbours against each other."""
    if x.channels % 4:
        return None
    heads, size = 2, x.channels // 2
    four = _heads(net, x, heads)
    cos, sin = net.weight("cos", x.shape[1], size), net.weight("sin", x.shape[1], size)
    if net.one_of(0, 1):
        left, right = net.slice(four, 0, size // 2, axis=3), net.slice(four, size // 2, size, axis=3)
        turned = net.concat(net("Neg", right), left, axis=3)
    else:
        five = net.reshape(four, 0, 0, 0, -1, 2)
        left, right = (net("Gather", five, net.ints(at), axis=4) for at in (0, 1))
        turned = net.reshape(net.concat(net("Neg", right), left, axis=4), x.shape[0], heads, x.shape[1], size)
    return _back(net, net("Add", net("Mul", four, cos), net("Mul", turned, sin)), x)


@step("tokens")
def stored_queries(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    """Cross attention: a stored table asks, the tokens answer."""
    table = net.weight("queries", 1, 3, 8)
    k, v = net.linear(x.name, "k", x.channels, 8), net.linear(x.name, "v", x.channels, 16)
    scores = net("MatMul", table, net.transpose(k, 0, 2, 1))
    return Val(net("MatMul", net("Softmax", scores, axis=-1), v), (x.shape[0], 3, 16))


@step("tokens")
def grouped_queries(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    """Two heads of queries for each of keys and values, by Expand or by Tile."""
    q, k, v = (net.linear(x.name, name, x.channels, width, False) for name, width in (("q", 32), ("k", 16), ("v", 16)))
    q = net.transpose(net.reshape(q, 0, 0, 4, 8), 0, 2, 1, 3)
    k, v = (net.transpose(net.reshape(one, 0, 0, 2, 8), 0, 2, 1, 3) for one in (k, v))
    if net.one_of(0, 1):
        sizes = net.ints(x.shape[0], 2, 2, x.shape[1], 8)
        k, v = (net("Expand", net("Unsqueeze", one, net.ints(2)), sizes) for one in (k, v))
        k, v = (net.reshape(one, x.shape[0], 4, x.shape[1], 8) for one in (k, v))
    else:
        k, v = (net("Tile", one, net.ints(1, 2, 1, 1)) for one in (k, v))
    scores = net("Mul", net("MatMul", q, net.transpose(k, 0, 1, 3, 2)), net.number(0.3))
    mixed = net.transpose(net("MatMul", net("Softmax", scores, axis=-1), v), 0, 2, 1, 3)
    return x.with_channels(net.reshape(mixed, 0, 0, 32), 32)


@step("tokens")
def channels_attend(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    q, k, v = (net.transpose(net.linear(x.name, name, x.channels, 8), 0, 2, 1) for name in "qkv")
    scores = net("MatMul", q, net.transpose(k, 0, 2, 1))
    mixed = net("MatMul", net("Softmax", net("Mul", scores, net.number(0.2)), axis=-1), v)
    return x.with_channels(net.transpose(mixed, 0, 2, 1), 8)


# -- fused operators


@step("tokens")
def fused_query_groups(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    q, k, v = (net.linear(x.name, name, x.channels, width, False) for name, width in (("q", 32), ("k", 16), ("v", 16)))
    count = x.shape[1]
    lengths = net.store(net.name("lengths"), np.full(x.shape[0], count - 1, np.int32))
    total = net.store(net.name("total"), np.array(count, np.int32))
    inputs = [q, k, v, "", "", lengths, total]
    outputs = net.many("GroupQueryAttention", 3, *inputs, domain=MICROSOFT, num_heads=4, kv_num_heads=2)
    return x.with_channels(outputs[0], 32)


@step("tokens")
def skip_norm(net: RandomNet, x: Val, others: Sequence[Val]) -> Val:
    """Sum, bias and norm in one; the sum is an output of it that may be read."""
    fitting = [one for one in others if one.shape == x.shape]
    other = fitting[int(net.dice.integers(len(fitting)))]
    scale, shift = net.weight("scale", x.channels, around=1.0), net.weight("shift", x.channels)
    inputs = [x.name, other.name, scale, shift, net.weight("bias", x.channels)]
    outputs = net.many("SkipLayerNormalization", 4, *inputs, domain=MICROSOFT)
    net.nodes[-1].output[1] = net.nodes[-1].output[2] = ""
    return Val(net("Add", outputs[0], outputs[3]) if net.one_of(0, 1) else outputs[0], x.shape)


@step("tokens")
def fused_product(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    made = net("FusedMatMul", x.name, net.weight("fused", 16, x.channels, axis=1), domain=MICROSOFT, transB=1)
    return x.with_channels(net("BiasGelu", made, net.weight("fused_b", 16), domain=MICROSOFT), 16)


# -- weights that are made in the graph


@step("tokens", "vector")
def packed_weights(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    """One stored matrix, cut in two in the graph; or two, joined."""
    if net.one_of(0, 1):
        one, two = net.split(net.weight("whole", x.channels, 24, axis=0), 12, 12, axis=1)
        h = net("Mul", net("MatMul", x.name, one), net("Sigmoid", net("MatMul", x.name, two)))
        return x.with_channels(h, 12)
    joined = net.concat(net.weight("left", x.channels, 8, axis=0), net.weight("right", x.channels, 12, axis=0), axis=1)
    return x.with_channels(net("MatMul", x.name, joined), 20)


@step("tokens", "vector")
def low_rank(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    product = net("MatMul", net.weight("down", x.channels, 8, axis=0), net.weight("up", 8, 16, axis=0))
    return x.with_channels(net("MatMul", x.name, product), 16)


@step("tokens", "vector")
def tied(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    """A matrix there and its transpose back."""
    weight = net.weight("tied", x.channels, 12, axis=0)
    inner = net.relu(net("MatMul", x.name, weight))
    return Val(net("MatMul", inner, net.transpose(weight, 1, 0)), x.shape)


@step("vector")
def looked_up(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    """The largest channel chooses a row of a stored table: the channels stay, the table's columns are free."""
    table = net.weight("table", x.channels, 12)
    return Val(net("Gather", table, net("ArgMax", x.name, axis=1, keepdims=0), axis=0), (x.shape[0], 12))


@step("image")
def stored_mask(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    """A stored mask of booleans, for each channel or each column of pixels."""
    name, sizes = net.name("mask"), (x.channels, 1, 1) if net.one_of(0, 1) else (x.shape[3],)
    mask = net.store(name, generator(name).integers(0, 2, sizes).astype(bool))
    return Val(net("Where", mask, x.name, net.number(0.3)), x.shape)


@step("image")
def written_channels(net: RandomNet, x: Val, _: Sequence[Val]) -> Val | None:
    """Some channels are written over."""
    if x.channels < 5:
        return None
    turned = net.transpose(x.name, 1, 0, 2, 3)
    places = net.store(net.name("places"), np.array([[1], [4]], np.int64))
    made = net("ScatterND", turned, places, net.weight("written", 2, x.shape[0], *x.shape[2:]))
    return Val(net.transpose(made, 1, 0, 2, 3), x.shape)


# -- bodies


@step("tokens", "vector")
def weights_under_if(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    """A weight of its own in each branch."""
    first, bodies, cout = len(net.nodes), [], net.one_of(8, 12)
    for _side in range(2):
        name = net.name("branch")
        stored = len(net.initializers)
        net.reductions.pop(name, None)
        values = generator(name).standard_normal((x.channels, cout)).astype(np.float32) / 4
        out = net("MatMul", x.name, net.store(name, values))
        nodes, net.nodes = net.nodes[first:], net.nodes[:first]
        tensors, net.initializers = net.initializers[stored:], net.initializers[:stored]
        bodies.append(helper.make_graph(nodes, net.name("body"), [], [untyped(out)], tensors))
    condition = "condition" if "condition" in net.feeds else net.feed("condition", np.array(True))
    return x.with_channels(net("If", condition, then_branch=bodies[0], else_branch=bodies[1]), cout)


@step("tokens")
def scanned(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    """A recurrent cell by hand: a Scan over the tokens."""
    units, state, item = 12, net.name("state"), net.name("item")
    w, r = net.weight("scan_w", x.channels, units, axis=0), net.weight("scan_r", units, units, axis=0)
    start = net.weight("scan_start", x.shape[0], units)
    first = len(net.nodes)
    new = net("Tanh", net("Add", net("MatMul", item, w), net("MatMul", state, r)))
    out = net("Identity", new)
    nodes, net.nodes = net.nodes[first:], net.nodes[:first]
    body = helper.make_graph(nodes, net.name("body"), [untyped(state), untyped(item)], [untyped(new), untyped(out)])
    steps = net.transpose(x.name, 1, 0, 2)
    rows = net.many("Scan", 2, start, steps, body=body, num_scan_inputs=1)[1]
    return x.with_channels(net.transpose(rows, 1, 0, 2), units)


@step(*ANY)
def through_a_sequence(net: RandomNet, x: Val, _: Sequence[Val]) -> Val:
    """Parts of the batch in a sequence, and joined again."""
    one = net.store(net.name("one"), np.array(1, np.int64))
    parts = net("SplitToSequence", x.name, one, axis=0)
    return Val(net("ConcatFromSequence", parts, axis=0), x.shape)
