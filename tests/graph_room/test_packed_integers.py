"""4-bit integers, two in a byte of the file: read in any piece, edited, and stored in every form that ONNX has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor, make_tensor_value_info

import onnxsparse as osp
from onnxsparse.errors import ModelError
from onnxsparse.graph.storage import StoredTensor
from tests.messages import refusing

KINDS = {"int4": (TensorProto.INT4, -8), "uint4": (TensorProto.UINT4, 0)}


def tensor(kind: str, numbers: np.ndarray, raw: bool = True, name: str = "w") -> TensorProto:
    made = make_tensor(name, KINDS[kind][0], numbers.shape, numbers.ravel().tolist())
    if not raw:
        return made
    data = bytes(one & 0xFF for one in made.int32_data) if len(made.int32_data) else made.raw_data
    return TensorProto(name=name, data_type=KINDS[kind][0], dims=numbers.shape, raw_data=data)


@given(st.data())
def test_numbers_are_read_edited_and_stored_in_any_pieces(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    low = KINDS[kind][1]
    numbers = np.array(data.draw(st.lists(st.integers(low, low + 15), min_size=1, max_size=40)), np.int64)
    stored = StoredTensor(tensor(kind, numbers, data.draw(st.booleans())), "w")
    stored.check()
    start = data.draw(st.integers(0, numbers.size))
    stop = data.draw(st.integers(start, numbers.size))
    np.testing.assert_array_equal(stored.read(start, stop), numbers[start:stop])
    cuts = sorted(data.draw(st.lists(st.integers(0, numbers.size), max_size=5)))
    pieces = np.split(numbers[::-1].astype(stored.dtype), cuts)
    stored.edit = lambda: iter(pieces)
    written = b"".join(piece.tobytes() for piece in stored.edited_payload())
    assert len(written) == stored.nbytes == (numbers.size + 1) // 2
    stored.store_edit()
    np.testing.assert_array_equal(stored.read(), numbers[::-1])
    assert numpy_helper.to_array(stored.proto).astype(np.int64).tolist() == numbers[::-1].tolist()


def test_data_of_another_length_is_refused() -> None:
    proto = TensorProto(name="w", data_type=TensorProto.INT4, dims=[3, 3], raw_data=bytes(4))
    with refusing(ModelError):
        StoredTensor(proto, "w").check()


def blocked(kind: str, raw: bool, inputs: int, outputs: int) -> onnx.ModelProto:
    """A product with 4-bit weights in blocks of 16."""
    low, blocks = KINDS[kind][1], -(-inputs // 16)
    generator = np.random.default_rng(inputs)
    numbers = generator.integers(low, low + 16, (inputs, outputs))
    zero = generator.integers(low + 4, low + 12, (blocks, outputs))
    nodes = [
        make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=0, block_size=16),
        make_node("MatMul", ["x", "d"], ["y"], "layer"),
    ]
    scale = numpy_helper.from_array(generator.uniform(0.1, 1, (blocks, outputs)).astype(np.float32), "s")
    graph = make_graph(
        nodes, "g", [make_tensor_value_info("x", TensorProto.FLOAT, [2, inputs])],
        [make_tensor_value_info("y", TensorProto.FLOAT, [2, outputs])],
        [tensor(kind, numbers, raw), scale, tensor(kind, zero, raw, "z")],
    )  # fmt: skip
    return make_model(graph, opset_imports=[make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 48), (61, 47)])
@pytest.mark.parametrize("where", ["raw", "typed", "beside"])
def test_a_file_is_pruned_in_place_wherever_its_numbers_are(
    kind: str, inputs: int, outputs: int, where: str, tmp_path: Path
) -> None:
    proto = blocked(kind, where != "typed", inputs, outputs)
    before = numpy_helper.to_array(proto.graph.initializer[0]).astype(np.int64)
    onnx.save(
        proto, tmp_path / "in.onnx", save_as_external_data=where == "beside", location="in.data", size_threshold=16
    )
    osp.prune(
        tmp_path / "in.onnx", sparsity=0.7, pattern="unstructured", output=tmp_path / "out.onnx", allow=["output"]
    )
    report = osp.verify(tmp_path / "out.onnx").report
    assert report.ok
    assert report.rows[0].dtype == kind
    assert report.rows[0].zeros == pytest.approx(0.7 * inputs * outputs, abs=1)
    assert report.rows[0].bytes_dense == (inputs * outputs + 1) // 2
    written = onnx.load(tmp_path / "out.onnx")
    found = numpy_helper.to_array(written.graph.initializer[0]).astype(np.int64)
    zero = numpy_helper.to_array(written.graph.initializer[2]).astype(np.int64)
    zero = np.repeat(zero, 16, 0)[:inputs]
    kept = found != zero
    np.testing.assert_array_equal(found[kept], before[kept])
    assert written.graph.initializer[0].data_type == KINDS[kind][0]


def test_a_scale_for_another_number_of_blocks_is_no_crash() -> None:
    proto = blocked("int4", True, 64, 48)
    proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.ones((3, 48), np.float32), "s"))
    report = osp.inspect(proto).report
    assert report.rows[0].reason
