"""Sparsify's Create around a training loop in torch: every word, target and option, and the calls of its document."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import onnxsparse as sparsify
from onnxsparse.engines.torch import library

pytestmark = pytest.mark.skipif(not library.available(), reason="needs torch")
torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from torch import nn
from torch.nn.functional import cross_entropy

from onnxsparse import create
from onnxsparse.dialects.sparseml.exporter import ModuleExporter
from onnxsparse.errors import OptionError

STEPS = 4
SHORT = {"num_epochs": 4}


def separable(inputs: int, outputs: int, stride: int) -> list[Any]:
    deep = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False)
    wide = nn.Conv2d(inputs, outputs, 1, bias=False)
    return [deep, nn.BatchNorm2d(inputs), nn.ReLU(), wide, nn.BatchNorm2d(outputs), nn.ReLU()]


class MobileNet(nn.Module):
    """Small: a stem, three depthwise separable convolutions, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
        self.features = nn.Sequential(*stem, *separable(8, 16, 1), *separable(16, 32, 2), *separable(32, 64, 1))
        self.classifier = nn.Linear(64, 8)

    def forward(self, x: Any) -> Any:
        return self.classifier(self.features(x).mean((2, 3)))


def made() -> tuple[Any, Any]:
    torch.manual_seed(0)
    net = MobileNet()
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def batch(step: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(4, 3, 16, 16, generator=generator), torch.randint(0, 8, (4,), generator=generator)


def train(net: Any, optimizer: Any, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        x, labels = batch(step)
        optimizer.zero_grad()
        loss = cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()


def sparsity(net: Any, names: Any) -> float:
    weights = [net.get_submodule(name.rpartition(".")[0]).weight for name in names]
    return sum(int((one == 0).sum()) for one in weights) / sum(one.numel() for one in weights)


def rounded(net: Any) -> bool:
    return any(isinstance(one, torch.ao.quantization.FakeQuantize) for one in net.modules())


def exported(net: Any, path: Path, target: str = "", verified: str | None = None) -> Any:
    sparsify.torch.export_quantized(net.eval(), torch.randn(2, 3, 16, 16), path, target=target)
    assert verified is None or sparsify.verify(path, target=verified).report.ok
    return sparsify.verify(path).report


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_the_defaults_prune_and_quantize(tmp_path: Path) -> None:
    net, optimizer = made()
    manager, optimizer = sparsify.create.initialize(net, optimizer, STEPS)
    assert type(optimizer).__name__ == "RecipeManagerStepWrapper"
    assert manager.pruning_modifiers
    assert manager.quantization_modifiers
    assert not manager.distillation_modifiers
    assert manager.max_epochs == 20
    train(net, optimizer, 20 * STEPS + 1)
    convolutions = [f"{name}.weight" for name, one in net.named_modules() if isinstance(one, nn.Conv2d)]
    assert abs(sparsity(net, convolutions) - 0.8) < 0.05
    assert rounded(net)
    report = exported(net, tmp_path / "int8.onnx")
    assert report.ok
    assert {row.dtype for row in report.rows} == {"int8"}


WORDS: list[tuple[Any, bool, str | None, bool, bool]] = [
    # pruning, quantization, target, distillation, scaler: every pair of values is there
    (True, False, "vnni", True, True),
    ("true", True, "tensorrt", False, True),
    ("acdc", True, None, True, False),
    ("acdc", False, "tensorrt", False, False),
    ("AC/DC", True, "vnni", False, True),
    ("movement", True, "tensorrt", True, False),
    ("movement", False, None, False, True),
    ("mfac", True, "vnni", True, False),
    ("mfac", True, "tensorrt", False, True),
    ("obs", True, "tensorrt", True, True),
    ("obs", True, "vnni", False, False),
]


@pytest.mark.parametrize(("word", "quantized", "target", "taught", "scaled"), WORDS)
def test_every_word_runs_to_its_end(
    word: Any, quantized: bool, target: str | None, taught: bool, scaled: bool, tmp_path: Path
) -> None:
    net, optimizer = made()
    variables = {**SHORT, "target": target}
    scaler = torch.amp.GradScaler("cpu") if scaled else None
    with quiet():
        manager, wrapped = create.initialize(
            net, optimizer, STEPS, word, quantized, distillation=taught, scaler=scaler, recipe_variables=variables
        )
    end = min((one.start_epoch for one in manager.quantization_modifiers), default=99.0)
    for step in range(manager.max_epochs * STEPS + 1):
        x, labels = batch(step)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=scaled and step / STEPS < end):
            loss = cross_entropy(net(x), labels)
        if scaled:
            wrapped.scale(loss).backward()
            wrapped.step(optimizer)
            wrapped.update()
        else:
            loss.backward()
            wrapped.step()
    (modifier,) = manager.pruning_modifiers
    wanted = getattr(modifier, "compression_sparsity", None) or modifier.final_sparsity
    assert wanted == (0.5 if target == "tensorrt" else 0.8)
    assert abs(sparsity(net, modifier.params) - wanted) < 0.05
    assert rounded(net) == quantized
    assert len(manager.distillation_modifiers) == taught
    manager.finalize(net)
    device = "ampere" if target == "tensorrt" else target
    if not quantized:
        ModuleExporter(net, tmp_path).export_onnx(batch(0)[0])
        assert sparsify.verify(tmp_path / "model.onnx").report.ok
        assert device is None or sparsify.verify(tmp_path / "model.onnx", target=device).report.ok
    else:
        assert exported(net, tmp_path / "int8.onnx", "ampere" if device == "ampere" else "", device).ok


@pytest.mark.parametrize("word", ["constant", "transfer", "sparse-transfer"])
def test_transfer_keeps_the_zeros_that_are_there(word: str) -> None:
    net, optimizer = made()
    zeros = net.features[6].weight.detach().abs() < 0.1
    net.features[6].weight.data[zeros] = 0
    manager, optimizer = create.initialize(net, optimizer, STEPS, pruning=word, recipe_variables=SHORT)
    train(net, optimizer, manager.max_epochs * STEPS + 1)
    assert torch.equal(net.features[6].weight == 0, zeros)
    assert rounded(net)


def test_without_pruning_zeros_are_held_where_it_quantizes() -> None:
    names = [
        [type(one).__name__ for one in create.initialize(*made(), STEPS, "false", word)[0].pruning_modifiers]
        for word in ("true", "False")
    ]
    assert names == [["ConstantPruningModifier"], []]


def test_gradients_are_those_of_the_loss_whatever_a_scaler_multiplies_them_with() -> None:
    """Also where the loop divides them itself, to clip them."""
    masks = []
    for way in ("plain", "scaled", "unscaled"):
        net, optimizer = made()
        scaler = None if way == "plain" else torch.amp.GradScaler("cpu")
        _, wrapped = create.initialize(
            net, optimizer, STEPS, "obs", False, scaler=scaler, recipe_variables={"num_epochs": 6}
        )
        for step in range(2 * STEPS):
            x, labels = batch(step)
            optimizer.zero_grad()
            loss = cross_entropy(net(x), labels)
            (loss if scaler is None else wrapped.scale(loss)).backward()
            if way == "unscaled":
                wrapped.unscale_(optimizer)
            wrapped.step(*(() if scaler is None else (optimizer,)))
            if scaler is not None:
                wrapped.update()
        masks.append(
            torch.cat([(net.get_submodule(name).weight == 0).flatten() for name in ("features.12", "classifier")])
        )
    assert 0.1 < masks[0].float().mean() < 0.9
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(masks[0], masks[2])


def test_samples_that_are_given_are_taken_for_gradients() -> None:
    net, optimizer = made()
    taken: list[int] = []

    def loader(options: Any) -> Any:
        for step in range(1024):
            taken.append(step)
            x, labels = batch(step)
            yield [x[:1]], {}, labels[:1]

    sampler = {"data_loader_builder": loader, "loss_function": cross_entropy}
    manager, wrapped = create.initialize(
        net, optimizer, STEPS, "mfac", False, recipe_variables=SHORT, grad_sampler=sampler
    )
    assert manager.pruning_modifiers[0].start_epoch == 0
    train(net, wrapped, 1)
    assert len(taken) == 64


# -- what the document calls


def test_the_script_of_the_document() -> None:
    model, optimizer = made()
    teacher, _ = made()
    scaler = torch.amp.GradScaler("cpu")
    for given in ({}, {"scaler": scaler}, {"distillation": True, "distillation_teacher": teacher}):
        model, optimizer = made()
        with quiet():
            manager, stepped = sparsify.create.initialize(model, optimizer, STEPS, **given)
        assert manager.max_epochs == 20
        assert min(one.start_epoch for one in manager.quantization_modifiers) == 15
        assert stepped.wrapped is (scaler if given.get("scaler") else optimizer)
    model, optimizer = made()
    manager, optimizer = sparsify.create.initialize(model, optimizer, STEPS, pruning="constant")
    train(model, optimizer, 2)


def test_a_teacher_counts_in_the_loop_as_it_stands() -> None:
    """As much as where the loss is passed on, whether there is one batch for a step or two that add up."""
    plain, ends = {}, {}
    for way in ("off", "backward", "loss_update", "accumulation"):
        net, optimizer = made()
        teacher, _ = made()
        torch.manual_seed(1)
        for one in teacher.parameters():
            one.data += 0.3 * torch.randn_like(one)
        taught, parts = way != "off", 2 if way == "accumulation" else 1
        _, optimizer = create.initialize(
            net, optimizer, STEPS, False, False, distillation=taught, accumulation=parts,
            distillation_teacher=teacher if taught else None,
        )  # fmt: skip
        for step in range(3):
            optimizer.zero_grad()
            x, labels = batch(step)
            for _ in range(parts):
                loss = cross_entropy(net(x), labels) / parts
                (optimizer.loss_update(loss) if way == "loss_update" else loss).backward()
            optimizer.step()
        ends[way] = net.classifier.weight.detach().clone()
        plain[way] = float(ends[way].sum())
    assert torch.allclose(ends["backward"], ends["loss_update"], atol=1e-6)
    assert torch.allclose(ends["backward"], ends["accumulation"], atol=1e-6)
    assert not torch.allclose(ends["backward"], ends["off"], atol=1e-5), plain


def test_a_scheduler_of_the_script_is_warned_of_once_by_its_name() -> None:
    net, optimizer = made()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    with pytest.warns(UserWarning, match="CosineAnnealingLR moves the learning rate") as said:
        _, wrapped = create.initialize(net, optimizer, STEPS, quantization=False)
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(3):
            train(net, wrapped, 1, step)
            scheduler.step()


def test_one_that_comes_later_is_named_too() -> None:
    net, optimizer = made()
    _, wrapped = create.initialize(net, optimizer, STEPS, quantization=False)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    train(net, wrapped, 1)
    scheduler.step()
    with pytest.warns(UserWarning, match="StepLR changed the learning rate"):
        train(net, wrapped, 1)


def test_what_the_page_shows_works(repository: Path) -> None:
    page = (repository / "docs" / "create.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python torch\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(compile(block, "create.md", "exec"), {})


def test_variables_come_as_a_schema_and_a_recipe_for_a_module_alone(tmp_path: Path) -> None:
    net, optimizer = made()
    variables = create.RecipeVariables(num_epochs="6", target="vnni", sparsity=0.7)
    manager, _ = create.initialize(net, optimizer, STEPS, quantization=False, recipe_variables=variables)
    out = tmp_path / "recipe.yaml"
    sparsify.create_recipe(made()[0], target="vnni", sparsity=0.7, epochs=6, output=out)
    assert sparsify.Recipe.load(out).modifiers == manager.recipe.modifiers
    assert "# features.0.weight stays dense: it has 3 inputs" in out.read_text(encoding="utf-8")


# -- what is refused, or said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pruning": "acddc"}, "did you mean acdc"),
        ({"pruning": 3}, "pruning 3 is not known"),
        ({"pruning": ["acdc"]}, "pruning .* is not known"),
        ({"quantization": "maybe"}, "quantization is True or False, not 'maybe'"),
        ({"distillation": 2}, "distillation is True or False"),
        ({"lr": "cosin"}, "did you mean cosine"),
        ({"steps_per_epoch": 0}, "steps_per_epoch is a number above 0"),
        ({"accumulation": 0}, "accumulation is a whole number"),
        ({"scaler": True}, "scaler is a GradScaler"),
        ({"recipe_variables": 7}, "recipe_variables is a RecipeVariables"),
        ({"recipe_variables": {"target": "tensort"}}, "did you mean tensorrt"),
        (
            {"pruning": "movement", "recipe_variables": {"global_sparsity": True}},
            "movement pruning goes layer by layer",
        ),
        ({"pruning": "acdc", "recipe_variables": {"num_epochs": 1}}, "num_epochs 1 leaves it none"),
        ({"recipe_variables": {"mask_type": "5:4"}}, "5:4 keeps all"),
    ],
)
def test_what_means_nothing_is_refused_in_a_line(given: dict[str, Any], said: str) -> None:
    net, optimizer = made()
    with pytest.raises(OptionError, match=said) as error:
        create.initialize(net, optimizer, **{"steps_per_epoch": STEPS, **given})
    assert "\n" not in str(error.value)


def test_layers_that_cannot_hold_the_masks_stay_dense_and_are_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    net = nn.Sequential()
    for name, one in (("input_conv", nn.Conv2d(4, 8, 3)), ("odd", nn.Conv2d(6, 8, 1)), ("deep", nn.Conv2d(8, 8, 1))):
        net.add_module(name, one)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with caplog.at_level("INFO", "onnxsparse"):
        manager, _ = create.initialize(net, optimizer, STEPS, recipe_variables={"target": "tensorrt"})
    assert manager.pruning_modifiers[0].params == ("deep.weight",)
    assert "input_conv.weight stays dense: its name says" in caplog.text
    assert "odd.weight stays dense: it has 6 inputs" in caplog.text


class Attending(nn.Module):
    """One that gives its loss beside the logits, as those of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Any, labels: Any) -> Any:
        logits = self.last(self.attention(x, x, x, need_weights=False)[0].mean(1))
        return {"loss": cross_entropy(logits, labels), "logits": logits}


def test_a_module_with_its_own_loss_is_taught_and_what_is_not_pruned_in_it_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    net = Attending()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    manager, optimizer = create.initialize(
        net, optimizer, STEPS, "obs", False, distillation=True, recipe_variables={"num_epochs": 1}
    )
    assert "recurrent layers hold themselves: attention.in_proj_weight; the params of" in caplog.text
    for _ in range(STEPS + 1):
        optimizer.zero_grad()
        net(torch.randn(4, 3, 8), torch.randint(0, 4, (4,)))["loss"].backward()
        optimizer.step()
    manager.finalize(net)
    assert abs(sparsity(net, manager.pruning_modifiers[0].params) - 0.8) < 0.05


def test_a_module_that_has_masks_or_nothing_to_prune_is_refused() -> None:
    net, optimizer = made()
    create.initialize(net, optimizer, STEPS)
    for call in (lambda: create.initialize(net, optimizer, STEPS), lambda: sparsify.create_recipe(net)):
        with pytest.raises(OptionError, match="masks are attached to this module already"):
            call()
    lstm = nn.LSTM(4, 4)
    with pytest.raises(OptionError, match=r"does not prune what attention and recurrent layers .* weight_ih_l0 and 1"):
        create.initialize(lstm, torch.optim.SGD(lstm.parameters(), lr=0.1), STEPS)


def test_masks_of_movement_that_a_checkpoint_has_are_kept() -> None:
    net, optimizer = made()
    words = {"num_epochs": 2}
    manager, optimizer = create.initialize(net, optimizer, STEPS, "movement", False, recipe_variables=words)
    train(net, optimizer, 6)
    name = "features.6.weight"
    before = net.state_dict()[name].clone()
    other = made()[0]
    again = type(manager).from_yaml(str(manager))
    stepper = again.modify(other, torch.optim.SGD(other.parameters(), lr=0.1), STEPS, epoch=1.5)
    again.load_state_dict(manager.state_dict())
    other.load_state_dict(net.state_dict())
    train(other, stepper, 2, first=6)
    assert float((before == 0).float().mean()) > 0.7
    assert torch.equal(before == 0, other.state_dict()[name] == 0)


def test_a_transfer_without_zeros_is_said(caplog: pytest.LogCaptureFixture) -> None:
    net, optimizer = made()
    create.initialize(net, optimizer, STEPS, "transfer", False)
    assert "'transfer' keeps the zeros that the model has, and it has none" in caplog.text


def test_a_teacher_that_nobody_asked_for_is_said() -> None:
    net, optimizer = made()
    with pytest.warns(UserWarning, match="distillation_teacher is not used"):
        create.initialize(net, optimizer, STEPS, quantization=False, distillation_teacher=made()[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.ao.quantization
def test_observers_are_stopped_by_the_word_of_torch() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    words = {"num_epochs": 4}
    manager, optimizer = sparsify.create.initialize(net, optimizer, 1, pruning=False, recipe_variables=words)
    for step in range(5):
        if step == 4:
            net.apply(torch.ao.quantization.disable_observer)
            (scale,) = [
                one.scale.clone() for one in net.modules() if isinstance(one, torch.ao.quantization.FakeQuantize)
            ]
        optimizer.zero_grad()
        net(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
    (last,) = [one.scale for one in net.modules() if isinstance(one, torch.ao.quantization.FakeQuantize)]
    assert torch.equal(scale, last)
    manager.finalize(net)
