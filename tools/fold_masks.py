"""Fold the masks of a model into its weights, check the layout, and take the nodes out; masks of other tools, too.

    python tools/fold_masks.py trained.onnx -o sparse.onnx --target ampere
    python tools/fold_masks.py masked.onnx -o dense.onnx --discard

A mask that only some readers of a weight see cannot be folded; it is named, stays in the file and still works.
Options and exit codes are those of `onnxsparse fold`: 0 done, 1 the layout does not hold (nothing is written), 2 a
mistake to mend.
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
    parser = argparse.ArgumentParser(description="Fold every mask into its weight and remove the nodes.")
    parser.add_argument("model", metavar="MODEL", help="the .onnx file")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="the folded .onnx file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    parser.add_argument("--discard", action="store_true", help="drop the masks instead; the weights stay as they are")
    for name, text in RULE.items():
        parser.add_argument(f"--{name}", help=text.replace("%", "%%"))
    parser.add_argument("--include", nargs="+", default=[], help="only these tensors, layers or operator kinds")
    parser.add_argument("--exclude", nargs="+", default=[], help="all but these")
    parser.add_argument("--allow", nargs="+", default=[], help="words for what stays dense by default, such as stem")
    parser.add_argument("--strict", action="store_true", help="write nothing if a weight is not checked or not folded")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = vars(arguments().parse_args(argv))
    try:
        report = osp.fold_masks(options.pop("model"), **options).report
    except osp.OnnxSparseError as error:
        print(f"fold_masks: {error.as_flags}", file=sys.stderr)
        return error.exit_code
    for row in report.rows:
        if row.status in ("left", "violated"):
            print(f"{row.name}: {row.status}, {row.reason}")
    done = f"written to {report.output}" if report.ok else "DOES NOT HOLD, nothing was written"
    print(*report.notes, f"masks of {report.totals.done} of {len(report.rows)} weights, {done}", sep="\n")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
