"""Train by a configuration file: once, or on from where it stopped; or evaluate.

    python tools/train_sparse.py CONFIG.yaml                 train; started again, go on from the newest checkpoint
    python tools/train_sparse.py CONFIG.yaml -e [FILE]       evaluate the newest checkpoint, or that file
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

from onnxsparse.cli import Parser, guarded
from onnxsparse.cli.output import watched
from onnxsparse.dialects.msbench import configuration
from onnxsparse.dialects.msbench.network_job import describes_network, without_effect
from onnxsparse.dialects.msbench.overrides import overridden
from onnxsparse.engines.processes import is_first, speaks
from onnxsparse.errors import OptionError, Stopped, StoppedError

SCENES = "make what `dataset:` names and is not there, of the digits or of the Fashion-MNIST files in a folder"
GO_ON = "start it again to go on from the newest checkpoint"


def main(argv: Sequence[str] | None = None) -> int:
    return guarded("train_sparse", trained, argv)


def trained(words: list[str]) -> int:
    """Train, or evaluate: the exit code."""
    given = arguments(words)
    path, start = given.words[0], given.words[1] if given.words[1:] else ""
    found = overridden(configuration.load(path), given.opts)
    runner = network_runner(path, found, start, given) if describes_network(found) else onnx_runner(path, start, given)
    try:
        with watched(given):
            runner.run()
    except KeyboardInterrupt:
        raise StoppedError(f"interrupted; {GO_ON}") from None
    except Stopped:
        if speaks():
            sys.stderr.write(f"train_sparse: stopped by a signal; {GO_ON}\n")
        raise
    return 0 if runner.holds else 1


def arguments(words: list[str]) -> argparse.Namespace:
    parser = Parser("train_sparse", description="Train by a configuration file.")
    parser.add_argument("words", nargs="*", metavar="CONFIG [START]", help="a checkpoint or model to begin with")
    parser.add_argument("--config", default="", help="the YAML or JSON file of the training")
    parser.add_argument("-e", "--evaluate", action="store_true", help="evaluate only")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but what is wrong")
    parser.add_argument("--opts", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="other values")
    parser.add_argument("--scenes", nargs="?", const="digits", default="", metavar="FOLDER", help=SCENES)
    parser.add_argument("--scenes-count", nargs=2, type=int, default=[10_000, 500], metavar="N", help="train and test")
    parser.add_argument("--whole", action="store_true", help="of detectors one ONNX file with NMS, too")
    parser.add_argument("--debug", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_intermixed_args(words, argparse.Namespace(verbose=0))  # a run says itself how far it is
    given.words = [*([given.config] if given.config else []), *given.words]
    if not given.words or not given.words[0].lower().endswith((".yaml", ".yml", ".json")) or given.words[2:]:
        raise OptionError("name the YAML or JSON file of the training, and at most one checkpoint or model behind it")
    return given


def network_runner(path: str, found: Mapping[str, Any], start: str, given: argparse.Namespace) -> Any:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise OptionError(f"{path} describes a network, and networks train in torch: pip install torch") from None
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for models/, which is not installed
    from models.data.scenes import make_scenes
    from models.workflow import Workflow
    from onnxsparse.dialects.msbench.network_runner import NetworkRunner

    notes = without_effect(found, given.opts)
    if given.scenes and is_first():
        notes += make_scenes(found.get("dataset") or {}, given.scenes, tuple(given.scenes_count))
    sys.stdout.writelines(f"note: {note}\n" for note in notes if is_first() and not given.quiet)
    return NetworkRunner(path, found, Workflow(), start, given.evaluate, given.quiet, given.whole)


def onnx_runner(path: str, start: str, given: argparse.Namespace) -> Any:
    from onnxsparse.dialects.msbench.runner import SparseRunner

    if given.whole or given.scenes:
        raise OptionError("--scenes and --whole are for configurations with a network (net, dataset, no model)")
    return SparseRunner(path, start, given.evaluate, given.quiet, given.opts)


if __name__ == "__main__":
    sys.exit(main())
