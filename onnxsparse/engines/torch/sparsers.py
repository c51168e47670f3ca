"""Sparsers in torch: what the network sees in place of a weight. The numpy form is the definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OptionError
from onnxsparse.sparsers.probabilistic import LARGEST_EXPONENT, TINY
from onnxsparse.sparsers.sparser import Sparser

Tensors = Mapping[str, Any]


def effective(sparser: Sparser, weight: Any, trained: Tensors, frozen: Tensors) -> Any:
    """The tensor that is multiplied with, and through which the gradient comes."""
    form = _FORMS.get(sparser.name)
    if form is None:
        known = ", ".join(_FORMS)
        raise OptionError(f"the torch engine cannot train with the sparser {sparser.name!r} (known: {known})")
    return form(weight, trained, frozen)


def _mask(weight: Any, trained: Tensors, frozen: Tensors) -> Any:
    mask = frozen["mask"]
    return weight * mask if mask.is_floating_point() else weight * mask.to(weight.dtype)


def _soft_threshold(weight: Any, trained: Tensors, frozen: Tensors) -> Any:
    threshold = torch().sigmoid(trained["threshold"])
    return torch().relu(weight - threshold) - torch().relu(-weight - threshold)


def _hard_threshold(weight: Any, trained: Tensors, frozen: Tensors) -> Any:
    above = weight.abs() - torch().sigmoid(trained["threshold"])
    share = above.clamp(-1, 1) * 0.5
    mask = (share + 0.5 > 0.5).to(weight.dtype)
    return weight * (mask + (share - share.detach()))


def _straight_through(weight: Any, trained: Tensors, frozen: Tensors) -> Any:
    return weight * (frozen["mask"] + (trained["score"] - frozen["anchor"]))


def _probabilistic(weight: Any, trained: Tensors, frozen: Tensors) -> Any:
    score = trained["score"].clamp(0, 1)
    keep, drop = torch().log(score + TINY), torch().log(1 - score + TINY)
    exponent = ((drop - keep - frozen["noise"]) * frozen["temperature"]).clamp(max=LARGEST_EXPONENT)
    return weight / (1 + torch().exp(exponent))


_FORMS: dict[str, Callable[[Any, Tensors, Tensors], Any]] = {
    "mask": _mask,
    "soft-threshold": _soft_threshold,
    "hard-threshold": _hard_threshold,
    "straight-through": _straight_through,
    "probabilistic": _probabilistic,
}
