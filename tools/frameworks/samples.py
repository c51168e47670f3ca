"""Samples for the models of docs/frameworks.md: scikit-learn's digits, lines of them, and two photographs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
TRAIN, SIDE = 1297, 8
Array = np.ndarray[Any, Any]


def digits() -> tuple[Array, Array, Array, Array]:
    """Images of 64 numbers from 0 to 1, and their labels: 1297 to train with, and 500 to test with."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = (images / 16).astype(np.float32), labels.astype(np.int64)
    return x[:TRAIN], y[:TRAIN], x[TRAIN:], y[TRAIN:]


def lines(height: int, width: int, count: int) -> Array:
    """Rows of digits as dark ink on light paper, some of them upside down: images of one channel, from 0 to 1."""
    x, _, more, _ = digits()
    draw, images = np.random.default_rng(0), np.concatenate([x, more]).reshape(-1, SIDE, SIDE)
    made = np.ones((count, height, width), np.float32)
    for number, paper in enumerate(made):
        scale = int(draw.integers(height // 16, height // SIDE + 1))
        left, top = int(draw.integers(0, 4)), int(draw.integers(0, height - SIDE * scale + 1))
        while left + SIDE * scale <= width:
            ink = np.kron(images[draw.integers(len(images))], np.ones((scale, scale), np.float32))
            paper[top : top + SIDE * scale, left : left + SIDE * scale] -= ink * 0.8
            left += SIDE * scale + int(draw.integers(0, 3))
        made[number] = paper[::-1, ::-1] if number % 2 else paper
    return made[:, np.newaxis]


def crops(size: int, count: int) -> Array:
    """Pieces of two photographs, in colours from 0 to 1."""
    from sklearn.datasets import load_sample_images

    photographs, draw = load_sample_images().images, np.random.default_rng(0)
    made = np.empty((count, 3, size, size), np.float32)
    for number in range(count):
        photograph = photographs[number % len(photographs)]
        top, left = (int(draw.integers(0, extent - size)) for extent in photograph.shape[:2])
        made[number] = photograph[top : top + size, left : left + size].transpose(2, 0, 1) / 255
    return made


def save(path: Path, train: Array | dict[str, Array], test: Array | dict[str, Array], **labels: Array) -> None:
    """Write the samples beside the model, under the names of its inputs."""
    graph = onnx.load(str(path), load_external_data=False).graph
    name = next(one.name for one in graph.input if one.name not in {one.name for one in graph.initializer})
    for what, given in (("train", train), ("test", test)):
        arrays = given if isinstance(given, dict) else {name: given}
        everything: dict[str, Any] = {**arrays, **(labels if what == "test" else {})}
        np.savez(path.with_suffix(f".{what}.npz"), **everything)
