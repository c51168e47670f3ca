"""A gate for a deployment pipeline: succeeds only when the zeros of a model are where they have to be.

    python tools/verify.py sparse.onnx                      # what the model's own metadata records
    python tools/verify.py sparse.onnx --target ampere
    python tools/verify.py sparse.onnx --pattern unstructured --sparsity 0.8

Exit codes: 0 it holds, 1 it does not hold, 2 a mistake to mend. Nothing is run and nothing is written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import onnxsparse as osp


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Check the zeros of an ONNX model.")
    parser.add_argument("model", help="the .onnx file to check")
    rule = parser.add_mutually_exclusive_group()
    rule.add_argument("--pattern", help="such as 2:4, unstructured, block:4x1, filter or channel")
    rule.add_argument("--target", help="a device instead of a pattern, such as ampere or ampere:asp")
    rule.add_argument("--plan", help="a plan written by `onnxsparse plan`")
    parser.add_argument("--sparsity", help="the level, such as 0.8 or 80%%, where the pattern takes one")
    parser.add_argument("--include", nargs="+", default=[], help="only these tensors, layers or operator kinds")
    parser.add_argument("--exclude", nargs="+", default=[], help="all but these")
    parser.add_argument("--allow", nargs="+", default=[], help="words for what stays dense by default, such as stem")
    parser.add_argument(
        "--strict", action="store_true", help="fail if a weight is not checked that you did not exclude"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = vars(arguments().parse_args(argv))
    try:
        report = osp.verify(options.pop("model"), **options).report
    except osp.OnnxSparseError as error:
        print(f"verify: {error}", file=sys.stderr)
        return error.exit_code
    for row in report.rows:
        print(f"{row.name}: {row.status}" + (f", {row.reason}" if row.reason else ""))
    print("holds" if report.ok else "DOES NOT HOLD")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
