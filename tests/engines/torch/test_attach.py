"""Masks on a module's own parameters: own training loops, and the way back to a plain module."""

from __future__ import annotations

import contextlib
import copy
import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn.utils import prune as torch_prune

import onnxsparse as osp
from onnxsparse.torch import attach, finish, to_module, write_back
from tests.engines.torch.running import runtime
from tests.messages import refusing


class Net(nn.Module):
    """Convolutions of all kinds, and matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.wide = nn.Linear(8, 32)
        self.head = nn.Linear(32, 32)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.up(torch.relu(self.conv(x)))).mean((2, 3))
        return self.head(torch.relu(self.wide(x)))


INPUT = (5, 4, 6, 6)
WEIGHTS = ("conv.weight", "up.weight", "wide.weight", "head.weight")


def net() -> Any:
    torch.manual_seed(0)
    return Net()


def export(module: Any, path: Path, **options: Any) -> Path:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        options = {"dynamo": False, "do_constant_folding": False, "dynamic_axes": {"x": {0: "n"}}, **options}
        torch.onnx.export(module, (torch.ones(INPUT),), str(path), input_names=["x"], output_names=["y"], **options)
    return path


RULES: dict[str, dict[str, Any]] = {
    "both axes": {"pattern": "2:4:transposable"},
    "2:4": {"pattern": "2:4", "allow": "small"},
    "unstructured": {"pattern": "unstructured", "sparsity": 0.7, "allow": "small"},
}


@pytest.fixture(params=list(RULES))
def rule(request: pytest.FixtureRequest) -> dict[str, Any]:
    return RULES[request.param]


def random_masks(module: Any, share: float = 0.5) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.rand(module.get_parameter(name).shape, generator=generator) > share for name in WEIGHTS}


def batches(count: int) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(2)
    return (torch.randn(INPUT, generator=generator) for _ in range(count))


def leaks(module: Any, masks: Mapping[str, Any]) -> int:
    """Masked places that are not zero, in what the module computes with and in what an optimizer moves."""
    found = 0
    for name, keep in masks.items():
        owner, _, local = name.rpartition(".")
        layer = module.get_submodule(owner)
        tensors = [getattr(layer, local)]
        if hasattr(layer, "parametrizations"):
            tensors.append(layer.parametrizations[local].original)
        found += sum(int((one[~keep] != 0).sum()) for one in tensors)
    return found


def moments(optimizer: Any, module: Any, masks: Mapping[str, Any]) -> int:
    """Moments at masked places that are not zero."""
    found = 0
    for name, keep in masks.items():
        owner, _, local = name.rpartition(".")
        state = optimizer.state[module.get_submodule(owner).parametrizations[local].original]
        found += sum(int((one[~keep] != 0).sum()) for one in state.values() if one.shape == keep.shape)
    return found


def step(module: Any, optimizer: Any, x: Any, clip: bool = True) -> None:
    optimizer.zero_grad()
    (module(x) - 1).square().mean().backward()
    if clip:
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
    optimizer.step()


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
}


# -- own loops


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_nothing_leaks_through_moments_that_were_there_before(name: str) -> None:
    module = net()
    optimizer = OPTIMIZERS[name](module.parameters())
    for x in batches(5):
        step(module, optimizer, x)
    handle = attach(module, random_masks(module), optimizer=optimizer)
    masks = handle.masks
    assert leaks(module, masks) == moments(optimizer, module, masks) == 0
    before = module.head.weight.detach().clone()
    for x in batches(5):
        step(module, optimizer, x)
        assert leaks(module, masks) == moments(optimizer, module, masks) == 0
    assert (module.head.weight != before)[masks["head.weight"]].any()
    assert handle.density() == pytest.approx(0.5, abs=0.05)


def test_what_the_module_computes_with_is_masked_even_if_no_optimizer_is_followed() -> None:
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    for x in batches(3):
        step(module, optimizer, x)
    masks = attach(module, random_masks(module)).masks
    for x in batches(3):
        step(module, optimizer, x)
    assert all((getattr(module, name.split(".")[0]).weight[~keep] == 0).all() for name, keep in masks.items())


def test_skipped_steps_survive() -> None:
    """What a GradScaler does: gradients that are no numbers are met, and the step is left out."""
    module = net()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    handle = attach(module, random_masks(module), optimizer=optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    skipped = 0
    for number, x in enumerate(batches(8)):
        optimizer.zero_grad()
        loss = (module(x) - 1).square().mean()
        scaler.scale(loss * (float("inf") if number % 3 == 1 else 1.0)).backward()
        before, scale = module.head.weight.detach().clone(), scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        left_out = scaler.get_scale() < scale
        skipped += left_out
        assert torch.equal(before, module.head.weight) == left_out
        assert leaks(module, handle.masks) == 0
        assert module.head.weight.isfinite().all()
    assert skipped == 3


def test_averages_are_masked_as_well() -> None:
    """A copy that is averaged holds the masks; nothing of it is ever outside."""
    module = net()
    handle = attach(module, random_masks(module))
    averaged = torch.optim.swa_utils.AveragedModel(module, avg_fn=lambda old, new, _: 0.9 * old + 0.1 * new)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    handle.follow(optimizer)
    for x in batches(4):
        step(module, optimizer, x)
        averaged.update_parameters(module)
    assert leaks(averaged.module, handle.masks) == 0
    plain = finish(averaged)
    assert isinstance(plain, Net)
    assert not (plain.head.weight[~handle.masks["head.weight"]] != 0).any()
    assert leaks(module, handle.masks) == 0, "the module it was copied from keeps its masks"


def test_states_are_saved_and_loaded(tmp_path: Path) -> None:
    module = net()
    masks = random_masks(module)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    attach(module, masks, optimizer=optimizer)
    for x in batches(3):
        step(module, optimizer, x)
    torch.save({"module": module.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    other = net()
    following = torch.optim.Adam(other.parameters(), lr=0.01)
    attach(other, masks, optimizer=following)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    other.load_state_dict(state["module"])
    following.load_state_dict(state["optimizer"])
    for x in batches(3):
        step(module, optimizer, x)
        step(other, following, x)
    assert torch.equal(finish(module).head.weight, finish(other).head.weight)


def test_a_dense_state_that_is_loaded_is_masked() -> None:
    module = net()
    handle = attach(module, random_masks(module))
    state = {name: torch.ones_like(one) for name, one in module.state_dict().items()}
    module.load_state_dict(state)
    keep = handle.masks["head.weight"]
    assert torch.equal(module.head.weight, keep.float())
    assert torch.equal(finish(module).head.weight, keep.float())


def test_masks_that_change_take_the_moments_with_them() -> None:
    module = net()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    handle = attach(module, random_masks(module), optimizer=optimizer)
    for x in batches(3):
        step(module, optimizer, x)
    before = handle.masks["head.weight"]
    after = before.roll(1, 1)
    handle.update({"head.weight": after})
    original = module.head.parametrizations.weight.original
    for one in (original, *(state for state in optimizer.state[original].values() if state.shape == after.shape)):
        assert not one[before != after].any()
        assert one[before & after].any()
    x = next(batches(1))
    step(module, optimizer, x)
    assert leaks(module, handle.masks) == moments(optimizer, module, handle.masks) == 0
    assert module.head.weight[after & ~before].any(), "what grew back learns"
    assert torch.equal(handle.masks["wide.weight"], random_masks(net())["wide.weight"])


def test_masks_are_taken_off_again() -> None:
    module = net()
    order = [name for name, _ in module.named_parameters()]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    handle = attach(module, random_masks(module), optimizer=optimizer)
    masks = handle.masks
    handle.remove()
    assert type(module.head) is nn.Linear
    assert [name for name, _ in module.named_parameters()] == order
    assert handle.masks == {}
    step(module, optimizer, next(batches(1)))
    assert leaks(module, masks) > 0


def test_copies_are_whole_and_apart() -> None:
    module = net()
    handle = attach(module, random_masks(module))
    twin = copy.deepcopy(module)
    finish(twin)
    assert type(twin.head) is nn.Linear
    assert leaks(module, handle.masks) == leaks(twin, handle.masks) == 0
    assert list(module.state_dict()) == list(net().state_dict())
    finish(module)
    assert list(module.state_dict()) == list(twin.state_dict()) == list(net().state_dict())


def test_several_processes(tmp_path: Path) -> None:
    """One process of gloo: what is sent around does not touch masks, and the optimizer holds the same objects."""
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        module = net()
        handle = attach(module, random_masks(module))
        assert not list(module.buffers())
        spread = nn.parallel.DistributedDataParallel(module)
        optimizer = torch.optim.Adam(spread.parameters(), lr=0.01)
        handle.follow(optimizer)
        for x in batches(3):
            step(spread, optimizer, x)
        assert leaks(module, handle.masks) == moments(optimizer, module, handle.masks) == 0
        assert finish(spread) is module
        later = attach(spread, {f"module.{name}": keep for name, keep in random_masks(module).items()})
        for x in batches(3):
            step(spread, optimizer, x)
        assert leaks(module, later.masks) == 0
    finally:
        distributed.destroy_process_group()


# -- where masks come from


def planned(tmp_path: Path, rule: dict[str, Any]) -> tuple[Any, Path, Path]:
    module = net()
    dense = export(module, tmp_path / "dense.onnx")
    osp.plan(dense, output=tmp_path / "plan.yaml", **rule)
    return module, dense, tmp_path / "plan.yaml"


def test_a_plan_and_all_it_can_make_are_the_same_masks(tmp_path: Path, rule: dict[str, Any]) -> None:
    module, dense, plan = planned(tmp_path, rule)
    sparse, masked = tmp_path / "sparse.onnx", tmp_path / "masked.onnx"
    osp.prune(dense, output=sparse, plan=plan)
    osp.insert_masks(dense, output=masked, plan=plan)
    wanted = attach(net(), plan, model=dense).masks
    assert set(wanted) == set(WEIGHTS)
    for source in (plan, sparse, str(masked), osp.load(sparse)):
        found = attach(net(), source).masks
        assert all(torch.equal(found[name], keep) for name, keep in wanted.items())
    assert all((module.get_parameter(name)[~keep].abs().max() > 0) for name, keep in wanted.items())


def test_a_module_of_a_file_knows_its_tensors(tmp_path: Path, rule: dict[str, Any], digits_cnn: Path) -> None:
    _, dense, plan = planned(tmp_path, rule)
    for model in (dense, digits_cnn):
        osp.plan(model, output=plan, overwrite=True, **rule)
        osp.prune(model, output=tmp_path / "sparse.onnx", overwrite=True, plan=plan)
        module = to_module(model)
        keys = list(module.state_dict())
        by_plan, by_model = (attach(to_module(model), source).masks for source in (plan, tmp_path / "sparse.onnx"))
        handle = attach(module, plan)
        assert all(torch.equal(by_plan[name], by_model[name]) for name in by_plan)
        handle.update(by_model)
        finish(module)
        assert list(module.state_dict()) == keys
        write_back(module, model, output=tmp_path / "back.onnx", overwrite=True)
        report = osp.verify(tmp_path / "back.onnx", plan=plan).report
        assert report.ok


def test_tensors_at_the_root_of_a_module_of_a_file() -> None:
    """torch.fx copies such a module by its graph."""
    from onnx.helper import make_node

    from tests.engines.torch.running import model, numbers

    proto = model([make_node("MatMul", ["x", "w"], ["y"])], {"x": numbers(3, 8)}, {"w": numbers(8, 4)})
    module = to_module(proto)
    keep = np.random.default_rng(0).random((8, 4)) > 0.5
    attach(module, {"w": keep})
    twin = copy.deepcopy(module)
    for one in (twin, module):
        assert torch.equal(one(torch.eye(8)) != 0, torch.from_numpy(keep))
        finish(one)
        assert list(one.state_dict()) == ["w"]
        assert torch.equal(copy.deepcopy(one)(torch.eye(8)) != 0, torch.from_numpy(keep))


@dataclass
class Matched:
    tensor: str
    layout: str
    copies: tuple[Matched, ...] = ()


def test_a_map_says_which_tensor_and_which_way_round() -> None:
    module, generator = net(), np.random.default_rng(0)
    shapes = {"onnx::MatMul_7": (8, 32), "k": (4, 16, 3, 3), "head.w": (32, 32)}
    masks = {name: generator.random(shape) > 0.5 for name, shape in shapes.items()}
    match = {
        "wide.weight": Matched("onnx::MatMul_7", "transposed"),
        "conv.weight": Matched("k", "swapped"),
        "module.head.weight": Matched("head.w", "same"),
        "wide.bias": Matched("b", "same"),
    }
    found = attach(module, masks, match).masks
    assert np.array_equal(found["wide.weight"], masks["onnx::MatMul_7"].T)
    assert np.array_equal(found["conv.weight"], masks["k"].swapaxes(0, 1))
    assert np.array_equal(found["head.weight"], masks["head.w"])


def test_a_match_is_taken_as_it_is_or_from_the_metadata(tmp_path: Path) -> None:
    """Folded constants have other names, lie the other way round, or hold both directions of a recurrent layer."""
    from tests.engines.torch.exporting import Way
    from tests.engines.torch.exporting import export as export_net

    dense, sparse = tmp_path / "dense.onnx", tmp_path / "sparse.onnx"
    way = Way("mixed", 17, dynamo=False, fold=True, training=False)
    module, feeds = export_net(way, dense)
    match = osp.torch.match(dense, module)
    osp.torch.record_match(dense, match, output=tmp_path / "recorded.onnx")
    rule = {"pattern": "unstructured", "sparsity": 0.6, "allow": "small,depthwise"}
    osp.prune(tmp_path / "recorded.onnx", output=sparse, **rule)
    osp.plan(dense, output=tmp_path / "plan.yaml", **rule)
    by_match = attach(module, sparse, match)
    assert by_match.density() == pytest.approx(0.4, abs=0.01)
    assert {"shared.weight", "lstm.weight_hh_l0", "lstm.weight_ih_l0_reverse"} < set(by_match.masks)
    found = module.eval()(torch.from_numpy(feeds["x"])).detach().numpy()
    wanted = runtime(sparse, feeds)[0]
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
    for source, options in ((sparse, {}), (tmp_path / "plan.yaml", {"match": match, "model": dense})):
        masks = attach(export_net(way, tmp_path / "again.onnx")[0], source, **options).masks
        assert all(torch.equal(masks[name], keep) for name, keep in by_match.masks.items())
    with refusing(osp.OnnxSparseError):
        attach(export_net(way, tmp_path / "again.onnx")[0], tmp_path / "plan.yaml", match)


def test_a_tensor_that_an_exporter_merged_is_masked_in_all_its_parameters(tmp_path: Path) -> None:
    """Equal weights that are not tied: the older exporter stores them once, and names the others by Identity."""
    module = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)).eval()
    module[2].load_state_dict(module[0].state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (torch.randn(4, 32),), str(tmp_path / "net.onnx"), dynamo=False)
    osp.prune(tmp_path / "net.onnx", output=tmp_path / "sparse.onnx", pattern="2:4")
    masks = attach(module, tmp_path / "sparse.onnx").masks
    assert set(masks) == {"0.weight", "2.weight"}
    assert torch.equal(masks["0.weight"], masks["2.weight"])


def test_a_parameter_that_is_two_tensors_needs_both_masks() -> None:
    keep = np.random.default_rng(0).random((32, 32)) > 0.5
    twice = Matched("a", "same", (Matched("b", "transposed"),))
    assert attach(net(), {"a": keep, "b": keep.T}, {"head.weight": twice}).density() < 0.6
    with refusing(osp.OnnxSparseError):
        attach(net(), {"a": keep}, {"head.weight": twice})
    with refusing(osp.OnnxSparseError):
        attach(net(), {"a": keep, "b": keep}, {"head.weight": twice})


def test_a_matrix_of_the_same_name_may_lie_the_other_way_round() -> None:
    from onnx.helper import make_node

    from tests.engines.torch.running import model, numbers

    proto = model([make_node("MatMul", ["x", "weight"], ["y"])], {"x": numbers(3, 8)}, {"weight": numbers(8, 8)})
    sparse = osp.prune(proto, pattern="2:4", allow="small").model
    module = nn.Linear(8, 8)
    attach(module, sparse)
    assert not module.weight.reshape(8, 2, 4).count_nonzero(dim=2).gt(2).any()


def states() -> dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]]:
    def pruned(module: Any, masks: dict[str, Any]) -> dict[str, Any]:
        for name, keep in masks.items():
            torch_prune.custom_from_mask(module.get_submodule(name[: -len(".weight")]), "weight", keep)
        return dict(module.state_dict())

    def mma(module: Any, masks: dict[str, Any]) -> dict[str, Any]:
        found = {f"module.{name.replace('weight', '__weight_mma_mask')}": keep for name, keep in masks.items()}
        return {**module.state_dict(), **found}

    def listed(module: Any, masks: dict[str, Any]) -> dict[str, Any]:
        found = {name if name != "up.weight" else "up": keep.float() for name, keep in masks.items()}
        return {"state_dict": dict(module.state_dict()), "mask_dict": found}

    return {"prune": pruned, "mma": mma, "mask_dict": listed}


@pytest.mark.parametrize("form", list(states()))
def test_masks_of_other_tools(form: str) -> None:
    masks = random_masks(net())
    found = attach(net(), states()[form](net(), masks)).masks
    assert set(found) == set(masks)
    assert all(torch.equal(found[name], keep) for name, keep in masks.items())


# -- the way back


@pytest.mark.parametrize("dynamo", [False, True])
def test_a_finished_module_is_exported_and_holds(tmp_path: Path, rule: dict[str, Any], dynamo: bool) -> None:
    module, _, plan = planned(tmp_path, rule)
    keys, x = list(module.state_dict()), next(batches(1))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.1)
    attach(module, plan, optimizer=optimizer)
    for one in batches(3):
        step(module, optimizer, one)
    before = module(x)
    assert finish(module) is module
    assert list(module.state_dict()) == keys
    assert not any(hasattr(one, "parametrizations") for one in module.modules())
    assert torch.equal(module(x), before)
    zeros = module.head.weight.detach()
    assert not torch.signbit(zeros[zeros == 0]).any()
    options = {"dynamo": True, "optimize": False, "dynamic_axes": None, "external_data": False} if dynamo else {}
    path = export(module.eval(), tmp_path / "trained.onnx", **options)
    report = osp.verify(path, plan=plan).report
    assert report.ok
    assert sum(row.status == "holds" for row in report.rows) == len(WEIGHTS)
    if not dynamo:
        assert np.allclose(runtime(path, {"x": x.numpy()})[0], before.detach().numpy(), atol=1e-4)


def test_shared_parameters_are_masked_everywhere() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    module[2].weight = module[0].weight
    keep = torch.rand(8, 8) > 0.5
    handle = attach(module, {"0.weight": keep})
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    handle.follow(optimizer)
    module(torch.randn(4, 8)).square().sum().backward()
    optimizer.step()
    assert not module[0].weight[~keep].any()
    assert torch.equal(module[0].weight, module[2].weight)
    finish(module)
    assert module[0].weight is module[2].weight
    assert list(module.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_recurrent_layers_see_their_masks() -> None:
    layer = nn.LSTM(6, 8, bidirectional=True)
    names = [name for name, _ in layer.named_parameters()]
    masks = {name: torch.rand(layer.get_parameter(name).shape) > 0.5 for name in names if "weight" in name}
    expected = copy.deepcopy(layer)
    with torch.no_grad():
        for name, keep in masks.items():
            getattr(expected, name).mul_(keep)
    x = torch.randn(5, 2, 6)
    handle = attach(layer, masks)
    with torch.no_grad():
        for name in masks:
            layer.parametrizations[name].original.add_(~masks[name])
    assert torch.equal(layer(x)[0], expected(x)[0])
    twin = copy.deepcopy(layer)
    layer(x)[0].square().sum().backward()
    assert not layer.parametrizations.weight_hh_l0.original.grad[~handle.masks["weight_hh_l0"]].any()
    finish(layer)
    assert [name for name, _ in layer.named_parameters()] == names
    for one in (layer, twin, finish(twin)):
        assert torch.equal(one(x)[0], expected(x)[0])


def test_masks_go_where_the_module_goes() -> None:
    module = net()
    handle = attach(module, random_masks(module))
    module.double()
    assert module.head.weight.dtype == torch.float64
    assert handle.masks["head.weight"].dtype == torch.bool
    assert module(torch.ones(INPUT, dtype=torch.float64)).isfinite().all()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert module.float()(torch.ones(INPUT)).isfinite().all()


# -- what is refused


def parametrized() -> Any:
    module = net()
    nn.utils.parametrizations.weight_norm(module.head)
    return module


def twice() -> Any:
    module = net()
    attach(module, random_masks(module))
    return module


def pruned_by_torch() -> Any:
    module = net()
    torch_prune.l1_unstructured(module.head, "weight", 0.5)
    return module


def with_single() -> Any:
    module = net()
    module.single = nn.Parameter(torch.tensor(1.0))
    return module


def stored_sparse() -> Any:
    module = net()
    module.odd = nn.Parameter(torch.eye(32).to_sparse())
    return module


def scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(nn.Linear(2, 2))


def made_in_inference() -> Any:
    with torch.inference_mode():
        return nn.Linear(2, 2)


HEAD = np.ones((32, 32), bool)
REFUSED: dict[str, tuple[Callable[[], Any], Any, dict[str, Any], str]] = {
    "unknown": (net, {"haed.weight": HEAD}, {}, "no parameter called 'haed.weight' .did you mean head.weight"),
    "several": (net, {"head.weight": HEAD, "a": HEAD, "b": HEAD}, {}, "called 'a'.* .1 of 3 tensors with masks have a"),
    "shape": (
        net,
        {"wide.weight": HEAD},
        {},
        "mask of 'wide.weight' has shape .32, 32., parameter 'wide.weight' .32, 8.",
    ),
    "numbers": (net, {"head.weight": HEAD * 0.5}, {}, "other numbers than 0 and 1"),
    "text": (net, {"head.weight": "mask"}, {}, "no array of zeros and ones"),
    "source": (net, 7, {}, "come from a plan, a model, or a mapping"),
    "file": (net, "nowhere.onnx", {}, "cannot read nowhere.onnx"),
    "plan": (net, "nowhere.yaml", {}, "cannot read nowhere.yaml"),
    "module": (lambda: "net", {}, {}, "a torch module is expected"),
    "match": (net, {"w": HEAD}, {"match": {"head.weight": "w"}}, "what osp.torch.match returns"),
    "unmatched": (net, {"v": HEAD}, {"match": {"head.weight": Matched("w", "same")}}, "no parameter .* is tensor 'v'"),
    "elsewhere": (
        net,
        {"w": HEAD, "v": HEAD},
        {"match": {"head.weight": Matched("w", "same"), "body.weight": Matched("v", "same")}},
        "no parameter 'body.weight' for the mask of 'v'.* .1 of 2 tensors with masks have a parameter",
    ),
    "layout": (net, {"w": HEAD}, {"match": {"head.weight": Matched("w", "odd")}}, "lies in its tensor as 'odd'"),
    "model": (net, {"head.weight": HEAD}, {"model": "m.onnx"}, "model= belongs to a plan"),
    "optimizer": (net, {"head.weight": HEAD}, {"optimizer": 3}, "an optimizer of torch is expected"),
    "foreign": (
        net,
        {"head.weight": HEAD},
        {"optimizer": torch.optim.SGD([torch.zeros(2, requires_grad=True)])},
        "none of the masked parameters",
    ),
    "parametrized": (parametrized, {"head.weight": HEAD}, {}, "head.weight"),
    "twice": (twice, {"head.weight": HEAD}, {}, "attached to this module already"),
    "single": (with_single, {"head.weight": HEAD, "single": np.ones((), bool)}, {}, "'single' is a single number"),
    "sparse": (stored_sparse, {"head.weight": HEAD, "odd": HEAD}, {}, "'odd' is stored sparse"),
    "lazy": (lambda: nn.LazyLinear(3), {"weight": HEAD}, {}, "'weight' has no shape yet"),
    "scripted": (scripted, {"weight": HEAD}, {}, "scripted or traced"),
    "inference": (made_in_inference, {"weight": np.ones((2, 2), bool)}, {}, "made in inference mode"),
    "pruned by name": (
        pruned_by_torch,
        {"w": HEAD},
        {"match": {"head.weight": Matched("w", "same")}},
        "'head.weight' is held by torch.nn.utils.prune; call prune.remove first",
    ),
    "pruned": (pruned_by_torch, {"head.weight_orig": HEAD}, {}, "prune.remove first"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_cannot_be_is_one_line(case: str) -> None:
    make, source, options, message = REFUSED[case]
    module = make()
    with pytest.raises(osp.OnnxSparseError, match=message) as error:
        attach(module, source, **options)
    assert "\n" not in str(error.value)
    if case not in ("module", "twice", "parametrized"):
        assert not any(hasattr(one, "parametrizations") for one in module.modules()), "nothing was touched"


def test_a_failing_attach_changes_no_number() -> None:
    module = with_single()
    before = module.head.weight.detach().clone()
    with pytest.raises(osp.OnnxSparseError):
        attach(module, {"head.weight": HEAD * 0, "single": np.ones((), bool)})
    assert torch.equal(module.head.weight, before)


@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_masks_that_are_gone_are_named(how: str) -> None:
    module = net()
    attached = attach(module, random_masks(module))
    if how == "replaced":
        module.head = nn.Linear(32, 32)
    else:
        torch.nn.utils.parametrize.remove_parametrizations(module.head, "weight")
    for one in (module, copy.deepcopy(module)):
        with refusing(osp.OnnxSparseError):
            finish(one)
    attached.remove()
    attach(module, random_masks(module))
    finish(module)


def test_a_model_without_zeros_has_no_masks(digits_cnn: Path) -> None:
    with refusing(osp.OnnxSparseError):
        attach(to_module(digits_cnn), digits_cnn)
    with refusing(osp.OnnxSparseError):
        finish(net())


def test_wrong_updates_change_nothing() -> None:
    module = net()
    handle = attach(module, random_masks(module))
    for masks, message in (
        ({"conv.bias": HEAD}, "no mask is attached"),
        ({"wide.weight": ~random_masks(net())["wide.weight"], "head.weight": HEAD[:2]}, "shape"),
    ):
        with pytest.raises(osp.OnnxSparseError, match=message):
            handle.update(masks)
    assert torch.equal(handle.masks["wide.weight"], random_masks(net())["wide.weight"])


# -- the guide


def test_the_guide_runs(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of docs/torch.md marked for torch, one after the other, in a folder with the model they use."""
    text = (repository / "docs" / "torch.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python torch\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "digits_cnn.onnx").write_bytes((repository / "models" / "digits_cnn.onnx").read_bytes())
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for block in blocks:
            exec(compile(block, "docs/torch.md", "exec"), names)
