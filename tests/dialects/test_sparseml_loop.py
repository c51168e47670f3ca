"""SparseML's manager around plain training loops in torch."""

from __future__ import annotations

import copy
import json
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import onnxsparse as osp
from onnxsparse.engines.torch import library

pytestmark = pytest.mark.skipif(not library.available(), reason="needs torch")
torch = pytest.importorskip("torch")

from onnxsparse.dialects.sparseml import RecipeManagerStepWrapper, ScheduledModifierManager
from onnxsparse.errors import OnnxSparseError, OptionError
from tests.messages import refusing

PER_EPOCH = 4
GMP = """
modifiers:
    - !EpochRangeModifier
        start_epoch: 0.0
        end_epoch: 6.0
    - !GMPruningModifier
        start_epoch: 0.0
        end_epoch: 5.0
        update_frequency: 1.0
        init_sparsity: 0.05
        final_sparsity: 0.8
        params: ['re:(?!norm).*weight']
"""


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 8, 3)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def made(seed: int = 0) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    net = Net()
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def batch(step: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn((16, 1, 8, 8), generator=generator)
    return x, torch.randint(0, 4, (16,), generator=generator)


def train(net: Any, optimizer: Any, steps: int, begin: int = 0, seen: Any = None, teach: bool = False) -> None:
    for step in range(begin, begin + steps):
        x, labels = batch(step)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), labels)
        loss = optimizer.loss_update(loss) if teach else loss
        loss.backward()
        optimizer.step()
        if seen is not None:
            seen(step)


def sparsity(tensor: Any) -> float:
    return float((tensor == 0).sum()) / tensor.numel()


def manager_of(*modifiers: str, **more: Any) -> ScheduledModifierManager:
    lines = "".join(f"    - !{one}\n" for one in modifiers)
    return ScheduledModifierManager.from_yaml(f"modifiers:\n{lines}", **more)


def test_a_loop_prunes_by_the_anchor_table() -> None:
    net, optimizer = made()
    manager = ScheduledModifierManager.from_yaml(GMP.replace("'re:(?!norm).*weight'", "conv.weight"))
    assert (manager.min_epochs, manager.max_epochs) == (0, 6)
    wrapped = manager.modify(net, optimizer, steps_per_epoch=PER_EPOCH)
    assert type(wrapped).__name__ == "RecipeManagerStepWrapper"
    found = []
    train(net, wrapped, 5 * PER_EPOCH + 1, seen=lambda _: found.append(sparsity(net.conv.weight)))
    wanted = [math.floor(level * 72 + 0.5) / 72 for level in (0.05, 0.416, 0.638, 0.752, 0.794, 0.8)]
    assert found[::PER_EPOCH] == pytest.approx(wanted)
    manager.finalize(net)
    assert sparsity(net.conv.weight) == pytest.approx(wanted[-1])
    assert sparsity(net.head.weight) == 0
    assert isinstance(net.conv.weight, torch.nn.Parameter)
    assert type(net.conv) is torch.nn.Conv2d
    assert not manager.initialized


def test_the_last_level_is_there_without_a_step_behind_the_end() -> None:
    net, optimizer = made()
    manager = ScheduledModifierManager.from_yaml(GMP)
    wrapped = manager.modify(net, optimizer, PER_EPOCH)
    train(net, wrapped, 5 * PER_EPOCH)
    assert sparsity(net.conv.weight) < 0.8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        manager.finalize(net)
    assert sparsity(net.conv.weight) == pytest.approx(round(0.8 * 72) / 72)


def test_a_training_that_ends_early_is_said() -> None:
    net, optimizer = made()
    manager = ScheduledModifierManager.from_yaml(GMP)
    wrapped = manager.modify(net, optimizer, 2 * PER_EPOCH)
    train(net, wrapped, 5 * PER_EPOCH)
    with pytest.warns(UserWarning, match=r"training ended at epoch 2.375, but !GMPruningModifier lasts to 5"):
        manager.finalize(net)
    assert sparsity(net.head.weight) == pytest.approx(round(0.8 * 32) / 32)


def test_momentum_leaks_nothing_and_grows_again_when_let_go() -> None:
    for stays in ("true", "false"):
        net, optimizer = made()
        recipe = GMP.replace("end_epoch: 5.0", f"end_epoch: 2.0\n        leave_enabled: {stays}")
        recipe = recipe.replace("re:(?!norm).*weight", "head")
        manager = ScheduledModifierManager.from_yaml(recipe)
        wrapped = manager.modify(net, optimizer, PER_EPOCH)
        train(net, wrapped, 3 * PER_EPOCH)
        assert sparsity(net.head.weight) == (pytest.approx(round(0.8 * 32) / 32) if stays == "true" else 0.0)


def test_the_wrapper_is_what_it_wraps() -> None:
    net, optimizer = made()
    wrapped = ScheduledModifierManager.from_yaml(GMP).modify(net, optimizer, PER_EPOCH, epoch=2.5)
    assert isinstance(wrapped, RecipeManagerStepWrapper)
    assert (wrapped.wrapped, wrapped.wrapped_optimizer, wrapped.wrapped_module) == (optimizer, optimizer, net)
    assert (wrapped.wrapped_steps, wrapped.wrapped_epoch, wrapped.wrapped_steps_per_epoch) == (10, 2.5, PER_EPOCH)
    assert wrapped.param_groups is optimizer.param_groups
    wrapped.mine = 3
    assert optimizer.mine == 3
    with pytest.raises(AttributeError):
        _ = wrapped.nothing
    wrapped.emulated_step()
    assert wrapped.wrapped_epoch == 2.75
    assert sparsity(net.head.weight) == pytest.approx(math.floor(0.70625 * 32 + 0.5) / 32)


@pytest.mark.filterwarnings("ignore:training goes on")
@pytest.mark.parametrize("begin", [2.5, 6.0])
def test_resumed_at_an_epoch(begin: float) -> None:
    net, optimizer = made()
    manager = ScheduledModifierManager.from_yaml(GMP)
    wrapped = manager.modify(net, optimizer, PER_EPOCH, epoch=begin)
    found = {}
    train(net, wrapped, 12, seen=lambda step: found.update({begin + step / PER_EPOCH: sparsity(net.head.weight)}))
    levels = {2.5: 0.70625, 3.25: 0.70625, 3.5: 0.77975, 4.5: 0.79925, 5.0: 0.8} if begin == 2.5 else {6.0: 0.8}
    assert {epoch: found[epoch] for epoch in levels} == pytest.approx(
        {epoch: math.floor(level * 32 + 0.5) / 32 for epoch, level in levels.items()}
    )


def test_a_scaler_is_wrapped() -> None:
    net, optimizer = made()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    manager = ScheduledModifierManager.from_yaml(GMP)
    wrapped = manager.modify(net, optimizer, PER_EPOCH, wrap_optim=scaler)
    for step in range(5 * PER_EPOCH + 1):
        x, labels = batch(step)
        optimizer.zero_grad()
        wrapped.scale(torch.nn.functional.cross_entropy(net(x), labels)).backward()
        wrapped.step(optimizer)
        wrapped.update()
    manager.finalize(net)
    assert sparsity(net.head.weight) == pytest.approx(round(0.8 * 32) / 32)
    assert wrapped.wrapped is scaler


@pytest.mark.filterwarnings("ignore:training goes on")
def test_rates_and_decay_are_the_optimizers() -> None:
    net, _ = made()
    groups = [{"params": net.conv.parameters()}, {"params": net.head.parameters(), "lr": 0.3}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    manager = manager_of(
        "SetLearningRateModifier {learning_rate: 0.05, start_epoch: 1, param_groups: [1]}",
        "SetWeightDecayModifier {weight_decay: 0.01, start_epoch: 0.5}",
        "LearningRateModifier {lr_class: ExponentialLR, lr_kwargs: {gamma: 0.5}, start_epoch: 2, end_epoch: -1}",
    )
    wrapped = manager.modify(net, optimizer, 2)
    found = []
    train(net, wrapped, 8, seen=lambda _: found.append(tuple(group["lr"] for group in optimizer.param_groups)))
    assert found == [(0.1, 0.3)] * 2 + [(0.1, 0.05)] * 4 + [(0.05, 0.025)] * 2
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.01]
    wrong = manager_of("SetLearningRateModifier {learning_rate: 0.05, param_groups: [2]}")
    with refusing(OptionError):
        wrong.modify(net, optimizer, 2)


def test_somebody_else_who_moves_the_rate_is_noticed() -> None:
    rate = "LearningRateFunctionModifier {lr_func: linear, init_lr: 0.1, final_lr: 0.0, start_epoch: 0, end_epoch: 4}"
    net, optimizer = made()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.warns(UserWarning, match="StepLR moves the learning rate of this optimizer"):
        manager_of(rate).modify(net, optimizer, PER_EPOCH)
    del scheduler
    net, optimizer = made()
    wrapped = manager_of(rate).modify(net, optimizer, PER_EPOCH)
    train(net, wrapped, 2)
    optimizer.param_groups[0]["lr"] = 0.7
    with pytest.warns(UserWarning, match="somebody else changed the learning rate") as said:
        train(net, wrapped, 2)
    assert len(said) == 1
    net, optimizer = made()
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    ScheduledModifierManager.from_yaml(GMP).modify(net, optimizer, PER_EPOCH)


@pytest.mark.filterwarnings("ignore:training goes on")
def test_params_are_held_set_and_led() -> None:
    net, optimizer = made()
    manager = manager_of(
        "TrainableParamsModifier {params: [conv], trainable: false, end_epoch: 2}",
        "SetParamModifier {params: [norm.bias], val: 0.5, start_epoch: 2}",
        "GradualParamModifier {params: [norm.weight], init_val: 1.0, final_val: 3.0, start_epoch: 0, end_epoch: 2, "
        "update_frequency: 1}",
        "TrainableParamsModifier {params: ['re:norm'], trainable: false}",
    )
    wrapped = manager.modify(net, optimizer, 2)
    before = net.conv.weight.detach().clone()
    train(net, wrapped, 4)
    assert torch.equal(net.conv.weight, before)
    assert net.norm.weight.tolist() == [2.0] * 8
    train(net, wrapped, 3)
    assert not torch.equal(net.conv.weight, before)
    assert net.norm.weight.tolist() == [3.0] * 8
    assert net.norm.bias.tolist() == [0.5] * 8


def test_constant_zeros_stay() -> None:
    net, optimizer = made()
    with torch.no_grad():
        net.conv.weight[:4] = 0
    manager = manager_of("ConstantPruningModifier {params: __ALL__}")
    wrapped = manager.modify(net, optimizer, 2)
    train(net, wrapped, 3)
    assert sparsity(net.conv.weight) == 0.5
    with torch.no_grad():
        net.conv.parametrizations.weight.original[4] = 0
    train(net, wrapped, 3)
    assert sparsity(net.conv.weight) == 5 / 8
    assert manager.max_epochs == -1
    manager.finalize(net)
    assert sparsity(net.conv.weight) == 5 / 8


@pytest.mark.filterwarnings("ignore:training goes on")
def test_phases_and_what_the_optimizer_remembers() -> None:
    net, optimizer = made()
    manager = manager_of(
        "ACDCPruningModifier {compression_sparsity: 0.5, start_epoch: 0, end_epoch: 4, update_frequency: 1, "
        "params: [head.weight], global_sparsity: false, momentum_reset_at: phase}"
    )
    wrapped = manager.modify(net, optimizer, 2)
    found = []
    train(net, wrapped, 10, seen=lambda _: found.append(sparsity(net.head.weight)))
    assert found == [0, 0, 0.5, 0.5, 0.5, 0, 0.5, 0.5, 0.5, 0.5]  # what a step sees was decided before
    manager.finalize(net)
    momentum = optimizer.state[net.head.weight]["momentum_buffer"]
    assert sparsity(momentum) >= 0.5


def test_distillation_by_the_step_wrapper() -> None:
    net, optimizer = made()
    manager = manager_of("DistillationModifier {hardness: 0.25, temperature: 2.0, start_epoch: 1, end_epoch: 2}")
    wrapped = manager.modify(net, optimizer, 2)
    train(net, wrapped, 2, teach=True)
    dense = None
    for step in (2, 3, 4):  # the step of its end, too
        x, labels = batch(step)
        optimizer.zero_grad()
        outputs = net(x)
        dense = dense or copy.deepcopy(net).eval()
        task = torch.nn.functional.cross_entropy(outputs, labels)
        with torch.no_grad():
            teacher = torch.softmax(dense(x) / 2, -1)
        teaching = (teacher * (teacher.log() - torch.log_softmax(outputs / 2, -1))).sum(-1).mean() * 4
        loss = wrapped.loss_update(task)
        assert loss.item() == pytest.approx((0.75 * task + 0.25 * teaching).item(), rel=1e-5)
        loss.backward()
        wrapped.step()
    x, labels = batch(5)
    task = torch.nn.functional.cross_entropy(net(x), labels)
    assert wrapped.loss_update(task) is task


def test_other_teachers() -> None:
    net, optimizer = made()
    teacher, _ = made(1)
    text = "DistillationModifier {hardness: 1.0, start_epoch: 0}"
    x, labels = batch(0)
    manager = manager_of(text)
    manager.modify(net, optimizer, 2, distillation_teacher=teacher)
    task = torch.nn.functional.cross_entropy(net(x), labels)
    assert manager.loss_update(task).item() > 0
    with refusing(OptionError):
        manager.loss_update(task)
    outputs = {"a": net(x), "b": net(x)}
    again = manager.loss_update(task, student_outputs=outputs["a"], student_inputs=x)
    assert again.item() > 0
    net, optimizer = made()
    quiet = manager_of(text)
    with pytest.warns(UserWarning, match="nothing is distilled"):
        quiet.modify(net, optimizer, 2, distillation_teacher="disable")
    assert quiet.loss_update(task) is task


class Named(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        return self.layer(x) * scale


def test_a_teacher_sees_what_its_keys_name() -> None:
    torch.manual_seed(0)
    net, x = Named(), torch.randn(6, 8)
    text = "DistillationModifier {start_epoch: 0, hardness: 1.0, teacher_input_keys: [x]}"
    wrapped = manager_of(text).modify(net, torch.optim.SGD(net.parameters(), 0.1), 4)
    task = net(x=x, scale=3.0).sum()
    assert wrapped.loss_update(task).item() > 0.01  # the teacher is not scaled
    task = net(x=x).sum()
    assert wrapped.loss_update(task).item() == pytest.approx(0, abs=1e-6)
    task = net(x).sum()
    with refusing(OptionError):
        wrapped.loss_update(task)


def test_a_teacher_in_a_file(digits_cnn: Path) -> None:
    net = osp.torch.to_module(digits_cnn)
    manager = manager_of("DistillationModifier {hardness: 0.75, start_epoch: 0}")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    wrapped = manager.modify(net, optimizer, 2, distillation_teacher=digits_cnn)
    loss = net.train()(torch.randn(4, 1, 8, 8)).square().mean()
    assert wrapped.loss_update(loss).item() == pytest.approx(0.25 * loss.item(), rel=1e-4)


def test_several_outputs_are_paired() -> None:
    from onnxsparse.dialects.sparseml.distillation import divergence

    generator = torch.Generator().manual_seed(0)
    one, two, three, four = (torch.randn((3, 5), generator=generator) for _ in range(4))
    both = divergence({"a": one, "b": two}, {"a": three, "b": four}, 2.0)
    parts = [divergence(one, three, 2.0), divergence(two, four, 2.0)]
    assert float(both) == pytest.approx(float(sum(parts)) / 2)
    assert float(divergence((one, two), (three, four), 2.0, [1])) == pytest.approx(float(parts[1]))


def test_all_at_once() -> None:
    net, _ = made()
    manager = ScheduledModifierManager.from_yaml(GMP.replace("cubic", "inverse_cubic"))
    manager.apply(net)
    for tensor in (net.conv.weight, net.head.weight):
        assert sparsity(tensor) == pytest.approx(math.floor(0.8 * tensor.numel() + 0.5) / tensor.numel())
    net, _ = made()
    acdc = "ACDCPruningModifier {compression_sparsity: 0.5, start_epoch: 0, end_epoch: 4, update_frequency: 1, params: "
    rate = "SetLearningRateModifier {learning_rate: 0.05}"
    manager_of(acdc + "[head]}", rate, "ConstantPruningModifier {params: __ALL__}").apply(net)
    assert sparsity(net.head.weight) == 0.5
    ScheduledModifierManager.from_yaml(GMP).apply_structure(net, 3)


def test_state_dicts_have_plain_names_and_masks_travel(tmp_path: Path) -> None:
    net, optimizer = made()
    manager = ScheduledModifierManager.from_yaml(GMP)
    wrapped = manager.modify(net, optimizer, PER_EPOCH)
    train(net, wrapped, 10)
    names = list(Net().state_dict())
    assert list(net.state_dict()) == names
    checkpoint = {
        "state_dict": net.state_dict(), "optimizer": wrapped.state_dict(), "recipe": str(manager),
        "manager": manager.state_dict(), "epoch": 2.5,
    }  # fmt: skip
    torch.save(checkpoint, tmp_path / "checkpoint.pt")
    found = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    (masks,) = found["manager"].values()
    assert sorted(masks) == ["conv.weight.sparsity_mask", "head.weight.sparsity_mask"]

    plain = Net()
    plain.load_state_dict(found["state_dict"])
    other, new = made(3)
    again = ScheduledModifierManager.from_yaml(found["recipe"])
    again.load_state_dict(found["manager"])
    on = again.modify(other, new, PER_EPOCH, epoch=found["epoch"])
    other.load_state_dict(found["state_dict"])
    on.load_state_dict(found["optimizer"])
    assert sparsity(other.head.weight) == sparsity(net.head.weight)
    train(other, on, 11, begin=10)
    train(net, wrapped, 11, begin=10)
    assert sparsity(other.head.weight) == sparsity(net.head.weight)
    with refusing(OnnxSparseError):
        again.load_state_dict({"other": {}, "x": {"y.sparsity_mask": torch.ones(1)}})


@pytest.mark.filterwarnings("ignore:training goes on")
def test_stages_and_their_state() -> None:
    second = "modifiers:\n- !ConstantPruningModifier\n    params: ['re:.*weight']\n"
    manager = ScheduledModifierManager.compose_staged(GMP, second)
    assert list(manager.modifiers) == ["stage_0", "stage_1"]
    net, optimizer = made()
    wrapped = manager.modify(net, optimizer, PER_EPOCH)
    train(net, wrapped, 7 * PER_EPOCH)
    state = manager.state_dict()
    assert list(state) == ["stage_0", "stage_1"]
    other, new = made(1)
    again = ScheduledModifierManager.from_yaml(str(manager))
    again.modify(other, new, PER_EPOCH, epoch=7)
    again.load_state_dict(state)
    assert sparsity(other.head.weight) == sparsity(net.head.weight) == pytest.approx(round(0.8 * 32) / 32)


def test_lists_by_kind_and_phases() -> None:
    recipe = (
        GMP
        + "    - !QuantizationModifier {start_epoch: 7.0}\n"
        + "    - !SetLearningRateModifier {learning_rate: 0.1}\n"
    )
    manager = ScheduledModifierManager.from_yaml(recipe)
    names = {
        kind: [one.name for one in getattr(manager, f"{kind}_modifiers")]
        for kind in ("epoch", "learning_rate", "pruning", "quantization", "distillation", "structured")
    }
    assert names == {
        "epoch": ["EpochRangeModifier"], "learning_rate": ["SetLearningRateModifier"], "pruning": ["GMPruningModifier"],
        "quantization": ["QuantizationModifier"], "distillation": [], "structured": ["QuantizationModifier"],
    }  # fmt: skip
    assert [manager.phase(epoch) for epoch in (0, 3, 6, 7, 8)] == [None, None, "pruned", None, "pruned_quantized"]
    assert (manager.qat_active(5), manager.qat_active(6.5)) == (False, True)
    assert min(one.start_epoch for one in manager.quantization_modifiers) == 7
    assert len(list(manager.iter_modifiers())) == 4
    assert ScheduledModifierManager.from_yaml(str(manager)) == manager


def test_variables_and_saving(tmp_path: Path) -> None:
    text = "level: 0.5\n" + GMP.replace("0.8", "eval(level)")
    for variables in ({"level": 0.7}, "level=0.7", json.dumps({"level": 0.7})):
        manager = ScheduledModifierManager.from_yaml(text, recipe_variables=variables)
        assert manager.pruning_modifiers[0].final_sparsity == 0.7
    manager.save(tmp_path / "recipe.yaml")
    assert ScheduledModifierManager.from_yaml(str(tmp_path / "recipe.yaml")) == manager
    more = ScheduledModifierManager.from_yaml(text, add_modifiers=manager.epoch_modifiers)
    assert len(list(more.iter_modifiers())) == 3


def test_what_is_wrong_is_said_before_anything_changes() -> None:
    net, optimizer = made()
    with refusing(OptionError):
        ScheduledModifierManager.from_yaml(GMP.replace("'re:(?!norm).*weight'", "conv.weigth")).modify(
            net, optimizer, 4
        )
    assert type(net.conv) is torch.nn.Conv2d
    with refusing(OptionError):
        ScheduledModifierManager.from_yaml(GMP).modify(net, optimizer, 0)
    with refusing(OptionError):
        ScheduledModifierManager.from_yaml(GMP).finalize(net)


def test_tied_parameters_are_one() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))
    net[1].weight = net[0].weight
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    manager = ScheduledModifierManager.from_yaml(GMP)
    wrapped = manager.modify(net, optimizer, 1)
    for _ in range(6):
        optimizer.zero_grad()
        net(torch.ones(2, 6)).sum().backward()
        wrapped.step()
    manager.finalize(net)
    assert net[1].weight is net[0].weight
    assert sparsity(net[0].weight) == round(0.8 * 36) / 36


def test_layouts_of_layers() -> None:
    """Groups, transposed convolutions, and vectors: filters and N:M where they are."""
    net = torch.nn.Sequential(
        torch.nn.Conv2d(8, 8, 3, groups=2), torch.nn.ConvTranspose2d(8, 4, 2), torch.nn.Embedding(10, 8)
    )
    manager = manager_of(
        "GMPruningModifier {params: __ALL_PRUNABLE__, mask_type: 2:4, init_sparsity: 0.5, final_sparsity: 0.5, "
        "start_epoch: 0, end_epoch: 0.5, update_frequency: 1}"
    )
    manager.apply(net)
    assert (net[0].weight.reshape(8, 1, 4, 9) != 0).sum(2).unique().tolist() == [2]
    assert (net[1].weight.reshape(2, 4, 4, 4) != 0).sum(1).unique().tolist() == [2]
    assert (net[2].weight.reshape(10, 2, 4) != 0).sum(2).unique().tolist() == [2]
    net = torch.nn.Sequential(torch.nn.ConvTranspose2d(8, 4, 2))
    manager_of(
        "StructuredPruningModifier {init_sparsity: 0, final_sparsity: 0.5, start_epoch: 0, end_epoch: 1, "
        "update_frequency: 1}"
    ).apply(net)
    assert sorted((net[0].weight != 0).any(0).flatten(1).any(1).tolist()) == [False, False, True, True]


def test_sparsity_is_told_to_loggers() -> None:
    net, optimizer = made()
    told = []
    manager = manager_of("SparsificationLoggingModifier {start_epoch: 0, update_frequency: 1.0}")
    wrapped = manager.modify(net, optimizer, 2, loggers=[lambda name, value, epoch: told.append((name, value, epoch))])
    train(net, wrapped, 3)
    assert told[0] == ("sparsity/conv.weight", 0.0, 0.0)
    assert len(told) == 4


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called: the work itself, whatever the machine does besides."""
    made = [0]

    def count(frame: object, event: str, argument: object) -> None:
        made[0] += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return made[0]


def test_many_modifiers_cost_little() -> None:
    """A step at which none of them acts: a few calls for each modifier, and none for a layer."""
    net = torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(500)))
    rate = "LearningRateFunctionModifier {lr_func: cosine, init_lr: 0.1, final_lr: 0.0, start_epoch: 0, end_epoch: "
    rates = [f"{rate}{100 + n}}}" for n in range(50)]
    prune = [
        f"GMPruningModifier {{params: ['re:{n}\\.'], init_sparsity: 0.05, final_sparsity: 0.5, start_epoch: 0, "
        f"end_epoch: 90, update_frequency: 1}}"
        for n in range(150)
    ]
    manager = manager_of(*rates, *prune)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    manager.modify(net, optimizer, 1000)
    manager.update(net, optimizer, 0.0, 1000)
    for step in range(1, 30):
        assert calls_of(lambda at=step / 1000: manager.update(net, optimizer, at, 1000)) < 15 * (
            len(rates) + len(prune)
        )


def test_around_several_devices(tmp_path: Path) -> None:
    """A module in DistributedDataParallel, attached before and after it is wrapped."""
    distributed = torch.distributed
    if distributed.is_initialized():
        distributed.destroy_process_group()
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        found = []
        for wrap in (lambda net: net, torch.nn.parallel.DistributedDataParallel):
            net, optimizer = made()
            outer = wrap(net)
            manager = ScheduledModifierManager.from_yaml(GMP + "    - !DistillationModifier {start_epoch: 1}\n")
            wrapped = manager.modify(outer, optimizer, PER_EPOCH)
            train(outer, wrapped, 5 * PER_EPOCH + 1, teach=True)
            manager.finalize(outer)
            found.append({name: one.detach().clone() for name, one in net.named_parameters()})
        assert sparsity(found[0]["head.weight"]) == round(0.8 * 32) / 32
        assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    finally:
        distributed.destroy_process_group()
    net, optimizer = made()
    with refusing(OptionError):
        ScheduledModifierManager.from_yaml(GMP).modify(
            torch.nn.DataParallel(net), optimizer, PER_EPOCH, allow_parallel_module=False
        )


def test_masks_of_several_travel_each_for_itself() -> None:
    text = """
modifiers:
- !GMPruningModifier
    {start_epoch: 0, end_epoch: 1, update_frequency: 1, init_sparsity: 0.05, final_sparsity: 0.8, params: ['0']}
- !MagnitudePruningModifier
    {start_epoch: 1, end_epoch: 3, update_frequency: 1, init_sparsity: 0.05, final_sparsity: 0.6, params: [0.weight]}
"""

    def begun() -> tuple[Any, Any, Any]:
        module = torch.nn.Sequential(torch.nn.Linear(20, 20))
        manager = ScheduledModifierManager.from_yaml(text)
        return module, manager, manager.modify(module, torch.optim.SGD(module.parameters(), 0.1), 2)

    module, manager, optimizer = begun()
    for _ in range(3):
        optimizer.emulated_step()
    state = manager.state_dict()
    shares = sorted(round(1 - float(mask.float().mean()), 2) for one in state.values() for mask in one.values())
    assert shares == [0.05, 0.8]
    again, other, _ = begun()
    again.load_state_dict(module.state_dict())
    other.load_state_dict(state)
    assert [(one == two).all() for one, two in zip(_masks(other), _masks(manager))] == [True, True]
    for _ in range(4):
        optimizer.emulated_step()
    manager.finalize(module)
    assert float((module[0].weight == 0).float().mean()) == pytest.approx(0.8)


def _masks(manager: Any) -> list[Any]:
    return [mask for one in manager.state_dict().values() for mask in one.values()]


def test_a_layer_without_a_whole_unit_stays_dense_and_is_named() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 8))
    text = """
modifiers:
- !GMPruningModifier
    {start_epoch: 0, end_epoch: 1, update_frequency: 1, init_sparsity: 0.05, final_sparsity: 0.5, mask_type: 2:4,
     params: __ALL_PRUNABLE__}
"""
    manager = ScheduledModifierManager.from_yaml(text)
    with pytest.warns(UserWarning, match=r"leaves 0\.weight dense: it has 3 inputs, fewer than a group of 2:4"):
        manager.apply(module)
    assert int((module[0].weight == 0).sum()) == 0
    assert int((module[1].weight == 0).sum()) == 32


def small() -> tuple[Any, Any]:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8))
    return module, torch.optim.SGD(module.parameters(), 0.1)


ONE = """
modifiers:
- !EpochRangeModifier {start_epoch: 0, end_epoch: 2}
- !GMPruningModifier
    {start_epoch: 0, end_epoch: 2, update_frequency: 1, init_sparsity: 0.05, final_sparsity: 0.5, params: ['0']}
"""


@pytest.mark.parametrize("steps", [math.inf, math.nan, "4", None, 0, -1, True, 1e30])
def test_steps_that_are_no_number(steps: Any) -> None:
    with refusing(OptionError):
        ScheduledModifierManager.from_yaml(ONE).modify(*small(), steps)


@pytest.mark.parametrize("epoch", [math.nan, -2, "1", 1e30, -math.inf])
def test_epochs_that_are_no_number(epoch: Any) -> None:
    with refusing(OptionError):
        ScheduledModifierManager.from_yaml(ONE).modify(*small(), 4, epoch=epoch)


@pytest.mark.parametrize("epoch", [-1, math.inf])
def test_a_recipe_that_is_over(epoch: float) -> None:
    module, optimizer = small()
    wrapped = ScheduledModifierManager.from_yaml(ONE).modify(module, optimizer, 4, epoch=epoch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(9):
            wrapped.emulated_step()
    assert int((module[0].weight == 0).sum()) == 32


@pytest.mark.parametrize(("begin", "per_epoch", "fine"), [(0, 4, 9), (1.5, 4, 3), (2, 4, 1), (0, 2.5, 6), (3, 4, 0)])
def test_the_second_step_behind_the_end_of_a_recipe_is_said(begin: float, per_epoch: float, fine: int) -> None:
    wrapped = ScheduledModifierManager.from_yaml(ONE).modify(*small(), per_epoch, epoch=begin)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(fine):
            wrapped.emulated_step()
    at = {0: 2 + 1 / per_epoch, 1.5: 2.25, 2: 2.25, 3: 3}[begin]
    said = rf"training goes on at epoch {at:g}, and the recipe ends at 2\. Are {per_epoch} steps an epoch"
    with pytest.warns(UserWarning, match=said) as found:
        wrapped.emulated_step()
    assert found[0].filename == __file__  # the loop's own line
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once
        wrapped.emulated_step()


def test_scales_that_are_pruned_along_are_said() -> None:
    net, optimizer = made()
    manager = ScheduledModifierManager.from_yaml(GMP.replace("(?!norm)", ""))
    with pytest.warns(UserWarning, match=r"it prunes 1 scale or bias too \(norm\.weight\).*__ALL_PRUNABLE__"):
        manager.modify(net, optimizer, 4)


def test_a_manager_has_one_module_at_a_time() -> None:
    (module, optimizer), (other, another) = small(), small()
    manager = ScheduledModifierManager.from_yaml(ONE)
    wrapped = manager.modify(module, optimizer, 4)
    with refusing(OptionError):
        manager.modify(other, another, 4)
    with refusing(OptionError):
        ScheduledModifierManager.from_yaml(ONE).modify(module, optimizer, 4)
    for _ in range(8):
        wrapped.step()
    manager.finalize(module)
    with refusing(OptionError):
        wrapped.step()
    manager.modify(other, another, 4).step()
    assert int((other[0].weight == 0).sum()) == 3


def test_a_loss_that_never_came_by() -> None:
    module, optimizer = small()
    manager = manager_of("DistillationModifier {hardness: 0.5, start_epoch: 0, end_epoch: 1}")
    manager.modify(module, optimizer, 2).emulated_step()
    with pytest.warns(UserWarning, match="the loop never calls loss_update"):
        manager.finalize(module)


def test_a_loss_that_does_not_come_by_is_said_at_the_second_step() -> None:
    module, optimizer = small()
    manager = manager_of("DistillationModifier {hardness: 0.5, start_epoch: 1, end_epoch: 4}")
    wrapped = manager.modify(module, optimizer, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            wrapped.emulated_step()
    with pytest.warns(UserWarning, match="the loop never calls loss_update: no teacher was heard"):
        wrapped.emulated_step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2 * 4 - 4):
            wrapped.emulated_step()
        manager.finalize(module)


@pytest.mark.parametrize(
    ("state", "what"),
    [
        (lambda tensor: tensor[:3], r"the mask of 0\.weight in the state is \[3, 8\], and the parameter \[8, 8\]"),
        (lambda tensor: 5, r"the mask of 0\.weight in the state is int"),
        (None, "the state of a manager is a mapping, not a NoneType"),
    ],
)
def test_a_state_that_does_not_fit(state: Any, what: str) -> None:
    manager = ScheduledModifierManager.from_yaml(ONE)
    manager.modify(*small(), 4)
    given = state and {
        key: {name: state(mask) for name, mask in one.items()} for key, one in manager.state_dict().items()
    }
    with pytest.raises(OptionError, match=what):
        manager.load_state_dict(given)


RATES = "SetLearningRateModifier {start_epoch: 0, learning_rate: 0.5, param_groups: [1]}"


@pytest.mark.parametrize(
    ("modifier", "optimizer", "teacher", "what"),
    [
        (RATES, None, None, r"line 2: !SetLearningRateModifier: param_groups: the optimizer has 1 groups, and none is"),
        (RATES, object(), None, "an optimizer of torch is expected, not a object"),
        ("DistillationModifier {}", None, "nope.onnx", "the teacher: there is no file nope.onnx"),
        ("DistillationModifier {teacher: nope.onnx}", None, None, "the teacher: there is no file nope.onnx"),
        ("DistillationModifier {}", None, 5, "a teacher is 'self', 'disable', a module or the path"),
    ],
)
def test_what_a_loop_hands_over_is_looked_at_before_anything_changes(
    modifier: str, optimizer: Any, teacher: Any, what: str
) -> None:
    module, own = small()
    pruning = ONE.partition("modifiers:")[2]
    manager = ScheduledModifierManager.from_yaml(f"modifiers:\n- !{modifier}{pruning}")
    with pytest.raises(OptionError, match=what):
        manager.modify(module, optimizer or own, 4, distillation_teacher=teacher)
    assert not manager.initialized
    assert type(module[0]) is torch.nn.Linear
    manager = ScheduledModifierManager.from_yaml(ONE)
    manager.modify(module, own, 4)


def test_a_module_without_numbers() -> None:
    with refusing(OptionError):
        ScheduledModifierManager.from_yaml(ONE).apply(torch.nn.Linear(8, 8, device="meta"))


def test_what_a_manager_is_made_of() -> None:
    with refusing(OptionError):
        ScheduledModifierManager(ONE)  # type: ignore[arg-type]
    with refusing(OnnxSparseError):
        ScheduledModifierManager([1])  # type: ignore[list-item]


def test_zeros_that_train_until_a_late_start_are_still_the_first_level() -> None:
    """As in SparseML, which counts them when it gets the module; masks of the meantime count, too."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 10), torch.nn.Tanh(), torch.nn.Linear(10, 4))
    with torch.no_grad():
        net[0].weight[:3] = 0
    times = "start_epoch: 1.0, end_epoch: 2.0, update_frequency: 0.5, init_sparsity: __FROM_PARAM__"
    before = "start_epoch: 0.0, end_epoch: 0.5, update_frequency: 0.5, init_sparsity: 0.25, final_sparsity: 0.25"
    recipe = f"""
modifiers:
    - !GMPruningModifier {{{times}, final_sparsity: 0.9, params: __ALL_PRUNABLE__}}
    - !GMPruningModifier {{{before}, params: [2.weight]}}
"""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    wrapped = ScheduledModifierManager.from_yaml(recipe).modify(net, optimizer, steps_per_epoch=2)
    zeros = []
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(6, 8)).square().mean().backward()
        wrapped.step()
        zeros.append([int((layer.weight == 0).sum()) for layer in (net[0], net[2])])
    assert zeros == [[0, 10], [0, 10], [24, 10]]
