"""Train by a configuration file: once, or on from where it stopped; or evaluate.

    python tools/train_sparse.py CONFIG.yaml                 train; started again, go on from the newest checkpoint
    python tools/train_sparse.py CONFIG.yaml -e              evaluate the newest checkpoint
    python tools/train_sparse.py CONFIG.yaml -e level-50.onnx    evaluate that one
    python tools/train_sparse.py CONFIG.yaml --scenes        with images made where there are none
    python tools/train_sparse.py CONFIG.yaml dense.pth       another start state than the configuration names
    torchrun --nproc-per-node 2 tools/train_sparse.py CONFIG.yaml    a network by several processes

A configuration with `net:` and `dataset:` trains a network of models/, float or sparse, one with `model:` an ONNX
model: docs/workflows.md. Exit codes: 0 done, 1 a delivered file does not verify, 2 a mistake to mend.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxsparse.cli.output import watched
from onnxsparse.dialects.msbench import configuration
from onnxsparse.dialects.msbench.network_job import describes_network, overridden
from onnxsparse.engines.processes import is_first, speaks
from onnxsparse.errors import OnnxSparseError, OptionError

ROOT = Path(__file__).resolve().parents[1]
SCENES = "make what `dataset:` names and is not there, of the digits or of the Fashion-MNIST files in a folder"
ENDINGS = (".yaml", ".yml", ".json")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train by a configuration file.")
    parser.add_argument("words", nargs="*", metavar="CONFIG [START]", help="a checkpoint or model to begin with")
    parser.add_argument("--config", default="", help="the YAML or JSON file of the training")
    parser.add_argument("-e", "--evaluate", action="store_true", help="evaluate only")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but what is wrong")
    parser.add_argument("--opts", nargs="+", default=[], metavar="KEY=VALUE", help="other values: trainer.max_iter=10")
    parser.add_argument("--scenes", nargs="?", const="digits", default="", metavar="FOLDER", help=SCENES)
    parser.add_argument(
        "--scenes-count", nargs=2, type=int, default=[10_000, 500], metavar=("TRAIN", "TEST"), help="how many"
    )
    parser.add_argument("--whole", action="store_true", help="of detectors one ONNX file with NMS, too")
    given = parser.parse_args(argv)
    try:
        return trained(given)
    except OnnxSparseError as error:
        if speaks():
            print(f"train_sparse: {error.as_flags}", file=sys.stderr)
        return error.exit_code


def trained(given: argparse.Namespace) -> int:
    words = [*([given.config] if given.config else []), *given.words]
    if not words or not words[0].lower().endswith(ENDINGS) or words[2:]:
        raise OptionError("name the YAML or JSON file of the training, and at most one checkpoint or model behind it")
    start = words[1] if words[1:] else ""
    found = overridden(configuration.load(words[0]), given.opts)
    runner = (
        network_runner(words[0], found, start, given)
        if describes_network(found)
        else onnx_runner(words[0], start, given)
    )
    with watched(given):
        runner.run()
    return 0 if runner.holds else 1


def network_runner(path: str, found: Mapping[str, Any], start: str, given: argparse.Namespace) -> Any:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise OptionError(f"{path} describes a network, and networks train in torch: pip install torch") from None
    sys.path.insert(0, str(ROOT))  # for models/, which is not installed
    from models.workflow import Workflow
    from onnxsparse.dialects.msbench.network_runner import NetworkRunner

    if given.scenes and is_first():
        from models.data.scenes import make_scenes

        notes = make_scenes(found.get("dataset") or {}, given.scenes, tuple(given.scenes_count))
        for note in [] if given.quiet else notes:
            print(f"note: {note}")
    return NetworkRunner(path, found, Workflow(), start, given.evaluate, given.quiet, given.whole)


def onnx_runner(path: str, start: str, given: argparse.Namespace) -> Any:
    from onnxsparse.dialects.msbench.runner import SparseRunner

    if given.opts or given.whole or given.scenes:
        raise OptionError(
            "--opts, --scenes and --whole are for configurations that describe a network (net and dataset)"
        )
    return SparseRunner(path, start, given.evaluate, given.quiet)


if __name__ == "__main__":
    sys.exit(main())
