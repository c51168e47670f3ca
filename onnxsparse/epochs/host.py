"""The old place of `train.trainee`, for modifiers of other packages: what is trained was called a host."""

from onnxsparse.train.trainee import Groups
from onnxsparse.train.trainee import Trainee as Host

__all__ = ["Groups", "Host"]
