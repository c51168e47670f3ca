"""Random numbers of a model follow from its inputs: a run that is repeated or resumed draws the same.

The student and the dense model draw in the same order, so for the same samples both have the same numbers. What torch
itself would draw next is left as it was.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxsparse.engines.torch.library import torch
from onnxsparse.graph.edit import RANDOM, bodies


def settle_chance(module: Any, proto: ModelProto) -> None:
    """Have a module draw by its inputs, where it draws at all."""
    nodes = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    if any(map(_draws, nodes)):
        _draw_by_inputs(module)


def share_chance(module: Any, copied: Any) -> None:
    """Have a copy draw as the module does: copies of traced modules lose their hooks."""
    if module._forward_pre_hooks and not copied._forward_pre_hooks:
        _draw_by_inputs(copied)


def _draw_by_inputs(module: Any) -> None:
    states: list[list[tuple[Any, Any]]] = []

    def begin(_: Any, inputs: tuple[Any, ...]) -> None:
        states.append(_states(inputs))
        torch().manual_seed(_seed(inputs))

    def end(*_: Any) -> None:
        for device, state in states.pop():
            torch().cuda.set_rng_state(state, device) if device else torch().set_rng_state(state)

    module.register_forward_pre_hook(begin)
    module.register_forward_hook(end, always_call=True)


def _draws(node: Any) -> bool:
    return node.op_type in RANDOM or any(_draws(inner) for body in bodies(node) for inner in body.node)


def _states(inputs: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """The states of torch's generators, by device; None is the host."""
    devices = {one.device for one in inputs if getattr(one, "is_cuda", False)}
    return [(None, torch().get_rng_state()), *((one, torch().cuda.get_rng_state(one)) for one in devices)]


def _seed(inputs: tuple[Any, ...]) -> int:
    digest = 0
    for one in inputs:
        digest = zlib.crc32(np.ascontiguousarray(one.detach().cpu().numpy()).tobytes(), digest)
    return digest
