"""Error messages of a converted module: what it cannot compute, in one line in place of torch's traceback.

1. Only what is known is told: places beyond the end of a table, and types of whole numbers that torch stores but hardly
   computes with. Every other error stays what it is.
2. Which node it was is found by running the module once more, node by node, on the same inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import ModelError

LOOKING_UP = ("Gather", "GatherElements")
ONNX = "onnx"
"""Under this key of its `meta` a node has the operator that it was, and its name."""


@cache
def module_class() -> Any:
    """The class of converted modules; made when torch is there."""

    class OnnxModule(torch().fx.GraphModule):  # type: ignore[misc]
        """A module made of a file, which says in words what it cannot compute."""

        def __call__(self, *inputs: Any, **named: Any) -> Any:
            try:
                return super().__call__(*inputs, **named)
            except (RuntimeError, IndexError, TypeError) as error:
                why = "" if named else _why(self, inputs)
                if not why:
                    raise
                raise ModelError(why) from error

    return OnnxModule


def _why(module: Any, inputs: Sequence[Any]) -> str:
    """What is known of the node that fails; '' where that is nothing."""
    failed: list[tuple[Any, Sequence[Any], Mapping[str, Any]]] = []

    class Finder(torch().fx.Interpreter):  # type: ignore[misc]
        def run_node(self, node: Any) -> Any:
            try:
                return super().run_node(node)
            except Exception:
                failed.append((node, *self.fetch_args_kwargs_from_env(node)))
                raise

    try:
        with torch().no_grad():
            Finder(module, garbage_collect_values=False).run(*inputs)
    except ModelError as error:  # of a body inside
        return str(error)
    except Exception:
        node, args, options = failed[0] if failed else (None, (), {})
        known = node.meta.get(ONNX) if node is not None else None
        return _said(known, node, args, options) if known else ""
    return ""


def _said(known: tuple[str, str], node: Any, args: Sequence[Any], options: Mapping[str, Any]) -> str:
    operator, name = known
    called = f"{operator} '{name}'"
    if operator in LOOKING_UP and len(args) > 1:
        beyond = _beyond(args[0], args[1], int(options.get("axis", 0)))
        if beyond:
            return f"{called} looks up {_named(node.args[1])} in {_named(node.args[0])}, {beyond}; look at the data"
    types = {str(one.dtype).rpartition(".")[2] for one in args if isinstance(one, torch().Tensor)}
    narrow = sorted(types & {"uint16", "uint32", "uint64"})
    if narrow:
        return (
            f"torch has no {operator} of {narrow[0]}, as in {called}; cast its inputs to int32 or int64 in the model "
            "(Cast before it, and back behind it)"
        )
    return ""


def _beyond(table: Any, places: Any, axis: int) -> str:
    """Which place is not in the table, and how large that is."""
    size = table.shape[axis]
    wrong = places[(places < -size) | (places >= size)]
    if not wrong.numel():
        return ""
    many = f" and {wrong.numel() - 1} more like it" if wrong.numel() > 1 else ""
    return f"which has {size} rows, numbered 0 to {size - 1}: there is no {int(wrong.reshape(-1)[0])}{many}"


def _named(node: Any) -> str:
    """A value in words, by the input that it comes from where that is so."""
    if node.op == "get_attr":
        return f"the table '{node.target}'"
    start = node
    while start.op not in ("placeholder", "get_attr") and start.all_input_nodes:
        start = start.all_input_nodes[0]
    if start.op != "placeholder":
        return f"'{node.name}'"
    return f"the input '{node.name}'" if start is node else f"'{node.name}', made of the input '{start.name}'"


__all__ = ["ONNX", "module_class"]
