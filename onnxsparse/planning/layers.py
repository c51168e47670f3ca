"""Layers of a network by their weights: convolution, stride group, and what a device gains by the zeros.

1. A layer's size is the longest side of its input in space; fully connected layers have none.
2. Layers stand in the order of the nodes that use them; the first one's size is what the others are held against.
3. A size that depends on the inputs is asked for, never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnx import GraphProto

from onnxsparse.allocations.energy import Place, stride_groups
from onnxsparse.errors import OptionError
from onnxsparse.graph.attributes import label
from onnxsparse.graph.edit import containers
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Convolution, Weight, convolution_of
from onnxsparse.planning.macs import longest_sides, open_dims_of
from onnxsparse.targets import Target

FAMILIES = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "Attention")
"""Layers that count in a network's sparsity."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One weight: its convolution where it has one, and its stride group."""

    weight: Weight
    convolution: Convolution | None
    group: int
    size: float | None = None

    def place(self, target: Target | None, dense: bool = False) -> Place:
        """What the allocation by energy knows of it."""
        bound = target.target_density(self.convolution) if target and self.convolution else None
        cap = 0.0 if dense else 1.0 if bound is None else 1 - bound
        return Place(self.group, self.convolution is not None and self.convolution.depthwise, cap)


def counts(weight: Weight) -> bool:
    """Whether a weight is a layer whose zeros make up the network's sparsity."""
    return bool(weight.uses) and not weight.refusal and any(use.family in FAMILIES for use in weight.uses)


def bound_of(weight: Weight, target: Target | None) -> float | None:
    """The density below which zeros of a weight gain nothing."""
    layer = convolution_of(weight.uses[0]) if target is not None and weight.uses else None
    return target.target_density(layer) if target is not None and layer is not None else None


def wasted(zeros: int, size: int, bound: float | None) -> int | None:
    """Zeros beyond what the device can use."""
    return None if bound is None else max(0, zeros - math.floor((1 - bound) * size + 0.5))


def layers_of(model: Model, weights: Sequence[Weight]) -> dict[Weight, Layer]:
    """The layers among some weights."""
    order, inputs = _nodes(model)
    found = [weight for weight in weights if counts(weight)]
    found.sort(key=lambda weight: order.get(weight.uses[0].node, 0))
    if not found:
        return {}
    convolutions = [convolution_of(weight.uses[0]) for weight in found]
    names = [inputs.get(weight.uses[0].node, "") if one else "" for weight, one in zip(found, convolutions)]
    known = longest_sides(model, [name for name in names if name])
    sizes = [
        None if one is None else _demanded(model, weight, known.get(name))
        for weight, one, name in zip(found, convolutions, names)
    ]
    groups = stride_groups(sizes)
    facts = zip(found, convolutions, groups, sizes)
    return {weight: Layer(weight, one, group, size) for weight, one, group, size in facts}


def _nodes(model: Model) -> tuple[dict[str, int], dict[str, str]]:
    """The place of every node among all, and its first input, by its label."""
    nodes = [node for one in containers(model.proto) if isinstance(one, GraphProto) for node in one.node]
    return {label(node): at for at, node in enumerate(nodes)}, {label(n): n.input[0] for n in nodes if n.input}


def _demanded(model: Model, weight: Weight, size: float | None) -> float:
    if size is not None:
        return size
    node, open_dims = weight.uses[0].node, open_dims_of(model)
    if open_dims:
        raise OptionError(
            f"how large the input of '{node}' is depends on the model's inputs; say the size of {', '.join(open_dims)} "
            "with --dim NAME=SIZE, or as default_input_shape in a configuration"
        )
    raise OptionError(
        f"nobody can say how large the input of '{node}' is: --exclude it, take --allocation uniform, or install "
        "onnxruntime, by which sizes are found that cannot be inferred"
    )
