"""LayerPruningModifier in plain training loops in torch."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from onnxsparse.engines.torch import library

pytestmark = pytest.mark.skipif(not library.available(), reason="needs torch")
torch = pytest.importorskip("torch")

from onnxsparse.dialects.sparseml import ScheduledModifierManager
from onnxsparse.errors import OptionError
from tests.messages import refusing

PER_EPOCH = 2


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(4)))
        self.head = torch.nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(x)


def made() -> tuple[Any, Any]:
    torch.manual_seed(0)
    net = Net()
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def manager_of(*modifiers: str) -> ScheduledModifierManager:
    lines = "".join(f"    - !{one}\n" for one in modifiers)
    return ScheduledModifierManager.from_yaml(
        f"modifiers:\n    - !EpochRangeModifier {{start_epoch: 0, end_epoch: 5}}\n{lines}"
    )


def train(net: Any, optimizer: Any, steps: int) -> list[float]:
    found = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        x, labels = torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


SPARSEML: dict[str, list[float]] = {
    "layers: [blocks.1], start_epoch: 1.0, end_epoch: 3.0": [
        1.1955565, 1.0565971, 1.1229118, 1.0883614, 1.1068317, 1.0795892, 1.1103482, 1.1179525, 1.0759022, 1.1738689,
    ],
    "layers: [blocks.0, blocks.2]": [
        1.2474384, 1.0611827, 1.1059521, 1.0838401, 1.0991714, 1.0814739, 1.1143012, 1.1148190, 1.1060623, 1.1589465,
    ],
    "layers: [blocks.3], start_epoch: 0.5": [
        1.1955565, 1.0565971, 1.1173050, 1.1226918, 1.0866983, 1.0499420, 1.1173340, 1.1090339, 1.0717502, 1.1664994,
    ],
}  # fmt: skip
"""The losses of the same loops in SparseML 1.8.0."""


def test_a_layer_is_skipped_and_put_back() -> None:
    net, optimizer = made()
    layer, x = net.blocks[1], torch.randn(3, 6)
    manager = manager_of("LayerPruningModifier {layers: [blocks.1], start_epoch: 1.0, end_epoch: 2.0}")
    stepper = manager.modify(net, optimizer, steps_per_epoch=PER_EPOCH)
    train(net, stepper, PER_EPOCH)
    assert net.blocks[1] is layer
    train(net, stepper, 1)
    assert net.blocks[1] is not layer
    assert torch.equal(net.blocks[1](x), x)
    assert not [key for key in net.state_dict() if key.startswith("blocks.1")]
    kept = layer.weight.detach().clone()
    train(net, stepper, 1)
    assert torch.equal(layer.weight, kept)
    train(net, stepper, 1)
    assert net.blocks[1] is layer
    manager.finalize(net)
    assert net.blocks[1] is layer


@pytest.mark.parametrize("start", ["-1", "0.0"])
def test_what_begins_at_once_is_skipped_before_the_first_forward_pass(start: str) -> None:
    net, optimizer = made()
    manager = manager_of(f"LayerPruningModifier {{layers: [blocks.1], start_epoch: {start}}}")
    manager.modify(net, optimizer, steps_per_epoch=PER_EPOCH)
    assert not list(net.blocks[1].parameters())
    manager.finalize(net)
    assert not list(net.blocks[1].parameters())


def test_masks_of_others_stay_on_a_skipped_layer() -> None:
    net, optimizer = made()
    manager = manager_of(
        "LayerPruningModifier {layers: [blocks.1], start_epoch: 0.0, end_epoch: 3.0}",
        "GMPruningModifier {params: ['re:blocks.*weight'], init_sparsity: 0.1, final_sparsity: 0.5, start_epoch: 0.0, "
        "end_epoch: 2.0, update_frequency: 0.5}",
    )
    stepper = manager.modify(net, optimizer, steps_per_epoch=PER_EPOCH)
    train(net, stepper, 4 * PER_EPOCH)
    manager.finalize(net)
    assert int((net.blocks[1].weight == 0).sum()) == 18


def test_a_run_that_ends_early_comes_to_what_the_recipe_says() -> None:
    for more, stays in (("start_epoch: 3.0", False), ("start_epoch: 0.0, end_epoch: 4.0", True)):
        net, optimizer = made()
        layer = net.blocks[1]
        manager = manager_of(f"LayerPruningModifier {{layers: [blocks.1], {more}}}")
        stepper = manager.modify(net, optimizer, steps_per_epoch=PER_EPOCH)
        train(net, stepper, 2)
        manager.finalize(net)
        assert (net.blocks[1] is layer) == stays


def test_a_copy_has_its_own_layer_back() -> None:
    from onnxsparse.engines.torch.skipped_layers import put_back, skip

    net, _ = made()
    x = torch.randn(3, 6)
    before = net(x)
    skip(net, ["blocks.1", "blocks.1"])
    other = copy.deepcopy(net)
    assert torch.equal(net(x), other(x))
    put_back(other, ["blocks.1"])
    assert torch.equal(other(x), before)
    assert other.blocks[1] is not net.blocks[1].hidden[0]
    other.double()
    net.double()
    assert net.blocks[1].hidden[0].weight.dtype == torch.float64


def test_patterns_and_words_name_layers() -> None:
    for layers, left in (("['re:blocks.[12]']", 3), ("__ALL_PRUNABLE__", 0)):
        net, _ = made()
        manager_of(f"LayerPruningModifier {{layers: {layers}}}").apply(net)
        assert len([one for one in net.modules() if isinstance(one, torch.nn.Linear)]) == left


@pytest.mark.parametrize("layers", ["[block.1]", "__ALL__", "['re:none']"])
def test_what_is_no_layer_is_refused(layers: str) -> None:
    net, _ = made()
    with pytest.raises(OptionError, match="LayerPruningModifier: layers: "):
        manager_of(f"LayerPruningModifier {{layers: {layers}}}").apply(net)


def test_a_layer_that_gives_more_than_it_takes_is_refused_by_name() -> None:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Conv2d(4, 8, 1), torch.nn.Conv2d(8, 4, 1), torch.nn.Flatten(),
        torch.nn.Linear(16, 5),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with refusing(OptionError):
        manager_of("LayerPruningModifier {layers: ['0'], start_epoch: 2.0}").modify(net, optimizer, PER_EPOCH)
    assert isinstance(net[0], torch.nn.Conv2d)
    manager = manager_of("LayerPruningModifier {layers: ['1', '2', '4']}")  # two that go together, and the last one
    manager.modify(net, optimizer, PER_EPOCH)
    assert net(torch.zeros(2, 3, 2, 2)).shape == (2, 16)


def test_a_checkpoint_fits_behind_apply_structure() -> None:
    net, optimizer = made()
    recipe = "LayerPruningModifier {layers: [blocks.1, blocks.2], start_epoch: 1.0}"
    manager = manager_of(recipe)
    train(net, manager.modify(net, optimizer, steps_per_epoch=PER_EPOCH), 2 * PER_EPOCH)
    manager.finalize(net)
    other, _ = made()
    again = manager_of(recipe)
    again.apply_structure(other, epoch=0.5)
    assert list(other.blocks[1].parameters())
    again.apply_structure(other, epoch=2)
    other.load_state_dict(net.state_dict())
    x = torch.randn(3, 6)
    assert torch.equal(net(x), other(x))
    stepper = again.modify(other, torch.optim.SGD(other.parameters(), lr=0.1), PER_EPOCH, epoch=2)
    train(other, stepper, 2)
    again.finalize(other)
    assert not list(other.blocks[1].parameters())


@pytest.mark.parametrize("options", list(SPARSEML))
def test_losses_are_those_of_sparseml(options: str) -> None:
    net, optimizer = made()
    manager = manager_of(f"LayerPruningModifier {{{options}}}")
    stepper = manager.modify(net, optimizer, steps_per_epoch=PER_EPOCH)
    assert train(net, stepper, 5 * PER_EPOCH) == pytest.approx(SPARSEML[options], abs=1e-6)
