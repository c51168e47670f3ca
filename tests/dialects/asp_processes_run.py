"""ASP in several processes, joined by gloo: before and after DistributedDataParallel, with equal seeds and with others.

    torchrun --nproc-per-node 2 asp_processes_run.py FOLDER

leaves in FOLDER CASE-RANK.npz: masks, the order of the channels, weights after some steps, and how many masked places
were not zero. The case `spread` is FSDP2.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from onnxsparse.dialects.asp import ASP
from onnxsparse.dialects.asp.permutation_lib import set_identical_seed

CASES = {
    "first-equal": (True, False),
    "first-other": (True, True),
    "last-equal": (False, False),
    "last-other": (False, True),
}
"""Whether ASP comes before DistributedDataParallel, and whether each process has a seed of its own."""


def run(before: bool, other: bool) -> dict[str, Any]:
    set_identical_seed(1 + (dist.get_rank() if other else 0))
    inner = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
    model = inner if before else nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ASP.init_model_for_pruning(model, verbosity=0, allow_recompute_mask=True)
    ASP.of(model).init_optimizer_for_pruning(optimizer)
    biases = inner[0].bias.tolist()
    ASP.of(model).compute_sparse_masks()
    masks, order = ASP.of(model).masks, np.array([biases.index(one) for one in inner[0].bias.tolist()])
    around = nn.parallel.DistributedDataParallel(inner) if before else model
    if before:
        assert {"0.__weight_mma_pruned_p", "2.__weight_mma_pruned_p"} <= set(around.parameters_to_ignore)
    leaks = 0
    for step in range(6):
        if step == 3:
            ASP.of(around).compute_sparse_masks()
        optimizer.zero_grad()
        around(torch.randn(4, 32)).square().sum().backward()
        optimizer.step()
        leaks += sum(int((inner.get_parameter(name)[~keep] != 0).sum()) for name, keep in ASP.of(inner).masks.items())
    again = {f"again/{name}": keep for name, keep in ASP.of(inner).masks.items()}
    found = {**masks, **again, **{f"weights/{name}": one.detach() for name, one in inner.named_parameters()}}
    return {"leaks": leaks, "order": order, **{name: one.numpy() for name, one in found.items()}}


def spread() -> dict[str, Any]:
    """FSDP2 around a model with masks: every process holds a part of each weight."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
    ASP.init_model_for_pruning(model, verbosity=0, allow_permutation=False)
    ASP.of(model).compute_sparse_masks()
    masks = ASP.of(model).masks
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ASP.of(model).init_optimizer_for_pruning(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 32)).square().sum().backward()
        optimizer.step()
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    leaks = sum(int((whole[name][~keep] != 0).sum()) for name, keep in masks.items())
    try:
        ASP.of(model).compute_sparse_masks()
    except AssertionError:
        refused = True
    return {"leaks": leaks, "refused": refused, **{name: keep.numpy() for name, keep in masks.items()}}


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    for name, case in CASES.items():
        np.savez(folder / f"{name}-{dist.get_rank()}.npz", **run(*case))
    np.savez(folder / f"spread-{dist.get_rank()}.npz", **spread())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stderr.flush()
    os._exit(0)  # a thread of gloo may still hold a tensor of FSDP's, and aborts an interpreter that ends meanwhile
