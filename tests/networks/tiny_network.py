"""Builders of a small network and its images, for tests of the runner: `net:` and `dataset:` say sizes alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn


@dataclass(frozen=True)
class Images:
    """A batch."""

    image: np.ndarray
    labels: np.ndarray
    keys: Sequence[int]

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class Part:
    name: str
    module: Any
    inputs: Sequence[str]
    outputs: Sequence[str]
    of: Any

    def examples(self, image: Any) -> tuple[Any, ...]:
        return (image,) if self.name == "net1" or not self.of.split else (self.of.body(image).flatten(1),)


class Tiny(nn.Module):  # type: ignore[misc, unused-ignore]
    """Two convolutions with batch normalizations, and a matrix; of `split` these are two parts."""

    classes = 4

    def __init__(self, split: bool, frozen: bool) -> None:
        super().__init__()
        self.split, self.frozen = split, frozen
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))

    def train(self, mode: bool = True) -> Tiny:
        super().train(mode)
        for one in self.modules() if self.frozen else ():
            if isinstance(one, nn.BatchNorm2d):
                one.eval()
        return self

    @property
    def nets(self) -> Sequence[Part]:
        if not self.split:
            return (Part("net", Holder(("body", "head"), self), ("image",), ("logits",), self),)
        first = Part("net1", Holder(("body",), self), ("image",), ("features",), self)
        return (first, Part("net2", Holder(("head",), self), ("pooled",), ("logits",), self))

    def forward(self, image: Any) -> Any:
        return self.head(self.body(image).flatten(1))

    def losses(self, batch: Images, total: Any) -> dict[str, Any]:
        logits, count = self(torch.from_numpy(batch.image)), total(float(len(batch)))
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(batch.labels), reduction="sum")
        return {"cls": loss / count}

    def teach(self, batch: Images, teacher: Any, total: Any) -> dict[str, Any]:
        image, count = torch.from_numpy(batch.image), total(float(len(batch)))
        with torch.no_grad():
            taught = teacher(image)
        return {"cls": (self(image) - taught).square().sum() / count}

    def answers(self, batch: Images) -> Sequence[Any]:
        with torch.no_grad():
            return list(self(torch.from_numpy(batch.image)).argmax(1).numpy())


class Holder(nn.Module):  # type: ignore[misc, unused-ignore]
    """Some children under their names."""

    def __init__(self, names: Sequence[str], network: Tiny) -> None:
        super().__init__()
        self.names, self.training = tuple(names), network.training
        for name in names:
            self.add_module(name, network.get_submodule(name))

    def forward(self, x: Any) -> Any:
        for name in self.names:
            x = self.get_submodule(name)(x)
            x = x.flatten(1) if name == "body" else x
        return x


@dataclass(frozen=True)
class Blobs:
    """Images that show their class: the brightest quarter."""

    size: int
    batch: int
    seed: int
    classes: int = 4

    @property
    def fingerprint(self) -> str:
        return f"{self.size} of {self.seed}"

    def per_epoch(self, batch: int) -> int:
        return self.size // batch

    def epoch(
        self, number: int, batch: int, rank: int = 0, processes: int = 1, begin: int = 0, agree: Any = None
    ) -> Iterator[Images]:
        order = np.random.default_rng([self.seed, number]).permutation(self.size)
        for at in range(begin, self.per_epoch(batch)):
            whole = order[at * batch : (at + 1) * batch]
            yield self.images(np.array_split(whole, processes)[rank] if processes > 1 else whole)

    def images(self, keys: Any) -> Images:
        labels = np.asarray(keys, np.int64) % 4
        image = np.stack([np.random.default_rng([self.seed, int(key)]).random((1, 8, 8), np.float32) for key in keys])
        for one, label in zip(image, labels):
            one[0, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 0.5
        return Images(image, labels, [int(key) for key in keys])


class Accuracy:
    main = "top1"

    def __init__(self) -> None:
        self.right = self.seen = 0

    def add(self, batch: Images, answers: Sequence[Any]) -> None:
        self.right += int((np.array(answers) == batch.labels).sum())
        self.seen += len(batch)

    def figures(self) -> dict[str, float]:
        return {"top1": self.right / self.seen}


class Builders:
    """What a runner is handed."""

    def network(self, net: Sequence[Mapping[str, Any]], seed: int) -> Any:
        torch.manual_seed(seed)
        return Tiny(net[0]["type"] == "split", bool(net[0].get("frozen")))

    def load(self, network: Any, state: Mapping[str, Any]) -> list[str]:
        missing = network.load_state_dict(dict(state), strict=False).missing_keys
        return [f"not in the checkpoint: {name}" for name in missing if "num_batches" not in name]

    def dataset(self, section: Mapping[str, Any], part: str, seed: int) -> Any:
        return Blobs(section[part]["size"], section[part]["batch_size"], seed, section[part].get("classes", 4))

    def evaluator(self, section: Mapping[str, Any], dataset: Any) -> Any:
        return Accuracy()

    def finish(
        self, network: Any, files: Mapping[str, str], image: Any, path: str, whole: bool, dataset: Any = None
    ) -> list[str]:
        return []
