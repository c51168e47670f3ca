"""Make integers of a fake-quantized model: what torch, SparseML or this package export of quantization-aware training.

    python tools/model_quantize_qat_export.py fake_quantized.onnx -o int8.onnx
    python tools/model_quantize_qat_export.py fake_quantized.onnx -o int8.onnx --target ampere

Weights become int8 under their names, with QuantizeLinear and DequantizeLinear where the export has them. The outputs
are those of the export, but for biases, which are rounded to 32 bits. With --target ampere every zero point has to be
0, and biases stay float. Exit codes: 0 done, 1 a zero or the record of the zeros does not hold in the integers (nothing
is written), 2 a mistake to mend.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import onnxsparse as osp
import onnxsparse.dialects.sparseml


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Make integers of a fake-quantized ONNX model.")
    parser.add_argument("model", metavar="MODEL", help="the .onnx file that was exported")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="the int8 .onnx file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    parser.add_argument("--target", help="a device whose rules hold: ampere (TensorRT) or vnni")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = vars(arguments().parse_args(argv))
    try:
        report = onnxsparse.dialects.sparseml.export_qat(options.pop("model"), **options).report
    except osp.OnnxSparseError as error:
        print(f"model_quantize_qat_export: {error.as_flags}", file=sys.stderr)
        return error.exit_code
    for row in report.rows:
        share = f", {row.sparsity:.1%} zeros" if row.sparsity is not None else ""
        print(f"{row.name}: {row.quantized or row.status}{share}" + (f", {row.reason}" if row.reason else ""))
    for note in report.notes:
        print(note)
    details, totals = report.details, report.totals
    print(
        f"{totals.done} of {totals.weights} weights are integers, {details['values']} values are rounded, "
        f"{details['biases']} biases have 32 bits; written to {report.output}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
