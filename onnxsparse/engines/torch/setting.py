"""What an engine in torch is told besides the graph."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxsparse.engines.processes import Processes
from onnxsparse.engines.torch.stepping import MakeOptimizer, MakeScheduler


@dataclass(frozen=True)
class Setting:
    """Where and how exactly is trained, and by whose optimizer."""

    device: str = "cpu"
    precision: str = "float32"
    optimizer: str | MakeOptimizer = "relative"
    lr_scheduler: MakeScheduler | None = None
    processes: Processes = field(default_factory=Processes)


PLAIN = Setting()
