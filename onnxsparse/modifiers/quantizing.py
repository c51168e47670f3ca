"""What both forms of quantization have in common: once it has begun, it does not end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from onnxsparse.modifiers.scheduled import NEVER, Scheduled, WrongOptionError, demand_from

EPOCHS = ("disable_quantization_observer_epoch", "freeze_bn_stats_epoch")


@dataclass(frozen=True)
class Quantizing(Scheduled):
    """A modifier that rounds weights and activations."""

    unwritten: ClassVar[tuple[str, ...]] = ("end_epoch", "update_frequency")
    missing: ClassVar[str] = "fake quantization while it trains"

    disable_quantization_observer_epoch: float | None = None
    freeze_bn_stats_epoch: float | None = None
    num_calibration_steps: int | None = None
    model_fuse_fn_name: str | None = None
    model_fuse_fn_kwargs: dict[str, Any] | None = None
    strict: bool = True

    def check(self) -> None:
        if self.end_epoch != NEVER:
            raise WrongOptionError("end_epoch", "quantization does not end, so it is -1")
        for option in EPOCHS:
            epoch = getattr(self, option)
            if epoch is not None and not epoch >= max(self.start_epoch, 0):
                raise WrongOptionError(option, f"{epoch} lies before the start_epoch of {self.start_epoch}")
        demand_from("num_calibration_steps", self.num_calibration_steps or 0, 0)

    def times_after(self, epochs: float) -> dict[str, Any]:
        later = {option: getattr(self, option) for option in EPOCHS if getattr(self, option) is not None}
        return {**super().times_after(epochs), **{option: epoch + epochs for option, epoch in later.items()}}
