"""`quantize --scales`: scales of a quantized file, of a calibration cache and of a JSON are kept."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import onnxsparse as osp
from onnxsparse.cli import main
from onnxsparse.errors import OnnxSparseError
from onnxsparse.passes.quantization.given_scales import scales_of
from tests.cases import for_each
from tests.quantization.fake_quantized import Net, arrays, run

pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)
SAMPLES = RNG.standard_normal((32, 4, 6, 6)).astype(np.float32)


def network() -> ModelProto:
    net = Net()
    net.constant(RNG.standard_normal((8, 4, 3, 3)), "stem.weight"), net.constant(RNG.standard_normal(8), "stem.bias")
    net.constant(RNG.standard_normal((5, 128)), "head.weight")
    net.node("Relu", net.node("Conv", "x", "stem.weight", "stem.bias", to="stem"), to="active")
    net.node("Gemm", net.node("Flatten", "active", to="flat"), "head.weight", to="scores", transB=1)
    model = net.model("scores")
    for axis in range(4):
        model.graph.input[0].type.tensor_type.shape.dim.add(**({"dim_value": (1, 4, 6, 6)[axis]} if axis else {}))
    return model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("scales") / "float.onnx"
    onnx.save(network(), str(path))
    return str(path)


def quantized(model: str, **options: Any) -> ModelProto:
    made = osp.quantize(model, refine="none", **options).model
    assert made is not None
    return made


@for_each("target", [None, "ampere"])
def test_the_scales_of_a_file_make_the_same_file(target: str | None, model: str, tmp_path: Path) -> None:
    first = quantized(model, data={"x": SAMPLES}, target=target, observer="percentile:99")
    onnx.save(first, str(tmp_path / "first.onnx"))
    again = quantized(model, scales=tmp_path / "first.onnx", target=target)
    assert first.graph.SerializeToString() == again.graph.SerializeToString()


def test_onnxruntimes_own_scales(model: str, tmp_path: Path) -> None:
    """Of `quantize_static`: values by their names, weights by theirs in front of `_quantized`."""
    quantization = pytest.importorskip("onnxruntime.quantization")  # sympy comes with it, which takes its time

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self._feeds: Iterator[Any] = iter([{"x": SAMPLES}])

        def get_next(self) -> Any:
            return next(self._feeds, None)

    path = str(tmp_path / "static.onnx")
    quantization.quantize_static(model, path, Reader(), per_channel=True)
    found = scales_of(path)
    assert {"x", "stem.weight", "head.weight"} <= found.keys()
    made, theirs = quantized(model, scales=path), arrays(onnx.load(path))
    assert arrays(made)["x_scale"] == theirs["x_scale"]
    assert arrays(made)["x_zero_point"] == theirs["x_zero_point"]
    assert np.array_equal(arrays(made)["stem.weight"], theirs["stem.weight_quantized"])
    ours, wanted = (run(one, {"x": SAMPLES})[0] for one in (made, onnx.load(path)))
    assert np.mean(np.abs(ours - wanted)) < 0.01 * np.mean(np.abs(wanted))


def cache(path: Path, scales: dict[str, float], header: str = "TRT-8601-EntropyCalibration2") -> Path:
    lines = [f"{name}: {struct.pack('>f', scale).hex()}" for name, scale in scales.items()]
    path.write_text("\n".join([header, *lines, ""]))
    return path


def test_a_calibration_cache(model: str, tmp_path: Path) -> None:
    (tmp_path / "known.cache").write_text(
        "TRT-8601-EntropyCalibration2\nx: 3c010a14\n(Unnamed Layer* 3) [x: y]: 3f800000\n"
    )
    known = scales_of(tmp_path / "known.cache")
    assert float(known["x"].scale) == pytest.approx(0.00787594, rel=1e-5)
    assert known["(Unnamed Layer* 3) [x: y]"].scale == 1
    assert known["x"].grid.signed
    first = quantized(model, data={"x": SAMPLES}, target="ampere")
    numbers = {name[: -len("_scale")]: array for name, array in arrays(first).items() if name.endswith("_scale")}
    scales = {name: float(array) for name, array in numbers.items() if array.ndim == 0}
    path = cache(tmp_path / "all.cache", {**scales, "another": 1.0})
    result = osp.quantize(model, scales=path, target="ampere")
    assert result.model is not None
    assert result.model.graph.SerializeToString() == first.graph.SerializeToString()
    assert any("1 that nothing here has: 'another'" in note for note in result.report.notes)


def test_what_has_no_scale_is_calibrated_or_named(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cache(tmp_path / "some.cache", {"x": 0.5})
    made = quantized(model, scales=path, data={"x": SAMPLES})
    assert arrays(made)["x_scale"] == 0.5
    assert arrays(made)["x_zero_point"].dtype == np.int8
    assert main(["quantize", model, "-o", str(tmp_path / "out.onnx"), "--scales", str(path)]) == 2
    assert "has no scale for 1 values (the first: 'active')" in capsys.readouterr().err
    assert not (tmp_path / "out.onnx").exists()


def test_a_json(model: str, tmp_path: Path) -> None:
    entries = {
        "x": {"scale": 0.03, "zero_point": 120, "type": "uint8"},
        "active": {"scale": 0.05},
        "stem.weight": {"scale": [0.02] * 8, "axis": 0},
    }
    path = tmp_path / "scales.json"
    path.write_text(json.dumps(entries))
    made = arrays(quantized(model, scales=path, data={"x": SAMPLES}))
    assert made["x_zero_point"] == 120
    assert made["stem.weight_scale"] == pytest.approx(np.full(8, 0.02))


BROKEN = {
    "cut": (b"TRT-8601-EntropyCalibration2\nx: 3c01", "line 2"),
    "header": (b"TRT-8601\nx: 3c010a14\n", "begins with 'TRT-8601'"),
    "NaN": (b"TRT-8601-EntropyCalibration2\nx: 7fc00000\n", "'x' in line 2"),
    "negative": (b"TRT-8601-EntropyCalibration2\nx: bf800000\n", "not a number above zero"),
    "nothing": (b"TRT-8601-EntropyCalibration2\n", "has no scales"),
    "other names": (b"TRT-8601-EntropyCalibration2\nimage: 3c010a14\n", "is it of the same network"),
    "no JSON": (b'{"x": ', "is no JSON"),
    "JSON of numbers": (b'{"x": 3}', "should have scale"),
    "JSON of texts": (b'{"x": {"scale": "a"}}', "'x'"),
    "JSON of infinity": (b'{"x": {"scale": Infinity}}', "not a number above zero"),
    "zero point": (b'{"x": {"scale": 1, "zero_point": 300, "type": "uint8"}}', "no integer of uint8"),
    "type": (b'{"x": {"scale": 1, "type": "float8"}}', "not 'float8'"),
    "no axis": (b'{"x": {"scale": [1, 2]}}', "a list with an axis"),
    "several": (b'{"x": {"scale": [1, 2], "axis": 0}}', "a value has one"),
    "another shape": (b'{"stem.weight": {"scale": [1, 2], "axis": 0}}', "2 scales for 'stem.weight'"),
    "along the inputs": (b'{"stem.weight": {"scale": [1, 1, 1, 1], "axis": 1}}', "along its outputs, axis 0"),
    "no such axis": (b'{"stem.weight": {"scale": [1, 1], "axis": 9}}', "it has 4 axes"),
    "no model": (b"\x00\x01", "is not an ONNX model"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_line(name: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, said = BROKEN[name]
    path = tmp_path / "scales"
    path.write_bytes(data)
    assert main(["quantize", model, "-o", str(tmp_path / "out.onnx"), "--scales", str(path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("flag", "said"), [("reduce_range", "leave reduce_range=True out"), ("per_tensor", "a weight has one scale here")]
)
def test_a_flag_that_given_scales_contradict(flag: str, said: str, model: str, tmp_path: Path) -> None:
    path = tmp_path / "scales.json"
    path.write_text(json.dumps({"stem.weight": {"scale": [0.02] * 8, "axis": 0}}))
    with pytest.raises(OnnxSparseError, match=said):
        osp.quantize(model, scales=path, data={"x": SAMPLES}, **{flag: True})
    path.write_text('{"x": {"scale": 0.02}}')
    assert "stem.weight_scale" in arrays(quantized(model, scales=path, data={"x": SAMPLES}, **{flag: True}))


def test_a_file_without_pairs(model: str, tmp_path: Path) -> None:
    net = Net()
    rounded = net.node("QuantizeLinear", "x", net.constant(0.1), net.constant(0, dtype=np.uint8))
    net.node("Cast", rounded, to="y")
    onnx.save(net.model("y"), str(tmp_path / "half.onnx"))
    with pytest.raises(OnnxSparseError, match="no pairs of QuantizeLinear and DequantizeLinear"):
        osp.quantize(model, scales=tmp_path / "half.onnx")
    with pytest.raises(OnnxSparseError, match="cannot read"):
        osp.quantize(model, scales=tmp_path / "none.onnx")
    path = tmp_path / "scales.json"
    path.write_text('{"x": {"scale": 1, "zero_point": 3, "type": "uint8"}}')
    with pytest.raises(OnnxSparseError, match="an unsigned or shifted grid for 'x'"):
        osp.quantize(model, scales=path, target="ampere")
    with pytest.raises(OnnxSparseError, match="scales= means nothing with"):
        osp.quantize(model, scales=path, scheme="w8")
