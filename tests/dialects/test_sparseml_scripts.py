"""What scripts import beside SparseML's manager: its exporter, the older optimizer, loggers."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxsparse.engines.torch import library

pytestmark = pytest.mark.skipif(not library.available(), reason="needs torch")
torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime")

import onnx
from onnx import numpy_helper

import onnxsparse as osp
from onnxsparse.dialects.sparseml import (
    LoggerManager,
    ModuleExporter,
    PythonLogger,
    ScheduledModifierManager,
    ScheduledOptimizer,
    TensorBoardLogger,
)
from onnxsparse.errors import OptionError
from tests.dialects.test_sparseml_loop import GMP, PER_EPOCH, Net, batch, made
from tests.messages import refusing

QUANTIZED = GMP + "    - !QuantizationModifier\n        start_epoch: 5.0\n"
LOGGED = "modifiers:\n    - !SparsificationLoggingModifier {start_epoch: 0.0, end_epoch: 2.0, update_frequency: 1.0}\n"


def trained(recipe: str, make: Any = None) -> tuple[Any, Any]:
    """A module whose recipe is not finalized, and the optimizer around it."""
    net, plain = made()
    manager = ScheduledModifierManager.from_yaml(recipe)
    wrapped = make(plain, net, manager) if make else manager.modify(net, plain, PER_EPOCH)
    for step in range(6 * PER_EPOCH + 1):
        x, labels = batch(step)
        plain.zero_grad()
        torch.nn.functional.cross_entropy(net(x), labels).backward()
        wrapped.step()
    return net, wrapped


def test_masks_are_folded_into_an_export(tmp_path: Path) -> None:
    net, _ = trained(GMP)
    ModuleExporter(net, tmp_path / "out").export_onnx(batch(0)[0])
    path = tmp_path / "out" / "model.onnx"
    model = onnx.load(path)
    assert [one.name for one in model.graph.input] + [one.name for one in model.graph.output] == ["input", "output"]
    assert model.opset_import[0].version == 14
    stored = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    expected = {name: one.numpy() for name, one in net.state_dict().items() if name in stored}
    assert {"conv.weight", "head.weight", "norm.running_mean"} <= set(expected)
    assert all(np.array_equal(stored[name], one) for name, one in expected.items())
    assert (stored["head.weight"] == 0).mean() == pytest.approx(0.8, abs=0.02)
    session, net = onnxruntime.InferenceSession(path), net.eval()
    for count in (1, 5):
        x = batch(1)[0][:1].repeat(count, 1, 1, 1)
        (found,) = session.run(None, {"input": x.numpy()})
        assert np.allclose(found, net(x).detach().numpy(), atol=1e-5)
    assert hasattr(net.head, "parametrizations")  # the module itself keeps its masks


@pytest.mark.parametrize(("convert", "kinds"), [(True, {3}), (False, {1})])
def test_a_quantized_module(convert: bool, kinds: set[int], tmp_path: Path) -> None:
    net, _ = trained(QUANTIZED)
    ModuleExporter(net, tmp_path).export_onnx(batch(0)[0], name="q.onnx", opset=13, convert_qat=convert)
    model = onnx.load(tmp_path / "q.onnx")
    weights = {one.data_type for one in model.graph.initializer if one.name in ("conv.weight", "head.weight")}
    assert weights == kinds
    assert {"QuantizeLinear", "DequantizeLinear"} <= {node.op_type for node in model.graph.node}
    session = onnxruntime.InferenceSession(tmp_path / "q.onnx")
    x = batch(2)[0]
    (found,) = session.run(None, {"input": x.numpy()})
    assert np.allclose(found, net.eval()(x).detach().numpy(), atol=0.2)
    if convert:
        assert osp.verify(tmp_path / "q.onnx").report.ok


def test_checkpoints_samples_and_scripts(tmp_path: Path) -> None:
    net, wrapped = trained(GMP)
    exporter = ModuleExporter(net, tmp_path)
    exporter.export_pytorch(wrapped, recipe=GMP, epoch=6, include_modifiers=True, arch_key="net")
    kept = torch.load(tmp_path / "training" / "model.pth", weights_only=True)
    assert (kept["epoch"], kept["recipe"], kept["arch_key"]) == (6, GMP, "net")
    assert set(kept["manager"]) == set(wrapped.wrapped_manager.state_dict())
    assert "momentum_buffer" in kept["optimizer"]["state"][0]
    Net().load_state_dict(kept["state_dict"])
    x, labels = batch(0)
    exporter.export_samples([x, x], sample_labels=[labels, labels])
    inputs, outputs = sorted((tmp_path / "sample-inputs").iterdir()), sorted((tmp_path / "sample-outputs").iterdir())
    assert [len(inputs), len(outputs), len(list((tmp_path / "sample-labels").iterdir()))] == [2 * len(x)] * 3
    assert (inputs[1].name, outputs[-1].name) == ("inp-0001.npz", f"out-{2 * len(x) - 1:04d}.npz")
    assert np.array_equal(np.load(inputs[1])["arr_0"], x[1].numpy())
    assert np.allclose(np.load(outputs[1])["arr_0"], net.eval()(x)[1].detach().numpy(), atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exporter.export_torchscript(sample_batch=x)
        script = torch.jit.load(tmp_path / "framework" / "model.pts")
    assert torch.allclose(script(x), net(x), atol=1e-6)


def test_the_older_optimizer_is_what_modify_returns() -> None:
    def older(plain: Any, net: Any, manager: Any) -> Any:
        return ScheduledOptimizer(plain, net, manager, PER_EPOCH, initialize_kwargs={"distillation_teacher": "disable"})

    (net, wrapped), (other, _) = trained(GMP, older), trained(GMP)
    assert all(torch.equal(one, other.state_dict()[name]) for name, one in net.state_dict().items())
    wrapped.learning_rate = 0.25
    assert (wrapped.param_groups[0]["lr"], wrapped.learning_rate) == (0.25, 0.25)
    assert set(wrapped.manager_state_dict()) == set(wrapped.manager.state_dict())
    with refusing(OptionError):
        wrapped.adjust_current_step(1, 0)


class Writer:
    def __init__(self) -> None:
        self.scalars: list[Any] = []

    def add_scalar(self, *said: Any) -> None:
        self.scalars.append(said)


def test_loggers_hear_how_sparse_a_module_is(caplog: pytest.LogCaptureFixture) -> None:
    net, plain = made()
    writer = Writer()
    loggers = LoggerManager([PythonLogger(name="python"), TensorBoardLogger(writer=writer)])
    wrapped = ScheduledModifierManager.from_yaml(LOGGED).modify(net, plain, PER_EPOCH, loggers=loggers)
    with caplog.at_level(logging.INFO):
        for step in range(2 * PER_EPOCH + 1):
            torch.nn.functional.cross_entropy(net(batch(step)[0]), batch(step)[1]).backward()
            wrapped.step()
    assert [(tag, step) for tag, _, step, _ in writer.scalars if tag == "sparsity/head.weight"] == [
        ("sparsity/head.weight", 0.0),
        ("sparsity/head.weight", 1.0),
        ("sparsity/head.weight", 2.0),
    ]
    assert "sparsity/head.weight step 1: 0.0" in caplog.text
    by_sparseml = "SparsificationPruning/SparseParameters/head.bias/"
    assert {
        value for tag, value, _, _ in writer.scalars if tag in (f"{by_sparseml}count", f"{by_sparseml}percent")
    } == {0}
    assert [tag for tag, _, step, _ in writer.scalars if step == 0.0 and "PrunedParameters/percent" in tag] == [
        "SparsificationSummaries/PrunedParameters/percent"
    ]
    loggers.log_scalar("loss", 0.5, 3, log_types=["tensorboard"])
    assert writer.scalars[-1][:3] == ("loss", 0.5, 3)
    assert loggers.log_ready(1.0, 0.95) is False
    with refusing(OptionError):
        loggers.add_logger(3)
