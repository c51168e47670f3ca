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

from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import FLOAT_KINDS, StoredTensor
from onnxsparse.graph.torch_match import recorded_match
from onnxsparse.graph.vectors import vectors
from onnxsparse.graph.weights import Weight
from onnxsparse.passes.matrices import Matrix
from onnxsparse.passes.names import named
from onnxsparse.passes.plan import names_of
from onnxsparse.passes.trainable import MARK, as_float32
from onnxsparse.passes.words import words_of
from onnxsparse.train.params import Param

RECURRENT = ("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM")
FIXED = "basis"


def params_of(model: Model) -> list[Param]:
    """Every parameter, in the order of the file; weights that cannot train say why."""
    names, torch = names_of(model.weights), _torch_names(model)
    weights = {weight.tensor: weight for weight in model.weights}
    small = {tensor for tensor in vectors(model) if tensor not in weights and tensor.shape}
    found = []
    for number, tensor in enumerate(model.flow.stores.homes):
        more = torch.get(tensor.name, ())
        if tensor in weights:
            weight = weights[tensor]
            found.append(_weight(f"{MARK}{number}", weight, names[id(weight)], more))
        elif tensor in small:
            found.append(_vector(f"{MARK}{number}", tensor, more))
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


def _weight(tag: str, weight: Weight, name: str, more: tuple[str, ...]) -> Param:
    tensor, refusal = weight.tensor, _refusal(weight)
    names = (tensor.name, *more)
    answers = named(weight, name, names)
    if refusal:
        known = replace(answers, refused=True)
        return Param(tag, name, tuple(tensor.shape), names, refusal=refusal, named=known)
    use = weight.uses[0]
    fixed = FIXED in words_of(Matrix(name, weight, use))
    recurrent = set(answers.operators) & set(RECURRENT)
    return Param(
        tag, name, tuple(tensor.shape), names, (*answers.nodes, *answers.layers), not fixed and not recurrent,
        use.matrix, use.restore, lambda: as_float32(tensor), named=answers,
    )  # fmt: skip


def _vector(tag: str, tensor: StoredTensor, more: tuple[str, ...]) -> Param:
    return Param(tag, tensor.name, tuple(tensor.shape), more, numbers=lambda: as_float32(tensor))


def _torch_names(model: Model) -> Mapping[str, tuple[str, ...]]:
    """By tensor, the names that a recorded match has for it; parts of a tensor do not name the whole."""
    match = recorded_match(model)
    found: dict[str, list[str]] = {}
    for name, one in match.matched.items() if match is not None else ():
        for place in (one, *one.copies):
            found.setdefault(place.tensor, []).append(name)
    return {tensor: tuple(names) for tensor, names in found.items() if len(names) == 1}
