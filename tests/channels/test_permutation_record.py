"""The record of a permutation: made, read, packed, joined and undone; what is damaged is one line."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxsparse.channel_classes.permutation import Move, MovedTensor, Permutation
from onnxsparse.errors import OptionError
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.passes import permute
from onnxsparse.passes.permute import Moved
from onnxsparse.progress import Counter
from tests.messages import refusing

SHAPE = (4, 3, 6)
AXES = [(0,), (1,), (2,), (0, 2), (2, 0), (1, 2), (0, 1)]


@st.composite
def moves(draw: Any) -> Move:
    axes = draw(st.sampled_from(AXES))
    size = int(np.prod([SHAPE[axis] for axis in axes]))
    if draw(st.booleans()) and len(axes) > 1:  # each row of the first axis by itself
        height = SHAPE[axes[0]]
        inner = [draw(st.permutations(range(size // height))) for _ in range(height)]
        order = np.array([row * (size // height) + np.array(one) for row, one in enumerate(inner)]).reshape(-1)
        return Move(axes, order)
    return Move(axes, np.array(draw(st.permutations(range(size)))))


def record(*found: Move) -> Permutation:
    return Permutation({"w": MovedTensor("w", SHAPE, found)}, {"pattern": "2:4"})


ARRAY = np.arange(int(np.prod(SHAPE)), dtype=np.int32).reshape(SHAPE)


def moved(permutation: Permutation) -> Any:
    return permutation.apply({"w": ARRAY})["w"]


@given(st.lists(moves(), max_size=4))
def test_the_inverse_undoes_it(found: list[Move]) -> None:
    whole = record(*found)
    assert (whole.inverse().apply({"w": moved(whole)})["w"] == ARRAY).all()
    assert not whole.then(whole.inverse()).tensors or (moved(whole.then(whole.inverse())) == ARRAY).all()


@given(st.lists(moves(), max_size=3), st.lists(moves(), max_size=3))
def test_one_after_the_other_is_both(first: list[Move], second: list[Move]) -> None:
    both = record(*first).then(record(*second))
    assert (moved(both) == record(*second).apply({"w": moved(record(*first))})["w"]).all()
    assert sum(len(one.moves) for one in both.tensors.values()) <= len(first) + len(second)


@given(st.lists(moves(), max_size=3))
def test_a_record_is_read_as_it_was_written(found: list[Move]) -> None:
    whole = record(*found)
    for read in (Permutation.from_json(whole.to_json(), "f"), Permutation.unpacked(whole.packed(), "m")):
        assert read.to_json() == whole.to_json()
        assert (moved(read) == moved(whole)).all()


@given(st.lists(moves(), min_size=1, max_size=3), st.integers(1, 40))
def test_a_tensor_that_streams_moves_as_one_in_memory(found: list[Move], piece: int) -> None:
    before = permute.WHOLE, permute.PIECE
    permute.WHOLE, permute.PIECE = 1, piece
    try:
        tensor = StoredTensor(_proto(), "w")
        pieces = list(Moved(tensor, tuple(found), Counter("permute", 1))())
    finally:
        permute.WHOLE, permute.PIECE = before
    assert (np.concatenate(pieces).reshape(SHAPE) == moved(record(*found))).all()


def _proto() -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(ARRAY, "w")


GOOD: dict[str, Any] = json.loads(record(Move((0,), np.array([1, 0, 3, 2]))).to_json())
TENSOR = GOOD["tensors"]["w"]


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        json.dumps({**GOOD, "format": 99}),
        json.dumps({**GOOD, "format": True}),
        json.dumps({**GOOD, "format": 1.0}),
        json.dumps({**GOOD, "orders": [[0, 1, 1, 2]]}),
        json.dumps({**GOOD, "orders": [[0, 1.5, 2, 3]]}),
        json.dumps({**GOOD, "orders": [[0, 1, 2, 10**30]]}),
        json.dumps({**GOOD, "orders": [[0, 1, 2, 2**63]]}),
        json.dumps({**GOOD, "orders": [[0, 1, 2, -1]]}),
        json.dumps({**GOOD, "orders": [[]], "tensors": {"w": {**TENSOR, "shape": [2**32, 2**32, 1]}}}),
        json.dumps({**GOOD, "orders": 3}),
        json.dumps({**GOOD, "tensors": {"w": 3}}),
        json.dumps({**GOOD, "tensors": {"w": {**TENSOR, "shape": [4, "x"]}}}),
        json.dumps({**GOOD, "tensors": {"w": {**TENSOR, "shape": [5]}}}),
        json.dumps({**GOOD, "tensors": {"w": {**TENSOR, "moves": [{"axes": [7], "order": 0}]}}}),
        json.dumps({**GOOD, "tensors": {"w": {**TENSOR, "moves": [{"axes": [0], "order": 5}]}}}),
        json.dumps({**GOOD, "tensors": {"w": {**TENSOR, "moves": [3]}}}),
    ],
)
def test_a_damaged_file_is_one_line(content: str, tmp_path: Path) -> None:
    path = tmp_path / "permutation.json"
    path.write_text(content)
    with refusing(OptionError):
        Permutation.load(path)


PACKED = base64.b64decode(record(Move((0,), np.array([1, 0, 3, 2]))).packed())
DAMAGED = {
    "nothing": b"",
    "not packed": b"\0\0\0",
    "only a head": PACKED[:2],
    "cut": PACKED[:-4],
    "with something after it": PACKED + b"x",
    "twice": PACKED + PACKED,
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_metadata_is_one_line(damage: str) -> None:
    with refusing(OptionError):
        Permutation.unpacked(base64.b64encode(DAMAGED[damage]).decode(), "model.onnx")


def test_metadata_that_is_no_base64_is_one_line() -> None:
    with refusing(OptionError):
        Permutation.unpacked("????", "model.onnx")


def test_a_record_much_larger_than_its_model_is_not_unpacked() -> None:
    """Few bytes of metadata may hold hundreds of megabytes of zeros."""
    bomb = zlib.compress(b'{"orders":[[' + b"0," * (1 << 20), 9)
    with refusing(OptionError):
        Permutation.unpacked(base64.b64encode(bomb).decode(), "model.onnx", 1000)
