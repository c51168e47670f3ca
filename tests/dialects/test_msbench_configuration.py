"""Configurations: from mappings, files and presets, inside larger ones, and everything that is wrong with them."""

from __future__ import annotations

import json

import pytest

from onnxsparse.dialects.msbench import PRESETS, build_sparse_scheduler, preset
from onnxsparse.dialects.msbench.configuration import read
from onnxsparse.errors import OptionError
from onnxsparse.schedules import Stages
from tests.cases import for_each
from tests.messages import refusing

AMBA = {
    "mask_generator": {"type": "NormalMaskGenerator"},
    "fake_sparse": {"type": "FakeSparse"},
    "scheduler": {
        "type": "AmbaLevelPruneScheduler",
        "kwargs": {"total_iters": 70, "sparsity_table": [30, 50, 90], "no_prune_keyword": ""},
    },
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_files_and_names(name):
    assert type(build_sparse_scheduler(name)) is type(build_sparse_scheduler(preset(name)))


def test_a_file_is_what_a_mapping_is(tmp_path):
    plain, yaml = tmp_path / "c.json", tmp_path / "c.yaml"
    plain.write_text(json.dumps(AMBA))
    yaml.write_text(
        "base: &base {type: NormalMaskGenerator}\n"
        "sparsity:\n  mask_generator: *base\n  fake_sparse: {type: FakeSparse}\n"
        "  scheduler:\n    type: AmbaLevelPruneScheduler\n    kwargs:\n      <<: {no_prune_keyword: ''}\n"
        "      total_iters: 70\n      sparsity_table: [30, 50, 90]\n"
        "runtime: {runner: {type: sparse}}\n"
    )
    assert read(AMBA) == read(str(plain)) == read(yaml)


def test_none_is_no_value_in_yaml(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("scheduler:\n  type: AmpereScheduler\n  kwargs: {whitelist: None, verbosity: None}\n")
    assert read(path).scheduler.kwargs["whitelist"] is None
    assert read(path).scheduler.kwargs["verbosity"] == 0


def test_what_may_be_left_out():
    found = read({"mask_generator": {"type": "STRMaskGenerator"}, "scheduler": {}})
    assert found.scheduler.type == "BaseScheduler"
    assert read({"scheduler": {"type": "AmpereScheduler"}}).scheduler.kwargs["mask_calculator"] == "m4n2_1d"


def test_words_that_are_empty_match_nothing():
    found = read({"scheduler": {"type": "BaseScheduler", "kwargs": {"no_prune_keyword": "", "no_prune_layer": " ,"}}})
    scheduler = build_sparse_scheduler({"scheduler": {"type": "BaseScheduler", "kwargs": found.scheduler.kwargs}})
    scheduler.prepare_sparse_model("models/digits_cnn.onnx")
    assert len(scheduler.prunable) > 2


def changed(**kwargs):
    return {
        **AMBA,
        "scheduler": {"type": "AmbaLevelPruneScheduler", "kwargs": {**AMBA["scheduler"]["kwargs"], **kwargs}},
    }


@for_each(
    ("config", "said"),
    [
        ({"scheduler": {"type": "AmbaLevelPruneSheduler"}}, "did you mean AmbaLevelPruneScheduler"),
        ({"scheduler": {"type": "Amba", "kwargs": {}}}, "scheduler does not know the type"),
        ({"mask_generator": {"type": "NormalMaskGenerater"}}, "did you mean NormalMaskGenerator"),
        ({"fake_sparse": {"type": "STRFakeSparsee"}}, "did you mean STRFakeSparse"),
        (changed(total_iter=7), "did you mean total_iters"),
        (changed(sparsity_table=[30, 30]), "ascend"),
        (changed(sparsity_table=[30, 100]), "below 100"),
        (changed(sparsity_table=[]), "ascend"),
        (changed(sparsity_table=[90, 30]), "ascend"),
        (changed(total_iters=2), "3 stages need at least 3 steps"),
        (changed(total_iters="many"), "total_iters is a whole number"),
        (changed(prun_algo=2), "prun_algo is 0"),
        (changed(prun_hw_aware="cv21"), "no chip 'cv21'"),
        (changed(prun_algo_tuning=1.0), "tuning lies from 0"),
        ({"sheduler": {}}, "did you mean scheduler"),
        ({"scheduler": {"typ": "x"}}, "did you mean type"),
        ({"scheduler": "AmpereScheduler"}, "scheduler is a mapping"),
        ({"scheduler": {"type": "AmpereScheduler", "kwargs": {"mask_calculator": "m4"}}}, "any mMnN_"),
        ({"scheduler": {"type": "AmpereScheduler", "kwargs": {"mask_calculator": "m4n2_2d"}}}, "m4n2_2d_greedy"),
        (
            {"mask_generator": {"type": "STRMaskGenerator"}, "fake_sparse": {"type": "FakeSparse"}},
            "belongs to STRFakeSparse",
        ),
        ({"mask_generator": {"kwargs": {"tau": 3}}}, "kwargs but no type"),
        ({"scheduler": {"type": "ProbMaskPruneScheduler"}}, "needs ProbMaskGenerator"),
        (
            {"mask_generator": {"type": "ProbMaskGenerator"}, "scheduler": {"type": "ProbMaskPruneScheduler"}},
            "needs prune_rate",
        ),
        ({"scheduler": {}, "sparsity": {"target_sparsty": 0.5}}, "did you mean target_sparsity"),
        ("no_such_preset", "no preset is called"),
        (7, "a configuration is a mapping"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(config, said):
    with pytest.raises(OptionError, match=said):
        build_sparse_scheduler(config)


def test_a_file_that_is_none(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("scheduler: [unclosed")
    with refusing(OptionError):
        read(path)
    lines = [f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}]\n" for a, b in zip("abcdefghijk", "bcdefghijkl")]
    path.write_text("a: &a [1, 1]\n" + "".join(lines) + "sparsity: {scheduler: *l}\n")
    with refusing(OptionError):
        read(path)
    with refusing(OptionError):
        read(tmp_path / "none.yaml")


@pytest.mark.parametrize(("total", "count"), [(70, 7), (100, 7), (7, 7), (10, 3)])
def test_stages_begin_where_they_are_said_to(total, count):
    stages = Stages(total, count)
    begins = [k * total // count for k in range(count)]
    assert [step for step in range(total) if stages.begins(step)] == begins
    assert [step for step in range(total) if stages.ends(step)] == [*(at - 1 for at in begins[1:]), total - 1]
    assert [stages.at(step) for step in range(total)] == [sum(at <= step for at in begins) - 1 for step in range(total)]
    assert stages.at(total + 5) == count - 1
    assert sum(stages.length(k) for k in range(count)) == total


def test_calls_in_the_wrong_order():
    scheduler = build_sparse_scheduler(AMBA)
    for call in (scheduler.set_lr_scheduler, scheduler.init_optimizer, scheduler.export_sparse_model):
        with refusing(OptionError):
            call(None)
    with refusing(OptionError):
        scheduler.prune_model(None, 0)
