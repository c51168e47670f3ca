"""Training under ASP in one process, and on from its checkpoint in another.

    python asp_checkpoint_run.py whole|go-on FOLDER

`whole` trains dense and sparse, saves what a loop saves, and trains on; `go-on` makes everything anew, loads that
strictly and trains on. What came out is in FOLDER: whole.pt and go-on.pt.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch
from torch import nn

from onnxsparse.dialects.asp import ASP

BATCH, STEPS = 32, 6
WIDTHS = (8, 32, 32, 32, 8)


def toy() -> Any:
    """Linear layers, each with a norm over the whole batch."""
    layers: OrderedDict[str, Any] = OrderedDict()
    for place, (wide, out) in enumerate(zip(WIDTHS, WIDTHS[1:]), 1):
        layers[f"linear_layer_{place}"] = nn.Linear(wide, out)
        layers[f"layer_norm_{place}"] = nn.LayerNorm([BATCH, out])
    return nn.Sequential(layers)


def steps(model: Any, optimizer: Any, count: int = STEPS) -> None:
    for _ in range(count):
        given, wanted = torch.randn(BATCH, WIDTHS[0]), torch.randn(BATCH, WIDTHS[-1])
        (model(given) - wanted).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def made() -> tuple[Any, Any]:
    model = toy()
    optimizer = torch.optim.Adam(model.parameters())
    ASP.init_model_for_pruning(
        model, "m4n2_2d_best", verbosity=3, whitelist=[nn.Linear], allow_recompute_mask=True, allow_permutation=False
    )
    ASP.init_optimizer_for_pruning(optimizer)
    return model, optimizer


def begin(folder: Path) -> tuple[Any, Any]:
    torch.manual_seed(4873)
    model, optimizer = made()
    steps(model, optimizer)
    ASP.compute_sparse_masks()
    steps(model, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "begun.pt")
    return model, optimizer


def go_on(model: Any, optimizer: Any, path: Path) -> None:
    assert ASP.is_sparsity_enabled()
    torch.manual_seed(99875)
    steps(model, optimizer)
    found = dict(model.state_dict())
    ASP.restore_pruned_weights()
    torch.save({**found, "dense": dict(model.state_dict())}, path)


def main(way: str, folder: Path) -> None:
    if way == "whole":
        go_on(*begin(folder), folder / "whole.pt")
        return
    checkpoint = torch.load(folder / "begun.pt", weights_only=True)
    model, optimizer = made()
    assert not ASP.is_sparsity_enabled()
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    go_on(model, optimizer, folder / "go-on.pt")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
