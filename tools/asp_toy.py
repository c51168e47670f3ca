"""Sparse training by ASP's calls: dense, sparse, sparse with other masks; then saved, loaded, exported and verified.

    python tools/asp_toy.py [FOLDER] [--steps 100]

writes FOLDER/asp_toy.pth and FOLDER/asp_toy.onnx (asp-output). Exit code 0 says that the file is 2:4 wherever an Ampere
GPU can use it, 1 that it is not. A network learns what another one, drawn at random, makes of noise. Needs the extra
`torch`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import onnxsparse as osp
from onnxsparse.dialects.asp import ASP

SHAPE = (32, 16, 8, 8)


def network() -> Any:
    layers = [nn.Conv2d(16, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 16))


def train(model: Any, optimizer: Any, teacher: Any, steps: int, title: str) -> None:
    model.train()
    loss = torch.zeros(())
    for _ in range(steps):
        images = torch.randn(SHAPE)
        loss = nn.functional.mse_loss(model(images), teacher(images).detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    used = sum(int((one != 0).sum()) for one in model.parameters()) / sum(one.numel() for one in model.parameters())
    print(f"{title:<24} loss {loss.item():.5f}, {used:.1%} of all numbers are used")


def trained(teacher: Any, steps: int) -> tuple[Any, Any]:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(model, optimizer, teacher, steps, "dense")

    ASP.init_model_for_pruning(
        model, "m4n2_1d", verbosity=1, allow_recompute_mask=True, example_inputs=torch.randn(SHAPE)
    )
    ASP.init_optimizer_for_pruning(optimizer)
    ASP.compute_sparse_masks()
    train(model, optimizer, teacher, steps, "sparse")
    ASP.compute_sparse_masks()
    train(model, optimizer, teacher, steps, "sparse, masks anew")
    return model, optimizer


def loaded(path: Path) -> Any:
    """What another process would do to go on."""
    checkpoint = torch.load(path, weights_only=True)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    ASP.init_model_for_pruning(model, "m4n2_1d", verbosity=1, allow_recompute_mask=True)
    ASP.init_optimizer_for_pruning(optimizer)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    print(f"loaded: sparsity is {'on' if ASP.of(model).is_sparsity_enabled() else 'off'}")
    return model


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a small network by ASP's calls.")
    parser.add_argument("folder", nargs="?", default="asp-output", type=Path)
    parser.add_argument("--steps", type=int, default=100, help="of each of the three trainings")
    given = parser.parse_args(argv)
    given.folder.mkdir(parents=True, exist_ok=True)
    checkpoint, exported = given.folder / "asp_toy.pth", given.folder / "asp_toy.onnx"

    torch.manual_seed(0)
    teacher = network().eval()
    model, optimizer = trained(teacher, given.steps)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
    torch.onnx.export(loaded(checkpoint).eval(), (torch.randn(SHAPE),), str(exported), dynamo=False)
    report = osp.verify(exported, target="ampere").report
    for row in report.rows:
        print(f"{row.name}: {row.status}, {row.sparsity:.0%} zeros")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
