"""The distance between two models: both are run on the same inputs, and all their outputs are compared.

    python -m onnxsparse.engines.ort.worker onnxsparse.passes.compare_process FOLDER

reads `job.json` in the folder and leaves `result.json`, or `error.json` with one line. This runs in a process of its
own (see `compare`), which may die of an odd graph; `stage` says where it is. It does without the library of onnx.

1. Numbers that are not finite and are the same in both models are equal. Where they are not the same there is no
   distance: it is NaN, or infinite, and so is the largest difference.
2. The winner is looked for along an axis that holds classes, and nowhere else.
3. Of states that are carried each model gets its own: what it gave out a step before.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from onnxsparse.engines.inference import NUMPY_TYPES, Feed, Session, Step, random_feeds, sizes_of
from onnxsparse.errors import MissingExtraError, ModelError, OnnxSparseError, OptionError, nearest
from onnxsparse.math.values import Array

JOB, RESULT, ERROR, STAGE = "job.json", "result.json", "error.json", "stage"


@dataclass(frozen=True)
class Distance:
    """One output: how far the sparse model's is from the dense one's over all samples.

    `equal` is the share of equal elements, of whole numbers and texts. What is not finite is counted: in the dense
    model, in the sparse one, and where the two are not the same.
    """

    output: str
    relative: float | None
    largest: float | None
    cosine: float | None
    agreement: float | None
    equal: float | None
    nonfinite: int
    nonfinite_sparse: int
    nonfinite_apart: int


# -- distances


class Comparison:
    """Both models, run side by side; `axes` are those of the classes by output, `states` the output of each state."""

    def __init__(
        self, dense: Session, sparse: Session, axes: Mapping[str, int], states: Mapping[str, str], called: Sequence[str]
    ) -> None:
        self._dense, self._sparse, self._states, self._names = dense, sparse, states, called
        shared = [name for name in dense.outputs if name in sparse.outputs]
        if not shared:
            raise OptionError(
                "the two models have no output of the same name; compare a model with its own sparse form"
            )
        known = {name for name, _, _ in dense.inputs}
        self._taken = [name for name, _, _ in sparse.inputs]
        new = [name for name in self._taken if name not in known]
        if new:
            raise OptionError(f"the sparse model has the input '{new[0]}', which the dense one has not")
        self._sums = {name: _Sums(name, axes.get(name)) for name in shared}
        self._others = _only_in(dense, sparse, "dense") + _only_in(sparse, dense, "sparse")
        self._left: Feed = {}
        self._right: Feed = {}
        self.stage: Callable[[str], None] = lambda _: None

    def add(self, feed: Feed, begins: bool) -> None:
        """One run of both; where a sequence begins, states are those of the feed."""
        carried = self._states if not begins else {}
        left = self._run(self._dense, {**feed, **{name: self._left[name] for name in carried}}, self._names[0])
        given = {**feed, **{name: self._right[name] for name in carried}}
        right = self._run(self._sparse, {name: given[name] for name in self._taken}, self._names[1])
        self._left = {name: left[output] for name, output in self._states.items()}
        self._right = {name: right[output] for name, output in self._states.items()}
        for name, sums in self._sums.items():
            sums.add(left[name], right[name])

    def _run(self, session: Session, feed: Feed, called: str) -> dict[str, Any]:
        self.stage(f"running {called} on {sizes_of(feed)}")
        return session.run(feed)

    def distances(self) -> list[Distance]:
        """Of every output that both models have and that has one."""
        found = [sums.distance() for sums in self._sums.values() if sums.compared]
        if not found:
            raise OptionError(f"there is no output to compare: {'; '.join(self.notes())}")
        return found

    def notes(self) -> list[str]:
        """What was not compared, and what is not finite."""
        return [*self._others, *filter(None, (sums.note() for sums in self._sums.values()))]


def _only_in(one: Session, other: Session, called: str) -> list[str]:
    names = [name for name in one.outputs if name not in other.outputs]
    return [f"not compared, as only the {called} model has it: output '{name}'" for name in names]


class _Sums:
    def __init__(self, name: str, axis: int | None) -> None:
        self.name, self.axis = name, axis
        self.far = self.left = self.right = self.dot = 0.0
        self.largest, self.same, self.rows = 0.0, 0, 0
        self.alike = self.elements = self.seen = 0
        self.kind, self.odd = "", ""
        self.nonfinite, self.nonfinite_sparse, self.apart = 0, 0, 0
        self.no_number = False

    @property
    def compared(self) -> bool:
        return bool(self.kind and self.seen and not self.odd)

    def add(self, left: Any, right: Any) -> None:
        if not (isinstance(left, np.ndarray) and isinstance(right, np.ndarray)):
            self.odd = "a map" if isinstance(left, dict) else "a sequence" if isinstance(left, list) else "no tensor"
            return  # there is no distance between these
        if left.shape != right.shape:
            self.odd = f"of shape {list(left.shape)} in one model and {list(right.shape)} in the other"
            return
        if left.dtype.kind in "OSU":
            self.kind = "text"
        elif left.dtype.kind in "fiub":
            self.kind = "float" if left.dtype.kind == "f" else "whole"
        else:
            self.odd = f"of type {left.dtype}"
            return
        self.seen += left.size
        if left.size:
            self._add(left, right)

    def _add(self, left: Array, right: Array) -> None:
        if self.kind != "float":
            self.alike, self.elements = self.alike + int((left == right).sum()), self.elements + left.size
        if self.kind == "text":
            return
        first, second = left.astype(np.float64), right.astype(np.float64)
        if self.kind == "float" and self.axis is not None:
            self._count_winners(first, second)
        with np.errstate(all="ignore"):  # a model that overflows is far away, not an error
            self._measure(first.reshape(-1), second.reshape(-1))

    def _measure(self, a: Array, b: Array) -> None:
        a, b = self._finite(a, b)
        self.far += float(((a - b) ** 2).sum())
        self.left, self.right = self.left + float((a * a).sum()), self.right + float((b * b).sum())
        self.dot += float((a * b).sum())
        self.largest = max(self.largest, float(np.abs(a - b).max(initial=0.0)))

    def _finite(self, a: Array, b: Array) -> tuple[Array, Array]:
        """What both models have as numbers; the rest is counted."""
        one, two = np.isfinite(a), np.isfinite(b)
        both = one & two
        if both.all():
            return a, b
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        apart = ~both & ~same
        self.nonfinite += int((~one).sum())
        self.nonfinite_sparse += int((~two).sum())
        self.apart += int(apart.sum())
        self.no_number |= bool((np.isnan(a) | np.isnan(b))[apart].any())
        return a[both], b[both]

    def _count_winners(self, left: Array, right: Array) -> None:
        """A row with NaN has a winner among its numbers, and is the same where NaN is in the same places."""
        assert self.axis is not None
        if not -left.ndim <= self.axis < left.ndim or left.shape[self.axis] < 2:
            return
        one, two = np.isnan(left), np.isnan(right)
        alike = (one == two).all(self.axis)
        first, second = (np.where(np.isnan(a), -np.inf, a).argmax(self.axis) for a in (left, right))
        some = ~(one & two).all(self.axis)
        self.same += int((some & alike & (first == second)).sum())
        self.rows += int(some.sum())

    def distance(self) -> Distance:
        counts = (self.nonfinite, self.nonfinite_sparse, self.apart)
        equal = self.alike / self.elements if self.elements else None
        if self.kind == "text":
            return Distance(self.name, None, None, None, None, equal, *counts)
        agreement = self.same / self.rows if self.rows else None
        if self.apart:
            none = math.nan if self.no_number else math.inf
            return Distance(self.name, none, none, math.nan, agreement, equal, *counts)
        relative = (self.far / self.left) ** 0.5 if self.left else float(self.far > 0)
        norms = (self.left * self.right) ** 0.5
        cosine = self.dot / norms if norms else float(self.left == self.right)
        return Distance(self.name, relative, self.largest, cosine, agreement, equal, *counts)

    def note(self) -> str:
        if self.odd or not self.seen:
            return f"not compared: output '{self.name}', which is {self.odd or 'empty for all samples'}"
        if self.apart:
            return (
                f"output '{self.name}': NaN or infinity in {self.nonfinite} numbers of the dense model and "
                f"{self.nonfinite_sparse} of the sparse one, {self.apart} of them not the same in both: there is no "
                "distance"
            )
        if self.nonfinite:
            return (
                f"output '{self.name}': {self.nonfinite} numbers are NaN or infinite, the same in both models; the "
                "distance is that of the others"
            )
        return ""


# -- inputs


class GivenFeeds:
    """Inputs from arrays named as the inputs, or from one array for the only one.

    Samples lie along the first axis, or along that of `axes`; a number without axes is the same for all of them. With
    states an array may have an axis of steps behind that of the samples, both of them first.
    """

    def __init__(
        self,
        session: Session,
        loaded: Any,
        called: str,
        samples: int | None,
        axes: Mapping[str, int],
        states: Mapping[str, str],
    ) -> None:
        self._inputs, self._called, self._axes, self._states = session.inputs, called, axes, states
        self._shapes = {name: shape for name, _, shape in session.inputs}
        self._arrays = self._named(loaded)
        self._whole = {name for name in self._arrays if self._is_whole(name)}
        self.steps = self._counted_steps() if states else 1
        self.unit = max((self._unit(name) for name in self._arrays if name not in self._whole), default=1)
        self.count = self._counted(samples)

    def __iter__(self) -> Iterator[Step]:
        for start in range(0, self.count, self.unit):
            rows = np.arange(start, start + self.unit)
            for step in range(self.steps):
                feed = {name: self._part(name, rows, step) for name in self._arrays}
                yield {**feed, **self._zeros(feed)}, not step

    def _named(self, loaded: Any) -> Feed:
        wanted = [(name, kind) for name, kind, _ in self._inputs]
        needed = [name for name, _ in wanted if name not in self._states]
        if isinstance(loaded, np.ndarray):
            if len(needed) != 1:
                names = ", ".join(name for name, _ in wanted)
                raise OptionError(
                    f"{self._called} is one array, but the model has inputs {names}; pass an .npz with their names"
                )
            loaded = {needed[0]: loaded}
        for name in needed:
            if name not in loaded:
                raise OptionError(
                    f"{self._called} has no array '{name}'"
                    f"{nearest(name, loaded) or ' (it has ' + ', '.join(loaded) + ')'}"
                )
        return {name: self._fitted(np.asarray(loaded[name]), name, kind) for name, kind in wanted if name in loaded}

    def _fitted(self, array: Array, name: str, kind: str) -> Array:
        if array.ndim and not array.size:
            raise OptionError(f"array '{name}' of {self._called} has no samples: its shape is {list(array.shape)}")
        wanted = NUMPY_TYPES.get(kind)
        if wanted and array.dtype != np.dtype(wanted):
            raise OptionError(
                f"array '{name}' of {self._called} is {array.dtype}, the model takes {wanted}; convert it first"
            )
        rank, ranks = len(self._shapes[name]), [max(1, len(self._shapes[name]))]
        if self._states and name not in self._states:
            ranks.append(ranks[0] + 1)
        if (array.ndim or rank) and array.ndim not in ranks:
            shapes = " or ".join(f"{one} axes" for one in ranks)
            raise OptionError(
                f"array '{name}' of {self._called} has shape {list(array.shape)}, and has to have {shapes}: the model "
                f"takes {self._shapes[name]}"
            )
        return self._as_declared(array, name)

    def _as_declared(self, array: Array, name: str) -> Array:
        """An array in the model's own layout, also where it has the samples first because nobody named their axis."""
        axis, shape = self._axes.get(name, 0), self._shapes[name]
        if not axis or array.ndim != len(shape):
            return array
        others = shape[:axis] + shape[axis + 1 :]

        def fits(sizes: Sequence[int]) -> bool:
            return all(not isinstance(one, int) or one == size for one, size in zip(others, sizes))

        if fits(array.shape[:axis] + array.shape[axis + 1 :]) or not fits(array.shape[1:]):
            return array
        return np.moveaxis(array, 0, axis)

    def _is_whole(self, name: str) -> bool:
        """Whether an array is the same for all samples: a number, or all that the model declares where others count;
        or a state for one of them."""
        array, shape = self._arrays[name], self._shapes[name]
        if not array.ndim:
            return True
        others = [one.shape[self._axis(key)] for key, one in self._arrays.items() if key != name and one.ndim]
        fixed = list(array.shape) == shape or (self._axis(name) > 0 and array.shape[self._axis(name)] == 1)
        return fixed and bool(others) and max(others) > array.shape[self._axis(name)]

    def _stepped(self, name: str) -> bool:
        """Whether an array has an axis of steps."""
        return bool(self._states) and self._arrays[name].ndim > max(1, len(self._shapes[name]))

    def _axis(self, name: str) -> int:
        """The axis of the samples in an array."""
        return 0 if self._stepped(name) else self._axes.get(name, 0)

    def _unit(self, name: str) -> int:
        """How many samples the model takes at once, where it says that."""
        shape, axis = self._shapes[name], self._axes.get(name, 0)
        size = shape[axis] if shape else 1
        return int(size) if isinstance(size, int) and size > 0 else 1

    def _counted_steps(self) -> int:
        found = {name: array.shape[1] for name, array in self._arrays.items() if self._stepped(name)}
        if not found:
            names = ", ".join(name for name in self._arrays if name not in self._states)
            raise OptionError(
                f"--state carries states along steps, and no array of {self._called} has an axis of them: one of "
                f"{names} has to be [sequences, steps, ...], with one axis more than the model takes"
            )
        self._demand_same(found, "steps")
        return int(max(found.values()))

    def _counted(self, samples: int | None) -> int:
        found = {n: one.shape[self._axis(n)] for n, one in self._arrays.items() if n not in self._whole}
        self._demand_same(found, "samples")
        count = next(iter(found.values()), 1)
        if count % self.unit:
            raise OptionError(f"the model takes {self.unit} samples at a time, and {self._called} has {count}")
        return min(count, -(-samples // self.unit) * self.unit) if samples else count

    def _demand_same(self, counts: Mapping[str, int], what: str) -> None:
        first = next(iter(counts), "")
        for name, count in counts.items():
            if count != counts[first]:
                raise OptionError(f"{self._called} has {counts[first]} {what} of '{first}', but {count} of '{name}'")

    def _part(self, name: str, rows: Array, step: int) -> Array:
        array = self._arrays[name]
        if name in self._whole:
            return array
        if not self._shapes[name]:
            return np.asarray(array[rows[0]] if not self._stepped(name) else array[rows[0], step])
        if self._stepped(name):
            return np.ascontiguousarray(np.moveaxis(array[rows, step], 0, self._axes.get(name, 0)))
        return np.ascontiguousarray(np.take(array, rows, axis=self._axis(name)))

    def _zeros(self, feed: Feed) -> Feed:
        """Where a sequence begins and the data does not say with what."""
        missing = [(name, kind) for name, kind, _ in self._inputs if name not in feed]
        return {name: np.zeros(self._beginning(name), NUMPY_TYPES.get(kind, "float32")) for name, kind in missing}

    def _beginning(self, name: str) -> list[int]:
        sizes = list(self._shapes[name])
        sizes[self._axes.get(name, 0)] = self.unit
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise OptionError(
                f"the state '{name}' is {sizes}, whose sizes are not known: put what it begins with into the data"
            )
        return sizes


# -- the worker


def main(folder: str) -> int:
    return answered(folder, _compared)


def answered(folder: str, act: Callable[[Mapping[str, Any], Callable[..., None]], dict[str, Any]]) -> int:
    """Do the job in a folder by `act`, and leave its result there, or one line; `stage` says where it is."""
    try:
        with open(os.path.join(folder, JOB), encoding="utf-8") as file:
            job = json.load(file)
        with open(os.path.join(folder, STAGE), "w", encoding="utf-8") as file:
            _write(folder, RESULT, act(job, _stage_in(file)))
    except OnnxSparseError as error:
        kind = "option" if isinstance(error, OptionError) else "extra" if isinstance(error, MissingExtraError) else ""
        _write(folder, ERROR, {"error": error.as_flags, "kind": kind})  # the caller spells its options
        return 1
    except MemoryError:
        _write(folder, ERROR, {"error": "not enough memory to run these models", "kind": ""})
        return 1
    return 0


def _stage_in(file: IO[str]) -> Callable[..., None]:
    def stage(text: str, place: int = 0) -> None:
        file.seek(0)
        file.write(json.dumps({"text": text, "place": place}))
        file.truncate()
        file.flush()

    return stage


def _compared(job: Mapping[str, Any], stage: Callable[..., None]) -> dict[str, Any]:
    stage(f"loading {job['called'][0]}")
    dense = Session(job["dense"])
    stage(f"loading {job['called'][1]}")
    sparse = Session(job["sparse"])
    comparison = Comparison(dense, sparse, job["class_axes"], job["states"], job["called"])
    if job["data"] is None:
        place, count, steps = _first_that_runs(job, dense, stage)
        feeds: Any = random_feeds(dense, count, job["seed"], job["shapes"][place], job["states"])
    else:
        from onnxsparse.data.array_files import load_arrays

        loaded = load_arrays(job["data"])
        if job["data_names"] is not None:
            loaded = {name: loaded[f"a{place}"] for place, name in enumerate(job["data_names"])}
        feeds = GivenFeeds(dense, loaded, job["data_called"], job["samples"], job["axes"], job["states"])
        place, count, steps = None, feeds.count, feeds.steps
    comparison.stage = lambda text: stage(text, place or 0)
    shapes: dict[str, list[int]] = {}
    for feed, begins in feeds:
        comparison.add(feed, begins)
        shapes = shapes or {name: list(array.shape) for name, array in feed.items()}
    return {
        "outputs": [vars(one) for one in comparison.distances()],
        "notes": comparison.notes(),
        "place": place,
        "samples": count,
        "steps": steps,
        "shapes": shapes,
    }


def _first_that_runs(job: Mapping[str, Any], dense: Session, stage: Any) -> tuple[int, int, int]:
    """The first shapes on which the dense model runs; the last ones have to do where it runs on none."""
    count = job["samples"]
    steps = count if job["states"] else 1
    for place, shapes in enumerate(job["shapes"][:-1]):
        sizes = ", ".join(f"{name} {size}" for name, size in shapes.items())
        stage(f"running {job['called'][0]} on {sizes}", place)
        try:
            dense.run(next(random_feeds(dense, 1, job["seed"], shapes, job["states"]))[0])
        except ModelError:
            continue
        return place, count, steps
    return len(job["shapes"]) - 1, count, steps


def _write(folder: str, name: str, content: object) -> None:
    with open(os.path.join(folder, name + ".part"), "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(os.path.join(folder, name + ".part"), os.path.join(folder, name))
