"""A child of the process that has loaded the libraries is a Python like any other, as far as tests can see."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from onnxsparse import version
from onnxsparse.engines.ort import worker
from tests import warm

SAYS = """
import os, sys, tempfile
print(os.getcwd(), os.environ["SAID"], sys.argv, tempfile.gettempdir())
print("wrong", file=sys.stderr)
sys.exit(3)
"""


def test_words_surroundings_output_and_status(tmp_path: Path) -> None:
    surroundings = {"SAID": "so", "TMPDIR": str(tmp_path)}
    done = warm.python(["-c", SAYS, "a", "b c"], cwd=tmp_path, env=surroundings)
    assert (done.returncode, done.stderr) == (3, "wrong\n")
    assert done.stdout == f"{tmp_path} so ['-c', 'a', 'b c'] {tmp_path}\n"


def test_scripts_find_what_lies_beside_them(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("FOUND = 'found'\n")
    (tmp_path / "script.py").write_text("import sys, beside\nprint(__name__, beside.FOUND, sys.argv[1:])\n")
    done = warm.python([str(tmp_path / "script.py"), "one"])
    assert (done.returncode, done.stdout) == (0, "__main__ found ['one']\n")
    assert warm.python(["-m", "script"], env={"PYTHONPATH": str(tmp_path)}).stdout == "__main__ found []\n"


def test_an_error_is_told() -> None:
    done = warm.python(["-c", "raise ValueError('so')"])
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: so\n")


def test_filters_of_warnings_are_heeded() -> None:
    warns = "import warnings; warnings.warn('so', UserWarning); print('lived')"
    assert warm.python(["-W", "error", "-c", warns]).stderr.endswith("UserWarning: so\n")
    assert warm.python(["-W", "error", "-W", "ignore:so:UserWarning", "-c", warns]).stdout == "lived\n"


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a system that kills")
def test_it_dies_alone() -> None:
    assert warm.python(["-c", f"import os; os.kill(os.getpid(), {signal.SIGKILL:d})"]).returncode == -signal.SIGKILL
    assert warm.python(["-c", "print(1)"]).stdout == "1\n"


@pytest.mark.skipif(not warm.AVAILABLE, reason="Pythons start as ever")
def test_what_takes_too_much_work_is_killed() -> None:
    assert warm.python(["-c", "while True: pass"], work=1).returncode < 0


def test_what_a_test_changes_stays_in_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "__version__", "none")
    monkeypatch.setenv("SAID", "so")
    code = "import os; from onnxsparse.version import __version__ as known; print(known != 'none', os.environ['SAID'])"
    assert warm.python(["-c", code]).stdout == "True so\n"


def test_each_draws_numbers_of_its_own() -> None:
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    one, other = (warm.python(["-c", code]).stdout.split() for _ in range(2))
    assert not set(one) & set(other)


@pytest.mark.skipif(not warm.AVAILABLE, reason="workers start as ever")
def test_a_worker_has_its_folder_its_log_and_its_status(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "__init__.py").touch()
    (tmp_path / "jobs" / "one.py").write_text(
        "import os, tempfile\n"
        "def main(word):\n    print(word, os.getcwd() == tempfile.gettempdir(), flush=True)\n    return 5\n"
    )
    assert worker.run is warm.worker_run
    command = [os.devnull, "-m", worker.__name__, "jobs.one", "said"]
    assert worker.run(command, str(tmp_path), str(tmp_path)) == 5
    assert (tmp_path / "log").read_text() == "said True\n"
