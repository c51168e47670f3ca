"""ASP's calls: which weights get masks, which these are, what a step leaves of them, and what is refused."""

from __future__ import annotations

import copy
import gc
import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn.utils import prune

from onnxsparse.dialects.asp import ASP, permutation_lib
from onnxsparse.errors import OptionError
from tests.cases import for_each
from tests.messages import refusing

pytestmark = pytest.mark.filterwarnings("ignore:the channels stay")
EVERYTHING = ("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "MultiheadAttention")


class Custom(nn.Module):
    """A layer that torch does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(16, 32))

    def forward(self, x: Any) -> Any:
        return x @ self.matrix.T


class Derived(nn.Linear):
    pass


class Conv1D(nn.Module):
    """A linear layer with its inputs first, as transformers has it."""

    def __init__(self, out: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, out))


class Deep(nn.Module):
    """A weight of as many axes as no layer of torch has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 16, 2, 2, 2, 2))


def begun(model: Any, *optimizers: Any, **options: Any) -> Any:
    ASP.init_model_for_pruning(model, **{"verbosity": 0, "allow_permutation": False, **options})
    for optimizer in optimizers:
        ASP.of(model).init_optimizer_for_pruning(optimizer)
    return ASP.of(model)


def two_of_four(weight: Any, axis: int = 1) -> Any:
    """The mask by a sort of its own, without ties."""
    numbers = weight.detach().double().movedim(axis, -1)
    groups = numbers.reshape(*numbers.shape[:-1], -1, 4)
    keep = torch.zeros_like(groups, dtype=torch.bool)
    keep.scatter_(-1, groups.abs().argsort(-1)[..., 2:], True)
    return keep.reshape(numbers.shape).movedim(-1, axis)


LAYERS = {
    "linear": (lambda: nn.Linear(32, 16), "weight", 1),
    "derived": (lambda: Derived(32, 16), "weight", 1),
    "conv1d": (lambda: nn.Conv1d(16, 8, 3), "weight", 1),
    "conv2d": (lambda: nn.Conv2d(32, 8, 3), "weight", 1),
    "grouped": (lambda: nn.Conv2d(32, 16, 3, groups=2), "weight", 1),
    "conv3d": (lambda: nn.Conv3d(16, 8, 2), "weight", 1),
    "transposed1d": (lambda: nn.ConvTranspose1d(32, 8, 3), "weight", 0),
    "transposed2d": (lambda: nn.ConvTranspose2d(32, 8, 3), "weight", 0),
    "attention": (lambda: nn.MultiheadAttention(32, 4), "in_proj_weight", 1),
    "projection": (lambda: nn.MultiheadAttention(32, 4), "out_proj.weight", 1),
    "inputs first": (lambda: Conv1D(8, 32), "weight", 0),
    "deep": (lambda: Deep(), "weight", 1),
    "keys": (lambda: nn.MultiheadAttention(32, 4, kdim=16), "k_proj_weight", 1),
}


@for_each("name", LAYERS)
def test_the_largest_of_every_group_are_kept(name: str) -> None:
    torch.manual_seed(0)
    make, path, axis = LAYERS[name]
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        layer = make().to(dtype)
        weight = layer.get_parameter(path)
        with torch.no_grad():  # half precision has few numbers: each group has four that differ
            weight.copy_(torch.randperm(weight.numel()).reshape(weight.shape) % 251 + 1)
        before = weight.detach().clone()
        one = begun(layer, whitelist=EVERYTHING, custom_layer_dict={Conv1D: ["weight"], Deep: "weight"})
        assert torch.equal(weight, before)
        one.compute_sparse_masks()
        keep = two_of_four(before, axis)
        assert torch.equal(one.masks[path], keep)
        assert torch.equal(weight, torch.where(keep, before, 0))


def test_a_layout_in_memory_of_its_own() -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(32, 16, 3)
    other = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    masks = []
    for layer in (plain, other):
        one = begun(layer, allow_recompute_mask=True)
        one.compute_sparse_masks()
        masks.append(one.masks["weight"])
        assert not layer.weight[~masks[-1]].any()
    assert torch.equal(*masks)
    assert other.weight.is_contiguous(memory_format=torch.channels_last)


@for_each("text", ["m4n2_1d", "m4n1_1d", "m8n3_1d", "m16n15_1d", "m2n1_1d", "m3n1_1d"])
def test_any_m_and_n(text: str) -> None:
    layer = nn.Linear(48, 8)
    m, n = (int(part) for part in text[1 : text.index("_")].split("n"))
    one = begun(layer, mask_calculator=text)
    one.compute_sparse_masks()
    assert (one.masks["weight"].reshape(-1, m).sum(1) == n).all()
    assert ASP.of(layer).is_sparsity_enabled()


@for_each("text", ["m4n2_2d_best", "m4n2_2d_greedy"])
def test_both_ways(text: str) -> None:
    layer = nn.Conv2d(32, 16, 3)
    one = begun(layer, mask_calculator=text)
    before = layer.weight.detach().clone()
    one.compute_sparse_masks()
    blocks = one.masks["weight"].permute(2, 3, 0, 1).reshape(9, 4, 4, 8, 4)
    for axis in (2, 4):
        assert (blocks.sum(axis) <= 2).all()
        assert text == "m4n2_2d_greedy" or (blocks.sum(axis) == 2).all()
    other = nn.Conv2d(32, 16, 3)
    other.load_state_dict({"weight": before, "bias": layer.bias})
    begun(other, mask_calculator="m4n2_2d_greedy").compute_sparse_masks()
    assert layer.weight.abs().sum() >= other.weight.abs().sum()


def test_a_function_of_ones_own() -> None:
    layer = nn.Linear(32, 16)
    begun(layer, mask_calculator=lambda weight: weight > 0).compute_sparse_masks()
    assert (layer.weight >= 0).all()
    assert (layer.weight == 0).any()
    for wrong in (lambda weight: weight[:1], lambda weight: 1 / 0):
        layer = nn.Linear(32, 16)
        with refusing(OptionError):
            begun(layer, mask_calculator=wrong).compute_sparse_masks()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fits, self.narrow, self.short = nn.Linear(32, 16), nn.Linear(24, 16), nn.Linear(16, 12)
        self.frozen, self.custom, self.derived = nn.Linear(16, 8), Custom(), Derived(16, 8)
        self.up, self.norm = nn.ConvTranspose2d(16, 8, 2), nn.LayerNorm(32)
        self.frozen.weight.requires_grad_(False)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(16, 8))
        self.old = nn.Linear(16, 8)
        prune.random_unstructured(self.old, "weight", 0.5)


@for_each(
    ("options", "wanted"),
    [
        ({}, ["derived.weight", "fits.weight"]),
        ({"whitelist": [nn.Conv2d, nn.ConvTranspose2d]}, ["up.weight"]),
        ({"whitelist": [Derived]}, ["derived.weight"]),
        ({"custom_layer_dict": {Custom: ["matrix"]}}, ["custom.matrix", "derived.weight", "fits.weight"]),
        ({"allowed_layer_names": ["fits", "narrow"]}, ["fits.weight"]),
        ({"disallowed_layer_names": ["module.fits"]}, ["derived.weight"]),
        ({"allowed_layer_names": []}, []),
    ],
)
def test_which_weights_get_masks(options: Any, wanted: list[str]) -> None:
    model = Net()
    one = begun(model, **options)
    assert sorted(one.masks) == wanted
    every = {name for name, _ in LEFT} | {"fits.weight", "derived.weight", "up.weight"}
    assert {*one.masks, *one.left_dense} >= every


LEFT = [
    ("narrow.weight", "24 inputs"),
    ("short.weight", "12 outputs"),
    ("frozen.weight", "requires_grad"),
    ("up.weight", "whitelist"),
    ("normed.weight", "computed"),
    ("old.weight", "computed"),
]


def test_what_stays_dense_has_its_reason() -> None:
    left = begun(Net()).left_dense
    for path, word in LEFT:
        assert word in left[path], path


def test_a_mutable_default_is_left_alone() -> None:
    listed = [nn.Linear]
    begun(Net(), whitelist=listed, custom_layer_dict={Custom: ["matrix"]})
    assert listed == [nn.Linear]
    assert "custom.matrix" not in begun(Net()).masks


def test_a_tied_weight_is_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head, self.other = nn.Embedding(16, 32), nn.Linear(32, 16), nn.Linear(32, 16)
            self.head.weight = self.other.weight = self.table.weight

    model = Tied()
    one = begun(model, allow_recompute_mask=True)
    before = model.head.weight.detach().clone()
    one.compute_sparse_masks()
    assert list(one.masks) == ["head.weight"]
    assert torch.equal(model.table.weight, torch.where(two_of_four(before), before, 0))
    state = model.state_dict()
    assert torch.equal(state["head.__weight_mma_mask"], state["other.__weight_mma_mask"])
    one.restore_pruned_weights()
    assert torch.equal(model.table.weight, before)


# -- the life cycle


def trained(model: Any, optimizer: Any, steps: int = 3, seed: int = 0) -> None:
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 32, generator=draw)).square().sum().backward()
        optimizer.step()


def small() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))


def test_masks_come_again_and_go() -> None:
    model = small()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    ASP.init_model_for_pruning(model, allow_recompute_mask=True, verbosity=0, allow_permutation=False)
    ASP.init_optimizer_for_pruning(optimizer)
    assert ASP.already_init_asp_model()
    assert not ASP.is_sparsity_enabled()
    trained(model, optimizer)
    assert (model[0].weight != 0).all()
    dense = model[0].weight.detach().clone()
    ASP.compute_sparse_masks()
    keep = two_of_four(dense)
    assert ASP.is_sparsity_enabled()
    assert torch.equal(model[0].weight, torch.where(keep, dense, 0))
    trained(model, optimizer)
    moved = model[0].weight.detach().clone()
    assert (moved[~keep] == 0).all()
    assert (moved[keep] != dense[keep]).any()
    ASP.compute_sparse_masks()
    again = torch.where(keep, moved, dense)
    assert torch.equal(model[0].weight, torch.where(two_of_four(again), again, 0))
    ASP.restore_pruned_weights()
    assert torch.equal(model[0].weight, again)
    assert not ASP.is_sparsity_enabled()
    trained(model, optimizer)
    assert (model[0].weight != 0).all()


def test_all_of_it_at_once() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    trained(model, optimizer)
    ASP.prune_trained_model(model, optimizer)
    assert ASP.is_sparsity_enabled()
    masks = ASP.of(model).masks
    trained(model, optimizer)
    for name, keep in masks.items():
        assert not model.get_parameter(name)[~keep].any()
        assert keep.sum() * 2 == keep.numel()


def test_what_fails_leaves_the_model_as_it_was() -> None:
    model, foreign = small(), torch.optim.SGD(small().parameters(), lr=0.1)
    for wrong in (foreign, model, None):
        with refusing(OptionError):
            ASP.prune_trained_model(model, wrong)
        assert list(model.state_dict()) == list(small().state_dict())
    with torch.no_grad():
        model[0].weight[0, 0] = float("inf")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with refusing(OptionError):
        ASP.prune_trained_model(model, optimizer)
    model.load_state_dict(small().state_dict())
    ASP.prune_trained_model(model, optimizer)
    trained(model, optimizer)
    assert not model[0].weight[~ASP.of(model).masks["0.weight"]].any()


def test_the_table_that_attention_needed_is_taken() -> None:
    """Users of apex name the class of its last projection and the parameters of which only some are there."""
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    linear = nn.modules.linear.NonDynamicallyQuantizableLinear
    table = {
        linear: ["weight"],
        nn.MultiheadAttention: ["q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_weight"],
    }
    names = ["linear1.weight", "linear2.weight", "self_attn.in_proj_weight", "self_attn.out_proj.weight"]
    other = copy.deepcopy(model)
    assert sorted(begun(other).masks) == names
    one = begun(model, whitelist=[nn.Linear, nn.Conv2d], custom_layer_dict=table)
    assert sorted(one.masks) == names
    assert not one.left_dense
    one.compute_sparse_masks()
    assert one.is_sparsity_enabled()
    x, model = torch.randn(3, 5, 32), model.eval()
    with torch.no_grad():  # in one kernel, which reads the weights itself
        found = model(x)
    assert torch.allclose(model(x), found, atol=1e-6)


def test_what_comes_in_the_wrong_order_is_refused() -> None:
    model, other = small(), small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    calls = (lambda: ASP.init_optimizer_for_pruning(optimizer), ASP.compute_sparse_masks, lambda: ASP.of(model))
    for call in (*calls, ASP.restore_pruned_weights):
        with refusing(AssertionError):
            call()
    assert not ASP.already_init_asp_model()
    assert not ASP.is_sparsity_enabled()
    begun(model, optimizer)
    foreign = torch.optim.SGD(other.parameters(), lr=0.1)
    ASP.compute_sparse_masks()
    for call in (
        lambda: begun(model),
        lambda: ASP.init_optimizer_for_pruning(optimizer),
        lambda: ASP.init_optimizer_for_pruning(foreign),
        lambda: ASP.of(other),
        ASP.compute_sparse_masks,
        ASP.restore_pruned_weights,
    ):
        with refusing(AssertionError):
            call()


def test_the_models_of_a_process() -> None:
    first, second = small(), small()
    ours = torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.SGD(second.parameters(), lr=0.1)
    ASP.prune_trained_model(first, ours[0])
    masks = ASP.of(first).masks
    begun(second, allow_recompute_mask=True)
    assert not ASP.is_sparsity_enabled()
    ASP.init_optimizer_for_pruning(ours[1])
    ASP.compute_sparse_masks()
    assert ASP.is_sparsity_enabled()
    trained(second, ours[1])
    assert not second[0].weight[~ASP.of(second).masks["0.weight"]].any()
    ASP.restore_pruned_weights()
    assert not ASP.of(second).is_sparsity_enabled()
    assert ASP.of(first).is_sparsity_enabled()
    assert all(torch.equal(keep, masks[name]) for name, keep in ASP.of(first).masks.items())
    both = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    ASP.init_optimizer_for_pruning(both)


def test_models_that_are_gone_are_forgotten() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inner = model[0]
    begun(model, optimizer).compute_sparse_masks()
    del model
    gc.collect()
    keep = inner.__getattr__("__weight_mma_mask")
    inner(torch.randn(4, 32)).sum().backward()
    optimizer.step()
    assert not inner.weight[~keep].any()
    del inner, keep
    optimizer.zero_grad()
    optimizer.step()
    gc.collect()
    assert not ASP.already_init_asp_model()


def test_the_plain_model_again() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain = list(model.state_dict())
    one = begun(model, optimizer, allow_recompute_mask=True)
    one.compute_sparse_masks()
    one.remove()
    assert list(model.state_dict()) == plain
    assert not ASP.already_init_asp_model()
    trained(model, optimizer)
    assert (model[0].weight != 0).all()
    begun(model, optimizer)


@for_each(
    "options",
    [
        {"mask_calculator": "m4n2"},
        {"mask_calculator": "m2n4_1d"},
        {"mask_calculator": 2},
        {"whitelist": [nn.LSTM]},
        {"whitelist": ["Dense"]},
        {"whitelist": 3},
        {"custom_layer_dict": {"Custom": ["matrix"]}},
        {"custom_layer_dict": [1]},
        {"custom_layer_dict": {nn.Linear: None}},
        {"verbosity": "3"},
        {"verbosity": None},
        {"example_inputs": "images"},
        {"example_inputs": torch.ones(2, 32, device="meta")},
    ],
)
def test_what_means_nothing_is_refused(options: Any) -> None:
    model = small()
    with refusing(OptionError):
        begun(model, **options)
    assert list(model.state_dict()) == list(small().state_dict())
    begun(model)


def test_a_weight_of_another_shape_is_one_line() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    asp = begun(model, optimizer)
    plain = model[0].weight.data
    model[0].weight.data = torch.randn(32, 32)
    with refusing(OptionError):
        asp.compute_sparse_masks()
    model[0].weight.data = plain
    asp.compute_sparse_masks()
    trained(model, optimizer)
    model[0].weight.data = torch.randn(32, 32)
    with refusing(OptionError):
        optimizer.step()


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LazyLinear(16)


@for_each(
    "model",
    [lambda: nn.Linear(32, 16, device="meta"), Lazy, lambda: torch.jit.script(nn.Linear(32, 16)), lambda: "model"],
)
@pytest.mark.filterwarnings("ignore")
def test_what_has_no_numbers_is_refused(model: Any) -> None:
    with refusing(OptionError):
        begun(model())


def test_numbers_that_are_none_are_refused() -> None:
    layer = nn.Linear(32, 16)
    with torch.no_grad():
        layer.weight[3, 5] = float("nan")
    with refusing(AssertionError):
        begun(layer).compute_sparse_masks()


# -- around the model


@for_each("wrap", ["compile", "average", "parallel"])
def test_what_is_around_a_model_does_not_count(wrap: str) -> None:
    inner = small()
    around = {
        "compile": lambda: torch.compile(inner, backend="eager"),
        "average": lambda: torch.optim.swa_utils.AveragedModel(inner),
        "parallel": lambda: nn.DataParallel(inner),
    }[wrap]()
    optimizer = torch.optim.SGD(around.parameters(), lr=0.1)
    ASP.init_model_for_pruning(around, verbosity=0, disallowed_layer_names=["2"], allow_permutation=False)
    assert ASP.of(around) is ASP.of(getattr(around, "_orig_mod", None) or around.module)
    ASP.init_optimizer_for_pruning(optimizer)
    ASP.compute_sparse_masks()
    assert list(ASP.of(around).masks) == ["0.weight"]
    keep = ASP.of(around).masks["0.weight"]
    trained(around, optimizer)
    held = getattr(around, "_orig_mod", None) or around.module
    assert not held[0].weight[~keep].any()


def test_a_copy_of_a_model_brings_its_masks() -> None:
    model = small()
    begun(model, allow_recompute_mask=True).compute_sparse_masks()
    other = copy.deepcopy(model)
    one = begun(other, allow_recompute_mask=True)
    assert one.is_sparsity_enabled()
    one.restore_pruned_weights()
    assert (other[0].weight != 0).all()
    assert ASP.of(model).is_sparsity_enabled()
    assert not model[0].weight[~ASP.of(model).masks["0.weight"]].any()


def test_a_parametrization_that_came_later_is_said() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    begun(model, optimizer).compute_sparse_masks()
    nn.utils.parametrizations.weight_norm(model[0])
    with refusing(OptionError):
        optimizer.step()


# -- permutation, and what is left of its calls


class Branching(nn.Sequential):
    """Nobody can trace it."""

    def forward(self, x: Any) -> Any:
        return super().forward(x if x.sum() > 0 else -x)


def test_one_warning_where_channels_stay() -> None:
    model = Branching(*small())
    ASP.init_model_for_pruning(model, verbosity=0, allow_recompute_mask=True)
    with pytest.warns(UserWarning, match="the channels stay") as said:
        ASP.compute_sparse_masks()
    assert [one.filename for one in said] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ASP.compute_sparse_masks()


def test_channels_may_be_left_alone(recwarn: Any) -> None:
    ASP.set_permutation_saving_params(False, True, "somewhere")
    model = small()
    ASP.init_model_for_pruning(model, verbosity=0)
    ASP.set_permutation_saving_params(allow_permutation=False)
    ASP.compute_sparse_masks()
    assert not recwarn


def test_masks_draw_no_numbers() -> None:
    found = []
    for seed in (1, 2):
        for call in (permutation_lib.set_identical_seed, permutation_lib.Permutation.set_identical_seed):
            call(seed)
            drawn = torch.rand(1), np.random.rand(1), torch.get_rng_state()
            call(seed)
            assert (drawn[0], drawn[1]) == (torch.rand(1), np.random.rand(1))
        model = small()
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        begun(model).compute_sparse_masks()
        assert torch.equal(torch.get_rng_state(), state)
        found.append(ASP.of(model).masks["0.weight"])
    assert torch.equal(*found)


def test_it_says_as_much_as_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for verbosity, lines in enumerate((0, 1, 8, 10)):
        model = Net()
        begun(model, verbosity=verbosity, disallowed_layer_names=["nothing"]).compute_sparse_masks()
        said = capsys.readouterr()
        assert not said.out
        assert said.err.count("\n") == said.err.count("ASP: ") >= lines, said.err
        assert verbosity or not said.err
