"""Two processes of torchrun get the same masks from ASP, whether their seeds are equal or not, and keep them."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.dialects import asp_processes_run
from tests.engines.torch.test_processes import together

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="gloo between processes"),
    pytest.mark.usefixtures("usual_signals"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("asp")
    done = together(str(asp_processes_run.__file__), str(made))
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.parametrize("case", [*asp_processes_run.CASES, "spread"])
def test_all_processes_have_the_masks_of_the_first(folder: Path, case: str) -> None:
    with np.load(folder / f"{case}-0.npz") as one, np.load(folder / f"{case}-1.npz") as two:
        assert set(one) == set(two)
        assert "0.weight" in one
        for name in one:
            assert np.array_equal(one[name], two[name]), name
        assert (one["0.weight"].reshape(-1, 4).sum(1) == 2).all()
        assert one["leaks"] == 0
        assert case == "spread" or not np.array_equal(one["order"], np.arange(32))
