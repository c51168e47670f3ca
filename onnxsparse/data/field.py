"""Model inputs as data fields: what a model takes at one input, and how a user's array is converted to that.

1. Lossless widening within a family of numbers (int32 to int64, float16 to float32, bool to anything) is done silently.
2. Floats are rounded to narrower floats, with a note.
3. Nothing else is converted: whether bytes of an image are to be divided by 255 only the user knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array

LABELS = "labels"
"""The key of the labels in what `take` and `batch` give."""

IGNORED = -100
"""The label of what is to be left out of the loss."""

Shape = tuple[Optional[int], ...]


@dataclass(frozen=True)
class Field:
    """One input as the model declares it. The first axis is the samples; None is a dimension that is free.

    Without a shape the model does not say how many axes there are. `axis` is where the samples are in what the model
    declares; the shape here has them first. `given` says that it was the user who named it. An array may have an axis
    of `steps` behind that of the samples. What is `optional` (a state) begins with zeros where there is no array.
    """

    name: str
    dtype: str
    shape: Shape | None
    axis: int = 0
    given: bool = False
    steps: bool = False
    optional: bool = False

    @property
    def numpy(self) -> np.dtype[Any]:
        """The element type, where NumPy has it and a file can hold it."""
        try:
            found = np.dtype(self.dtype)
        except TypeError:
            found = np.dtype(object)
        if found.kind not in "biufc":
            raise OptionError(f"input '{self.name}' takes {self.dtype}, which training data cannot hold")
        return found

    def is_sample(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape can be samples along its first axis."""
        if self.shape is None:
            return bool(shape)
        if self.has_steps(shape):
            return bool(self.shape) and _fits(shape[2:], self.shape[1:])
        return bool(self.shape) and len(shape) == len(self.shape) and _fits(shape[1:], self.shape[1:])

    def has_steps(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape has an axis of steps."""
        return self.steps and self.shape is not None and len(shape) == max(1, len(self.shape)) + 1

    def is_turned(self, shape: tuple[int, ...]) -> bool:
        """Whether the samples lie along the axis that the model declares, and not along the first one."""
        if not self.axis or self.shape is None or len(shape) != len(self.shape):
            return False
        turned = to_front(shape, self.axis)
        return self.given or self.is_sample(turned) or self.is_whole(turned) or not self.is_sample(shape)

    def is_whole(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape is all that the model declares, batch and all; free axes may have any size."""
        if self.shape is None:
            return False
        if not self.shape or len(shape) != len(self.shape):
            return shape == self.shape
        if self.axis and self.shape[0] is None:  # a state for one sample, which all of them begin with
            return shape[0] == 1 and _fits(shape[1:], self.shape[1:])
        return self.shape[0] is not None and _fits(shape, self.shape)

    def demand_shape(self, shape: tuple[int, ...], source: str) -> None:
        """Say what is wrong with an array that is neither."""
        if self.is_sample(shape) or self.is_whole(shape):
            return
        if self.axis:
            shape = to_back(shape, self.axis) if len(shape) > self.axis else shape
        if self.shape is None:
            wanted = "[samples, ...]"
        elif not self.shape:
            wanted = "one number for all samples"
        else:
            sizes = ["samples", *("any" if size is None else str(size) for size in self.shape[1:])]
            wanted = f"[{', '.join(to_back(sizes, self.axis))}]"
            if self.steps:
                wanted += f", or [samples, steps{''.join(f', {size}' for size in sizes[1:])}]"
        raise OptionError(f"array '{self.name}' of {source} has shape {list(shape)}, the model takes {wanted}")


def to_front(sizes: Sequence[Any], axis: int) -> tuple[Any, ...]:
    """Sizes with those of an axis first."""
    return (sizes[axis], *sizes[:axis], *sizes[axis + 1 :])


def to_back(sizes: Sequence[Any], axis: int) -> tuple[Any, ...]:
    """Sizes with the first one at the place of an axis."""
    return (*sizes[1 : axis + 1], sizes[0], *sizes[axis + 1 :])


def all_ignored(source: str) -> OptionError:
    return OptionError(f"all labels of {source} are {IGNORED}, which leaves a sample out")


def _fits(shape: tuple[int, ...], declared: Shape) -> bool:
    return all(wanted is None or size == wanted for size, wanted in zip(shape, declared))


def demand_type(field: Field, found: np.dtype[Any], source: str) -> str:
    """A note when numbers will be rounded, nothing when they stay; an error where a conversion would be a guess."""
    wanted = field.numpy
    if found == wanted or _widens(found, wanted):
        return ""
    if found.kind == wanted.kind == "f":
        return f"array '{field.name}' of {source} is {found}; it is rounded to {wanted}"
    raise OptionError(f"array '{field.name}' of {source} is {found}, the model takes {wanted}; {_way(found, wanted)}")


def _widens(found: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    kinds = found.kind + wanted.kind
    return found.kind in "biufc" and np.can_cast(found, wanted, "safe") and kinds not in ("uf", "if", "uc", "ic")


def _way(found: np.dtype[Any], wanted: np.dtype[Any]) -> str:
    cast = f"save it as {wanted} (.astype('{wanted}'))"
    if found.kind in "ui" and wanted.kind == "f":
        scaled = "divided by 255, less the mean, ..." if found.itemsize == 1 else "scaled, normalized, ..."
        return f"prepare it as the model was trained ({scaled}) and {cast}"
    if found.kind in "biufc" and wanted.kind in "biufc":
        return f"if nothing is lost by it, {cast}"
    return "save it as an array of plain numbers"


def as_array(value: object, name: str, source: str) -> Array:
    """An array of NumPy, of torch or any other framework, or a list; not copied where that can be."""
    try:
        array = _plain(value)
    except Exception as error:  # whatever the framework makes of it
        raise OptionError(f"'{name}' of {source} is not an array: {' '.join(str(error).split())[:200]}") from error
    if array.dtype.kind not in "biufc":
        raise OptionError(f"array '{name}' of {source} holds {array.dtype}, not plain numbers")
    return array


def _plain(value: Any) -> Array:
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    for step in ("detach", "cpu", "numpy"):  # a tensor that has a gradient or lies on a device needs all three
        method = getattr(value, step, None)
        value = method() if callable(method) else value
    return np.asarray(value)
