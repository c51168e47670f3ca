"""Networks of many families, and scripted loops: the same outputs, at other sizes too, gradients, and the way back."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from torch import nn

from onnxsparse.torch import write_back
from tests.engines.torch.families import FAMILIES, build_family
from tests.engines.torch.running import Array, apply, assert_equal, assert_same, runtime, without_gradient

SCRIPT = [(name, opset, False, fold) for name in FAMILIES for opset, fold in ((13, True), (15, False), (20, True))]
DYNAMO = [(name, opset, True, fold) for name in FAMILIES for opset, fold in ((18, True), (18, False), (20, True),
                                                                             (22, False), (23, True))]  # fmt: skip
NOT_BY_THE_EXPORTER = ("is not supported", "Failed to convert", "not implemented")


def export(net: Any, inputs: tuple[Any, ...], path: Path, opset: int, dynamo: bool, fold: bool) -> dict[str, Array]:
    import onnx

    options: dict[str, Any] = {"dynamo": False, "do_constant_folding": fold, "dynamic_axes": {"x0": {0: "n"}}}
    if dynamo:
        options = {"dynamo": True, "optimize": fold, "external_data": False}
    names = [f"x{index}" for index in range(len(inputs))]
    logging.disable(logging.CRITICAL)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(net, inputs, str(path), opset_version=opset, input_names=names, **options)
    finally:
        logging.disable(logging.NOTSET)
        torch.backends.mha.set_fastpath_enabled(fast)
    return {one.name: x.numpy() for one, x in zip(onnx.load(path).graph.input, inputs)}


def check(path: Path, feeds: dict[str, Array], others: tuple[dict[str, Array], ...] = ()) -> None:
    module = assert_same(path, feeds)
    assert not without_gradient(module, feeds)
    for other in others:
        for got, wanted in zip(apply(module, other), runtime(path, other)):
            assert_equal(got, wanted)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.01)
    proto = write_back(module, path)
    for got, wanted in zip(apply(module, feeds), runtime(proto, feeds)):
        assert_equal(got, wanted, 1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str, tmp_path: Path) -> None:
    net, inputs = build_family(name)
    check(tmp_path / "net.onnx", export(net.eval(), inputs, tmp_path / "net.onnx", 17, False, True))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "opset", "dynamo", "fold"), SCRIPT + DYNAMO)
def test_families_in_other_ways(name: str, opset: int, dynamo: bool, fold: bool, tmp_path: Path) -> None:
    net, inputs = build_family(name)
    try:
        feeds = export(net.eval(), inputs, tmp_path / "net.onnx", opset, dynamo, fold)
    except Exception as error:
        if any(reason in str(error) for reason in NOT_BY_THE_EXPORTER):
            pytest.skip(str(error)[:80])
        raise
    check(tmp_path / "net.onnx", feeds)


# -- loops and branches, as torch.jit.script sees them


class Steps(nn.Module):
    """As many steps as the input has rows, with a list of results."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.before = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)

    def forward(self, x):  # type: ignore[no-untyped-def]
        state = torch.zeros_like(x[0])
        found = [state]
        for i in range(x.shape[0]):
            state = torch.tanh(self.now(x[i]) + self.before(state))
            found.append(state)
        return torch.stack(found)


class Until(nn.Module):
    """A while, and a break."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):  # type: ignore[no-untyped-def]
        count = 0
        while bool(x.abs().sum() > 1.0) and count < 4:
            x = self.one(x) * 0.5
            count += 1
        for _ in range(5):
            x = self.two(x)
            if bool(x.abs().sum() < 1.0):
                break
        return x


class Branches(nn.Module):
    """Branches inside of loops inside of a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):  # type: ignore[no-untyped-def]
        for i in range(x.shape[0]):
            for _ in range(2):
                if bool(x[i].sum() > 0):  # noqa: SIM108 - a branch of statements is what is tried
                    x = x + self.up(x) * 0.1
                else:
                    x = x - self.down(x) * 0.1
        return x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("kind", [Steps, Until, Branches])
def test_scripted_loops(kind: Any, opset: int, tmp_path: Path) -> None:
    torch.manual_seed(1)
    x = torch.randn(4, 3, 6) if kind is Steps else torch.randn(3, 6).abs() * torch.tensor([[2.0], [-2.0], [2.0]])
    feeds = export(torch.jit.script(kind()), (x,), tmp_path / "net.onnx", opset, False, True)
    longer = {"x0": np.concatenate([feeds["x0"], -feeds["x0"][:1]])}
    check(tmp_path / "net.onnx", feeds, (longer, {"x0": -feeds["x0"]}))
