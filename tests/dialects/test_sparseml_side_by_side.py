"""Every modifier in a torch loop against SparseML 1.8 itself, step for step; CONTRIBUTING.md says how to have that."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from onnxsparse.engines.torch import library

PYTHON = os.environ.get("ONNXSPARSE_SPARSEML_PYTHON", "")
pytestmark = [
    pytest.mark.sparseml,
    pytest.mark.skipif(not library.available(), reason="needs torch"),
    pytest.mark.skipif(not PYTHON, reason="ONNXSPARSE_SPARSEML_PYTHON names no Python that has SparseML 1.8"),
]
torch = pytest.importorskip("torch")

from onnxsparse.dialects.sparseml import ScheduledModifierManager
from onnxsparse.engines.torch.quantized_module import state_of
from onnxsparse.recipes.writing import tag_of
from tests.dialects import sparseml_steps
from tests.dialects.sparseml_steps import CASES, Case


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What SparseML has after each step of all cases."""
    written = tmp_path_factory.mktemp("sparseml") / "steps.pt"
    environment = {**os.environ, "PYTHONPATH": "", "NM_DISABLE_ANALYTICS": "1"}
    subprocess.run(
        [PYTHON, str(Path(sparseml_steps.__file__)), str(written)], check=True, env=environment, stdout=sys.stderr
    )
    found: dict[str, Any] = torch.load(written, weights_only=True)
    return found


def ours(case: Case) -> list[dict[str, Any]]:
    def begun(manager: Any) -> list[Any]:
        return [(tag_of(one), act.clock.started, act.clock.ended) for one, act in manager._acts]

    def ranges(module: Any) -> dict[str, Any]:
        return {name: one for name, one in state_of(module).items() if "." in name}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sparseml_steps.run(case, ScheduledModifierManager.from_yaml(case.recipe), begun, ranges)


@pytest.mark.parametrize("name", CASES)
def test_every_step_is_that_of_sparseml(name: str, theirs: dict[str, Any]) -> None:
    case, expected = CASES[name], theirs[name]
    if isinstance(expected, str):
        pytest.fail(f"SparseML fails: {expected}", pytrace=False)
    found = ours(case)
    assert len(found) == len(expected)
    for step, (mine, other) in enumerate(zip(found, expected)):
        assert differences(mine, other, case.close) == [], f"after step {step} of {len(found) - 1}"


def differences(mine: Any, other: Any, close: float, path: str = "") -> list[str]:
    """The places at which two nested results differ."""
    if isinstance(other, dict):
        if set(mine) != set(other):
            return [f"{path}: {sorted(set(mine) ^ set(other))} in one only"]
        return [one for key in other for one in differences(mine[key], other[key], close, f"{path}/{key}")]
    if isinstance(other, (list, tuple)):
        if len(mine) != len(other):
            return [f"{path}: {len(mine)} and {len(other)}"]
        pairs = enumerate(zip(mine, other))
        return [one for place, pair in pairs for one in differences(*pair, close, f"{path}/{place}")]
    if not torch.is_tensor(other):
        same = abs(mine - other) <= 1e-12 + close if isinstance(other, float) else mine == other
        return [] if same else [f"{path}: {mine} and {other}"]
    if mine.shape != other.shape:
        return [f"{path}: {list(mine.shape)} and {list(other.shape)}"]
    if mine.dtype == torch.bool or not close:
        far = int((mine != other).sum())
        return [f"{path}: {far} of {mine.numel()} differ"] if far else []
    distance = float((mine.double() - other.double()).abs().max()) / max(float(other.double().abs().max()), 1e-6)
    return [f"{path}: {distance:.2g} off"] if distance > close else []
