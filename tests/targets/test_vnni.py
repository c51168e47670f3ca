"""Blocks of 4 inputs, for CPUs with byte dot products."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnxsparse as osp
from onnxsparse.targets import parse
from tests.quantization.odd_graphs import CASES, model_of

DIGITS = Path(__file__).resolve().parent.parent.parent / "models" / "digits_cnn.onnx"


def test_it_asks_for_blocks_of_four_inputs() -> None:
    assert parse("vnni").pattern == "block:1x4"
    result = osp.prune(str(DIGITS), target="vnni", sparsity=0.5)
    report = osp.verify(result.proto, target="vnni").report
    assert report.ok
    assert {row.pattern for row in report.rows if row.status == "holds"} == {"block:1x4"}
    assert any("--target vnni" in note for note in report.notes)
    assert "unlikely" in report.verdict


@pytest.mark.parametrize(
    ("name", "why"),
    [("grouped", "2 input channels"), ("transposed", "ConvTranspose"), ("half", "float16"), ("lstm", "LSTM")],
)
def test_what_it_cannot_use_stays_dense_with_the_reason(name: str, why: str) -> None:
    report = osp.plan(model_of(CASES[name]()), target="vnni", sparsity=0.5, allow="small,stem").report
    assert any(why in row.reason for row in report.rows)
