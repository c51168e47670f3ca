"""onnxruntime: the file that it has optimised, and the two int8 forms that it writes."""

from __future__ import annotations

import shutil
from typing import Any

from tools.frameworks.samples import FOLDER, digits

x, y, _, _ = digits()
dense = FOLDER.parent / "from_torch" / "torchscript.onnx"

# <page>
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
options.optimized_model_filepath = str(FOLDER / "optimised.onnx")
onnxruntime.InferenceSession(str(dense), options, providers=["CPUExecutionProvider"])


class Samples(CalibrationDataReader):  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        self.left = iter(x[:256].reshape(-1, 8, 1, 1, 8, 8))

    def get_next(self) -> Any:
        return next(({"x": batch.reshape(-1, 1, 8, 8)} for batch in self.left), None)


quantize_static(dense, FOLDER / "qdq.onnx", Samples(), quant_format=QuantFormat.QDQ, per_channel=True)
# ConvInteger takes no signed weights here
quantize_dynamic(dense, FOLDER / "dynamic.onnx", weight_type=QuantType.QUInt8)
# </page>

for file in ("optimised", "qdq", "dynamic"):
    for part in ("train", "test"):
        shutil.copy(dense.with_suffix(f".{part}.npz"), FOLDER / f"{file}.{part}.npz")
