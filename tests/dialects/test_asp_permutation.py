"""Channels are permuted before ASP's first masks: the outputs stay, more is kept, and moments move along."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("scipy")
from torch import nn

from onnxsparse.dialects.asp import ASP
from onnxsparse.dialects.asp.permutation_lib import Permutation
from onnxsparse.errors import OptionError, OutputError
from onnxsparse.torch import permute
from tests.messages import refusing


class Net(nn.Module):
    """Convolutions, a norm, a residual sum, an attention and linear layers, of which one is derived."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.one, self.two = nn.Conv2d(32, 64, 3, padding=1), nn.Conv2d(64, 32, 1)
        self.mix, self.head = type("Derived", (nn.Linear,), {})(32, 64), nn.Linear(64, 8)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.stem(x)))
        x = x + self.two(torch.relu(self.one(x)))
        return self.head(torch.relu(self.mix(x.mean((2, 3)))))


class Branching(Net):
    def forward(self, x: Any) -> Any:
        return super().forward(x if x.sum() > 0 else -x)


SHAPE = (4, 3, 8, 8)


def trained(kind: Any, dtype: Any = torch.float32) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = kind().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for seed in range(3):
        optimizer.zero_grad()
        x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed), dtype=dtype)
        model(x).square().mean().backward()
        optimizer.step()
    return model, optimizer


def kept(model: Any) -> float:
    return sum(model.get_parameter(name).abs().sum().item() for name in ASP.of(model).masks)


@pytest.mark.parametrize("calculator", ["m4n2_1d", "m4n2_2d_best"])
@pytest.mark.parametrize("inputs", [None, torch.ones(SHAPE)], ids=["traced", "exported"])
def test_the_outputs_stay_and_more_is_kept(inputs: Any, calculator: str) -> None:
    found = []
    for permutes in (False, True):
        model, _ = trained(Net)
        x = torch.randn(SHAPE)
        before = model.eval()(x)
        weights = {name: one.detach().clone() for name, one in model.named_parameters()}
        ASP.init_model_for_pruning(
            model, calculator, 0, allow_recompute_mask=True, allow_permutation=permutes, example_inputs=inputs
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ASP.of(model).compute_sparse_masks()
        found.append(kept(model))
        ASP.of(model).restore_pruned_weights()
        moved = {name for name, one in model.named_parameters() if not torch.equal(one, weights[name])}
        assert torch.allclose(model(x), before, atol=1e-5)
        assert ({"one.weight", "two.weight", "mix.bias", "head.weight"} <= moved) == permutes
    assert calculator != "m4n2_1d" or found[1] > 1.005 * found[0]


def test_what_the_optimizer_remembers_moves_along() -> None:
    """Told by the weights, which all differ in double precision: each has its moments still, or none under a mask."""
    model, optimizer = trained(Net, torch.float64)

    def remembered() -> dict[str, Any]:
        return {
            name: [part.flatten()[one.detach().flatten().argsort()] for part in (one.detach(), *moments(one))]
            for name, one in model.named_parameters()
        }

    def moments(one: Any) -> list[Any]:
        return [optimizer.state[one][name] for name in ("exp_avg", "exp_avg_sq")]

    before, first = remembered(), model.head.weight.detach().clone()
    ASP.init_model_for_pruning(model, verbosity=0, allow_recompute_mask=True)
    one = ASP.of(model)
    one.init_optimizer_for_pruning(optimizer)
    one.compute_sparse_masks()
    masks = one.masks
    one.restore_pruned_weights()
    assert not torch.equal(model.head.weight, first)
    for name, (weight, *rest) in remembered().items():
        keep = masks.get(name, torch.ones_like(model.get_parameter(name), dtype=torch.bool)).flatten()
        sorted_keep = keep[model.get_parameter(name).detach().flatten().argsort()]
        assert torch.equal(weight, before[name][0])
        for now, then in zip(rest, before[name][1:]):
            assert torch.equal(now, torch.where(sorted_keep, then, 0)), name


def test_what_cannot_be_traced_gets_masks_and_one_warning() -> None:
    model, optimizer = trained(Branching)
    with pytest.warns(UserWarning, match="the channels stay in their order") as said:
        ASP.prune_trained_model(model, optimizer)
    assert len(said) == 1
    assert ASP.of(model).is_sparsity_enabled()
    other, optimizer = trained(Branching)
    ASP.prune_trained_model(other, optimizer, example_inputs=torch.ones(SHAPE))
    assert kept(other) > kept(model)


@pytest.mark.parametrize("inputs", [torch.ones(2), {"y": torch.ones(SHAPE)}])
def test_inputs_that_do_not_fit_are_no_refusal(inputs: Any) -> None:
    model, _ = trained(Branching)
    ASP.init_model_for_pruning(model, verbosity=0, example_inputs=inputs)
    with pytest.warns(UserWarning, match="the channels stay in their order"):
        ASP.of(model).compute_sparse_masks()
    assert ASP.of(model).is_sparsity_enabled()


def test_the_permutation_is_recorded_where_it_is_asked_for(tmp_path: Path) -> None:
    model, _ = trained(Net)
    ASP.init_model_for_pruning(model, verbosity=0)
    ASP.set_permutation_saving_params(True, True, str(tmp_path / "new"))
    ASP.of(model).compute_sparse_masks()
    ASP.set_permutation_saving_params()
    record = json.loads((tmp_path / "new" / "model_offline_permutation_graph.json").read_text(encoding="utf-8"))
    assert "one.weight" in str(record)


def test_a_record_that_cannot_be_written_is_said_before_anything_moves(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    model, optimizer = trained(Net)
    plain = {name: one.clone() for name, one in model.state_dict().items()}
    ASP.set_permutation_saving_params(True, True, str(tmp_path / "file"))
    try:
        with refusing(OutputError):
            ASP.prune_trained_model(model, optimizer)
    finally:
        ASP.set_permutation_saving_params()
    assert list(model.state_dict()) == list(plain)
    assert all(torch.equal(one, plain[name]) for name, one in model.state_dict().items())
    for folder in (1, "\0"):
        with refusing(OptionError):
            ASP.set_permutation_saving_params(True, True, folder)


def test_what_moved_is_said_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = trained(Net)
    ASP.init_model_for_pruning(model, verbosity=2)
    one = ASP.of(model)
    assert not one.permutation
    one.compute_sparse_masks()
    assert "one.weight" in one.permutation.tensors
    assert "ASP: channels permuted in " in capsys.readouterr().err


def test_an_optimizer_that_comes_after_the_permutation_is_warned_of() -> None:
    model, optimizer = trained(Net)
    ASP.init_model_for_pruning(model, verbosity=0)
    one = ASP.of(model)
    one.compute_sparse_masks()
    with pytest.warns(UserWarning, match="in the former order"):
        one.init_optimizer_for_pruning(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one.init_optimizer_for_pruning(torch.optim.AdamW(model.parameters()))


def test_a_script_permutes_without_asp(tmp_path: Path) -> None:
    """Upstream's calls for a model alone: what moved and what did not, and a record that other modules take."""
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 3, 8, 8)
    before, other = model(x), Net().eval()
    other.load_state_dict(model.state_dict())
    layers = [(name, layer, "weight") for name, layer in model.named_modules() if name in ("stem", "one", "two", "mix")]
    Permutation.set_permutation_params_from_asp(model, layers, model.named_parameters())
    assert Permutation.permute_model(model, dump_fx_graph=True, save_dumped_fx_graph=str(tmp_path / "order.json"))
    inputs, outputs, left = Permutation.get_permutation_stats()
    assert {"one.weight", "two.weight", "mix.weight"} <= {*inputs}
    assert {"stem.weight", "one.weight", "two.weight"} <= {*outputs}
    assert left == ["stem.weight"]  # it reads the input of the model
    assert torch.allclose(model(x), before, atol=1e-5)
    permute(other, apply=str(tmp_path / "order.json"))
    assert torch.equal(other.one.weight, model.one.weight)
