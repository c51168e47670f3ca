"""SmoothQuant in a recipe: what is hard to round in values moves into weights, by the formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import onnxsparse as osp
from tests.cases import for_each
from tests.messages import refusing

pytest.importorskip("onnxruntime")

WIDTH, STRENGTH = 16, 0.7
DRAW = np.random.default_rng(0)
SAMPLES = {"x": DRAW.standard_normal((64, 6, WIDTH), np.float32)}
WIDE = np.ones(WIDTH, np.float32)
WIDE[[3, 8]] = 60, 25
"""Channels in which one scale for all loses the others."""
LAYERS = ("query", "key", "up")


def network(written_out: bool = False, shortcut: bool = False, dead: bool = False) -> ModelProto:
    """A normalization that two layers read, and one that a third reads after a shortcut; half of `key` is zero."""
    rng = np.random.default_rng(1)
    stored = {f"{name}.weight": rng.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH**0.5 for name in LAYERS}
    stored["key.weight"][:, ::2] = 0
    for name in ("first", "second"):
        stored[f"{name}.scale"], stored[f"{name}.bias"] = (
            WIDE * rng.uniform(0.5, 1.5, WIDTH),
            rng.standard_normal(WIDTH),
        )
    if dead:
        stored["first.scale"][5] = stored["first.bias"][5] = 0
        stored["query.weight"][7] = stored["key.weight"][7] = 0
    nodes = [
        *_normalization("x", "first", written_out),
        *(make_node("MatMul", ["first", f"{name}.weight"], [name], f"/block/{name}/MatMul") for name in LAYERS[:2]),
        make_node("Add", ["query", "key"], ["sum"], "/block/Add"),
        make_node("Add", ["sum", "first" if shortcut else "x"], ["shortcut"], "/block/Add_1"),
        *_normalization("shortcut", "second", written_out),
        make_node("MatMul", ["second", "up.weight"], ["y"], "/block/up/MatMul"),
    ]
    if written_out:
        stored |= {"two": np.float32(2), "tiny": np.float32(1e-5)}
    arrays = [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in stored.items()]
    ends = [make_tensor_value_info(name, TensorProto.FLOAT, ["n", 6, WIDTH]) for name in ("x", "y")]
    graph = make_graph(nodes, "net", ends[:1], ends[1:], arrays)
    return make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)


def _normalization(value: str, name: str, written_out: bool) -> list[Any]:
    scale, path = [f"{name}.scale", f"{name}.bias"], f"/{name}/"
    if not written_out:
        return [make_node("LayerNormalization", [value, *scale], [name], f"{path}LayerNormalization")]
    steps = [
        ("ReduceMean", [value], "mean"), ("Sub", [value, f"{name}.mean"], "centred"),
        ("Pow", [f"{name}.centred", "two"], "squares"), ("ReduceMean", [f"{name}.squares"], "variance"),
        ("Add", [f"{name}.variance", "tiny"], "shifted"), ("Sqrt", [f"{name}.shifted"], "deviation"),
        ("Div", [f"{name}.centred", f"{name}.deviation"], "unit"), ("Mul", [f"{name}.unit", scale[0]], "scaled"),
    ]  # fmt: skip
    axes: dict[str, Any] = {"ReduceMean": {"axes": [-1]}}
    nodes = [make_node(kind, ins, [f"{name}.{out}"], f"{path}{out}", **axes.get(kind, {})) for kind, ins, out in steps]
    return [*nodes, make_node("Add", [f"{name}.scaled", scale[1]], [name], f"{path}Add")]


def recipe(smoothing: str | None = f"smoothing_strength: {STRENGTH}", rounding: str = "scheme: W8A8") -> str:
    lines = [] if smoothing is None else [f"    SmoothQuantModifier: {{{smoothing}}}"]
    return "\n".join(["test_stage:", "  quant_modifiers:", *lines, f"    QuantizationModifier: {{{rounding}}}", ""])


def rounded(model: ModelProto, text: str) -> osp.Result:
    result = osp.oneshot(model, text, SAMPLES)
    assert result.model is not None
    return result


def stored(model: ModelProto | None) -> dict[str, Any]:
    assert model is not None
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def ran(model: ModelProto | None, name: str = "y") -> Any:
    from onnxruntime import InferenceSession

    assert model is not None
    copy = ModelProto.FromString(model.SerializeToString())
    if name != "y":
        copy.graph.output.append(make_tensor_value_info(name, TensorProto.FLOAT, None))
    return InferenceSession(copy.SerializeToString()).run([name], SAMPLES)[0]


def by_formula(model: ModelProto, value: str, readers: tuple[str, ...], strength: float = STRENGTH) -> Any:
    """max|x|^a / max|w|^(1 - a) of each channel."""
    arrays = stored(model)
    widths = np.abs(ran(model, value)).reshape(-1, WIDTH).max(axis=0)
    weights = np.max([np.abs(arrays[f"{name}.weight"]).max(axis=1) for name in readers], axis=0)
    return widths**strength / weights ** (1 - strength)


def distance(dense: ModelProto, model: ModelProto | None) -> float:
    wanted = ran(dense)
    return float(np.linalg.norm(ran(model) - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("written_out", [False, True], ids=["one node", "written out"])
@pytest.mark.parametrize("strength", [0.3, STRENGTH, 1.0])
def test_scales_are_those_of_the_formula(written_out: bool, strength: float) -> None:
    dense = network(written_out)
    found = rounded(dense, recipe(f"smoothing_strength: {strength}"))
    before, after = stored(dense), stored(found.model)
    for name, readers in (("first", LAYERS[:2]), ("second", LAYERS[2:])):
        factors = by_formula(dense, name, readers, strength)
        np.testing.assert_allclose(after[f"{name}.scale"], before[f"{name}.scale"] / factors, rtol=1e-5)
        np.testing.assert_allclose(after[f"{name}.bias"], before[f"{name}.bias"] / factors, rtol=1e-5)
    note = next(one for one in found.report.notes if "smoothed" in one)
    assert note.startswith("2 values")


def test_values_that_are_hard_to_round_come_out_nearer_and_zeros_stay() -> None:
    dense = network()
    plain, smooth = (rounded(dense, recipe(text)) for text in (None, "smoothing_strength: 0.7"))
    assert distance(dense, smooth.model) < 0.5 * distance(dense, plain.model)
    weights = [array for array in stored(smooth.model).values() if array.dtype.kind in "iu" and array.ndim == 2]
    zeros = sorted(float(np.mean(array == np.median(array))) for array in weights)
    assert sum(one >= 0.5 for one in zeros) == 1, zeros


def test_the_zeros_of_a_recipe_hold() -> None:
    pruned = recipe().replace("    Smooth", "    SparseGPTModifier: {mask_structure: '2:4'}\n    Smooth")
    result = rounded(network(), pruned)
    assert result.model is not None
    assert {row.pattern for row in result.report.rows} == {"2:4"}
    assert osp.verify(result.model).report.ok


def test_dead_channels_stay_as_they_are() -> None:
    dense = network(dead=True)
    before, after = stored(dense), stored(rounded(dense, recipe()).model)
    for name in ("first.scale", "first.bias"):
        np.testing.assert_array_equal(after[name][[5, 7]], before[name][[5, 7]])
        assert (after[name][[0, 1, 2]] != before[name][[0, 1, 2]]).all()


@for_each(
    "options, moved",
    [
        ("mappings: [[['re:.*query', 're:.*key'], 're:.*first']]", {"first"}),
        (
            "mappings: [[['re:.*query', 're:.*key', 're:.*up'], 're:.*first'], [[block.up], second]]",
            {"first", "second"},
        ),
        ("mappings: [[block.up, 're:sec.*']]", {"second"}),
        ("ignore: [first]", {"second"}),
        ("ignore: ['re:.*nothing']", {"first", "second"}),
    ],
)
def test_mappings_say_what_moves(options: str, moved: set[str]) -> None:
    dense = network()
    after, before = stored(rounded(dense, recipe(options)).model), stored(dense)
    names = ("first", "second")
    assert {name for name in names if (after[f"{name}.scale"] != before[f"{name}.scale"]).any()} == moved


def test_what_a_shortcut_reads_too_stays() -> None:
    dense = network(shortcut=True)
    after, before = stored(rounded(dense, recipe()).model), stored(dense)
    np.testing.assert_array_equal(after["first.scale"], before["first.scale"])
    assert (after["second.scale"] != before["second.scale"]).any()


@for_each(
    "options",
    [
        "mappings: [[['re:.*query'], 're:.*first']]", "mappings: [[[block.up], third]]", "smoothing_strength: 1.5",
        "mappings: [first]", "mappings: [[[], first]]",
    ],
)  # fmt: skip
def test_what_cannot_move_is_refused(options: str) -> None:
    with refusing(osp.OnnxSparseError):
        osp.oneshot(network(), recipe(options), SAMPLES)


@for_each("smoothing", ["SmoothQuantModifier: {}", "AWQModifier: {}"])
def test_where_nothing_can_move_the_rest_is_done_and_it_is_said(smoothing: str) -> None:
    net = network()
    net.graph.output.extend(make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("first", "second"))
    text = recipe(None).replace("quant_modifiers:\n", f"quant_modifiers:\n    {smoothing}\n")
    result = rounded(net, text)
    assert any("there is no normalization that rounded layers alone read" in note for note in result.report.notes)
    assert {row.status for row in result.report.rows} == {"quantized"}


def test_what_is_ignored_is_said_where_it_is_all() -> None:
    result = rounded(network(), recipe("ignore: [first, second]"))
    assert any("but for those that are ignored" in note for note in result.report.notes)
    assert np.array_equal(stored(result.model)["first.scale"], stored(network())["first.scale"])


def test_alone_and_twice_it_is_refused() -> None:
    alone = "test_stage:\n  quant_modifiers:\n    SmoothQuantModifier: {}\n"
    twice = "modifiers:\n- !SmoothQuantModifier\n- !SmoothQuantModifier\n- !GPTQModifier {scheme: W8A8}\n"
    for text in (alone, twice):
        with refusing(osp.OnnxSparseError):
            osp.oneshot(network(), text, SAMPLES)


def test_weights_alone_need_none() -> None:
    weights = "config_groups: {a: {targets: [Linear], weights: {num_bits: 8}}}"
    result = rounded(network(), recipe(rounding=weights))
    assert any("weights alone are rounded" in note for note in result.report.notes)
    assert np.array_equal(stored(result.model)["first.scale"], stored(network())["first.scale"])
