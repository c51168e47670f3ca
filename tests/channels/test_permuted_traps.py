"""The whole command on graphs that break a careless permutation: searched, proven, written, and undone."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

import onnxsparse as osp
from onnxsparse.channel_classes.permutation import METADATA, Permutation
from tests.channels import judge, traps

pytest.importorskip("scipy")
traps.names()
ALL = "embedding,tied-embedding,stem,depthwise,small,basis,output"


@pytest.mark.parametrize(
    "name",
    ["residual_adds", "attention_packed", "weight_of_two_layers_in_one_class", "swiglu_packed_with_residual",
     "transformer_with_tied_embedding", "flatten_of_two_into_one"],
)  # fmt: skip
def test_a_trap_is_permuted_and_gains(name: str) -> None:
    trap = traps.build(name)
    result = osp.permute(trap.model, allow=ALL)
    assert result.model is not None
    details = result.report.details["permutation"]
    assert not details["rolled_back"]  # type: ignore[index]
    assert not judge.judge(trap.model, result.model, trap.feeds, trap.reductions)
    moved = judge.moved(trap.model, result.model, trap.reductions)
    assert not moved & {*trap.must_stay}
    texts = [entry.value for entry in result.model.metadata_props if entry.key == METADATA]
    assert bool(texts) == bool(moved)
    for text in texts:
        before, after = judge.tensors(trap.model), judge.tensors(result.model)
        back = Permutation.unpacked(text, name).inverse()
        undone = back.apply({key: numpy_helper.to_array(one) for key, one in after.items()})
        assert all(np.array_equal(undone[key], numpy_helper.to_array(one)) for key, one in before.items())
