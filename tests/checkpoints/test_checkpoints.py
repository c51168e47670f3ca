"""Checkpoints: what was saved comes back bit for bit, and nothing that happens to a writer loses an earlier one."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxsparse import checkpoints as writing
from onnxsparse.checkpoints import claim, clean, newest, save
from onnxsparse.errors import OptionError, OutputError
from tests.messages import refusing

ARRAYS = {
    "conv1/weight:0;a\\b": np.arange(12, dtype=np.float32).reshape(3, 4),
    "n" * 500: np.arange(5, dtype=np.uint16),
    "": np.array([True, False]),
    "Ünïcode\n\udc80": np.float64(np.pi),
    "../../outside": np.zeros((0, 3), np.int8),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "backwards": np.arange(10)[::-2],
    "big-endian": np.arange(4, dtype=">i4"),
}
FACTS = {"epoch": 3, "loss": 0.1 + 0.2, "nothing": None, "words": ["a", {"b": True}], "nan": float("nan"), "big": 2**70}
DTYPES = st.sampled_from(
    ["bool", "uint8", "uint16", "uint32", "int8", "int64", "float16", "float32", "float64", "complex64", ">f4"]
)


def names(folder: Path) -> list[str]:
    """All but the mark that makes the folder one of checkpoints."""
    return sorted(entry.name for entry in folder.iterdir() if entry.name != writing.MARK)


def same(found, wanted) -> bool:
    wanted = np.asarray(wanted)
    return found.dtype == wanted.dtype and found.shape == wanted.shape and found.tobytes() == wanted.tobytes()


def test_all_comes_back(tmp_path: Path) -> None:
    path = save(str(tmp_path), 12, ARRAYS, FACTS)
    assert names(tmp_path) == ["step-00000012"] == [os.path.basename(path)]
    found = newest(str(tmp_path))
    assert found is not None
    assert found.step == 12
    assert list(found.arrays) == list(ARRAYS)
    assert all(same(found.arrays[name], array) for name, array in ARRAYS.items())
    assert {key: value for key, value in found.facts.items() if key != "nan"} == {
        key: value for key, value in FACTS.items() if key != "nan"
    }
    assert np.isnan(found.facts["nan"])
    assert found.arrays["fortran"].flags.writeable


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(st.text(max_size=20), hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, min_side=0)), max_size=4),
    st.dictionaries(
        st.text(), st.recursive(st.none() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists)
    ),
    st.integers(0, 10**10),
)
def test_anything_comes_back(tmp_path_factory, arrays, facts, step: int) -> None:
    folder = str(tmp_path_factory.mktemp("any"))
    save(folder, step, arrays, facts)
    found = newest(folder)
    assert found is not None
    assert (found.step, found.facts) == (step, facts)
    assert set(found.arrays) == set(arrays)
    assert all(same(found.arrays[name], array) for name, array in arrays.items())


def test_blocks_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "BLOCK", 100)
    array = np.arange(999, dtype=np.int32)
    path = save(str(tmp_path), 1, {"a": array, "b": array[::2]}, {})
    found = newest(str(tmp_path))
    assert found is not None
    assert same(found.arrays["a"], array)
    assert same(found.arrays["b"], array[::2])
    content = json.loads((Path(path) / "manifest.json").read_text())
    data = (Path(path) / "arrays.bin").read_bytes()
    assert content["version"] == 1
    assert content["files"]["arrays.bin"] == {"size": len(data), "crc32": zlib.crc32(data)}


def test_the_newest_counts(tmp_path: Path) -> None:
    assert newest(str(tmp_path)) is None
    assert newest(str(tmp_path / "nothing")) is None
    for step in (5, 100, 20, 123456789):
        save(str(tmp_path), step, {"x": np.array(step)}, {})
    found = newest(str(tmp_path))
    assert found is not None
    assert found.step == found.arrays["x"] == 123456789


def test_the_same_step_again_replaces(tmp_path: Path) -> None:
    for number in range(3):
        save(str(tmp_path), 7, {"x": np.array(number)}, {})
        found = newest(str(tmp_path))
        assert found is not None
        assert found.arrays["x"] == number
        assert len(names(tmp_path)) == 1


@pytest.mark.parametrize("odd", [np.array([object()]), np.array(["text"]), np.zeros(2, "M8[s]"), np.zeros(2, "i4,i4")])
def test_only_plain_numbers_are_saved(odd, tmp_path: Path) -> None:
    with refusing(OptionError):
        save(str(tmp_path), 1, {"x": odd}, {})
    with refusing(OptionError):
        save(str(tmp_path), 1, {}, {"x": object()})
    assert names(tmp_path) == []


# -- damage


def two(folder: Path) -> Path:
    """The folder of the second of two checkpoints."""
    save(str(folder), 1, {"x": np.arange(3.0)}, {})
    return Path(save(str(folder), 2, ARRAYS, {"loss": 0.5}))


def content_of(folder: Path) -> tuple[object, ...]:
    found = newest(str(folder))
    assert found is not None
    return found.step, found.facts, [(name, array.tobytes()) for name, array in found.arrays.items()]


def step_found(folder: Path) -> tuple[int, list[str]]:
    notes: list[str] = []
    found = newest(str(folder), notes)
    assert found is not None
    return found.step, notes


@pytest.mark.parametrize("name", ["arrays.bin", "manifest.json"])
def test_every_flipped_byte_is_seen(name: str, tmp_path: Path) -> None:
    path = two(tmp_path) / name
    data, original = path.read_bytes(), content_of(tmp_path)
    for place in range(0, len(data), 1 if name == "arrays.bin" else 3):
        for bit in (1, 32):
            path.write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
            step, notes = step_found(tmp_path)
            if step == 2:  # another way to write the same: a space, or a digit of a letter's number
                assert name == "manifest.json"
                assert content_of(tmp_path) == original
            else:
                assert (step, len(notes)) == (1, 1)
                assert "passed over" in notes[0]


@pytest.mark.parametrize("name", ["arrays.bin", "manifest.json"])
def test_missing_and_truncated_files(name: str, tmp_path: Path) -> None:
    path = two(tmp_path) / name
    data = path.read_bytes()
    for length in [*range(0, len(data), 37), len(data) - 1]:
        path.write_bytes(data[:length])
        assert step_found(tmp_path)[0] == 1
    path.write_bytes(data + b"\0")
    assert step_found(tmp_path)[0] == 1
    path.unlink()
    assert step_found(tmp_path)[0] == 1
    path.mkdir()
    assert step_found(tmp_path)[0] == 1


def test_newer_versions_and_foreign_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxsparse import checkpoints

    save(str(tmp_path), 1, ARRAYS, {})
    with monkeypatch.context() as later:
        later.setattr(checkpoints, "VERSION", 2)
        save(str(tmp_path), 2, ARRAYS, {})
    (tmp_path / "step-00000009").mkdir()
    (tmp_path / "step-00000010").write_text("a file")
    (tmp_path / "notes.txt").write_text("mine")
    step, notes = step_found(tmp_path)
    assert step == 1
    assert "version 2" in notes[-1]
    clean(str(tmp_path))
    assert "notes.txt" in names(tmp_path)


def test_arrays_that_go_while_they_are_read(tmp_path: Path) -> None:
    path = Path(save(str(tmp_path), 1, ARRAYS, {}))
    found = newest(str(tmp_path))
    assert found is not None
    (path / "arrays.bin").write_bytes(b"")
    with refusing(OptionError):
        found.arrays["fortran"]
    (path / "arrays.bin").unlink()
    with refusing(OptionError):
        found.arrays["fortran"]


# -- tidying


def test_cleaning_keeps_the_newest_whole_ones(tmp_path: Path) -> None:
    for step in range(6):
        save(str(tmp_path), step, ARRAYS, {})
    (tmp_path / "step-00000005" / "arrays.bin").unlink()
    clean(str(tmp_path), keep=2)
    assert names(tmp_path) == ["step-00000003", "step-00000004"]
    clean(str(tmp_path), keep=0)
    assert names(tmp_path) == ["step-00000004"]
    clean(str(tmp_path / "nothing"))


def leftover(folder: Path, name: str, age: float) -> Path:
    path = folder / name
    path.mkdir()
    (path / "arrays.bin").write_bytes(b"half")
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_what_killed_writers_leave_is_removed(tmp_path: Path) -> None:
    claim(str(tmp_path))
    leftover(tmp_path, f".writing-{1:016x}", 10)
    leftover(tmp_path, f".removed-{2:016x}", 0)
    save(str(tmp_path), 1, ARRAYS, {})
    assert names(tmp_path) == ["step-00000001"]


def test_writers_that_live_are_left_alone(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    living = [f".writing-{number:016x}" for number in (1, 2)]
    with open(leftover(tmp_path, living[0], 10) / "arrays.bin") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.mkdir(tmp_path / living[1])
        clean(str(tmp_path))
        assert names(tmp_path) == living


FOREIGN = ("step-00000099/my.txt", "step-00000098/manifest.json", ".removed-x/f", ".writing-notes/", "step-00000097/")


def foreign(folder: Path) -> list[str]:
    """Things of somebody else that are called like ours."""
    for name in FOREIGN:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).mkdir() if name.endswith("/") else (folder / name).write_text("{}")
    leftover(folder, f".removed-{7:016x}", 9999)
    (folder / f".removed-{7:016x}" / "more").write_text("mine")
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    before = foreign(tmp_path)
    for call in (claim, lambda folder: save(folder, 1, ARRAYS, {})):
        with refusing(OptionError):
            call(str(tmp_path))
    clean(str(tmp_path))
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == before


def test_what_is_not_ours_is_never_removed(tmp_path: Path) -> None:
    claim(str(tmp_path))
    before = foreign(tmp_path)
    for step in range(4):
        save(str(tmp_path), step, ARRAYS, {})
        clean(str(tmp_path), keep=1)
    after = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    files = {f"step-00000003/{name}" for name in ("arrays.bin", "manifest.json")}
    assert after == {*before, "step-00000003", *files}


def test_folders_that_may_be_used(tmp_path: Path) -> None:
    for name in (".gitkeep", ".lock"):
        (tmp_path / name).write_text("")
    claim(str(tmp_path))
    claim(str(tmp_path / "new" / "deep"))
    save(str(tmp_path / "old"), 1, ARRAYS, {})
    (tmp_path / "old" / writing.MARK).unlink()
    (tmp_path / "old" / "notes.txt").write_text("mine")
    claim(str(tmp_path / "old"))
    assert names(tmp_path / "old") == ["notes.txt", "step-00000001"]


def test_a_link_to_a_checkpoint_is_left_alone(tmp_path: Path) -> None:
    save(str(tmp_path / "other"), 1, ARRAYS, {})
    save(str(tmp_path / "own"), 5, ARRAYS, {})
    os.symlink(tmp_path / "other" / "step-00000001", tmp_path / "own" / "step-00000001")
    clean(str(tmp_path / "own"), keep=1)
    assert names(tmp_path / "own") == ["step-00000001", "step-00000005"]
    assert names(tmp_path / "other") == ["step-00000001"]


# -- writers that fail


@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir"])
def test_a_full_disk_costs_nothing_but_the_new_one(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two(tmp_path)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, call, full)
        with refusing(OutputError) as caught:
            save(str(tmp_path), 3, ARRAYS, {})
    assert "\n" not in str(caught.value)
    assert step_found(tmp_path) == (2, [])
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(writing, "_write_whole", interrupt)
        with pytest.raises(KeyboardInterrupt):
            save(str(tmp_path), 3, ARRAYS, {})
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refusing(OutputError):
        save(str(tmp_path / "file"), 1, {}, {})
    with refusing(OutputError):
        save(str(tmp_path / "file" / "inside"), 1, {}, {})
    assert newest(str(tmp_path / "file")) is None


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_a_device_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two(tmp_path)
    opened = open
    monkeypatch.setattr(
        "builtins.open",
        lambda path, mode="r", **more: opened("/dev/full" if mode == "xb" else path, mode.replace("x", "w"), **more),
    )
    with refusing(OutputError):
        save(str(tmp_path), 3, ARRAYS, {})
    monkeypatch.undo()
    assert step_found(tmp_path) == (2, [])


WRITER = """
import sys, numpy as np
from onnxsparse.checkpoints import clean, save
folder, name = sys.argv[1:]
for step in range(100000):
    save(folder, step, {name: np.full(300_000, step, np.int32), "same": np.full(7, step)}, {"step": step})
    clean(folder, keep=2)
    print(step, flush=True)
"""


def writer(folder: Path, name: str, repository: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    command = [sys.executable, "-c", WRITER, str(folder), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def stop(process: subprocess.Popen[str]) -> int:
    """Kill a writer; the last step that it said was saved."""
    process.send_signal(signal.SIGKILL)
    said = process.communicate()[0].split()
    return int(said[-1]) if said else -1


def demand_whole(folder: Path, saved: int) -> None:
    found = newest(str(folder))
    assert (found is None) == (saved < 0) or found is not None
    if found is not None:
        assert found.step >= saved
        assert found.facts["step"] == found.step
        assert all((found.arrays[name] == found.step).all() for name in found.arrays)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_killed_at_any_moment_the_newest_is_whole(tmp_path: Path, repository: Path) -> None:
    chance = random.Random(5)
    for number in range(8):
        folder = tmp_path / str(number)
        process = writer(folder, "x", repository)
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(chance.random() * 0.05)
        demand_whole(folder, max(stop(process), int(first)))
        for path in folder.glob(".writing-*"):
            os.utime(path, (0, 0))
        clean(str(folder))
        assert len(names(folder)) <= 2
        assert [path.name for path in folder.glob(".*")] == [writing.MARK]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_two_writers_at_once(tmp_path: Path, repository: Path) -> None:
    processes = [writer(tmp_path, name, repository) for name in ("one", "two")]
    saved_by_each = [0, 0]
    while min(saved_by_each) < 20:
        for place, process in enumerate(processes):
            assert process.stdout is not None
            saved_by_each[place] = int(process.stdout.readline())
        found = newest(str(tmp_path))
        if found is not None:
            assert found.facts["step"] == found.step
    saved = max(*saved_by_each, *(stop(process) for process in processes))
    found = newest(str(tmp_path))
    assert found is not None
    assert found.step >= saved
    assert all((found.arrays[name] == found.step).all() for name in found.arrays)


def test_threads_that_save_the_same_step(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def one(number: int) -> None:
        try:
            save(str(tmp_path), 3, {"x": np.full(1000, number)}, {})
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    found = newest(str(tmp_path))
    assert found is not None
    assert len(set(found.arrays["x"].tolist())) == 1
