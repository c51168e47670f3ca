"""Masks in and out of the graph: inserted, folded, discarded, and those that other tools left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs.builders import CASES
from graphs.expectations import EVERYTHING, bits, values
from graphs.files import all_values
from graphs.masked import MASKS
from graphs.running import run
from graphs.walk import same

osp: Any = pytest.importorskip("onnxsparse")


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


def test_a_weight_also_used_bare_is_left_or_still_right() -> None:
    built = CASES["masked_weight_also_used_bare"].build()
    folded = osp.fold_masks(built.model)
    assert same(run(built.model, built), run(folded.model, built))


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
