"""States of a module with masks on it are those of the plain module; what is under the zeros travels beside them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import onnxsparse as osp
from onnxsparse.torch import attach, finish
from tests.engines.torch.test_attach import OPTIMIZERS, WEIGHTS, batches, net, random_masks, step
from tests.messages import refusing

ORIGINAL = "parametrizations.{}.original"


def moved(followed: bool, steps: int = 4) -> tuple[Any, Any, Any]:
    """A module in the middle of its training: its masks came when its optimizer had moments already."""
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    for x in batches(2):
        step(module, optimizer, x)
    handle = attach(module, random_masks(module), optimizer=optimizer if followed else None)
    for x in batches(steps):
        step(module, optimizer, x)
    return module, handle, optimizer


def original(module: Any, name: str) -> Any:
    owner, _, last = name.rpartition(".")
    return module.get_submodule(owner).parametrizations[last].original


def as_before(state: Any) -> dict[str, Any]:
    """A state as versions wrote it that kept the names of parametrizations."""
    found = {}
    for name, tensor in state.items():
        owner, _, last = name.rpartition(".")
        found[f"{owner}.{ORIGINAL.format(last)}" if name in WEIGHTS else name] = tensor
    return found


@pytest.mark.parametrize("followed", [True, False])
def test_a_state_in_the_middle_is_that_of_the_plain_module(followed: bool) -> None:
    module, handle, _ = moved(followed)
    hidden = sum(int((original(module, name)[~keep] != 0).sum()) for name, keep in handle.masks.items())
    assert (hidden > 0) != followed, "momentum of before the masks moves what nobody sees"
    state = module.state_dict()
    assert list(state) == list(net().state_dict())
    for name, keep in handle.masks.items():
        assert not state[name][~keep].any()
        assert not torch.signbit(state[name][~keep]).any()
    plain = net()
    plain.load_state_dict(state)
    x = next(batches(1))
    assert torch.equal(plain(x), module(x))
    assert torch.equal(finish(module).head.weight, plain.head.weight)


def test_a_state_is_the_module_s_own_memory_where_nothing_is_hidden() -> None:
    """As any state is: what is written into it is written into the module."""
    module, handle, _ = moved(followed=True)
    module.state_dict()["head.weight"].fill_(1)
    assert torch.equal(module.head.weight, handle.masks["head.weight"].float())


@pytest.mark.parametrize("order", ["masks first", "module first"])
@pytest.mark.parametrize("followed", [True, False])
@pytest.mark.parametrize("changed", [True, False])
def test_a_training_goes_on_to_the_same_numbers(tmp_path: Path, order: str, followed: bool, changed: bool) -> None:
    module, handle, optimizer = moved(followed)
    if changed:
        handle.update({"head.weight": handle.masks["head.weight"].roll(1, 1)})
        step(module, optimizer, next(batches(1)))
    parts = {"module": module.state_dict(), "masks": handle.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(parts, tmp_path / "state.pt")
    found = torch.load(tmp_path / "state.pt", weights_only=True)
    again = net()
    following = torch.optim.SGD(again.parameters(), lr=0.05, momentum=0.9)
    masks = attach(again, random_masks(again), optimizer=following if followed else None)
    loaded = {"masks": masks, "module": again, "optimizer": following}
    for part in ("masks", "module", "optimizer") if order == "masks first" else ("optimizer", "module", "masks"):
        loaded[part].load_state_dict(found[part])
    for x in batches(3):
        step(module, optimizer, x)
        step(again, following, x)
    for name, keep in handle.masks.items():
        assert torch.equal(masks.masks[name], keep)
        assert torch.equal(original(module, name), original(again, name)), "also what is under the mask"


def test_a_state_that_is_loaded_into_its_own_module_changes_nothing() -> None:
    module, handle, _ = moved(followed=False)
    before = {name: original(module, name).clone() for name in handle.masks}
    module.load_state_dict(copy.deepcopy(module.state_dict()))
    assert all(torch.equal(original(module, name), one) for name, one in before.items())
    state, beside = copy.deepcopy((module.state_dict(), handle.state_dict()))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    handle.load_state_dict(beside)
    module.load_state_dict(state)
    assert all(torch.equal(original(module, name), one) for name, one in before.items())


def test_a_state_without_what_is_beside_it_is_taken_as_it_is() -> None:
    module, handle, _ = moved(followed=False)
    again = net()
    attach(again, handle.masks)
    again.load_state_dict(module.state_dict())
    x = next(batches(1))
    assert torch.equal(again(x), module(x))
    assert not original(again, "head.weight")[~handle.masks["head.weight"]].any()


def test_masks_of_a_state_are_masks_to_attach() -> None:
    module, handle, _ = moved(followed=True)
    again = net()
    other = attach(again, handle.state_dict())
    again.load_state_dict(module.state_dict())
    assert all(torch.equal(one, handle.masks[name]) for name, one in other.masks.items())
    assert torch.equal(again.head.weight, module.head.weight)


def test_names_of_before_are_taken() -> None:
    module, handle, _ = moved(followed=True)
    again = net()
    attach(again, handle.masks)
    assert not any(again.load_state_dict(as_before(module.state_dict())))
    assert all(torch.equal(original(again, name), original(module, name)) for name in WEIGHTS)


def test_what_is_missing_is_called_by_its_plain_name() -> None:
    module = net()
    attach(module, random_masks(module))
    before = original(module, "head.weight")
    state = {name: one for name, one in net().state_dict().items() if name != "head.weight"}
    assert module.load_state_dict(state, strict=False) == (["head.weight"], [])
    assert original(module, "head.weight") is before
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "head.weight"'):
        module.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "heads.weight"'):
        module.load_state_dict({**net().state_dict(), "heads.weight": torch.zeros(1)})


@pytest.mark.parametrize("way", ["data parallel", "compiled", "averaged", "inside", "copy"])
def test_wrappers_put_their_own_names_before(way: str) -> None:
    module = net()
    handle = attach(module, random_masks(module))
    around = {
        "data parallel": nn.DataParallel,
        "compiled": lambda one: torch.compile(one, backend="eager"),
        "averaged": torch.optim.swa_utils.AveragedModel,
        "inside": lambda one: nn.Sequential(nn.Identity(), one),
        "copy": copy.deepcopy,
    }[way]
    found, wanted = around(module).state_dict(), around(net()).state_dict()
    assert list(found) == list(wanted)
    keep = handle.masks["head.weight"]
    assert not any(one[~keep].any() for name, one in found.items() if name.endswith("head.weight"))
    around(net()).load_state_dict(found)
    around(module).load_state_dict(wanted)


def test_a_child_s_own_state_is_plain() -> None:
    module = net()
    attach(module, random_masks(module))
    assert list(module.head.state_dict()) == ["weight", "bias"]
    module.head.load_state_dict(net().head.state_dict())


@pytest.mark.parametrize("kind", ["recurrent", "root", "bfloat16", "with children"])
def test_modules_of_other_forms(kind: str) -> None:
    torch.manual_seed(3)

    class Nested(nn.Linear):
        """A module with a parameter, a buffer and a child."""

        def __init__(self) -> None:
            super().__init__(6, 5)
            self.register_buffer("scale", torch.ones(1))
            self.norm = nn.BatchNorm1d(5)

    made: dict[str, Any] = {
        "recurrent": lambda: nn.LSTM(6, 5, 2),
        "root": lambda: nn.Linear(6, 5),
        "bfloat16": lambda: nn.Linear(6, 5).bfloat16(),
        "with children": lambda: nn.Sequential(Nested(), nn.Linear(5, 5)),
    }
    module, plain = made[kind](), made[kind]()
    weights = [name for name, one in module.named_parameters() if one.dim() > 1]
    handle = attach(module, {name: torch.rand(module.get_parameter(name).shape) > 0.5 for name in weights})
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    state = module.state_dict()
    assert list(state) == list(plain.state_dict())
    assert all(not state[name][~keep].any() for name, keep in handle.masks.items())
    plain.load_state_dict(state)
    beside = handle.state_dict()
    assert set(beside["unmasked"]) == set(weights)
    other = made[kind]()
    again = attach(other, handle.masks)
    other.load_state_dict(state)
    again.load_state_dict(beside)
    assert all(torch.equal(original(other, name), original(module, name)) for name in weights)
    finish(module)
    assert all(torch.equal(one, state[name]) for name, one in module.state_dict().items())
    assert not any(one._state_dict_hooks or one._load_state_dict_pre_hooks for one in module.modules())


def test_shared_parameters_have_both_their_names() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    module[2].weight = module[0].weight
    handle = attach(module, {"0.weight": torch.rand(6, 6) > 0.5})
    with torch.no_grad():
        module[0].parametrizations.weight.original.add_(1)
    state, beside = copy.deepcopy((module.state_dict(), handle.state_dict()))
    assert list(state) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert torch.equal(state["0.weight"], state["2.weight"])
    whole = original(module, "0.weight").clone()
    with torch.no_grad():
        module[0].parametrizations.weight.original.zero_()
    handle.load_state_dict(beside)
    module.load_state_dict(state)
    assert torch.equal(original(module, "0.weight"), whole)


def test_what_is_no_state_of_these_masks_is_said() -> None:
    module, handle, _ = moved(followed=True)
    before = handle.masks
    other = handle.state_dict()
    other["mask_dict"].pop("head.weight")
    bad = handle.state_dict()
    bad["mask_dict"]["head.weight"] = bad["mask_dict"]["head.weight"][:2]
    for wrong, says in (
        ({}, "what state_dict returned"),
        (module.state_dict(), "what state_dict returned"),
        (other, r"another module: 'head\.weight' is in one of them only"),
        (bad, "shape"),
    ):
        with pytest.raises(osp.OnnxSparseError, match=says):
            handle.load_state_dict(wrong)
    assert all(torch.equal(one, before[name]) for name, one in handle.masks.items())


def test_nothing_to_attach_is_said() -> None:
    with refusing(osp.OnnxSparseError):
        attach(net(), {})


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_moments_that_were_loaded_first_stay(name: str) -> None:
    """Masks that changed in training clear the moments of what grows back; masks that are loaded are no change."""
    module = net()
    optimizer = OPTIMIZERS[name](module.parameters())
    handle = attach(module, random_masks(module), optimizer=optimizer)
    handle.update({"head.weight": ~handle.masks["head.weight"]})
    for x in batches(2):
        step(module, optimizer, x)
    states = copy.deepcopy((optimizer.state_dict(), module.state_dict(), handle.state_dict()))
    again = net()
    following = OPTIMIZERS[name](again.parameters())
    other = attach(again, random_masks(again), optimizer=following)
    for one, state in zip((following, again, other), states):
        one.load_state_dict(state)
    for x in batches(2):
        step(module, optimizer, x)
        step(again, following, x)
    assert torch.equal(again.head.weight, module.head.weight)
