"""A loop of one's own that is killed, and goes on from its own checkpoint: the module's state and the scheduler's."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.dialects.msbench import build_sparse_scheduler, preset
from onnxsparse.engines.ort import library as ort
from onnxsparse.engines.torch import library as torch_library
from onnxsparse.errors import OptionError
from tests.dialects.nets import SIZE, batch, numbers, onnx_model, torch_module
from tests.messages import refusing

trains = pytest.mark.skipif(not (ort.available() or torch_library.available()), reason="needs an engine that trains")
LAST, KILLED = 9, (2, 5, 8)
KINDS = ["admm", "probmask", "amba", "ampere", "str", "fcpts"]
PARTS = {"mask_generator": {"type": "NormalMaskGenerator"}, "fake_sparse": {"type": "FakeSparse"}}


def configuration(kind):
    if kind == "admm":
        kwargs = {"iters_per_epoch": 1, "max_iters": LAST, "rho": 0.1}
        return {
            **PARTS,
            "scheduler": {"type": "ADMMScheduler", "kwargs": kwargs},
            "sparsity": {"target_sparsity": 0.6, "uniform": False},
        }
    if kind == "fcpts":
        learns = {"type": "FCPTSFakeSparse", "kwargs": {"sInit_value": -3}}
        return {"mask_generator": {"type": "FCPTSMaskGenerator"}, "fake_sparse": learns, "scheduler": {}}
    config = preset(kind)
    kwargs = {
        "probmask": {
            "prune_rate": 0.7, "total_iterations": LAST, "warmup_iteration_stamps": 1, "finetune_iteration_stamps": 6,
        },
        "amba": {"total_iters": LAST, "sparsity_table": [30, 60], "default_input_shape": [1, 3, SIZE, SIZE]},
        "ampere": {"allow_recompute_mask": True},
        "str": {},
    }[kind]  # fmt: skip
    if kind == "str":
        config["fake_sparse"]["kwargs"] = {"sInit_value": -3}  # some are below it from the first
    config["scheduler"].setdefault("kwargs", {}).update(kwargs)
    return config


class Torch:
    """A loop over a module, and its checkpoint."""

    def __init__(self, kind):
        import torch

        self.scheduler = build_sparse_scheduler(configuration(kind))
        self.model = self.scheduler.prepare_sparse_model(torch_module())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.kind = kind
        if kind == "ampere":
            self.scheduler.init_optimizer(self.optimizer)

    def step(self, iteration):
        import torch

        found = self.scheduler.prune_model(self.model, iteration)
        images, labels = (torch.from_numpy(one) for one in batch(iteration))
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        loss = loss + found["loss"] if isinstance(found, dict) else loss
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def save(self, path):
        import torch

        torch.save({"model": self.model.state_dict(), "sparse": self.scheduler.state_dict()}, path)

    def load(self, path):
        import torch

        found = torch.load(path, weights_only=True)
        self.scheduler.load_state_dict(found["sparse"])
        self.model.load_state_dict(found["model"])

    def old_state(self):
        """The module's state as versions wrote it that kept the names of parametrizations, and thresholds in it."""
        found = {}
        for prefix, owner in self.model.named_modules():
            for name, one in getattr(owner, "parametrizations", {}).items():
                inside = f"{prefix}.parametrizations.{name}."
                found[f"{inside}original"] = one.original.detach().clone()
                roles = {f"{inside}0.{role}": tensor.detach().clone() for role, tensor in one[0].named_parameters()}
                found.update(roles)
        plain = {name for name in self.model.state_dict() if name.replace(".weight", "") not in str(list(found))}
        return {**found, **{name: self.model.state_dict()[name] for name in plain}}

    def numbers(self):
        return {name: one.numpy() for name, one in self.scheduler.export_sparse_model(self.model).state_dict().items()}


class Backwards(Torch):
    """The module's state first."""

    def load(self, path):
        import torch

        found = torch.load(path, weights_only=True)
        self.model.load_state_dict(found["model"])
        self.scheduler.load_state_dict(found["sparse"])


class Onnx(Torch):
    """A loop over an ONNX model; the checkpoint is the scheduler's alone."""

    found = None

    def __init__(self, kind):
        self.scheduler = build_sparse_scheduler(configuration(kind))
        self.model = self.scheduler.prepare_sparse_model(onnx_model(), optimizer="sgd", lr=0.05)
        if kind == "ampere":
            self.scheduler.init_optimizer()

    def step(self, iteration):
        self.scheduler.prune_model(self.model, iteration)
        self.model.step(batch(iteration))

    def save(self, path):
        Onnx.found = self.scheduler.state_dict()

    def load(self, path):
        self.scheduler.load_state_dict(Onnx.found)

    def numbers(self):
        return self.model.arrays()


def ended(loop, kind, path, kills=()):
    made = loop(kind)
    for iteration in range(LAST):
        if iteration in kills:
            made.save(path)
            made = loop(kind)
            made.load(path)
        made.step(iteration)
    return made.numbers()


@pytest.mark.skipif(not torch_library.available(), reason="needs torch")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loop", [Torch, Backwards])
def test_a_loop_of_torch_goes_on_to_the_same_numbers(tmp_path, loop, kind):
    whole, again = (ended(loop, kind, tmp_path / "own.pth", kills) for kills in ((), KILLED))
    assert whole.keys() == again.keys()
    assert all((whole[name] == again[name]).all() for name in whole)
    assert any((array == 0).any() for array in whole.values())


@pytest.mark.skipif(not torch_library.available(), reason="needs torch")
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_in_the_middle_is_that_of_the_plain_net(kind):
    made = Torch(kind)
    for iteration in range(5):
        made.step(iteration)
    state, plain = made.model.state_dict(), torch_module()
    assert list(state) == list(plain.state_dict())
    plain.load_state_dict(state)
    rate = np.mean(np.concatenate([one.numpy().reshape(-1) == 0 for one in plain.state_dict().values()]))
    # ADMM's and the levels' masks are on, thresholds have risen; of ProbMask the subnet that would be drawn now
    assert rate == pytest.approx(made.scheduler.compute_sparse_rate(made.model), abs=0.02)
    assert rate > 0.05
    if kind != "probmask":  # whose network multiplies with what it expects, before its subnet is drawn
        images = torch_library.torch().from_numpy(batch(1)[0])
        found, wanted = plain(images).detach().numpy(), made.model(images).detach().numpy()
        np.testing.assert_allclose(found, wanted, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.skipif(not torch_library.available(), reason="needs torch")
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_with_the_names_of_before_goes_on_to_the_same_numbers(kind):
    made, again = Torch(kind), Torch(kind)
    for iteration in range(4):
        made.step(iteration)
    beside = made.scheduler.state_dict()
    del beside["network"]["plain"]
    beside["arrays"] = {k: v for k, v in beside["arrays"].items() if k.partition("/")[0] in ("mask", "kept")}
    again.scheduler.load_state_dict(beside)
    again.model.load_state_dict(made.old_state())
    for iteration in range(4, LAST):
        made.step(iteration)
        again.step(iteration)
    whole, other = made.numbers(), again.numbers()
    assert all((whole[name] == other[name]).all() for name in whole)


@trains
@pytest.mark.parametrize("kind", ["admm", "probmask", "amba", "ampere"])
def test_a_loop_over_an_onnx_model_goes_on_to_the_same_numbers(tmp_path, kind):
    whole, again = (ended(Onnx, kind, tmp_path, kills) for kills in ((), KILLED))
    assert all((whole[name] == again[name]).all() for name in whole)


def test_what_is_no_state_of_this_scheduler_is_said():
    scheduler = build_sparse_scheduler(configuration("amba"))
    with refusing(OptionError):
        scheduler.load_state_dict({})
    scheduler.prepare_sparse_model(onnx_model())
    with refusing(OptionError):
        scheduler.load_state_dict({})
    other = build_sparse_scheduler("ampere")
    other.prepare_sparse_model(onnx_model())
    with refusing(OptionError):
        scheduler.load_state_dict(other.state_dict())


def test_weights_that_come_back_are_in_the_state():
    made = Onnx("ampere")
    dense = {key: numbers()[name] for key, name in made.model.names().items()}
    made.scheduler.prune_model(made.model, 0)
    made.save("")
    again = Onnx("ampere")
    again.load("")
    again.scheduler.restore_pruned_weights()
    made.scheduler.restore_pruned_weights()
    for one in (made, again):
        for key, array in dense.items():
            np.testing.assert_array_equal(one.model.weight(key), array)
