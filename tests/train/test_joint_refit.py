"""The joint refit behind a calibration, as `prune --data` has it: nearer to the dense model, under the same masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxsparse as osp
from onnxsparse.cli import main
from onnxsparse.engines.ort import library
from onnxsparse.errors import OptionError
from onnxsparse.passes import calibration_asked
from onnxsparse.train import joint_refit
from tests.calibration.nets import conv_net, samples

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(not library.available(), reason="training needs onnxruntime-training")
LEVEL: dict[str, Any] = {"pattern": "unstructured", "sparsity": 0.9}
STEPS = 60


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return conv_net(tmp_path_factory.mktemp("net") / "net.onnx")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return samples(tmp_path_factory.mktemp("data") / "data.npz")


@pytest.fixture(scope="module")
def apart(net: Path, data: Path) -> osp.Result:
    return osp.prune(net, data=data, joint_steps=0, **LEVEL)


@pytest.fixture(scope="module")
def joined(net: Path, data: Path) -> osp.Result:
    return osp.prune(net, data=data, joint_steps=STEPS, **LEVEL)


def numbers_of(result: osp.Result) -> dict[str, Any]:
    assert result.model is not None
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in result.model.graph.initializer}


def joint(result: osp.Result) -> Any:
    found: Any = result.report.details["calibration"]
    return found.get("joint")


def distance(net: Path, result: osp.Result) -> float:
    """Between the outputs, on samples that nobody has seen."""
    import onnxruntime

    assert result.model is not None
    images = np.random.default_rng(9).standard_normal((200, 3, 10, 10)).astype(np.float32)
    files = str(net), result.model.SerializeToString()
    dense, ours = (onnxruntime.InferenceSession(file).run(None, {"x": images})[0] for file in files)
    return float(np.square(ours - dense).mean() / dense.var())


def test_it_comes_nearer_to_the_dense_model(net: Path, apart: osp.Result, joined: osp.Result) -> None:
    found = joint(joined)
    assert (found["steps"], found["taken"]) == (STEPS, True)
    assert found["after"] < found["before"]
    assert distance(net, joined) < 0.95 * distance(net, apart)
    assert any(f"refitted together in {STEPS} steps" in note for note in joined.report.notes)
    assert joint(apart) is None


def test_masks_and_what_is_not_pruned_stay(net: Path, apart: osp.Result, joined: osp.Result) -> None:
    dense = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(net).graph.initializer}
    before, after = numbers_of(apart), numbers_of(joined)
    for row in joined.report.rows:
        if row.status == "pruned":
            assert ((after[row.name] == 0) == (before[row.name] == 0)).all()
            assert (after[row.name] != before[row.name]).any()
        else:
            assert (after[row.name] == dense[row.name]).all()
    assert osp.verify(joined.model).report.ok


def test_the_same_bytes_again(net: Path, data: Path, joined: osp.Result, tmp_path: Path) -> None:
    again = osp.prune(net, data=data, joint_steps=STEPS, workers=2, **LEVEL)
    assert joined.model is not None
    assert again.model is not None
    assert again.model.SerializeToString() == joined.model.SerializeToString()
    whole = tmp_path / "run"
    for resume in (False, True):
        kept = osp.prune(net, data=data, joint_steps=STEPS, checkpoint=whole, resume=resume, **LEVEL)
        assert kept.model is not None
        assert kept.model.SerializeToString() == joined.model.SerializeToString()


def test_what_does_harm_is_left_out(net: Path, data: Path, apart: osp.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_refit, "mixed", lambda arrays, *_: {"x": arrays["x"][:4] * 50})
    made = osp.prune(net, data=data, joint_steps=40, **LEVEL)
    assert joint(made)["taken"] is False
    assert any("did not help on samples held out" in note for note in made.report.notes)
    assert all((one == numbers_of(apart)[name]).all() for name, one in numbers_of(made).items())


def test_small_networks_have_it_by_default_and_large_ones_not(
    net: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration_asked, "JOINT_STEPS", joint_refit.FEWEST)
    assert joint(osp.prune(net, data=data, **LEVEL))["steps"] == joint_refit.FEWEST
    assert joint(osp.prune(net, data=data, solver="bias", **LEVEL)) is None
    assert joint(osp.prune(net, data=data, sensitivity="measured", **LEVEL)) is None
    monkeypatch.setattr(joint_refit, "WORK", 1e6)
    large = osp.prune(net, data=data, **LEVEL)
    assert joint(large) is None
    assert any(
        "million multiply-accumulates a sample; --joint-steps asks for it" in note for note in large.report.notes
    )


def test_normalization_that_is_kept_goes_along(tmp_path: Path) -> None:
    """Statistics that the sweep estimates anew are in scales and biases then."""
    path = conv_net(tmp_path / "net.onnx")
    model = onnx.load(path)
    draw = np.random.default_rng(3)
    stored = {"scale": 1.0, "shift": 0.0, "mean": 0.1, "variance": 2.0}
    for name, value in stored.items():
        array = (value + 0.1 * draw.random(24)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model.graph.node[1].input[0] = "n1"
    norm = onnx.helper.make_node("BatchNormalization", ["c1", *stored], ["n1"], "norm")
    model.graph.node.insert(1, norm)
    onnx.save(model, path)
    data = samples(tmp_path / "data.npz")
    made, plain = (osp.prune(path, data=data, joint_steps=steps, **LEVEL) for steps in (STEPS, 0))
    assert joint(made)["taken"]
    assert distance(path, made) < distance(path, plain)


def test_within_a_limit_the_figures_are_those_of_what_is_written(net: Path, data: Path) -> None:
    given: dict[str, Any] = {"pattern": "unstructured", "max_loss": 0.3, "metrics": "distance", "data": data}
    made, plain = (osp.prune(net, joint_steps=steps, **given) for steps in (STEPS, 0))
    assert made.report.details["metrics"] != plain.report.details["metrics"]
    limit: Any = made.report.details["max_loss"]
    assert limit["lost"] <= 0.3


def test_wrong_words(net: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match="joint_steps= takes a number from 0"):
        osp.prune(net, data=data, joint_steps=-1, **LEVEL)
    with pytest.raises(OptionError, match=r"least-squares., not of bias"):
        osp.prune(net, data=data, joint_steps=5, solver="bias", **LEVEL)
    words = [str(net), "--data", str(data), "--pattern", "2:4", "--joint-steps", "5"]
    assert main(["plan", *words, "-o", str(tmp_path / "plan.yaml")]) == 2
    assert "--joint-steps is of refitted weights, and plan refits none" in capsys.readouterr().err
    assert main(["prune", str(net), "--pattern", "2:4", "-o", str(tmp_path / "o.onnx"), "--joint-steps", "5"]) == 2
    assert "--joint-steps needs samples: pass --data" in capsys.readouterr().err
