"""Rates of layers as MSBench's scripts set them: on schedulers, by `gen_sparse_rate`, and on layers by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from onnxsparse.dialects.msbench import build_sparse_scheduler, gen_sparse_rate, preset
from onnxsparse.dialects.msbench.gen_sparse_rate import (
    get_sparsities_erdos_renyi,
    get_st_sparsities_special,
    get_st_sparsities_uniform,
    get_unst_sparsities_norm,
    get_unst_sparsities_norm_v2,
    get_unst_sparsities_uniform,
    update_sparsity_per_layer_from_sparsities,
)
from onnxsparse.errors import ModelError, OptionError, PlanError
from tests.dialects.nets import SHAPES, numbers, onnx_model
from tests.messages import refusing

LAYERS = [name.rpartition(".")[0] for name in SHAPES]
PLAIN = {"scheduler": {"type": "BaseScheduler"}, "mask_generator": {"type": "NormalMaskGenerator"}}


def prepared(config=PLAIN, **options):
    scheduler = build_sparse_scheduler(config)
    return scheduler, scheduler.prepare_sparse_model(onnx_model(), **options)


def zeros(scheduler):
    network = scheduler.network
    return {site.name: 1 - np.count_nonzero(network.effective(site.key)) / site.size for site in network.sites}


def sizes_of(func):
    power = {"Magnitude": None, "L1Normalized": 1, "L2Normalized": 2}[func]
    found = {name.rpartition(".")[0]: np.abs(array).reshape(-1) for name, array in numbers().items()}
    return {name: one if power is None else one / np.linalg.norm(one, power) for name, one in found.items()}


@pytest.mark.parametrize("func", ["Magnitude", "L1Normalized", "L2Normalized"])
@pytest.mark.parametrize("rate", [0.3, 0.8])
def test_one_threshold_over_the_whole_network(func, rate):
    sizes = sizes_of(func)
    ordered = np.sort(np.concatenate(list(sizes.values())))
    threshold = ordered[int(rate * ordered.size)]
    wanted = {name: float(np.mean(one <= threshold)) for name, one in sizes.items()}
    assert get_unst_sparsities_norm(onnx_model(), rate, func=func) == pytest.approx(wanted, abs=1e-3)


def test_layers_above_the_highest_rate_share_out_the_rest():
    sizes = sizes_of("L2Normalized")
    found = get_unst_sparsities_norm_v2(onnx_model(), 0.6, max_sparsity=0.65, no_prune_layer_list=["stem"])
    free = {name: one for name, one in sizes.items() if name != "stem"}
    ordered, place = np.sort(np.concatenate(list(free.values()))), 0.6 * sum(one.size for one in sizes.values())
    wanted, left = {"stem": 0.0}, dict(free)
    while left:
        threshold = ordered[int(place)]
        shares = {name: float(np.mean(one <= threshold)) for name, one in left.items()}
        above = {name: share for name, share in shares.items() if share > 0.65}
        wanted.update({**shares, **dict.fromkeys(above, 0.65)})
        place += sum((share - 0.65) * left[name].size for name, share in above.items())
        left = {name: one for name, one in left.items() if name not in above} if above else {}
    assert found == pytest.approx(wanted, abs=1e-3)
    assert max(found.values()) == 0.65 > min(share for name, share in found.items() if name != "stem")


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 0.98), st.sampled_from([0.5, 1.0]), st.booleans())
def test_erdos_renyi(rate, power, kernel):
    found = get_sparsities_erdos_renyi(onnx_model(), rate, include_kernel=kernel, erk_power_scale=power)
    size = {name.rpartition(".")[0]: math.prod(shape) for name, shape in SHAPES.items()}
    kept = sum((1 - found[name]) * size[name] for name in size)
    assert kept == pytest.approx(sum(count - math.floor(rate * count) for count in size.values()))
    raw = {name.rpartition(".")[0]: (shape if kernel else shape[:2]) for name, shape in SHAPES.items()}
    raw = {name: (sum(shape) / math.prod(shape)) ** (power if kernel else 1) for name, shape in raw.items()}
    factors = [(1 - found[name]) / raw[name] for name in raw if found[name] > 0]
    assert factors == pytest.approx([max(factors, default=0)] * len(factors))
    assert all(raw[name] * max(factors, default=0) >= 1 - 1e-9 for name in raw if factors and not found[name])


def test_rates_of_ones_own_beside_erdos_renyi():
    found = get_sparsities_erdos_renyi(onnx_model(), 0.8, {"wide": 0.25})
    assert found["wide"] == 0.25
    others = {name: count for name, count in found.items() if name != "wide"}
    size = {name: math.prod(SHAPES[f"{name}.weight"]) for name in others}
    zero = sum(others[name] * size[name] for name in others)
    assert zero == pytest.approx(sum(math.floor(0.8 * count) for count in size.values()))


def test_the_same_for_every_layer_or_every_convolution():
    assert get_unst_sparsities_uniform(onnx_model(), 0.4) == dict.fromkeys(LAYERS, 0.4)
    assert get_st_sparsities_uniform(onnx_model(), 0.4) == {**dict.fromkeys(LAYERS, 0.4), "head": 0.0}


def test_the_share_of_outputs_that_went():
    smaller = onnx_model()
    for tensor in smaller.graph.initializer:
        if tensor.name == "wide.weight":
            tensor.CopyFrom(numpy_helper.from_array(numbers()[tensor.name][:24], tensor.name))
        if tensor.name == "head.weight":
            tensor.CopyFrom(numpy_helper.from_array(numbers()[tensor.name][:, :24].copy(), tensor.name))
    assert get_st_sparsities_special(smaller, onnx_model()) == {**dict.fromkeys(LAYERS, 0.0), "wide": 0.25}


def test_what_is_set_is_what_is_zero_at_once():
    scheduler, model = prepared()
    rates = {"stem": 0.0, "deep": 0.25, "point": 0.5, "wide": 0.75, "head": 0.125}
    update_sparsity_per_layer_from_sparsities(model, rates)
    assert zeros(scheduler) == pytest.approx(rates)
    update_sparsity_per_layer_from_sparsities(model, {"wide": 0.5})
    assert zeros(scheduler) == pytest.approx({**rates, "wide": 0.5})


def test_a_lower_rate_brings_numbers_back_until_training_begins():
    scheduler, model = prepared()
    scheduler.update_sparsity_per_layer(model, 0.9)
    assert scheduler.compute_sparse_rate(model) == pytest.approx(0.9, abs=0.002)
    scheduler.update_sparsity_per_layer(model, 0)
    site = scheduler.network.sites[3]
    np.testing.assert_array_equal(scheduler.network.effective(site.key), numbers()["wide.weight"])


def test_rates_are_by_all_numbers_of_a_network_that_was_not_trained():
    _, model = prepared()
    before = get_unst_sparsities_norm(model, 0.5)
    update_sparsity_per_layer_from_sparsities(model, get_unst_sparsities_uniform(model, 0.9))
    assert get_unst_sparsities_norm(model, 0.5) == before


def test_the_call_of_the_scheduler_also_sets_them():
    scheduler, model = prepared()
    found = scheduler.get_sparsities_erdos_renyi(model, 0.5, include_kernel=True, erk_power_scale=1.0)
    assert found == get_sparsities_erdos_renyi(onnx_model(), 0.5, erk_power_scale=1.0)
    assert zeros(scheduler) == pytest.approx(found, abs=0.01)
    assert scheduler.compute_sparse_rate(model) == pytest.approx(0.5, abs=0.001)


def test_masks_stay_through_prune_model_and_a_state():
    scheduler, model = prepared()
    update_sparsity_per_layer_from_sparsities(model, {"wide": 0.5, "head": 0.25})
    before = zeros(scheduler)
    scheduler.prune_model(model, 0)
    assert zeros(scheduler) == before
    other, twin = prepared()
    other.load_state_dict(scheduler.state_dict())
    other.prune_model(twin, 1)
    assert zeros(other) == before
    assert other.rates.shares == scheduler.rates.shares


def test_whole_outputs():
    config = {**PLAIN, "mask_generator": {"type": "FPGMMaskGenerator", "kwargs": {"structured": True, "func": "l2"}}}
    scheduler, model = prepared(config)
    update_sparsity_per_layer_from_sparsities(model, get_st_sparsities_uniform(model, 0.5))
    assert zeros(scheduler) == {**dict.fromkeys(LAYERS, 0.5), "head": 0.0}
    wide = next(site for site in scheduler.network.sites if site.name == "wide")
    rows = scheduler.network.effective(wide.key).reshape(32, -1)
    assert sorted(np.count_nonzero(rows, axis=1)) == [0] * 16 + [288] * 16


def test_layers_that_are_left_out_stay_dense():
    scheduler = build_sparse_scheduler(PLAIN)
    scheduler.process_no_prune_layers("de", "module.head")
    model = scheduler.prepare_sparse_model(onnx_model())
    scheduler.update_sparsity_per_layer(model, 0.5)
    assert zeros(scheduler) == {"stem": 0.5, "deep": 0.0, "point": 0.5, "wide": 0.0, "head": 0.0}
    with refusing(OptionError):
        scheduler.process_no_prune_layers("", "")


def test_layers_may_be_left_out_of_what_is_prepared():
    scheduler, model = prepared()
    scheduler.process_no_prune_layers("", "stem,head")
    scheduler.update_sparsity_per_layer(model, 0.5)
    assert [name for name, share in zeros(scheduler).items() if share] == ["deep", "point", "wide"]


@pytest.mark.parametrize(
    "config",
    [preset("ampere"), preset("str"), {**PLAIN, "mask_generator": {"type": "NMMaskGenerator"}}],
    ids=["ampere", "str", "nm"],
)
def test_where_rates_mean_nothing_a_note_says_so(config):
    scheduler, model = prepared(config)
    scheduler.update_sparsity_per_layer(model, 0.75)
    assert any("rates of layers have no effect" in note for note in scheduler.notes)
    assert scheduler.compute_sparse_rate(model) < 0.75


def test_admm_draws_and_masks_by_rates():
    kwargs = {"structured": False, "func": "Magnitude"}
    config = {
        "scheduler": {"type": "ADMMScheduler", "kwargs": {"iters_per_epoch": 1, "max_iters": 3}},
        "mask_generator": {"type": "NormalMaskGenerator", "kwargs": kwargs},
        "sparsity": {"target_sparsity": 0.5, "uniform": True},
    }
    scheduler, model = prepared(config)
    update_sparsity_per_layer_from_sparsities(model, {"wide": 0.75})
    scheduler.prune_model(model, 0)
    assert not any(zeros(scheduler).values())
    scheduler.prune_model(model, 1)
    assert zeros(scheduler) == {**dict.fromkeys(LAYERS, 0.5), "wide": 0.75}


def test_refusals():
    scheduler, model = prepared()
    with refusing(OptionError):
        update_sparsity_per_layer_from_sparsities(onnx_model(), {"wide": 0.5})
    with refusing(PlanError):
        update_sparsity_per_layer_from_sparsities(model, {"wid": 0.5})
    with refusing(OptionError):
        update_sparsity_per_layer_from_sparsities(model, {"wide": 50})
    with refusing(OptionError):
        update_sparsity_per_layer_from_sparsities(model, [0.5])
    with refusing(OptionError):
        get_unst_sparsities_norm(model, 0.5, func="L2")
    with refusing(PlanError):
        get_unst_sparsities_norm_v2(model, 0.5, 0.7, ["fc"])
    with refusing(PlanError):
        get_sparsities_erdos_renyi(model, 0.5, {"heads": 0.1})
    with refusing(OptionError):
        get_sparsities_erdos_renyi(model, 0.5, ["head"])
    with refusing(OptionError):
        scheduler.update_sparsity_per_layer(model, "half")


def test_arguments_of_other_kinds():
    assert get_unst_sparsities_norm_v2(onnx_model(), 0.5, 0.9, "wide, head")["head"] == 0.0
    assert get_unst_sparsities_norm_v2(onnx_model(), 0.5, 1.0, None) == get_unst_sparsities_norm(onnx_model(), 0.5)
    with pytest.raises(OptionError, match="erk_power_scale is a number, not 'half'"):
        get_sparsities_erdos_renyi(onnx_model(), 0.5, erk_power_scale="half")
    broken = onnx_model()
    broken.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(np.full(SHAPES["stem.weight"], np.nan, np.float32), "stem.weight")
    )
    with pytest.raises(ModelError, match="not finite"):
        get_unst_sparsities_norm(broken, 0.5)


def test_a_star_import_brings_the_functions_alone():
    assert all(callable(getattr(gen_sparse_rate, name)) for name in gen_sparse_rate.__all__)


def test_rates_go_by_any_name_of_a_layer():
    scheduler, model = prepared()
    for name in ("wide", "wide.weight", "/wide/Conv", "module.wide"):
        rate = 0.25 if name == "wide" else 0.5
        update_sparsity_per_layer_from_sparsities(model, {name: rate})
        assert zeros(scheduler)["wide"] == rate
    assert get_sparsities_erdos_renyi(model, 0.5, {"/wide/Conv": 0.25})["wide"] == 0.25
    assert get_unst_sparsities_norm_v2(model, 0.5, 0.9, ["/wide/Conv"])["wide"] == 0.0
