"""What modifiers have in common whose sparsity rises from a first to a last level.

1. From `start_epoch` on it is `init_sparsity`, at `end_epoch` `final_sparsity`, between them it rises as `inter_func`
   says, with new masks every `update_frequency` epochs.
2. `init_sparsity: __FROM_PARAM__` begins with the zeros that each weight has.
3. `final_sparsity` may be a mapping of levels to names, with `params: []`.
4. With `leave_enabled: false` the masks are let go at `end_epoch`, and the zeros with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxsparse.epochs.act import Act
from onnxsparse.epochs.gradual import Gradual as GradualAct
from onnxsparse.modifiers.declared import number
from onnxsparse.modifiers.masked import Masked, demand_levels
from onnxsparse.modifiers.scheduled import REQUIRED, WrongOptionError, demand_between, demand_known

FROM_PARAM = "__FROM_PARAM__"
CUBIC = "cubic"
RISES = ("linear", CUBIC, "inverse_cubic")


@dataclass(frozen=True)
class Gradual(Masked):
    """A modifier that prunes more and more."""

    init_sparsity: float | str = REQUIRED
    final_sparsity: float | dict[float, tuple[str, ...]] = REQUIRED
    leave_enabled: bool = True
    inter_func: str = CUBIC

    def check(self) -> None:
        super().check()
        self._check_first_level()
        demand_known("inter_func", self.inter_func, RISES)
        demand_levels(self, "final_sparsity", self.final_sparsity)

    def by_magnitude(self, together: bool) -> Act:
        """What goes are the smallest numbers, of all weights together or of each."""
        return GradualAct(
            self.called, self.span, self.params, self.init_sparsity, self.final_sparsity, self.inter_func,
            self.mask_type, together, self.leave_enabled,
        )  # fmt: skip

    def _check_first_level(self) -> None:
        """A number in quotes is one; any other text is the one word."""
        first = self.init_sparsity
        if isinstance(first, str) and first != FROM_PARAM:
            read = number(first)
            if read is None:
                raise WrongOptionError(
                    "init_sparsity", f"it is a number from 0 to 1 or {FROM_PARAM}, not {first!r:.40}"
                )
            object.__setattr__(self, "init_sparsity", read)
        if not isinstance(self.init_sparsity, str):
            demand_between("init_sparsity", self.init_sparsity, 0, 1)
