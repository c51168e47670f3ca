"""What inserting, folding and dropping masks costs grows with the model, and not with its square.

Counted are the lines that Python runs, which no load on the machine changes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse.errors import ModelError
from onnxsparse.graph import flow
from tests.messages import refusing

SIZE = 16
OPSET = helper.make_opsetid("", 17)


def weight(number: int, name: str) -> TensorProto:
    return numpy_helper.from_array(np.random.default_rng(number).standard_normal((SIZE, SIZE)).astype(np.float32), name)


def value(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def whole(nodes: list[NodeProto], outputs: list[str], stored: list[TensorProto], functions: Any = ()) -> ModelProto:
    inputs = [
        helper.make_tensor_value_info("x0", 1, ["n", SIZE]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    # The text makes every graph one that is too large to be read as a whole.
    graph = helper.make_graph(nodes, "g", inputs, [value(name) for name in outputs], stored, " " * 5000)
    opsets = [OPSET, helper.make_opsetid("own", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets, functions=list(functions))


def chain(count: int) -> ModelProto:
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(count)]
    return whole(nodes, [f"x{count}"], [weight(i, f"w{i}") for i in range(count)])


def outputs(count: int) -> ModelProto:
    """Every product is an output of the graph."""
    nodes = [helper.make_node("MatMul", ["x0", f"w{i}"], [f"y{i}"]) for i in range(count)]
    return whole(nodes, [f"y{i}" for i in range(count)], [weight(i, f"w{i}") for i in range(count)])


def functions(count: int) -> ModelProto:
    """Every weight is called `w`, in a function of its own."""
    made, nodes = [], []
    for i in range(count):
        body = [
            helper.make_node("Constant", [], ["w"], value=weight(i, "w")),
            helper.make_node("MatMul", ["a", "w"], ["b"]),
        ]
        made.append(helper.make_function("own", f"F{i}", ["a"], ["b"], body, [OPSET]))
        nodes.append(helper.make_node(f"F{i}", [f"x{i}"], [f"x{i + 1}"], domain="own"))
    return whole(nodes, [f"x{count}"], [], made)


def bodies(count: int) -> ModelProto:
    """Every weight is read in a body, and stands in the graph around it."""

    def branch(i: int, number: int, nodes: list[NodeProto]) -> GraphProto:
        return helper.make_graph(nodes, f"b{i}_{number}", [], [value(nodes[-1].output[0])])

    nodes = []
    for i in range(count):
        then = branch(i, 0, [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"y{i}"])])
        other = branch(i, 1, [helper.make_node("Identity", [f"x{i}"], [f"z{i}"])])
        nodes.append(helper.make_node("If", ["c"], [f"x{i + 1}"], then_branch=then, else_branch=other))
    return whole(nodes, [f"x{count}"], [weight(i, f"w{i}") for i in range(count)])


def readers(count: int) -> ModelProto:
    """One weight that is read many times."""
    nodes = [helper.make_node("MatMul", [f"x{i}", "w"], [f"x{i + 1}"]) for i in range(count)]
    return whole(nodes, [f"x{count}"], [weight(0, "w")])


MODELS = [chain, outputs, functions, bodies, readers]


def lines(call: Callable[[], object]) -> int:
    """How many lines of Python a call runs."""
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def cycle(model: ModelProto, folder: Path | None) -> Callable[[], object]:
    """Masks go in, and are folded or dropped; in memory, or by way of files with data files."""
    if folder is None:
        masked = osp.insert_masks(model, pattern="2:4").model
        assert masked is not None
        return lambda: (
            osp.insert_masks(model, pattern="2:4"), osp.fold_masks(masked), osp.fold_masks(masked, discard=True)
        )  # fmt: skip
    source = folder / "m.onnx"
    onnx.save(model, source, save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    return lambda: (
        osp.insert_masks(source, output=folder / "k.onnx", pattern="2:4", overwrite=True),
        osp.fold_masks(folder / "k.onnx", output=folder / "f.onnx", overwrite=True),
    )


@pytest.mark.parametrize("by_files", [False, True])
@pytest.mark.parametrize("made", MODELS)
def test_the_work_grows_with_the_number_of_weights(
    made: Callable[[int], ModelProto], by_files: bool, tmp_path: Path
) -> None:
    step, counts = 24, []
    for size in (2, step, 2 * step, 3 * step):  # the first time for what is done once only
        folder = tmp_path / str(len(counts)) if by_files else None
        if folder is not None:
            folder.mkdir()
        work = cycle(made(size), folder)
        counts.append(lines(work))
    once, twice, thrice = counts[1:]
    assert twice > once
    assert thrice - twice < 1.004 * (twice - once)


def nested(calls: list[int]) -> ModelProto:
    """Functions in functions, each called several times by the next; the first one holds an If with two bodies."""
    inner = helper.make_graph([helper.make_node("Relu", ["a"], ["r"])], "i", [], [value("r")])
    body = [helper.make_node("If", ["a"], ["b"], then_branch=inner, else_branch=inner)]
    made = [helper.make_function("own", "F0", ["a"], ["b"], body, [OPSET])]
    for level, count in enumerate(calls, 1):
        names = ["a", *(f"t{i}" for i in range(count - 1)), "b"]
        calling = [helper.make_node(f"F{level - 1}", [one], [two], domain="own") for one, two in zip(names, names[1:])]
        made.append(helper.make_function("own", f"F{level}", ["a"], ["b"], calling, [OPSET]))
    return whole([helper.make_node(f"F{len(calls)}", ["x0"], ["y"], domain="own")], ["y"], [], made)


@pytest.mark.parametrize("calls", [[10] * 30, [1000] * 59, [2] * 59])
def test_a_bomb_of_functions_is_refused_before_it_is_walked(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow.Flow, "_node", lambda *_: pytest.fail("it was walked"))
    bomb, began = nested(calls), time.process_time()
    with refusing(ModelError):
        osp.inspect(bomb)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize(("most", "refused"), [(27, True), (28, False)])
def test_what_calls_come_to_is_counted_as_the_walk_counts(
    most: int, refused: bool, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 call, in it 3, in each of these 2, and in each of these an If with a node in either body: 1 + 3 + 6 + 18."""
    monkeypatch.setattr(flow, "MOST_NODES", most)
    if not counted:
        monkeypatch.setattr(flow, "demand_bounded", lambda *_: None)
    if refused:
        with refusing(ModelError):
            osp.inspect(nested([2, 3]))
    else:
        osp.inspect(nested([2, 3]))


def test_functions_that_call_themselves_and_deep_ones_are_said() -> None:
    looped = nested([10] * 30)
    looped.functions[0].node.add(op_type="F30", domain="own", input=["a"], output=["c"])
    with refusing(ModelError):
        osp.inspect(looped)
    with refusing(ModelError):
        osp.inspect(nested([1] * 60))
    osp.inspect(nested([1] * 59))
