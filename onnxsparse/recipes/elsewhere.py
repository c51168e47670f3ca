"""Modifiers of the newer form that nothing runs here: those of SparseML 1.6 to 1.8 and of llm-compressor, by name.

ASRegModifier is the one with a tag among them.

1. Their options are read and kept as they are written. One that is not among those of the class is refused where a
   nearer name is known, as a typing mistake.
2. Some names mean another class in the form with tags; then an option that only the newer class has tells which it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnxsparse.recipes.writing import UnknownModifier

TIMES = ("start", "end", "update")
CALIBRATED = "what comes into each layer, on samples"
ROTATED = "rotations between layers"

_GROUPS = "config_groups targets ignore scheme kv_cache_scheme"
_OBSERVED = "weight_observer input_observer output_observer observer bypass_divisibility_checks"
_ROUND = "iters enable_torch_compile batch_size lr device_ids disable_opt_rtn sequential_targets"
_DISTILLING = (
    "targets projection projection_args transforms transforms_args comparison comparison_args orig_scale "
    "distill_scale offload_layer_output"
)
_LEVELS = (
    "targets init_sparsity final_sparsity update_scheduler scheduler_args mask_structure leave_enabled apply_globally"
)
_PRUNING = "sparsity block_size quantize dampening_frac percdamp sequential_update mask_structure targets target_ids"
_EQUALIZING = "smoothing_strength alpha mappings ignore num_calibration_steps calibration_function algorithm"
_ROTATION = "rotations transform_type randomize learnable precision transform_block_size transform_config"
OPTIONS: dict[str, tuple[str, str]] = {
    "AutoRoundModifier": (CALIBRATED, f"{_GROUPS} {_OBSERVED} {_ROUND}"),
    "LogarithmicEqualizationModifier": (CALIBRATED, _EQUALIZING),
    "OutputDistillationModifier": ("what layers give, of the model and of a teacher", _DISTILLING),
    "QuIPModifier": (ROTATED, f"{_ROTATION} targets ignore"),
    "SpinQuantModifier": (ROTATED, f"{_ROTATION} mappings norm_mappings"),
    "ASRegModifier": (
        "a penalty on what layers give",
        "layers alpha layer_normalized reg_func reg_tens start_epoch end_epoch update_frequency",
    ),
    "SparseOPTModifier": (CALIBRATED, _PRUNING),
    "SparseLlamaModifier": (CALIBRATED, _PRUNING),
    "REAPPruningModifier": (CALIBRATED, "sparsity ignore report_path"),
    "MagnitudePruningModifier": ("its schedule of levels (`linear` and `cubic` run)", _LEVELS),
}
"""What each would need, and its options."""
ONLY_NEWER: dict[str, set[str]] = {
    "MagnitudePruningModifier": {"scheduler_args"},
}
"""Of names that mean something else with a tag, the options that say which is meant."""


@dataclass(frozen=True)
class Elsewhere(UnknownModifier):
    """An entry that is kept as it is written, and why nothing runs it."""

    reason: str = field(default="", compare=False)

    @property
    def missing(self) -> str:  # type: ignore[override]
        return self.reason

    @property
    def start_epoch(self) -> float:
        return max(self._epoch("start"), self._epoch("start_epoch"))

    @property
    def end_epoch(self) -> float:
        return max(self._epoch("end"), self._epoch("end_epoch"))


def kept(tag: str, options: Mapping[str, Any], newer: bool, reason: str) -> Elsewhere:
    written = UnknownModifier.of(tag, dict(options)).options
    return Elsewhere(tag, written, newer, reason)


def is_elsewhere(tag: str, options: Mapping[str, Any]) -> bool:
    """Whether an entry means a class that is not here."""
    return bool(ONLY_NEWER[tag] & set(options)) if tag in ONLY_NEWER else tag in OPTIONS


def options_of_class(tag: str) -> Iterable[str]:
    return (*TIMES, *OPTIONS[tag][1].split())
