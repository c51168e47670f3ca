"""Recurrent layers (LSTM, GRU, RNN) as torch functions, in both directions.

torch's own layers do the work where they mean the same; peepholes, lengths, clips and other activations go step by
step. Gates change places on the way: ONNX has LSTM as i o f c and GRU as z r h, torch as i f c o and r z h.
"""

from __future__ import annotations

import torch

from onnxsparse.engines.torch.operators.cells import Cell, gru_step, lstm_step, rnn_step, run
from onnxsparse.engines.torch.operators.values import Outputs, Tensor


def RNN(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    output_sequence: int = 0,
) -> Outputs:
    cell = Cell(
        rnn_step, W, R, B, None, direction, activations or ["Tanh"] * 2, activation_alpha, activation_beta, clip
    )
    states = [_state(initial_h, layout)]
    kinds = {name.lower() for name in cell.activations}
    plain = clip is None and len(kinds) == 1 and kinds <= {"tanh", "relu"}
    if plain and _whole(X, sequence_lens, layout):
        function = torch.rnn_tanh if kinds == {"tanh"} else torch.rnn_relu
        return _laid_out(_native(function, _steps(X, layout), cell, states, None), layout)
    return _laid_out(run(_steps(X, layout), cell, states, sequence_lens), layout)


def GRU(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
    output_sequence: int = 0,
) -> Outputs:
    names = activations or ["Sigmoid", "Tanh"] * 2
    cell = Cell(
        gru_step, W, R, B, None, direction, names, activation_alpha, activation_beta, clip, bool(linear_before_reset)
    )
    states = [_state(initial_h, layout)]
    plain = clip is None and _alternate(names, ("sigmoid", "tanh")) and linear_before_reset
    if plain and _whole(X, sequence_lens, layout):
        return _laid_out(_native(torch.gru, _steps(X, layout), cell, states, (1, 0, 2)), layout)
    return _laid_out(run(_steps(X, layout), cell, states, sequence_lens), layout)


def LSTM(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    P: Tensor | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
    output_sequence: int = 0,
) -> Outputs:
    names = activations or ["Sigmoid", "Tanh", "Tanh"] * 2
    cell = Cell(lstm_step, W, R, B, P, direction, names, activation_alpha, activation_beta, clip, bool(input_forget))
    states = [_state(initial_h, layout), _state(initial_c, layout)]
    plain = clip is None and P is None and not input_forget and _alternate(names, ("sigmoid", "tanh", "tanh"))
    if plain and _whole(X, sequence_lens, layout):
        return _laid_out(_native(torch.lstm, _steps(X, layout), cell, states, (0, 2, 3, 1)), layout)
    return _laid_out(run(_steps(X, layout), cell, states, sequence_lens), layout)


def _alternate(names: list[str], wanted: tuple[str, ...]) -> bool:
    return all(name.lower() == wanted[index % len(wanted)] for index, name in enumerate(names))


def _steps(X: Tensor, layout: int) -> Tensor:
    return X.transpose(0, 1) if layout else X


def _state(state: Tensor | None, layout: int) -> Tensor | None:
    return state.transpose(0, 1) if layout and state is not None else state


def _whole(X: Tensor, lengths: Tensor | None, layout: int) -> bool:
    """Whether every sample lasts to the end."""
    return lengths is None or bool((lengths >= X.shape[1 if layout else 0]).all())


def _laid_out(results: Outputs, layout: int) -> Outputs:
    """(steps, directions, batch, hidden) or, with layout 1, batch first."""
    if not layout:
        return results
    Y, *states = results
    return (Y.permute(2, 0, 1, 3), *(state.transpose(0, 1) for state in states))


def _native(
    function: object, X: Tensor, cell: Cell, given: list[Tensor | None], gates: tuple[int, ...] | None
) -> Outputs:
    """One call of torch's own layer."""
    assert callable(function)
    steps, batch, width = X.shape
    states = [cell.start(state, X) for state in given]
    if cell.W.shape[2] != width or any(state.shape[1] != batch for state in states):
        raise ValueError(
            f"a recurrent layer for {cell.W.shape[2]} inputs got {list(X.shape)}, or states of another batch"
        )
    backwards = cell.direction == "reverse"
    weights = [one for index in range(cell.directions) for one in _weights(cell, index, gates)]
    hidden = states[0] if len(states) == 1 else states
    results = function(
        X.flip(0) if backwards else X, hidden, weights, cell.B is not None, 1, 0.0, torch.is_grad_enabled(),
        cell.directions == 2, False,
    )  # fmt: skip
    Y = results[0].reshape(steps, batch, cell.directions, -1).transpose(1, 2)
    return (Y.flip(0) if backwards else Y, *results[1:])


def _weights(cell: Cell, index: int, gates: tuple[int, ...] | None) -> list[Tensor]:
    found = [cell.W[index], cell.R[index]]
    if cell.B is not None:
        found += list(cell.B[index].chunk(2))
    if gates is None:
        return found
    return [torch.cat([one.chunk(len(gates))[gate] for gate in gates]) for one in found]
