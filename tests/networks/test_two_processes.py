"""Two processes come to the weights of one: detectors of the small size, trained by the tool, their BN frozen."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
TOOL = str(ROOT / "tools" / "train_sparse.py")
DETECTORS = {
    "retinanet": ("retinanet/retinanet-r18-improve_small.yaml", (0, 1, 2), 1e-3),
    "faster_rcnn": ("faster_rcnn/faster_rcnn_r50_fpn_1x_small.yaml", (0,), 3e-5),
}
"""The configuration, the parts of `net` with normalizations, and the rate: with a large one rounding decides."""
FLOAT, SGD, BATCH = 50, 100, 16


def train(folder: Path, count: int, *words: str) -> None:
    port = random.SystemRandom().randrange(20000, 30000)
    spread = ["-m", "torch.distributed.run", f"--nproc-per-node={count}", f"--master-port={port}"]
    command = [sys.executable, *(spread if count > 1 else []), TOOL, *words]
    around = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=around, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", DETECTORS)
def test_two_processes_come_to_the_weights_of_one(tmp_path: Path, name: str) -> None:
    pytest.importorskip("sklearn")  # for the digits in the scenes
    file, parts, rate = DETECTORS[name]
    config = str(ROOT / "models" / "configs" / "det" / file)
    frozen = [f"net.{part}.kwargs.normalize.type=freeze_bn" for part in parts]
    optimizer = f"trainer.optimizer={{type: SGD, kwargs: {{lr: {rate:.5f}, momentum: 0.9, weight_decay: 0.0001}}}}"
    rarely = ["trainer.test_freq=1000", "trainer.save_freq=1000"]
    scenes = ["--scenes", "--scenes-count", "300", "10"]
    train(tmp_path, 1, config, *scenes, "--opts", f"trainer.max_iter={FLOAT}", "saver.save_dir=float", *rarely)
    for count in (1, 2):
        size = f"dataset.batch_sampler.kwargs.batch_size={BATCH // count}"
        said = [f"trainer.max_iter={SGD}", f"saver.save_dir=by{count}", size, optimizer, *frozen, *rarely]
        train(tmp_path, count, config, "float/ckpt_latest.pth", "--opts", *said)
    begin, one, two = (
        torch.load(tmp_path / which / "ckpt_latest.pth", weights_only=True)["model"]
        for which in ("float", "by1", "by2")
    )
    names = [key for key, tensor in one.items() if tensor.is_floating_point()]
    largest = max(float(one[key].abs().max()) for key in names if key.endswith("weight"))
    apart = max(float((one[key] - two[key]).abs().max()) for key in names)
    assert apart <= 1e-3 * largest
    assert apart < 0.2 * max(float((one[key] - begin[key]).abs().max()) for key in names)
