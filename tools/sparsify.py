"""Prune a model from Python, in a form to copy: open it, choose the zeros, write the sparse file, report.

    python tools/sparsify.py model.onnx sparse.onnx --target ampere
    python tools/sparsify.py model.onnx sparse.onnx --pattern unstructured --sparsity 0.8 --allocation erk

Exit codes: 0 done, 1 something was left out under --strict (nothing is written), 2 a mistake to mend.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import onnxsparse as osp


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Write zeros into the weights of an ONNX model.")
    parser.add_argument("model", help="the dense .onnx file")
    parser.add_argument("output", help="the sparse .onnx file to write")
    rule = parser.add_mutually_exclusive_group(required=True)
    rule.add_argument("--pattern", help="such as 2:4, unstructured, block:4x1, filter or channel")
    rule.add_argument("--target", help="a device instead of a pattern, such as ampere or ampere:asp")
    rule.add_argument("--plan", help="a plan written by `onnxsparse plan`")
    parser.add_argument("--sparsity", help="how much goes, such as 0.8 or 80%%; N:M patterns and devices fix their own")
    parser.add_argument("--allocation", default="uniform", help="uniform (default), global or erk")
    parser.add_argument("--include", nargs="+", default=[], help="only these tensors, layers or operator kinds")
    parser.add_argument("--exclude", nargs="+", default=[], help="all but these")
    parser.add_argument("--allow", nargs="+", default=[], help="words for what stays dense by default, such as stem")
    parser.add_argument("--strict", action="store_true", help="write nothing if a weight is left out unasked")
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it exists")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = vars(arguments().parse_args(argv))
    try:
        report = osp.prune(options.pop("model"), **options).report
    except osp.OnnxSparseError as error:
        print(f"sparsify: {error}", file=sys.stderr)
        return error.exit_code
    for row in report.rows:
        share = f"{row.sparsity:.1%} zeros" if row.status == "pruned" and row.sparsity is not None else row.reason
        print(f"{row.name}: {row.status}, {share}")
    print(f"{report.totals.done} of {report.totals.weights} weights pruned, written to {report.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
