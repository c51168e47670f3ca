"""Knowledge distillation in a user's loop: what a teacher adds to the loss.

    T^2 * sum of KL(softmax(teacher / T) | softmax(student / T)) over the last axis, over the number of rows

1. Of several outputs the mean counts. The whole is (1 - hardness) * task + hardness * that.
2. What went into the module and came out of it last is recorded by a hook, so a loop need not hand it on.
3. The teacher `self` is a copy of the module from the first step that asks for it.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

from onnxsparse.engines.torch.convert import to_module
from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OptionError
from onnxsparse.passes.sources import proto_of
from onnxsparse.recipes.modifiers.distillation import DISABLE, SELF, DistillationModifier, meant
from onnxsparse.recipes.modifiers.layer_distillation import PerLayerDistillationModifier


class Recorder:
    """The last inputs and outputs of a module."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._join: Callable[[Any, Any], Any] | None = None
        self.clear()
        self._hook = module.register_forward_hook(self._record, with_kwargs=True)

    def __deepcopy__(self, memo: dict[int, Any]) -> Recorder:
        """A copy of the module has a hook, too, and nothing is recorded of it."""
        made = object.__new__(Recorder)
        made._module = made._join = None
        made.clear()
        return made

    def put_behind(self, join: Callable[[Any, Any], Any]) -> None:
        """Hand on what `join` makes of inputs and outputs, instead of the outputs."""
        self._join = join
        self._hook.remove()
        # A compiler that traced the hook would take the loop's state as it was then.
        record = torch()._disable_dynamo(lambda *given: self._record(*given))
        self._hook = self._module.register_forward_hook(record, with_kwargs=True)

    def stop(self) -> None:
        self._hook.remove()

    def clear(self) -> None:
        self.inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.outputs: Any = None

    def _record(self, module: Any, arguments: Any, named: Any, outputs: Any) -> Any:
        if self._join is not None and getattr(module, "_is_replica", False):
            raise OptionError(
                "a teacher cannot count in DataParallel's copies of a module; use DistributedDataParallel"
            )
        if module is not self._module or not module.training:
            return None
        inputs = arguments, named
        joined = outputs if self._join is None else self._join(inputs, outputs)
        self.inputs, self.outputs = inputs, joined
        return None if joined is outputs else joined


Options = Union[DistillationModifier, PerLayerDistillationModifier]


class Teacher(ABC):
    """Whoever is learned from, and when."""

    def __init__(self, options: Options, given: Any, module: Any) -> None:
        self._options, self._module = options, module
        self._given = options.teacher if given is None else given
        self._has_begun, self._has_ended = False, False

    @property
    def disabled(self) -> bool:
        return isinstance(self._given, str) and self._given == DISABLE

    def begun(self, epoch: float) -> bool:
        return epoch >= self._options.start_epoch

    def is_active(self, epoch: float) -> bool:
        """Also in the first step that is not before the end, which the recipe ends in, as in SparseML."""
        span = self._options.span
        inside = span.start <= epoch and (span.end < 0 or epoch < span.end)
        self._has_begun |= inside
        return not self.disabled and (inside or (self._has_begun and not self._has_ended and epoch >= span.end))

    def step(self, epoch: float) -> None:
        """A step comes, its loss is there."""
        self._has_ended |= self._has_begun and 0 <= self._options.end_epoch <= epoch

    @property
    @abstractmethod
    def rest(self) -> float:
        """The share of the task's loss beside this teacher's."""

    @abstractmethod
    def loss(self, task: Any, outputs: Any, inputs: Any) -> Any:
        """The task's loss and the teacher's together."""

    def stop(self) -> None:  # noqa: B027 - most watch nothing
        """Take everything off the module."""

    def _made(self) -> Any:
        given = self._given
        if isinstance(given, str) and given == SELF:
            made = copy.deepcopy(self._module)
        else:
            held = self._file()
            made = given if held is None else to_module(held)
        if isinstance(made, torch().nn.Module):
            made.eval()
        return made

    def _file(self) -> Any:
        """The path of the ONNX file that it is given as, or the model in memory; None of a module."""
        given = self._given
        return os.fspath(given) if isinstance(given, (str, os.PathLike)) else proto_of(given)


class OutputTeacher(Teacher):
    """One whose outputs are learned."""

    def __init__(self, options: DistillationModifier, given: Any, module: Any) -> None:
        super().__init__(options, given, module)
        self._said = options
        self._ready: Any = None

    @property
    def rest(self) -> float:
        return 1 - self._said.hardness

    def loss(self, task: Any, outputs: Any, inputs: Any) -> Any:
        if outputs is None or inputs is None:
            raise OptionError(
                "the module has given nothing since the last loss: call it in training mode before loss_update, or "
                "pass loss_update its student_outputs and student_inputs"
            )
        said, answers = self._said, self._answers(inputs)
        teaching = divergence(outputs, answers, said.temperature, said.distill_output_keys, said.called)
        return self.rest * task + said.hardness * teaching

    def _answers(self, inputs: Any) -> Any:
        if self._ready is None:
            self._ready = self._made()
        arguments, named = _chosen(*arguments_of(inputs), self._said)
        with torch().no_grad():
            return self._ready(*arguments, **named)


def arguments_of(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """As recorded, or as a loop hands them on: a tensor, a tuple or list, or a mapping."""
    if isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[0], tuple) and isinstance(inputs[1], dict):
        return inputs
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def _chosen(
    arguments: tuple[Any, ...], named: dict[str, Any], options: DistillationModifier
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the teacher is called with: all, or what its keys name."""
    keys = options.teacher_input_keys
    if keys is None:
        return arguments, named
    whole = len(arguments) == 1 and not named and isinstance(arguments[0], Mapping)
    given = arguments[0] if whole else named
    missing = next((key for key in keys if key not in given), None)
    if missing is not None:
        raise OptionError(f"{options.called}: teacher_input_keys: the module was called without the name {missing:.60}")
    chosen = {key: given[key] for key in keys}
    return ((chosen,), {}) if whole else ((), chosen)


def divergence(student: Any, teacher: Any, temperature: float, keys: Any = None, where: str = "the teacher") -> Any:
    """The mean over all outputs, or those of the keys."""
    parts = [_one(ours, theirs, temperature) for ours, theirs in pairs(student, teacher, keys, where)]
    return sum(parts[1:], parts[0]) / len(parts)


def _one(student: Any, teacher: Any, temperature: float) -> Any:
    functional = torch().nn.functional
    ours = functional.log_softmax(student / temperature, -1)
    theirs = functional.log_softmax(teacher.detach() / temperature, -1)
    rows = student.numel() / student.shape[-1]
    return functional.kl_div(ours, theirs, reduction="sum", log_target=True) * temperature**2 / rows


# -- Which output of a teacher each output of a module learns from.
#
# 1. Outputs go by their names, and without names by their places; a single tensor is the only one, at place 0.
# 2. A module with a single tensor learns from the first output of its teacher, and a single output from a lone one.
# 3. Without keys what has no axis, as a loss that the module computes, is none to learn by where others are.
# 4. Both have the same shape, and an axis of classes, which is the last one.


Outputs = dict[str, Any]


def pairs(student: Any, teacher: Any, keys: Sequence[int | str] | None, where: str) -> list[tuple[Any, Any]]:
    """What the module gave and what the teacher gave, for each of the keys, or for all."""
    student = fields_of(student)
    ours, theirs = _outputs(student, where, "the module"), _outputs(teacher, where, "the teacher")
    classes = [name for name, value in ours.items() if _has_classes(value)]  # a loss or a cache beside them has none
    chosen = classes or list(ours)
    if keys is not None:
        chosen = [_chosen_output(key, student, list(ours), where) for key in keys]
    if not chosen:
        raise OptionError(f"{where}: the module gives no output to learn by")
    first = torch().is_tensor(student) or (len(theirs) == 1 and len(chosen) == 1)
    found = []
    for name in chosen:
        if name not in theirs and not (first and theirs):
            raise OptionError(f"{where}: the teacher gives no output {name:.60} (it gives {', '.join(theirs)[:100]})")
        answer = next(iter(theirs.values())) if first and name not in theirs else theirs[name]
        found.append(_fitting(ours[name], answer, name, where))
    return found


def fields_of(given: Any) -> Any:
    """A dataclass, as some modules give, by the names of its fields; anything else as it is."""
    if not dataclasses.is_dataclass(given) or isinstance(given, (Mapping, type)):
        return given
    return {one.name: getattr(given, one.name) for one in dataclasses.fields(given)}


def _outputs(given: Any, where: str, who: str) -> Outputs:
    given = fields_of(given)
    if torch().is_tensor(given):
        return {"0": given}
    if isinstance(given, Mapping):
        return {str(key): value for key, value in given.items()}
    if isinstance(given, (tuple, list)):
        return {str(place): value for place, value in enumerate(given)}
    raise OptionError(f"{where}: {who} gives a {type(given).__name__}; tensors, lists and dicts of them are understood")


def _chosen_output(key: int | str, student: Any, names: list[str], where: str) -> str:
    found = meant(key, names)
    if found is not None and (isinstance(key, int) or isinstance(student, Mapping)):
        return found
    known = ", ".join(names)[:100] if isinstance(student, Mapping) else f"{len(names)} without a name, counted from 0"
    raise OptionError(f"{where}: distill_output_keys: the module gives no output {key!r:.60} (it gives {known})")


def _has_classes(value: Any) -> bool:
    return bool(torch().is_tensor(value) and value.ndim)


def _fitting(ours: Any, theirs: Any, name: str, where: str) -> tuple[Any, Any]:
    for given in (ours, theirs):
        if not _has_classes(given):
            what = "a single number" if torch().is_tensor(given) else f"a {type(given).__name__}"
            raise OptionError(
                f"{where}: the output {name:.60} is {what}, without classes; a teacher is heard on logits that the "
                "module gives"
            )
    if ours.shape != theirs.shape:
        raise OptionError(
            f"{where}: the teacher gives {list(theirs.shape)} where the module gives {list(ours.shape)} (output "
            f"{name:.60}); it has to be made for the same task"
        )
    return ours, theirs
