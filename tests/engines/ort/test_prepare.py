"""Any exported model becomes a graph to train that does the same: one small graph for each rule."""

from __future__ import annotations

import inspect

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.helper import make_function, make_graph, make_node, make_opsetid

from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.draft import Draft, Preparation, Samples
from onnxsparse.engines.ort.library import Runner
from onnxsparse.engines.ort.prepare import ONE_FORM, PREPARATIONS, TO_RUN, prepare
from onnxsparse.errors import ModelError, OptionError
from tests.engines.ort.build import (
    BOOL,
    DOUBLE,
    FEED,
    HALF,
    INT64,
    W,
    X,
    constant,
    info,
    model,
    numbers,
    operators,
    ready,
    stored_in,
    tensor,
)  # fmt: skip
from tests.messages import refusing

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")


# -- stored tensors


def test_weights_in_constant_nodes_become_initializers_under_their_name() -> None:
    made = ready(
        model([constant(W, "w", "t0"), make_node("MatMul", ["x", "w"], ["y"])], [X], [info("y", ["N", 5])]), FEED
    )
    assert made.weights == {"w": "t0"}
    assert np.array_equal(stored_in(made)["w"], W)
    assert made.batch == 4
    assert made.inputs == [("x", np.dtype(np.float32), (4, 6))]
    assert [(one.name, one.original, one.kind) for one in made.signals] == [("y", "y", "output")]


def test_chains_of_identities_lead_to_the_stored_tensor() -> None:
    nodes = [make_node("Identity", [f"w{i}"], [f"w{i + 1}"]) for i in range(5)]
    nodes.append(make_node("MatMul", ["x", "w5"], ["y"]))
    made = ready(model(nodes, [X], [info("y", ["N", 5])], [tensor(W, "w0", "t0")]), FEED)
    assert made.weights == {"w0": "t0"}
    assert operators(made) == ["MatMul"]


def test_initializers_that_are_listed_as_inputs_are_not_fed() -> None:
    made = ready(
        model(
            [make_node("MatMul", ["x", "w"], ["y"])], [X, info("w", [6, 5])], [info("y", None)], [tensor(W, "w", "t0")]
        ),
        FEED,
    )
    assert [name for name, _, _ in made.inputs] == ["x"]


def test_trained_weights_are_not_fused_with_what_follows_them() -> None:
    nodes = [
        make_node("Conv", ["x", "w"], ["a"]),
        make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["c"]),
        make_node("Mul", ["c", "k"], ["y"]),
    ]
    kernel = numbers(4, 3, 1, 1)
    four = [tensor(np.abs(numbers(4, seed=seed)) + 1, name) for seed, name in enumerate("sbmv")]
    proto = model(
        nodes,
        [info("x", [1, 3, 5, 5])],
        [info("y", None)],
        [tensor(kernel, "w", "t0"), *four, tensor(np.full((4, 1, 1), 2, np.float32), "k")],
    )
    made = ready(proto, {"x": numbers(8, 3, 5, 5)})
    assert np.array_equal(stored_in(made)["w"], kernel)
    assert made.batch == 4


def test_constant_arithmetic_without_weights_is_folded_and_with_weights_is_not() -> None:
    nodes = [
        make_node("Add", ["a", "a"], ["b"]),
        make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        make_node("MatMul", ["x", "wt"], ["c"]),
        make_node("Add", ["c", "b"], ["y"]),
    ]
    proto = model(nodes, [X], [info("y", None)], [tensor(W.T.copy(), "w", "t0"), tensor(numbers(5), "a")])
    made = ready(proto, FEED)
    assert np.array_equal(stored_in(made)["w"], W.T)
    assert sum(np.array_equal(one, 2 * numbers(5)) for one in stored_in(made).values()) == 1
    assert "w" in made.weights


def test_constants_are_folded_without_the_runtime_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        make_node("Shape", ["x"], ["s"]),
        make_node("Gather", ["s", "zero"], ["n"]),
        make_node("Concat", ["n", "rest"], ["sizes"], axis=0),
        make_node("Reshape", ["x", "sizes"], ["r"]),
        make_node("Add", ["a", "a"], ["b"]),
        make_node("MatMul", ["r", "w"], ["c"]),
        make_node("Add", ["c", "b"], ["y"]),
    ]
    stored = [tensor(numbers(3, 5), "w", "t0"), tensor(numbers(5), "a")]
    stored += [tensor(np.array([0]), "zero"), tensor(np.array([2, 3]), "rest")]
    monkeypatch.setattr("onnxsparse.engines.ort.canonical._by_runtime", lambda draft: None)
    made = ready(model(nodes, [X], [info("y", None)], stored), FEED)
    assert operators(made) == ["Reshape", "MatMul", "Add"]
    assert made.weights == {"w": "t0"}


# -- taps


def test_outputs_that_end_in_a_sigmoid_are_tapped_before_it() -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["logits"]),
        make_node("Sigmoid", ["logits"], ["p"]),
        make_node("Reshape", ["p", "shape"], ["y"]),
    ]
    stored = [tensor(W, "w", "t0"), tensor(np.array([-1, 5, 1]), "shape")]
    made = ready(model(nodes, [X], [info("y", None)], stored), FEED)
    assert [(one.name, one.original, one.kind) for one in made.signals] == [
        ("y", "y", "output"),
        ("logits", "y", "tap"),
    ]


def test_whole_number_outputs_are_dropped_for_the_floats_before_them() -> None:
    nodes = [make_node("MatMul", ["x", "w"], ["logits"]), make_node("ArgMax", ["logits"], ["y"], axis=1, keepdims=0)]
    made = ready(model(nodes, [X], [info("y", ["N"], INT64)], [tensor(W, "w", "t0")]), FEED)
    assert [(one.name, one.original, one.kind) for one in made.signals] == [("logits", "y", "tap")]
    assert operators(made) == ["MatMul"]


def test_taps() -> None:
    nodes = [
        make_node("Split", ["x"], ["a", "b"], axis=1),
        make_node("MatMul", ["a", "w"], ["m"]),
        make_node("MatMul", ["b", "w"], ["n"]),
        make_node("Softmax", ["m"], ["p"]),
        make_node("Concat", ["p", "n"], ["y"], axis=1),
    ]
    made = ready(model(nodes, [X], [info("y", None)], [tensor(W[:3], "w", "t0")], opset=13), FEED)
    assert [one.name for one in made.signals] == ["y", "m"]


# -- the batch


def test_a_batch_in_the_shape_of_a_reshape_is_taken_out() -> None:
    nodes = [make_node("Reshape", ["x", "shape"], ["f"]), make_node("MatMul", ["f", "w"], ["y"])]
    stored = [tensor(W, "w", "t0"), tensor(np.array([1, 6]), "shape")]
    made = ready(model(nodes, [info("x", [1, 2, 3])], [info("y", [1, 5])], stored), {"x": numbers(8, 2, 3)})
    assert made.batch == 4
    assert made.inputs[0][2] == (4, 2, 3)


def test_a_batch_in_sizes_and_in_joined_constants_is_taken_out() -> None:
    nodes = [
        make_node("Resize", ["x", "", "", "sizes"], ["r"], mode="nearest"),
        make_node("Concat", ["first", "r"], ["j"], axis=2),
        make_node("MatMul", ["j", "w"], ["y"]),
    ]
    stored = [tensor(W, "w", "t0"), tensor(np.array([1, 1, 4, 6]), "sizes"), tensor(numbers(1, 1, 1, 6), "first", "t1")]
    made = ready(
        model(nodes, [info("x", [1, 1, 2, 6])], [info("y", None)], stored),
        {"x": numbers(8, 1, 2, 6)},
        tags=("t0", "t1"),
    )
    assert made.batch == 4
    assert set(made.weights) == {"w", "first"}


def test_a_batch_is_found_behind_transposes_and_heads() -> None:
    """Attention as it is written with time first: samples joined with time steps, then with heads."""
    nodes = [
        make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),  # time, sample, feature
        make_node("Reshape", ["t", "rows"], ["r"]),  # time and sample, feature
        make_node("MatMul", ["r", "w"], ["m"]),
        make_node("Reshape", ["m", "heads"], ["h"]),  # time, sample and head, feature
        make_node("Transpose", ["h"], ["g"], perm=[1, 0, 2]),
        make_node("Transpose", ["h"], ["k"], perm=[1, 2, 0]),
        make_node("MatMul", ["g", "k"], ["scores"]),  # sample and head, time, time
        make_node("Softmax", ["scores"], ["p"], axis=-1),
        make_node("Reshape", ["p", "apart"], ["y"]),  # sample, head, time, time
    ]
    shapes = {"rows": [7, 6], "heads": [7, 3, 2], "apart": [1, 3, 7, 7]}
    stored = [tensor(numbers(6, 6), "w", "t0"), *(tensor(np.array(sizes), name) for name, sizes in shapes.items())]
    made = ready(model(nodes, [info("x", [1, 7, 6])], [info("y", None)], stored), {"x": numbers(8, 7, 6)})
    assert made.batch == 4


def test_samples_that_are_mixed_without_a_word_are_noticed() -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("ReduceMean", ["a"], ["m"], axes=[0], keepdims=1),
        make_node("Sub", ["a", "m"], ["b"]),
        make_node("Add", ["b", "x"], ["y"]),
    ]
    made = ready(model(nodes, [X], [info("y", None)], [tensor(numbers(6, 6), "w", "t0")]), FEED)
    assert made.batch == 1
    assert any("one sample at a time" in note and "differs" in note for note in made.notes)


def test_samples_that_are_mixed_before_a_whole_number_are_noticed() -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("ReduceMean", ["a"], ["m"], axes=[0], keepdims=1),
        make_node("Sub", ["a", "m"], ["b"]),
        make_node("Add", ["b", "x"], ["c"]),
        make_node("ArgMax", ["c"], ["y"], axis=1),
    ]
    made = ready(model(nodes, [X], [info("y", None, INT64)], [tensor(numbers(6, 6), "w", "t0")]), FEED)
    assert made.batch == 1


def test_a_file_that_takes_several_samples_at_once() -> None:
    proto = model(
        [make_node("MatMul", ["x", "w"], ["y"])], [info("x", [2, 6])], [info("y", None)], [tensor(W, "w", "t0")]
    )
    made = ready(proto, FEED)
    assert (made.batch, made.inputs[0][2]) == (4, (4, 6))


def test_samples_of_exactly_the_declared_shape_are_one_batch() -> None:
    proto = model(
        [make_node("MatMul", ["x", "w"], ["y"])], [info("x", [8, 6])], [info("y", None)], [tensor(W, "w", "t0")]
    )
    made = ready(proto, FEED)
    assert (made.batch, made.inputs[0][2]) == (8, (8, 6))
    assert any("8 samples at a time" in note for note in made.notes)


def test_too_few_samples_for_an_input_are_refused() -> None:
    proto = model([make_node("MatMul", ["x", "w"], ["y"])], [X], [info("y", None)], [tensor(W, "w", "t0")])
    with refusing(OptionError):
        prepare(proto, {"t0"}, {}, 4)


def test_the_runner_says_why_a_graph_does_not_load() -> None:
    with refusing(ModelError):
        Runner(model([make_node("Nothing", ["x"], ["y"])], [X], [info("y", None)]))


# -- functions, branches


def test_functions_are_inlined_and_a_constant_of_theirs_stays_one_tensor() -> None:
    body = [
        make_node("Constant", [], ["w"], value=tensor(numbers(6, 6), "", "t0")),
        make_node("MatMul", ["a", "w"], ["b"]),
    ]
    layer = make_function("local", "Layer", ["a"], ["b"], body, [make_opsetid("", 17)])
    nodes = [
        make_node("Layer", ["x"], ["m"], domain="local"),
        make_node("Tanh", ["m"], ["n"]),
        make_node("Layer", ["n"], ["y"], domain="local"),
    ]
    made = ready(model(nodes, [X], [info("y", None)], functions=[layer], extra=["local"]), FEED)
    assert list(made.weights.values()) == ["t0"]
    assert operators(made) == ["MatMul", "Tanh", "MatMul"]


def branch(name: str, tag: str, scale: float, op: str = "MatMul") -> onnx.GraphProto:
    """A body whose tensors have the names they have in its twin."""
    nodes = [constant(scale * W, "w", tag), make_node(op, ["x", "w"], ["m"]), make_node("Relu", ["m"], ["out"])]
    return make_graph(nodes, name, [], [info("out", None)])


def choice(condition: str, output: str, one: onnx.GraphProto, other: onnx.GraphProto) -> onnx.NodeProto:
    return make_node("If", [condition], [output], then_branch=one, else_branch=other)


def test_the_branch_that_all_samples_take_is_inlined() -> None:
    nodes = [
        constant(np.array(16000), "wanted"),
        make_node("Equal", ["rate", "wanted"], ["c"]),
        choice("c", "y", branch("one", "t0", 1.0), branch("other", "t1", 2.0)),
    ]
    proto = model(nodes, [X, info("rate", [], INT64)], [info("y", None)])
    made = ready(proto, {**FEED, "rate": np.array(16000)}, tags=("t0", "t1"))
    assert list(made.weights.values()) == ["t0"]
    assert np.array_equal(stored_in(made)[next(iter(made.weights))], W)
    assert "in a branch that none of the samples looked at takes" in made.unreached["t1"]
    assert [name for name, _, _ in made.inputs] == ["x"]
    assert any("'rate' is 16000" in note for note in made.notes)


def test_branches_in_branches_are_inlined() -> None:
    inner = choice("d", "out2", branch("c", "t0", 1.0), branch("d", "t1", 2.0))
    outer = make_graph([make_node("Not", ["c"], ["d"]), inner], "outer", [], [info("out2", None)])
    nodes = [
        make_node("ReduceSum", ["one"], ["s"], keepdims=0),
        make_node("Cast", ["s"], ["c"], to=BOOL),
        choice("c", "y", outer, branch("e", "t2", 3.0)),
    ]
    made = ready(
        model(nodes, [X], [info("y", None)], [tensor(np.ones(3, np.float32), "one")]), FEED, tags=("t0", "t1", "t2")
    )
    assert list(made.weights.values()) == ["t1"]


def test_a_branch_that_the_batch_decides_is_taken_at_the_batch() -> None:
    nodes = [
        make_node("Shape", ["x"], ["s"], end=1),
        make_node("Squeeze", ["s"], ["n"]),
        constant(np.array(1), "one"),
        make_node("Greater", ["n", "one"], ["c"]),
        choice("c", "y", branch("one", "t0", 1.0), branch("other", "t1", 1.0)),
    ]
    made = ready(model(nodes, [X], [info("y", None)]), FEED, tags=("t0", "t1"))
    assert (made.batch, list(made.weights.values())) == (4, ["t0"])


# -- precision


@pytest.mark.parametrize(("kind", "dtype"), [(HALF, np.float16), (DOUBLE, np.float64)])
def test_other_precisions_become_single(kind: int, dtype: type) -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["m"]),
        make_node("Cast", ["m"], ["f"], to=TensorProto.FLOAT),
        make_node("Cast", ["f"], ["h"], to=kind),
        make_node("Shape", ["h"], ["s"]),
        make_node("ConstantOfShape", ["s"], ["ones"], value=numpy_helper.from_array(np.ones(1, dtype))),
        make_node("Add", ["h", "ones"], ["y"]),
    ]
    proto = model(nodes, [info("x", ["N", 6], kind)], [info("y", None, kind)], [tensor(W.astype(dtype), "w", "t0")])
    made = ready(proto, {"x": FEED["x"].astype(dtype)})
    assert stored_in(made)["w"].dtype == np.float32
    assert np.array_equal(stored_in(made)["w"], W.astype(dtype).astype(np.float32))
    assert made.inputs[0][1] == np.float32
    assert any("precision" in note for note in made.notes)


def test_a_double_beyond_single_stays_finite() -> None:
    lowest = np.array([np.finfo(np.float64).min, -np.inf, 1.0])
    nodes = [make_node("MatMul", ["x", "w"], ["m"]), make_node("Max", ["m", "low"], ["y"])]
    proto = model(
        nodes,
        [info("x", ["N", 6], DOUBLE)],
        [info("y", None, DOUBLE)],
        [tensor(W[:, :3].astype(np.float64), "w", "t0"), tensor(lowest, "low")],
    )
    made = ready(proto, {"x": FEED["x"].astype(np.float64)})
    assert np.array_equal(stored_in(made)["low"], np.array([np.finfo(np.float32).min, -np.inf, 1], np.float32))


# -- operator sets


def test_an_old_operator_set_is_converted() -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["m"]),
        make_node("Unsqueeze", ["m"], ["u"], axes=[1]),
        make_node("ReduceSum", ["u"], ["r"], axes=[1], keepdims=0),
        make_node("Softmax", ["r"], ["y"], axis=1),
    ]
    made = ready(model(nodes, [X], [info("y", None)], [tensor(W, "w", "t0")], opset=11, ir=6), FEED)
    assert made.model.opset_import[0].version == 13
    assert any("operator set 11" in note for note in made.notes)
    assert made.weights == {"w": "t0"}


def test_an_operator_set_with_named_broadcast_axes_is_converted() -> None:
    nodes = [
        make_node("Conv", ["x", "w"], ["c"]),
        make_node("Add", ["c", "b"], ["d"], broadcast=1, axis=1),
        make_node("Relu", ["d"], ["y"]),
    ]
    kernel, bias = numbers(3, 2, 1, 1), numbers(3, seed=1)
    given = [info("x", ["N", 2, 4, 3]), info("w", [3, 2, 1, 1]), info("b", [3])]
    proto = model(nodes, given, [info("y", None)], [tensor(kernel, "w", "t0"), tensor(bias, "b")], opset=6, ir=3)
    feed = {"x": numbers(8, 2, 4, 3)}
    made = ready(proto, feed)
    summed = np.einsum("nchw,kc->nkhw", feed["x"][:4], kernel[:, :, 0, 0]) + bias[:, None, None]
    assert np.allclose(Runner(made.model)({"x": feed["x"][:4]})["y"], np.maximum(summed, 0), atol=1e-5)


def test_old_upsampling_stays_where_it_was() -> None:
    nodes = [make_node("Conv", ["x", "w"], ["c"]), make_node("Upsample", ["c", "s"], ["y"], mode="linear")]
    stored = [tensor(numbers(3, 2, 1, 1), "w", "t0"), tensor(np.array([1, 1, 2, 2], np.float32), "s")]
    made = ready(
        model(nodes, [info("x", ["N", 2, 4, 3])], [info("y", None)], stored, opset=9), {"x": numbers(8, 2, 4, 3)}
    )
    assert operators(made) == ["Conv", "Resize"]


def test_a_new_operator_set_is_relabelled() -> None:
    nodes = [make_node("Conv", ["x", "w"], ["c"]), make_node("Relu", ["c"], ["y"])]
    proto = model(
        nodes, [info("x", ["N", 2, 4, 4])], [info("y", None)], [tensor(numbers(3, 2, 1, 1), "w", "t0")], opset=23, ir=11
    )
    made = ready(proto, {"x": numbers(8, 2, 4, 4)})
    assert made.model.opset_import[0].version == 21
    assert made.model.ir_version == 10


def test_an_operator_of_a_later_set_is_written_out_in_older_ones() -> None:
    nodes = [
        make_node("RMSNormalization", ["x", "s"], ["n"], axis=-1),
        make_node("MatMul", ["n", "w"], ["c"]),
        make_node("Swish", ["c"], ["y"], alpha=1.5),
    ]
    stored = [tensor(W, "w", "t0"), tensor(np.ones(6, np.float32), "s")]
    made = ready(model(nodes, [X], [info("y", None)], stored, opset=24, ir=11), FEED)
    outputs = Runner(made.model)({"x": FEED["x"][:4]})
    x = FEED["x"][:4]
    m = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) @ W
    assert np.allclose(outputs["y"], m / (1 + np.exp(-1.5 * m)), atol=1e-5)


def test_an_operator_of_a_later_set_that_cannot_be_is_named() -> None:
    nodes = [make_node("MatMul", ["x", "w"], ["c"]), make_node("CumProd", ["c", "axis"], ["y"])]
    stored = [tensor(W, "w", "t0"), tensor(np.array(1), "axis")]
    proto = model(nodes, [X], [info("y", None)], stored, opset=26, ir=11)
    with refusing(ModelError):
        prepare(proto, {"t0"}, FEED, 4)


# -- samples


def test_a_recurrent_model_with_time_first_is_trained_one_sample_at_a_time() -> None:
    w, r = numbers(1, 12, 6), numbers(1, 12, 3, seed=1)
    nodes = [
        make_node("Unsqueeze", ["x", "one"], ["t"]),
        make_node("LSTM", ["t", "w", "r"], ["o", "h"], hidden_size=3),
        make_node("Squeeze", ["o"], ["y"]),
    ]
    stored = [tensor(w, "w", "t0"), tensor(r, "r", "t1"), tensor(np.array([1]), "one")]
    made = ready(model(nodes, [X], [info("y", None)], stored), FEED, tags=("t0", "t1"))
    assert made.batch == 1
    assert set(made.weights) == {"w", "r"}


def test_a_stored_state_for_one_sample_is_repeated() -> None:
    w, r, h = numbers(1, 9, 6), numbers(1, 9, 3, seed=1), numbers(1, 1, 3, seed=2)
    nodes = [
        make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        make_node("GRU", ["t", "w", "r", "", "", "h"], ["o", "e"], hidden_size=3),
        make_node("Transpose", ["e"], ["y"], perm=[1, 0, 2]),
    ]
    stored = [tensor(w, "w", "t0"), tensor(r, "r", "t1"), tensor(h, "h", "t2")]
    made = ready(
        model(nodes, [info("x", [1, 7, 6])], [info("y", None)], stored),
        {"x": numbers(8, 7, 6)},
        tags=("t0", "t1", "t2"),
    )
    assert made.batch == 4
    assert set(made.weights) == {"w", "r", "h"}


def test_a_state_that_is_fed_is_shared_by_the_samples() -> None:
    nodes = [make_node("MatMul", ["x", "w"], ["m"]), make_node("Add", ["m", "state"], ["y"])]
    proto = model(nodes, [X, info("state", [2, 1, 5])], [info("y", None)], [tensor(W, "w", "t0")])
    made = ready(proto, {**FEED, "state": numbers(2, 1, 5)})
    assert {name: shape for name, _, shape in made.inputs}["state"] == (2, 1, 5)


def test_whole_numbers_that_differ_between_samples_stay_inputs() -> None:
    nodes = [make_node("Gather", ["w", "ids"], ["y"])]
    proto = model(nodes, [info("ids", ["N", 3], INT64)], [info("y", None)], [tensor(W, "w", "t0")])
    made = ready(proto, {"ids": np.arange(24).reshape(8, 3) % 6})
    assert made.inputs == [("ids", np.dtype(np.int64), (4, 3))]


# -- what is not reached


def test_a_weight_that_no_output_depends_on_has_a_reason() -> None:
    nodes = [make_node("MatMul", ["x", "w"], ["y"]), make_node("MatMul", ["x", "v"], ["z"])]
    proto = model(nodes, [X], [info("y", None)], [tensor(W, "w", "t0"), tensor(W, "v", "t1")])
    made = ready(proto, FEED, tags=("t0", "t1", "t2"))
    assert made.unreached == {"t1": "no output depends on it", "t2": "it is not stored as a tensor of its own"}


def test_the_given_weights_are_not_changed() -> None:
    proto = model([make_node("MatMul", ["x", "w"], ["y"])], [X], [info("y", None)], [tensor(W, "w", "t0")])
    blob = ModelProto.FromString(proto.SerializeToString())
    made = ready(proto, FEED)
    assert np.array_equal(stored_in(made)["w"], numpy_helper.to_array(blob.graph.initializer[0]))


# -- the list of preparations


@pytest.mark.parametrize("preparation", sorted(set(PREPARATIONS), key=lambda one: one.__name__))
def test_every_preparation_has_one_signature_and_says_why_it_is_there(preparation: Preparation) -> None:
    assert list(inspect.signature(preparation).parameters) == ["draft"]
    assert inspect.signature(preparation).return_annotation == "None"
    assert preparation.__doc__


def test_preparations_leave_what_needs_none_alone() -> None:
    proto = model([make_node("MatMul", ["x", "w"], ["y"])], [X], [info("y", ["N", 5])], [tensor(W, "w", "t0")])
    before = proto.SerializeToString()
    draft = Draft(proto, Samples(proto.graph, FEED), frozenset({"t0"}))
    for preparation in (*TO_RUN, *ONE_FORM):
        preparation(draft)
    assert draft.model.SerializeToString() == before
    assert draft.tags == {"w": "t0"}
    assert draft.notes == []
