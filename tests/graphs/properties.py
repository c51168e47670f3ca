"""What holds of every model of `CASES`, as one function each; `wrong_properties` says which do not hold of one of them.

1. A property is a function of a walk that asserts. Its docstring is what a reader of a failure is told.
2. `of` says of which models it is asked; without it, of all. `runs` marks those that run models: only these are asked
   in an environment whose other onnxruntime is all that differs, and no other may start the runtime.
3. tests/golden/properties.md lists them with the number of models each is asked of: none is lost without a word.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Callable

import numpy as np
import onnx
import onnxruntime

import onnxsparse as osp
from onnxsparse import cli

from .builders import CASES, Built
from .case import Array, Expected
from .expectations import (
    EVERYTHING,
    bits,
    explains,
    is_masked_copy,
    keep_mask,
    one_partition,
    row_of,
    uses_of,
    values,
    wanted_uses,
)
from .files import differences, find, set_values, stored_tensors
from .masked import LENIENT, MASKS
from .oracles import (
    blocks,
    breaks_n_of_m,
    channels,
    filters,
    indices,
    keep_unstructured,
    rounded_half_up,
    scores_of,
)
from .running import refusal, run
from .walk import Walk, copy_of, same, without_record

Holds = Callable[[Walk], None]
Which = Callable[[str], bool]


@dataclass(frozen=True)
class Property:
    name: str
    holds: Holds
    of: Which
    runs: bool

    @property
    def text(self) -> str:
        return " ".join((self.holds.__doc__ or "").split())


PROPERTIES: dict[str, Property] = {}


def prop(of: Which = lambda name: True, runs: bool = False) -> Callable[[Holds], Holds]:
    def register(function: Holds) -> Holds:
        PROPERTIES[function.__name__] = Property(function.__name__, function, of, runs)
        return function

    return register


def wrong_properties(name: str, only_runs: bool = False) -> list[str]:
    """Every property that does not hold of a model: its name, what it says, and what was found."""
    walk, wrong = Walk(name), []
    excused = built(name).runs and inside(name) and refusal(name)  # by a runtime older than the model
    try:
        for one in PROPERTIES.values():
            if one.of(name) and (not excused if one.runs else not only_runs):
                wrong += [f"{one.name} ({one.text})\n    {problem}" for problem in _problems(one, walk)]
    finally:
        walk.end()
    return wrong


def table() -> str:
    """Every property, of how many models it is asked, and what it says."""
    rows = [f"| {one.name} | {sum(map(one.of, CASES))} | {one.text} |" for one in PROPERTIES.values()]
    return "\n".join(["| property | models | what holds |", "|---|---|---|", *rows, ""])


def _problems(one: Property, walk: Walk) -> Iterator[str]:
    session = onnxruntime.InferenceSession
    onnxruntime.InferenceSession = session if one.runs else _no_session
    try:
        one.holds(walk)
    except Exception as error:
        lines = str(error).splitlines() or [""]
        yield "\n    ".join([f"{type(error).__name__}: {lines[0]}", *lines[1:12]])
    finally:
        onnxruntime.InferenceSession = session
    if walk.changed:
        yield f"the model that was given to {', '.join(walk.changed)} is another one afterwards"
        walk.changed = []


def _no_session(*_: object, **__: object) -> None:
    raise RuntimeError("a property that runs a model says so: @prop(runs=True)")


# -- of which models


@cache
def built(name: str) -> Built:
    """To be looked at, not to be changed."""
    return CASES[name].build()


def inside(name: str) -> bool:
    return not built(name).files


def bare(name: str) -> bool:
    return inside(name) and CASES[name].family not in ("masked", "decoys")


def running(name: str) -> bool:
    return built(name).runs and inside(name)


def prunable(name: str) -> bool:
    expected = built(name).expected
    return bare(name) and bool(expected) and all(one.uses and not one.reason and not one.word for one in expected)


# -- the model itself


@prop(lambda name: built(name).checks and inside(name))
def case_is_a_valid_model(walk: Walk) -> None:
    """onnx takes the model of the case."""
    onnx.checker.check_model(walk.built.model, full_check=False)


@prop(running, runs=True)
def case_runs(walk: Walk) -> None:
    """The runtime runs the model of the case."""
    assert all(np.asarray(result).size for result in walk.dense_outputs)


NOT_LINEAR = (
    "quantize_dequantize_of_floats",
    "names_taken_already",
    "weight_is_a_graph_output",
    "constant_is_a_graph_output",
)


def seen_element_by_element(name: str) -> bool:
    """A float case of one graph, in which a single stored element can be set and its effect be seen."""
    families = ("linear", "conv", "chains", "microsoft", "storage")
    plain = running(name) and CASES[name].family in families and name not in NOT_LINEAR
    floats = [one for one in built(name).expected if one.uses and one.dtype in ("float32", "float64")]
    return plain and any(one.real.size <= 700 for one in floats)


@prop(seen_element_by_element, runs=True)
def expected_rows_are_what_the_arithmetic_sums(walk: Walk) -> None:
    """Elements of one row reach the same results (for convolutions: the same channel); other rows reach other ones."""
    for wanted in walk.built.expected:
        if len(wanted.uses) != 1 or wanted.real.size > 700 or wanted.uses[0].op in ("LSTM", "GRU", "RNN", "Attention"):
            continue
        use = wanted.uses[0]
        reached = _reached(walk.built, wanted)
        for row in use.rows(indices(wanted.shape)):
            assert all(reached[i] == reached[row[0]] for i in row), f"{wanted.name}: a row mixes results"
        by_out = {frozenset().union(*(reached[i] for i in part)) for part in filters(use.view(indices(wanted.shape)))}
        assert len(by_out) == use.view(wanted.real).shape[0] * use.view(wanted.real).shape[1]


def _reached(given: Built, wanted: Expected) -> list[frozenset[tuple[int, int]]]:
    """For each stored element: the result elements that change when it alone changes."""
    base = np.zeros(wanted.shape, wanted.dtype)
    answer = _answering(given, wanted)
    rest, found = answer(base), []
    for flat in range(base.size):
        one_hot = base.copy()
        one_hot.flat[flat] = 1.0
        changed = [np.flatnonzero(np.ravel(a != b)) for a, b in zip(rest, answer(one_hot))]
        found.append(frozenset((n, int(i)) for n, places in enumerate(changed) for i in places))
    return found


def _answering(given: Built, wanted: Expected) -> Callable[[Array], list[Array]]:
    """The outputs by the values of a weight: fed in one session where it is an initializer, else written each time."""
    model = copy_of(given.model)
    stored = find(model, wanted.name, wanted.shape)
    if stored.place.startswith("graph/initializer") and given.model.ir_version >= 4:
        if wanted.name not in [one.name for one in model.graph.input]:
            kind = stored.tensor.data_type  # type: ignore[union-attr]
            model.graph.input.append(onnx.helper.make_tensor_value_info(wanted.name, kind, wanted.shape))
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return lambda weight: session.run(None, {**given.feeds, wanted.name: weight})

    def written(weight: Array) -> list[Array]:
        set_values(model, stored, weight)
        return run(model, given)

    return written


# -- what is found


@prop()
def every_weight_is_one_row(walk: Walk) -> None:
    """Every weight is one row of the report."""
    for wanted in walk.built.expected:
        row_of(walk.inspected, wanted)


@prop()
def the_axis_is_right(walk: Walk) -> None:
    """Operators and reduction axes of all uses; nothing is demanded of uses that are no product."""
    for wanted in walk.built.expected:
        row = row_of(walk.inspected, wanted)
        if not wanted.lenient and wanted.word not in ("embedding", "tied-embedding"):
            unsupported = wanted.reason in ("unsupported type", "einsum not matrix form", "unknown operator", "1-D")
            assert unsupported or uses_of(row) == wanted_uses(wanted)
        if wanted.word == "tied-embedding":
            assert set(wanted_uses(wanted)) <= set(uses_of(row))


@prop()
def what_stays_dense_says_why(walk: Walk) -> None:
    """A row is prunable, or dense with a reason that speaks of what is the matter."""
    for row in walk.inspected.rows:
        assert row.status in ("prunable", "dense")
        assert row.reason or row.status == "prunable", f"{row.name} is {row.status} and nobody says why"
    for wanted in walk.built.expected:
        row = row_of(walk.inspected, wanted)
        if wanted.reason and not wanted.lenient and wanted.reason != "two axes":
            assert row.status == "dense"
            assert explains(row, wanted), row.reason
        elif wanted.word:
            assert wanted.word in row.reason


@prop()
def inspect_changes_nothing_and_repeats(walk: Walk) -> None:
    """Asked again, inspect says the same, and the model is as it was."""
    assert walk.ask("inspect").report.rows == walk.inspected.rows
    assert walk.built.model.SerializeToString() == walk.bytes


@prop(lambda name: any(one.word for one in built(name).expected))
def default_names_the_word_that_allows(walk: Walk) -> None:
    """Kept dense by default: the reason says which word to give to --allow."""
    words = {one.word for one in walk.built.expected if one.word}
    report = walk.ask("prune", pattern="unstructured", sparsity=0.5, allow=["small"]).report
    for wanted in walk.built.expected:
        row = row_of(report, wanted)
        if wanted.word:
            assert row.status == "dense"
            assert any(word in row.reason for word in words), row.reason


# -- what prune writes


def _n_of_m(walk: Walk, result: Any, n: int, m: int) -> None:
    for wanted in walk.built.expected:
        row = row_of(result.report, wanted)
        if wanted.reason == "unsupported type":
            assert row.status == "dense"
        else:
            _one_n_of_m(walk.before(wanted), values(result.model, wanted), row, wanted, (n, m))


def _one_n_of_m(before: Array, after: Array, row: Any, wanted: Expected, ratio: tuple[int, int]) -> None:
    n, m = ratio
    untouched = np.array_equal(before, after)
    if wanted.reason and wanted.reason != "two axes" and not wanted.lenient:  # must be left alone
        assert row.status == "dense", wanted.name
        assert row.reason
        assert untouched
    elif row.status == "dense" and (wanted.lenient or wanted.reason == "two axes" or "mask" in row.reason):
        assert row.reason
        assert untouched
    elif not one_partition(wanted, m):
        blank = after == np.asarray(wanted.zero, after.dtype)
        assert not any(breaks_n_of_m(blank, use.rows(indices(wanted.shape)), n, m) for use in wanted.uses)
    elif wanted.word != "embedding" and wanted.uses:
        assert is_masked_copy(before, after, keep_mask(wanted, n, m), wanted.zero) == "", wanted.name
        assert row.status == "pruned" or keep_mask(wanted, n, m).all()


@prop(inside)
def two_four_is_what_loops_choose(walk: Walk) -> None:
    """2:4 erases the places that loops choose along the reduction axis, and keeps the rest to the bit."""
    _n_of_m(walk, walk.pruned, 2, 4)


@prop(lambda name: inside(name) and CASES[name].family in ("linear", "conv", "chains", "recurrent"))
def other_ratios_are_what_loops_choose(walk: Walk) -> None:
    """So do 1:2, 1:4, 3:4, 4:8 and 2:16."""
    for n, m in ((1, 2), (1, 4), (3, 4), (4, 8), (2, 16)):
        _n_of_m(walk, walk.by(f"{n}:{m}"), n, m)


@prop(inside)
def both_axes_are_two_four(walk: Walk) -> None:
    """2:4:transposable keeps at most 2 in each row and column of 4 x 4 blocks along every use, and all else."""
    for pattern in ("2:4:transposable", "2:4:transposable-greedy"):
        result = walk.by(pattern)
        assert walk.ask("verify", result.model).report.ok or not any(row.dropped for row in result.report.rows)
        for wanted in walk.built.expected:
            if row_of(result.report, wanted).status == "pruned":
                _both_axes(walk.before(wanted), values(result.model, wanted), wanted, pattern)


def _both_axes(before: Array, after: Array, wanted: Expected, pattern: str) -> None:
    blank, keep = after == np.asarray(wanted.zero, after.dtype), bits(before) == bits(after)
    assert is_masked_copy(before, after, keep, wanted.zero) == "", wanted.name
    for use in wanted.uses:
        units = list(blocks(use.view(indices(wanted.shape)), 4, 4))
        for unit in units:
            used = ~blank.ravel()[unit].reshape(4, 4)
            assert max(used.sum(axis=0).max(), used.sum(axis=1).max()) <= 2, f"{wanted.name}: {pattern}"
        assert np.delete(keep.ravel(), np.concatenate(units)).all(), f"{wanted.name}: {pattern} outside its blocks"
        assert len(units) * 8 <= blank.sum()


@prop(inside)
def only_weight_values_change(walk: Walk) -> None:
    """Names, order, opsets, functions, metadata, fields of storage stay as they were; the argument is not touched."""
    result = walk.pruned
    assert walk.built.model.SerializeToString() == walk.bytes
    pruned = [one for one in walk.built.expected if row_of(result.report, one).status == "pruned"]
    names = [find(walk.built.model, one.name, one.shape).name for one in pruned]
    assert differences(walk.built.model, result.model, names) == []


@prop(inside)
def pruning_again_changes_nothing(walk: Walk) -> None:
    """What is pruned by a rule stays as it is when the rule is asked for again."""
    for rule in ({"pattern": "2:4"}, {"pattern": "2:4:transposable"}, {"pattern": "unstructured", "sparsity": 0.6}):
        once = walk.by(**rule).model  # type: ignore[arg-type]
        assert differences(once, walk.ask("prune", once, allow=EVERYTHING, **rule).model, []) == []


@prop(inside)
def rows_count_the_zeros(walk: Walk) -> None:
    """Of what was pruned always; a tensor left alone need not be read, but a count must be right."""
    for wanted in walk.built.expected:
        row = row_of(walk.pruned.report, wanted)
        if row.status == "pruned" or (row.zeros is not None and wanted.reason != "unsupported type"):
            blank = np.broadcast_to(wanted.zero.astype(np.float64), wanted.shape)
            assert row.zeros == int((values(walk.pruned.model, wanted).astype(np.float64) == blank).sum())


@prop(running, runs=True)
def pruned_model_runs(walk: Walk) -> None:
    """The runtime runs what was pruned."""
    walk.outputs(walk.pruned.model)


@prop(inside)
def unstructured_is_what_a_stable_sort_drops(walk: Walk) -> None:
    """At four sparsities: exactly the weakest, the earlier of equals first; what stays dense has its reason."""
    for sparsity in (0.0, 0.31, 0.7, 0.99):
        result = walk.by("unstructured", sparsity)
        for wanted in walk.built.expected:
            row = row_of(result.report, wanted)
            if row.status == "pruned":
                keep = keep_unstructured(scores_of(wanted.real), sparsity)
                problem = is_masked_copy(walk.before(wanted), values(result.model, wanted), keep, wanted.zero)
                assert problem == "", f"{wanted.name} at {sparsity}: {problem}"
            else:
                assert row.reason or sparsity == 0.0, wanted.name
                excused = wanted.reason or wanted.lenient or "mask" in row.reason
                assert excused or sparsity == 0.0, f"{wanted.name}: {row.reason}"


OF_EVERY_SHAPE = (
    "matmul_right",
    "matmul_left",
    "matmul_right_rank3",
    "gemm_right_transposed_alpha_0_5",
    "conv_2d",
    "conv_1d",
    "conv_3d",
    "conv_grouped_2",
    "convtranspose_2d",
    "convtranspose_grouped",
    "conv_hwio_through_transpose",
    "lstm_bidirectional",
    "matmul_ragged_by_2",
    "conv_ragged_by_1",
    "reshape_merges_k",
    "constant_node",
    "qlinear_conv_int8_per_channel",
)


@prop(lambda name: name in OF_EVERY_SHAPE)
def whole_units_are_dropped(walk: Walk) -> None:
    """Blocks, filters, channels: as many whole units as the sparsity says, the weakest ones, nothing outside them."""
    for pattern in ("block:4x1", "block:1x4", "block:2x2", "block:8x4", "filter", "channel"):
        result = walk.by(pattern, 0.5)
        for wanted in walk.built.expected:
            before, after = walk.before(wanted), values(result.model, wanted)
            units = _units(wanted.uses[0].view(indices(wanted.shape)), pattern)
            blank = np.broadcast_to(np.asarray(wanted.zero, after.dtype), after.shape)
            dead = [unit for unit in units if (after.ravel()[unit] == blank.ravel()[unit]).all()]
            keep = np.ones(after.size, bool)
            for unit in dead:
                keep[unit] = False
            assert len(dead) == rounded_half_up(0.5 * len(units)), pattern
            assert is_masked_copy(before, after, keep.reshape(after.shape), wanted.zero) == "", pattern
            _weakest(scores_of(wanted.real).ravel(), units, dead)


def _units(view: Array, pattern: str) -> list[Array]:
    if pattern in ("filter", "channel"):
        return list(filters(view) if pattern == "filter" else channels(view))
    outs, along = pattern[len("block:") :].split("x")
    return list(blocks(view, int(outs), int(along)))


def _weakest(scores: Array, units: list[Array], dead: list[Array]) -> None:
    """No dropped unit is above a kept one element by element (true of any sensible norm)."""
    gone = {tuple(unit) for unit in dead}
    kept = [np.sort(scores[unit]) for unit in units if tuple(unit) not in gone]
    for unit in dead:
        strong = np.sort(scores[unit])
        assert not any((strong >= weak).all() and (strong > weak).any() for weak in kept)


# -- masks


@prop(bare)
def insert_then_discard_is_nothing(walk: Walk) -> None:
    """The same bytes as before the masks came."""
    assert walk.discarded.model.SerializeToString() == walk.bytes


@prop(inside)
def insert_leaves_the_weights_alone(walk: Walk) -> None:
    """Every row is masked or says why not; stored weights are as they were, to the bit."""
    result = walk.masked
    assert walk.built.model.SerializeToString() == walk.bytes
    after = {one.name: one for one in stored_tensors(result.model)}
    for one in walk.built.expected:
        row = row_of(result.report, one)
        assert row.status in ("masked", "dense")
        assert row.reason or row.status == "masked"
        if one.name in after and one.reason != "unsupported type":
            assert np.array_equal(bits(walk.before(one)), bits(values(result.model, one)))


@prop(lambda name: bare(name) and built(name).checks)
def masked_model_is_valid(walk: Walk) -> None:
    """onnx takes the model with masks."""
    onnx.checker.check_model(walk.masked.model)


# The runtime multiplies no bfloat16 on a CPU.
@prop(lambda name: bare(name) and running(name) and not name.startswith("bfloat16"), runs=True)
def masked_outputs_are_folded_outputs(walk: Walk) -> None:
    """The same numbers with masks and with zeros, and no node more than before."""
    stored = {one.name for one in walk.built.expected}
    kept = [index for index, out in enumerate(walk.built.model.graph.output) if out.name not in stored]
    first, second = walk.outputs(walk.masked.model), walk.outputs(walk.folded.model)
    assert same([first[i] for i in kept], [second[i] for i in kept])
    assert len(walk.folded.model.graph.node) == len(walk.built.model.graph.node)


@prop(bare)
def mask_and_fold_is_prune(walk: Walk) -> None:
    """For what a mask can be put on; nothing else differs from the source."""
    for one in walk.built.expected:
        if one.reason != "unsupported type" and row_of(walk.masked.report, one).status == "masked":
            assert np.array_equal(bits(values(walk.folded.model, one)), bits(values(walk.pruned.model, one)))
    names = [one.name for one in walk.built.expected]
    assert not all(names) or differences(walk.built.model, walk.folded.model, names) == []


@prop(bare)
def floats_that_prune_can_mask_can(walk: Walk) -> None:
    """No float weight is pruned that cannot be masked, but for those a call's attribute or an output holds."""
    outputs = [out.name for out in walk.built.model.graph.output]
    for one in walk.built.expected:
        floats = one.dtype.startswith(("float", "bfloat"))
        reachable = one.storage != "call attribute" and one.name not in outputs
        if floats and reachable and row_of(walk.pruned.report, one).status == "pruned":
            row = row_of(walk.masked.report, one)
            assert row.status == "masked", row.reason


@prop(lambda name: name in LENIENT, runs=True)
def unusual_masks_change_no_output(walk: Walk) -> None:
    """Folded or left with a reason: the outputs are the same."""
    folded = walk.folded_as_it_came
    assert same(walk.dense_outputs, walk.outputs(folded.model))
    assert all(row.status == "folded" or row.reason for row in folded.report.rows)


def of_others(name: str) -> bool:
    return name in MASKS and name not in LENIENT


@prop(of_others, runs=True)
def foreign_masks_are_folded(walk: Walk) -> None:
    """Whoever left them: the stored tensor takes the zeros, the nodes are gone, the outputs stay."""
    folded = walk.folded_as_it_came
    for one in walk.built.expected:
        assert is_masked_copy(walk.before(one), values(folded.model, one), MASKS[walk.name], one.zero) == ""
        assert row_of(folded.report, one).status == "folded"
    assert same(walk.dense_outputs, walk.outputs(folded.model))
    assert not {"Mul", "Where"} & {one.op_type for one in folded.model.graph.node}
    onnx.checker.check_model(folded.model)


@prop(of_others, runs=True)
def foreign_masks_are_discarded(walk: Walk) -> None:
    """The dense weights as stored, without the nodes."""
    made = walk.ask("fold_masks", discard=True).model
    for one in walk.built.expected:
        assert np.array_equal(bits(walk.before(one)), bits(values(made, one)))
    assert not {"Mul", "Where"} & {one.op_type for one in made.graph.node}
    walk.outputs(made)


@prop(lambda name: CASES[name].family == "decoys")
def what_is_no_mask_is_left(walk: Walk) -> None:
    """Nothing is folded that only looks like a mask, and what is left says why."""
    folded = walk.folded_as_it_came
    assert differences(walk.built.model, folded.model, []) == []
    assert all(row.reason for row in folded.report.rows if row.status == "left")
    assert not [row for row in folded.report.rows if row.status == "folded"]


@prop(lambda name: name in MASKS)
def folding_twice_is_folding_once(walk: Walk) -> None:
    """There is nothing left to fold."""
    once = walk.folded_as_it_came.model
    assert walk.ask("fold_masks", once).model.SerializeToString() == once.SerializeToString()


# -- the verdict


@prop(prunable)
def what_prune_wrote_holds(walk: Walk) -> None:
    """Of what was pruned nothing is violated; where something holds, all is well."""
    states = {row_of(walk.verified_after, wanted).status for wanted in walk.built.expected}
    assert states <= {"holds", "unchecked"}
    assert walk.verified_after.ok == ("holds" in states)


@prop(prunable)
def dense_does_not_hold(walk: Walk) -> None:
    """Violated exactly where loops find a group with more than two weights."""
    expected = walk.built.expected
    bad = not any(one.uses[0].rows(indices(one.shape)).shape[1] >= 4 for one in expected)
    for wanted in expected:
        blank = wanted.real == 0
        broken = any(breaks_n_of_m(blank, use.rows(indices(wanted.shape)), 2, 4) for use in wanted.uses)
        assert (row_of(walk.verified, wanted).status == "violated") == broken, wanted.name
        bad = bad or broken
    assert walk.verified.ok != bad


def one_raw_float(name: str) -> bool:
    expected = built(name).expected
    raw = "float_data" not in name and prunable(name) and len(expected) == 1
    return raw and expected[0].dtype == "float32" and expected[0].storage == "initializer"


@prop(one_raw_float)
def one_weight_too_many_is_seen(walk: Walk) -> None:
    """Put one dropped weight back where its group is full: nothing else is wrong, and it must be found."""
    wanted = walk.built.expected[0]
    row = wanted.uses[0].rows(indices(wanted.shape))[-1]
    if len(row) < 4:
        return
    spoilt = copy_of(walk.pruned.model)
    after = values(spoilt, wanted).copy()
    group = row[: len(row) // 4 * 4][-4:]
    after.flat[group] = 1.0
    after.flat[group[:1]] = 0.0
    find(spoilt, wanted.name, wanted.shape).tensor.raw_data = after.tobytes()  # type: ignore[union-attr]
    report = walk.ask("verify", spoilt, pattern="2:4", allow=EVERYTHING).report
    assert row_of(report, wanted).status == "violated"
    assert not report.ok


@prop(lambda name: inside(name) and any(one.reason for one in built(name).expected))
def unchecked_says_why(walk: Walk) -> None:
    """What is not checked has a reason, and nothing is said to hold of which nobody can know."""
    for wanted in walk.built.expected:
        row = row_of(walk.verified, wanted)
        assert row.status in ("holds", "violated", "unchecked")
        assert row.reason or row.status == "holds"
        if wanted.reason in ("unsupported type", "1-D", "einsum not matrix form", "unknown operator"):
            assert row.status == "unchecked"


# -- what fold checks before it writes


FOLDED = ("linear", "conv", "chains", "scopes", "functions", "combined", "recurrent", "storage", "external")
AMPERE = ["--target", "ampere", "--allow", *EVERYTHING]


@cache
def masked_for_ampere(name: str) -> str:
    """The first weight of a case that ampere takes and a mask can be put on, where it is of float32."""
    if not inside(name) or not built(name).checks or CASES[name].family not in FOLDED:
        return ""
    report = osp.insert_masks(built(name).model, target="ampere", allow=EVERYTHING).report
    usable = [one for one in built(name).expected if one.uses and one.name and row_of(report, one).status == "masked"]
    return usable[0].name if usable and usable[0].dtype == "float32" else ""


def _full_groups(one: Expected, zero: Array) -> dict[int, set[int]]:
    """Masked elements, each with the elements of the groups of four that it makes too full by coming back."""
    numbers, found = indices(one.shape), {}
    for use in one.uses:
        for row in use.rows(numbers):
            for start in range(0, len(row) - 3, 4):
                group = row[start : start + 4]
                gone = [int(at) for at in group if zero.flat[at] and one.real.flat[at]]
                if np.count_nonzero(zero.flat[group]) == 2:
                    for at in gone:
                        found.setdefault(at, set()).update(int(number) for number in group)
    return found


def _violated(walk: Walk) -> tuple[onnx.ModelProto, Expected, set[int]]:
    """The case with masks of 2:4, one element of which came back; and the places of its groups."""
    one = next(entry for entry in walk.built.expected if entry.name == masked_for_ampere(walk.name))
    pruned = walk.ask("prune", target="ampere", allow=EVERYTHING)
    masks = {
        row_of(pruned.report, other).name: values(pruned.model, other) != 0
        for other in walk.built.expected
        if other.name and row_of(pruned.report, other).status == "pruned" and other.dtype == "float32"
    }
    key = row_of(pruned.report, one).name
    groups = _full_groups(one, ~masks[key])
    back = sorted(groups)[len(groups) // 2]
    masks[key].flat[back] = True
    return walk.ask("insert_masks", masks=masks).model, one, groups[back]


def _said(arguments: list[str]) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = cli.main(arguments)
    return code, out.getvalue()


@prop(lambda name: bool(masked_for_ampere(name)))
def one_group_too_full_is_found(walk: Walk) -> None:
    """`fold` checks what it would write: with its place, and nothing is written; unasked it folds and says so."""
    model, one, group = _violated(walk)
    with tempfile.TemporaryDirectory() as folder:
        masked, out = Path(folder) / "masked.onnx", Path(folder) / "out.onnx"
        onnx.save(without_record(model), str(masked))
        fold = ["fold", str(masked), "-o", str(out)]
        code, said = _said([*fold, *AMPERE])
        assert code == 1
        assert [path.name for path in Path(folder).iterdir()] == ["masked.onnx"]
        assert "DOES NOT HOLD" in said
        assert "nothing was written" in said
        row = row_of(osp.fold_masks(masked, target="ampere", allow=EVERYTHING).report, one)
        assert row.status == "violated"
        assert {int(np.ravel_multi_index(place, one.shape)) for place in row.places} <= group
        assert row.places
        assert f"{row.name}: {row.reason}" in said
        assert str(list(row.places[0])) in row.reason
        code, said = _said(fold)  # nobody says what has to hold
        assert code == 0
        assert "nothing was checked" in said


@prop(lambda name: bool(masked_for_ampere(name)))
def a_record_is_enough(walk: Walk) -> None:
    """The same without a rule, where the file records the plan; and it is fine where no mask was touched."""
    model, one, _ = _violated(walk)
    right = walk.ask("insert_masks", target="ampere", allow=EVERYTHING)
    held = walk.ask("fold_masks", right.model)
    assert held.report.ok
    assert row_of(held.report, one).status == "folded"
    assert {use.verdict for use in row_of(held.report, one).uses} == {"holds"}
    assert walk.ask("verify", held.model).report.ok
    wrong = without_record(model)
    wrong.metadata_props.extend(right.model.metadata_props)
    with tempfile.TemporaryDirectory() as folder:
        result = osp.fold_masks(wrong, output=Path(folder) / "out.onnx")
        assert not result.report.ok
        assert (result.path, result.model, result.report.output) == (None, None, "")
        assert row_of(result.report, one).violations >= 1
        assert not list(Path(folder).iterdir())
