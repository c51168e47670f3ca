"""Folders of one process: nobody else claims them while it lives, and what a killed one left is collected."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxsparse.engines import working_dirs
from onnxsparse.engines.working_dirs import claimed, collect, temporary
from onnxsparse.errors import OutputError
from tests.messages import refusing

ROOT = str(Path(working_dirs.__file__).parents[2])
HOLDER = """
import sys, time
from onnxsparse.engines.working_dirs import claimed, temporary
with {room} as folder:
    print(folder or "", flush=True)
    time.sleep(6000)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def holders() -> Iterator[list[subprocess.Popen[str]]]:
    made: list[subprocess.Popen[str]] = []
    yield made
    for process in made:
        process.kill()
        process.communicate()


def holding(holders: list[subprocess.Popen[str]], room: str, temporary_folder: Path) -> str:
    """What another process prints that holds a room."""
    environment = {**os.environ, "PYTHONPATH": ROOT, "TMPDIR": str(temporary_folder), "TMP": str(temporary_folder)}
    command = [sys.executable, "-c", HOLDER.format(room=room)]
    holders.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    assert holders[-1].stdout is not None
    return holders[-1].stdout.readline().strip()


def killed(holders: list[subprocess.Popen[str]]) -> None:
    holders[-1].kill()
    holders[-1].wait()


def aged(folder: str) -> None:
    then = time.time() - 2 * working_dirs.YOUNG
    os.utime(folder, (then, then))


def test_a_temporary_folder_is_gone_afterwards(place: Path) -> None:
    with temporary() as folder:
        assert Path(folder).parent == place
        (Path(folder) / "file").write_text("content")
    assert os.listdir(place) == []


def test_what_a_killed_process_left_is_collected(place: Path, holders: list[subprocess.Popen[str]]) -> None:
    left = holding(holders, "temporary()", place)
    aged(left)
    collect()
    assert os.path.isdir(left)  # it lives
    killed(holders)
    with temporary():
        assert not os.path.exists(left)


def test_young_folders_and_those_of_others_stay(place: Path, holders: list[subprocess.Popen[str]]) -> None:
    left = holding(holders, "temporary()", place)
    killed(holders)
    (place / "onnxsparse-of-somebody").mkdir()
    aged(str(place / "onnxsparse-of-somebody"))
    (place / "kept").mkdir()
    (place / "onnxsparse-link").symlink_to(place / "kept")
    (place / "kept" / working_dirs.LOCK).write_text("")
    aged(str(place / "kept"))
    collect()
    assert os.path.isdir(left)
    assert sorted(os.listdir(place)) == sorted(
        [os.path.basename(left), "kept", "onnxsparse-link", "onnxsparse-of-somebody"]
    )


def test_folders_of_another_user_stay(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place / "onnxsparse-other"
    folder.mkdir()
    (folder / working_dirs.LOCK).write_text("")
    aged(str(folder))
    user = working_dirs._user()
    monkeypatch.setattr(working_dirs, "_user", lambda: user + 1)
    collect()
    assert folder.exists()
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    collect()
    assert not folder.exists()


def test_a_folder_has_one_run_at_a_time(tmp_path: Path, holders: list[subprocess.Popen[str]]) -> None:
    folder = tmp_path / "run"
    holding(holders, f"claimed({str(folder)!r})", tmp_path)
    with refusing(OutputError), claimed(str(folder)):
        pass
    killed(holders)
    with claimed(str(folder)), refusing(OutputError), claimed(str(folder)):
        pass
    with claimed(str(folder)):
        pass


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refusing(OutputError), claimed(str(tmp_path / "file" / "run")):
        pass


def test_file_systems_without_locks_are_used_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(handle: int) -> bool:
        raise OSError("no locks")

    monkeypatch.setattr(working_dirs, "_lock", none)
    with claimed(str(tmp_path)), claimed(str(tmp_path)):
        pass
