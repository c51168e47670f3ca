"""Fold the masks of a model into its weights and take the nodes out; masks that other tools left, too.

    python tools/fold_masks.py trained.onnx sparse.onnx
    python tools/fold_masks.py masked.onnx dense.onnx --discard

A mask that only some readers of a weight see cannot be folded; it is named, stays in the file and still works.
Exit codes: 0 done, 2 a mistake to mend.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import onnxsparse as osp


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Fold every mask into its weight and remove the nodes.")
    parser.add_argument("model", help="the masked .onnx file")
    parser.add_argument("output", help="the .onnx file without masks to write")
    parser.add_argument("--discard", action="store_true", help="drop the masks instead; the weights stay as they are")
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it exists")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = vars(arguments().parse_args(argv))
    try:
        report = osp.fold_masks(options.pop("model"), **options).report
    except osp.OnnxSparseError as error:
        print(f"fold_masks: {error}", file=sys.stderr)
        return error.exit_code
    for row in report.rows:
        if row.status == "left":
            print(f"{row.name}: left, {row.reason}")
    verb = "dropped" if options["discard"] else "folded"
    print(f"{report.totals.done} of {len(report.rows)} weights: masks {verb}, written to {report.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
