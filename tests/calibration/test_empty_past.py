"""Decoders with keys and values of earlier tokens as inputs are calibrated from token ids alone."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse.planning.model_inputs import past_axis
from tests.cases import for_each
from tests.messages import refusing

pytest.importorskip("onnxruntime")

WIDTH, WORDS = 32, 40
TOKENS = np.random.default_rng(0).integers(0, WORDS, (64, 6))
RECIPE = "x_stage:\n  x_modifiers:\n    SparseGPTModifier: {mask_structure: '2:4'}\n"


def decoder(name: str = "past.0.key") -> ModelProto:
    """Look-up, keys that the earlier ones come before, and a product with their mean."""
    rng = np.random.default_rng(1)
    arrays = {"table": (WORDS, WIDTH), "keys": (WIDTH, WIDTH), "head": (WIDTH, WORDS)}
    stored = [numpy_helper.from_array(rng.standard_normal(of).astype(np.float32), one) for one, of in arrays.items()]
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["x"], "tokens"),
        helper.make_node("MatMul", ["x", "keys"], ["own"], "keys"),
        helper.make_node("Concat", [name, "own"], ["present"], "joined", axis=1),
        helper.make_node("ReduceMean", ["present"], ["mean"], "mean", axes=[1], keepdims=1),
        helper.make_node("Add", ["x", "mean"], ["sum"], "sum"),
        helper.make_node("MatMul", ["sum", "head"], ["logits"], "head"),
    ]
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "tokens"])
    past = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "past", WIDTH])
    ends = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "tokens", WORDS]),
        helper.make_tensor_value_info("present", TensorProto.FLOAT, ["batch", "all", WIDTH]),
    ]
    graph = helper.make_graph(nodes, "decoder", [tokens, past], ends, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_without_earlier_tokens_they_are_empty_and_that_is_said() -> None:
    alone = osp.oneshot(decoder(), RECIPE, {"tokens": TOKENS})
    given = osp.oneshot(decoder(), RECIPE, {"tokens": TOKENS, "past.0.key": np.zeros((64, 0, WIDTH), np.float32)})
    longer = osp.oneshot(decoder(), RECIPE, {"tokens": TOKENS, "past.0.key": np.ones((64, 3, WIDTH), np.float32)})
    assert any("'past.0.key' are empty: the samples have no earlier tokens" in note for note in alone.report.notes)
    assert not any("earlier tokens" in note for note in given.report.notes)
    made = [one.model.SerializeToString() for one in (alone, given, longer) if one.model is not None]
    assert made[0] == made[1] != made[2]
    assert all(one.report.ok for one in (alone, given, longer))


def test_what_is_not_called_so_has_to_be_given() -> None:
    with refusing(osp.OnnxSparseError):
        osp.oneshot(decoder("memory"), RECIPE, {"tokens": TOKENS})


@for_each(
    "name, shape, wanted",
    [
        ("past_key_values.0.key", (None, 4, None, 32), 2), ("past.0.value", (0, None, 32), 1),
        ("past", (None, None), None),
        ("past.0.key", (None, None, None, 32), None), ("past.0.key", (1, 4, 16, 32), None),
        ("mask", (None, 1, None), None),
    ],
)  # fmt: skip
def test_the_earlier_tokens_have_the_only_open_axis(
    name: str, shape: tuple[int | None, ...], wanted: int | None
) -> None:
    assert past_axis(name, shape) == wanted
