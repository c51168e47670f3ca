"""A loop of the user's own in several processes: DistributedDataParallel, or parameters that are spread by FSDP2.

    torchrun --nproc-per-node 2 own_loop_run.py FOLDER WAY OPTIMIZER

leaves what came out in FOLDER: WAY-OPTIMIZER-COUNT-RANK.npz, with the masked places of weights and moments that were
not zero after some step.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import onnxsparse as osp

RANK, COUNT = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
STEPS, BATCH = 20, 16
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=1e-3),
}


def masked_module() -> tuple[Any, Any]:
    """The module of a file with the masks of its pruned form; odd sizes do not divide among two processes."""
    model = str(ROOT / "models" / "digits_cnn.onnx")
    module = osp.torch.to_module(model)
    pruned = osp.prune(model, pattern="2:4", allow=["stem", "small"]).model
    return module, osp.torch.attach(module, pruned)


def local(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def leaks(module: Any, masks: Any, optimizer: Any) -> int:
    found = 0
    for name, keep in masks.masks.items():
        owner, _, last = name.rpartition(".")
        original = module.get_submodule(owner).parametrizations[last].original
        states = [one for one in optimizer.state[original].values() if torch.is_tensor(one) and one.shape == keep.shape]
        assert states
        found += sum(int((local(one)[~keep] != 0).sum()) for one in (original.detach(), *states))
    return found


def spread(module: Any, way: str) -> Any:
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(module)
    if way == "fsdp":
        from torch.distributed.fsdp import fully_shard

        return fully_shard(module, mesh=dist.device_mesh.init_device_mesh("cpu", (COUNT,)))
    return module


def finished(module: Any, way: str) -> Any:
    if way != "fsdp":
        return osp.torch.finish(module)
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    whole = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if RANK:
        return None
    plain, _ = masked_module()
    plain.load_state_dict(whole)
    return osp.torch.finish(plain)


def goes_on(module: Any, masks: Any) -> dict[str, Any]:
    """The state of a module whose parameters are spread, and what others come to that go on from it."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

    options = StateDictOptions(full_state_dict=True)
    whole = get_model_state_dict(module, options=options)
    found = {f"whole/{name}": tensor for name, tensor in whole.items()}
    for way in ("before", "parts", "after"):
        other, beside = masked_module()
        if way == "before":
            other.load_state_dict(whole)
        spread(other, "fsdp")
        if way != "before":
            state = get_model_state_dict(module) if way == "parts" else dict(whole)
            set_model_state_dict(other, state, options=options if way == "after" else StateDictOptions())
        beside.load_state_dict(masks.state_dict())
        found.update({f"{way}/{name}": one for name, one in get_model_state_dict(other, options=options).items()})
    return {name: tensor.detach().numpy() for name, tensor in found.items()}


def main(folder: str, way: str, name: str) -> None:
    if COUNT > 1:
        dist.init_process_group("gloo")
    module, masks = masked_module()
    around = spread(module, way)
    optimizer = OPTIMIZERS[name](around.parameters())
    masks.follow(optimizer)
    wanted = osp.torch.to_module(str(ROOT / "models" / "digits_cnn.onnx"))
    found = 0
    for step in range(STEPS):
        x = torch.randn(BATCH, 1, 8, 8, generator=torch.Generator().manual_seed(step)).chunk(COUNT)[RANK]
        loss = nn.functional.mse_loss(around(x), wanted(x).detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found += leaks(module, masks, optimizer)
    if (way, name) == ("fsdp", "adam"):
        np.savez(Path(folder) / f"goes-on-{RANK}.npz", **goes_on(module, masks))
    made = finished(around, way)
    numbers = {} if made is None else {key: one.detach().numpy() for key, one in made.state_dict().items()}
    np.savez(Path(folder) / f"{way}-{name}-{COUNT}-{RANK}.npz", leaks=found, **numbers)
    if COUNT > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(0)  # a thread of gloo may still hold a tensor of FSDP's, and aborts an interpreter that ends meanwhile
