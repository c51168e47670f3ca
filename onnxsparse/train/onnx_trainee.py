"""An ONNX model as what is trained, in whatever engine: live weights and masks by tag, optimizer settings, steps.

1. It has one engine, with one training graph, at a time. `rebuild` makes the engine of another graph and carries over
   what both know by the same tag, optimizer state included; there are never two engines at once.
2. What acts say of the learning rate, of weight decay and of frozen parameters holds until they say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from onnxsparse.acts.act import MASK, TimedAct
from onnxsparse.acts.params import Param
from onnxsparse.acts.trainee import Groups, Trainee
from onnxsparse.engines.engine import Batch, Engine, Pace, Spec
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.planning.quantization import Scheme
from onnxsparse.sparsers.mask_updates import hide, write
from onnxsparse.train.fake_quantization import FakeQuantization

IDLE = "idle/"
OLDER = (
    "the checkpoints are of an earlier version, which did not keep what each of several modifiers masks in one weight; "
    "begin the run again, in another folder"
)


class Idle:
    """What skipped layers have: numbers, masks and optimizer state, by the keys of an engine's state.

    A weight that no engine had yet has the numbers of the file.
    """

    def __init__(self, tags: frozenset[str]) -> None:
        self.tags, self.arrays, self.counts = tags, dict[str, Array](), dict[str, int]()

    @classmethod
    def of(cls, tags: frozenset[str], arrays: Mapping[str, Array], counts: Mapping[str, int]) -> Idle:
        """What a state says of some tags."""
        made = cls(tags)
        made.arrays = {key: np.array(array) for key, array in arrays.items() if _tag_in(key) in tags}
        made.counts = {key: count for key, count in counts.items() if key.partition("/")[0] in tags}
        return made

    def weight(self, param: Param) -> Array:
        if f"weight/{param.tag}" not in self.arrays:
            assert param.numbers is not None
            self.arrays[f"weight/{param.tag}"] = np.array(param.numbers(), np.float32).reshape(param.shape)
        return self.arrays[f"weight/{param.tag}"]

    def mask(self, param: Param) -> Array:
        return self.arrays.setdefault(f"frozen/{param.tag}/{MASK}", np.ones(param.shape, np.float32))

    def clear_moments(self, tag: str, where: Array | None) -> None:
        for key in [key for key in self.arrays if key.partition("/")[2] == tag and not key.startswith("weight/")]:
            if where is None:
                self.counts.pop(tag, None)
                del self.arrays[key]
            else:
                self.arrays[key][where.reshape(self.arrays[key].shape)] = 0


def _tag_in(key: str) -> str:
    return key.split("/")[1] if "/" in key else ""


@contextmanager
def _opened(masked: Sequence[tuple[Array, Array]]) -> Iterator[None]:
    """Masks, each behind its weight, that hide nothing for a while: numbers are zero where they were."""
    kept = [mask != 0 for _, mask in masked]
    for weight, mask in masked:
        hide(weight, mask)
        mask[...] = 1
    try:
        yield
    finally:
        for (_, mask), keep in zip(masked, kept):
            mask[...] = keep


class OnnxTrainee(Trainee):
    """A stored model and its engine. `make` makes the engine of a graph; `caution` is what rates are multiplied with.

    `note` puts a sentence into the report, `told` asks for a row of the history after this step.
    """

    engine: Engine
    """The engine of this segment: not to be kept, for the next one has its own."""

    def __init__(
        self,
        make: Callable[[Spec], Engine],
        params: Sequence[Param],
        per_epoch: int,
        total: int,
        caution: float = 1.0,
        note: Callable[[str], None] = lambda _: None,
        told: Callable[[], None] = lambda: None,
        fake: FakeQuantization | None = None,
        batches: Callable[[], Iterator[Batch]] | None = None,
    ) -> None:
        super().__init__()
        self.fake, self.batches = fake, batches
        self.quantization = "" if fake is None else fake.text
        self._make, self._note, self._told = make, note, told
        self.params, self.per_epoch, self.total, self.caution = params, per_epoch, total, caution
        self.settings = Pace(0.0)
        self.spec: Spec | None = None
        """What the engine was made by."""
        self._batch: Batch | None = None
        self._rate: float | None = None
        self._decay: float | None = None
        self._held: set[str] = set()
        self._idle = Idle(frozenset())

    # -- the training graph

    def build(self, spec: Spec) -> None:
        """Have the engine of a graph, in whatever state."""
        self.__dict__.pop("engine", None)  # before the new one is made: two may not fit into memory
        self.engine, self.spec = self._make(spec), spec
        self._idle = Idle(spec.idle)

    def rebuild(self, spec: Spec) -> None:
        """Change the graph, and go on from where the old one was."""
        arrays, facts = self.engine.state()
        kept = {**self._idle.arrays, **{key: array.copy() for key, array in arrays.items()}}
        del arrays  # they are the old engine's memory
        facts = {**facts, "counts": {**self._idle.counts, **facts.get("counts", {})}}
        self.build(spec)
        self._idle = Idle.of(spec.idle, kept, facts["counts"])
        self.engine.restore(kept, facts)

    def demand(self, act: TimedAct) -> None:
        act.demand_run()
        groups = act.groups()
        if groups is not None and 0 not in groups:
            raise OptionError(
                f"{act.where}: param_groups {list(groups)} are not there: all parameters of a run are one group, "
                "number 0; take it out, or read the recipe with --lenient"
            )
        if groups is not None and list(groups) != [0]:
            self._note(f"{act.where}: of its param_groups there is number 0, which all parameters of a run are in")

    # -- numbers and masks

    def numbers(self, param: Param) -> Array:
        weight, mask = self._weight(param), self._mask(param)
        if mask is not None:
            hide(weight, mask)
        return weight.reshape(-1)

    def hidden_numbers(self, param: Param) -> Array:
        return self._weight(param).reshape(-1)

    def count(self, param: Param) -> int:
        return int(np.count_nonzero(self._weight(param)))

    def mask(self, param: Param) -> Array | None:
        mask = self._mask(param)
        return None if mask is None else mask.reshape(-1) != 0

    def put(self, param: Param, keep: Array) -> None:
        self.renewals[param.tag] += 1
        mask = self._mask(param)
        if mask is None and param.matrix is None:  # a weight without a mask in the graph is pruned after the run
            self._note(f"'{param.name}' is not pruned: it does not train in this graph")
        if mask is not None and write(self._weight(param), mask, keep).changed:
            self.clear_moments(param.tag, mask == 0)

    def release(self, param: Param) -> None:
        self.renewals[param.tag] += 1
        mask = self._mask(param)
        if mask is not None:
            hide(self._weight(param), mask)
            mask[...] = 1

    def fill(self, param: Param, value: float | Sequence[float] | Array) -> None:
        if param.tag in self.engine.weights or self._is_idle(param):
            weight = self._weight(param)
            numbers = np.asarray(value, np.float32).reshape(-1)
            weight[...] = np.broadcast_to(numbers, (weight.size,)).reshape(weight.shape)

    # -- gradients

    def gradient(self, param: Param) -> Array | None:
        return self._gradients({param.tag}).get(param.tag)

    def _gradients(self, tags: set[str]) -> dict[str, Array]:
        """The means over the pieces of a batch; none where half precision could not hold one of them."""
        if self.engine.overflowed:
            return {}
        pieces = np.float32(max(1, self.engine.pieces))
        found = {tag: one.reshape(-1) / pieces for tag, one in self.engine.gradients().items() if tag in tags}
        return found if all(np.isfinite(one).all() for one in found.values()) else {}

    def scale_gradient(self, param: Param, factors: Array) -> None:
        self.engine.scale_gradients({param.tag: factors.reshape(param.shape)})

    @contextmanager
    def opened(self, params: Sequence[Param]) -> Iterator[None]:
        with _opened([(self._weight(param), mask) for param in params if (mask := self._mask(param)) is not None]):
            yield

    @property
    def has_samples(self) -> bool:
        return self.batches is not None

    def sample_gradients(
        self, params: Sequence[Param], count: int, options: Mapping[str, Any] | None = None
    ) -> Iterator[Mapping[str, Array]]:
        """Of the batches of steps that come; no step is on its way before the first gradient of it is there.

        Of a stream that is that of this step alone.
        """
        tags = {param.tag for param in params}
        before = self._statistics()
        for batch in [self._batch] if self.batches is None else islice(self.batches(), count):
            assert batch is not None
            self.engine.discard_gradients()
            self.engine.step(batch)
            while self.engine.overflowed:
                self.engine.update(self.settings)  # moves nothing, and scales the loss up less
                self.engine.step(batch)
            found = self._gradients(tags)
            if found:
                yield found
        self.engine.discard_gradients()
        for tag, numbers in before.items():
            self.engine.weights[tag][...] = numbers

    def _statistics(self) -> dict[str, Array]:
        """Copies of what every step of the engine moves, where normalizations train."""
        if self.spec is None or not self.spec.train_bn:
            return {}
        return {tag: np.array(numbers) for tag, numbers in self.engine.weights.items()}

    def _weight(self, param: Param) -> Array:
        """The live numbers; of what no gradient reaches, those it begins with."""
        if self._is_idle(param):
            return self._idle.weight(param)
        if param.tag not in self.engine.weights:
            assert param.numbers is not None
            return param.numbers()
        return self.engine.weights[param.tag]

    def _is_idle(self, param: Param) -> bool:
        """Whether its layer is skipped."""
        return self.spec is not None and param.tag in self.spec.idle

    def _mask(self, param: Param) -> Array | None:
        if self._is_idle(param):
            return self._idle.mask(param)
        known = param.tag in self.engine.weights
        return self.engine.frozen.get(f"{param.tag}/{MASK}") if known else None

    # -- optimizer settings

    def forget(self, param: Param) -> None:
        self.clear_moments(param.tag)

    def forget_momentum(self) -> None:
        """Whatever the optimizer keeps."""
        for tag in (*self.engine.weights, *self._idle.tags):
            self.clear_moments(tag)

    def held(self, param: Param) -> bool:
        return param.tag in self._held

    def hold(self, param: Param, still: bool) -> None:
        (self._held.add if still else self._held.discard)(param.tag)

    def rates(self, groups: Groups) -> list[float]:
        return [self.settings.rate / self.caution if self._rate is None else self._rate]

    def set_rates(self, rates: Sequence[float], groups: Groups) -> None:
        self._rate = rates[0]

    def set_decay(self, decay: float, groups: Groups) -> None:
        self._decay = decay

    def tell(self, epoch: float) -> None:
        self._told()

    def note(self, note: str) -> None:
        self._note(note)

    # -- fake quantization

    @property
    def _rounds(self) -> FakeQuantization | None:
        """Where the graph as it is now has it."""
        return self.fake if self.spec is not None and self.spec.quantization else None

    def quantize(self, scheme: Scheme) -> None:
        """The task has decided what the scheme means in this model, and an act has asked for the graph."""
        self.calibrate()

    def calibrate(self) -> None:
        """Scales are those of the network as it is now."""
        if self._rounds is not None:
            self._rounds.begin(self.engine)

    def stop_observing(self) -> None:
        if self.fake is not None:
            self.fake.stop()

    def rescale(self) -> None:
        """Scales are those of the weights as they are now, before these are measured or kept."""
        if self._rounds is not None:
            self._rounds.before_step(self.engine)

    def scales(self) -> dict[str, Array]:
        """Copies of scales and zero points, where the graph has some."""
        return {} if self._rounds is None else self._rounds.arrays(self.engine)

    # -- steps

    @property
    def weights(self) -> Mapping[str, Array]:
        return self.engine.weights

    @property
    def frozen(self) -> Mapping[str, Array]:
        return self.engine.frozen

    def meet(self, batch: Batch) -> None:
        """The batch of the next step, before acts see it."""
        self._batch = batch

    def settle(self) -> None:
        """What acts said is in the settings of this step, and what they wrote is the same in all processes."""
        said: dict[str, Any] = {}
        if self._rate is not None:
            said["rate"] = self._rate * self.caution
        if self._decay is not None:
            said["decay"] = self._decay
        if self._held:
            said["held"] = frozenset(self._held)
        self.settings = replace(self.settings, **said) if said else self.settings
        if self._rounds is not None:
            self._rounds.before_step(self.engine)
            rates = self._rounds.rates(self.engine, self.settings.rate)
            self.settings = replace(self.settings, rates={**self.settings.rates, **rates})
        self.engine.agree()

    def step(self, batch: Batch) -> float:
        return self.engine.step(batch)

    def update(self) -> bool:
        moved = self.engine.update(self.settings)
        if moved and self._rounds is not None:
            self._rounds.after_step(self.engine)
        return moved

    def dense_gradients(self, tags: Sequence[str]) -> Mapping[str, Array]:
        """They are the engine's own, among those since the last update: whoever asked for them discards them."""
        assert self._batch is not None
        weights, frozen = self.engine.weights, self.engine.frozen
        with _opened([(weights[tag], frozen[f"{tag}/{MASK}"]) for tag in tags]):
            self.engine.discard_gradients()
            self.engine.step(self._batch)
        return self.engine.gradients()

    def discard_gradients(self) -> None:
        self.engine.discard_gradients()

    def clear_moments(self, tag: str, where: Array | None = None) -> None:
        if tag in self._idle.tags:
            self._idle.clear_moments(tag, where)
        else:
            self.engine.clear_moments(tag, where)

    # -- what a checkpoint holds beside the engine's state

    def arrays(self) -> dict[str, Array]:
        """Those of skipped layers."""
        return {IDLE + key: array for key, array in self._idle.arrays.items()}

    def load(self, arrays: Mapping[str, Array]) -> None:
        tags = frozenset() if self.spec is None else self.spec.idle
        self._idle = Idle.of(tags, {key[len(IDLE) :]: one for key, one in arrays.items() if key.startswith(IDLE)}, {})

    def state(self) -> dict[str, Any]:
        said = {"rate": self._rate, "decay": self._decay, "held": sorted(self._held)}
        rounding = {} if self.fake is None else {"fake quantization": self.fake.state()}
        idle = {"idle": self._idle.counts} if self._idle.counts else {}
        return {**said, "masks": self.shared.state(), **rounding, **idle}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._rate, self._decay, self._held = state["rate"], state["decay"], set(state["held"])
        if "masks" not in state and any(self.shared.is_shared(param.tag) for param in self.params):
            raise OptionError(OLDER)
        if self.fake is not None:
            self.fake.restore(state["fake quantization"])
        self._idle.counts = dict(state.get("idle", {}))
        self.shared.restore(state.get("masks", {}), {param.tag: param.size for param in self.params})
