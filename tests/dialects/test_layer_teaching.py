"""PerLayerDistillationModifier in loops of torch: the numbers of SparseML 1.8.0, and the loss written out."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxsparse.engines.torch import library

pytestmark = pytest.mark.skipif(not library.available(), reason="needs torch")
torch = pytest.importorskip("torch")

from onnxsparse.dialects.sparseml import ScheduledModifierManager
from onnxsparse.errors import OptionError, PlanError

functional = torch.nn.functional
EPOCHS = "    - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 3.0}\n"


class Net(torch.nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, width, 3)
        self.norm = torch.nn.BatchNorm2d(width)
        self.head = torch.nn.Linear(width, 4)

    def forward(self, x: Any) -> Any:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def batch(step: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn((16, 1, 8, 8), generator=generator), torch.randint(0, 4, (16,), generator=generator)


def managed(options: str, width: int = 8, teacher: Any = None, more: str = "") -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(0)
    net = Net()
    torch.manual_seed(3)
    other = Net(width)
    torch.manual_seed(5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    text = f"modifiers:\n    - !PerLayerDistillationModifier {{{options}}}\n{more}{EPOCHS}"
    return net, optimizer, ScheduledModifierManager.from_yaml(text), other if teacher is None else teacher


def losses(net: Any, manager: Any, wrapped: Any, steps: int, begin: int = 0) -> list[float]:
    found = []
    for step in range(begin, begin + steps):
        x, labels = batch(step)
        wrapped.zero_grad()
        task = functional.cross_entropy(net(x), labels)
        loss = manager.loss_update(task, net, wrapped, step / 4, 4)
        loss.backward()
        wrapped.step()
        found.append(loss.item())
    return found


ALL = "start_epoch: 0.0, gain: 0.5"
RATES = """    - !SetLearningRateModifier {start_epoch: 1.0, learning_rate: 0.002}
    - !DistillationModifier {start_epoch: 0.0}
"""
OF_SPARSEML: list[tuple[str, int, Any, str, list[float]]] = [
    (ALL, 8, None, "", [2.786017, 2.421437, 2.141335]),
    (
        "start_epoch: 0.0, end_epoch: 2.0, student_layer_names: [conv], teacher_layer_names: [conv]",
        12,
        None,
        "",
        [3.292298, 3.167307, 2.909191],
    ),
    (
        "start_epoch: 1.0, normalize: False, project_features: False, student_layer_names: [conv, head]",
        8,
        None,
        "",
        [1.451192, 2.865115, 2.559017],
    ),
    ("start_epoch: 0.0, teacher_layer_names: [head], epsilon: 0.1", 8, "self", "", [3.658857, 2.068345, 1.977585]),
    ("start_epoch: 0.0", 12, None, RATES, [6.922812, 3.171292, 2.873575]),
]


@pytest.mark.parametrize(("options", "width", "teacher", "more", "wanted"), OF_SPARSEML)
def test_losses_are_those_of_sparseml(options: str, width: int, teacher: Any, more: str, wanted: list[float]) -> None:
    net, optimizer, manager, other = managed(options, width, teacher, more)
    wrapped = manager.modify(net, optimizer, 4, distillation_teacher=other)
    assert losses(net, manager, wrapped, 12)[::4] == pytest.approx(wanted, rel=1e-4)


def written_out(net: Any, other: Any, projections: Any, step: int, normalize: bool) -> Any:
    x, labels = batch(step)
    ours, theirs = {}, {}
    for module, into in ((net, ours), (other, theirs)):
        for name in ("conv", "head"):
            getattr(module, name).register_forward_hook(
                lambda *given, into=into, name=name: into.update({name: given[2]})
            )
    task = functional.cross_entropy(net(x), labels)
    with torch.no_grad():
        other(x)
    total = 0
    for name, weight in projections.items():
        form = functional.conv2d if weight.dim() == 4 else functional.linear
        distance = ((form(ours[name], weight) - theirs[name]) ** 2).mean()
        total += distance / ((theirs[name] ** 2).mean() + 1e-6) if normalize else distance
    return task + 0.5 * total


@pytest.mark.parametrize("normalize", [True, False])
def test_gradients_without_loss_update(normalize: bool) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        net, optimizer, manager, other = managed(f"{ALL}, normalize: {normalize}", 12)
        plain, teacher = copy.deepcopy(net), copy.deepcopy(other).eval()
        manager.counts_in_backward = True
        wrapped = manager.modify(net, optimizer, 4, distillation_teacher=other)
        x, labels = batch(0)
        functional.cross_entropy(net(x), labels).backward()
        weights = {name: one.weight for name, one in manager._teachers[0]._projections.items()}
        copies = {name: one.detach().clone().requires_grad_() for name, one in weights.items()}
        written_out(plain, teacher, copies, 0, normalize).backward()
        for ours, theirs in zip(net.parameters(), plain.parameters()):
            assert torch.allclose(ours.grad, theirs.grad, rtol=1e-10, atol=1e-10)
        for name, one in weights.items():
            assert torch.allclose(one.grad, copies[name].grad, rtol=1e-10, atol=1e-10)
        wrapped.step()
        assert not any(torch.equal(weights[name], copies[name]) for name in weights)
    finally:
        torch.set_default_dtype(torch.float32)


def test_projections_are_in_the_state_of_the_manager_alone() -> None:
    net, optimizer, manager, other = managed(ALL, 12)
    wrapped = manager.modify(net, optimizer, 4, distillation_teacher=other)
    losses(net, manager, wrapped, 2)
    assert len(optimizer.param_groups) == 2
    saved, whole = copy.deepcopy(optimizer.state_dict()), manager.state_dict()
    assert len(saved["param_groups"]) == 1
    assert len(saved["state"]) == len(list(net.parameters()))
    (mine,) = whole.values()
    projections = mine["distillation_projection_params"]
    assert {name: tuple(one["weight"].shape) for name, one in projections.items()} == {
        "conv": (12, 8, 1, 1),
        "head": (4, 4),
    }
    optimizer.load_state_dict(saved)
    assert len(optimizer.param_groups) == 2
    again, fresh, other_manager, _ = managed(ALL, 12)
    resumed = other_manager.modify(again, fresh, 4, distillation_teacher=other, epoch=0.5)
    again.load_state_dict(net.state_dict())
    fresh.load_state_dict(saved)
    other_manager.load_state_dict(whole)
    assert losses(again, other_manager, resumed, 1, 2) == losses(net, manager, wrapped, 1, 2)
    manager.finalize(net)
    assert not any(part._forward_hooks for part in net.modules())


def test_layers_by_a_pattern_and_by_the_name_of_a_block() -> None:
    for names, found in (("['re:.*ea']", ["head"]), ("[norm, conv]", ["norm", "conv"])):
        net, optimizer, manager, other = managed(f"start_epoch: 0.0, student_layer_names: {names}")
        wrapped = manager.modify(net, optimizer, 4, distillation_teacher=other)
        assert losses(net, manager, wrapped, 1)[0] > 0
        assert list(manager._teachers[0]._projections) == found


@pytest.mark.parametrize(
    ("options", "width", "what"),
    [
        (
            "student_layer_names: [convv]",
            8,
            r"student_layer_names: the module has no layer convv \(did you mean conv\?",
        ),
        ("student_layer_names: [conv], teacher_layer_names: [x]", 8, "teacher_layer_names: the teacher has no layer x"),
        (
            "project_features: false",
            12,
            r"the layer conv gives \[16, 8, 6, 6\] and that of the teacher \[16, 12, 6, 6\]",
        ),
        ("student_layer_names: ['re:.*'], teacher_layer_names: [conv]", 8, "3 layers of the module and 1 of the"),
    ],
)
def test_layers_that_are_no_pairs(options: str, width: int, what: str) -> None:
    net, optimizer, manager, other = managed(f"start_epoch: 0.0, {options}", width)

    def run() -> None:
        losses(net, manager, manager.modify(net, optimizer, 4, distillation_teacher=other), 1)

    with pytest.raises(OptionError, match=what):
        run()


def test_names_that_are_no_pairs_are_refused_when_they_are_read() -> None:
    with pytest.raises(PlanError, match="1 layers are not paired with 2 in student_layer_names"):
        managed("student_layer_names: [a, b], teacher_layer_names: [c]")


def test_a_loss_without_a_forward_pass() -> None:
    net, optimizer, manager, other = managed(ALL)
    manager.modify(net, optimizer, 4, distillation_teacher=other)
    with pytest.raises(OptionError, match="the layer conv has given nothing since the last loss"):
        manager.loss_update(torch.ones(()), net, optimizer, 0.0, 4)


def test_other_groups_go_by_the_schedule_with_projections() -> None:
    """The rate of the group that comes along follows the recipe, and nobody is warned of it."""
    net, optimizer, manager, other = managed(ALL, 12, more=RATES)
    wrapped = manager.modify(net, optimizer, 4, distillation_teacher=other)
    losses(net, manager, wrapped, 5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.002, 0.002]


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_teacher_in_a_file_gives_what_its_layers_give(tmp_path: Path, in_memory: bool) -> None:
    """The same losses as of the module that it was made of."""
    found = []
    for kind in ("module", "file"):
        net, optimizer, manager, other = managed("student_layer_names: [conv, head]", 12)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options = {"do_constant_folding": False, "training": torch.onnx.TrainingMode.PRESERVE, "dynamo": False}
            torch.onnx.export(other.eval(), (batch(0)[0],), tmp_path / "teacher.onnx", **options)
        held = onnx.load(tmp_path / "teacher.onnx") if in_memory else tmp_path / "teacher.onnx"
        teacher = other if kind == "module" else held
        wrapped = manager.modify(net, optimizer, 4, distillation_teacher=teacher)
        torch.manual_seed(7)
        found.append(losses(net, manager, wrapped, 3))
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_layers_that_a_file_does_not_have(digits_cnn: Path) -> None:
    net, optimizer, manager, _ = managed("student_layer_names: [conv], teacher_layer_names: [stemm]")
    with pytest.raises(OptionError, match=r"the teacher: the model has no layer stemm \(did you mean stem"):
        manager.modify(net, optimizer, 4, distillation_teacher=digits_cnn)
