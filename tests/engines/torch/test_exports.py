"""Networks exported by torch, at many opsets and in all ways: the same outputs, and a gradient in every matrix."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from tests.engines.torch.exporting import Way, export
from tests.engines.torch.running import assert_same, without_gradient

NETS = ("resnet18", "encoder", "mixed")
BOTH = (False, True)
SCRIPT = [Way(*one) for one in itertools.product(NETS, range(13, 21), [False], BOTH, BOTH)]
DYNAMO = [Way(*one) for one in itertools.product(NETS, range(13, 21), [True], BOTH, BOTH)]
FEW = {Way("resnet18", 13, False, True, True), Way("encoder", 14, False, True, False),
       Way("mixed", 16, False, False, True), Way("mixed", 20, False, True, False),
       Way("resnet18", 18, True, True, False), Way("mixed", 18, True, False, False)}  # fmt: skip


@pytest.mark.parametrize("dynamo", BOTH)
def test_a_plain_export_has_the_parameters_of_the_network(dynamo: bool, tmp_path: Path) -> None:
    """And gives, back in the network, what was trained in the module."""
    net, feeds = export(Way("resnet18", 18, dynamo, False, False), tmp_path / "net.onnx")
    module = assert_same(tmp_path / "net.onnx", feeds)
    assert {name for name, _ in module.named_parameters()} == {name for name, _ in net.named_parameters()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.01)
    net.load_state_dict(module.state_dict(), strict=False)
    got = module(torch.from_numpy(feeds["x"]))
    assert torch.allclose(got, net.eval()(torch.from_numpy(feeds["x"])), rtol=1e-4, atol=1e-4)


def check(way: Way, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    _, feeds = export(way, path)
    module = assert_same(path, feeds)
    assert not without_gradient(module, feeds)


@pytest.mark.parametrize("way", sorted(FEW, key=str), ids=str)
def test_a_few_exports(way: Way, tmp_path: Path) -> None:
    check(way, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("way", [way for way in [*SCRIPT, *DYNAMO] if way not in FEW], ids=str)
def test_all_exports(way: Way, tmp_path: Path) -> None:
    check(way, tmp_path)
