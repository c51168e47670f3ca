"""A process that is killed while it gives several files their names: the next one puts it right."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse import files
from onnxsparse.files import Staged
from tests import warm

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are killed")

KILLED = """
import os, signal, sys
import onnxsparse as osp

calls = [int(sys.argv[1])]

def counted(real):
    def call(*given, **named):
        if calls[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        calls[0] -= 1
        return real(*given, **named)
    return call

from onnxsparse import files
commit = files.Staged.commit

def killing(self):
    for name in ("replace", "link", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
    commit(self)

files.Staged.commit = killing
osp.prune(sys.argv[2], output=sys.argv[3], pattern="2:4", overwrite=sys.argv[4] == "yes")
"""


def external(path: Path, seed: int, shape=(64, 32)) -> Path:
    weight = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, shape[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, shape[1]])],
        [numpy_helper.from_array(weight, "w")],
    )
    onnx.save(
        helper.make_model(graph), str(path), save_as_external_data=True, location=path.name + ".data", size_threshold=0
    )
    return path


def split(path: Path, seed: int, shape=(64, 32)) -> Path:
    """The same with a second weight, and a data file for each."""
    external(path, seed, shape)
    whole = onnx.load(path)
    (path.parent / f"{path.name}.data").unlink()
    second = numpy_helper.from_array(np.random.default_rng(seed + 7).standard_normal((32, 32)).astype(np.float32), "v")
    whole.graph.initializer.append(second)
    whole.graph.node.append(helper.make_node("MatMul", ["y", "v"], ["z"]))
    whole.graph.output[0].name = "z"
    for tensor in whole.graph.initializer:
        name = f"{path.name}.{tensor.name}"
        path.with_name(name).write_bytes(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=name)
    path.write_bytes(whole.SerializeToString())
    return path


def killed(at: int, source: Path, target: Path, overwrite: bool, repository: Path) -> bool:
    words = ["-c", KILLED, str(at), str(source), str(target), "yes" if overwrite else "no"]
    done = warm.python(words, env={**os.environ, "PYTHONPATH": str(repository)})
    assert done.returncode in (0, -9), done.stderr
    return done.returncode == -9


def state(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("case", ["in place", "in place again", "over another", "new"])
def test_killed_at_any_moment_all_files_are_of_one_model(
    case: str, several: bool, tmp_path: Path, repository: Path
) -> None:
    at, alive, made = 0, True, split if several else external
    while alive:
        folder = tmp_path / f"{case}-{at}"
        folder.mkdir()
        source = made(folder / "m.onnx", 1)
        if case == "in place again":
            osp.fold_masks(source, output=source, overwrite=True)  # now its data has its name
        target = source if case.startswith("in place") else folder / "out.onnx"
        if case == "over another":
            osp.prune(made(folder / "other.onnx", 2), output=target, pattern="1:4")
        before = state(folder)
        alive = killed(at, source, target, case != "new", repository)
        if target.exists() or list(folder.glob("*.journal")):
            report = osp.inspect(target).report
        after = {name: data for name, data in state(folder).items() if ".onnxsparse-" not in name}
        if before != after:
            assert osp.verify(target).report.ok
            assert report.row("w").zeros == 64 * 32 // 2
            assert not list(folder.rglob(".onnxsparse-*")), case
            assert {name: after[name] for name in before if "onnx.data" not in name and name != target.name} == {
                name: data for name, data in before.items() if "onnx.data" not in name and name != target.name
            }
        at += 1
    assert at > 4


def test_leftovers_go_with_the_next_run_to_the_same_place(tmp_path: Path, repository: Path) -> None:
    source, target = external(tmp_path / "m.onnx", 1), tmp_path / "out.onnx"
    assert killed(0, source, target, False, repository)
    stranger = tmp_path / ".onnxsparse-00000000-000000000000.part"
    stranger.write_bytes(b"of another target")
    assert len(list(tmp_path.glob(".onnxsparse-*.part"))) == 3
    osp.prune(source, output=target, pattern="2:4", overwrite=True)
    assert list(tmp_path.glob(".onnxsparse-*")) == [stranger]


def test_what_a_living_writer_writes_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    with Staged() as first, first.create(str(target)) as file:
        file.write(b"first")
        file.close()
        with Staged() as second:
            with second.create(str(target)) as other:
                other.write(b"second")
            second.commit()
        first.commit()
    assert target.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["out.onnx"]


def test_a_living_writer_is_waited_for(tmp_path: Path) -> None:
    source = external(tmp_path / "m.onnx", 1)
    real = os.path.realpath(source)
    began, done = threading.Event(), []

    def write() -> None:
        with files.journal([files.Move(real + ".none", real), files.Move(real + ".none", real)], True):
            began.set()
            threading.Event().wait(0.3)
            done.append(True)

    thread = threading.Thread(target=write)
    thread.start()
    began.wait()
    osp.inspect(source)
    assert done
    thread.join()


PART = ".onnxsparse-00000000-000000000000.part"


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "[" * 100_000, '{"overwrite": true, "files": [["../a.part", "m.onnx", ""]]}',
        json.dumps({"overwrite": True, "files": [[PART, "\ud800", ""]]}),
        json.dumps({"overwrite": True, "files": [[PART, "a\0b", ""]]}),
    ],
)  # fmt: skip
def test_a_journal_that_is_none_of_ours_moves_nothing(content: str, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    source = external(inner / "m.onnx", 1)
    (tmp_path / "a.part").write_bytes(b"not a model")
    journal = inner / f".onnxsparse-{files.mark_of(str(source))}.journal"
    journal.write_text(content)
    osp.inspect(source)
    assert (tmp_path / "a.part").exists()
    assert not journal.exists()


def test_a_journal_moves_nothing_out_of_its_folder(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    source = external(inner / "m.onnx", 1)
    part = inner / ".onnxsparse-00000000-000000000000.part"
    part.write_bytes(b"bad")
    journal = inner / f".onnxsparse-{files.mark_of(str(source))}.journal"
    for real, spare in (("../victim", ""), ("m.onnx", "../victim"), ("/victim", "")):
        (tmp_path / "victim").write_text("kept")
        journal.write_text(json.dumps({"overwrite": True, "files": [[part.name, real, spare]]}))
        osp.inspect(source)
        assert (tmp_path / "victim").read_text() == "kept"
        assert part.exists()


@pytest.mark.parametrize("known", [0, 1, 2])
def test_a_journal_that_came_with_a_folder_moves_nothing(known: int, tmp_path: Path) -> None:
    """Whoever packs an archive does not know the inodes that its files get: with both of them it would be ours."""
    source = external(tmp_path / "m.onnx", 1)
    part, victim = tmp_path / PART, tmp_path / "notes.txt"
    part.write_bytes(b"theirs")
    victim.write_text("kept")
    journal = tmp_path / f".onnxsparse-{files.mark_of(str(source))}.journal"
    journal.write_text("")
    inodes = [journal.stat().st_ino if known > 0 else 1, part.stat().st_ino if known > 1 else 2]
    journal.write_text(json.dumps({"overwrite": True, "inodes": inodes, "files": [[PART, "notes.txt", ""]]}))
    osp.inspect(source)
    assert victim.read_text() == ("theirs" if known > 1 else "kept")
    assert not journal.exists()
