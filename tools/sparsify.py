"""Prune a model from Python, in a form to copy: open it, choose the zeros, write the sparse file, report.

    python tools/sparsify.py model.onnx -o sparse.onnx --target ampere
    python tools/sparsify.py model.onnx -o sparse.onnx --pattern unstructured --sparsity 0.8 --allocation erk

Options and exit codes are those of `onnxsparse prune`: 0 done, 1 something was left out under --strict (nothing is
written), 2 a mistake to mend.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import onnxsparse as osp

RULE = {
    "pattern": "2:4, any N:M, unstructured, block:RxC, filter or channel",
    "target": "a device instead of a pattern: ampere or amba, with :PROFILE",
    "sparsity": "how much goes, such as 0.8 or 80%; N:M patterns and devices fix their own",
    "level": "the network sparsity in per cent of a device that knows levels",
    "score": "what goes first: magnitude (default), random, squared, ...",
    "allocation": "how the share is spread: uniform, global, erk or energy",
    "plan": "a plan written by `onnxsparse plan`, instead of all of these",
    "masks": "masks of your own: an .npz with an array for each tensor name, non-zero = keep",
}


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Write zeros into the weights of an ONNX model.")
    parser.add_argument("model", metavar="MODEL", help="the .onnx file")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="the sparse .onnx file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    for name, text in RULE.items():
        parser.add_argument(f"--{name}", help=text.replace("%", "%%"))
    parser.add_argument("--include", nargs="+", default=[], help="only these tensors, layers or operator kinds")
    parser.add_argument("--exclude", nargs="+", default=[], help="all but these")
    parser.add_argument("--allow", nargs="+", default=[], help="words for what stays dense by default, such as stem")
    parser.add_argument("--strict", action="store_true", help="write nothing if a weight is left out unasked")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = vars(arguments().parse_args(argv))
    try:
        report = osp.prune(options.pop("model"), **options).report
    except osp.OnnxSparseError as error:
        print(f"sparsify: {error.as_flags}", file=sys.stderr)
        return error.exit_code
    for row in report.rows:
        share = f"{row.sparsity:.1%} zeros" if row.status == "pruned" and row.sparsity is not None else row.reason
        print(f"{row.name}: {row.status}, {share}")
    print(f"{report.totals.done} of {report.totals.weights} weights pruned, written to {report.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
