"""`osp.torch.export`: every parameter is in the file under its own name, and what would not come back is said."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from torch import nn
from torch.nn.utils import prune

import onnxsparse as osp
from onnxsparse.engines.torch import export as exporting
from onnxsparse.errors import OptionError, OutputError
from tests.cases import for_each
from tests.engines.torch.running import runtime


class Norms(nn.Module):  # type: ignore[misc, unused-ignore]
    """New norms have equal scales; a convolution has a batch normalization behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn1 = nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 4)

    def forward(self, image: Any) -> Any:
        x = torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv(image))))))
        return {"scores": self.fc(x.flatten(2).transpose(1, 2)).mean(1)}


def names(values: Any) -> dict[str, list[Any]]:
    return {one.name: [dim.dim_param or dim.dim_value for dim in one.type.tensor_type.shape.dim] for one in values}


@pytest.mark.parametrize("options", [{}, {"dynamo": False}], ids=["chosen", "older"])
def test_what_is_trained_in_the_file_goes_back_to_the_module(options: dict[str, Any], tmp_path: Path) -> None:
    net, x = Norms().eval(), torch.randn(1, 2, 8, 8)
    found = osp.torch.export(net, x, tmp_path / "net.onnx", **options)
    assert found.ok
    assert not found.notes
    assert found.exporter == ("torchscript" if options else "dynamo")
    assert all(found.match[name].tensor == name for name, _ in net.named_parameters())

    module = osp.torch.to_module(tmp_path / "net.onnx")
    assert {name for name, _ in module.named_parameters()} == {name for name, _ in net.named_parameters()}
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter.add_(0.01 * number)
    osp.torch.write_back(module, tmp_path / "net.onnx", output=tmp_path / "trained.onnx")
    net.load_state_dict(osp.torch.to_module(tmp_path / "trained.onnx").state_dict(), strict=False)
    three = torch.randn(3, 2, 8, 8)
    (got,) = runtime(tmp_path / "trained.onnx", {"image": three.numpy()})
    with torch.no_grad():
        assert np.allclose(got, net(three)["scores"].numpy(), atol=1e-4)


def test_inputs_and_outputs_have_the_names_that_forward_has() -> None:
    model = osp.torch.export(Norms(), torch.randn(1, 2, 8, 8), dynamo=False).model
    assert model is not None
    assert names(model.graph.input) == {"image": ["batch", 2, 8, 8]}
    assert list(names(model.graph.output)) == ["scores"]


def test_nothing_of_the_module_or_of_torch_changes(capfd: pytest.CaptureFixture[str]) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    net[1].eval()
    modes = [one.training for one in net.modules()]
    state = {name: one.clone() for name, one in net.state_dict().items()}
    x = torch.randn(3, 4)
    random, switches = torch.get_rng_state(), settings()
    assert osp.torch.export(net, x).ok
    assert modes == [one.training for one in net.modules()]
    assert all(torch.equal(state[name], one) for name, one in net.state_dict().items())
    assert all(one.requires_grad for one in net.parameters())
    assert torch.equal(random, torch.get_rng_state())
    assert switches == settings()
    assert capfd.readouterr() == ("", "")


def settings() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
        torch.onnx.is_in_onnx_export(),
    )


def few_or_many(self: Any, x: Any) -> Any:
    return self.fc(x) if x.shape[0] < 5 else self.fc(-x)


def test_a_batch_that_decides_is_said() -> None:
    """The newer exporter writes one branch, and leaves out what it asked."""
    found = osp.torch.export(Calls(few_or_many), FOUR[0], dynamo=True)
    assert any(note.startswith("the batch is at most 4") for note in found.notes)


class Asks(nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.fc(x) if float(x.sum()) > 0 and bool(x.max() > 0) else self.fc(-x)


class Calls(nn.Module):  # type: ignore[misc, unused-ignore]
    """Calls a function of itself; `fc` is its layer."""

    def __init__(self, function: Any, layer: Any = None) -> None:
        super().__init__()
        self.fc, self.seen = nn.Linear(4, 4) if layer is None else layer, 0
        self.forward = functools.partial(function, self)


def keywords(self: Any, x: Any, *, scale: float = 2.0, y: Any = None, **more: Any) -> Any:
    return self.fc(x) * scale - y * more["z"]


def nested(self: Any, d: Any, flag: bool = True) -> Any:
    return self.fc(d["p"][0] + d["q"]) if flag else d["q"]


def several(self: Any, x: Any, unused: Any = None) -> Any:
    made = self.fc(x)
    return [x, made], {"z": (made, None, 5)}, self.fc.weight


FOUR = torch.randn(5, 2, 4)
CALLS = [
    (keywords, {"z": FOUR[0], "y": FOUR[1], "x": FOUR[2]}, ["x", "y", "z"], [2, 1, 0]),
    (nested, ({"p": [FOUR[0]], "q": FOUR[1]},), ["d_p_0", "d_q"], [0, 1]),
    (several, FOUR[0], ["x"], [0]),
]


@for_each("function, example, inputs, order", CALLS)
def test_what_goes_in_and_comes_out_keeps_its_name(
    function: Any, example: Any, inputs: list[str], order: list[int], tmp_path: Path
) -> None:
    called = Calls(function).eval()
    found = osp.torch.export(called, example, tmp_path / "net.onnx", overwrite=True, dynamo=False)
    held_to(found, called, inputs, order, tmp_path)


def held_to(found: Any, net: Any, inputs: list[str], order: list[int], folder: Path) -> None:
    assert found.ok
    feeds = {name: FOUR[place].numpy() for name, place in zip(inputs, order)}
    got = runtime(folder / "net.onnx", feeds)
    with torch.no_grad():
        by_place = dict(zip(inputs, (FOUR[place] for place in order)))
        if inputs == ["d_p_0", "d_q"]:
            by_place = {"d": {"p": [by_place["d_p_0"]], "q": by_place["d_q"]}}
        expected = [one for one in torch.utils._pytree.tree_leaves(net(**by_place)) if torch.is_tensor(one)]
    assert len(got) == len(expected)
    assert all(np.allclose(one, two.detach().numpy(), atol=1e-5) for one, two in zip(got, expected))


def test_the_newer_exporter_keeps_names_too(tmp_path: Path) -> None:
    """It names keywords in the order that they come in, and takes an output that is an input for one value."""

    def both(self: Any, x: Any, *, y: Any) -> Any:
        made = self.fc(x) - y
        return x, made, made

    net = Calls(both).eval()
    found = osp.torch.export(net, {"y": FOUR[1], "x": FOUR[0]}, tmp_path / "net.onnx", dynamo=True)
    held_to(found, net, ["x", "y"], [0, 1], tmp_path)


def grows(self: Any, x: Any) -> Any:
    self.seen += 1
    return self.fc(x) * self.seen


def other_in_export(self: Any, x: Any) -> Any:
    return self.fc(x) + 1 if torch.onnx.is_in_onnx_export() else self.fc(x)


SAID = [
    (other_in_export, FOUR[0], "the file gives other outputs for the example"),
    (lambda self, x: self.fc(x) * float(x.max()), FOUR[0], "in 1 place Python reads numbers or sizes"),
    (grows, FOUR[0], "something else each time it is called"),
    (nested, ({"p": [FOUR[0]], "q": FOUR[1]}, True), "what is no tensor is part of the file: flag=True"),
    (several, FOUR[0], "outputs that are no tensors are not in the file: int"),
    (several, (FOUR[0], FOUR[1]), "unused: no input of the file"),
]


@for_each("function, example, note", SAID)
def test_what_the_file_does_not_do_is_said(function: Any, example: Any, note: str) -> None:
    assert note in "; ".join(osp.torch.export(Calls(function), example, dynamo=False).notes)


def test_a_file_without_a_dynamic_batch_takes_the_example() -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))
    found = osp.torch.export(net, torch.randn(2, 2, 8, 8), dynamo=False)
    assert found.model is not None
    assert names(found.model.graph.input) == {"input": [2, 2, 8, 8]}
    assert "the batch has a fixed size" in found.notes


def test_hooks_and_what_layers_computed_are_part_of_the_copy(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    prune.l1_unstructured(net[0], "weight", 0.5)
    net.register_forward_hook(lambda module, given, output: output * 3)
    osp.torch.export(net, FOUR[0], tmp_path / "net.onnx", dynamo=False)
    (got,) = runtime(tmp_path / "net.onnx", {"input": FOUR[1].numpy()})
    assert np.allclose(got, net(FOUR[1]).detach().numpy(), atol=1e-5)


def test_a_failing_exporter_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    before = torch._C._jit_is_onnx_log_enabled()
    with pytest.raises(OutputError, match="fft_rfft"):
        osp.torch.export(Calls(lambda self, x: torch.fft.rfft(self.fc(x)).abs()), FOUR[0], dynamo=False)
    assert capfd.readouterr() == ("", "")
    assert before == torch._C._jit_is_onnx_log_enabled()


def test_the_older_exporter_takes_what_the_newer_one_cannot_and_that_is_said() -> None:
    found = osp.torch.export(Asks(), torch.ones(2, 4))
    assert found.exporter == "torchscript"
    assert found.ok
    assert any(note.startswith("exported by torchscript; dynamo") for note in found.notes)
    assert any("the way of the example" in note for note in found.notes)


@pytest.mark.parametrize("numbers", [torch.ones(3), torch.ones(1), torch.tensor(2.0)], ids=["scale", "one", "single"])
def test_a_parameter_with_numbers_that_any_network_has_is_the_tensor_of_its_name(numbers: torch.Tensor) -> None:
    class Scaled(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale, self.norm = nn.Linear(4, 3), nn.Parameter(numbers), nn.BatchNorm1d(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.layer(x)) * self.scale

    net = Scaled().eval()
    found = osp.torch.export(net, torch.randn(2, 4), dynamo=False)
    assert found.ok, found.lost
    assert found.model.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert osp.torch.match(found.model, net)["scale"].tensor == "scale"


def test_tied_parameters_and_computed_ones_are_said() -> None:
    net = nn.Sequential(nn.Embedding(9, 6), nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)), nn.Linear(6, 9))
    net[2].weight = net[0].weight
    found = osp.torch.export(net, torch.arange(4)[None], dynamo=False)
    assert not found.ok
    assert list(found.lost) == ["1.weight"]
    assert "parts that it is computed of; torch.nn.utils.parametrize.remove_parametrizations" in found.lost["1.weight"]
    assert any("2.weight and 0.weight are one parameter" in note for note in found.notes)


def test_samples_that_look_at_one_another_make_no_dynamic_batch() -> None:
    class Mixes(nn.Module):  # type: ignore[misc, unused-ignore]
        def forward(self, x: Any) -> Any:
            return x - x.cumsum(0).flip(0)

    found = osp.torch.export(nn.Sequential(nn.Linear(3, 3), Mixes()), torch.randn(2, 3), dynamo=False)
    assert found.model is not None
    assert names(found.model.graph.input) == {"input": [2, 3]}
    assert any("fixed size" in note for note in found.notes)


def test_attached_masks_are_zeros_in_the_file() -> None:
    net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    keep = np.tile([1, 0, 0, 1], (32, 8))
    osp.torch.attach(net, {"0.weight": keep, "2.weight": keep})
    found = osp.torch.export(net, torch.randn(2, 32), dynamo=False)
    assert found.ok
    assert osp.verify(found.model, pattern="2:4", allow=["output"]).report.ok
    assert osp.torch.finish(net) is net


def test_a_module_larger_than_one_file_has_its_tensors_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "LARGE", 1000)
    net, x = nn.Sequential(nn.Linear(64, 64)).eval(), torch.randn(2, 64)
    assert osp.torch.export(net, x, tmp_path / "net.onnx").ok
    (got,) = runtime(tmp_path / "net.onnx", {"input": x.numpy()})
    assert len(list(tmp_path.iterdir())) == 2
    assert np.allclose(got, net(x).detach().numpy(), atol=1e-5)


def test_what_cannot_be_exported_is_one_line(tmp_path: Path) -> None:
    net = nn.Linear(4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, that it is old
        traced = torch.jit.trace(net, torch.randn(2, 4))
    for path, reason in ((tmp_path / "no" / "net.onnx", "does not exist"), (tmp_path, "is a folder")):
        with pytest.raises(OutputError, match=reason):  # before anything is exported
            osp.torch.export(net, torch.randn(2, 5), path)
    with pytest.raises(OptionError, match="training is said by"):
        osp.torch.export(net, torch.randn(2, 4), training=True)
    with pytest.raises(OptionError, match="the module does not run on the example"):
        osp.torch.export(net, torch.randn(2, 5))
    with pytest.raises(OptionError, match="has no shape yet"):
        osp.torch.export(nn.LazyLinear(4), torch.randn(2, 5))
    with pytest.raises(OptionError, match="scripted or traced"):
        osp.torch.export(traced, torch.randn(2, 4))
    with pytest.raises(OptionError, match="the module gives no tensor"):
        osp.torch.export(Calls(lambda self, x: None), torch.randn(2, 4))
    with pytest.raises(OutputError, match="torch cannot export the module: torchscript failed"):
        osp.torch.export(net, torch.randn(2, 4), dynamo=False, opset_version=3)
