"""Devices, half precision, accumulation, and optimizers and schedulers of torch."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from onnx.helper import make_node

import onnxsparse as osp
from onnxsparse.checkpoints import newest
from onnxsparse.engines.engine import DivergedError, Pace
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.torch.devices import Scaling, in_words
from onnxsparse.engines.torch.engine import TorchEngine
from onnxsparse.engines.torch.optimizer_state import TorchOptimizer
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.train import checkpointing
from tests.engines.torch.running import model, numbers
from tests.engines.torch.test_engine import arrays, images
from tests.messages import refusing

LEVEL: dict[str, Any] = {"pattern": "unstructured", "sparsity": 0.8, "updates": 5, "engine": "torch"}


def tune(model: Path, **options: Any) -> Any:
    return osp.finetune(model, **{"data": {"x": images()}, "steps": 12, "init": "plain", **LEVEL, **options})


def close(one: Any, other: Any, tolerance: float) -> None:
    one, other = arrays(one.model), arrays(other.model)
    for name, array in one.items():
        assert np.abs(array - other[name]).max() <= tolerance * np.abs(array).max(), name


# -- devices


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("cuda:99", "there is no device 'cuda:99' here; device= is one of cpu"),
        ("toaster", "there is no device 'toaster' here; device= is one of cpu"),
        ("meta", "'meta' holds no numbers"),
    ],
)
def test_a_device_that_is_not_there(digits_cnn: Path, device: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        tune(digits_cnn, device=device)


def test_a_device_says_which_engine(digits_cnn: Path) -> None:
    assert tune(digits_cnn, device="cpu", steps=2).report.details["engine"] == "torch"
    with refusing(OptionError):
        tune(digits_cnn, device="cuda", engine="ort")


# -- half precision


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision(digits_cnn: Path, precision: str) -> None:
    half, full = tune(digits_cnn, precision=precision), tune(digits_cnn)
    close(half, full, 0.1)
    assert any((array != arrays(full.model)[name]).any() for name, array in arrays(half.model).items())
    assert half.report.details["loss"] < half.report.details["loss_without_training"]


class Diary:
    """What was done at every update that took place, and how many did not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rates: list[float] = []
        self.dropped: list[int] = []
        self.skipped = 0
        plain, diary = TorchEngine.update, self

        def update(engine: Any, pace: Pace) -> bool:
            done = plain(engine, pace)
            if done:
                diary.rates.append(pace.rate)
                diary.dropped.append(sum(int((engine.frozen[key] == 0).sum()) for key in engine.frozen))
            else:
                diary.skipped += 1
            return done

        monkeypatch.setattr(TorchEngine, "update", update)


@pytest.mark.parametrize("regrow", ["none", "gradient"])
def test_a_step_that_overflows_counts_nowhere(digits_cnn: Path, monkeypatch: pytest.MonkeyPatch, regrow: str) -> None:
    with monkeypatch.context() as patched:
        plain = Diary(patched)
        tune(digits_cnn, retries=0, regrow=regrow)
    scaler = functools.partial(torch.amp.GradScaler, init_scale=2.0**60, growth_interval=3)
    monkeypatch.setattr(torch.amp, "GradScaler", scaler)
    diary = Diary(monkeypatch)
    result = tune(digits_cnn, precision="float16", retries=0, regrow=regrow)
    assert diary.skipped > 20
    assert diary.rates == plain.rates
    assert diary.dropped == plain.dropped
    assert result.report.details["steps"] == 12


def test_gradients_that_fit_no_scale_are_no_numbers() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    scaling = Scaling(torch.device("cpu"), True, [parameter])

    def skip(times: int) -> None:
        for _ in range(times):
            scaling.grown((parameter * float("inf")).sum()).backward()
            assert not scaling.shrink()

    skip(10)
    with pytest.raises(DivergedError, match="bfloat16"):
        skip(90)


def test_small_gradients_survive_the_scale() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    scaling = Scaling(torch.device("cpu"), True, [parameter])
    scaling.grown((parameter * 1e-6).sum()).backward()
    assert scaling.shrink()
    np.testing.assert_allclose(parameter.grad, np.full(3, 1e-6), rtol=1e-6)
    again = Scaling(torch.device("cpu"), True, [parameter])
    again.restore(json.loads(json.dumps(scaling.state())))
    assert again.state() == scaling.state()


def test_what_has_no_form_in_half_precision_is_said_at_once(digits_cnn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **more: Any) -> None:
        raise RuntimeError("not implemented for 'Half'\nat some place in the sources")

    monkeypatch.setattr(torch, "relu", refuse)
    monkeypatch.setattr(TorchEngine, "dense", lambda engine, batch: {})
    monkeypatch.setattr(TorchEngine, "_scales", lambda *_: {0: 1.0})
    says = "cannot train this model in float16 on cpu .*: not implemented for 'Half'$"
    with pytest.raises(ModelError, match=says):
        tune(digits_cnn, precision="float16")


def test_what_torch_cannot_do_is_one_line() -> None:
    with refusing(ModelError), in_words("train"):
        raise RuntimeError("of no use\nException raised from somewhere")
    with refusing(OptionError), in_words("train"):
        raise torch.OutOfMemoryError("CUDA out of memory")


# -- accumulation


@pytest.mark.parametrize(
    "engine",
    [
        "torch",
        pytest.param("ort", marks=pytest.mark.skipif(not ort_library.available(), reason="needs onnxruntime-training")),
    ],
)
def test_small_batches_add_up_to_a_large_one(digits_cnn: Path, engine: str) -> None:
    labels = np.arange(256) % 10
    labels[:64] = -100 if engine == "torch" else labels[:64]
    options = {"data": {"x": images(), "labels": labels}, "optimizer": "sgd", "lr": 1e-3, "engine": engine}
    options["loss"] = "cross-entropy"
    one = tune(digits_cnn, batch_size=32, **options)
    other = tune(digits_cnn, batch_size=8, accumulate=4, **options)
    close(one, other, 1e-5)
    np.testing.assert_allclose(one.report.details["loss"], other.report.details["loss"], rtol=1e-4)


def test_epochs_count_steps_of_all_that_is_accumulated(digits_cnn: Path) -> None:
    one = tune(digits_cnn, steps=None, epochs=2, batch_size=8, accumulate=4)
    other = tune(digits_cnn, steps=None, epochs=2, batch_size=32)
    assert one.report.details["steps"] == other.report.details["steps"] > 2


# -- optimizers and schedulers of torch

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "two groups": lambda p: torch.optim.SGD([{"params": p[:1], "lr": 0.3}, {"params": p[1:]}], lr=0.1, momentum=0.5),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
}
_RATES = torch.optim.lr_scheduler
SCHEDULERS = {
    "none": None,
    "step": lambda o: _RATES.StepLR(o, 2, 0.5),
    "multi-step": lambda o: _RATES.MultiStepLR(o, [2, 4]),
    "lambda": lambda o: _RATES.LambdaLR(o, lambda step: 1 / (step + 1)),
    "one cycle": lambda o: _RATES.OneCycleLR(o, 0.2, total_steps=20),
    "warm restarts": lambda o: _RATES.CosineAnnealingWarmRestarts(o, 3),
    "sequence": lambda o: _RATES.SequentialLR(o, [_RATES.ConstantLR(o), _RATES.ExponentialLR(o, 0.9)], [3]),
    "plateau": lambda o: _RATES.ReduceLROnPlateau(o, patience=1),
}


def stepped(theirs: TorchOptimizer, parameters: dict[str, Any], steps: range) -> None:
    for step in steps:
        random = torch.Generator().manual_seed(step)
        for parameter in parameters.values():
            parameter.grad = torch.randn(parameter.shape, generator=random)
        theirs.step(Pace(0.5), 0.5, float(step))


def fresh(numbers: dict[str, Any] | None = None) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(9)
    shapes = {"m:1": (4, 6), "m:2": (6,), "m:2/score": (3, 2)}
    made = {tag: torch.nn.Parameter(torch.randn(shape, generator=generator)) for tag, shape in shapes.items()}
    for tag, one in (numbers or {}).items():
        made[tag].data.copy_(one.data)
    return made


@pytest.mark.parametrize(
    ("optimizer", "scheduler"),
    [
        *((name, "one cycle" if "sgd" in name else "step") for name in OPTIMIZERS),
        *(("sgd", name) for name in SCHEDULERS),
    ],
)
@pytest.mark.filterwarnings("ignore:The epoch parameter in:UserWarning")  # SequentialLR of older torch warns of itself
def test_every_optimizer_goes_on_from_arrays_and_json(optimizer: str, scheduler: str) -> None:
    whole = fresh()
    theirs = TorchOptimizer(OPTIMIZERS[optimizer], SCHEDULERS[scheduler], whole)
    stepped(theirs, whole, range(4))
    kept, facts = theirs.state()
    kept, facts = {name: array.copy() for name, array in kept.items()}, json.loads(json.dumps(facts))
    other = fresh(whole)
    again = TorchOptimizer(OPTIMIZERS[optimizer], SCHEDULERS[scheduler], other)
    again.restore(kept, facts)
    stepped(theirs, whole, range(4, 9))
    stepped(again, other, range(4, 9))
    for tag, one in whole.items():
        assert torch.equal(one, other[tag]), tag


def test_moments_are_cleared_where_a_mask_says_so() -> None:
    parameters = fresh()
    theirs = TorchOptimizer(OPTIMIZERS["adam"], None, parameters)
    stepped(theirs, parameters, range(3))
    where = np.arange(24).reshape(4, 6) % 3 == 0
    theirs.clear("m:1", where)
    kept, _ = theirs.state()
    moments = [array for name, array in kept.items() if name.startswith("optimizer/m:1.") and array.shape == (4, 6)]
    assert len(moments) == 3
    for array in moments:
        assert (array[where] == 0).all()
        assert (array[~where] != 0).all()
    theirs.clear("m:1", None)
    assert not [name for name in theirs.state()[0] if name.startswith("optimizer/m:1.")]


class Secret:
    """Something that is neither numbers nor words."""


def test_a_state_that_cannot_be_held_is_named() -> None:
    parameters = fresh()
    theirs = TorchOptimizer(OPTIMIZERS["sgd"], None, parameters)
    theirs.optimizer.param_groups[0]["secret"] = Secret()
    with refusing(OptionError):
        theirs.state()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"optimizer": lambda p: "adam"}, "it gave 'adam'"),
        ({"optimizer": lambda p: torch.optim.LBFGS(p)}, "asks for a closure"),
        ({"optimizer": lambda p: torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])}, "holds other parameters"),
        ({"optimizer": OPTIMIZERS["sgd"], "lr_scheduler": lambda o: 3}, "it gave 3"),
        ({"optimizer": OPTIMIZERS["sgd"], "lr": 0.1}, "leave lr and weight-decay out"),
        ({"optimizer": OPTIMIZERS["sgd"], "engine": "ort"}, "take engine=.torch"),
        ({"optimizer": "own"}, "osp.finetune takes as optimizer="),
        ({"lr_scheduler": SCHEDULERS["step"]}, "needs an optimizer of your own"),
    ],
)
def test_functions_that_do_not_fit(digits_cnn: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        tune(digits_cnn, **options)


def test_an_own_optimizer_trains_and_is_no_part_of_the_recipe(digits_cnn: Path, tmp_path: Path) -> None:
    own: dict[str, Any] = {
        "optimizer": lambda p: torch.optim.AdamW(p, lr=2e-3),
        "lr_scheduler": lambda o: _RATES.CosineAnnealingLR(o, 12),
    }
    first = tune(digits_cnn, output=tmp_path / "one.onnx", **own)
    assert first.report.details["loss"] < first.report.details["loss_without_training"]
    recipe = tmp_path / "one.recipe.yaml"
    assert "optimizer: own" in recipe.read_text()
    again = osp.finetune(digits_cnn, data={"x": images()}, engine="torch", recipe=recipe, **own)
    close(first, again, 0.0)
    with refusing(OptionError):
        osp.finetune(digits_cnn, data={"x": images()}, recipe=recipe)


@pytest.mark.parametrize("sparser", ["mask", "straight-through"])
def test_a_run_with_an_own_optimizer_goes_on_bit_for_bit(
    digits_cnn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sparser: str
) -> None:
    monkeypatch.setattr(checkpointing, "APART", 0.0)
    options: dict[str, Any] = {
        "optimizer": lambda p: torch.optim.Adam(p, lr=1e-3),
        "lr_scheduler": lambda o: _RATES.OneCycleLR(o, 2e-3, total_steps=40),
        "sparser": sparser,
        "precision": "bfloat16",
    }
    whole = tune(digits_cnn, **options)

    def stop(row: dict[str, Any]) -> None:
        if row["step"] == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(digits_cnn, checkpoint=tmp_path / "run", watch=stop, **options)
    found = newest(str(tmp_path / "run"))
    assert found is not None
    assert any(name.startswith("optimizer/") for name in found.arrays)
    close(whole, tune(digits_cnn, checkpoint=tmp_path / "run", resume=True, **options), 0.0)


def test_a_run_does_not_go_on_with_another_optimizer(
    digits_cnn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointing, "APART", 0.0)

    def stop(row: dict[str, Any]) -> None:
        if row["step"] == 10:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        tune(digits_cnn, checkpoint=folder, watch=stop, optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3))
    for other in (torch.optim.SGD, torch.optim.NAdam):
        with pytest.raises(OptionError, match=f"began with the optimizer AdamW and cannot go on with {other.__name__}"):
            tune(digits_cnn, checkpoint=folder, resume=True, optimizer=lambda p, made=other: made(p, lr=1e-3))


# -- which engine


@pytest.mark.skipif(not ort_library.available(), reason="needs onnxruntime-training beside torch")
def test_auto_says_which_engine_and_why(digits_cnn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tune(digits_cnn, engine="auto", steps=2).report
    assert report.details["engine"] == "ort"
    assert "trained in onnxruntime-training, whose checks the model passes" in report.notes
    report = tune(digits_cnn, engine="auto", steps=2, precision="bfloat16").report
    assert report.details["engine"] == "torch"
    assert "trained in torch: bfloat16 is used by torch only" in report.notes
    monkeypatch.setattr(ort_library, "available", lambda: False)
    report = tune(digits_cnn, engine="auto", steps=2).report
    assert "trained in torch: onnxruntime-training is not installed" in report.notes


@pytest.mark.skipif(not ort_library.available(), reason="needs onnxruntime-training beside torch")
def test_auto_takes_torch_where_the_checks_fail(digits_cnn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxsparse.engines.ort import building
    from onnxsparse.errors import ModelError

    def refuse(*arguments: Any) -> None:
        raise ModelError("a gradient is wrong")

    monkeypatch.setattr(building, "build", refuse)
    report = tune(digits_cnn, engine="auto", steps=2).report
    assert report.details["engine"] == "torch"
    assert "trained in torch: a gradient is wrong" in report.notes
    with refusing(ModelError):
        tune(digits_cnn, engine="ort", steps=2)


@pytest.mark.parametrize("beside", [False, True])
def test_an_output_without_numbers_is_said_before_training(beside: bool) -> None:
    """The logarithm of what is below zero, beside another output or alone."""
    nodes = [
        make_node("MatMul", ["x", "v"], ["n"]),
        make_node("Log", ["n"], ["z"]),
        *([make_node("MatMul", ["x", "w"], ["y"])] if beside else []),
    ]
    below = {"w": numbers(4, 8), "v": -np.abs(numbers(4, 8))}
    outputs = ("y", "z") if beside else ("z",)
    proto = model(nodes, {"x": numbers(3, 4)}, below, outputs)
    samples = {"x": np.abs(numbers(64, 4)) + 0.1}
    options = {"data": samples, "pattern": "2:4", "steps": 2, "engine": "torch", "allow": ["small"]}
    told = "'z' is not matched to the dense model's: all of its numbers for the first samples are not finite"
    if beside:
        assert any(told in note for note in osp.finetune(proto, **options).report.notes)
        return
    with refusing(osp.OnnxSparseError) as found:
        osp.finetune(proto, **options)
    assert told in str(found.value)
