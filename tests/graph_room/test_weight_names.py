"""A weight has one name and one tag from the moment it is found, the same whenever the model is opened."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
from onnx import NodeProto

from onnxsparse.graph.attributes import IdentityKey
from onnxsparse.graph.model import Model

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from graphs.builders import CASES


@pytest.mark.parametrize("name", CASES)
def test_names_and_tags_are_of_one_weight_each(name: str, tmp_path: Path) -> None:
    path = CASES[name].build().write(tmp_path)
    found = [(weight.name, weight.tag) for weight in Model.open(path).weights]
    assert all(called for called, _ in found)
    assert len({called for called, _ in found}) == len({tag for _, tag in found}) == len(found)
    assert found == [(weight.name, weight.tag) for weight in Model.open(path).weights]


def test_the_scope_tells_weights_of_one_name_apart() -> None:
    spelled = [
        (weight.name, weight.tensor.name)
        for case in CASES.values()
        if not case.build().files
        for weight in Model.over(case.build().model).weights
    ]
    others = [(name, own) for name, own in spelled if name != own]
    assert others
    assert all(own in name if own else name.startswith("unnamed tensor of ") for name, own in others)


def test_equal_messages_are_different_keys_and_the_same_message_is_one() -> None:
    one, other = NodeProto(name="n"), NodeProto(name="n")
    assert one == other
    table = {IdentityKey(one): "one", IdentityKey(other): "other"}
    assert [table[IdentityKey(one)], table[IdentityKey(other)]] == ["one", "other"]
    assert IdentityKey(NodeProto(name="n")) not in table


def test_a_key_holds_its_message() -> None:
    table = {IdentityKey(NodeProto(name=str(number))) for number in range(100)}
    gc.collect()
    assert not any(IdentityKey(NodeProto(name=str(number))) in table for number in range(100))
    assert len(table) == 100
