"""Models whose structure lies: cycles, depth, names, functions and attributes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, helper

from .broken import FATAL, ODD, Writer, fatal, odd, save, small, valid
from .case import feed, graph, model, node, output_info, simple, tensor, weights


@fatal
def cyclic(folder: Path) -> Path:
    nodes = [node("Add", "x b", "a"), node("Relu", "a", "b"), node("MatMul", "a w", "y")]
    return save(folder, simple(nodes, {"x": feed(4, 16)}, [("y", 2)], {"w": weights(16, 16)}, []).model)


@fatal
def cyclic_on_the_weight_path(folder: Path) -> Path:
    nodes = [node("Identity", "b", "a"), node("Identity", "a", "b"), node("MatMul", "x b", "y")]
    return save(folder, simple(nodes, {"x": feed(4, 16)}, [("y", 2)], {"w": weights(16, 16)}, []).model)


@fatal
def node_feeds_itself(folder: Path) -> Path:
    nodes = [node("Transpose", "a", "a"), node("MatMul", "x a", "y")]
    return save(folder, simple(nodes, {"x": feed(4, 16)}, [("y", 2)], {"w": weights(16, 16)}, []).model)


@fatal
def unsorted(folder: Path) -> Path:
    nodes = [node("MatMul", "x t", "y"), node("Transpose", "w", "t")]
    return save(folder, simple(nodes, {"x": feed(4, 16)}, [("y", 2)], {"w": weights(16, 16)}, []).model)


@fatal
def initializer_twice(folder: Path) -> Path:
    made = small()
    made.graph.initializer.append(tensor("w", weights(16, 16, seed=9)))
    return save(folder, made)


@fatal
def output_twice(folder: Path) -> Path:
    made = small()
    made.graph.node.append(node("Neg", "x", "y"))
    return save(folder, made)


@fatal
def output_named_like_initializer(folder: Path) -> Path:
    made = small()
    made.graph.node.insert(0, node("Neg", "x", "w"))
    return save(folder, made)


@fatal
def input_from_nowhere(folder: Path) -> Path:
    made = small()
    made.graph.node[0].input[1] = "nothing"
    return save(folder, made)


@odd
def node_without_inputs(folder: Path) -> Path:
    made = small()
    del made.graph.node[0].input[:]
    return save(folder, made)


@odd
def node_with_one_input(folder: Path) -> Path:
    made = small()
    del made.graph.node[0].input[0]
    return save(folder, made)


@odd
def node_without_outputs(folder: Path) -> Path:
    made = small()
    del made.graph.node[0].output[:]
    return save(folder, made)


@odd
def node_without_operator(folder: Path) -> Path:
    made = small()
    made.graph.node[0].op_type = ""
    return save(folder, made)


@odd
def no_opset(folder: Path) -> Path:
    made = small()
    del made.opset_import[:]
    return save(folder, made)


@odd
def opset_of_the_far_future(folder: Path) -> Path:
    made = small()
    made.opset_import[0].version = 2**40
    return save(folder, made)


def _nested(levels: int) -> bytes:
    """An If in an If: built from bytes, since no library writes it this deep."""
    made = small()
    inner = helper.make_graph(
        [node("MatMul", "x w", "deepest")], "b", [], [output_info("deepest", 2)]
    ).SerializeToString()
    for _ in range(levels):
        attribute = _field(1, b"then_branch") + _field(6, inner) + b"\xa0\x01\x05"
        inner = _field(1, _field(1, b"c") + _field(2, b"deepest") + _field(4, b"If") + _field(5, attribute)) + _field(
            2, b"b"
        )
    shell = onnx.ModelProto()
    shell.CopyFrom(made)
    shell.graph.ClearField("node")
    return shell.SerializeToString() + _field(7, inner)


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _deep(levels: int) -> Writer:
    def write(folder: Path) -> Path:
        path = folder / "deep.onnx"
        path.write_bytes(_nested(levels))
        return path

    return write


ODD["nested_20_deep"] = _deep(20)
ODD["nested_200_deep"] = _deep(200)
FATAL["nested_5000_deep"] = _deep(5000)


def _call(body: Sequence[onnx.NodeProto], name: str = "F") -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, ["a", "k"], ["b"], list(body), imports)


def _with_functions(folder: Path, *functions: onnx.FunctionProto) -> Path:
    whole = graph(
        [node("F", "x w", "y", domain="local")], {"x": feed(4, 16)}, [("y", 2)], [tensor("w", weights(16, 16))]
    )
    return save(folder, model(whole, domains={"local": 1}, functions=functions))


@fatal
def function_calls_itself(folder: Path) -> Path:
    return _with_functions(folder, _call([node("MatMul", "a k", "h"), node("F", "h k", "b", domain="local")]))


@fatal
def functions_call_each_other(folder: Path) -> Path:
    first = _call([node("G", "a k", "b", domain="local")])
    return _with_functions(folder, first, _call([node("F", "a k", "b", domain="local")], "G"))


@odd
def functions_double_each_time(folder: Path) -> Path:
    """40 levels, each calls the next twice: 2 ** 40 uses if followed one by one."""
    levels = [
        _call(
            [node(f"F{n + 1}", "a k", "h", domain="local"), node(f"F{n + 1}", "h k", "b", domain="local")],
            f"F{n}" if n else "F",
        )
        for n in range(40)
    ]
    return _with_functions(folder, *levels, _call([node("MatMul", "a k", "b")], "F40"))


@odd
def function_twice(folder: Path) -> Path:
    body = [node("MatMul", "a k", "b")]
    return _with_functions(folder, _call(body), _call(body))


@odd
def function_called_with_too_many_inputs(folder: Path) -> Path:
    path = _with_functions(folder, _call([node("MatMul", "a k", "b")]))
    made = onnx.load(str(path))
    made.graph.node[0].input.extend(["w"] * 5)
    return save(folder, made)


def _chain(middle: onnx.NodeProto, last: onnx.NodeProto) -> Writer:
    """An attribute that lies on the way of the weight `w` (16, 16) to `y`."""

    def write(folder: Path) -> Path:
        stored = {"w": weights(16, 16), "s": np.array([16, 16])}
        return save(folder, simple([middle, last], {"x": feed(4, 16)}, [("y", 2)], stored, []).model)

    return write


PRODUCT = node("MatMul", "x t", "y")
for _name, _middle in {
    "perm_out_of_range": node("Transpose", "w", "t", perm=[0, 7]),
    "perm_negative": node("Transpose", "w", "t", perm=[-1, -2]),
    "perm_repeats": node("Transpose", "w", "t", perm=[0, 0]),
    "perm_too_long": node("Transpose", "w", "t", perm=[0, 1, 2]),
    "perm_is_text": node("Transpose", "w", "t", perm="10"),
    "perm_is_float": node("Transpose", "w", "t", perm=[0.5, 1.0]),
    "perm_huge": node("Transpose", "w", "t", perm=[2**62, 0]),
    "squeeze_out_of_range": node("Squeeze", "w s", "t"),
    "unsqueeze_out_of_range": node("Unsqueeze", "w s", "t"),
    "cast_to_nothing": node("Cast", "w", "t", to=12345),
    "reshape_to_another_size": node("Reshape", "w w", "t"),
    "dequantize_axis_out_of_range": node("DequantizeLinear", "w s", "t", axis=99),
}.items():
    ODD[_name] = _chain(_middle, PRODUCT)
for _name, _last in {
    "group_zero": node("Conv", "x w", "y", group=0),
    "group_negative": node("ConvTranspose", "x w", "y", group=-3),
    "group_not_a_divisor": node("ConvTranspose", "x w", "y", group=5),
    "group_is_text": node("Conv", "x w", "y", group="two"),
    "trans_b_is_float": node("Gemm", "x w", "y", transB=0.5),
    "trans_b_is_seven": node("Gemm", "x w", "y", transB=7),
    "einsum_without_equation": node("Einsum", "x w", "y"),
    "einsum_equation_nonsense": node("Einsum", "x w", "y", equation="->->,,??"),
    "einsum_equation_of_100000": node("Einsum", "x w", "y", equation="a" * 100_000 + ",kn->bn"),
    "einsum_too_many_labels": node("Einsum", "x w", "y", equation="bk,knmop->bn"),
    "gather_axis_out_of_range": node("Gather", "w s", "y", axis=17),
    "lstm_of_rank_2": node("LSTM", "x w w", "y", hidden_size=-1),
    "attribute_twice": helper.make_node("Gemm", ["x", "w"], ["y"], name="g", transB=1),
    "if_without_branches": node("If", "x", "y"),
}.items():
    if _name == "attribute_twice":
        _last.attribute.append(helper.make_attribute("transB", 0))
    ODD[_name] = _chain(node("Identity", "w", "t"), _last)


@odd
def constant_without_value(folder: Path) -> Path:
    made = small()
    made.graph.node.insert(0, node("Constant", "", "c"))
    return save(folder, made)


@odd
def constant_of_wrong_kind(folder: Path) -> Path:
    made = small()
    made.graph.node.insert(0, node("Constant", "", "c", value=3))
    return save(folder, made)


@odd
def attribute_refers_to_nothing(folder: Path) -> Path:
    made = small()
    made.graph.node[0].attribute.append(AttributeProto(name="alpha", ref_attr_name="ghost", type=AttributeProto.FLOAT))
    return save(folder, made)


@odd
def model_with_our_metadata_garbled(folder: Path) -> Path:
    made = valid()
    for key in (
        "onnxsparse.pattern",
        "onnxsparse.masks",
        "onnxsparse.plan",
        "onnxsparse.version",
        "onnxsparse.w",
        "onnxsparse.",
    ):
        made.metadata_props.add(key=key, value='{"\x00 not json: [1e999, __import__("os")')
    return save(folder, made)
