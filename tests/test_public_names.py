"""The public names: pinned here, so that adding or losing one is a decision."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import onnxsparse as osp
from onnxsparse.version import __version__
from tests.cases import for_each
from tests.messages import refusing

FUNCTIONS = [
    "analyze",
    "channels",
    "compare",
    "create_recipe",
    "finetune",
    "fold_masks",
    "insert_masks",
    "inspect",
    "levels",
    "load",
    "oneshot",
    "permute",
    "plan",
    "prune",
    "quantize",
    "search_permutation",
    "verify",
]
BY_POSITION = {
    "compare": ["dense", "sparse"],
    "oneshot": ["source", "recipe", "data"],
    "search_permutation": ["matrix", "pattern", "effort", "seed"],
}
MODULES = ["create", "graphsurgeon"]
CLASSES = ["OnnxSparseError", "Recipe", "Report", "Result", "Row"]


def test_the_public_names() -> None:
    assert sorted(osp.__all__) == sorted([*CLASSES, "__version__", *FUNCTIONS, *MODULES])
    assert set(dir(osp)) == set(osp.__all__)


@for_each("name", [*CLASSES, *FUNCTIONS, *MODULES])
def test_every_public_name_explains_itself(name: str) -> None:
    thing = getattr(osp, name)
    assert inspect.getdoc(thing)
    assert inspect.isfunction(thing) == (name in FUNCTIONS)
    assert inspect.isclass(thing) == (name in CLASSES)
    assert inspect.ismodule(thing) == (name in MODULES)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_only_the_models_go_by_position(name: str) -> None:
    parameters = inspect.signature(getattr(osp, name)).parameters.values()
    by_position = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert by_position == BY_POSITION.get(name, ["source"])


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="prun"):
        _ = osp.prun  # type: ignore[attr-defined]


def test_the_version_is_that_of_the_project(repository: Path) -> None:
    project = (repository / "pyproject.toml").read_text(encoding="utf-8")
    written = re.search(r'^version = "(.+)"$', project, re.MULTILINE)
    assert written is not None
    assert written[1] == __version__ == osp.__version__
    assert f"## {__version__}" in (repository / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_package_says_that_it_is_typed(repository: Path) -> None:
    assert (repository / "onnxsparse" / "py.typed").is_file()


def test_the_functions_on_graphs_are_those_on_models() -> None:
    """In place, where there is something to change; the package itself is not needed to look them up."""
    names = {name for name in osp.graphsurgeon.__all__ if not name.endswith("_onnx")}
    assert names == {"fold_masks", "insert_masks", "prune", "verify"} <= set(FUNCTIONS)
    assert all(inspect.getdoc(getattr(osp.graphsurgeon, name)) for name in osp.graphsurgeon.__all__)


def test_onnx_graphsurgeon_is_not_imported_before_somebody_hands_a_graph_over(digits_cnn: Path) -> None:
    script = (
        "import sys, onnxsparse as osp\n"
        "data = open(sys.argv[1], 'rb').read()\n"
        "assert osp.verify(osp.prune(data, pattern='2:4').model).report.ok\n"
        "assert osp.graphsurgeon.prune and osp.inspect(data).graph is None\n"
        "assert 'onnx_graphsurgeon' not in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script, str(digits_cnn)], check=True, timeout=300)


def test_without_onnx_graphsurgeon_the_extra_is_named(digits_cnn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx_graphsurgeon", None)
    for call in (lambda: osp.graphsurgeon.import_onnx(digits_cnn), lambda: osp.prune(digits_cnn, pattern="2:4").graph):
        with refusing(osp.OnnxSparseError):
            call()
