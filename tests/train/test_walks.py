"""How far a command walks: what it opens and plans, and which modules it loads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxsparse as osp
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.graph.flow import Flow
from onnxsparse.graph.model import Model
from onnxsparse.passes import verify
from onnxsparse.planning import request
from tests.dialects.nets import SIZE, onnx_model, random
from tests.test_house import PACKAGE

ort = pytest.mark.skipif(not ort_library.available(), reason="needs onnxruntime-training")
X = random(1, 64, 3, SIZE, SIZE)
SCRIPT = """
import sys
import numpy as np
import onnxsparse as osp

sys.modules["torch"] = None  # where it is installed, onnxruntime-training 1.19.2 itself imports it; nothing of ours may
x = np.random.default_rng(0).standard_normal((64, 1, 8, 8)).astype(np.float32)
osp.finetune(sys.argv[1], data={"x": x}, output=sys.argv[2], pattern="2:4", steps=2, engine="ort")
print(*[name for name in sys.modules if name.startswith("onnxsparse.engines.torch")])
"""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often files are opened, graphs walked and plans made."""
    found: Counter[str] = Counter()

    def count(owner: Any, name: str, what: str) -> None:
        before = getattr(owner, name)

        def counting(*args: Any, **more: Any) -> Any:
            found[what] += 1
            return before(*args, **more)

        monkeypatch.setattr(owner, name, counting)

    count(Model, "__init__", "open")
    count(Flow, "walk", "walk")
    count(request, "make_plan", "plan")
    count(verify, "make_plan", "plan")
    return found


@ort
@pytest.mark.parametrize("more", [{}, {"sparser": "probabilistic", "pattern": "unstructured", "sparsity": 0.5}])
def test_a_fine_tune_opens_its_input_and_what_it_wrote(counted: Counter[str], tmp_path: Path, more: Any) -> None:
    """However many training graphs it makes."""
    options = {"pattern": "2:4", **more}
    osp.finetune(onnx_model(), data={"x": X}, output=tmp_path / "o.onnx", steps=40, engine="ort", **options)
    assert counted == {"open": 2, "walk": 2, "plan": 1}


@ort
def test_levels_plan_once_and_open_each_file_once(counted: Counter[str], tmp_path: Path) -> None:
    osp.levels(
        onnx_model(), data={"x": X}, output=tmp_path / "out", levels="30,50,60", steps=2, engine="ort", init="plain"
    )
    assert counted == {"open": 4, "walk": 4, "plan": 1}


@ort
def test_levels_leave_the_model_as_it_was(tmp_path: Path) -> None:
    """Each level's file is what one level alone would write: nothing of the level before is in it."""
    options: Any = {"data": {"x": X}, "steps": 2, "engine": "ort", "lr": 1e-12, "init": "plain"}
    both, one = tmp_path / "both", tmp_path / "one"
    osp.levels(onnx_model(), output=both, levels="30,60", **options)
    osp.levels(onnx_model(), output=one, levels="60", **options)
    first, second = (osp.load(folder / "level-60.onnx") for folder in (both, one))
    assert first.metadata == second.metadata
    for mine, other in zip(first.weights, second.weights):
        assert np.array_equal(mine.tensor.read() == 0, other.tensor.read() == 0)


@ort
def test_a_fine_tune_in_onnxruntime_training_loads_nothing_of_torch(tmp_path: Path, digits_cnn: Path) -> None:
    words = [sys.executable, "-c", SCRIPT, str(digits_cnn), str(tmp_path / "out.onnx")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == []
