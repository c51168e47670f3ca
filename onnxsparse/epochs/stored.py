"""The parameters of an ONNX model, with every name they answer to.

1. A parameter is a stored float tensor that can train: a weight, a bias, the scale of a normalization. Running
   statistics and other constants are none.
2. It answers to its own name, to the torch name that the model's metadata records, and, as a weight, to the names of
   the layers that read it.
3. Weights of recurrent layers are no `__ALL_PRUNABLE__`, and neither are fixed filterbanks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import FLOAT_KINDS
from onnxsparse.graph.torch_match import recorded_match
from onnxsparse.graph.vectors import vectors
from onnxsparse.graph.weights import Weight
from onnxsparse.passes.matrices import as_float32, weight_param
from onnxsparse.passes.names import named
from onnxsparse.passes.words import words_of
from onnxsparse.train.params import Param

RECURRENT = ("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM")
FIXED = "basis"


def params_of(model: Model) -> list[Param]:
    """Every parameter, in the order of the file; weights that cannot train say why."""
    torch = _torch_names(model)
    weights = {weight.tensor: weight for weight in model.weights}
    small = {tensor for tensor in vectors(model) if tensor not in weights and tensor.shape}
    found = []
    for tensor, home in model.flow.stores.homes.items():
        more = torch.get(tensor.name, ())
        if tensor in weights:
            found.append(_weight(weights[tensor], more))
        elif tensor in small:
            numbers = partial(as_float32, tensor)
            found.append(Param(home.tag, tensor.name, tuple(tensor.shape), numbers=numbers, names=more))
    return found


def _refusal(weight: Weight) -> str:
    if weight.refusal or not weight.uses:
        return weight.refusal or "nothing reads it as a weight"
    if weight.tensor.kind not in FLOAT_KINDS:
        return f"it is stored as {weight.tensor.kind}"
    if weight.twins:
        return "another tensor has the same bytes"
    masked = any(use.masks for use in weight.uses)
    return "a mask is applied to it in the graph already; run `onnxsparse fold` first" if masked else ""


def _weight(weight: Weight, more: tuple[str, ...]) -> Param:
    tensor, refusal = weight.tensor, _refusal(weight)
    tag, name, names = weight.tag, weight.name, (tensor.name, *more)
    answers = named(weight, names)
    if refusal:
        known = replace(answers, refused=True)
        return Param(tag, name, tuple(tensor.shape), names=names, refusal=refusal, named=known)
    own = weight_param(weight)
    prunable = FIXED not in words_of(own) and not set(answers.operators) & set(RECURRENT)
    return Param(
        tag, name, own.shape, own.matrix, own.restore, own.numbers, names, (*answers.nodes, *answers.layers), prunable,
        named=answers,
    )  # fmt: skip


def _torch_names(model: Model) -> Mapping[str, tuple[str, ...]]:
    """By tensor, the names that a recorded match has for it; parts of a tensor do not name the whole."""
    match = recorded_match(model)
    found: dict[str, list[str]] = {}
    for name, one in match.matched.items() if match is not None else ():
        for place in (one, *one.copies):
            found.setdefault(place.tensor, []).append(name)
    return {tensor: tuple(names) for tensor, names in found.items() if len(names) == 1}
