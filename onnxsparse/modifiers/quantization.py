"""Training as if numbers had eight bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from onnxsparse.errors import nearest
from onnxsparse.modifiers.quantizing import Quantizing
from onnxsparse.modifiers.scheduled import WrongOptionError

OVERRIDES = "scheme_overrides"
SCHEMES = ("default", "deepsparse", "tensorrt")
PARTS = ("input_activations", "weights", "output_activations")
ARGUMENTS = ("num_bits", "symmetric", "strategy", "kwargs")


@dataclass(frozen=True)
class QuantizationModifier(Quantizing):
    """Train with rounded weights and activations.

    - !QuantizationModifier
      start_epoch: 5.0
      freeze_bn_stats_epoch: 6.0
    """

    name: ClassVar[str] = "QuantizationModifier"

    scheme: str | dict[str, Any] | None = None
    scheme_overrides: dict[str, Any] | None = None
    ignore: tuple[str, ...] = ()

    def check(self) -> None:
        super().check()
        for option, scheme in (
            ("scheme", self.scheme),
            *((OVERRIDES, one) for one in (self.scheme_overrides or {}).values()),
        ):
            _check_scheme(option, scheme)


def _check_scheme(option: str, scheme: Any) -> None:
    if isinstance(scheme, str) and scheme not in SCHEMES:
        hint = nearest(scheme, SCHEMES) or f" (known: {', '.join(SCHEMES)})"
        raise WrongOptionError(option, f"{scheme!r:.40} is no scheme{hint}")
    for part, arguments in scheme.items() if isinstance(scheme, dict) else ():
        if part not in PARTS and (hint := nearest(part, PARTS)):
            raise WrongOptionError(option, f"a scheme has no {part!r:.40}{hint}")
        if part not in PARTS:
            continue  # what a scheme does not know was passed over, ever
        if arguments is not None and not (isinstance(arguments, dict) and set(arguments) <= set(ARGUMENTS)):
            raise WrongOptionError(option, f"{part} is null or has {', '.join(ARGUMENTS)}")
