"""Teachers that count in loops without `loss_update`: gradients are those of the combined loss written out."""

from __future__ import annotations

import copy
import warnings
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from onnxsparse.engines.torch import library

pytestmark = pytest.mark.skipif(not library.available(), reason="needs torch")
torch = pytest.importorskip("torch")

from onnxsparse.dialects.sparseml import ScheduledModifierManager
from onnxsparse.errors import OptionError

HARDNESS, TEMPERATURE = 0.3, 2.0
RECIPE = "modifiers:\n  - !DistillationModifier {{start_epoch: {begin}, hardness: {hardness}}}\n"
functional = torch.nn.functional


class Net(torch.nn.Module):
    def __init__(self, form: Callable[[Any, Any], Any] = lambda logits, hidden: logits) -> None:
        super().__init__()
        self.first, self.head, self.form = torch.nn.Linear(6, 8), torch.nn.Linear(8, 4), form

    def forward(self, x: Any) -> Any:
        hidden = torch.tanh(self.first(x))
        return self.form(self.head(hidden), hidden)


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def batch(step: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn((5, 6), generator=generator), torch.randint(0, 4, (5,), generator=generator)


def modified(net: Any, begin: float = 0, accumulation: int = 1, wrap: Any = None, **options: Any) -> Any:
    options.setdefault("distillation_teacher", teacher_of(net))
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    text = RECIPE.format(begin=begin, hardness=HARDNESS)
    manager = ScheduledModifierManager.from_yaml(text)
    manager.counts_in_backward, manager.accumulation = True, accumulation
    return manager.modify(net, optimizer, 2, wrap_optim=wrap, **options)


def teacher_of(net: Any) -> Any:
    torch.manual_seed(7)
    return Net(net.form).eval()


def teaching(logits: Any, answer: Any) -> Any:
    ours, theirs = (functional.log_softmax(one / TEMPERATURE, -1) for one in (logits, answer.detach()))
    return (theirs.exp() * (theirs - ours)).sum(-1).mean() * TEMPERATURE**2


def written_out(net: Any, step: int, teacher: Any = None) -> Any:
    x, labels = batch(step)
    logits, answer = net(x), (teacher or teacher_of(net))(x)
    return (1 - HARDNESS) * functional.cross_entropy(logits, labels) + HARDNESS * teaching(logits, answer)


def task(net: Any, step: int) -> Any:
    x, labels = batch(step)
    return functional.cross_entropy(net(x), labels)


def gradients(net: Any) -> list[Any]:
    return [one.grad.clone() for one in net.parameters()]


def same(net: Any, other: Any, tolerance: float = 1e-10) -> None:
    """Gradients, and weights, too."""
    for ours, theirs in zip(net.parameters(), other.parameters()):
        assert torch.allclose(ours.grad, theirs.grad, rtol=tolerance, atol=tolerance)
        assert torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("by_loss", [False, True])
@pytest.mark.parametrize("clipped", [False, True])
def test_gradients_of_an_unchanged_loop(clipped: bool, by_loss: bool) -> None:
    net = Net()
    other = copy.deepcopy(net)
    plain, wrapped = torch.optim.SGD(other.parameters(), 0.1, momentum=0.9), modified(net)
    for step in range(3):
        loss = task(net, step)
        loss = wrapped.loss_update(loss) if by_loss else loss
        for made, optimizer, model in ((loss, wrapped, net), (written_out(other, step), plain, other)):
            optimizer.zero_grad()
            made.backward()
            if clipped:
                assert torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05) > 0.05
            optimizer.step()
        same(net, other)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_scaler_and_accumulation(accumulation: int) -> None:
    net = Net()
    other = copy.deepcopy(net)
    optimizer, plain = (torch.optim.SGD(one.parameters(), 0.1, momentum=0.9) for one in (net, other))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    wrapped = modified(net, accumulation=accumulation, wrap=scaler, optimizer=optimizer)
    for step in range(5):
        optimizer.zero_grad()
        plain.zero_grad()
        for part in range(accumulation):
            place = step * accumulation + part
            wrapped.scale(task(net, place) / accumulation).backward()
            (written_out(other, place) / accumulation).backward()
        wrapped.unscale_(optimizer)
        for one in (net, other):
            torch.nn.utils.clip_grad_norm_(one.parameters(), 0.05)
        wrapped.step(optimizer)
        wrapped.update()
        plain.step()
        same(net, other)
    assert scaler.get_scale() == 4096


def test_the_teacher_is_under_the_autocast_of_the_loop() -> None:
    torch.set_default_dtype(torch.float32)
    net, seen = Net(), []
    teacher = teacher_of(net)
    teacher.head.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    wrapped = modified(net, distillation_teacher=teacher)
    with torch.autocast("cpu", torch.bfloat16):
        loss = task(net, 0)
    loss.backward()
    wrapped.step()
    task(net, 1).backward()
    assert seen == [torch.bfloat16, torch.float32]


def test_a_closure_and_a_teacher_that_is_the_module_itself() -> None:
    net = Net()
    other = copy.deepcopy(net)
    plain = torch.optim.LBFGS(other.parameters(), max_iter=4)
    wrapped = modified(net, optimizer=torch.optim.LBFGS(net.parameters(), max_iter=4), distillation_teacher="self")
    dense = copy.deepcopy(other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(2):

            def closure(model: Any, optimizer: Any, loss: Callable[[], Any]) -> Callable[[], Any]:
                def found() -> Any:
                    optimizer.zero_grad()
                    made = loss()
                    made.backward()
                    return made

                return found

            wrapped.step(closure(net, wrapped, lambda step=step: task(net, step)))
            plain.step(closure(other, plain, lambda step=step: written_out(other, step, teacher=dense)))
            same(net, other, 1e-8)


Both = namedtuple("Both", "logits hidden")
FORMS = {
    "a mapping with its loss": (lambda logits, hidden: {"loss": logits.square().mean(), "logits": logits}, "logits"),
    "a tuple with its loss": (lambda logits, hidden: (logits.square().mean(), logits), 1),
    "a named tuple": (lambda logits, hidden: Both(logits, [hidden, None]), 0),
}


@dataclass(frozen=True)
class Answer:
    logits: Any
    rest: Any = None


def test_a_module_that_gives_a_dataclass() -> None:
    net = Net(lambda logits, hidden: Answer(logits))
    other, teacher = copy.deepcopy(net), teacher_of(net)
    modified(net, distillation_teacher=teacher)
    x, _ = batch(0)
    net(x).logits.square().mean().backward()
    plain = other(x).logits
    ((1 - HARDNESS) * plain.square().mean() + HARDNESS * teaching(plain, teacher(x).logits)).backward()
    same(net, other)


def test_what_a_teacher_cannot_look_into_is_named() -> None:
    net = Net(lambda logits, hidden: iter((logits,)))
    modified(net)
    with pytest.raises(OptionError, match="the module gives a tuple_iterator, and a teacher is heard on tensors"):
        net(batch(0)[0])


@pytest.mark.parametrize("form", list(FORMS))
def test_modules_that_give_more_than_logits(form: str) -> None:
    """A loss that the module computes itself, before anything is behind its outputs, and values inside of it."""
    made, key = FORMS[form]
    net = Net(made)
    other = copy.deepcopy(net)
    more = RECIPE.format(begin=0, hardness=HARDNESS).replace("}", f", distill_output_keys: [{key}]}}")
    manager = ScheduledModifierManager.from_yaml(more)
    manager.counts_in_backward = True
    teacher = teacher_of(net)
    manager.modify(net, torch.optim.SGD(net.parameters(), 0.1), 2, distillation_teacher=teacher)
    x, _ = batch(0)

    def own(outputs: Any) -> Any:
        if isinstance(outputs, Both):
            return outputs.hidden[0].square().mean() + outputs.logits.mean()
        return outputs["loss"] if isinstance(outputs, dict) else outputs[0]

    outputs = net(x)
    assert type(outputs) is type(made(x, x))
    own(outputs).backward()
    plain = other(x)
    ((1 - HARDNESS) * own(plain) + HARDNESS * teaching(plain[key], teacher(x)[key])).backward()
    same(net, other)


def test_what_does_not_come_from_the_outputs_counts_whole() -> None:
    net = Net()
    other = copy.deepcopy(net)
    modified(net)
    (task(net, 0) + net.first.weight.square().sum()).backward()
    (written_out(other, 0) + other.first.weight.square().sum()).backward()
    same(net, other)


def test_a_loss_in_two_parts_hears_its_teacher_once() -> None:
    net = Net()
    other = copy.deepcopy(net)
    wrapped = modified(net)
    x, labels = batch(0)
    logits = net(x)
    logits += 0  # a loop may change in place what it got
    functional.cross_entropy(logits, labels).backward(retain_graph=True)
    logits.square().mean().backward()
    plain = other(x)
    (written_out(other, 0) + (1 - HARDNESS) * plain.square().mean()).backward()
    same(net, other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapped.step()


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_module_that_is_recomputed(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    net = Net()
    other = copy.deepcopy(net)
    wrapped = modified(net)
    x, labels = batch(0)
    logits = checkpoint(net, x.requires_grad_(), use_reentrant=reentrant)
    functional.cross_entropy(logits, labels).backward()
    written_out(other, 0).backward()
    same(net, other)
    wrapped.step()


def test_compiled_modules() -> None:
    net = Net()
    other = copy.deepcopy(net)
    wrapped = modified(net)
    compiled = torch.compile(net, backend="eager")
    for step in range(3):
        wrapped.zero_grad()
        task(compiled, step).backward()
        other.load_state_dict(net.state_dict())
        other.zero_grad()
        written_out(other, step).backward()
        same(net, other)
        wrapped.step()


def test_copies_and_evaluations_between_are_not_taught() -> None:
    net = Net()
    other = copy.deepcopy(net)
    wrapped = modified(net)
    average = copy.deepcopy(net)
    loss = task(net, 0)
    net.eval()
    task(net, 1)
    net.train()
    with torch.no_grad():
        task(net, 2)
    with torch.inference_mode():
        task(net, 2)
    task(average, 3).backward()
    loss.backward()
    written_out(other, 0).backward()
    same(net, other)
    wrapped.step()


def test_before_and_behind_its_epochs_there_is_no_teacher() -> None:
    net = Net()
    other = copy.deepcopy(net)
    wrapped = modified(net, begin=1)
    for step in range(2):
        wrapped.zero_grad()
        task(net, step).backward()
        wrapped.step()
    with pytest.raises(OptionError, match="the teacher could not count"):
        wrapped.step()
    other.load_state_dict(net.state_dict())
    net.zero_grad()
    task(net, 2).backward()
    written_out(other, 2).backward()
    same(net, other)


def test_backward_passes_that_nobody_announced() -> None:
    net = Net()
    wrapped = modified(net, accumulation=2)
    for step in range(2):
        for part in range(4):
            task(net, part).backward()
        if step:
            wrapped.step()
        else:
            with pytest.warns(
                UserWarning, match=r"^4 backward passes came before one step, and accumulation is 2: t"
            ) as said:
                wrapped.step()
            assert [one.filename for one in said] == [__file__]


def no_outputs(net: Any) -> None:
    net.head(torch.tanh(net.first(batch(0)[0]))).sum().backward()


def detached(net: Any) -> None:
    (net(batch(0)[0]).detach().sum() * net.head.bias.sum()).backward()


def evaluated(net: Any) -> None:
    task(net.eval(), 0).backward()


def twice(net: Any) -> None:
    (task(net, 0) + task(net, 1)).backward()


def gradients_of_gradients(net: Any) -> None:
    x = batch(0)[0].requires_grad_()
    torch.autograd.grad(net(x).sum(), x, create_graph=True)


@pytest.mark.parametrize(
    ("loop", "what"),
    [
        (
            no_outputs,
            "the teacher could not count: no gradient of this step came through what the module gave in train",
        ),
        (detached, "the teacher could not count: no gradient"),
        (evaluated, "the teacher could not count: no gradient"),
        (lambda net: None, "the teacher could not count: no gradient"),
        (twice, "the module ran more than once for this backward pass"),
        (gradients_of_gradients, "a teacher cannot count in a backward pass with create_graph=True"),
    ],
)
def test_a_step_that_no_teacher_can_count_in_is_refused(loop: Callable[[Any], None], what: str) -> None:
    net = Net()
    wrapped = modified(net)
    weights = copy.deepcopy(net.state_dict())

    def step() -> None:
        loop(net)
        wrapped.step()

    with pytest.raises(OptionError, match=what):
        step()
    assert all(torch.equal(one, weights[name]) for name, one in net.state_dict().items())


def test_a_teacher_of_outputs_without_a_gradient() -> None:
    net = Net(lambda logits, hidden: (logits.detach(), hidden))
    keys = RECIPE.format(begin=0, hardness=HARDNESS).replace("}", ", distill_output_keys: [0]}")
    manager = ScheduledModifierManager.from_yaml(keys)
    manager.counts_in_backward = True
    manager.modify(net, torch.optim.SGD(net.parameters(), 0.1), 2, distillation_teacher=teacher_of(net))
    with pytest.raises(OptionError, match="the outputs that the teacher is heard on have no gradient"):
        net(batch(0)[0])


def test_a_scaler_that_was_not_handed_over() -> None:
    net = Net()
    wrapped = modified(net)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(task(net, 0)).backward()
    with pytest.raises(OptionError, match=r"a GradScaler steps this optimizer, .* pass it as wrap_optim="):
        scaler.step(wrapped)
    off = torch.amp.GradScaler("cpu", enabled=False)
    wrapped.zero_grad()
    net = Net()
    wrapped = modified(net)
    off.scale(task(net, 0)).backward()
    off.step(wrapped)


def test_accumulation_is_a_count() -> None:
    with pytest.raises(OptionError, match="accumulation is a whole number from 1"):
        modified(Net(), accumulation=0)


def test_sparsemls_own_way_is_as_it_was() -> None:
    net = Net()
    manager = ScheduledModifierManager.from_yaml(RECIPE.format(begin=0, hardness=HARDNESS))
    wrapped = manager.modify(net, torch.optim.SGD(net.parameters(), 0.1), 2, distillation_teacher=teacher_of(net))
    other = copy.deepcopy(net)
    task(net, 0).backward()
    task(other, 0).backward()
    same(net, other)
    wrapped.step()
    with pytest.warns(UserWarning, match="the loop never calls loss_update"):
        manager.finalize(net)
