"""State dicts under ASP: plain names with masks beside them, as apex writes them, and whatever is loaded into them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn

from onnxsparse.dialects.asp import ASP
from tests.dialects import asp_checkpoint_run
from tests.messages import refusing

SCRIPT = Path(asp_checkpoint_run.__file__)


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.Linear(16, 8, bias=False))


def begun(model: Any, **options: Any) -> Any:
    ASP.init_model_for_pruning(model, verbosity=0, allow_permutation=False, **options)
    return ASP.of(model)


def masked(**options: Any) -> Any:
    model = net()
    begun(model, **options).compute_sparse_masks()
    return model


NORM = ["1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"]


def test_names_and_their_order_are_those_of_apex() -> None:
    assert list(masked().state_dict()) == [
        "0.weight",
        "0.bias",
        "0.__weight_mma_mask",
        *NORM,
        "2.weight",
        "2.__weight_mma_mask",
    ]
    state = masked(allow_recompute_mask=True).state_dict()
    assert [name for name in state if "mma" in name] == [
        "0.__weight_mma_mask", "0.__weight_mma_pruned_p", "2.__weight_mma_mask", "2.__weight_mma_pruned_p",
    ]  # fmt: skip
    assert state["0.__weight_mma_mask"].dtype == torch.bool
    assert torch.equal(net()[0].weight, state["0.weight"] + state["0.__weight_mma_pruned_p"])


def test_a_part_of_a_layer_is_called_by_its_last_name() -> None:
    layer = nn.MultiheadAttention(32, 4)
    begun(layer, whitelist=[], custom_layer_dict={nn.MultiheadAttention: ["in_proj_weight", "out_proj.weight"]})
    assert {"__in_proj_weight_mma_mask", "__weight_mma_mask"} <= set(layer.state_dict())
    twins = nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 16))
    one = begun(twins, whitelist=[], custom_layer_dict={nn.Sequential: ["0.weight", "1.weight"]})
    one.compute_sparse_masks()
    assert {"__weight_mma_mask", "__1_weight_mma_mask"} <= set(twins.state_dict())
    assert {name: keep.shape for name, keep in one.masks.items()} == {"0.weight": (16, 32), "1.weight": (16, 16)}


def test_parameters_keep_their_names_and_are_the_same() -> None:
    model = net()
    before = dict(model.named_parameters())
    begun(model).compute_sparse_masks()
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is one for name, one in before.items())


def test_another_process_goes_on(tmp_path: Path) -> None:
    """To the same numbers as if nothing had been saved, and back to the same dense ones."""
    for way in ("whole", "go-on"):
        command = [sys.executable, str(SCRIPT), way, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
    gone_on, whole = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("go-on", "whole"))
    dense = gone_on.pop("dense"), whole.pop("dense")
    for found, wanted in ((gone_on, whole), dense):
        assert list(found) == list(wanted)
        assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    assert (dense[0]["linear_layer_2.weight"] != 0).all()
    assert (gone_on["linear_layer_1.weight"] != 0).all()  # 8 inputs


def test_a_checkpoint_of_apex_is_read() -> None:
    """As it writes them: bools or numbers, beside plain names; it needs nothing of ours."""
    kept = masked()
    weights = {name: one for name, one in kept.state_dict().items() if "mma" not in name}
    masks = {f"{place}.__weight_mma_mask": kept[place].weight.detach() != 0 for place in (0, 2)}
    for given in (masks, {name: mask.half() for name, mask in masks.items()}):
        model = net()
        one = begun(model)
        model.load_state_dict({**weights, **given})
        assert one.is_sparsity_enabled()
        assert all(torch.equal(one.masks[f"{place}.weight"], mask) for place, mask in zip((0, 2), masks.values()))


def test_a_checkpoint_of_the_first_apex_is_read() -> None:
    """Its masks had the names of the layers."""
    kept = masked().state_dict()
    old = {name.replace("__weight_mma", f"__{name[0]}_mma"): one for name, one in kept.items()}
    assert old.keys() != kept.keys()
    model = net()
    one = begun(model)
    model.load_state_dict(old)
    assert one.is_sparsity_enabled()
    assert torch.equal(one.masks["0.weight"], kept["0.__weight_mma_mask"])


def test_a_plain_checkpoint_is_loaded() -> None:
    """Open masks stay open; closed ones hold, and what is under them is put away."""
    torch.manual_seed(1)
    dense = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.Linear(16, 8, bias=False)).state_dict()
    model = net()
    one = begun(model, allow_recompute_mask=True)
    model.load_state_dict(dense)
    assert torch.equal(model[0].weight, dense["0.weight"])
    assert not one.is_sparsity_enabled()
    model.load_state_dict(net().state_dict())
    one.compute_sparse_masks()
    keep = one.masks["0.weight"]
    model.load_state_dict(dense)
    assert torch.equal(one.masks["0.weight"], keep)
    assert torch.equal(model[0].weight, torch.where(keep, dense["0.weight"], 0))
    one.restore_pruned_weights()
    assert torch.equal(model[0].weight, dense["0.weight"])


def test_the_zeros_stay_without_the_tool() -> None:
    model, plain = masked(), net()
    result = plain.load_state_dict(model.state_dict(), strict=False)
    assert not result.missing_keys
    assert all("_mma_mask" in name for name in result.unexpected_keys)
    assert torch.equal(plain[0].weight, model[0].weight)
    one = begun(plain)
    one.compute_sparse_masks()
    assert torch.equal(plain[0].weight, model[0].weight)


@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("loads", [False, True])
def test_with_and_without_what_is_under_the_masks(saves: bool, loads: bool) -> None:
    state = masked(allow_recompute_mask=saves).state_dict()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.Linear(16, 8, bias=False))
    one = begun(model, allow_recompute_mask=loads)
    one.compute_sparse_masks()
    model.load_state_dict(state)
    assert torch.equal(model[0].weight, state["0.weight"])
    assert torch.equal(one.masks["0.weight"], state["0.__weight_mma_mask"])
    if loads:
        one.restore_pruned_weights()
        dense = net().state_dict() if saves else state
        assert torch.equal(model[0].weight, dense["0.weight"])


def test_what_does_not_fit_is_for_torch_to_refuse() -> None:
    model = net()
    begun(model, allow_recompute_mask=True)
    state = masked(allow_recompute_mask=True).state_dict()
    for wrong in ({"0.weight": torch.zeros(3, 3)}, {"0.__weight_mma_mask": torch.ones(3, 3, dtype=torch.bool)}):
        with pytest.raises(RuntimeError, match="size mismatch"):
            model.load_state_dict({**state, **wrong})
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({name: one for name, one in state.items() if name != "0.weight"})


def test_masks_of_a_part_are_inconsistent() -> None:
    state = masked().state_dict()
    model = net()
    one = begun(model)
    model.load_state_dict({name: tensor for name, tensor in state.items() if name != "2.__weight_mma_mask"})
    with refusing(AssertionError):
        one.is_sparsity_enabled()
    one.remove()
    one = begun(model, allow_recompute_mask=True)
    model.load_state_dict({name: tensor for name, tensor in state.items() if name != "2.__weight_mma_mask"})
    one.compute_sparse_masks()
    assert one.is_sparsity_enabled()


def test_a_whole_model_is_saved_and_goes_on() -> None:
    model, file = masked(allow_recompute_mask=True), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    other = torch.load(file, weights_only=False)
    one = begun(other, allow_recompute_mask=True)
    assert one.is_sparsity_enabled()
    one.restore_pruned_weights()
    assert torch.equal(other[0].weight, net()[0].weight)


def test_masks_move_with_the_model() -> None:
    model = masked(allow_recompute_mask=True)
    one = ASP.of(model)
    before = one.masks
    model.to(torch.float64)
    assert torch.equal(one.masks["0.weight"], before["0.weight"])
    one.restore_pruned_weights()
    assert torch.equal(model[0].weight, net()[0].weight.double())


def test_the_masks_of_a_state_attach_to_a_plain_module() -> None:
    """What ASP saved is read by osp.torch.attach, too."""
    import onnxsparse.torch as interface

    model, plain = masked(), net()
    attached = interface.attach(plain, model.state_dict())
    assert all(torch.equal(attached.masks[name], keep) for name, keep in ASP.of(model).masks.items())
