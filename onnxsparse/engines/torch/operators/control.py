"""Control flow (If, Loop, Scan) as torch modules; what a body reads from outside comes behind its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from onnxsparse.engines.fake_quantization import FakeQuantize as Said
from onnxsparse.engines.torch.fake_quantization import fake
from onnxsparse.engines.torch.operators.values import Outputs, Tensor


class If(torch.nn.Module):  # type: ignore[misc]
    """`taken` says how many of the captures belong to the first branch."""

    def __init__(self, then_branch: Any, else_branch: Any, taken: int) -> None:
        super().__init__()
        self.then_branch, self.else_branch, self.taken = then_branch, else_branch, taken

    def forward(self, cond: Tensor, *captures: Tensor) -> Outputs:
        found = self.then_branch(*captures[: self.taken]) if cond else self.else_branch(*captures[self.taken :])
        return _tuple(found)


class Loop(torch.nn.Module):  # type: ignore[misc]
    """`states` are carried from step to step; what else the body puts out is stacked, as many as `stacked`."""

    def __init__(self, body: Any, states: int, stacked: int) -> None:
        super().__init__()
        self.body, self.states, self.stacked = body, states, stacked

    def forward(self, M: Tensor | None, cond: Tensor | None, *given: Tensor) -> Outputs:
        states, captures = list(given[: self.states]), given[self.states :]
        steps: list[Outputs] = []
        count = None if M is None else int(M)
        device = M.device if M is not None else cond.device if cond is not None else None
        running = torch.tensor(True, device=device) if cond is None else cond
        while bool(running) and (count is None or len(steps) < count):
            step = torch.tensor(len(steps), dtype=torch.int64, device=device)
            running, *results = _tuple(self.body(step, running, *states, *captures))
            states = results[: self.states]
            steps.append(tuple(results[self.states :]))
        if not steps:
            return (*states, *(torch.zeros(0, device=device) for _ in range(self.stacked)))
        return (*states, *(torch.stack(parts) for parts in zip(*steps)))


class Scan(torch.nn.Module):  # type: ignore[misc]
    """Steps through slices of its last inputs, forwards or backwards, along any axis."""

    def __init__(
        self,
        body: Any,
        states: int,
        scanned: int,
        axes: list[int],
        directions: list[int],
        output_axes: list[int],
        output_directions: list[int],
    ) -> None:
        super().__init__()
        self.body, self.states, self.scanned = body, states, scanned
        self.axes, self.directions = axes, directions
        self.output_axes, self.output_directions = output_axes, output_directions

    def forward(self, *given: Tensor) -> Outputs:
        states = list(given[: self.states])
        stop = self.states + self.scanned
        slices = [
            (x.flip(axis) if backwards else x).unbind(axis)
            for x, axis, backwards in zip(given[self.states : stop], self.axes, self.directions)
        ]
        steps = []
        for parts in zip(*slices):
            results = _tuple(self.body(*states, *parts, *given[stop:]))
            states = list(results[: self.states])
            steps.append(results[self.states :])
        ways = zip(zip(*steps), self.output_axes, self.output_directions)
        stacked = [torch.stack(list(reversed(parts)) if backwards else parts, axis) for parts, axis, backwards in ways]
        return (*states, *stacked)


class BatchedScan(torch.nn.Module):  # type: ignore[misc]
    """Scan as it was at opset 8: a sample at a time, each with its own length, along axis 1."""

    def __init__(self, scan: Scan) -> None:
        super().__init__()
        self.scan = scan

    def forward(self, sequence_lens: Tensor | None, *given: Tensor) -> Outputs:
        own = self.scan.states + self.scan.scanned
        batch = given[0].shape[0]
        found = []
        for sample in range(batch):
            parts = [one[sample] for one in given[:own]]
            if sequence_lens is not None:
                stop = int(sequence_lens[sample])
                parts = parts[: self.scan.states] + [one[:stop] for one in parts[self.scan.states :]]
            found.append(self.scan(*parts, *given[own:]))
        return tuple(torch.nn.utils.rnn.pad_sequence(parts, batch_first=True) if parts[0].dim() else torch.stack(parts)
                     for parts in zip(*found))  # fmt: skip


class BatchNorm(torch.nn.Module):  # type: ignore[misc]
    """Normalises with the statistics of the batch and follows them while it trains; a fixed map in eval mode."""

    def __init__(self, epsilon: float, momentum: float) -> None:
        super().__init__()
        self.epsilon, self.momentum = epsilon, momentum

    def forward(self, X: Tensor, scale: Tensor, B: Tensor, input_mean: Tensor, input_var: Tensor) -> Outputs:
        Y = torch.nn.functional.batch_norm(
            X, input_mean, input_var, scale, B, self.training, 1 - self.momentum, self.epsilon
        )
        return Y, input_mean, input_var


def _tuple(found: Any) -> Outputs:
    return found if isinstance(found, tuple) else (found,)


class FakeQuantize(torch.nn.Module):  # type: ignore[misc]
    """Fake quantization as a training graph has it; the student gives it scale and zero point.

    `ends` are the least and the greatest number of what it was last given, where that is observed.
    """

    def __init__(self, said: Said, shape: Sequence[int]) -> None:
        super().__init__()
        self.said, self.shape, self.rounds, self.observing = said, tuple(shape), True, False
        self.axis = next((axis for axis, size in enumerate(shape) if size > 1), None)
        self.scale = self.zero_point = self.ends = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.rounds:
            return x
        if self.observing:
            self.ends = torch.stack(torch.aminmax(x.detach().float()))
        return fake(x, self.scale, self.zero_point, self.said.grid, self.axis)
