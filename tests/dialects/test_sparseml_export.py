"""SparseML's conversion of an export by its own call, and the script of tools/ for it."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import onnxsparse as osp
from onnxsparse import cli
from onnxsparse.dialects.sparseml import export_qat, quantize_qat_export, quantize_torch_qat_export
from onnxsparse.errors import OptionError, OutputError
from tests.quantization.fake_quantized import Net, arrays, operators, run

RNG = np.random.default_rng(0)
W = (RNG.standard_normal((8, 4, 3, 3)) * (RNG.random((8, 4, 3, 3)) > 0.6)).astype(np.float32)
X = {"x": RNG.standard_normal((2, 4, 6, 6)).astype(np.float32)}


def export(zero: int = 0) -> ModelProto:
    net = Net()
    net.constant(W, "w")
    rounded = net.pair("x", 0.02, zero, np.uint8 if zero else np.int8), net.pair("w", np.abs(W).max() / 127)
    return net.model(net.node("Relu", net.node("Conv", *rounded, net.constant(np.ones(8), "b"))))


def test_the_call_of_sparseml(tmp_path: Path) -> None:
    model, path = export(), str(tmp_path / "int8.onnx")
    wanted = run(model, X)[0]
    copy = quantize_torch_qat_export(model, path, inplace=False)
    assert operators(model) == operators(export())
    same = quantize_qat_export(model)
    assert same is model
    for made in (copy, same, onnx.load(path)):
        assert arrays(made)["w"].dtype == np.int8
        np.testing.assert_allclose(run(made, X)[0], wanted, atol=1e-3)
    onnx.save(export(), path)
    assert arrays(quantize_qat_export(path, path))["w"].dtype == np.int8
    assert arrays(onnx.load(path))["b"].dtype == np.int32


def test_what_means_nothing_is_said() -> None:
    with pytest.warns(UserWarning, match="use_qlinearconv has no meaning"):
        assert "QuantizeLinear" in operators(quantize_qat_export(export(), use_qlinearconv=True))
    with pytest.raises(OptionError, match="model is a ModelProto or a path, not 3"):
        quantize_qat_export(3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="target= is one of ampere, vnni, not 'amper'"):
        export_qat(export(), target="amper")


def test_the_report(tmp_path: Path) -> None:
    result = export_qat(export(), output=tmp_path / "int8.onnx", target="ampere")
    assert result.model is not None
    row, stored = result.report.row("w"), arrays(result.model)
    assert (row.status, row.quantized, row.zeros) == ("quantized", "int8, per tensor", (stored["w"] == 0).sum())
    assert stored["b"].dtype == np.float32
    with pytest.raises(OutputError):
        export_qat(export(), output=tmp_path / "int8.onnx")


def test_the_script(digits_cnn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = importlib.import_module("tools.model_quantize_qat_export").main
    source, out = str(tmp_path / "fake.onnx"), str(tmp_path / "int8.onnx")
    onnx.save(export(3), source)
    assert main([source, "-o", out, "--target", "ampere"]) == 2
    assert "x (uint8, 3)" in capsys.readouterr().err
    assert main([source, "-o", out]) == 0
    assert "w: int8, per tensor, " in capsys.readouterr().out
    assert main([source, "-o", out]) == 2
    assert main([source, "-o", out, "--overwrite"]) == 0
    assert main([str(digits_cnn), "-o", out, "--overwrite"]) == 2
    assert "no fake quantization" in capsys.readouterr().err
    assert arrays(onnx.load(out))["w"].dtype == np.int8


def test_a_recorded_plan_is_verified_in_the_integers(tmp_path: Path) -> None:
    """2:4 zeros of the float weight, their record, training with fake quantization, and then the file."""
    sparse = osp.prune(export(), pattern="2:4", include="w").model
    onnx.save(sparse, str(tmp_path / "fake.onnx"))
    out = str(tmp_path / "int8.onnx")
    report = export_qat(str(tmp_path / "fake.onnx"), output=out).report
    assert report.ok
    assert report.row("w").pattern == "2:4"
    assert cli.main(["verify", out, "-q"]) == 0
    assert cli.main(["verify", out, "--pattern", "2:4", "-q"]) == 0
