"""`osp.torch.permute`: what moves, that outputs stay, and that all that goes with a parameter moves along."""

from __future__ import annotations

import copy
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn

import onnxsparse as osp
from onnxsparse.errors import OnnxSparseError
from onnxsparse.torch import permute, permute_state_dict
from tests.engines.torch.permuted_nets import NETS, TRAPS, Attention, Gated, Residual, Stack
from tests.messages import refusing

pytestmark = pytest.mark.usefixtures("short_searches")
Route = bool
ROUTES = pytest.mark.parametrize("by_export", [True, False], ids=["export", "trace"])


def seeded(make: Any) -> Any:
    torch.manual_seed(0)
    return make().eval()


def output(module: Any, x: Any) -> Any:
    with torch.no_grad():
        return module(x).clone()


def demand_same(one: Any, other: Any) -> None:
    assert one.shape == other.shape
    assert float((one - other).abs().max()) <= 2e-5 * max(1.0, float(other.abs().max()))


def axes_of(permutation: Any, name: str) -> set[int]:
    """The axes along which numbers of a tensor move."""
    return {move.axes[-1] for move in permutation.tensors[name].moves} if name in permutation.tensors else set()


@ROUTES
@pytest.mark.parametrize("name", NETS)
def test_channels_move_and_the_outputs_stay(name: str, by_export: bool) -> None:
    make, shape, wanted = NETS[name]
    module, x = seeded(make), torch.randn(shape)
    before, plain = output(module, x), {key: one.clone() for key, one in module.state_dict().items()}
    found = permute(module, x if by_export else None)
    demand_same(output(module, x), before)
    missing = {key: axes for key, axes in wanted.items() if not set(axes) <= axes_of(found, key)}
    assert not missing, f"{missing} of {sorted(found.tensors)}"
    changed = {key for key, one in module.state_dict().items() if not torch.equal(one, plain[key])}
    assert changed <= set(found.tensors)
    if wanted:
        assert found.facts["kept"]["after"] > found.facts["kept"]["before"]


@ROUTES
@pytest.mark.parametrize("name", TRAPS)
def test_an_order_that_matters_is_kept(name: str, by_export: bool) -> None:
    make, shape = TRAPS[name]
    module, x = seeded(make), torch.randn(shape)
    before = output(module, x)
    permute(module, x if by_export else None)
    demand_same(output(module, x), before)


@ROUTES
def test_tokens_and_tied_weights(by_export: bool) -> None:
    module, tokens = seeded(Gated), torch.randint(0, 50, (2, 7))
    before = output(module, tokens)
    found = permute(module, tokens if by_export else None)
    demand_same(output(module, tokens), before)
    assert module.head.weight is module.embed.weight
    assert {"embed.weight", "head.weight"} <= set(found.tensors)
    assert axes_of(found, "wide.weight") == {0, 1}
    assert axes_of(found, "out.weight") >= {0}


def test_the_same_module_gives_the_same_order() -> None:
    x = torch.randn(2, 16, 5, 5)
    one, other = (permute(seeded(Residual), x) for _ in range(2))
    assert one.to_json() == other.to_json()


def test_parameters_buffers_modes_and_random_numbers_stay_what_they_are() -> None:
    module = seeded(lambda: Stack(lambda: nn.BatchNorm2d(32))).train()
    module.norms[1].eval()
    module.last.weight.requires_grad_(False)
    held = [*module.parameters(), *module.buffers()]
    x, modes = torch.randn(2, 32, 5, 5), [part.training for part in module.modules()]
    counts = [int(norm.num_batches_tracked) for norm in module.norms]
    state = torch.get_rng_state()
    assert permute(module, x).tensors
    assert permute(module, apply=permute(module)).tensors
    assert all(one is two for one, two in zip(held, [*module.parameters(), *module.buffers()]))
    assert modes == [part.training for part in module.modules()]
    assert torch.equal(state, torch.get_rng_state())
    assert counts == [int(norm.num_batches_tracked) for norm in module.norms]
    assert not module.last.weight.requires_grad
    assert module.convs[0].weight.requires_grad


@pytest.mark.parametrize(
    "make",
    [
        lambda own: torch.optim.SGD(own, 0.05, momentum=0.9),
        lambda own: torch.optim.AdamW(own, 1e-2),
        lambda own: torch.optim.Adagrad(own, 1e-2),
    ],
    ids=["SGD", "AdamW", "Adagrad"],
)
def test_training_goes_on_as_if_nothing_had_moved(make: Any) -> None:
    module = seeded(Residual).train()
    optimizer = make(module.parameters())
    batches = [torch.randn(4, 16, 5, 5) for _ in range(6)]

    def step(one: Any, own: Any, x: Any) -> None:
        own.zero_grad()
        one(x).square().mean().backward()
        own.step()

    for x in batches[:3]:
        step(module, optimizer, x)
    twin = copy.deepcopy(module)
    others = make(twin.parameters())
    others.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.zero_grad()
    module(batches[0]).square().mean().backward()
    twin(batches[0]).square().mean().backward()
    assert permute(module, optimizer=optimizer).tensors
    for one, own in ((module, optimizer), (twin, others)):
        own.step()  # with the gradients from before
        for x in batches[3:]:
            step(one, own, x)
    demand_same(output(module.eval(), batches[0]), output(twin.eval(), batches[0]))


def test_the_record_fits_copies_states_and_back(tmp_path: Path) -> None:
    module, x = seeded(lambda: Stack(lambda: nn.BatchNorm2d(32))), torch.randn(2, 32, 5, 5)
    average, dense = copy.deepcopy(module), {key: one.clone() for key, one in module.state_dict().items()}
    found = permute(module, x)
    found.save(tmp_path / "permutation.json")
    permute(average, apply=tmp_path / "permutation.json")
    state = module.state_dict()
    for key, one in average.state_dict().items():
        assert torch.equal(one, state[key]), key
    moved = permute_state_dict(dense, str(tmp_path / "permutation.json"))
    assert list(moved) == list(dense)
    assert all(torch.equal(one, state[key]) for key, one in moved.items())
    wrapped = permute_state_dict({f"module._orig_mod.{key}": one for key, one in dense.items()}, found)
    assert all(torch.equal(one, moved[key[len("module._orig_mod.") :]]) for key, one in wrapped.items())
    back = permute_state_dict(moved, found.inverse())
    assert all(torch.equal(one, dense[key]) for key, one in back.items())
    arrays = permute_state_dict({key: one.numpy() for key, one in dense.items()}, found)
    assert all(np.array_equal(one, state[key].numpy()) for key, one in arrays.items())


def test_masks_of_asp_move_along() -> None:
    module, x = seeded(Stack), torch.randn(2, 32, 5, 5)
    layer = module.convs[1]
    layer.register_buffer("__weight_mma_mask", layer.weight.detach() > 0)
    state = {key: one.clone() for key, one in module.state_dict().items()}
    found = permute(module, x)
    assert torch.equal(getattr(layer, "__weight_mma_mask"), layer.weight > 0)
    moved = permute_state_dict(state, found)
    assert torch.equal(moved["convs.1.__weight_mma_mask"], layer.weight > 0)


def test_what_an_order_is_for() -> None:
    """Names narrow it, scores of the user's lead it, and other patterns have others."""
    x = torch.randn(2, 16, 5, 5)
    one = permute(seeded(Residual), x, include="down.0")
    assert "down.0.weight" in one.tensors
    assert 1 not in axes_of(one, "up.0.weight")
    other = permute(seeded(Residual), x, exclude=["down.*", "last"])
    assert axes_of(other, "up.0.weight") >= {1}
    module = seeded(Residual)
    scores = {key: one.detach().square() for key, one in module.named_parameters() if one.dim() > 1}
    led = permute(module, x, scores=scores)
    assert led.to_json() != permute(seeded(Residual), x).to_json()
    assert permute(seeded(Residual), x, pattern="1:4", seed=3).facts["pattern"] == "1:4"
    # columns that matter alone come into groups of their own
    net = seeded(lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)))
    heavy = np.zeros((16, 16), np.float32)
    heavy[:, :8] = 1
    before = net[2].weight.detach().clone()
    led = permute(net, torch.randn(3, 16), scores={"2.weight": heavy}, include="2")
    order = [int(np.flatnonzero((before == net[2].weight[:, at : at + 1]).all(0).numpy())[0]) for at in range(16)]
    assert all(sum(place < 8 for place in order[at : at + 4]) == 2 for at in range(0, 16, 4))
    assert led.facts["kept"] == {"before": 0.5, "after": 1.0}


def test_inputs_by_name_and_several_of_them() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.last = nn.Linear(8, 32), nn.Linear(12, 32), nn.Linear(32, 4)

        def forward(self, a: Any, b: Any = None, scale: float = 1.0) -> Any:
            return self.last(self.left(a) * scale + (self.right(b) if b is not None else 0.0))

    a, b = torch.randn(3, 8), torch.randn(3, 12)
    for given in ((a, b), {"a": a, "b": b}, {"b": b, "a": a, "scale": 2.0}):
        module = seeded(Two)
        before = module(a, b)
        found = permute(module, given)
        demand_same(module(a, b).detach(), before.detach())
        assert {"left.weight", "right.weight", "last.weight"} <= set(found.tensors)


class Decides(nn.Module):
    """Control flow by numbers: torch.fx cannot follow it, an exporter takes one way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.last(x if x.sum() > 0 else -x)


def test_what_cannot_be_traced_stays_with_one_warning(caplog: Any) -> None:
    module = seeded(Decides)
    plain = copy.deepcopy(module.state_dict())
    with caplog.at_level(logging.WARNING, "onnxsparse"):
        assert not permute(module)
    assert all(torch.equal(one, plain[key]) for key, one in module.state_dict().items())
    assert len(caplog.records) == 1
    message = caplog.records[0].getMessage()
    assert "torch.fx cannot trace it" in message
    assert "example_inputs" in message
    assert "\n" not in message


class Branching(nn.Module):
    """Which weights are used depends on the data, in a way that `kind` names."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first = kind, nn.Linear(16, 32)
        self.one, self.other, self.last = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 8)
        self.beside = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x: Any) -> Any:
        if self.kind == "guard" and x.isnan().any():
            raise ValueError("no number")
        x = torch.relu(self.first(x))
        return self.beside(self.last(torch.relu((self.one if self._chooses(x) else self.other)(x))))

    def _chooses(self, x: Any) -> bool:
        return {
            "guard": lambda: True,
            "if": lambda: bool(x.abs().max() < 100),
            "equal": lambda: not torch.equal(x, -x),
            "item": lambda: x.abs().max().item() < 100,
            "list": lambda: max(x.flatten().tolist()) < 100,
            "numpy": lambda: bool(x.numpy().max() < 100),
            "count": lambda: len(x[x > 100]) == 0,
            "where": lambda: torch.where(x > 100)[0].shape[0] == 0,
            "written": lambda: bool(_written(x)),
        }[self.kind]()


def _written(x: Any) -> Any:
    """A number of x by way of a part of another tensor."""
    made = torch.zeros(4)
    made[:2].copy_(x.abs().max().reshape(1).expand(2))
    return made.sum() < 1000


@pytest.mark.parametrize("kind", ["if", "equal", "guard", "item", "list", "numpy", "count", "where", "written"])
def test_what_depends_on_the_data_is_proven_both_ways_or_stays(kind: str, caplog: Any) -> None:
    module, x = seeded(lambda: Branching(kind)), torch.randn(3, 16)
    inputs = [x, 1e4 * x, torch.zeros(3, 16)]
    before = [output(module, one) for one in inputs]
    with caplog.at_level(logging.WARNING, "onnxsparse"):
        found = permute(module, x)
    for one, wanted in zip(inputs, before):
        demand_same(output(module, one), wanted)
    numbers = kind in ("item", "list", "numpy", "count", "where")
    assert ("beside.2.weight" in found.tensors) != numbers
    assert len(caplog.records) == numbers
    assert all("its Python code" in one.getMessage() for one in caplog.records)
    assert ("first.weight" in found.tensors) == (kind == "guard")  # the branch that is in no graph reads it


def test_too_many_ways_are_one_warning(caplog: Any) -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 8)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            for _ in range(20):
                x = x / 2 if x.abs().max() > 1 else x
            return self.last(x)

    with caplog.at_level(logging.WARNING, "onnxsparse"):
        assert not permute(seeded(Loop), torch.randn(3, 16))
    assert len(caplog.records) == 1
    assert "ways" in caplog.records[0].getMessage()


def test_auxiliary_heads_of_training_count() -> None:
    class Helped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(16, 32, 1), nn.Conv2d(32, 8, 1)
            self.aux, self.drop = nn.Conv2d(32, 8, 1), nn.Dropout(0.5)

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.first(x))
            return (self.last(x), self.aux(x)) if self.training else self.last(x)

    x = torch.randn(2, 16, 5, 5)
    for given in (x, None):
        module = seeded(Helped).train()
        before = [one.detach() for one in module(x)]
        found = permute(module, given)
        for one, other in zip(module(x), before):
            demand_same(one.detach(), other)
        assert bool(found) == (given is None)  # an export has no auxiliary head, and the proof says so
        if found:
            assert axes_of(found, "aux.weight") == {1}


class Trains(nn.Module):
    """In training it computes something else, with the same parameters."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.first(x))
        if not self.training:
            return self.last(x)
        return {
            "flipped": lambda: self.last(x.flip(1)),
            "scaled": lambda: self.last(x * torch.linspace(0, 1, 32, dtype=x.dtype)),
            "beside": lambda: self.last(x) + x[:, :8].sum(),
            "noise": lambda: self.last(x + torch.randn_like(x)),
            "attention": lambda: self.last(self._attended(x).flip(1)),
        }[self.kind]()

    def _attended(self, x: Any) -> Any:
        x = nn.functional.dropout(x, 0.5)[None, None]
        return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)[0, 0]


@ROUTES
@pytest.mark.parametrize("kind", ["flipped", "scaled", "beside", "noise", "attention"])
@pytest.mark.parametrize("rows", [1, 3])
def test_outputs_in_training_stay_too(kind: str, rows: int, by_export: bool) -> None:
    module, x = seeded(lambda: Trains(kind)), torch.randn(rows, 16)
    torch.manual_seed(0)
    before = output(module.train(), x)
    found = permute(module, x if by_export else None)
    torch.manual_seed(0)
    assert bool(found) == (kind == "noise" and by_export)  # a trace has the noise in its graph
    if kind != "noise":
        demand_same(output(module.train(), x), before)


@pytest.mark.parametrize("last", [lambda y: y * 0, lambda y: y > 1e9], ids=["zeros", "never"])
def test_outputs_that_say_nothing_prove_nothing(last: Any, caplog: Any) -> None:
    class Silent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 8)

        def forward(self, x: Any) -> Any:
            return last(self.last(torch.relu(self.first(x))))

    with caplog.at_level(logging.WARNING, "onnxsparse"):
        assert not permute(seeded(Silent), torch.randn(3, 16))
    assert "proves nothing" in caplog.records[0].getMessage()


class Doubtful(nn.Module):
    """What an exporter and torch.fx make of it is not what it does: the last scale is zero, so that nothing shows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32, bias=False), nn.Linear(32, 8, bias=False)
        self.gain = nn.Parameter(torch.zeros(8))

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        if not (torch.onnx.is_in_onnx_export() or isinstance(x, torch.fx.Proxy)):
            x = x.flip(-1)
        return self.last(x) * self.gain


@ROUTES
def test_what_is_not_proven_is_rolled_back(by_export: bool) -> None:
    """By class: what is beside it moves."""

    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.doubtful, self.sound = Doubtful(), nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))

        def forward(self, x: Any) -> Any:
            return self.sound(self.doubtful(x))

    module, x = seeded(Beside), torch.randn(3, 16)
    with torch.no_grad():
        module.doubtful.gain.fill_(1)
        wanted = output(module, x)
        module.doubtful.gain.zero_()
    found = permute(module, x if by_export else None)
    assert axes_of(found, "sound.2.weight") == {1}
    assert "doubtful.first.weight" not in found.tensors
    with torch.no_grad():
        module.doubtful.gain.fill_(1)
    demand_same(output(module, x), wanted)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_other_precisions(dtype: str) -> None:
    kind = getattr(torch, dtype)
    module, x = seeded(Residual).to(kind), torch.randn(2, 16, 5, 5)
    plain = copy.deepcopy(module).double()
    for given in (x.to(kind), None):
        found = permute(module, given)
        assert module.last.weight.dtype == kind
        demand_same(output(copy.deepcopy(module).double(), x.double()), output(plain, x.double()))
        if given is not None:
            assert axes_of(found, "last.weight") == {1}


def test_wrapped_and_compiled_modules() -> None:
    x = torch.randn(2, 16, 5, 5)
    module = seeded(Residual)
    before = output(module, x)
    assert permute(nn.DataParallel(module), x).tensors
    demand_same(output(module, x), before)
    compiled = torch.compile(seeded(Residual), backend="eager")
    before = output(compiled, x)
    found = permute(compiled, x)
    assert "first.0.weight" in found.tensors
    demand_same(output(compiled, x), before)


def test_what_is_computed_from_parameters_stays() -> None:
    x = torch.randn(2, 32, 5, 5)
    for given in (x, None):
        module = seeded(Stack)
        nn.utils.parametrizations.weight_norm(module.convs[1])
        before = output(module, x)
        found = permute(module, given)
        demand_same(output(module, x), before)
        assert "convs.1.weight" not in found.tensors
        assert axes_of(found, "last.weight") == {1}


def test_what_cannot_move_is_one_line() -> None:
    with torch.device("meta"):
        away = Residual()
    with refusing(OnnxSparseError):
        permute(away)
    with refusing(OnnxSparseError):
        permute(nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 8)))
    with refusing(OnnxSparseError):
        permute([1, 2])
    module = seeded(Residual)
    with refusing(OnnxSparseError):
        permute(module, pattern="unstructured")
    with refusing(OnnxSparseError):
        permute(module, optimizer=3)
    with refusing(OnnxSparseError):
        permute(module, "images")
    with refusing(OnnxSparseError):
        permute(module, torch.ones(2, 16, 5, 5, device="meta"))
    with refusing(OnnxSparseError):
        permute(module, {"x": torch.ones(2, 16, 5, 5, device="meta")})
    with refusing(OnnxSparseError):
        permute(module, scores={"last.weight": torch.ones(8, 32, 1, 1, device="meta")})
    with refusing(OnnxSparseError):
        permute(module, match={})
    with refusing(OnnxSparseError):
        permute(module, effort="long")
    masks = osp.torch.attach(module, {"last.weight": np.ones((8, 32, 1, 1), bool)})
    with refusing(OnnxSparseError):
        permute(module)
    masks.remove()
    module.last.weight.data[0, 0] = float("nan")
    assert not permute(module)
    with refusing(OnnxSparseError):
        permute(seeded(Residual), scores={"last.weight": -np.ones((8, 32, 1, 1))}, include="last")


def test_a_record_of_another_module_is_one_line(tmp_path: Path) -> None:
    x = torch.randn(2, 16, 5, 5)
    found = permute(seeded(Residual), x)
    module = seeded(lambda: Attention(True))
    plain = copy.deepcopy(module.state_dict())
    with refusing(OnnxSparseError):
        permute(module, apply=found)
    with refusing(OnnxSparseError):
        permute_state_dict(plain, found)
    assert all(torch.equal(one, plain[key]) for key, one in module.state_dict().items())
    other = seeded(Residual)
    other.down[0] = nn.Conv2d(32, 8, 1)
    other.up[0] = nn.Conv2d(8, 32, 1)
    with refusing(OnnxSparseError):
        permute(other, apply=found)

    class Inverted(Residual):
        """The same parameters, another order of channels in between."""

        def forward(self, x: Any) -> Any:
            return self.last(self.first(x).flip(1))

    inverted = seeded(Inverted)
    plain = copy.deepcopy(inverted.state_dict())
    with refusing(OnnxSparseError):
        permute(inverted, x, apply=found)
    assert all(torch.equal(one, plain[key]) for key, one in inverted.state_dict().items())
    with refusing(OnnxSparseError):
        permute(seeded(Residual), apply=str(tmp_path / "none.json"))


def exported(module: Any, x: Any, path: Path, **options: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), (x,), str(path), dynamo=False, **options)
    return path


class Folding(nn.Module):
    """Batch normalizations that an exporter folds, matrices that it turns round, and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.then = nn.Conv2d(16, 32, 3, padding=1)
        self.mix, self.lines, self.last = nn.Linear(32, 32), nn.LSTM(32, 16, batch_first=True), nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.then(torch.relu(self.norm(self.conv(x)))))
        x = torch.relu(self.mix(x.flatten(2).transpose(1, 2)))
        return self.last(self.lines(x)[0])


def folding() -> Any:
    module = seeded(Folding).train()
    for _ in range(3):
        module(torch.randn(8, 4, 5, 5))
    with torch.no_grad():
        for one in module.norm.parameters():
            one.add_(torch.randn(16) * 0.3)
    return module.eval()


def test_an_order_of_an_onnx_file_fits_its_module(tmp_path: Path) -> None:
    """After both moved they match again, and a checkpoint of the module fits the permuted file."""
    module, x = folding(), torch.randn(2, 4, 5, 5)
    before = output(module, x)
    dense = exported(module, x, tmp_path / "dense.onnx")
    record = tmp_path / "permutation.json"
    osp.permute(dense, output=tmp_path / "permuted.onnx", save_permutation=record, allow="small,stem,output,basis")
    match = osp.torch.match(dense, module)
    assert match.folded
    with pytest.raises(OnnxSparseError, match="there is no parameter of that name; say which one it is with match="):
        permute(module, x, apply=record)
    state = permute_state_dict(module.state_dict(), record, match=match)
    found = permute(module, x, apply=tmp_path / "permuted.onnx", match=match)
    demand_same(output(module, x), before)
    assert {"then.weight", "norm.running_var", "mix.weight"} <= set(found.tensors)
    assert all(torch.equal(one, module.state_dict()[key]) for key, one in state.items())
    again = osp.torch.match(tmp_path / "permuted.onnx", module)
    assert set(again) == set(match)
    assert {key: one.tensor for key, one in again.items()} == {key: one.tensor for key, one in match.items()}


def test_a_permuted_module_is_exported_and_pruned(tmp_path: Path) -> None:
    module, x = folding(), torch.randn(2, 4, 5, 5)
    mode = {"do_constant_folding": False, "training": torch.onnx.TrainingMode.PRESERVE}
    dense = exported(module, x, tmp_path / "dense.onnx", **mode)
    found = permute(module, x)
    permuted = exported(module, x, tmp_path / "permuted.onnx", **mode)
    result = osp.prune(permuted, output=tmp_path / "sparse.onnx", pattern="2:4", allow="small,output,basis")
    assert osp.verify(tmp_path / "sparse.onnx").report.ok
    osp.torch.attach(module, result.path).remove()
    found.save(tmp_path / "permutation.json")
    osp.permute(dense, output=tmp_path / "same.onnx", apply=tmp_path / "permutation.json")
    one, other = (osp.load(str(tmp_path / name)) for name in ("permuted.onnx", "same.onnx"))
    theirs = {weight.name: weight.tensor.array() for weight in other.weights}
    assert {"then.weight", "mix.weight"} <= set(theirs)
    assert all(np.array_equal(weight.tensor.array(), theirs[weight.name]) for weight in one.weights)


def test_a_copy_goes_its_own_way() -> None:
    module, x = seeded(Residual), torch.randn(2, 16, 5, 5)
    permute(module, x)
    copied = copy.deepcopy(module)
    permute(copied, x, pattern="1:4", seed=1)
    demand_same(output(copied, x), output(module, x))
    assert not torch.equal(copied.last.weight, module.last.weight)
