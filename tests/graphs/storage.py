"""Where a weight may be stored: fields of initializers, Constant nodes, external files, graph inputs, odd names."""

from __future__ import annotations

import functools

import numpy as np
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
    untied,
    weights,
)
from .case import value_info as described

RIGHT = Use("MatMul", (0,), (1,))


@case
def constant_node() -> Built:
    """All of Paddle and spox."""
    w = weights(16, 8)
    nodes = [node("Constant", "", "w", value=tensor("", w)), node("MatMul", "x w", "y")]
    return simple(nodes, {"x": feed(4, 16)}, [("y", 2)], {}, [expect("w", w, RIGHT, storage="constant")])


@case
def constant_node_whose_tensor_has_another_name() -> Built:
    w = weights(16, 8)
    nodes = [node("Constant", "", "w", value=tensor("something_else", w)), node("MatMul", "x w", "y")]
    return simple(nodes, {"x": feed(4, 16)}, [("y", 2)], {}, [expect("w", w, RIGHT, storage="constant")])


@case
def constant_nodes_with_one_tensor_name() -> Built:
    """Two Constant nodes whose inner tensors share a name are two weights."""
    v, w = weights(16, 8), weights(16, 6, seed=2)
    nodes = [
        node("Constant", "", "v", value=tensor("value", v)),
        node("Constant", "", "w", value=tensor("value", w)),
        node("MatMul", "x v", "a"),
        node("MatMul", "x w", "b"),
    ]
    wanted = [expect("v", v, RIGHT, storage="constant"), expect("w", w, RIGHT, storage="constant")]
    return simple(nodes, {"x": feed(4, 16)}, [("a", 2), ("b", 2)], {}, wanted)


@case
def constant_node_through_identity_and_transpose() -> Built:
    w = weights(6, 8, 3, 3)
    nodes = [
        node("Constant", "", "w", value=tensor("", w)),
        node("Identity", "w", "i"),
        node("Identity", "i", "j"),
        node("Conv", "x j", "y"),
    ]
    use = Use("Conv", (1,), (0,), (2, 3))
    return simple(nodes, {"x": feed(1, 8, 5, 5)}, [("y", 4)], {}, [expect("w", w, use, storage="constant")])


@case
def constant_value_floats() -> Built:
    """A list of floats, made a matrix by a Reshape: the stored tensor has one dimension."""
    w = weights(128)
    nodes = [
        node("Constant", "", "w", value_floats=[float(v) for v in w]),
        node("Constant", "", "s", value_ints=[16, 8]),
        node("Reshape", "w s", "r"),
        node("MatMul", "x r", "y"),
    ]
    use = Use("MatMul", (0,), (), layout=lambda a: a.reshape(1, 16, 8, 1).transpose(0, 2, 1, 3))
    wanted = expect("w", w, use, storage="constant", reason="not traceable", lenient=True)
    return simple(nodes, {"x": feed(4, 16)}, [("y", 2)], {}, [wanted])


@case
def constant_value_floats_as_vector() -> Built:
    w = weights(16)
    nodes = [node("Constant", "", "w", value_floats=[float(v) for v in w]), node("MatMul", "x w", "y")]
    return simple(nodes, {"x": feed(4, 16)}, [("y", 1)], {}, [expect("w", w, storage="constant", reason="1-D")])


def _typed(field: str, elem_type: int, dtype: str) -> Built:
    """A tensor not in raw_data but in one of the typed fields."""
    w = weights(16, 8)
    stored = helper.make_tensor("w", elem_type, w.shape, w.flatten().tolist())
    assert len(getattr(stored, field)) == w.size
    nodes = [node("Cast", "w", "c", to=TensorProto.FLOAT), node("MatMul", "x c", "y")]
    whole = graph(nodes, {"x": feed(4, 16)}, [("y", 2)], [stored])
    return Built(model(whole), {"x": feed(4, 16)}, (expect("w", w, RIGHT, dtype=dtype),))


def _raw(elem_type: int, dtype: str) -> Built:
    w = weights(16, 8)
    bits = w.view(np.uint32) >> 16 if elem_type == TensorProto.BFLOAT16 else w
    kinds = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
    stored = helper.make_tensor("w", elem_type, w.shape, bits.astype(kinds[dtype]).tobytes(), raw=True)
    nodes = [node("Cast", "w", "c", to=TensorProto.FLOAT), node("MatMul", "x c", "y")]
    whole = graph(nodes, {"x": feed(4, 16)}, [("y", 2)], [stored])
    return Built(model(whole), {"x": feed(4, 16)}, (expect("w", w, RIGHT, dtype=dtype),))


TYPES = (
    ("float64", TensorProto.DOUBLE, "double_data"),
    ("float32", TensorProto.FLOAT, "float_data"),
    ("float16", TensorProto.FLOAT16, "int32_data"),
    ("bfloat16", TensorProto.BFLOAT16, "int32_data"),
)
for _dtype, _elem_type, _field in TYPES:
    add(f"{_dtype}_in_{_field}", "storage", functools.partial(_typed, _field, _elem_type, _dtype))
    add(f"{_dtype}_raw", "storage", functools.partial(_raw, _elem_type, _dtype))


def _straight(elem_type: int, dtype: str) -> Built:
    """No Cast: the product itself is of the type."""
    w = weights(16, 8)
    kinds = {"float64": np.float64, "float16": np.float16}
    stored = tensor("w", w.astype(kinds[dtype]))
    feeds = {"x": feed(4, 16).astype(kinds[dtype])}
    whole = graph([node("MatMul", "x w", "y")], feeds, [("y", 2, elem_type)], [stored])
    return Built(model(whole), feeds, (expect("w", w, RIGHT, dtype=dtype),))


add("float64_throughout", "storage", functools.partial(_straight, TensorProto.DOUBLE, "float64"))
add("float16_throughout", "storage", functools.partial(_straight, TensorProto.FLOAT16, "float16"))


@case
def bfloat16_throughout() -> Built:
    """The runtime has no bfloat16 product on a CPU."""
    w = weights(16, 8)
    stored = helper.make_tensor(
        "w", TensorProto.BFLOAT16, w.shape, (w.view(np.uint32) >> 16).astype(np.uint16).tobytes(), raw=True
    )
    whole = helper.make_graph(
        [node("MatMul", "x w", "y")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [4, 16])],
        [output_info("y", 2, TensorProto.BFLOAT16)],
        [stored],
    )
    return Built(model(whole), {}, (expect("w", w, RIGHT, dtype="bfloat16"),), runs=False)


@case
def float32_halves_without_ties() -> Built:
    """More bits than any short type holds; scores must be read in full."""
    w = np.nextafter(weights(16, 8), np.float32(9)) + untied(16, 8) * np.float32(1e-6)
    return simple([node("MatMul", "x w", "y")], {"x": feed(4, 16)}, [("y", 2)], {"w": w}, [expect("w", w, RIGHT)])


@case
def weights_listed_as_inputs() -> Built:
    """IR 3 demands that initializers are graph inputs too."""
    w = weights(6, 8, 3, 3)
    whole = graph([node("Conv", "x w", "y")], {"x": feed(1, 8, 5, 5), "w": w}, [("y", 4)], [tensor("w", w)])
    use = Use("Conv", (1,), (0,), (2, 3))
    return Built(model(whole, opset=8, ir=3), {"x": feed(1, 8, 5, 5)}, (expect("w", w, use),))


@case
def weight_is_a_graph_output() -> Built:
    """The stored tensor is also returned: the fed-back value is the pruned one, under the same name."""
    w = weights(16, 8)
    whole = graph([node("MatMul", "x w", "y")], {"x": feed(4, 16)}, [("y", 2), ("w", 2)], [tensor("w", w)])
    whole.output[1].CopyFrom(described("w", w))
    return Built(model(whole), {"x": feed(4, 16)}, (expect("w", w, RIGHT),))


@case
def constant_is_a_graph_output() -> Built:
    w = weights(16, 8)
    nodes = [node("Constant", "", "w", value=tensor("", w)), node("MatMul", "x w", "y")]
    return simple(nodes, {"x": feed(4, 16)}, [("y", 2), ("w", 2)], {}, [expect("w", w, RIGHT, storage="constant")])


ODD_NAMES: dict[str, str] = {
    "name_is_a_number": "145",
    "name_is_a_path": "StatefulPartitionedCall/model/dense;1/MatMul/ReadVariableOp:0",
    "name_with_spaces": "layer one weight",
    "name_with_glob": "a[0]*?{b}",
    "name_with_quotes": 'it\'s "w" \\ `w`',
    "name_not_ascii": "权重.ü.w",
    "name_like_a_mask": "w_mask",
    "name_like_an_option": "--pattern",
    "name_of_4000": "w" * 4000,
}


def _named(name: str) -> Built:
    w = weights(16, 8)
    product = helper.make_node("MatMul", ["x", name], ["y"], name="")
    whole = graph([product], {"x": feed(4, 16)}, [("y", 2)], [tensor(name, w)])
    return Built(model(whole), {"x": feed(4, 16)}, (expect(name, w, RIGHT),))


for _case_name, _odd in ODD_NAMES.items():
    add(_case_name, "storage", functools.partial(_named, _odd))


@case
def names_taken_already() -> Built:
    """Whatever a mask might be called, something is called that."""
    w = weights(16, 8)
    taken = [
        "w_mask",
        "w.mask",
        "w/mask",
        "w_masked",
        "w.masked",
        "w_mask_0",
        "w_onnxsparse_mask",
        "onnxsparse.w.mask",
        "w__mask",
    ]
    nodes = [node("MatMul", "x w", "w_masked_y")]
    steps = ["w_masked_y", *taken]
    nodes += [helper.make_node("Relu", [a], [b], name=b) for a, b in zip(steps, steps[1:])]
    return simple(nodes, {"x": feed(4, 16)}, [(taken[-1], 2)], {"w": w}, [expect("w", w, RIGHT)])


@case
def unnamed_nodes_and_an_unused_initializer() -> Built:
    w, idle = weights(16, 8), weights(16, 4, seed=8)
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    whole = graph([product], {"x": feed(4, 16)}, [("y", 2)], [tensor("idle", idle), tensor("w", w)])
    return Built(model(whole), {"x": feed(4, 16)}, (expect("w", w, RIGHT),))


@case
def no_weights_at_all() -> Built:
    return simple([node("Relu", "x", "y")], {"x": feed(4, 16)}, [("y", 2)], {}, [])
