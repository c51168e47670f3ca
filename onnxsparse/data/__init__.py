"""Training data: opened, checked, and handed out in batches. It knows arrays, not models."""

from __future__ import annotations

from onnxsparse.data.field import IGNORED, LABELS, Field
from onnxsparse.data.opening import Data, open_data
from onnxsparse.data.samples import Order, Samples, hold_out
from onnxsparse.data.stream import BOUNDLESS, Stream, check_block, check_labels

__all__ = [
    "BOUNDLESS", "IGNORED", "LABELS", "Data", "Field", "Order", "Samples", "Stream", "check_block", "check_labels",
    "hold_out", "open_data",
]  # fmt: skip
