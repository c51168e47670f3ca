"""Permuting the channels of a module in place, and the proof that its outputs stay what they are.

1. A parameter keeps its object, and so does a buffer: numbers are written into it. What goes with a parameter moves
   along: its gradient, ASP's mask beside it, and what optimizers remember of it in its shape.
2. The proof runs a copy of the module, in double precision where that runs, on inputs of the caller's, on random ones
   of the same shapes, and on twice as many of them. Nothing of the module itself is run or changed for it.
3. A parameter that a trace in eval mode did not meet may be used in training: then the copy is run in training mode,
   too, without dropout.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.state_dicts import sharded
from onnxsparse.errors import OptionError, one_line
from onnxsparse.math.values import Array

CLOSE = {"float64": 1e-7, "float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}
"""How far outputs may be apart, as a part of their range, by the precision that the copy is run in."""
_BESIDE = ("__{}_mma_mask", "__{}_mma_pruned_p")
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "dropout_")


class OneMove(Protocol):
    @property
    def axes(self) -> tuple[int, ...]: ...
    @property
    def order(self) -> Array: ...


class Moving(Protocol):
    """What moves in one tensor: `channels.permutation.MovedTensor`."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def moves(self) -> Sequence[OneMove]: ...
    def inverse(self) -> Moving: ...


class UnprovenError(Exception):
    """Why nothing can be proven of a module, in one line."""


# -- numbers in another order


def moved(tensor: Any, moving: Moving) -> Any:
    """A tensor with its numbers in their new places; any type, any device."""
    for move in moving.moves:
        rest = [axis for axis in range(tensor.dim()) if axis not in move.axes]
        turn = [*move.axes, *rest]
        turned = tensor.permute(turn)
        order = torch().from_numpy(move.order).to(tensor.device)
        flat = turned.reshape(len(move.order), -1)[order]
        tensor = flat.reshape(turned.shape).permute([turn.index(axis) for axis in range(len(turn))])
    return tensor


def tensors_of(module: Any) -> dict[str, Any]:
    """Every parameter and buffer, under all of its names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def names_of(module: Any) -> dict[str, list[str]]:
    """By each name of a parameter or buffer, all names that it has."""
    found: dict[int, list[str]] = {}
    tensors = tensors_of(module)
    for name, tensor in tensors.items():
        found.setdefault(id(tensor), []).append(name)
    return {name: found[id(tensor)] for name, tensor in tensors.items()}


def move(module: Any, movings: Iterable[Moving], optimizers: Sequence[Any] = ()) -> None:
    """Move numbers in place; each tensor once, under whatever of its names it is moved."""
    tensors, done = tensors_of(module), set[int]()
    with torch().no_grad():
        for moving in movings:
            tensor = tensors[moving.name]
            if id(tensor) in done:
                continue
            done.add(id(tensor))
            for one in _with(tensor, moving, tensors, optimizers):
                one.copy_(moved(one, moving).to(one.device))


def _with(tensor: Any, moving: Moving, tensors: Mapping[str, Any], optimizers: Sequence[Any]) -> Iterator[Any]:
    yield tensor
    if tensor.grad is not None:
        yield tensor.grad
    folder, dot, name = moving.name.rpartition(".")
    for form in _BESIDE:
        beside = tensors.get(f"{folder}{dot}{form.format(name)}")
        if beside is not None and beside.shape == tensor.shape:
            yield beside
    for optimizer in optimizers:
        yield from remembered(optimizer, tensor)


def remembered(optimizer: Any, parameter: Any) -> Iterator[Any]:
    """What an optimizer remembers of a parameter in its shape: moments, not counts of steps."""
    for state in optimizer.state.get(parameter, {}).values():
        if torch().is_tensor(state) and state.shape == parameter.shape and state.dim() > 0:
            yield state


def demand_movable(module: Any) -> None:
    """What has no numbers here, or only some of them, is said in one line."""
    for name, tensor in tensors_of(module).items():
        why = {
            "has no numbers yet (it is on 'meta'); load its weights first": tensor.is_meta,
            "is spread over several machines already; permute before fully_shard": sharded(tensor),
            "is stored sparse; make it dense first": tensor.layout != torch().strided,
            "was made in inference mode; make or load the module outside of it": tensor.is_inference(),
        }
        found = next((reason for reason, holds in why.items() if holds), None)
        if found is not None:
            raise OptionError(f"'{name}' of the module {found}")


# -- the proof


class Trial:
    """A copy of a module, what it gives for some inputs, and whether moves leave that as it is."""

    def __init__(self, module: Any, inputs: Inputs, *more: Inputs) -> None:
        self._devices = sorted({one.device.index or 0 for one in tensors_of(module).values() if one.is_cuda})
        self.subject, self._runs = self._first_that_runs(module, inputs, more)
        self._before = [self._outputs(run) for run in self._runs]
        self._modes: list[bool] = [False] * len(self._runs)

    def _first_that_runs(self, module: Any, inputs: Inputs, more: Sequence[Inputs]) -> tuple[Any, list[Inputs]]:
        reason = ""
        own = next((one.dtype for one in module.parameters() if one.is_floating_point()), torch().float32)
        for dtype in dict.fromkeys((torch().float64, torch().float32, own)):
            self.subject, self._close = copied(module, dtype), CLOSE[str(dtype).partition(".")[2]]
            self._state = [(one, one.clone()) for one in self.subject.buffers()]
            given = inputs.cast(dtype, _device(module))
            try:
                before = self._outputs(given)
            except Exception as error:  # whatever a user's module raises
                reason = reason or f"it does not run on these inputs: {type(error).__name__}: {one_line(error)[:200]}"
                continue
            if not any(_finite(one) and one.numel() for one in before):
                reason = reason or "its outputs are no tensors of finite numbers"
                continue
            others = [one.cast(dtype, _device(module)) for one in more]
            return self.subject, [given, *self._that_run([given.random(), *(others or [given.random().doubled()])])]
        raise UnprovenError(reason)

    def _that_run(self, others: Iterable[Inputs]) -> list[Inputs]:
        found = []
        for one in others:
            try:
                if all(map(_finite, self._outputs(one))):
                    found.append(one)
            except Exception:  # noqa: S112, PERF203 - inputs of our own, which the module need not take
                continue
        return found

    def train_too(self) -> None:
        """Have the copy run in training mode, too, as far as it does that."""
        try:
            self._before += [self._outputs(self._runs[0], True)]
        except Exception:  # such as a batch normalization of a single value
            return
        self._runs, self._modes = [*self._runs, self._runs[0]], [*self._modes, True]

    def holds(self, movings: Sequence[Moving]) -> bool:
        """Whether the outputs are the same after these moves; the copy is as it was then."""
        move(self.subject, movings)
        self._state = [(one, one.clone()) for one in self.subject.buffers()]
        try:
            pairs = zip(self._runs, self._modes, self._before)
            return all(self._alike(self._outputs(run, mode), before) for run, mode, before in pairs)
        except Exception:  # noqa: BLE001 - what ran before and does not run now is not the same
            return False
        finally:
            move(self.subject, [one.inverse() for one in movings])
            self._state = [(one, one.clone()) for one in self.subject.buffers()]

    def repeats(self) -> bool:
        """Whether the module gives the same outputs twice."""
        return self.holds(())

    def _alike(self, now: Sequence[Any], before: Sequence[Any]) -> bool:
        return len(now) == len(before) and all(_near(a, b, self._close) for a, b in zip(now, before))

    def _outputs(self, inputs: Inputs, training: bool = False) -> list[Any]:
        self.subject.train(training)
        with (
            torch().no_grad(),
            torch().random.fork_rng(self._devices),
            warnings.catch_warnings(),
            attention_in_parts(),
            _without_dropout(),
        ):
            warnings.simplefilter("ignore")
            torch().manual_seed(0)
            try:
                found = [one.detach().clone() for one in leaves(inputs.call(self.subject)) if torch().is_tensor(one)]
            finally:
                self.subject.eval()
                for tensor, numbers in self._state:
                    tensor.copy_(numbers)
        return found


def copied(module: Any, dtype: Any = None) -> Any:
    """A copy in eval mode, floats in another precision."""
    try:
        made = copy.deepcopy(module)
    except Exception as error:  # whatever a user's module raises
        raise UnprovenError(f"it cannot be copied: {type(error).__name__}: {one_line(error)[:200]}") from error
    try:
        made = made if dtype is None else made.to(dtype)
    except Exception as error:  # a device without doubles
        raise UnprovenError(f"it has no copy in {dtype}: {one_line(error)[:200]}") from error
    return made.requires_grad_(False).eval()


def _device(module: Any) -> Any:
    return next((one.device for one in tensors_of(module).values()), torch().device("cpu"))


def _finite(tensor: Any) -> bool:
    return bool(torch().isfinite(tensor).all()) if tensor.is_floating_point() else True


def _near(one: Any, other: Any, close: float) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point() or not one.numel():
        return bool(torch().equal(one, other))
    close = max(close, CLOSE.get(str(one.dtype).partition(".")[2], close))
    one, other = one.double(), other.double()
    same = (one == other) | (one.isnan() & other.isnan())
    reach = float(other[torch().isfinite(other)].abs().max()) if torch().isfinite(other).any() else 0.0
    return bool((same | ((one - other).abs() <= close * max(reach, 1e-30))).all())


@contextmanager
def attention_in_parts() -> Iterator[None]:
    """Attention in one kernel, which torch takes where nothing trains, has no form in ONNX and none in a trace."""
    mha = torch().backends.mha
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(before)


@contextmanager
def _without_dropout() -> Iterator[None]:
    """What is dropped at random is dropped by its place, which is another channel's after a permutation."""
    functions = {getattr(torch().nn.functional, name) for name in _DROPOUTS if hasattr(torch().nn.functional, name)}
    functions |= {getattr(torch(), name) for name in _DROPOUTS if hasattr(torch(), name)}

    class NoDropout(torch().overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in functions:
                return args[0] if args else (kwargs or {})["input"]
            return function(*args, **(kwargs or {}))

    with NoDropout():
        yield


def leaves(value: Any) -> list[Any]:
    """Everything in what a module returned, whatever it is nested in."""
    if isinstance(value, Mapping):
        return [leaf for one in value.values() for leaf in leaves(one)]
    if isinstance(value, (tuple, list, set, frozenset)):
        return [leaf for one in value for leaf in leaves(one)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [leaf for one in dataclasses.fields(value) for leaf in leaves(getattr(value, one.name))]
    return [value]


# -- inputs


@dataclasses.dataclass(frozen=True, eq=False)
class Inputs:
    """What a module is called with."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, given: Any) -> Inputs:
        """A tensor, a tuple or list of arguments, or a dictionary of named ones."""
        if isinstance(given, Mapping):
            if not all(isinstance(name, str) for name in given):
                raise OptionError("example_inputs as a dictionary has the names of forward's arguments")
            return cls((), dict(given))
        found = cls(tuple(given) if isinstance(given, (tuple, list)) else (given,))
        if not any(torch().is_tensor(one) for one in leaves(found.args)):
            raise OptionError(
                "example_inputs is a tensor, a tuple of forward's arguments, or a dictionary of named ones, with a "
                f"tensor in it; not {one_line(type(given).__name__)}"
            )
        return found

    def call(self, module: Any) -> Any:
        return module(*self.args, **self.kwargs)

    def mapped(self, function: Callable[[Any], Any]) -> Inputs:
        tree = torch().utils._pytree.tree_map
        return Inputs(tree(function, self.args), tree(function, dict(self.kwargs)))

    def cast(self, dtype: Any, device: Any) -> Inputs:
        def made(one: Any) -> Any:
            if not torch().is_tensor(one):
                return one
            return one.detach().to(device, dtype if one.is_floating_point() else one.dtype, copy=True)

        return self.mapped(made)

    def random(self) -> Inputs:
        """Normal numbers in place of all floats."""
        generator = torch().Generator().manual_seed(1)

        def made(one: Any) -> Any:
            if not torch().is_tensor(one) or not one.is_floating_point():
                return one
            return torch().randn(one.shape, generator=generator, dtype=torch().float64).to(one.device, one.dtype)

        return self.mapped(made)

    def doubled(self) -> Inputs:
        """Twice as many along the first axis."""

        def made(one: Any) -> Any:
            return torch().cat([one, one.flip(0)]) if torch().is_tensor(one) and one.dim() else one

        return self.mapped(made)


__all__ = [
    "Inputs",
    "Moving",
    "Trial",
    "UnprovenError",
    "attention_in_parts",
    "copied",
    "demand_movable",
    "leaves",
    "move",
    "moved",
    "names_of",
    "remembered",
    "tensors_of",
]
