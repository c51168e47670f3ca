"""AWQ in a recipe: weights that large inputs meet are widened by the best power, and the outputs come out nearer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnxsparse as osp
from onnxsparse.passes.quantization.activation_aware import Products
from tests.cases import for_each
from tests.messages import refusing
from tests.quantization.test_smoothing import LAYERS, SAMPLES, WIDTH, distance, network, ran, stored

pytest.importorskip("onnxruntime")
FOUR = "config_groups: {a: {targets: [Linear], weights: {num_bits: 4, strategy: group, group_size: 16}}}"


def aware(options: str = "", beside: str = "", name: str = "AWQModifier") -> str:
    both = ", ".join(filter(None, (FOUR, options)))
    return f"test_stage:\n  quant_modifiers:\n{beside}    {name}: {{{both}}}\n"


def rounded(text: str, **options: Any) -> osp.Result:
    result = osp.oneshot(network(**options), text, SAMPLES)
    assert result.model is not None
    return result


def test_outputs_come_out_nearer_than_rounded_plainly() -> None:
    plain, better = rounded(aware(name="QuantizationModifier")), rounded(aware())
    assert distance(network(), better.model) < 0.8 * distance(network(), plain.model)
    note = next(one for one in better.report.notes if "scaled for their readers" in one)
    assert note.startswith("2 values were")


@for_each("duo", [True, False])
def test_a_scale_is_a_power_of_inputs_by_one_of_weights(duo: bool) -> None:
    dense, after = network(), stored(rounded(aware(f"duo_scaling: {str(duo).lower()}")).model)
    before = stored(dense)
    for name, readers in (("first", LAYERS[:2]), ("second", LAYERS[2:])):
        found = before[f"{name}.scale"] / after[f"{name}.scale"]
        inputs = np.abs(ran(dense, name)).reshape(-1, WIDTH).mean(axis=0)
        weights = np.mean([_relative(before[f"{one}.weight"]) for one in readers], axis=0) if duo else np.ones(WIDTH)
        ways = [inputs**power / (weights ** (1 - power) + 1e-4 * duo) for power in np.arange(20) / 20]
        errors = [np.abs(found / (way / np.sqrt(way.max() * way.min())) - 1).max() for way in ways]
        assert min(errors) < 1e-3, errors


def _relative(weight: Any) -> Any:
    """By input, the mean magnitude relative to the widest number of its output, which has one block of steps."""
    widest = np.abs(weight).max(axis=0)
    return (np.abs(weight) / np.where(widest > 0, widest, 1.0)).mean(axis=1)


def test_zeros_and_dead_channels_stay() -> None:
    pruned = rounded(aware(beside="    SparseGPTModifier: {mask_structure: '2:4'}\n"))
    assert pruned.model is not None
    assert osp.verify(pruned.model).report.ok
    after, before = stored(rounded(aware(), dead=True).model), stored(network(dead=True))
    assert after["first.scale"][5] == before["first.scale"][5] == 0
    assert after["first.bias"][5] == 0
    assert np.isfinite(np.concatenate([array.reshape(-1) for array in after.values()]).astype(np.float64)).all()


@for_each(
    "options, moved",
    [
        ("mappings: [{smooth_layer: 're:.*first', balance_layers: ['re:.*query', 're:.*key']}]", {"first"}),
        ("mappings: [{smooth_layer: second, balance_layers: [block.up]}], duo_scaling: both", {"second"}),
        ("n_grid: 5, apply_clip: true", {"first", "second"}),
        ("ignore: ['re:.*up']", {"first"}),
    ],
)
def test_mappings_say_what_moves(options: str, moved: set[str]) -> None:
    after, before = stored(rounded(aware(options)).model), stored(network())
    assert {name for name in ("first", "second") if (after[f"{name}.scale"] != before[f"{name}.scale"]).any()} == moved


@for_each(
    "options",
    ["mappings: [{smooth_layer: third, balance_layers: [up]}]", "mappings: [{smooth_layer: first}]", "n_grid: 0",
     "duo_scaling: neither"],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(options: str) -> None:
    with refusing(osp.OnnxSparseError):
        osp.oneshot(network(), aware(options), SAMPLES)


def test_beside_what_rounds_by_another_modifier() -> None:
    for name in ("QuantizationModifier", "GPTQModifier"):
        found = rounded(aware(beside="    AWQModifier: {}\n", name=name))
        assert any("scaled for their readers" in note for note in found.report.notes)
    with refusing(osp.OnnxSparseError):
        osp.oneshot(network(), aware(beside="    SmoothQuantModifier: {}\n"), SAMPLES)


def test_sums_of_parts_are_those_of_all() -> None:
    batches = [np.random.default_rng(seed).standard_normal((3, 2, 5)) for seed in range(4)]
    whole, parts = Products(), [Products(), Products()]
    for number, batch in enumerate(batches):
        whole.add(batch)
        parts[number % 2].add(batch)
    parts[0].merge(parts[1])
    again = Products()
    again.restore(parts[0].state())
    np.testing.assert_allclose(again.products, whole.products)
    rows = np.concatenate(batches).reshape(-1, 5)
    np.testing.assert_allclose(whole.magnitudes / whole.count, np.abs(rows).mean(axis=0))
    np.testing.assert_allclose(whole.products, rows.T @ rows)
