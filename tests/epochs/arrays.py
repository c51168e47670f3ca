"""A host of plain arrays: what modifiers do, without any engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxsparse.acts.act import TimedAct
from onnxsparse.acts.params import Param
from onnxsparse.acts.trainee import Groups, Trainee
from onnxsparse.schedules import epoch_at


def param(name: str, array: np.ndarray, tag: str = "") -> Param:
    """A convolution, a linear layer with outputs first, or a vector."""
    shape = array.shape
    if array.ndim < 2:
        return Param(tag or name, name, shape, numbers=lambda: array)
    four = (1, shape[0], shape[1], int(np.prod(shape[2:], dtype=int)))
    layer = name.rpartition(".")[0]
    return Param(
        tag or name, name, shape, layers=(layer, layer.replace(".", "/")), prunable=True,
        matrix=lambda flat: flat.reshape(four), restore=lambda view: view.reshape(-1), numbers=lambda: array,
    )  # fmt: skip


class Arrays(Trainee):
    def __init__(self, arrays: dict[str, np.ndarray], per_epoch: int = 4, rate: float = 0.5) -> None:
        super().__init__()
        self.arrays = {name: np.array(array, np.float32) for name, array in arrays.items()}
        self.params = [param(name, array.copy()) for name, array in self.arrays.items()]
        self.per_epoch = per_epoch
        self.masks: dict[str, np.ndarray] = {}
        self.rate, self.decay = [rate, rate], 0.0
        self.still: set[str] = set()
        self.told: list[float] = []
        self.forgotten: list[str] = []

    def numbers(self, param: Param) -> np.ndarray:
        return self.arrays[param.tag].reshape(-1)

    def mask(self, param: Param) -> np.ndarray | None:
        return self.masks.get(param.tag)

    def put(self, param: Param, keep: np.ndarray) -> None:
        self.renewals[param.tag] += 1
        assert keep.dtype == bool
        assert keep.shape == (param.size,)
        self.masks[param.tag] = keep.copy()
        self.arrays[param.tag].reshape(-1)[~keep] = 0

    def release(self, param: Param) -> None:
        self.renewals[param.tag] += 1
        self.masks.pop(param.tag, None)

    def fill(self, param: Param, value: float | Sequence[float]) -> None:
        self.arrays[param.tag].reshape(-1)[...] = value

    def forget(self, param: Param) -> None:
        self.forgotten.append(param.tag)

    def forget_momentum(self) -> None:
        self.forgotten += self.arrays

    def held(self, param: Param) -> bool:
        return param.tag in self.still

    def hold(self, param: Param, still: bool) -> None:
        (self.still.add if still else self.still.discard)(param.tag)

    def rates(self, groups: Groups) -> list[float]:
        return [self.rate[place] for place in groups or range(2)]

    def set_rates(self, rates: Sequence[float], groups: Groups) -> None:
        for place, group in enumerate(groups or range(2)):
            self.rate[group] = rates[place if len(rates) > 1 else 0]

    def set_decay(self, decay: float, groups: Groups) -> None:
        self.decay = decay

    def tell(self, epoch: float) -> None:
        self.told.append(epoch)

    def train(self, step: int) -> None:
        """Every number that is free moves, those that were pruned too."""
        noise = np.random.default_rng(step).standard_normal
        for name, array in self.arrays.items():
            array += 0.01 * noise(array.shape).astype(np.float32)
            if name in self.masks:
                array.reshape(-1)[~self.masks[name]] = 0

    def sparsity(self, name: str) -> float:
        return 1 - np.count_nonzero(self.arrays[name]) / self.arrays[name].size


def run(
    host: Arrays, acts: Sequence[TimedAct], epochs: float, begin: float = 0.0, finish: bool = True, seen=None
) -> None:
    """Train for so many epochs; `seen` is called at every step, when the acts have acted."""
    for act in acts:
        act.bind(host.params)
        host.admit(act)
    for step in range(round(begin * host.per_epoch), round(epochs * host.per_epoch)):
        for act in acts:
            act.before(host, epoch_at(step, host.per_epoch))
        if seen is not None:
            seen(epoch_at(step, host.per_epoch))
        host.train(step)
        for act in acts:
            act.after(host)
    for act in acts if finish else ():
        act.finish(host)
