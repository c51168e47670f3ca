"""Permuting, proving and pruning models of the size of well-known networks, held to the bars that the project promises.

    python tools/bench/bench_permute.py [--models resnet50 bert] [--repeat 1] [--effort quick] [--folder FOLDER]

CPU seconds are those of the command and of the processes that prove it, on one thread each, imports included; memory is
the most that one of them had, mapped pages included. The weights are random normal numbers: an order gains least of
such, so the search has most to do. Exit code 1: a bar was missed, or a file that was written does not verify.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench.bench_files import Bar, Result, Row, measure, prepare, remove

GB = 1e9
BARS = {"resnet50": Bar(seconds=60, memory=2 * GB), "bert": Bar(seconds=150, memory=2 * GB)}
TOOL = (sys.executable, "-m", "onnxsparse")


def rows(folder: Path, model: str, effort: str) -> list[Row]:
    source, moved, sparse = (
        str(folder / name) for name in (f"{model}.onnx", f"moved-{model}.onnx", f"out-{model}.onnx")
    )
    both = (*TOOL, "prune", source, "-o", sparse, "--pattern", "2:4", "--permute", "--effort", effort)
    return [
        Row(model, "channels", (*TOOL, "channels", source)),
        Row(model, "permute", (*TOOL, "permute", source, "-o", moved, "--effort", effort), moved),
        Row(model, "permute --apply", (*TOOL, "permute", source, "-o", sparse, "--apply", moved), sparse),
        Row(model, "prune --permute", both, sparse, BARS[model] if effort == "quick" else Bar()),
        Row(model, "verify", (*TOOL, "verify", sparse, "--pattern", "2:4"), bar=Bar(memory=2 * GB)),
    ]


def run(row: Row, repeat: int) -> Result:
    result = Result(row)
    for _ in range(repeat):
        if row.writes:
            remove(row.writes)
        result.add(*measure(row.command))
    missed = result.missed(1.0, 1.0)
    verdict = "" if row.bar == Bar() else "yes" if not missed else f"**no: {', '.join(missed)}**"
    times = result.error.replace("|", "/") or f"{result.seconds:.1f} | {result.memory / 1e6:,.0f}"
    print(f"| {row.model} | {row.title} | {times} | {row.bar} | {verdict} |", flush=True)
    return result


def main() -> int:
    cache = Path(os.environ.get("ONNXSPARSE_BENCH") or Path.home() / ".cache" / "onnxsparse-bench")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(BARS), default=list(BARS), help="which models (all)")
    parser.add_argument("--folder", type=Path, default=cache, help="where the models are made ($ONNXSPARSE_BENCH)")
    parser.add_argument("--repeat", type=int, default=1, help="repetitions (1)")
    parser.add_argument("--effort", default="quick", help="of the search (quick)")
    chosen = parser.parse_args()
    prepare(chosen.folder, chosen.models)
    print("| model | command | CPU s | peak RSS, MB | bar | holds |\n|---|---|---:|---:|---|---|")
    results = [run(row, chosen.repeat) for model in chosen.models for row in rows(chosen.folder, model, chosen.effort)]
    for result in results:
        if result.row.writes:
            remove(result.row.writes)
    return 1 if any(one.error or one.missed(1.0, 1.0) for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
