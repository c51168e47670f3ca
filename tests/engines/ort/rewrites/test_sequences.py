from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, numpy_helper
from onnx.helper import make_node

from onnxsparse.engines.ort import library
from tests.engines.ort.rewrites.harness import Case, check, refused
from tests.engines.ort.rewrites.numbers import floats

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")


@dataclass
class Chain(Case):
    """Several nodes that read `in0` and numbers by name, and write `y`."""

    nodes: list[NodeProto] = field(default_factory=list)
    stored: dict[str, Any] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        model = super().model()
        del model.graph.node[1:]
        model.graph.node.extend(self.nodes)
        for name, value in self.stored.items():
            model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
        return model


def chain(*nodes: NodeProto, **stored: Any) -> Chain:
    return Chain("Identity", [floats(4, 6)], nodes=list(nodes), stored=stored)


@pytest.mark.parametrize("place", [0, -2])
@pytest.mark.parametrize("keep", [0, 1])
def test_one_of_equal_parts(place: int, keep: int) -> None:
    split = make_node("SplitToSequence", ["in0"], ["s"], axis=1, keepdims=keep)
    check(chain(split, make_node("SequenceAt", ["s", "i"], ["y"]), i=place))


@pytest.mark.parametrize("sizes", [4, [4, 2]])
def test_one_of_parts_of_given_sizes(sizes: Any) -> None:
    split = make_node("SplitToSequence", ["in0", "z"], ["s"], axis=-1)
    model = check(chain(split, make_node("SequenceAt", ["s", "i"], ["y"]), i=1, z=sizes))
    assert "SplitToSequence" not in [node.op_type for node in model.graph.node]


def test_parts_are_joined_again() -> None:
    split = make_node("SplitToSequence", ["in0", "z"], ["s"], axis=1)
    check(chain(split, make_node("ConcatFromSequence", ["s"], ["y"], axis=0), z=[3, 3]))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_tensors_are_stacked(axis: int) -> None:
    nodes = [
        make_node("Relu", ["in0"], ["b"]),
        make_node("SequenceConstruct", ["in0", "b"], ["s"]),
        make_node("SequenceInsert", ["s", "in0", "i"], ["t"]),
        make_node("SequenceInsert", ["t", "b"], ["u"]),
        make_node("ConcatFromSequence", ["u"], ["y"], axis=axis, new_axis=1),
    ]
    check(chain(*nodes, i=1))


def test_a_place_that_is_computed_is_refused() -> None:
    nodes = [
        make_node("SplitToSequence", ["in0"], ["s"]),
        make_node("ArgMax", ["in0"], ["k"], axis=0, keepdims=0),
        make_node("ReduceMax", ["k"], ["i"], keepdims=0),
        make_node("SequenceAt", ["s", "i"], ["y"]),
    ]
    (note,) = refused(chain(*nodes))
    assert note.endswith("what its sequence holds is not fixed")
