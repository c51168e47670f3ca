# ruff: noqa: T201 - a script talks to its user
"""Looks for random graphs that a permutation breaks, and says after which step.

python tests/channels/random_run.py --graphs 2000 --seed 1
python tests/channels/random_run.py --show 1/42
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from pathlib import Path

import onnx.printer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.channels import judge, random_graphs, subject
from tests.channels.net import Trap


def faults(trap: Trap) -> tuple[list[str], set[str]]:
    """What is wrong when all classes are put into random orders, and the weights whose columns moved."""
    permuted = subject.randomly_permuted(trap.model, 0)
    wrong = judge.judge(trap.model, permuted.model, trap.feeds)
    if not judge.same_bytes(trap.model, subject.moved_back(permuted)):
        wrong.append("the inverse does not give the same bytes")
    for one in permuted.channels.classes if wrong else ():
        alone = subject.randomly_permuted(trap.model, 1, one.number)
        if judge.judge(trap.model, alone.model, trap.feeds):
            wrong.append(f"class {one.number} of {one.size}: " + ", ".join(each.name for each in one.members))
    return wrong, judge.moved(trap.model, permuted.model, trap.reductions)


def tried(seed: str, steps: int) -> tuple[list[str], list[str], set[str]] | None:
    """What is wrong, the steps, and what moved; None where the runtime refuses the graph."""
    try:
        trap, names = random_graphs.make(seed, steps)
        judge.changed_outputs(trap.model, trap.model, trap.feeds)
    except Exception:  # the runtime raises types of its own for each kind of refusal
        return None
    try:
        wrong, moved = faults(trap)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return [f"{type(error).__name__} in {last.filename}:{last.lineno}: {error}"], names, set()
    return wrong, names, moved


def smallest(seed: str, steps: int) -> tuple[list[str], list[str]]:
    """The first steps of a graph after which something is wrong."""
    for count in range(1, steps + 1):
        found = tried(seed, count)
        if found and found[0]:
            return found[0], found[1]
    return [], []


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--graphs", type=int, default=200)
    asked.add_argument("--seed", default="0")
    asked.add_argument("--steps", type=int, default=9)
    asked.add_argument("--show", help="one graph: seed/number")
    given = asked.parse_args()
    if given.show:
        return show(given.show, given.steps)
    refused, bad, weights, last, used = 0, 0, Counter[str](), Counter[str](), Counter[str]()
    for number in range(given.graphs):
        seed = f"{given.seed}/{number}"
        found = tried(seed, given.steps)
        if found is None:
            refused += 1
            continue
        wrong, names, moved = found
        used.update(names)
        weights["moved" if moved else "unmoved"] += 1
        if wrong:
            bad += 1
            wrong, names = smallest(seed, given.steps)
            last[names[-1] if names else "?"] += 1
            print(f"{seed}: {' > '.join(names)}: {'; '.join(wrong)}", flush=True)
    print(f"{bad} wrong of {given.graphs - refused} graphs ({refused} the runtime does not take)")
    print(f"columns moved in {weights['moved']}, in none of {weights['unmoved']}")
    print("wrong after:", ", ".join(f"{name} {count}" for name, count in last.most_common()))
    print("steps:", ", ".join(f"{name} {count}" for name, count in used.most_common()))
    return int(bool(bad))


def show(seed: str, steps: int) -> int:
    wrong, names = smallest(seed, steps)
    trap, names = random_graphs.make(seed, len(names) or steps)
    print(onnx.printer.to_text(trap.model))
    print(" > ".join(names), *wrong, sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
