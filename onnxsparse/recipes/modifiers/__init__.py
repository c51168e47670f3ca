"""The modifiers of a recipe: options and act of each one in one place; a module may hold several.

Whoever writes a modifier imports from here: its options derive from `Scheduled`, its act from `TimedAct`, which is
bound to `Param`s and acts on a `Trainee`.
"""

from __future__ import annotations

from onnxsparse.recipes.modifiers.modifier import REQUIRED, Scheduled, demand_params, demand_positive
from onnxsparse.train.act import TimedAct
from onnxsparse.train.params import Param, find
from onnxsparse.train.trainee import Trainee

__all__ = ["REQUIRED", "Param", "Scheduled", "TimedAct", "Trainee", "demand_params", "demand_positive", "find"]
