"""The two networks of a run: the dense model, and the one that is trained in its place.

1. Both are made from one copy of the file whose outputs are the signals: the float outputs, and what stands before
   their squashing functions.
2. The student's weights are parameters; what it multiplies with is made of them by sparsers at every forward pass, so
   that masked places get no gradient, whatever the optimizer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto, TensorProto

from onnxsparse import sparsers
from onnxsparse.engines.distillation import DistillationTarget, stated
from onnxsparse.engines.spec import Spec
from onnxsparse.engines.torch.chance import settle_chance, share_chance
from onnxsparse.engines.torch.convert import to_module
from onnxsparse.engines.torch.goal import Goal
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.sparsers import effective
from onnxsparse.engines.torch.writeback import names_of
from onnxsparse.engines.turning import turn
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.graph.stores import keys
from onnxsparse.sparsers.sparser import Moment

Turned = Mapping[str, Mapping[str, int]]
_FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


@dataclass(frozen=True)
class Networks:
    """The module, the parameters' paths by tag, and the signals that it gives in order."""

    module: Any
    paths: dict[str, str]
    signals: list[DistillationTarget]


def networks(model: Model, tags: Mapping[str, StoredTensor], train_bn: bool, turned: Turned) -> Networks:
    """The module of a copy of the model; `tags` are tensors of the model itself."""
    proto, signals = _with_taps(model, turned)
    module = widened(to_module(proto, train_bn=train_bn))
    settle_chance(module, proto)
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


def _with_taps(model: Model, turned: Turned) -> tuple[ModelProto, list[DistillationTarget]]:
    """A whole copy whose outputs are the model's, and their taps."""
    proto = turn(model.copy_proto(), turned.get("inputs", {}), turned.get("outputs", {}))
    signals = stated(proto)
    for signal in signals:
        if signal.kind == "tap":
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
    share_chance(module, dense)
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
    return found


def lesson_class() -> Any:
    """The class of what is run in training: the student, up to the loss."""

    class Lesson(torch().nn.Module):  # type: ignore[misc]
        """One number for inputs and labels. The dense model is asked, but is no part of it."""

        def __init__(self, student: Any, goal: Goal, ask: Callable[[Any], Any], narrowed: Callable[[], Any]) -> None:
            super().__init__()
            self.student = student
            self._goal, self._ask, self._narrowed = goal, ask, narrowed

        def forward(self, inputs: Any, labels: Any, share: float) -> Any:
            return self.both(inputs, labels, share)[1]

        def both(self, inputs: Any, labels: Any, share: float) -> tuple[Any, Any]:
            """What the student gives, and its loss."""
            with self._narrowed():
                values = self.student(*inputs)
                dense = self._ask(inputs) if self._goal.asks else None
            return values, self._goal.loss(values, dense, labels, share)

    return Lesson


def _tensor(array: Any, device: Any) -> Any:
    return torch().from_numpy(array.copy()).to(device)


def outputs_of(found: Any) -> Sequence[Any]:
    return found if isinstance(found, tuple) else (found,)
