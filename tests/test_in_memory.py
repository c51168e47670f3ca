"""Where the files of a whole run of the tests are, and that nothing of them stays."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import in_memory

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the system has no such place")


class Config:
    """As much of pytest's as is asked for."""

    def __init__(self, **options: Any) -> None:
        self.options, self.stash, self.option = options, pytest.Stash(), SimpleNamespace()

    def getoption(self, name: str, default: Any = None) -> Any:
        return self.options.get(name, default)


@pytest.fixture(autouse=True)
def _own_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in in_memory.NAMED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", "")  # what a test sets is taken back
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(in_memory, "ROOM", 0)


def left(place: Path) -> list[Path]:
    return [*place.glob(f"{in_memory.PREFIX}*")]


def test_a_run_in_several_processes_has_a_folder_there_until_it_ends(tmp_path: Path) -> None:
    config: Any = Config(numprocesses=2)
    in_memory.begin(config, tmp_path)
    (folder,) = left(tmp_path)
    assert os.environ["TMPDIR"] == tempfile.gettempdir() == str(folder)
    assert Path(config.option.basetemp).parent == folder
    (folder / "file").touch()
    in_memory.end(config)
    assert not left(tmp_path)
    assert "TMPDIR" not in os.environ
    assert tempfile.gettempdir() != str(folder)


@pytest.mark.parametrize("options", [{}, {"numprocesses": 0}, {"numprocesses": 2, "basetemp": "here"}])
def test_other_runs_stay_where_they_are(options: dict[str, Any], tmp_path: Path) -> None:
    config: Any = Config(**options)
    in_memory.begin(config, tmp_path)
    assert not left(tmp_path)
    in_memory.end(config)


def test_who_names_a_place_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    in_memory.begin(Config(numprocesses=2), tmp_path)  # type: ignore[arg-type]
    assert not left(tmp_path)


def test_without_room_or_place_files_are_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = Config(numprocesses=2)
    in_memory.begin(config, tmp_path / "none")
    monkeypatch.setattr(in_memory, "ROOM", 1 << 62)
    in_memory.begin(config, tmp_path)
    assert not left(tmp_path)
    assert not os.environ["TMPDIR"]


HOLDS = "import sys; from pathlib import Path; from tests import in_memory; in_memory._lock(Path(sys.argv[1])); "


def test_what_a_killed_run_left_is_removed_and_what_a_run_holds_stays(tmp_path: Path, repository: Path) -> None:
    names = ("of_a_killed_run", "held", "young")
    killed, held, young = (tmp_path / f"{in_memory.PREFIX}{name}" for name in names)
    for folder in (killed, held, young):
        folder.mkdir()
        (folder / "file").touch()
    for folder in (killed, held):
        os.utime(folder, (time.time() - 3600,) * 2)
    command = [sys.executable, "-c", HOLDS + "import os; os.kill(os.getpid(), 9)", str(killed)]
    subprocess.run(command, cwd=repository)
    lock = in_memory._lock(held)
    in_memory.remove_left(tmp_path)
    os.close(lock)
    assert not killed.exists()
    assert (held / "file").exists()
    assert (young / "file").exists()
