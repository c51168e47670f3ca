"""What is nearly right is read, or answered with the word that was meant, in one line."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.dialects.msbench import build_sparse_scheduler, preset
from onnxsparse.dialects.msbench.configuration import read
from onnxsparse.dialects.msbench.trainer_section import optimizer_options
from onnxsparse.errors import OptionError
from onnxsparse.planning.model_inputs import fields_of
from onnxsparse.train.fixed_batch import batch_of
from onnxsparse.train.stepped_model import LoopOptions
from tests.dialects.nets import SIZE, batch, onnx_model
from tests.messages import refusing


def amba(**kwargs):
    config = preset("amba")
    config["scheduler"]["kwargs"].update({"total_iters": 8, "sparsity_table": [30, 60], **kwargs})
    return config


def prepared(config=None, **options):
    scheduler = build_sparse_scheduler(config or amba())
    return scheduler, scheduler.prepare_sparse_model(onnx_model(), **options)


def test_bytes_of_images_are_refused_before_anything_is_made():
    _, model = prepared()
    x, y = batch(0)
    with refusing(OptionError):
        model.step(((x * 20 + 128).clip(0, 255).astype(np.uint8), y))
    with refusing(OptionError):
        model.evaluate({"x": x.astype(np.uint8), "labels": y})
    given = batch_of((x.astype(np.float64), y), fields_of(model.model))
    assert given["x"].dtype == np.float32


def test_a_wrong_name_in_a_batch_says_what_is_there_and_what_is_wanted():
    x, y = batch(0)
    _, model = prepared()
    with refusing(OptionError):
        model.step({"images": x, "labels": y})


@pytest.mark.parametrize("said", ["SGD", "Sgd", "sgd", "SGD:momentum=0.9"])
def test_an_optimizer_is_known_in_any_case(said):
    scheduler, model = prepared(optimizer=said)
    assert model.options.optimizer == f"sgd{said[3:]}"
    scheduler.init_optimizer("AdamW")
    assert model.options.optimizer == "adamw"


@pytest.mark.parametrize("loss", ["ce", "CE", "nll", "cross_entropy"])
def test_a_loss_by_another_name(loss):
    with refusing(OptionError) as error:
        LoopOptions(loss=loss)
    assert "--loss" not in str(error.value)


def test_the_type_of_an_optimizer_comes_before_its_arguments():
    with refusing(OptionError):
        optimizer_options({"type": "SDG", "kwargs": {"lr": 0.1, "momentum": 0.9}})
    assert optimizer_options({"type": "nesterov", "kwargs": {}})["optimizer"] == "nesterov"


def test_what_is_no_scheduler_of_rates_is_told_in_one_line():
    class Optimizer:
        def __repr__(self):
            return "Optimizer (\n    lr: 0.1\n    momentum: 0\n)"

    scheduler, _ = prepared()
    for call in (scheduler.set_lr_scheduler, scheduler.init_optimizer):
        with refusing(OptionError) as error:
            call(Optimizer())
        assert "\n" not in str(error.value)


def test_a_misspelt_section_of_a_larger_configuration():
    with refusing(OptionError):
        read({"runtime": {}, "faker": 1, "sparsty": amba()})
    with refusing(OptionError):
        read({"schedular": {"type": "AmpereScheduler"}})


def test_an_analysis_with_another_exclusion_says_so(tmp_path):
    folder = {"output_dir": str(tmp_path), "default_input_shape": [1, 3, SIZE, SIZE], "do_sparse_analysis": False}
    prepared(amba(**folder))
    said = prepared(amba(**folder, no_prune_layer="wide"))[0].notes
    assert any(note.endswith("layer 'wide' is excluded now") for note in said), said
    said = prepared(amba(**folder))[0].notes
    assert any(note.endswith("layer 'wide' was excluded, and is not any more") for note in said), said
