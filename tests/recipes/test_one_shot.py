"""Recipes that are done at once, from samples: SparseGPT, Wanda and GPTQ, in both forms of recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse.cli import main
from onnxsparse.passes.one_shot_pruning import outlier_levels
from onnxsparse.planning.layer_kinds import module_meant
from onnxsparse.recipes import Recipe
from tests.cases import for_each
from tests.messages import refusing

pytest.importorskip("onnxruntime")

WIDTH = 32
LAYERS = ("layers.0.fc1", "layers.0.fc2", "layers.1.fc1", "head")
RNG = np.random.default_rng(0)
MIXED = RNG.standard_normal((WIDTH, WIDTH)) * np.geomspace(3, 0.1, WIDTH)
SAMPLES = {"x": (RNG.standard_normal((256, WIDTH)) @ MIXED).astype(np.float32)}


def network() -> ModelProto:
    """Four layers, called as torch's exporter calls those of two blocks and a head."""
    rng, before, nodes, stored = np.random.default_rng(1), "x", [], []
    for name in LAYERS:
        path = f"/{name.replace('.fc', '/fc')}"
        weight = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5
        stored.append(numpy_helper.from_array(weight, f"{name}.weight"))
        nodes.append(helper.make_node("MatMul", [before, f"{name}.weight"], [f"{name}.out"], f"{path}/MatMul"))
        if name != "head":
            nodes.append(helper.make_node("Relu", [f"{name}.out"], [f"{name}.relu"], f"{path}/Relu"))
        before = f"{name}.relu"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in ("x", "head.out")]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def newer(text: str) -> str:
    lines = "".join(f"    {line}\n" for line in text.strip("\n").split("\n"))
    return f"test_stage:\n  run_type: oneshot\n  obcq_modifiers:\n{lines}"


def done(recipe: str, model: ModelProto | None = None, **options: Any) -> osp.Result:
    result = osp.oneshot(model or network(), recipe, SAMPLES, **options)
    assert result.model is not None
    assert osp.verify(result.model).report.ok
    return result


def zeros(result: osp.Result) -> dict[str, float]:
    """The share of zeros of each layer."""
    assert result.model is not None
    stored = {one.name: numpy_helper.to_array(one) for one in result.model.graph.initializer}
    return {name: float(np.mean(stored[f"{name}.weight"] == 0)) for name in LAYERS}


def distance(model: ModelProto | None) -> float:
    from onnxruntime import InferenceSession

    assert model is not None
    dense, sparse = (InferenceSession(one.SerializeToString()).run(None, SAMPLES)[0] for one in (network(), model))
    return float(np.linalg.norm(dense - sparse) / np.linalg.norm(dense))


# -- pruning


def test_both_forms_of_a_recipe_do_the_same() -> None:
    plain = "sparsity: 0.5, mask_structure: '2:4', targets: ['re:layers.\\d+$'], ignore: [layers.1]"
    tagged = done(f"modifiers:\n- !SparseGPTModifier {{{plain}}}\n").model
    result = done(newer(f"SparseGPTModifier: {{{plain}}}"))
    assert result.model is not None
    assert tagged is not None
    assert tagged.SerializeToString() == result.model.SerializeToString()
    assert zeros(result) == dict(zip(LAYERS, (0.5, 0.5, 0.0, 0.0)))
    reasons = {row.name: row.reason for row in result.report.rows}
    assert reasons["layers.1.fc1.weight"] == "the recipe ignores it"
    assert reasons["head.weight"] == "no target of the recipe means it"


@for_each("structure", ["'2:4'", "unstructured", "'0:0'"])
def test_what_looks_at_samples_is_nearer_than_magnitude(structure: str) -> None:
    options = f"{{sparsity: 0.5, mask_structure: {structure}}}"
    moved, chosen = (done(newer(f"{name}: {options}")) for name in ("SparseGPTModifier", "WandaPruningModifier"))
    rule: dict[str, Any] = {"pattern": "2:4"} if "2:4" in structure else {"pattern": "unstructured", "sparsity": 0.5}
    by_magnitude = distance(osp.prune(network(), **rule).model)
    assert distance(moved.model) < 0.7 * distance(chosen.model) < 0.7 * by_magnitude
    stored = {one.name: numpy_helper.to_array(one) for one in network().graph.initializer}
    for tensor in chosen.model.graph.initializer if chosen.model else ():
        kept = numpy_helper.to_array(tensor)
        assert np.array_equal(kept[kept != 0], stored[tensor.name][kept != 0])  # Wanda moves nothing


@for_each(
    "options, wanted",
    [
        ("sparsity: 0.3, mask_structure: '1:4'", (0.25, 0.25, 0.25, 0.25)),
        ("prunen: 3, prunem: 4", (0.75, 0.75, 0.75, 0.75)),
        ("sparsity: 0.5, targets: [MatMul], ignore: [head]", (0.5, 0.5, 0.5, 0.0)),
        ("sparsity: 0.5, targets: Linear", (0.5, 0.5, 0.5, 0.5)),
        ("sparsity: 0.5, targets: __ALL_PRUNABLE__", (0.5, 0.5, 0.5, 0.5)),
        ("sparsity: [0.25, 0.75], targets: [layers.0, 're:.*head']", (0.25, 0.25, 0.0, 0.75)),
    ],
)
def test_how_much_goes_of_what(options: str, wanted: tuple[float, ...]) -> None:
    assert tuple(zeros(done(newer(f"WandaPruningModifier: {{{options}}}"))).values()) == wanted


def test_levels_by_outliers_are_on_average_the_one_asked_for() -> None:
    rng = np.random.default_rng(0)
    groups = {str(tail): [np.abs(rng.standard_t(tail, 4000))] for tail in (2, 4, 30)}
    levels = outlier_levels(groups, 0.7, 5.0, 0.08)
    assert np.mean(list(levels.values())) == pytest.approx(0.7)
    assert max(levels.values()) - min(levels.values()) == pytest.approx(0.16)
    assert levels["2"] < levels["4"] < levels["30"]
    found = zeros(done(newer("SparseGPTModifier: {sparsity: 0.6, sparsity_profile: OWL, owl_m: 3, owl_lmbda: 0.1}")))
    assert max(found.values()) - min(found.values()) == pytest.approx(0.2, abs=2e-3)


def test_zeros_that_were_there_stay() -> None:
    half = osp.prune(network(), pattern="unstructured", sparsity=0.5, include=["re:layers.0"]).model
    assert half is not None
    had = {one.name: numpy_helper.to_array(one) == 0 for one in half.graph.initializer}
    result = done(newer("SparseGPTModifier: {mask_structure: '2:4', preserve_sparsity_mask: true}"), half)
    assert result.model is not None
    for tensor in result.model.graph.initializer:
        assert not numpy_helper.to_array(tensor)[had[tensor.name]].any()
    later = done(newer("WandaPruningModifier: {sparsity: 0.25, targets: [head]}"), half)
    assert zeros(later)["layers.0.fc1"] == 0.5
    assert {row.pattern for row in later.report.rows} == {"unstructured", "dense"}


# -- rounding


def test_rounding_by_what_it_does_is_nearer_and_holds_the_zeros() -> None:
    four = "config_groups: {a: {targets: [Linear], weights: {num_bits: 4, strategy: group, group_size: 16}}}"
    plain, by_gram = (done_rounded(newer(f"{name}: {{{four}}}")) for name in ("QuantizationModifier", "GPTQModifier"))
    assert distance(by_gram.model) < 0.9 * distance(plain.model)
    result = done(newer(f"SparseGPTModifier: {{mask_structure: '2:4', ignore: [head]}}\nGPTQModifier: {{{four}}}"))
    assert {row.pattern for row in result.report.rows} == {"2:4", "dense"}
    assert {row.status for row in result.report.rows} == {"quantized"}


def done_rounded(recipe: str) -> osp.Result:
    return osp.oneshot(network(), recipe, SAMPLES)


def test_what_is_rounded_may_stand_inside_of_the_other_modifier() -> None:
    inside = "quantize: {QuantizationModifier: {ignore: [head]}}"
    beside = "SparseGPTModifier: {mask_structure: '2:4', quantize: true}\nQuantizationModifier: {ignore: [head]}"
    first = done(newer(f"SparseGPTModifier: {{mask_structure: '2:4', {inside}}}"))
    second = done(newer(beside))
    assert first.model is not None
    assert second.model is not None
    assert first.model.SerializeToString() == second.model.SerializeToString()
    assert {row.status for row in first.report.rows if row.name == "head.weight"} == {"float"}


# -- what is said, and refused


def test_what_means_nothing_is_said() -> None:
    text = newer(
        "SparseGPTModifier: {sparsity: 0.3, mask_structure: '2:4', block_size: 64, ignore: [tail]}\n"
        "ConstantPruningModifier: {targets: __ALL__, start: 0}"
    )
    notes = " | ".join(done(text).report.notes)
    for said in ("block_size: columns", "2:4 fixes its own", "'tail' is no layer", "!ConstantPruningModifier: nothing"):
        assert said in notes, said


@for_each(
    "recipe",
    [
        newer("AutoRoundModifier: {scheme: W4A16}\nSparseGPTModifier: {sparsity: 0.5}"),
        newer("AWQModifier: {scheme: FP8, targets: [Linear]}"),
        "modifiers:\n- !SetLearningRateModifier {learning_rate: 0.1}\n- !WandaPruningModifier {sparsity: 0.5}\n",
        newer("SparseGPTModifier: {sparsity: 0.5, targets: [layer.0]}"),
        newer("SparseGPTModifier: {sparsity: 0.0}"),
        newer("SparseGPTModifier: {sparsity: 0.5, quantize: true}"),
        newer("GPTQModifier: {scheme: W8A8}\nQuantizationModifier: {ignore: [head]}"),
        newer("GPTQModifier: {scheme: FP8}"),
        newer("GPTQModifier: {scheme: W4A8}"),
        newer("WandaPruningModifier: {sparsity: [0.5, 0.6], targets: [head]}"),
        newer("WandaPruningModifier: {sparsity: [0.5, 0.6]}"),
        newer("WandaPruningModifier: {mask_structure: '4:4'}"),
        newer("WandaPruningModifier: {sparsity: 0.5, sparsity_profile: howl}"),
        newer("WandaPruningModifier: {sparsity: 0.5, ignore: [Linear]}"),
    ],
)
def test_what_cannot_be_done_is_refused(recipe: str) -> None:
    with refusing(osp.OnnxSparseError):
        osp.oneshot(network(), recipe, SAMPLES)


def test_what_nothing_runs_is_left_out_of_a_lenient_recipe() -> None:
    text = newer("AutoRoundModifier: {scheme: W4A16}\nWandaPruningModifier: {sparsity: 0.5}")
    result = osp.oneshot(network(), Recipe.load(text, strict=False), SAMPLES)
    assert any(note.startswith("not applied: ") and "AutoRound" in note for note in result.report.notes)


@for_each("groups", ["config_groups: {a: {targets: [%s], weights: {num_bits: 8}}}", "targets: [%s]\n  scheme: W8A16"])
def test_targets_that_mean_nothing_are_called_targets(groups: str) -> None:
    recipe = f"test_stage:\n quant_modifiers:\n  GPTQModifier:\n   {groups}\n".replace("\n  scheme", "\n   scheme")
    said = "targets: 're:.*nosuch' is no layer and no module type of the model"
    notes = osp.oneshot(network(), recipe % "Linear, 're:.*nosuch'", SAMPLES).report.notes
    assert said in notes
    assert not any("'Linear'" in note for note in notes)
    with pytest.raises(osp.OnnxSparseError, match=f"nothing to quantize: {said}"):
        osp.oneshot(network(), recipe % "'re:.*nosuch'", SAMPLES)


def test_the_command_writes_the_same_file(tmp_path: Path) -> None:
    model, data, recipe = tmp_path / "net.onnx", tmp_path / "samples.npz", tmp_path / "recipe.yaml"
    model.write_bytes(network().SerializeToString())
    np.savez(data, **SAMPLES)
    recipe.write_text(newer("SparseGPTModifier: {sparsity: eval(s)}\ns: 0.25").replace("    s: 0.25\n", "  s: 0.25\n"))
    words = ["oneshot", str(model), "--recipe", str(recipe), "--data", str(data), "--variables", "s=0.5"]
    assert main([*words, "-o", str(tmp_path / "sparse.onnx")]) == 0
    direct = osp.oneshot(model, Recipe.load(recipe, "s=0.5"), data, output=tmp_path / "direct.onnx")
    assert direct.report.ok
    assert (tmp_path / "sparse.onnx").read_bytes() == (tmp_path / "direct.onnx").read_bytes()


@for_each(
    "entry, wanted",
    [
        ("layers.0", "layers.0"), ("layers", "layers"), ("layer", ""), ("re:layers.\\d+$", "layers.0"),
        ("re:.*fc1", "layers.0.fc1"), ("re:fc1", ""), ("layers/0", "layers.0"),
    ],
)  # fmt: skip
def test_a_target_means_a_layer_by_any_module_around_it(entry: str, wanted: str) -> None:
    assert module_meant(entry, ["/layers.0/fc1/MatMul", "layers.0.fc1.weight"]) == wanted
