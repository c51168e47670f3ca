"""MatMul, Gemm and Einsum with the constant on every side it can stand."""

from __future__ import annotations

import functools

from .case import Built, Use, add, case, expect, feed, node, simple, weights

MatMulCase = tuple[str, str, tuple[int, ...], tuple[int, ...], int, int]

# name, side of the constant, shape of it, shape of x, reduction axis, out axis
MATMULS: tuple[MatMulCase, ...] = (
    ("matmul_right", "right", (16, 8), (4, 16), 0, 1),
    ("matmul_left", "left", (8, 16), (16, 4), 1, 0),
    ("matmul_right_of_vector", "right", (16, 8), (16,), 0, 1),
    ("matmul_left_of_vector", "left", (8, 16), (16,), 1, 0),
    ("matmul_right_rank3", "right", (3, 16, 8), (3, 4, 16), 1, 2),
    ("matmul_right_rank4", "right", (2, 3, 8, 5), (2, 3, 4, 8), 2, 3),
    ("matmul_left_rank3", "left", (3, 8, 16), (3, 16, 5), 2, 1),
    ("matmul_left_rank4", "left", (2, 3, 5, 8), (2, 3, 8, 4), 3, 2),
    ("matmul_right_under_rank4", "right", (16, 8), (2, 3, 4, 16), 0, 1),
    ("matmul_left_under_rank3", "left", (8, 16), (3, 16, 5), 1, 0),
    ("matmul_right_broadcasts_x", "right", (3, 16, 8), (4, 16), 1, 2),
    ("matmul_left_broadcasts_x", "left", (3, 8, 16), (16, 5), 2, 1),
    ("matmul_right_batch_of_one", "right", (1, 16, 8), (3, 4, 16), 1, 2),
    ("matmul_right_partly_broadcast", "right", (2, 1, 8, 5), (3, 4, 8), 2, 3),
    ("matmul_one_column", "right", (16, 1), (4, 16), 0, 1),
    ("matmul_one_row", "left", (1, 16), (16, 4), 1, 0),
    ("matmul_ragged_by_1", "right", (13, 6), (4, 13), 0, 1),
    ("matmul_ragged_by_2", "right", (14, 6), (4, 14), 0, 1),
    ("matmul_ragged_by_3", "left", (6, 15), (15, 4), 1, 0),
    ("matmul_shorter_than_group", "right", (3, 8), (4, 3), 0, 1),
    ("matmul_of_256", "right", (32, 8), (4, 32), 0, 1),
)


def _matmul(entry: MatMulCase) -> Built:
    _, side, shape, x_shape, reduction, out = entry
    w, x = weights(*shape), feed(*x_shape)
    rank = max(len(shape), len(x_shape)) - (1 if len(x_shape) == 1 else 0)
    order = "x w" if side == "right" else "w x"
    use = Use("MatMul", (reduction,), (out,))
    return simple([node("MatMul", order, "y")], {"x": x}, [("y", rank)], {"w": w}, [expect("w", w, use)])


def _gemm(side: str, trans: int, alpha: float, bias: bool) -> Built:
    """With the constant on the right x is (4, 16), on the left (16, 4); K is 16."""
    right = side == "right"
    k_axis = (1 if trans else 0) if right else (0 if trans else 1)
    w = weights(16, 8) if k_axis == 0 else weights(8, 16)
    x = feed(4, 16) if right else feed(16, 4)
    attributes = {"transB" if right else "transA": trans, "alpha": alpha, "beta": 2.0}
    inputs = ("x w" if right else "w x") + (" b" if bias else "")
    stored = {"w": w, "b": weights(8 if right else 4, seed=9)} if bias else {"w": w}
    gemm = node("Gemm", inputs, "y", **attributes)
    return simple([gemm], {"x": x}, [("y", 2)], stored, [expect("w", w, Use("Gemm", (k_axis,), (1 - k_axis,)))])


for _entry in MATMULS:
    add(_entry[0], "linear", functools.partial(_matmul, _entry))
for _side in ("right", "left"):
    for _trans in (0, 1):
        for _alpha, _bias in ((1.0, True), (0.5, False), (-2.0, True)):
            _name = f"gemm_{_side}{'_transposed' if _trans else ''}_alpha_{_alpha}".replace(".", "_").replace(
                "-", "minus_"
            )
            add(_name, "linear", functools.partial(_gemm, _side, _trans, _alpha, _bias))

EinsumCase = tuple[str, str, str, tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], int]

# name, equation, order of operands, shape of the constant, of x, reduction axes, out axes, rank of the result
EINSUMS: tuple[EinsumCase, ...] = (
    ("einsum_plain", "bk,kn->bn", "x w", (16, 8), (4, 16), (0,), (1,), 2),
    ("einsum_weight_first", "nk,bk->bn", "w x", (8, 16), (4, 16), (1,), (0,), 2),
    ("einsum_result_transposed", "bk,nk->nb", "x w", (8, 16), (4, 16), (1,), (0,), 2),
    ("einsum_sequence", "bij,jk->bik", "x w", (16, 8), (2, 4, 16), (0,), (1,), 3),
    ("einsum_heads_out", "bsd,dhe->bshe", "x w", (16, 2, 4), (2, 3, 16), (0,), (1, 2), 4),
    ("einsum_two_k_labels", "bshe,hed->bsd", "x w", (2, 6, 8), (2, 3, 2, 6), (0, 1), (2,), 3),
    ("einsum_two_k_labels_last", "bshe,dhe->bsd", "x w", (8, 2, 6), (2, 3, 2, 6), (1, 2), (0,), 3),
    ("einsum_batch_label", "gbk,gkn->gbn", "x w", (3, 8, 6), (3, 4, 8), (1,), (2,), 3),
    ("einsum_batch_label_middle", "bgk,kgn->bgn", "x w", (8, 3, 6), (4, 3, 8), (0,), (2,), 3),
    ("einsum_ellipsis_of_x", "...k,kn->...n", "x w", (16, 8), (2, 3, 16), (0,), (1,), 3),
    ("einsum_ellipsis_of_both", "...bk,...kn->...bn", "x w", (3, 8, 6), (3, 4, 8), (1,), (2,), 3),
    ("einsum_implicit_result", "bij,kj", "x w", (8, 16), (2, 4, 16), (1,), (0,), 3),
    ("einsum_capitals_and_spaces", " B K , K n -> B n ", "x w", (16, 8), (4, 16), (0,), (1,), 2),
)

# name, equation, operands, shapes by name, rank of the result
NO_MATRICES = (
    ("einsum_scales_columns", "bk,kk->bk", "x w", {"x": (4, 8), "w": (8, 8)}, 2),
    ("einsum_outer", "bn,kn->bkn", "x w", {"x": (4, 8), "w": (16, 8)}, 3),
    ("einsum_sums_out_axis", "bk,kn->b", "x w", {"x": (4, 16), "w": (16, 8)}, 1),
    ("einsum_of_three", "bk,kn,bn->b", "x w z", {"x": (4, 16), "w": (16, 8), "z": (4, 8)}, 1),
)


def _einsum(entry: EinsumCase) -> Built:
    _, equation, order, shape, x_shape, reduction, out, rank = entry
    w, x = weights(*shape), feed(*x_shape)
    use = Use("Einsum", reduction, out)
    return simple(
        [node("Einsum", order, "y", equation=equation)], {"x": x}, [("y", rank)], {"w": w}, [expect("w", w, use)]
    )


def _no_matrix(entry: tuple[str, str, str, dict, int]) -> Built:  # type: ignore[type-arg]
    _, equation, order, shapes, rank = entry
    w = weights(*shapes["w"])
    feeds = {name: feed(*shape) for name, shape in shapes.items() if name != "w"}
    wanted = expect("w", w, reason="einsum not matrix form")
    return simple([node("Einsum", order, "y", equation=equation)], feeds, [("y", rank)], {"w": w}, [wanted])


for _einsum_entry in EINSUMS:
    add(_einsum_entry[0], "linear", functools.partial(_einsum, _einsum_entry))
for _other in NO_MATRICES:
    add(_other[0], "linear", functools.partial(_no_matrix, _other))


@case
def matmul_vector_right() -> Built:
    w = weights(16)
    return simple(
        [node("MatMul", "x w", "y")], {"x": feed(4, 16)}, [("y", 1)], {"w": w}, [expect("w", w, reason="1-D")]
    )


@case
def matmul_vector_left() -> Built:
    w = weights(16)
    return simple(
        [node("MatMul", "w x", "y")], {"x": feed(3, 16, 4)}, [("y", 2)], {"w": w}, [expect("w", w, reason="1-D")]
    )


@case
def shared_along_one_axis() -> Built:
    """One tensor, three uses, one of them through a Transpose: all sum over stored axis 0."""
    w = weights(16, 8)
    nodes = [
        node("MatMul", "x w", "a"),
        node("Gemm", "x w", "b"),
        node("Transpose", "w", "t"),
        node("Gemm", "x t", "c", transB=1),
    ]
    uses = (Use("MatMul", (0,), (1,)), Use("Gemm", (0,), (1,)), Use("Gemm", (0,), (1,)))
    return simple(nodes, {"x": feed(4, 16)}, [("a", 2), ("b", 2), ("c", 2)], {"w": w}, [expect("w", w, *uses)])


@case
def shared_along_two_axes() -> Built:
    w = weights(16, 16)
    nodes = [node("MatMul", "x w", "a"), node("Gemm", "x w", "b", transB=1)]
    uses = (Use("MatMul", (0,), (1,)), Use("Gemm", (1,), (0,)))
    wanted = expect("w", w, *uses, reason="two axes")
    return simple(nodes, {"x": feed(4, 16)}, [("a", 2), ("b", 2)], {"w": w}, [wanted])


@case
def shared_by_left_and_right() -> Built:
    w = weights(16, 16)
    nodes = [node("MatMul", "x w", "a"), node("MatMul", "w x", "b")]
    uses = (Use("MatMul", (0,), (1,)), Use("MatMul", (1,), (0,)))
    wanted = expect("w", w, *uses, reason="two axes")
    return simple(nodes, {"x": feed(16, 16)}, [("a", 2), ("b", 2)], {"w": w}, [wanted])


@case
def shared_with_an_elementwise_use() -> Built:
    """A use that is no product does not hide the one that is."""
    w = weights(16, 8)
    nodes = [node("MatMul", "x w", "a"), node("ReduceSum", "w", "b", keepdims=0)]
    return simple(
        nodes, {"x": feed(4, 16)}, [("a", 2), ("b", 0)], {"w": w}, [expect("w", w, Use("MatMul", (0,), (1,)))]
    )


@case
def equal_tensors_under_two_names() -> Built:
    w = weights(16, 8)
    nodes = [node("MatMul", "x v", "a"), node("MatMul", "x w", "b")]
    use = Use("MatMul", (0,), (1,))
    wanted = [expect("v", w, use), expect("w", w, use)]
    return simple(nodes, {"x": feed(4, 16)}, [("a", 2), ("b", 2)], {"v": w, "w": w}, wanted)
