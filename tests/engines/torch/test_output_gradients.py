"""Gradients of random projections of the outputs in torch, beside those of onnxruntime-training."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("torch")

from onnxsparse.calibration.output_gradients import output_gradients
from onnxsparse.engines.ort import library
from tests.engines.differentiated_nets import NETS, Net, demand_slopes, looping, rounded

both = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training beside torch")


@pytest.mark.parametrize("make", [*NETS.values(), looping], ids=[*NETS, "looping"])
def test_gradients_are_those_of_the_projection(make: Callable[[], Net]) -> None:
    demand_slopes(make(), "torch")


@both
@pytest.mark.parametrize("make", [*NETS.values(), rounded], ids=[*NETS, "rounded"])
def test_both_engines_have_the_same_gradients(make: Callable[[], Net]) -> None:
    own = make()
    ours, theirs = (output_gradients(own.proto, own.names, own.feeds(4, 3), engine) for engine in ("ort", "torch"))
    for one, other in zip(ours, theirs):
        assert list(one) == list(other)
        for name, gradient in one.items():
            np.testing.assert_allclose(gradient, other[name], atol=1e-5 * abs(gradient).max(), err_msg=name)


@both
def test_torch_takes_what_the_other_engine_refuses_and_it_is_told() -> None:
    own = looping()
    gradients = output_gradients(own.proto, own.names, own.feeds(4))
    assert gradients.engine == "torch"
    assert any("Loop" in note for note in gradients.notes)
    assert output_gradients(rounded().proto, rounded().names, rounded().feeds(4)).engine == "ort"


def test_values_without_a_gradient_have_a_reason() -> None:
    from tests.engines.test_output_gradients import stepped

    own = stepped()
    gradients = output_gradients(own.proto, own.names, own.feeds(4), engine="torch")
    assert set(gradients.unreached) == {"unused", "stepped", "places", "stored"}
    assert [sorted(found) for found in gradients] == [["a"], ["a"]]
