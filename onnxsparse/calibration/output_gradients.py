"""Gradients of a model's outputs with respect to inner values, for samples, in whichever engine takes the model.

    for found in output_gradients(proto, ["conv1_out", "fc_out"], feeds):
        found["conv1_out"]      # d(projection) / d(conv1_out), as conv1_out is shaped

1. The projection is a random one (see `random_projection`): the mean square of its gradients over draws is the mean
   square of the gradients of the outputs, in units of their variance.
2. Large feeds are taken in pieces of fewer samples, so that gradients of `PIECE` bytes are in memory at once, and some
   times that for what a training step keeps; each piece and draw has its mapping. Sums of squares over all mappings are
   those over all samples and draws. A file that fixes how many samples it takes gets its feeds as they are.
3. The engine that was asked for, else onnxruntime-training where it takes the model, otherwise torch. Which it was, and
   why, is told.
4. Rounding to whole numbers and back counts as if nothing was rounded, and stored whole numbers as the floats that they
   stand for. Where a model computes with whole numbers no gradient comes to any value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxsparse.engines.light_model import LightModel
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.random_projection import Feed, Projection, projection_of, samples_in
from onnxsparse.engines.rounding import clip_round_trips, computes_with_integers, dequantize_stored
from onnxsparse.errors import MissingExtraError, ModelError, OptionError, nearest
from onnxsparse.graph.edit import called, copied, scopes, upstream
from onnxsparse.math.values import Array

ENGINES = ("auto", "ort", "torch")
PIECE = 1 << 27
LIBRARIES = {"ort": "onnxruntime-training", "torch": "torch"}
WITHOUT = "--sensitivity measured does without"
ROUNDED = "values that are rounded to whole numbers and back count as if they were not rounded"
FLOATS = ("tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(double)")


@dataclass(frozen=True)
class OutputGradients:
    """Gradients to come: each walk over them computes them anew, for each piece of a feed and each draw."""

    engine: str
    """`ort`, `torch`, or nothing where no engine has a gradient of the model."""
    unreached: Mapping[str, str] = field(default_factory=dict)
    """Values to which no gradient comes, and why."""
    notes: Sequence[str] = ()
    source: Iterable[Mapping[str, Array]] = ()

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        return iter(self.source)


def output_gradients(
    proto: ModelProto,
    names: Sequence[str],
    feeds: Iterable[Feed],
    engine: str = "auto",
    draws: int = 2,
    seed: int = 0,
    axes: Mapping[str, int] | None = None,
) -> OutputGradients:
    """`names` are what top-level nodes give, `feeds` can be walked over several times; `axes` are those of the samples,
    by input, where they are not first."""
    _demand_sense(proto, names, engine, draws)
    plain, notes = _without_rounding(proto)
    light = LightModel(plain)
    unreached = _no_floats(light, names)
    wanted = [name for name in dict.fromkeys(names) if name not in unreached]
    feeds = Pieces.of(light, feeds, wanted, axes or {})
    projection = projection_of(light, feeds, draws, seed, axes or {})
    barrier = _barrier(light.proto, projection)
    if barrier or not wanted:
        return OutputGradients("", {**dict.fromkeys(wanted, barrier), **unreached}, notes)
    chosen, why, source = _Choice(light, wanted, feeds, projection, axes or {}).of(engine)
    notes += [*projection.notes, why]
    return OutputGradients(chosen, {**source.unreached, **unreached}, notes, source)


def _demand_sense(proto: ModelProto, names: Sequence[str], engine: str, draws: int) -> None:
    if engine not in ENGINES:
        raise OptionError(f"engine is one of {', '.join(ENGINES)}, not {engine!r:.40}")
    if draws < 1:
        raise OptionError(f"gradients take one draw or more, not {draws}")
    made = {name for node in proto.graph.node for name in node.output if name}
    lost = next((name for name in names if name not in made), None)
    if lost is not None:
        raise ModelError(f"no node of the main graph gives '{lost}'{nearest(lost, sorted(made))}")
    _demand_engine(engine)


def _demand_engine(engine: str) -> None:
    """An error where the engine is not installed: what there is instead is never taken in silence."""
    known = {"ort": ort_library.available(), "torch": _torch_library().available()}
    wanted = list(known) if engine == "auto" else [engine]
    if any(known[name] for name in wanted):
        return
    libraries = " or ".join(LIBRARIES[name] for name in wanted)
    ways = " or ".join(f"pip install 'onnxsparse[{name}]'" for name in wanted)
    raise MissingExtraError(f"gradients of the outputs need {libraries}: {ways}; {WITHOUT}")


def _without_rounding(proto: ModelProto) -> tuple[ModelProto, list[str]]:
    """A copy without round trips to whole numbers; the model itself where it has none."""
    if not any(node.op_type == "DequantizeLinear" for graph in scopes(proto.graph) for node in graph.node):
        return proto, []
    copy = copied(proto)
    dequantize_stored(copy.graph)
    opset = next((entry.version for entry in copy.opset_import if entry.domain in ("", "ai.onnx")), 1)
    return copy, [ROUNDED] if clip_round_trips(copy.graph, opset) else []


def _no_floats(model: LightModel, names: Sequence[str]) -> dict[str, str]:
    types = model.session(names, optimized=False).output_types
    return {name: f"it is of type {types[name]}" for name in names if types[name] not in FLOATS}


def _barrier(proto: ModelProto, projection: Projection) -> str:
    """Why no gradient comes to any value, where the model computes with whole numbers; otherwise nothing."""
    used = upstream(proto.graph, projection.targets)
    nodes = (node for node in proto.graph.node if used & set(node.output) and computes_with_integers(node))
    found = next(nodes, None)
    return f"the model computes with whole numbers, as in {called(found)}" if found is not None else ""


@dataclass(frozen=True)
class Pieces:
    """Feeds in pieces of at most `size` samples; as they are where that is 0."""

    feeds: Iterable[Feed]
    axes: Mapping[str, int]
    free: frozenset[str]
    """The inputs of which the model takes any number of samples."""
    size: int

    @classmethod
    def of(cls, model: LightModel, feeds: Iterable[Feed], names: Sequence[str], axes: Mapping[str, int]) -> Pieces:
        """Pieces of which the values of these names take `PIECE` bytes."""
        first = next(iter(feeds))
        declared = {value.name: value.type.tensor_type for value in model.proto.graph.input}
        free = frozenset(name for name, array in first.items() if _is_free(declared[name], axes.get(name, 0), array))
        whole, single = cls(feeds, axes, free, 0), cls([first], axes, free, 1)
        if samples_in(first, axes) == 1 or not free or whole.fixed(first):
            return whole
        try:
            values = model.session(names, optimized=False).run(dict(next(iter(single))))
        except ModelError:  # it does not take a single sample
            return whole
        each = sum(np.asarray(value).nbytes for value in values.values())
        return cls(feeds, axes, free, max(PIECE // max(each, 1), 1))

    def fixed(self, feed: Feed) -> bool:
        """Whether the model fixes the number of samples that a feed has, in any of its inputs."""
        count = samples_in(feed, self.axes)
        return any(name not in self.free and self._count(name, array) == count for name, array in feed.items())

    def __iter__(self) -> Iterator[Feed]:
        for feed in self.feeds:
            count = samples_in(feed, self.axes)
            for start in range(0, count, self.size or count):
                yield {name: self._part(name, array, count, start) for name, array in feed.items()}

    def _part(self, name: str, array: Array, count: int, start: int) -> Array:
        if not self.size or name not in self.free or self._count(name, array) != count:
            return array
        every: tuple[slice, ...] = (slice(None),) * self.axes.get(name, 0)
        return np.ascontiguousarray(array[(*every, slice(start, start + self.size))])

    def _count(self, name: str, array: Array) -> int:
        return int(array.shape[self.axes.get(name, 0)]) if array.ndim else 0


def _is_free(declared: Any, axis: int, array: Array) -> bool:
    dims = declared.shape.dim
    return array.ndim > axis and (not declared.HasField("shape") or not dims[axis].dim_value)


@dataclass(frozen=True)
class _Choice:
    """The engines, each made when it is tried."""

    model: LightModel
    names: Sequence[str]
    feeds: Iterable[Feed]
    projection: Projection
    axes: Mapping[str, int]

    def of(self, engine: str) -> tuple[str, str, Any]:
        """The engine, why it is that one, and its gradients."""
        if engine != "auto":
            return engine, f"gradients of {LIBRARIES[engine]}, as asked", self._made(engine)
        why = "" if ort_library.available() else "onnxruntime-training is not installed"
        try:
            if not why:
                return "ort", f"gradients of {LIBRARIES['ort']}, which takes the model", self._made("ort")
        except ModelError as error:
            if not _torch_library().available():
                raise
            why = str(error)
        return "torch", f"gradients of torch: {why}", self._made("torch")

    def _made(self, engine: str) -> Any:
        if engine == "torch":
            from onnxsparse.engines.torch.output_gradients import TorchGradients

            return TorchGradients(self.model, self.names, self.feeds, self.projection)
        from onnxsparse.engines.ort.output_gradients import OrtGradients

        return OrtGradients(self.model, self.names, self.feeds, self.projection, self.axes)


def _torch_library() -> Any:
    from onnxsparse.engines.torch import library

    return library


__all__ = ["OutputGradients", "output_gradients"]
