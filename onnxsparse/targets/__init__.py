"""Target devices and their rules. `parse` turns `ampere` or `ampere:asp` into a target, `available` lists them."""

from __future__ import annotations

from typing import cast

from onnxsparse import plugins
from onnxsparse.targets.target import Target, Verdict

__all__ = ["Target", "Verdict", "available", "parse"]


def parse(text: str) -> Target:
    """Return the target that a text such as `ampere:tensorrt` stands for."""
    return cast(Target, plugins.parse("targets", text))


def available() -> list[plugins.Entry]:
    """Describe every target."""
    return plugins.available("targets")
