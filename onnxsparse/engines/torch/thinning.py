"""Channels of a torch module that are taken out of its parameters, of what depends on them, and of optimizer state.

1. The Parameter objects stay the same, so an optimizer that holds them goes on with them: their numbers, gradients and
   moments are cut. Modules know their new sizes, normalizations their statistics.
2. Behind a Flatten each channel is several inputs of a layer, next to one another.
3. A checkpoint of a smaller module says the sizes itself: see `take_sizes_from_state`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OptionError

STATISTICS = ("running_mean", "running_var")


def axis_of(owner: Any, tensor: Any, outputs: bool) -> int:
    """The axis of a parameter that counts the outputs of its layer, or the inputs."""
    if tensor.dim() == 1:
        return 0
    return int(outputs == bool(getattr(owner, "transposed", False)))


def is_depthwise(owner: Any) -> bool:
    """Whether a convolution has as many groups as outputs: each channel goes through by itself."""
    return getattr(owner, "groups", 1) > 1 and owner.groups == owner.out_channels == owner.in_channels


def unused(owner: Any, tensor: Any, outputs: bool) -> Any:
    """True where everything that belongs to an output or an input of a layer is zero."""
    axis = axis_of(owner, tensor, outputs)
    return (tensor.detach().movedim(axis, 0).reshape(tensor.shape[axis], -1) == 0).all(1)


def widened(keep: Any, size: int) -> Any:
    """Which of so many places stay, where each channel has several of them; None where they do not fit."""
    return keep.repeat_interleave(size // len(keep)) if len(keep) and size % len(keep) == 0 else None


def cut(owner: Any, tensor: Any, axis: int, keep: Any, optimizer: Any) -> None:
    """Leave some places of an axis of a parameter, in its gradient and in what an optimizer remembers of it, too."""
    places, shape = torch().nonzero(keep.to(tensor.device)).reshape(-1), tensor.shape
    gradient, tensor.grad = tensor.grad, None
    _resize(tensor, tensor.data.index_select(axis, places))
    tensor.grad = None if gradient is None else gradient.index_select(axis, places)
    state = getattr(optimizer, "state", {})
    for key, value in state.get(tensor, {}).items() if tensor in state else ():
        if torch().is_tensor(value) and value.shape == shape:
            state[tensor][key] = value.index_select(axis, places.to(value.device))
    for name in STATISTICS:
        found = getattr(owner, name, None)
        if tensor.dim() == 1 and found is not None and len(found) == len(keep):
            setattr(owner, name, found.index_select(0, places))
    settle_sizes(owner, tensor)


def _resize(tensor: Any, made: Any) -> None:
    """Give a tensor numbers of another shape.

    A loss that is still held by the user's loop holds what gradients of the old shape are added by, and torch (2.13)
    makes a new one of that only where the type changes.
    """
    tensor.data = made.to(torch().float64 if made.dtype != torch().float64 else torch().float32)
    tensor.data = made


def settle_sizes(owner: Any, tensor: Any) -> None:
    """Have a module say the sizes that a parameter of its has."""
    if tensor.dim() == 1:
        if hasattr(owner, "num_features"):
            owner.num_features = len(tensor)
        return
    outputs, inputs = (tensor.shape[axis_of(owner, tensor, one)] for one in (True, False))
    if hasattr(owner, "out_features"):
        owner.out_features, owner.in_features = outputs, inputs
    elif hasattr(owner, "out_channels"):
        if is_depthwise(owner):
            owner.groups = inputs = outputs
        owner.out_channels, owner.in_channels = outputs, inputs


def take_sizes_from_state(module: Any, names: Collection[str]) -> None:
    """Have the parameters of these names, and statistics beside them, the sizes of the next state that is loaded."""

    def fit(state: Any, prefix: str, *others: Any) -> None:  # noqa: ARG001 - what torch calls it with
        handle.remove()
        for name in dict.fromkeys(names):
            path, _, local = name.rpartition(".")
            owner = module.get_submodule(path)
            for one in (local, *STATISTICS):
                tensor, given = getattr(owner, one, None), state.get(f"{prefix}{path}.{one}" if path else prefix + one)
                if tensor is not None and given is not None and tensor.shape != given.shape:
                    _shrink(owner, tensor, given, name)

    handle = module._register_load_state_dict_pre_hook(fit)


def _shrink(owner: Any, tensor: Any, given: Any, name: str) -> None:
    pairs = list(zip(tensor.shape, given.shape))
    if tensor.dim() != given.dim() or any(new > old for old, new in pairs):
        raise OptionError(f"{name} is {list(given.shape)} in the state, and {list(tensor.shape)} in the module")
    _resize(tensor, tensor.data[tuple(slice(0, new) for _, new in pairs)].clone())
    if isinstance(tensor, torch().nn.Parameter):
        tensor.grad = None
        settle_sizes(owner, tensor)
