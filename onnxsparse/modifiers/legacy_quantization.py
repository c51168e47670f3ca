"""The older options of quantization, under the same tag: one that only the older form has says that it is meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from onnxsparse.modifiers.quantizing import Quantizing
from onnxsparse.modifiers.scheduled import demand_between


@dataclass(frozen=True)
class LegacyQuantizationModifier(Quantizing):
    """Train with rounded weights and activations, by the older options.

    - !LegacyQuantizationModifier
      start_epoch: 5.0
      quantize_linear_activations: false
    """

    name: ClassVar[str] = "LegacyQuantizationModifier"

    tag: ClassVar[str] = "QuantizationModifier"

    submodules: tuple[str, ...] | None = None
    quantize_embeddings: bool = True
    reduce_range: bool = False
    quantize_linear_activations: bool = True
    quantize_conv_activations: bool = True
    quantize_embedding_activations: bool = True
    activation_bits: int = 8
    weight_bits: int = 8
    exclude_batchnorm: bool = True
    exclude_module_types: tuple[str, ...] | None = None
    custom_quantizable_module_types: tuple[str, ...] | None = None
    activation_qconfig_kwargs: dict[str, Any] | None = None
    weight_qconfig_kwargs: dict[str, Any] | None = None
    tensorrt: bool = False

    def check(self) -> None:
        super().check()
        demand_between("activation_bits", self.activation_bits, 1, 32)
        demand_between("weight_bits", self.weight_bits, 1, 32)
