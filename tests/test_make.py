"""What `make test` runs and sums up: everything, whatever fails on the way; and the smaller selections of the tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

MAKEFILE = """
good:
\t@{python} -m pytest -q -p no:cacheprovider --junit-xml=$(RESULTS) good.py
mixed:
\t@{python} -m pytest -q -p no:cacheprovider --junit-xml=$(RESULTS) mixed.py
dies:
\t@{python} -m pytest -q -p no:cacheprovider --junit-xml=$(RESULTS) dies.py
linter:
\t@echo linted
strict:
\t@echo found; exit 3
"""
GOOD = "def test_one(): pass\ndef test_two(): pass\n"
MIXED = """
import pytest
def test_passes(): pass
def test_fails(): assert False
@pytest.mark.skip
def test_skipped(): pass
@pytest.fixture
def broken(): raise ValueError
def test_error(broken): pass
"""
DIES = "import os\ndef test_one(): pass\ndef test_two(): os._exit(7)\n"


def summed_up(folder: Path, repository: Path, *targets: str) -> tuple[int, list[str]]:
    """The exit code and the lines of a Makefile's targets."""
    (folder / "Makefile").write_text(MAKEFILE.format(python=sys.executable))
    for name, text in {"good": GOOD, "mixed": MIXED, "dies": DIES}.items():
        (folder / f"{name}.py").write_text(text)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "PYTEST"))}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "yes"  # to load them takes longer than the tests
    command = [sys.executable, str(repository / "tools" / "run_tests.py"), *targets]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(
    ("targets", "code", "last"),
    [
        (["good"], 0, "2 passed, 0 failed, 0 skipped"),
        (["linter", "good"], 0, "2 passed, 0 failed, 0 skipped"),
        (["mixed", "good"], 1, "3 passed, 2 failed, 1 skipped"),
        (["dies", "good"], 1, "2 passed, 1 failed, 0 skipped"),
        (["strict", "good"], 1, "2 passed, 1 failed, 0 skipped"),
        (["no such target", "good", "linter"], 1, "2 passed, 1 failed, 0 skipped"),
    ],
)
def test_everything_runs_and_is_summed_up(
    targets: list[str], code: int, last: str, tmp_path: Path, repository: Path
) -> None:
    found, lines = summed_up(tmp_path, repository, *targets)
    assert (found, lines[-1]) == (code, last)
    told = [line.split("  ")[0] for line in lines[-1 - len(targets) : -1]]
    assert told == targets
    assert ("linted" in lines) == ("linter" in targets)


def recipe(repository: Path, target: str, *given: str) -> list[str]:
    """The commands of a target, and of all that it needs."""
    command = ["make", "--dry-run", "--no-print-directory", "--always-make", target, *given]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module", autouse=True)
def make() -> None:
    try:
        subprocess.run(["make", "--version"], capture_output=True, check=True)
    except OSError:
        pytest.skip("needs make")


def test_both_halves_are_one_run(repository: Path) -> None:
    """One failure in the first must not keep the second from running, so both are handed to the script at once."""
    (line,) = (line for line in recipe(repository, "test") if "run_tests.py" in line)
    assert re.search(r"run_tests.py test-venv .*test-runtime", line)
    (line,) = (line for line in recipe(repository, "check") if "run_tests.py" in line)
    assert re.search(r"run_tests.py test-venv .*test-runtime.* test-torch ruff format mypy$", line)


@pytest.mark.parametrize("target", ["test-venv", "test-runtime", "test-torch"])
def test_every_half_tells_its_results(target: str, repository: Path) -> None:
    (line,) = (line for line in recipe(repository, target, "RESULTS=here.xml") if "-m pytest" in line)
    assert "--junit-xml=here.xml" in line
    assert ("--other-runtime" in line) == (target == "test-runtime")
    assert ("--beside-other-runtime" in line) == (target == "test-venv")


class Item:
    """As much of a test as its selection asks for."""

    def __init__(self, tests: Path, module: str, name: str) -> None:
        self.path, self.name = tests / module, name


def test_two_runtimes_share_random_graphs_and_one_of_them_has_each(selections: ModuleType, repository: Path) -> None:
    items = [Item(repository / "tests", "test_make.py", "test_it")]
    for place in selections.SHARED:
        module, _, name = place.partition("::")
        items += [Item(repository / "tests", module, f"{name}[{part}]") for part in range(8)]
    halves = [{*selections._every_other_shared(items, first)} for first in (0, 1)]
    assert halves[0] & halves[1] == {items[0]}
    assert halves[0] | halves[1] == {*items}
    assert len(halves[0]) == len(halves[1])


def test_ci_runs_what_make_checks(repository: Path) -> None:
    script = repository / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "exec make check"


@pytest.fixture
def selections(pytestconfig: pytest.Config, repository: Path) -> ModuleType:
    """tests/conftest.py as pytest has it."""
    place = str(repository / "tests" / "conftest.py")
    (found,) = (one for one in pytestconfig.pluginmanager.get_plugins() if getattr(one, "__file__", "") == place)
    return found


def test_what_selects_modules_names_some(selections: ModuleType, repository: Path) -> None:
    tests = repository / "tests"
    modules = [path.relative_to(tests).as_posix() for path in tests.rglob("test_*.py")]
    for start in (*selections.LENGTHY, *selections.WITHOUT_RUNTIME, *selections.ABOUT_TESTS, *selections.SHARED):
        module, _, name = start.partition("::")
        named = [one for one in modules if one.startswith(module)]
        assert named, start
        assert not name or any(f"def {name}" in (tests / one).read_text(encoding="utf-8") for one in named), start
    for one in modules:
        if one.startswith(
            selections.WITHOUT_RUNTIME
        ):  # a test that only one environment runs is one of that environment
            text = (tests / one).read_text(encoding="utf-8")
            assert not re.search(r"library\.available|importorskip\(.(onnxruntime|torch)", text), one
