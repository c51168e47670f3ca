"""What all tests share: nothing depends on the machine or the shell, and smaller selections of them.

1. One thread, a terminal of 80 columns without colours, no property that fails by the clock.
2. `--quick` takes a sample: each 16th case of a test, each 32nd test of the modules that take long.
3. `--other-runtime` is for a second environment with another onnxruntime: it leaves out what has run in the first one
   and has nothing to do with onnxruntime. A test that runs a model cannot be left out: it fails in the first one.
4. `--beside-other-runtime` is for the first environment where there is a second one: of random graphs by the hundred,
   which are about our passes, each of the two judges every other test. Without it the first one judges all of them.
5. `--with-torch` is for an environment with torch: it leaves out what has run without it, which is each test that does
   not say `torch` in itself, in its cases or in its fixtures, in a module that does not need it as a whole.
"""

from __future__ import annotations

import difflib
import gc
import hashlib
import inspect
import json
import os
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Callable

import pytest
from hypothesis import HealthCheck, settings

from onnxsparse.passes import calibration_asked
from tests import in_memory, messages, warm

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
# What a shell or a launcher may have set and a command heeds: the width and colours of tables, and who is in a run.
for variable in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(variable, None)
for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONWARNINGS", "RESULTS"):
    os.environ.pop(variable, None)

# A busy machine is slow, not wrong.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def _no_joint_refit() -> None:
    """It takes seconds, and is tested where it is asked for: calibrations refit layer by layer alone by default."""
    calibration_asked.JOINT_STEPS = 0


HERE = Path(__file__).resolve().parent
CASES_APART, LENGTHY_APART = 16, 32
LENGTHY = (
    "calibration/test_statistics",
    "checkpoints/",
    "conformance/test_conformance_files",
    "conformance/test_conformance_mutat",
    "conformance/test_conformance_paths",
    "conformance/test_conformance_random",
    "conformance/test_random_paths",
    "dialects/",
    "engines/",
    "graph_room/test_growth",
    "property/",
    "recipes/test_recipe_run",
    "runs/",
    "test_compare",
    "test_finetune_",
    "test_killed_writers",
    "test_levels",
    "test_make",
    "test_modifier_guide",
    "test_plugin_guides",
    "test_sequences",
    "test_tools",
)
"""Modules that train, start a process or draw hundreds of examples in nearly every test."""
WITHOUT_RUNTIME = (
    "allocations/",
    "calibration/test_statistics",
    "channels/test_channels_cost",
    "channels/test_permutation_record",
    "checkpoints/",
    "conformance/test_conformance_broken",
    "conformance/test_conformance_discovery",
    "conformance/test_conformance_external",
    "conformance/test_conformance_faults",
    "conformance/test_conformance_files",
    "conformance/test_conformance_fold_check",
    "conformance/test_conformance_mutated",
    "conformance/test_conformance_patterns",
    "conformance/test_conformance_proof",
    "conformance/test_conformance_pruning",
    "conformance/test_conformance_renewal",
    "data/",
    "epochs/test_acts",
    "epochs/test_stored",
    "epochs/test_together",
    "graph_room/",
    "losses/",
    "metrics/",
    "models/test_batches",
    "modifiers/",
    "optimizers/",
    "patterns/",
    "property/",
    "rates/",
    "recipes/test_checking",
    "recipes/test_expressions",
    "recipes/test_format",
    "recipes/test_frame",
    "recipes/test_fuzzed",
    "recipes/test_places",
    "recipes/test_recipes",
    "recipes/test_round_trip",
    "report/",
    "runs/test_attempts",
    "runs/test_by_gradients",
    "runs/test_masks",
    "runs/test_resume",
    "runs/test_sparse_training",
    "schedules/",
    "scores/",
    "solvers/",
    "sparsers/",
    "targets/",
    "test_basis",
    "test_depthwise",
    "test_graphsurgeon.py::test_a_graph_comes_to",
    "test_house",
    "test_in_memory",
    "test_killed_writers",
    "test_make",
    "test_options",
    "test_output_layers",
    "test_permutation_search",
    "test_plan_files",
    "test_plugin_guides",
    "test_plugins",
    "test_public_names",
    "test_rank",
    "test_reports",
    "test_values",
)
"""Modules and tests in which nothing is run by onnxruntime, and nothing skipped that another environment runs."""
ABOUT_TESTS = ("channels/test_traps.py::test_a_weight_reordered_alone", "conformance/test_conformance_mutations")
"""They run models, and hold that other tests see what is wrong: one runtime is enough."""
SHARED = ("conformance/test_random_paths.py::test_random_paths",)
"""Random graphs by the hundred: each is judged by one of two runtimes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="a sample of the tests, in a minute")
    parser.addoption("--other-runtime", action="store_true", help="leave out what has nothing to do with onnxruntime")
    parser.addoption("--beside-other-runtime", action="store_true", help="leave out what --other-runtime judges")
    parser.addoption("--with-torch", action="store_true", help="leave out what has nothing to do with torch")
    parser.addoption("--update-golden", action="store_true", help="write the files of tests/golden anew")


@pytest.hookimpl(tryfirst=True)  # before pytest asks where its folders are
def pytest_configure(config: pytest.Config) -> None:
    in_memory.begin(config)
    if config.getoption("--update-golden"):
        if config.getoption("numprocesses", None):
            raise pytest.UsageError(
                "--update-golden writes files that all tests share: run it in one process, without -n"
            )
        os.environ[messages.UPDATE] = "yes"


def pytest_unconfigure(config: pytest.Config) -> None:
    in_memory.end(config)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What all tests share, libraries above all, is never looked through for garbage, what tests make less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.hookimpl(trylast=True)  # of what the marks leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    changing = [item.nodeid for item in items if re.search(r" at 0x[0-9a-f]{6}", item.nodeid)]
    if changing:
        raise pytest.UsageError(
            f"several processes run these tests: give it a name that is the same in each: {changing[0]}"
        )
    kept = items
    if config.getoption("--other-runtime"):
        kept = [item for item in kept if not _place(item).startswith((*WITHOUT_RUNTIME, *ABOUT_TESTS))]
        kept = _every_other_shared(kept, 1)
    if config.getoption("--beside-other-runtime"):
        kept = _every_other_shared(kept, 0)
    if config.getoption("--with-torch"):
        kept = [item for item in kept if _says_torch(item)]
    if config.getoption("--quick"):
        kept = _sample(kept)
    config.hook.pytest_deselected(items=list({*items} - {*kept}))
    items[:] = kept


@cache
def _needs_torch(module: ModuleType) -> bool:
    """Whether all tests of a module are skipped without torch, or its tests stand on something of its own with it."""
    lines = inspect.getsource(module).splitlines()
    return any("torch" in line and not line.startswith((" ", "@", "def ", "async ", ")", '"')) for line in lines)


def _says_torch(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    fixtures = item._fixtureinfo.name2fixturedefs
    functions = [item.function, *(one.func for name in item.fixturenames for one in fixtures.get(name, ()))]
    return (
        _needs_torch(item.module)
        or "torch" in item.nodeid.rpartition("::")[2]
        or any("torch" in inspect.getsource(inspect.unwrap(one)) for one in functions)
    )


def _module(item: pytest.Item) -> str:
    return _name(item.path)


def _place(item: pytest.Item) -> str:
    return f"{_module(item)}::{item.name}"


def _name(path: Path) -> str:
    return path.relative_to(HERE).as_posix()


def _every_other_shared(items: list[pytest.Item], first: int) -> list[pytest.Item]:
    shared = [item for item in items if _place(item).startswith(SHARED)]
    others = {*shared[1 - first :: 2]}
    return [item for item in items if item not in others]


def _sample(items: list[pytest.Item]) -> list[pytest.Item]:
    seen: Counter[str] = Counter()
    kept = []
    for item in items:
        lengthy = _module(item).startswith(LENGTHY)
        group = "lengthy" if lengthy else item.nodeid.partition("[")[0]
        if seen[group] % (LENGTHY_APART if lengthy else CASES_APART) == 0:
            kept.append(item)
        seen[group] += 1
    return kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    runtime = sys.modules.get("onnxruntime")
    if runtime is None or not _place(item).startswith(WITHOUT_RUNTIME):
        return (yield)

    def refuse(*_: object, **__: object) -> None:
        pytest.fail(f"it runs a model: take {_place(item)} out of WITHOUT_RUNTIME in tests/conftest.py", pytrace=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "InferenceSession", refuse)
        return (yield)


SENT = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGCHLD")


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """Signals do what they do in a shell's foreground, here and in the processes that a test starts.

    What a shell starts in the background ignores SIGINT, under nohup SIGHUP, and both are handed on to children: Python
    then has no KeyboardInterrupt. So are blocked signals. Only while a test runs that sends some: the other tests
    stay as whoever started them wants it.
    """
    numbers = {getattr(signal, name) for name in SENT if hasattr(signal, name)}
    usual = {number: signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL for number in numbers}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers) if hasattr(signal, "pthread_sigmask") else set()
    yield
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for number, handler in before.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


@pytest.fixture(scope="session", autouse=True)
def _folders_of_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    messages.FOLDERS[str(tmp_path_factory.getbasetemp())] = "TESTS_FOLDER"


@pytest.fixture(autouse=True)
def _refusals_of_a_test() -> None:
    messages.begin()


@pytest.fixture
def golden(pytestconfig: pytest.Config) -> Callable[[str, str], None]:
    """Holds a text against a file of tests/golden, or writes it there with `--update-golden`."""

    def compare(name: str, text: str) -> None:
        path = HERE / "golden" / name
        if pytestconfig.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        expected = path.read_text(encoding="utf-8").splitlines()
        differences = "\n".join(difflib.unified_diff(expected, text.splitlines(), str(path), "now", lineterm="", n=1))
        assert not differences, f"wanted so? then run the test again with --update-golden\n{differences}"

    return compare


@pytest.fixture(scope="session")
def made_graphs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Makes training graphs of onnxruntime-training, each once: the same job gives the same graph."""
    from onnxsparse.engines.ort import building  # it loads numpy, which looks at the variables above

    known: dict[str, dict[str, Any]] = {}
    home, make = tmp_path_factory.mktemp("graphs"), building._made

    def made(folder: str, spec: Any, model: Any, samples: Any, check: bool) -> dict[str, Any]:
        parts = [spec.to_json(), building._of_samples(samples), str(check)]
        digest = hashlib.sha256(model.SerializeToString(deterministic=True))
        digest.update("\n".join([*parts, *samples]).encode())
        key = digest.hexdigest()
        if key in known:
            shutil.copytree(home / key, folder, dirs_exist_ok=True)
        else:
            found = make(folder, spec, model, samples, check)
            shutil.copytree(folder, home / key)
            known[key] = json.loads(json.dumps(found))
        return dict(json.loads(json.dumps(known[key])))

    return made


@pytest.fixture(scope="module", autouse=True)
def _shared_graphs(request: pytest.FixtureRequest, made_graphs: Callable[..., dict[str, Any]]) -> Iterator[None]:
    """Training graphs are made once for all tests but those of how they are made."""
    if _name(request.path).startswith("engines/ort/"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onnxsparse.engines.ort.building._made", made_graphs)
        yield


@pytest.fixture(scope="module", autouse=True)
def _warm_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers are children of a process that has loaded the libraries, but where tests are about workers."""
    if not warm.AVAILABLE or _name(request.path).startswith(warm.COLD):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onnxsparse.engines.ort.worker.run", warm.worker_run)
        yield


@pytest.fixture(scope="module")
def short_searches() -> Iterator[None]:
    """For modules about what moves along with channels, not about how good an order is: a tenth of the search."""
    from onnxsparse.permutation_search import EFFORTS, Effort

    short = {
        name: Effort(one.per_score / 10, (one.limits[0] / 10, one.limits[1] / 10), (4, 15))
        for name, one in EFFORTS.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, effort in short.items():
            patch.setitem(EFFORTS, name, effort)
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def digits_cnn(repository: Path) -> Path:
    """The small trained network that ships with the project."""
    return repository / "models" / "digits_cnn.onnx"
