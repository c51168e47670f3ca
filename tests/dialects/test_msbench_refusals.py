"""What a call or a configuration cannot mean is said, and what it may mean is read."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from onnxsparse.dialects.msbench import build_sparse_scheduler, preset
from onnxsparse.dialects.msbench.configuration import read
from onnxsparse.errors import ModelError, OptionError, OutputError
from onnxsparse.train.stepped_model import LoopOptions
from tests.dialects.nets import SIZE, onnx_model
from tests.messages import refusing


def amba(**kwargs):
    config = preset("amba")
    config["scheduler"]["kwargs"].update({"total_iters": 7, "default_input_shape": [1, 3, SIZE, SIZE], **kwargs})
    return config


def test_ampere_says_that_the_optimizer_is_missing():
    scheduler = build_sparse_scheduler("ampere")
    model = scheduler.prepare_sparse_model(onnx_model())
    with refusing(OptionError):
        scheduler.prune_model(model, 0)
    scheduler.init_optimizer()
    scheduler.prune_model(model, 0)


def test_a_mask_calculator_that_fails_names_the_layer():
    config = {
        "scheduler": {"type": "AmpereScheduler", "kwargs": {"mask_calculator": lambda weight: weight[99, 99, 99]}}
    }
    scheduler = build_sparse_scheduler(config)
    scheduler.prepare_sparse_model(onnx_model())
    with refusing(OptionError):
        scheduler.init_optimizer()


def test_another_model_is_refused():
    scheduler = build_sparse_scheduler(amba())
    model = scheduler.prepare_sparse_model(onnx_model())
    other = build_sparse_scheduler(amba()).prepare_sparse_model(onnx_model())
    for call in (lambda: scheduler.compute_sparse_rate(other), lambda: scheduler.prune_model(other, 0)):
        with refusing(OptionError):
            call()
    scheduler.export_sparse_model(model)
    with refusing(OptionError):
        scheduler.export_sparse_model(other)


def test_weights_that_are_no_numbers_are_refused():
    model = onnx_model()
    tensor = model.graph.initializer[0]
    array = numpy_helper.to_array(tensor).copy()
    array.flat[0] = np.nan
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    with refusing(ModelError):
        build_sparse_scheduler(amba()).prepare_sparse_model(model)


def test_switches_are_read_as_what_they_say():
    found = read({**amba(dw_no_prune="False", do_sparse_analysis="true"), "fuse_bn": "off"})
    assert found.scheduler.kwargs["dw_no_prune"] is False
    assert found.scheduler.kwargs["do_sparse_analysis"] is True
    assert not found.fuse_bn
    with refusing(OptionError):
        read(amba(dw_no_prune="maybe"))
    with refusing(OptionError):
        read(amba(prun_algo_tuning="a"))


def test_names_that_match_nothing_are_said(capsys):
    scheduler = build_sparse_scheduler({**amba(no_prune_keyword="nope", no_prune_layer="wde"), "leaf_module": ["Lin"]})
    scheduler.prepare_sparse_model(onnx_model())
    written = capsys.readouterr().err
    for option in ("no_prune_keyword 'nope'", "no_prune_layer 'wde'", "leaf_module 'Lin'"):
        assert option in written
    assert "did you mean wide" in written


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"init_lr": "a"}, "init_lr is a number, not 'a'"),
        ({"output_dir": 3}, "output_dir is the path of a file or folder, not 3"),
        ({"save_dir": ["a"]}, "save_dir is the path of a file or folder"),
        ({"prun_hw_aware": ["cv22"]}, "prun_hw_aware is the name of a chip"),
        ({"default_input_shape": 224}, "default_input_shape is a list of sizes"),
        ({"default_input_shape": [1, "a"]}, "default_input_shape is a list of sizes"),
        ({"sparse_rate_tolerance": float("nan")}, "sparse_rate_tolerance is a number"),
        ({"sparse_rate_tolerance": -1}, "sparse_rate_tolerance is a share from 0"),
    ],
)
def test_values_are_of_their_type_whether_they_have_an_effect_or_not(kwargs, said):
    with pytest.raises(OptionError, match=said):
        build_sparse_scheduler(amba(**{"do_sparse_analysis": False, **kwargs}))


@pytest.mark.parametrize("name", ["output_dir", "save_dir"])
def test_a_folder_that_cannot_be_made_is_said_before_anything_trains(tmp_path, name):
    (tmp_path / "file").touch()
    scheduler = build_sparse_scheduler(amba(**{name: tmp_path / "file" / "folder"}))
    with refusing(OutputError):
        scheduler.prepare_sparse_model(onnx_model())


def test_a_level_between_whole_per_cents_is_not_passed():
    scheduler = build_sparse_scheduler(amba(sparse_rate_tolerance=0))
    scheduler.prepare_sparse_model(onnx_model())
    assert scheduler.notes
    assert all("is nearest" in note for note in scheduler.notes)


def test_a_whitelist_is_a_list():
    scheduler = build_sparse_scheduler({"scheduler": {"type": "AmpereScheduler", "kwargs": {"whitelist": 5}}})
    with refusing(OptionError):
        scheduler.prepare_sparse_model(onnx_model())


def test_a_share_in_per_cent_gets_a_hint():
    parts = {"mask_generator": {"type": "NormalMaskGenerator"}, "fake_sparse": {"type": "FakeSparse"}}
    with refusing(OptionError):
        read({**parts, "scheduler": {"type": "BaseScheduler"}, "sparsity": {"target_sparsity": 70}})
    config = preset("probmask")
    config["scheduler"]["kwargs"].update(
        prune_rate=90, total_iterations=9, warmup_iteration_stamps=1, finetune_iteration_stamps=5
    )
    with refusing(OptionError):
        build_sparse_scheduler(config)


def test_levels_that_look_like_shares_are_said(capsys):
    build_sparse_scheduler(amba(sparsity_table=[0.3, 0.5])).prepare_sparse_model(onnx_model())
    assert "sparsity_table is in per cent" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["yaml", "json"])
def test_what_is_said_twice_is_an_error(tmp_path, ending):
    path = tmp_path / f"config.{ending}"
    texts = {
        "yaml": "scheduler:\n  type: AmbaLevelPruneScheduler\n  kwargs:\n    prun_algo: 1\n    prun_algo: 0\n",
        "json": '{"scheduler": {"type": "BaseScheduler", "type": "STRScheduler"}}',
    }
    path.write_text(texts[ending])
    said = {"yaml": "line 5: 'prun_algo' is there already, in line 4", "json": "'type' is there twice"}[ending]
    with pytest.raises(OptionError, match=said):
        read(str(path))


def test_what_a_merge_brings_in_gives_way(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "base: &base {no_prune_layer: head, verbosity: 1}\nsparsity:\n  scheduler:\n    type: AmpereScheduler\n"
        "    kwargs: {<<: *base, verbosity: 2}\n  leaf_module: []\n"
    )
    kwargs = read(str(path)).scheduler.kwargs
    assert (kwargs["no_prune_layer"], kwargs["verbosity"]) == ("head", 2)


def test_numbers_of_numpy_are_numbers():
    plain = amba(sparsity_table=[30, 60], prun_algo_tuning=0.25)
    table = {"sparsity_table": np.array([30, 60]), "prun_algo_tuning": np.float32(0.25)}
    shape = {"default_input_shape": np.array([1, 3, SIZE, SIZE]), "total_iters": np.int64(7)}
    made = [build_sparse_scheduler(one) for one in (plain, amba(**table, **shape))]
    for one in made:
        one.prepare_sparse_model(onnx_model())
    assert made[0].levels == made[1].levels
    assert made[0]._drops == made[1]._drops


def test_a_keyword_of_all_layers_is_said(capsys):
    scheduler = build_sparse_scheduler(amba(no_prune_keyword="weight"))
    model = scheduler.prepare_sparse_model(onnx_model())
    assert "all 5 layers stay dense, so nothing becomes sparse: no_prune_keyword weight" in capsys.readouterr().err
    assert scheduler.compute_sparse_rate(model) == 0


def test_what_ampere_leaves_dense_is_in_the_notes_with_its_reason(tmp_path):
    scheduler = build_sparse_scheduler({"scheduler": {"type": "AmpereScheduler", "kwargs": {"no_prune_layer": "wide"}}})
    model = scheduler.prepare_sparse_model(onnx_model())
    scheduler.init_optimizer()
    scheduler.export_sparse_onnx(model, None, str(tmp_path / "sparse.onnx"))
    told = [note for note in scheduler.notes if note.startswith("left dense")]
    assert told == [
        "left dense: stem: 3 inputs and 16 outputs are no multiples of 16 and 8",
        "left dense: deep: 1 inputs and 1 outputs are no multiples of 16 and 8",
    ]


def test_a_whitelist_that_names_no_layer_is_in_the_notes(capsys):
    kwargs = {"whitelist": ["Convv", "Gemm"]}
    scheduler = build_sparse_scheduler({"scheduler": {"type": "AmpereScheduler", "kwargs": kwargs}})
    scheduler.prepare_sparse_model(onnx_model())
    assert any("whitelist 'Convv' names no layer (did you mean Conv" in note for note in scheduler.notes)
    scheduler = build_sparse_scheduler({"scheduler": {"type": "AmpereScheduler", "kwargs": {"whitelist": ["LSTM"]}}})
    scheduler.prepare_sparse_model(onnx_model())
    assert "all 5 layers stay dense, so nothing becomes sparse: not in the whitelist" in capsys.readouterr().err


def test_layers_that_2_of_4_does_not_fit_are_in_the_notes():
    parts = {"mask_generator": {"type": "NMMaskGenerator"}, "fake_sparse": {"type": "FakeSparse"}}
    scheduler = build_sparse_scheduler({**parts, "scheduler": {"type": "BaseScheduler"}})
    scheduler.prepare_sparse_model(onnx_model())
    assert "left dense: stem, deep: its inputs are no multiple of 4" in scheduler.notes


@pytest.mark.parametrize("iteration", [np.int64(3), np.int32(3), 3])
def test_iterations_are_whole_numbers(iteration):
    scheduler = build_sparse_scheduler(amba())
    model = scheduler.prepare_sparse_model(onnx_model())
    scheduler.prune_model(model, iteration)
    for wrong in (True, 1.5, "3", None, -1):
        with refusing(OptionError):
            scheduler.prune_model(model, wrong)


@pytest.mark.parametrize("kind", ["STR", "FCPTS"])
def test_thresholds_begin_at_the_target(kind):
    parts = {"mask_generator": {"type": f"{kind}MaskGenerator"}, "fake_sparse": {"type": f"{kind}FakeSparse"}}
    scheduler = build_sparse_scheduler(
        {**parts, "scheduler": {"type": "STRScheduler"}, "sparsity": {"target_sparsity": 0.6}}
    )
    model = scheduler.prepare_sparse_model(onnx_model())
    assert scheduler.compute_sparse_rate(model) == pytest.approx(0.6, abs=0.01)


def test_beside_labels_nothing_is_distilled_unless_that_is_said():
    labels = np.zeros(4, np.int64)
    assert LoopOptions(loss="cross-entropy").objective(labels).share == 0
    assert LoopOptions(hardness=0.7).objective(labels).share == 0.7
