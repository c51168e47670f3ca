"""A training of the small network by the runner, for tests that start it in processes of their own.

    python runner_run.py CONFIG.json [DIE_AT_STEP [RANK]]

With a step the process ends there, as if it were killed; of several processes the one of that rank raises an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2])]

from tiny_network import Builders

from onnxsparse.dialects.msbench import configuration
from onnxsparse.dialects.msbench.network_runner import NetworkRunner
from onnxsparse.engines.processes import speaks
from onnxsparse.errors import OnnxSparseError, OptionError


def ending(before: Callable[[int], None], at: int, rank: str) -> Callable[[int], None]:
    def step(number: int) -> None:
        if number == at and not rank:
            os._exit(9)
        if number == at and os.environ["RANK"] == rank:
            raise OptionError("this process cannot go on")
        before(number)

    return step


def main(path: str, at: str = "", rank: str = "") -> int:
    try:
        runner = NetworkRunner(path, configuration.load(path), Builders())
        if at:
            runner._before = ending(runner._before, int(at), rank)  # type: ignore[method-assign]
        runner.run()
    except OnnxSparseError as error:
        if speaks():
            sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0 if runner.holds else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
