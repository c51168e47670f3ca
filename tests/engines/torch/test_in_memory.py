"""Models that are held in memory, handed to everything that has to do with torch: as bytes, graphs and programs."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import onnxsparse as osp
from onnxsparse.dialects.msbench import build_sparse_scheduler
from onnxsparse.dialects.sparseml import ScheduledModifierManager
from onnxsparse.errors import OptionError

DISTIL = """
modifiers:
  - !DistillationModifier
      hardness: 1.0
      start_epoch: 0
"""
TWO_FOUR: dict[str, Any] = {"pattern": "2:4", "allow": ("small", "output")}


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).eval()


@functools.lru_cache
def program_of(zeros: bool = False) -> Any:
    """The same module as a program; with zeros in every second column of its first layer."""
    module = net()
    with torch.no_grad():
        module[0].weight[:, ::2] *= 1 - zeros
    return exported(module)


def exported(module: Any) -> Any:
    """What the newer exporter returns."""
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.onnx.export(module, (torch.ones(1, 16),), dynamo=True, verbose=False)
    finally:
        logging.disable(logging.NOTSET)


def as_graph(program: Any) -> Any:
    pytest.importorskip("onnx_graphsurgeon")
    return osp.graphsurgeon.import_onnx(program)


FORMS: dict[str, Callable[[Any], Any]] = {
    "ONNXProgram": lambda program: program,
    "onnx_ir.Model": lambda program: program.model,
    "bytes": lambda program: program.model_proto.SerializeToString(),
    "onnx_graphsurgeon.Graph": as_graph,
}


@pytest.mark.parametrize("form", list(FORMS))
def test_every_function_takes_it(form: str) -> None:
    module, program = net(), program_of()
    source, proto = FORMS[form](program), program.model_proto
    wanted = osp.prune(proto, **TWO_FOUR)
    assert osp.prune(source, **TWO_FOUR).report.rows == wanted.report.rows
    x = torch.randn(1, 16)
    made = osp.torch.to_module(source)
    assert torch.allclose(made(x), module(x), atol=1e-6)
    assert set(osp.torch.match(source, module)) == {name for name, _ in module.named_parameters()}
    with torch.no_grad():
        for one in made.parameters():
            one.mul_(2)
    doubled = osp.torch.to_module(osp.torch.write_back(made, source))
    assert torch.equal(next(doubled.parameters()), next(made.parameters()))


@pytest.mark.parametrize("form", list(FORMS))
def test_its_zeros_go_on_a_module(form: str) -> None:
    module = net()
    osp.torch.attach(module, FORMS[form](program_of(zeros=True)))
    assert (module[0].weight == 0).float().mean() == 0.5
    osp.torch.finish(module)


def test_masks_of_a_graph_go_on_a_module() -> None:
    module, graph = net(), as_graph(program_of())
    osp.graphsurgeon.insert_masks(graph, **TWO_FOUR)
    osp.torch.attach(module, graph)
    assert (module[0].weight == 0).float().mean() == 0.5
    osp.torch.finish(module)


def test_external_data_of_onnx_ir_is_found(tmp_path: Path) -> None:
    ir: Any = pytest.importorskip("onnx_ir")
    program_of().save(tmp_path / "m.onnx", external_data=True)
    model = ir.load(tmp_path / "m.onnx")
    assert osp.prune(model, **TWO_FOUR).report.rows == osp.prune(program_of(), **TWO_FOUR).report.rows


@pytest.mark.parametrize("form", list(FORMS))
def test_a_scheduler_prepares_it(form: str) -> None:
    scheduler = build_sparse_scheduler("amba")
    model = scheduler.prepare_sparse_model(FORMS[form](program_of()), engine="torch", loss="mse")
    assert np.isfinite(model.step((np.ones((4, 16), np.float32), np.ones((4, 8), np.float32))))


@pytest.mark.parametrize("form", list(FORMS))
def test_it_teaches(form: str) -> None:
    module = net().train()
    teacher = FORMS[form](program_of())
    manager = ScheduledModifierManager.from_yaml(DISTIL)
    manager.modify(module, torch.optim.SGD(module.parameters(), lr=0.1), 2, distillation_teacher=teacher)
    x = torch.randn(1, 16)
    loss = manager.loss_update(module(x).square().mean(), student_outputs=module(x), student_inputs=x)
    assert torch.isfinite(loss)


class Loud:
    def __repr__(self) -> str:
        raise RuntimeError("no\nrepr")


@pytest.mark.parametrize("source", [Loud(), None, 42, np.ones(3)], ids=["loud", "none", "number", "array"])
def test_what_is_no_model_is_one_line(source: Any) -> None:
    module = net()
    calls: list[Callable[[], Any]] = [
        lambda: osp.torch.to_module(source),
        lambda: osp.torch.match(source, module),
        lambda: osp.torch.write_back(module, source),
        lambda: osp.torch.attach(module, source),
        lambda: build_sparse_scheduler("amba").prepare_sparse_model(source),
    ]
    for call in calls:
        with pytest.raises(OptionError) as caught:
            call()
        assert str(caught.value).isprintable()
