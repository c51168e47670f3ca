"""Inputs and outputs of a model: which axis holds the samples, which output is a next state, and data fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onnx import TensorProto, ValueInfoProto
from onnx.helper import tensor_dtype_to_np_dtype

from onnxsparse.data import Field
from onnxsparse.data.field import to_front
from onnxsparse.errors import ModelError, OptionError, brief, nearest
from onnxsparse.graph.model import Model
from onnxsparse.options import Axes

# -- Along which axis of each input and output the samples lie, and which output is which input's next value.
#
# 1. What the user says wins: `NAME=AXIS` for an axis, `INPUT=OUTPUT` for a state.
# 2. An axis whose dimension is called as a batch usually is holds the samples; and so does one whose dimension bears
#    the name of the first dimension of another input, where its own first size is fixed (a state `[2, batch, 128]`).
#    Where neither has a name that is the middle one of three axes, if it alone is open.
# 3. A state of a file that fixes how many samples it takes has them along the only axis of that size.
# 4. The output of a state is laid out as that. Others go by the name of the dimension, where the samples of an input
#    are not first. Otherwise they are first.


USUAL = frozenset({
    "n", "b", "bs", "batch", "batchsize", "batches", "nbatch", "batchdim", "batchaxis", "dynamicbatch", "minibatch",
    "samples", "nsamples", "numsamples", "numbatch", "batchnum",
})  # fmt: skip
"""What the dimension of the samples is called, in small letters alone."""

SHORT = frozenset({"n", "b"})
"""Those that may be something else behind a first size of 1: the number of points, of boxes, ..."""

Pairs = Axes


@dataclass(frozen=True)
class SampleAxes:
    """Axes that are not the first, by input and by output; `given` are inputs that the user named; `states` the output
    that each state comes from."""

    inputs: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    states: Mapping[str, str] = field(default_factory=dict)

    @property
    def turned(self) -> dict[str, dict[str, int]]:
        """As `Spec.turned`."""
        return {"inputs": dict(self.inputs), "outputs": dict(self.outputs)} if self.inputs or self.outputs else {}


SAMPLES_FIRST = SampleAxes()


def sample_axes(model: Model, axes: Axes = None, states: Pairs = None) -> SampleAxes:
    """The axes of a model's inputs and outputs, with what the user says of them."""
    inputs, outputs = _inputs(model), {value.name: value for value in model.proto.graph.output}
    carried = _states(inputs, outputs, states)
    wanted = {name: _axis(name, axis) for name, axis in pairs_of(axes, "--batch-axis", "INPUT=AXIS").items()}
    for name, axis in wanted.items():
        _demand_axis(name, axis, inputs, outputs)
    found = {**_by_size(inputs, carried), **_by_name(inputs)}
    found.update({name: axis for name, axis in wanted.items() if name in inputs})
    names = {_dims(value)[found.get(name, 0)] for name, value in inputs.items() if _dims(value)} - {"", *_sizes(inputs)}
    moved = any(found.values()) or bool(wanted)
    turned = {name: _axis_called(names, value) for name, value in outputs.items()} if moved else {}
    turned.update({output: found.get(name, 0) for name, output in carried.items()})
    turned.update({name: axis for name, axis in wanted.items() if name in outputs and name not in inputs})
    return SampleAxes(
        {name: axis for name, axis in found.items() if axis},
        {name: axis for name, axis in turned.items() if axis},
        frozenset(wanted),
        carried,
    )


def pairs_of(given: Axes, option: str, form: str) -> dict[str, Any]:
    """Pairs as a dictionary, or as texts NAME=VALUE."""
    if isinstance(given, Mapping):
        return dict(given)
    if given is not None and not isinstance(given, Iterable):
        raise OptionError(f"{option} takes {form}, not {given!r:.40}")
    found: dict[str, Any] = {}
    for text in [given] if isinstance(given, str) else given or ():
        for part in str(text).split(","):
            name, separator, value = part.rpartition("=")
            if not (separator and name and value):
                raise OptionError(f"{option} takes {form}, not {brief(part)}")
            found[name] = value
    return found


def whole(text: Any) -> int | None:
    """A whole number, also where it is a text."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    plain = text.removeprefix("-") if isinstance(text, str) else ""
    return int(text) if plain.isascii() and plain.isdigit() and len(plain) < 4 else None


def _axis(name: str, given: Any) -> int:
    axis = whole(given)
    if axis is None or axis < 0:
        raise OptionError(f"--batch-axis {name[:80]}={brief(given)}: an axis is a number from 0")
    return axis


def _inputs(model: Model) -> dict[str, ValueInfoProto]:
    """The inputs that are fed: those that no initializer stands for."""
    graph = model.proto.graph
    stored = {tensor.name for tensor in graph.initializer} | {one.values.name for one in graph.sparse_initializer}
    return {value.name: value for value in graph.input if value.name not in stored}


def _dims(value: ValueInfoProto) -> list[str]:
    """Names or sizes of all axes; '' is one that has neither, or `?`."""
    dims = value.type.tensor_type.shape.dim
    names = (str(dim.dim_value) if dim.dim_value > 0 else str(dim.dim_param) for dim in dims)
    return [name if any(map(str.isalnum, name)) else "" for name in names]


def _sizes(values: Mapping[str, ValueInfoProto]) -> set[str]:
    return {name for value in values.values() for name in _dims(value) if name.isdigit()}


def _is_usual(name: str) -> bool:
    return "".join(letter for letter in name.lower() if letter.isalpha()) in USUAL and not name.isdigit()


def _by_name(inputs: Mapping[str, ValueInfoProto]) -> dict[str, int]:
    firsts = {_dims(value)[0] for value in inputs.values() if len(_dims(value)) > 1} - {"", *_sizes(inputs)}
    found = {}
    for name, value in inputs.items():
        dims = _dims(value)
        if not dims or _is_usual(dims[0]):
            continue
        sure = dims[0].isdigit() and dims[0] != "1"
        usual = [axis for axis, dim in enumerate(dims) if _is_usual(dim) and (sure or dim.lower() not in SHORT)]
        shared = [axis for axis, dim in enumerate(dims) if dim in firsts] if dims[0].isdigit() else []
        places = usual or shared or _in_the_middle(dims, inputs.values())
        if len(places) == 1:
            found[name] = places[0]
    return found


def _by_size(inputs: Mapping[str, ValueInfoProto], states: Iterable[str]) -> dict[str, int]:
    """States of a file that fixes how many samples it takes: the only axis of that size, where it is not the first."""
    firsts = {_dims(value)[0] for name, value in inputs.items() if name not in states and _dims(value)}
    if len(firsts) != 1 or not next(iter(firsts)).isdigit():
        return {}
    places = {name: [axis for axis, dim in enumerate(_dims(inputs[name])) if dim in firsts] for name in states}
    return {name: axes[0] for name, axes in places.items() if len(axes) == 1}


def _in_the_middle(dims: Sequence[str], others: Iterable[ValueInfoProto]) -> list[int]:
    """The axis of a state `[2, ?, 128]`, where other inputs are open along their first axis."""
    nameless = any(len(_dims(value)) > 1 and not _dims(value)[0] for value in others)
    return [1] if nameless and len(dims) == 3 and not dims[1] and dims[0].isdigit() and dims[2].isdigit() else []


def _axis_called(names: set[str], value: ValueInfoProto) -> int:
    """The only axis of an output that is called as the samples are; the first one where there is none."""
    places = [axis for axis, dim in enumerate(_dims(value)) if dim in names or _is_usual(dim)]
    return places[0] if len(places) == 1 else 0


def _demand_axis(
    name: str, axis: int, inputs: Mapping[str, ValueInfoProto], outputs: Mapping[str, ValueInfoProto]
) -> None:
    known = {**outputs, **inputs}
    if name not in known:
        raise OptionError(
            f"--batch-axis {name[:80]}={axis}: the model has no such input or output{_among(name, known)}"
        )
    kind = known[name].type.tensor_type
    if kind.HasField("shape") and axis >= len(kind.shape.dim):
        raise OptionError(f"--batch-axis {name[:80]}={axis}: '{name[:80]}' has {len(kind.shape.dim)} axes, from 0")


def _among(name: str, known: Iterable[str]) -> str:
    return nearest(name, known) or f" (it has {', '.join(list(known)[:10])})"


# -- states


def _states(
    inputs: Mapping[str, ValueInfoProto], outputs: Mapping[str, ValueInfoProto], given: Pairs
) -> dict[str, str]:
    found = {name: str(output) for name, output in pairs_of(given, "--state", "INPUT=OUTPUT").items()}
    for name, output in found.items():
        said = f"--state {name[:80]}={output[:80]}"
        if name not in inputs:
            raise OptionError(f"{said}: the model has no input '{name[:80]}'{_among(name, inputs)}")
        if output not in outputs:
            raise OptionError(f"{said}: the model has no output '{output[:80]}'{_among(output, outputs)}")
        _demand_alike(said, inputs[name], outputs[output])
        if list(found.values()).count(output) > 1:
            raise OptionError(f"{said}: the output '{output[:80]}' is the next value of two states")
    if found and len(found) == len(inputs):
        raise OptionError("--state names every input of the model, which leaves nothing that has steps")
    return found


def _demand_alike(said: str, one: ValueInfoProto, other: ValueInfoProto) -> None:
    """What comes out has to go in again."""
    left, right = one.type.tensor_type, other.type.tensor_type
    if not (one.type.HasField("tensor_type") and other.type.HasField("tensor_type")):
        raise OptionError(f"{said}: only tensors are carried from step to step")
    if left.elem_type != right.elem_type and right.elem_type:
        raise OptionError(f"{said}: the input takes {_kind(left.elem_type)}, the output gives {_kind(right.elem_type)}")
    if not (left.HasField("shape") and right.HasField("shape")):
        return
    sizes, others = ([dim.dim_value for dim in kind.shape.dim] for kind in (left, right))
    if len(sizes) != len(others) or any(a != b for a, b in zip(sizes, others) if a > 0 and b > 0):
        shown = ["[" + ", ".join(name or "?" for name in _dims(value)) + "]" for value in (one, other)]
        raise OptionError(f"{said}: the input is {shown[0]} and the output {shown[1]}, which cannot be carried over")


def _kind(kind: int) -> str:
    return str(tensor_dtype_to_np_dtype(kind)) if kind != TensorProto.UNDEFINED else "nothing known"


# -- What a model takes, as the data has to give it.


def fields_of(model: Model, axes: SampleAxes | None = None) -> list[Field]:
    """The inputs that are to be fed: those that no initializer stands for; with the samples first in their shapes."""
    graph = model.proto.graph
    stored = {tensor.name for tensor in graph.initializer} | {one.values.name for one in graph.sparse_initializer}
    found = [_field(value) for value in graph.input if value.name not in stored]
    return found if axes is None else [_laid_out(field, axes) for field in found]


def with_empty_past(fields: Iterable[Field]) -> list[Field]:
    """The same, where keys and values of earlier tokens need no array: see `past_axis`."""
    return [
        replace(field, optional=field.optional or past_axis(field.name, field.shape or ()) is not None)
        for field in fields
    ]


def past_axis(name: str, shape: Sequence[int | None], samples: int = 0) -> int | None:
    """The axis of the earlier tokens of an input that holds their keys or values: the only open one but that of the
    samples, of an input of three axes or more with `past` in its name. Without any it has a size of 0."""
    found = [axis for axis, size in enumerate(shape) if not size and axis != samples]
    return found[0] if "past" in name.lower() and len(shape) > 2 and len(found) == 1 else None


def _laid_out(field: Field, axes: SampleAxes) -> Field:
    axis, is_state = axes.inputs.get(field.name, 0), field.name in axes.states
    shape = to_front(field.shape, axis) if axis and field.shape is not None else field.shape
    steps = bool(axes.states) and not is_state
    return replace(field, shape=shape, axis=axis, given=field.name in axes.given, steps=steps, optional=is_state)


def _field(value: ValueInfoProto) -> Field:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        raise ModelError(f"input '{value.name}' of the model is no tensor, which training data cannot hold")
    shape = None
    if kind.HasField("shape"):
        shape = tuple(dim.dim_value if dim.dim_value > 0 else None for dim in kind.shape.dim)
    return Field(value.name, _dtype(value, kind.elem_type), shape)


def _dtype(value: ValueInfoProto, kind: int) -> str:
    try:
        return str(tensor_dtype_to_np_dtype(kind).name)
    except KeyError:
        raise ModelError(f"input '{value.name}' of the model has an element type that is not known") from None
