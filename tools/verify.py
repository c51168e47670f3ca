"""A gate for a deployment pipeline: succeeds only when the zeros of a model are where they have to be.

    python tools/verify.py sparse.onnx                      # what the model's own metadata records
    python tools/verify.py sparse.onnx --target ampere
    python tools/verify.py sparse.onnx --pattern unstructured --sparsity 0.8

Options and exit codes are those of `onnxsparse verify`: 0 it holds, 1 it does not hold, 2 a mistake to mend. Nothing is
run and nothing is written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import onnxsparse as osp

RULE = {
    "pattern": "2:4, any N:M, unstructured, block:RxC, filter or channel",
    "target": "a device instead of a pattern: ampere or amba, with :PROFILE",
    "sparsity": "the level, where the pattern takes one",
    "level": "the network sparsity in per cent of a device that knows levels",
    "plan": "a plan written by `onnxsparse plan`, instead of all of these",
}


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Check the zeros of an ONNX model.")
    parser.add_argument("model", metavar="MODEL", help="the .onnx file to check")
    for name, text in RULE.items():
        parser.add_argument(f"--{name}", help=text.replace("%", "%%"))
    parser.add_argument("--include", nargs="+", default=[], help="only these tensors, layers or operator kinds")
    parser.add_argument("--exclude", nargs="+", default=[], help="all but these")
    parser.add_argument("--allow", nargs="+", default=[], help="words for what stays dense by default, such as stem")
    parser.add_argument("--strict", action="store_true", help="fail if a weight is not checked, and not excluded")
    parser.add_argument("--full", action="store_true", help="evaluate all numbers of very large values, not samples")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = vars(arguments().parse_args(argv))
    try:
        report = osp.verify(options.pop("model"), **options).report
    except osp.OnnxSparseError as error:
        print(f"verify: {error.as_flags}", file=sys.stderr)
        return error.exit_code
    for row in report.rows:
        print(f"{row.name}: {row.status}" + (f", {row.reason}" if row.reason else ""))
    print(*report.faults, "holds" if report.ok else "DOES NOT HOLD", sep="\n")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
