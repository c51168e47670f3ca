"""Matches the parameters of many networks, exported in many ways, and writes down how often that was right.

    python tools/bench/match_torch.py [TABLE.md] [NET ...]

Every match is tried: new numbers at half of the places of a parameter, in the module, and in the tensor that the match
names, as `layout` says; the module and onnxruntime, which reads the tensor as an input, have to agree on the outputs
again. Parameters of one tensor are changed together. New numbers, because a mask on a bias of zeros shows nothing.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import onnx
import torch

import onnxsparse as osp
from onnxsparse.engines.processes import end_unless_alone
from tools.bench.match_trial import Outcome, Trial
from tools.bench.match_ways import CHANGED, NETS, WRAPPERS, Way, export, network, ways


def run(net: str, way: Way, folder: Path) -> Outcome:
    outcome, path = Outcome(net, way), folder / "net.onnx"
    try:
        module, x = network(net, way)
        export(module, x, way, path)
    except Exception as error:  # the exporter has no such operator at that opset, or onnxruntime no such model
        outcome.problem = f"not exported: {type(error).__name__}: {error}".splitlines()[0][:160]
        return outcome
    whole = module if way.wrapper in ("", *CHANGED) else WRAPPERS[way.wrapper](module)
    match = osp.torch.match(path, whole)
    outcome.refused, outcome.folded = match.refused, len(match.folded)
    with torch.no_grad():
        return Trial(path, whole, x, way, match).outcome(outcome)


# -- the table


def table(outcomes: Sequence[Outcome]) -> str:
    tried = [one for one in outcomes if not one.problem]
    total = counts(tried)
    version, matched = torch.__version__.partition("+")[0], total["right"] + total["unseen"] + total["wrong"]
    left = Counter(one.problem.partition(":")[0] for one in outcomes if one.problem)
    lines = [
        "# Parameters of torch modules in their exports",
        "",
        f"Written by `tools/bench/match_torch.py` with torch {version}, onnx {onnx.__version__}.",
        f"In {len(tried)} exports of {len({one.net for one in tried})} networks,",
        f"**{total['wrong']} of {matched} matched tensors are wrong**.",
        "",
        "A match is tried by writing new numbers at half of the places of a parameter, in the module and, as the match",
        "says, in the file: both have to give the same outputs again. *right* are those where the outputs changed as",
        "well, *unseen* those where they did not (what is added before a normalization), or which are computed from",
        "several parameters. *folded* batch normalizations have no tensor of their own any more. What is not certain",
        "is refused; *uncounted* are the counters of batch normalizations, which no file holds. *new* networks are as",
        "they were made: biases are zero, scales one, copied layers equal. The first three were tried at opsets 13 to",
        "20, all others at 17 and 18.",
        "",
        *(f"* {count} exports {reason}" for reason, count in sorted(left.items())),
        "",
        *listed("network", tried, lambda one: one.net),
        "",
        *listed("export", tried, lambda one: one.way.title),
        "",
        "| why a tensor was refused | times |",
        "|---|---|",
        *(f"| {reason} | {count} |" for reason, count in reasons(tried).most_common()),
    ]
    return "\n".join(lines) + "\n"


def counts(outcomes: Sequence[Outcome]) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in outcomes:
        counted = sum("num_batches_tracked" in name for name in one.refused)
        found.update(exports=1, right=one.right, unseen=one.unseen, folded=one.folded, wrong=len(one.wrong))
        found.update(refused=len(one.refused) - counted, uncounted=counted)
    return found


def listed(what: str, outcomes: Sequence[Outcome], key: Callable[[Outcome], str]) -> Iterator[str]:
    columns = ("exports", "right", "unseen", "folded", "refused", "uncounted", "wrong")
    yield f"| {what} | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for name in dict.fromkeys(key(one) for one in outcomes):
        found = counts([one for one in outcomes if key(one) == name])
        yield f"| {name} | {' | '.join(str(found[column]) for column in columns)} |"


def reasons(outcomes: Sequence[Outcome]) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in outcomes:
        for name, reason in one.refused.items():
            if "num_batches_tracked" not in name:
                found[re.sub(r"'[^']*'(, '[^']*')*( and \d+ more)?", "'...'", reason)] += 1
    return found


def main() -> None:
    end_unless_alone("match_torch")
    jobs = [(net, way) for net in sys.argv[2:] or NETS for way in ways(net)]
    outcomes = []
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), context, quieted) as workers:
        for outcome, seconds in workers.map(timed, jobs):
            outcomes.append(outcome)
            told(outcome, seconds)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(table(outcomes), encoding="utf-8")
    sys.exit(any(one.wrong for one in outcomes))


def quieted() -> None:
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # which the older exporter cannot write
    warnings.simplefilter("ignore")


def timed(job: tuple[str, Way]) -> tuple[Outcome, float]:
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        return run(*job, Path(folder)), time.perf_counter() - begun


def told(one: Outcome, seconds: float) -> None:
    refused = {name: reason for name, reason in one.refused.items() if "num_batches_tracked" not in name}
    numbers = (
        f"{one.right} right, {one.unseen} unseen, {one.folded} folded, {len(refused)} refused, {len(one.wrong)} wrong"
    )
    print(f"{one.net} {one.way.opset} {one.way.title}: {one.problem or numbers} ({seconds:.1f} s)", flush=True)
    for name, reason in refused.items():
        print(f"    {name}: {reason}")
    if one.wrong:
        print(f"    WRONG {one.wrong}")


if __name__ == "__main__":
    main()
