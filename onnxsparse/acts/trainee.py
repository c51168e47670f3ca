"""What is trained: one interface for a model's parameters, masks, optimizer settings and training steps.

Three kinds implement it. An ONNX model in onnxruntime-training or in torch (`onnx_trainee`) is stepped by our own loop;
a torch module of the user's (`module_trainee`) is stepped by the user's loop; a file whose masks at one epoch are asked
for (`masks_at_epoch`) does not move at all. What a trainee cannot do it refuses in `demand`, before anything runs.

1. A parameter is known by its `Param`. Numbers and masks are flat arrays in stored order.
2. Where several acts mask the same parameter each has a mask of its own; a place is kept where all of them keep it.
3. The verbs of steps and live arrays are there where the trainee is stepped by our own loop.
"""

from __future__ import annotations

import base64
import warnings
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from onnxsparse.acts.params import Param
from onnxsparse.engines.engine import Batch, Pace
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.planning.quantization import Scheme
from onnxsparse.rates import in_steps
from onnxsparse.schedules import epoch_at

if TYPE_CHECKING:
    from onnxsparse.acts.act import TimedAct

Groups = Optional[Sequence[int]]
"""Some of the optimizer's parameter groups, by number; all of them where there is none."""


class SharedMasks:
    """The masks of acts that share parameters; acts are numbered in the order in which they are added.

    A parameter that a single act masks has that act's mask, and nothing is stored for it here.
    """

    def __init__(self) -> None:
        self._count = 0
        self._owners: Counter[str] = Counter()
        self._keeps: dict[str, dict[int, Array]] = {}

    def add(self, tags: Iterable[str]) -> int:
        """Register one more act by the parameters that it masks; return its number."""
        self._owners.update(set(tags))
        self._count += 1
        return self._count - 1

    def is_shared(self, tag: str) -> bool:
        return self._owners[tag] > 1

    def own(self, tag: str, number: int) -> Array | None:
        return self._keeps.get(tag, {}).get(number)

    def put(self, tag: str, number: int, keep: Array) -> Array:
        """The intersection of all masks, with that of one act replaced."""
        if not self.is_shared(tag):
            return keep
        keeps = self._keeps.setdefault(tag, {})
        keeps[number] = keep.reshape(-1).copy()
        return _intersection(keeps)

    def release(self, tag: str, number: int) -> Array | None:
        """The intersection of all masks but one; None where no other is left."""
        keeps = self._keeps.get(tag, {})
        keeps.pop(number, None)
        return _intersection(keeps) if keeps else None

    def thin(self, tag: str, shape: tuple[int, ...], axis: int, keep: Array) -> None:
        """Leave some places of an axis of the masks of a parameter that had a shape."""
        for number, one in self._keeps.get(tag, {}).items():
            self._keeps[tag][number] = np.compress(keep, one.reshape(shape), axis).reshape(-1)

    def state(self) -> dict[str, Any]:
        """For JSON: one bit for each place, compressed."""
        return {tag: [[number, _packed(keep)] for number, keep in keeps.items()] for tag, keeps in self._keeps.items()}

    def restore(self, state: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        self._keeps = {
            tag: {int(number): _unpacked(text, sizes[tag]) for number, text in keeps} for tag, keeps in state.items()
        }


class Trainee(ABC):
    """A model in training, as acts and loops see it."""

    params: Sequence[Param]
    per_epoch: int
    """Optimizer steps of an epoch; a user's loop may say a number that is not whole."""
    total: int = 0
    """Optimizer steps of the whole run; 0 where the user's loop decides."""
    settings: Pace
    """Rate, decay and clipping of this step, where our own loop takes it."""
    quantization: str = ""
    """What fake quantization rounds in the training graph of our own loop, as `engine.Spec` has it."""
    moves: bool = True
    """Whether steps come between what acts do."""
    caution: float = 1.0
    """What learning rates are multiplied with: less after every attempt that did harm."""

    def __init__(self) -> None:
        self.renewals: Counter[str] = Counter()
        """By tag, how often its mask was put or released."""
        self.shared = SharedMasks()

    # -- epochs and steps

    def epoch_at(self, step: int) -> float:
        """How many epochs are over before a step."""
        return epoch_at(step, self.per_epoch)

    def step_at(self, epoch: float) -> int:
        """The first step that is not before an epoch."""
        # The division may be off by a rounding: the exact step is one of three.
        near = max(0, in_steps(epoch, self.per_epoch) - 1)
        return next(step for step in range(near, near + 3) if self.epoch_at(step) >= epoch)

    # -- masks of several acts

    def demand(self, act: TimedAct) -> None:  # noqa: B027 - one that can do everything refuses nothing
        """Refuse an act that is bound for what this trainee cannot do."""

    def admit(self, act: TimedAct) -> None:
        """Take an act that is bound, and from now on its masks."""
        act.number = self.shared.add(param.tag for param in act.masked())

    def put_for(self, act: TimedAct, param: Param, keep: Array) -> None:
        """The mask of one act; what other acts mask stays masked."""
        self.put(param, self.shared.put(param.tag, act.number, keep))

    def release_for(self, act: TimedAct, param: Param) -> None:
        """Remove the mask of one act; what other acts mask stays masked."""
        keep = self.shared.release(param.tag, act.number)
        if keep is None:
            self.release(param)
        else:
            self.numbers(param)  # writes zeros under the mask, so that a place that opens begins at zero
            self.put(param, keep)

    def own_mask(self, act: TimedAct, param: Param) -> Array | None:
        """True where an act keeps a parameter; None without a mask."""
        if not self.shared.is_shared(param.tag):
            return self.mask(param)
        keep = self.shared.own(param.tag, act.number)
        return np.ones(param.size, bool) if keep is None else keep

    # -- numbers and masks

    @abstractmethod
    def numbers(self, param: Param) -> Array:
        """The numbers of a parameter as they are now: float32, flat in stored order, +0.0 where it is masked."""

    def hidden_numbers(self, param: Param) -> Array:
        """The same as they lie there, whatever they are under the mask."""
        return self.numbers(param)

    def count(self, param: Param) -> int:
        """How many numbers of a parameter are not zero; those under a mask may count."""
        return int(np.count_nonzero(self.numbers(param)))

    @abstractmethod
    def mask(self, param: Param) -> Array | None:
        """True where a parameter is kept, flat; None without a mask."""

    @abstractmethod
    def put(self, param: Param, keep: Array) -> None:
        """Set the mask of a parameter; masked numbers are zero from now on, and so is their optimizer state.

        In a user's loop the state stays where an act has it `remembered`.
        """

    @abstractmethod
    def release(self, param: Param) -> None:
        """Remove the mask of a parameter; its zeros train again."""

    @abstractmethod
    def fill(self, param: Param, value: float | Sequence[float] | Array) -> None:
        """Set all numbers of a parameter: to one number, or to those of an array in stored order."""

    # -- gradients, for acts that go by them

    def gradient(self, param: Param) -> Array | None:
        """The gradient of this step, flat in stored order, 0 where it is masked; None where none comes to it."""
        return None

    def dense_gradient(self, param: Param) -> Array | None:
        """The gradient of this step at every place, masked ones too, where `watch` was told before the loss."""
        return self.gradient(param)

    def scale_gradient(self, param: Param, factors: Array) -> None:  # noqa: B027 - nothing moves
        """Multiply the gradient of this step, place by place."""

    def watch(self, params: Sequence[Param]) -> None:  # noqa: B027 - others take them of samples
        """Keep the gradients at every place of these from the next loss on; of none with an empty list."""

    @contextmanager
    def opened(self, params: Sequence[Param]) -> Iterator[None]:
        """Masks that hide nothing for a while: numbers are zero where they were, so the model gives what it gave, and
        gradients come to every place."""
        yield

    @property
    def has_samples(self) -> bool:
        """Whether gradients can be taken of samples, apart from those of the steps."""
        return False

    def sample_gradients(
        self, params: Sequence[Param], count: int, options: Mapping[str, Any] | None = None
    ) -> Iterator[Mapping[str, Array]]:
        """By tag, the gradients of single batches of samples for the model as it is now, `count` of them or fewer.

        In a user's loop those of the step that is on its way are lost, as in SparseML, and `options` are for whoever
        makes the batches. To be asked in `before_step`, or in a user's loop wherever there is a step.
        """
        raise OptionError("what is trained here has no samples to take gradients of")

    # -- optimizer settings

    @abstractmethod
    def forget(self, param: Param) -> None:
        """Clear the optimizer state of a parameter."""

    @abstractmethod
    def forget_momentum(self) -> None:
        """Clear the momentum of everything that trains."""

    def forget_masked_momentum(self, param: Param) -> None:  # noqa: B027 - a mask has cleared it
        """Clear the momentum at masked places of what is `remembered`."""

    @abstractmethod
    def held(self, param: Param) -> bool:
        """Whether a parameter is frozen."""

    @abstractmethod
    def hold(self, param: Param, still: bool) -> None:
        """Freeze a parameter, or let it train."""

    @abstractmethod
    def rates(self, groups: Groups) -> list[float]:
        """The learning rates as they are now."""

    @abstractmethod
    def set_rates(self, rates: Sequence[float], groups: Groups) -> None:
        """Set the learning rate of each group, or one for all."""

    @abstractmethod
    def set_decay(self, decay: float, groups: Groups) -> None:
        """Set the weight decay of the optimizer."""

    @abstractmethod
    def tell(self, epoch: float) -> None:
        """Report how sparse the model is."""

    def note(self, note: str) -> None:
        """Say something that is found out while it trains, once."""
        warnings.warn(note, stacklevel=2)

    # -- whole layers

    def skip_layers(self, act: TimedAct) -> None:  # noqa: B027 - the training graph of an ONNX model has none of them
        """The layers of an act hand on what comes to them."""

    def put_back_layers(self, act: TimedAct) -> None:  # noqa: B027 - the training graph has them again
        """The layers of an act are as they were."""

    def thin(
        self, act: TimedAct, group: Sequence[Param], dependents: Sequence[Param], outputs: bool, strict: bool
    ) -> None:
        """Take the outputs, or inputs, that are zero in all parameters of a group out of these, and of what depends on
        them along the other axis. `strict` refuses where they are not the same in all of them."""
        raise OptionError(f"{act.where}: what is trained here keeps its sizes")

    # -- fake quantization

    def quantize(self, scheme: Scheme) -> None:
        """Round weights and activations from the next step on, behind their masks; ranges are observed."""
        raise OptionError("what is trained here cannot be quantized")

    def stop_observing(self) -> None:  # noqa: B027 - nothing is observed
        """Ranges stay as they are from now on."""

    def freeze_normalization(self) -> None:  # noqa: B027 - they never move
        """The statistics of normalizations stay as they are from now on."""

    # -- training steps, where our own loop takes them

    @property
    def weights(self) -> Mapping[str, Array]:
        """Live arrays by tag, and by `tag/role` for what a sparser trains beside a weight; writing is heard."""
        raise OptionError(STEPPED_OUTSIDE)

    @property
    def frozen(self) -> Mapping[str, Array]:
        """Live arrays that do not train, by `tag/role`: masks, and what a sparser is fed with."""
        raise OptionError(STEPPED_OUTSIDE)

    def step(self, batch: Batch) -> float:
        """The loss of a batch; its gradient is added to those since the last update."""
        raise OptionError(STEPPED_OUTSIDE)

    def update(self) -> bool:
        """Move the weights by those gradients; False where half precision could not hold them, and the step counts
        nowhere."""
        raise OptionError(STEPPED_OUTSIDE)

    def dense_gradients(self, tags: Sequence[str]) -> Mapping[str, Array]:
        """The gradient at every place of these weights, masked ones too, on the batch of this step."""
        raise OptionError(STEPPED_OUTSIDE)

    def discard_gradients(self) -> None:
        """Drop the gradients since the last update."""
        raise OptionError(STEPPED_OUTSIDE)

    def clear_moments(self, tag: str, where: Array | None = None) -> None:
        """Clear the optimizer state of a live array, or of some of its places."""
        raise OptionError(STEPPED_OUTSIDE)


STEPPED_OUTSIDE = "the training steps of this model are taken by a loop of yours, which has its arrays and gradients"


def _intersection(keeps: Mapping[int, Array]) -> Array:
    return np.asarray(np.logical_and.reduce(list(keeps.values())))


def _packed(keep: Array) -> str:
    return base64.b85encode(zlib.compress(np.packbits(keep).tobytes(), 1)).decode()


def _unpacked(text: str, size: int) -> Array:
    found = np.frombuffer(zlib.decompress(base64.b85decode(text)), np.uint8)
    return np.unpackbits(found, count=size).astype(bool)
