"""What a step of an optimizer leaves at masked places: nothing, in weights, gradients and moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn

from onnxsparse.dialects.asp import ASP
from onnxsparse.errors import OptionError
from tests.messages import refusing


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 8))


def begun(model: Any, optimizer: Any, **options: Any) -> Any:
    ASP.init_model_for_pruning(model, verbosity=0, allow_permutation=False, **options)
    ASP.init_optimizer_for_pruning(optimizer)
    return ASP.of(model)


def batch(seed: int) -> Any:
    return torch.randn(8, 16, 4, 4, generator=torch.Generator().manual_seed(seed))


def loss_of(model: Any, seed: int) -> Any:
    return (model(batch(seed)) - 1).square().mean()


def leaks(model: Any, optimizer: Any) -> int:
    """Masked places of weights and moments that are not zero."""
    found = 0
    for name, keep in ASP.of(model).masks.items():
        weight = model.get_parameter(name)
        states = [one for one in optimizer.state.get(weight, {}).values() if getattr(one, "shape", None) == keep.shape]
        found += sum(int((one[~keep] != 0).sum()) for one in (weight.detach(), *states))
    return found


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, weight_decay=1e-2),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_step_leaves_anything_at_masked_places(name: str) -> None:
    """Moments of the dense training before, which would move them, are gone with the first masks."""
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    one = begun(model, optimizer, allow_recompute_mask=True)
    for seed in range(8):
        if seed in (3, 6):
            one.compute_sparse_masks()
            assert leaks(model, optimizer) == 0
        before = model[0].weight.detach().clone()
        optimizer.zero_grad()
        loss_of(model, seed).backward()
        optimizer.step()
        assert (model[0].weight != before).any()
        assert leaks(model, optimizer) == 0
        if seed >= 3:
            assert not model[0].weight.grad[~one.masks["0.weight"]].any()
    one.restore_pruned_weights()
    optimizer.zero_grad()
    loss_of(model, 9).backward()
    optimizer.step()
    assert (model[0].weight != 0).all()


def test_a_step_is_that_of_a_masked_network() -> None:
    """The same as of the plain optimizer on `where(mask, weight, 0)`, to the bit."""
    model, other = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=1e-3)
    one = begun(model, optimizer)
    one.compute_sparse_masks()
    other.load_state_dict({name: tensor for name, tensor in model.state_dict().items() if "mma" not in name})
    plain = torch.optim.SGD(other.parameters(), lr=1e-2, momentum=0.9, weight_decay=1e-3)
    masks = one.masks
    for seed in range(4):
        for each, steps in ((model, optimizer), (other, plain)):
            steps.zero_grad()
            loss_of(each, seed).backward()
            for name, keep in masks.items() if each is other else ():
                each.get_parameter(name).grad.mul_(keep)
            steps.step()
    for name, weight in other.named_parameters():
        assert torch.equal(weight, model.get_parameter(name)), name


@pytest.mark.parametrize("by_name", [False, True])
def test_what_a_closure_computes_is_masked(by_name: bool) -> None:
    """An optimizer that searches asks several times in a step, each time at other weights."""
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")
    one = begun(model, optimizer)
    seen = []

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(model, 0)
        loss.backward()
        if one.is_sparsity_enabled():
            seen.append(int((model[0].weight[~one.masks["0.weight"]] != 0).sum()))
        return loss

    optimizer.step(closure)
    one.compute_sparse_masks()
    first = loss_of(model, 0).item()
    for _ in range(2):
        loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
        assert isinstance(loss, torch.Tensor)
        assert not model[0].weight.grad[~one.masks["0.weight"]].any()
    assert loss_of(model, 0).item() < first
    assert len(seen) > 4
    assert not any(seen)
    assert leaks(model, optimizer) == 0


def test_steps_that_a_scaler_takes_or_skips() -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    one = begun(model, optimizer)
    one.compute_sparse_masks()
    for seed in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, seed)
        scaler.scale(loss * (float("inf") if seed == 2 else 1)).backward()
        before = model[3].weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, model[3].weight) == (seed == 2)
        assert leaks(model, optimizer) == 0


def test_groups_schedulers_and_accumulated_gradients() -> None:
    model = net()
    optimizer = torch.optim.AdamW(
        [{"params": model[0].parameters(), "lr": 1e-3}, {"params": [model[3].weight]}], lr=1e-2
    )
    before = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    one = begun(model, optimizer)
    after = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    one.compute_sparse_masks()
    optimizer.add_param_group({"params": [model[3].bias]})
    for seed in range(6):
        loss_of(model, seed).backward()
        if seed % 2:
            optimizer.step()
            optimizer.zero_grad()
            before.step()
            after.step()
    assert leaks(model, optimizer) == 0


def test_a_gradient_of_before_the_masks_moves_nothing() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    one = begun(model, optimizer)
    loss_of(model, 0).backward()
    one.compute_sparse_masks()
    optimizer.step()
    assert leaks(model, optimizer) == 0


def test_moments_of_before_the_masks_are_loaded_and_move_nothing() -> None:
    """Such as those of the dense training, which a checkpoint holds."""
    dense, model = net(), net()
    before = torch.optim.Adam(dense.parameters(), lr=1e-2)
    loss_of(dense, 0).backward()
    before.step()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    begun(model, optimizer).compute_sparse_masks()
    optimizer.load_state_dict(before.state_dict())
    assert leaks(model, optimizer)
    loss_of(model, 1).backward()
    optimizer.step()
    assert leaks(model, optimizer) == 0


def test_infinite_gradients_of_masked_places_are_zero() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    one = begun(model, optimizer)
    one.compute_sparse_masks()
    loss_of(model, 0).backward()
    model[0].weight.grad[~one.masks["0.weight"]] = float("nan")
    optimizer.step()
    assert torch.isfinite(model[0].weight).all()
    assert leaks(model, optimizer) == 0


def test_two_optimizers_share_a_model() -> None:
    model = net()
    ours = [torch.optim.SGD(model[0].parameters(), lr=1e-2), torch.optim.Adam(model[3].parameters(), lr=1e-2)]
    one = begun(model, ours[0])
    ASP.init_optimizer_for_pruning(ours[1])
    one.compute_sparse_masks()
    for seed in range(3):
        for optimizer in ours:
            optimizer.zero_grad()
        loss_of(model, seed).backward()
        for optimizer in ours:
            optimizer.step()
    assert not any(leaks(model, optimizer) for optimizer in ours)


def test_what_is_no_optimizer_of_torch_is_refused() -> None:
    model = net()
    ASP.init_model_for_pruning(model, verbosity=0)
    with refusing(OptionError):
        ASP.init_optimizer_for_pruning(model)


def test_a_model_in_half_precision_steps() -> None:
    model = net().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    one = begun(model, optimizer, allow_recompute_mask=True)
    for seed in range(3):
        one.compute_sparse_masks()
        optimizer.zero_grad()
        model(batch(seed).bfloat16()).square().mean().backward()
        optimizer.step()
    assert leaks(model, optimizer) == 0
    assert one.is_sparsity_enabled()


def test_a_model_that_is_compiled_uses_the_zeros() -> None:
    """What is compiled takes the parameters as they are, so masks that come later count."""
    model = net()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(compiled.parameters(), lr=1e-2)
    compiled(batch(0))
    one = begun(compiled, optimizer)
    one.compute_sparse_masks()
    assert torch.allclose(compiled(batch(0)), model(batch(0)))
    compiled(batch(1)).square().mean().backward()
    optimizer.step()
    assert leaks(model, optimizer) == 0
    assert torch.allclose(compiled(batch(0)), model(batch(0)))
