"""What docs/msbench.md shows of training is run: its ONNX part where an engine is, its torch part where torch is."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import onnxsparse as osp
from onnxsparse.engines.ort import library as ort
from onnxsparse.engines.torch import library as torch

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "msbench.md"


def run(info: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "models").mkdir()
    shutil.copy(ROOT / "models" / "digits_cnn.onnx", folder / "models")
    monkeypatch.chdir(folder)
    found = re.findall(rf"^```{info}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found
    names: dict[str, object] = {}  # a page is read from above
    for block in found:
        exec(compile(block, PAGE.name, "exec"), names)


@pytest.mark.skipif(not (ort.available() or torch.available()), reason="needs an engine that trains")
def test_an_onnx_model(tmp_path, monkeypatch):
    run("python train", tmp_path, monkeypatch)
    assert osp.verify("level60.onnx", target="amba", level=60).report.ok


@pytest.mark.skipif(not torch.available(), reason="needs torch")
def test_a_torch_module(tmp_path, monkeypatch):
    run("python torch", tmp_path, monkeypatch)
    assert osp.verify("sparse.onnx").report.ok
