"""Modifiers that prune and round at once, by what samples say of each layer: SparseGPT, Wanda, GPTQ, AWQ, SmoothQuant.

`onnxsparse.oneshot` runs them. A training loop does not: there each is refused by name, unless a recipe is read
leniently. Each says in `idle` which of its options change nothing here, and why.

1. `mask_structure` N:M, or `prunen` and `prunem`, says how many of M go, as in SparseML: 2:4 is 2:4, 1:4 keeps three.
2. `targets` are modules whose layers are pruned, types of modules or `re:` patterns; without any it is all layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from onnxsparse.planning.quantization import Scheme
from onnxsparse.recipes.modifiers.masked import GROUPS
from onnxsparse.recipes.modifiers.modifier import (
    Scheduled,
    WrongOptionError,
    demand_between,
    demand_from,
    demand_positive,
)
from onnxsparse.recipes.modifiers.quantization_groups import GroupQuantizationModifier

RUN_BY = "what comes into each layer, on samples, for which there is `onnxsparse oneshot`"
ANY = ("0:0", "unstructured")
OWL, OWL_M, OWL_LMBDA = "owl", 5.0, 0.08
BOTH = "both"
DAMPING = 0.01
MEMORY = "it saves memory there, and layers are always run one after the other here"
IN_VIEW = "columns are settled 128 at a time, with the level of the whole layer in view"
ONE_BY_ONE = "layers always get what the layers before them give when these are done"


# -- mappings: a list of the layers that read a value, and the name of what gives it; or the two by name


Mapped = tuple[tuple[str, ...], str]


def pairs_of(mappings: Iterable[Any] | None) -> tuple[Mapped, ...]:
    """Of each mapping the layers that read a value, and what gives it."""
    return tuple(_pair(one) for one in mappings or ())


def demand_mappings(mappings: Iterable[Any] | None) -> None:
    try:
        pairs = pairs_of(mappings)
    except (LookupError, TypeError, ValueError):
        pairs = (((), ""),)
    if not all(
        maker and readers and all(isinstance(one, str) for one in (maker, *readers)) for readers, maker in pairs
    ):
        raise WrongOptionError(
            "mappings", "each has a list of the layers that read a value, and the name of what gives it"
        )


def _pair(one: Any) -> Mapped:
    readers, maker = (one["balance_layers"], one["smooth_layer"]) if isinstance(one, Mapping) else one
    return ((readers,) if isinstance(readers, str) else tuple(readers)), maker


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
        demand_mappings(self.mappings)

    def idle(self) -> Iterator[str]:
        if self.num_calibration_steps is not None or self.calibration_function:
            yield "num_calibration_steps and calibration_function: all samples that are given say how wide values are"


@dataclass(frozen=True)
class OneShotRounding(OneShot):
    """What GPTQ and AWQ have in common: they may say what is rounded."""

    config_groups: dict[str, Any] | None = None
    targets: str | tuple[str, ...] | None = None
    scheme: str | dict[str, Any] | None = None
    ignore: tuple[str, ...] | None = ()
    kv_cache_scheme: dict[str, Any] | None = None
    weights: dict[str, Any] | None = None
    input_activations: dict[str, Any] | None = None
    output_activations: dict[str, Any] | None = None
    sequential_targets: str | tuple[str, ...] | None = None
    weight_observer: str | None = None
    input_observer: str | None = None
    output_observer: str | None = None
    observer: str | dict[str, Any] | None = None
    bypass_divisibility_checks: bool | None = None
    num_calibration_steps: int | None = None

    def check(self) -> None:
        object.__setattr__(self, "ignore", self.ignore or ())
        _ = self.grids

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
        if self.sequential_targets:
            yield f"sequential_targets: {MEMORY}"
        if any((self.weight_observer, self.input_observer, self.output_observer, self.observer)):
            yield "observers: ranges are those of `onnxsparse quantize`"


@dataclass(frozen=True)
class GPTQModifier(OneShotRounding):
    """Round weights at once, each column by what the columns before it lost; zeros stay zeros.

    - !GPTQModifier
      scheme: W4A16
      targets: Linear
      ignore: [lm_head]
    """

    name: ClassVar[str] = "GPTQModifier"

    block_size: int = 128
    dampening_frac: float | None = 0.01
    quantize: bool | dict[str, Any] | None = None
    sequential_update: bool = True
    offload_hessians: bool = False
    actorder: str | bool | None = None
    batched_quantization: bool | None = None
    disable_quantization_observer_epoch: float | None = None

    def check(self) -> None:
        super().check()
        demand_from("dampening_frac", self.damping, 0)

    @property
    def damping(self) -> float:
        return DAMPING if self.dampening_frac is None else self.dampening_frac

    def idle(self) -> Iterator[str]:
        if self.actorder not in (None, True, "weight"):
            yield f"actorder {self.actorder}: the columns of the largest inputs come first, and no column moves"
        if self.offload_hessians:
            yield f"offload_hessians: {MEMORY}"
        if not self.sequential_update:
            yield f"sequential_update: {ONE_BY_ONE}"
        if self.block_size != 128:
            yield "block_size: columns are rounded 128 at a time, to the same result"
        yield from super().idle()


@dataclass(frozen=True)
class AWQModifier(OneShotRounding):
    """Before weights are rounded, widen those that large inputs meet, as far as rounding then changes least.

    - !AWQModifier
      scheme: W4A16
      ignore: [lm_head]
    """

    name: ClassVar[str] = "AWQModifier"

    mappings: tuple[Any, ...] | None = None
    duo_scaling: bool | str = True
    n_grid: int = 20
    offload_device: str | None = None
    max_chunk_memory: int | None = None
    apply_clip: bool | None = None

    def check(self) -> None:
        super().check()
        demand_positive("n_grid", self.n_grid)
        if self.duo_scaling not in (True, False, BOTH):
            raise WrongOptionError("duo_scaling", f"it is true, false or {BOTH}, not {self.duo_scaling!r:.40}")
        demand_mappings(self.mappings)

    @property
    def duo(self) -> tuple[bool, ...]:
        """Whether widths of weights count as well as those of inputs, or both ways are tried."""
        return (True, False) if self.duo_scaling == BOTH else (self.duo_scaling is True,)

    def idle(self) -> Iterator[str]:
        yield from super().idle()
        if self.offload_device or self.max_chunk_memory:
            yield f"offload_device and max_chunk_memory: {MEMORY}"
        if self.apply_clip is not None:
            yield "apply_clip: scales of few bits are always those of the least squared error"
