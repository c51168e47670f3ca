"""A run as what modifiers act on, and the part that such a modifier plays in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxsparse.engines.engine import Pace
from onnxsparse.engines.spec import Spec
from onnxsparse.epochs.act import Act, demand_one_group
from onnxsparse.epochs.host import Groups, Host
from onnxsparse.epochs.params import Param
from onnxsparse.epochs.small import warnings_of, zeros_of
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.modifiers.modifier import Part
from onnxsparse.rates import in_steps
from onnxsparse.schedules import epoch_at
from onnxsparse.sparsers.mask_updates import hide, write

if TYPE_CHECKING:
    from onnxsparse.runs.run import Run

MASK = "mask"
OLDER = (
    "the checkpoints are of an earlier version, which did not keep what each of several modifiers masks in one weight; "
    "begin the run again, in another folder"
)


class RunHost(Host):
    """The parameters of a run's engine, and its pace: what modifiers say of it holds until they say otherwise."""

    def __init__(self, run: Run, params: Sequence[Param]) -> None:
        super().__init__()
        self._run, self.params, self.per_epoch = run, params, run.per_epoch
        self._rate: float | None = None
        self._decay: float | None = None
        self._held: set[str] = set()

    def paced(self, pace: Pace) -> Pace:
        """The pace with all that modifiers said of it."""
        said: dict[str, Any] = {}
        if self._rate is not None:
            said["rate"] = self._rate * self._run.caution
        if self._decay is not None:
            said["decay"] = self._decay
        if self._held:
            said["held"] = frozenset(self._held)
        return replace(pace, **said) if said else pace

    def knows(self, param: Param) -> bool:
        """Whether a parameter trains in the graph of this time."""
        return param.tag in self._run.engine.weights

    def numbers(self, param: Param) -> Array:
        weight, mask = self._weight(param), self._mask(param)
        if mask is not None:
            hide(weight, mask)
        return weight.reshape(-1)

    def count(self, param: Param) -> int:
        return int(np.count_nonzero(self._weight(param)))

    def mask(self, param: Param) -> Array | None:
        mask = self._mask(param)
        return None if mask is None else mask.reshape(-1) != 0

    def put(self, param: Param, keep: Array) -> None:
        self.renewals[param.tag] += 1
        mask = self._mask(param)
        if mask is None and param.matrix is None:  # a weight is pruned when the run is over
            self._run.note(f"'{param.name}' is not pruned: it does not train in this graph")
        if mask is not None and write(self._weight(param), mask, keep).changed:
            self._run.engine.clear_moments(param.tag, mask == 0)

    def release(self, param: Param) -> None:
        self.renewals[param.tag] += 1
        mask = self._mask(param)
        if mask is not None:
            hide(self._weight(param), mask)
            mask[...] = 1

    def fill(self, param: Param, value: float | Sequence[float]) -> None:
        if self.knows(param):
            weight = self._weight(param)
            weight[...] = np.broadcast_to(np.asarray(value, np.float32).reshape(-1), (weight.size,)).reshape(
                weight.shape
            )

    def forget(self, param: Param) -> None:
        self._run.engine.clear_moments(param.tag)

    def held(self, param: Param) -> bool:
        return param.tag in self._held

    def hold(self, param: Param, still: bool) -> None:
        (self._held.add if still else self._held.discard)(param.tag)

    def rates(self, groups: Groups) -> list[float]:
        return [self._run.pace.rate / self._run.caution if self._rate is None else self._rate]

    def set_rates(self, rates: Sequence[float], groups: Groups) -> None:
        self._rate = rates[0]

    def set_decay(self, decay: float, groups: Groups) -> None:
        self._decay = decay

    def tell(self, epoch: float) -> None:
        self._run.tell()

    def _weight(self, param: Param) -> Array:
        """The live numbers; of what no gradient reaches, those it begins with."""
        weights = self._run.engine.weights
        if param.tag not in weights:
            assert param.numbers is not None
            return param.numbers()
        return weights[param.tag]

    def _mask(self, param: Param) -> Array | None:
        return self._run.engine.frozen.get(f"{param.tag}/{MASK}") if self.knows(param) else None

    def state(self) -> dict[str, Any]:
        said = {"rate": self._rate, "decay": self._decay, "held": sorted(self._held)}
        return {**said, "masks": self.together.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self._rate, self._decay, self._held = state["rate"], state["decay"], set(state["held"])
        if "masks" not in state and any(self.together.is_shared(param.tag) for param in self.params):
            raise OptionError(OLDER)
        self.together.restore(state.get("masks", {}), {param.tag: param.size for param in self.params})


class Acting(Part):
    """An act by the steps of a run."""

    def __init__(self, act: Act, run: Run) -> None:
        self._act, self._host, self._total = act, run.host, run.total
        act.bind(run.host.params)
        demand_one_group(act)
        run.host.take_in(act)
        self._masked = [param.tag for param in act.masked()]
        self._note, self._said = run.note, warnings_of([act])
        for text in self._said:
            run.note(text)

    @property
    def final_from(self) -> int:  # type: ignore[override]
        """The step at which its masks are the last ones."""
        span = self._act.span
        if not self._masked:
            return 0
        return min(self._total, self.step_at(max(span.end if span.end >= 0 else span.start, 0.0)))

    def step_at(self, epoch: float) -> int:
        """The first step that is not before an epoch."""
        near = max(0, in_steps(epoch, self._host.per_epoch) - 1)
        return next(step for step in range(near, near + 3) if epoch_at(step, self._host.per_epoch) >= epoch)

    def shape(self, spec: Spec, step: int) -> Spec:
        missing = [tag for tag in self._masked if tag not in spec.sparsers]
        return spec.with_sparsers({**spec.sparsers, **dict.fromkeys(missing, MASK)}) if missing else spec

    def before_step(self, step: int) -> None:
        self._act.before(self._host, epoch_at(step, self._host.per_epoch))

    def after_update(self, step: int) -> None:
        self._act.after(self._host)

    def finish(self) -> None:
        self._act.finish(self._host)
        if self._said:
            self._note(zeros_of(self._host, self._act.along()))

    def state(self) -> dict[str, Any]:
        return self._act.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._act.restore(state, self._host)
