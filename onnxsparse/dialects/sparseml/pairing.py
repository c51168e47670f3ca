"""Which output of a teacher each output of a module learns from.

1. Outputs go by their names, and without names by their places; a single tensor is the only one, at place 0.
2. A module with a single tensor learns from the first output of its teacher, and a single output from a lone one.
3. Both have the same shape, and an axis of classes, which is the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OptionError
from onnxsparse.recipes.modifiers.distillation import meant

Outputs = dict[str, Any]


def pairs(student: Any, teacher: Any, keys: Sequence[int | str] | None, where: str) -> list[tuple[Any, Any]]:
    """What the module gave and what the teacher gave, for each of the keys, or for all."""
    ours, theirs = _outputs(student, where, "the module"), _outputs(teacher, where, "the teacher")
    chosen = list(ours) if keys is None else [_chosen(key, student, list(ours), where) for key in keys]
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


def _outputs(given: Any, where: str, who: str) -> Outputs:
    if torch().is_tensor(given):
        return {"0": given}
    if isinstance(given, Mapping):
        return {str(key): value for key, value in given.items()}
    if isinstance(given, (tuple, list)):
        return {str(place): value for place, value in enumerate(given)}
    raise OptionError(f"{where}: {who} gives a {type(given).__name__}; tensors, lists and dicts of them are understood")


def _chosen(key: int | str, student: Any, names: list[str], where: str) -> str:
    found = meant(key, names)
    if found is not None and (isinstance(key, int) or isinstance(student, Mapping)):
        return found
    known = ", ".join(names)[:100] if isinstance(student, Mapping) else f"{len(names)} without a name, counted from 0"
    raise OptionError(f"{where}: distill_output_keys: the module gives no output {key!r:.60} (it gives {known})")


def _fitting(ours: Any, theirs: Any, name: str, where: str) -> tuple[Any, Any]:
    for given in (ours, theirs):
        if not torch().is_tensor(given) or not given.ndim:
            what = "a single number" if torch().is_tensor(given) else f"a {type(given).__name__}"
            raise OptionError(
                f"{where}: the output {name:.60} is {what}, without classes; name those to learn from in "
                "distill_output_keys"
            )
    if ours.shape != theirs.shape:
        raise OptionError(
            f"{where}: the teacher gives {list(theirs.shape)} where the module gives {list(ours.shape)} (output "
            f"{name:.60}); it has to be made for the same task"
        )
    return ours, theirs
