"""Modifiers that prune and round at once, by what samples say of each layer: SparseGPT, Wanda, GPTQ and SmoothQuant.

`onnxsparse.oneshot` runs them. A training loop does not: there each is refused by name, unless a recipe is read
leniently. Each says in `idle` which of its options change nothing here, and why.

1. `mask_structure` N:M, or `prunen` and `prunem`, says how many of M go, as in SparseML: 2:4 is 2:4, 1:4 keeps three.
2. `targets` are modules whose layers are pruned, types of modules or `re:` patterns; without any it is all layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from onnxsparse.planning.quantization import Scheme
from onnxsparse.recipes.modifiers.masked import GROUPS
from onnxsparse.recipes.modifiers.modifier import Scheduled, WrongOptionError, demand_between, demand_from
from onnxsparse.recipes.modifiers.quantization_groups import GroupQuantizationModifier

RUN_BY = "what comes into each layer, on samples, for which there is `onnxsparse oneshot`"
ANY = ("0:0", "unstructured")
OWL, OWL_M, OWL_LMBDA = "owl", 5.0, 0.08
DAMPING = 0.01
MEMORY = "it saves memory there, and layers are always run one after the other here"
IN_VIEW = "columns are settled 128 at a time, with the level of the whole layer in view"
ONE_BY_ONE = "layers always get what the layers before them give when these are done"


@dataclass(frozen=True)
class OneShot(Scheduled):
    """A modifier that `onnxsparse oneshot` runs."""

    missing: ClassVar[str] = RUN_BY

    @property
    def damping(self) -> float:
        """What is added to the diagonal of a Gram matrix, as a part of its mean."""
        return DAMPING

    def idle(self) -> Iterator[str]:
        """What of its options changes nothing here, each in a sentence."""
        yield from ()


@dataclass(frozen=True)
class OneShotPruning(OneShot):
    """What SparseGPT and Wanda have in common."""

    score: ClassVar[str]
    solver: ClassVar[str]

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
        for level in self.levels:
            demand_between("sparsity", level, 0, 1)
        if self.mask_structure not in ANY and GROUPS.fullmatch(self.mask_structure) is None:
            problem = f"it is N:M, or 0:0 or unstructured for any zeros, not {self.mask_structure!r:.40}"
            raise WrongOptionError("mask_structure", problem)
        gone, of = self._gone
        if gone and not gone < of:
            raise WrongOptionError("mask_structure", f"{gone} of {of} would go, which leaves nothing")
        if self.sparsity_profile is not None and self.sparsity_profile.lower() != OWL:
            raise WrongOptionError("sparsity_profile", f"it is {OWL}, or left out, not {self.sparsity_profile!r:.40}")
        if isinstance(self.sparsity, tuple) and self.aims and len(self.sparsity) != len(self.aims):
            problem = f"it has {len(self.sparsity)} levels for {len(self.aims)} targets"
            raise WrongOptionError("sparsity", problem)

    @property
    def levels(self) -> tuple[float, ...]:
        return self.sparsity if isinstance(self.sparsity, tuple) else (self.sparsity or 0.0,)

    @property
    def aims(self) -> tuple[str, ...]:
        return (self.targets,) if isinstance(self.targets, str) else self.targets or ()

    @property
    def _gone(self) -> tuple[int, int]:
        if self.prunen or self.prunem:
            return self.prunen or 0, self.prunem or 0
        found = GROUPS.fullmatch(self.mask_structure)
        return (int(found[1]), int(found[2])) if found is not None else (0, 0)

    @property
    def pattern(self) -> str:
        """The zeros in the words of a rule, in which N of M stay."""
        gone, of = self._gone
        return f"{of - gone}:{of}" if gone else "unstructured"

    @property
    def outliers(self) -> tuple[float, float] | None:
        """How many times the mean an outlier is, and by how much levels may differ, where these go by outliers."""
        if self.sparsity_profile is None:
            return None
        lmbda = OWL_LMBDA if self.owl_lmbda is None else self.owl_lmbda
        return (OWL_M if self.owl_m is None else self.owl_m), lmbda

    @property
    def keeps_zeros(self) -> bool:
        return False

    def idle(self) -> Iterator[str]:
        gone, of = self._gone
        if gone and self.sparsity and any(abs(level - gone / of) > DAMPING for level in self.levels):
            yield f"sparsity: {self.pattern} fixes its own"
        if gone and self.sparsity_profile is not None:
            yield f"sparsity_profile: {self.pattern} leaves every layer the same level"
        if self.sequential_targets:
            yield f"sequential_targets: {MEMORY}"


@dataclass(frozen=True)
class WandaPruningModifier(OneShotPruning):
    """Prune at once, by magnitude times what comes in.

    - !WandaPruningModifier
      sparsity: 0.5
      mask_structure: 2:4
    """

    name: ClassVar[str] = "WandaPruningModifier"
    score: ClassVar[str] = "wanda"
    solver: ClassVar[str] = "zero"


@dataclass(frozen=True)
class SparseGPTModifier(OneShotPruning):
    """Prune at once, with the rest moved so that each layer gives what it gave.

    - !SparseGPTModifier
      sparsity: 0.5
      mask_structure: 2:4
    """

    name: ClassVar[str] = "SparseGPTModifier"
    score: ClassVar[str] = "obs"
    solver: ClassVar[str] = "obs"

    block_size: int = 128
    dampening_frac: float | None = 0.01
    percdamp: float | None = None
    quantize: bool | dict[str, Any] | None = None
    preserve_sparsity_mask: bool = False
    offload_hessians: bool = False
    target_ids: tuple[str, ...] | None = None
    layer_prefix: str | None = None

    def check(self) -> None:
        super().check()
        demand_from("dampening_frac", self.damping, 0)

    @property
    def damping(self) -> float:
        given = self.dampening_frac if self.percdamp is None else self.percdamp
        return DAMPING if given is None else given

    @property
    def keeps_zeros(self) -> bool:
        return self.preserve_sparsity_mask

    def idle(self) -> Iterator[str]:
        yield from super().idle()
        if self.block_size != 128:
            yield f"block_size: {IN_VIEW}"
        if self.offload_hessians:
            yield f"offload_hessians: {MEMORY}"
        if self.target_ids or self.layer_prefix:
            yield "target_ids and layer_prefix: the graph says what comes into a layer"


@dataclass(frozen=True)
class SmoothQuantModifier(OneShot):
    """Before values are rounded, move what is hard to round in them into the weights that read them.

    - !SmoothQuantModifier
      smoothing_strength: 0.5
    """

    name: ClassVar[str] = "SmoothQuantModifier"

    smoothing_strength: float = 0.5
    mappings: tuple[Any, ...] | None = None
    ignore: tuple[str, ...] | None = ()
    num_calibration_steps: int | None = None
    calibration_function: str | None = None

    def check(self) -> None:
        demand_between("smoothing_strength", self.smoothing_strength, 0, 1)
        if any(not _is_mapping(one) for one in self.mappings or ()):
            problem = "each has a list of the layers that read a value, and the name of what gives it"
            raise WrongOptionError("mappings", problem)

    @property
    def pairs(self) -> tuple[tuple[tuple[str, ...], str], ...]:
        """Of each mapping the layers that read a value, and what gives it."""
        return tuple(((one[0],) if isinstance(one[0], str) else one[0], one[1]) for one in self.mappings or ())

    def idle(self) -> Iterator[str]:
        if self.num_calibration_steps is not None or self.calibration_function:
            yield "num_calibration_steps and calibration_function: all samples that are given say how wide values are"


def _is_mapping(one: Any) -> bool:
    """Whether it is a list of names, or one, and a name."""
    if not isinstance(one, tuple) or len(one) != 2 or not isinstance(one[1], str):
        return False
    readers = one[0] if isinstance(one[0], tuple) else (one[0],)
    return bool(readers) and all(isinstance(reader, str) for reader in readers)


@dataclass(frozen=True)
class GPTQModifier(OneShot):
    """Round weights at once, each column by what the columns before it lost; zeros stay zeros.

    - !GPTQModifier
      scheme: W4A16
      targets: Linear
      ignore: [lm_head]
    """

    name: ClassVar[str] = "GPTQModifier"

    config_groups: dict[str, Any] | None = None
    targets: str | tuple[str, ...] | None = None
    scheme: str | dict[str, Any] | None = None
    ignore: tuple[str, ...] | None = ()
    kv_cache_scheme: dict[str, Any] | None = None
    weights: dict[str, Any] | None = None
    input_activations: dict[str, Any] | None = None
    output_activations: dict[str, Any] | None = None
    block_size: int = 128
    dampening_frac: float | None = 0.01
    quantize: bool | dict[str, Any] | None = None
    sequential_update: bool = True
    sequential_targets: str | tuple[str, ...] | None = None
    offload_hessians: bool = False
    actorder: str | bool | None = None
    batched_quantization: bool | None = None
    weight_observer: str | None = None
    input_observer: str | None = None
    output_observer: str | None = None
    observer: str | dict[str, Any] | None = None
    bypass_divisibility_checks: bool | None = None
    disable_quantization_observer_epoch: float | None = None
    num_calibration_steps: int | None = None

    def check(self) -> None:
        object.__setattr__(self, "ignore", self.ignore or ())
        demand_from("dampening_frac", self.damping, 0)
        _ = self.grids

    @property
    def damping(self) -> float:
        return DAMPING if self.dampening_frac is None else self.dampening_frac

    @property
    def says(self) -> bool:
        """Whether it says what is rounded; otherwise another modifier of the recipe does."""
        return bool(self.config_groups or self.scheme or self.weights)

    @property
    def grids(self) -> GroupQuantizationModifier:
        """What is rounded, without how."""
        groups = dict(self.config_groups or {})
        if self.weights:
            given = ("weights", "input_activations", "output_activations")
            targets = [self.targets] if isinstance(self.targets, str) else list(self.targets or ("Linear",))
            groups["weights"] = {"targets": targets, **{name: getattr(self, name) for name in given}}
        return GroupQuantizationModifier(
            config_groups=groups or None, targets=self.targets, scheme=self.scheme, ignore=self.ignore,
            kv_cache_scheme=self.kv_cache_scheme,
        )  # fmt: skip

    def scheme_of(self) -> Scheme:
        return self.grids.afterwards()

    def idle(self) -> Iterator[str]:
        if self.actorder not in (None, True, "weight"):
            yield f"actorder {self.actorder}: the columns of the largest inputs come first, and no column moves"
        if self.sequential_targets or self.offload_hessians:
            yield f"sequential_targets and offload_hessians: {MEMORY}"
        if not self.sequential_update:
            yield f"sequential_update: {ONE_BY_ONE}"
        if self.block_size != 128:
            yield "block_size: columns are rounded 128 at a time, to the same result"
        if any((self.weight_observer, self.input_observer, self.output_observer, self.observer)):
            yield "observers: ranges are those of `onnxsparse quantize`"
