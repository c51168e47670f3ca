"""Thresholds that are trained; what is exported are the thresholded weights."""

from __future__ import annotations

from onnxsparse.dialects.msbench.schedulers.scheduler import BaseScheduler


class STRScheduler(BaseScheduler):
    """As the plain one: nothing has to be done while the thresholds train."""
