"""Models whose names are no text, and operators with too few or too many operands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from .broken import ODD, Writer, fatal, save, small, valid
from .case import feed, node, simple, weights


@fatal
def input_named_by_control_characters(folder: Path) -> Path:
    """The name stands in the message; what it would do to a terminal must not."""
    made = small()
    made.graph.node[0].input[1] = "\x1b[2J\x1b]0;owned\x07\r\n\x00\u202e"
    return save(folder, made)


def _masked_by(inputs: str) -> Writer:
    """A Mul of one or of three on the weight's path."""

    def write(folder: Path) -> Path:
        nodes = [node("Mul", inputs, "t"), node("MatMul", "x t", "y")]
        stored = {"w": weights(16, 16), "k": np.ones((16, 16), np.float32)}
        return save(folder, simple(nodes, {"x": feed(4, 16)}, [("y", 2)], stored, []).model)

    return write


ODD["mul_of_nothing"] = _masked_by("")
ODD["mul_of_one"] = _masked_by("w")
ODD["mul_of_three"] = _masked_by("w k k")
ODD["mul_with_a_hole"] = _masked_by("w _")


def _not_utf8(mark: str, change: Callable[[onnx.ModelProto], None]) -> Writer:
    """A string whose bytes are no UTF-8: protobuf hands it over as bytes."""

    def write(folder: Path) -> Path:
        made = valid()
        change(made)
        path = folder / "broken.onnx"
        path.write_bytes(made.SerializeToString().replace(mark.encode(), b"\xff\xfe" + mark.encode()[2:]))
        return path

    return write


MARK = "zzMARKzz"


def _rename_weight(made: onnx.ModelProto) -> None:
    made.graph.initializer[0].name = MARK
    made.graph.node[0].input[1] = MARK


def _rename_output(made: onnx.ModelProto) -> None:
    made.graph.node[0].output[0] = MARK
    made.graph.node[2].input[0] = MARK


for _name, _change in {
    "not_utf8_weight": _rename_weight,
    "not_utf8_value": _rename_output,
    "not_utf8_node": lambda made: setattr(made.graph.node[0], "name", MARK),
    "not_utf8_operator": lambda made: setattr(made.graph.node[0], "op_type", MARK),
    "not_utf8_domain": lambda made: setattr(made.graph.node[0], "domain", MARK),
    "not_utf8_graph": lambda made: setattr(made.graph, "name", MARK),
    "not_utf8_doc": lambda made: setattr(made.graph.initializer[0], "doc_string", MARK),
    "not_utf8_producer": lambda made: setattr(made, "producer_name", MARK),
    "not_utf8_metadata": lambda made: made.metadata_props.add(key=MARK, value=MARK) and None,
    "not_utf8_attribute": lambda made: made.graph.node[0].attribute.append(helper.make_attribute(MARK, 1)),
    "not_utf8_dimension": lambda made: setattr(made.graph.input[0].type.tensor_type.shape.dim[0], "dim_param", MARK),
    "not_utf8_input": lambda made: setattr(made.graph.input[0], "name", MARK),
}.items():
    ODD[_name] = _not_utf8(MARK, _change)
