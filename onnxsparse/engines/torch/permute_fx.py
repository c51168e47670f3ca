"""A module as an ONNX graph by symbolic tracing (torch.fx), for its channels alone: operators, shapes, parameters.

1. The graph says how channels go through the module, and is never run: a pooling is any pooling, a convolution has no
   stride. What is not known here becomes an operator of its own name, which blocks what it reads.
2. Shapes come from running the trace. Where the caller has no inputs they are guessed: from what the layers that read
   an input expect, in a list of usual sizes. Sizes that differ between two guesses are left open.
3. A module is traced as it is in evaluation and as it is in training, into one graph: auxiliary heads count.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.permute import Inputs, UnprovenError, attention_in_parts, copied, names_of, tensors_of
from onnxsparse.engines.torch.permute_export import stored_numbers
from onnxsparse.engines.torch.permute_operators import Emitter
from onnxsparse.errors import one_line

SIZES = (16, 32, 8, 28, 7, 64, 14, 4, 224, 3, 2, 1, 5, 6, 9, 10, 12, 20, 24, 48, 56, 84, 96, 112, 128, 192, 227, 256, 299)
"""Heights, widths and lengths that are tried, in this order; Linear layers behind Flatten leave few that fit."""


@dataclass(frozen=True, eq=False)
class Traced:
    """The graph of a module, and inputs that it runs with, each of another size."""

    proto: ModelProto
    inputs: tuple[Inputs, ...]


def traced(module: Any, inputs: Inputs | None) -> Traced:
    """Trace a copy of the module in single precision; inputs are guessed where there are none."""
    subject = copied(module, torch().float32)
    graph = _trace(subject)
    if inputs is not None:
        inputs = inputs.cast(torch().float32, next((one.device for one in tensors_of(subject).values()), "cpu"))
    given = [inputs] if inputs is not None else _guessed(graph, subject)
    emitter = Emitter(subject, names_of(subject))
    _emit(emitter, graph, subject, given, "")
    state = [(one, one.clone()) for one in subject.buffers()]
    try:
        with_training = _trace(subject.train())
        if with_training.code != graph.code:
            _emit(emitter, with_training, subject, given, "training_")
    except Exception:  # noqa: S110 - a path that is not traced is left to the proof
        pass
    finally:
        subject.eval()
        with torch().no_grad():
            for tensor, numbers in state:
                tensor.copy_(numbers)
    stored = {name: stored_numbers(one, name) for name, one in tensors_of(module).items()}
    return Traced(emitter.model(stored), tuple(given))


def _trace(subject: Any) -> Any:
    try:
        with attention_in_parts():
            tracer = torch().fx.Tracer()
            graph = tracer.trace(subject)
            return torch().fx.GraphModule(tracer.root, graph)
    except Exception as error:  # whatever a user's module raises when it meets a proxy
        raise UnprovenError(
            f"torch.fx cannot trace it ({type(error).__name__}: {one_line(error)[:160]}); pass example_inputs"
        ) from error


# -- shapes


def _emit(emitter: Emitter, graph: Any, subject: Any, given: Sequence[Inputs], prefix: str) -> None:
    runs = [_shapes(graph, subject, one) for one in given]
    shapes = {node: _common([run.get(node.name) for run in runs]) for node in graph.graph.nodes}
    emitter.emit(graph, shapes, prefix)


def _shapes(graph: Any, subject: Any, inputs: Inputs) -> dict[str, Any]:
    """What each node of a trace makes: (shape, type) of a tensor, a list of these, or None."""
    found: dict[str, Any] = {}

    class Recording(torch().fx.Interpreter):  # type: ignore[misc]
        def run_node(self, node: Any) -> Any:
            value = super().run_node(node)
            found[node.name] = _described(value)
            return value

    args = _in_order(graph, inputs)
    with torch().no_grad(), torch().random.fork_rng([]), attention_in_parts():
        Recording(graph).run(*args)
    return found


def _in_order(graph: Any, inputs: Inputs) -> list[Any]:
    """Arguments by place, as a trace takes them."""
    holders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    args = list(inputs.args)
    for node in holders[len(args) :]:
        if node.target in inputs.kwargs:
            args.append(inputs.kwargs[node.target])
        elif node.args:
            args.append(node.args[0])
    return args


def _described(value: Any) -> Any:
    if torch().is_tensor(value):
        return tuple(value.shape), str(value.dtype).partition(".")[2]
    if isinstance(value, (tuple, list)):
        made = [_described(one) for one in value]
        return made if any(one is not None for one in made) else None
    return None


def _common(found: Sequence[Any]) -> Any:
    """A description with those sizes that are the same in all runs."""
    first = found[0]
    if first is None or any(type(one) is not type(first) or len(one) != len(first) for one in found):
        return None
    if isinstance(first, list):
        return [_common([one[at] for one in found]) for at in range(len(first))]
    if any(len(one[0]) != len(first[0]) for one in found):
        return None
    sizes = zip(*(one[0] for one in found))
    return tuple(one[0] if len(set(one)) == 1 else None for one in sizes), first[1]


# -- guessing


def _guessed(graph: Any, subject: Any) -> list[Inputs]:
    """Inputs that the trace runs with; a second batch of another size, and another size inside of it where it runs."""
    holders = [node for node in graph.graph.nodes if node.op == "placeholder" and not node.args]
    if any(str(node.target).startswith("*") for node in holders) or not holders:
        raise UnprovenError("its inputs cannot be guessed; pass example_inputs")
    wanted = [_wanted(node, graph, subject) for node in holders]
    for forms in _forms(wanted):
        for size in SIZES if any(form.open for form in forms) else SIZES[:1]:
            first = _made(forms, 2, size, subject)
            if _runs(graph, subject, first):
                others = (_made(forms, 3, other, subject) for other in (size + 32, size + 1, size))
                return [first, *itertools.islice((one for one in others if _runs(graph, subject, one)), 1)]
    raise UnprovenError("no input was found that it runs with; pass example_inputs")


def _runs(graph: Any, subject: Any, inputs: Inputs) -> bool:
    try:
        _shapes(graph, subject, inputs)
    except Exception:  # whatever a user's module raises
        return False
    return True


@dataclass(frozen=True)
class Form:
    """What an input may look like behind the batch: sizes, None where one is open; numbers of tokens below `below`."""

    sizes: tuple[int | None, ...]
    below: int = 0

    @property
    def open(self) -> bool:
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
    nn = torch().nn
    if node.op == "call_function" and len(node.args) > 1:
        return _by_weight(node, subject)
    layer = graph.get_submodule(node.target) if node.op == "call_module" else None
    if isinstance(layer, nn.modules.conv._ConvNd):
        return [Form((layer.in_channels, *[None] * len(layer.kernel_size)))]
    if isinstance(layer, nn.Linear):
        return [Form((layer.in_features,)), Form((None, layer.in_features))]
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        return [Form((None,), layer.num_embeddings)]
    if isinstance(layer, nn.modules.batchnorm._NormBase):
        ranks = {"1d": (0, 1), "2d": (2,), "3d": (3,)}.get(type(layer).__name__[-2:], (2, 1, 3, 0))
        return [Form((layer.num_features, *[None] * rank)) for rank in ranks]
    if isinstance(layer, nn.GroupNorm):
        return [Form((layer.num_channels, *[None] * rank)) for rank in (2, 1, 3, 0)]
    if isinstance(layer, nn.LayerNorm):
        return [Form(tuple(layer.normalized_shape)), Form((None, *layer.normalized_shape))]
    if isinstance(layer, nn.MultiheadAttention):
        return [Form((None, layer.embed_dim))]
    if isinstance(layer, nn.RNNBase):
        return [Form((None, layer.input_size))]
    if isinstance(layer, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
        return [Form((None, layer.self_attn.embed_dim))]
    if isinstance(layer, (nn.TransformerEncoder, nn.TransformerDecoder)):
        return [Form((None, layer.layers[0].self_attn.embed_dim))]
    return []


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
        return [Form((tensor.shape[1],)), Form((None, tensor.shape[1]))]
    if name in ("conv1d", "conv2d", "conv3d"):
        groups = node.kwargs.get("groups", node.args[6] if len(node.args) > 6 else 1)
        return [Form((tensor.shape[1] * groups, *[None] * (tensor.dim() - 2)))]
    if name in ("matmul", "mm"):
        return [Form((tensor.shape[0],)), Form((None, tensor.shape[0]))]
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


__all__ = ["Traced", "traced"]
