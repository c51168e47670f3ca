"""Gradients of a model's outputs with respect to inner values, for samples, in whichever engine takes the model.

    for found in output_gradients(proto, ["conv1_out", "fc_out"], feeds):
        found["conv1_out"]      # d(projection) / d(conv1_out), as conv1_out is shaped

1. The projection is a random one (see `random_projection`): the mean square of its gradients over draws is the mean
   square of the gradients of the outputs, in units of their variance.
2. There is one mapping for each feed and draw, in this order: sums of squares over all of them are those over all
   samples and draws. In memory at once are the gradients for one feed and what a training step keeps, some times as
   much: take feeds of few samples where values are large (see `feed_pieces`).
3. The engine that was asked for, else onnxruntime-training where it takes the model, otherwise torch. Which it was, and
   why, is told.
4. Rounding to whole numbers and back counts as if nothing was rounded, and stored whole numbers as the floats that they
   stand for. Where a model computes with whole numbers no gradient comes to any value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import ModelProto

from onnxsparse.engines.distillation import unmoved
from onnxsparse.engines.light_model import LightModel
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.random_projection import Feed, Projection, projection_of
from onnxsparse.engines.rounding import clip_round_trips, computes_with_integers, dequantize_stored
from onnxsparse.errors import MissingExtraError, ModelError, OptionError, nearest
from onnxsparse.graph.edit import called, copied, scopes, upstream
from onnxsparse.math.values import Array

ENGINES = ("auto", "ort", "torch")
LIBRARIES = {"ort": "onnxruntime-training", "torch": "torch"}
WITHOUT = "--sensitivity measured does without"
ROUNDED = "values that are rounded to whole numbers and back count as if they were not rounded"
FLOATS = ("tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(double)")


@dataclass(frozen=True)
class OutputGradients:
    """Gradients to come: each walk over them computes them anew, for each feed and draw."""

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
    unreached = _constant_or_whole(light, names)
    wanted = [name for name in dict.fromkeys(names) if name not in unreached]
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
    wanted = list(LIBRARIES) if engine == "auto" else [engine]
    if any(_available(name) for name in wanted):  # torch comes last, so that it is not imported for nothing
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


def _constant_or_whole(model: LightModel, names: Sequence[str]) -> dict[str, str]:
    """Values that have no gradient whatever the outputs are, and why."""
    constants = unmoved(model.proto.graph)
    types = model.session(names, optimized=False).output_types
    found = {name: f"it is of type {types[name]}" for name in names if types[name] not in FLOATS}
    return {**found, **{name: "no input changes it" for name in names if name in constants}}


def _barrier(proto: ModelProto, projection: Projection) -> str:
    """Why no gradient comes to any value, where the model computes with whole numbers; otherwise nothing."""
    used = upstream(proto.graph, projection.targets)
    nodes = (node for node in proto.graph.node if used & set(node.output) and computes_with_integers(node))
    found = next(nodes, None)
    return f"the model computes with whole numbers, as in {called(found)}" if found is not None else ""


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
        try:
            return self._tried(engine)
        except ModelError as error:
            raise ModelError(f"{error}; {WITHOUT}") from error

    def _tried(self, engine: str) -> tuple[str, str, Any]:
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


def _available(engine: str) -> bool:
    return bool(ort_library.available() if engine == "ort" else _torch_library().available())


def _torch_library() -> Any:
    from onnxsparse.engines.torch import library

    return library


__all__ = ["OutputGradients", "output_gradients"]
