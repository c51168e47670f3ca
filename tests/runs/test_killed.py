"""Runs whose process is killed, with several modifiers on one weight: what they deliver is that of one that was not."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

import onnxsparse as osp
from onnxsparse.checkpoints import newest, save
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.torch import library as torch_library
from onnxsparse.errors import OptionError
from tests import warm
from tests.messages import refusing

HAS_TORCH = pytest.mark.skipif(not torch_library.available(), reason="needs torch")
HAS_ORT = pytest.mark.skipif(not ort_library.available(), reason="needs onnxruntime-training")
ENGINES = [pytest.param("ort", marks=HAS_ORT), pytest.param("torch", marks=HAS_TORCH)]
SHARED = """
modifiers:
- !EpochRangeModifier {start_epoch: 0, end_epoch: 3}
- !GMPruningModifier
    {start_epoch: 0, end_epoch: 2.4, update_frequency: 0.6, init_sparsity: 0.05, final_sparsity: 0.6,
     params: [deep, wide]}
- !MagnitudePruningModifier
    {start_epoch: 0.4, end_epoch: 1.8, update_frequency: 0.4, init_sparsity: 0.3, final_sparsity: 0.8,
     params: [deep], mask_type: block4, leave_enabled: false}
- !ConstantPruningModifier {start_epoch: 1.0, end_epoch: 2.0, params: [deep]}
"""
ALONE = SHARED[: SHARED.index("- !Magnitude")]
STEPS = 12

CHILD = """
import json, os, signal, sys
import numpy as np
import onnxsparse as osp
from onnxsparse.train import checkpointing

checkpointing.PLACES, checkpointing.APART = 10**9, 0.0  # a checkpoint behind every step
model, recipe, folder, out, engine, last, more = sys.argv[1:]

def watch(row):
    if row["step"] >= int(last):
        os.kill(os.getpid(), signal.SIGKILL)

images = np.random.default_rng(0).standard_normal((160, 1, 8, 8)).astype(np.float32)
osp.finetune(
    model, data=images, recipe=osp.Recipe.load(recipe), checkpoint=folder, output=out, engine=engine, watch=watch,
    batch_size=32, lr=1e-3, **json.loads(more),
)
"""


def run(desk: Path, folder: str, last: int, engine: str, model: Path, repository: Path, **more: bool) -> int:
    environment = {**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"}
    words = [model, desk / "recipe.yaml", desk / folder, desk / f"{folder}.onnx", engine, last, json.dumps(more)]
    done = warm.python(["-c", CHILD, *map(str, words)], env=environment)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes are killed")
@pytest.mark.parametrize("engine", ENGINES)
def test_masks_of_several_are_what_they_were(tmp_path: Path, digits_cnn: Path, repository: Path, engine: str) -> None:
    (tmp_path / "recipe.yaml").write_text(SHARED)
    assert run(tmp_path, "whole", 99, engine, digits_cnn, repository) == 0
    for moment in (4, 7):
        again = moment > 4
        assert run(tmp_path, "killed", moment, engine, digits_cnn, repository, resume=again) == -signal.SIGKILL
        assert not (tmp_path / "killed.onnx").exists()
        saved = newest(str(tmp_path / "killed"))
        assert saved is not None
        assert moment - 1 <= saved.facts["step"] <= moment
    assert saved.facts["host"]["masks"]  # those of several, each for itself
    assert run(tmp_path, "killed", 99, engine, digits_cnn, repository, resume=True) == 0
    whole, killed = ((tmp_path / f"{name}.onnx").read_bytes() for name in ("whole", "killed"))
    assert whole == killed
    ours, theirs = (newest(str(tmp_path / name)) for name in ("whole", "killed"))
    assert ours is not None
    assert theirs is not None
    assert ours.facts["step"] == theirs.facts["step"] == STEPS
    assert {key: one.tobytes() for key, one in ours.arrays.items()} == {
        key: one.tobytes() for key, one in theirs.arrays.items()
    }


def made_older(folder: Path) -> None:
    """The newest checkpoint as it was written before each modifier had a mask of its own."""
    found = newest(str(folder))
    assert found is not None
    arrays, facts = {key: one.copy() for key, one in found.arrays.items()}, found.facts
    del facts["host"]["masks"]
    for path in folder.glob("step-*"):
        shutil.rmtree(path)
    save(str(folder), found.step, arrays, facts)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("text", [ALONE, SHARED], ids=["alone", "shared"])
def test_checkpoints_that_do_not_tell_the_masks_apart(tmp_path: Path, digits_cnn: Path, engine: str, text: str) -> None:
    images = np.random.default_rng(0).standard_normal((96, 1, 8, 8)).astype(np.float32)
    given = {"data": images, "recipe": osp.Recipe.load(text), "checkpoint": tmp_path / "run", "engine": engine}
    first = osp.finetune(digits_cnn, **given, lr=1e-3)
    made_older(tmp_path / "run")
    if text is SHARED:
        with refusing(OptionError):
            osp.finetune(digits_cnn, **given, lr=1e-3, resume=True)
    else:
        again = osp.finetune(digits_cnn, **given, lr=1e-3, resume=True)
        assert again.model.SerializeToString() == first.model.SerializeToString()
