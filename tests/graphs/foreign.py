"""All a file may carry beside weights: domains, annotations, metadata, functions, training info, every opset."""

from __future__ import annotations

import functools

import numpy as np
import onnx
from onnx import TensorProto, helper

from .case import (
    Built,
    Use,
    add,
    case,
    expect,
    feed,
    graph,
    model,
    node,
    output_info,
    simple,
    tensor,
    value_info,
    weights,
)

CONV = Use("Conv", (1,), (0,), (2, 3))
RIGHT = Use("MatMul", (0,), (1,))


def _opset(version: int) -> Built:
    """Conv, Flatten and Gemm, as every opset from 6 on knows them."""
    k, w, b = weights(6, 8, 3, 3), weights(54, 8), weights(8, seed=5)
    legacy = {"broadcast": 1} if version < 7 else {}
    nodes = [
        node("Conv", "x k", "c", kernel_shape=[3, 3]),
        node("Relu", "c", "r"),
        node("Flatten", "r", "f", axis=1),
        node("Gemm", "f w b", "y", **legacy),
    ]
    stored = {"k": k, "w": w, "b": b}
    tensors = [tensor(name, values) for name, values in stored.items()]
    listed = {**stored} if version < 9 else {}
    whole = graph(nodes, {"x": feed(1, 8, 5, 5), **listed}, [("y", 2)], tensors)
    ir = {6: 3, 7: 3, 8: 3}.get(version, 4 if version < 11 else 6 if version < 13 else 8 if version < 21 else 10)
    wanted = (expect("k", k, CONV), expect("w", w, Use("Gemm", (0,), (1,))))
    return Built(model(whole, opset=version, ir=ir), {"x": feed(1, 8, 5, 5)}, wanted, runs=version >= 7)


for _version in range(6, 24):
    add(f"opset_{_version}", "foreign", functools.partial(_opset, _version))


@case
def foreign_nodes_around() -> Built:
    """Nodes nobody knows before and after; the weights between them count."""
    w, p = weights(6, 8, 3, 3), weights(16, 16, seed=3)
    nodes = [
        node("made_up", "x p", "a", domain="Paddle", magic=[1, 2], text="ü", inner=tensor("t", weights(3, 3))),
        node("Conv", "a w", "c"),
        node("Strange", "c", "y", domain="org.example.ops"),
    ]
    wanted = [expect("w", w, CONV), expect("p", p, reason="unknown operator", lenient=True)]
    domains = {"Paddle": 1, "org.example.ops": 3}
    return simple(nodes, {"x": feed(1, 8, 5, 5)}, [("y", 4)], {"w": w, "p": p}, wanted, domains=domains, runs=False)


@case
def foreign_conv_is_not_conv() -> Built:
    """`Conv` of another domain may mean anything: listed, not pruned."""
    w = weights(6, 8, 3, 3)
    layer = node("Conv", "x w", "y", domain="Paddle")
    wanted = expect("w", w, reason="unknown operator")
    return simple([layer], {"x": feed(1, 8, 5, 5)}, [("y", 4)], {"w": w}, [wanted], domains={"Paddle": 1}, runs=False)


@case
def default_domain_spelt_out() -> Built:
    """`ai.onnx` is the empty domain."""
    w = weights(6, 8, 3, 3)
    layer = node("Conv", "x w", "y", domain="ai.onnx")
    built = simple([layer], {"x": feed(1, 8, 5, 5)}, [("y", 4)], {"w": w}, [expect("w", w, CONV)])
    return Built(built.model, built.feeds, built.expected, checks=False)


def _decorate(made: onnx.ModelProto) -> None:
    """Everything a careless tool loses."""
    made.doc_string, made.domain, made.model_version = "model doc", "org.example", 7
    made.producer_version = "1.2"
    made.graph.doc_string = "graph doc"
    annotation = made.graph.quantization_annotation.add(tensor_name="w")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="ws")
    made.graph.value_info.append(output_info("c", 4))
    for owner in (made, made.graph, made.graph.node[0], made.graph.initializer[0], made.graph.input[0]):
        owner.metadata_props.add(key="author", value="somebody")
        owner.metadata_props.add(key="empty", value="")
    made.graph.node[0].doc_string = "node doc"
    made.graph.initializer[0].doc_string = "tensor doc"
    made.opset_import.append(helper.make_opsetid("unused.domain", 9))


@case
def decorated() -> Built:
    """Docstrings, metadata, annotations, an unused domain, value infos, training info, a function nobody calls."""
    w = weights(6, 8, 3, 3)
    nodes = [node("Conv", "x w", "c"), node("Relu", "c", "y")]
    built = simple(nodes, {"x": feed(1, 8, 5, 5)}, [("y", 4)], {"w": w}, [expect("w", w, CONV)], ir=10)
    _decorate(built.model)
    idle = helper.make_function("local", "Idle", ["a"], ["b"], [node("Relu", "a", "b")], [helper.make_opsetid("", 17)])
    idle.doc_string = "function doc"
    idle.metadata_props.add(key="kept", value="yes")
    built.model.functions.append(idle)
    built.model.opset_import.append(helper.make_opsetid("local", 1))
    return built


@case
def training_information() -> Built:
    """A training graph with its own initializers and bindings."""
    w = weights(16, 8)
    built = simple([node("MatMul", "x w", "y")], {"x": feed(4, 16)}, [("y", 2)], {"w": w}, [expect("w", w, RIGHT)])
    step = helper.make_graph(
        [node("Mul", "w rate", "w_new")],
        "step",
        [],
        [value_info("w_new", w)],
        [tensor("rate", np.asarray(np.float32(0.9)))],
    )
    built.model.training_info.append(helper.make_training_info(step, [("w", "w_new")], None, None))
    return Built(built.model, built.feeds, built.expected, runs=False, checks=False)


@case
def unknown_fields_everywhere() -> Built:
    """Fields of a later standard: kept, byte for byte."""
    w = weights(16, 8)
    built = simple([node("MatMul", "x w", "y")], {"x": feed(4, 16)}, [("y", 2)], {"w": w}, [expect("w", w, RIGHT)])
    later = b"\xa2\x3f\x05later" + b"\xa8\x3f\x2a"
    made = onnx.ModelProto.FromString(built.model.SerializeToString() + later)
    part = made.graph.SerializeToString() + later
    made.graph.ParseFromString(part)
    return Built(made, built.feeds, built.expected)


@case
def dynamic_and_missing_shapes() -> Built:
    """Inputs of unknown rank, no value infos: the constants alone must be enough."""
    w, k = weights(16, 8), weights(6, 8, 3, 3)
    whole = helper.make_graph(
        [node("MatMul", "a w", "p"), node("Conv", "b k", "q")],
        "g",
        [
            helper.make_tensor_value_info("a", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("p", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("q", TensorProto.FLOAT, None),
        ],
        [tensor("w", w), tensor("k", k)],
    )
    feeds = {"a": feed(4, 16), "b": feed(1, 8, 5, 5)}
    return Built(model(whole), feeds, (expect("w", w, RIGHT), expect("k", k, CONV)), checks=False)


@case
def many_kinds_in_one() -> Built:
    """One small network with a Conv, a tied MatMul, a Gemm and a stem."""
    stem, k = weights(8, 3, 3, 3), weights(8, 8, 3, 3, seed=2)
    w, v = weights(8, 8, seed=3), weights(4, 8, seed=4)
    nodes = [
        node("Conv", "x stem", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b"),
        node("Conv", "b k", "c", pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", "c", "d"),
        node("Flatten", "d", "e"),
        node("MatMul", "e w", "f"),
        node("MatMul", "f w", "h"),
        node("Gemm", "h v", "y", transB=1),
    ]
    wanted = [
        expect("stem", stem, CONV, word="stem"),
        expect("k", k, CONV),
        expect("w", w, RIGHT, RIGHT),
        expect("v", v, Use("Gemm", (1,), (0,))),
    ]
    stored = {"stem": stem, "k": k, "w": w, "v": v}
    return simple(nodes, {"x": feed(1, 3, 8, 8)}, [("y", 2)], stored, wanted)
