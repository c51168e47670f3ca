"""Masks that are already in the graph: what `fold` must find, whoever left them.

A case's `expected` values are the stored (dense) weights; `MASKS` says which stored elements the mask drops.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Callable

import numpy as np
from onnx import NodeProto, TensorProto, helper

from .case import Array, Built, Use, add, case, expect, feed, node, simple, tensor, weights

RIGHT = Use("MatMul", (0,), (1,))
KEEP: Array = np.random.default_rng(11).integers(0, 2, (16, 8)).astype(bool)
MASKS: dict[str, Array] = {}


LENIENT = ("mask_where_inverted", "mask_twice")


def _masked(name: str, nodes: Sequence[NodeProto], stored: dict[str, Array], opset: int = 17) -> Callable[[], Built]:
    """The masked weight of (16, 8) is called `m`."""
    MASKS[name] = KEEP

    def build() -> Built:
        w = weights(16, 8)
        whole = [*nodes, node("MatMul", "x m", "y")]
        lost = {"reason": "not traceable", "lenient": True} if name in LENIENT else {}
        wanted = expect("w", w, RIGHT, **lost)
        return simple(whole, {"x": feed(4, 16)}, [("y", 2)], {"w": w, **stored}, [wanted], opset=opset)

    return build


FLOATS, ZERO = KEEP.astype(np.float32), np.asarray(np.float32(0))
Recipe = tuple[Sequence[NodeProto], dict[str, Array]]
SHAPES: dict[str, Recipe] = {
    "mask_float": ([node("Mul", "w k", "m")], {"k": FLOATS}),
    "mask_float_first": ([node("Mul", "k w", "m")], {"k": FLOATS}),
    "mask_bool_cast": ([node("Cast", "k", "f", to=TensorProto.FLOAT), node("Mul", "w f", "m")], {"k": KEEP}),
    "mask_uint8_cast": (
        [node("Cast", "k", "f", to=TensorProto.FLOAT), node("Mul", "w f", "m")],
        {"k": KEEP.astype(np.uint8)},
    ),
    "mask_where": ([node("Where", "k w zero", "m")], {"k": KEEP, "zero": ZERO}),
    "mask_where_inverted": ([node("Where", "k zero w", "m")], {"k": ~KEEP, "zero": ZERO}),
    "mask_where_of_zeros": ([node("Where", "k w zeros", "m")], {"k": KEEP, "zeros": np.zeros((16, 8), np.float32)}),
    "mask_behind_identity": ([node("Identity", "k", "i"), node("Mul", "w i", "m")], {"k": FLOATS}),
    "mask_in_constant_node": ([node("Constant", "", "k", value=tensor("", FLOATS)), node("Mul", "w k", "m")], {}),
    "mask_weight_behind_identity": ([node("Identity", "w", "i"), node("Mul", "i k", "m")], {"k": FLOATS}),
    "mask_transposed": ([node("Transpose", "k", "t"), node("Mul", "w t", "m")], {"k": FLOATS.T.copy()}),
    "mask_twice": (
        [node("Mul", "w k", "p"), node("Mul", "p l", "m")],
        {"k": np.where(np.arange(128).reshape(16, 8) % 2 == 0, FLOATS, 1).astype(np.float32), "l": FLOATS},
    ),
}
for _name, (_nodes, _stored) in SHAPES.items():
    add(_name, "masked", _masked(_name, _nodes, _stored))


@case
def mask_before_transpose() -> Built:
    w = weights(8, 16)
    nodes = [node("Mul", "w k", "m"), node("Transpose", "m", "t"), node("MatMul", "x t", "y")]
    wanted = expect("w", w, Use("MatMul", (1,), (0,)))
    return simple(nodes, {"x": feed(4, 16)}, [("y", 2)], {"w": w, "k": KEEP.T.astype(np.float32)}, [wanted])


@case
def mask_after_transpose() -> Built:
    w = weights(8, 16)
    nodes = [node("Transpose", "w", "t"), node("Mul", "t k", "m"), node("MatMul", "x m", "y")]
    wanted = expect("w", w, Use("MatMul", (1,), (0,)))
    return simple(nodes, {"x": feed(4, 16)}, [("y", 2)], {"w": w, "k": KEEP.astype(np.float32)}, [wanted])


@case
def mask_after_reshape() -> Built:
    w = weights(2, 8, 8)
    nodes = [node("Reshape", "w s", "r"), node("Mul", "r k", "m"), node("MatMul", "x m", "y")]
    stored = {"w": w, "s": np.array([16, 8]), "k": FLOATS}
    return simple(nodes, {"x": feed(4, 16)}, [("y", 2)], stored, [expect("w", w, Use("MatMul", (0, 1), (2,)))])


MASKS["mask_before_transpose"] = MASKS["mask_after_transpose"] = KEEP.T.copy()
MASKS["mask_after_reshape"] = KEEP.reshape(2, 8, 8)


@case
def mask_of_whole_filters() -> Built:
    """A mask smaller than the weight, spread by broadcasting."""
    w, k = weights(6, 8, 3, 3), np.array([1, 0, 1, 1, 0, 1], np.float32).reshape(6, 1, 1, 1)
    nodes = [node("Mul", "w k", "m"), node("Conv", "x m", "y")]
    wanted = expect("w", w, Use("Conv", (1,), (0,), (2, 3)))
    return simple(nodes, {"x": feed(1, 8, 5, 5)}, [("y", 4)], {"w": w, "k": k}, [wanted])


MASKS["mask_of_whole_filters"] = np.broadcast_to(np.array([1, 0, 1, 1, 0, 1], bool)[:, None, None, None], (6, 8, 3, 3))


@case
def mask_shared_by_two_weights() -> Built:
    v, w = weights(16, 8), weights(16, 8, seed=4)
    nodes = [node("Mul", "v k", "p"), node("Mul", "w k", "q"), node("MatMul", "x p", "a"), node("MatMul", "x q", "b")]
    wanted = [expect("v", v, RIGHT), expect("w", w, RIGHT)]
    return simple(nodes, {"x": feed(4, 16)}, [("a", 2), ("b", 2)], {"v": v, "w": w, "k": FLOATS}, wanted)


MASKS["mask_shared_by_two_weights"] = KEEP


@case
def mask_in_if_branch() -> Built:
    w = weights(16, 8)

    def branch(name: str, nodes: Sequence[NodeProto]) -> object:
        return helper.make_graph(list(nodes), name, [], [helper.make_tensor_value_info(f"{name}y", 1, [4, 8])])

    then = branch("a", [node("Mul", "w k", "m"), node("MatMul", "x m", "ay")])
    other = branch("b", [node("Mul", "w k", "m2"), node("MatMul", "x m2", "by")])
    choice = node("If", "c", "y", then_branch=then, else_branch=other)
    feeds = {"c": np.array(True), "x": feed(4, 16)}
    return simple([choice], feeds, [("y", 2)], {"w": w, "k": FLOATS}, [expect("w", w, RIGHT, RIGHT)])


MASKS["mask_in_if_branch"] = KEEP


def _not_a_mask(nodes: Sequence[NodeProto], stored: dict[str, Array]) -> Built:
    """Looks like a mask and is none: fold must leave it and say so."""
    w = weights(16, 8)
    whole = [*nodes, node("MatMul", "x m", "y")]
    wanted = expect("w", w, RIGHT, reason="not traceable", lenient=True)
    return simple(whole, {"x": feed(4, 16)}, [("y", 2)], {"w": w, **stored}, [wanted])


DECOYS: dict[str, Recipe] = {
    "no_mask_scale": ([node("Mul", "w k", "m")], {"k": np.asarray(np.float32(0.5))}),
    "no_mask_of_halves": ([node("Mul", "w k", "m")], {"k": FLOATS * 0.5}),
    "no_mask_where_not_zero": ([node("Where", "k w one", "m")], {"k": KEEP, "one": np.asarray(np.float32(1))}),
    "no_mask_from_input": ([node("Mul", "w g", "m")], {}),
}
for _name, (_nodes, _stored) in DECOYS.items():
    if _name != "no_mask_from_input":
        add(_name, "decoys", functools.partial(_not_a_mask, _nodes, _stored))


@case
def no_mask_from_input() -> Built:
    """The factor is a graph input: nothing constant about it."""
    w = weights(16, 8)
    nodes = [node("Mul", "w g", "m"), node("MatMul", "x m", "y")]
    feeds = {"x": feed(4, 16), "g": FLOATS}
    return simple(nodes, feeds, [("y", 2)], {"w": w}, [])


@case
def masked_weight_also_used_bare() -> Built:
    """Folding would change the second use: it must be left, with the reason."""
    w = weights(16, 8)
    nodes = [node("Mul", "w k", "m"), node("MatMul", "x m", "a"), node("MatMul", "x w", "b")]
    return simple(nodes, {"x": feed(4, 16)}, [("a", 2), ("b", 2)], {"w": w, "k": FLOATS}, [expect("w", w, RIGHT)])
