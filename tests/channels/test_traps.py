"""Graphs that break a careless permutation: random orders of all classes keep the outputs, and what can move does.

The traps themselves are sound: each runs, and the judge sees any weight that is reordered by itself.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

import onnxsparse as osp
from tests.channels import judge, subject, traps
from tests.channels.net import Reduction, Trap

NAMES = traps.names()
NOT_MOVED = {
    "zeros_of_two_layers": "two",  # a shared bias of which all numbers are equal
}
"""What could move by the algebra and does not: trap -> weights."""


@pytest.mark.parametrize("name", NAMES)
def test_random_orders_keep_the_outputs(name: str) -> None:
    trap, moved = traps.build(name), set[str]()
    for seed in range(2):
        permuted = subject.randomly_permuted(trap.model, seed)
        assert not judge.judge(trap.model, permuted.model, trap.feeds, exact=seed == 0)
        assert judge.same_bytes(trap.model, subject.moved_back(permuted)), "the inverse gives other bytes"
        moved |= judge.moved(trap.model, permuted.model, trap.reductions)
    assert not moved & {*trap.must_stay}
    assert {*trap.must_move} - moved == {*NOT_MOVED.get(name, "").split()}


NOT_SEARCHED = {
    "flatten_of_two_into_one": "one order cannot serve both readers, whose groups differ",
    "weight_gathered_in_the_graph": "not followed to its store by `prune`",
    "weight_with_flipped_columns": "not followed to its store by `prune`",
    "weight_masked_in_the_graph": "a mask is no weight",
    "weight_norm": "not followed to its store by `prune`",
    "weight_standardized": "not followed to its store by `prune`",
}
ALLOWED = ("basis", "depthwise", "embedding", "output", "small", "stem", "tied-embedding")


@pytest.mark.parametrize("name", NAMES[::8])
def test_a_searched_order_gains(name: str) -> None:
    gains(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_searched_order_gains(name: str) -> None:
    gains(name)


def gains(name: str) -> None:
    """Without the proof of the command, so that nothing is rolled back."""
    pytest.importorskip("scipy")
    trap = traps.build(name)
    permuted = osp.permute(trap.model, allow=ALLOWED, unproven=True).model
    assert permuted is not None
    assert not judge.judge(trap.model, permuted, trap.feeds, trap.reductions)
    moved = judge.moved(trap.model, permuted, trap.reductions)
    assert not moved & {*trap.must_stay}
    left: set[str] = set() if name in NOT_SEARCHED else {*trap.must_move} - moved
    assert not left - {*NOT_MOVED.get(name, "").split()}
    gained = judge.kept(permuted, trap.reductions) > judge.kept(trap.model, trap.reductions)
    assert gained or not {*trap.must_move} & moved


def reordered_alone(trap: Trap, name: str) -> ModelProto:
    """The model with one weight rolled along its reduction axis, and nothing else."""
    made = ModelProto()
    made.CopyFrom(trap.model)
    tensor, reduction = judge.tensors(made)[name], trap.reductions[name]
    values = np.roll(judge.array(tensor), 1, reduction.axis)
    kept_type = tensor.data_type
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), tensor.name))
    assert tensor.data_type == kept_type
    return made


@pytest.mark.parametrize("name", NAMES)
def test_a_weight_reordered_alone_is_seen(name: str) -> None:
    trap = traps.build(name)
    assert not judge.judge(trap.model, trap.model, trap.feeds, trap.reductions)
    for weight in (*trap.must_move, *trap.must_stay):
        wrong = reordered_alone(trap, weight)
        assert judge.changed_outputs(trap.model, wrong, trap.feeds, exact=False), f"nothing depends on {weight}"
        assert judge.moved(trap.model, wrong, {weight: trap.reductions[weight]}) == {weight}


def test_the_judge_sees_other_numbers_names_and_nodes() -> None:
    trap = traps.build("residual_adds")
    for change in (_other_number, _other_name, _other_node, _other_type):
        made = ModelProto()
        made.CopyFrom(trap.model)
        change(made)
        assert judge.judge(trap.model, made, trap.feeds), change.__name__


def _other_number(model: ModelProto) -> None:
    values = numpy_helper.to_array(model.graph.initializer[0]).copy()
    values.flat[0] += 1e-6
    model.graph.initializer[0].raw_data = values.tobytes()


def _other_name(model: ModelProto) -> None:
    model.graph.initializer[0].name += "_"


def _other_node(model: ModelProto) -> None:
    model.graph.node[0].name += "_"


def _other_type(model: ModelProto) -> None:
    model.graph.initializer[0].data_type = TensorProto.INT32


def test_the_judge_counts_what_2_of_4_keeps() -> None:
    reduction = Reduction(1)
    rows = np.array([[1.0, 2.0, 3.0, 4.0, 5.0], [0.0, -8.0, 0.0, 1.0, 0.5]])
    assert judge.kept_of_rows(reduction.rows(rows)) == 3 + 4 + 5 + 8 + 1 + 0.5
    assert reduction.rows(np.zeros((3, 8, 2, 2))).shape == (12, 8)
    assert Reduction(0, splits=2).rows(np.zeros((8, 3, 1, 1))).shape == (6, 4)


def test_our_own_metadata_may_differ() -> None:
    trap = traps.build("residual_adds")
    made = ModelProto()
    made.CopyFrom(trap.model)
    made.metadata_props.add(key="onnxsparse.permutation", value="{}")
    assert not judge.judge(trap.model, made, trap.feeds)
    made.metadata_props.add(key="author", value="x")
    assert judge.judge(trap.model, made, trap.feeds)
