"""Acts of modifiers: the hooks that the training loop calls at each step, and acts that go by a clock of epochs.

    act = modifier.act(); act.bind(params)         once, before anything runs: the plan asks the same object
    act.before_step(trainee, step)                 before the loss of a step
    act.before_update(trainee, step)               the gradients are there, the weights have not moved
    act.before_move(trainee), after_move           around the optimizer, for what trains in place of the weights
    act.after_step(trainee, step)                  the weights have moved
    act.finish(trainee)                            after the last step

What changes while it runs is in `state`, which a checkpoint holds; `restore` with the state that an act had before its
first step makes it as it was then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from onnx import ModelProto

from onnxsparse.acts.params import ALL_PRUNABLE, Param
from onnxsparse.acts.trainee import Groups, Trainee
from onnxsparse.engines.engine import Spec
from onnxsparse.graph.model import Model
from onnxsparse.math.values import Array
from onnxsparse.patterns.pattern import Pattern
from onnxsparse.planning.plan import PlanRow
from onnxsparse.schedules import Clock, Span
from onnxsparse.scores import Score

MASK = "mask"
SHOWN = 8


@dataclass(frozen=True, eq=False)
class FinalMask:
    """What the mask of a parameter is in the end: so many units of a pattern go, or those outside a given mask."""

    pattern: Pattern
    drop: int
    keep: Array | None = None
    shared: bool = False
    """Whether the count depends on other parameters, and so on the training."""
    stays: bool = True
    """Whether the mask is still there at the end."""


class Run(Protocol):
    """What acts ask of the run that they are in; `train.loop.Run` is one."""

    @property
    def task(self) -> Any: ...

    @property
    def training(self) -> Any: ...

    @property
    def total(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    @property
    def seed(self) -> int: ...

    @property
    def loss(self) -> float:
        """Of the last step."""

    @property
    def planned(self) -> Mapping[str, PlanRow]: ...

    @property
    def pruned_share(self) -> float: ...

    @property
    def score(self) -> Score: ...

    @property
    def final_from(self) -> int:
        """The step from which the masks are the final ones."""

    def probe_loss(self) -> float: ...

    def untrained_loss(self) -> float: ...

    def note_probe(self, loss: float) -> None: ...

    def note(self, note: str) -> None: ...

    def recalibrated(self, drops: Mapping[str, int]) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
        """What is kept of each weight, flat, and new numbers, by tag, when so many units of each go from the network
        as it is now."""

    def keep_as_best(self) -> None:
        """The state as it is now is the best so far."""


class Act:
    """A modifier at work in a run; a hook that is not needed is left as it is."""

    # -- the segments of a run: stretches of steps with one training graph each

    def boundaries(self, trainee: Trainee) -> Iterable[int]:
        """Steps before which the training graph changes: each begins a segment."""
        return ()

    def shape(self, trainee: Trainee, spec: Spec, step: int) -> Spec:
        """The training graph that is wanted from a step on."""
        return spec

    def leave(self, trainee: Trainee, step: int) -> None:
        """Another graph comes before this step; the trainee still has the old one."""

    def enter(self, trainee: Trainee, step: int) -> None:
        """The trainee has the new graph, with all that it shares with the old one."""

    def final_from(self, trainee: Trainee) -> int:
        """The step from which on everything but the weights stands still."""
        return 0

    def delivered(self, spec: Spec) -> Spec:
        """The graph of what is measured in the end and delivered, made of that of the last segment."""
        return spec

    # -- the steps

    def before_step(self, trainee: Trainee, step: int) -> None:
        """Before the loss of a step; its batch is known."""

    def before_update(self, trainee: Trainee, step: int) -> None:
        """The gradients are there, the weights have not moved."""

    def before_move(self, trainee: Trainee) -> None:
        """The optimizer is next, and all acts have acted: what it moves has to stand in the weights."""

    def after_move(self, trainee: Trainee) -> None:
        """It is done, or left the step out: what the model computes with has to stand there. Last acts come first."""

    def after_step(self, trainee: Trainee, step: int) -> None:
        """The weights have moved."""

    def ended(self, step: int) -> Iterable[int]:
        """The numbers of stages of the run, if any, whose last step this was: each is handed over as it is."""
        return ()

    def finish(self, trainee: Trainee) -> None:
        """All steps are done; the weights may be changed for the last time."""

    # -- what a checkpoint holds

    def state(self) -> dict[str, Any]:
        """What a resumed run has to know, for JSON."""
        return {}

    def restore(self, state: dict[str, Any], trainee: Trainee) -> None:
        """Take a state over."""

    def arrays(self) -> Mapping[str, Array]:
        """Live arrays that belong to the state, under names that no other act and no trainee has."""
        return {}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Take them over from all arrays of a checkpoint; called before `restore`."""


class TimedAct(Act):
    """An act that goes by a clock of epochs; one that does nothing but last is this."""

    by_gradients: bool = False
    """Whether it looks at the gradients of every step: then it acts when they are there, not before the loss."""
    number: int = -1
    """Among the acts of its trainee."""
    told_few: bool = False
    """Whether it was said that gradients were fewer than asked for."""

    def __init__(self, where: str, span: Span) -> None:
        self.where, self.clock = where, Clock(span)

    @property
    def span(self) -> Span:
        return self.clock.span

    # -- what is known before anything runs

    def bind(self, params: Sequence[Param]) -> None:
        """Find the parameters; refuse what cannot be."""

    def bind_graph(self, model: Model, params: Sequence[Param]) -> None:
        """Find in the graph of an ONNX model what is no parameter; refuse what the graph does not allow."""

    def changed_graph(self, proto: ModelProto) -> Sequence[str]:
        """Do to the graph that is delivered, in place, what is not done by numbers; what has to be said of it."""
        return ()

    def demand_plan(self, rows: Iterable[PlanRow]) -> None:
        """Refuse zeros that the whole recipe makes and that do not go with it."""

    def removed(self) -> Mapping[str, str]:
        """By tag, the stored tensors that the result has not, and why."""
        return {}

    def layers(self) -> str | Sequence[str]:
        """The layers that it speaks of, as a recipe names them."""
        return ()

    def demand_run(self) -> None:
        """Refuse what can be in a user's loop and not in a run of our own."""

    def demand_samples(self, has_samples: bool) -> None:
        """Refuse a user's loop without samples, where it does not go by the gradients of steps."""

    def left_dense(self) -> dict[str, str]:
        """By tag, what it was meant to mask among others and cannot, and why."""
        return {}

    def scales_and_biases(self) -> list[Param]:
        """Scales and biases that it prunes because a word or a pattern means them among others."""
        return []

    def groups(self) -> Groups:
        """The parameter groups of the optimizer that it speaks of."""
        return None

    def masked(self) -> Iterable[Param]:
        """The parameters that have to have a mask."""
        return ()

    def remembered(self) -> Iterable[Param]:
        """Of what it masks, that whose optimizer state in a user's loop stays as it is when places are masked."""
        return self.masked()

    def final_masks(self) -> dict[str, FinalMask]:
        """By tag, what the masks are in the end."""
        return {}

    @property
    def warning(self) -> str:
        """What to say of an act that prunes scales and biases that nobody named; nothing where it does not.

        SparseML prunes them along with the weights, and so it is done here; a normalization whose scale is zero gives
        nothing, and the model can fall to chance.
        """
        found = self.scales_and_biases()
        if not found:
            return ""
        first = f"such as {found[0].name}" if len(found) > 1 else found[0].name
        what = "scales and biases" if len(found) > 1 else "scale or bias"
        return (
            f"it prunes {len(found)} {what} too ({first}), which can make the model useless; `params: {ALL_PRUNABLE}` "
            "means the weights of layers alone"
        )

    def zeros(self, trainee: Trainee) -> str:
        """How many zeros those scales and biases have by now."""
        params = self.scales_and_biases()
        told = [f"{param.name} {param.size - trainee.count(param)} of {param.size}" for param in params[:SHOWN]]
        more = [f"{len(params) - SHOWN} more"] if len(params) > SHOWN else []
        return f"zeros in scales and biases: {', '.join([*told, *more])}"

    # -- by the clock

    def before(self, trainee: Trainee, epoch: float) -> None:
        """Before a step at an epoch: `begin`, `update` and `end` where the clock says so."""
        tick = self.clock.tick(epoch)
        if tick is None:
            return
        if tick.begins:
            self.begin(trainee, epoch)
        self.update(trainee, epoch)
        if tick.ends:
            self.end(trainee)

    def samples(self, trainee: Trainee) -> bool:
        """Whether the gradients that it goes by are those of samples, and not those of steps."""
        return False

    def tell_few(self, trainee: Trainee, seen: int, wanted: int, otherwise: str = "") -> None:
        """Say once that gradients were fewer than `num_grads`, and what is done where there were none."""
        if seen < wanted and not self.told_few:
            self.told_few = True
            where = "samples gave" if self.samples(trainee) else "steps had given"
            few = f"{seen} of the {wanted} gradients" if seen else "none of the gradients"
            trainee.note(f"{self.where}: {where} {few} that num_grads asks for{'' if seen else otherwise}")

    def gather(self, trainee: Trainee, epoch: float) -> None:
        """The gradients of a step are there; called at every one before `before`, where it acts by gradients."""

    def after(self, trainee: Trainee) -> None:
        """The weights have moved."""

    def begin(self, trainee: Trainee, epoch: float) -> None:
        """Its first step comes."""

    def update(self, trainee: Trainee, epoch: float) -> None:
        """A step comes at which it acts, the first and the last ones included."""

    def take_mask(self, param: Param, keep: Array) -> None:
        """A mask of a checkpoint that holds nothing else of it, as those of SparseML's manager."""

    def end(self, trainee: Trainee) -> None:
        """Its last step has come."""

    # -- by the steps of a run

    def shape(self, trainee: Trainee, spec: Spec, step: int) -> Spec:
        """What it masks has a mask in the graph, unless another act gave it a sparser."""
        missing = [param.tag for param in self.masked() if param.tag not in spec.sparsers]
        return spec.with_sparsers({**spec.sparsers, **dict.fromkeys(missing, MASK)}) if missing else spec

    def final_from(self, trainee: Trainee) -> int:
        """The step at which its masks are the last ones."""
        if not list(self.masked()):
            return 0
        last = max(self.span.end if self.span.end >= 0 else self.span.start, 0.0)
        return min(trainee.total, trainee.step_at(last))

    def before_step(self, trainee: Trainee, step: int) -> None:
        if not self.by_gradients:
            self.before(trainee, trainee.epoch_at(step))

    def before_update(self, trainee: Trainee, step: int) -> None:
        if self.by_gradients:
            self.gather(trainee, trainee.epoch_at(step))
            self.before(trainee, trainee.epoch_at(step))

    def after_step(self, trainee: Trainee, step: int) -> None:
        self.after(trainee)

    def finish(self, trainee: Trainee) -> None:
        """The run is over; one that has an end comes to it."""
        if not self.clock.ended and self.span.end >= 0:
            self.before(trainee, max(self.span.end, self.clock.last))

    def state(self) -> dict[str, Any]:
        return {"clock": self.clock.state()}

    def restore(self, state: dict[str, Any], trainee: Trainee) -> None:
        self.clock.restore(state["clock"])
