"""Train a masked file with plain `onnxruntime.training`, without a line of onnxsparse; to copy into a trainer of yours.

    onnxsparse mask model.onnx -o masked.onnx --target ampere
    python tools/train_with_artifacts.py masked.onnx -o trained.onnx --data train.npz
    onnxsparse fold trained.onnx -o sparse.onnx --target ampere

The weights move, the masks do not; `fold` knows masks by what they compute, whatever else the trainer has lost. The
data hold an array for each input, and one of class numbers (cross entropy with the logits) or of floats (squared
error) for the first output. Exit codes: 0 done, 2 a mistake to mend.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import types
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

for part in ("amp", "optim"):  # without torch, `onnxruntime.training` fails in these two, which are not used here
    sys.modules.setdefault(f"onnxruntime.training.{part}", types.ModuleType(part))
IR_VERSION = 10  # of onnxruntime 1.19, the last one that trains: it refuses what a newer onnx writes by default


def parameters(model: ModelProto) -> tuple[list[str], list[str]]:
    """The names of the weights that learn, and of what has to stay as it is: masks, constants, running statistics."""
    numbers = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    stay = {name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:5]}
    for node in model.graph.node:
        if node.op_type in ("Mul", "Where"):
            stay |= {name for name in node.input if name in numbers and np.isin(numbers[name], (0, 1)).all()}
    floats = {one.name for one in model.graph.initializer if one.data_type == TensorProto.FLOAT and one.dims}
    return sorted(floats - stay), sorted(stay & numbers.keys())


def batches(model: ModelProto, rows: np.ndarray, batch: int) -> list[np.ndarray]:
    """The rows in parts: of the size that the model fixes, without what is left over, or of about `batch`."""
    fixed = sum(one.dim_value for one in model.graph.input[0].type.tensor_type.shape.dim[:1])
    rows = rows[: len(rows) // fixed * fixed] if fixed else rows
    return np.array_split(rows, max(1, len(rows) // (fixed or batch)))


def train(model: ModelProto, data: dict[str, np.ndarray], epochs: int = 3, batch: int = 32, lr: float = 1e-3) -> bytes:
    """The model with trained weights, its masks still in it, as the bytes of a file."""
    from onnxruntime.training import api, artifacts

    inputs = [one.name for one in model.graph.input if one.name in data]
    if not inputs or len(data) != len(inputs) + 1:
        raise ValueError(f"an array for each input of the model and one of labels are needed, not {', '.join(data)}")
    (labels,) = (array for name, array in data.items() if name not in inputs)
    loss, kind = ("CrossEntropyLoss", np.int64) if labels.dtype.kind in "iu" else ("MSELoss", np.float32)
    onnx.IR_VERSION = IR_VERSION  # type: ignore[assignment]  # of the optimizer's graph, which is made here
    model.ir_version = min(model.ir_version, IR_VERSION)
    options = {"loss": artifacts.LossType[loss], "optimizer": artifacts.OptimType.AdamW}
    with tempfile.TemporaryDirectory() as folder:
        artifacts.generate_artifacts(model, *parameters(model), artifact_directory=folder, **options)
        state = api.CheckpointState.load_checkpoint(f"{folder}/checkpoint")
        module = api.Module(f"{folder}/training_model.onnx", state, f"{folder}/eval_model.onnx")
        optimizer = api.Optimizer(f"{folder}/optimizer_model.onnx", module)
        optimizer.set_learning_rate(lr)
        drawn = np.random.default_rng(0)
        for epoch in range(epochs):
            module.train()
            for rows in batches(model, drawn.permutation(len(labels)), batch):
                found = module(*[data[name][rows] for name in inputs], labels[rows].astype(kind))
                optimizer.step()
                module.lazy_reset_grad()
            print(f"epoch {epoch + 1}: loss {float(found):.4g}")
        module.export_model_for_inferencing(f"{folder}/trained.onnx", [model.graph.output[0].name])
        return Path(f"{folder}/trained.onnx").read_bytes()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a masked ONNX model with onnxruntime-training.")
    parser.add_argument("model", metavar="MODEL", help="the masked .onnx file")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="the trained .onnx file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    parser.add_argument("--data", metavar="DATA.npz", required=True, help="an array for each input, and the labels")
    for name, usual in (("epochs", 3), ("batch-size", 32), ("lr", 1e-3)):
        parser.add_argument(f"--{name}", type=type(usual), default=usual, help=f"(default {usual})")
    given = parser.parse_args(argv)
    if Path(given.output).exists() and not given.overwrite:
        parser.error(f"{given.output} exists; choose another name or pass --overwrite")
    try:
        trained = train(onnx.load(given.model), dict(np.load(given.data)), given.epochs, given.batch_size, given.lr)
        Path(given.output).write_bytes(trained)
    except Exception as error:  # onnxruntime's own errors have no class in common
        print(f"train_with_artifacts: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
