"""Train a sparse model by a configuration file: once, or on from where it stopped; or evaluate one.

    python tools/train_sparse.py --config sparse.yaml            train; started again, go on from the newest checkpoint
    python tools/train_sparse.py --config sparse.yaml -e         evaluate the newest checkpoint
    python tools/train_sparse.py --config sparse.yaml -e sparse.onnx    evaluate that one
    python tools/train_sparse.py --config sparse.yaml dense.pth  another start state than the configuration names

docs/msbench.md says what the configuration holds. Exit codes: 0 done, 1 the delivered file does not verify, 2 a
mistake to mend.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from onnxsparse.dialects.msbench.runner import SparseRunner
from onnxsparse.engines.processes import speaks
from onnxsparse.errors import OnnxSparseError


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a sparse model by a configuration file.")
    parser.add_argument("start", nargs="?", default="", help="a checkpoint or model to begin with")
    parser.add_argument("--config", required=True, help="the YAML or JSON file of the training")
    parser.add_argument("-e", "--evaluate", action="store_true", help="evaluate only")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but what is wrong")
    given = parser.parse_args(argv)
    try:
        runner = SparseRunner(given.config, given.start, given.evaluate, given.quiet)
        runner.run()
    except OnnxSparseError as error:
        if speaks():
            print(f"train_sparse: {error.as_flags}", file=sys.stderr)
        return error.exit_code
    return 0 if runner.holds else 1


if __name__ == "__main__":
    sys.exit(main())
