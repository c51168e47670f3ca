"""QuantizationModifier around a user's loop: what is rounded, masks that hold, states, and the file with integers."""

from __future__ import annotations

import copy
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxsparse as osp
from onnxsparse.engines.torch import library

pytestmark = pytest.mark.skipif(not library.available(), reason="needs torch")
torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime")

import onnx
from onnx import numpy_helper
from torch import nn

from onnxsparse.cli import main
from onnxsparse.dialects.sparseml import ScheduledModifierManager
from onnxsparse.engines.torch.quantized_module import roundings_of, state_of
from onnxsparse.errors import OptionError
from onnxsparse.math.quantization import of_weight
from tests.engines.torch.test_processes import launch
from tests.messages import refusing

PER_EPOCH = 4
QUANTIZATION = """
    - !QuantizationModifier
        start_epoch: {start}
        disable_quantization_observer_epoch: {still}
        freeze_bn_stats_epoch: {frozen}
"""
RECIPE = """
modifiers:
    - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 5.0}
    - !GMPruningModifier
        start_epoch: 0.0
        end_epoch: 1.0
        update_frequency: 0.5
        init_sparsity: 0.05
        final_sparsity: 0.9
        params: __ALL_PRUNABLE__
"""
BOTH = RECIPE + QUANTIZATION.format(start=1.0, still=3.0, frozen=2.0)
ONLY = "modifiers:" + QUANTIZATION.format(start=0.0, still=3.0, frozen=2.0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.deep = nn.Conv2d(8, 8, 3, groups=2)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.conv(x)))
        return self.head(torch.relu(self.deep(x)).mean((2, 3)))


def made(kind: Callable[[], Any] = Net) -> tuple[Any, Any]:
    torch.manual_seed(0)
    net = kind()
    return net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def batch(step: int) -> Any:
    return torch.randn(16, 2, 8, 8, generator=torch.Generator().manual_seed(step))


def quietly(net: Any, optimizer: Any, recipe: str = BOTH, **options: Any) -> tuple[Any, Any]:
    manager = ScheduledModifierManager.from_yaml(recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return manager, manager.modify(net, optimizer, PER_EPOCH, **options)


def train(net: Any, optimizer: Any, first: int, last: int) -> list[float]:
    losses = []
    for step in range(first, last):
        net.train()
        x = batch(step)
        optimizer.zero_grad()
        loss = (net(x) - x.mean((2, 3)).repeat(1, 2)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run(proto: Any, *inputs: Any) -> Any:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {one.name: x.numpy() for one, x in zip(session.get_inputs(), inputs)})[0]


def integers(proto: Any, name: str) -> Any:
    found = next(one for one in proto.graph.initializer if one.name == name)
    return numpy_helper.to_array(found)


def steps_apart(net: Any, proto: Any, *inputs: Any) -> float:
    with torch.no_grad():
        wanted = net.eval()(*inputs).numpy()
    return float(np.abs(run(proto, *inputs) - wanted).max() / np.abs(wanted).max())


# -- the whole way


def test_pruned_then_rounded_then_integers() -> None:
    net, optimizer = made()
    plain = {name: tensor.shape for name, tensor in net.state_dict().items()}
    parameters = {id(one) for one in net.parameters()}
    manager, wrapped = quietly(net, optimizer)
    train(net, wrapped, 0, 5 * PER_EPOCH)
    assert {name: tensor.shape for name, tensor in net.state_dict().items()} == plain
    assert {id(one) for one in net.parameters()} == parameters
    rounded, state = net.conv.weight.detach(), net.state_dict()["conv.weight"]
    scales = of_weight(state.numpy(), axis=0).with_scale(state_of(net)["conv.weight.scale"].numpy())
    assert np.array_equal(rounded.numpy(), scales.fake(state.numpy()))
    assert (state == 0).float().mean() > 0.89
    manager.finalize(net)

    proto = osp.torch.export_quantized(net, batch(0))
    assert proto is not None
    kinds = [node.op_type for node in proto.graph.node]
    assert "BatchNormalization" not in kinds
    for name in ("conv.weight", "deep.weight", "head.weight"):
        assert integers(proto, name).dtype == np.int8
        assert not integers(proto, name)[net.state_dict()[name].numpy() == 0].any()
    assert steps_apart(net, proto, batch(99)) < 0.02
    assert osp.torch.finish(net) is net
    assert type(net.conv) is nn.Conv2d
    assert torch.equal(net.conv.weight, state)


@pytest.mark.parametrize("mask", ["unstructured", "2:4", "[1, 4]"])
@pytest.mark.parametrize("finalized", [True, False])
def test_the_file_records_its_zeros(mask: str, finalized: bool, tmp_path: Path) -> None:
    net, optimizer = made()
    recipe = BOTH.replace("final_sparsity: 0.9", f"final_sparsity: 0.5\n        mask_type: {mask}")
    manager, wrapped = quietly(net, optimizer, recipe)
    train(net, wrapped, 0, 3 * PER_EPOCH)
    if finalized:
        manager.finalize(net)
    zeros = {name: int((one == 0).sum()) for name, one in net.state_dict().items()}
    osp.torch.export_quantized(net, batch(0), tmp_path / "int8.onnx")
    assert main(["verify", str(tmp_path / "int8.onnx"), "--quiet"]) == 0
    rows = osp.verify(tmp_path / "int8.onnx").report.rows
    fits = [row for row in rows if mask == "unstructured" or row.name != "conv.weight"]  # which has 2 inputs
    assert len(fits) == 3 - (mask != "unstructured")
    assert {row.status for row in fits} == {"holds"}
    for row in fits:
        assert row.pattern == {"[1, 4]": "block:1x4"}.get(mask, mask)
        assert zeros[row.name] == row.size // 2 <= row.zeros
    damaged = onnx.load(tmp_path / "int8.onnx")
    deep = next(one for one in damaged.graph.initializer if one.name == "deep.weight")
    deep.CopyFrom(numpy_helper.from_array(np.ones(tuple(deep.dims), np.int8), deep.name))
    assert not osp.verify(damaged).report.ok


def test_zeros_that_no_recipe_of_the_manager_speaks_of_are_verified_by_a_rule(tmp_path: Path) -> None:
    net, _ = made()
    with torch.no_grad():
        for weight in (net.conv.weight, net.deep.weight, net.head.weight):
            weight.view(-1)[: weight.numel() // 2] = 0
    manager = ScheduledModifierManager.from_yaml(ONLY + "        num_calibration_steps: 1\n")
    manager.apply(net, calibration_dataloader=[batch(0)])
    path = str(tmp_path / "int8.onnx")
    osp.torch.export_quantized(net, batch(0), path)
    assert main(["verify", path, "--quiet"]) == 2
    assert main(["verify", path, "--pattern", "unstructured", "--sparsity", "0.5", "--quiet"]) == 0


def test_rounding_begins_and_stands_still_at_its_epochs() -> None:
    net, optimizer = made()
    manager, wrapped = quietly(net, optimizer)
    train(net, wrapped, 0, PER_EPOCH)
    assert state_of(net) == {}
    train(net, wrapped, PER_EPOCH, 2 * PER_EPOCH)
    first = state_of(net)
    assert set(first) >= {"conv:input.low", "deep:input.high", "head:input.scale", "conv.weight.scale"}
    assert first["head:input.low"] == 0
    train(net, wrapped, 2 * PER_EPOCH, 2 * PER_EPOCH + 1)
    seen, mean = int(net.norm.num_batches_tracked), net.norm.running_mean.clone()
    train(net, wrapped, 2 * PER_EPOCH + 1, 3 * PER_EPOCH + 1)
    assert int(net.norm.num_batches_tracked) == seen
    assert torch.equal(net.norm.running_mean, mean)
    still = state_of(net)
    assert not torch.equal(still["conv:input.low"], first["conv:input.low"])
    train(net, wrapped, 3 * PER_EPOCH + 1, 4 * PER_EPOCH)
    for name, tensor in state_of(net).items():
        assert torch.equal(tensor, still[name]), name
    manager.finalize(net)
    assert net.norm.training


def test_evaluation_moves_no_range() -> None:
    net, optimizer = made()
    _, wrapped = quietly(net, optimizer, ONLY)
    before = net.eval()(batch(0) * 9)
    assert not any(one.known for _, one in roundings_of(net))
    train(net, wrapped, 0, 2)
    ranges = state_of(net)
    after = net.eval()(batch(0) * 9)
    assert all(torch.equal(one, ranges[name]) for name, one in state_of(net).items())
    assert not torch.equal(before, after)


def test_what_is_ignored_stays_float() -> None:
    net, optimizer = made()
    recipe = "modifiers:\n    - !QuantizationModifier {start_epoch: 0.0, ignore: ['deep', 'Linear']}\n"
    _, wrapped = quietly(net, optimizer, recipe)
    train(net, wrapped, 0, 2)
    assert {name.partition(":")[0] for name, _ in roundings_of(net)} == {"conv"}
    proto = osp.torch.export_quantized(net, batch(0))
    assert (integers(proto, "conv.weight").dtype, integers(proto, "deep.weight").dtype) == (np.int8, np.float32)


# -- states


def test_a_run_that_is_resumed_goes_on_exactly() -> None:
    for at in (PER_EPOCH, 2 * PER_EPOCH - 1, 3 * PER_EPOCH, 3 * PER_EPOCH + 1):
        net, optimizer = made()
        manager, wrapped = quietly(net, optimizer)
        train(net, wrapped, 0, at)
        state = copy.deepcopy([net.state_dict(), manager.state_dict(), optimizer.state_dict()])
        wanted = train(net, wrapped, at, 4 * PER_EPOCH)

        other, optimizer = made()
        manager, wrapped = quietly(other, optimizer, epoch=at / PER_EPOCH)
        other.load_state_dict(state[0])
        manager.load_state_dict(state[1])
        optimizer.load_state_dict(state[2])
        assert train(other, wrapped, at, 4 * PER_EPOCH) == wanted, at
        for (name, one), (_, two) in zip(state_of(net).items(), state_of(other).items()):
            assert torch.equal(one, two), name
    assert osp.verify(osp.torch.export_quantized(other, batch(0))).report.ok


def test_a_copy_has_scales_of_its_own() -> None:
    net, optimizer = made()
    _, wrapped = quietly(net, optimizer)
    train(net, wrapped, 0, 2 * PER_EPOCH)
    twin, before = copy.deepcopy(net), state_of(net)
    twin.train()(batch(7) * 5)
    assert all(torch.equal(one, before[name]) for name, one in state_of(net).items())
    assert not torch.equal(state_of(twin)["conv:input.high"], before["conv:input.high"])
    proto, other = (osp.torch.export_quantized(one, batch(0)) for one in (net, twin))
    assert proto is not None
    assert other is not None
    assert proto.SerializeToString() != other.SerializeToString()


def test_numbers_that_are_loaded_are_rounded_by_their_own_range() -> None:
    net, optimizer = made()
    _, wrapped = quietly(net, optimizer, ONLY)
    train(net, wrapped, 0, 1)
    net.load_state_dict({name: one * 3 if name == "head.weight" else one for name, one in net.state_dict().items()})
    proto, state = osp.torch.export_quantized(net, batch(0)), net.state_dict()["head.weight"].numpy()
    wanted = of_weight(state, axis=0)
    found = integers(proto, "head.weight")
    assert np.array_equal(found if found.shape == state.shape else found.T, wanted.quantize(state))


# -- precisions, devices, scales that are learned


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_autocast_and_grad_scaler(kind: str) -> None:
    net, optimizer = made()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    manager, wrapped = quietly(net, optimizer, ONLY, wrap_optim=scaler)
    for step in range(3):
        x = batch(step)
        with torch.autocast("cpu", getattr(torch, kind)):
            loss = net(x).float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        wrapped.step(optimizer)
        scaler.update()
    assert net.conv.weight.dtype == torch.float32
    assert all(one.grad.dtype == torch.float32 and bool(one.grad.abs().sum() > 0) for one in net.parameters())
    assert all(one.dtype == torch.float32 for name, one in state_of(net).items() if name.endswith(("low", "scale")))
    net.zero_grad()
    loss = net.train()(batch(9)).square().mean()
    loss.backward()
    whole = net.conv.parametrizations.weight.original.grad.clone()
    net.zero_grad()
    with torch.autocast("cpu", getattr(torch, kind)):
        loss = net(batch(9)).float().square().mean()
    loss.backward()
    half = net.conv.parametrizations.weight.original.grad
    assert torch.nn.functional.cosine_similarity(whole.flatten(), half.flatten(), 0) > 0.98
    manager.finalize(net)


def test_scales_are_learned_on_demand() -> None:
    net, optimizer = made()
    manager = ScheduledModifierManager.from_yaml(ONLY)
    manager.learn_scales = True
    wrapped = manager.modify(net, optimizer, PER_EPOCH)
    train(net, wrapped, 0, 1)
    first, names = state_of(net), set(net.state_dict())
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(net.parameters())) == 13
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train(net, wrapped, 1, 2)
    scheduler.step()
    moved = state_of(net)
    assert set(net.state_dict()) == names
    assert names == set(Net().state_dict())
    for name in ("conv.weight.scale", "conv:input.scale", "head:input.scale"):
        assert not torch.equal(first[name], moved[name])
        assert bool((moved[name] > 0).all())
    assert torch.equal(first["conv:input.low"], moved["conv:input.low"])

    state = copy.deepcopy([net.state_dict(), manager.state_dict(), optimizer.state_dict()])
    wanted = train(net, wrapped, 2, 4)
    other, optimizer = made()
    manager = ScheduledModifierManager.from_yaml(ONLY)
    manager.learn_scales = True
    wrapped = manager.modify(other, optimizer, PER_EPOCH, epoch=0.5)
    other.load_state_dict(state[0])
    manager.load_state_dict(state[1])
    optimizer.load_state_dict(state[2])
    assert train(other, wrapped, 2, 4) == wanted
    assert steps_apart(other, osp.torch.export_quantized(other, batch(0)), batch(1)) < 0.03


def test_a_scale_that_is_learned_does_not_collapse() -> None:
    """One step that is far too long leaves it where the numbers can still learn."""
    net, optimizer = made()
    manager = ScheduledModifierManager.from_yaml(ONLY)
    manager.learn_scales = True
    wrapped = manager.modify(net, optimizer, PER_EPOCH)
    train(net, wrapped, 0, 1)
    state = state_of(net)
    for group in optimizer.param_groups:
        for one in group["params"]:
            one.grad = torch.full_like(one, 1e6 if one.shape in ((), (8,), (4,)) and one.min() > 0 else 0)
    wrapped.step()
    after = state_of(net)
    for name in ("conv.weight.scale", "deep.weight.scale", "head:input.scale"):
        assert bool((after[name] > 0.4 * state[name]).all()), name
    net.eval()
    with torch.no_grad():
        assert bool((net.conv.weight != 0).any(dim=(1, 2, 3)).all())


def test_wrapped_for_several_devices() -> None:
    net, optimizer = made()
    parallel = nn.DataParallel(net)
    _, wrapped = quietly(parallel, optimizer, ONLY)
    train(parallel, wrapped, 0, 2)
    assert all(one.known for _, one in roundings_of(net))
    assert osp.torch.export_quantized(parallel, batch(0)) is not None


def test_recurrent_layers_and_attention_say_what_stays_float(caplog: pytest.LogCaptureFixture) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(20, 8, padding_idx=0)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.lstm = nn.LSTM(8, 8, batch_first=True)
            self.up = nn.ConvTranspose1d(8, 6, 3, groups=2)

        def forward(self, tokens: Any) -> Any:
            x = self.table(tokens)
            x = x + self.attention(x, x, x, need_weights=False)[0]
            return self.up(self.lstm(x)[0].transpose(1, 2))

    net, optimizer = made(Mixed)
    manager = ScheduledModifierManager.from_yaml(ONLY)
    with pytest.warns(UserWarning, match="lstm: a recurrent layer") as told:
        wrapped = manager.modify(net, optimizer, PER_EPOCH)
    assert any("attention: only its projections" in str(one.message) for one in told)
    tokens = torch.randint(0, 20, (4, 7), generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        optimizer.zero_grad()
        net(tokens).square().mean().backward()
        wrapped.step()
    state = state_of(net)
    assert {"table.weight.scale", "attention.in_proj_weight.scale", "attention:query.low", "up:input.low"} <= set(state)
    assert (state["table.weight.scale"].shape, state["up.weight.scale"].shape) == ((), (3,))
    assert not any(name.startswith("lstm") for name in state)
    proto = osp.torch.export_quantized(net, tokens)
    assert steps_apart(net, proto, tokens) < 0.05
    assert integers(proto, "table.weight").dtype == np.int8
    assert "came there" not in caplog.text  # of what is rounded once for several inputs, or is never called


# -- ranges of samples


RECIPE_OF_SAMPLES = "modifiers:\n    - !QuantizationModifier {start_epoch: 0.0, num_calibration_steps: 3}\n"


def test_applied_at_once_with_samples() -> None:
    net, _ = made()
    net(batch(0))  # the normalization has statistics
    seen: list[int] = []

    def forward(found: Any, module: Any) -> None:
        assert not module.training
        seen.append(len(found))
        module(found)

    batches = [batch(step) for step in range(5)]
    manager = ScheduledModifierManager.from_yaml(RECIPE_OF_SAMPLES)
    manager.apply(net, calibration_dataloader=batches, calibration_function=forward)
    assert seen == [16] * 3
    assert net.training
    assert state_of(net)["conv:input.high"] == max(one.max() for one in batches[:3])
    assert steps_apart(net, osp.torch.export_quantized(net, batch(0)), batch(1)) < 0.02


@pytest.mark.parametrize("form", [lambda x: (x, 0), lambda x: {"x": x}, lambda x: x, lambda x: [(x,), 0]])
def test_batches_come_as_loaders_give_them(form: Any) -> None:
    net, optimizer = made()
    quietly(net, optimizer, RECIPE_OF_SAMPLES, calibration_dataloader=[form(batch(0))])
    assert state_of(net)["conv:input.high"] == batch(0).max()


def test_what_is_missing_for_calibration_is_said() -> None:
    net, optimizer = made()
    manager = ScheduledModifierManager.from_yaml(RECIPE_OF_SAMPLES)
    with pytest.warns(UserWarning, match="pass calibration_dataloader"):
        manager.modify(net, optimizer, PER_EPOCH)
    for wrong in ({"calibration_dataloader": []}, {"calibration_dataloader": 3}, {"calibration_function": 3}):
        net, optimizer = made()
        with refusing(OptionError):
            ScheduledModifierManager.from_yaml(RECIPE_OF_SAMPLES).modify(net, optimizer, PER_EPOCH, **wrong)


# -- exports


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_exports_of_the_users_own_have_the_scales(dynamo: bool, tmp_path: Any) -> None:
    net, optimizer = made()
    manager, wrapped = quietly(net, optimizer)
    train(net, wrapped, 0, 3 * PER_EPOCH)
    path = tmp_path / "own.onnx"
    torch.onnx.export(net.eval(), (batch(0),), str(path), dynamo=dynamo, verbose=False)
    proto = onnx.load(path)
    assert [node.op_type for node in proto.graph.node].count("QuantizeLinear") == 6
    assert steps_apart(net, proto, batch(9)) < 0.02
    manager.finalize(net)
    ours = osp.torch.export_quantized(net, batch(0), dynamo=dynamo)
    assert steps_apart(net, ours, batch(9)) < 0.02


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_size_stays_free_in_torchs_newer_exporter() -> None:
    net = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    manager = ScheduledModifierManager.from_yaml(RECIPE_OF_SAMPLES)
    tokens = torch.randint(0, 20, (3, 6), generator=torch.Generator().manual_seed(0))
    manager.apply(net, calibration_dataloader=[tokens])
    free = {"dynamo": True, "dynamic_shapes": ({0: torch.export.Dim("batch", min=2)},)}
    proto = osp.torch.export_quantized(net, tokens, **free)
    assert integers(proto, "1.weight").dtype == np.int8
    assert integers(proto, "0.weight").dtype == np.int8
    assert steps_apart(net, proto, tokens[:2]) < 0.02


def test_export_refuses_what_it_cannot() -> None:
    net, optimizer = made()
    with refusing(OptionError):
        osp.torch.export_quantized(net, batch(0))
    _, wrapped = quietly(net, optimizer, ONLY)
    train(net, wrapped, 0, 1)
    for wrong in ({"opset_version": 11}, {"training": 1}):
        with refusing(OptionError):
            osp.torch.export_quantized(net, batch(0), **wrong)
    with refusing(OptionError):
        ScheduledModifierManager.from_yaml(ONLY).modify(net, optimizer, PER_EPOCH)
    bare = nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3))
    with refusing(OptionError):
        ScheduledModifierManager.from_yaml(ONLY).modify(bare, torch.optim.SGD(bare.parameters(), 0.1), PER_EPOCH)


def test_export_refuses_what_no_runtime_takes() -> None:
    net, optimizer = made()
    _, wrapped = quietly(net, optimizer, ONLY)
    train(net, wrapped, 0, 1)
    x = batch(0)
    for output in (3, b"o.onnx"):
        with pytest.raises(OptionError, match="output is a path"):
            osp.torch.export_quantized(net, x, output)
    with pytest.raises(OptionError, match="example_inputs is float16"):
        osp.torch.export_quantized(net, x.half())
    for kind in (torch.float16, torch.float64):
        with pytest.raises(OptionError, match=r"call \.float\(\) on the module"):
            osp.torch.export_quantized(copy.deepcopy(net).to(kind), x.to(kind))
    with torch.no_grad():
        net.head.bias[1] = float("nan")
    with pytest.raises(OptionError, match="bias' has NaN"):
        osp.torch.export_quantized(net, x)


def test_what_the_word_for_all_passes_over_is_said() -> None:
    net = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    for more, said in (("", 1), ("\n        - re:.*in_proj_weight", 0)):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            text = RECIPE.replace("params: __ALL_PRUNABLE__", f"params:\n        - __ALL_PRUNABLE__{more}")
            ScheduledModifierManager.from_yaml(text).initialize(copy.deepcopy(net))
        assert sum("self_attn.in_proj_weight, which no modifier prunes" in str(one.message) for one in told) == said


def test_options_of_the_exporter_are_passed_on(tmp_path: Any) -> None:
    net, optimizer = made()
    _, wrapped = quietly(net, optimizer, ONLY)
    train(net, wrapped, 0, 1)
    path, axes = tmp_path / "int8.onnx", {"x": {0: "batch"}}
    named = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": axes, "opset_version": 17}
    assert osp.torch.export_quantized(net, {"x": batch(0)}, path, **named) is None
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert session.run(["y"], {"x": batch(1)[:3].numpy()})[0].shape == (3, 4)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="gloo between processes")
@pytest.mark.usefixtures("usual_signals")
def test_all_processes_round_alike(tmp_path: Path) -> None:
    done = launch(str(Path(__file__).with_name("rounding_processes_run.py")), str(tmp_path))
    assert done.returncode == 0, done.stderr
    for case in ("observed", "learned"):
        with np.load(tmp_path / f"{case}-0.npz") as one, np.load(tmp_path / f"{case}-1.npz") as two:
            assert set(one) == set(two) >= {"conv.weight", "conv.weight.scale", "conv:input.scale"}
            for name in one:
                assert np.array_equal(one[name], two[name]), (case, name)
