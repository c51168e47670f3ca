"""LayerThinningModifier in plain training loops in torch: channels that are zero are taken out of the module."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from onnxsparse.engines.torch import library

pytestmark = pytest.mark.skipif(not library.available(), reason="needs torch")
torch = pytest.importorskip("torch")

from onnxsparse.dialects.sparseml import ScheduledModifierManager
from onnxsparse.errors import OnnxSparseError, OptionError

PER_EPOCH = 2
MAP = {
    "stem.weight,left.weight,right.weight": [
        "stem.bias", "norm.weight", "norm.bias", "left.bias", "right.bias", "deep.weight", "deep.bias", "wide.weight",
        "left.weight", "right.weight",
    ],
    "wide.weight": ["wide.bias", "head.weight"],
}  # fmt: skip
PRUNED = """
    - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 4.0}
    - !StructuredPruningModifier
        start_epoch: 0.0
        end_epoch: 2.0
        update_frequency: 0.5
        init_sparsity: 0.1
        final_sparsity: 0.5
        params: [stem.weight, left.weight, right.weight, wide.weight]
        param_groups: [[stem.weight, left.weight, right.weight]]
        mask_type: filter
"""


class Net(torch.nn.Module):
    """Two residual additions on one width, a depthwise convolution, and a Flatten before the head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        self.left, self.right = torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 1)
        self.deep = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.wide = torch.nn.Conv2d(8, 6, 1)
        self.head = torch.nn.Linear(6 * 4, 3)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.stem(x)))
        x = x + torch.relu(self.left(x))
        x = torch.relu(self.deep(x + self.right(x)))
        x = torch.nn.functional.avg_pool2d(torch.relu(self.wide(x)), 3)
        return self.head(torch.flatten(x, 1))


def made(kind: str = "sgd") -> tuple[Any, Any]:
    torch.manual_seed(0)
    net = Net()
    if kind == "sgd":
        return net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return net, torch.optim.AdamW(net.parameters(), lr=0.01)


def manager_of(more: str = "", dependents: Any = MAP, pruned: str = PRUNED) -> ScheduledModifierManager:
    text = f"    - !LayerThinningModifier {{param_group_dependency_map: {json.dumps(dependents)}{more}}}\n"
    return ScheduledModifierManager.from_yaml(f"modifiers:{pruned}{text}")


def train(net: Any, optimizer: Any, steps: int) -> None:
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        x, labels = torch.randn(8, 1, 6, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), labels).backward()
        optimizer.step()


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_channels_are_taken_out_and_training_goes_on(kind: str) -> None:
    net, optimizer = made(kind)
    manager = manager_of(", update_epochs: [3.0]")
    stepper = manager.modify(net, optimizer, steps_per_epoch=PER_EPOCH)
    train(net, stepper, 3 * PER_EPOCH)
    net.eval()
    x, before = torch.randn(4, 1, 6, 6), {name: one.detach().clone() for name, one in net.state_dict().items()}
    whole = Net().eval()
    whole.load_state_dict(before)
    gone = (before["stem.weight"].reshape(8, -1) == 0).all(1)
    wide = (before["wide.weight"].reshape(6, -1) == 0).all(1)
    assert (int(gone.sum()), int(wide.sum())) == (4, 3)
    for name in ("stem.bias", "norm.weight", "norm.bias", "left.bias", "right.bias", "deep.weight", "deep.bias"):
        whole.state_dict()[name][gone] = 0
    whole.wide.bias.data[wide] = 0
    with torch.no_grad():
        for act in [act for _, act in manager._acts if type(act).__name__ == "ThinLayers"]:
            act.before(manager._trainee, 3.0)
        assert torch.allclose(net(x), whole(x), atol=1e-6)
    sizes = {name: tuple(one.shape) for name, one in net.state_dict().items()}
    assert sizes["stem.weight"] == (4, 1, 3, 3)
    assert sizes["left.weight"] == (4, 4, 3, 3)
    assert sizes["deep.weight"] == (4, 1, 3, 3)
    assert sizes["wide.weight"] == (3, 4, 1, 1)
    assert sizes["head.weight"] == (3, 12)
    assert sizes["norm.running_var"] == (4,)
    assert (net.deep.groups, net.left.in_channels, net.head.in_features, net.norm.num_features) == (4, 4, 12, 4)
    for param in net.parameters():
        for value in optimizer.state[param].values():
            assert value is None or value.dim() == 0 or value.shape == param.shape
    net.train()
    train(net, stepper, PER_EPOCH)
    manager.finalize(net)
    assert copy.deepcopy(net)(x).shape == (4, 3)
    assert not bool((net.stem.weight.reshape(4, -1) == 0).all(1).any())


def test_without_an_epoch_it_is_done_at_the_end() -> None:
    net, optimizer = made()
    manager = manager_of()
    train(net, manager.modify(net, optimizer, steps_per_epoch=PER_EPOCH), 3 * PER_EPOCH)
    assert net.stem.out_channels == 8
    manager.finalize(net)
    assert (net.stem.out_channels, net.wide.out_channels) == (4, 3)
    other, _ = made()
    again = manager_of()
    again.apply_structure(other, epoch=4)
    other.load_state_dict(net.state_dict())
    x = torch.randn(2, 1, 6, 6)
    assert torch.equal(net.eval()(x), other.eval()(x))
    assert (other.deep.groups, other.head.in_features) == (4, 12)


def test_inputs_are_taken_out_with_what_gives_them() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    net[2].weight.data[:, [1, 4]] = 0
    x = torch.randn(5, 4)
    before = net(x)
    manager_of(", structure_type: channel", {"2.weight": ["0.weight", "0.bias"]}, "\n").apply(net)
    assert (net[0].out_features, net[2].in_features) == (4, 4)
    assert torch.allclose(net(x), before, atol=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    for dependents, more, why in (
        ({"stem.weight": ["norm.weight"]}, "", "stem.bias is missing among the dependents of stem.weight"),
        ({"stem.weight": ["stem.bias", "head.bias"]}, "", "head.bias has 3 places for 8 channels"),
        ({"stem.weight": ["norm.wait"]}, "", "'norm.wait' is no parameter or layer"),
        ({"stem.weight,left.weight": []}, "", "other channels of left.weight are zero"),
    ):
        net, _ = made()
        net.stem.weight.data[2] = 0
        with pytest.raises(OptionError, match=f"LayerThinningModifier.*{why}"):
            manager_of(more, dependents, "\n").apply(net)
    net, optimizer = made()
    manager = manager_of(", update_epochs: [1.0]")
    with pytest.raises(OptionError, match=r"is still being pruned, until epoch 2; thin it from then on"):
        train(net, manager.modify(net, optimizer, steps_per_epoch=PER_EPOCH), 4 * PER_EPOCH)
    with pytest.raises(OnnxSparseError, match="param_group_dependency_map: it is a mapping, or JSON of one"):
        manager_of("", "[1]")


SPARSEML = [1.0325468, 1.1336076, 1.1235065, 1.1510147, 1.1033432, 1.1329031]
"""The losses in SparseML 1.8.0; its torch fails in a loop that holds a loss while the next one is computed."""


@pytest.mark.parametrize("holds", [False, True])
def test_losses_are_those_of_sparseml(holds: bool) -> None:
    torch.manual_seed(0)
    nn = torch.nn
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3, padding=1), nn.ReLU(),
        nn.AvgPool2d(3), nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip
    net[0].weight.data[[1, 4]] = 0
    net[3].weight.data[2] = 0
    dependents = {"0.weight": ["0.bias", "1.weight", "1.bias", "3.weight"], "3.weight": ["3.bias", "7.weight"]}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    manager = manager_of(
        ", update_epochs: [0.0]", dependents, "\n    - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 4.0}\n"
    )
    stepper, found, held = manager.modify(net, optimizer, steps_per_epoch=PER_EPOCH), [], []
    for step in range(6):
        generator = torch.Generator().manual_seed(step)
        x, labels = torch.randn(8, 1, 6, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        stepper.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), labels)
        loss.backward()
        stepper.step()
        found.append(float(loss.detach()))
        held += [loss] if holds else []
        del loss
    assert found == pytest.approx(SPARSEML, abs=1e-6)
