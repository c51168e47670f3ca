"""From what the user hands to `attach` to masks by parameter: a model, a plan, arrays, or a state dict."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Union

from onnx import ModelProto

from onnxsparse.engines.torch.attach import demand_free
from onnxsparse.engines.torch.layers import layers_as_model
from onnxsparse.engines.torch.materialize import TABLE
from onnxsparse.engines.torch.placing import TensorMask, demand_fit, placed, places_of
from onnxsparse.engines.torch.state_masks import array_of, bare, masks_of_state
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model, Source
from onnxsparse.graph.stores import keys
from onnxsparse.graph.torch_match import recorded_match as match_in_metadata
from onnxsparse.math.values import Array
from onnxsparse.passes.given_masks import GivenMask, masks_of_model, masks_of_plan
from onnxsparse.passes.planfile import PlanFile, read_plan

PLANS = (".yaml", ".yml")
Given = Union[Source, Model, Mapping[str, Any]]


def masks_for(module: Any, source: Given, match: Mapping[str, Any] | None, model: Source | Model | None) -> Any:
    """Masks by parameter, in the parameters' shapes; everything that cannot be placed is an error."""
    inner = demand_free(module)
    if match is not None and not isinstance(match, Mapping):
        raise OptionError(f"match is what osp.torch.match returns, not a {type(match).__name__}")
    if isinstance(source, (str, os.PathLike)) and os.fspath(source).lower().endswith(PLANS):
        return _by_plan(inner, read_plan(os.fspath(source)), match, model)
    if model is not None:
        raise OptionError("model= belongs to a plan; other masks are decided already")
    if isinstance(source, Mapping) and not source:
        raise OptionError("the mapping of masks is empty, nothing would be masked; say a mask for each parameter")
    if isinstance(source, Mapping):
        return _by_arrays(inner, source, match)
    if isinstance(source, (str, os.PathLike, ModelProto, Model)):
        return _by_model(inner, source, match)
    raise OptionError(f"masks come from a plan, a model, or a mapping of arrays, not a {type(source).__name__}")


def _by_arrays(module: Any, source: Mapping[str, Any], match: Mapping[str, Any] | None) -> dict[str, Array]:
    named = dict(module.named_parameters(remove_duplicate=False))
    found = masks_of_state(source, named)
    if found is None:
        given = [TensorMask(str(name), array_of(mask, str(name))) for name, mask in source.items()]
        return placed(module, given, match)
    for name, keep in found.items():
        demand_fit(name, keep, named, name)
    return found


def _by_model(module: Any, source: Source | Model, match: Mapping[str, Any] | None) -> dict[str, Array]:
    opened = _opened(source)
    called = os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the model"
    return placed(module, _tensors(opened, masks_of_model(opened, called)), _known(module, opened, match))


def _by_plan(
    module: Any, file: PlanFile, match: Mapping[str, Any] | None, model: Source | Model | None
) -> dict[str, Array]:
    if model is not None:
        opened = _opened(model)
        return placed(module, _tensors(opened, masks_of_plan(file, opened)), _known(module, opened, match))
    promised = tuple(replace(entry, shape=None) for entry in file.entries if entry.pattern)
    places = places_of(module, [entry.name for entry in promised], match)
    own = Model.over(layers_as_model(module, places))
    found = masks_of_plan(replace(file, entries=promised), own)
    return {places[mask.name]: mask.keep for mask in found}


def _known(module: Any, model: Model, match: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A match that the model records is of the module that it was exported from, not of one that was made of it."""
    return match_in_metadata(model) if match is None and not hasattr(module, TABLE) else match


def _opened(source: Source | Model) -> Model:
    if isinstance(source, Model):
        return source
    return Model.over(source) if isinstance(source, ModelProto) else Model.open(source)


def _tensors(model: Model, masks: Sequence[GivenMask]) -> list[TensorMask]:
    homes, also = keys(model.flow.stores), _merged(model)
    return [
        TensorMask(mask.name, mask.keep, homes[mask.weight.tensor], mask.inputs_first, tuple(also.get(mask.name, ())))
        for mask in masks
    ]


def _merged(model: Model) -> dict[str, list[str]]:
    """An exporter that merges equal tensors gives the others their names by Identity."""
    found: dict[str, list[str]] = {}
    for node in model.proto.graph.node:
        if node.op_type == "Identity" and node.output:
            found.setdefault(node.input[0], []).append(bare(node.output[0]))
    return found
