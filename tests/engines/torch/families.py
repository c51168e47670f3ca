"""Small networks of many families, for their operators: attention with windows, gates, loops, flows, heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 4, 4)
        self.norm, self.depthwise = nn.LayerNorm(12), nn.Conv2d(12, 12, 7, padding=3, groups=12)
        self.wide, self.narrow = nn.Linear(12, 48), nn.Linear(48, 12)
        self.gamma = nn.Parameter(torch.full((12,), 0.1))
        self.head = nn.Linear(12, 5)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.gamma * self.narrow(functional.gelu(self.wide(y), approximate="tanh"))
        return self.head((x + y.permute(0, 3, 1, 2)).mean((-2, -1)))


class Swin(nn.Module):
    """Window attention on rolled rows, with a mask and a table of relative places."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 2, 2)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.table = nn.Parameter(torch.randn(49, 2) * 0.1)
        grid = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        apart = (grid[:, :, None] - grid[:, None]).permute(1, 2, 0) + 3
        self.register_buffer("places", apart[..., 0] * 7 + apart[..., 1])
        self.register_buffer("seen", torch.where(torch.rand(4, 1, 16, 16) < 0.2, -100.0, 0.0))
        self.merge = nn.Linear(64, 32, bias=False)

    def forward(self, x: Any) -> Any:
        x = torch.roll(self.patch(x).permute(0, 2, 3, 1), (-2, -2), (1, 2))
        n, h, w, c = x.shape
        y = x.view(n, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        q, k, v = self.qkv(y).view(-1, 16, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        logits = (q * 8**-0.5) @ k.transpose(-2, -1) + self.table[self.places].permute(2, 0, 1)
        logits = (logits.view(n, 4, 2, 16, 16) + self.seen).view(-1, 2, 16, 16)
        y = self.out((logits.softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, c))
        y = y.view(n, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        x = x + torch.roll(y, (2, 2), (1, 2))
        parts = [x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
        return self.merge(torch.cat(parts, -1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.norm, self.middle = nn.GroupNorm(4, 16), nn.Conv2d(16, 16, 3, padding=2, dilation=2)
        self.up, self.mix = nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1), nn.Conv2d(16, 8, 3, padding=1)
        self.out = nn.Conv2d(11, 2, 1)

    def forward(self, x: Any) -> Any:
        a = functional.silu(self.down1(functional.pad(x, (1, 1, 1, 1), mode="reflect")))[..., 1:-1, 1:-1]
        b = functional.mish(self.norm(self.down2(functional.max_pool2d(a, 3, 2, 1))))
        c = functional.interpolate(functional.avg_pool2d(self.middle(b), 2), scale_factor=2, mode="nearest")
        d = functional.leaky_relu(self.mix(torch.cat((a, self.up(b + c)), 1)), 0.2)
        low = functional.interpolate(d, size=(8, 8), mode="bilinear", align_corners=False)
        high = functional.interpolate(low, scale_factor=2.0, mode="bicubic", align_corners=False)
        return self.out(torch.cat((d, functional.interpolate(high, size=x.shape[-2:])[:, :3]), 1))


class EfficientNet(nn.Module):
    """Squeeze and excitation, depthwise, uneven padding."""

    def __init__(self) -> None:
        super().__init__()
        self.grow, self.bn1 = nn.Conv2d(3, 24, 1, bias=False), nn.BatchNorm2d(24)
        self.depthwise, self.bn2 = nn.Conv2d(24, 24, 5, 2, groups=24, bias=False), nn.BatchNorm2d(24)
        self.squeeze, self.excite = nn.Conv2d(24, 6, 1), nn.Conv2d(6, 24, 1)
        self.shrink, self.bn3, self.head = nn.Conv2d(24, 8, 1, bias=False), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        x = functional.silu(self.bn1(self.grow(x)))
        x = functional.hardswish(self.bn2(self.depthwise(functional.pad(x, (1, 2, 1, 2)))))
        gate = functional.hardsigmoid(self.excite(functional.relu6(self.squeeze(functional.adaptive_avg_pool2d(x, 1)))))
        return functional.log_softmax(self.head(self.bn3(self.shrink(x * gate)).amax((2, 3))), -1)


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, 16, 4, 4), nn.Parameter(torch.randn(1, 1, 16))
        self.position = nn.Parameter(torch.randn(1, 17, 16))
        self.norm, self.own = nn.LayerNorm(16), nn.MultiheadAttention(16, 4, batch_first=True)
        self.wide, self.narrow, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.position
        y = self.norm(x)
        x = x + self.own(y, y, y, need_weights=False)[0]
        x = x + self.narrow(functional.gelu(self.wide(x)))
        return self.head(x[:, 0])


class Rotary(nn.Module):
    """A causal language model with rotary places, grouped keys, RMS norms, a gate and a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 16)
        self.scale, self.last = nn.Parameter(torch.ones(16) * 1.1), nn.Parameter(torch.ones(16) * 0.9)
        self.q, self.k, self.v = nn.Linear(16, 16, bias=False), nn.Linear(16, 8, bias=False), nn.Linear(16, 8)
        self.out, self.gate, self.up = nn.Linear(16, 16), nn.Linear(16, 24), nn.Linear(16, 24)
        self.down = nn.Linear(24, 16)
        self.register_buffer("speeds", 10000 ** (-torch.arange(0, 4, 2) / 4))

    def norm(self, x: Any, scale: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * scale

    def turned(self, x: Any) -> Any:
        angles = torch.outer(torch.arange(x.shape[-2]).float(), self.speeds)
        cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def forward(self, words: Any) -> Any:
        x = self.words(words)
        n, s, _ = x.shape
        y = self.norm(x, self.scale)
        q, k, v = (one(y).view(n, s, -1, 4).transpose(1, 2) for one in (self.q, self.k, self.v))
        q, k = self.turned(q), self.turned(k)
        k, v = (one[:, :, None].expand(-1, -1, 2, -1, -1).reshape(n, 4, s, 4) for one in (k, v))
        logits = q @ k.transpose(-1, -2) / 2
        logits = logits.masked_fill(torch.ones(s, s, dtype=torch.bool).tril().logical_not(), float("-inf"))
        x = x + self.out((logits.softmax(-1) @ v).transpose(1, 2).reshape(n, s, 16))
        y = self.norm(x, self.last)
        x = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return x @ self.words.weight.T


class Yolo(nn.Module):
    """A head with splits, a grid, an expectation over bins, and the best of each."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.cv1, self.cv2 = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 1), nn.Conv2d(32, 16, 1)
        self.part = nn.Conv2d(8, 8, 3, padding=1)
        self.box, self.kind = nn.Conv2d(16, 32, 1), nn.Conv2d(16, 6, 1)
        self.register_buffer("bins", torch.arange(8.0))

    def forward(self, x: Any) -> Any:
        x = functional.silu(self.cv1(self.stem(x)))
        a, b = x.split(8, 1)
        x = self.cv2(torch.cat((a, b, b + self.part(b), functional.max_pool2d(b, 5, 1, 2)), 1))
        x = functional.interpolate(x, scale_factor=2, mode="nearest")
        box = self.box(x).flatten(2).view(x.shape[0], 4, 8, -1).softmax(2)
        apart = (box * self.bins.view(1, 1, 8, 1)).sum(2)
        rows, cols = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
        grid = torch.stack((cols, rows)).flatten(1) + 0.5
        corners = torch.cat((grid - apart[:, :2], grid + apart[:, 2:]), 1)
        scores = self.kind(x).flatten(2).sigmoid()
        best, where = scores.max(1).values.topk(7, dim=1)
        chosen = corners.gather(2, where[:, None].expand(-1, 4, -1))
        return torch.cat((chosen, best[:, None]), 1), torch.cat((corners, scores), 1)


class Flow(nn.Module):
    """Affine couplings, an invertible 1x1 convolution, and the logarithm of the density."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.net2 = nn.Linear(3, 12), nn.Linear(6, 6)
        self.mix, self.log_scale, self.shift = (
            nn.Parameter(one) for one in (torch.randn(6, 6), torch.randn(6) * 0.1, torch.randn(6))
        )

    def forward(self, x: Any) -> Any:
        x = (x + self.shift) * self.log_scale.exp()
        x = torch.einsum("bi,ij->bj", x, self.mix)
        a, b = x[:, :3], x[:, 3:].flip(-1)
        scale, shift = self.net2(functional.elu(self.net(a)[:, ::2])).chunk(2, -1)
        scale = torch.tanh(scale)
        x = torch.cat((a, b * scale.exp() + shift), -1)
        density = -0.5 * (x.square() + torch.tensor(6.2831853).log()).sum(-1)
        return x, density + scale.sum(-1) + self.log_scale.sum() + functional.softplus(x).cumsum(-1).clamp(-3, 3).sum(
            -1
        )


class Seq2Seq(nn.Module):
    """A GRU that reads, and one that writes a step at a time with attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 8)
        self.reads, self.writes = nn.GRU(8, 8, bidirectional=True, batch_first=True), nn.GRUCell(8, 16)
        self.bridge, self.look, self.out = nn.Linear(16, 16), nn.Linear(16, 16, bias=False), nn.Linear(32, 12)

    def forward(self, words: Any) -> Any:
        seen, last = self.reads(self.words(words))
        state = torch.tanh(self.bridge(last.transpose(0, 1).flatten(1)))
        token, found = self.words.weight[0].expand(words.shape[0], -1), []
        for _ in range(3):
            state = self.writes(token, state)
            weight = torch.bmm(self.look(seen), state.unsqueeze(2)).softmax(1)
            logits = self.out(torch.cat((state, (weight * seen).sum(1)), -1))
            found.append(logits)
            token = logits.softmax(-1) @ self.words.weight
        return torch.stack(found, 1)


class Wave(nn.Module):
    """Dilated causal convolutions with gates, on sound; a convolution of a fixed length, upwards."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gates = nn.Conv1d(1, 8, 1), nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=d) for d in (1, 2, 4))
        self.skips = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(3))
        self.norm, self.up = nn.InstanceNorm1d(8, affine=True), nn.ConvTranspose1d(8, 2, 4, 2, 1)

    def forward(self, x: Any) -> Any:
        x, total = self.first(x), 0.0
        for gate, skip in zip(self.gates, self.skips):
            a, b = gate(functional.pad(x, (gate.dilation[0], 0))).chunk(2, 1)
            y = skip(torch.tanh(a) * torch.sigmoid(b))
            x, total = x + y, total + y
        return self.up(self.norm(functional.prelu(total, self.first.weight[:, 0, 0])))


class Graph(nn.Module):
    """Messages over edges: index_select, scatter_add, one_hot, where."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.edge, self.out = nn.Linear(5, 8), nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, x: Any, edges: Any) -> Any:
        h = self.inside(x)
        sent = torch.relu(self.edge(torch.cat((h[edges[0]], h.index_select(0, edges[1])), -1)))
        h = h + torch.zeros_like(h).scatter_add(0, edges[1][:, None].expand(-1, 8), sent)
        h = torch.where(h > 0, h, torch.exp(h) - 1) / h.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        return self.out(h) + functional.one_hot(x.argmax(-1) % 3, 3).float()


class Volume(nn.Module):
    """Three dimensions, and means over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bn, self.second = nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.Conv3d(4, 4, 2, 2)
        self.up, self.out = nn.ConvTranspose3d(4, 2, 2, 2), nn.Linear(2, 3)

    def forward(self, x: Any) -> Any:
        x = functional.max_pool3d(torch.relu(self.bn(self.first(x))), 2)
        x = functional.interpolate(self.second(x), scale_factor=2, mode="trilinear")
        x = functional.adaptive_avg_pool3d(self.up(x), (2, 2, 2)).std((2, 3, 4))
        return self.out(x)


FAMILIES: dict[str, tuple[Any, Any]] = {
    "convnext": (ConvNeXt, lambda: (torch.randn(2, 3, 16, 16),)),
    "swin": (Swin, lambda: (torch.randn(2, 3, 16, 16),)),
    "unet": (UNet, lambda: (torch.randn(2, 3, 16, 16),)),
    "efficientnet": (EfficientNet, lambda: (torch.randn(2, 3, 15, 15),)),
    "vit": (ViT, lambda: (torch.randn(2, 3, 16, 16),)),
    "rotary": (Rotary, lambda: (torch.randint(0, 30, (2, 7)),)),
    "yolo": (Yolo, lambda: (torch.randn(2, 3, 16, 16),)),
    "flow": (Flow, lambda: (torch.randn(4, 6),)),
    "seq2seq": (Seq2Seq, lambda: (torch.randint(0, 12, (2, 5)),)),
    "wave": (Wave, lambda: (torch.randn(2, 1, 20),)),
    "graph": (Graph, lambda: (torch.randn(6, 5), torch.randint(0, 6, (2, 9)))),
    "volume": (Volume, lambda: (torch.randn(2, 1, 8, 8, 8),)),
}


def build_family(name: str) -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(0)
    kind, example = FAMILIES[name]
    return kind(), example()
