"""The measured faults of other tools, one test each: here they are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs.builders import CASES, Built
from graphs.expectations import EVERYTHING, is_masked_copy, keep_mask, row_of, values
from graphs.files import differences, find, stored_tensors

osp: Any = pytest.importorskip("onnxsparse")


def pruned(name: str) -> tuple[Built, Any]:
    built = CASES[name].build()
    return built, osp.prune(built.model, pattern="2:4", allow=EVERYTHING)


def assert_right(name: str) -> None:
    built, result = pruned(name)
    for wanted in built.expected:
        if wanted.reason or wanted.word:
            continue
        problem = is_masked_copy(
            values(built.model, wanted), values(result.model, wanted), keep_mask(wanted, 2, 4), wanted.zero
        )
        assert problem == "", f"{name}, {wanted.name}: {problem}"
        assert row_of(result.report, wanted).status == "pruned", name
    assert osp.verify(result.model, pattern="2:4", allow=EVERYTHING).report.ok, name


def test_wrong_axis_of_hwio_conv() -> None:
    assert_right("conv_hwio_through_transpose")


@pytest.mark.parametrize("name", ["matmul_right_rank3", "matmul_right_rank4"])
def test_wrong_axis_of_batched_matmul(name: str) -> None:
    assert_right(name)


def test_wrong_axis_of_constant_a_of_rank_3() -> None:
    assert_right("matmul_left_rank3")


def test_one_tensor_along_two_axes_is_refused() -> None:
    built, result = pruned("shared_along_two_axes")
    row = row_of(result.report, built.expected[0])
    assert row.status == "dense"
    assert "ax" in row.reason
    assert differences(built.model, result.model, []) == []


def test_check_of_a_wrong_axis_fails() -> None:
    """2:4 along the output axis is what some tools write and then believe."""
    built = CASES["matmul_right_rank3"].build()
    w = np.where(np.arange(8) % 4 < 2, 1, 0).astype(np.float32) * np.ones((3, 16, 8), np.float32)
    find(built.model, "w", (3, 16, 8)).tensor.raw_data = w.tobytes()  # type: ignore[union-attr]
    assert not osp.verify(built.model, pattern="2:4", allow=EVERYTHING).report.ok


@pytest.mark.parametrize("name", ["matmul_vector_left", "matmul_vector_right"])
def test_crash_on_1_d_operand(name: str) -> None:
    built, result = pruned(name)
    assert row_of(result.report, built.expected[0]).status == "dense"
    osp.verify(built.model, pattern="2:4", allow=EVERYTHING)


@pytest.mark.parametrize("name", ["bfloat16_raw", "bfloat16_in_int32_data", "bfloat16_throughout"])
def test_bfloat16_is_pruned_by_magnitude_and_checked(name: str) -> None:
    assert_right(name)


@pytest.mark.slow
def test_crash_over_2_gb(tmp_path: Path) -> None:
    """A 2.2 GB external file, most of it a hole."""
    built = CASES["external_one_file"].build()
    path = built.write(tmp_path)
    model = onnx.load(str(path), load_external_data=False)
    big = model.graph.initializer.add(name="big", data_type=1, dims=[16, 35_000_000])
    big.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "big.bin"), ("offset", "0"), ("length", str(16 * 35_000_000 * 4))):
        big.external_data.add(key=key, value=value)
    with open(tmp_path / "big.bin", "wb") as hole:
        hole.truncate(16 * 35_000_000 * 4)
    path.write_bytes(model.SerializeToString())
    (tmp_path / "out").mkdir()
    osp.prune(path, output=tmp_path / "out" / "model.onnx", pattern="2:4")
    assert osp.verify(tmp_path / "out" / "model.onnx", pattern="2:4").report.ok


@pytest.mark.parametrize(
    "name",
    ["decorated", "function_in_function", "foreign_nodes_around", "unknown_fields_everywhere", "training_information"],
)
def test_nothing_is_dropped_from_the_file(name: str) -> None:
    built, result = pruned(name)
    names = [row.name for row in result.report.rows if row.status == "pruned"]
    assert names
    assert differences(built.model, result.model, names) == []


SKIPPED_IN_SILENCE = [
    "constant_node",
    "constant_node_through_identity_and_transpose",
    "identity_chain",
    "identity_chain_of_150",
    "reshape_merges_k",
    "qdq_conv_int8_per_channel",
    "qlinear_conv_int8_per_tensor",
    "qlinear_matmul_uint8_per_tensor",
    "convtranspose_2d",
    "convtranspose_grouped",
    "einsum_plain",
    "einsum_two_k_labels",
    "lstm_bidirectional",
    "if_with_initializers",
    "if_with_constants",
    "gemm_left_transposed_alpha_1_0",
    "gemm_right_alpha_0_5",
    "gemm_right_transposed_alpha_minus_2_0",
    "matmul_left",
    "matmul_right_rank3",
    "conv_1d",
    "conv_3d",
    "qdq_gemm_uint8_per_channel",
    "float64_throughout",
]


def test_skipped_in_silence() -> None:
    for name in SKIPPED_IN_SILENCE:
        assert_right(name)


@pytest.mark.parametrize("name", ["conv_2d", "conv_grouped_2", "conv_uneven_kernel", "conv_3d"])
def test_conv_groups_run_over_channels_not_over_the_flat_kernel(name: str) -> None:
    assert_right(name)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("external_")])
def test_external_data_by_path_is_neither_ignored_nor_destroyed(name: str, tmp_path: Path) -> None:
    built = CASES[name].build()
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    path = built.write(tmp_path / "in")
    osp.prune(path, output=tmp_path / "out" / "model.onnx", pattern="2:4")
    made = onnx.load(str(tmp_path / "out" / "model.onnx"), load_external_data=False)
    for wanted in built.expected:
        after = values(made, wanted, tmp_path / "out")
        assert np.isfinite(after).all()
        assert (
            is_masked_copy(values(built.model, wanted, tmp_path / "in"), after, keep_mask(wanted, 2, 4), wanted.zero)
            == ""
        )


@pytest.mark.parametrize("name", ["many_kinds_in_one", "opset_17", "lstm_bidirectional", "constant_node"])
def test_file_keeps_its_size_and_its_names(name: str, tmp_path: Path) -> None:
    built = CASES[name].build()
    path = built.write(tmp_path)
    result = osp.prune(path, output=tmp_path / "out.onnx", pattern="2:4", allow=EVERYTHING)
    assert [one.name for one in stored_tensors(result.model)] == [one.name for one in stored_tensors(built.model)]
    ours = sum(one.ByteSize() + 6 for one in result.model.metadata_props)
    assert (tmp_path / "out.onnx").stat().st_size <= path.stat().st_size + ours


@pytest.mark.parametrize(
    "name",
    [
        "matmul_ragged_by_1",
        "matmul_ragged_by_2",
        "matmul_ragged_by_3",
        "conv_ragged_by_1",
        "conv_ragged_by_2",
        "conv_ragged_by_3_grouped",
        "convtranspose_ragged",
        "convtranspose_ragged_per_group",
    ],
)
def test_ragged_tail_is_kept_and_said(name: str) -> None:
    assert_right(name)
    built, result = pruned(name)
    row = row_of(result.report, built.expected[0])
    tail = (
        built.expected[0].uses[0].rows(np.arange(built.expected[0].real.size).reshape(built.expected[0].shape)).shape[1]
        % 4
    )
    assert tail
    assert row.reason, "a tail was kept dense and nobody said so"


def test_stem_stays_dense_by_default() -> None:
    built = CASES["conv_stem"].build()
    result = osp.prune(built.model, pattern="unstructured", sparsity=0.8, allow=["small"])
    assert row_of(result.report, built.expected[0]).status == "dense"


def test_report_has_a_row_for_every_weight_and_speaks_json(tmp_path: Path) -> None:
    from onnxsparse.cli import main

    path = CASES["many_kinds_in_one"].build().write(tmp_path)
    assert main(["inspect", str(path), "--json", str(tmp_path / "report.json")]) == 0
    text = (tmp_path / "report.json").read_text()
    assert all(f'"{name}"' in text for name in ("stem", "k", "w", "v"))
    assert isinstance(json.loads(text), dict)


def test_a_failed_check_has_an_exit_code(tmp_path: Path) -> None:
    from onnxsparse.cli import main

    path = CASES["conv_of_256"].build().write(tmp_path)
    assert main(["verify", str(path), "--pattern", "2:4"]) == 1
    assert main(["prune", str(path), "-o", str(tmp_path / "o.onnx"), "--pattern", "2:4"]) == 0
    assert main(["verify", str(tmp_path / "o.onnx"), "--pattern", "2:4"]) == 0


def test_integers_are_ranked_by_what_they_mean() -> None:
    """Per-channel scales and zero points: the code farthest from zero is not the largest weight."""
    for name in (
        "qlinear_matmul_int8_per_channel",
        "qdq_gemm_uint8_per_channel",
        "transpose_then_dequantize_per_channel",
    ):
        assert_right(name)
