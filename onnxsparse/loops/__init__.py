"""Networks that a user's own loop trains, seen as layers that can be made sparse: an ONNX model, or a torch module."""

from __future__ import annotations

from onnxsparse.loops.network import Measured, Network, Site

__all__ = ["Measured", "Network", "Site"]
