"""How the learning rate changes during a run. `parse` turns a word into a rate, `available` lists them."""

from __future__ import annotations

from typing import cast

from onnxsparse import plugins
from onnxsparse.rates.rate import Rate
from onnxsparse.rates.warmup import factor_at, warm_up, warm_up_steps

__all__ = ["Rate", "available", "factor_at", "parse", "warm_up", "warm_up_steps"]


def parse(text: str) -> Rate:
    """Return the rate that a text such as `cosine` or `step:every=10,factor=0.5` stands for."""
    return cast(Rate, plugins.parse("rates", text))


def available() -> list[plugins.Entry]:
    """Describe every rate."""
    return plugins.available("rates")
