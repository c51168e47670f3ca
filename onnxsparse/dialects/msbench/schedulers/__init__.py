"""Registry of schedulers by their MSBench names; one file for each."""

from __future__ import annotations

from onnxsparse.dialects.msbench.schedulers.admm import ADMMScheduler
from onnxsparse.dialects.msbench.schedulers.amba import AmbaLevelPruneScheduler
from onnxsparse.dialects.msbench.schedulers.ampere import AmpereScheduler
from onnxsparse.dialects.msbench.schedulers.learned import ProbMaskPruneScheduler, STRScheduler
from onnxsparse.dialects.msbench.schedulers.scheduler import BaseScheduler

SCHEDULERS: dict[str, type[BaseScheduler]] = {
    one.__name__: one
    for one in (
        BaseScheduler,
        STRScheduler,
        AmbaLevelPruneScheduler,
        AmpereScheduler,
        ProbMaskPruneScheduler,
        ADMMScheduler,
    )
}

__all__ = ["SCHEDULERS", "BaseScheduler"]
