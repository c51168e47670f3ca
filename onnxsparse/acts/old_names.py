"""Deprecated class names, for modifiers of other packages: a `TimedAct` was an `Act`, a `Trainee` a `Host`."""

from __future__ import annotations

from onnxsparse.acts.act import TimedAct as Act
from onnxsparse.acts.trainee import Groups
from onnxsparse.acts.trainee import Trainee as Host

__all__ = ["Act", "Groups", "Host"]
