"""What the Python code of a module asks its data while it runs: a graph has one branch of it, the module has several.

1. What comes from the inputs is followed through every function of torch. Where Python gets a truth value of it, the
   answer can be turned round, which leads into the other branch of an `if`.
2. A number that Python gets, or a size that depends on the data, has no other side that could be tried: it is named.
3. What torch itself decides inside of a layer or function of its own is not looked at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from onnxsparse.engines.torch.library import torch

MOST_WAYS = 16
"""Ways through a module that are tried, for each input."""
Way = tuple[bool, ...]
"""The first answers that a module gets."""

_READS = (
    "__bool__", "__contains__", "is_nonzero", "equal", "allclose", "item", "tolist", "numpy", "__array__", "__int__",
    "__float__", "__complex__", "__index__",
)  # fmt: skip
_COUNTS = (
    "nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "_unique2", "bincount", "repeat_interleave",
)  # fmt: skip
"""What makes a tensor whose size depends on the data."""
_SIZES = ("size", "numel", "nelement", "__len__", "unbind")


class Decisions:
    """The answers that a module gets in one run, the first of them given; and what it reads beside truth values."""

    def __init__(self, inputs: Any, way: Way = ()) -> None:
        marks = torch().utils.weak.WeakTensorKeyDictionary
        self.answers: list[bool] = []
        self.number = ""
        self._way = way
        self._from_data, self._of_any_size = marks(), marks()
        self._mark(self._from_data, (inputs.args, dict(inputs.kwargs)))

    @contextmanager
    def followed(self) -> Iterator[None]:
        decisions = self

        class Following(torch().overrides.TorchFunctionMode):  # type: ignore[misc]
            def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                made = function(*args, **(kwargs or {}))
                return decisions._seen(function, (args, kwargs or {}), made)

        with Following():
            yield

    def _seen(self, function: Any, given: Any, made: Any) -> Any:
        tensors = [one for one in leaves(given) if torch().is_tensor(one)]
        if not any(one in self._from_data for one in tensors):
            return made
        name = getattr(function, "__name__", "")
        if name in _READS and isinstance(made, bool):
            return self._answer(made)
        of_any_size = any(one in self._of_any_size for one in tensors)
        if name in _READS or (of_any_size and (name in _SIZES or function == torch().Tensor.shape.__get__)):
            self.number = self.number or ("its shape" if name == "__get__" else name.strip("_"))
        found = tensors[0] if made is None else made  # x[i] = y makes nothing
        self._mark(self._from_data, found)
        if of_any_size or _counts(name, given[0]):
            self._mark(self._of_any_size, found)
        return made

    def _answer(self, made: bool) -> bool:
        at = len(self.answers)
        self.answers.append(self._way[at] if at < len(self._way) else made)
        return self.answers[-1]

    def _mark(self, marks: Any, found: Any) -> None:
        for one in leaves(found):
            if torch().is_tensor(one):
                marks[one] = True
                if one._base is not None:  # what is written into a part is in the whole
                    marks[one._base] = True


def _counts(name: str, args: Any) -> bool:
    if name == "__getitem__":
        return any(torch().is_tensor(one) and one.dtype == torch().bool for one in leaves(args[1]))
    return name in _COUNTS or (name == "where" and len(args) == 1)


def leaves(value: Any) -> list[Any]:
    """Everything in what a module returned, whatever it is nested in."""
    if isinstance(value, Mapping):
        return [leaf for one in value.values() for leaf in leaves(one)]
    if isinstance(value, (tuple, list, set, frozenset)):
        return [leaf for one in value for leaf in leaves(one)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [leaf for one in dataclasses.fields(value) for leaf in leaves(getattr(value, one.name))]
    return [value]
