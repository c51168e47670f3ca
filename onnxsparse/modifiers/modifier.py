"""What a modifier is: options in a recipe, and a part that plays in one run.

The options are the fields of a dataclass and never change. `start` makes the part, which holds what changes: the run
calls its hooks at every step, and saves what its `state` says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from onnxsparse.engines.spec import Spec
from onnxsparse.plugins import Plugin

if TYPE_CHECKING:
    from onnxsparse.runs.run import Run


class Part:
    """A modifier at work in one run; a hook that is not needed is left as it is."""

    final_from: int = 0
    """The step from which on everything but the weights stands still."""

    def boundaries(self) -> Iterable[int]:
        """Steps before which the graph changes: each begins a segment."""
        return ()

    def shape(self, spec: Spec, step: int) -> Spec:
        """The graph that is wanted from a step on."""
        return spec

    def leave(self, step: int) -> None:
        """Another graph comes before this step; the engine is still the old one, for the last time."""

    def change(self, step: int) -> None:
        """A segment begins; the engine is the new one, with all that it shares with the old one."""

    def before_step(self, step: int) -> None:
        """Before the loss of a step; its batch is known."""

    def before_update(self, step: int) -> None:
        """The gradients are there, the weights have not moved."""

    def after_update(self, step: int) -> None:
        """The weights have moved."""

    def ended(self, step: int) -> Iterable[int]:
        """The numbers of stages of the run, if any, whose last step this was: each is handed over as it is."""
        return ()

    def finish(self) -> None:
        """All steps are done; the weights may be changed for the last time."""

    def state(self) -> dict[str, Any]:
        """What a resumed run has to know, for JSON."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take it over."""


class Modifier(Plugin, ABC):
    """One entry of a recipe."""

    kind: ClassVar[str] = "modifiers"
    tag: ClassVar[str] = ""
    """What it is called in a recipe, where that is not its name."""
    missing: ClassVar[str] = ""
    """What no engine has that it would need: it is read and written, and refused before a run."""

    @abstractmethod
    def start(self, run: Run) -> Part:
        """The part it plays in a run, which has not begun."""
