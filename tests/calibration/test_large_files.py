"""Files too large for gradients: what needs none goes on without and says so, what needs them names what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import onnxsparse as osp
from onnxsparse.errors import OptionError
from onnxsparse.passes import calibrate
from tests.calibration.nets import conv_net, samples
from tests.cases import for_each
from tests.messages import refusing

pytest.importorskip("onnxruntime")
SHARE: dict[str, Any] = {"pattern": "unstructured", "sparsity": 0.7}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("large")
    return conv_net(folder / "net.onnx"), samples(folder / "x.npz")


@pytest.fixture(autouse=True)
def _any_file_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "LARGE", 1000)


@for_each("rule", [{"pattern": "2:4"}, {**SHARE, "allocation": "uniform"}, {**SHARE, "allocation": "erk"}])
def test_what_needs_no_gradients_goes_on_without(files: tuple[Path, Path], rule: dict[str, Any]) -> None:
    model, data = files
    result = osp.prune(model, data=data, **rule)
    assert result.model is not None
    assert osp.verify(result.model).report.ok
    assert any("no gradients are taken" in note for note in result.report.notes)
    found = result.report.details["calibration"]
    assert isinstance(found, dict)
    assert "engine" not in found


def test_levels_by_gradients_are_refused_in_a_line_that_names_what_works(files: tuple[Path, Path]) -> None:
    model, data = files
    with refusing(OptionError):
        osp.prune(model, data=data, **SHARE)
    with refusing(OptionError):
        osp.analyze(model, data=data)


def test_measured_levels_work(files: tuple[Path, Path]) -> None:
    model, data = files
    result = osp.prune(model, data=data, sensitivity="measured", **SHARE)
    assert result.model is not None
    assert osp.verify(result.model).report.ok
    assert not any("gradients" in note for note in result.report.notes)
