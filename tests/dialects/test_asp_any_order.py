"""Calls, steps, saving and loading in any order, held against a plain account of what has to be where."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn

from onnxsparse.dialects.asp import ASP
from tests.cases import for_each

OPTIMIZERS = [
    lambda given: torch.optim.SGD(given, 0.05, momentum=0.9, weight_decay=0.01),
    lambda given: torch.optim.Adam(given, 0.01),
]


class Account:
    """One weight of a model under ASP: the mask it has to have, and what has to be put away."""

    def __init__(self, chance: random.Random) -> None:
        self.model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 8)).double()
        self.weight, self.recomputes = self.model[0].weight, chance.random() < 0.7
        self.optimizer = chance.choice(OPTIMIZERS)(self.model.parameters())
        ASP.init_model_for_pruning(
            self.model, verbosity=0, allow_permutation=False, allow_recompute_mask=self.recomputes
        )
        self.asp = ASP.of(self.model)
        self.asp.init_optimizer_for_pruning(self.optimizer)
        self.keep, self.stash = torch.ones(16, 16, dtype=torch.bool), torch.zeros_like(self.weight.detach())
        self.saved: Any = None

    def put(self, keep: Any, dense: Any) -> None:
        self.keep = keep
        self.stash = torch.where(keep, 0.0, dense) if self.recomputes else self.stash
        assert torch.equal(self.weight.detach(), torch.where(keep, dense, 0.0))

    def step(self) -> None:
        before = self.weight.detach().clone()
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 16, dtype=torch.float64)).square().sum().backward()
        self.optimizer.step()
        assert (self.weight[self.keep] != before[self.keep]).any()

    def compute(self) -> None:
        self.changed(self.asp.compute_sparse_masks, two_of_four)

    def restore(self) -> None:
        self.changed(self.asp.restore_pruned_weights, lambda dense: torch.ones_like(dense, dtype=torch.bool))

    def changed(self, call: Any, wanted: Any) -> None:
        dense = torch.where(self.keep, self.weight.detach(), self.stash)
        if self.recomputes or self.keep.all():
            call()
            self.put(wanted(dense), dense)
        else:
            with pytest.raises(AssertionError, match="allow_recompute_mask"):
                call()

    def save(self) -> None:
        file = io.BytesIO()
        torch.save((self.model.state_dict(), self.optimizer.state_dict()), file)
        self.saved = file, self.keep, self.stash, self.weight.detach().clone()

    def load(self) -> None:
        if self.saved is not None:
            file, self.keep, self.stash, weight = self.saved
            file.seek(0)
            model, optimizer = torch.load(file, weights_only=True)
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
            assert torch.equal(self.weight.detach(), weight)

    def plain(self) -> None:
        state = {name: torch.randn_like(one) for name, one in self.model.state_dict().items() if "mma" not in name}
        self.model.load_state_dict(state)
        self.put(self.keep, state["0.weight"])

    def holds(self) -> None:
        state = self.model.state_dict()
        assert torch.equal(state["0.__weight_mma_mask"], self.keep)
        assert not self.weight[~self.keep].any()
        assert self.asp.is_sparsity_enabled() == (not self.keep.all())
        assert not self.recomputes or torch.equal(state["0.__weight_mma_pruned_p"], self.stash)


def two_of_four(dense: Any) -> Any:
    groups = dense.reshape(-1, 4)
    keep = torch.zeros_like(groups, dtype=torch.bool)
    return keep.scatter_(1, groups.abs().argsort(1)[:, 2:], True).reshape(dense.shape)


@for_each("seed", range(30))
def test_any_order_of_calls_comes_to_what_it_has_to(seed: int) -> None:
    torch.manual_seed(seed)
    chance = random.Random(seed)
    account = Account(chance)
    for _ in range(15):
        getattr(account, chance.choice(["step", "step", "compute", "restore", "save", "load", "plain"]))()
        account.holds()
