"""Every framework that pip installs is really exported from, in an environment of its own; its files are pruned.

`python -m pytest -m 'slow and network' tests/frameworks` makes the environments in $ONNXSPARSE_FRAMEWORKS, or in
~/.cache/onnxsparse-frameworks: some gigabytes, and a quarter of an hour on the first run.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime")

from tests.cases import for_each
from tools.frameworks_page import ORIGINS, SCRIPTS, SHOWN, Origin, export, made, page, plain

# What 2:4 prunes at least of the elements, where that is not nearly all: stems, embeddings, fixed bases.
LEAST = {"minilm": 0.45, "silero": 0.8, "paddle_cls": 0.75, "lightgbm": 0.0, "xgboost": 0.0}
# At 80 % one-shot leaves nothing of these small nets that so few steps and made-up samples could bring back.
HARD = {"paddle_cls": 1.05, "paddle_det": 1.05}
INTEGERS, TREES = ("qdq", "dynamic"), ("lightgbm", "xgboost")


def name_of(origin: Origin) -> str:
    return origin.script


@pytest.fixture(scope="session")
def cache() -> Path:
    chosen = os.environ.get("ONNXSPARSE_FRAMEWORKS")
    return Path(chosen) if chosen else Path.home() / ".cache" / "onnxsparse-frameworks"


@pytest.mark.slow
@pytest.mark.network
@for_each("origin", ORIGINS, ids=name_of)
def test_what_a_framework_exports_is_pruned_tuned_and_verified(origin: Origin, cache: Path) -> None:
    if origin.script == "from_onnxruntime":
        export(ORIGINS[0], cache)
    for file in origin.files:
        (cache / origin.script / f"{file.name}.row.json").unlink(missing_ok=True)
    said = list(made(origin, cache))
    assert len(said) == len(origin.files), said
    for file in origin.files:
        held(file.name, json.loads((cache / origin.script / f"{file.name}.row.json").read_text()))


def held(name: str, row: dict[str, Any]) -> None:
    if name in TREES:
        assert not row["weights"]
        return
    assert all(level["verified"] for level in row["levels"].values())
    assert row["levels"]["2:4"]["share"] >= LEAST.get(name, 0.9)
    for level in row["levels"].values():
        assert ("tuned" in level) != (name in INTEGERS), level
        if name not in INTEGERS:
            assert level["tuned"]["distance"] < level["pruned"]["distance"] * HARD.get(name, 1.0)
        if row["labelled"] and name not in INTEGERS:
            assert level["tuned"]["accuracy"] >= row["dense"]["accuracy"] - 0.03


def test_the_page_shows_the_scripts_as_they_are(repository: Path) -> None:
    """A script that changed needs the page written again."""
    text = (repository / "docs" / "frameworks.md").read_text(encoding="utf-8")
    for origin in ORIGINS:
        assert f"\n## {origin.title}\n" in text
        shown = SHOWN.search((SCRIPTS / f"{origin.script}.py").read_text(encoding="utf-8"))
        assert shown is None or plain(shown[1]).strip() in text


def test_what_cannot_be_made_is_a_row_that_says_why(tmp_path: Path) -> None:
    origin = ORIGINS[0]
    (tmp_path / origin.script).mkdir()
    (tmp_path / origin.script / "failed.json").write_text('"no such package"')
    assert page(tmp_path).count("not made: no such package") == len(origin.files)
