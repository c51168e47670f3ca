"""Models with an awkward corner train from end to end, or say what is in the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto
from onnx.helper import make_graph, make_node

import onnxsparse as osp
from onnxsparse.engines.ort import library
from onnxsparse.errors import ModelError
from tests.engines.ort.build import BOOL, INT64, info, model, numbers, tensor
from tests.messages import refusing

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")

STORED = [
    tensor(numbers(16, 32, seed=1), "a"),
    tensor(numbers(32, 8, seed=2), "b"),
    tensor(np.array(9, np.float32), "far"),
]
FIRST, LAST = make_node("MatMul", ["x", "a"], ["h"]), make_node("MatMul", ["r", "b"], ["y"])


def net(middle: list[Any], inputs: list[Any] = [], outputs: list[Any] = [], batch: Any = "N") -> ModelProto:  # noqa: B006
    """x @ a -> h -> (middle) -> r @ b -> y"""
    ends = [info("y", None), *outputs]
    return model([FIRST, *middle], [info("x", [batch, 16]), *inputs], ends, STORED)


def tune(proto: ModelProto, count: int = 128, **options: Any) -> Any:
    known: dict[str, Any] = {"pattern": "2:4", "steps": 8, "engine": "ort", "data": {"x": numbers(count, 16)}}
    return osp.finetune(proto, **{**known, **options})


def trained(result: Any) -> bool:
    """Whether it went through all steps, and all that was pruned was trained."""
    assert result.report.ok
    assert result.report.details["steps"] == 8
    return not any("not trained" in note for note in result.report.notes)


def test_an_input_that_only_a_loop_reads() -> None:
    body = make_graph(
        [make_node("Add", ["s", "u"], ["sum"]), make_node("Identity", ["go"], ["on"])],
        "body",
        [info("i", [], INT64), info("go", [], BOOL), info("s", ["N", 32])],
        [info("on", [], BOOL), info("sum", ["N", 32])],
    )
    stored = [tensor(np.int64(3), "trip"), tensor(np.array(True), "true")]
    proto = net([make_node("Loop", ["trip", "true", "h"], ["r"], body=body), LAST], [info("u", ["N", 32])])
    proto.graph.initializer.extend(stored)
    result = tune(proto, data={"x": numbers(128, 16), "u": numbers(128, 32, seed=4)})
    assert trained(result)
    assert any("cut at Loop" in note for note in result.report.notes)


def test_an_output_without_axes() -> None:
    mean = make_node("ReduceMean", ["y"], ["z"], keepdims=0)
    data = {"x": numbers(128, 16)}
    result = tune(net([make_node("Relu", ["h"], ["r"]), LAST, mean], outputs=[info("z", [])]), eval_data=data)
    assert trained(result)
    assert result.report.details["metrics"]["distance:z"] >= 0


@pytest.mark.parametrize("batch", [65, 100])
def test_a_file_of_many_samples_at_a_time(batch: int) -> None:
    assert trained(tune(net([make_node("Relu", ["h"], ["r"]), LAST], batch=batch), count=300))


def branching() -> ModelProto:
    """Then h, else h @ c, by the sum of x."""
    by_data = [make_node("ReduceSum", ["x"], ["s"], keepdims=0), make_node("Greater", ["s", "far"], ["test"])]
    then = make_graph([make_node("Identity", ["h"], ["t"])], "then", [], [info("t", None)])
    other = make_graph([make_node("MatMul", ["h", "c"], ["e"])], "else", [], [info("e", None)])
    proto = net([*by_data, make_node("If", ["test"], ["r"], then_branch=then, else_branch=other), LAST], batch=1)
    proto.graph.initializer.append(tensor(numbers(32, 32, seed=3), "c"))
    return proto


def test_a_branch_that_some_samples_take_is_not_said_to_be_dead() -> None:
    x = np.abs(numbers(2000, 16)) + 1
    x[:20] = 0
    notes = tune(branching(), data={"x": x}, seed=1).report.notes
    assert any("samples looked at take the then branch of If" in note for note in notes)
    assert any("'c' was pruned, but not trained" in note and "none of the samples looked at" in note for note in notes)


def rounded(
    x: str, out: str, scale: str = "scale", again: str = "scale", zero: str = "zero", axis: int = 1
) -> list[Any]:
    return [
        make_node("QuantizeLinear", [x, scale, zero], [f"{out}_whole"], axis=axis),
        make_node("DequantizeLinear", [f"{out}_whole", again, zero], [out], axis=axis),
    ]


SCALES = [tensor(np.float32(0.1), "scale"), tensor(np.float32(0.2), "other"), tensor(np.array(0, np.int8), "zero")]


def quantized(nodes: list[Any], stored: list[Any] = []) -> ModelProto:  # noqa: B006
    return model(nodes, [info("x", ["N", 16])], [info("y", None)], [*STORED, *SCALES, *stored])


def test_activations_that_are_rounded_to_whole_numbers_train() -> None:
    result = tune(
        quantized([*rounded("x", "near"), make_node("MatMul", ["near", "a"], ["h"]), *rounded("h", "r"), LAST])
    )
    assert trained(result)
    assert any("2 values are rounded to whole numbers" in note for note in result.report.notes)
    assert result.report.details["loss"] < result.report.details["loss_without_training"]


def test_weights_that_are_rounded_for_each_output_train() -> None:
    stored = [tensor(np.full(32, 0.03, np.float32), "scales"), tensor(np.zeros(32, np.int8), "zeros")]
    weight = rounded("a", "near", "scales", "scales", "zeros")
    nodes = [*weight, make_node("MatMul", ["x", "near"], ["h"]), make_node("Relu", ["h"], ["r"]), LAST]
    assert trained(tune(quantized(nodes, stored)))


def test_rounding_that_is_not_understood_is_cut_out() -> None:
    result = tune(quantized([FIRST, *rounded("h", "r", again="other"), LAST]))
    assert result.report.ok
    assert any("'a' was pruned, but not trained" in note and "whole numbers" in note for note in result.report.notes)
    assert any("cut at QuantizeLinear" in note for note in result.report.notes)


def test_what_is_clipped_is_what_is_rounded_but_for_half_a_step() -> None:
    from onnxsparse.engines.ort.library import Runner
    from onnxsparse.engines.ort.prepare import prepare

    x = numbers(8, 16) * 8
    proto = model(rounded("x", "y"), [info("x", ["N", 16])], [info("y", None)], SCALES)
    exact = Runner(proto)({"x": x})["y"]
    ones = [*SCALES, tensor(np.ones(16, np.float32), "w", "t0")]
    nodes = [*rounded("x", "near"), make_node("Mul", ["near", "w"], ["y"])]
    proto = model(nodes, [info("x", ["N", 16])], [info("y", None)], ones)
    clipped = Runner(prepare(proto, {"t0"}, {"x": x}, 8).model)({"x": x})["y"]
    assert np.abs(exact - clipped).max() <= 0.0501
    assert np.abs(clipped).max() == np.float32(12.8)


NOISE = [
    [make_node("RandomNormalLike", ["h"], ["noise"], scale=0.3), make_node("Add", ["h", "noise"], ["r"])],
    [make_node("RandomUniform", [], ["noise"], shape=[32], high=0.5), make_node("Add", ["h", "noise"], ["r"])],
    [
        make_node("Sigmoid", ["h"], ["p"]),
        make_node("Bernoulli", ["p"], ["noise"]),
        make_node("Mul", ["h", "noise"], ["r"]),
    ],
    [make_node("Dropout", ["h", "ratio", "on"], ["r"])],
]


@pytest.mark.parametrize("middle", NOISE, ids=lambda nodes: nodes[-2 if len(nodes) > 1 else 0].op_type)
def test_random_numbers_are_the_same_again(middle: list[Any]) -> None:
    proto = net([*middle, LAST])
    proto.graph.initializer.extend([tensor(np.array(0.3, np.float32), "ratio"), tensor(np.array(True), "on")])
    first = tune(proto)
    assert trained(first)
    assert any("they follow from the seed and the samples" in note for note in first.report.notes)
    assert tune(proto).model == first.model
    assert tune(proto, seed=1).model != first.model


def test_random_numbers_are_the_same_when_a_run_is_resumed(tmp_path: Path) -> None:
    proto = net([*NOISE[0], LAST])
    whole = tune(proto, steps=20)

    def stop(told: dict[str, Any]) -> None:
        if told["step"] == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(proto, steps=20, checkpoint=tmp_path / "run", watch=stop)
    resumed = tune(proto, steps=20, checkpoint=tmp_path / "run", resume=True)
    assert any("resumed at step" in note for note in resumed.report.notes)
    assert resumed.model == whole.model


def test_other_samples_have_other_random_numbers() -> None:
    from onnxsparse.engines.ort.numerics import NORMAL, UNIFORM, draw_random

    shapes = {NORMAL + "a": (64, 50), UNIFORM + "b": (64, 50)}
    one, two = (draw_random(shapes, {"x": numbers(4, seed=seed)}, 0) for seed in (1, 2))
    for name in shapes:
        assert not np.array_equal(one[name], two[name])
        assert np.array_equal(one[name], draw_random(shapes, {"x": numbers(4, seed=1)}, 0)[name])
    assert abs(one[NORMAL + "a"].std() - 1) < 0.05
    assert abs(one[UNIFORM + "b"].mean() - 0.5) < 0.02


def test_what_is_drawn_is_what_the_file_would_draw() -> None:
    from onnxsparse.engines.ort.library import Runner
    from onnxsparse.engines.ort.numerics import draw_random, random_as_inputs, random_inputs
    from onnxsparse.engines.ort.prepare import inputs_of

    nodes = [
        make_node("RandomNormal", [], ["n"], shape=[300, 30], mean=2.0, scale=0.5),
        make_node("RandomUniformLike", ["x"], ["u"], low=1.0, high=4.0),
        make_node("Bernoulli", ["x"], ["b"]),
    ]
    ends = [info(name, [300, 30]) for name in ("n", "u", "b")]
    proto = model(nodes, [info("x", [300, 30])], ends)
    x = np.full((300, 30), 0.3, np.float32)
    random_as_inputs(proto)
    shapes = random_inputs({name: shape for name, _, shape in inputs_of(proto)})
    found = Runner(proto)({"x": x, **draw_random(shapes, {"x": x}, 5)})
    assert found["n"].mean() == pytest.approx(2, abs=0.02)
    assert found["n"].std() == pytest.approx(0.5, abs=0.02)
    assert (found["u"].min(), found["u"].max()) == pytest.approx((1, 4), abs=0.02)
    assert found["b"].mean() == pytest.approx(0.3, abs=0.02)
    assert set(found["b"].reshape(-1)) == {0, 1}


def test_samples_that_depend_on_each_other_are_said() -> None:
    centred = [make_node("ReduceMean", ["x"], ["mean"], axes=[0]), make_node("Sub", ["x", "mean"], ["around"])]
    nodes = [*centred, make_node("MatMul", ["around", "a"], ["h"]), make_node("Relu", ["h"], ["r"]), LAST]
    with refusing(ModelError):
        tune(quantized(nodes))


def test_layers_whose_sequences_have_lengths_of_their_own_are_named_once() -> None:
    layers = [
        make_node("GRU", ["s", "w", "r0", "", "long"], ["", f"last{place}"], name=f"gru{place}", hidden_size=32)
        for place in range(2)
    ]
    middle = [
        make_node("Unsqueeze", ["h", "zero"], ["s"]),
        make_node("Cast", ["lengths"], ["long"], to=6),
        *layers,
        make_node("Add", ["last0", "last1"], ["both"]),
        make_node("Squeeze", ["both", "zero"], ["r"]),
        LAST,
    ]
    proto = net(middle, [info("lengths", ["N"], INT64)])
    stored = [tensor(numbers(1, 96, 32, seed=seed), name) for seed, name in ((4, "w"), (5, "r0"))]
    proto.graph.initializer.extend([*stored, tensor(np.array([0]), "zero")])
    lengths = np.arange(128) % 2
    notes = tune(proto, data={"x": numbers(128, 16), "lengths": lengths}).report.notes
    told = [note for note in notes if note.endswith("matched to the dense model before and after it")]
    assert len(told) == 1
    assert told[0].startswith("GRU 'gru0' and 1 more: how long its sequences are is known only at run time; ")
