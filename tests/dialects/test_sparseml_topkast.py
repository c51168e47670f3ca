"""Top-KAST in a torch loop, step for step as SparseML 1.8 has it, and Powerpropagation as torch differentiates it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from onnxsparse.engines.torch import library

pytestmark = pytest.mark.skipif(not library.available(), reason="needs torch")
torch = pytest.importorskip("torch")

from onnxsparse.dialects.sparseml import ScheduledModifierManager
from onnxsparse.errors import OptionError
from tests.cases import for_each
from tests.dialects.test_sparseml_rigl import EPOCHS, PER_EPOCH, WEIGHTS, backward, hide, is_update, net, optimizer_of

TOPKAST = """
modifiers:
    - !EpochRangeModifier
        start_epoch: 0.0
        end_epoch: 6.0

    - !TopKASTPruningModifier
        start_epoch: %s
        end_epoch: 5.0
        update_frequency: %s
        forward_sparsity: 0.8
        backward_sparsity: 0.4
        active_weight_decay: 0.01
        global_sparsity: %s
        params: __ALL_PRUNABLE__
"""
POWERS = """
modifiers:
    - !EpochRangeModifier
        start_epoch: 0.0
        end_epoch: 6.0

    - !PowerpropagationModifier
        start_epoch: 1.0
        end_epoch: 4.0
        alpha: %s
        params: __ALL_PRUNABLE__
"""


def driven(recipe: str) -> list[dict[str, Any]]:
    module = net()
    plain, found = optimizer_of(module), []
    manager = ScheduledModifierManager.from_yaml(recipe)
    wrapped = manager.modify(module, plain, PER_EPOCH)
    for step in range(EPOCHS * PER_EPOCH):
        backward(module, step)
        wrapped.step()
        found.append({name: tensor.clone() for name, tensor in module.state_dict().items()})
    manager.finalize(module)
    return found


def largest(numbers: list[Any], level: float, together: bool) -> list[Any]:
    sizes = [one.abs() for one in numbers]
    whole = torch.cat([one.flatten() for one in sizes])
    limits = [_limit(whole, level)] * len(sizes) if together else [_limit(one.flatten(), level) for one in sizes]
    return [(one > limit).to(one.dtype) for one, limit in zip(sizes, limits)]


def _limit(sizes: Any, level: float) -> Any:
    return sizes.kthvalue(math.floor(level * sizes.numel() + 0.5)).values


def two_masks(start: float, often: float, together: bool) -> list[dict[str, Any]]:
    """Weights are whole, but while a step is computed."""
    module, last, found = net(), [-math.inf], []
    plain, weights = optimizer_of(module), [dict(module.named_parameters())[name] for name in WEIGHTS]
    used = trains = [torch.ones_like(one) for one in weights]
    rate = 0.01 * 0.1
    for step in range(EPOCHS * PER_EPOCH):
        whole = [one.detach().clone() for one in weights]
        hide(weights, used)
        backward(module, step)
        with torch.no_grad():
            for weight, numbers, mask in zip(weights, whole, trains):
                weight.copy_(numbers)
                weight.grad *= mask
            if is_update(step, start, often, last):
                used, trains = (largest(weights, level, together) for level in (0.8, 0.4))
            if step >= 5 * PER_EPOCH:
                hide(weights, used)
            for weight, mask, more in zip(weights, used, trains):
                weight -= rate * mask * weight
                weight -= rate * (1 / (1 - 0.8)) * (1 - mask) * more * weight
        plain.step()
        if step >= 5 * PER_EPOCH:
            hide(weights, used)
            trains = used
        seen = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        seen.update({name: seen[name] * mask for name, mask in zip(WEIGHTS, used)})
        found.append(seen)
    return found


@for_each("case", [(0.0, 1.0, True), (1.0, 0.5, False), (0.0, -1.0, True)])
def test_every_step_of_top_kast_is_that_of_sparseml(case: Any) -> None:
    for step, (mine, other) in enumerate(zip(driven(TOPKAST % case), two_masks(*case))):
        for name, tensor in other.items():
            assert torch.equal(mine[name], tensor), (step, name)


def test_top_kast_at_once() -> None:
    module = net()
    before = module[3].weight.detach().abs().flatten()
    ScheduledModifierManager.from_yaml(TOPKAST % (0.0, 1.0, False)).apply(module)
    kept = module[3].weight.flatten() != 0
    assert int(kept.sum()) == before.numel() - round(0.8 * before.numel())
    assert before[kept].min() >= before[~kept].max()


def test_what_top_kast_hid_comes_back_where_masks_are_let_go() -> None:
    text = (TOPKAST % (0.0, 1.0, True)).replace("0.01", "0.0\n        leave_enabled: false")
    found = driven(text)
    assert int((found[-1]["3.weight"] == 0).sum()) == 0
    assert float((found[5]["3.weight"] == 0).float().mean()) > 0.5


def powers(alpha: float) -> list[dict[str, Any]]:
    """What trains are roots, and torch differentiates the power of them."""
    module, found = net(), []
    plain = optimizer_of(module)
    weights = [dict(module.named_parameters())[name] for name in WEIGHTS]
    for step in range(EPOCHS * PER_EPOCH):
        on = PER_EPOCH <= step < 4 * PER_EPOCH
        backward(module, step)
        seen = [one.detach().clone() for one in weights]
        for weight, numbers in zip(weights, seen if on else ()):
            root = (numbers.sign() * numbers.abs().pow(1 / alpha)).requires_grad_()
            (root * root.abs().pow(alpha - 1) * weight.grad).sum().backward()
            with torch.no_grad():
                weight.copy_(root)
                weight.grad.copy_(root.grad)
        plain.step()
        with torch.no_grad():
            for weight in weights if on else ():
                weight.copy_(weight * weight.abs().pow(alpha - 1))
        found.append({name: tensor.clone() for name, tensor in module.state_dict().items()})
    return found


@for_each("alpha", [2.0, 1.5, 1.0])
def test_powers_train_by_the_chain_rule(alpha: float) -> None:
    for step, (mine, other) in enumerate(zip(driven(POWERS % alpha), powers(alpha))):
        for name, tensor in other.items():
            assert torch.allclose(mine[name], tensor, rtol=1e-4, atol=1e-5), (step, name)


def test_powers_beside_masks() -> None:
    masks = """
    - !GMPruningModifier
        start_epoch: 0.0
        end_epoch: 3.0
        update_frequency: 0.5
        init_sparsity: 0.1
        final_sparsity: 0.75
        params: __ALL_PRUNABLE__
"""
    for step, seen in enumerate(driven(POWERS % 2.0 + masks)):
        assert all(torch.isfinite(one).all() for one in seen.values())
        if step >= 3 * PER_EPOCH:
            assert [int((seen[name] == 0).sum()) for name in WEIGHTS] == [162, 3072, 120]


def test_powers_leave_a_plain_module() -> None:
    module = net()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    ScheduledModifierManager.from_yaml(POWERS % 2.0).apply(module)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert not hasattr(module[3], "parametrizations")


def test_powers_by_names() -> None:
    text = (POWERS % 2.0).replace("__ALL_PRUNABLE__", "['3.weight', nowhere]")
    with pytest.raises(OptionError, match="'nowhere' is no parameter or layer"):
        ScheduledModifierManager.from_yaml(text).apply(net())
    ScheduledModifierManager.from_yaml(f"{text}        strict: false\n").apply(net())
    with pytest.raises(OptionError, match=r"0\.bias has one axis"):
        ScheduledModifierManager.from_yaml(text.replace("nowhere", "0.bias")).apply(net())
