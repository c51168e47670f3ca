"""A fine-tuning that kills its own process, as hard as it can be killed, at a chosen moment.

    python killed_run.py JOB EVENT COUNT

runs the job of a JSON file and ends at the so-manieth event: the building of a graph (its worker lives on), a step, a
write into a checkpoint, the naming of one, the removal of old ones, a new segment. Without an event, or where it does
not come, the run goes to its end.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402 - the script runs from anywhere

STEPS, BATCH = 24, 16


def loader():
    """Data of a function: the same at every call, in pieces of odd sizes."""
    from models.digits import training_half

    images = training_half()[0][:700]
    for start in range(0, len(images), 45):
        yield {"x": images[start : start + 45]}


def run(job: dict[str, Any]):
    """One fine-tuning: `folder` for its checkpoints, `resume`, `output`, `data`, and options of the recipe."""
    from onnxsparse.recipes import Recipe
    from onnxsparse.recipes.modifiers.pruning import Pruning
    from onnxsparse.recipes.modifiers.training import KeepBest, Training
    from onnxsparse.train import checkpointing
    from onnxsparse.training_api import finetune

    checkpointing.APART = 0.0  # so short a run would have no checkpoint but the last
    training = Training(steps=STEPS, batch=BATCH, **job.get("training", {}))
    if "recipe" in job:
        recipe = Recipe((training, *Recipe.from_yaml(job["recipe"]).modifiers))
    else:
        recipe = Recipe((training, Pruning(**job["pruning"]), KeepBest(checks=3, retries=1)))
    data = job.get("data") or str(Path(job["folder"]).parent / "digits.npz")
    return finetune(
        str(ROOT / "models" / "digits_cnn.onnx"),
        data=data,
        output=job["output"],
        recipe=recipe,
        checkpoint=job["folder"],
        resume=job.get("resume", False),
        overwrite=True,
        engine=job.get("engine", "ort"),
        **(of_torch() if job.get("training", {}).get("optimizer") == "own" else {}),
    )


def of_torch() -> dict[str, Any]:
    """An optimizer and a scheduler of torch."""
    import torch

    return {
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, amsgrad=True),
        "lr_scheduler": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=60),
    }


def write_data(path: Path) -> None:
    from models.digits import training_half

    np.savez(path, x=training_half()[0][:400])


def die_at(event: str, count: int, engine: str) -> None:
    from onnxsparse import checkpoints
    from onnxsparse import checkpoints as folder

    kind = getattr(importlib.import_module(f"onnxsparse.engines.{engine}.engine"), f"{engine.title()}Engine")

    left = [count]

    def deadly(call):
        def counted(*arguments, **more):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **more)

        return counted

    place: dict[str, tuple[Any, str]] = {
        "building": (subprocess.Popen, "wait"),
        "step": (kind, "step"),
        "update": (kind, "update"),
        "probe": (kind, "evaluate"),
        "segment": (kind, "restore"),
        "writing": (folder, "_put"),
        "naming": (folder, "_rename"),
        "cleaning": (checkpoints, "clean"),
    }
    owner, name = place[event]
    setattr(owner, name, deadly(getattr(owner, name)))


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    if len(sys.argv) > 2:
        die_at(sys.argv[2], int(sys.argv[3]), job.get("engine", "ort"))
    run(job)
