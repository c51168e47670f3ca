"""One training step of onnxsparse, measured from inside; what tools/bench/bench_steps.py starts.

    python tools/bench/step_onnxsparse.py time MODEL DATA.npz --batch 32 --steps 100
    python tools/bench/step_onnxsparse.py memory MODEL DATA.npz --batch 32 --steps 2000

`time` alternates the same step with masks on all weights and without any, and prints the median of both in CPU
milliseconds and the median of their ratios. `memory` fine-tunes to 2:4 and prints the peaks of resident memory of
itself and of the worker that makes the graph, and how much is resident at the steps of WATCHED. Linux only.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

SPARSITY, WATCHED = "0.8", (200, 2000)


def engine(path: str, data: Any, batch: int, masked: bool, folder: str) -> Any:
    """The engine of a model, trained by AdamW towards its dense outputs, which are asked for ahead."""
    from onnxsparse.engines.engine import Batch, Spec
    from onnxsparse.engines.ort.building import build
    from onnxsparse.engines.ort.engine import OrtEngine
    from onnxsparse.graph.model import Model
    from onnxsparse.options import SparsityOptions
    from onnxsparse.planning.request import planned
    from onnxsparse.planning.trainable import tagged, trainables

    model = Model.open(path)
    plan, _ = planned(model, None, None, SparsityOptions(pattern="unstructured", sparsity=SPARSITY))
    tags, pruned = trainables(model, plan), {row.weight.tensor for row in plan.planned}
    sparsers = {tag: "mask" for tag, one in tags.items() if masked and one.tensor in pruned}
    spec = Spec(batch, {tag: one.name for tag, one in tags.items()}, sparsers)
    samples = {name: array[: max(64, batch)] for name, array in data.items()}
    made = OrtEngine(folder, build(folder, spec, tagged(model, tags), samples, model.sha256()), "adamw")
    rows = [np.arange(start, start + batch) for start in range(0, len(data["x"]) - batch + 1, batch)]
    made.ask_ahead(len(data["x"]), (Batch({"x": data["x"][one]}, one) for one in rows))
    generator = np.random.default_rng(0)
    for mask in made.frozen.values():
        mask[...] = generator.random(mask.shape) >= float(SPARSITY)
    return made


def timed(path: str, data: Any, batch: int, steps: int) -> dict[str, float]:
    spent: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        engines = {masked: engine(path, data, batch, masked, f"{folder}/{masked}") for masked in spent}
        for number in range(steps + 3):
            order = (True, False) if number % 2 else (False, True)
            for masked in order:
                spent[masked].append(_step(engines[masked], data["x"], batch, number))
    pairs = np.array([spent[True][3:], spent[False][3:]])
    masked, plain = np.median(pairs, axis=1)
    return {"masked": float(masked), "plain": float(plain), "ratio": float(np.median(pairs[0] / pairs[1]))}


def _step(made: Any, x: Any, batch: int, number: int) -> float:
    """CPU milliseconds of a step and its update."""
    from onnxsparse.engines.engine import Batch, Pace

    rows = (np.arange(batch) + number * batch) % (len(x) // batch * batch)
    start = time.process_time()
    made.step(Batch({"x": x[rows]}, rows))
    made.update(Pace(1e-4))
    return 1e3 * (time.process_time() - start)


def memory(path: str, data: str, batch: int, steps: int) -> dict[str, Any]:
    from onnxsparse import finetune
    from onnxsparse.recipes import Recipe
    from onnxsparse.recipes.modifiers.pruning import Pruning
    from onnxsparse.recipes.modifiers.training import Training

    resident: dict[int, int] = {}
    worker = Worker()

    def watch(row: dict[str, Any]) -> None:
        if row["step"] in WATCHED:
            resident[row["step"]] = status("self", "VmRSS")

    # 2:4 is reached at once, so at the first step watched the probe has measured and a best state is kept.
    recipe = Recipe((Training(steps=steps, batch=batch), Pruning(pattern="2:4")))
    with tempfile.TemporaryDirectory() as folder:
        finetune(path, data=data, output=f"{folder}/out.onnx", recipe=recipe, watch=watch)
    return {"peak": status("self", "VmHWM"), "worker": worker.stop(), "resident": resident}


class Worker:
    """Looks for processes that this one started, many times a second, and keeps the largest peak seen."""

    def __init__(self) -> None:
        self._peak, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            for task in Path("/proc/self/task").iterdir():
                for child in _read(task / "children").split():
                    self._peak = max(self._peak, status(child, "VmHWM"))

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return self._peak


def status(process: str, field: str) -> int:
    """Bytes; 0 of a process that has ended."""
    lines = _read(Path(f"/proc/{process}/status")).splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("time", "memory"))
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=100)
    chosen = parser.parse_args()
    if chosen.what == "memory":
        found: Any = memory(chosen.model, chosen.data, chosen.batch, chosen.steps)
    else:
        with np.load(chosen.data) as arrays:
            found = timed(chosen.model, {"x": arrays["x"]}, chosen.batch, chosen.steps)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
