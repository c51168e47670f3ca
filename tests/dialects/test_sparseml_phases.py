"""AC/DC in a torch loop, step for step as SparseML 1.8 has it: a loop without either says what that is.

1. A step goes by gradients that the old masks hid, also in the step that brings new ones; no state of the optimizer is
   cleared when places are masked. Masked numbers are zero after every step.
2. After the first step of a dense phase that follows a pruned one, every momentum of the optimizer is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from onnxsparse.engines.torch import library

pytestmark = pytest.mark.skipif(not library.available(), reason="needs torch")
torch = pytest.importorskip("torch")

from onnxsparse.dialects.sparseml import ScheduledModifierManager
from tests.cases import for_each

PER_EPOCH, LEVEL = 3, 0.7
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "plain": lambda params: torch.optim.SGD(params, lr=0.1),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
}
RECIPE = """
modifiers:
    - !EpochRangeModifier
        start_epoch: 0.0
        end_epoch: 10.0

    - !ACDCPruningModifier
        compression_sparsity: 0.7
        start_epoch: %s
        end_epoch: %s
        update_frequency: %s
        params: ['0.weight', '3.weight']
        global_sparsity: %s
        momentum_buffer_reset: %s
"""


def made(optimizer: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    return net, OPTIMIZERS[optimizer](net.parameters())


def backward(net: Any, optimizer: Any, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    x, labels = torch.randn((12, 8), generator=generator), torch.randint(0, 4, (12,), generator=generator)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(x), labels).backward()


def state(net: Any) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def ours(recipe: str, optimizer: str) -> list[dict[str, Any]]:
    net, plain = made(optimizer)
    manager = ScheduledModifierManager.from_yaml(recipe)
    wrapped = manager.modify(net, plain, PER_EPOCH)
    found = []
    for step in range(10 * PER_EPOCH):
        backward(net, plain, step)
        wrapped.step()
        found.append(state(net))
    manager.finalize(net)
    return found


def theirs(start: int, end: int, often: int, together: bool, reset: bool, optimizer: str) -> list[dict[str, Any]]:
    net, plain = made(optimizer)
    weights = [net[0].weight, net[3].weight]
    masks = [torch.ones_like(one) for one in weights]
    dense, stale, last, found = True, False, -math.inf, []
    for step in range(10 * PER_EPOCH):
        epoch = step // PER_EPOCH + step % PER_EPOCH / PER_EPOCH
        backward(net, plain, step)
        for weight, mask in zip(weights, masks):
            weight.grad *= mask
        if epoch in (start, end) or (start < epoch < end and epoch >= last + often):
            last, dense = epoch, math.floor((epoch - start) / often) % 2 == 0 and epoch < end - often
            stale = stale or not dense
            masks = [torch.ones_like(one) for one in weights] if dense else smallest_gone(weights, together)
            hide(weights, masks)
        plain.step()
        hide(weights, masks)
        if reset and dense and stale:
            for kept in plain.state.values():
                if torch.is_tensor(kept.get("momentum_buffer")):
                    kept["momentum_buffer"].zero_()
            stale = False
        found.append(state(net))
    return found


def hide(weights: list[Any], masks: list[Any]) -> None:
    with torch.no_grad():
        for weight, mask in zip(weights, masks):
            weight *= mask


def smallest_gone(weights: list[Any], together: bool) -> list[Any]:
    sizes = [one.detach().abs() for one in weights]
    whole = torch.cat([one.flatten() for one in sizes])
    limits = [kth(whole)] * len(sizes) if together else [kth(one.flatten()) for one in sizes]
    return [(one > limit).to(one.dtype) for one, limit in zip(sizes, limits)]


def kth(sizes: Any) -> Any:
    return sizes.kthvalue(math.floor(LEVEL * sizes.numel() + 0.5)).values


@pytest.mark.filterwarnings("ignore:training goes on")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("reset", [True, False])
@for_each("times, together", [((0, 8, 2), True), ((1, 9, 1), False), ((0, 7, 3), True)])
def test_every_step_is_that_of_sparseml(
    times: tuple[int, int, int], together: bool, optimizer: str, reset: bool
) -> None:
    found = ours(RECIPE % (*times, together, reset), optimizer)
    for step, (mine, other) in enumerate(zip(found, theirs(*times, together, reset, optimizer))):
        for name, tensor in other.items():
            assert torch.equal(mine[name], tensor), (step, name)


def momenta(at: str) -> list[float]:
    """The largest momentum at the pruned places of a weight, and of a bias, before and after a dense phase begins."""
    net, plain = made("sgd")
    text = RECIPE % (0, 8, 2, True, True)
    manager = ScheduledModifierManager.from_yaml(f"{text}        momentum_reset_at: {at}\n")
    wrapped = manager.modify(net, plain, PER_EPOCH)
    for step in range(4 * PER_EPOCH):
        backward(net, plain, step)
        wrapped.step()
    pruned = net[3].weight == 0
    weight, bias = net[3].parametrizations.weight.original, net[3].bias
    before = plain.state[weight]["momentum_buffer"][pruned].abs().max()
    backward(net, plain, 4 * PER_EPOCH)
    wrapped.step()
    return [float(before), *(float(plain.state[one]["momentum_buffer"].abs().max()) for one in (weight, bias))]


def test_when_momentum_is_forgotten() -> None:
    before, weight, bias = momenta("first_step")
    assert before > 0
    assert weight == bias == 0
    before, weight, bias = momenta("phase")
    assert before == 0
    assert weight > 0
    assert bias > 0
