"""Gradients of random projections of a model's outputs with respect to inner values, in torch.

1. The model is converted with the inner values as outputs beside the targets; its numbers stay what they are.
2. Gradients begin at the inner values, not at stored numbers: an inner value that no other one lies before is a leaf.
3. All draws of a feed share one forward pass. It is computed on one thread, and in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxsparse.engines.random_projection import IN_STEPS, UNUSED, Feed, Projection, giving
from onnxsparse.engines.torch.convert import to_module
from onnxsparse.engines.torch.devices import in_words
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.student import draw_by_inputs, outputs_of, widened
from onnxsparse.errors import ModelError
from onnxsparse.graph.edit import upstream
from onnxsparse.math.values import Array


class TorchGradients:
    """The model as a module; each walk over it is one over the feeds."""

    engine = "torch"

    def __init__(self, proto: ModelProto, names: Sequence[str], feeds: Iterable[Feed], projection: Projection) -> None:
        self._feeds, self._projection = feeds, projection
        used = upstream(proto.graph, projection.targets)
        self.unreached = {name: UNUSED for name in names if name not in used}
        self._names = [name for name in names if name in used]
        self._module = _module(proto, projection.targets, self._names)
        first = next(iter(feeds))
        found = next(self._of_feed(0, first, draws=1))
        self.unreached.update({name: IN_STEPS for name in self._names if name not in found})
        self._names = [name for name in self._names if name in found]

    def __iter__(self) -> Iterator[dict[str, Array]]:
        for place, feed in enumerate(self._feeds):
            yield from self._of_feed(place, feed, self._projection.draws)

    def _of_feed(self, place: int, feed: Feed, draws: int) -> Iterator[dict[str, Array]]:
        with _on_one_thread(), in_words(f"differentiate the model on feed {place} (counted from 0)"):
            given = outputs_of(self._module(*(_tensor(feed[name]) for name in self._module.onnx_names["inputs"])))
            targets = given[: len(self._projection.targets)]
            values = dict(zip(self._module.followed, given[len(targets) :]))
        for draw in range(draws):
            with _on_one_thread(), in_words("differentiate the model"):
                found = self._gradients(targets, values, self._factors(place, draw, targets), draw + 1 < draws)
            yield found

    def _factors(self, place: int, draw: int, targets: Sequence[Any]) -> list[Any]:
        factors = self._projection.factors(place, draw)
        for (name, array), target in zip(factors.items(), targets):
            if tuple(target.shape) != array.shape:
                raise ModelError(f"'{name}' is {list(target.shape)} in torch, {list(array.shape)} in onnxruntime")
        return [torch().from_numpy(array) for array in factors.values()]

    def _gradients(
        self, targets: Sequence[Any], values: dict[str, Any], factors: Sequence[Any], again: bool
    ) -> dict[str, Array]:
        pairs = [pair for pair in zip(targets, factors) if pair[0].requires_grad]
        floats = {name: values[name] for name in self._names if values[name].requires_grad}
        if not pairs or not floats:
            return {}
        ends, weights = zip(*pairs)
        found = torch().autograd.grad(ends, list(floats.values()), weights, retain_graph=again, allow_unused=True)
        return {name: one.numpy() for name, one in zip(floats, found) if one is not None}


def _module(proto: ModelProto, targets: Sequence[str], names: Sequence[str]) -> Any:
    """The converted model; it gives the targets, then what its `followed` names."""
    copy = giving(proto, [*targets, *names])
    module = widened(to_module(copy)).eval().requires_grad_(False)
    draw_by_inputs(module, copy)
    end = next(node for node in module.graph.nodes if node.op == "output")
    given = end.args[0] if isinstance(end.args[0], tuple) else (end.args[0],)
    for node in dict.fromkeys(given[len(targets) :]):
        with module.graph.inserting_after(node):
            followed = module.graph.call_function(_followed, (node,))
        node.replace_all_uses_with(followed, delete_user_cb=lambda user, own=followed: user is not own)
    module.recompile()
    module.followed = list(names)
    return module


def _followed(value: Any) -> Any:
    """A value whose gradient can be asked for, apart from those that it is a mere view of."""
    if not value.is_floating_point():
        return value
    return value.view_as(value) if value.requires_grad else value.detach().requires_grad_()


def _tensor(array: Array) -> Any:
    array = np.ascontiguousarray(array, np.float32 if array.dtype.kind == "f" else array.dtype).reshape(array.shape)
    return torch().from_numpy(array if array.flags.writeable else array.copy())


@contextmanager
def _on_one_thread() -> Iterator[None]:
    """Sums in one order."""
    before = torch().get_num_threads()
    torch().set_num_threads(1)
    try:
        yield
    finally:
        torch().set_num_threads(before)
