"""Moving the numbers of a module in place: parameters, buffers, and what goes with them.

1. A parameter keeps its object, and so does a buffer: numbers are written into it. What goes with a parameter moves
   along: its gradient, ASP's mask beside it, and what optimizers remember of it in its shape.
2. What has several names is moved once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.state_dicts import sharded
from onnxsparse.errors import OptionError, brief
from onnxsparse.math.values import Array

_BESIDE = ("__{}_mma_mask", "__{}_mma_pruned_p")


class OneMove(Protocol):
    @property
    def axes(self) -> tuple[int, ...]: ...
    @property
    def order(self) -> Array: ...


class Moving(Protocol):
    """What moves in one tensor: `channel_classes.permutation.MovedTensor`."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def moves(self) -> Sequence[OneMove]: ...
    def inverse(self) -> Moving: ...


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
    found: dict[Any, list[str]] = {}
    tensors = tensors_of(module)
    for name, tensor in tensors.items():
        found.setdefault(tensor, []).append(name)
    return {name: found[tensor] for name, tensor in tensors.items()}


def move(module: Any, movings: Iterable[Moving], optimizers: Sequence[Any] = ()) -> None:
    """Move numbers in place; each tensor once, under whatever of its names it is moved."""
    tensors, done = tensors_of(module), set[Any]()
    with torch().no_grad():
        for moving in movings:
            tensor = tensors[moving.name]
            if tensor in done:
                continue
            done.add(tensor)
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
        if torch().nn.parameter.is_lazy(tensor):
            raise OptionError(f"'{name}' of the module has no shape yet; run it once first")
        why = {
            "has no numbers yet (it is on 'meta'); load its weights first": tensor.is_meta,
            "is spread over several machines already; permute before fully_shard": sharded(tensor),
            "is stored sparse; make it dense first": tensor.layout != torch().strided,
            "was made in inference mode; make or load the module outside of it": tensor.is_inference(),
        }
        found = next((reason for reason, holds in why.items() if holds), None)
        if found is not None:
            raise OptionError(f"'{name}' of the module {found}")


def demand_optimizers(optimizers: Sequence[Any]) -> None:
    for one in optimizers:
        if not hasattr(one, "state") or not hasattr(one, "param_groups"):
            raise OptionError(f"an optimizer of torch is expected, not {brief(one)}")


__all__ = ["Moving", "demand_movable", "demand_optimizers", "move", "moved", "names_of", "remembered", "tensors_of"]
