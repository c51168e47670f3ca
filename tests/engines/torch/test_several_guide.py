"""docs/several_gpus.md does what it says, with two processes on the CPU in place of GPUs and of machines."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import onnxsparse as osp
from tests.engines.torch.test_processes import free_port

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="gloo between processes"),
    pytest.mark.usefixtures("usual_signals"),
]

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "several_gpus.md").read_text(encoding="utf-8")
PROGRAMS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "onnxsparse": [sys.executable, "-m", "onnxsparse"],
}


def blocks(info: str) -> list[str]:
    return re.findall(rf"^```{re.escape(info)}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def started(command: str, folder: Path, port: str) -> subprocess.Popen[str]:
    """A command of the page, on this machine alone."""
    program, *words = shlex.split(command.replace("--device cuda", "--device cpu").replace("10.0.0.1", "127.0.0.1"))
    line = [port if word == "29500" else word for word in words]
    if "--nnodes" in line:
        line[line.index("--nproc-per-node") + 1] = "1"
    elif program == "torchrun":
        line = ["--master-port", port, *line]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([*PROGRAMS[program], *line], cwd=folder, env=environment, text=True, **streams)


def ends_well(process: subprocess.Popen[str]) -> None:
    said, _ = process.communicate(timeout=1800)
    assert process.returncode == 0, said


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    (folder / "models").mkdir()
    (folder / "models" / "digits_cnn.onnx").write_bytes((ROOT / "models" / "digits_cnn.onnx").read_bytes())
    x = np.random.default_rng(0).standard_normal((400, 1, 8, 8)).astype(np.float32)
    np.savez(folder / "samples.npz", x=x)
    for name, text in re.findall(r"^```python file=(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_one_machine_and_a_loop_of_ones_own(desk: Path) -> None:
    commands = [line for block in blocks("console several") for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE)]
    assert len(commands) == 4
    for command in commands:
        ends_well(started(command, desk, str(free_port())))
    for name in ("sparse.onnx", "sharded.onnx"):
        assert osp.verify(desk / name).report.ok


def test_several_machines(desk: Path) -> None:
    (block,) = blocks("console several machines")
    port = str(free_port())
    machines = [started(command, desk, port) for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE)]
    assert len(machines) == 2
    for machine in machines:
        ends_well(machine)
    assert osp.verify(desk / "far.onnx").report.ok
