"""Gradients of samples in a user's torch loop: `grad_sampler={"data_loader_builder": ..., "loss_function": ...}`.

1. The builder is called with the options that a modifier has for it, as one mapping or, where its signature wants that,
   by name; one that takes nothing is called without them. It gives samples, or a function that does: (arguments,
   arguments by name, targets) of the module each.
2. The loss is that of the module's outputs and the targets; of outputs in a tuple it is the first.
3. The module is in eval mode meanwhile. Afterwards every part of it is in the mode that it was in. As in SparseML no
   parameter has a gradient any more: the step at which samples are taken moves nothing.
4. An iterator goes on where it stopped the last time; one that has ended is made anew.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OptionError, nearest

BUILDER, LOSS = "data_loader_builder", "loss_function"
SHOWN = 4
NAMED = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class GradSampler:
    """What a user gives to take gradients of."""

    def __init__(self, given: Any) -> None:
        if not isinstance(given, Mapping):
            raise OptionError(f"grad_sampler is a dict of two functions, {BUILDER} and {LOSS}, not {kind(given)}")
        _demand_function(given, BUILDER)
        _demand_function(given, LOSS)
        self._builder, self._loss = given[BUILDER], given[LOSS]
        self._made: dict[str, Any] = {}
        self._opened: dict[str, Iterator[Any]] = {}

    def gradients(
        self, module: Any, tensors: Mapping[str, Any], count: int, options: Mapping[str, Any] | None
    ) -> Iterator[dict[str, Any]]:
        """Of one batch of samples after the other, by the keys of `tensors`."""
        with _evaluating(module):
            for item in self._samples(count, options):
                arguments, named, targets = _apart(item)
                module.zero_grad(set_to_none=True)
                with torch().enable_grad():
                    outputs = module(*arguments, **named)
                    outputs = outputs[0] if type(outputs) is tuple else outputs
                    _as_loss(self._loss(outputs, targets)).backward()
                yield {tag: one.grad for tag, one in tensors.items() if one.grad is not None}

    def _samples(self, count: int, options: Mapping[str, Any] | None) -> Iterator[Any]:
        key, given = repr(sorted((options or {}).items())), 0
        if key not in self._made:
            self._made[key] = _built(self._builder, options)
        for item in islice(_opened(self._made[key]), count):
            given += 1
            yield item
        if not given:
            self._made[key] = _built(self._builder, options)
            yield from islice(_opened(self._made[key]), count)


def kind(value: Any) -> str:
    """What a value is, in words that do not print its numbers."""
    name = type(value).__name__
    if isinstance(value, (tuple, list)):
        more = ", ..." if len(value) > SHOWN else ""
        name += f" ({', '.join(type(one).__name__ for one in value[:SHOWN])}{more})"
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _demand_function(given: Mapping[str, Any], key: str) -> None:
    if key not in given:
        hints = ((str(one), nearest(str(one), [key])) for one in given if one not in (BUILDER, LOSS))
        meant = next((f", and {one!r:.40} is not known{hint}" for one, hint in hints if hint), "")
        meant = meant or f": it is a dict of two functions, {BUILDER} and {LOSS}"
        raise OptionError(f"grad_sampler has no {key}{meant}")
    if not callable(given[key]):
        raise OptionError(f"grad_sampler: {key} is a function, not {kind(given[key])}")


def _as_loss(found: Any) -> Any:
    """A loss that a backward pass can begin at."""
    if not isinstance(found, torch().Tensor):
        raise OptionError(f"grad_sampler: {LOSS} gives a tensor with one number, not {kind(found)}")
    if found.numel() != 1:
        raise OptionError(f"grad_sampler: {LOSS} gives a tensor with one number, not one of shape {list(found.shape)}")
    if not found.requires_grad:
        raise OptionError(f"grad_sampler: {LOSS} gives a tensor that has no gradient; make it of the module's outputs")
    return found


def _built(builder: Callable[..., Any], options: Mapping[str, Any] | None) -> Any:
    """What the builder makes; one without parameters for a mapping gets the options by name."""
    known = inspect.signature(builder).parameters.values()
    if not known:
        return builder()
    places = [one for one in known if one.kind not in NAMED]
    by_name = not places or any(one.name in (options or {}) for one in places)
    return builder(**(options or {})) if by_name else builder(dict(options) if options is not None else None)


def _opened(made: Any) -> Iterator[Any]:
    found = made() if callable(made) else made
    try:
        return iter(found)
    except TypeError:
        raise OptionError(f"grad_sampler: {BUILDER} gave {kind(found)}, which has no samples") from None


def _apart(item: Any) -> tuple[Any, Any, Any]:
    if isinstance(item, (tuple, list)) and len(item) == 3 and isinstance(item[1], Mapping):
        return tuple(item)
    raise OptionError(
        f"grad_sampler: {BUILDER} gives (arguments, arguments by name, targets) for each batch, not {kind(item)}"
    )


@contextmanager
def _evaluating(module: Any) -> Iterator[None]:
    """Modes are afterwards what they were, and there are no gradients."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
        module.zero_grad(set_to_none=True)
