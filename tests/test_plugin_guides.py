"""docs/extend.md, tried: its files become an installed package, or a part of ours, and then work everywhere."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests import warm

GUIDE = Path("docs") / "extend.md"
FILE = re.compile(r"^```\w+ file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLAIN = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IN_THE_TREE = """
import sys
from pathlib import Path
import onnxsparse.{kind} as family
from onnxsparse.cli import main
if hasattr(family, "__path__"):
    family.__path__.append({folder!r})
else:
    exec(Path({folder!r}, "{file}.py").read_text(), vars(family))
sys.exit(main(["list", "{kind}"]))
"""


@pytest.fixture(scope="module")
def guide(repository: Path) -> str:
    return (repository / GUIDE).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(guide: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages that holds what the guide writes."""
    folder = tmp_path_factory.mktemp("site")
    files = dict(FILE.findall(guide))
    project = files.pop("pyproject.toml")
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    announced = folder / "onnxsparse_extras-1.0.dist-info"
    announced.mkdir()
    (announced / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxsparse-extras\nVersion: 1.0\n")
    (announced / "entry_points.txt").write_text(_entry_points(project))
    return folder


def _entry_points(project: str) -> str:
    """What an installer makes of the tables in pyproject.toml."""
    lines = project.partition('[project.entry-points."')[1:]
    return re.sub(r'\[project\.entry-points\."(.+?)"\]', r"[\1]", "".join(lines)).replace('"', "")


def python(repository: Path, code: list[str], *paths: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [repository, *paths])), "COLUMNS": "160"}
    done = warm.python(["-W", "error", *code], cwd=repository, env=environment)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_the_guide_announces_every_class_it_shows(guide: str, site: Path) -> None:
    announced = (site / "onnxsparse_extras-1.0.dist-info" / "entry_points.txt").read_text()
    for name, text in FILE.findall(guide):
        for shown in re.findall(r"^class (\w+)", text, re.MULTILINE):
            assert f"{name[:-3].replace('/', '.')}:{shown}" in announced
    assert announced.count("[onnxsparse.") == 4


def test_installed_plugins_work_in_python(repository: Path, guide: str, site: Path) -> None:
    examples = PLAIN.findall(guide)
    assert examples
    for example in examples:
        python(repository, ["-c", example], site)


def test_installed_plugins_work_on_the_command_line(repository: Path, site: Path, tmp_path: Path) -> None:
    listed = python(repository, ["-m", "onnxsparse", "list"], site)
    for words in (
        "kernel  ",
        "Whole kernels are zero",
        "relative  ",
        "power (float, default 1.0)",
        "npu  ",
        "lanes (int",
    ):
        assert words in listed
    sparse = str(tmp_path / "sparse.onnx")
    prune = ["-m", "onnxsparse", "prune", "models/digits_cnn.onnx", "-o", sparse]
    assert "npu-compile" in python(repository, [*prune, "--target", "npu"], site)
    rule = ["--overwrite", "--pattern", "kernel", "--sparsity", "0.5", "--score", "relative"]
    assert "kernel" in python(repository, [*prune, *rule], site)
    assert "holds" in python(repository, ["-m", "onnxsparse", "verify", sparse], site)


def test_without_the_package_they_are_unknown(repository: Path) -> None:
    assert "kernel" not in python(repository, ["-m", "onnxsparse", "list", "patterns"])


@pytest.mark.parametrize(
    ("kind", "file"), [("patterns", "kernel"), ("scores", "relative"), ("solvers", "shrunk"), ("targets", "npu")]
)
def test_in_the_tree_it_is_one_class(kind: str, file: str, repository: Path, guide: str, tmp_path: Path) -> None:
    (tmp_path / f"{file}.py").write_text(dict(FILE.findall(guide))[f"onnxsparse_extras/{file}.py"], encoding="utf-8")
    listed = python(repository, ["-c", IN_THE_TREE.format(kind=kind, file=file, folder=str(tmp_path))])
    assert f"  {file} " in listed


def test_the_guides_are_clean_for_the_type_checker(repository: Path, site: Path, tmp_path: Path) -> None:
    """Both at once, that of modifiers, too: nearly all of the time goes into the packages that they import."""
    pytest.importorskip("mypy")
    for name, text in FILE.findall((repository / "docs" / "extend_modifier.md").read_text(encoding="utf-8")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    packages = [str(site / "onnxsparse_extras"), str(tmp_path / "onnxsparse_limits")]
    options = ["--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "mypy")]
    assert "no issues found" in python(repository, ["-W", "default", "-m", "mypy", *options, *packages])
