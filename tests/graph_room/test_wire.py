"""A model without its large tensors, and back: the same bytes for every way in which tensors are stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onnxsparse.errors import ModelError
from onnxsparse.graph.wire import LARGE, Hole, Tokens, condense, expand

SIZES = st.lists(st.sampled_from([0, 1, 4, 1000, LARGE // 4, LARGE, 3 * LARGE]), max_size=5)
FORMS = ("raw", "float", "double", "constant", "sparse")


def tensor(form: str, size: int, name: str) -> TensorProto:
    values = np.arange(size, dtype=np.float64 if form == "double" else np.float32)
    if form in ("float", "double"):
        kind = TensorProto.DOUBLE if form == "double" else TensorProto.FLOAT
        return helper.make_tensor(name, kind, [size], values.tolist())
    return numpy_helper.from_array(values, name)


def model(sizes: list[int], form: str) -> onnx.ModelProto:
    graph = helper.make_graph([], "g", [], [])
    for index, size in enumerate(sizes):
        made = tensor(form, size, f"t{index}")
        if form == "constant":
            graph.node.append(helper.make_node("Constant", [], [f"t{index}"], value=made))
        elif form == "sparse":
            graph.sparse_initializer.add(dims=[size]).values.CopyFrom(made)
        else:
            graph.initializer.append(made)
    return helper.make_model(graph)


def condensed(data: bytes) -> tuple[bytes, Tokens]:
    tokens = Tokens()
    return condense(lambda start, stop: data[start:stop], len(data), tokens), tokens


@given(SIZES, st.sampled_from(FORMS))
def test_condense_then_expand_gives_the_same_bytes(sizes: list[int], form: str) -> None:
    data = model(sizes, form).SerializeToString()
    small, tokens = condensed(data)
    lengths = {token: stop - start for token, (start, stop) in tokens.spans.items()}
    parsed = onnx.ModelProto.FromString(small)
    pieces = expand(parsed.SerializeToString(), tokens, lengths)
    assert b"".join(data[slice(*tokens.spans[p.token])] if isinstance(p, Hole) else p for p in pieces) == data
    assert len(small) < len(data) or not any(size * 4 >= LARGE for size in sizes)


@given(st.binary(max_size=300))
def test_any_bytes_are_copied_or_refused(data: bytes) -> None:
    try:
        small, tokens = condensed(data)
    except ModelError:
        return
    assert not tokens.spans
    assert small == data


def test_a_payload_that_looks_like_a_token_is_not_taken_for_one(tmp_path: Path) -> None:
    """Tokens are salted anew each time, so no file can hold the right one."""
    data = model([4 * LARGE], "raw").SerializeToString()
    first, second = condensed(data), condensed(data)
    assert first[0] != second[0]
    hostile = onnx.ModelProto.FromString(first[0])
    with pytest.raises(KeyError):
        condensed(hostile.SerializeToString())[1].spans[hostile.graph.initializer[0].raw_data]
