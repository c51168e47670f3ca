"""Training loop of a torch network that computes its own losses, alone or in several processes.

1. A loss is this process's part of that of the whole batch: gradients are summed over the processes, not averaged.
2. Every step is decided by its number: the images, the rate, what is drawn. A run that goes on from a checkpoint ends
   with the same bytes.
3. Running statistics are those of each process's own images; `settle` makes them the mean of all, wherever they are
   saved, measured or exported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxsparse.engines.engine import Pace
from onnxsparse.engines.processes import Processes
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.optimizer_state import TorchOptimizer
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array

ONE_VALUE = "Expected more than 1 value per channel"
"""What torch says of a batch normalization in training whose image has one pixel and whose batch one image."""
NETWORK, OPTIMIZER = "network/", "optimizer/"


@dataclass(frozen=True)
class Plan:
    """How a network trains; `batch` is the number of images of all processes together."""

    total: int
    batch: int
    rate: Callable[[int], float]
    optimizer: Callable[[Any], Any]
    clip: float = 0.0
    teacher: Any = None
    """Another network of the same kind to learn from, in place of labels."""


def optimizer_of(kind: str, options: Mapping[str, Any]) -> Callable[[Any], Any]:
    """What makes an optimizer of torch for parameters."""

    def made(parameters: Any) -> Any:
        try:
            return getattr(torch().optim, kind)(parameters, **options)
        except (ValueError, TypeError) as error:
            raise OptionError(f"trainer.optimizer: {kind} does not take its kwargs: {error}") from error

    return made


class NetworkLoop:
    """A network in training, and how far it is."""

    def __init__(self, network: Any, dataset: Any, plan: Plan, processes: Processes) -> None:
        self.network, self.dataset, self.plan, self.processes = network, dataset, plan, processes
        self.step = 0
        self.parameters = {name: one for name, one in network.named_parameters() if one.requires_grad}
        if not self.parameters:
            raise OptionError("no parameter of the network trains: frozen_layers leave nothing")
        self._optimizer = TorchOptimizer(plan.optimizer, None, self.parameters)
        if processes.count > 1:
            processes.made_same(network.state_dict().values())  # type: ignore[attr-defined]

    @property
    def optimizer(self) -> Any:
        """The optimizer of torch."""
        return self._optimizer.optimizer

    @property
    def per_epoch(self) -> int:
        return int(self.dataset.per_epoch(self.plan.batch))

    @property
    def rate(self) -> float:
        """The rate of the step that comes next, or of the last one."""
        return self.plan.rate(min(self.step, self.plan.total - 1))

    def run(self, before: Callable[[int], None]) -> Iterator[float]:
        """Train to the end; `before` is called before each step. Yields the loss of each step after it was done."""
        while self.step < self.plan.total:
            epoch, begin = divmod(self.step, self.per_epoch)
            given = self.dataset.epoch(
                epoch, self.plan.batch, self.processes.rank, self.processes.count, begin, self._agree
            )
            for batch in given:
                before(self.step)
                self.network.train()
                loss = self._update(batch)
                self.step += 1
                yield loss
                if self.step >= self.plan.total or self.step % self.per_epoch == 0:
                    break
            else:
                if self.step < min((epoch + 1) * self.per_epoch, self.plan.total):
                    raise OptionError("the images of an epoch ran out before its last batch")

    def _update(self, batch: Any) -> float:
        network, plan, total = self.network, self.plan, self.processes.total
        try:
            found = network.losses(batch, total) if plan.teacher is None else network.teach(batch, plan.teacher, total)
        except ValueError as error:
            if ONE_VALUE not in str(error):
                raise
            raise OptionError(
                "batch normalization has one number of each channel to train on: take a batch_size of at least 2, "
                "larger images, or normalize: {type: freeze_bn}"
            ) from error
        loss = sum(found.values())
        whole = total(float(loss.detach()))
        if not math.isfinite(whole):
            parts = ", ".join(f"{name} {float(one.detach()):.4g}" for name, one in found.items())
            raise OptionError(f"the loss is {whole} at iteration {self.step} ({parts}): take a lower lr, or grad_clip")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._sum_gradients()
        if plan.clip:
            torch().nn.utils.clip_grad_norm_(list(self.parameters.values()), plan.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        self._optimizer.step(Pace(1.0), 1.0, whole)
        return whole

    def _sum_gradients(self) -> None:
        if self.processes.count == 1:
            return
        parameters = list(self.parameters.values())
        self.processes.average_gradients(parameters)  # type: ignore[attr-defined]
        for one in parameters:
            if one.grad is not None:
                one.grad.mul_(self.processes.count)

    def _agree(self, size: tuple[int, int]) -> tuple[int, int]:
        """The largest height and width of all processes."""
        found = self.processes.largest(size)
        return int(found[0]), int(found[1])

    def settle(self) -> None:
        """The same running statistics in all processes."""
        if self.processes.count > 1:
            tensors = [one for one in self.network.buffers() if one.is_floating_point()]
            self.processes.average(tensors)  # type: ignore[attr-defined]

    # -- what a checkpoint holds

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Arrays by name and facts for JSON."""
        arrays = {f"{NETWORK}{name}": one for name, one in numbers_of(self.network).items()}
        moments, facts = self._optimizer.state()
        arrays.update({f"{OPTIMIZER}{name}": one for name, one in moments.items()})
        return arrays, {"step": self.step, "batch": self.plan.batch, "optimizer": facts}

    def restore(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        """Go on from there."""
        load_numbers(self.network, part_of(arrays, NETWORK))
        self._optimizer.restore(part_of(arrays, OPTIMIZER), facts["optimizer"])
        self.step = int(facts["step"])


def part_of(arrays: Mapping[str, Array], start: str) -> dict[str, Array]:
    """Those whose names begin so, without that."""
    return {name[len(start) :]: arrays[name] for name in arrays if name.startswith(start)}


def numbers_of(network: Any) -> dict[str, Array]:
    """The state of a network as arrays of their own."""
    return {name: np.array(one.detach().cpu().numpy()) for name, one in network.state_dict().items()}


def load_numbers(network: Any, numbers: Mapping[str, Array]) -> None:
    """The state that `numbers_of` gave; every name has to be there."""
    state = {name: torch().from_numpy(np.array(array)) for name, array in numbers.items()}
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        line = " ".join(str(error).split())[:200]
        raise OptionError(f"the checkpoint is of another network: {line}") from error
