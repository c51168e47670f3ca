"""A batch that does not fit the model is one line before anything is trained on it, at first and later."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.dialects.msbench import build_sparse_scheduler
from onnxsparse.engines.ort import library as ort
from onnxsparse.engines.torch import library as torch
from onnxsparse.errors import OptionError
from tests.dialects.nets import batch, onnx_model

ENGINES = [
    pytest.param("ort", marks=pytest.mark.skipif(not ort.available(), reason="needs onnxruntime-training")),
    pytest.param("torch", marks=pytest.mark.skipif(not torch.available(), reason="needs torch")),
]
X, Y = batch(0)
WRONG = {
    "channels last": ((X.transpose(0, 2, 3, 1), Y), "shape"),
    "flat": ((X.reshape(len(X), -1), Y), "shape"),
    "larger": ((np.tile(X, (1, 1, 2, 2)), Y), "shape"),
    "fewer labels": ((X, Y[:-1]), "samples"),
    "more labels": ((X[:-1], Y), "samples"),
    "nothing": (None, "plain numbers"),
    "empty": ((X[:0], Y[:0]), "empty"),
    "no labels": (X, "labels"),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_what_does_not_fit_is_one_line(engine):
    scheduler = build_sparse_scheduler("amba")
    model = scheduler.prepare_sparse_model(onnx_model(), engine=engine, loss="cross-entropy")
    for turn in range(2):
        before = {site.key: model.weight(site.key).copy() for site in model.sites}
        for given, line in WRONG.values():
            with pytest.raises(OptionError, match=line):
                model.step(given)
        assert all((model.weight(key) == array).all() for key, array in before.items())
        assert model.steps == turn
        assert np.isfinite(model.step((X, Y)))
