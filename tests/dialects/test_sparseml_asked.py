"""What SparseML's manager is asked for: recipes that are read already, what nothing runs, and mistakes."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import onnxsparse as osp
from onnxsparse.engines.torch import library

pytestmark = pytest.mark.skipif(not library.available(), reason="needs torch")
torch = pytest.importorskip("torch")

from onnxsparse.dialects.sparseml import ScheduledModifierManager
from onnxsparse.errors import OptionError, PlanError
from tests.messages import refusing

PRUNING = """
modifiers:
    - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 2.0}
    - !GMPruningModifier
        start_epoch: 0.0
        end_epoch: 1.0
        update_frequency: 0.5
        init_sparsity: 0.5
        final_sparsity: 0.5
        params: __ALL_PRUNABLE__
"""
THINNED = PRUNING + "    - !WandaPruningModifier {sparsity: 0.5}\n"


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(8, 4)


def modified(recipe: Any, module: Any = None, strict: bool = True, **more: Any) -> tuple[Any, Any, Any]:
    """The module, the manager, and the optimizer with the recipe around its steps."""
    module = net() if module is None else module
    manager = ScheduledModifierManager.from_yaml(recipe, strict=strict)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return module, manager, manager.modify(module, optimizer, steps_per_epoch=2, **more)


def zeros(module: Any) -> int:
    return int((module.weight == 0).sum())


@pytest.mark.parametrize("read", [False, True])
def test_what_nothing_runs_is_left_out_where_that_is_asked_for(read: bool) -> None:
    recipe = osp.Recipe.load(THINNED) if read else THINNED
    with refusing(PlanError):
        modified(recipe)
    with pytest.warns(UserWarning, match="not applied: !WandaPruningModifier: "):
        module, manager, stepper = modified(recipe, strict=False)
    for _ in range(4):
        stepper.step()
    manager.finalize(module)
    assert zeros(module) == 16


def test_a_recipe_that_was_read_is_as_strict_as_it_was_read() -> None:
    with pytest.warns(UserWarning, match="not applied: !WandaPruningModifier: "):
        modified(osp.Recipe.load(THINNED, strict=False))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        modified(osp.Recipe.load(PRUNING))
    with refusing(OptionError):
        ScheduledModifierManager.from_yaml(osp.Recipe.load(PRUNING), recipe_variables="a=1")


class Answering(torch.nn.Module):
    """A module with two outputs, and perhaps a loss among them, as those of transformers have."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.layer, self.form = net(), form

    def forward(self, x: Any) -> Any:
        return self.form(self.layer(x))


def lossy(found: Any) -> Any:
    return {"loss": found.square().mean(), "logits": found}


def taught(form: Any, options: str, **more: Any) -> Any:
    """The loss with what a teacher adds to it."""
    recipe = PRUNING + f"    - !DistillationModifier {{start_epoch: 0.0, hardness: 1.0{options}}}\n"
    module, _, stepper = modified(recipe, Answering(form), **more)
    module(torch.ones(3, 8))
    return stepper.loss_update(torch.tensor(1.0)).detach()


@pytest.mark.parametrize(
    ("form", "options"),
    [
        (lossy, ", distill_output_keys: [logits]"),
        (lossy, ", distill_output_keys: [1]"),
        (lossy, ""),
        (lambda found: {"logits": found, "past": (found,)}, ""),
        (lambda found: found, ""),
        (lambda found: found, ", distill_output_keys: [0]"),
        (lambda found: (found, found), ", distill_output_keys: [-1]"),
        (lambda found: (found, found), ""),
    ],
)
def test_outputs_that_a_teacher_is_heard_on(form: Any, options: str) -> None:
    assert float(taught(form, options, distillation_teacher=Answering(lambda found: form(found * 0)))) > 0


@pytest.mark.parametrize(
    ("form", "options", "what"),
    [
        (lambda found: {"loss": found.mean()}, "", "the output loss is a single number, without classes; a teacher is"),
        (lossy, ", distill_output_keys: [logit]", r"gives no output 'logit' \(it gives loss, logits\)"),
        (lossy, ", distill_output_keys: [2]", r"gives no output 2 \(it gives loss, logits\)"),
        (lambda found: found, ", distill_output_keys: [foo]", r"no output 'foo' \(it gives 1 without a name, co"),
        (lambda found: (found, found), ", distill_output_keys: ['0']", r"no output '0' \(it gives 2 without a name"),
        (lambda found: {"past": (found,)}, "", "the output past is a tuple, without classes"),
        (lambda found: {}, "", "the module gives no output to learn by"),
        (lambda found: iter((found,)), "", "the module gives a tuple_iterator; tensors, lists and dicts of them"),
    ],
)
def test_outputs_that_nobody_can_be_taught_on(form: Any, options: str, what: str) -> None:
    with pytest.raises(OptionError, match=rf"line \d+: !DistillationModifier: .*{what}"):
        taught(form, options)


def test_teachers_of_other_tasks() -> None:
    plain: Any = lambda found: found  # noqa: E731
    with refusing(OptionError):
        taught(plain, "", distillation_teacher=torch.nn.Linear(8, 7))
    other = Answering(lambda found: {"a": found, "b": found})
    with refusing(OptionError):
        taught(lossy, ", distill_output_keys: [logits]", distillation_teacher=other)


def test_what_is_passed_to_loss_update_counts() -> None:
    recipe = PRUNING + "    - !DistillationModifier {start_epoch: 0.0, hardness: 1.0}\n"
    module, _, stepper = modified(recipe, distillation_teacher=torch.nn.Linear(8, 4))
    module.eval()
    inputs = torch.ones(3, 8)
    outputs = module(inputs)
    with refusing(OptionError):
        stepper.loss_update(torch.tensor(1.0))
    found = stepper.loss_update(torch.tensor(1.0), student_outputs=outputs, student_inputs=inputs)
    assert found.item() > 0


def test_an_optimizer_of_another_module() -> None:
    module = net()
    foreign = torch.optim.SGD(net().parameters(), lr=0.1)
    with refusing(OptionError):
        ScheduledModifierManager.from_yaml(PRUNING).modify(module, foreign, steps_per_epoch=2)
    assert type(module) is torch.nn.Linear
    part = torch.optim.SGD([module.bias], lr=0.1)
    ScheduledModifierManager.from_yaml(PRUNING).modify(module, part, steps_per_epoch=2)


def test_modify_is_called_once() -> None:
    module, manager, stepper = modified(PRUNING)
    for optimizer in (stepper, stepper.wrapped_optimizer):
        with refusing(OptionError):
            manager.modify(module, optimizer, steps_per_epoch=2)
    for _ in range(4):
        stepper.step()
    manager.finalize(module)
    manager.modify(module, stepper.wrapped_optimizer, steps_per_epoch=2)
    module = net()
    manager = ScheduledModifierManager.from_yaml(PRUNING)
    manager.initialize(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    manager.modify(module, optimizer, steps_per_epoch=2).step()
    assert zeros(module) == 16


def test_lines_stages_and_loggers() -> None:
    logging = PRUNING + "    - !SparsificationLoggingModifier {start_epoch: 0.0, update_frequency: 1.0}\n"
    told: list[Any] = []
    _, manager, stepper = modified(logging)
    manager.initialize_loggers([lambda name, value, epoch: told.append((name, value, epoch))])
    stepper.step()
    assert told[0] == ("sparsity/weight", 0.5, 0.0)
    assert "\n".join(manager.to_string_lines()) + "\n" == str(manager)
    assert manager.num_stages() == 1
    assert ScheduledModifierManager.compose_staged(PRUNING, PRUNING).num_stages() == 2
    with refusing(OptionError):
        ScheduledModifierManager.from_yaml(PRUNING).initialize_loggers([])
