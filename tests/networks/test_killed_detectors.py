"""A detector's run that is killed and started again ends with the same bytes: checkpoints, history, every file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
TOOL = str(ROOT / "tools" / "train_sparse.py")
RUNS = {
    "retinanet float": "retinanet/retinanet-r18-improve_small.yaml",
    "retinanet amba": "retinanet/retinanet-r18-improve_amba_sparse_small.yaml",
    "retinanet ampere": "retinanet/retinanet-r18-improve_ampere_sparse_small.yaml",
    "faster_rcnn float": "faster_rcnn/faster_rcnn_r50_fpn_1x_small.yaml",
    "faster_rcnn amba": "faster_rcnn/faster_rcnn_r50_fpn_amba_sparse_small.yaml",
    "faster_rcnn ampere": "faster_rcnn/faster_rcnn_r50_fpn_ampere_sparse_small.yaml",
}
STEPS, SAVED, IMAGES = 10, 2, 160


def started(folder: Path, name: str, *more: str) -> subprocess.Popen[str]:
    config = str(ROOT / "models" / "configs" / "det" / RUNS[name])
    opts = ["saver.save_dir=out", "saver.pretrain_model=none", f"trainer.max_iter={STEPS}"]
    opts += [f"trainer.test_freq={STEPS}", f"trainer.save_freq={SAVED}"]
    if "amba" in name:
        opts += [f"sparsity.scheduler.kwargs.{one}=out" for one in ("output_dir", "save_dir")]
        opts += ["sparsity.scheduler.kwargs.sparsity_table=[40, 70]"]
    around = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, TOOL, config, "--whole", *more, "--opts", *opts]
    return subprocess.Popen(command, cwd=folder, env=around, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate(timeout=3000)
    assert process.returncode == 0, said


def killed(folder: Path, process: subprocess.Popen[str], after: int) -> None:
    """Killed in the middle of whatever it does once it has a checkpoint of at least so many steps."""
    while newest(folder) < after:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.kill()
    process.communicate()


def newest(folder: Path) -> int:
    found = (folder / "out" / "state").glob("step-*[0-9]")
    return max((int(one.name.rpartition("-")[2]) for one in found), default=0)


def files(folder: Path) -> dict[str, Any]:
    out = folder / "out"
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_killed_goes_on_to_the_same_bytes(tmp_path: Path, name: str) -> None:
    pytest.importorskip("sklearn")  # for the digits in the scenes
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    ended(started(whole, name, "--scenes", "--scenes-count", str(IMAGES), "10"))
    parts.mkdir()
    (parts / "scenes").symlink_to(whole / "scenes")
    for after in (SAVED, 3 * SAVED):
        killed(parts, started(parts, name), after)
    ended(started(parts, name))
    one, other = files(whole), files(parts)
    assert one.keys() == other.keys()
    assert [key for key in one if one[key] != other[key]] == []
    assert "float" in name or any(key.endswith(".whole.onnx") for key in one)
