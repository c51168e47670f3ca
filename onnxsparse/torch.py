"""The torch interface: ONNX files as modules and back, the modules that files came from, masks for a user's loop."""

from __future__ import annotations

import copy
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Union

import numpy as np
from onnx import ModelProto

from onnxsparse.channel_classes.permutation import Permutation
from onnxsparse.engines.torch import attach as attaching
from onnxsparse.engines.torch import convert, writeback
from onnxsparse.engines.torch.attach import Attached, bare_module, demand_free
from onnxsparse.engines.torch.export import Exported, exported
from onnxsparse.engines.torch.mask_to_param import (
    TensorMask,
    array_of,
    bare,
    demand_fit,
    layers_as_model,
    masks_of_state,
    placed,
    places_of,
)
from onnxsparse.engines.torch.match import match as matching
from onnxsparse.engines.torch.match import proof
from onnxsparse.engines.torch.match.proof import Proof
from onnxsparse.engines.torch.parameters import TABLE
from onnxsparse.engines.torch.permute.moves import demand_movable, demand_optimizers, move, moved, tensors_of
from onnxsparse.engines.torch.permute.proof import Inputs
from onnxsparse.engines.torch.quantized_export import fake_quantized
from onnxsparse.errors import OptionError, one_line
from onnxsparse.files import Staged, check_target
from onnxsparse.graph.biases_and_scales import training_mode
from onnxsparse.graph.model import Model, Source
from onnxsparse.graph.stores import keys
from onnxsparse.graph.torch_match import Match
from onnxsparse.graph.torch_match import record_match as record_in
from onnxsparse.graph.torch_match import recorded_match as match_in_metadata
from onnxsparse.graph.torch_match import recorded_match as recorded_in
from onnxsparse.math.values import Array
from onnxsparse.options import Names
from onnxsparse.passes.permute_module import decided, found_for, given_for, pattern_of
from onnxsparse.passes.permute_named import by_parameters, demand_state, in_state
from onnxsparse.passes.permuting import record_of
from onnxsparse.passes.quantization.qat_delivery import TITLE
from onnxsparse.passes.quantization.qat_export import converted
from onnxsparse.passes.sources import proto_of, taken
from onnxsparse.planning.given_masks import GivenMask, masks_of_model, masks_of_plan
from onnxsparse.planning.names import NameFilter
from onnxsparse.planning.plan_file import PlanFile, read_plan
from onnxsparse.planning.recorded import PREFIX
from onnxsparse.planning.request import path_of
from onnxsparse.planning.rule import listed
from onnxsparse.train.torch_export import record_zeros

__all__ = [
    "attach",
    "export",
    "export_quantized",
    "finish",
    "match",
    "permute",
    "permute_state_dict",
    "proved",
    "record_match",
    "recorded_match",
    "to_module",
    "write_back",
]

LOG = logging.getLogger("onnxsparse")
LISTED = 6
_TRAINING_MODE = (
    "the file was exported in training mode (%s): in this module batch normalizations take the statistics of each "
    "batch, as the file says, and Dropout does nothing; export it again after .eval(), or pass train_bn=True, whose "
    ".eval() takes the stored statistics"
)


def to_module(source: Source | Model, *, train_bn: bool = False) -> Any:
    """An ONNX file (or ModelProto, or opened Model) as a `torch.fx.GraphModule`, ready to train.

    Its inputs and outputs are those of the model, in order; one output comes alone, several as a tuple. Its parameters
    are the weights, biases, look-up tables and scales of the file, under the file's names; all else are buffers.
    Batch normalizations keep their statistics unless `train_bn`; Dropout does nothing. `module.onnx_names` says which
    tensor of the file each parameter is. A file that was exported in training mode is said in the log.

    Arguments:
        source: the model: a path, its bytes, a ModelProto, another model in memory, or an opened Model.
        train_bn: batch normalizations take the statistics of each batch in training. Default: False. Example:
            train_bn=True
    """
    source = _demanded(source, "to_module(model)")
    model = convert.opened(source)
    module = convert.to_module(model, train_bn=train_bn)
    if said := training_mode(model):
        LOG.warning(_TRAINING_MODE, said)
    return module


def write_back(
    module: Any, source: Source | Model, *, output: str | os.PathLike[str] | None = None, overwrite: bool = False
) -> ModelProto | None:
    """The model that `module` was made from, with the module's numbers: written to `output`, else returned.

    Nothing but the numbers changes: names, order, storage and metadata are those of `source`, which stays as it is.
    In a Model that the caller opened they become edits, and nothing is returned.

    Arguments:
        module: the module that `to_module` made, trained.
        source: the model that it was made from: a path, its bytes, a ModelProto, or an opened Model.
        output: the file to write; without it the model is returned. Default: None. Example: output="trained.onnx"
        overwrite: replace the output if it exists. Default: False. Example: overwrite=True
    """
    source = _demanded(source, "write_back(module, model)")
    model = _opened(source)
    writeback.write_back(module, model)
    return _delivered(model, source, output, overwrite)


def match(source: Source | Model, module: Any) -> Match:
    """Which stored tensor of the file each parameter and buffer of the module is; neither is changed.

    The result maps names, without what DistributedDataParallel, torch.compile and parametrizations add to them, to
    `Matched(tensor, scope, layout, how, ...)`. What is not certain is never guessed: `.refused` has the reasons.

    Arguments:
        source: the file that was exported from the module: a path, its bytes, a ModelProto, or an opened Model.
        module: the torch module, with the numbers that it was exported with.
    """
    source = _demanded(source, "match(model, module)")
    return matching.match(_opened(source), module)


def proved(source: Source | Model, module: Any, match: Match, inputs: Any, *, seed: int = 0) -> Proof:
    """Which parameters of a match give the same outputs on both sides when masked at random, and why others do not.

    Arguments:
        source: the file: a path, its bytes, a ModelProto, or an opened Model.
        module: the torch module that was exported.
        match: what `match(source, module)` returned.
        inputs: a tensor, or a tuple of them, as the module takes them.
        seed: of the random masks. Default: 0. Example: seed=1
    """
    source = _demanded(source, "proved(model, module, match, inputs)")
    return proof.proved(_opened(source), module, match, inputs, seed)


def record_match(
    source: Source | Model,
    match: Match,
    *,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
) -> ModelProto | None:
    """Write the match into the model's metadata; the result goes where that of `write_back` does.

    Arguments:
        source: the file: a path, its bytes, a ModelProto, or an opened Model.
        match: what `match(source, module)` returned.
        output: the file to write; without it the model is returned. Default: None. Example: output="matched.onnx"
        overwrite: replace the output if it exists. Default: False. Example: overwrite=True
    """
    source = _demanded(source, "record_match(model, match)")
    model = _opened(source)
    record_in(model, match)
    return _delivered(model, source, output, overwrite)


def recorded_match(source: Source | Model) -> Match | None:
    """The match that the model's metadata holds, if it does; `source` is a path, its bytes, or a model in memory."""
    source = _demanded(source, "recorded_match(model)")
    return recorded_in(_opened(source))


def _demanded(source: Any, call: str) -> Any:
    """Arguments that changed places are the likeliest mistake; the text of a module would fill the screen."""
    try:
        return taken(source, opened=True)
    except OptionError:
        if issubclass(type(source), (str, os.PathLike)):
            raise
        kind = one_line(type(source).__name__)
        raise OptionError(
            f"the order is osp.torch.{call}: a {kind:.40} is no model; a path, a ModelProto or the like is expected"
        ) from None


def _opened(source: Source | Model) -> Model:
    return source if isinstance(source, Model) else Model.open(source)


def _delivered(
    model: Model, source: Source | Model | None, output: str | os.PathLike[str] | None, overwrite: bool
) -> ModelProto | None:
    if output is None and model is source:
        return None
    if output is None:
        return model.take_proto()
    with Staged(overwrite) as staged:
        left = model.save(os.fspath(output), overwrite, staged)
        staged.commit()
    for said in left:
        LOG.warning("%s", said)
    return None


def attach(
    module: Any,
    source: Source | Model | Mapping[str, Any],
    match: Mapping[str, Any] | None = None,
    *,
    optimizer: Any = None,
    model: Source | Model | None = None,
) -> Attached:
    """Put masks on a module's own parameters, for the training loop that you have.

    Arguments:
        module: the torch module that you train.
        source: where the zeros are: a sparse model, a model with masks in it, a plan of `onnxsparse plan`, arrays of
            zeros and ones by the name of the tensor, or a state dict with masks of torch.nn.utils.prune, of ASP, or in
            a `mask_dict`.
        match: which tensor each parameter is; a module of `to_module` knows. Default: None. Example:
            match=osp.torch.match(source, module)
        optimizer: one, or a list, whose moments shall be zero at masked places; one that is made later is handed to
            `.follow`. Default: None. Example: optimizer=torch.optim.Adam(module.parameters())
        model: the numbers by which it is decided which ones go where a plan says only how many. Default: None, those
            of the module. Example: model="dense.onnx"
    """
    found = proto_of(source)
    if found is None and hasattr(source, "named_parameters"):
        _demanded(source, "attach(module, source)")
    model = None if model is None else taken(model, opened=True)
    return attaching.attach(module, _masks_for(module, source if found is None else found, match, model), optimizer)


def finish(module: Any) -> Any:
    """Make attached masks part of the numbers of `module` and take them off: plain again, ready to be exported."""
    return attaching.finish(module)


def export(
    module: Any,
    example: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    **export: Any,
) -> Exported:
    """A module as an ONNX model whose tensors are its parameters, by name: written to `path`, else in `.model`.

    Torch's newer exporter is tried first, the older one where that fails or loses names. Nothing is folded, the first
    axis is a dynamic batch where it can be, and inputs have the names of forward's arguments. `.match` says which
    tensor each parameter is, `.lost` which are not there under their names and why, and `.notes` all that is worth
    knowing. Masks that are attached become zeros in the file. The module stays as it is.

    Arguments:
        module: the torch module, with its trained numbers.
        example: what the module is called with: a tensor, a tuple of arguments, or a dictionary of named ones.
        path: the file to write; without it `.model` has the model. Default: None. Example: path="model.onnx"
        overwrite: replace the file if it exists. Default: False. Example: overwrite=True
        export: further arguments of `torch.onnx.export`, such as dynamo=False, which takes the older exporter, or
            dynamic_axes={"x": {0: "batch"}}
    """
    path = None if path is None else path_of(path, "path")
    if path is not None:
        check_target(path, overwrite)
    with tempfile.TemporaryDirectory(prefix="onnxsparse-") as folder:
        model, found = exported(module, Inputs.of(example), export, folder)
        said = record_zeros(model, bare_module(module))
        return replace(found, notes=(*found.notes, *said), model=_delivered(model, None, path, overwrite))


def export_quantized(
    module: Any,
    example_inputs: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    target: str = "",
    **export: Any,
) -> ModelProto | None:
    """A module that was trained with fake quantization, as an ONNX model with integers: written, else returned.

    Weights are int8 by the scales of the training, with exact zeros where they were pruned; values between layers are
    rounded by QuantizeLinear and DequantizeLinear, biases are int32, and batch normalizations behind layers are part of
    them. What the recipe pruned is recorded, so that `verify` holds the file to it. The module stays as it is; what of
    it stays float is said in the log.

    Arguments:
        module: the module of a manager whose recipe has a QuantizationModifier, before or after `finalize`.
        example_inputs: what the module is called with: a tensor, a tuple of arguments, or a dictionary of named ones.
        output: the file to write; without it the model is returned. Default: None. Example: output="int8.onnx"
        overwrite: replace the output if it exists. Default: False. Example: overwrite=True
        target: ampere, where every zero point has to be 0. Default: "", any. Example: target="ampere"
        export: further arguments of `torch.onnx.export`, such as dynamic_axes={"x": {0: "batch"}}
    """
    output = None if output is None else path_of(output, "output")
    proto, unknown = fake_quantized(module, Inputs.of(example_inputs), export)
    made, facts = converted(proto, target)
    left = [f"{place}: no batch of the training or of calibration came there" for place in unknown]
    left += [f"{name}: {reason}" for name, reason in facts.left.items()]
    if left:
        more = f"; and {len(left) - LISTED} more" if len(left) > LISTED else ""
        LOG.warning("not all is quantized: %s%s", "; ".join(left[:LISTED]), more)
    model = Model.over(made)
    model.set_metadata({PREFIX + "quantization": TITLE})
    for said in record_zeros(model, bare_module(module)):
        LOG.warning("%s", said)
    return _delivered(model, None, output, overwrite)


def permute(
    module: Any,
    example_inputs: Any = None,
    *,
    pattern: str = "2:4",
    scores: Any = None,
    effort: str = "quick",
    seed: int = 0,
    optimizer: Any = None,
    include: Names = (),
    exclude: Names = (),
    apply: Any = None,
    match: Mapping[str, Any] | None = None,
) -> Permutation:
    """Put the channels of a module in an order in which N:M pruning costs less, in place; its outputs stay the same.

    Parameters and buffers keep their objects; gradients, moments of optimizers and masks of ASP move along. What is
    returned says what moved, by the names of parameters: `.tensors`, `.facts`, `.save(path)`, `.inverse()`. Where
    nothing can be traced or proven nothing moves, and one warning in the log says why.

    Arguments:
        module: the torch module, with its trained numbers; before DistributedDataParallel, or wrapped.
        example_inputs: what the module is called with: a tensor, a tuple of arguments, or a dictionary of named ones.
            Default: None, to follow channels by torch.fx and to guess inputs for the proof. Example:
            example_inputs=torch.randn(1, 3, 224, 224)
        pattern: the pattern that is to cost less, any N:M. Default: 2:4. Example: pattern="4:8"
        scores: arrays by the names of parameters, in their shapes, not negative. Default: None, magnitudes. Example:
            scores={"fc.weight": saliency}
        effort: how long is searched: quick or thorough. Default: quick. Example: effort="thorough"
        seed: of the search. Default: 0. Example: seed=1
        optimizer: one, or a list, whose moments move along. Default: None. Example: optimizer=optimizer
        include: only these parameters or layers count, by name, glob or re:PATTERN. Default: (). Example:
            include="blocks.*"
        exclude: all but these, in the same forms. Default: (). Example: exclude="head"
        apply: the order of another module or file in place of a search: what `permute` returned or wrote. Default:
            None. Example: apply="permutation.json"
        match: which tensor of the file each parameter is, for apply= of a file. Default: None, by name. Example:
            match=osp.torch.match("model.onnx", module)
    """
    if match is not None and apply is None:
        raise OptionError("match= says which tensor of the file of apply= each parameter is; pass apply=, or no match=")
    demand_movable(bare_module(module))
    inner = demand_free(module)
    inputs = None if example_inputs is None else Inputs.of(example_inputs)
    optimizers = [
        one for one in (optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]) if one is not None
    ]
    demand_optimizers(optimizers)
    if apply is not None:
        given, where = record_of(apply)
        shapes = {name: tuple(one.shape) for name, one in tensors_of(inner).items()}
        named = by_parameters(given, shapes, match, where)
        found, reason = decided(lambda: given_for(inner, inputs, named, where))
    else:
        names = NameFilter(tuple(listed(include)), tuple(listed(exclude)))
        options = {"names": names, "scores": scores, "effort": effort, "seed": seed}
        found, reason = decided(lambda: found_for(inner, inputs, pattern_of(pattern), **options))
    move(inner, found.tensors.values(), optimizers)
    if reason:
        LOG.warning("%s: %s", "the order is not proven" if found else "the channels stay in their order", reason)
    return found


def permute_state_dict(
    state: Mapping[str, Any], permutation: Any, *, match: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A state dict with its tensors in the order of a permutation; `state` stays as it is.

    Arguments:
        state: tensors or arrays by the names of parameters, also of a wrapped module, with masks of ASP or without.
        permutation: what `permute` returned or wrote, for torch or for ONNX: also a permuted model that records it.
        match: which tensor of the file each parameter is, where names differ. Default: None. Example:
            match=osp.torch.match("model.onnx", module)
    """
    demand_state(state)
    given, where = record_of(permutation)
    moves = in_state(state, given, match, where, bare)
    made = copy.copy(state) if isinstance(state, dict) else dict(state)
    for key, one in moves.items():
        value = made[key]
        made[key] = moved(value, one).contiguous() if hasattr(value, "permute") else one(np.asarray(value))
    return made


# -- From what the user hands to `attach` to masks by parameter: a model, a plan, arrays, or a state dict.


PLANS = (".yaml", ".yml")
Given = Union[Source, Model, Mapping[str, Any]]


def _masks_for(module: Any, source: Given, match: Mapping[str, Any] | None, model: Source | Model | None) -> Any:
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
    opened = _opened_or_over(source)
    called = os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the model"
    return placed(module, _tensors(opened, masks_of_model(opened, called)), _known(module, opened, match))


def _by_plan(
    module: Any, file: PlanFile, match: Mapping[str, Any] | None, model: Source | Model | None
) -> dict[str, Array]:
    if model is not None:
        opened = _opened_or_over(model)
        return placed(module, _tensors(opened, masks_of_plan(file, opened)), _known(module, opened, match))
    promised = tuple(replace(entry, shape=None) for entry in file.entries if entry.pattern)
    places = places_of(module, [entry.name for entry in promised], match)
    own = Model.over(layers_as_model(module, places))
    found = masks_of_plan(replace(file, entries=promised), own)
    return {places[mask.name]: mask.keep for mask in found}


def _known(module: Any, model: Model, match: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A match that the model records is of the module that it was exported from, not of one that was made of it."""
    return match_in_metadata(model) if match is None and not hasattr(module, TABLE) else match


def _opened_or_over(source: Source | Model) -> Model:
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
