"""How a node's inputs and attributes bind to the function of its operator: read once from the function itself."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache

from onnxsparse.engines.torch.operators import Function

COUNT = "outputs"  # what a function calls the number of outputs of its node


@dataclass(frozen=True)
class Signature:
    """`integers` and `numbers` are the inputs that may be plain Python numbers."""

    inputs: int | None  # how many; None for any number
    attributes: frozenset[str]
    integers: frozenset[int]
    numbers: frozenset[int]
    several: bool
    counted: bool


@cache
def signature(function: Function) -> Signature:
    found = inspect.signature(function)
    parameters = list(found.parameters.values())
    positional = [one for one in parameters if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    named = {one.name for one in parameters if one.kind is not inspect.Parameter.VAR_POSITIONAL}
    variadic = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
    kinds = [str(one.annotation).split(" ")[0] for one in positional]
    return Signature(
        None if variadic else len(positional),
        frozenset(named - {COUNT}),
        frozenset(index for index, kind in enumerate(kinds) if kind == "Ints"),
        frozenset(index for index, kind in enumerate(kinds) if kind == "Real"),
        found.return_annotation == "Outputs",
        COUNT in named,
    )
