"""Put a mask before every weight that would be pruned, for a trainer that keeps the zeros; weights do not change.

    python tools/insert_masks.py model.onnx masked.onnx --target ampere
    python tools/insert_masks.py model.onnx masked.onnx --masks my_masks.npz --form where

Exit codes: 0 done, 1 something was left out under --strict (nothing is written), 2 a mistake to mend.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import onnxsparse as osp


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Insert mask-multiply nodes into an ONNX model.")
    parser.add_argument("model", help="the dense .onnx file")
    parser.add_argument("output", help="the masked .onnx file to write")
    rule = parser.add_mutually_exclusive_group(required=True)
    rule.add_argument("--pattern", help="such as 2:4, unstructured, block:4x1, filter or channel")
    rule.add_argument("--target", help="a device instead of a pattern, such as ampere or ampere:asp")
    rule.add_argument("--masks", help="masks of your own: an .npz with one array per tensor name, non-zero = keep")
    parser.add_argument("--sparsity", help="how much goes, such as 0.8 or 80%%; N:M patterns and devices fix their own")
    parser.add_argument("--form", default="mul", help="mul (default), bool, uint8 or where")
    parser.add_argument("--include", nargs="+", default=[], help="only these tensors, layers or operator kinds")
    parser.add_argument("--exclude", nargs="+", default=[], help="all but these")
    parser.add_argument("--allow", nargs="+", default=[], help="words for what stays dense by default, such as stem")
    parser.add_argument("--strict", action="store_true", help="write nothing if a weight is left out unasked")
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it exists")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = vars(arguments().parse_args(argv))
    try:
        report = osp.insert_masks(options.pop("model"), **options).report
    except osp.OnnxSparseError as error:
        print(f"insert_masks: {error}", file=sys.stderr)
        return error.exit_code
    for row in report.rows:
        print(f"{row.name}: {row.status}" + (f", {row.reason}" if row.reason else ""))
    print(f"{report.totals.done} of {report.totals.weights} weights masked, written to {report.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
