"""A module with fake quantization as the ONNX graph that torch's exporters make of it, with the scales of its training.

1. What is exported is a copy, in evaluation. Its weights have the numbers that they are rounded to, zeros where masks
   are, and their own names.
2. Every fake quantization is a pair of QuantizeLinear and DequantizeLinear on floats: the weights are not integers yet,
   and batch normalizations stand where they stood.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

import onnx
from onnx import ModelProto

from onnxsparse.engines.torch.attach import bare_module
from onnxsparse.engines.torch.export import exporting
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.parametrization import all_masks, take_mask_off
from onnxsparse.engines.torch.permute.proof import Inputs, UnprovenError, copied
from onnxsparse.engines.torch.quantized_module import rounded_weights, roundings_of, stage_of, stop_observing
from onnxsparse.engines.torch.state_dicts import LISTS
from onnxsparse.errors import OptionError, OutputError, one_line
from onnxsparse.graph.edit import rename_reads
from onnxsparse.math.quantization import Grid

FIRST_OPSET = 13
"""The first one whose QuantizeLinear and DequantizeLinear have an axis."""
OWN = ("model", "args", "f", "kwargs", "training", "export_params")
"""What of torch's own arguments is not the user's here."""


def fake_quantized(module: Any, inputs: Inputs, options: Mapping[str, Any]) -> tuple[ModelProto, list[str]]:
    """The graph, and what was never run in training or calibration, so that its inputs stay float."""
    inner = bare_module(module)
    if stage_of(inner) is None:
        raise OptionError(
            "nothing in this module is rounded: train it by a recipe with a QuantizationModifier first, and export "
            "what manager.modify or manager.apply was given"
        )
    _demand(options)
    _demand_floats(inner)
    try:
        copy = copied(inner)
    except UnprovenError as error:
        raise OptionError(f"the module cannot be exported: {error}") from None
    _settle(copy)
    device = next((one.device for one in copy.parameters()), torch().device("cpu"))
    inputs.mapped(_demand_float)
    given = inputs.mapped(lambda one: one.detach().to(device) if torch().is_tensor(one) else one)
    return _with_plain_names(_exported(copy, given, options)), _never_run(copy)


def _never_run(copy: Any) -> list[str]:
    """The layers of which no input has a range: an argument that is left out, or is another one again, has none."""
    known: dict[str, bool] = {}
    for place, one in roundings_of(copy):
        path = place.rpartition(":")[0]
        known[path] = known.get(path, False) or one.known
    return [path for path, some in known.items() if not some]


def _demand(options: Mapping[str, Any]) -> None:
    given = next((name for name in OWN if name in options), None)
    if given is not None:
        raise OptionError(f"{given} is said by export_quantized itself; other arguments of torch.onnx.export are taken")
    if (options.get("opset_version") or FIRST_OPSET) < FIRST_OPSET:
        raise OptionError(f"opset_version is at least {FIRST_OPSET}, which quantization per channel needs")


def _demand_float(given: Any) -> Any:
    if torch().is_tensor(given) and given.is_floating_point() and given.dtype != torch().float32:
        kind = str(given.dtype).removeprefix("torch.")
        raise OptionError(f"example_inputs is {kind}, and float32 is what is quantized: pass .float() of it")
    return given


def _demand_floats(module: Any) -> None:
    """Scales are float32, and beside other floats no runtime takes them; a number that is none has no integer."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_floating_point() and tensor.dtype != torch().float32:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise OptionError(f"'{name}' is {kind}, and float32 is what is quantized: call .float() on the module")
        if tensor.is_floating_point() and tensor.isnan().any():
            raise OptionError(f"'{name}' has NaN in it; train again, or load an earlier state")


def _settle(copy: Any) -> None:
    """Every weight is what it is rounded to, so that rounding it again to any more integers changes nothing."""
    for _, owner, name in list(all_masks(copy)):
        take_mask_off(owner, name)
    stop_observing(copy)
    found = [(owner, name, one, getattr(owner, name).detach()) for _, owner, name, one in rounded_weights(copy)]
    for owner, name, one, numbers in found:
        getattr(owner, LISTS)[name].original = torch().nn.Parameter(numbers, requires_grad=False)
        if one.grid.bits <= 8:
            one.grid = Grid(8, one.grid.signed, one.grid.symmetric)
    for _, rounding in roundings_of(copy):
        rounding.numbers = float(rounding.scale), int(rounding.zero_point)


def _exported(copy: Any, inputs: Inputs, options: Mapping[str, Any]) -> ModelProto:
    asked = {"dynamo": False, **options}
    with tempfile.TemporaryDirectory(prefix="onnxsparse-") as folder:
        file = os.path.join(folder, "model.onnx")
        try:
            with exporting():
                torch().onnx.export(copy, inputs.args, file, kwargs=dict(inputs.kwargs) or None, **asked)
        except OptionError:
            raise
        except Exception as error:  # whatever the exporter raises
            raise OutputError(f"torch cannot export the module: {one_line(error)[:200]}") from error
        return onnx.load(file)


def _with_plain_names(proto: ModelProto) -> ModelProto:
    names = {tensor.name: _plain(tensor.name) for tensor in proto.graph.initializer}
    changed = {old: new for old, new in names.items() if old != new}
    for tensor in proto.graph.initializer:
        tensor.name = names[tensor.name]
    rename_reads(proto.graph.node, changed)
    return proto


def _plain(name: str) -> str:
    return name.replace(f"{LISTS}.", "").removesuffix(".original") if f"{LISTS}." in name else name
