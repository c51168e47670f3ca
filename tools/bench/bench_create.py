"""Create, every word of `pruning` with every target, with and without quantization, distillation and a GradScaler.

    python tools/bench/bench_create.py [--epochs 20] [--words acdc obs] [--markdown FILE]

A small MobileNet is trained on random samples by the recipe that `create.initialize` makes, four steps an epoch and one
more; half of the runs in bfloat16 under a scaler, until numbers are rounded. Each is exported, as integers where it was
quantized, and verified. Exit code 1: a run did not come to what its recipe says. Needs the extra `torch`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402 - the script runs from anywhere
from torch import nn  # noqa: E402

import onnxsparse as osp  # noqa: E402

WORDS = ("true", "false", "acdc", "mfac", "movement", "obs", "constant", "transfer", "sparse-transfer")
TARGETS = (None, "vnni", "tensorrt")
STEPS, NEAR = 4, 0.05


def separable(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
    deep = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False)
    wide = nn.Conv2d(inputs, outputs, 1, bias=False)
    return [deep, nn.BatchNorm2d(inputs), nn.ReLU(), wide, nn.BatchNorm2d(outputs), nn.ReLU()]


class MobileNet(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
        self.features = nn.Sequential(*stem, *separable(8, 16, 1), *separable(16, 32, 2), *separable(32, 64, 1))
        self.classifier = nn.Linear(64, 8)

    def forward(self, x: Any) -> Any:
        return self.classifier(self.features(x).mean((2, 3)))


@dataclass(frozen=True)
class Case:
    word: str
    target: str | None
    quantization: bool
    distillation: bool
    scaler: bool


@dataclass(frozen=True)
class Run:
    """What came out: the sparsity wanted and found, whether it is rounded as asked, and whether the file verifies."""

    wanted: float
    found: float
    rounded: bool
    verified: bool

    @property
    def holds(self) -> bool:
        return abs(self.wanted - self.found) < NEAR and self.rounded and self.verified


def run(case: Case, epochs: float) -> Run:
    torch.manual_seed(0)
    net = MobileNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    holds = case.word in ("false", "constant", "transfer", "sparse-transfer")
    if holds:
        for name in ("features.6", "features.12", "classifier"):
            weight = net.get_submodule(name).weight.data
            weight[weight.abs() < weight.abs().flatten().kthvalue(int(0.8 * weight.numel())).values] = 0
    scaler = torch.amp.GradScaler("cpu") if case.scaler else None
    manager, wrapped = osp.create.initialize(
        net, optimizer, STEPS, case.word, case.quantization, distillation=case.distillation, scaler=scaler,
        recipe_variables={"num_epochs": epochs, "target": case.target},
    )  # fmt: skip
    train(net, optimizer, wrapped, manager, case.scaler)
    names = ["features.6.weight", "features.12.weight", "classifier.weight"]
    wanted = 0.8
    if not holds:
        modifier: Any = manager.pruning_modifiers[0]
        names = list(modifier.params)
        wanted = getattr(modifier, "compression_sparsity", None) or modifier.final_sparsity
    elif not manager.pruning_modifiers:  # nothing holds the zeros, and nobody asked for it
        wanted = 0.0
    rounded = any(isinstance(one, torch.ao.quantization.FakeQuantize) for one in net.modules()) == case.quantization
    manager.finalize(net)
    weights = [net.get_submodule(name.rpartition(".")[0]).weight for name in names]
    zeros = [float((one == 0).float().mean()) for one in weights]
    found = sum(share * one.numel() for share, one in zip(zeros, weights)) / sum(one.numel() for one in weights)
    return Run(wanted, found, rounded, verified(net.eval(), case, dict(zip(names, zeros))))


def train(net: Any, optimizer: Any, wrapped: Any, manager: Any, scaled: bool) -> None:
    end = min((one.start_epoch for one in manager.quantization_modifiers), default=float("inf"))
    random = torch.Generator().manual_seed(0)
    for step in range(manager.max_epochs * STEPS + 1):
        x, labels = torch.randn(4, 3, 16, 16, generator=random), torch.randint(0, 8, (4,), generator=random)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=scaled and step / STEPS < end):
            loss = nn.functional.cross_entropy(net(x), labels)
        if scaled:
            wrapped.scale(loss).backward()
            wrapped.step(optimizer)
            wrapped.update()
        else:
            loss.backward()
            wrapped.step()


def verified(net: Any, case: Case, zeros: dict[str, float]) -> bool:
    """By the record of an int8 file; a float file by what each layer has to hold."""
    example = torch.randn(2, 3, 16, 16)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "out.onnx")
        if case.quantization:
            osp.torch.export_quantized(net, example, path, target="ampere" if case.target == "tensorrt" else "")
            return osp.verify(path).report.ok
        torch.onnx.export(net, (example,), path, dynamo=False)
        if not any(zeros.values()) or case.word == "false":
            return bool(osp.inspect(path).report.rows)
        pattern = {"vnni": "tile:1x4", "tensorrt": "2:4"}.get(case.target or "", "unstructured")
        pattern = pattern if case.word in ("true", "acdc", "mfac", "movement", "obs") else "unstructured"
        fixed = pattern == "2:4"
        return all(
            osp.verify(
                path, pattern=pattern, sparsity=None if fixed else max(0.0, share - 0.02), include=[name],
                allow=("stem", "small", "depthwise"),
            ).report.ok
            for name, share in zeros.items()
        )  # fmt: skip


def rows(words: list[str], epochs: float) -> Iterator[tuple[str, bool]]:
    """The lines of the table, and whether all of each holds."""
    yield "| `pruning` | target | runs | wanted | found | rounded where asked | verify | s |", True
    yield "|---|---|---|---|---|---|---|---|", True
    for word, target in itertools.product(words, TARGETS):
        begin, found = time.perf_counter(), []
        for rest in itertools.product((True, False), repeat=3):
            found.append(run(Case(word, target, *rest), epochs))
        levels = [f"{one.found:.3f}" for one in found if one.wanted]
        wanted = " ".join(sorted({f"{one.wanted:.2f}" for one in found if one.wanted}))
        cells = [
            f"`{word}`", target or "", str(len(found)), wanted, f"{min(levels)} to {max(levels)}",
            f"{sum(one.rounded for one in found)}", f"{sum(one.verified for one in found)}",
            f"{time.perf_counter() - begin:.0f}",
        ]  # fmt: skip
        good = all(one.holds or (not one.wanted and one.rounded and one.verified) for one in found)
        yield f"| {' | '.join(cells)} |", good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=float, default=20.0)
    parser.add_argument("--words", nargs="+", default=list(WORDS))
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    lines, good = [], True
    for line, holds in rows(arguments.words, arguments.epochs):
        print(line if holds else f"{line} DOES NOT HOLD", flush=True)
        lines.append(line)
        good &= holds
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
