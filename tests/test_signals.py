"""Signals end a command with their own exit code, wherever it is: also within a function of the user's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onnxsparse.cli import main

SLOW = """
import sys
import time
import numpy as np

def f():
    print("begun", file=sys.__stdout__, flush=True)  # what else is printed goes to the errors
    while True:
        time.sleep(0.05)
"""

pytestmark = pytest.mark.usefixtures("usual_signals")
SIGNALS = [getattr(signal, name, signal.SIGTERM) for name in ("SIGTERM", "SIGHUP")]


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs signals")
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGINT", 130)])
def test_within_a_function_of_the_users(
    name: str, code: int, tmp_path: Path, digits_cnn: Path, repository: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    words = ["finetune", str(digits_cnn), "--data", "slow:f", "--pattern", "2:4", "--steps", "2", "-o", "out.onnx"]
    process = subprocess.Popen(
        [sys.executable, "-m", "onnxsparse", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(repository)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            process.send_signal(getattr(signal, name))
            _, said = process.communicate(timeout=600)
        finally:
            process.kill()
    assert process.returncode == code
    assert "failed" not in said


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs signals")
def test_signals_are_heeded_while_a_command_runs_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nohup ignores stays ignored, and who calls `main` has the handlers of before again, whatever it came to."""
    heeded = []
    monkeypatch.setattr("onnxsparse.cli._run", lambda _: heeded.append([signal.getsignal(one) for one in SIGNALS]) or 0)
    before = [signal.signal(signal.SIGTERM, signal.SIG_DFL), signal.signal(signal.SIGHUP, signal.SIG_IGN)]
    try:
        assert main(["list"]) == 0
        monkeypatch.undo()
        assert main(["nonsense"]) == 2
        assert [signal.getsignal(one) for one in SIGNALS] == [signal.SIG_DFL, signal.SIG_IGN]
    finally:
        for one, handler in zip(SIGNALS, before):
            signal.signal(one, handler)
    assert callable(heeded[0][0])
    assert heeded[0][1] == signal.SIG_IGN
