"""Metrics of a model while it is trained. `parse` turns a word into a metric, `available` lists them."""

from __future__ import annotations

from typing import cast

from onnxsparse import plugins
from onnxsparse.metrics.metric import Function, Meter, Metric, function_metric

__all__ = ["Function", "Meter", "Metric", "available", "function_metric", "parse"]


def parse(text: str) -> Metric:
    """Return the metric that a text such as `accuracy` or `top-5` stands for; nothing is imported by name."""
    return cast(Metric, plugins.parse("metrics", text))


def available() -> list[plugins.Entry]:
    """Describe every metric."""
    return plugins.available("metrics")
