"""Gradients of random projections of a model's outputs with respect to inner values, in onnxruntime-training.

1. A worker builds and proves a graph of gradients for the sizes of the first feed (see `differentiation`); this process
   runs it, on one thread.
2. A feed of fewer samples is filled up with samples of its own, for which the projection is multiplied with zeros; what
   comes out for them is cut off. Where that is not all zeros (samples depend on each other), and for feeds of other
   sizes, a graph of their own is built.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Optional

import numpy as np
from onnx import ModelProto
from onnx.helper import make_tensor_value_info

from onnxsparse.engines.light_model import LightModel, lent
from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.building import manifest
from onnxsparse.engines.ort.differentiation import GRADIENTS, GradientSession
from onnxsparse.engines.ort.jobs import failure, run_worker, write_job
from onnxsparse.engines.ort.library import LOOK, told
from onnxsparse.engines.random_projection import Feed, Projection, Shape
from onnxsparse.engines.working_dirs import temporary
from onnxsparse.errors import ModelError
from onnxsparse.graph.edit import copied, keep
from onnxsparse.math.values import Array

MOST_GRAPHS, TRIED = 4, 2
"""For so many sizes of feeds graphs are built, as building one takes as long as many runs; with so many feeds."""
Found = tuple[dict[str, Array], Optional[float]]
Sizes = tuple[tuple[str, Shape], ...]


class OrtGradients:
    """The model as graphs of gradients; each walk over it is one over the feeds."""

    engine = "ort"

    def __init__(
        self,
        model: LightModel,
        names: Sequence[str],
        feeds: Iterable[Feed],
        projection: Projection,
        axes: Mapping[str, int],
    ) -> None:
        library.demand()
        self._model, self._names, self._feeds, self._projection, self._axes = model, names, feeds, projection, axes
        self._sizes = [_sizes_of(feed) for feed in feeds]
        self._graphs: dict[Sizes, _Graph] = {}
        self._shapes: dict[Sizes, dict[str, Shape]] = {}
        for sizes in dict.fromkeys(self._sizes):
            if not self._graphs or not _fits(sizes, self._sizes[0], axes):
                self._build(sizes)
        self.unreached = self._graphs[self._sizes[0]].unreached

    def _build(self, sizes: Sizes) -> None:
        if len(self._graphs) == MOST_GRAPHS:
            raise ModelError(
                f"the batches come in more than {MOST_GRAPHS} sizes, each of which takes a training graph of its own; "
                "try --engine torch"
            )
        places = [place for place, other in enumerate(self._sizes) if other == sizes]
        same = [feed for feed, other in zip(self._feeds, self._sizes) if other == sizes]
        self._graphs[sizes] = _Graph(self._model, self._names, same, self._projection.factors(places[0], 0))

    def __iter__(self) -> Iterator[dict[str, Array]]:
        for place, feed in enumerate(self._feeds):
            for draw in range(self._projection.draws):
                found, value = self._of(place, feed, self._projection.factors(place, draw))
                if draw == 0 and value is not None and not self._projection.agrees(place, value):
                    raise ModelError(
                        f"the graph of gradients does not compute what the model does for batch {place} (counted from "
                        "0): it may take another way for other samples; try --engine torch"
                    )
                yield found

    def _of(self, place: int, feed: Feed, factors: Feed) -> Found:
        sizes = self._sizes[place]
        if sizes not in self._graphs:
            found = self._filled_up(sizes, feed, factors)
            if found is not None:
                return found
            self._build(sizes)
        return self._graphs[sizes](feed, factors)

    def _filled_up(self, sizes: Sizes, feed: Feed, factors: Feed) -> Found | None:
        """The gradients of a feed of fewer samples, by the graph of the first; None where samples depend on others."""
        whole, graph = dict(self._sizes[0]), self._graphs[self._sizes[0]]
        targets = self._projection.shapes[0]
        if not all(_within(array.shape, targets[name]) for name, array in factors.items()):
            return None
        filled = {name: _repeated(array, whole[name], self._axes.get(name, 0)) for name, array in feed.items()}
        found, value = graph(filled, {name: _with_zeros(array, targets[name]) for name, array in factors.items()})
        shapes = self._shapes_of(sizes, feed, list(found))
        if not all(_within(shapes[name], array.shape) for name, array in found.items()):
            return None
        cut = {name: np.ascontiguousarray(array[_corner(shapes[name])]) for name, array in found.items()}
        apart = all(np.count_nonzero(cut[name]) == np.count_nonzero(array) for name, array in found.items())
        return (cut, value) if apart else None

    def _shapes_of(self, sizes: Sizes, feed: Feed, names: Sequence[str]) -> dict[str, Shape]:
        """The shapes that inner values have for a feed."""
        if sizes not in self._shapes:
            values = self._model.session(names, optimized=False).run(dict(feed))
            self._shapes[sizes] = {name: np.shape(value) for name, value in values.items()}
        return self._shapes[sizes]


class _Graph:
    """A graph of gradients for feeds of one size, built in a worker process."""

    def __init__(self, model: LightModel, names: Sequence[str], feeds: Sequence[Feed], factors: Feed) -> None:
        places = {target: f"factors/{place}" for place, target in enumerate(factors)}
        samples = {
            **_one_after_the_other(feeds[:TRIED]),
            **{places[target]: array for target, array in factors.items()},
        }
        with temporary() as working_dir:
            folder = os.path.join(working_dir, "graph")
            job = {
                "values": list(names),
                "factors": places,
                "places": {name: vars(one) for name, one in model.places.items()},
            }
            write_job(folder, job, _of_sizes(model.proto, feeds[0]), samples)
            with lent(model.data, folder):
                status = run_worker(folder, "differentiation", os.path.abspath(folder))
                made = manifest(folder)
                if status or made is None:
                    raise failure(folder, status)
                self._run = (
                    GradientSession(os.path.join(folder, GRADIENTS), made["gradients"], made["projection"])
                    if made["gradients"]
                    else None
                )
        self.unreached: dict[str, str] = made["unreached"]
        self._kinds = {name: (kind, shape) for name, kind, shape in made["inputs"]}
        self._factors: dict[str, str] = made["factors"]
        self._demand_alike(feeds)

    def _demand_alike(self, feeds: Sequence[Feed]) -> None:
        """Whole numbers that the first feeds have alike are constants of the graph (see `canonical`)."""
        for name, array in feeds[0].items():
            fixed = name not in self._kinds and array.size == 1 and array.dtype.kind in "iub"
            if fixed and any(not np.array_equal(array, other[name]) for other in feeds):
                raise ModelError(
                    f"the input '{name}' is one number that differs from batch to batch; try --engine torch"
                )

    def __call__(self, feed: Feed, factors: Feed) -> Found:
        """The gradients, and the value of the projection."""
        if self._run is None:
            return {}, None
        given = {
            name: np.ascontiguousarray(feed[name], kind).reshape(shape) for name, (kind, shape) in self._kinds.items()
        }
        with told("differentiate the model on a batch", LOOK):
            return self._run({**given, **{self._factors[name]: array for name, array in factors.items()}})


def _sizes_of(feed: Feed) -> Sizes:
    return tuple((name, array.shape) for name, array in sorted(feed.items()))


def _fits(sizes: Sizes, whole: Sizes, axes: Mapping[str, int]) -> bool:
    """Whether a feed is the first one with fewer samples."""
    return all(
        len(one) == len(other)
        and all(a == b or (a < b and at == axes.get(name, 0)) for at, (a, b) in enumerate(zip(one, other)))
        for (name, one), (_, other) in zip(sizes, whole)
    )


def _of_sizes(proto: ModelProto, feed: Feed) -> ModelProto:
    """A copy whose inputs are declared as the feed has them: so a feed is one sample to whoever prepares the graph."""
    copy = copied(proto)
    stored = {tensor.name for tensor in copy.graph.initializer}
    inputs = [value for value in copy.graph.input if value.name not in stored]
    keep(
        copy.graph.input,
        [make_tensor_value_info(one.name, one.type.tensor_type.elem_type, feed[one.name].shape) for one in inputs],
    )
    return copy


def _one_after_the_other(feeds: Sequence[Feed]) -> dict[str, Array]:
    return {name: np.concatenate([np.atleast_1d(feed[name]) for feed in feeds]) for name in feeds[0]}


def _repeated(array: Array, shape: Shape, axis: int) -> Array:
    """An array of fewer samples, filled up with those that are there."""
    return array if array.shape == shape else np.take(array, np.arange(shape[axis]) % array.shape[axis], axis)


def _with_zeros(array: Array, shape: Shape) -> Array:
    made = np.zeros(shape, array.dtype)
    made[_corner(array.shape)] = array
    return made


def _within(shape: Shape, whole: Shape) -> bool:
    return len(shape) == len(whole) and all(one <= other for one, other in zip(shape, whole))


def _corner(shape: Shape) -> tuple[slice, ...]:
    return tuple(slice(size) for size in shape)
