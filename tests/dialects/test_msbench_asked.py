"""What a loop asks of a scheduler that cannot be what it means is said, once."""

from __future__ import annotations

import pytest

from onnxsparse.dialects.msbench import build_sparse_scheduler, preset
from onnxsparse.errors import OptionError
from tests.dialects.nets import onnx_model


def prepared(options=None, **kwargs):
    config = preset("amba")
    config["scheduler"]["kwargs"].update({"total_iters": 4, "sparsity_table": [30, 60], **kwargs})
    scheduler = build_sparse_scheduler(config)
    return scheduler, scheduler.prepare_sparse_model(onnx_model(), **(options or {}))


def said(scheduler, words):
    return sum(words in note for note in scheduler.notes)


def test_an_export_before_anything_is_pruned_is_said(tmp_path):
    scheduler, model = prepared()
    scheduler.export_sparse_onnx(model, None, tmp_path / "dense")
    scheduler.export_sparse_model(model)
    assert said(scheduler, "has no zeros: call prune_model") == 1
    scheduler, model = prepared()
    scheduler.prune_model(model, 0)
    scheduler.export_sparse_model(model)
    assert not scheduler.notes


def test_masks_of_an_optimizer_need_no_iteration():
    for begun in (True, False):
        scheduler = build_sparse_scheduler("ampere")
        model = scheduler.prepare_sparse_model(onnx_model())
        if begun:
            scheduler.init_optimizer("sgd")
        scheduler.export_sparse_model(model)
        assert said(scheduler, "has no zeros") == (not begun)


@pytest.mark.parametrize(
    ("iterations", "back", "beyond"),
    [((0, 1, 1, 2, 3), 0, 0), ((0, 2, 1, 0), 1, 0), ((3, 4, 5), 0, 1), ((2, 3), 0, 0)],
)
def test_iterations_that_go_back_or_beyond_are_said_once(iterations, back, beyond):
    scheduler, model = prepared()
    for iteration in iterations:
        scheduler.prune_model(model, iteration)
    assert said(scheduler, "earlier iteration") == back
    assert said(scheduler, "after total_iters 4") == beyond


def test_levels_begin_at_init_lr():
    rates = []
    for options, kwargs in (({}, {"init_lr": 0.02}), ({"lr": 0.02}, {})):
        scheduler, model = prepared(options, **kwargs)
        scheduler.prune_model(model, 0)
        rates.append(model.pace.rate)
        assert not scheduler.notes
    assert rates[0] == rates[1] > 0.015
    scheduler, model = prepared({"lr": 0.01}, init_lr=0.02)
    assert model.options.lr == 0.01
    assert said(scheduler, "init_lr 0.02 has no effect beside lr=0.01") == 1
    with pytest.raises(OptionError, match="rate is a number above 0"):
        prepared(init_lr=-1)
