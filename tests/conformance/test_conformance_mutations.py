"""The properties themselves tested: a command that lies, forgets or damages is seen by the property that is for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Callable

import numpy as np
import onnx
import pytest
from graphs.builders import CASES
from graphs.files import set_values, stored_tensors
from graphs.properties import PROPERTIES, wrong_properties
from graphs.walk import copy_of

import onnxsparse as osp

OF_THE_CASES = {"case_is_a_valid_model", "case_runs", "expected_rows_are_what_the_arithmetic_sums"}
Asked = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What a command came to, or what is made of it here."""

    model: Any
    report: Any
    path: Any = None


@dataclass(frozen=True)
class Mutation:
    """A command, a model it is wrong about, the property that has to see it, and when and how it is wrong."""

    command: str
    model: str
    seen_by: str
    spoil: Callable[[Outcome, onnx.ModelProto], Outcome | None]
    where: Callable[[Asked], bool] = lambda asked: True


def in_model(change: Callable[[onnx.ModelProto], None]) -> Callable[[Outcome, onnx.ModelProto], Outcome]:
    def spoil(outcome: Outcome, given: onnx.ModelProto) -> Outcome:
        model = copy_of(outcome.model)
        change(model)
        return replace(outcome, model=model)

    return spoil


def in_numbers(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Outcome, onnx.ModelProto], Outcome]:
    def write(model: onnx.ModelProto) -> None:
        largest = max(stored_tensors(model), key=lambda one: one.values().size)  # of the weight and its mask the weight
        set_values(model, largest, change(largest.values().copy()))

    return in_model(write)


def in_rows(**changes: Any) -> Callable[[Outcome, onnx.ModelProto], Outcome]:
    return lambda outcome, given: replace(
        outcome, report=replace(outcome.report, rows=tuple(replace(row, **changes) for row in outcome.report.rows))
    )


def without_rows(outcome: Outcome, given: onnx.ModelProto) -> Outcome:
    return replace(outcome, report=replace(outcome.report, rows=()))


def wrong_axis(outcome: Outcome, given: onnx.ModelProto) -> Outcome:
    def turned(row: Any) -> Any:
        return replace(row, uses=tuple(replace(use, reduction=use.out, out=use.reduction) for use in row.uses))

    return replace(outcome, report=replace(outcome.report, rows=tuple(map(turned, outcome.report.rows))))


def miscounted(outcome: Outcome, given: onnx.ModelProto) -> Outcome:
    rows = tuple(replace(row, zeros=(row.zeros or 0) + 1) for row in outcome.report.rows)
    return replace(outcome, report=replace(outcome.report, rows=rows))


def says(ok: bool, status: str) -> Callable[[Outcome, onnx.ModelProto], Outcome]:
    def spoil(outcome: Outcome, given: onnx.ModelProto) -> Outcome:
        rows = tuple(replace(row, status=status, reason="because") for row in outcome.report.rows)
        return replace(outcome, report=replace(outcome.report, rows=rows, ok=ok))

    return spoil


def nothing_done(outcome: Outcome, given: onnx.ModelProto) -> Outcome:
    return replace(outcome, model=copy_of(given))


def argument_written(outcome: Outcome, given: onnx.ModelProto) -> Outcome:
    given.graph.doc_string += "seen"
    return outcome


def all_masks_of_ones(model: onnx.ModelProto) -> None:
    for one in model.graph.initializer:
        if "mask" in one.name:
            one.raw_data = np.ones(tuple(one.dims), np.float32).tobytes()


def put_back(numbers: np.ndarray) -> np.ndarray:
    numbers.flat[np.flatnonzero(numbers == 0)[0]] = 0.5
    return numbers


def one_more(numbers: np.ndarray) -> np.ndarray:
    numbers.flat[np.flatnonzero(numbers)[0]] = 0
    return numbers


def last_bit(numbers: np.ndarray) -> np.ndarray:
    at = np.flatnonzero(numbers)[-1]
    numbers.flat[at] = np.nextafter(numbers.flat[at], np.float32(9))
    return numbers


def renamed(model: onnx.ModelProto) -> None:
    model.graph.node[0].name += "_new"


def longer(model: onnx.ModelProto) -> None:
    model.graph.doc_string += "again"


def bare_of_metadata(model: onnx.ModelProto) -> None:
    del model.metadata_props[:]


def with_metadata(model: onnx.ModelProto) -> None:
    model.metadata_props.add(key="onnxsparse.mask.pattern", value="2:4")


def invalid(model: onnx.ModelProto) -> None:
    model.graph.node.append(model.graph.node[0])


def unknown(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Nothing"


_seen: list[Asked] = []
"""What was asked while a model walked."""


def repeats(asked: Asked) -> bool:
    return sum(one["command"] == asked["command"] for one in _seen) > 1


two_four, folds = (lambda asked: asked.get("pattern") == "2:4"), (lambda asked: not asked.get("discard"))

MUTATIONS: dict[str, Mutation] = {
    "a mask off by one": Mutation(
        "prune", "matmul_right", "two_four_is_what_loops_choose", in_numbers(lambda w: np.roll(w, 1, 0)), two_four
    ),
    "a kept number off by its last bit": Mutation(
        "prune", "conv_2d", "two_four_is_what_loops_choose", in_numbers(last_bit), two_four
    ),
    "a zero with a sign": Mutation(
        "prune", "conv_2d", "two_four_is_what_loops_choose", in_numbers(lambda w: np.where(w == 0, -0.0, w)), two_four
    ),
    "a refused weight is pruned": Mutation(
        "prune", "matmul_vector_right", "two_four_is_what_loops_choose", in_numbers(one_more), two_four
    ),
    "4:8 is wrong, 2:4 is not": Mutation(
        "prune", "conv_2d", "other_ratios_are_what_loops_choose", in_numbers(put_back),
        lambda asked: asked.get("pattern") == "4:8",
    ),
    "a column of a block holds one more": Mutation(
        "prune", "matmul_right", "both_axes_are_two_four", in_numbers(put_back),
        lambda asked: asked.get("pattern") == "2:4:transposable",
    ),
    "a name is another one": Mutation("prune", "conv_2d", "only_weight_values_change", in_model(renamed)),
    "metadata of the user is lost": Mutation(
        "prune", "decorated", "only_weight_values_change", in_model(bare_of_metadata)
    ),
    "the argument is written to": Mutation("prune", "conv_2d", "two_four_is_what_loops_choose", argument_written),
    "pruned again it changes": Mutation("prune", "conv_2d", "pruning_again_changes_nothing", in_model(longer)),
    "zeros are miscounted": Mutation("prune", "conv_2d", "rows_count_the_zeros", miscounted),
    "what was pruned does not run": Mutation("prune", "conv_2d", "pruned_model_runs", in_model(unknown)),
    "one less falls": Mutation(
        "prune", "conv_2d", "unstructured_is_what_a_stable_sort_drops", in_numbers(put_back),
        lambda asked: asked.get("sparsity") == 0.7,
    ),
    "half a block falls": Mutation(
        "prune", "matmul_right", "whole_units_are_dropped", in_numbers(put_back),
        lambda asked: asked.get("pattern") == "block:2x2",
    ),
    "nobody says which word allows": Mutation(
        "prune", "conv_stem", "default_names_the_word_that_allows", in_rows(reason="no")
    ),
    "a weight is no row": Mutation("inspect", "conv_2d", "every_weight_is_one_row", without_rows),
    "the axis is another": Mutation("inspect", "conv_2d", "the_axis_is_right", wrong_axis),
    "nobody says why": Mutation("inspect", "matmul_vector_right", "what_stays_dense_says_why", in_rows(reason="")),
    "asked again it says something else": Mutation(
        "inspect", "conv_2d", "inspect_changes_nothing_and_repeats", miscounted, repeats
    ),
    "masks change a weight": Mutation(
        "insert_masks", "conv_2d", "insert_leaves_the_weights_alone", in_numbers(one_more)
    ),
    "masks break the graph": Mutation("insert_masks", "conv_2d", "masked_model_is_valid", in_model(invalid)),
    "what prune can, no mask can": Mutation(
        "insert_masks", "conv_2d", "floats_that_prune_can_mask_can", in_rows(status="dense", reason="no")
    ),
    "the record is missing": Mutation("insert_masks", "conv_2d", "a_record_is_enough", in_model(bare_of_metadata)),
    "masks that hide nothing": Mutation(
        "insert_masks", "conv_2d", "mask_and_fold_is_prune", in_model(all_masks_of_ones)
    ),
    "a discard leaves something": Mutation(
        "fold_masks", "conv_2d", "insert_then_discard_is_nothing", in_model(with_metadata),
        lambda asked: bool(asked.get("discard")),
    ),
    "a fold forgets a zero": Mutation("fold_masks", "conv_2d", "mask_and_fold_is_prune", in_numbers(put_back), folds),
    "a fold forgets its node": Mutation(
        "fold_masks", "conv_2d", "masked_outputs_are_folded_outputs", nothing_done, folds
    ),
    "a fold of other masks changes outputs": Mutation(
        "fold_masks", "mask_twice", "unusual_masks_change_no_output", in_numbers(one_more)
    ),
    "masks of others are left": Mutation("fold_masks", "mask_where", "foreign_masks_are_folded", nothing_done),
    "masks of others are not discarded": Mutation(
        "fold_masks", "mask_where", "foreign_masks_are_discarded", nothing_done,
        lambda asked: bool(asked.get("discard")),
    ),
    "folded again it changes": Mutation("fold_masks", "mask_float", "folding_twice_is_folding_once", in_model(longer)),
    "a fold does not check": Mutation(
        "fold_masks", "conv_2d", "one_group_too_full_is_found", in_rows(status="folded"),
        lambda asked: asked.get("target") == "ampere",
    ),
    "verify says yes": Mutation("verify", "matmul_right", "dense_does_not_hold", says(True, "holds")),
    "verify says yes to one too many": Mutation(
        "verify", "conv_2d", "one_weight_too_many_is_seen", says(True, "holds")
    ),
    "verify says no": Mutation("verify", "conv_2d", "what_prune_wrote_holds", says(False, "violated")),
    "what nobody can know holds": Mutation(
        "verify", "matmul_vector_right", "unchecked_says_why", says(True, "holds")
    ),
}  # fmt: skip
DECOY = next(name for name, case in CASES.items() if case.family == "decoys")
MUTATIONS["what is no mask is folded"] = Mutation(
    "fold_masks", DECOY, "what_is_no_mask_is_left", in_rows(status="folded")
)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    _seen.clear()
    yield
    _seen.clear()


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_is_wrong_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = MUTATIONS[name]
    right = {command: getattr(osp, command) for command in ("inspect", "prune", "insert_masks", "fold_masks", "verify")}

    def called(command: str, given: Any, **options: Any) -> Any:
        result = right[command](given, **options)
        _seen.append({**options, "command": command})
        if command != one.command or not one.where(_seen[-1]):
            return result
        return one.spoil(Outcome(result.model, result.report, result.path), given)

    assert not wrong_properties(one.model)
    for command in right:
        monkeypatch.setattr(osp, command, lambda given, command=command, **more: called(command, given, **more))
    wrong = wrong_properties(one.model)
    assert one.seen_by in {said.partition(" ")[0] for said in wrong}, wrong


def test_no_property_is_without_its_mutation() -> None:
    assert {one.seen_by for one in MUTATIONS.values()} == set(PROPERTIES) - OF_THE_CASES
