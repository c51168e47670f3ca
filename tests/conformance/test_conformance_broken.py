"""Files that are no models, or models that lie: one line, exit 2, nothing written, no trace of Python, in time."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from graphs import broken, broken_strings, broken_structure, broken_tensors
from graphs.expectations import EVERYTHING

from tests import warm

cli: Any = pytest.importorskip("onnxsparse.cli")

LIMIT_SECONDS = 40
DEEP = [name for name in (*broken.FATAL, *broken.ODD) if name.startswith("nested_")]
FATAL = [name for name in broken.FATAL if name not in DEEP]
ODD = [name for name in broken.ODD if name not in DEEP]
ONLY_PRUNE_REFUSES = ("tensor_nan", "tensor_infinite")
ALLOW = ["--allow", ",".join(EVERYTHING)]

# Importing a module of writers is what fills the two tables.
WRITERS = (broken_tensors, broken_structure, broken_strings)


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    def stop(*_: object) -> None:
        pytest.fail(f"more than {LIMIT_SECONDS} seconds", pytrace=False)

    before = signal.signal(signal.SIGPROF, stop)  # of this process's own work: a busy machine is slow, not wrong
    signal.setitimer(signal.ITIMER_PROF, LIMIT_SECONDS)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def snapshot(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(one), one.lstat().st_mtime_ns) for one in folder.rglob("*"))


def assert_one_clear_line(code: int, err: str) -> None:
    assert code == 2
    assert "Traceback" not in err
    assert "internal error" not in err, err
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1, err
    assert 10 < len(lines[0]) < 1000
    assert all(letter.isprintable() for letter in lines[0]), repr(lines[0])


@contextlib.contextmanager
def naming(command: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{command}: {error}") from error


COMMANDS = ["inspect", "prune", "verify", "mask", "fold", "plan"]


def arguments(command: str, path: Path, out: Path) -> list[str]:
    rule = ["--pattern", "2:4", *ALLOW] if command in ("prune", "mask", "plan") else ["--pattern", "2:4"]
    if command in ("inspect", "fold"):
        rule = []
    return [command, str(path), *rule, *([] if command in ("inspect", "verify") else ["-o", str(out)])]


@pytest.mark.parametrize("name", FATAL)
def test_refused_with_one_line(name: str, tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "case").mkdir()
    (tmp_path / "out").mkdir()
    path = broken.FATAL[name](tmp_path / "case")
    before = snapshot(tmp_path)
    # What only ranks the values has to refuse those that have no rank.
    for command in ["prune"] if name in ONLY_PRUNE_REFUSES else COMMANDS:
        code = cli.main(arguments(command, path, tmp_path / "out" / "new.onnx"))
        out, err = capfd.readouterr()
        with naming(command):
            assert_one_clear_line(code, err)
            assert "Traceback" not in out
            assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ODD)
def test_odd_is_refused_or_coped_with(name: str, tmp_path: Path, capfd: Any) -> None:
    """What copes writes a file that parses; what does not writes nothing."""
    (tmp_path / "case").mkdir()
    path = broken.ODD[name](tmp_path / "case")
    before = snapshot(tmp_path / "case")
    for command in COMMANDS:
        made = tmp_path / command
        made.mkdir()
        code = cli.main(arguments(command, path, made / "new.onnx"))
        out, err = capfd.readouterr()
        with naming(command):
            assert code in (0, 1, 2)
            assert "Traceback" not in out + err
            assert not any(bad in out + err for bad in ("\x07", "\x00", "\x1b]0;"))
            assert snapshot(tmp_path / "case") == before
            if code == 2:
                assert_one_clear_line(code, err)
            if code:
                assert command == "plan" or not list(made.iterdir())
            elif command in ("prune", "mask", "fold"):
                onnx.load(str(made / "new.onnx"), load_external_data=False)


@pytest.mark.parametrize("command", ["inspect", "prune", "verify", "mask", "fold"])
@pytest.mark.parametrize("name", DEEP)
def test_deep_nesting_kills_no_process(name: str, command: str, tmp_path: Path) -> None:
    writer = broken.FATAL.get(name) or broken.ODD[name]
    path = writer(tmp_path)
    words = ["-m", "onnxsparse", *arguments(command, path, tmp_path / "new.onnx")]
    done = warm.python(words, cwd=Path(__file__).resolve().parents[2], work=LIMIT_SECONDS)
    assert done.returncode == 2 if name in broken.FATAL else done.returncode in (0, 1, 2), done.stderr[-500:]
    if done.returncode == 2:
        assert_one_clear_line(2, done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "name",
    ["external_parent", "external_absolute", "external_symlink", "external_symlinked_folder", "external_parent_hidden"],
)
def test_data_outside_the_folder_is_never_read_or_written(name: str, tmp_path: Path) -> None:
    path = broken.FATAL[name](tmp_path)
    secret = next(one for one in tmp_path.rglob("*.bin") if not one.is_symlink())
    before = secret.read_bytes(), secret.stat().st_atime_ns, secret.stat().st_mtime_ns
    assert cli.main(["prune", str(path), "-o", str(tmp_path / "new.onnx"), "--pattern", "2:4", *ALLOW]) == 2
    assert (secret.read_bytes(), before[1], secret.stat().st_mtime_ns) == before


def test_read_only_folder(tmp_path: Path, capfd: Any) -> None:
    if os.geteuid() == 0:
        pytest.skip("the superuser may write anywhere")
    path = tmp_path / "model.onnx"
    path.write_bytes(broken.valid().SerializeToString())
    (tmp_path / "shut").mkdir(mode=0o555)
    code = cli.main(["prune", str(path), "-o", str(tmp_path / "shut" / "o.onnx"), "--pattern", "2:4", *ALLOW])
    assert_one_clear_line(code, capfd.readouterr().err)


@pytest.mark.parametrize("target", ["/dev/full", "/proc/nothing/o.onnx", "/dev/null/o.onnx"])
def test_output_that_cannot_be(target: str, tmp_path: Path, capfd: Any) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(broken.valid().SerializeToString())
    code = cli.main(["prune", str(path), "-o", target, "--overwrite", "--pattern", "2:4", *ALLOW])
    assert_one_clear_line(code, capfd.readouterr().err)


@pytest.mark.parametrize(
    "word", ["re:(a+)+$", "re:(x+x+)+y", "re:(", "re:[", "re:(?P<n>", "re:" + "(" * 5000, "re:a{99999}"]
)
def test_patterns_that_explode(word: str, tmp_path: Path, capfd: Any) -> None:
    """Against a name of 60 times `a`, then `b`."""
    made = broken.small()
    name = "a" * 60 + "b"
    made.graph.initializer[0].name = name
    made.graph.node[0].input[1] = name
    path = tmp_path / "model.onnx"
    path.write_bytes(made.SerializeToString())
    code = cli.main(["prune", str(path), "-o", str(tmp_path / "o.onnx"), "--pattern", "2:4", *ALLOW, "--include", word])
    assert_one_clear_line(code, capfd.readouterr().err)
    assert not (tmp_path / "o.onnx").exists()
