"""Graphs of onnx-graphsurgeon as models: the results of a ModelProto, in place, with the record beside them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxsparse as osp
from tests.graphs.builders import CASES
from tests.messages import refusing

gs: Any = pytest.importorskip("onnx_graphsurgeon")
LOGGER: Any = pytest.importorskip("onnx_graphsurgeon.logger").G_LOGGER

ALL = ("stem", "small", "embedding", "tied-embedding", "depthwise", "output", "basis")
HALF: dict[str, Any] = {"pattern": "unstructured", "sparsity": 0.5, "allow": ALL}
WHOLE_FILES = [name for name, one in CASES.items() if not one.build().files]
FAMILIES = sorted({CASES[name].family for name in WHOLE_FILES})
LOST = {"if_shadows_outer_name", "sparse_constant"}
"""What gs.import_onnx itself makes another model of: two tensors of one name, a sparse tensor in a Constant."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    severity = LOGGER.severity
    LOGGER.severity = LOGGER.CRITICAL
    yield
    LOGGER.severity = severity


def copy_of(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def graph_of(model: ModelProto) -> Any:
    return gs.import_onnx(copy_of(model))


def content(model: ModelProto) -> object:
    """All that a model computes with, and its metadata; fields that are there and empty are not."""
    functions = {(one.domain, one.name): [_node(node) for node in one.node] for one in model.functions}
    return _graph(model.graph), functions, {entry.key: entry.value for entry in model.metadata_props}


def _graph(graph: onnx.GraphProto) -> object:
    stored = {tensor.name: tensor.SerializeToString() for tensor in graph.initializer}
    ends = [[value.name for value in values] for values in (graph.input, graph.output)]
    return [_node(node) for node in graph.node], stored, ends


def _node(node: onnx.NodeProto) -> object:
    attributes: dict[str, object] = {}
    for one in node.attribute:
        if one.HasField("t") and not one.t.name:
            one.t.ClearField("name")
        attributes[one.name] = _graph(one.g) if one.HasField("g") else one.SerializeToString()
    return node.domain, node.op_type, list(node.input), list(node.output), attributes


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    drawn: np.ndarray = np.random.default_rng([seed, *shape]).normal(0, 1, shape)
    return drawn.astype(np.float32)


def tensor(name: str, size: int, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, [1, size])


def network() -> ModelProto:
    """Two layers and two heads."""
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"], name="one"),
        helper.make_node("Relu", ["a"], ["b"], name="act"),
        helper.make_node("MatMul", ["b", "second"], ["c"], name="two"),
        helper.make_node("MatMul", ["c", "head"], ["y"], name="head"),
        helper.make_node("MatMul", ["c", "aux"], ["z"], name="aux"),
    ]
    shapes = {"first": (16, 32), "second": (32, 32), "head": (32, 8), "aux": (32, 4)}
    stored = [numpy_helper.from_array(weight(*shape, seed=at), name) for at, (name, shape) in enumerate(shapes.items())]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in zip("xyz", (16, 8, 4))
    ]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


TWO_FOUR: dict[str, Any] = {"pattern": "2:4", "allow": ALL}


# -- the same results


@pytest.mark.parametrize("family", FAMILIES)
def test_a_graph_comes_to_what_its_model_comes_to(family: str) -> None:
    """Of every model of a family: pruned, masked, folded to the same content, with the same rows."""
    wrong = []
    for name in (name for name in WHOLE_FILES if CASES[name].family == family):
        try:
            same_content(CASES[name].build().model)
            if name not in LOST:
                model = CASES[name].build().model
                assert rows_of(graph_of(model)) == rows_of(model)
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)


def same_content(model: ModelProto) -> None:
    for function, options in (("prune", HALF), ("insert_masks", HALF), ("insert_masks", {**HALF, "form": "where"})):
        graph = graph_of(model)
        plain = osp.graphsurgeon.export_onnx(graph)
        try:
            wanted = getattr(osp, function)(plain, **options).model
        except osp.OnnxSparseError as error:
            with pytest.raises(type(error)):
                getattr(osp.graphsurgeon, function)(graph, **options)
            assert content(osp.graphsurgeon.export_onnx(graph)) == content(plain)
            continue
        made = getattr(osp.graphsurgeon, function)(graph, **options)
        assert made.graph is graph
        found = osp.graphsurgeon.export_onnx(graph)
        assert content(found) == content(wanted)
        if function == "insert_masks":
            osp.graphsurgeon.fold_masks(graph)
            assert content(osp.graphsurgeon.export_onnx(graph)) == content(osp.fold_masks(wanted).model)


def rows_of(source: Any) -> object:
    try:
        report = osp.prune(source, **HALF).report
    except osp.OnnxSparseError as error:
        return str(error)
    return sorted((row.name, row.status, row.zeros, tuple(row.shape), row.reason) for row in report.rows)


def test_every_function_takes_a_graph(tmp_path: Path) -> None:
    model, graph = network(), graph_of(network())
    assert [row.name for row in osp.inspect(graph).report.rows] == ["first", "second", "head", "aux"]
    assert [one.name for one in osp.load(graph).weights] == ["first", "second", "head", "aux"]
    assert osp.plan(graph, **TWO_FOUR).report.rows == osp.plan(model, **TWO_FOUR).report.rows
    pruned = osp.prune(graph, output=tmp_path / "out.onnx", **TWO_FOUR)
    assert osp.verify(onnx.load(str(tmp_path / "out.onnx"))).report.ok
    assert osp.verify(pruned.graph).report.ok
    masked = osp.insert_masks(graph, **TWO_FOUR)
    folded = osp.fold_masks(masked.graph)
    assert content(folded.model)[:2] == content(pruned.model)[:2]  # type: ignore[index]
    assert not osp.verify(graph, pattern="2:4", allow=ALL).report.ok, "the argument is never changed"


def test_compare_takes_graphs() -> None:
    pytest.importorskip("onnxruntime")
    graph = graph_of(network())
    report = osp.compare(graph, osp.prune(graph, **TWO_FOUR).graph).report
    assert {one["output"] for one in report.details["outputs"]} == {"y", "z"}  # type: ignore[attr-defined]


# -- in place


def test_what_stays_is_the_same_object_and_is_not_loaded() -> None:
    graph = graph_of(network())
    nodes, tensors, listed = list(graph.nodes), graph.tensors(), graph.nodes
    osp.graphsurgeon.insert_masks(graph, **TWO_FOUR, include="second")
    assert graph.nodes is listed
    assert [node for node in graph.nodes if any(node is one for one in nodes)] == nodes
    assert [node.op for node in graph.nodes if all(node is not one for one in nodes)] == ["Mul"]
    assert all(graph.tensors()[name] is tensor for name, tensor in tensors.items())
    assert all(type(tensors[name]._values).__name__ == "LazyValues" for name in ("first", "second", "head", "aux"))
    two = next(node for node in graph.nodes if node.name == "two")
    assert two.inputs[1].inputs[0].inputs[0] is tensors["second"]
    assert tensors["second"].outputs[0].op == "Mul"
    before = tensors["second"].values.copy()
    osp.graphsurgeon.fold_masks(graph)
    assert [node.name for node in graph.nodes] == [node.name for node in nodes]
    assert two.inputs[1] is tensors["second"]
    assert [one.name for one in tensors["second"].outputs] == ["two"]
    kept = tensors["second"].values
    assert (kept == 0).sum() == kept.size // 2
    assert np.array_equal(kept[kept != 0], before[kept != 0])


def test_a_discard_gives_the_graph_back_as_it_was() -> None:
    graph = graph_of(network())
    before = content(osp.graphsurgeon.export_onnx(graph))
    osp.graphsurgeon.insert_masks(graph, **TWO_FOUR)
    osp.graphsurgeon.fold_masks(graph, discard=True)
    assert content(osp.graphsurgeon.export_onnx(graph)) == before


def test_numbers_that_were_loaded_or_made_by_hand_are_written_too() -> None:
    graph = graph_of(network())
    for tensor in graph.tensors().values():
        if isinstance(tensor, gs.Constant):
            tensor.values = tensor.values * 2
    osp.graphsurgeon.prune(graph, **TWO_FOUR)
    assert (graph.tensors()["first"].values == 0).mean() == 0.5
    assert osp.graphsurgeon.verify(graph).report.ok


def test_bfloat16_stays_what_it_is() -> None:
    bits = (weight(16, 8).view(np.uint32) >> 16).astype(np.uint16)
    stored = TensorProto(name="w", data_type=TensorProto.BFLOAT16, dims=[16, 8], raw_data=bits.tobytes())
    values = [
        helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [1, size]) for name, size in (("x", 16), ("y", 8))
    ]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = helper.make_model(helper.make_graph(nodes, "net", values[:1], values[1:], [stored]))
    graph = graph_of(model)
    osp.graphsurgeon.prune(graph, **TWO_FOUR)
    (found,) = osp.graphsurgeon.export_onnx(graph).graph.initializer
    kept = np.frombuffer(found.raw_data, np.uint16).reshape(16, 8)
    assert found.data_type == TensorProto.BFLOAT16
    assert (kept == 0).sum() == 64
    assert np.array_equal(kept[kept != 0], bits[kept != 0])


def shared() -> ModelProto:
    """Two branches that read one weight, which the main graph does not read itself."""

    def body(name: str, op: str) -> onnx.GraphProto:
        product, result = f"{name}_m", f"{name}_y"
        nodes = [helper.make_node("MatMul", ["x", "w"], [product]), helper.make_node(op, [product], [result])]
        return helper.make_graph(nodes, name, [], [tensor(result, 8)])

    node = helper.make_node("If", ["c"], ["y"], then_branch=body("then", "Relu"), else_branch=body("else", "Neg"))
    inputs, outputs = [tensor("x", 16), helper.make_tensor_value_info("c", TensorProto.BOOL, [])], [tensor("y", 8)]
    stored = [numpy_helper.from_array(weight(16, 8), "w")]
    return helper.make_model(helper.make_graph([node], "net", inputs, outputs, stored), ir_version=9)


def test_a_constant_of_two_bodies_is_one_weight() -> None:
    """gs.export_onnx writes it twice, and a random score would draw two masks for the one constant."""
    graph = graph_of(shared())
    assert len(gs.export_onnx(graph).graph.initializer) == 0
    result = osp.graphsurgeon.prune(graph, pattern="unstructured", sparsity=0.5, score="random", allow=ALL)
    assert [row.name for row in result.report.rows] == ["w"]
    model = osp.graphsurgeon.export_onnx(graph)
    assert [tensor.name for tensor in model.graph.initializer] == ["w"]
    onnx.checker.check_model(model)
    branches = [attribute.g for attribute in model.graph.node[0].attribute]
    assert not any(len(one.initializer) for one in branches)
    (one,) = {
        id(node.inputs[1]) for body in graph.nodes[0].attrs.values() for node in body.nodes if node.op == "MatMul"
    }
    assert one
    assert osp.graphsurgeon.verify(graph).report.ok


def test_constants_of_local_functions_are_weights_too() -> None:
    """A function holds no initializers: its constants are nodes in the model, and constants in the graph."""
    own = gs.Constant("w", weight(16, 8))
    inner, result = gs.Variable("i", np.float32, (1, 16)), gs.Variable("o", np.float32, (1, 8))
    opsets = [helper.make_opsetid("", 17)]
    body = [gs.Node("MatMul", inputs=[inner, own], outputs=[result])]
    function = gs.Function("layer", "own", body, [inner], [result], opset=17, import_domains=opsets)
    x, y = gs.Variable("x", np.float32, (1, 16)), gs.Variable("y", np.float32, (1, 8))
    call = gs.Node("layer", inputs=[x], outputs=[y], domain="own")
    graph = gs.Graph([call], [x], [y], opset=17, functions=[function])
    osp.graphsurgeon.insert_masks(graph, **TWO_FOUR)
    assert [node.op for node in function.nodes] == ["Constant", "Mul", "MatMul"]
    assert osp.graphsurgeon.export_onnx(graph).functions[0].node[0].output[0] == "w"
    osp.graphsurgeon.fold_masks(graph)
    assert [node.op for node in function.nodes] == ["MatMul"]
    assert function.nodes[0] is body[0]
    assert body[0].inputs[1] is own
    assert not own.inputs
    assert (own.values == 0).mean() == 0.5
    assert osp.graphsurgeon.verify(graph).report.ok


def test_a_copy_can_be_worked_on_alone() -> None:
    graph = graph_of(network())
    copy = graph.copy()
    osp.graphsurgeon.prune(copy, **TWO_FOUR)
    assert (graph.tensors()["first"].values != 0).all()
    assert (copy.tensors()["first"].values == 0).any()


def test_where_a_pass_raises_the_graph_is_as_it_was() -> None:
    graph = osp.graphsurgeon.import_onnx(network())
    before, nodes = content(gs.export_onnx(graph)), list(graph.nodes)
    with refusing(osp.OnnxSparseError):
        osp.graphsurgeon.prune(graph, pattern="2:4", allow=(), strict=True)
    with refusing(osp.OnnxSparseError):
        osp.graphsurgeon.prune(graph, **TWO_FOUR, output="x.onnx")
    assert all(one is other for one, other in zip(graph.nodes, nodes))
    assert content(gs.export_onnx(graph)) == before


def test_where_a_fold_does_not_hold_the_graph_is_as_it_was() -> None:
    graph = osp.graphsurgeon.import_onnx(network())
    osp.graphsurgeon.insert_masks(graph, **TWO_FOUR)
    before, nodes = content(osp.graphsurgeon.export_onnx(graph)), list(graph.nodes)
    report = osp.graphsurgeon.fold_masks(graph, pattern="1:4", allow=ALL).report
    assert not report.ok
    assert "violated" in [row.status for row in report.rows]
    assert len(graph.nodes) == len(nodes)
    assert all(one is other for one, other in zip(graph.nodes, nodes))
    assert content(osp.graphsurgeon.export_onnx(graph)) == before
    assert osp.graphsurgeon.fold_masks(graph).report.ok


# -- the record


def test_the_record_goes_with_the_graph_and_back_into_the_model() -> None:
    graph = osp.graphsurgeon.import_onnx(network())
    osp.graphsurgeon.insert_masks(graph, **TWO_FOUR)
    masked = osp.graphsurgeon.export_onnx(graph)
    assert {entry.key for entry in masked.metadata_props} >= {"onnxsparse.mask.plan", "onnxsparse.mask.pattern"}
    again = osp.graphsurgeon.import_onnx(masked)
    osp.graphsurgeon.fold_masks(again)
    assert osp.graphsurgeon.verify(again).report.ok
    assert osp.verify(osp.graphsurgeon.export_onnx(again)).report.ok
    assert osp.verify(again).report.rule == "its own record"


def test_metadata_and_header_of_others_are_kept() -> None:
    model = network()
    model.metadata_props.add(key="labels", value="a,b")
    model.domain, model.model_version = "org.example", 7
    found = osp.graphsurgeon.export_onnx(osp.graphsurgeon.import_onnx(model))
    assert {entry.key: entry.value for entry in found.metadata_props} == {"labels": "a,b"}
    assert (found.domain, found.model_version) == ("org.example", 7)


def test_a_plain_export_has_no_record_and_verify_says_what_to_pass() -> None:
    graph = osp.graphsurgeon.import_onnx(network())
    osp.graphsurgeon.prune(graph, **TWO_FOUR)
    plain = gs.export_onnx(graph)
    for source in (plain, gs.import_onnx(plain), graph.copy()):
        with refusing(osp.OnnxSparseError):
            osp.verify(source)
        assert osp.verify(source, **TWO_FOUR).report.ok


def test_the_record_of_a_copy_is_named() -> None:
    graph = osp.graphsurgeon.import_onnx(network())
    pruned = osp.graphsurgeon.prune(graph, **TWO_FOUR).model
    for record in (graph, pruned):
        assert osp.verify(osp.graphsurgeon.export_onnx(graph.copy(), record=record)).report.rule == "its own record"


def plan_of(model: ModelProto) -> str:
    return next(entry.value for entry in model.metadata_props if entry.key.endswith("plan"))


def test_a_head_that_was_cut_leaves_the_record(caplog: pytest.LogCaptureFixture) -> None:
    graph = osp.graphsurgeon.import_onnx(network())
    osp.graphsurgeon.prune(graph, **TWO_FOUR)
    graph.outputs = [tensor for tensor in graph.outputs if tensor.name != "z"]
    graph.cleanup()
    with caplog.at_level(logging.WARNING, "onnxsparse"):
        model = osp.graphsurgeon.export_onnx(graph)
    assert "'aux' is gone from the graph" in caplog.text
    assert '"aux"' not in plan_of(model)
    report = osp.verify(model).report
    assert report.ok
    assert [row.status for row in report.rows] == ["holds"] * 3


def test_a_renamed_weight_is_followed(caplog: pytest.LogCaptureFixture) -> None:
    graph = osp.graphsurgeon.import_onnx(network())
    osp.graphsurgeon.prune(graph, **TWO_FOUR)
    graph.tensors()["second"].name = "middle"
    with caplog.at_level(logging.WARNING, "onnxsparse"):
        model = osp.graphsurgeon.export_onnx(graph)
    assert not caplog.text
    assert {row.name: row.status for row in osp.verify(model).report.rows}["middle"] == "holds"


@pytest.mark.parametrize("holds", [True, False])
def test_other_numbers_are_said_and_left_to_verify(holds: bool, caplog: pytest.LogCaptureFixture) -> None:
    graph = osp.graphsurgeon.import_onnx(network())
    osp.graphsurgeon.prune(graph, **TWO_FOUR)
    tensor = graph.tensors()["second"]
    tensor.values = tensor.values * 3 if holds else tensor.values + 1
    with caplog.at_level(logging.WARNING, "onnxsparse"):
        model = osp.graphsurgeon.export_onnx(graph)
    assert "'second' is not as it was when the plan was made: its numbers changed" in caplog.text
    assert osp.verify(model).report.ok is holds


def test_while_masks_are_in_the_graph_weights_may_train_and_masks_may_not(caplog: pytest.LogCaptureFixture) -> None:
    graph = osp.graphsurgeon.import_onnx(network())
    osp.graphsurgeon.insert_masks(graph, **TWO_FOUR)
    trained = graph.tensors()["second"]
    trained.values = trained.values * 3
    with caplog.at_level(logging.WARNING, "onnxsparse"):
        osp.graphsurgeon.export_onnx(graph)
    assert not caplog.text
    mask = graph.tensors()["second_mask"]
    mask.values = np.ones_like(mask.values)
    with caplog.at_level(logging.WARNING, "onnxsparse"):
        osp.graphsurgeon.export_onnx(graph)
    assert "'second' is not as it was when the plan was made: its mask changed" in caplog.text


# -- what else holds a model, and what does not


def test_bytes_are_a_model() -> None:
    data = network().SerializeToString()
    for source in (data, bytearray(data), memoryview(data)):
        assert content(osp.prune(source, **TWO_FOUR).model) == content(osp.prune(network(), **TWO_FOUR).model)  # type: ignore[arg-type]


class Loud:
    """Everything that may be asked of it raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no\nrepr")

    __str__ = __repr__

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class Lines:
    def __repr__(self) -> str:
        return "a\nb\x1b[31m\r\x85c\u2028d" * 100


class Nowhere:
    """A path that is none."""

    def __fspath__(self) -> str:
        raise RuntimeError("not\nhere")

    __repr__ = Lines.__repr__


REFUSED: list[Any] = [
    None, 42, object(), Loud(), Lines(), Nowhere(), Lines, Loud, [], {}, "", "\0", b"", b"\xff\xff", np.ones(3), gs,
    gs.Graph, gs.Constant("w", np.ones(3)), gs.Function("f"), gs.Node("Relu"), TensorProto(), onnx.GraphProto(),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(REFUSED)))
def test_what_is_no_model_is_refused_in_one_line(at: int, tmp_path: Path) -> None:
    source: Any = REFUSED[at]
    calls: list[Any] = [
        lambda: osp.load(source),
        lambda: osp.inspect(source),
        lambda: osp.plan(source, pattern="2:4"),
        lambda: osp.prune(source, pattern="2:4", output=tmp_path / "out.onnx"),
        lambda: osp.insert_masks(source, pattern="2:4"),
        lambda: osp.fold_masks(source),
        lambda: osp.verify(source),
        lambda: osp.compare(source, network()),
        lambda: osp.finetune(source, data={"x": np.ones((4, 16), np.float32)}, pattern="2:4"),
        lambda: osp.levels(source, data={"x": np.ones((4, 16), np.float32)}, output=tmp_path / "out"),
        lambda: osp.graphsurgeon.prune(source, pattern="2:4"),
        lambda: osp.graphsurgeon.import_onnx(source),
        lambda: osp.graphsurgeon.export_onnx(source),
    ]
    for call in calls:
        with pytest.raises(osp.OnnxSparseError) as caught:
            call()
        text = str(caught.value)
        assert text.isprintable()
        assert len(text) < 400


def test_a_graph_in_the_middle_of_surgery_is_refused_in_one_line() -> None:
    graphs = [graph_of(network()) for _ in range(3)]
    graphs[0].outputs[0].dtype = None
    graphs[1].outputs = [None]
    graphs[2].nodes = None
    for graph in graphs:
        with refusing(osp.OnnxSparseError) as caught:
            osp.prune(graph, **TWO_FOUR)
        assert str(caught.value).isprintable()


def test_two_tensors_of_one_name_are_refused() -> None:
    """gs.export_onnx warns and writes one of the two, which both nodes read then."""
    graph = graph_of(network())
    graph.nodes[2].inputs[1] = gs.Constant("head", weight(32, 32))
    with refusing(osp.OnnxSparseError):
        osp.prune(graph, **TWO_FOUR)


def test_a_constant_of_a_body_with_a_name_from_outside_is_refused() -> None:
    """gs.import_onnx reads it as the one outside: the body would get those numbers."""
    x, use = gs.Variable("x", np.float32, (3, 16)), gs.Variable("use", np.bool_, ())
    made, y = gs.Variable("made", np.float32), gs.Variable("y", np.float32, (3, 16))
    bodies, own = {}, gs.Constant("w", weight(16, 16) + 1)
    for name in ("then_branch", "else_branch"):
        result = gs.Variable(name, np.float32)
        bodies[name] = gs.Graph([gs.Node("MatMul", name, inputs=[made, own], outputs=[result])], [], [result], opset=17)
    nodes = [
        gs.Node("MatMul", "first", inputs=[x, gs.Constant("w", weight(16, 16))], outputs=[made]),
        gs.Node("If", "if", inputs=[use], outputs=[y], attrs=bodies),
    ]
    graph, before = gs.Graph(nodes, [x, use], [y], opset=17), own.values.copy()
    with refusing(osp.OnnxSparseError):
        osp.graphsurgeon.insert_masks(graph, **TWO_FOUR)
    assert np.array_equal(own.values, before)
    own.name = "inner"
    osp.graphsurgeon.insert_masks(graph, **TWO_FOUR)
    assert np.array_equal(own.values, before)


def test_a_graph_is_fine_tuned() -> None:
    library: Any = pytest.importorskip("onnxsparse.engines.ort.library")
    if not library.available():
        pytest.skip("needs onnxruntime-training")
    graph = osp.graphsurgeon.import_onnx(network())
    result = osp.finetune(graph, data={"x": weight(32, 16)}, steps=4, batch_size=1, engine="ort", **TWO_FOUR)
    assert osp.verify(result.graph).report.ok
    assert (graph.tensors()["first"].values != 0).all(), "the argument is never changed"
