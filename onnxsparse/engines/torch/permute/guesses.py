"""Inputs that a traced module runs with, guessed from what the layers expect that read them first.

Several are given: another batch, another height, width or length where it runs, and another number of axes. What a
permutation leaves as it is for all of them is no accident of one size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.permute.moves import tensors_of
from onnxsparse.engines.torch.permute.proof import Inputs, UnprovenError

SIZES = (
    16,
    32,
    8,
    28,
    7,
    64,
    14,
    4,
    224,
    3,
    2,
    1,
    5,
    6,
    9,
    10,
    12,
    20,
    24,
    48,
    56,
    84,
    96,
    112,
    128,
    192,
    227,
    256,
    299,
)
"""Heights, widths and lengths that are tried, in this order; Linear layers behind Flatten leave few that fit."""


def guessed(graph: Any, subject: Any, run: Callable[[Inputs], Any]) -> tuple[list[Inputs], list[Inputs]]:
    """Inputs that a trace runs with, two of one form where they can be of two sizes; and some of other forms."""
    holders = [node for node in graph.graph.nodes if node.op == "placeholder" and not node.args]
    if any(str(node.target).startswith("*") for node in holders) or not holders:
        raise UnprovenError("its inputs cannot be guessed; pass example_inputs")
    runs = partial(_runs, run)
    found: list[list[Inputs]] = []
    for forms in _forms([_wanted(node, graph, subject) for node in holders]):
        sizes = SIZES if any(form.is_open for form in forms) else SIZES[:1]
        tried = ((size, _made(forms, 2, size, subject)) for size in (sizes if not found else sizes[:3]))
        size, first = next(((size, one) for size, one in tried if runs(one)), (0, None))
        if first is not None:
            others = (_made(forms, 3, other, subject) for other in (size + 32, size + 1, size))
            found.append([first, *itertools.islice(filter(runs, others), 1)])
    if not found:
        raise UnprovenError("no input was found that it runs with; pass example_inputs")
    return found[0], [one for other in found[1:] for one in other]


def _runs(run: Callable[[Inputs], Any], inputs: Inputs) -> bool:
    try:
        run(inputs)
    except Exception:  # whatever a user's module raises
        return False
    return True


@dataclass(frozen=True)
class Form:
    """What an input may look like behind the batch: sizes, None where one is open; numbers of tokens below `below`."""

    sizes: tuple[int | None, ...]
    below: int = 0

    @property
    def is_open(self) -> bool:
        return None in self.sizes


def _wanted(holder: Any, graph: Any, subject: Any) -> list[Form]:
    """What the first layer that reads an input expects, or what is behind operators that say nothing."""
    waiting, seen = list(holder.users), {holder}
    while waiting:
        node = waiting.pop(0)
        if node in seen:
            continue
        seen.add(node)
        forms = _expected(node, graph, subject)
        if forms:
            return forms
        waiting += list(node.users)
    return []


def _expected(node: Any, graph: Any, subject: Any) -> list[Form]:
    if node.op == "call_function" and len(node.args) > 1:
        return _by_weight(node, subject)
    if node.op != "call_module":
        return []
    layer = graph.get_submodule(node.target)
    kinds = {kind.__name__ for kind in type(layer).__mro__}
    return next((forms(layer) for name, forms in _LAYERS.items() if name in kinds), [])


def _of_norm(layer: Any) -> list[Form]:
    ranks = {"1d": (0, 1), "2d": (2,), "3d": (3,)}.get(type(layer).__name__[-2:], (2, 1, 3, 0))
    return [Form((layer.num_features, *[None] * rank)) for rank in ranks]


def _of_rows(*width: int) -> list[Form]:
    """Rows, and rows of rows."""
    return [Form((None, *width)), Form(width)]


_LAYERS: dict[str, Callable[[Any], list[Form]]] = {
    "_ConvNd": lambda layer: [Form((layer.in_channels, *[None] * len(layer.kernel_size)))],
    "Linear": lambda layer: _of_rows(layer.in_features),
    "Embedding": lambda layer: [Form((None,), layer.num_embeddings)],
    "EmbeddingBag": lambda layer: [Form((None,), layer.num_embeddings)],
    "_NormBase": _of_norm,
    "GroupNorm": lambda layer: [Form((layer.num_channels, *[None] * rank)) for rank in (2, 1, 3, 0)],
    "LayerNorm": lambda layer: _of_rows(*layer.normalized_shape),
    "MultiheadAttention": lambda layer: [Form((None, layer.embed_dim))],
    "RNNBase": lambda layer: [Form((None, layer.input_size))],
    "TransformerEncoderLayer": lambda layer: [Form((None, layer.self_attn.embed_dim))],
    "TransformerDecoderLayer": lambda layer: [Form((None, layer.self_attn.embed_dim))],
    "TransformerEncoder": lambda layer: [Form((None, layer.layers[0].self_attn.embed_dim))],
    "TransformerDecoder": lambda layer: [Form((None, layer.layers[0].self_attn.embed_dim))],
}


def _by_weight(node: Any, subject: Any) -> list[Form]:
    """What a function expects that takes a parameter."""
    weight = node.args[1]
    if getattr(weight, "op", "") != "get_attr" or getattr(node.args[0], "op", "") == "get_attr":
        return []
    tensor = tensors_of(subject).get(weight.target)
    name = getattr(node.target, "__name__", "")
    if tensor is None:
        return []
    if name == "linear":
        return _of_rows(tensor.shape[1])
    if name in ("conv1d", "conv2d", "conv3d"):
        groups = node.kwargs.get("groups", node.args[6] if len(node.args) > 6 else 1)
        return [Form((tensor.shape[1] * groups, *[None] * (tensor.dim() - 2)))]
    if name in ("matmul", "mm"):
        return _of_rows(tensor.shape[0])
    return []


def _forms(wanted: Sequence[Sequence[Form]]) -> Iterator[tuple[Form, ...]]:
    """One form for each input; an input that nothing is known of looks like one of the others, or is tried blindly."""
    known = [form for forms in wanted for form in forms]
    blind = [*dict.fromkeys(known), Form((None, None)), Form((3, None, None)), Form((None,))]
    yield from itertools.islice(itertools.product(*(forms or blind for forms in wanted)), 8)


def _made(forms: Sequence[Form], batch: int, size: int, subject: Any) -> Inputs:
    generator = torch().Generator().manual_seed(0)
    device = next((one.device for one in tensors_of(subject).values()), "cpu")
    dtype = next((one.dtype for one in subject.parameters() if one.is_floating_point()), torch().float32)
    args = []
    for form in forms:
        shape = [batch, *(size if one is None else one for one in form.sizes)]
        if form.below:
            args.append(torch().randint(0, form.below, shape, generator=generator).to(device))
        else:
            args.append(torch().randn(shape, generator=generator).to(device, dtype))
    return Inputs(tuple(args))
