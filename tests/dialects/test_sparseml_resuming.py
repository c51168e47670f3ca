"""A loop that is resumed at a step with new masks goes on as it would have: the manager's state has what is needed."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import pytest

from onnxsparse.engines.torch import library

pytestmark = pytest.mark.skipif(not library.available(), reason="needs torch")
torch = pytest.importorskip("torch")

from onnxsparse.dialects.sparseml import ScheduledModifierManager
from onnxsparse.errors import OptionError

TIMES = "start_epoch: 0.0, end_epoch: 3.0, update_frequency: 1.0, params: __ALL_PRUNABLE__"
LEVELS = "init_sparsity: 0.1, final_sparsity: 0.6"
SECOND = "damp: 0.01, fisher_block_size: 5, num_grads"
MODIFIERS = {
    "movement": f"MovementPruningModifier {{{TIMES}, {LEVELS}}}",
    "OBS": f"OBSPruningModifier {{{TIMES}, {LEVELS}, {SECOND}: 4}}",
    "M-FAC": f"MFACPruningModifier {{{TIMES}, {LEVELS}, {SECOND}: 4}}",
    "RigL": f"RigLPruningModifier {{{TIMES}, final_sparsity: 0.5, num_grads: 4}}",
    "RigL, of one step": f"RigLPruningModifier {{{TIMES}, final_sparsity: 0.5}}",
    "Top-KAST": f"TopKASTPruningModifier {{{TIMES}, forward_sparsity: 0.75, backward_sparsity: 0.25}}",
    "powers": "PowerpropagationModifier {start_epoch: 0.0, end_epoch: 3.0, params: __ALL_PRUNABLE__, alpha: 2.0}",
}
PER_EPOCH, PAUSE, STEPS = 4, 8, 14


class Loop:
    def __init__(self, modifier: str, epoch: float = 0.0, staged: bool = False) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)
        recipe = f"modifiers:\n    - !EpochRangeModifier {{start_epoch: 0, end_epoch: 4}}\n    - !{modifier}\n"
        self.manager = ScheduledModifierManager.from_yaml(recipe)
        if staged:
            self.manager = ScheduledModifierManager.compose_staged(recipe, recipe.partition("    - !M")[0])
        self.wrapped = self.manager.modify(self.model, self.optimizer, PER_EPOCH, epoch=epoch)

    def run(self, first: int, last: int) -> None:
        for step in range(first, last):
            made = torch.Generator().manual_seed(step)
            self.optimizer.zero_grad()
            outputs = self.model(torch.randn(16, 8, generator=made))
            torch.nn.functional.cross_entropy(outputs, torch.randint(0, 4, (16,), generator=made)).backward()
            self.wrapped.step()

    def state(self) -> Any:
        """As it comes out of a file that is read without running anything in it."""
        file = io.BytesIO()
        states = [self.model.state_dict(), self.optimizer.state_dict(), self.manager.state_dict()]
        torch.save(copy.deepcopy(states), file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    def take(self, state: Any) -> None:
        for one, own in zip((self.model, self.optimizer, self.manager), state):
            one.load_state_dict(own)


@pytest.mark.parametrize("name", MODIFIERS)
def test_a_resumed_loop_ends_as_if_it_had_not_stopped(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole, second = Loop(MODIFIERS[name]), Loop(MODIFIERS[name], PAUSE / PER_EPOCH)
        whole.run(0, PAUSE)
        second.take(whole.state())
        whole.run(PAUSE, STEPS)
        second.run(PAUSE, STEPS)
        whole.manager.finalize(whole.model)
        second.manager.finalize(second.model)
    expected = whole.model.state_dict()
    assert all(torch.equal(one, expected[key]) for key, one in second.model.state_dict().items())


def test_a_state_without_it_has_the_masks_alone_and_one_of_other_things_is_refused() -> None:
    first = Loop(MODIFIERS["movement"], staged=True)
    first.run(0, 3)
    state = first.manager.state_dict()
    ((name, mine),) = state["stage_0"].items()
    assert set(mine) == {"0.weight.sparsity_mask", "2.weight.sparsity_mask", "gathered"}
    first.manager.load_state_dict(state)
    assert set(state["stage_0"][name]) == set(mine)  # what is handed over stays as it is
    wrong = {**state, "stage_0": {name: {**mine, "gathered": {"arrays": 1}}}}
    with pytest.raises(OptionError, match="what the state has gathered is that of another recipe or module"):
        first.manager.load_state_dict(wrong)
    del mine["gathered"]
    first.manager.load_state_dict(state)
