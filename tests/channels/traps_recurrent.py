"""LSTM, GRU and RNN: a unit is a row of each gate, a column of R and of the next reader, and a place in every state."""

from __future__ import annotations

import numpy as np

from tests.channels.net import Net, Trap
from tests.channels.traps import trap

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, UNITS = 5, 12


def _stream(width: int = 16) -> tuple[Net, str]:
    """(steps, batch, width)."""
    net = Net()
    return net, net.linear(net.input("x", STEPS, 2, 8), "first", 8, width)


def _cell(
    net: Net, op: str, x: str, name: str, width: int, *states: str, ways: int = 1, units: int = UNITS, **more: object
) -> list[str]:
    """Y of (steps, ways, batch, units), Y_h, and for an LSTM Y_c."""
    stored = [
        net.weight(f"{name}_w", ways, GATES[op] * units, width, axis=2),
        net.weight(f"{name}_r", ways, GATES[op] * units, units, axis=2),
        net.weight(f"{name}_b", ways, 2 * GATES[op] * units),
    ]
    direction = "bidirectional" if ways == 2 else "forward"
    more = {"direction": direction, **more}
    return net.many(op, 3 if op == "LSTM" else 2, x, *stored, *states, hidden_size=units, **more)


def _both(net: Net, y: str, units: int = UNITS) -> str:
    """Both directions side by side, as torch has them."""
    return net.reshape(net.transpose(y, 0, 2, 1, 3), 0, 0, 2 * units)


@trap
def lstm() -> Trap:
    net, h = _stream()
    y = net("Squeeze", _cell(net, "LSTM", h, "cell", 16)[0], net.ints(1))
    return net.trap(net.linear(y, "last", UNITS, 6), move="cell_w cell_r last", stay="first")


@trap
def gru() -> Trap:
    net, h = _stream()
    y = net("Squeeze", _cell(net, "GRU", h, "cell", 16, linear_before_reset=1)[0], net.ints(1))
    return net.trap(net.linear(y, "last", UNITS, 6), move="cell_w cell_r last", stay="first")


@trap
def gru_reset_before_product() -> Trap:
    net, h = _stream()
    y = net("Squeeze", _cell(net, "GRU", h, "cell", 16)[1], net.ints(0))
    return net.trap(net.gemm(y, "last", UNITS, 6), move="cell_w cell_r last", stay="first")


@trap
def rnn() -> Trap:
    net, h = _stream()
    y = net("Squeeze", _cell(net, "RNN", h, "cell", 16, direction="reverse")[0], net.ints(1))
    return net.trap(net.linear(y, "last", UNITS, 6), move="cell_w cell_r last", stay="first")


@trap
def lstm_both_directions() -> Trap:
    """Each direction has its own units, and each half of the reader's columns its own order."""
    net, h = _stream()
    y = _both(net, _cell(net, "LSTM", h, "cell", 16, ways=2)[0])
    return net.trap(net.linear(y, "last", 2 * UNITS, 6), move="cell_w cell_r last", stay="first")


@trap
def lstm_directions_added() -> Trap:
    """The sum of both directions ties their units together."""
    net, h = _stream()
    y = net("ReduceSum", _cell(net, "LSTM", h, "cell", 16, ways=2)[0], net.ints(1), keepdims=0)
    return net.trap(net.linear(y, "last", UNITS, 6), move="cell_w cell_r last", stay="first")


@trap
def lstm_stacked() -> Trap:
    net, h = _stream()
    h = _both(net, _cell(net, "LSTM", h, "lower", 16, ways=2)[0])
    y = net("Squeeze", _cell(net, "LSTM", h, "upper", 2 * UNITS)[0], net.ints(1))
    move = "lower_w lower_r upper_w upper_r last"
    return net.trap(net.linear(y, "last", UNITS, 6), move=move, stay="first")


@trap
def gru_both_directions_last_states() -> Trap:
    """Y_h of (ways, batch, units), transposed and flattened for a classifier."""
    net, h = _stream()
    states = _cell(net, "GRU", h, "cell", 16, ways=2)[1]
    flat = net.reshape(net.transpose(states, 1, 0, 2), 2, 2 * UNITS)
    return net.trap(net.gemm(flat, "last", 2 * UNITS, 6), move="cell_w cell_r last", stay="first")


@trap
def lstm_with_stored_states() -> Trap:
    """The initial states are stored and follow the units."""
    net, h = _stream()
    states = net.weight("initial_h", 1, 2, UNITS), net.weight("initial_c", 1, 2, UNITS)
    y = net("Squeeze", _cell(net, "LSTM", h, "cell", 16, "", *states)[0], net.ints(1))
    return net.trap(net.linear(y, "last", UNITS, 6), move="cell_w cell_r last", stay="first")


@trap
def lstm_with_states_of_zeros() -> Trap:
    """Keras through tf2onnx: the states of both directions are a zero that is expanded, and joined with itself."""
    net, h = _stream()
    count = net("Slice", net("Shape", h), net.ints(1), net.ints(2))
    zeros = net("Expand", net.number(0.0), net("Concat", count, net.ints(UNITS), axis=0))
    one = net("Unsqueeze", zeros, net.ints(0))
    both = net.concat(one, one, axis=0)
    y = _both(net, _cell(net, "LSTM", h, "cell", 16, "", both, both, ways=2)[0])
    return net.trap(net.linear(y, "last", 2 * UNITS, 6), move="cell_w cell_r last", stay="first")


@trap
def lstm_with_states_from_outside() -> Trap:
    """The caller keeps the states: the units stay, what the cell reads is free."""
    net, h = _stream()
    states = net.input("h", 1, 2, UNITS), net.input("c", 1, 2, UNITS)
    made = _cell(net, "LSTM", h, "cell", 16, "", *states)
    y = net.linear(net("Squeeze", made[0], net.ints(1)), "last", UNITS, 6)
    return net.trap(y, made[1], made[2], move="cell_w", stay="first cell_r last")


@trap
def lstm_with_state_handed_out() -> Trap:
    """Only the last cell state is an output: h and c have the same units."""
    net, h = _stream()
    made = _cell(net, "LSTM", h, "cell", 16)
    y = net.linear(net("Squeeze", made[0], net.ints(1)), "last", UNITS, 6)
    return net.trap(y, made[2], move="cell_w", stay="first cell_r last")


@trap
def lstm_with_peepholes() -> Trap:
    """Three more rows of the units, in the order i, o, f."""
    net, h = _stream()
    peepholes = net.weight("peepholes", 1, 3 * UNITS)
    y = net("Squeeze", _cell(net, "LSTM", h, "cell", 16, "", "", "", peepholes)[0], net.ints(1))
    return net.trap(net.linear(y, "last", UNITS, 6), move="cell_w cell_r last", stay="first")


@trap
def lstm_with_states_of_an_encoder() -> Trap:
    """The decoder starts with the encoder's states: one order of units for both."""
    net, h = _stream()
    states = _cell(net, "LSTM", h, "encoder", 16)
    made = _cell(net, "LSTM", h, "decoder", 16, "", states[1], states[2])
    y = net.linear(net("Squeeze", made[0], net.ints(1)), "last", UNITS, 6)
    return net.trap(y, move="encoder_w encoder_r decoder_w decoder_r last", stay="first")


@trap
def gru_added_to_its_input() -> Trap:
    """A residual around the cell: the units are the stream."""
    net, h = _stream(UNITS)
    y = net("Squeeze", _cell(net, "GRU", h, "cell", UNITS, linear_before_reset=1)[0], net.ints(1))
    return net.trap(net.linear(net("Add", h, y), "last", UNITS, 6), move="cell_w cell_r last", stay="first")


@trap
def embedding_into_lstm() -> Trap:
    """The width of a table is what the cell reads; lengths of the sequences are an input."""
    net = Net()
    ids = net.feed("x", np.arange(10).reshape(5, 2) % 7)
    h = net("Gather", net.weight("table", 7, 16), ids)
    lengths = net.feed("lengths", np.array([5, 3], np.int32))
    y = net("Squeeze", _cell(net, "LSTM", h, "cell", 16, lengths)[0], net.ints(1))
    return net.trap(net.linear(y, "last", UNITS, 6), move="cell_w cell_r last")


@trap
def lstm_clipped_with_other_activations() -> Trap:
    """Other activations for each direction, and a clip; nothing of it knows of units."""
    net, h = _stream()
    functions = ["Sigmoid", "Relu", "Tanh", "HardSigmoid", "Tanh", "Relu"]
    made = _cell(net, "LSTM", h, "cell", 16, ways=2, activations=functions, clip=1.5)
    return net.trap(net.linear(_both(net, made[0]), "last", 2 * UNITS, 6), move="cell_w cell_r last", stay="first")


@trap
def lstm_over_the_channels_of_an_image() -> Trap:
    """CRNN: (N, C, 1, W) becomes (W, N, C)."""
    net = Net()
    h = net("MaxPool", net.conv(net.image(8), "first", 8, 16), kernel_shape=[6, 1])
    h = net.transpose(net("Squeeze", h, net.ints(2)), 2, 0, 1)
    y = _both(net, _cell(net, "LSTM", h, "cell", 16, ways=2)[0])
    return net.trap(net.linear(y, "last", 2 * UNITS, 6), move="cell_w cell_r last", stay="first")


@trap
def lstm_over_channels_as_steps() -> Trap:
    """The channels are the steps in time: their order is all that matters."""
    net = Net()
    h = net.conv(net.image(8), "first", 8, 16)
    h = net.transpose(net.reshape(h, 2, 16, 36), 1, 0, 2)
    y = net("Squeeze", _cell(net, "GRU", h, "cell", 36)[0], net.ints(1))
    y = net.transpose(net.linear(y, "dense", UNITS, 9), 1, 0, 2)
    y = net.conv(net.reshape(y, 2, 16, 3, 3), "last", 16, 6)
    return net.trap(y, move="cell_r dense", stay="first cell_w last")
