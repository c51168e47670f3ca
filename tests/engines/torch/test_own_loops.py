"""Masks on a module in a loop of the user's own that runs in two processes."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.engines.torch import own_loop_run
from tests.engines.torch.test_processes import together

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="gloo between processes")

SCRIPT = own_loop_run.__file__


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loops")


def came_to(folder: Path, way: str, optimizer: str, count: int) -> list[dict[str, np.ndarray]]:
    """What each process came to."""
    if not (folder / f"{way}-{optimizer}-{count}-0.npz").exists():
        done = together(SCRIPT, str(folder), way, optimizer, count=count)
        assert done.returncode == 0, done.stderr
    found = []
    for rank in range(count):
        with np.load(folder / f"{way}-{optimizer}-{count}-{rank}.npz") as file:
            found.append(dict(file))
    return found


def averages() -> bool:
    """Whether gloo takes the mean of FSDP's gradients where it is asked for it: that of torch 2.8 adds them up."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)


@pytest.mark.parametrize("optimizer", own_loop_run.OPTIMIZERS)
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_two_processes_with_masks(folder: Path, way: str, optimizer: str) -> None:
    (alone,) = came_to(folder, "alone", optimizer, 1)
    one, other = came_to(folder, way, optimizer, 2)
    assert all(np.isfinite(array).all() for array in alone.values())
    assert alone["leaks"] == one["leaks"] == other["leaks"] == 0
    assert set(alone) == set(one)
    for name, array in alone.items():
        assert np.array_equal(array == 0, one[name] == 0), name
        if optimizer == "sgd" and (way == "ddp" or averages()):
            assert np.abs(array - one[name]).max() <= 1e-5 * np.abs(array).max(), name
    if way == "ddp":
        assert all(array.tobytes() == other[name].tobytes() for name, array in one.items())


def test_states_of_spread_parameters_are_plain_and_are_gone_on_from(folder: Path) -> None:
    came_to(folder, "fsdp", "adam", 2)
    plain = own_loop_run.osp.torch.to_module(str(own_loop_run.ROOT / "models" / "digits_cnn.onnx")).state_dict()
    for rank in range(2):
        with np.load(folder / f"goes-on-{rank}.npz") as file:
            found = dict(file)
        whole = {name.partition("/")[2]: one for name, one in found.items() if name.startswith("whole/")}
        assert list(whole) == list(plain)
        assert (whole["deep.weight"] == 0).mean() == 0.5
        for name, array in found.items():
            assert np.array_equal(array, whole[name.partition("/")[2]]), name
