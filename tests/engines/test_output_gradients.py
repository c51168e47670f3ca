"""Gradients of random projections of the outputs with respect to inner values: what they are, and in which engine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import GraphProto, TensorProto, numpy_helper
from onnx.helper import make_graph, make_node, make_tensor_value_info

from onnxsparse.calibration import feed_pieces
from onnxsparse.calibration.feed_pieces import in_pieces
from onnxsparse.calibration.output_gradients import output_gradients
from onnxsparse.engines.light_model import LightModel
from onnxsparse.engines.ort import differentiation, library
from onnxsparse.engines.ort import output_gradients as in_ort
from onnxsparse.engines.random_projection import targets_of
from onnxsparse.engines.torch import library as torch_library
from onnxsparse.errors import MissingExtraError, ModelError, OptionError
from onnxsparse.math.values import Array
from tests.cases import for_each
from tests.engines.differentiated_nets import NETS, Net, demand_slopes, dense, images, looping, net, rounded
from tests.engines.small_nets import numbers
from tests.messages import refusing

trains = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")


@trains
@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
def test_gradients_are_those_of_the_projection(make: Callable[[], Net]) -> None:
    demand_slopes(make(), "ort")


def two_outputs() -> Net:
    """Linear, with outputs of different sizes and units."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("MatMul", ["a", "v"], ["small"]),
        make_node("MatMul", ["a", "u"], ["large"]),
    ]
    stored = {"w": numbers(6, 5, seed=1), "v": numbers(5, 3, seed=2) / 50, "u": numbers(5, 40, seed=3) * 100}
    return net(nodes, stored, (6,), {"small": ["N", 3], "large": ["N", 40]}, ["a"])


@trains
def test_the_mean_square_is_that_of_the_outputs_in_units_of_their_variance() -> None:
    """For a linear net it can be written down: each output counts alike, whatever its size and its unit."""
    own = two_outputs()
    feeds, stored = own.feeds(16, 16), {one.name: one for one in own.proto.graph.initializer}
    gradients = output_gradients(own.proto, ["a"], feeds, draws=400)
    found = np.mean([(one["a"] ** 2).mean(0) for one in gradients], 0)
    w, v, u = (numpy_helper.to_array(stored[name]).astype(np.float64) for name in "wvu")
    a = np.concatenate([feed["x"] for feed in feeds]) @ w
    parts = [(matrix**2).sum(1) / (matrix.shape[1] * (a @ matrix).var()) for matrix in (v, u)]
    np.testing.assert_allclose(found, np.mean(parts, 0), rtol=0.1)


def test_what_is_projected_stands_before_softmax_and_its_like() -> None:
    assert targets_of(LightModel(images().proto)) == ["logits", "map"]
    assert targets_of(LightModel(dense("Sigmoid").proto)) == ["c"]
    assert targets_of(LightModel(dense("Neg").proto)) == ["y"]
    assert targets_of(LightModel(half_squashed().proto)) == ["c", "y"]
    assert targets_of(LightModel(picked().proto)) == ["c"]


def half_squashed() -> Net:
    """Shares and numbers in one output, as detectors have them."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("MatMul", ["x", "v"], ["c"]),
        make_node("Sigmoid", ["c"], ["shares"]),
        make_node("Concat", ["a", "shares"], ["y"], axis=1),
    ]
    return net(nodes, {"w": numbers(6, 2), "v": numbers(6, 3)}, (6,), {"y": ["N", 5]}, ["a", "c"])


def picked() -> Net:
    """The number of a class, and nothing else."""
    own = dense("Neg")
    own.proto.graph.node[-1].CopyFrom(make_node("ArgMax", ["c"], ["y"], axis=1, keepdims=0))
    own.proto.graph.output[0].CopyFrom(make_tensor_value_info("y", TensorProto.INT64, ["N"]))
    return own


@trains
def test_samples_that_depend_on_each_other_get_a_graph_for_each_size() -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("ReduceMean", ["a"], ["mean"], axes=[0]),
        make_node("Sub", ["a", "mean"], ["centered"]),
        make_node("Tanh", ["centered"], ["b"]),
        make_node("MatMul", ["b", "v"], ["y"]),
    ]
    stored = {"w": numbers(6, 5, seed=1), "v": numbers(5, 3, seed=2)}
    demand_slopes(net(nodes, stored, (6,), {"y": ["N", 3]}, ["a", "y"]), "ort")


@trains
def test_samples_along_another_axis() -> None:
    """Steps first: a batch of fewer samples is filled up along the second axis."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("Tanh", ["a"], ["b"]),
        make_node("MatMul", ["b", "v"], ["y"]),
    ]
    own = net(nodes, {"w": numbers(6, 5), "v": numbers(5, 3)}, (4, 6), {"y": ["N", 4, 3]}, ["a"])
    turned = [{"x": np.ascontiguousarray(feed["x"].swapaxes(0, 1))} for feed in own.feeds(5, 2)]
    for dims in (own.proto.graph.input[0].type, own.proto.graph.output[0].type):
        for dim in dims.tensor_type.shape.dim[:2]:
            dim.ClearField("value")
            dim.dim_param = "free"
    found = list(output_gradients(own.proto, ["a"], turned, draws=1, axes={"x": 1}))
    assert [one["a"].shape for one in found] == [(4, 5, 5), (4, 2, 5)]
    assert all(one["a"].any(axis=(0, 2)).all() for one in found)


@trains
def test_rounding_is_passed_by_and_stored_whole_numbers_are_floats() -> None:
    gradients = output_gradients(rounded().proto, ["a", "y"], rounded().feeds(4, 4))
    assert gradients.engine == "ort"
    assert not gradients.unreached
    assert any("not rounded" in note for note in gradients.notes)
    assert all(found["a"].any() for found in gradients)


@trains
def test_half_precision_has_the_gradients_of_single_precision() -> None:
    half, single = dense(kind=TensorProto.FLOAT16), dense()
    feeds = half.feeds(4)
    found = next(iter(output_gradients(half.proto, ["a"], feeds, draws=1)))["a"]
    exact = next(iter(output_gradients(single.proto, ["a"], [{"x": feeds[0]["x"].astype(np.float32)}], draws=1)))["a"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact, atol=5e-3 * abs(exact).max())


@trains
def test_values_without_a_gradient_have_a_reason() -> None:
    own = stepped()
    gradients = output_gradients(own.proto, own.names, own.feeds(4))
    assert set(gradients.unreached) == {"unused", "stepped", "places", "stored"}
    assert [sorted(found) for found in gradients] == [["a"], ["a"]]
    assert gradients.unreached["unused"] == "no output depends on it"
    assert "whole numbers or steps" in gradients.unreached["stepped"]
    assert gradients.unreached["stored"] == "no input changes it"
    assert gradients.unreached["places"] == "it is of type tensor(int64)"


def stepped() -> Net:
    """Values that an output depends on, that a choice depends on, that nothing does, and that no input changes."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("MatMul", ["x", "v"], ["stepped"]),
        make_node("MatMul", ["x", "v"], ["unused"]),
        make_node("ArgMax", ["stepped"], ["places"], axis=1, keepdims=0),
        make_node("Gather", ["table", "places"], ["row"]),
        make_node("MatMul", ["one", "table"], ["stored"]),
        make_node("Add", ["row", "stored"], ["b"]),
        make_node("Add", ["a", "b"], ["y"]),
    ]
    stored = {"w": numbers(6, 3), "v": numbers(6, 4), "table": numbers(4, 3), "one": numbers(1, 4)}
    return net(nodes, stored, (6,), {"y": ["N", 3]}, ["a", "stepped", "unused", "places", "stored"])


@trains
def test_a_model_of_whole_numbers_has_no_gradients() -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("DynamicQuantizeLinear", ["a"], ["q", "scale", "zero"]),
        make_node("MatMulInteger", ["q", "v", "zero"], ["sums"]),
        make_node("Cast", ["sums"], ["floats"], to=TensorProto.FLOAT),
        make_node("Mul", ["floats", "scale"], ["y"]),
    ]
    stored = {"w": numbers(6, 5), "v": (numbers(5, 3) * 40).astype(np.int8)}
    own = net(nodes, stored, (6,), {"y": ["N", 3]}, ["a", "floats"])
    gradients = output_gradients(own.proto, own.names, own.feeds(4))
    assert not list(gradients)
    assert not gradients.engine
    assert set(gradients.unreached) == {"a", "floats"}
    assert "DynamicQuantizeLinear" in gradients.unreached["a"]


def branching() -> Net:
    """One way where the sum of the samples is positive, and another one where it is not."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        make_node("Greater", ["sum", "zero"], ["positive"]),
        make_node("If", ["positive"], ["b"], then_branch=branch("Tanh"), else_branch=branch("Neg")),
        make_node("MatMul", ["b", "v"], ["y"]),
    ]
    stored = {"w": numbers(6, 4, seed=1), "v": numbers(4, 3, seed=2), "zero": np.array(0, np.float32)}
    return net(nodes, stored, (6,), {"y": ["N", 3]}, ["a", "y"])


def branch(operator: str) -> GraphProto:
    nodes = [make_node(operator, ["a"], [f"{operator}_of_a"])]
    return make_graph(nodes, operator, [], [make_tensor_value_info(f"{operator}_of_a", TensorProto.FLOAT, ["N", 4])])


def sequences_in_a_body() -> Net:
    """An LSTM whose large weights the main graph stores, and which stands in the branches of an If."""

    def body(name: str) -> GraphProto:
        last = make_tensor_value_info(f"last of {name}", TensorProto.FLOAT, [1, "N", 32])
        layer = make_node("LSTM", ["steps", "W", "R"], ["", last.name], hidden_size=32)
        return make_graph([layer], name, [], [last])

    nodes = [
        make_node("MatMul", ["x", "w"], ["before"]),
        make_node("Transpose", ["before"], ["steps"], perm=[1, 0, 2]),
        make_node("Size", ["x"], ["size"]),
        make_node("Greater", ["size", "none"], ["some"]),
        make_node("If", ["some"], ["last"], then_branch=body("one"), else_branch=body("other")),
        make_node("Squeeze", ["last", "first"], ["state"]),
        make_node("MatMul", ["state", "v"], ["y"]),
    ]
    stored = {
        "w": numbers(3, 32, seed=1) / 2,
        "W": numbers(1, 128, 32, seed=2) / 4,
        "R": numbers(1, 128, 32, seed=3) / 4,
        "first": np.array([0]),
        "none": np.array(0),
        "v": numbers(32, 3, seed=5),
    }
    return net(nodes, stored, (6, 3), {"y": ["N", 3]}, ["before", "y"])


@trains
def test_gradients_get_past_a_recurrent_layer_in_a_body() -> None:
    demand_slopes(sequences_in_a_body(), "ort")


@trains
def test_samples_that_take_another_way_are_an_error_in_a_graph_of_one_way() -> None:
    own = branching()
    feeds = [{"x": abs(feed["x"]) * sign} for feed, sign in zip(own.feeds(4, 4, 4), (1, 1, -1))]
    found = iter(output_gradients(own.proto, own.names, feeds, engine="ort", draws=1))
    assert sorted(next(found)) == sorted(next(found)) == ["a", "y"]
    with refusing(ModelError):
        next(found)


@trains
def test_a_layer_that_is_cut_off_by_a_relu_has_gradients_of_zero() -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("Relu", ["a"], ["r"]),
        make_node("Add", ["r", "b"], ["y"]),
    ]
    own = net(nodes, {"w": np.zeros((6, 5), np.float32), "b": numbers(5)}, (6,), {"y": ["N", 5]}, ["a"])
    for found in output_gradients(own.proto, own.names, own.feeds(4), engine="ort"):
        assert not found["a"].any()


@trains
def test_the_same_seed_gives_the_same_bytes() -> None:
    own = dense()
    one, other = (output_gradients(own.proto, ["a"], own.feeds(4, 2), "ort", seed=seed) for seed in (1, 2))
    drawn = [[found["a"].tobytes() for found in gradients] for gradients in (one, one, other)]
    assert drawn[0] == drawn[1]
    assert len({*drawn[0], *drawn[2]}) == 8


@trains
def test_the_graph_is_refused_where_no_gradient_passes_or_the_engine_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    own = looping()
    with refusing(ModelError):
        output_gradients(own.proto, own.names, own.feeds(4), engine="ort")
    model, feed, factors = dense().proto, dense().feed(4, 0), {"c": numbers(4, 4)}
    exact = slopes_by_hand(feed["x"], factors["c"])
    differentiation.demand_agreement(model, feed, factors, {"a": exact})
    with refusing(ModelError):
        differentiation.demand_agreement(model, feed, factors, {"a": exact * 1.3})
    monkeypatch.setattr(in_ort, "run_worker", lambda *words: -11)
    with refusing(ModelError):
        output_gradients(dense().proto, ["a"], dense().feeds(4), engine="ort")


def slopes_by_hand(x: Array, factors: Array) -> Array:
    """The gradient of `dense` with respect to its first layer."""
    w1, w2 = (numpy_helper.to_array(one) for one in dense().proto.graph.initializer)
    a = x @ w1
    return (factors @ w2.T) * (1 - np.tanh(a * a) ** 2) * 2 * a


@for_each(("engine", "installed"), [("auto", ()), ("ort", ("torch",)), ("torch", ("ort",))])
def test_an_engine_that_is_not_there_is_named(engine: str, installed: tuple[str, ...]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "available", lambda: "ort" in installed)
        patch.setattr(torch_library, "available", lambda: "torch" in installed)
        with refusing(MissingExtraError):
            output_gradients(dense().proto, ["a"], dense().feeds(4), engine=engine)


def test_words_without_sense() -> None:
    own = dense()
    with refusing(OptionError):
        output_gradients(own.proto, ["a"], own.feeds(4), engine="keras")
    with refusing(OptionError):
        output_gradients(own.proto, ["a"], own.feeds(4), draws=0)
    with refusing(ModelError):
        output_gradients(own.proto, ["aa"], own.feeds(4))


@trains
def test_outputs_that_do_not_vary_are_an_error_or_a_note() -> None:
    own = two_outputs()
    constant = next(one for one in own.proto.graph.initializer if one.name == "v")
    constant.CopyFrom(numpy_helper.from_array(np.zeros((5, 3), np.float32), "v"))
    gradients = output_gradients(own.proto, ["a"], own.feeds(4), engine="ort")
    assert any("'small' is the same for all samples" in note for note in gradients.notes)
    with refusing(ModelError):
        output_gradients(own.proto, ["a"], [{"x": np.zeros((4, 6), np.float32)}])


def test_large_feeds_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    own = images()
    feeds = own.feeds(5, 4)
    assert [len(one["x"]) for one in in_pieces(own.proto, feeds)] == [5, 4]
    monkeypatch.setattr(feed_pieces, "KEPT", 1 << 15)  # what three samples need
    pieces = list(in_pieces(own.proto, feeds))
    assert [len(one["x"]) for one in pieces] == [3, 2, 3, 1]
    np.testing.assert_array_equal(np.concatenate([one["x"] for one in pieces[:2]]), feeds[0]["x"])
    own.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 5
    assert [len(one["x"]) for one in in_pieces(own.proto, feeds[:1])] == [5]
