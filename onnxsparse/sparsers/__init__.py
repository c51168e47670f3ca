"""Sparsers: how a weight is replaced while it is trained. `parse` turns a text into one, `available` lists them."""

from __future__ import annotations

from typing import cast

from onnxsparse import plugins
from onnxsparse.sparsers.mask_updates import Choice, Renewal, exchange, hide, renew, write
from onnxsparse.sparsers.sparser import Moment, Sparser

__all__ = [
    "Choice", "Moment", "Renewal", "Sparser", "available", "exchange", "hide", "parse", "renew", "write",
]  # fmt: skip


def parse(text: str) -> Sparser:
    """Return the sparser that a text such as `mask` or `soft-threshold:start=-5` stands for."""
    return cast(Sparser, plugins.parse("sparsers", text))


def available() -> list[plugins.Entry]:
    """Describe every sparser."""
    return plugins.available("sparsers")
