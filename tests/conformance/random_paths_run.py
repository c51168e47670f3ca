# ruff: noqa: T201 - a script talks to its user
"""Looks for random graphs on which a command is wrong, and makes what it finds small.

python tests/conformance/random_paths_run.py --seconds 3600 --seed 1
python tests/conformance/random_paths_run.py --show 1/42
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import onnx
import onnx.printer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphs.path_claims import Wrong, wrong_claims
from graphs.random_paths import RandomCase, make_case
from graphs.runtime_judge import every_graph, outputs_of


def runs(case: RandomCase) -> bool:
    """Whether onnx and the runtime take the model as it is."""
    with tempfile.TemporaryDirectory() as folder:
        path = case.write(Path(folder))
        try:
            onnx.checker.check_model(str(path))
            outputs_of(onnx.load(path), case.feeds)
        except Exception:
            return False
    return True


def wrong_of(seed: str, dropped: Collection[str], causes: Collection[str]) -> tuple[RandomCase, list[Wrong]] | None:
    """The case with fewer steps, if it still runs and is wrong for one of the causes."""
    case = make_case(seed, dropped)
    if not runs(case):
        return None
    try:
        wrong = [one for one in wrong_claims(case) if one.cause in causes]
    except Exception:  # a smaller graph that the judge cannot show
        return None
    return (case, wrong) if wrong else None


def smallest(seed: str, wrong: Wrong) -> tuple[RandomCase, list[Wrong], list[str]]:
    """Leaves out steps as long as the same thing stays wrong."""
    dropped: list[str] = []
    kept = wrong_of(seed, dropped, [wrong.cause])
    assert kept is not None
    moved = True
    while moved:
        moved = False
        for step in sorted(set(kept[0].steps), key=lambda path: (path.count("/"), path)):
            found = wrong_of(seed, [*dropped, step], [wrong.cause])
            if found is not None:
                dropped.append(step)
                kept, moved = found, True
                break
    return kept[0], kept[1], dropped


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seconds", type=float, default=60)
    asked.add_argument("--count", type=int, default=10**9)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--start", type=int, default=0)
    asked.add_argument("--shrink", type=int, default=3, help="how many of each cause to make small")
    asked.add_argument("--findings", help="write the smallest graph of each kind to this file")
    asked.add_argument("--show", help="one case: seed/number")
    given = asked.parse_args()
    warnings.simplefilter("error")
    if given.show:
        return _show(given.show)
    return _search(given)


def _show(seed: str) -> int:
    wrong = wrong_claims(make_case(seed))
    for one in wrong:
        case, seen, _ = smallest(seed, one)
        _tell(case, seen)
    if not wrong:
        print(onnx.printer.to_text(make_case(seed).model))
    return int(bool(wrong))


def _search(given: Any) -> int:
    until, causes, tags, tried, refused, bad = time.monotonic() + given.seconds, Counter(), Counter(), 0, 0, 0
    number = given.start
    kept: dict[tuple[str, ...], tuple[int, str]] = {}
    while time.monotonic() < until and tried < given.count:
        seed = f"{given.seed}/{number}"
        number += 1
        case = make_case(seed)
        if not runs(case):
            refused += 1
            continue
        tried += 1
        tags.update(case.tags)
        try:
            wrong = wrong_claims(case)
        except Exception as error:  # the judge itself fails: told, and counted as nothing found
            causes["the judge fails"] += 1
            print(f"{seed}: the judge fails: {type(error).__name__} {' '.join(str(error).split())[:300]}", flush=True)
            continue
        bad += bool(wrong)
        for one in wrong:
            causes[one.cause] += 1
            print(f"{seed}: {one}  [{', '.join(sorted(case.tags))}]", flush=True)
            if causes[one.cause] <= given.shrink:
                small, seen, _ = smallest(seed, one)
                _tell(small, seen)
                _keep(kept, small, seen)
    if given.findings:
        _write_findings(given.findings, kept)
    print(f"{bad} wrong of {tried} graphs ({refused} the runtime does not take)")
    for cause, count in causes.most_common():
        print(f"{count:6d}  {cause}")
    print(", ".join(f"{tag} {count}" for tag, count in tags.most_common()))
    return int(bool(bad))


def _keep(kept: dict[tuple[str, ...], tuple[int, str]], case: RandomCase, wrong: list[Wrong]) -> None:
    """The smallest graph for each thing that is wrong and each set of operators that it needs."""
    operators = {node.op_type for graph in every_graph(case.model) for node in graph.node}
    functions = {function.name for function in case.model.functions}
    plain = sorted(operators - functions - {"Identity", "Constant", "MatMul", "Gemm", "Einsum", "Gather", "Conv"})
    key = (wrong[0].cause, *plain, *(["function"] if functions else []))
    head = f"### {'; '.join(map(str, wrong))}\nseed {case.seed}, {', '.join(sorted(case.tags))}"
    text = f"{head}\n```\n{_short(case)}\n```\n"
    if key not in kept or len(text) < kept[key][0]:
        kept[key] = (len(text), text)


def _short(case: RandomCase) -> str:
    return re.sub(r"\{([-\d., nainf]{100})[-\d., nainf]*\}", r"{\1 ...}", onnx.printer.to_text(case.model))


def _write_findings(path: str, kept: dict[tuple[str, ...], tuple[int, str]]) -> None:
    """Sorted by what is wrong, the simplest first."""
    ordered = sorted(kept.items(), key=lambda entry: (entry[0][0], len(entry[0]), entry[1][0]))
    Path(path).write_text("".join(text for _, (_, text) in ordered))


def _tell(case: RandomCase, wrong: list[Wrong]) -> None:
    print(f"--- {case.seed}: {'; '.join(map(str, wrong))}")
    print(_short(case), flush=True)


if __name__ == "__main__":
    sys.exit(main())
