"""What bench_calibration.py asks of a file, as a line of JSON. A process of its own, so that the bench stays small.

    python tools/bench/measure_calibration.py accuracy MODEL TEST.npz LABELS.npy    accuracy and zeros, in per cent
    python tools/bench/measure_calibration.py similarity MODEL TEST.npz DENSE       correlation of similarities in pairs
    python tools/bench/measure_calibration.py zeros MODEL

Zeros are counted over all that is stored with two axes or more and 256 numbers or more, but tables of words, whoever
pruned it and whatever was left out: peers prune other weights than we do, and some none of some kinds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

BATCH, SMALLEST = 100, 256


def outputs(path: str, data: str) -> Any:
    """The first output, in batches, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    with np.load(data) as file:
        inputs = dict(file)
    count = len(next(iter(inputs.values())))
    parts = ({name: array[at : at + BATCH] for name, array in inputs.items()} for at in range(0, count, BATCH))
    return np.concatenate([session.run(None, part)[0] for part in parts])


def similarities(path: str, data: str) -> Any:
    """The cosines of all pairs."""
    vectors = outputs(path, data)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]


def stored(graph: onnx.GraphProto) -> Iterator[Any]:
    """The weights: initializers and constants that a node reads, but tables that Gather reads."""
    read = {name for node in graph.node if node.op_type != "Gather" for name in node.input}
    kept = [(one.name, one) for one in graph.initializer]
    for node in graph.node:
        kept += [(node.output[0], one.t) for one in node.attribute if node.op_type == "Constant"]
    for name, tensor in kept:
        if name in read and len(tensor.dims) > 1 and np.prod(tensor.dims) >= SMALLEST:
            yield numpy_helper.to_array(tensor)


def zeros(path: str) -> float:
    arrays = list(stored(onnx.load(path).graph))
    return float(100 * (1 - sum(map(np.count_nonzero, arrays)) / max(sum(array.size for array in arrays), 1)))


def main() -> None:
    what, model, *files = sys.argv[1:]
    found = {"zeros": zeros(model)}
    if what == "accuracy":
        found["accuracy"] = float(100 * np.mean(outputs(model, files[0]).argmax(1) == np.load(files[1])))
    if what == "similarity":
        both = [similarities(one, files[0]) for one in (model, files[1])]
        found["correlation"] = float(np.corrcoef(*both)[0, 1])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
