"""Calibrated pruning of a decoder that does not fit into memory: peak memory and CPU time of `prune --data` at 2:4.

    python tools/bench/bench_calibration_large.py FOLDER [--layers 24] [--width 1856] [--uniform 0.5]

The decoder has random weights, which are written layer by layer as external data: 12 x width^2 for each layer, and two
tables of `VOCABULARY` x width. What is measured is one process that prunes it, with 8 sequences of 64.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, save_model

VOCABULARY, HEADS, SEQUENCES, LENGTH = 8192, 16, 8, 64
DATA = "weights.data"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1856)
    parser.add_argument("--uniform", type=float, help="this share, evenly, in the place of 2:4")
    parser.add_argument("--sensitivity", default="gradients")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        _prune(asked.folder, asked.uniform, asked.sensitivity)
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    write_decoder(asked.folder / "decoder.onnx", asked.layers, asked.width)
    drawn = np.random.default_rng(0).integers(0, VOCABULARY, (SEQUENCES, LENGTH))
    np.savez(asked.folder / "tokens.npz", tokens=drawn.astype(np.int64))
    subprocess.run([sys.executable, __file__, *sys.argv[1:], "--inside"], check=True)


def _prune(folder: Path, share: float | None, sensitivity: str) -> None:
    import onnxsparse as osp

    before = resource.getrusage(resource.RUSAGE_SELF)
    levels = {"pattern": "2:4"} if share is None else {"sparsity": share, "allocation": "uniform"}
    data, out = str(folder / "tokens.npz"), str(folder / "sparse" / "decoder.onnx")
    (folder / "sparse").mkdir(exist_ok=True)
    result = osp.prune(
        str(folder / "decoder.onnx"),
        output=out,
        data=data,
        sensitivity=sensitivity,
        workers=1,
        overwrite=True,
        **levels,
    )
    after = resource.getrusage(resource.RUSAGE_SELF)
    size = sum(one.stat().st_size for one in folder.iterdir() if one.is_file())
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    facts = {"file_mb": size >> 20, "peak_mb": after.ru_maxrss >> 10, "cpu_s": round(spent, 1)}
    print(json.dumps({**facts, "notes": result.report.notes}))


# -- the decoder


class _Writer:
    """Tensors of a model, each written to the data file when it is made."""

    def __init__(self, folder: Path) -> None:
        self._file, self._draw = (folder / DATA).open("wb"), np.random.default_rng(1)
        self.tensors: list[TensorProto] = []

    def random(self, name: str, *shape: int) -> str:
        numbers = self._draw.standard_normal(shape, np.float32) * np.float32(shape[0] ** -0.5)
        made = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        made.data_location = TensorProto.EXTERNAL
        places = {"location": DATA, "offset": self._file.tell(), "length": numbers.nbytes}
        for key, value in places.items():
            made.external_data.add(key=key, value=str(value))
        self._file.write(numbers.tobytes())
        self.tensors.append(made)
        return name

    def small(self, name: str, numbers: object) -> str:
        array = np.asarray(numbers)
        kind = TensorProto.INT64 if array.dtype.kind == "i" else TensorProto.FLOAT
        self.tensors.append(helper.make_tensor(name, kind, array.shape, array.reshape(-1).tolist()))
        return name

    def close(self) -> None:
        self._file.close()


def write_decoder(path: Path, layers: int, width: int) -> None:
    writer = _Writer(path.parent)
    nodes = [helper.make_node("Gather", [writer.random("table", VOCABULARY, width), "tokens"], ["h0"])]
    writer.small("split", [0, 0, HEADS, width // HEADS])
    writer.small("join", [0, 0, width])
    writer.small("scale", np.float32((width // HEADS) ** -0.5))
    writer.small("future", np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1))
    for layer in range(layers):
        nodes += _block(writer, layer, width)
    nodes += _norm(writer, f"h{layers}", "last", width)
    nodes.append(helper.make_node("MatMul", ["last", writer.random("head", width, VOCABULARY)], ["logits"]))
    writer.close()
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, ["n", LENGTH])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", LENGTH, VOCABULARY])
    graph = helper.make_graph(nodes, "decoder", [tokens], [logits], writer.tensors)
    made: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save_model(made, str(path))


def _norm(writer: _Writer, value: str, name: str, width: int) -> list[NodeProto]:
    scale = writer.small(f"{name}.scale", np.ones(width, np.float32))
    bias = writer.small(f"{name}.bias", np.zeros(width, np.float32))
    return [helper.make_node("LayerNormalization", [value, scale, bias], [name])]


def _block(writer: _Writer, number: int, width: int) -> Iterator[NodeProto]:
    def made(op: str, inputs: list[str], output: str, **options: Any) -> NodeProto:
        return helper.make_node(op, inputs, [f"{output}.{number}"], f"{output}.{number}", **options)

    def own(*names: str) -> list[str]:
        return [f"{name}.{number}" for name in names]

    yield from _norm(writer, f"h{number}", f"n1.{number}", width)
    for name in "qkv":
        yield made("MatMul", [f"n1.{number}", writer.random(f"w{name}.{number}", width, width)], name)
        yield made("Reshape", [f"{name}.{number}", "split"], f"{name}s")
        turned = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        yield made("Transpose", own(f"{name}s"), f"{name}t", perm=turned)
    yield made("MatMul", own("qt", "kt"), "raw")
    yield made("Mul", [*own("raw"), "scale"], "scaled")
    yield made("Add", [*own("scaled"), "future"], "masked")
    yield made("Softmax", own("masked"), "weights", axis=-1)
    yield made("MatMul", own("weights", "vt"), "mixed")
    yield made("Transpose", own("mixed"), "back", perm=[0, 2, 1, 3])
    yield made("Reshape", [*own("back"), "join"], "joined")
    yield made("MatMul", [*own("joined"), writer.random(f"wo.{number}", width, width)], "attended")
    yield helper.make_node("Add", [f"h{number}", f"attended.{number}"], [f"m{number}"])
    yield from _norm(writer, f"m{number}", f"n2.{number}", width)
    yield made("MatMul", [f"n2.{number}", writer.random(f"up.{number}", width, 4 * width)], "up_out")
    yield made("Relu", own("up_out"), "active")
    yield made("MatMul", [*own("active"), writer.random(f"down.{number}", 4 * width, width)], "down_out")
    yield helper.make_node("Add", [f"m{number}", f"down_out.{number}"], [f"h{number + 1}"])


if __name__ == "__main__":
    main()
