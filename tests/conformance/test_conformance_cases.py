"""The test material tested: every case is a valid model, runs, and its expected axes are what the arithmetic says."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graphs.builders import CASES, Built, Expected
from graphs.files import find, set_values
from graphs.oracles import filters, indices
from graphs.running import demand_runtime, knows_every_opset, refusal, run


@pytest.mark.parametrize("name", list(CASES))
def test_case_is_a_valid_model(name: str) -> None:
    built = CASES[name].build()
    if built.checks and not built.files:
        onnx.checker.check_model(built.model, full_check=False)


@pytest.mark.parametrize("name", list(CASES))
def test_case_runs(name: str) -> None:
    built = CASES[name].build()
    if not built.runs or built.files:
        pytest.skip("the runtime has no kernel for it")
    demand_runtime(name)
    assert all(np.asarray(result).size for result in run(built.model, built))


def test_few_cases_are_excused() -> None:
    """An older runtime lacks a kernel or an opset here and there; what refuses more is broken, not old."""
    excused = [name for name, case in CASES.items() if case.build().runs and not case.build().files and refusal(name)]
    assert len(excused) <= 8
    assert not (excused and knows_every_opset())


def _probed() -> list[str]:
    """Float cases of one graph in which a single stored element can be set and its effect be seen."""
    wanted = []
    for name, case in CASES.items():
        built = case.build()
        plain = built.runs and not built.files and case.family in ("linear", "conv", "chains", "microsoft", "storage")
        if plain and any(
            one.uses and one.dtype in ("float32", "float64") and one.real.size <= 700 for one in built.expected
        ):
            wanted.append(name)
    return wanted


NOT_LINEAR = (
    "quantize_dequantize_of_floats",
    "names_taken_already",
    "weight_is_a_graph_output",
    "constant_is_a_graph_output",
)


def _reached(built: Built, model: onnx.ModelProto, wanted: Expected) -> list[frozenset[tuple[int, int]]]:
    """For each stored element: the result elements that change when it alone changes."""
    stored = find(model, wanted.name, wanted.shape)
    base = np.zeros(wanted.shape, wanted.dtype)
    set_values(model, stored, base)
    found = []
    rest = run(model, built)
    for flat in range(base.size):
        one_hot = base.copy()
        one_hot.flat[flat] = 1.0
        set_values(model, stored, one_hot)
        results = run(model, built)
        found.append(
            frozenset(
                (n, int(i)) for n, (a, b) in enumerate(zip(rest, results)) for i in np.flatnonzero(np.ravel(a != b))
            )
        )
    return found


@pytest.mark.parametrize("name", [name for name in _probed() if name not in NOT_LINEAR])
def test_expected_rows_are_what_the_arithmetic_sums(name: str) -> None:
    """Elements of one row reach the same results (for convolutions: the same channel); other rows reach other ones."""
    built = CASES[name].build()
    for wanted in built.expected:
        if len(wanted.uses) != 1 or wanted.real.size > 700 or wanted.uses[0].op in ("LSTM", "GRU", "RNN", "Attention"):
            continue
        use = wanted.uses[0]
        model = onnx.ModelProto.FromString(built.model.SerializeToString())
        reached = _reached(built, model, wanted)
        for row in use.rows(indices(wanted.shape)):
            assert all(reached[i] == reached[row[0]] for i in row), f"{wanted.name}: a row mixes results"
        by_out = {frozenset().union(*(reached[i] for i in part)) for part in filters(use.view(indices(wanted.shape)))}
        assert len(by_out) == use.view(wanted.real).shape[0] * use.view(wanted.real).shape[1]
