"""The example that a module is exported with: the names of its tensors, its batch, and a call of tensors alone.

1. Exporters disagree about dictionaries, keywords, defaults and outputs that are no tensors; they get a copy of the
   module whose `forward` takes the tensors of the example, in the order of forward's arguments, and returns tensors.
   All else of the example is part of the file.
2. An output that is an input, a parameter or another output becomes a tensor of its own: each keeps its name.
3. The first axis is the batch where the module gives the same for each sample of a batch twice as large.
4. Each run is one of a fresh copy, with the same parameters: what a call changes in a module is not in the file.
"""

from __future__ import annotations

import copy
import inspect
import keyword
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.permute.proof import Inputs
from onnxsparse.errors import OptionError, one_line

CLOSE = 1e-4
HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
SHOWN = 40


@dataclass(frozen=True)
class Example:
    """The inputs of an export, and the names of the graph's inputs and outputs.

    `twice` are the inputs of a batch twice as large, where the first axis is one; `fixed` says why it is not, and
    `notes` what else to know.
    """

    inputs: Inputs
    names: tuple[str, ...]
    outputs: tuple[str, ...]
    twice: Inputs | None = None
    fixed: str = ""
    notes: tuple[str, ...] = ()
    expected: tuple[Any, ...] = field(default=(), repr=False)
    """What the module gives for the inputs, where it gives that each time."""
    grown: Mapping[str, int] = field(default_factory=dict)
    """The axis of the batch of each output that has one."""

    @classmethod
    def of(cls, module: Any, inputs: Inputs) -> Example:
        subject = fresh(module)
        try:
            outputs = inputs.call(subject)
        except Exception as error:  # whatever a user's module raises
            raise OptionError(
                f"the module does not run on the example: {type(error).__name__}: {one_line(error)[:200]}"
            ) from None
        if not _tensors(outputs):
            kind = one_line(type(outputs).__name__)
            raise OptionError(f"the module gives no tensor: its output is a {kind:.40}, with none in it that is found")
        own = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
        names = _unused(_input_names(module, inputs), own, "_in")
        found = cls(inputs, names, _unused(_output_names(outputs), {*own, *names}, "_out"))
        found = replace(found, notes=tuple(_constants(module, inputs, outputs)))
        if not _alike(inputs.call(subject), outputs):
            changes = "the module gives something else each time it is called"
            return replace(found, fixed=changes, notes=(*found.notes, f"{changes}; the file has no memory of calls"))
        return replace(found, expected=tuple(_tensors(outputs)))._doubled(module, outputs)

    def _doubled(self, module: Any, outputs: Any) -> Example:
        """Twice as many samples, as exporters take a size of 1 for a constant; where that is the same computation."""
        batch = self.batch
        if not batch:
            return replace(self, fixed="the example has no samples along a first axis")
        twice = self.inputs.mapped(lambda one: torch().cat([one, one.flip(0)]) if _has(one, batch) else one)
        try:
            seen = _tensors(twice.call(fresh(module)))
        except Exception as error:  # whatever a user's module raises
            return replace(self, fixed=f"the module does not run on {2 * batch} samples: {one_line(error)[:120]}")
        pairs = list(zip(seen, _tensors(outputs)))
        axes = {name: _grown(one, first) for name, (one, first) in zip(self.outputs, pairs)}
        grown = {name: found[0] for name, found in axes.items() if found}
        if not grown or not all(_same(one, first, batch) for one, first in pairs):
            return replace(self, fixed="samples of one batch change one another's outputs, or its first axis is none")
        return replace(self, twice=twice, grown=grown)

    @property
    def batch(self) -> int:
        """How many samples there are: the first axis of the first input that has one."""
        return next((len(one) for one in _tensors((self.inputs.args, self.inputs.kwargs)) if one.dim()), 0)

    def tensors(self, module: Any) -> dict[str, Any]:
        """The inputs by the names of the graph."""
        return dict(zip(self.names, _tensors(list(_bound(module, self.inputs).values()))))

    def gives(self, outputs: Sequence[Any], close: float) -> bool:
        """Whether these are the outputs of the module, as near as numbers of that precision are."""
        pairs = list(zip(outputs, self.expected))
        same = len(outputs) == len(self.expected)
        return same and all(one.shape == first.shape and _near(one, first.cpu(), close) for one, first in pairs)

    def dynamic(self, module: Any, dynamo: bool) -> dict[str, Any]:
        """The option that makes the first axis of each input that has the batch a dynamic one."""
        tensors = self.tensors(module)
        if not dynamo:
            given = {name: 0 for name, one in tensors.items() if _has(one, self.batch)}
            return {"dynamic_axes": {name: {axis: "batch"} for name, axis in {**given, **self.grown}.items()}}
        axes, pairs = {0: torch().export.Dim("batch")}, zip(argument_names(self.names), tensors.values())
        return {"dynamic_shapes": {name: axes if _has(one, self.batch) else None for name, one in pairs}}


def fresh(module: Any) -> Any:
    """A copy of a module with the same parameters, and buffers and attributes of its own."""
    return copy.deepcopy(module, {id(one): one for one in module.parameters()})


def of_tensors(module: Any, example: Example, inputs: Inputs) -> tuple[Any, tuple[Any, ...]]:
    """A copy of the module that takes tensors and returns tensors, and those of `inputs`."""
    subject = fresh(module)
    signature = inspect.signature(subject.forward)
    bound = signature.bind(*inputs.args, **inputs.kwargs)
    tree = torch().utils._pytree
    leaves, spec = tree.tree_flatten(dict(bound.arguments))
    places = [place for place, one in enumerate(leaves) if torch().is_tensor(one)]
    tensors, call = tuple(leaves[place] for place in places), _without_hooks(subject)
    rest = [None if torch().is_tensor(one) else one for one in leaves]

    def forward(*given: Any) -> tuple[Any, ...]:
        values = list(rest)
        for place, one in zip(places, given):
            values[place] = one
        arguments = inspect.BoundArguments(signature, tree.tree_unflatten(values, spec))
        return tuple(_apart(call(*arguments.args, **arguments.kwargs), (*given, *stored(subject))))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    named = [inspect.Parameter(name, kind) for name in argument_names(example.names)]
    forward.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    subject.forward = forward
    return subject, tensors


def _without_hooks(subject: Any) -> Any:
    """What calls the module as it is, with the hooks that it has; the module itself has none of them then."""
    if not any(subject.__dict__.get(name) for name in HOOKS):
        return subject.forward
    called = copy.copy(subject)
    for name in HOOKS:
        if name in subject.__dict__:
            setattr(subject, name, type(subject.__dict__[name])())
    return called


def stored(module: Any) -> Iterator[Any]:
    yield from module.parameters()
    yield from module.buffers()


def _apart(outputs: Any, taken: Iterable[Any]) -> Iterator[Any]:
    """In a graph every output is a tensor of its own."""
    seen = list(taken)
    for one in _tensors(outputs):
        yield one.clone() if any(one is other for other in seen) else one
        seen.append(one)


# -- comparing


def _has(one: Any, batch: int) -> bool:
    return bool(torch().is_tensor(one) and one.dim() and one.shape[0] == batch)


def _grown(one: Any, first: Any) -> list[int]:
    """The axes along which a tensor is larger than another."""
    return [axis for axis, (size, before) in enumerate(zip(one.shape, first.shape)) if size != before]


def _same(one: Any, first: Any, batch: int) -> bool:
    """Whether a tensor of twice as many samples begins with that of the first ones, whatever axis they lie along."""
    if one.dim() != first.dim():
        return False
    axes = _grown(one, first)
    if len(axes) > 1 or any(first.shape[axis] != batch for axis in axes):
        return False
    return _near(one.narrow(axes[0], 0, batch) if axes else one, first)


def _alike(outputs: Any, first: Any) -> bool:
    pairs = _tensors(outputs), _tensors(first)
    return len(pairs[0]) == len(pairs[1]) and all(a.shape == b.shape and _near(a, b) for a, b in zip(*pairs))


def _near(one: Any, first: Any, close: float = CLOSE) -> bool:
    kind = torch().complex128 if first.is_complex() else torch().float64
    reach = float(first.abs().max()) if first.numel() and first.is_floating_point() else 1.0
    return bool(torch().allclose(one.to(kind), first.to(kind), close, close * reach, equal_nan=True))


def _tensors(tree: Any) -> list[Any]:
    return [one for one in torch().utils._pytree.tree_leaves(tree) if torch().is_tensor(one)]


# -- names


def _bound(module: Any, inputs: Inputs) -> dict[str, Any]:
    """The values of forward's arguments, by their names."""
    return dict(inspect.signature(module.forward).bind(*inputs.args, **inputs.kwargs).arguments)


def _leaves(module: Any, inputs: Inputs) -> Iterator[tuple[str, Any]]:
    """What forward gets, each by the name of its argument and its keys and places in it."""
    kinds = inspect.signature(module.forward).parameters
    for name, value in _bound(module, inputs).items():
        keywords = kinds[name].kind is inspect.Parameter.VAR_KEYWORD
        for path, one in torch().utils._pytree.tree_flatten_with_path(value)[0]:
            keys = [str(getattr(part, "key", getattr(part, "idx", getattr(part, "name", part)))) for part in path]
            yield "_".join(keys if keywords else [name, *keys]), one


def _input_names(module: Any, inputs: Inputs) -> list[str]:
    return [name for name, one in _leaves(module, inputs) if torch().is_tensor(one)]


def argument_names(names: Sequence[str]) -> list[str]:
    """The names as Python's arguments."""
    return [
        name if name.isidentifier() and not keyword.iskeyword(name) and name != "self" else f"argument_{place}"
        for place, name in enumerate(names)
    ]


def _output_names(outputs: Any) -> list[str]:
    if torch().is_tensor(outputs):
        return ["output"]
    if isinstance(outputs, Mapping) and all(torch().is_tensor(one) for one in outputs.values()):
        return [f"output_{name}" if str(name).isdigit() else str(name) for name in outputs]  # torch takes no numbers
    if hasattr(outputs, "_fields") and all(torch().is_tensor(one) for one in outputs):
        return [str(name) for name in outputs._fields]
    return [f"output_{index}" for index in range(len(_tensors(outputs)))]


def _unused(names: Sequence[str], taken: set[str], more: str) -> tuple[str, ...]:
    """In a graph a name is that of one tensor."""
    seen, found = set(taken), []
    for name in names:
        while name in seen:
            name += more
        seen.add(name)
        found.append(name)
    return tuple(found)


def _constants(module: Any, inputs: Inputs, outputs: Any) -> Iterator[str]:
    """What is no tensor, and so no input or output of the graph."""
    leaves = [(name, one) for name, one in _leaves(module, inputs) if isinstance(one, (bool, int, float, str))]
    if leaves:
        said = ", ".join(f"{name}={one_line(repr(one))[:SHOWN]}" for name, one in leaves)
        yield f"what is no tensor is part of the file: {said}"
    found = torch().utils._pytree.tree_leaves(outputs)
    others = [one_line(type(one).__name__)[:SHOWN] for one in found if one is not None and not torch().is_tensor(one)]
    if others:
        yield f"outputs that are no tensors are not in the file: {', '.join(dict.fromkeys(others))}"


__all__ = ["CLOSE", "Example", "fresh", "of_tensors", "stored"]
