"""What several processes that train together must have been given alike; without it they wait for each other for ever.

1. Before the run: the model, the recipe, what is planned, and how many samples there are.
2. Before its first step: the optimizer, and the shapes and types of the first batch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import numpy as np

from onnxsparse.engines.engine import Batch, Engine
from onnxsparse.engines.processes import Processes
from onnxsparse.passes.plan import PlanRow


def demand_alike_call(
    processes: Processes, model: str, recipe: str, planned: Mapping[str, PlanRow], count: int | None
) -> None:
    """Raise where the processes begin with different things; `model` is its digest."""
    samples = "any number" if count is None else str(count)
    facts = {"model": model, "recipe": recipe, "plan": _rows(planned), "number of samples": samples}
    processes.demand_alike(facts)


def demand_alike_step(processes: Processes, engine: Engine, batch: Batch) -> None:
    """Raise where their first steps would be of different kinds."""
    _, remembered = engine.state()
    optimizer = json.dumps([remembered.get("kind"), remembered.get("groups")], default=str)
    form = sorted((name, array.dtype.str, list(array.shape)) for name, array in batch.arrays.items())
    processes.demand_alike({"optimizer": optimizer, "shapes and types of the first batch": json.dumps(form)})


def _rows(planned: Mapping[str, PlanRow]) -> str:
    lines = []
    for tag, row in planned.items():
        keep = "" if row.keep is None else hashlib.sha256(np.packbits(row.keep != 0).tobytes()).hexdigest()
        lines.append(f"{tag} {row.pattern.text if row.pattern else ''} {row.drop} {keep}")
    return "\n".join(lines)
