"""Fake quantization in a training graph: a node of our own domain, which each engine writes in what it differentiates.

    FakeQuantize(x, scale) = (clip(round(x / scale) + zero point, low, high) - zero point) * scale

1. It reads a weight behind its mask, or a value of the network, for the readers that get integers later.
2. Scale and zero point are live arrays of the engine, `key/scale` and `key/zero_point`, written from outside; a learned
   scale is one of the engine's weights.
3. The gradient goes straight through the rounding, and stops where numbers are clipped. So the scale, where it learns,
   gets that of learned step sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from onnx import ModelProto, NodeProto
from onnx.helper import make_attribute, make_opsetid

from onnxsparse.graph.attributes import Attributes
from onnxsparse.math.quantization import Grid

DOMAIN, OPERATOR = "onnxsparse.training", "FakeQuantize"
SCALE, ZERO_POINT = "scale", "zero_point"


@dataclass(frozen=True)
class FakeQuantize:
    """What such a node says of itself."""

    key: str
    grid: Grid
    observed: bool = False
    """Whether the least and the greatest number of each batch are wanted."""
    learned: bool = False
    """Whether its scale trains."""

    def write(self, node: NodeProto) -> None:
        """Make a node one of these."""
        node.domain, node.op_type = DOMAIN, OPERATOR
        said = {"key": self.key, "observed": int(self.observed), "learned": int(self.learned)}
        grid = {name: int(value) for name, value in vars(self.grid).items()}
        node.attribute.extend(make_attribute(name, value) for name, value in {**said, **grid}.items())

    @classmethod
    def of(cls, node: NodeProto) -> FakeQuantize:
        given = Attributes(node, {})
        flags = {one.name: bool(given.integer(one.name)) for one in fields(Grid) if one.name != "bits"}
        grid = Grid(given.integer("bits"), **flags)
        return cls(given.text("key"), grid, bool(given.integer("observed")), bool(given.integer("learned")))

    @property
    def scale(self) -> str:
        return f"{self.key}/{SCALE}"

    @property
    def zero_point(self) -> str:
        return f"{self.key}/{ZERO_POINT}"


def is_fake(node: NodeProto) -> bool:
    return node.domain == DOMAIN and node.op_type == OPERATOR


def import_domain(model: ModelProto) -> None:
    """A model that has such nodes says so."""
    model.opset_import.append(make_opsetid(DOMAIN, 1))
