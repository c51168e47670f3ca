"""Student and dense teacher of a distillation run in torch, both made from one copy of the file.

1. Both are made from one copy of the file whose outputs are the signals: the float outputs, and what stands before
   their squashing functions.
2. The student's weights are parameters; what it multiplies with is made of them by sparsers at every forward pass, so
   that masked places get no gradient, whatever the optimizer.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, TensorProto

from onnxsparse import sparsers
from onnxsparse.engines.distillation import LAYER, DistillationTarget, squashed, stated
from onnxsparse.engines.engine import Spec
from onnxsparse.engines.layer_terms import PROJECTION
from onnxsparse.engines.sample_axes import turn
from onnxsparse.engines.torch.convert import to_module
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.objective import Goal
from onnxsparse.engines.torch.parametrization import effective
from onnxsparse.engines.torch.writeback import names_of
from onnxsparse.errors import ModelError
from onnxsparse.graph.edit import RANDOM, bodies, bypass
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.graph.stores import keys
from onnxsparse.losses import Scale, heard, said_of, scale_along, scored, shaken
from onnxsparse.math.values import Array
from onnxsparse.sparsers.sparser import Moment

Turned = Mapping[str, Mapping[str, int]]
Change = Callable[[ModelProto], None]
_FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


@dataclass(frozen=True)
class Networks:
    """The module, the parameters' paths by tag, and the distillation targets that it gives in order."""

    module: Any
    paths: dict[str, str]
    signals: list[DistillationTarget]


def networks(
    model: Model,
    tags: Mapping[str, StoredTensor],
    train_bn: bool,
    turned: Turned,
    change: Change | None = None,
    bypasses: Mapping[str, str] | None = None,
    layers: Iterable[str] = (),
) -> Networks:
    """The module of a copy of the model, to which `change` is done, with layers bypassed; `tags` are tensors of the
    model itself, `layers` more values that are to be seen."""
    proto, signals = _with_targets(model, turned, change, layers)
    if bypasses:
        bypass(proto, bypasses)
    module = widened(to_module(proto, train_bn=train_bn))
    draw_by_inputs(module, proto)
    own = keys(model.flow.stores)
    by_key = {tuple(key): path for path, key in reversed(list(names_of(module)["tensors"].items()))}
    paths = {tag: by_key[own[tensor]] for tag, tensor in tags.items() if own[tensor] in by_key}
    return Networks(module, paths, signals)


def widened(module: Any) -> Any:
    """All floats as float32, and what casts to another float type as well."""
    for part in module.modules():
        if isinstance(part, torch().fx.GraphModule):
            for node in part.graph.nodes:
                if getattr(node.target, "__name__", "") == "Cast" and node.kwargs.get("to") in _FLOATS:
                    node.update_kwarg("to", TensorProto.FLOAT)
            part.recompile()
    return module.float()


def _with_targets(
    model: Model, turned: Turned, change: Change | None, layers: Iterable[str]
) -> tuple[ModelProto, list[DistillationTarget]]:
    """A whole copy whose outputs are the model's, and their taps: those are what they are without the change."""
    axes = turned.get("inputs", {}), turned.get("outputs", {})
    proto = turn(model.copy_proto(), *axes)
    signals = stated(proto)
    if change is not None:
        proto = model.copy_proto()
        change(proto)
        turn(proto, *axes)
    known = {signal.name for signal in signals}
    more = [name for name in dict.fromkeys(layers) if name not in known]
    signals += [DistillationTarget(name, name, LAYER, stated=False) for name in more]
    for signal in signals:
        if signal.kind in ("tap", LAYER):
            proto.graph.output.add(name=signal.name)
    return proto, signals


def train_only(module: Any, wanted: Iterable[Any]) -> None:
    """Gradients for these parameters alone."""
    chosen = set(wanted)
    for parameter in module.parameters():
        parameter.requires_grad_(parameter in chosen)


def frozen_copy(module: Any) -> Any:
    """The dense model: the same numbers, in measuring mode, without gradients."""
    dense = copy.deepcopy(module).eval()
    draw_alike(module, dense)
    for one in quantizers(dense):
        one.rounds = False
    for parameter in dense.parameters():
        parameter.requires_grad_(False)
    return dense


def student_class() -> Any:
    """The class of the student; made when torch is there."""

    class Student(torch().nn.Module):  # type: ignore[misc]
        """The module, with sparsers between its parameters and what it computes with."""

        def __init__(self, module: Any, paths: Mapping[str, str], spec: Spec, device: Any) -> None:
            super().__init__()
            self.module, self.paths = module, dict(paths)
            self.sparsers = {tag: sparsers.parse(text) for tag, text in spec.sparsers.items() if tag in paths}
            self.extra = torch().nn.ParameterDict()
            self.frozen: dict[str, Any] = {}  # no buffers: wrappers for several devices would send those around
            self._numbers = {tag: str(place) for place, tag in enumerate(self.sparsers)}
            named = dict(module.named_parameters())
            for tag, sparser in self.sparsers.items():
                self._begin(tag, sparser, named[self.paths[tag]], spec.trained[tag], device)
            terms = [one for one in spec.objective.terms if one.projection]
            self.projections = torch().nn.ParameterDict(
                {one.projected_by: torch().nn.Parameter(_tensor(one.start(), device)) for one in terms}
            )
            self.scales, more = rounding_of(self.module, device)
            self.frozen.update(more)

        def _begin(self, tag: str, sparser: Any, parameter: Any, name: str, device: Any) -> None:
            weight = parameter.detach().cpu().numpy()
            trained = sparser.trained(weight)
            ones = weight * 0 + 1
            for role, array in trained.items():
                self.extra[f"{self._numbers[tag]}_{role}"] = torch().nn.Parameter(_tensor(array, device))
            for role, array in sparser.feed(weight, trained, ones, Moment(name)).items():
                self.frozen[f"{tag}/{role}"] = _tensor(array, device)

        def trained_of(self, tag: str) -> dict[str, Any]:
            """What the sparser of a weight trains, by role."""
            prefix = self._numbers[tag] + "_"
            return {key[len(prefix) :]: one for key, one in self.extra.items() if key.startswith(prefix)}

        def frozen_of(self, tag: str) -> dict[str, Any]:
            prefix = tag + "/"
            return {key[len(prefix) :]: one for key, one in self.frozen.items() if key.startswith(prefix)}

        def forward(self, *inputs: Any) -> Any:
            named = dict(self.module.named_parameters())
            seen = {
                self.paths[tag]: effective(sparser, named[self.paths[tag]], self.trained_of(tag), self.frozen_of(tag))
                for tag, sparser in self.sparsers.items()
            }
            found = torch().func.functional_call(self.module, seen, inputs)
            return found if isinstance(found, tuple) else (found,)

    return Student


def tensors_of(student: Any) -> dict[str, Any]:
    """Parameters, and the statistics that move with them, by tag; what is trained beside one as `tag/role`."""
    own = {**dict(student.module.named_parameters()), **dict(student.module.named_buffers())}
    found = {tag: own[path] for tag, path in student.paths.items()}
    for tag in student.sparsers:
        found.update({f"{tag}/{role}": one for role, one in student.trained_of(tag).items()})
    projections = {f"{PROJECTION}/{name}": one for name, one in student.projections.items()}
    return {**found, **student.scales, **projections}


def rounding_of(module: Any, device: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the modules of fake quantization their scales and zero points, one for all that round alike; those that
    train and those that do not, by key."""
    learned, still = dict[str, Any](), dict[str, Any]()
    for one in quantizers(module):
        said, scale = one.said, torch().full(one.shape, 0.5, device=device)
        if said.zero_point not in still:
            still[said.zero_point] = torch().zeros((), device=device)
            if said.learned:
                learned[said.scale] = torch().nn.Parameter(scale)
            else:
                still[said.scale] = scale
        one.scale = learned[said.scale] if said.learned else still[said.scale]
        one.zero_point = still[said.zero_point]
    return learned, still


def quantizers(module: Any) -> list[Any]:
    """The modules of fake quantization in a converted module."""
    return [one for one in module.modules() if type(one).__name__ == "FakeQuantize"]


def loss_module_class() -> Any:
    """The class of what is run in training: the student, up to the loss."""

    class LossModule(torch().nn.Module):  # type: ignore[misc]
        """One number for inputs and labels. The dense model is asked, but is no part of it."""

        def __init__(
            self, student: Any, goal: Goal, ask: Callable[[Any], Any], taught: Callable[[Any], Any], narrowed: Any
        ) -> None:
            super().__init__()
            self.student = student
            self._goal, self._ask, self._taught, self._narrowed = goal, ask, taught, narrowed

        def forward(self, inputs: Any, labels: Any, share: float) -> Any:
            values, loss = self.both(inputs, labels, share)
            return loss + self._goal.of_layers(values, self._taught(inputs), self.student.projections)

        def both(self, inputs: Any, labels: Any, share: float) -> tuple[Any, Any]:
            """What the student gives, and its loss; that of layers trains, and is not measured."""
            with self._narrowed():
                values = self.student(*inputs)
                dense = self._ask(inputs) if self._goal.asks else None
            return values, self._goal.loss(values, dense, labels, share)

    return LossModule


def _tensor(array: Any, device: Any) -> Any:
    return torch().from_numpy(array.copy()).to(device)


def outputs_of(found: Any) -> Sequence[Any]:
    return found if isinstance(found, tuple) else (found,)


# -- The scales of the targets, by the definition of `onnxsparse.losses`: from what the dense model gives for the
# samples, and from what it gives with weights that are moved a little.
#
# A target that is not finite, or of another shape for other samples, cannot be matched: it is left out, with a note.
# One that no weight moves has no gradient, and is left out, too.


Ask = Callable[[Any], Sequence[Any]]


class Units(NamedTuple):
    """The scale of each target that is matched, by its place, and what is to be said."""

    scales: dict[int, Scale]
    notes: list[str]


def measured(
    signals: Sequence[DistillationTarget], pieces: Sequence[Any], ask: Ask, moved: Ask, together: int, scores: bool
) -> Units:
    """`ask` and `moved` give the dense model's values for a piece, the latter with weights moved; `together` pieces say
    by how much that is; `scores` looks for those of classes."""
    answers = [[_array(one) for one in ask(piece)] for piece in pieces]
    others = [[_array(one) for one in moved(piece)] for piece in pieces[:together]]
    floats = [place for place, one in enumerate(answers[0]) if one.dtype.kind == "f" and signals[place].stated]
    moving = {place for place in floats if any(not _same(*pair) for pair in _both(answers, others, place))}
    found, behind, why = Units({}, []), squashed(signals), list[str]()
    for place in floats:
        signal, values = signals[place], [answer[place] for answer in answers]
        problem = _problem(values)
        if problem:
            why.append(f"{signal.called} is not matched to the dense model's: {problem}")
        elif place in moving or not moving:
            plain = scale_along(np.stack(values), values[0].ndim, signal.axis, signal.name in behind)
            steady, other = (np.stack(some) for some in zip(*_both(answers, others, place)))
            scale = heard(plain, steady, other)
            classes = scores and signal.kind == "output"
            found.scales[place] = scored(scale, np.stack(values), values[0].ndim) if classes else scale
            found.notes.extend(said_of(signal.called, plain, scale))
    if not found.scales:
        raise ModelError(
            f"nothing that the model gives can be trained on: {why[0] if why else 'it has no float output'}"
        )
    found.notes.extend(why)
    return found


def perturbed_targets(dense: Any, paths: Mapping[str, str], device: Any) -> Ask:
    """What the dense model gives with every parameter of these paths moved a little, by its tag."""
    named = dict(dense.named_parameters())
    moved = {
        path: torch().from_numpy(shaken(named[path].detach().cpu().numpy(), tag)).to(device)
        for tag, path in paths.items()
        if path in named
    }

    def ask(inputs: Any) -> Sequence[Any]:
        with torch().no_grad():
            return outputs_of(torch().func.functional_call(dense, moved, tuple(inputs)))

    return ask


def _array(value: Any) -> Array:
    found: Array = (value.float() if value.is_floating_point() else value).cpu().numpy()
    return found


def _both(
    answers: Sequence[Sequence[Array]], others: Sequence[Sequence[Array]], place: int
) -> list[tuple[Array, Array]]:
    return [(answer[place], other[place]) for answer, other in zip(answers, others)]


def _same(one: Array, other: Array) -> bool:
    return one.shape == other.shape and np.array_equal(one, other, equal_nan=True)


def _problem(values: Sequence[Array]) -> str:
    """Why a target cannot be matched; '' if it can."""
    shapes = {one.shape for one in values}
    if len(shapes) > 1:
        return f"its shape depends on the samples ({' or '.join(str(list(one)) for one in sorted(shapes)[:2])})"
    every = np.stack(values)
    bad = int((~np.isfinite(every)).sum())
    count = "all of its numbers" if bad == every.size else f"{bad} of its {every.size} numbers"
    return f"{count} for the first samples are not finite; look at the data, or at the model" if bad else ""


# -- Random numbers of a model follow from its inputs: a run that is repeated or resumed draws the same.
#
# The student and the dense model draw in the same order, so for the same samples both have the same numbers. What torch
# itself would draw next is left as it was.


def draw_by_inputs(module: Any, proto: ModelProto) -> None:
    """Have a module draw by its inputs, where it draws at all."""
    nodes = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    if any(map(_draws, nodes)):
        _draw_by_inputs(module)


def draw_alike(module: Any, copied: Any) -> None:
    """Have a copy draw as the module does: copies of traced modules lose their hooks."""
    if module._forward_pre_hooks and not copied._forward_pre_hooks:
        _draw_by_inputs(copied)


def _draw_by_inputs(module: Any) -> None:
    states: list[list[tuple[Any, Any]]] = []

    def begin(_: Any, inputs: tuple[Any, ...]) -> None:
        states.append(_states(inputs))
        torch().manual_seed(_seed(inputs))

    def end(*_: Any) -> None:
        for device, state in states.pop():
            torch().cuda.set_rng_state(state, device) if device else torch().set_rng_state(state)

    module.register_forward_pre_hook(begin)
    module.register_forward_hook(end, always_call=True)


def _draws(node: Any) -> bool:
    return node.op_type in RANDOM or any(_draws(inner) for body in bodies(node) for inner in body.node)


def _states(inputs: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """The states of torch's generators, by device; None is the host."""
    devices = {one.device for one in inputs if getattr(one, "is_cuda", False)}
    return [(None, torch().get_rng_state()), *((one, torch().cuda.get_rng_state(one)) for one in devices)]


def _seed(inputs: tuple[Any, ...]) -> int:
    digest = 0
    for one in inputs:
        digest = zlib.crc32(np.ascontiguousarray(one.detach().cpu().numpy()).tobytes(), digest)
    return digest
