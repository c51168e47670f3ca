"""Devices, mixed precision and micro-batches: where tensors are, autocast, loss scaling for float16."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from onnxsparse.engines.engine import Batch, DivergedError
from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.graph.model import Model
from onnxsparse.math.values import Array

# -- devices and precision


PRECISIONS = ("float32", "bfloat16", "float16")


@contextmanager
def in_words(doing: str) -> Iterator[None]:
    """What torch cannot do, in one line."""
    try:
        yield
    except torch().OutOfMemoryError as error:
        raise OptionError(
            f"the memory of the device is not enough to {doing}; take a smaller --batch-size, and --accumulate to make "
            "up for it"
        ) from error
    except (RuntimeError, IndexError, ValueError) as error:
        said = str(error).strip().splitlines()
        raise ModelError(f"torch cannot {doing}: {said[0] if said else type(error).__name__}") from error


def device_of(text: str) -> Any:
    """A device by the name that torch has for it, once it was seen to be there."""
    try:
        device = torch().device(text)
        if device.type != "meta":
            torch().zeros(1, device=device).cpu()
            return device
    except Exception:  # each kind of device says in its own way that it is not there
        device = None
    why = "'meta' holds no numbers" if device is not None else f"there is no device {text!r:.40} here"
    raise OptionError(f"{why}; --device is one of {', '.join(here())}")


def here() -> list[str]:
    """The devices of this machine."""
    found = ["cpu"]
    for kind in ("cuda", "xpu"):
        library = getattr(torch(), kind, None)
        if library is not None and library.is_available():
            found += [kind, *(f"{kind}:{number}" for number in range(library.device_count()))]
    return [*found, "mps"] if torch().backends.mps.is_available() else found


def narrowed(device: Any, precision: str) -> Any:
    """Within this, matrices are multiplied in half precision, and what needs more is not."""
    if precision == "float32":
        return torch().autocast(device.type, enabled=False)
    return torch().autocast(device.type, dtype=getattr(torch(), precision))


# -- Batches as tensors, in pieces that a network takes at once.


LABELS = "labels"
ALIKE = 1e-3


class Pieces:
    """`size` samples at a time, on a device; inputs that all samples share come whole with each piece."""

    def __init__(self, inputs: Sequence[str], device: Any, size: int) -> None:
        self._inputs, self._device, self.size = inputs, device, size
        self._shared: set[str] = set()

    def of(self, batch: Batch) -> Iterator[tuple[list[Any], Any]]:
        """Inputs and labels of each piece."""
        own = [array for name, array in batch.arrays.items() if array.ndim and name not in self._shared]
        count = max(map(len, own), default=1)
        for start in range(0, count, self.size):
            rows = slice(start, start + self.size)
            inputs = [self._tensor(self._part(name, batch.arrays[name], rows, count)) for name in self._inputs]
            labels = batch.arrays.get(LABELS)
            yield inputs, None if labels is None else self._tensor(labels[rows])

    def fit(self, samples: Mapping[str, Array], run: Callable[[Batch], dict[str, Array]], declared: int) -> None:
        """Find the size that a network takes: any, where two samples together give what each of them gives.

        Otherwise it is what the file declares, or one.
        """
        count = max((len(array) for array in samples.values() if array.ndim), default=1)
        self._shared = {name for name, array in samples.items() if not array.ndim or len(array) != count}
        some = Batch({name: array if name in self._shared else array[:2] for name, array in samples.items()})
        wanted = self.size
        single, together = self._tried(some, run, 1), self._tried(some, run, 2)
        if single and together and all(_alike(together.get(name), value) for name, value in single.items()):
            self.size = wanted
            return
        self.size = max(declared, 1)
        if wanted % self.size:
            raise OptionError(
                f"the model takes {self.size} samples at a time; make the batch of each process a multiple of that"
            )

    def _tried(self, batch: Batch, run: Callable[[Batch], dict[str, Array]], size: int) -> dict[str, Array] | None:
        self.size = size
        try:
            return run(batch)
        except Exception:  # whatever torch makes of a batch that the graph was not made for
            return None

    def _part(self, name: str, array: Array, rows: slice, count: int) -> Array:
        return array[rows] if array.ndim and len(array) == count and name not in self._shared else array

    def _tensor(self, array: Array) -> Any:
        plain = np.ascontiguousarray(array)
        made = torch().from_numpy(plain if plain.flags.writeable else plain.copy())
        return (made.float() if made.is_floating_point() else made).to(self._device)


def declared(model: Model, samples: Mapping[str, Array], axes: Mapping[str, int]) -> int:
    """How many samples the file says that it takes; 0 where it leaves that open, or all samples share the input.

    `axes` are those of the samples where they are not the first.
    """
    count = max((len(array) for array in samples.values() if array.ndim), default=1)
    by_rows = {name for name, array in samples.items() if array.ndim and len(array) == count}
    values = [value for value in model.proto.graph.input if value.name in by_rows]
    shapes = [(value.type.tensor_type.shape.dim, axes.get(value.name, 0)) for value in values]
    return max((dims[axis].dim_value for dims, axis in shapes if dims), default=0)


def joined(pieces: list[dict[str, Array]]) -> dict[str, Array]:
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([np.atleast_1d(piece[name]) for piece in pieces]) for name in pieces[0]}


def _alike(one: Array | None, other: Array) -> bool:
    if one is None or one.shape != other.shape:
        return False
    with np.errstate(invalid="ignore"):
        far = np.where(one == other, 0.0, np.abs(one - other)).max(initial=0.0)
    return bool(far <= ALIKE * max(float(np.abs(other[np.isfinite(other)]).max(initial=0.0)), 1e-6))


# -- What float16 needs: losses are scaled up, so that small gradients do not vanish, and gradients down again.
#
# A gradient that overflows makes the scale smaller, and its update is left out. Where the scale has become tiny it is
# not float16 that the gradients do not fit into: they are no numbers.


SMALLEST = 1e-4


class Scaling:
    """torch's scaler over some parameters; without `wanted` nothing is scaled."""

    def __init__(self, device: Any, wanted: bool, parameters: Iterable[Any]) -> None:
        self.wanted = wanted
        self._scaler = torch().amp.GradScaler(device.type, enabled=wanted)
        self._parameters = list(parameters)
        self._holder = torch().optim.SGD(self._parameters, lr=0.0)  # what the scaler takes gradients from

    def grown(self, loss: Any) -> Any:
        return self._scaler.scale(loss) if self.wanted else loss

    @property
    def factor(self) -> float:
        """What gradients are multiplied with until `shrink`."""
        return float(self._scaler.get_scale()) if self.wanted else 1.0

    def shrink(self) -> bool:
        """Take the scale off the gradients; False where one of them overflowed."""
        if not self.wanted or all(parameter.grad is None for parameter in self._parameters):
            return True
        self._scaler.unscale_(self._holder)
        before = self._scaler.get_scale()
        self._scaler.update()
        if self._scaler.get_scale() >= before:
            return True
        if self._scaler.get_scale() < SMALLEST:
            raise DivergedError("the gradients are no numbers any more; use a lower --lr, or --precision bfloat16")
        return False

    def state(self) -> dict[str, Any]:
        return dict(self._scaler.state_dict())

    def restore(self, state: Mapping[str, Any]) -> None:
        if self.wanted and state:
            self._scaler.load_state_dict(dict(state))
