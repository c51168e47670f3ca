"""Parameters of a module in the file that it was exported to: all that are certain, and none that is not."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn
from torch.nn.utils import prune

from onnxsparse.errors import ModelError, OptionError
from onnxsparse.graph.model import Model
from onnxsparse.graph.torch_match import Match
from onnxsparse.torch import match, proved, record_match, recorded_match
from tests.engines.torch.exporting import UNSUPPORTED, Way, export
from tests.engines.torch.nets import build
from tests.messages import refusing

NETS = ("resnet18", "encoder", "mixed")
NOT_IN_FILES = "num_batches_tracked"
UNPROVABLE = (
    "it is no parameter of its own",  # statistics
    "its tensor is no parameter of the model",
    "a batch normalization was folded into it",
    "masking it does not show in the outputs",  # biases of zero
)
WAYS = [Way(net, opset, dynamo, fold, training) for net in NETS for opset, dynamo, fold, training in (
    (17, False, True, False), (17, False, False, False), (17, False, False, True), (14, False, True, False),
    (18, True, True, False), (18, True, False, False),
)]  # fmt: skip
MORE = [Way(net, opset, False, fold, training) for net in NETS for opset in (13, 16, 20) for fold in (True, False)
        for training in (True, False)] + [
    Way(net, opset, True, fold, training) for net in NETS for opset in (18, 20, 21) for fold in (True, False)
    for training in (True, False)]  # fmt: skip


def check(way: Way, tmp_path: Path) -> None:
    """Everything is found but what is not in the file, and what was found is proven on the outputs."""
    path = tmp_path / "net.onnx"
    net, feeds = export(way, path)
    found = match(path, net)
    cut = {"position"} if way.dynamo and way.fold and way.net == "encoder" else set()
    assert {name for name in found.refused if NOT_IN_FILES not in name} == cut
    assert all("holds a part of it only" in found.refused[name] for name in cut)
    assert set(found) | set(found.folded) | set(found.refused) == set(net.state_dict())
    if not way.training:  # else the file normalizes with the statistics of a batch
        proof = proved(path, net, found, torch.from_numpy(feeds["x"]))
        wrong = {name: reason for name, reason in proof.open.items() if reason not in UNPROVABLE}
        assert not wrong
        matrices = {name for name, one in net.named_parameters() if one.dim() > 1 and name in found}
        assert matrices - {"position"} <= set(proof.proved)
    for name, one in found.items():
        if one.tensor in net.state_dict() and name != one.tensor:
            assert torch.equal(net.state_dict()[name], net.state_dict()[one.tensor])  # stored once for both


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_exports(way: Way, tmp_path: Path) -> None:
    check(way, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("way", MORE, ids=str)
def test_more_exports(way: Way, tmp_path: Path) -> None:
    try:
        check(way, tmp_path)
    except Exception as error:
        if UNSUPPORTED in str(error):
            pytest.skip(str(error)[:80])
        raise


# -- what is open is refused


def save(net: Any, x: Any, path: Path, dynamo: bool = False, fold: bool = True) -> Path:
    options: dict[str, Any] = {"optimize": fold, "external_data": False} if dynamo else {"do_constant_folding": fold}
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(net, (x,), str(path), dynamo=dynamo, opset_version=18, **options)
    finally:
        logging.disable(logging.NOTSET)
    return path


def without_places(path: Path) -> Any:
    """The file without names of nodes and their metadata, as other tools leave it."""
    import onnx

    proto = onnx.load(path)
    for index, node in enumerate(proto.graph.node):
        node.name = f"n{index}"
        del node.metadata_props[:]
    return proto


def renamed(proto: Any, name: str = "w") -> Any:
    """With other names for stored tensors."""
    table = {one.name: f"{name}{index}" for index, one in enumerate(proto.graph.initializer)}
    for one in proto.graph.initializer:
        one.name = table[one.name]
    for node in proto.graph.node:
        node.input[:] = [table.get(one, one) for one in node.input]
    return proto


class Two(nn.Module):
    """Two layers with the same weight, which are not tied, on inputs of three dimensions."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(40, 40, bias=bias), nn.Linear(40, 40, bias=bias)
        with torch.no_grad():
            self.two.weight.copy_(self.one.weight)

    def forward(self, x: Any) -> Any:
        return self.two(torch.tanh(self.one(x)))


@pytest.mark.parametrize("dynamo", [False, True])
def test_equal_weights_are_told_apart_by_the_scopes_of_the_exporter(dynamo: bool, tmp_path: Path) -> None:
    net, x = Two(), torch.randn(2, 3, 40)
    path = save(net.eval(), x, tmp_path / "net.onnx", dynamo)
    found = match(path, net)
    assert not found.refused
    proof = proved(path, net, found, x)
    assert set(proof.proved) == set(found)


@pytest.mark.parametrize("dynamo", [False, True])
def test_equal_weights_are_told_apart_by_the_biases_beside_them(dynamo: bool, tmp_path: Path) -> None:
    net, x = Two(), torch.randn(2, 3, 40)
    proto = renamed(without_places(save(net.eval(), x, tmp_path / "net.onnx", dynamo)))
    found = match(proto, net)
    assert found["one.weight"].how == found["two.weight"].how == "order"
    assert set(proved(proto, net, found, x).proved) == set(net.state_dict())


@pytest.mark.parametrize("dynamo", [False, True])
def test_equal_weights_that_nothing_tells_apart_are_refused(dynamo: bool, tmp_path: Path) -> None:
    net = Two(bias=False)
    path = save(net.eval(), torch.randn(2, 3, 40), tmp_path / "net.onnx", dynamo)
    found = match(renamed(without_places(path)), net)
    assert not found
    assert "and those of 'two.weight'; nothing says which is whose" in found.refused["one.weight"]
    assert set(found.refused) == {"one.weight", "two.weight"}


class Hidden(nn.Module):
    """One of two equal weights is read by the module above, so that its scope says nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(6, 6, bias=False) for _ in range(2)])
        self.parts[1].load_state_dict(self.parts[0].state_dict())

    def forward(self, x: Any) -> Any:
        return torch.tanh(x @ self.parts[0].weight) @ self.parts[1].weight


def test_a_tensor_that_may_be_anothers_as_well_is_nobodys(tmp_path: Path) -> None:
    net = Hidden().eval()
    path = save(net, torch.randn(2, 3, 6), tmp_path / "net.onnx", dynamo=True)
    found = match(path, net)
    assert not found
    assert "and those of 'parts.1.weight'; nothing says which is whose" in found.refused["parts.0.weight"]


@pytest.mark.parametrize("fold", [True, False])
def test_layers_that_began_as_copies_are_told_apart(fold: bool, tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    net, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(2, 5, 16)
    path = save(net, x, tmp_path / "net.onnx", dynamo=True, fold=fold)
    found = match(path, net)
    gone = [f"layers.{index}.self_attn.out_proj.bias" for index in (0, 1)] if fold else []  # they are all zeros
    assert list(found.refused) == gone
    assert all("the exporter left it out" in found.refused[name] for name in gone)
    assert set(proved(path, net, found, x).open.values()) <= set(UNPROVABLE)


def test_a_layer_that_was_reset_is_refused(tmp_path: Path) -> None:
    net, x = build("resnet18")
    path = save(net.eval(), x, tmp_path / "net.onnx")
    plain = save(net, x, tmp_path / "plain.onnx", dynamo=True, fold=False)
    with torch.no_grad():
        net.layers[1][0].conv2.weight.normal_()
    for file in (path, plain):
        found = match(file, net)
        assert "layers.1.0.conv2.weight" in found.refused
        assert "layers.1.0.conv1.weight" in found
    assert "'layers.1.0.conv2.weight' of the file holds other numbers" in found.refused["layers.1.0.conv2.weight"]


def test_a_file_of_another_network_matches_nothing(tmp_path: Path) -> None:
    net, x = build("resnet18")
    path = save(net.eval(), x, tmp_path / "net.onnx")
    with torch.no_grad():
        for one in net.parameters():
            one.copy_(torch.randn(one.shape))
    assert not match(path, net)


def test_batch_normalizations_that_are_alike_are_told_apart_or_refused(tmp_path: Path) -> None:
    """Of a new network: every scale and every shift is the same."""
    net, x = build("resnet18")
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.reset_parameters()
    script = match(save(net.eval(), x, tmp_path / "script.onnx"), net)
    dynamo = match(save(net, x, tmp_path / "dynamo.onnx", dynamo=True), net)
    for found in (script, dynamo):
        assert {name for name in net.state_dict() if "conv" in name} <= set(found)
        assert not [name for name, one in found.items() if "bn" in name and one.how == "value"]


def test_a_depthwise_layer_of_one_number_each_needs_its_batch_normalization(tmp_path: Path) -> None:
    """Any tensor is such a weight, scaled: only the scale itself can tell."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(6, 6, 1, groups=6), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 1, groups=6),
                        nn.BatchNorm2d(6)).eval()  # fmt: skip
    for one in (net[1], net[4]):
        one.running_var.uniform_(0.5, 2.0)
        one.running_mean.normal_()
    path = save(net, torch.randn(1, 6, 4, 4), tmp_path / "net.onnx")
    found = match(path, net)
    assert {"0.weight", "0.bias", "3.weight", "3.bias"} <= set(found)
    assert set(proved(path, net, found, torch.randn(1, 6, 4, 4)).proved) >= {"0.weight", "3.weight"}
    net[1].running_var.uniform_(0.5, 2.0)
    assert "0.weight" in match(path, net).refused


def test_a_matrix_that_reads_the_same_both_ways_is_refused(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(5, 5)).eval()
    with torch.no_grad():
        net[0].weight.copy_(net[0].weight + net[0].weight.T)
    found = match(save(net, torch.randn(1, 2, 5), tmp_path / "net.onnx"), net)
    assert "read the same both ways" in found.refused["0.weight"]
    assert "0.bias" in found


# -- wrappers, tied weights, other types


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(self.words(x)))


@pytest.mark.parametrize("dynamo", [False, True])
def test_tied_weights_are_one_with_aliases_and_copies(dynamo: bool, tmp_path: Path) -> None:
    net, x = Tied().eval(), torch.tensor([[1, 2, 3]])
    path = save(net, x, tmp_path / "net.onnx", dynamo)
    found = match(path, net)
    assert found.aliases == {"head.weight": "words.weight"}
    assert found["head.weight"] == found["words.weight"]
    assert {one.layout for one in (found["words.weight"], *found["words.weight"].copies)} == {"same", "transposed"}
    assert proved(path, net, found, x).proved == ("words.weight",)


def test_wrappers_and_prefixes_are_seen_through(tmp_path: Path) -> None:
    net, x = build("mixed")
    path = save(net.eval(), x, tmp_path / "net.onnx")
    bare = match(path, net)
    assert match(path, nn.DataParallel(net)) == bare
    assert match(path, torch.compile(net, backend="eager")) == bare

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = net

        def forward(self, x: Any) -> Any:
            return self.model(x)

    outer = Outer().eval()
    inside = match(save(outer, x, tmp_path / "outer.onnx"), net)
    assert (set(inside), set(inside.refused)) == (set(bare), set(bare.refused))
    assert set(match(path, outer)) == {f"model.{name}" for name in bare}


class Doubled(nn.Module):
    def forward(self, weight: Any) -> Any:
        return 2 * weight


def test_parametrized_and_pruned_weights_have_their_plain_names(tmp_path: Path) -> None:
    net, x = build("mixed")
    nn.utils.parametrizations.weight_norm(net.pointwise)
    nn.utils.parametrize.register_parametrization(net.shared, "weight", Doubled())
    prune.l1_unstructured(net.out, "weight", 0.5)
    for dynamo, fold in ((False, True), (True, True), (True, False)):
        path = save(net.eval(), x, tmp_path / "net.onnx", dynamo, fold)
        found = match(path, net)
        assert {"shared.weight", "out.weight", "up.weight"} <= set(found), found.refused
        assert not [name for name in {**found, **found.refused} if "parametrizations" in name or name.endswith("_orig")]


def test_half_precision(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5)).eval()
    net[1].running_var.uniform_(0.5, 2.0)
    x = torch.randn(1, 3, 4, 4)
    for kind in (torch.float16, torch.bfloat16):
        path = save(net.to(kind), x.to(kind), tmp_path / "net.onnx", dynamo=True)
        found = match(path, net.float())
        assert {"0.weight", "4.weight", "4.bias"} <= set(found), found.refused


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("dynamo", [False, True])
def test_recurrent_layers(kind: Any, dynamo: bool, tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = kind(5, 4, num_layers=2, bidirectional=True)

        def forward(self, x: Any) -> Any:
            return self.cells(x)[0]

    net, x = Net().eval(), torch.randn(3, 2, 5)
    path = save(net, x, tmp_path / "net.onnx", dynamo)
    found = match(path, net)
    assert set(found) == set(net.state_dict())
    proof = proved(path, net, found, x)
    unrolled = kind is nn.RNN and dynamo  # whose first step, from a state of zeros, is stored as a number
    late = {name for name in found if unrolled and "bias_hh" in name}
    assert set(proof.proved) == set(found) - late


# -- what is recorded, and mistakes


def test_a_match_is_recorded_and_read_back(tmp_path: Path) -> None:
    net, x = build("mixed")
    path = save(net.eval(), x, tmp_path / "net.onnx")
    found = match(path, net)
    assert recorded_match(path) is None
    assert record_match(path, found, output=tmp_path / "known.onnx") is None
    assert recorded_match(tmp_path / "known.onnx") == found
    opened = Model.open(path)
    record_match(opened, Match())
    assert recorded_match(opened) == Match()
    for text in ("{", "[]", '{"matched": {"a": [["t", "", "odd", "value", [2], 0]]}}'):
        opened.set_metadata({"onnxsparse.torch.match": text})
        with refusing(ModelError):
            recorded_match(opened)


def test_a_match_of_another_file_is_not_recorded(tmp_path: Path) -> None:
    net, x = build("mixed")
    found = match(save(net.eval(), x, tmp_path / "net.onnx"), net)
    other = save(nn.Linear(4, 4), torch.ones(1, 4), tmp_path / "other.onnx")
    with refusing(OptionError):
        record_match(other, found)
    first = match(other, nn.Linear(4, 4))
    large = Match({"weight": replace(next(iter(found.values())), tensor="weight", scope="", shape=(40, 40))})
    with refusing(OptionError):
        record_match(other, large)
    with refusing(OptionError):
        record_match(other, dict(first))
    assert recorded_match(other) is None


def test_a_wrong_match_is_not_proven(tmp_path: Path) -> None:
    net, x = Two(), torch.randn(2, 3, 40)
    path = save(net.eval(), x, tmp_path / "net.onnx", dynamo=True)
    found = match(path, net)
    swapped = {**found, "one.bias": found["two.bias"], "two.bias": found["one.bias"]}
    before = {name: one.clone() for name, one in net.state_dict().items()}
    proof = proved(path, net, Match(swapped), x)
    assert proof.open["one.bias"] == proof.open["two.bias"] == "masked in both, the outputs differ"
    assert all(torch.equal(one, before[name]) for name, one in net.state_dict().items())


def test_mistakes_have_one_line(tmp_path: Path) -> None:
    net, x = build("mixed")
    path = save(net.eval(), x, tmp_path / "net.onnx")
    with refusing(OptionError):
        match(path, net.state_dict())
    with refusing(OptionError):
        match(path, net.to("meta"))
