"""What is kept of a built graph is used again when it is the very same and made anew when it is not; workers end."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from onnxsparse.engines.engine import Batch, Spec
from onnxsparse.engines.ort import building, library, trial, worker
from onnxsparse.engines.ort.building import build
from onnxsparse.engines.ort.engine import OrtEngine
from onnxsparse.errors import ModelError, OutputError
from tests.engines.ort.build import FEED, INT64, W, X, info, model, numbers, tensor
from tests.messages import refusing

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")

PROTO = model([make_node("MatMul", ["x", "w"], ["y"])], [X], [info("y", None)], [tensor(W, "w", "t0")])
SPEC = Spec(4, {"t0": "weight t0"}, {"t0": "mask"}, decay=0.01)
FILES = ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint", "teacher.onnx")


def built(folder: Path, feed: Any = FEED, proto: Any = PROTO) -> dict[str, Any]:
    copy = type(proto)()
    copy.CopyFrom(proto)
    return build(str(folder / "graph"), SPEC, copy, feed, "origin")


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules that ran as workers."""
    seen: list[str] = []
    work = building.run_worker

    def counted(folder: str, module: str, *words: str) -> int:
        seen.append(module)
        return work(folder, module, *words)

    monkeypatch.setattr(building, "run_worker", counted)
    return seen


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


# -- used again, or made anew


def test_a_graph_of_other_samples_is_made_anew(tmp_path: Path, works: list[str]) -> None:
    first = built(tmp_path)
    again = built(tmp_path, {"x": FEED["x"].copy()})
    other = built(tmp_path, {"x": FEED["x"] + 1})
    assert again == first
    assert other["digest"] != first["digest"]
    assert works == ["trial"] * 2


def test_a_damaged_graph_is_made_anew_and_that_is_said(tmp_path: Path, works: list[str]) -> None:
    first = built(tmp_path)
    flipped(tmp_path / "graph" / "training_model.onnx")
    mended = built(tmp_path)
    assert mended["files"] == first["files"]
    assert [note for note in mended["notes"] if "training_model.onnx has changed" in note]
    assert built(tmp_path) == first
    assert works == ["trial"] * 2


@pytest.mark.parametrize("name", [*FILES, building.MANIFEST])
def test_no_damage_goes_unseen(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built(tmp_path)
    folder = tmp_path / "graph"
    flipped(folder / name)
    assert name in building._damage(str(folder), building.manifest(str(folder)))
    os.unlink(folder / name)
    assert name in building._damage(str(folder), building.manifest(str(folder)))
    monkeypatch.setattr(building, "run_worker", lambda *words: 1)
    with pytest.raises(ModelError):  # that is: it is not used again
        built(tmp_path)


def test_what_was_written_by_hand_into_a_manifest_is_not_believed(tmp_path: Path) -> None:
    built(tmp_path)
    path = tmp_path / "graph" / building.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "batch": 5}))
    assert built(tmp_path)["batch"] == 4


# -- disks


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "run_worker", lambda *words: worker.NO_SPACE)
    with refusing(OutputError):
        built(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_worker_says_that_a_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: trial.Trial) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "job.json").write_text(json.dumps({"spec": json.loads(SPEC.to_json())}))
    monkeypatch.setattr(trial.Trial, "run", full)
    assert trial.main(str(tmp_path)) == worker.NO_SPACE


def test_a_disk_that_is_full_afterwards_is_said_whatever_the_engine_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = building.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(building, "run_worker", lambda *words: 1)
    monkeypatch.setattr(building.shutil, "disk_usage", lambda path: usage._replace(free=0))
    with refusing(OutputError):
        built(tmp_path)


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refusing(OutputError):
        built(tmp_path / "file")


# -- workers

LEADER = """
import sys
from onnxsparse.engines.ort import worker
code = "import os, threading, time; from onnxsparse.engines.ort import worker; worker.{how}; " \\
       "open('pid.part', 'w').write(str(os.getpid())); os.rename('pid.part', 'pid'); time.sleep(6000)"
worker.run([sys.executable, "-c", code], sys.argv[1], sys.argv[2])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a system that kills")
@pytest.mark.parametrize("how", ["follow_parent()", "threading.Thread(target=worker._await_the_end).start()"])
def test_a_worker_ends_with_its_parent(tmp_path: Path, how: str) -> None:
    root = str(Path(building.__file__).parents[3])
    command = [sys.executable, "-c", LEADER.format(how=how), str(tmp_path), root]
    leader = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": root})
    _until(lambda: (tmp_path / "pid").exists())
    pid = int((tmp_path / "pid").read_text())
    assert _lives(pid)
    leader.kill()
    leader.wait()
    _until(lambda: not _lives(pid))


def _until(done: Any) -> None:
    end = time.monotonic() + 600
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    """Where nobody collects the dead, a process that is one still has its number."""
    if not os.path.isdir("/proc/self"):
        return subprocess.run(["ps", "-p", str(pid)], stdout=subprocess.DEVNULL).returncode == 0
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


# -- what the engine says while it trains


def looked_up() -> Any:
    nodes = [make_node("Gather", ["table", "i"], ["h"], name="the Gather"), make_node("MatMul", ["h", "w"], ["y"])]
    stored = [tensor(numbers(10, 6), "table"), tensor(W, "w", "t0")]
    return model(nodes, [info("i", ["N"], INT64)], [info("y", None)], stored)


def test_a_sample_that_the_engine_refuses_is_named_in_one_line(tmp_path: Path) -> None:
    made = built(tmp_path, {"i": np.arange(8)}, looked_up())
    engine = OrtEngine(str(tmp_path / "graph"), made, "relative")
    wrong = Batch({"i": np.array([1, 2, 99, 3])}, np.array([4, 0, 7, 5]))
    for ask in (engine.step, engine.evaluate, engine.dense, lambda batch: engine.ask_ahead(8, [batch])):
        with refusing(ModelError) as said:
            ask(wrong)
        assert "\n" not in str(said.value)
        assert "onnxruntime_src" not in str(said.value)


def test_whole_numbers_that_are_fed_are_kept_as_such(tmp_path: Path) -> None:
    """What the dense model is asked ahead is what it is asked batch by batch."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["h"]),
        make_node("Multinomial", ["x"], ["drawn"], sample_size=5),
        make_node("Cast", ["drawn"], ["f"], to=TensorProto.FLOAT),
        make_node("Mul", ["h", "f"], ["y"]),
    ]
    made = built(tmp_path, proto=model(nodes, [X], [info("y", None)], [tensor(W, "w", "t0")]))
    assert made["fed"] == ["drawn"]
    engine = OrtEngine(str(tmp_path / "graph"), made, "relative")
    batches = [Batch({"x": FEED["x"][start : start + 4]}, np.arange(start, start + 4)) for start in (0, 4)]
    engine.ask_ahead(8, batches)
    assert engine.step(batches[1]) < 1e-9


def test_a_graph_that_cannot_be_loaded_is_no_defect_of_ours(tmp_path: Path) -> None:
    made = built(tmp_path)
    (tmp_path / "graph" / "eval_model.onnx").write_bytes(b"nothing")
    with refusing(ModelError):
        OrtEngine(str(tmp_path / "graph"), made, "relative")


@pytest.mark.parametrize("operator", ["Div", "Mod"])
def test_whole_numbers_divided_by_zero_do_not_end_the_process(tmp_path: Path, operator: str) -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["h"]),
        make_node(operator, ["seven", "k"], ["q"]),
        make_node("Cast", ["q"], ["f"], to=TensorProto.FLOAT),
        make_node("Add", ["h", "f"], ["y"]),
    ]
    stored = [tensor(W, "w", "t0"), tensor(np.full(5, 7), "seven")]
    proto = model(nodes, [X, info("k", ["N", 5], INT64)], [info("y", None)], stored)
    k = np.full((8, 5), 2)
    assert built(tmp_path / "zero", {"x": FEED["x"], "k": k * (np.arange(8)[:, None] % 2)}, proto)["still"] == []
    made = built(tmp_path, {"x": FEED["x"], "k": k}, proto)
    k[1] = 0
    engine = OrtEngine(str(tmp_path / "graph"), made, "relative")
    batch = Batch({"x": FEED["x"][:4], "k": k[:4]})
    assert engine.step(batch) < 1e-9
    dense = engine.dense(batch)["y"]
    assert np.allclose(dense[0], FEED["x"][0] @ W + (3 if operator == "Div" else 1), atol=1e-5)


def test_chance_is_fed_by_the_dense_model(tmp_path: Path) -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["h"]),
        make_node("RandomNormalLike", ["h"], ["noise"]),
        make_node("Add", ["h", "noise"], ["y"]),
    ]
    made = built(tmp_path, proto=model(nodes, [X], [info("y", None)], [tensor(W, "w", "t0")]))
    assert made["fed"] == ["noise"]
    assert made["proof"]["at_rest"] < 1e-6
