"""Put a mask before every weight that would be pruned, for a trainer that keeps the zeros; weights do not change.

    python tools/insert_masks.py model.onnx -o masked.onnx --target ampere
    python tools/insert_masks.py model.onnx -o masked.onnx --masks my_masks.npz --form where
    python tools/insert_masks.py model.onnx -o masked.onnx --config sparse.yaml --level 50

Options and exit codes are those of `onnxsparse mask`: 0 done, 1 something was left out under --strict (nothing is
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
    "config": "a configuration of MSBench: its masks at an --iteration, at a --level, or at the end",
    "recipe": "a recipe of SparseML: its masks at an --epoch, or at the end",
}


def sizes(text: str) -> dict[str, int]:
    """NAME=SIZE,... of dynamic dimensions."""
    return {name: int(size) for name, _, size in (one.rpartition("=") for one in text.split(","))}


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Insert mask-multiply nodes into an ONNX model.")
    parser.add_argument("model", metavar="MODEL", help="the .onnx file")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="the masked .onnx file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    for name, text in RULE.items():
        parser.add_argument(f"--{name}", help=text.replace("%", "%%"))
    parser.add_argument("--iteration", type=int, help="the moment of --config")
    parser.add_argument("--expected", action="store_true", help="of masks that are drawn: the most probable numbers")
    parser.add_argument("--epoch", type=float, help="the moment of --recipe")
    parser.add_argument("--steps-per-epoch", type=int, help="the steps by which the recipe's clock goes")
    parser.add_argument("--dim", dest="dims", type=sizes, metavar="NAME=SIZE,...", help="sizes of dynamic dimensions")
    parser.add_argument("--include", nargs="+", default=[], help="only these tensors, layers or operator kinds")
    parser.add_argument("--exclude", nargs="+", default=[], help="all but these")
    parser.add_argument("--allow", nargs="+", default=[], help="words for what stays dense by default, such as stem")
    parser.add_argument("--strict", action="store_true", help="write nothing if a weight is left out unasked")
    parser.add_argument("--form", default="mul", help="mul (default), bool, uint8 or where")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = vars(arguments().parse_args(argv))
    try:
        report = osp.insert_masks(options.pop("model"), **options).report
    except osp.OnnxSparseError as error:
        print(f"insert_masks: {error.as_flags}", file=sys.stderr)
        return error.exit_code
    for row in report.rows:
        print(f"{row.name}: {row.status}" + (f", {row.reason}" if row.reason else ""))
    print(f"{report.totals.done} of {report.totals.weights} weights masked, written to {report.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
