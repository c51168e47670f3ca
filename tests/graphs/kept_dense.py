"""What stays dense unless the user allows it: embeddings, fixed filterbanks and interpolation matrices."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from onnx import NodeProto

from .case import Array, Built, Use, add, case, expect, feed, node, simple, weights

TOKENS = {"i": np.array([[1, 5, 2], [9, 0, 7]])}


@case
def embedding() -> Built:
    w = weights(20, 16)
    return simple([node("Gather", "w i", "y")], TOKENS, [("y", 3)], {"w": w}, [expect("w", w, word="embedding")])


@case
def embedding_through_identity_and_cast() -> Built:
    w = weights(20, 16).astype(np.float16)
    nodes = [node("Identity", "w", "j"), node("Cast", "j", "c", to=1), node("Gather", "c i", "y", axis=0)]
    wanted = expect("w", w.astype(np.float32), word="embedding", dtype="float16")
    return simple(nodes, TOKENS, [("y", 3)], {"w": w}, [wanted])


def _tied(last: Sequence[NodeProto], op: str) -> Built:
    """The table (tokens, hidden) is also the output layer: that one sums over hidden."""
    w = weights(20, 16)
    nodes = [node("Gather", "w i", "e"), *last]
    return simple(nodes, TOKENS, [("y", 3)], {"w": w}, [expect("w", w, Use(op, (1,), (0,)), word="tied-embedding")])


add(
    "tied_embedding_through_transpose",
    "kept_dense",
    functools.partial(_tied, [node("Transpose", "w", "t", perm=[1, 0]), node("MatMul", "e t", "y")], "MatMul"),
)
add(
    "tied_embedding_einsum",
    "kept_dense",
    functools.partial(_tied, [node("Einsum", "e w", "y", equation="bsd,vd->bsv")], "Einsum"),
)


def cosines(filters: int, length: int) -> Array:
    """A DFT: cosines below, sines above, as (filters, 1, length)."""
    angle = 2 * np.pi * np.outer(np.arange(filters // 2), np.arange(length)) / length
    basis: Array = np.concatenate([np.cos(angle), -np.sin(angle)]).astype(np.float32)[:, None, :]
    return basis


def mel(bins: int, bands: int) -> Array:
    """Triangles along the bins, as (bins, bands)."""
    edges = np.geomspace(1, bins - 1, bands + 2)
    at = np.arange(bins)[:, None]
    rising = (at - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - at) / (edges[2:] - edges[1:-1])
    triangles: Array = np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
    return triangles


def bilinear(channels: int, factor: int) -> Array:
    """Upsampling kernel (channels, 1, 2f, 2f) of a ConvTranspose with one group a channel."""
    centre = factor - 0.5
    line = 1 - np.abs(np.arange(2 * factor) - centre) / factor
    kernel: Array = np.broadcast_to(np.outer(line, line), (channels, 1, 2 * factor, 2 * factor)).astype(np.float32)
    return kernel.copy()


@case
def basis_dfl() -> Built:
    """The box decoder of YOLOv8: a Conv (1, 16, 1, 1) that holds 0 to 15."""
    w = np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1)
    use = Use("Conv", (1,), (0,), (2, 3))
    return simple(
        [node("Conv", "x w", "y")], {"x": feed(1, 16, 4, 20)}, [("y", 4)], {"w": w}, [expect("w", w, use, word="basis")]
    )


@case
def basis_dft_matrix() -> Built:
    w = np.ascontiguousarray(cosines(130, 128)[:, 0, :].T)
    use = Use("MatMul", (0,), (1,))
    return simple(
        [node("MatMul", "x w", "y")], {"x": feed(4, 128)}, [("y", 2)], {"w": w}, [expect("w", w, use, word="basis")]
    )


@case
def basis_stft_conv() -> Built:
    """A short-time Fourier transform as a strided Conv over one channel, with a Hann window."""
    w = cosines(34, 32) * np.hanning(32).astype(np.float32)
    use = Use("Conv", (1,), (0,), (2,))
    conv = node("Conv", "x w", "y", strides=[8])
    return simple(
        [conv], {"x": feed(1, 1, 128)}, [("y", 3)], {"w": w.astype(np.float32)}, [expect("w", w, use, word="basis")]
    )


@case
def basis_mel() -> Built:
    w = mel(65, 20)
    use = Use("MatMul", (0,), (1,))
    return simple(
        [node("MatMul", "x w", "y")], {"x": feed(4, 65)}, [("y", 2)], {"w": w}, [expect("w", w, use, word="basis")]
    )


@case
def basis_bilinear() -> Built:
    w = bilinear(8, 4)
    use = Use("ConvTranspose", (0,), (1,), (2, 3), splits=8)
    layer = node("ConvTranspose", "x w", "y", strides=[4, 4], group=8)
    return simple([layer], {"x": feed(1, 8, 3, 3)}, [("y", 4)], {"w": w}, [expect("w", w, use, word="basis")])


def _matrix(values: Array) -> Built:
    use = Use("MatMul", (0,), (1,))
    x = feed(4, values.shape[0])
    return simple(
        [node("MatMul", "x w", "y")], {"x": x}, [("y", 2)], {"w": values}, [expect("w", values, use, word="basis")]
    )


add("basis_identity", "kept_dense", functools.partial(_matrix, np.eye(16, dtype=np.float32)))
add(
    "basis_one_hot",
    "kept_dense",
    functools.partial(_matrix, np.eye(16, dtype=np.float32)[[3, 1, 9, 0, 12, 5, 5, 7]].T.copy()),
)
