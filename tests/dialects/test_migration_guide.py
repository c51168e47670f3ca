"""docs/migrating_from_sparseml.md: what it shows for torch and for an engine is run here; the rest with all pages."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from onnxsparse import plugins
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.torch import library as torch_library
from onnxsparse.recipes.elsewhere import OPTIONS
from onnxsparse.recipes.modifiers.one_shot import OneShot

PAGE = "migrating_from_sparseml.md"


def blocks(repository: Path, kind: str) -> list[str]:
    text = (repository / "docs" / PAGE).read_text(encoding="utf-8")
    return re.findall(rf"^```python {kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the exporter
@pytest.mark.parametrize(
    ("kind", "available"),
    [("torch", torch_library.available()), ("engine", ort_library.available() or torch_library.available())],
)
def test_what_it_shows_works(
    kind: str, available: bool, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = blocks(repository, kind)
    assert found
    if not available:
        pytest.skip(f"needs {kind}")
    shutil.copytree(repository / "models", tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in found:
        exec(compile(block, PAGE, "exec"), names)


def test_the_table_of_recipes_is_that_of_the_code(repository: Path) -> None:
    """Every modifier has its row, which says whether it runs, and what is missing where it does not."""
    page = (repository / "docs" / "recipes.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+Modifier)` \|[^|]*\| ([^|]*) \|[^|]*\|[^|]*\|$", page, re.MULTILINE))
    known = {name: cls for name, cls in plugins.ours("modifiers").items() if name.endswith("Modifier")}
    at_once = {name for name, cls in known.items() if issubclass(cls, OneShot)}
    assert {name for name, row in rows.items() if row.startswith("[at once]")} == at_once
    assert {name: row if row.startswith("no") else "yes" for name, row in rows.items()} == {
        name: f"no: {cls.missing}" if cls.missing and name not in at_once else "yes" for name, cls in known.items()
    }


def test_what_is_kept_of_the_newer_form_is_on_the_page_with_its_reason(repository: Path) -> None:
    page = (repository / "docs" / "recipes.md").read_text(encoding="utf-8")
    for name, (reason, _) in OPTIONS.items():
        assert re.search(rf"^\|.*`{name}`.*\| {re.escape(reason)} \|$", page, re.MULTILINE), name
