"""Deprecated class names, for modifiers of other packages: a `TimedAct` was an `Act`, a `Trainee` a `Host`."""

from __future__ import annotations

from onnxsparse.train.act import TimedAct as Act
from onnxsparse.train.trainee import Groups
from onnxsparse.train.trainee import Trainee as Host

__all__ = ["Act", "Groups", "Host"]
