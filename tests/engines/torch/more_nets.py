"""Networks with what makes it hard to tell which tensor is which parameter: equal ones, tied ones, unused ones."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


class Transformer(nn.Module):
    """torch's own layers, which begin as copies of one, with biases of zero and scales of one."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.words = nn.Embedding(20, 16)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(16), enable_nested_tensor=False)
        self.head = nn.Linear(16, 16)

    def forward(self, words: Any) -> Any:
        return self.head(self.encoder(self.words(words)))


class Attention(nn.Module):
    """Keys and values of other widths than the queries, and a module that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.cross = nn.MultiheadAttention(16, 4, kdim=12, vdim=20, batch_first=True)
        self.own = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Any) -> Any:
        q, k, v = x.split((16, 12, 20), -1)
        y = self.norm(q + self.cross(q, k, v, need_weights=False)[0])
        return self.norm(y + self.own(y, y, y, need_weights=False)[0])


class Recurrent(nn.Module):
    """A GRU, an LSTM of two layers in both directions, and an LSTM without biases."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.gru = nn.GRU(6, 8, batch_first=True)
        self.lstm = nn.LSTM(8, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.last = nn.LSTM(16, 4, bias=False, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, words: Any) -> Any:
        x, _ = self.gru(self.words(words))
        x, _ = self.lstm(x)
        return self.out(self.last(x)[0])


class Grouped(nn.Module):
    """Groups, one and two dimensions, and every normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3, padding=1, groups=2)
        self.bn = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False)
        self.group = nn.GroupNorm(4, 8)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2, groups=2)
        self.up_bn = nn.BatchNorm2d(8)
        self.instance = nn.InstanceNorm2d(8, affine=True)
        self.act = nn.PReLU(8)
        self.line = nn.Conv1d(8, 6, 3)
        self.line_bn = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.bn(self.first(x)))
        x = self.group(self.second(x))
        x = self.act(self.instance(self.up_bn(self.up(x))))
        return self.out(torch.relu(self.line_bn(self.line(x.mean(2)))).mean(2))


class Tied(nn.Module):
    """The embedding is the output matrix; square layers, two of them equal without being tied."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(16, 16)
        self.one = nn.Linear(16, 16)
        self.two = copy.deepcopy(self.one)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 16, bias=False)
        self.head.weight = self.words.weight
        self.scorer = nn.Linear(16, 16)

    def forward(self, words: Any) -> Any:
        x = self.norm(torch.tanh(self.one(self.words(words))))
        return self.scorer(self.head(torch.tanh(self.two(x))))


class Unused(nn.Module):
    """Layers that are never called, scales of one, shifts of zero, and numbers that any network has."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.never = nn.Linear(8, 8)
        self.never_norm = nn.LayerNorm(8)
        self.norm = nn.LayerNorm(8)
        self.gain, self.shift = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
        self.scale = nn.Parameter(torch.ones(()))
        self.eye = nn.Parameter(torch.eye(8))
        self.last = nn.Linear(8, 8)
        nn.init.zeros_(self.last.bias)
        nn.init.zeros_(self.never.bias)

    def forward(self, x: Any) -> Any:
        x = self.norm(self.first(x)) * self.gain + self.shift
        return self.last(torch.tanh((x @ self.eye) * self.scale + 1.0)) * 2.0


class Scaled(nn.Module):
    """As in ConvNeXt: depthwise, a norm on channels last, two linear layers and a gain that begins equal everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, 8, 2, stride=2)
        self.parts = nn.ModuleList(nn.ModuleDict({
            "depthwise": nn.Conv2d(8, 8, 3, padding=1, groups=8), "norm": nn.LayerNorm(8),
            "wide": nn.Linear(8, 16), "narrow": nn.Linear(16, 8),
        }) for _ in range(2))  # fmt: skip
        self.gains = nn.ParameterList(nn.Parameter(torch.full((8,), 1e-1)) for _ in range(2))
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.out = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = self.stem(x).permute(0, 2, 3, 1)
        for part, gain in zip(self.parts, self.gains):
            y = part["depthwise"](x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            x = x + gain * part["narrow"](nn.functional.gelu(part["wide"](part["norm"](y))))
        rows = torch.cat((self.token.expand(x.shape[0], -1, -1), x.flatten(1, 2)), 1)
        return self.out(rows.mean(1))


MORE: dict[str, tuple[Any, Any]] = {
    "transformer": (Transformer, lambda: torch.randint(0, 20, (2, 5))),
    "attention": (Attention, lambda: torch.randn(2, 5, 48)),
    "recurrent": (Recurrent, lambda: torch.randint(0, 11, (2, 5))),
    "grouped": (Grouped, lambda: torch.randn(2, 4, 6, 6)),
    "tied": (Tied, lambda: torch.randint(0, 16, (2, 5))),
    "unused": (Unused, lambda: torch.randn(2, 3, 8)),
    "scaled": (Scaled, lambda: torch.randn(2, 4, 8, 8)),
}


def build_more(name: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    kind, example = MORE[name]
    return kind(), example()
