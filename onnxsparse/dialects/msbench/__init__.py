"""MSBench's interface: its configurations, and its schedulers in their published order of calls.

    scheduler = build_sparse_scheduler(config)            # a mapping, a YAML or JSON file, or the name of a preset
    model = scheduler.prepare_sparse_model(model)         # a torch module, or an ONNX model by its path or ModelProto
    scheduler.set_lr_scheduler(lr_scheduler)              # AmbaLevelPruneScheduler
    scheduler.init_optimizer(optimizer)                   # AmpereScheduler
    scheduler.prune_model(model, iteration)               # at every iteration, from 0
    scheduler.export_sparse_model(model)
    scheduler.export_sparse_onnx(model, dummy_input, name)

What `prepare_sparse_model` makes of an ONNX model trains by `model.step(batch)`.
"""

from __future__ import annotations

from typing import Any

from onnxsparse.dialects.msbench.configuration import PRESETS, Configuration, Source, preset, read

__all__ = ["PRESETS", "build_sparse_scheduler", "preset"]


def build_sparse_scheduler(config: Source) -> Any:
    """The scheduler that a configuration asks for."""
    return scheduler_of(read(config))


def scheduler_of(config: Configuration) -> Any:
    from onnxsparse.dialects.msbench.schedulers import SCHEDULERS

    return SCHEDULERS[config.scheduler.type](config)
