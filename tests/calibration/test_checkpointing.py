"""A calibration that is ended at any moment goes on to the same bytes; nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxsparse as osp
from onnxsparse import checkpoints
from onnxsparse.calibration import streams
from onnxsparse.calibration.new_numbers import NewNumbers
from onnxsparse.calibration.sweep import Sweep
from onnxsparse.cli import main
from onnxsparse.engines.ort import library
from onnxsparse.errors import OptionError, OutputError
from tests.calibration.calibrated_file import calibrate
from tests.calibration.nets import conv_net, samples

pytest.importorskip("onnxruntime")
HOW = "gradients" if library.available() else "measured"
SCRIPT = Path(__file__).with_name("calibrated_file.py")


def _steps(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if one.name.startswith("step-")) if folder.is_dir() else []


def _killed_at(count: int, command: list[str], folder: Path) -> bool:
    """Kill a calibration when it has so many checkpoints; whether that came before its end."""
    process = subprocess.Popen([*command, f"checkpoint={folder}", *(["resume=True"] if count else [])])
    try:
        while process.poll() is None and len(_steps(folder)) <= count:
            time.sleep(0.005)
    finally:
        process.kill()
    return process.wait() == -signal.SIGKILL


def test_killed_anywhere_and_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    net, data, run = conv_net(tmp_path / "net.onnx"), samples(tmp_path / "x.npz"), tmp_path / "run"
    whole = calibrate(net, data, tmp_path / "whole.onnx", 0.7, sensitivity=HOW)
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    os.environ.update(own)
    command = [sys.executable, str(SCRIPT), str(net), str(data), str(tmp_path / "o.onnx"), "0.7", f"sensitivity={HOW}"]
    killed = [_killed_at(count, command, run) for count in (0, 2, 4)]
    assert any(killed)
    assert _steps(run)
    resumed = calibrate(net, data, tmp_path / "resumed.onnx", 0.7, sensitivity=HOW, checkpoint=run, resume=True)
    assert resumed == whole
    assert not (run / streams.ACTIVATIONS).exists()


@pytest.mark.usefixtures("usual_signals")
def test_whoever_interrupts_is_told_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    net, data, run = conv_net(tmp_path / "net.onnx"), samples(tmp_path / "x.npz"), tmp_path / "run"
    words = ["prune", str(net), "--data", str(data), "--pattern", "unstructured", "--sparsity", "0.5"]
    words += ["--allocation", "uniform", "--allow", "stem,output,small", "--sensitivity", "measured", "-q", "-o"]
    layer = Sweep.layer

    def ended(number: int) -> None:
        """The second layer is interrupted."""
        done: list[object] = []

        def one(*given: Any) -> object:
            if done:
                os.kill(os.getpid(), number)
                time.sleep(10)  # until the signal is heeded
            done.append(layer(*given))
            return done[-1]

        monkeypatch.setattr(Sweep, "layer", one)

    ended(signal.SIGINT)
    assert main([*words, str(tmp_path / "out.onnx"), "--checkpoint", str(run)]) == 130
    assert capsys.readouterr().err == f"onnxsparse: interrupted; go on with --checkpoint {run} --resume\n"
    assert main([*words, str(tmp_path / "out.onnx")]) == 130
    assert capsys.readouterr().err == (
        "onnxsparse: interrupted; nothing was kept (with --checkpoint DIR the state would be)\n"
    )
    ended(signal.SIGTERM)
    assert main([*words, str(tmp_path / "out.onnx"), "--checkpoint", str(tmp_path / "other")]) == 143
    assert capsys.readouterr().err.startswith("onnxsparse: stopped by a signal; go on with --checkpoint")
    monkeypatch.setattr(Sweep, "layer", layer)
    assert _steps(run)
    assert main([*words, str(tmp_path / "resumed.onnx"), "--checkpoint", str(run), "--resume"]) == 0
    assert main([*words, str(tmp_path / "whole.onnx")]) == 0
    assert (tmp_path / "resumed.onnx").read_bytes() == (tmp_path / "whole.onnx").read_bytes()
    assert not (tmp_path / "out.onnx").exists()


def test_all_that_is_done_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, data, run = conv_net(tmp_path / "net.onnx"), samples(tmp_path / "x.npz"), tmp_path / "run"
    first = calibrate(net, data, tmp_path / "o.onnx", 0.7, sensitivity=HOW, checkpoint=run)
    kept = _steps(run)
    assert {one.facts["what"].split()[0] for one in checkpoints.all_whole(str(run))} == {
        "sensitivity",
        "curve",
        "layer",
    }
    monkeypatch.setattr(checkpoints, "save", lambda *_: pytest.fail("it was done already"))
    again = calibrate(net, data, tmp_path / "p.onnx", 0.7, sensitivity=HOW, checkpoint=run, resume=True)
    assert (again, _steps(run)) == (first, kept)


def test_a_damaged_part_is_made_again(tmp_path: Path) -> None:
    net, data, run = conv_net(tmp_path / "net.onnx"), samples(tmp_path / "x.npz"), tmp_path / "run"
    first = calibrate(net, data, tmp_path / "o.onnx", 0.7, sensitivity=HOW, checkpoint=run)
    (run / _steps(run)[1] / "manifest.json").write_text("{}")
    assert calibrate(net, data, tmp_path / "p.onnx", 0.7, sensitivity=HOW, checkpoint=run, resume=True) == first


def test_what_is_damaged_is_told(tmp_path: Path) -> None:
    net, data, run = conv_net(tmp_path / "net.onnx"), samples(tmp_path / "x.npz"), tmp_path / "run"
    options: dict[str, Any] = {"pattern": "2:4", "data": str(data), "sensitivity": "none", "checkpoint": run}
    first = osp.prune(net, **options)
    damaged = run / _steps(run)[1]
    (damaged / "arrays.bin").write_bytes(b"no")
    again = osp.prune(net, **options, resume=True)
    assert again.model == first.model
    assert f"{damaged} is passed over: arrays.bin does not have its size" in again.report.notes


def test_another_model_is_told_by_any_byte_of_its_data_file(tmp_path: Path) -> None:
    net, data, run = conv_net(tmp_path / "net.onnx"), samples(tmp_path / "x.npz"), tmp_path / "run"
    onnx.save(onnx.load(net), net, save_as_external_data=True, location="net.bin", size_threshold=0)
    options: dict[str, Any] = {"pattern": "2:4", "data": str(data), "sensitivity": "none", "checkpoint": run}
    osp.prune(net, output=tmp_path / "o.onnx", **options)
    stored = bytearray((tmp_path / "net.bin").read_bytes())
    stored[-1] ^= 1
    (tmp_path / "net.bin").write_bytes(stored)
    with pytest.raises(OptionError, match="of another run"):
        osp.prune(net, output=tmp_path / "p.onnx", **options, resume=True)


def test_another_run_is_refused(tmp_path: Path) -> None:
    net, data, run = conv_net(tmp_path / "net.onnx"), samples(tmp_path / "x.npz"), tmp_path / "run"
    out = tmp_path / "o.onnx"
    calibrate(net, data, out, 0.7, sensitivity=HOW, checkpoint=run)
    with pytest.raises(OptionError, match="resume=True"):
        calibrate(net, data, out, 0.7, sensitivity=HOW, checkpoint=run)
    other, less = conv_net(tmp_path / "other.onnx", seed=5), samples(tmp_path / "y.npz", seed=4)
    for model, given, level, options in (
        (other, data, 0.7, {}),
        (net, less, 0.7, {}),
        (net, data, 0.8, {}),
        (net, data, 0.7, {"seed": 3}),
    ):
        with pytest.raises(OptionError, match="of another run"):
            calibrate(model, given, out, level, sensitivity=HOW, checkpoint=run, resume=True, **options)
    with pytest.raises(OptionError, match="checkpoint="):
        calibrate(net, data, out, 0.7, sensitivity=HOW, resume=True)


def test_values_on_the_disk_change_no_byte_and_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, data = conv_net(tmp_path / "net.onnx"), samples(tmp_path / "x.npz")
    held = calibrate(net, data, tmp_path / "o.onnx", 0.7, sensitivity=HOW)
    folder, written = tmp_path / "temporary", []
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr(streams.Store.__init__, "__defaults__", (None, 0))
    monkeypatch.setattr(NewNumbers.__init__, "__defaults__", (None, 0))
    monkeypatch.setattr("onnxsparse.calibration.new_numbers.SMALL", 0)
    monkeypatch.setattr(
        np, "save", lambda path, *rest, _save=np.save, **more: (written.append(path), _save(path, *rest))
    )
    assert calibrate(net, data, tmp_path / "p.onnx", 0.7, sensitivity=HOW) == held
    assert written
    assert not list(folder.glob("onnxsparse-*/*.npy"))


def test_too_little_room_is_said_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, data = conv_net(tmp_path / "net.onnx"), samples(tmp_path / "x.npz")
    monkeypatch.setattr("onnxsparse.passes.calibrate.HELD_VALUES", -(10**18))
    with pytest.raises(OutputError, match="on the disk"):
        calibrate(net, data, tmp_path / "o.onnx", 0.7, sensitivity=HOW)


def test_new_numbers_lie_in_memory_or_in_a_file() -> None:
    numbers = NewNumbers(held=1 << 17)
    arrays = {str(size): np.arange(size, dtype=np.float32) for size in (10, 30_000, 40_000, 50_000)}
    for name, array in arrays.items():
        numbers[name] = array
    numbers["10"] = arrays["10"] = np.ones((2, 5))
    assert set(numbers) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(numbers[name], array)
    mask = np.arange(200_000) % 3 == 0
    np.testing.assert_array_equal(numbers.aside(mask), mask)
    del numbers["40000"]
    assert "40000" not in numbers
