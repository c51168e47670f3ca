"""What a scheduler is handed, as a network: an ONNX model by its path or as a ModelProto, or a torch module."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from onnxsparse.errors import OptionError, brief, nearest
from onnxsparse.loops.network import Network
from onnxsparse.loops.options import LoopOptions
from onnxsparse.loops.rates import in_our_case
from onnxsparse.passes.taken import WAYS, proto_of, taken


def opened(model: Any, options: Mapping[str, Any]) -> tuple[Network, Any]:
    """A network, and what the caller goes on with."""
    if isinstance(model, Network):
        return model, model
    held = taken(model) if isinstance(model, (str, os.PathLike)) else proto_of(model)
    if held is not None:
        from onnxsparse.loops.onnx_network import OnnxNetwork

        network = OnnxNetwork(held, _options(options))
        return network, network
    if hasattr(model, "named_modules") and hasattr(model, "parameters"):
        if options:
            raise OptionError(f"{', '.join(options)} is for ONNX models; a torch module is trained by your own loop")
        from onnxsparse.loops.torch_network import TorchNetwork

        return TorchNetwork(model), model
    raise OptionError(f"a model is {WAYS}, or a torch module, not {brief(model)}")


def _options(given: Mapping[str, Any]) -> LoopOptions:
    known = [one.name for one in fields(LoopOptions)]
    for name in given:
        if name not in known:
            raise OptionError(f"prepare_sparse_model has no option {name!r:.40}{nearest(name, known)}")
    optimizer = given.get("optimizer")
    return LoopOptions(**{**given, **({"optimizer": in_our_case(optimizer)} if isinstance(optimizer, str) else {})})
