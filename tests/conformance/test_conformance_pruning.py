"""What prune writes: the places that loops and stable sorts choose, and nothing else in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Tuple

import numpy as np
import onnx
import onnxruntime
import pytest
from graphs.builders import CASES, Built, Expected
from graphs.expectations import EVERYTHING, is_masked_copy, keep_mask, one_partition, row_of, values
from graphs.files import differences, find
from graphs.oracles import blocks, channels, filters, indices, keep_global, keep_unstructured, rounded_half_up, scores_of

osp: Any = pytest.importorskip("onnxsparse")
NAMES = list(CASES)
INSIDE = [name for name in NAMES if not CASES[name].build().files]
RATIOS = [(1, 2), (1, 4), (3, 4), (4, 8), (2, 16)]


def refused(wanted: Expected, m: int) -> bool:
    """Whether an N:M pattern must leave the tensor alone."""
    return bool(wanted.reason and not wanted.lenient) or (len(wanted.uses) > 1 and not one_partition(wanted, m))


def assert_n_of_m(before: np.ndarray, after: np.ndarray, row: Any, wanted: Expected, ratio: Tuple[int, int]) -> None:
    n, m = ratio
    untouched = np.array_equal(before, after)
    if refused(wanted, m):
        assert row.status == "dense"
        assert row.reason
        assert untouched
    elif wanted.lenient and row.status == "dense":
        assert row.reason
        assert untouched
    elif wanted.word != "embedding" and wanted.uses:
        assert is_masked_copy(before, after, keep_mask(wanted, n, m), wanted.zero) == ""
        assert row.status == "pruned" or keep_mask(wanted, n, m).all()


def check(built: Built, result: Any, ratio: Tuple[int, int]) -> None:
    for wanted in built.expected:
        if wanted.reason == "unsupported type":
            assert row_of(result.report, wanted).status == "dense"
            continue
        before, after = values(built.model, wanted), values(result.model, wanted)
        assert_n_of_m(before, after, row_of(result.report, wanted), wanted, ratio)


@pytest.mark.parametrize("name", INSIDE)
def test_2_4_is_what_loops_choose(name: str) -> None:
    built = CASES[name].build()
    check(built, osp.prune(built.model, pattern="2:4", allow=EVERYTHING), (2, 4))


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("family", ["linear", "conv", "chains", "recurrent"])
def test_other_ratios_are_what_loops_choose(family: str, ratio: Tuple[int, int]) -> None:
    for name in INSIDE:
        if CASES[name].family == family:
            built = CASES[name].build()
            check(built, osp.prune(built.model, pattern=f"{ratio[0]}:{ratio[1]}", allow=EVERYTHING), ratio)


@pytest.mark.parametrize("name", INSIDE)
def test_only_weight_values_change(name: str) -> None:
    """Rule 1: names, order, opsets, functions, metadata, fields of storage: all as it was. The argument is not touched."""
    built = CASES[name].build()
    before = built.model.SerializeToString()
    result = osp.prune(built.model, pattern="2:4", allow=EVERYTHING)
    assert built.model.SerializeToString() == before
    pruned = [row.name for row in result.report.rows if row.status == "pruned"]
    places = [find(built.model, one.name, one.shape).name for one in built.expected if one.storage == "call attribute"]
    assert differences(built.model, result.model, pruned + places) == []


@pytest.mark.parametrize("name", INSIDE)
def test_pruning_again_changes_nothing(name: str) -> None:
    built = CASES[name].build()
    for options in ({"pattern": "2:4"}, {"pattern": "unstructured", "sparsity": 0.6}):
        once = osp.prune(built.model, allow=EVERYTHING, **options).model
        again = osp.prune(once, allow=EVERYTHING, **options).model
        assert differences(once, again, []) == []


@pytest.mark.parametrize("name", INSIDE)
def test_rows_count_the_zeros(name: str) -> None:
    built = CASES[name].build()
    result = osp.prune(built.model, pattern="2:4", allow=EVERYTHING)
    for wanted in built.expected:
        row = row_of(result.report, wanted)
        if wanted.reason != "unsupported type" and (wanted.uses or wanted.dtype == "float32"):
            blank = np.broadcast_to(wanted.zero.astype(np.float64), wanted.shape)
            assert row.zeros == int((values(result.model, wanted).astype(np.float64) == blank).sum())


@pytest.mark.parametrize("name", [name for name in INSIDE if CASES[name].build().runs])
def test_pruned_model_runs(name: str) -> None:
    built = CASES[name].build()
    result = osp.prune(built.model, pattern="2:4", allow=EVERYTHING)
    run(result.model, built)


def run(model: onnx.ModelProto, built: Built) -> List[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(built.feeds))  # type: ignore[no-any-return]


@pytest.mark.parametrize("sparsity", [0.0, 0.31, 0.7, 1.0])
@pytest.mark.parametrize("family", sorted({CASES[name].family for name in NAMES}))
def test_unstructured_is_what_a_stable_sort_drops(family: str, sparsity: float) -> None:
    for name in INSIDE:
        built = CASES[name].build()
        if CASES[name].family != family:
            continue
        result = osp.prune(built.model, pattern="unstructured", sparsity=sparsity, allow=EVERYTHING)
        for wanted in built.expected:
            row = row_of(result.report, wanted)
            if row.status == "pruned":
                keep = keep_unstructured(scores_of(wanted.real), sparsity)
                problem = is_masked_copy(values(built.model, wanted), values(result.model, wanted), keep, wanted.zero)
                assert problem == "", f"{name}: {problem}"
            else:
                assert row.reason or sparsity == 0.0, name
                assert wanted.reason or wanted.lenient or sparsity == 0.0, f"{name}: {row.reason}"


PLAIN = [
    "matmul_right", "matmul_left", "matmul_right_rank3", "gemm_right_transposed_alpha_0_5", "conv_2d", "conv_1d", "conv_3d",
    "conv_grouped_2", "convtranspose_2d", "convtranspose_grouped", "conv_hwio_through_transpose", "lstm_bidirectional",
    "matmul_ragged_by_2", "conv_ragged_by_1", "reshape_merges_k", "constant_node", "qlinear_conv_int8_per_channel",
]


def units_of(view: np.ndarray, pattern: str) -> List[np.ndarray]:
    if pattern == "filter":
        return list(filters(view))
    if pattern == "channel":
        return list(channels(view))
    outs, along = pattern[len("block:") :].split("x")
    return list(blocks(view, int(outs), int(along)))


@pytest.mark.parametrize("pattern", ["block:4x1", "block:1x4", "block:2x2", "block:8x4", "filter", "channel"])
@pytest.mark.parametrize("name", PLAIN)
def test_whole_units_are_dropped(name: str, pattern: str) -> None:
    """As many whole units as the sparsity says, the weakest ones, and nothing outside them."""
    built = CASES[name].build()
    result = osp.prune(built.model, pattern=pattern, sparsity=0.5, allow=EVERYTHING)
    for wanted in built.expected:
        before, after = values(built.model, wanted), values(result.model, wanted)
        units = units_of(wanted.uses[0].view(indices(wanted.shape)), pattern)
        blank = np.broadcast_to(np.asarray(wanted.zero, after.dtype), after.shape)
        dead = [unit for unit in units if (after.ravel()[unit] == blank.ravel()[unit]).all()]
        keep = np.ones(after.size, bool)
        for unit in dead:
            keep[unit] = False
        assert len(dead) == rounded_half_up(0.5 * len(units))
        assert is_masked_copy(before, after, keep.reshape(after.shape), wanted.zero) == ""
        assert_weakest(scores_of(wanted.real).ravel(), units, dead)


def assert_weakest(scores: np.ndarray, units: List[np.ndarray], dead: List[np.ndarray]) -> None:
    """No dropped unit is above a kept one element by element (true of any sensible norm)."""
    gone = {tuple(unit) for unit in dead}
    kept = [np.sort(scores[unit]) for unit in units if tuple(unit) not in gone]
    for unit in dead:
        strong = np.sort(scores[unit])
        assert not any((strong >= weak).all() and (strong > weak).any() for weak in kept)


def test_filter_and_channel_never_drop_all() -> None:
    for pattern in ("filter", "channel"):
        built = CASES["conv_2d"].build()
        result = osp.prune(built.model, pattern=pattern, sparsity=1.0, allow=EVERYTHING)
        assert values(result.model, built.expected[0]).any()


@pytest.mark.parametrize("sparsity", [0.3, 0.8, 0.95])
@pytest.mark.parametrize("name", ["opset_17", "function_called_with_two_weights", "lstm_forward", "equal_tensors_under_two_names", "if_with_initializers"])
def test_global_ranks_over_all_weights(name: str, sparsity: float) -> None:
    built = CASES[name].build()
    result = osp.prune(built.model, pattern="unstructured", sparsity=sparsity, allocation="global", allow=EVERYTHING)
    keeps = keep_global([scores_of(one.real) for one in built.expected], sparsity)
    for wanted, keep in zip(built.expected, keeps):
        assert is_masked_copy(values(built.model, wanted), values(result.model, wanted), keep, wanted.zero) == ""


def test_global_empties_no_weight() -> None:
    """One tensor a thousand times weaker than the other keeps its strongest element."""
    built = CASES["equal_tensors_under_two_names"].build()
    stored = find(built.model, "v", (16, 8)).tensor
    stored.raw_data = (values(built.model, built.expected[0]) * np.float32(1e-3)).tobytes()
    result = osp.prune(built.model, pattern="unstructured", sparsity=0.5, allocation="global", allow=EVERYTHING)
    left = [np.count_nonzero(values(result.model, wanted)) for wanted in built.expected]
    assert left[0] == 1
    total_zeros = sum(values(result.model, wanted).size for wanted in built.expected) - sum(left)
    assert total_zeros >= 128


@pytest.mark.parametrize("allocation", ["global", "erk", "uniform"])
def test_allocations_reach_the_sparsity_and_repeat(allocation: str) -> None:
    built = CASES["opset_17"].build()
    options = {"pattern": "unstructured", "sparsity": 0.8, "allocation": allocation, "allow": EVERYTHING}
    once = osp.prune(built.model, **options)
    sizes = [one.real.size for one in built.expected]
    dropped = sum(int((values(once.model, one) == 0).sum()) for one in built.expected)
    assert abs(dropped - 0.8 * sum(sizes)) <= len(sizes) * 0.5 + 1e-9
    assert differences(once.model, osp.prune(once.model, **options).model, []) == []


def test_erk_gives_the_larger_layer_more_zeros() -> None:
    built = CASES["opset_17"].build()
    result = osp.prune(built.model, pattern="unstructured", sparsity=0.6, allocation="erk", allow=EVERYTHING)
    k, w = (float((values(result.model, one) == 0).mean()) for one in built.expected)
    dense = {"k": (6 + 8 + 3 + 3) / 432, "w": (54 + 8) / 432}
    assert (k > w) == (dense["k"] < dense["w"])


@pytest.mark.parametrize("seed", [0, 1])
def test_random_score_repeats_by_seed(seed: int) -> None:
    built = CASES["conv_of_256"].build()
    options = {"pattern": "unstructured", "sparsity": 0.5, "score": "random", "seed": seed}
    first, second = (osp.prune(built.model, **options).model.SerializeToString() for _ in range(2))
    other = osp.prune(built.model, **{**options, "seed": seed + 1}).model.SerializeToString()
    assert first == second != other


def test_random_score_drops_existing_zeros_first() -> None:
    built = CASES["conv_of_256"].build()
    before = values(built.model, built.expected[0])
    result = osp.prune(built.model, pattern="unstructured", sparsity=float((before == 0).mean()), score="random")
    assert np.array_equal(values(result.model, built.expected[0]), before)


def test_plan_promises_what_prune_does() -> None:
    for name in ("many_kinds_in_one", "lstm_forward", "if_with_constants"):
        built = CASES[name].build()
        plan = osp.plan(built.model, pattern="2:4", allow=["small"]).report
        done = osp.prune(built.model, pattern="2:4", allow=["small"]).report
        assert [(row.name, row.status == "planned") for row in plan.rows] == [(row.name, row.status == "pruned") for row in done.rows]


@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].build().files])
def test_external_data_is_pruned_in_its_own_layout(name: str, tmp_path: Path) -> None:
    """Same files, same sizes, the bytes between the tensors untouched; the source stays as it was."""
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    built = CASES[name].build()
    path = built.write(tmp_path / "in")
    content = {one.name: one.read_bytes() for one in (tmp_path / "in").iterdir()}
    osp.prune(path, output=tmp_path / "out" / "model.onnx", pattern="2:4")
    assert {one.name: one.read_bytes() for one in (tmp_path / "in").iterdir()} == content
    made = onnx.load(str(tmp_path / "out" / "model.onnx"), load_external_data=False)
    for wanted in built.expected:
        before, after = values(built.model, wanted, tmp_path / "in"), values(made, wanted, tmp_path / "out")
        assert is_masked_copy(before, after, keep_mask(wanted, 2, 4), wanted.zero) == ""
    produced = [one for one in (tmp_path / "out").iterdir() if one.name != "model.onnx"]
    assert sorted(one.stat().st_size for one in produced) == sorted(len(one) for one in built.files.values())
    assert sum(one.read_bytes().count(b"\xee") for one in produced) >= sum(one.count(b"\xee\xee\xee\xee") for one in built.files.values())


@pytest.mark.parametrize("include", [["w"], ["re:^w$"], ["MatMul"], ["w*"]])
def test_include_takes_names_globs_patterns_and_kinds(include: List[str]) -> None:
    built = CASES["many_kinds_in_one"].build()
    report = osp.prune(built.model, pattern="2:4", allow=["small"], include=include).report
    assert [row.name for row in report.rows if row.status == "pruned"] == ["w"]
    assert all(row.reason for row in report.rows if row.status == "dense")


@pytest.mark.parametrize("exclude", [["k"], ["Conv_c"], ["Conv"], ["re:k.*"]])
def test_exclude_wins(exclude: List[str]) -> None:
    built = CASES["many_kinds_in_one"].build()
    report = osp.prune(built.model, pattern="2:4", allow=["small"], exclude=exclude).report
    assert "k" not in [row.name for row in report.rows if row.status == "pruned"]
    assert "w" in [row.name for row in report.rows if row.status == "pruned"]


def test_names_that_look_like_globs_are_names_first() -> None:
    built = CASES["name_with_glob"].build()
    report = osp.prune(built.model, pattern="2:4", allow=["small"], include=[built.expected[0].name]).report
    assert [row.status for row in report.rows] == ["pruned"]
