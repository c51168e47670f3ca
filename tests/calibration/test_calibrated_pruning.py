"""`prune`, `plan` and `mask` with samples, as a user calls them: what comes out is measured, verified and repeated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxsparse as osp
from onnxsparse import progress
from onnxsparse.cli import main
from onnxsparse.engines.ort import library
from onnxsparse.errors import MissingExtraError, OptionError, PlanError, ProofError
from onnxsparse.graph.model import Model
from onnxsparse.options import SparsityOptions
from onnxsparse.passes.calibrated_pruning import Request, pruned
from onnxsparse.passes.calibration_asked import Asked
from onnxsparse.planning.plan_file import read_plan
from onnxsparse.planning.request import planned
from tests.cases import for_each
from tests.messages import refusing

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(not library.available(), reason="gradients need onnxruntime-training")
MODEL = Path(__file__).resolve().parents[2] / "models" / "digits_cnn.onnx"
SMALL = ["wide", "head"]
FEW = {"x": np.zeros((4, 1, 8, 8), np.float32)}
LEVEL: dict[str, Any] = {"pattern": "unstructured", "sparsity": 0.9}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Samples of the digits, sorted by class, as files often are."""
    digits = pytest.importorskip("models.digits")
    images, labels = digits.training_half()
    order = np.argsort(labels, kind="stable")
    path = tmp_path_factory.mktemp("samples") / "samples.npz"
    np.savez(path, x=images[order], labels=labels[order])
    return {"path": path, "x": images[order], "labels": labels[order]}


@pytest.fixture(scope="module")
def accuracy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    digits = pytest.importorskip("models.digits")

    def of(result: osp.Result) -> float:
        path = tmp_path_factory.mktemp("made") / "made.onnx"
        onnx.save(result.model, path)
        return float(digits.accuracy(str(path)))

    return of


def numbers_of(result: osp.Result) -> dict[str, Any]:
    assert result.model is not None
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in result.model.graph.initializer}


def test_samples_keep_what_magnitudes_lose(samples: dict[str, Any], accuracy: Any) -> None:
    made, plain = osp.prune(MODEL, data=samples["path"], **LEVEL), osp.prune(MODEL, **LEVEL)
    assert accuracy(made) > 0.965
    assert accuracy(made) > accuracy(plain) + 0.1
    assert osp.verify(made.model).report.ok
    rows = [row for row in made.report.rows if row.status == "pruned"]
    zeros, size = sum(row.zeros or 0 for row in rows), sum(row.size for row in rows)
    assert abs(zeros / size - 0.9) < 1e-3
    assert all(row.reason.startswith("refitted") for row in rows)
    found = made.report.details["calibration"]
    assert isinstance(found, dict)
    assert found["samples"] == 256
    assert (found["score"], found["solver"], found["allocation"]) == ("obs", "least-squares", "sensitivity")


def test_the_ridge_that_is_told_is_the_one_that_was_used(samples: dict[str, Any]) -> None:
    model, zeros = Model.open(MODEL), SparsityOptions(pattern="2:4", include=["head"])
    plan, _ = planned(model, None, None, zeros)
    made = {}
    for ridge in (0.01, 1.0):
        asked = Asked({"x": samples["x"]}, 32, sensitivity="measured", ridge=ridge)
        outcome = pruned(model, plan, Request(zeros, asked))
        assert outcome.details["calibration"]["ridge"] == ridge
        assert outcome.calibrated is not None
        (made[ridge],) = (array for array in outcome.calibrated.numbers.values() if array.ndim == 2)
    assert not np.array_equal(made[0.01], made[1.0])


def test_the_same_samples_make_the_same_bytes_from_wherever_they_come(samples: dict[str, Any], tmp_path: Path) -> None:
    asked = {"pattern": "2:4", "samples": 64, "seed": 3, "include": SMALL}
    first = osp.prune(MODEL, data=samples["path"], **asked).model
    assert first is not None
    again = osp.prune(MODEL, data={"x": samples["x"]}, **asked).model
    assert again is not None
    assert first.SerializeToString() == again.SerializeToString()
    other = osp.prune(MODEL, data=samples["path"], **{**asked, "seed": 4}).model
    assert other is not None
    assert first.SerializeToString() != other.SerializeToString()
    out = tmp_path / "out.onnx"
    flags = ["--pattern", "2:4", "--samples", "64", "--seed", "3", "--include", *SMALL, "--data", str(samples["path"])]
    assert main(["prune", str(MODEL), "-o", str(out), *flags, "-q"]) == 0
    assert {tensor.name: tensor.raw_data for tensor in onnx.load(out).graph.initializer} == {
        tensor.name: tensor.raw_data for tensor in first.graph.initializer
    }


def test_of_a_stream_the_first_samples_are_taken(samples: dict[str, Any]) -> None:
    def batches() -> Iterator[dict[str, Any]]:
        for start in range(0, 800, 40):
            yield {"x": samples["x"][start : start + 40]}

    streamed = osp.prune(MODEL, data=batches, samples=64, pattern="2:4")
    known = streamed.report.details["calibration"]
    assert isinstance(known, dict)
    assert known["samples"] == 64
    assert osp.verify(streamed.model).report.ok


def test_masks_by_samples_leave_the_weights_as_they_are(samples: dict[str, Any]) -> None:
    asked = {"pattern": "2:4", "samples": 64, "data": samples["path"], "include": SMALL}
    masked, pruned = osp.insert_masks(MODEL, **asked), osp.prune(MODEL, **asked)
    numbers, refitted = numbers_of(masked), numbers_of(pruned)
    for tensor in onnx.load(MODEL).graph.initializer:
        assert np.array_equal(onnx.numpy_helper.to_array(tensor), numbers[tensor.name])
    folded = osp.fold_masks(masked.model)
    assert folded.report.ok
    zeros = {name: array == 0 for name, array in numbers_of(folded).items()}
    row = next(row for row in masked.report.rows if row.status == "masked")
    assert np.array_equal(zeros[row.name], refitted[row.name] == 0)
    assert row.reason.startswith("masked, not refitted")


def test_it_says_how_far_it_is(samples: dict[str, Any]) -> None:
    seen: list[tuple[str, int, int]] = []
    with progress.listening(lambda *told: seen.append(told)):
        osp.prune(MODEL, data=samples["path"], samples=64, pattern="2:4", joint_steps=0)
    for stage in ("take gradients", "refit layer by layer"):
        first, *_, last = [told for told in seen if told[0] == stage]
        assert (first[1], last[1]) == (0, last[2]), stage


def test_a_plan_by_samples_says_what_prune_does(samples: dict[str, Any], tmp_path: Path) -> None:
    path, asked = tmp_path / "plan.yaml", {"data": samples["path"], "samples": 64, "seed": 5}
    osp.plan(MODEL, output=path, include=SMALL, **LEVEL, **asked)
    assert "# onnxsparse prune MODEL -o OUT --plan THIS_FILE --data SAMPLES\n" in path.read_text(encoding="utf-8")
    known = read_plan(str(path)).calibration
    assert known == {
        "score": "obs", "solver": "least-squares", "allocation": "sensitivity", "sensitivity": "gradients",
        "engine": "ort", "budget": "params", "samples": 64, "seed": 5,
    }  # fmt: skip
    by_plan, direct = (
        osp.prune(MODEL, plan=path, data=samples["path"]),
        osp.prune(MODEL, include=SMALL, **LEVEL, **asked),
    )
    numbers = numbers_of(direct)
    assert all(np.array_equal(array, numbers[name]) for name, array in numbers_of(by_plan).items())
    assert osp.verify(by_plan.model, plan=path).report.ok
    with refusing(PlanError, OptionError):
        osp.prune(MODEL, plan=path)
    with refusing(OptionError):
        osp.prune(MODEL, plan=path, data=samples["path"], samples=128)


def test_a_level_of_a_device_is_shared_out_by_sensitivity_under_its_caps(samples: dict[str, Any]) -> None:
    made = osp.prune(MODEL, target="amba:cv22", level=70, data=samples["path"], samples=64)
    sizes = sum(row.size for row in made.report.rows)
    assert abs(sum(row.zeros or 0 for row in made.report.rows) / sizes - 0.7) < 0.015
    for row in made.report.rows:
        assert row.wasted in (0, None)
        assert round(100 * (row.dropped or 0) / row.size, 1) == pytest.approx(
            round(100 * (row.dropped or 0) / row.size), abs=0.3
        )
    assert osp.verify(made.model).report.ok


def test_channels_are_ordered_first_and_calibrated_then(samples: dict[str, Any], accuracy: Any) -> None:
    pytest.importorskip("scipy")
    made = osp.prune(MODEL, target="ampere", permute=True, data=samples["path"], samples=64)
    assert osp.verify(made.model).report.ok
    assert {"permutation", "calibration"} <= set(made.report.details)
    assert accuracy(made) > 0.98


def test_the_most_zeros_within_a_measured_loss(samples: dict[str, Any]) -> None:
    asked = {"data": samples["path"], "samples": 64, "target": "amba:cv22", "include": SMALL}
    made = osp.prune(MODEL, max_loss=0.15, metrics="distance", **asked)
    details = made.report.details
    lost, metrics = details["max_loss"], details["metrics"]
    assert isinstance(lost, dict)
    assert isinstance(metrics, dict)
    assert details["measured_on"] == "samples that calibration did not see"
    assert metrics["distance"] == lost["lost"] <= 0.15
    zeros = sum(row.zeros or 0 for row in made.report.rows)
    fewer = osp.prune(MODEL, max_loss=0.05, metrics="distance", **asked)
    assert 0 < sum(row.zeros or 0 for row in fewer.report.rows) < zeros
    assert osp.verify(made.model).report.ok


def test_the_fewest_dense_layers_within_a_measured_loss(samples: dict[str, Any], tmp_path: Path) -> None:
    asked = {"data": {"x": samples["x"]}, "samples": 64, "pattern": "2:4", "eval_data": {"x": samples["x"][::9]}}
    asked["include"] = SMALL
    whole = osp.prune(MODEL, max_loss=1, metrics="distance", **asked)
    assert sum(row.status == "pruned" for row in whole.report.rows) == 2
    metrics = whole.report.details["metrics"]
    assert isinstance(metrics, dict)
    limit = 0.97 * metrics["distance"]
    part = osp.prune(MODEL, max_loss=limit, metrics="distance", **asked)
    lost = part.report.details["max_loss"]
    assert isinstance(lost, dict)
    assert lost["lost"] <= limit
    dense = [row.name for row in part.report.rows if row.reason.startswith("left dense for")]
    assert len(dense) == len(lost["left"]) == 1
    assert osp.verify(part.model).report.ok
    path = tmp_path / "plan.yaml"
    osp.plan(MODEL, output=path, max_loss=limit, metrics="distance", **asked)
    assert [entry.name for entry in read_plan(str(path)).entries if entry.reason.startswith("left dense")] == dense
    with pytest.raises(
        ProofError, match=r"cannot be met: .* of distance is lost with '\w+\W\w+' alone, the least .* 2"
    ):
        osp.prune(MODEL, max_loss=1e-6, metrics="distance", **asked)


@for_each(
    "given",
    [
        {"solver": "zero"},
        {"score": "obs"},
        {"allocation": "sensitivity", "sparsity": 0.5, "pattern": "unstructured"},
        {"samples": 8},
        {"max_loss": "1%"},
        {"data": FEW, "max_loss": "1%"},
        {"data": FEW, "max_loss": "1%", "pattern": "unstructured", "sparsity": 0.5},
        {"data": FEW, "metrics": "accuracy"},
        {"data": FEW, "labels": "y"},
        {"resize": "8x8"},
        {"data": FEW, "solver": "magic"},
        {"data": FEW, "samples": 0},
        {"data": FEW, "masks": {}},
        {"data": FEW, "tie_equal": True},
        {"data": {"x": np.zeros((4, 1, 9, 8), np.float32)}},
        {"data": "no_such_file.npz"},
    ],
    ids=str,
)
def test_what_means_nothing_is_refused(given: dict[str, Any]) -> None:
    with refusing(OptionError):
        osp.prune(MODEL, **{"pattern": "2:4", **given})


def test_an_analysis_says_what_zeros_cost_and_where_to_spend_them(
    samples: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "report.html"
    made = osp.analyze(MODEL, data=samples["path"], samples=64, include=SMALL, html=page)
    found = made.report.details["analysis"]
    assert isinstance(found, dict)
    for one in found["weights"]:
        costs = [point["distance"] for point in one["points"]]
        assert costs == sorted(costs)
        assert all(point["metrics"]["accuracy"] <= 1 for point in one["points"])
        moved = [point["metrics"]["distance"] for point in one["points"]]
        assert np.allclose(np.log10(costs[1:]), np.log10(moved[1:]), atol=0.3)
    for level in found["levels"]:
        sensitivity, *others = level["ways"]
        assert sensitivity["allocation"] == "sensitivity"
        assert all(sensitivity["distance"] <= way["distance"] * 1.01 for way in others)
    text = page.read_text(encoding="utf-8")
    assert "wide.weight" in text
    assert "<svg" in text
    assert not any(word in text for word in ("http", "<script"))
    assert "sensitivity" in str(made)
    assert "the levels of the first" not in str(made)
    monkeypatch.setattr("onnxsparse.report.terminal.SHOWN", 1)
    assert f"the levels of the first 1 of {len(found['weights'])} weights" in str(made)


def test_an_analysis_says_what_a_pattern_costs_beside_the_levels(samples: dict[str, Any], tmp_path: Path) -> None:
    page, asked = tmp_path / "report.html", {"data": samples["path"], "samples": 64, "sensitivity": "measured"}
    made = osp.analyze(MODEL, include=[*SMALL, "stem"], allow=["stem", "small"], html=page, **asked)
    found = made.report.details["analysis"]
    assert isinstance(found, dict)
    told = {one["name"]: (one["points"], one["patterns"]) for one in found["weights"]}
    for name in ("wide.weight", "head.weight"):
        (half, *_, last), (nm,) = told[name]
        assert nm["pattern"] == "2:4"
        assert half["distance"] * 0.9 < nm["distance"] < last["distance"]
        assert set(nm["metrics"]) == set(half["metrics"])
    (nm,) = told["stem.weight"][1]  # of one channel
    assert set(nm) == {"pattern", "reason"}
    assert "2:4" in str(made).splitlines()[0]
    assert "stem.weight cannot be 2:4: " in str(made)
    assert "<th>2:4</th>" in page.read_text(encoding="utf-8")
    other = osp.analyze(MODEL, pattern="1:4", include=["head"], **asked).report
    assert other.rule.startswith("unstructured")
    (one,) = other.details["analysis"]["weights"]  # type: ignore[index]
    assert one["patterns"][0]["pattern"] == "1:4"
    assert one["patterns"][0]["distance"] > told["head.weight"][1][0]["distance"]


class _Loader:
    """As the DataLoader of polygraphy: batches by number, of inputs that whoever runs it says."""

    def __init__(self) -> None:
        self.input_metadata: Any = None
        self.user_input_metadata: dict[str, Any] = {}

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index > 39:
            raise IndexError
        random = np.random.default_rng(index)
        return {name: random.random(shape).astype(kind) for name, (kind, shape) in self.input_metadata.items()}


def test_a_loader_of_polygraphy_is_taken() -> None:
    made = osp.prune(MODEL, data=_Loader(), samples=32, pattern="2:4", include=SMALL)
    known = made.report.details["calibration"]
    assert isinstance(known, dict)
    assert known["samples"] == 32


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"data": FEW, "pattern": "2:4"}
    with monkeypatch.context() as patch:
        patch.setattr("onnxsparse.engines.ort.library.available", lambda: False)
        patch.setattr("onnxsparse.engines.torch.library.available", lambda: False)
        with refusing(MissingExtraError):
            osp.prune(MODEL, **asked)
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name, *_: None)
        with refusing(MissingExtraError):
            osp.prune(MODEL, **asked)
