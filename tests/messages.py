"""Every sentence of a refusal in one file, tests/golden/messages.txt: its class, its exit code, what it says.

    with refusing(OptionError):
        osp.prune(model, pattern="4:2")

The situation is the test; `pytest --update-golden` writes what it says now. So a test pins the class, and a better
sentence costs one command and one file.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
GOLDEN = TESTS / "golden" / "messages.txt"
UPDATE = "ONNXSPARSE_UPDATE_GOLDEN"
"""Set by `pytest --update-golden`, for this process and those it starts."""
FOLDERS: dict[str, str] = {str(TESTS.parent): "REPOSITORY"}
"""What differs from machine to machine, and how it is written down."""

_count: dict[str, int] = {}


@contextmanager
def refusing(*kinds: type[BaseException]) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """As `pytest.raises`, and what is said is what stands in the golden file."""
    with pytest.raises(kinds) as caught:
        yield caught
    error = caught.value
    code = f" ({error.exit_code})" if hasattr(error, "exit_code") else ""
    hold(situation(), f"{type(error).__name__}{code}: {_portable(str(error))}")


def situation() -> str:
    """The test that runs, and the number of the refusal in it where it has several."""
    path, _, name = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0].partition("::")
    test = f"{Path(path).stem}::{_portable(name)}"
    _count[test] = _count.get(test, 0) + 1
    return test if _count[test] == 1 else f"{test} #{_count[test]}"


def begin() -> None:
    """A test starts: its refusals are counted from one, also when it is run again."""
    _count.clear()


def hold(key: str, said: str) -> None:
    if os.environ.get(UPDATE):
        _write({**read(), key: said})
    wanted = read().get(key)
    assert said == wanted, f"{key}\n  says   {said}\n  before {wanted}\nIs it better? Then run it with --update-golden."


def read() -> dict[str, str]:
    entries = (entry.partition("\n") for entry in GOLDEN.read_text(encoding="utf-8").split("\n\n"))
    return {key: "\n".join(line[4:] for line in text.strip("\n").split("\n")) for key, _, text in entries if key}


def _write(said: dict[str, str]) -> None:
    known = tests_there_are()
    entries = [
        "\n".join([key, *(f"    {line}" for line in text.split("\n"))])
        for key, text in sorted(said.items())
        if re.split(r"[\[ ]", key)[0] in known
    ]
    beside = GOLDEN.with_suffix(f".{os.getpid()}")
    beside.write_text("\n\n".join(entries) + "\n", encoding="utf-8")
    beside.replace(GOLDEN)


@cache
def tests_there_are() -> set[str]:
    """`file::test` of every test that calls `refusing`."""
    sources = {path: path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")}
    trees = {path: ast.parse(text) for path, text in sources.items() if "refusing(" in text}
    return {
        f"{path.stem}::{node.name}"
        for path, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


def _portable(text: str) -> str:
    for folder, name in FOLDERS.items():
        text = re.sub(rf"{re.escape(folder)}(?=[/'\"\s]|$)", name, text)
    text = re.sub(r"\b0x[0-9a-f]{6,}", "0x...", text)
    text = re.sub(r"(test_\w+\.py, line) \d+", r"\1 N", text)
    return re.sub(r"TESTS_FOLDER/[^/\s'\"]+", "FOLDER", text)
