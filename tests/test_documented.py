"""The documentation is complete and true: every command, option and plug-in is in it, and what it shows is run."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import onnxsparse as osp
from onnxsparse import plugins
from onnxsparse.cli import COMMANDS, build_parser, main
from onnxsparse.cli.commands import KINDS
from tests import warm
from tests.cases import for_each

ROOT = Path(__file__).resolve().parent.parent
README, COMMAND_PAGE = ROOT / "README.md", ROOT / "docs" / "cli.md"
PAGES = sorted([README, *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = re.compile(r"^```\w+ file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, info: str) -> list[str]:
    """Fenced blocks by all that stands after the fence: "console run" are run, plain "console" are only read."""
    return [text for found, text in FENCE.findall(text_of(page)) if found.strip() == info]


def pages_with(info: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, info)]


# -- completeness


def parsers() -> dict[str, argparse.ArgumentParser]:
    (commands,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(commands.choices)


def options(parser: argparse.ArgumentParser) -> list[str]:
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    return [name for action in shown for name in action.option_strings]


def section(command: str) -> str:
    """The part of docs/cli.md that speaks of a command."""
    found = re.search(rf"^## {command}\n(.*?)(?=^## |\Z)", text_of(COMMAND_PAGE), re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/cli.md has no section '## {command}'"
    return found[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_is_documented(command: str) -> None:
    here = section(command) + section("Options of every command")
    missing = [option for option in options(parsers()[command]) if f"`{option}" not in here]
    assert not missing, f"docs/cli.md, {command}: nothing about {', '.join(missing)}"
    assert f"onnxsparse {command}" in text_of(README)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_documented_option_is_invented(command: str) -> None:
    known = set(options(parsers()[command]))
    named = re.findall(r"^\| `(-[^` ]+)", section(command), re.MULTILINE)
    assert set(named) <= known


def test_the_options_of_the_program_itself() -> None:
    for option in options(build_parser()):
        assert f"`{option}" in section("Options of every command")


@pytest.mark.parametrize("kind", KINDS)
def test_every_plugin_is_documented(kind: str) -> None:
    words = " ".join(text_of(page) for page in PAGES)
    for entry in importlib.import_module(plugins.home_of(kind)).available():
        name = re.split(r"[:\[]", entry.syntax)[0] if entry.syntax != "N:M" else "N:M"
        assert re.search(rf"`{re.escape(name)}[`:\[]", words), f"nothing in docs about {kind[:-1]} {entry.syntax}"


def test_every_target_has_a_page() -> None:
    for entry in importlib.import_module("onnxsparse.targets").available():
        name, _, profiles = entry.syntax.partition("[")
        page = text_of(ROOT / "docs" / "targets" / f"{name}.md")
        assert all(f"`{profile}`" in page for profile in profiles.strip(":[]").split("|"))


def test_every_public_name_is_documented() -> None:
    page = text_of(README) + section("From Python")
    missing = [name for name in osp.__all__ if name != "__version__" and not re.search(rf"`(osp\.)?{name}\b", page)]
    assert not missing


def test_the_profiles_of_ampere_are_those_of_the_code() -> None:
    page = text_of(ROOT / "docs" / "targets" / "ampere.md")
    for name, rules in importlib.import_module("onnxsparse.targets.ampere").PROFILES.items():
        (row,) = re.findall(rf"^\| `{name}`.*\|$", page, re.MULTILINE)
        recurrent = "yes" if "Recurrent" in rules.families else "no"
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[1:] == [str(rules.inputs), str(rules.out), ", ".join(rules.kinds), recurrent]


def test_every_word_of_allow_and_every_mask_form_is_documented() -> None:
    for word in ("embedding", "tied-embedding", "stem", "depthwise", "small", "basis", "output"):
        assert f"`{word}`" in text_of(README)
        assert f"`{word}`" in text_of(COMMAND_PAGE)
    for form in ("mul", "bool", "uint8", "where"):
        assert f"`{form}`" in text_of(ROOT / "docs" / "masks.md")


def test_every_field_of_the_json_is_documented() -> None:
    schema = importlib.import_module("json").loads(text_of(ROOT / "onnxsparse" / "report" / "schema.json"))
    page = text_of(ROOT / "docs" / "json.md")
    for entry in (schema, *schema["$defs"].values()):
        missing = [field for field in entry["properties"] if f"`{field}`" not in page]
        assert not missing, missing


@for_each("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    promised = {"docs/benchmarks.md"}  # written by the benchmark
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text_of(page)):
        found = (page.parent / target).resolve()
        assert found.exists() or found.relative_to(ROOT).as_posix() in promised, f"{name_of(page)}: {target}"


# -- truth


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the model that the pages use."""
    (tmp_path / "models").mkdir()
    shutil.copy(ROOT / "models" / "digits_cnn.onnx", tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


@pytest.mark.parametrize("page", pages_with("console run"), ids=name_of)
def test_what_a_page_shows_is_what_happens(page: Path, desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """All blocks of a page, one after the other: `$ ` starts a command, `...` stands for lines left out."""
    last = 0
    for name, text in FILES.findall(text_of(page)):
        (desk / name).write_text(text, encoding="utf-8")
    for command, shown in steps(page):
        if (
            command.startswith(("onnxsparse compare", "onnxsparse permute", "onnxsparse quantize"))
            or "--permute" in command
        ):
            pytest.importorskip("onnxruntime")
        if "--data" in command and command.startswith(("onnxsparse prune", "onnxsparse analyze")):
            needs_gradients()
        if "permute" in command:
            pytest.importorskip("scipy")
        if command == "echo $?":
            assert shown == [str(last)]
            continue
        last = run(command)
        printed = capfd.readouterr()
        assert_shown(shown, (printed.out + printed.err).splitlines(), command)


def needs_gradients() -> None:
    if not importlib.import_module("onnxsparse.engines.ort.library").available():
        pytest.skip("gradients need an engine")


def steps(page: Path) -> Iterator[tuple[str, list[str]]]:
    for block in blocks(page, "console run"):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = step.replace("\\\n", " ").splitlines()
            yield command.strip(), [line.rstrip() for line in shown if line.strip()]


def run(command: str) -> int:
    words = shlex.split(command)
    if words[0] == "onnxsparse":
        return main(words[1:])
    if words[0] == "python":
        done = warm.python(words[1:])
        sys.stdout.write(done.stdout + done.stderr)
        return done.returncode
    return subprocess.run(words, timeout=600).returncode


def assert_shown(shown: list[str], printed: list[str], command: str) -> None:
    same = alike if command.startswith("onnxsparse compare") else str.__eq__
    lines = iter([line.rstrip() for line in printed if line.strip()])
    for wanted in shown:
        if wanted != "...":
            assert any(same(wanted, line) for line in lines), f"$ {command}\nnot in the output: {wanted}"
    if shown and "..." not in shown:
        assert not list(lines), f"$ {command} prints more than the page shows"


def alike(wanted: str, line: str) -> bool:
    """The same words; measured numbers may differ in their last digit between versions of the runtime."""
    left, right = wanted.split(), line.split()
    return len(left) == len(right) and all(near(a, b) for a, b in zip(left, right))


def near(wanted: str, found: str) -> bool:
    try:
        return wanted == found or ("." in wanted and abs(float(wanted) - float(found)) <= 0.01 * abs(float(wanted)))
    except ValueError:
        return False


@pytest.mark.parametrize("page", [p for p in pages_with("python") if not p.name.startswith("extend")], ids=name_of)
def test_python_snippets_run(page: Path, desk: Path) -> None:
    """All blocks of a page share their names. Those of docs/extend*.md need a package: see the tests of guides."""
    if "import onnx_graphsurgeon" in text_of(page):
        pytest.importorskip("onnx_graphsurgeon")
    if "osp.permute(" in text_of(page):
        pytest.importorskip("onnxruntime")
        pytest.importorskip("scipy")
    if re.search(r"osp\.(prune|analyze)\([^)]*data=", text_of(page)):
        needs_gradients()
    names: dict[str, Any] = {}
    for block in blocks(page, "python"):
        exec(compile(block, name_of(page), "exec"), names)
