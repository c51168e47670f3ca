"""A module as the ONNX graph that its exporter makes of it, in memory, with every parameter under its own name.

1. What is exported is a copy with random numbers: exporters store tensors once that are equal, as the scales of norms
   in a new network are. Constants are not folded, so each parameter stays what it is.
2. Parameters come out as inputs of the graph; they become stored tensors with the module's own numbers.
3. An operator that the exporter does not know stays in the graph under its own name.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxsparse.engines.torch.library import attention_in_parts, torch
from onnxsparse.engines.torch.permute.moves import tensors_of
from onnxsparse.engines.torch.permute.proof import Inputs, UnprovenError, copied
from onnxsparse.errors import one_line


def exported(module: Any, inputs: Inputs) -> ModelProto:
    """The graph of a module in eval mode, by either exporter of torch."""
    copy = copied(module, torch().float32)
    _fill(copy)
    given = inputs.cast(torch().float32, next((one.device for one in tensors_of(copy).values()), "cpu"))
    reasons = []
    for way in (_by_tracing, _by_export):
        try:
            with quietly(), torch().no_grad(), torch().random.fork_rng([]), attention_in_parts():
                proto = way(copy, given)
        except Exception as error:  # whatever an exporter raises
            reasons.append(f"{type(error).__name__}: {one_line(error)[:160]}")
            continue
        _join_constants(proto)
        return with_numbers(proto, module)
    raise UnprovenError(f"torch cannot export it ({reasons[0]})")


def _fill(module: Any) -> None:
    generator = torch().Generator().manual_seed(0)
    for tensor in tensors_of(module).values():
        if tensor.is_floating_point():
            tensor.copy_(torch().rand(tensor.shape, generator=generator) * 0.5 + 0.5)


def _by_tracing(module: Any, inputs: Inputs) -> ModelProto:
    file = io.BytesIO()
    torch().onnx.export(
        module, inputs.args, file, kwargs=dict(inputs.kwargs) or None, dynamo=False, export_params=False,
        do_constant_folding=False, training=torch().onnx.TrainingMode.PRESERVE, opset_version=17,
        operator_export_type=torch().onnx.OperatorExportTypes.ONNX_FALLTHROUGH,
    )  # fmt: skip
    proto = onnx.load_from_string(file.getvalue())
    tensors = tensors_of(module)
    for value in [one for one in proto.graph.input if one.name in tensors]:
        proto.graph.input.remove(value)
        proto.graph.initializer.add(name=value.name, dims=tensors[value.name].shape)
    return proto


def _by_export(module: Any, inputs: Inputs) -> ModelProto:
    program = torch().onnx.export(module, inputs.args, kwargs=dict(inputs.kwargs), dynamo=True, optimize=False)
    proto: ModelProto = program.model_proto
    return proto


def _join_constants(proto: ModelProto) -> None:
    """The scales of a Resize come in pieces where constants are not folded, and no shape can be inferred behind it."""
    known = {
        node.output[0]: numpy_helper.to_array(node.attribute[0].t)
        for node in proto.graph.node
        if node.op_type == "Constant" and node.attribute[0].name == "value"
    }
    for node in proto.graph.node:
        if node.op_type == "Concat" and all(name in known and known[name].ndim == 1 for name in node.input):
            joined = np.concatenate([known[name] for name in node.input])
            made = helper.make_node("Constant", [], list(node.output), node.name, value=numpy_helper.from_array(joined))
            node.CopyFrom(made)


def with_numbers(proto: ModelProto, module: Any) -> ModelProto:
    """The graph with the module's numbers in what has the name of a parameter or buffer."""
    tensors = tensors_of(module)
    for tensor in proto.graph.initializer:
        own = tensors.get(tensor.name)
        if own is not None and list(tensor.dims) == list(own.shape):
            tensor.CopyFrom(stored_numbers(own, tensor.name))
    return proto


def stored_numbers(tensor: Any, name: str) -> TensorProto:
    """A tensor as ONNX stores it; floats in single precision."""
    plain = tensor.detach()
    plain = plain.float() if plain.is_floating_point() else plain
    return numpy_helper.from_array(plain.cpu().contiguous().numpy(), name)


@contextlib.contextmanager
def _no_graphs() -> Iterator[None]:
    """The older exporter switches a log on, and leaves it on, that prints the graph of what fails past sys.stdout."""
    core, name = torch()._C, "_jit_set_onnx_log_enabled"
    switch = getattr(core, name, None)
    if switch is None:
        yield
        return
    before = core._jit_is_onnx_log_enabled()
    switch(False)
    setattr(core, name, lambda _: None)
    try:
        yield
    finally:
        setattr(core, name, switch)
        switch(before)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """What exporters say is not heard."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            _no_graphs(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


__all__ = ["exported", "quietly", "stored_numbers", "with_numbers"]
