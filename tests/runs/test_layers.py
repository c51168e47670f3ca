"""LayerPruningModifier on ONNX models: layers that are skipped in the graph that trains and in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse.engines.inference import Session
from onnxsparse.errors import OptionError
from onnxsparse.graph.edit import bypass
from onnxsparse.graph.model import Model
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.checking import check
from onnxsparse.recipes.plan_by_epochs import by_epochs
from tests.engine_marks import ENGINES

SLOW = [
    pytest.param(*one.values, marks=[*one.marks, pytest.mark.slow]) if "ort" in one.values else one for one in ENGINES
]
FRAME = """modifiers:
- !EpochRangeModifier {start_epoch: 0.0, end_epoch: 3.0}
- !LearningRateFunctionModifier {start_epoch: 0.0, end_epoch: 3.0, lr_func: linear, init_lr: 0.05, final_lr: 0.01}
"""
MASKS = (
    "- !GMPruningModifier {start_epoch: 0.0, end_epoch: 2.0, update_frequency: 0.5, init_sparsity: 0.05, "
    "final_sparsity: 0.5, params: ['re:blocks.*weight']}\n"
)
GONE = (
    "the recipe, line 5: !LayerPruningModifier: the layer 'blocks.1' is not in the file any more: 4 nodes "
    "(/blocks/blocks.1/one/Conv, /blocks/blocks.1/Relu, /blocks/blocks.1/two/Conv, /blocks/blocks.1/Add) and 4 tensors "
    "(blocks.1.one.weight, blocks.1.one.bias, blocks.1.two.weight, blocks.1.two.bias) are gone; all figures but those "
    "of the dense model are measured without it"
)


class Drawn:
    """A graph with the names that torch's exporter gives."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.nodes: list[Any] = []
        self.stored: list[Any] = []

    def node(self, kind: str, scope: str, *inputs: str, **more: Any) -> str:
        result = f"/{scope}/{kind}_output_0"
        self.nodes.append(helper.make_node(kind, inputs, [result], name=f"/{scope}/{kind}", **more))
        return result

    def conv(self, scope: str, name: str, x: str, given: int, made: int, **more: Any) -> str:
        for role, shape in (("weight", (made, given, 3, 3)), ("bias", (made,))):
            array = self.random.standard_normal(shape).astype(np.float32) * np.float32(0.2)
            self.stored.append(numpy_helper.from_array(array, f"{name}.{role}"))
        return self.node("Conv", scope, x, f"{name}.weight", f"{name}.bias", pads=[1] * 4, **more)

    def model(self, path: Path, x: str, channels: int = 4) -> Path:
        x = self.node("Flatten", "flat", self.node("GlobalAveragePool", "pool", x))
        head = self.random.standard_normal((3, channels)).astype(np.float32)
        self.stored.append(numpy_helper.from_array(head, "head.weight"))
        self.nodes.append(helper.make_node("Gemm", [x, "head.weight"], ["y"], name="/head/Gemm", transB=1))
        declared = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", ["N", 1, 6, 6]), ("y", ["N", 3]))
        ]
        graph = helper.make_graph(self.nodes, "g", declared[:1], declared[1:], self.stored)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    drawn = Drawn()
    x = drawn.node("Relu", "act", drawn.conv("stem", "stem", "x", 1, 4))
    for i in range(3):
        scope = f"blocks/blocks.{i}"
        y = drawn.node("Relu", scope, drawn.conv(f"{scope}/one", f"blocks.{i}.one", x, 4, 4))
        x = drawn.node("Add", scope, x, drawn.conv(f"{scope}/two", f"blocks.{i}.two", y, 4, 4))
    drawn.model(
        tmp_path / "model.onnx", drawn.node("Relu", "down", drawn.conv("down", "down", x, 4, 4, strides=[2, 2]))
    )
    random = np.random.default_rng(1)
    np.savez(
        tmp_path / "data.npz", x=random.standard_normal((32, 1, 6, 6), np.float32), labels=random.integers(0, 3, 32)
    )
    return tmp_path


def tuned(folder: Path, modifier: str, engine: str, **more: Any) -> onnx.ModelProto:
    run(folder, modifier, engine, **more)
    return onnx.load(folder / "out.onnx")


def run(folder: Path, modifier: str, engine: str, **more: Any) -> osp.Report:
    more = {"loss": "cross-entropy", "batch_size": 8, **more}
    made = osp.finetune(
        folder / "model.onnx", data=folder / "data.npz", recipe=FRAME + MASKS + modifier, engine=engine,
        output=folder / "out.onnx", overwrite=True, **more,
    )  # fmt: skip
    return made.report


def stored(proto: onnx.ModelProto) -> dict[str, Any]:
    return {one.name: numpy_helper.to_array(one) for one in proto.graph.initializer}


def answer(proto: onnx.ModelProto) -> Any:
    x = np.random.default_rng(2).standard_normal((5, 1, 6, 6), np.float32)
    return Session(proto).run({"x": x})["y"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("loss", ["cross-entropy", pytest.param("distill", marks=pytest.mark.slow)])
def test_a_block_is_gone_from_the_result(folder: Path, engine: str, loss: str) -> None:
    report = run(folder, "- !LayerPruningModifier {layers: [blocks.1], start_epoch: 1.0}\n", engine, loss=loss)
    assert [note for note in report.notes if "!LayerPruningModifier" in note] == [GONE]
    made, before = onnx.load(folder / "out.onnx"), onnx.load(folder / "model.onnx")
    assert set(stored(before)) - set(stored(made)) == {
        f"blocks.1.{layer}.{role}" for layer in ("one", "two") for role in ("weight", "bias")
    }
    assert [one.name for one in made.graph.node if "blocks.1" in one.name and one.op_type != "Identity"] == []
    assert np.mean(stored(made)["blocks.0.one.weight"] == 0) == pytest.approx(0.5, abs=0.01)
    assert osp.verify(folder / "out.onnx").report.ok
    for one in before.graph.initializer:  # the module with an identity in its place
        if one.name in stored(made):
            one.CopyFrom(numpy_helper.from_array(stored(made)[one.name], one.name))
    add = next(node for node in before.graph.node if node.name == "/blocks/blocks.1/Add")
    add.CopyFrom(helper.make_node("Identity", add.input[:1], add.output))
    assert np.allclose(answer(before), answer(made), atol=1e-6)


@pytest.mark.parametrize(
    ("params", "level", "what"),
    [("['re:blocks.*weight']", "note", "2 weights (first blocks.1.one.weight)"),
     ("[blocks.1.one.weight, stem]", "warning", "blocks.1.one.weight")],
)  # fmt: skip
def test_pruning_weights_of_a_layer_that_goes_is_found(folder: Path, params: str, level: str, what: str) -> None:
    masks = MASKS.replace("['re:blocks.*weight']", params)
    for times, findings in (("start_epoch: 1.0", 1), ("start_epoch: 1.0, end_epoch: 2.0", 0)):
        recipe = Recipe.load(f"{FRAME}{masks}- !LayerPruningModifier {{layers: [blocks.1], {times}}}\n")
        found = [one for one in check(recipe, model=folder / "model.onnx") if "takes the layer out" in one.text]
        assert len(found) == findings
        for one in found:
            assert (one.level, one.tag, one.line) == (level, "GMPruningModifier", 4)
            assert one.text == f"it prunes {what}, and !LayerPruningModifier takes the layer out of the model for good"


@pytest.mark.parametrize("engine", SLOW)
def test_with_an_end_the_file_has_the_layer(folder: Path, engine: str) -> None:
    for start, end, moves in ((0.0, 3.0, False), (1.0, 2.0, True)):
        text = f"- !LayerPruningModifier {{layers: ['re:blocks.[12]'], start_epoch: {start}, end_epoch: {end}}}\n"
        made, before = stored(tuned(folder, text, engine)), stored(onnx.load(folder / "model.onnx"))
        assert set(made) == set(before)
        kept = made["blocks.1.one.weight"] != 0
        assert np.mean(kept) == pytest.approx(0.5, abs=0.01)  # another modifier masks it while it is skipped
        same = np.array_equal(made["blocks.1.one.weight"][kept], before["blocks.1.one.weight"][kept])
        assert same != moves
        assert np.array_equal(made["blocks.1.one.bias"], before["blocks.1.one.bias"]) != moves


@pytest.mark.parametrize("engine", SLOW)
def test_a_run_is_resumed_bit_for_bit(folder: Path, engine: str, monkeypatch: Any) -> None:
    text = "- !LayerPruningModifier {layers: [blocks.1], start_epoch: 1.0, end_epoch: 2.5}\n"
    whole = stored(tuned(folder, text, engine, optimizer="adamw"))
    from onnxsparse.train.loop import Run

    class KilledError(Exception):
        pass

    count, step = Run._count, 4

    def stop(run: Run) -> bool:
        found = count(run)
        if run.step == step:
            raise KilledError
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Run, "_count", stop)
        with pytest.raises(KilledError):
            tuned(folder, text, engine, optimizer="adamw", checkpoint=folder / "run")
    again = stored(tuned(folder, text, engine, optimizer="adamw", checkpoint=folder / "run", resume=True))
    assert all(np.array_equal(whole[name], again[name]) for name in whole)


# -- with numbers that are rounded


ROUNDED = "- !QuantizationModifier {start_epoch: 2.0}\n"


def in_floats(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same without the rounding of what flows."""
    made, numbers = onnx.ModelProto(), {one.name for one in proto.graph.initializer}
    made.CopyFrom(proto)
    pairs = {node.output[0]: node.input[0] for node in made.graph.node if node.op_type == "QuantizeLinear"}
    for node in made.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] not in numbers:
            node.CopyFrom(helper.make_node("Identity", [pairs[node.input[0]]], node.output))
    return made


@pytest.mark.parametrize("engine", SLOW)
@pytest.mark.parametrize("start", [1.0, 2.5])
def test_a_block_is_gone_from_integers(folder: Path, engine: str, start: float) -> None:
    made = tuned(folder, f"- !LayerPruningModifier {{layers: [blocks.1], start_epoch: {start}}}\n{ROUNDED}", engine)
    assert not [name for name in stored(made) if name.startswith("blocks.1.")]
    assert stored(made)["blocks.2.one.weight"].dtype == np.int8
    assert np.mean(stored(made)["blocks.2.one.weight"] == 0) >= 0.5
    assert osp.verify(folder / "out.onnx").report.ok
    exact = answer(in_floats(made))
    assert np.abs(answer(made) - exact).max() < 0.05 * np.abs(exact).max()  # the ranges are those without the layer


SKIPPED = "- !LayerPruningModifier {layers: [blocks.1], start_epoch: 0.0%s}\n"
THINNED = "- !LayerThinningModifier {param_group_dependency_map: {blocks.0.one.weight: [blocks.0.two.weight]}}\n"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("modifiers", "why"),
    [
        (SKIPPED % ", end_epoch: 2.0", "layers are skipped for good"),
        (SKIPPED % "" + THINNED, "LayerThinningModifier: not together with skipped layers and with quantization"),
    ],
)
def test_what_does_not_go_together_with_rounding_is_said(folder: Path, engine: str, modifiers: str, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        tuned(folder, modifiers + ROUNDED, engine)


# -- what the graph does not let go


def bound(path: Path, layers: str) -> Any:
    recipe = Recipe.load(f"modifiers:\n- !LayerPruningModifier {{layers: {layers}}}\n")
    return by_epochs(Model.open(path), recipe.modifiers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ("[stem]", r"'stem' cannot be skipped: it gives \[7, 4, 6, 6\].* 'x' \[7, 1, 6, 6\]"),
        ("[down]", r"'down' cannot be skipped: it gives \[7, 4, 3, 3\]"),
        ("[head]", r"'head' cannot be skipped: it gives \[7, 3\]"),
        ("['/blocks/blocks.1/Add']", "it has several inputs that could stand for its result"),
        ("[block.1]", "'block.1' is no layer of the model"),
        ("__ALL_PRUNABLE__", "'/stem/Conv' cannot be skipped"),
        ("__ALL__", "would leave nothing"),
        ("['re:none']", "'re:none' is no layer"),
    ],
)
def test_what_cannot_be_skipped_is_refused_by_name(folder: Path, layers: str, why: str) -> None:
    with pytest.raises(OptionError, match=f"LayerPruningModifier: layers: .*{why}"):
        bound(folder / "model.onnx", layers)


@pytest.mark.parametrize(
    "layers", ["[blocks.1.one]", "[blocks.1]", "['/blocks/blocks.1/one/Conv']", "['re:blocks.1$']"]
)
def test_layers_have_the_names_of_modules_and_of_nodes(folder: Path, layers: str) -> None:
    assert bound(folder / "model.onnx", layers).acts[0]._bypasses


def test_of_several_inputs_the_one_with_the_shape_of_the_result_stands_for_it(tmp_path: Path) -> None:
    """As with the mask of attention; sizes may be names, in a file that declares them."""
    drawn = Drawn()
    x = drawn.node("Relu", "act", drawn.conv("stem", "stem", "x", 1, 4))
    mask = drawn.node("ReduceMax", "mask", x, keepdims=1)
    y = drawn.node("Mul", "layer", drawn.conv("layer/conv", "layer.conv", x, 4, 4), mask)
    (found,) = bound(drawn.model(tmp_path / "model.onnx", y), "[layer]").acts[0]._bypasses
    assert (found.result, found.source, len(found.tags)) == (y, x, 2)


def test_what_nobody_needed_before_stays() -> None:
    drawn = Drawn()
    y = drawn.node("Relu", "a", "x")
    drawn.node("Sigmoid", "idle", "x")
    drawn.nodes.append(helper.make_node("Dropout", [y], ["z", "nobody reads it"]))
    z = drawn.node("Tanh", "b", "z")
    graph = helper.make_graph(
        drawn.nodes, "g", [helper.make_tensor_value_info("x", 1, [2])], [helper.make_tensor_value_info(z, 1, [2])]
    )
    proto = helper.make_model(graph)
    bypass(proto, {z: "x"})
    assert [one.op_type for one in proto.graph.node] == ["Sigmoid", "Identity"]


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_a_skipped_layer_learns_nothing_and_is_pruned_all_the_same(folder: Path, engine: str) -> None:
    """Layers that learn begin and end at other times, with projections of other sizes: each goes on with its own."""
    text = (
        "- !LayerPruningModifier {layers: [blocks.1], start_epoch: 0.5, end_epoch: 2.5}\n"
        "- !PerLayerDistillationModifier {gain: 1.0, end_epoch: 1.0, student_layer_names: [head.weight]}\n"
        "- !PerLayerDistillationModifier {gain: 1.0}\n"
    )
    made = stored(tuned(folder, text, engine))
    for name in ("blocks.0.one.weight", "blocks.1.one.weight", "blocks.1.two.weight"):
        assert np.mean(made[name] == 0) == pytest.approx(0.5, abs=0.01)
