"""Training data: opened, checked, and handed out in batches. It knows arrays, not models."""

from __future__ import annotations

from onnxsparse.data.field import IGNORED, LABELS, Field
from onnxsparse.data.labels import BOUNDLESS, check_block, check_labels
from onnxsparse.data.opening import Data, open_data
from onnxsparse.data.order import Order, hold_out
from onnxsparse.data.samples import Samples
from onnxsparse.data.stream import Stream

__all__ = [
    "BOUNDLESS", "IGNORED", "LABELS", "Data", "Field", "Order", "Samples", "Stream", "check_block", "check_labels",
    "hold_out", "open_data",
]  # fmt: skip
