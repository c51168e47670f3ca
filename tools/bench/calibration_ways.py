"""The ways to prune that bench_calibration.py holds side by side: ours, with everything that can be chosen, and peers.

A way is a row of a table: the commands that lead from a dense file to a sparse one. Peers live in an environment of
their own (onnxsim 0.8.1, polygraphy 0.53.6), whose Python ONNXSPARSE_BENCH_PEERS names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

LEVELS = {"2:4": 0.5, "50 %": 0.5, "70 %": 0.7, "80 %": 0.8, "90 %": 0.9, "95 %": 0.95}
PEERS = os.environ.get("ONNXSPARSE_BENCH_PEERS", "")
TOOL = (sys.executable, "-m", "onnxsparse")

ONNXSIM = """
import sys
import numpy as np
import onnx
import onnxsim

source, out, method, level, sparsity, data = sys.argv[1:]
options = {"n": 2, "m": 4} if level == "2:4" else {"sparsity": float(sparsity)}
if method.endswith("_global"):
    method, options["global_sparsity"] = method[:-7], True
if method != "magnitude":
    with np.load(data) as file:
        arrays = dict(file)
    count = len(next(iter(arrays.values())))
    parts = ({name: array[at : at + 32] for name, array in arrays.items()} for at in range(0, count, 32))
    options["calibration_data"] = list(parts)
onnx.save(getattr(onnxsim, f"apply_{method}_pruning")(onnx.load(source), **options), out)
"""


@dataclass(frozen=True)
class Case:
    """A file to be pruned to a level with samples (or a seed) of a draw, and the file that is made."""

    model: Path
    calibration: Path
    finetune: Path
    out: Path
    level: str
    draw: int


Command = tuple[str, ...]
Commands = Callable[[Case], list[Command]]


@dataclass(frozen=True)
class Way:
    """A row of a table."""

    title: str
    commands: Commands
    draws: bool = True
    """Other samples or another seed give another file."""
    peer: str = ""
    """The module that it needs in the environment of the peers."""
    levels: tuple[str, ...] = tuple(LEVELS)


def rule(level: str) -> Command:
    if level == "2:4":
        return "--target", "ampere"
    return "--pattern", "unstructured", "--sparsity", str(LEVELS[level])


def pruning(*flags: str, data: bool = True) -> Commands:
    def commands(case: Case) -> list[Command]:
        samples = ("--data", str(case.calibration), "--workers", "1") if data else ()
        return [(*TOOL, "prune", str(case.model), "-o", str(case.out), *rule(case.level), *samples, *flags)]

    return commands


def tuning(*flags: str) -> Commands:
    def commands(case: Case) -> list[Command]:
        tool = (*TOOL, "finetune", str(case.model), "-o", str(case.out), "--data", str(case.finetune))
        return [(*tool, *rule(case.level), "--seed", str(case.draw), *flags)]

    return commands


def quantizing(case: Case) -> list[Command]:
    """Pruned, then made int8 from the same samples."""
    between = replace(case, out=case.out.with_suffix(".float.onnx"))
    last = ("quantize", str(between.out), "-o", str(case.out), "--data", str(case.calibration))
    return [*pruning()(between), (*TOOL, *last)]


def onnxsim(method: str) -> Commands:
    def commands(case: Case) -> list[Command]:
        share, data = str(LEVELS[case.level]), str(case.calibration)
        return [(PEERS, "-c", ONNXSIM, str(case.model), str(case.out), method, case.level, share, data)]

    return commands


def polygraphy(case: Case) -> list[Command]:
    tool = (PEERS, "-c", "from polygraphy.tools import main; main()")
    return [(*tool, "surgeon", "prune", str(case.model), "-o", str(case.out))]


SHARES = tuple(level for level in LEVELS if level != "2:4")
ONE_SHOT, TUNED, QUANTIZED = "default", "tuned", "pruned and quantized"
TUNED_PLAIN, LONG, LONG_PLAIN = "tuned, plain start", "tuned on 20,000", "tuned on 20,000, plain start"
OURS = (
    Way(ONE_SHOT, pruning()),
    Way(TUNED, tuning()),
    Way(QUANTIZED, quantizing),
)
OTHERWISE = (
    Way(TUNED_PLAIN, tuning("--init", "plain")),
    Way("tuned by kl", tuning("--loss", "kl")),
    Way("tuned in 1,074 steps", tuning("--steps", "1074")),
)
"""Tuned from the dense numbers, by another loss, or twice as long."""
LONGER = (Way(LONG, tuning()), Way(LONG_PLAIN, tuning("--init", "plain")))
"""On the files that were given, with the images of `bench_finetune.py`."""
VARIANTS = (
    Way("magnitude, uniform", pruning(data=False), False),
    Way("magnitude, global", pruning("--allocation", "global", data=False), False, levels=SHARES),
    Way("magnitude, erk", pruning("--allocation", "erk", data=False), False, levels=SHARES),
    *(
        Way(f"{score}, {solver}, {allocation}",
            pruning("--score", score, "--solver", solver, "--allocation", allocation))
        for score, solver, allocation in (
            ("magnitude", "least-squares", "erk"), ("wanda", "zero", "uniform"), ("wanda", "least-squares", "erk"),
            ("ria", "zero", "uniform"), ("ria", "least-squares", "erk"), ("obs", "obs", "uniform"),
            ("obs", "least-squares", "uniform"), ("obs", "least-squares", "erk"), ("obs", "bias", "erk"),
        )
    ),
    Way("default, layers alone", pruning("--joint-steps", "0")),
    Way("default, measured sensitivity", pruning("--sensitivity", "measured")),
)  # fmt: skip
OTHERS = (
    Way("polygraphy surgeon prune", polygraphy, False, "polygraphy", ("2:4",)),
    Way("onnxsim magnitude", onnxsim("magnitude"), False, "onnxsim"),
    Way("onnxsim magnitude, global", onnxsim("magnitude_global"), False, "onnxsim", SHARES),
    Way("onnxsim Wanda", onnxsim("wanda"), True, "onnxsim"),
    Way("onnxsim Wanda, global", onnxsim("wanda_global"), True, "onnxsim", SHARES),
    Way("onnxsim SparseGPT", onnxsim("sparsegpt"), True, "onnxsim"),
)
WAYS = {way.title: way for way in (*OURS, *OTHERWISE, *LONGER, *VARIANTS, *OTHERS)}


def missing() -> dict[str, str]:
    """The peers that cannot be measured here, and why."""
    names = sorted({way.peer for way in OTHERS})
    if not PEERS:
        return dict.fromkeys(names, "ONNXSPARSE_BENCH_PEERS names no Python that has it")
    absent = [name for name in names if subprocess.run([PEERS, "-c", f"import {name}"], capture_output=True).returncode]
    return dict.fromkeys(absent, f"{PEERS} cannot import it")
