"""Random graphs with masks, twins, functions, bodies, shuffles and quantization: no command claims what is not so.

The long search is `random_paths_run.py`, or the slow test here: ONNXSPARSE_SEARCH_SECONDS, _COUNT and _SEED bound it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import onnx
import pytest
from graphs.path_claims import wrong_claims
from graphs.random_paths import RandomCase, make_case
from graphs.runtime_judge import outputs_of

pytest.importorskip("onnxsparse")
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
FEW, PARTS = 25, 8


def valid(case: RandomCase) -> bool:
    """Whether onnx and the runtime take the model as it is."""
    with tempfile.TemporaryDirectory() as folder:
        path = case.write(Path(folder))
        try:
            onnx.checker.check_model(str(path))
            outputs_of(onnx.load(path), case.feeds)
        except Exception:  # the runtime raises types of its own for each kind of refusal
            return False
    return True


@pytest.mark.parametrize("part", range(PARTS))
def test_random_paths(part: int) -> None:
    seeds = [f"short/{number}" for number in range(part * FEW, part * FEW + FEW)]
    cases = [case for case in map(make_case, seeds) if valid(case)]
    assert len(cases) >= FEW * 0.9, "the generator makes graphs that nobody can run"
    wrong = [f"{case.seed}: {one}" for case in cases for one in wrong_claims(case)]
    assert not wrong, "\n".join(wrong)


def test_the_same_integer_makes_the_same_graph() -> None:
    for number in range(5):
        first, second = make_case(f"same/{number}"), make_case(f"same/{number}")
        assert first.model.SerializeToString() == second.model.SerializeToString()
        assert first.steps == second.steps


def test_every_family_is_among_the_random_graphs() -> None:
    seen = Counter(tag for number in range(FEW * PARTS * 2) for tag in make_case(f"short/{number}").tags)
    wanted = """mask; factor on a mask; mask with a zero point; quantized mask; Where; third input of Where; Not; NaN;
    other reader; function; function with other masks; attribute of a call; If; Loop; Scan; handed out by a Loop;
    handed out by a Scan; handed out by an If; handed out by SequenceMap; shuffle; Q/DQ; DequantizeLinear; twins;
    mask before DequantizeLinear; whole numbers in floats; table of integers; met a run-time value; overlap; opset 6;
    broadcast of opset 6; stale value_info; scales by blocks; default of an input; opset 8; opset 13; opset 21"""
    missing = [tag for tag in (one.strip() for one in wanted.split(";")) if not seen[tag]]
    assert not missing, f"{missing} of {dict(seen)}"


@pytest.mark.slow
def test_many_random_paths() -> None:
    """Until the time is over or the count is reached; what is wrong is told with its seed."""
    seconds = float(os.environ.get("ONNXSPARSE_SEARCH_SECONDS", "3600"))
    count = int(os.environ.get("ONNXSPARSE_SEARCH_COUNT", "3000"))
    seed = os.environ.get("ONNXSPARSE_SEARCH_SEED", "long")
    until, wrong, done = time.monotonic() + seconds, [], 0
    for number in range(count):
        if time.monotonic() > until:
            break
        case = make_case(f"{seed}/{number}")
        if valid(case):
            done += 1
            wrong += [f"{case.seed}: {one}" for one in wrong_claims(case)]
    assert done, "no graph was tried"
    assert not wrong, f"{len(wrong)} wrong claims on {done} graphs:\n" + "\n".join(wrong)
