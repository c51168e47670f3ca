"""A module as an ONNX graph by symbolic tracing (torch.fx), for its channels alone: operators, shapes, parameters.

1. The graph says how channels go through the module, and is never run: a pooling is any pooling, a convolution has no
   stride. What is not known here becomes an operator of its own name, which blocks what it reads.
2. Shapes come from running the trace. Where the caller has no inputs they are guessed: from what the layers that read
   an input expect, in a list of usual sizes. Sizes that differ between two guesses are left open.
3. A module is traced as it is in evaluation and as it is in training, into one graph: auxiliary heads count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from onnx import ModelProto

from onnxsparse.engines.torch.library import attention_in_parts, torch
from onnxsparse.engines.torch.permute import layers, layout, sequences  # noqa: F401 - each enters what it knows
from onnxsparse.engines.torch.permute.emitter import Emitter
from onnxsparse.engines.torch.permute.export import stored_numbers
from onnxsparse.engines.torch.permute.guesses import guessed
from onnxsparse.engines.torch.permute.moves import names_of, tensors_of
from onnxsparse.engines.torch.permute.proof import Inputs, UnprovenError, copied
from onnxsparse.errors import one_line


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
    given, others = [inputs] if inputs is not None else [], list[Inputs]()
    if inputs is None:
        given, others = guessed(graph, subject, partial(_shapes, graph))
    emitter = Emitter(subject, names_of(subject))
    _emit(emitter, graph, given, "")
    state = [(one, one.clone()) for one in subject.buffers()]
    try:
        with_training = _trace(subject.train())
        if with_training.code != graph.code:
            _emit(emitter, with_training, given, "training_")
    except Exception:  # noqa: S110 - a path that is not traced is left to the proof
        pass
    finally:
        subject.eval()
        with torch().no_grad():
            for tensor, numbers in state:
                tensor.copy_(numbers)
    stored = {name: stored_numbers(one, name) for name, one in tensors_of(module).items()}
    return Traced(emitter.model(stored), (*given, *others))


def _trace(subject: Any) -> Any:
    class Tracer(torch().fx.Tracer):  # type: ignore[misc]
        proxy_buffer_attributes = True  # a mask may be cut to the length of an input

    try:
        with attention_in_parts():
            tracer = Tracer()
            graph = tracer.trace(subject)
            return torch().fx.GraphModule(tracer.root, graph)
    except Exception as error:  # whatever a user's module raises when it meets a proxy
        raise UnprovenError(
            f"torch.fx cannot trace it ({type(error).__name__}: {one_line(error)[:160]}); pass example_inputs"
        ) from error


# -- shapes


def _emit(emitter: Emitter, graph: Any, given: Sequence[Inputs], prefix: str) -> None:
    runs = [_shapes(graph, one) for one in given]
    shapes = {node: _common([run.get(node.name) for run in runs]) for node in graph.graph.nodes}
    emitter.emit(graph, shapes, prefix)


def _shapes(graph: Any, inputs: Inputs) -> dict[str, Any]:
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
    """A description with those sizes that are the same in all runs; others are called by what they were in each."""
    first = found[0]
    if first is None or any(type(one) is not type(first) or len(one) != len(first) for one in found):
        return None
    if isinstance(first, list):
        return [_common([one[at] for one in found]) for at in range(len(first))]
    if any(len(one[0]) != len(first[0]) for one in found):
        return None
    sizes = zip(*(one[0] for one in found))
    return tuple(one[0] if len(set(one)) == 1 else "size " + "/".join(map(str, one)) for one in sizes), first[1]


__all__ = ["Traced", "traced"]
