"""The old place of `train.params`, for modifiers of other packages."""

from onnxsparse.math.param import View
from onnxsparse.train.params import ALL, ALL_PRUNABLE, REGULAR, Param, find, is_renamed, named

__all__ = ["ALL", "ALL_PRUNABLE", "REGULAR", "Param", "View", "find", "is_renamed", "named"]
