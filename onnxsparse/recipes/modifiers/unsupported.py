"""Modifiers that are read, checked and written, but that no engine runs yet, such as RigL and M-FAC.

Each says in `missing` what a run of it would need. A recipe with one is refused before a run begins, unless it is read
leniently. One that learns to run gets a module of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from onnxsparse.recipes.modifiers.magnitude import GradualPruning
from onnxsparse.recipes.modifiers.masked import BLOCK4, CHANNEL, FILTER, GROUPS, UNSTRUCTURED, Masked, demand_levels
from onnxsparse.recipes.modifiers.modifier import (
    REQUIRED,
    Scheduled,
    WrongOptionError,
    demand_between,
    demand_end,
    demand_from,
    demand_inside,
    demand_known,
    demand_params,
    demand_positive,
)

# -- gradual pruning by gradients


@dataclass(frozen=True)
class MovementPruningModifier(GradualPruning):
    """Prune what training moves towards zero, more and more.

    - !MovementPruningModifier
      start_epoch: 0.0
      end_epoch: 40.0
      update_frequency: 1.0
      init_sparsity: 0.05
      final_sparsity: 0.85
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "MovementPruningModifier"
    missing: ClassVar[str] = "scores that gather gradients at every step"


@dataclass(frozen=True)
class MFACPruningModifier(GradualPruning):
    """Prune by a loss of second order from the last gradients, more and more.

    - !MFACPruningModifier
      start_epoch: 0.0
      end_epoch: 40.0
      update_frequency: 1.0
      init_sparsity: 0.05
      final_sparsity: 0.85
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "MFACPruningModifier"
    missing: ClassVar[str] = "a store of the last gradients, and the inverse of what they say"

    global_sparsity: bool = False
    num_grads: int | dict[float, int] = 64
    damp: float = 1e-5
    fisher_block_size: int | None = 2000
    grads_device: str | int = "cpu"
    num_pages: int = 1
    available_devices: tuple[str, ...] | None = None
    use_gradient_buffering: bool | None = None
    grad_sampler_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        super().check()
        counts = self.num_grads if isinstance(self.num_grads, dict) else {0.0: self.num_grads}
        if 0.0 not in counts:
            raise WrongOptionError("num_grads", "counts by sparsity begin at 0.0")
        demand_from("num_grads", min(counts.values()), 1)
        demand_from("num_pages", self.num_pages, 1)
        demand_from("fisher_block_size", self.fisher_block_size or 1, 1)
        demand_positive("damp", self.damp)


@dataclass(frozen=True)
class OBSPruningModifier(GradualPruning):
    """Prune by a loss of second order, more and more.

    - !OBSPruningModifier
      start_epoch: 0.0
      end_epoch: 40.0
      update_frequency: 1.0
      init_sparsity: 0.05
      final_sparsity: 0.85
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "OBSPruningModifier"

    mask_types: ClassVar[tuple[str, ...]] = (UNSTRUCTURED, BLOCK4)
    missing: ClassVar[str] = "gradients of single samples, and the inverse of what they say"

    global_sparsity: bool = True
    num_grads: int = 1024
    damp: float = 1e-7
    fisher_block_size: int = 1
    grad_sampler_kwargs: dict[str, Any] | None = None
    num_recomputations: int = 1

    def check(self) -> None:
        super().check()
        for option in ("num_grads", "fisher_block_size", "num_recomputations"):
            demand_from(option, getattr(self, option), 1)
        demand_positive("damp", self.damp)


# -- pruning at one level, with places that move


STRATEGIES = ("erdos_renyi_kernel", "erdos_renyi", "uniform")


@dataclass(frozen=True)
class RigLPruningModifier(Masked):
    """Prune at once, and exchange places while training.

    - !RigLPruningModifier
      start_epoch: 0.0
      end_epoch: 8.0
      update_frequency: 0.5
      final_sparsity: 0.9
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "RigLPruningModifier"

    mask_types: ClassVar[tuple[str, ...]] = (UNSTRUCTURED,)
    missing: ClassVar[str] = "gradients at places that are masked, on a schedule of its own"

    final_sparsity: float | dict[float, tuple[str, ...]] = REQUIRED
    num_grads: int = 1
    init_update_fraction: float = 0.3
    momentum_buffer_reset: bool = True
    sparsity_strategy: str = STRATEGIES[0]
    leave_enabled: bool = True
    global_sparsity: bool = False
    grad_sampler_kwargs: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        super().check()
        demand_levels(self, "final_sparsity", self.final_sparsity)
        demand_end(self)
        demand_from("num_grads", self.num_grads, 1)
        demand_between("init_update_fraction", self.init_update_fraction, 0, 1)
        demand_known("sparsity_strategy", self.sparsity_strategy, STRATEGIES)


@dataclass(frozen=True)
class TopKASTPruningModifier(Masked):
    """Prune at once, and train more places than are used.

    - !TopKASTPruningModifier
      start_epoch: 0.0
      end_epoch: 8.0
      update_frequency: 0.5
      forward_sparsity: 0.9
      backward_sparsity: 0.5
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "TopKASTPruningModifier"

    mask_types: ClassVar[tuple[str, ...]] = (UNSTRUCTURED,)
    missing: ClassVar[str] = "one mask for the model and another for its gradients"

    forward_sparsity: float = REQUIRED
    backward_sparsity: float = REQUIRED
    global_sparsity: bool = True
    leave_enabled: bool = True
    active_weight_decay: float = 1e-4

    def check(self) -> None:
        super().check()
        demand_inside("forward_sparsity", self.forward_sparsity, 0, 1)
        demand_from("backward_sparsity", self.backward_sparsity, 0)
        if self.backward_sparsity > self.forward_sparsity:
            raise WrongOptionError(
                "backward_sparsity", "more places train than are used, so it is at most forward_sparsity"
            )
        demand_from("active_weight_decay", self.active_weight_decay, 0)


# -- pruning at once by what comes into each layer


@dataclass(frozen=True)
class WandaPruningModifier(Scheduled):
    """Prune at once, by magnitude times what comes in.

    - !WandaPruningModifier
      sparsity: 0.5
      mask_structure: 2:4
    """

    name: ClassVar[str] = "WandaPruningModifier"
    missing: ClassVar[str] = "what comes into each layer, on samples"

    sparsity: float | tuple[float, ...] | None = 0.0
    sparsity_profile: str | None = None
    owl_m: float | None = None
    owl_lmbda: float | None = None
    mask_structure: str = "0:0"
    sequential_targets: str | tuple[str, ...] | None = None
    prunen: int | None = None
    prunem: int | None = None
    sequential_update: bool = False
    targets: str | tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()

    def check(self) -> None:
        _demand_structure(self.sparsity, self.mask_structure)


def _demand_structure(sparsity: float | tuple[float, ...] | None, mask_structure: str) -> None:
    for level in sparsity if isinstance(sparsity, tuple) else (sparsity or 0.0,):
        demand_between("sparsity", level, 0, 1)
    if mask_structure != "0:0" and GROUPS.fullmatch(mask_structure) is None:
        raise WrongOptionError("mask_structure", f"it is N:M, or 0:0 for any zeros, not {mask_structure!r:.40}")


@dataclass(frozen=True)
class SparseGPTModifier(Scheduled):
    """Prune at once, with the rest moved so that each layer gives what it gave.

    - !SparseGPTModifier
      sparsity: 0.5
      mask_structure: 2:4
    """

    name: ClassVar[str] = "SparseGPTModifier"
    missing: ClassVar[str] = "what comes into each layer, on samples"

    sparsity: float | tuple[float, ...] | None = 0.0
    sparsity_profile: str | None = None
    owl_m: float | None = None
    owl_lmbda: float | None = None
    mask_structure: str = "0:0"
    sequential_targets: str | tuple[str, ...] | None = None
    prunen: int | None = None
    prunem: int | None = None
    block_size: int = 128
    dampening_frac: float | None = 0.01
    sequential_update: bool = False
    percdamp: float | None = None
    quantize: bool | dict[str, Any] | None = None
    preserve_sparsity_mask: bool = False
    offload_hessians: bool = False
    target_ids: tuple[str, ...] | None = None
    layer_prefix: str | None = None
    targets: str | tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()

    def check(self) -> None:
        _demand_structure(self.sparsity, self.mask_structure)


# -- whole layers


@dataclass(frozen=True)
class LayerPruningModifier(Scheduled):
    """Leave whole layers out, until the end.

    - !LayerPruningModifier
      layers: ['blocks.3']
      start_epoch: 0.0
    """

    name: ClassVar[str] = "LayerPruningModifier"
    missing: ClassVar[str] = "layers that come and go during a run"

    layers: str | tuple[str, ...] = REQUIRED

    def check(self) -> None:
        demand_params("layers", self.layers)


@dataclass(frozen=True)
class LayerThinningModifier(Scheduled):
    """Take pruned filters or channels out of the layers.

    - !LayerThinningModifier
      param_group_dependency_map: {'conv1.weight': ['bn1.weight', 'conv2.weight']}
      structure_type: filter
      update_epochs: [4.0, 8.0]
    """

    name: ClassVar[str] = "LayerThinningModifier"
    missing: ClassVar[str] = "tensors that change their shape during a run"

    param_group_dependency_map: dict[str, tuple[str, ...]] | str = REQUIRED
    structure_type: str = FILTER
    update_epochs: tuple[float, ...] = ()
    strict: bool = True

    def check(self) -> None:
        demand_known("structure_type", self.structure_type, (FILTER, CHANNEL))
        for epoch in self.update_epochs:
            demand_from("update_epochs", epoch, 0)

    def times_after(self, epochs: float) -> dict[str, Any]:
        return {**super().times_after(epochs), "update_epochs": tuple(epoch + epochs for epoch in self.update_epochs)}


# -- what trains, and what it learns from


@dataclass(frozen=True)
class PowerpropagationModifier(Scheduled):
    """Train powers of the weights, so that small ones stay small.

    - !PowerpropagationModifier
      start_epoch: 0.0
      end_epoch: 8.0
      params: __ALL_PRUNABLE__
      alpha: 2.0
    """

    name: ClassVar[str] = "PowerpropagationModifier"
    missing: ClassVar[str] = "weights that are a function of what trains"

    start_epoch: float = REQUIRED
    end_epoch: float = REQUIRED
    params: str | tuple[str, ...] = REQUIRED
    alpha: float = 1.0
    strict: bool = True

    def check(self) -> None:
        demand_params("params", self.params)
        demand_positive("alpha", self.alpha)


@dataclass(frozen=True)
class PerLayerDistillationModifier(Scheduled):
    """Learn from what the layers of a teacher give.

    - !PerLayerDistillationModifier
      gain: 1.5
      student_layer_names: ['re:.*conv']
    """

    name: ClassVar[str] = "PerLayerDistillationModifier"
    missing: ClassVar[str] = "what layers give, of the model and of a teacher"

    gain: float = 1.5
    normalize: bool = True
    student_layer_names: tuple[str, ...] | None = None
    teacher_layer_names: tuple[str, ...] | None = None
    project_features: bool = True
    epsilon: float = 1e-6

    def check(self) -> None:
        demand_from("gain", self.gain, 0)
        demand_positive("epsilon", self.epsilon)
        for option in ("student_layer_names", "teacher_layer_names"):
            demand_params(option, getattr(self, option) or ())
