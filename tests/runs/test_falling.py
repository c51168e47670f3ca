"""A run that ends too early says so; one that has come to rest, or that only rattles, does not."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.train.finetune import still_falling

STEPS = np.arange(20)


@pytest.mark.parametrize(
    ("probes", "untrained", "falls"),
    [
        (np.exp(-0.05 * STEPS), 2.0, True),
        (0.2 + 0.8 * np.exp(-0.5 * STEPS), 2.0, False),
        (np.exp(-0.05 * STEPS), 100.0, False),  # hardly anything is left to win
        (1 + 0.3 * np.sin(STEPS), 2.0, False),
        (np.exp(0.05 * STEPS), 2.0, False),
        ([1.0, 0.9, 0.8, 0.7], 2.0, False),  # too few looks
        ([*np.exp(-0.05 * STEPS), 0.9], 2.0, False),  # the last one is worse again
        (np.zeros(20), 1.0, False),
        ([], 1.0, False),
    ],
)
def test_what_is_called_falling(probes, untrained, falls):
    said = still_falling([float(value) for value in probes], untrained)
    assert ("more --epochs" in said) == falls


def test_the_note_says_by_how_much():
    assert "by 30 %" in still_falling([1.0] * 6 + [1.0] * 6 + [0.7] * 6, 2.0)
