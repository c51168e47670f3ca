"""Gradients of samples in a user's torch loop: `grad_sampler={"data_loader_builder": ..., "loss_function": ...}`.

1. The builder is called with the options that a modifier has for it, as one mapping or, where its signature wants that,
   by name. It gives samples, or a function that does: (arguments, arguments by name, targets) of the module each.
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
from onnxsparse.errors import OptionError, brief

BUILDER, LOSS = "data_loader_builder", "loss_function"
NAMED = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class GradSampler:
    """What a user gives to take gradients of."""

    def __init__(self, given: Any) -> None:
        if not isinstance(given, Mapping) or not all(callable(given.get(key)) for key in (BUILDER, LOSS)):
            raise OptionError(
                f"grad_sampler is {{'{BUILDER}': ..., '{LOSS}': ...}}, both of them functions, not {brief(given):.60}"
            )
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
                    self._loss(outputs, targets).backward()
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


def _built(builder: Callable[..., Any], options: Mapping[str, Any] | None) -> Any:
    """What the builder makes; one without parameters for a mapping gets the options by name."""
    known = inspect.signature(builder).parameters.values()
    places = [one for one in known if one.kind not in NAMED]
    by_name = not places or any(one.name in (options or {}) for one in places)
    return builder(**(options or {})) if by_name else builder(dict(options) if options is not None else None)


def _opened(made: Any) -> Iterator[Any]:
    found = made() if callable(made) else made
    try:
        return iter(found)
    except TypeError:
        raise OptionError(f"grad_sampler: {BUILDER} gave a {type(found).__name__}, which has no samples") from None


def _apart(item: Any) -> tuple[Any, Any, Any]:
    if isinstance(item, (tuple, list)) and len(item) == 3 and isinstance(item[1], Mapping):
        return tuple(item)
    raise OptionError(
        f"grad_sampler: {BUILDER} gives (arguments, arguments by name, targets) for each batch, not {brief(item):.60}"
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
