"""The data of the small example: 1,797 handwritten digits of 8 x 8 pixels that ship inside scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def training_half() -> Arrays:
    """Images and labels of the even rows, which the network was trained on."""
    return _rows(0)


def held_out_half() -> Arrays:
    """Images and labels of the odd rows, which no training has seen: 898 images."""
    return _rows(1)


def _rows(first: int) -> Arrays:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[:, np.newaxis]
    return images[first::2], digits.target[first::2].astype(np.int64)


def accuracy(model: str) -> float:
    """Share of the held-out half that an ONNX file gets right, run by onnxruntime on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    images, labels = held_out_half()
    (logits,) = session.run(["logits"], {"x": images})
    return float((np.argmax(logits, axis=1) == labels).mean())
