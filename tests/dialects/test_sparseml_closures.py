"""A loop whose optimizer calls a closure, as LBFGS needs, gets from a recipe what any other loop gets."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from onnxsparse.engines.torch import library

pytestmark = pytest.mark.skipif(not library.available(), reason="needs torch")
torch = pytest.importorskip("torch")

from onnxsparse.dialects.sparseml import ScheduledModifierManager

TIMES = "start_epoch: 0.0, end_epoch: 2.0, update_frequency: 0.5, params: __ALL_PRUNABLE__"
LEVELS = "init_sparsity: 0.1, final_sparsity: 0.6"
POWER = "!PowerpropagationModifier {start_epoch: 0.0, end_epoch: 2.0, params: __ALL_PRUNABLE__, alpha: 2.0}"
BY_GRADIENTS = [
    f"!MovementPruningModifier {{{TIMES}, {LEVELS}}}",
    f"!MFACPruningModifier {{{TIMES}, {LEVELS}, num_grads: 2, fisher_block_size: 4}}",
    f"!RigLPruningModifier {{{TIMES}, final_sparsity: 0.5}}",
    POWER,
]


def manager_of(modifier: str) -> ScheduledModifierManager:
    last = "    - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 3.0}"
    return ScheduledModifierManager.from_yaml(f"modifiers:\n    - {modifier}\n{last}\n")


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4))


def loss_of(model: Any, step: int) -> Any:
    made = torch.Generator().manual_seed(step)
    labels = torch.randint(0, 4, (16,), generator=made)
    return torch.nn.functional.cross_entropy(model(torch.randn(16, 8, generator=made)), labels)


def trained(modifier: str, by_closure: bool) -> dict[str, Any]:
    model, manager = net(), manager_of(modifier)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    wrapped = manager.modify(model, optimizer, steps_per_epoch=4)
    for step in range(12):

        def closure(step: int = step) -> Any:
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            return loss

        if by_closure:
            wrapped.step(closure)
        else:
            closure()
            wrapped.step()
    manager.finalize(model)
    found: dict[str, Any] = model.state_dict()
    return found


@pytest.mark.parametrize("modifier", BY_GRADIENTS)
def test_what_goes_by_gradients_waits_for_those_of_the_closure(modifier: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = trained(modifier, by_closure=False), trained(modifier, by_closure=True)
    assert all(torch.equal(first[name], second[name]) for name in first)


class Seen:
    """What a closure computes with, and its losses."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._model, self._optimizer = model, optimizer
        self.losses: list[float] = []
        self.zeros: set[int] = set()

    def __call__(self) -> Any:
        self._optimizer.zero_grad()
        self.zeros.add(sum(int((layer.weight == 0).sum()) for layer in self._model if hasattr(layer, "weight")))
        loss = loss_of(self._model, 0)
        loss.backward()
        self.losses.append(loss.item())
        return loss


MASKS = f"!TopKASTPruningModifier {{{TIMES}, forward_sparsity: 0.75, backward_sparsity: 0.25}}"


@pytest.mark.parametrize("modifier", [MASKS, POWER])
def test_a_closure_computes_with_what_the_model_computes_with(modifier: str) -> None:
    model, manager = net(), manager_of(modifier)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=4)
    wrapped, seen = manager.modify(model, optimizer, steps_per_epoch=2), Seen(model, optimizer)
    firsts, outside = [], []
    for _ in range(4):
        firsts.append(len(seen.losses))
        wrapped.step(seen)
        outside.append(loss_of(model, 0).item())
    assert len(seen.losses) > 8
    assert seen.losses[-1] < seen.losses[0]
    assert seen.zeros == ({45} if modifier is MASKS else {0})  # floor(0.75 * 60 + 0.5)
    if modifier is POWER:  # others choose masks before the loss
        assert [seen.losses[first] for first in firsts[1:]] == pytest.approx(outside[:-1])
