"""LSTM, GRU, RNN in each of their forms: units move in every gate and state, and what X carries in the columns of W."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.channels.forms import held, held_by_reference
from tests.channels.net import Net, Reduction, generator

STEPS, BATCH, READ, UNITS = 4, 2, 8, 6
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
WAYS = {"forward": 1, "reverse": 1, "bidirectional": 2}
FORMS = list(itertools.product(GATES, WAYS))


def stream(net: Net, width: int = READ) -> str:
    """(steps, batch, width), written by a weight of the model."""
    return net.linear(net.input("x", STEPS, BATCH, 5), "first", 5, width)


def cell(
    net: Net,
    op: str,
    x: str,
    direction: str = "forward",
    name: str = "cell",
    bias: bool = True,
    read: int = READ,
    rest: tuple[str, ...] = (),
    **more: object,
) -> list[str]:
    ways, gates = WAYS[direction], GATES[op]
    stored = [
        net.weight(f"{name}_w", ways, gates * UNITS, read, axis=2),
        net.weight(f"{name}_r", ways, gates * UNITS, UNITS, axis=2),
        net.weight(f"{name}_b", ways, 2 * gates * UNITS) if bias else "",
    ]
    outputs = 3 if op == "LSTM" else 2
    return net.many(op, outputs, x, *stored, *rest, direction=direction, hidden_size=UNITS, **more)


def sequence(net: Net, y: str, direction: str) -> str:
    """Y as (steps, batch, ways x units), and a layer on it."""
    width = WAYS[direction] * UNITS
    return net.linear(net.reshape(net.transpose(y, 0, 2, 1, 3), STEPS, BATCH, width), "last", width, 3)


def last_state(net: Net, state: str, direction: str, name: str = "last") -> str:
    width = WAYS[direction] * UNITS
    return net.gemm(net.reshape(net.transpose(state, 1, 0, 2), BATCH, width), name, width, 3)


@pytest.mark.parametrize(("op", "direction"), FORMS)
@pytest.mark.parametrize("bias", [True, False])
def test_sequences(op: str, direction: str, bias: bool) -> None:
    net = Net()
    y = cell(net, op, stream(net), direction, bias=bias)[0]
    held(net, sequence(net, y, direction), move="cell_w cell_r last", stay="first")


@pytest.mark.parametrize(("op", "direction"), FORMS)
def test_last_states(op: str, direction: str) -> None:
    net = Net()
    states = cell(net, op, stream(net), direction)[1:]
    outputs = [last_state(net, state, direction, f"last_{at}") for at, state in enumerate(states)]
    held(net, *outputs, move="cell_w cell_r last_0", stay="first")


@pytest.mark.parametrize(("op", "direction"), FORMS)
def test_stored_states_follow_the_units(op: str, direction: str) -> None:
    net = Net()
    h = stream(net)
    states = [net.weight(f"start_{at}", WAYS[direction], BATCH, UNITS) for at in range(2 if op == "LSTM" else 1)]
    y = cell(net, op, h, direction, rest=("", *states))[0]
    found = held(net, sequence(net, y, direction), move="cell_w cell_r last", stay="first")
    moving = {member.name for one in found.classes for member in one.members}
    assert set(states) <= moving


@pytest.mark.parametrize(("op", "direction"), FORMS)
def test_states_of_a_caller_keep_the_units(op: str, direction: str) -> None:
    net = Net()
    h = stream(net)
    states = [net.input(f"start_{at}", WAYS[direction], BATCH, UNITS) for at in range(2 if op == "LSTM" else 1)]
    y = cell(net, op, h, direction, rest=("", *states))[0]
    found = held(net, sequence(net, y, direction), move="cell_w", stay="first cell_r last")
    member = next(one for one in found.members if one.name == "cell_r")
    assert "stay where they are" in found.why(member)


@pytest.mark.parametrize("op", GATES)
def test_states_of_zeros_keep_nothing(op: str) -> None:
    """As an exporter writes them: ConstantOfShape, in a size that may depend on the batch."""
    net = Net()
    h = stream(net)
    zeros = [net("ConstantOfShape", net.ints(1, BATCH, UNITS)) for _ in range(2 if op == "LSTM" else 1)]
    y = cell(net, op, h, rest=("", *zeros))[0]
    held(net, sequence(net, y, "forward"), move="cell_w cell_r last", stay="first")


@pytest.mark.parametrize(("op", "direction"), FORMS)
def test_state_of_another_cell(op: str, direction: str) -> None:
    """A decoder starts from the encoder's state: both have one order."""
    net = Net()
    h = stream(net)
    states = cell(net, op, h, direction, "encoder")[1:]
    y = cell(net, op, h, direction, "decoder", rest=("", *states))[0]
    move = "encoder_w encoder_r decoder_w decoder_r last"
    held(net, sequence(net, y, direction), move=move, stay="first")


@pytest.mark.parametrize(("op", "direction"), FORMS)
def test_states_of_all_layers_side_by_side(op: str, direction: str) -> None:
    """As torch hands them out: stacked, of which a classifier takes those of the last layer."""
    net, ways = Net(), WAYS[direction]
    lower = cell(net, op, stream(net), direction, "lower")
    y = net.reshape(net.transpose(lower[0], 0, 2, 1, 3), STEPS, BATCH, ways * UNITS)
    upper = cell(net, op, y, direction, "upper", read=ways * UNITS)
    states = net.concat(lower[1], upper[1], axis=0)
    taken = [net("Gather", states, net.store(f"at_{at}", np.array(at)), axis=0) for at in range(-ways, 0)]
    y = net.gemm(net.concat(*taken, axis=1) if ways > 1 else taken[0], "last", ways * UNITS, 3)
    found = held(net, y, move="lower_w lower_r upper_w upper_r last", stay="first")
    assert sorted(one.size for one in found.classes) == [UNITS] * (2 * ways) + [READ]


@pytest.mark.parametrize(("op", "direction"), FORMS)
def test_lengths_of_sequences(op: str, direction: str) -> None:
    net = Net()
    h = stream(net)
    lengths = net.feed("lengths", np.array([STEPS, 2], np.int32))
    y = cell(net, op, h, direction, rest=(lengths,))[0]
    held(net, sequence(net, y, direction), move="cell_w cell_r last", stay="first")


@pytest.mark.parametrize("direction", WAYS)
def test_peepholes(direction: str) -> None:
    net = Net()
    h = stream(net)
    peepholes = net.weight("peepholes", WAYS[direction], 3 * UNITS)
    y = cell(net, "LSTM", h, direction, rest=("", "", "", peepholes))[0]
    found = held(net, sequence(net, y, direction), move="cell_w cell_r last", stay="first")
    assert "peepholes" in {member.name for one in found.classes for member in one.members}


@pytest.mark.parametrize("linear", [0, 1])
@pytest.mark.parametrize("direction", WAYS)
def test_both_kinds_of_gru(direction: str, linear: int) -> None:
    net = Net()
    y = cell(net, "GRU", stream(net), direction, linear_before_reset=linear)[0]
    held(net, sequence(net, y, direction), move="cell_w cell_r last", stay="first")


@pytest.mark.parametrize(("op", "direction"), FORMS)
def test_stacked(op: str, direction: str) -> None:
    net = Net()
    y = cell(net, op, stream(net), direction, "lower")[0]
    width = WAYS[direction] * UNITS
    y = net.reshape(net.transpose(y, 0, 2, 1, 3), STEPS, BATCH, width)
    y = cell(net, op, y, direction, "upper", read=width)[0]
    held(net, sequence(net, y, direction), move="lower_w lower_r upper_w upper_r last", stay="first")


@pytest.mark.parametrize("op", GATES)
def test_units_of_both_directions_are_apart(op: str) -> None:
    """A bias on one direction's half of the units does not tie the other's."""
    net = Net()
    y = cell(net, op, stream(net), "bidirectional")[0]
    forward, back = net.split(y, 1, 1, axis=1)
    forward = net.linear(net("Squeeze", forward, net.ints(1)), "last", UNITS, 3)
    back = net.linear(net("Squeeze", back, net.ints(1)), "other", UNITS, 3)
    found = held(net, forward, back, move="cell_w cell_r last other", stay="first")
    sizes = sorted(one.size for one in found.classes)
    assert sizes == [UNITS, UNITS, READ]


@pytest.mark.parametrize("op", GATES)
def test_weights_that_are_put_together_in_the_graph(op: str) -> None:
    """Rows of the gates by Concat and an axis of one direction by Unsqueeze, as an exporter orders gates."""
    net = Net()
    h, gates = stream(net), GATES[op]
    weights = []
    for name, width in (("w", READ), ("r", UNITS)):
        parts = [net.weight(f"{name}_{at}", UNITS, width, axis=1) for at in range(gates)]
        joined = net.concat(*parts, axis=0) if gates > 1 else parts[0]
        weights.append(net("Unsqueeze", joined, net.ints(0)))
    y = net.many(op, 1, h, *weights, hidden_size=UNITS)[0]
    held(net, sequence(net, y, "forward"), move="w_0 r_0 last", stay="first")


def test_one_unit() -> None:
    net = Net()
    h = stream(net)
    stored = net.weight("w", 2, 4, READ, axis=2), net.weight("r", 2, 4, 1, axis=2)
    y = net.many("LSTM", 1, h, *stored, hidden_size=1, direction="bidirectional")[0]
    held(net, net("Squeeze", y, net.ints(3)), move="w", stay="first")


def test_reads_a_table_of_words() -> None:
    net = Net()
    ids = net.feed("ids", np.arange(STEPS * BATCH).reshape(STEPS, BATCH) % 7)
    h = net("Gather", net.weight("table", 7, READ), ids)
    y = cell(net, "GRU", h, "bidirectional")[0]
    found = held(net, sequence(net, y, "bidirectional"), move="cell_w cell_r last")
    assert "table" in {member.name for one in found.classes for member in one.members}


@pytest.mark.parametrize("op", GATES)
def test_layout_with_the_batch_first(op: str) -> None:
    """(batch, steps, ...), which the runtime has no kernel for; the reference has one for one direction."""
    net = Net()
    h = net.linear(net.input("x", BATCH, STEPS, 5), "first", 5, READ)
    states = [net.weight(f"start_{at}", BATCH, 1, UNITS) for at in range(2 if op == "LSTM" else 1)]
    made = cell(net, op, h, rest=("", *states), layout=1)
    y = net.linear(net("Squeeze", made[0], net.ints(2)), "last", UNITS, 3)
    state = net.gemm(net("Squeeze", made[1], net.ints(1)), "of_state", UNITS, 3)
    held_by_reference(net, y, state, move="cell_w cell_r last of_state", stay="first")


def quantized(values: np.ndarray, axis: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """int8 with a scale for each direction, or for each row of a gate."""
    over = (1,) if axis is not None else (1, 2)
    scale = np.abs(values).max(over) / 127
    spread = scale[:, None, :] if axis is not None else scale[:, None, None]
    codes = np.rint(values / spread).astype(np.int8)
    return codes, scale.astype(np.float32), np.zeros(scale.shape, np.int8)


@pytest.mark.parametrize("direction", WAYS)
@pytest.mark.parametrize("axis", [None, 2])
def test_lstm_in_int8(direction: str, axis: int | None) -> None:
    net, ways = Net(), WAYS[direction]
    h = stream(net)
    inputs = [h]
    numbers = []
    for name, width in (("w", READ), ("r", UNITS)):
        values = generator(name).standard_normal((ways, width, 4 * UNITS))
        codes, scale, zero = quantized(values, axis)
        net.reductions[name] = Reduction(1)
        inputs.append(net.store(name, codes))
        numbers += [net.store(f"{name}_scale", scale), net.store(f"{name}_zero", zero)]
    inputs += [net.weight("b", ways, 8 * UNITS), "", "", "", "", *numbers]
    y = net.many("DynamicQuantizeLSTM", 1, *inputs, domain="com.microsoft", hidden_size=UNITS, direction=direction)[0]
    held(net, sequence(net, y, direction), move="w r last", stay="first")


def test_unknown_shapes_stay() -> None:
    """W comes from outside: nothing is known of the units, and what is read is kept."""
    net = Net()
    h = stream(net)
    w = net.input("w", 1, 4 * UNITS, READ)
    y = net.many("LSTM", 1, h, w, net.weight("r", 1, 4 * UNITS, UNITS, axis=2), hidden_size=UNITS)[0]
    held(net, sequence(net, y, "forward"), stay="first r last")


@pytest.mark.parametrize("perm", [(2, 0, 1), (0, 2, 1)])
def test_channels_as_steps_or_as_batch(perm: tuple[int, ...]) -> None:
    """What is no channel to the cell keeps its order, in X and in a state."""
    net = Net()
    h = net.transpose(net.linear(net.input("x", UNITS, READ, 5), "first", 5, UNITS), *perm)
    state = net("Unsqueeze", net.transpose(net.linear(net.input("s", UNITS, 5), "start", 5, UNITS), 1, 0), net.ints(0))
    y = cell(net, "GRU", h, rest=("", state))[0]
    y = net.linear(net.transpose(net("Squeeze", y, net.ints(1)), 2, 0, 1), "by_batch", UNITS, 3)
    y = net.linear(net.transpose(y, 0, 2, 1), "by_step", UNITS, 3)
    held(net, y)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("state", ["", "stored", "given"])
def test_a_causal_convolution(bias: bool, state: str) -> None:
    """Depthwise along the steps, with its last steps as a state; only the reference has a kernel."""
    net = Net(opset=27)
    h = net.transpose(net.linear(net.input("x", BATCH, STEPS, 5), "first", 5, READ), 0, 2, 1)
    given = [net.weight("w", READ, 1, 3), net.weight("b", READ) if bias else ""]
    given += [net.input("state", BATCH, READ, 2)] if state == "given" else []
    given += [net.weight("state", BATCH, READ, 2)] if state == "stored" else []
    made = net.many("CausalConvWithState", 2, h, *given, activation="silu")
    outputs = [net.linear(net.transpose(one, 0, 2, 1), f"last_{at}", READ, 3) for at, one in enumerate(made)]
    free = "last_0 last_1"
    found = held_by_reference(net, *outputs, move="" if state == "given" else free,
                              stay=f"first {free}" if state == "given" else "first")  # fmt: skip
    moving = {member.name for one in found.classes for member in one.members}
    assert ("w" in moving) == (state != "given")
    assert ("state" in moving) == (state == "stored")
