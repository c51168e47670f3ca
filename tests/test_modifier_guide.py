"""docs/extend_modifier.md, tried: its file becomes an installed package, and then stands in recipes.

The page once showed other names; a package that was written then works as well.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from onnxsparse.engines.ort import library
from tests import warm

FILE = re.compile(r"^```\w+ file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLAIN = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RECIPE = """
modifiers:
    - !EpochRangeModifier {start_epoch: 0, end_epoch: 2}
    - !WeightLimitModifier {params: [head.weight], limit: 0.01}
"""
RUN = """
import numpy as np, onnx, onnxsparse as osp
from onnx import numpy_helper
images = np.random.default_rng(0).standard_normal((128, 1, 8, 8), np.float32)
data = {onnx.load("models/digits_cnn.onnx").graph.input[0].name: images}
recipe = osp.Recipe.load("recipe.yaml")
made = osp.finetune("models/digits_cnn.onnx", data=data, recipe=recipe, optimizer="sgd", lr=1e-3).model
(head,) = [one for one in made.graph.initializer if one.name == "head.weight"]
print(abs(numpy_helper.to_array(head)).max())
"""


@pytest.fixture(scope="module")
def guide(repository: Path) -> str:
    return (repository / "docs" / "extend_modifier.md").read_text(encoding="utf-8")


IMPORTS = re.compile(r"from onnxsparse\.recipes\.modifiers import \([^)]*\)\n")
OLD_IMPORTS = """from onnxsparse.epochs.act import Act
from onnxsparse.epochs.host import Host
from onnxsparse.epochs.params import Param, find
from onnxsparse.modifiers.scheduled import REQUIRED, Scheduled, demand_params, demand_positive
"""


def by_old_names(text: str) -> str:
    text, count = IMPORTS.subn(OLD_IMPORTS, text)
    assert count == 1
    return text.replace("TimedAct", "Act").replace("trainee: Trainee", "host: Host").replace("trainee.", "host.")


@pytest.fixture(scope="module", params=["new", "old"])
def site(guide: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder of installed packages that holds what the guide writes, or what it wrote before."""
    folder = tmp_path_factory.mktemp("site")
    files = dict(FILE.findall(guide))
    if request.param == "old":
        files = {name: by_old_names(text) if name.endswith(".py") else text for name, text in files.items()}
    (found,) = re.findall(r'^(\w+) = "(onnxsparse_limits\S+)"$', files.pop("pyproject.toml"), re.MULTILINE)
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    announced = folder / "onnxsparse_limits-1.0.dist-info"
    announced.mkdir()
    (announced / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxsparse-limits\nVersion: 1.0\n")
    (announced / "entry_points.txt").write_text("[onnxsparse.modifiers]\n{} = {}\n".format(*found))
    return folder


def python(repository: Path, code: list[str], *paths: Path, folder: Path | None = None) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [repository, *paths])), "COLUMNS": "160"}
    words = ["-W", "error", "-W", "ignore:onnxsparse.:DeprecationWarning", *code]
    done = warm.python(words, cwd=folder or repository, env=environment)
    return done.returncode, done.stdout + done.stderr


def test_what_the_guide_shows_works(repository: Path, guide: str, site: Path) -> None:
    (example,) = PLAIN.findall(guide)
    assert python(repository, ["-c", example], site) == (0, "")


def test_it_is_listed_checked_and_bound(repository: Path, site: Path, tmp_path: Path) -> None:
    code, listed = python(repository, ["-m", "onnxsparse", "list", "modifiers"], site)
    assert code == 0
    assert "WeightLimitModifier" in listed
    assert "limit (float, default 1.0)" in listed
    path = tmp_path / "recipe.yaml"
    check = ["-m", "onnxsparse", "recipe", "check", str(path), "--model", "models/digits_cnn.onnx"]
    for text, says in (
        (RECIPE, "nothing is found"),
        (RECIPE.replace("head.weight", "nope"), "wrong: line 4: !WeightLimitModifier: params: 'nope' is no parameter"),
        (RECIPE.replace("0.01", "-1"), "line 4: !WeightLimitModifier: limit: it is a number above 0"),
        (RECIPE.replace("limit:", "limitt:"), "has no option 'limitt' (did you mean limit"),
    ):
        path.write_text(text, encoding="utf-8")
        assert says in python(repository, check, site)[1]
    assert "unknown modifier !WeightLimitModifier" in python(repository, check)[1]


@pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
def test_it_runs(repository: Path, site: Path, tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(repository / "models")
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    code, largest = python(repository, ["-c", RUN], site, folder=tmp_path)
    assert code == 0, largest
    assert float(largest) == pytest.approx(0.01, rel=1e-6)


@pytest.mark.parametrize(
    ("place", "problem"), [("no_such_package:Thing", ""), ("stubborn:Thing", ": it does not want to")]
)
def test_a_package_that_does_not_load_is_said(repository: Path, tmp_path: Path, place: str, problem: str) -> None:
    (tmp_path / "stubborn.py").write_text("raise RuntimeError('it does not\\nwant to')\n")
    (tmp_path / "broken-1.0.dist-info").mkdir()
    (tmp_path / "broken-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    points = f"[onnxsparse.modifiers]\nBrokenModifier = {place}\n"
    (tmp_path / "broken-1.0.dist-info" / "entry_points.txt").write_text(points)
    (tmp_path / "r.yaml").write_text("modifiers:\n- !BrokenModifier\n", encoding="utf-8")
    code, says = python(repository, ["-m", "onnxsparse", "recipe", "check", str(tmp_path / "r.yaml")], tmp_path)
    assert code == 2
    assert f"the installed plug-in BrokenModifier ({place}) does not load{problem}" in says
    assert len(says.splitlines()) == 1
