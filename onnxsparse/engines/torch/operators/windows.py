"""How kernels lie on their input: pads that are given or follow from `auto_pad`, and the sizes that result."""

from __future__ import annotations

from dataclasses import dataclass

from torch.nn import functional

from onnxsparse.engines.torch.operators.values import Tensor


@dataclass(frozen=True)
class Window:
    """A kernel on each spatial axis; `before` and `after` are the pads."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def reach(self) -> list[int]:
        return [(size - 1) * dilation + 1 for size, dilation in zip(self.kernel, self.dilations)]

    @property
    def symmetric(self) -> bool:
        return self.before == self.after

    def sizes(self, spatial: tuple[int, ...], ceil: int = 0) -> list[int]:
        """The output's sizes; with `ceil` a last window may start inside the input or the pads before it."""
        found = []
        for size, reach, stride, before, after in zip(spatial, self.reach, self.strides, self.before, self.after):
            room = size + before + after - reach
            count = (-(-room // stride) if ceil else room // stride) + 1
            found.append(count - 1 if ceil and (count - 1) * stride >= size + before else count)
        return found

    def missing(self, spatial: tuple[int, ...], sizes: list[int]) -> tuple[int, ...]:
        """The pads after the input that make windows of exactly these sizes."""
        parts = zip(spatial, self.reach, self.strides, self.before, sizes)
        return tuple((count - 1) * stride + reach - before - size for size, reach, stride, before, count in parts)


def window(
    spatial: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: list[int] | None,
    dilations: list[int] | None,
    pads: list[int] | None,
    auto_pad: str,
) -> Window:
    rank = len(kernel)
    steps, spread = tuple(strides or [1] * rank), tuple(dilations or [1] * rank)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        before, after = _same(spatial, kernel, steps, spread, auto_pad == "SAME_UPPER")
    else:
        given = list(pads or [0] * 2 * rank) if auto_pad != "VALID" else [0] * 2 * rank
        before, after = tuple(given[:rank]), tuple(given[rank:])
    return Window(tuple(kernel), steps, spread, before, after)


def _same(
    spatial: tuple[int, ...], kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...], upper: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    totals = [
        max((-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size, 0)
        for size, width, stride, dilation in zip(spatial, kernel, strides, dilations)
    ]
    small, large = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    return (small, large) if upper else (large, small)


def padded(x: Tensor, before: tuple[int, ...], after: tuple[int, ...], value: float = 0.0) -> Tensor:
    """Constant pads on the last axes; negative ones cut."""
    pairs = [size for pair in reversed(list(zip(before, after))) for size in pair]
    return functional.pad(x, pairs, value=value) if any(pairs) else x
