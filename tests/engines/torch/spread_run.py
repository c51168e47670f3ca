"""Fine-tunings that several processes do together, for the tests to look at.

    torchrun --nproc-per-node 2 spread_run.py FOLDER CASE...

runs each case and leaves in FOLDER what every process came to: CASE-COUNT-RANK.npz, with the number of places at which
a masked weight was not zero after some update, or moved by what the optimizer remembered.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import numpy as np

RANK, COUNT = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
SGD = {"optimizer": "sgd", "lr": 1e-3, "steps": 20, "retries": 0}
LEVEL = {"pattern": "unstructured", "sparsity": 0.8, "updates": 6}
CASES: dict[str, dict[str, Any]] = {
    "2:4": {**SGD, "pattern": "2:4"},
    "kl": {**SGD, "pattern": "2:4", "loss": "kl"},
    "labels": {**SGD, "pattern": "2:4", "loss": "cross-entropy"},
    "rising": {**SGD, **LEVEL},
    "regrown": {**SGD, **LEVEL, "regrow": "gradient"},
    "learned": {**SGD, **LEVEL, "sparser": "straight-through"},
    "accumulated": {**SGD, "pattern": "2:4", "batch_size": 16, "accumulate": 2},
    "adam": {**LEVEL, "optimizer": "adam", "lr": 1e-3, "steps": 12, "regrow": "gradient"},
    "default": {**LEVEL, "steps": 12},
    "one head": {**SGD, "pattern": "2:4", "loss": "cross-entropy", "hardness": 0.0, "loss_output": "y"},
    "attempts": {"pattern": "2:4", "optimizer": "sgd", "lr": 0.3, "steps": 12, "retries": 1},
    "half": {**LEVEL, "steps": 12, "precision": "float16"},
    "own": {**LEVEL, "steps": 12, "optimizer": "own"},
    "batch norm": {**SGD, "pattern": "2:4", "train_bn": True},
}


def digits(count: int = 320) -> dict[str, Any]:
    """Labels of a third of the samples do not count, and not as many in each half of a batch."""
    random = np.random.default_rng(0)
    labels = np.arange(count) % 10
    labels[: count // 3] = -100
    return {"x": random.standard_normal((count, 1, 8, 8)).astype(np.float32), "labels": labels}


def two_heads() -> Any:
    """x -> hidden -> y, and a second output of which the labels say nothing."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(5)
    stored = {
        name: random.standard_normal(shape).astype(np.float32) * 0.3
        for name, shape in {"first": (64, 32), "one": (32, 10), "other": (32, 10)}.items()
    }
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("MatMul", ["flat", "first"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["bent"]),
        helper.make_node("MatMul", ["bent", "one"], ["y"]),
        helper.make_node("MatMul", ["bent", "other"], ["z"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "heads",
        [value("x", TensorProto.FLOAT, ["n", 1, 8, 8])],
        [value("y", TensorProto.FLOAT, ["n", 10]), value("z", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(case: str, **more: Any) -> Any:
    """One fine-tuning by all processes."""
    from onnxsparse.train import checkpointing
    from onnxsparse.training_api import finetune

    checkpointing.APART = 0.0  # so short a run would have no checkpoint but the last
    model = two_heads() if case == "one head" else str(ROOT / "models" / "digits_cnn.onnx")
    options = {"batch_size": 32, "allow": ["small", "stem"], "init": "plain", **CASES[case]}
    if options.get("optimizer") == "own":
        options.update(own_optimizer())
    return finetune(model, data=digits(), engine="torch", **{**options, **more})


def own_optimizer() -> dict[str, Any]:
    import torch

    return {
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        "lr_scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 4),
    }


def arrays(result: Any) -> dict[str, Any]:
    from onnx import numpy_helper

    return {tensor.name: numpy_helper.to_array(tensor) for tensor in result.model.graph.initializer}


def watch_leaks() -> list[int]:
    """How many masked places of weights, and of what the optimizer remembers, are not zero after each update."""
    from onnxsparse.engines.torch.engine import TorchEngine

    seen, plain = [], TorchEngine.update

    def update(self: Any, pace: Any) -> bool:
        moved = plain(self, pace)
        masks = {key: array for key, array in self._live[1].tensors.items() if key.endswith("/mask")}
        learns = any(not key.endswith("/mask") for key in self.frozen)
        weights, (moments, _) = self._live[0].tensors, self._stepping.state()
        found = [weights[key.partition("/")[0]][mask == 0] for key, mask in masks.items()]
        for key, mask in masks.items():
            tag = key.partition("/")[0]
            own = [one for name, one in moments.items() if name.endswith(f"/{tag}") or f"/{tag}." in name]
            found += [one[mask.numpy() == 0] for one in own if one.shape == tuple(mask.shape)]
        assert len(found) > len(masks) or not moved
        seen.append(0 if learns else sum(int((one != 0).sum()) for one in found))
        return moved

    TorchEngine.update = update  # type: ignore[method-assign]
    return seen


def die_at(step: int, rank: str) -> None:
    """End as hard as can be before a step: one process, or each by itself."""
    from onnxsparse.engines.torch.engine import TorchEngine

    plain, left = TorchEngine.step, [step]

    def counted(self: Any, batch: Any) -> float:
        left[0] -= 1
        if left[0] == 0 and rank in ("all", str(RANK)):
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, batch)

    TorchEngine.step = counted  # type: ignore[method-assign]


def main(folder: str, *cases: str) -> None:
    seen = watch_leaks()
    for case in cases:
        seen.clear()
        found = arrays(run(case))
        np.savez(Path(folder) / f"{case.replace(':', '-')}-{COUNT}-{RANK}.npz", leaks=sum(seen), **found)


def killed(folder: str, case: str, step: str, rank: str) -> None:
    """A run with checkpoints; it dies before a step, but not again, or comes to its end where that is 0."""
    if int(step) and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        die_at(int(step), rank)
    found = run(case, checkpoint=Path(folder) / "run", resume=True)
    np.savez(Path(folder) / f"killed-{RANK}.npz", **arrays(found))


def uneven():
    """Data of a function that fails in one process."""
    for start in range(0, 320, 16):
        if RANK == 1 and start == 160:
            raise ValueError("this disk is broken")
        yield {"x": digits()["x"][start : start + 16]}


if __name__ == "__main__":
    killed(*sys.argv[2:]) if sys.argv[1] == "killed" else main(*sys.argv[1:])
