"""Masks in and out of the graph: inserted, folded, discarded, and those that other tools left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs.builders import CASES
from graphs.expectations import EVERYTHING, bits, is_masked_copy, row_of, values
from graphs.files import all_values, differences, stored_tensors
from graphs.masked import LENIENT, MASKS
from graphs.running import demand_runtime, run

osp: Any = pytest.importorskip("onnxsparse")
INSIDE = [name for name in CASES if not CASES[name].build().files]
RUNNING = [name for name in INSIDE if CASES[name].build().runs]
BARE = [name for name in INSIDE if CASES[name].family not in ("masked", "decoys")]


def same(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return len(first) == len(second) and all(np.array_equal(a, b) for a, b in zip(first, second))


@pytest.mark.parametrize("name", INSIDE)
def test_insert_then_discard_is_nothing(name: str) -> None:
    """The same bytes as before the masks came."""
    built = CASES[name].build()
    masked = osp.insert_masks(built.model, pattern="2:4", allow=EVERYTHING).model
    if CASES[name].family in ("masked", "decoys"):
        return
    assert osp.fold_masks(masked, discard=True).model.SerializeToString() == built.model.SerializeToString()


@pytest.mark.parametrize("name", INSIDE)
def test_insert_leaves_the_weights_alone(name: str) -> None:
    built = CASES[name].build()
    before = built.model.SerializeToString()
    result = osp.insert_masks(built.model, pattern="2:4", allow=EVERYTHING)
    assert built.model.SerializeToString() == before
    after = {one.name: one for one in stored_tensors(result.model)}
    for one in built.expected:
        row = row_of(result.report, one)
        assert row.status in ("masked", "dense")
        assert row.reason or row.status == "masked"
        if one.name in after and one.reason != "unsupported type":
            assert np.array_equal(bits(values(built.model, one)), bits(values(result.model, one)))


@pytest.mark.parametrize("name", [name for name in BARE if CASES[name].build().checks])
def test_masked_model_is_valid(name: str) -> None:
    built = CASES[name].build()
    onnx.checker.check_model(osp.insert_masks(built.model, pattern="2:4", allow=EVERYTHING).model)


# The runtime multiplies no bfloat16 on a CPU.
MULTIPLIES = [name for name in RUNNING if name in BARE and not name.startswith("bfloat16")]


@pytest.mark.parametrize("name", MULTIPLIES)
def test_masked_outputs_are_folded_outputs(name: str) -> None:
    demand_runtime(name)
    built = CASES[name].build()
    masked = osp.insert_masks(built.model, pattern="2:4", allow=EVERYTHING).model
    folded = osp.fold_masks(masked)
    kept = [
        index
        for index, out in enumerate(built.model.graph.output)
        if out.name not in {one.name for one in built.expected}
    ]
    first, second = run(masked, built), run(folded.model, built)
    assert same([first[i] for i in kept], [second[i] for i in kept])
    assert len(folded.model.graph.node) == len(built.model.graph.node)


@pytest.mark.parametrize("name", BARE)
def test_mask_and_fold_is_prune(name: str) -> None:
    """For what a mask can be put on; the rest is in both reports, with a reason."""
    built = CASES[name].build()
    inserted = osp.insert_masks(built.model, pattern="2:4", allow=EVERYTHING)
    folded = osp.fold_masks(inserted.model).model
    pruned = osp.prune(built.model, pattern="2:4", allow=EVERYTHING).model
    for one in built.expected:
        if one.reason != "unsupported type" and row_of(inserted.report, one).status == "masked":
            assert np.array_equal(bits(values(folded, one)), bits(values(pruned, one)))
    assert differences(built.model, folded, [one.name for one in built.expected if one.name]) == [] or not all(
        one.name for one in built.expected
    )


@pytest.mark.parametrize("name", BARE)
def test_floats_that_prune_can_mask_can(name: str) -> None:
    built = CASES[name].build()
    masked = osp.insert_masks(built.model, pattern="2:4", allow=EVERYTHING).report
    pruned = osp.prune(built.model, pattern="2:4", allow=EVERYTHING).report
    for one in built.expected:
        floats = one.dtype.startswith(("float", "bfloat"))
        reachable = one.storage != "call attribute" and one.name not in [out.name for out in built.model.graph.output]
        if floats and reachable and row_of(pruned, one).status == "pruned":
            assert row_of(masked, one).status == "masked", row_of(masked, one).reason


@pytest.mark.parametrize(
    "name", ["shared_along_one_axis", "quantize_dequantize_of_floats", "everything_at_once", "reshape_merges_k"]
)
def test_one_mask_before_everything_else(name: str) -> None:
    """The stored tensor feeds one Mul and nothing else; all former readers read the product."""
    built = CASES[name].build()
    masked = osp.insert_masks(built.model, pattern="2:4", allow=EVERYTHING).model
    readers = [one.op_type for one in masked.graph.node if "w" in one.input]
    assert readers == ["Mul"]
    assert len(masked.graph.node) == len(built.model.graph.node) + 1 + sum(
        one.op_type == "Cast" for one in masked.graph.node if "mask" in "".join(one.output).lower()
    )


def test_mask_names_collide_with_nothing() -> None:
    built = CASES["names_taken_already"].build()
    masked = osp.insert_masks(built.model, pattern="2:4", allow=EVERYTHING).model
    produced = [out for one in masked.graph.node for out in one.output] + [one.name for one in masked.graph.initializer]
    produced += [one.name for one in masked.graph.input]
    names: set[str] = set(produced)
    assert len(names) == len(produced)
    nodes = [one.name for one in masked.graph.node if one.name]
    assert len(set(nodes)) == len(nodes)


def test_masks_inside_branches_stay_where_the_weight_is() -> None:
    built = CASES["if_with_constants"].build()
    masked = osp.insert_masks(built.model, pattern="2:4", allow=EVERYTHING).model
    assert [one.op_type for one in masked.graph.node] == ["If"]


def test_metadata_records_what_was_done() -> None:
    built = CASES["matmul_right"].build()
    masked = osp.insert_masks(built.model, pattern="2:4", allow=EVERYTHING).model
    ours = {one.key: one.value for one in masked.metadata_props if one.key.startswith("onnxsparse.")}
    assert any("2:4" in value for value in ours.values())
    assert all(one.key.startswith("onnxsparse.") for one in masked.metadata_props)


FOLDABLE = [name for name in MASKS if name not in LENIENT]


@pytest.mark.parametrize("name", LENIENT)
def test_unusual_masks_change_no_output(name: str) -> None:
    built = CASES[name].build()
    folded = osp.fold_masks(built.model)
    assert same(run(built.model, built), run(folded.model, built))
    assert all(row.status == "folded" or row.reason for row in folded.report.rows)


@pytest.mark.parametrize("name", FOLDABLE)
def test_foreign_masks_are_folded(name: str) -> None:
    """Whoever left them: the stored tensor takes the zeros, the nodes are gone, the outputs stay."""
    built = CASES[name].build()
    folded = osp.fold_masks(built.model)
    for one in built.expected:
        assert is_masked_copy(values(built.model, one), values(folded.model, one), MASKS[name], one.zero) == ""
        assert row_of(folded.report, one).status == "folded"
    assert same(run(built.model, built), run(folded.model, built))
    assert not {"Mul", "Where"} & {one.op_type for one in folded.model.graph.node}
    onnx.checker.check_model(folded.model)


@pytest.mark.parametrize("name", FOLDABLE)
def test_foreign_masks_are_discarded(name: str) -> None:
    """The dense weights as stored, without the nodes."""
    built = CASES[name].build()
    bare = osp.fold_masks(built.model, discard=True).model
    for one in built.expected:
        assert np.array_equal(bits(values(built.model, one)), bits(values(bare, one)))
    assert not {"Mul", "Where"} & {one.op_type for one in bare.graph.node}
    run(bare, built)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].family == "decoys"])
def test_what_is_no_mask_is_left(name: str) -> None:
    built = CASES[name].build()
    folded = osp.fold_masks(built.model)
    assert differences(built.model, folded.model, []) == []
    assert all(row.reason for row in folded.report.rows if row.status == "left")
    assert not [row for row in folded.report.rows if row.status == "folded"]


def test_a_weight_also_used_bare_is_left_or_still_right() -> None:
    built = CASES["masked_weight_also_used_bare"].build()
    folded = osp.fold_masks(built.model)
    assert same(run(built.model, built), run(folded.model, built))


@pytest.mark.parametrize("name", list(MASKS))
def test_folding_twice_is_folding_once(name: str) -> None:
    built = CASES[name].build()
    once = osp.fold_masks(built.model).model
    assert osp.fold_masks(once).model.SerializeToString() == once.SerializeToString()


def test_a_mask_upon_a_mask_folds_to_both() -> None:
    """Insert into a model that another tool masked already: no weight comes back to life."""
    built = CASES["mask_float"].build()
    masked = osp.insert_masks(built.model, pattern="2:4", allow=EVERYTHING).model
    folded = osp.fold_masks(masked).model
    after = values(folded, built.expected[0])
    assert not after[~MASKS["mask_float"]].any()


def test_fold_of_a_model_without_masks_is_the_model() -> None:
    built = CASES["many_kinds_in_one"].build()
    assert osp.fold_masks(built.model).model.SerializeToString() == built.model.SerializeToString()


def test_masked_files_with_external_data(tmp_path: Path) -> None:
    """Insert and discard through files: the same bytes, model and data."""
    for folder in ("in", "masked", "out"):
        (tmp_path / folder).mkdir()
    built = CASES["external_one_file"].build()
    path = built.write(tmp_path / "in")
    osp.insert_masks(path, output=tmp_path / "masked" / "model.onnx", pattern="2:4")
    osp.fold_masks(tmp_path / "masked" / "model.onnx", output=tmp_path / "out" / "model.onnx", discard=True)
    first = all_values(onnx.load(str(path), load_external_data=False), tmp_path / "in")
    last = all_values(onnx.load(str(tmp_path / "out" / "model.onnx"), load_external_data=False), tmp_path / "out")
    assert first.keys() == last.keys()
    assert all(np.array_equal(bits(first[place]), bits(last[place])) for place in first)
