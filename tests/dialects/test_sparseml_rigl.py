"""RigL in a torch loop, step for step as SparseML 1.8 has it: a loop without either says what that is.

With a sampler the gradients of the step that brings new masks are gone there, so that nothing moves in it. Without one,
which SparseML does not run, they stay; here the optimizer drops them.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

from onnxsparse.engines.torch import library

pytestmark = pytest.mark.skipif(not library.available(), reason="needs torch")
torch = pytest.importorskip("torch")

from onnxsparse.dialects.sparseml import ScheduledModifierManager
from onnxsparse.errors import OptionError
from tests.cases import for_each

PER_EPOCH, EPOCHS, LEVEL = 4, 6, 0.8
WEIGHTS = ("0.weight", "3.weight", "5.weight")
RECIPE = """
modifiers:
    - !EpochRangeModifier
        start_epoch: 0.0
        end_epoch: 6.0

    - !RigLPruningModifier
        start_epoch: %s
        end_epoch: 5.0
        update_frequency: %s
        final_sparsity: 0.8
        sparsity_strategy: %s
        num_grads: %s
        momentum_buffer_reset: %s
        params: __ALL_PRUNABLE__
"""


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(128, 32), torch.nn.Tanh(),
        torch.nn.Linear(32, 5),
    )  # fmt: skip


def backward(module: Any, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    x, labels = torch.randn((12, 3, 6, 6), generator=generator), torch.randint(0, 5, (12,), generator=generator)
    module.zero_grad()
    torch.nn.functional.cross_entropy(module(x), labels).backward()


def optimizer_of(module: Any) -> Any:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def is_update(step: int, start: float, often: float, last: list[float]) -> bool:
    epoch = step / PER_EPOCH
    due = epoch in (start, 5.0) or (start < epoch < 5 and epoch >= last[0] + often)
    last[0] = epoch if due else last[0]
    return due


def ours(start: float, often: float, strategy: str, grads: int, reset: bool) -> list[dict[str, Any]]:
    module, last, found = net(), [-math.inf], []
    plain = optimizer_of(module)
    manager = ScheduledModifierManager.from_yaml(RECIPE % (start, often, strategy, grads, reset))
    wrapped = manager.modify(module, plain, PER_EPOCH)

    def dropped(*_: Any) -> None:
        for one in module.parameters():
            one.grad = None

    for step in range(EPOCHS * PER_EPOCH):
        backward(module, step)
        hook = plain.register_step_pre_hook(dropped) if is_update(step, start, often, last) else None
        wrapped.step()
        if hook is not None:
            hook.remove()
        found.append({name: tensor.clone() for name, tensor in module.state_dict().items()})
    manager.finalize(module)
    return found


def shares(strategy: str) -> list[float]:
    shapes = [tuple(dict(net().named_parameters())[name].shape) for name in WEIGHTS]
    sizes = np.array([math.prod(shape) for shape in shapes])
    factors = {
        "uniform": np.ones(3),
        "erdos_renyi": np.array([(shape[0] + shape[1]) / (shape[0] * shape[1]) for shape in shapes]),
        "erdos_renyi_kernel": np.array([sum(shape) / math.prod(shape) for shape in shapes]),
    }[strategy]
    return list(np.clip(1 - (1 - LEVEL) * sizes.sum() / (factors * sizes).sum() * factors, 0, 1))


def theirs(start: float, often: float, strategy: str, grads: int, reset: bool) -> list[dict[str, Any]]:
    module, last, found = net(), [-math.inf], []
    plain, weights = optimizer_of(module), [dict(module.named_parameters())[name] for name in WEIGHTS]
    masks, sums = [torch.ones_like(one) for one in weights], list[list[Any]]()
    for step in range(EPOCHS * PER_EPOCH):
        backward(module, step)
        sums = [*sums, [one.grad.clone() for one in weights]][-grads:]
        if is_update(step, start, often, last):
            gains = [sum(several[1:], several[0]) for several in zip(*sums)]
            share = 0.15 * (1 + math.cos(math.pi * (step / PER_EPOCH - start) / (5 - start)))
            masks = [exchanged(*each, share) for each in zip(weights, gains, shares(strategy))]
            hide(weights, masks)
            for one in module.parameters():
                one.grad = None
            sums = []
        for weight, mask in zip(weights, masks):
            if weight.grad is not None:
                weight.grad *= mask
            if reset and "momentum_buffer" in plain.state[weight]:
                plain.state[weight]["momentum_buffer"] *= weight != 0
        plain.step()
        hide(weights, masks)
        found.append({name: tensor.clone() for name, tensor in module.state_dict().items()})
    return found


def exchanged(weight: Any, gain: Any, level: float, share: float) -> Any:
    flat, size = weight.detach().abs().flatten(), weight.numel()
    sure = flat.topk(round((1 - (level + (1 - level) * share)) * size)).indices
    scores = gain.abs().flatten().clone()
    scores[sure] = torch.inf
    mask = torch.zeros(size)
    mask[scores.topk(size - round(level * size)).indices] = 1
    return mask.reshape(weight.shape)


def hide(weights: list[Any], masks: list[Any]) -> None:
    with torch.no_grad():
        for weight, mask in zip(weights, masks):
            weight *= mask


@pytest.mark.filterwarnings("ignore:.*dense")
@for_each(
    "case",
    [
        (0.0, 1.0, "erdos_renyi_kernel", 1, True), (1.0, 0.5, "erdos_renyi", 1, True), (0.0, 0.75, "uniform", 3, True),
        (0.0, 1.0, "uniform", 2, False),
    ],
)  # fmt: skip
def test_every_step_is_that_of_sparseml(case: Any) -> None:
    for step, (mine, other) in enumerate(zip(ours(*case), theirs(*case))):
        for name, tensor in other.items():
            assert torch.equal(mine[name], tensor), (step, name)


def test_at_once_it_is_the_magnitude_that_decides() -> None:
    module = net()
    before = module[3].weight.detach().abs().flatten()
    ScheduledModifierManager.from_yaml(RECIPE % (0.0, 1.0, "uniform", 1, True)).apply(module)
    kept = module[3].weight.flatten() != 0
    assert int(kept.sum()) == before.numel() - round(LEVEL * before.numel())
    assert before[kept].min() >= before[~kept].max()
    with pytest.raises(OptionError, match="RigLPruningModifier: places grow by gradients, and there are none here"):
        ScheduledModifierManager.from_yaml(RECIPE % (0.0, 1.0, "uniform", 1, True)).apply(net(), epoch=1.0)


@pytest.mark.filterwarnings("ignore:.*dense")
def test_what_has_one_axis_stays_dense() -> None:
    text = RECIPE % (0.0, 1.0, "uniform", 1, True)
    manager = ScheduledModifierManager.from_yaml(text.replace("__ALL_PRUNABLE__", "__ALL__"))
    with pytest.warns(UserWarning, match=r"leaves 0\.bias dense: it has one axis"):
        manager.apply(module := net())
    assert int((module[0].bias == 0).sum()) == 0
    manager = ScheduledModifierManager.from_yaml(text.replace("__ALL_PRUNABLE__", "['0.bias']"))
    with pytest.raises(OptionError, match=r"0\.bias cannot be pruned: it has one axis"):
        manager.apply(net())


@pytest.mark.filterwarnings("ignore:.*dense")
def test_levels_by_name_are_shared_out_among_those_that_have_them() -> None:
    text = (RECIPE % (0.0, 1.0, "erdos_renyi_kernel", 1, True)).replace("__ALL_PRUNABLE__", "[]")
    text = text.replace("final_sparsity: 0.8", "final_sparsity: {0.5: ['0.weight'], 0.9: ['3.weight', '5.weight']}")
    ScheduledModifierManager.from_yaml(text).apply(module := net())
    gone = [int((module[place].weight == 0).sum()) for place in (0, 3, 5)]
    assert gone[0] == module[0].weight.numel() // 2
    assert abs(sum(gone[1:]) - 0.9 * (4096 + 160)) <= 1
    assert gone[1] / 4096 > 0.9 > gone[2] / 160


def test_a_sampler_with_fewer_batches_than_asked_for_is_said_once() -> None:
    few = [([torch.randn(12, 3, 6, 6)], {}, torch.arange(12) % 5) for _ in range(2)]
    sampler = {"data_loader_builder": lambda: few, "loss_function": torch.nn.functional.cross_entropy}
    module = net()
    manager = ScheduledModifierManager.from_yaml(RECIPE % (0.0, 1.0, "uniform", 3, True))
    wrapped = manager.modify(module, optimizer_of(module), PER_EPOCH, grad_sampler=sampler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(2 * PER_EPOCH):
            backward(module, step)
            wrapped.step()
    said = [str(one.message) for one in caught if "RigLPruning" in str(one.message)]
    assert len(said) == 1
    assert "samples gave 2 of the 3 gradients that num_grads asks for" in said[0]


def test_a_sampler_gives_the_gradients_and_its_step_moves_nothing() -> None:
    asked: list[int] = []

    def build(**options: Any) -> Any:
        def samples() -> Any:
            while True:
                asked.append(len(asked))
                generator = torch.Generator().manual_seed(100 + len(asked))
                yield [torch.randn((12, 3, 6, 6), generator=generator)], {}, torch.arange(12) % 5

        return samples()

    sampler = {"data_loader_builder": build, "loss_function": torch.nn.functional.cross_entropy}
    module = net()
    plain, last, before = optimizer_of(module), [-math.inf], None
    manager = ScheduledModifierManager.from_yaml(RECIPE % (0.0, 1.0, "uniform", 3, True))
    wrapped = manager.modify(module, plain, PER_EPOCH, grad_sampler=sampler)
    for step in range(EPOCHS * PER_EPOCH):
        backward(module, step)
        wrapped.step()
        bias = module[3].bias.detach().clone()
        assert (before is not None and torch.equal(bias, before)) == (is_update(step, 0.0, 1.0, last) and step > 0)
        before = bias
        assert int((module[3].weight != 0).sum()) <= 4096 - round(LEVEL * 4096)
    assert len(asked) == 3 * 5
