"""Movement, OBS and M-FAC in a torch loop: what SparseML 1.8.0 came to in the same one, and gradients of samples.

The records are of SparseML 1.8.0 with torch 2.13. Its inverses are float32: weights agree to some 1e-6.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from onnxsparse.engines.torch import library

pytestmark = pytest.mark.skipif(not library.available(), reason="needs torch")
torch = pytest.importorskip("torch")

from onnxsparse.dialects.sparseml import ScheduledModifierManager
from onnxsparse.errors import OptionError
from tests.messages import refusing

PER_EPOCH = 3
RECIPE = """
modifiers:
    - !EpochRangeModifier
        start_epoch: 0.0
        end_epoch: 6.0

    - !%sPruningModifier
        init_sparsity: 0.1
        start_epoch: 1.0
        end_epoch: 4.0
        update_frequency: 1.0
        %s
"""
OPTIONS = {
    "movement": ("Movement", ["mask_type: unstructured"]),
    "movement, blocks": ("Movement", ["mask_type: block4"]),
    "movement, two levels": ("Movement", ["final_sparsity: {0.5: ['0.weight'], 0.75: ['2.weight']}", "params: []"]),
    "obs": ("OBS", ["num_grads: 32"]),
    "obs, larger": ("OBS", ["num_grads: 24", "damp: 0.001", "fisher_block_size: 10", "num_recomputations: 2"]),
    "obs, blocks": ("OBS", ["num_grads: 24", "damp: 0.001", "fisher_block_size: 8", "mask_type: block4"]),
    "m-fac": ("MFAC", ["num_grads: 16", "damp: 0.001", "fisher_block_size: 50"]),
    "m-fac, together": ("MFAC", ["num_grads: {0.0: 8, 0.5: 12}", "damp: 0.001", "global_sparsity: true"]),
    "m-fac, of the steps": ("MFAC", ["num_grads: 3", "damp: 0.001", "use_gradient_buffering: true"]),
}


def recipe(case: str) -> str:
    kind, more = OPTIONS[case]
    said = {line.partition(":")[0] for line in more}
    common = ["final_sparsity: 0.7", "params: ['0.weight', '2.weight']"]
    lines = [*more, *(line for line in common if line.partition(":")[0] not in said)]
    return RECIPE % (kind, "\n        ".join(lines))


def made() -> tuple[Any, Any]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def samples(seed: int, count: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((count, 8), generator=generator), torch.randint(0, 4, (count,), generator=generator)


def builder(kwargs: Any = None) -> Iterator[Any]:
    for seed in range(1000, 100000):
        x, labels = samples(seed, 4)
        yield [x], {}, labels


SAMPLER = {"data_loader_builder": builder, "loss_function": torch.nn.functional.cross_entropy}


def trained(manager: Any, case: str) -> list[dict[str, Any]]:
    net, optimizer = made()
    more = {} if case.startswith("movement") else {"grad_sampler": SAMPLER}
    wrapped = manager.modify(net, optimizer, PER_EPOCH, **more)
    found = []
    for step in range(6 * PER_EPOCH):
        x, labels = samples(step, 12)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), labels).backward()
        wrapped.step()
        found.append({name: one.detach().clone() for name, one in net.state_dict().items()})
    manager.finalize(net)
    return found


def told(found: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """Of the steps with new masks, and of the last: which weights are zero, and a sum of all by changing signs."""
    rows = []
    for state in [*found[PER_EPOCH : 4 * PER_EPOCH + 1 : PER_EPOCH], found[-1]]:
        flat = np.concatenate([state[name].numpy().reshape(-1) for name in ("0.weight", "2.weight")])
        signs = np.where(np.arange(flat.size) % 3, 1.0, -1.0)
        rows.append((np.packbits(flat == 0).tobytes().hex(), round(float((flat * signs).sum()), 6)))
    return rows


RECORD: dict[str, list[tuple[str, float]]] = {
    "movement": [
        ("0000f00000000a0084009000120020000210000022028000", -4.143393),
        ("e348f17e134c7a45f4a5d2c677cc7345069a1ad663d6ba6b", -3.368055),
        ("e3cff17f53dd7a4ff4b7dafeffce734506fa1bfee7debb6f", -2.474758),
        ("f3dff17f13dd7acff4b7daeeffcf73c506de9bfee7debbef", -2.770028),
        ("f3dff17f13dd7acff4b7daeeffcf73c506de9bfee7debbef", -2.853934),
    ],
    "movement, blocks": [
        ("f000f00000000f000000000000000000000000000f00f000", -5.519189),
        ("f00ff000f00ffff0f00ff0ffff00f00f0f000ff00f0fff0f", -2.958775),
        ("f0fff0fff00ffff0f0fff0ffff00ff0f0ff00ff0ffffff0f", -2.966075),
        ("f0fff0fff00ffff0f0fff0ffff00ff0f0ff00ff0ffffff0f", -3.153736),
        ("f0fff0fff00ffff0f0fff0ffff00ff0f0ff00ff0ffffff0f", -3.150784),
    ],
    "movement, two levels": [
        ("0000f00000000a0084009000120020000210000022028000", -4.143393),
        ("4048f11c124c3a41c4a5d28477807305069a1ad66bd7bb6b", -3.440305),
        ("4048f15f125c3a4dc4b7dac4ff84730506fa1bfeefdffb6f", -2.834251),
        ("714cf11b125c3a6d84a5d2ecff85730516fe9bfeefdfbafb", -2.567758),
        ("714cf11b125c3a6d84a5d2ecff85730516fe9bfeefdfbafb", -2.640917),
    ],
    "obs": [
        ("82d100400080400020020000004002401000040000004180", -5.089953),
        ("deff92c6ebecef85f1bb0efd434c0fc25082cd44cf704182", -4.831169),
        ("dfff9acfffefefeff1bb4ffd434c2ff75883cd45eff0fba2", -3.561973),
        ("dfff9acfffefefeff1bbeffd434c2ff77883cd45eff2fba2", -3.721293),
        ("dfff9acfffefefeff1bbeffd434c2ff77883cd45eff2fba2", -3.818319),
    ],
    "obs, larger": [
        ("828100000080400020000000004802401000044080104180", -5.25183),
        ("cef31ac6cbe7ec8d718a0fb4434c2fd35883cd54cdf0dd82", -5.189039),
        ("fff7bac6ffefefbdf18b0fb4c34c2ff7fea3cd54eff2ff8a", -2.149737),
        ("fff7fac6ffefefbdf18b4fb4c34c2ff7fea3cd74eff2ffaa", -2.434117),
        ("fff7fac6ffefefbdf18b4fb4c34c2ff7fea3cd74eff2ffaa", -2.515606),
    ],
    "obs, blocks": [
        ("00f0000000000000f0000f0000000f000000000000f00000", -5.027792),
        ("ffff000ffff00f0ff00f0fff000f0ff0f0000f00fff0ff00", -1.980155),
        ("ffffff0ffff0fffff00f0ffff00f0ff0f0f00ff0fff0fff0", -1.333233),
        ("ffffff0ffff0ffffff0f0ffff00f0ff0f0f00ff0fff0fff0", -0.556703),
        ("ffffff0ffff0ffffff0f0ffff00f0ff0f0f00ff0fff0fff0", -0.183927),
    ],
    "m-fac": [
        ("828100400080400020020000004802401000044000100180", -5.368631),
        ("cef39ac643e4cc9df18a0fb4434d0fd358a2cd54cf70fd8a", -4.270271),
        ("cef79bceebeced9df98b2ff4d74faff37aaaed75ef72ffaa", -2.805212),
        ("cff7bbceebeced9df98b2ff5d74faff37eeaed75ef72ffaa", -2.883889),
        ("cff7bbceebeced9df98b2ff5d74faff37eeaed75ef72ffaa", -2.971173),
    ],
    "m-fac, together": [
        ("828100000080400020000000004802401000044080104180", -5.275859),
        ("8ef39ac642a0cc8d718a0ea4434c0fd358abcf55cff6ffaa", -4.429975),
        ("cef3fac6cbe7ef9df18b0ff4534c2ff77eabcf75eff7ffea", -4.580912),
        ("cef3facecbe7ef9df18b0ff4574e2ff77eabcf75efffffea", -4.249618),
        ("cef3facecbe7ef9df18b0ff4574e2ff77eabcf75efffffea", -4.061289),
    ],
    "m-fac, of the steps": [
        ("828100000080400020020000004806401000044000100180", -5.302633),
        ("cef39ac643e4ce8df18a0fb4534c0fd35083cd54cf72f78a", -4.528064),
        ("cef7fbcecbe7ef9df18b0ff4734f2ff77aabcf54eff2ffaa", -3.703636),
        ("cef7fbcecbe7ef9df18b0ffcf74f2ff77abbcf54eff2ffea", -3.903787),
        ("cef7fbcecbe7ef9df18b0ffcf74f2ff77abbcf54eff2ffea", -3.942769),
    ],
}


@pytest.mark.parametrize("case", OPTIONS)
def test_what_sparseml_came_to(case: str) -> None:
    found = told(trained(ScheduledModifierManager.from_yaml(recipe(case)), case))
    assert [zeros for zeros, _ in found] == [zeros for zeros, _ in RECORD[case]]
    assert [total for _, total in found] == pytest.approx([total for _, total in RECORD[case]], rel=1e-5, abs=1e-5)


# -- gradients of samples


def managed(case: str, more: str = "") -> Any:
    return ScheduledModifierManager.from_yaml(recipe(case).replace("num_grads: 16", f"num_grads: 16{more}"))


def test_modes_are_put_back_and_gradients_lost() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4), torch.nn.Dropout(0.5)
    )
    net[3].eval()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    modes, statistics = [], net[1].running_mean.clone()
    first, last = net[0].weight, net[2].weight
    seen = net.register_forward_hook(lambda *_: modes.append(net.training))
    manager = ScheduledModifierManager.from_yaml(recipe("m-fac").replace("start_epoch: 1.0", "start_epoch: 0.0"))
    manager.modify(net, optimizer, PER_EPOCH, grad_sampler=SAMPLER)
    last.grad = torch.ones_like(last)
    manager.update(net, optimizer, 0.0, PER_EPOCH)
    seen.remove()
    assert modes == [False] * 16
    assert [part.training for part in net] == [True, True, True, False]
    assert torch.equal(net[1].running_mean, statistics)
    assert first.grad is None
    assert last.grad is None
    assert int((net[0].weight == 0).sum()) == 13


def test_a_scaler_goes_on_after_samples() -> None:
    """The step at which samples are taken moves nothing, whatever the momentum."""
    net, optimizer = made()
    scaler: Any = torch.amp.GradScaler("cpu", init_scale=2.0)
    manager = ScheduledModifierManager.from_yaml(recipe("m-fac"))
    wrapped = manager.modify(net, optimizer, PER_EPOCH, wrap_optim=scaler, grad_sampler=SAMPLER)
    still = []
    for step in range(6 * PER_EPOCH):
        x, labels = samples(step, 12)
        before = net[2].bias.detach().clone()
        optimizer.zero_grad()
        scaler.scale(torch.nn.functional.cross_entropy(net(x), labels)).backward()
        wrapped.step(optimizer)
        scaler.update()
        still += [step] if torch.equal(before, net[2].bias) else []
    manager.finalize(net)
    assert still == [3, 6, 9, 12]
    assert [len(group["params"]) for group in optimizer.param_groups] == [4]
    assert int((net[0].weight == 0).sum()) == 90


@pytest.mark.parametrize("by_name", [False, True])
def test_builders_of_both_kinds(by_name: bool) -> None:
    asked: list[Any] = []

    def positional(kwargs: Any) -> Any:
        asked.append(kwargs)
        return lambda: iter([([samples(seed, 4)[0]], {}, samples(seed, 4)[1]) for seed in range(16)])

    def named(batch_size: int = 1) -> Any:
        return positional({"batch_size": batch_size})

    net, _ = made()
    sampler = {**SAMPLER, "data_loader_builder": named if by_name else positional}
    manager = managed("m-fac", "\n        grad_sampler_kwargs: {batch_size: 4}")
    manager.apply(net, grad_sampler=sampler)
    assert asked == [{"batch_size": 4}]
    assert int((net[0].weight == 0).sum()) == math.floor(0.7 * 128 + 0.5)


def test_few_samples_none_and_what_is_no_sampler() -> None:
    few = [([samples(seed, 4)[0]], {}, samples(seed, 4)[1]) for seed in range(3)]
    with pytest.warns(UserWarning, match="samples gave 3 of the 16 gradients"):
        managed("m-fac").apply(made()[0], grad_sampler={**SAMPLER, "data_loader_builder": lambda kwargs: few})
    for case in ("obs", "m-fac", "movement"):
        net, _ = made()
        plain = made()[0][2].weight.detach().abs().reshape(-1)
        manager = ScheduledModifierManager.from_yaml(recipe(case).replace("final_sparsity: 0.7", "final_sparsity: 0.5"))
        with pytest.warns(UserWarning, match="by magnitude"):
            manager.apply(net)
        if case != "obs":  # which prunes all together
            assert set((net[2].weight.reshape(-1) == 0).nonzero().reshape(-1).tolist()) == set(
                plain.argsort()[:32].tolist()
            )
    with refusing(OptionError):
        managed("m-fac").apply(made()[0], grad_sampler={"data_loader_builder": builder})
    with refusing(OptionError):
        managed("m-fac", "\n        use_gradient_buffering: false").apply(made()[0])
    with refusing(OptionError):
        managed("m-fac").apply(made()[0], grad_sampler={**SAMPLER, "data_loader_builder": lambda kwargs: [1, 2]})


WRONG: dict[str, Any] = {
    "no dict": builder,
    "a key misspelt": {"data_loader_builder": builder, "loss_functon": torch.nn.functional.cross_entropy},
    "the other key misspelt": {"dataloader_builder": builder, "loss_function": torch.nn.functional.cross_entropy},
    "no function": {**SAMPLER, "loss_function": torch.zeros(3)},
    "pairs": {**SAMPLER, "data_loader_builder": lambda: [(torch.zeros(4, 8), torch.zeros(4))]},
    "no samples": {**SAMPLER, "data_loader_builder": lambda: torch.nn.ReLU},
    "a list of losses": {**SAMPLER, "loss_function": lambda outputs, labels: [outputs.sum()]},
    "several losses": {**SAMPLER, "loss_function": lambda outputs, labels: outputs.sum(1)},
    "a loss of nothing": {**SAMPLER, "loss_function": lambda outputs, labels: torch.zeros(())},
}


@pytest.mark.parametrize("wrong", list(WRONG))
def test_what_is_wrong_with_a_sampler_is_one_line(wrong: str) -> None:
    with refusing(OptionError):
        managed("m-fac").apply(made()[0], grad_sampler=WRONG[wrong])


def test_no_gradient_buffering_without_a_sampler_is_refused_before_anything_starts() -> None:
    net, optimizer = made()
    manager = managed("m-fac", "\n        use_gradient_buffering: false")
    with refusing(OptionError):
        manager.modify(net, optimizer, PER_EPOCH)
    assert list(dict(net.named_parameters())) == list(dict(made()[0].named_parameters()))
    manager.modify(net, optimizer, PER_EPOCH, grad_sampler=SAMPLER)
    other, plain = made()
    waiting = managed("m-fac", "\n        use_gradient_buffering: false")
    waiting.initialize(other)  # modify may bring what is missing
    with refusing(OptionError):
        waiting.modify(other, plain, PER_EPOCH)
    waiting.modify(other, plain, PER_EPOCH, grad_sampler=SAMPLER)


def test_a_builder_that_takes_nothing() -> None:
    net, _ = made()
    manager = managed("m-fac", "\n        grad_sampler_kwargs: {batch_size: 4}")
    manager.apply(net, grad_sampler={**SAMPLER, "data_loader_builder": lambda: builder()})
    assert int((net[0].weight == 0).sum()) == math.floor(0.7 * 128 + 0.5)


def test_movement_at_once_goes_by_samples() -> None:
    net, _ = made()
    manager = ScheduledModifierManager.from_yaml(recipe("movement"))
    manager.apply(net, grad_sampler=SAMPLER)
    plain = made()[0]
    scores = torch.zeros_like(plain[2].weight)
    for seed in range(1000, 1064):
        x, labels = samples(seed, 4)
        plain.zero_grad()
        torch.nn.functional.cross_entropy(plain(x), labels).backward()
        scores -= plain[2].weight.grad * plain[2].weight.detach()
    gone = net[2].weight.reshape(-1) == 0
    assert int(gone.sum()) == math.floor(0.7 * 64 + 0.5)
    assert float(scores.reshape(-1)[gone].max()) <= float(scores.reshape(-1)[~gone].min()) + 1e-4


def test_without_a_sampler_gradients_are_those_of_the_steps() -> None:
    net, optimizer = made()
    manager = ScheduledModifierManager.from_yaml(recipe("obs"))
    wrapped = manager.modify(net, optimizer, PER_EPOCH)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(6 * PER_EPOCH):
            x, labels = samples(step, 12)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), labels).backward()
            wrapped.step()
    told = [str(one.message) for one in caught if "num_grads" in str(one.message)]
    assert len(told) == 1
    assert "steps had given 4 of the 32 gradients" in told[0]
    manager.finalize(net)
    assert sum(int((layer.weight == 0).sum()) for layer in (net[0], net[2])) == math.floor(0.7 * 192 + 0.5)


def test_blocks_of_a_transposed_convolution_are_neighbours_as_it_is_stored() -> None:
    """As in SparseML: here every block of four is what one input gives."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.ConvTranspose2d(3, 2, (1, 2), bias=False), torch.nn.Flatten())
    inputs = [torch.randn(1, 3, 1, 1) for _ in range(5)]
    builder = {"data_loader_builder": lambda *_, **__: (([x], {}, torch.ones(1, 4)) for x in inputs)}
    weight = net[0].weight.detach().clone()
    gradients = []
    for x in inputs:
        net.zero_grad()
        torch.nn.functional.mse_loss(net(x), torch.ones(1, 4)).backward()
        gradients.append(net[0].weight.grad.reshape(-1).numpy().astype(np.float64))
    recipe = """
modifiers:
    - !OBSPruningModifier {start_epoch: 0.0, end_epoch: 1.0, update_frequency: 1.0, init_sparsity: 0.5,
        final_sparsity: 0.5, params: [0.weight], num_grads: 5, damp: 0.01, fisher_block_size: 4}
"""
    sampler = {**builder, "loss_function": torch.nn.functional.mse_loss}
    ScheduledModifierManager.from_yaml(recipe).apply(net, grad_sampler=sampler)
    expected = weight.reshape(-1).numpy().astype(np.float64)
    inverses = [
        np.linalg.inv(sum(np.outer(g[i : i + 4], g[i : i + 4]) for g in gradients) / 5 + 0.01 * np.eye(4))
        for i in (0, 4, 8)
    ]
    diagonal = np.concatenate([np.diag(one) for one in inverses])
    gone = np.argsort(expected**2 / diagonal)[:6]
    pulls = np.zeros(12)
    pulls[gone] = expected[gone] / diagonal[gone]
    expected -= np.concatenate([one @ pulls[i : i + 4] for one, i in zip(inverses, (0, 4, 8))])
    expected[gone] = 0
    np.testing.assert_allclose(net[0].weight.detach().numpy().reshape(-1), expected, atol=1e-5)
