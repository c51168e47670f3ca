"""What a person writes for a plan: a plan file that says something twice, and masks that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxsparse as osp
from onnxsparse.cli import main
from tests.messages import refusing

HEAD = "onnxsparse_plan: 1\nweights:\n"
ENTRY = "- name: head.weight\n  pattern: unstructured\n  sparsity: 0.5\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD + ENTRY + "  sparsity: 0.9\n", "line 6: 'sparsity' is there already, in line 5"),
        (HEAD + ENTRY + "  sparsity: 0.5\n", "line 6: 'sparsity' is there already, in line 5"),
        (HEAD + ENTRY + "  'pattern': dense\n", "line 6: 'pattern' is there already, in line 4"),
        ("score: random\n" + HEAD + ENTRY + "score: magnitude\n", "line 7: 'score' is there already, in line 1"),
        (HEAD + ENTRY + "weights: []\n", "line 6: 'weights' is there already, in line 2"),
        (
            HEAD + "- {name: head.weight, pattern: dense, name: deep.weight}\n",
            "line 3: 'name' is there already, in line 3",
        ),
    ],
)
@pytest.mark.parametrize("command", ["prune", "mask", "verify", "plan"])
def test_a_key_twice_in_a_plan_is_an_error_with_both_lines(
    command: str, text: str, says: str, tmp_path: Path, digits_cnn: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(text)
    words = [command, str(digits_cnn), "--plan", str(plan)]
    assert main(words if command == "verify" else [*words, "-o", str(tmp_path / "out")]) == 2
    assert f"{plan}, {says}; take one of the two out" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_weight_twice_is_an_error_and_a_key_in_two_entries_is_none(tmp_path: Path, digits_cnn: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(HEAD + ENTRY + ENTRY)
    with refusing(osp.OnnxSparseError):
        osp.prune(digits_cnn, plan=plan)
    plan.write_text(HEAD + ENTRY + ENTRY.replace("head", "deep"))
    assert osp.prune(digits_cnn, plan=plan).report.totals.done == 2


def holes(kind: str) -> Any:
    keep = np.ones((10, 64), kind)
    keep[3, 5] = np.nan
    return keep


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (holes("float32"), "the mask of 'head.weight' holds NaN, first at [3, 5], which is neither keep nor drop"),
        (holes("float16"), "holds NaN, first at [3, 5]"),
        (holes("float64"), "holds NaN, first at [3, 5]"),
        (
            np.ones((10, 64), complex),
            "the mask of 'head.weight' is of type complex128; a mask is of numbers or of true",
        ),
        (np.full((10, 64), "1"), "the mask of 'head.weight' is of type <U1; a mask is of numbers or of true and false"),
        (np.full((10, 64), b"1"), "is of type |S1;"),
        (np.ones((10, 64), "datetime64[s]"), "is of type datetime64[s];"),
        (np.ones((64, 10), bool), "the mask of 'head.weight' has shape [64, 10], the weight [10, 64]"),
        ("a text", "the mask of 'head.weight' is no NumPy array"),
    ],
    ids=["float32", "float16", "float64", "complex", "text", "bytes", "dates", "shape", "no array"],
)
def test_masks_that_are_none_are_refused_by_what_they_are(
    mask: Any, says: str, tmp_path: Path, digits_cnn: Path
) -> None:
    for call in (osp.plan, osp.prune, osp.insert_masks):
        with pytest.raises(osp.OnnxSparseError) as caught:
            call(digits_cnn, masks={"head.weight": mask})
        assert says in str(caught.value)
    if isinstance(mask, np.ndarray):
        np.savez(tmp_path / "masks.npz", **{"head.weight": mask})
        with pytest.raises(osp.OnnxSparseError) as caught:
            osp.prune(digits_cnn, masks=tmp_path / "masks.npz")
        assert says in str(caught.value)


def test_numbers_other_than_0_and_1_keep(digits_cnn: Path) -> None:
    keep = np.ones((10, 64), np.float32)
    keep[:, :32], keep[:, 40:] = 0, np.inf
    assert osp.prune(digits_cnn, masks={"head.weight": keep}).report.row("head.weight").zeros == 320


def test_texts_in_a_file_of_masks_are_refused_whatever_their_size(digits_cnn: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "masks.npz", **{"head.weight": np.full((10, 64), "1".rjust(64))})
    with refusing(osp.OnnxSparseError):
        osp.prune(digits_cnn, masks=tmp_path / "masks.npz")
