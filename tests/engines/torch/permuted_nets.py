"""Modules whose channels move, with the axes that have to; and those in which an order must not be lost.

What other tools permute is here in structures of our own: stacks with every norm, forks and joins, groups, siblings
that cannot move, joins along channels and along the batch, flattened channels, attributes, attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Moved = Mapping[str, Sequence[int]]
"""For each parameter the axes along which it moves at least."""


class Stack(nn.Module):
    """Convolutions with a norm behind each but the last."""

    def __init__(self, norm: Callable[[], nn.Module] | None = None, width: int = 32) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList((norm or nn.Identity)() for _ in range(3))
        self.last = nn.Conv2d(width, 8, 1)

    def forward(self, x: Any) -> Any:
        for conv, norm in zip(self.convs, self.norms):
            x = functional.relu(norm(conv(x)), inplace=True)
        return self.last(x)


STACK = {
    "convs.0.weight": (0,), "convs.0.bias": (0,), "convs.1.weight": (0, 1), "convs.2.weight": (0, 1),
    "convs.2.bias": (0,), "last.weight": (1,),
}  # fmt: skip


class Groups(nn.Module):
    """Depthwise, dense, and groups of both sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(16, 32, 1)
        self.depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.dense = nn.Conv2d(32, 32, 1)
        self.halves = nn.Conv2d(32, 32, 3, padding=1, groups=2)
        self.then = nn.Conv2d(32, 32, 1)
        self.pairs = nn.Conv2d(32, 32, 1, groups=16)

    def forward(self, x: Any) -> Any:
        x = self.dense(self.depthwise(self.first(x)))
        return self.pairs(self.then(self.halves(x)))


class Siblings(nn.Module):
    """One input for four convolutions, of one, two, four and eight groups."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(16, 64, 1)
        self.parts = nn.ModuleList(nn.Conv2d(64, 64, 1, groups=groups) for groups in (1, 2, 4, 8))
        self.last = nn.Conv2d(64, 8, 1)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.last(sum((part(x) for part in self.parts[1:]), self.parts[0](x)))


class Residual(nn.Module):
    """A stream that blocks of half its width add to."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32))
        self.down = nn.ModuleList(nn.Conv2d(32, 16, 1) for _ in range(3))
        self.up = nn.ModuleList(nn.Conv2d(16, 32, 1) for _ in range(3))
        self.last = nn.Conv2d(32, 8, 1)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        x = x + self.up[0](torch.relu(self.down[0](x)))
        x = self.up[1](self.down[1](x)) + self.up[2](self.down[2](x))
        return self.last(x)


class Flattened(nn.Module):
    """A convolution read by a matrix; one beside it that flattens what it reads itself."""

    def __init__(self, side: int, function: bool) -> None:
        super().__init__()
        self.first, self.beside = nn.Conv2d(16, 32, 1), nn.Conv2d(32, 32, 1)
        self.flatten = (lambda x: torch.flatten(x, 1)) if function else nn.Flatten()
        width = 32 * side * side
        self.one, self.other, self.last = nn.Linear(width, 16), nn.Linear(width, 16), nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.last(self.one(self.flatten(self.beside(x))) + self.other(self.flatten(x)))


class Joined(nn.Module):
    """Two paths, one behind the other: along channels, or along the batch."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.first, self.left = nn.Conv2d(16, 32, 1), nn.Conv2d(32, 32, 1)
        self.right = nn.Conv2d(32, 64 if axis == 1 else 32, 1)
        self.last = nn.Conv2d(96 if axis == 1 else 32, 8, 1)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.last(torch.cat([self.left(x), self.right(x)], self.axis))


class Attribute(nn.Module):
    """A parameter of the module itself meets the channels, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.randn(32, 5, 5))
        self.first, self.then, self.last = nn.Conv2d(16, 32, 1), nn.Conv2d(32, 32, 1), nn.Conv2d(32, 8, 1)

    def forward(self, x: Any) -> Any:
        offset = self.offset.expand(x.shape[0], -1, -1, -1)
        return self.last(self.then(self.first(x) + offset) + offset)


class Square(nn.Module):
    """A parameter with two axes of the same size, read turned round."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.randn(16, 16))
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x) + self.offset.expand(x.shape[0], -1, -1).permute(0, 2, 1))


class Attention(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.first = nn.MultiheadAttention(32, 4, batch_first=batch_first)
        self.then = nn.MultiheadAttention(32, 4, batch_first=batch_first)

    def forward(self, x: Any) -> Any:
        x, _ = self.first(x, x, x)
        return self.then(x, x, x)[0]


class Lines(nn.Module):
    """Conv1d over the pixels of an image, beside a Conv2d."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.lines = nn.Conv2d(16, 32, 1), nn.Conv1d(32, 32, 3, padding=1)
        self.image, self.last = nn.Conv2d(32, 32, 1), nn.Conv2d(32, 8, 1)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        shape = x.shape
        lines = self.lines(x.view(shape[0], shape[1], shape[2] * shape[3])).view(shape)
        return self.last(lines + self.image(x))


class Squeezed(nn.Module):
    """A gate for each channel, and one layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice = nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 32, 1)
        self.down, self.up, self.last = nn.Linear(32, 16), nn.Linear(16, 32), nn.Conv2d(32, 8, 1)

    def forward(self, x: Any) -> Any:
        x = self.twice(torch.relu(self.twice(self.first(x))))
        gate = torch.sigmoid(self.up(functional.silu(self.down(x.mean((2, 3))))))
        return self.last(x * gate[:, :, None, None])


class UpAndDown(nn.Module):
    """ConvTranspose, in groups too, and resizing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.up = nn.Conv2d(16, 32, 3, padding=1), nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.grouped = nn.ConvTranspose2d(16, 32, 2, stride=2, groups=2)
        self.last = nn.Conv2d(32, 8, 1)

    def forward(self, x: Any) -> Any:
        x = functional.interpolate(self.up(functional.max_pool2d(self.first(x), 2)), scale_factor=2)
        return self.last(functional.avg_pool2d(self.grouped(x), 2))


class Functions(nn.Module):
    """Layers as functions over the module's own parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.scale = nn.Parameter(torch.randn(32, 16, 1, 1)), nn.Parameter(torch.rand(32) + 0.5)
        self.register_buffer("mean", torch.randn(32))
        self.register_buffer("variance", torch.rand(32) + 0.5)
        self.matrix, self.bias = nn.Parameter(torch.randn(8, 32)), nn.Parameter(torch.randn(8))

    def forward(self, x: Any) -> Any:
        x = functional.batch_norm(functional.conv2d(x, self.kernel), self.mean, self.variance, self.scale)
        x = functional.adaptive_avg_pool2d(functional.hardswish(x), 1).flatten(1)
        return functional.log_softmax(
            functional.linear(functional.dropout(x, 0.1, self.training), self.matrix, self.bias), 1
        )


class Gated(nn.Module):
    """A transformer block written by hand: joint projection, heads, gates."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.wide, self.narrow, self.head = nn.Linear(32, 128), nn.Linear(64, 32), nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        q, k, v = self.qkv(self.norm(x)).reshape(x.shape[0], x.shape[1], 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(q @ k.transpose(-2, -1) / 8**0.5, -1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        value, gate = self.wide(x).chunk(2, -1)
        return self.head(x + self.narrow(value * functional.gelu(gate)))


class Recurrent(nn.Module):
    """Two layers in both directions."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.first, self.lines = nn.Linear(8, 32), kind(32, 16, num_layers=2, batch_first=True, bidirectional=True)
        self.then, self.last = nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        return self.last(torch.relu(self.then(self.lines(self.first(x))[0])))


class Both(nn.Module):
    """An encoder and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 32), nn.Linear(32, 8)
        self.both = nn.Transformer(32, 4, 1, 1, 48, batch_first=True)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.last(self.both(x, x))


class Pixels(nn.Module):
    """Channels that become pixels and pixels that become channels, and a path by the side of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(16, 32, 1), nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.up, self.last = nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(96, 16, 1)
        self.mix, self.out = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(32, 8, 1)

    def forward(self, x: Any) -> Any:
        x = functional.relu(self.first(x))
        x = self.last(torch.cat([self.up(self.down(x)), x], 1))
        return self.out(functional.pixel_unshuffle(self.mix(functional.pixel_shuffle(x, 2)), 2))


class Single(nn.Module):
    """A norm that computes in single precision whatever it is given, over masked attention."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale = nn.Linear(16, 32), nn.Parameter(torch.rand(32) + 0.5)
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32, bias=False) for _ in range(4))
        self.register_buffer("mask", torch.ones(16, 16).tril())
        self.last = nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        single = x.to(torch.float32)
        y = self.scale * (single * torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        batch, length = x.shape[:2]
        q, k, v = (one(y).view(batch, length, 4, 8).transpose(1, 2) for one in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-2, -1)) * 8**-0.5
        weights = scores.masked_fill(self.mask[:length, :length] == 0, float("-inf")).softmax(-1)
        return self.last(x + self.out((weights @ v).transpose(1, 2).contiguous().view(batch, length, 32)))


class Shuffle(nn.Module):
    def forward(self, x: Any) -> Any:
        n, c, h, w = x.shape
        return x.view(n, 4, c // 4, h, w).transpose(1, 2).reshape(n, c, h, w)


def conv_norm(norm: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: Stack(norm)


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Moved]] = {
    "plain": (Stack, (2, 32, 5, 5), STACK),
    "batch norm": (
        conv_norm(lambda: nn.BatchNorm2d(32)), (2, 32, 5, 5),
        {**STACK, "norms.1.weight": (0,), "norms.1.running_mean": (0,), "norms.2.running_var": (0,)},
    ),
    "batch norm without statistics": (
        conv_norm(lambda: nn.BatchNorm2d(32, track_running_stats=False)), (2, 32, 5, 5),
        {**STACK, "norms.0.bias": (0,)},
    ),
    "group norm": (conv_norm(lambda: nn.GroupNorm(4, 32)), (2, 32, 5, 5), {**STACK, "norms.1.weight": (0,)}),
    "instance norm": (
        conv_norm(lambda: nn.InstanceNorm2d(32, affine=True)), (2, 32, 5, 5), {**STACK, "norms.1.weight": (0,)},
    ),
    "instance norm without numbers": (conv_norm(lambda: nn.InstanceNorm2d(32)), (2, 32, 5, 5), STACK),
    "layer norm over all": (
        conv_norm(lambda: nn.LayerNorm([32, 5, 5])), (2, 32, 5, 5), {**STACK, "norms.1.weight": (0,)},
    ),
    "layer norm over rows": (conv_norm(lambda: nn.LayerNorm(5)), (2, 32, 5, 5), STACK),
    "prelu": (conv_norm(lambda: nn.PReLU(32)), (2, 32, 5, 5), {**STACK, "norms.1.weight": (0,)}),
    "upsampled": (conv_norm(lambda: nn.Upsample(scale_factor=2)), (2, 32, 5, 5), STACK),
    "response norm": (conv_norm(lambda: nn.LocalResponseNorm(5, 1.0)), (2, 32, 5, 5), {}),
    "shuffled": (conv_norm(Shuffle), (2, 32, 5, 5), {"convs.1.weight": (0, 1), "last.weight": (1,)}),
    "groups": (
        Groups, (2, 16, 5, 5),
        {"first.weight": (0,), "first.bias": (0,), "depthwise.weight": (0,), "depthwise.bias": (0,),
         "dense.weight": (0, 1), "halves.weight": (1,)},
    ),
    "siblings": (
        Siblings, (2, 16, 5, 5), {"first.weight": (0,), **{f"parts.{at}.weight": (1,) for at in range(4)}},
    ),
    "residual": (
        Residual, (2, 16, 5, 5),
        {"first.0.weight": (0,), "first.1.weight": (0,), **{f"down.{at}.weight": (0, 1) for at in range(3)},
         **{f"up.{at}.weight": (0, 1) for at in range(3)}, "last.weight": (1,)},
    ),
    "flatten": (lambda: Flattened(3, False), (2, 16, 3, 3), {"one.weight": (0,), "other.weight": (0,)}),
    "flatten function": (lambda: Flattened(3, True), (2, 16, 3, 3), {"one.weight": (0,), "last.weight": (1,)}),
    "flatten pixels": (
        lambda: Flattened(1, True), (2, 16, 1, 1),
        {"first.weight": (0,), "beside.weight": (0, 1), "one.weight": (0, 1), "other.weight": (0, 1)},
    ),
    "strides and sizes that are fixed": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.AvgPool2d(3, 2, 1),
            nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8),
        ),
        (2, 3, 32, 32),
        {"0.weight": (0,), "2.weight": (0, 1), "4.weight": (0, 1), "6.weight": (0, 1), "8.weight": (1,)},
    ),
    "joined channels": (
        lambda: Joined(1), (2, 16, 5, 5),
        {"first.weight": (0,), "left.weight": (0, 1), "right.weight": (0, 1), "last.weight": (1,)},
    ),
    "joined batches": (
        lambda: Joined(0), (2, 16, 5, 5),
        {"first.weight": (0,), "left.weight": (0, 1), "right.weight": (0, 1), "last.weight": (1,)},
    ),
    "attribute": (
        Attribute, (2, 16, 5, 5), {"offset": (0,), "first.weight": (0,), "then.weight": (0, 1), "last.weight": (1,)},
    ),
    "square attribute": (Square, (2, 16, 16), {"offset": (0,), "first.weight": (0,), "last.weight": (1,)}),
    "attention": (lambda: Attention(True), (2, 6, 32), {"first.out_proj.weight": (0,), "then.in_proj_weight": (1,)}),
    "attention, batch inside": (
        lambda: Attention(False), (2, 6, 32), {"first.out_proj.weight": (0,), "then.in_proj_weight": (1,)},
    ),
    "lines": (
        Lines, (2, 16, 5, 5),
        {"first.weight": (0,), "lines.weight": (0, 1), "image.weight": (0, 1), "last.weight": (1,)},
    ),
    "gates": (
        Squeezed, (2, 16, 5, 5),
        {"first.weight": (0,), "twice.weight": (0, 1), "down.weight": (0, 1), "up.weight": (0, 1), "last.weight": (1,)},
    ),
    "up and down": (UpAndDown, (2, 16, 8, 8), {"first.weight": (0,), "up.weight": (0, 1), "last.weight": (1,)}),
    "functions": (Functions, (2, 16, 5, 5), {"kernel": (0,), "scale": (0,), "mean": (0,), "matrix": (1,)}),
    "lstm": (
        lambda: Recurrent(nn.LSTM), (2, 6, 8),
        {"first.weight": (0,), "lines.weight_ih_l0": (0, 1), "lines.bias_hh_l1_reverse": (0,), "last.weight": (1,)},
    ),
    "gru": (
        lambda: Recurrent(nn.GRU), (2, 6, 8),
        {"first.weight": (0,), "lines.weight_hh_l0": (0, 1), "lines.weight_ih_l1": (0, 1), "last.weight": (1,)},
    ),
    "encoder and decoder": (
        Both, (2, 6, 8),
        {"first.weight": (0,), "both.decoder.layers.0.linear1.weight": (0, 1), "both.decoder.norm.weight": (0,)},
    ),
    "pixels": (
        Pixels, (2, 16, 8, 8), {"first.weight": (0,), "down.weight": (0, 1), "last.weight": (1,), "mix.weight": (0,)},
    ),
    "single precision": (
        Single, (2, 6, 16), {"first.weight": (0,), "scale": (0,), "q.weight": (1,), "out.weight": (0, 1)},
    ),
    "transformer": (
        lambda: nn.Sequential(
            nn.Linear(16, 32), nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 48, batch_first=True), 2),
            nn.Linear(32, 8),
        ),
        (2, 6, 16),
        {"0.weight": (0,), "1.layers.0.linear1.weight": (0, 1), "1.layers.1.linear2.weight": (0, 1),
         "1.layers.0.norm2.bias": (0,), "1.layers.1.self_attn.in_proj_weight": (1,), "2.weight": (1,)},
    ),
}  # fmt: skip


# -- those in which something about the order is not seen in layers


class Swapped(nn.Module):
    """Halves that change places, and channels that are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.then, self.last = nn.Conv2d(16, 32, 1), nn.Conv2d(32, 32, 1), nn.Conv2d(32, 8, 1)

    def forward(self, x: Any) -> Any:
        a, b = self.first(x).chunk(2, 1)
        x = self.then(torch.cat([b, a], 1))
        ramp = torch.arange(x.size(1), device=x.device).view(1, -1, 1, 1).expand_as(x)
        x.add_(ramp)
        return self.last(x)


class HandWritten(nn.Module):
    """Attention whose heads are interleaved, and rotated by place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        q, k, v = (one(x).view(x.shape[0], x.shape[1], 8, 4).permute(0, 3, 1, 2) for one in (self.q, self.k, self.v))
        q = torch.cat([-q[..., 4:], q[..., :4]], -1)
        weights = torch.softmax(q @ k.transpose(-1, -2), -1)
        return self.out((weights @ v).permute(0, 2, 3, 1).reshape(x.shape))


class ByPlace(nn.Module):
    """A layer for some of the channels, written into what it was taken of; the largest, rolled and sorted ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.some, self.last = nn.Linear(16, 32), nn.Linear(16, 16), nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        x = torch.roll(self.first(x), 3, -1).clone()
        x[..., :16] = self.some(x[..., 16:])
        part = x[..., 8:16]
        part.mul_(2)
        return self.last(x.cumsum(-1)) + x.topk(8, -1).values


class Rows(nn.Module):
    """Pixels and channels of an image become one axis, and are cut otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(16, 32, 1), nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x).reshape(x.shape[0], -1, 16))


TRAPS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "swapped": (Swapped, (2, 16, 5, 5)),
    "hand written": (HandWritten, (2, 6, 16)),
    "by place": (ByPlace, (2, 6, 16)),
    "rows": (Rows, (2, 16, 4, 4)),
    "shuffled": (conv_norm(lambda: nn.ChannelShuffle(4)), (2, 32, 5, 5)),
    "response norm": (NETS["response norm"][0], (2, 32, 5, 5)),
}
