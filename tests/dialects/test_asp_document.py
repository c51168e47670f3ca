"""The calls of ASP's quick-start, their arguments and their order, with nothing but the import changed."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy
import pytest

torch = pytest.importorskip("torch")
from torch import nn

from onnxsparse.dialects.asp import ASP

pytestmark = [
    pytest.mark.filterwarnings("ignore:the channels stay"),
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step"),  # the document has them in this order
]


PROJECTION = "attention.in_proj_weight"


class Projection(nn.Linear):
    """A subclass of a layer that ASP prunes."""


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.norm, self.up = nn.BatchNorm2d(32), nn.ConvTranspose2d(32, 16, 2, 2)
        self.head = nn.Linear(16, 8)
        self.shape, self.pruned = (4, 3, 8, 8), {"conv.weight", "head.weight"}

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.conv(torch.relu(self.stem(x)))))
        return self.head(self.up(x).mean((2, 3)))


class Signals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.volume = nn.Conv1d(16, 16, 3, padding=1), nn.Conv3d(16, 16, 1)
        self.head = Projection(16, 8)
        self.shape, self.pruned = (4, 16, 8), {"head.weight"}  # prune_trained_model takes no other convolution

    def forward(self, x: Any) -> Any:
        return self.head(self.volume(self.conv(x)[..., None, None]).flatten(2).mean(2))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mix = nn.MultiheadAttention(32, 4, batch_first=True), Projection(32, 32)
        self.table, self.head = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
        self.head.weight = self.table.weight
        self.shape, self.pruned = (4, 6, 32), {"attention.out_proj.weight", "mix.weight", "table.weight", PROJECTION}

    def forward(self, x: Any) -> Any:
        x = self.table(x)
        x = x + self.attention(x, x, x)[0]
        return self.head(self.mix(x)).mean(1)


MODELS = [Images, Signals, Words]


def epochs(model: Any, optimizer: Any, scheduler: Any = None) -> None:
    for seed in range(3):
        given = torch.randn(model.shape, generator=torch.Generator().manual_seed(seed))
        found = model(given)
        loss = nn.functional.mse_loss(found, torch.ones_like(found))
        if scheduler is not None:
            scheduler.step()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def halved(model: Any) -> set[str]:
    """The weights of which at most two in every four inputs are used."""
    found = set()
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and weight.shape[1] % 4 == 0:
            groups = (weight != 0).movedim(1, -1).reshape(-1, 4)
            found |= {name} if (groups.sum(1) <= 2).all() else set()
    return found


@pytest.mark.parametrize("kind", MODELS)
def test_two_lines_in_a_training_loop(kind: Any) -> None:
    torch.manual_seed(0)
    model = kind()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    ASP.prune_trained_model(model, optimizer)
    zeros = {name: weight == 0 for name, weight in model.named_parameters()}
    epochs(model, optimizer)
    assert halved(model) == model.pruned
    for name, weight in model.named_parameters():
        assert name not in model.pruned or torch.equal(weight == 0, zeros[name])
    torch.save(model.state_dict(), io.BytesIO())


@pytest.mark.parametrize("kind", MODELS)
def test_the_recipe_for_deployment(kind: Any) -> None:
    """Trained dense, pruned, and trained again with the same hyper-parameters and schedule."""
    torch.manual_seed(0)
    trained = kind()
    epochs(trained, torch.optim.SGD(trained.parameters(), lr=0.01))
    model = kind()
    model.load_state_dict(trained.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    ASP.prune_trained_model(model, optimizer)
    epochs(model, optimizer, lr_scheduler)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    other = kind()
    other.load_state_dict(torch.load(file, weights_only=True)["model"], strict=False)
    assert halved(other) == model.pruned


@pytest.mark.parametrize("kind", MODELS)
def test_masks_between_training_steps(kind: Any) -> None:
    torch.manual_seed(0)
    model = kind()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ASP.init_model_for_pruning(model, "m4n2_1d", whitelist=[nn.Linear], allow_recompute_mask=True)
    ASP.init_optimizer_for_pruning(optimizer)
    epochs(model, optimizer)
    for _ in range(2):
        ASP.compute_sparse_masks()
        epochs(model, optimizer)
        assert ASP.is_sparsity_enabled()
        assert halved(model) == model.pruned - {"conv.weight", PROJECTION}
    ASP.restore_pruned_weights()
    epochs(model, optimizer)
    assert not halved(model)


@pytest.mark.parametrize("kind", MODELS)
def test_without_permutation(kind: Any, recwarn: pytest.WarningsRecorder) -> None:
    model = kind()
    ASP.init_model_for_pruning(
        model,
        mask_calculator="m4n2_1d",
        verbosity=2,
        whitelist=[torch.nn.Linear, torch.nn.Conv2d],
        allow_recompute_mask=False,
        allow_permutation=False,
    )
    ASP.compute_sparse_masks()
    assert halved(model) == model.pruned - {PROJECTION}
    assert not recwarn.list


def test_seeds_of_several_gpus() -> None:
    """What the document has its readers write, and the function that it says does the same."""
    from onnxsparse.dialects.asp.permutation_lib import set_identical_seed

    identical_seed = 3
    torch.manual_seed(identical_seed)
    numpy.random.seed(identical_seed)
    random.seed(identical_seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    drawn = torch.rand(1), numpy.random.rand(), random.random()
    set_identical_seed(identical_seed)
    assert drawn == (torch.rand(1), numpy.random.rand(), random.random())
