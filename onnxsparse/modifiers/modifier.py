"""What a modifier is: options in a recipe, and the act that they make.

The options are the fields of a dataclass and never change. What changes while a run lasts belongs to the act
(`train.acts.act`): the loop calls its hooks at every step, and a checkpoint holds its state.
"""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, ClassVar

from onnxsparse.errors import OptionError
from onnxsparse.plugins import Plugin
from onnxsparse.train.acts.act import Act

if TYPE_CHECKING:
    from onnxsparse.runs.run import Run


class Modifier(Plugin, ABC):
    """One entry of a recipe."""

    kind: ClassVar[str] = "modifiers"
    tag: ClassVar[str] = ""
    """What it is called in a recipe, where that is not its name."""
    missing: ClassVar[str] = ""
    """What no engine has that it would need: it is read and written, and refused before a run."""

    def start(self, run: Run) -> Act:
        """What it does in a run that has not begun; what goes by epochs has its act from the plan instead."""
        raise OptionError(f"!{self.tag or self.name} has no act of its own in a run")
