"""Quantization-aware training in two processes, joined by gloo, each with batches of its own.

    torchrun --nproc-per-node 2 rounding_processes_run.py FOLDER

leaves in FOLDER CASE-RANK.npz: the numbers of the module, and its scales and ranges.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np
import torch
import torch.distributed as dist

from onnxsparse.dialects.sparseml import ScheduledModifierManager
from onnxsparse.engines.torch.quantized_module import state_of
from tests.dialects.test_sparseml_quantization import BOTH, PER_EPOCH, made, train

CASES = {"observed": False, "learned": True}
LAST = 3 * PER_EPOCH + 2
"""Two steps behind the epoch at which scales stand still."""


def run(learned: bool) -> dict[str, np.ndarray]:
    net, optimizer = made()
    module = torch.nn.parallel.DistributedDataParallel(net)
    manager = ScheduledModifierManager.from_yaml(BOTH)
    manager.learn_scales = learned
    first = 100 * dist.get_rank()
    train(module, manager.modify(module, optimizer, PER_EPOCH), first, first + LAST)
    return {name: one.numpy() for name, one in {**net.state_dict(), **state_of(net)}.items()}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    for case, learned in CASES.items():
        np.savez(Path(sys.argv[1]) / f"{case}-{dist.get_rank()}.npz", **run(learned))
    dist.destroy_process_group()
