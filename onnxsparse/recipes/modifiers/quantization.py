"""Quantization-aware training: QuantizationModifier in both generations of its options, and the act they make.

A modifier says what is asked (`scheme_of`), and its act when: from its first step on weights and activations are
rounded, from `disable_quantization_observer_epoch` on ranges stand still, from `freeze_bn_stats_epoch` on the
statistics of normalizations do.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from onnxsparse.acts.act import Act, Run, TimedAct
from onnxsparse.acts.trainee import Trainee
from onnxsparse.engines.engine import Spec
from onnxsparse.errors import OptionError
from onnxsparse.math.quantization import Grid
from onnxsparse.planning.quantization import AMPERE, LayerScheme, Scheme
from onnxsparse.recipes.modifiers.modifier import (
    NEVER,
    Modifier,
    Scheduled,
    WrongOptionError,
    demand_between,
    demand_from,
    scaled_epochs,
)
from onnxsparse.recipes.modifiers.quantization_options import (
    CHANNEL,
    EMBEDDING,
    activation_grid,
    check_scheme,
    is_for_tensorrt,
    is_of_groups,
    layer_scheme,
    parts_of,
    told,
    weight_grid,
    without_words,
)

CONVOLUTIONS = ("Conv1d", "Conv2d", "Conv3d")
NEVER_ROUNDED = ("Softmax",)
EPOCHS = ("disable_quantization_observer_epoch", "freeze_bn_stats_epoch")


@dataclass(frozen=True)
class Quantizing(Scheduled):
    """What both forms of quantization have in common: once it has begun, it does not end."""

    unwritten: ClassVar[tuple[str, ...]] = ("end_epoch", "update_frequency")

    disable_quantization_observer_epoch: float | None = None
    freeze_bn_stats_epoch: float | None = None
    num_calibration_steps: int | None = None
    model_fuse_fn_name: str | None = None
    model_fuse_fn_kwargs: dict[str, Any] | None = None
    strict: bool = True

    @classmethod
    def is_meant(cls, options: Mapping[str, Any]) -> bool:
        return not is_of_groups(options)

    def check(self) -> None:
        if self.end_epoch != NEVER:
            raise WrongOptionError("end_epoch", "quantization does not end, so it is -1")
        for option in EPOCHS:
            epoch = getattr(self, option)
            if epoch not in (None, NEVER) and not epoch >= max(self.start_epoch, 0):
                raise WrongOptionError(option, f"{epoch} lies before the start_epoch of {self.start_epoch}")
        demand_from("num_calibration_steps", self.num_calibration_steps or 0, 0)

    @abstractmethod
    def scheme_of(self) -> Scheme:
        """What is rounded, and how."""

    @property
    def meaningless(self) -> str:
        """What is written and changes nothing here; nothing where all of it counts."""
        return ""

    def act(self) -> TimedAct:
        return QuantizeAct(self)

    def times_after(self, epochs: float) -> dict[str, Any]:
        later = {option: getattr(self, option) for option in EPOCHS if getattr(self, option) not in (None, NEVER)}
        return {**super().times_after(epochs), **{option: epoch + epochs for option, epoch in later.items()}}

    def times_within(self, epochs: float, of: float) -> dict[str, Any]:
        return {**super().times_within(epochs, of), **scaled_epochs(self, EPOCHS, epochs, of)}


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
    ignore: tuple[str, ...] | None = ()

    def check(self) -> None:
        super().check()
        object.__setattr__(self, "ignore", self.ignore or ())
        object.__setattr__(self, "scheme", without_words(self.scheme))
        if self.scheme_overrides is not None:
            overrides = {name: without_words(scheme) for name, scheme in self.scheme_overrides.items()}
            object.__setattr__(self, "scheme_overrides", overrides)
        check_scheme("scheme", self.scheme)
        for scheme in (self.scheme_overrides or {}).values():
            check_scheme("scheme_overrides", scheme)

    def scheme_of(self) -> Scheme:
        """Embeddings are quantized as any other leaf is, unless they are ignored; their inputs are indices."""
        own, given = layer_scheme(self.scheme, LayerScheme()), self.scheme_overrides or {}
        overrides = {name: layer_scheme(scheme, own) for name, scheme in given.items()}
        of_table = overrides.get(EMBEDDING, own)
        overrides[EMBEDDING] = replace(of_table, inputs=None, per_channel=_says_channel(given.get(EMBEDDING)))
        tensorrt = is_for_tensorrt(self.scheme)
        checked = (*given, *(self.ignore or ()))
        return Scheme(
            own, overrides, self.ignore or (), strict=self.strict, checked=checked,
            target=AMPERE.target if tensorrt else "", residuals=not tensorrt,
        )  # fmt: skip

    @property
    def meaningless(self) -> str:
        return told(parts_of((self.scheme, *(self.scheme_overrides or {}).values())))


def _says_channel(scheme: Any) -> bool:
    """A look-up table has one scale unless more are asked for: then it can stand behind the look-up."""
    weights = scheme.get("weights") if isinstance(scheme, dict) else None
    return isinstance(weights, dict) and weights.get("strategy") == CHANNEL


@dataclass(frozen=True)
class LegacyQuantizationModifier(Quantizing):
    """Train with rounded weights and activations, by the older options.

    - !LegacyQuantizationModifier
      start_epoch: 5.0
      quantize_linear_activations: false
    """

    name: ClassVar[str] = "LegacyQuantizationModifier"

    tag: ClassVar[str] = "QuantizationModifier"
    unwritten: ClassVar[tuple[str, ...]] = ("end_epoch", "update_frequency", "strict")

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

    def scheme_of(self) -> Scheme:
        """Linear layers, convolutions and look-up tables of the submodules; outputs by the kind of a layer."""
        activations = {"symmetric": self.tensorrt, "num_bits": self.activation_bits, **_kwargs(self._of_activations)}
        rounded = activation_grid(activations)
        own = LayerScheme(weight_grid({"num_bits": self.weight_bits, **_kwargs(self.weight_qconfig_kwargs)}), rounded)
        with_outputs = replace(own, outputs=rounded)
        overrides = {kind: LayerScheme(None, rounded) for kind in self.custom_quantizable_module_types or ()}
        if self.quantize_linear_activations and not self.tensorrt:
            overrides["Linear"] = with_outputs
        if self.quantize_conv_activations and not self.tensorrt:
            overrides.update(dict.fromkeys(CONVOLUTIONS, with_outputs))
        if self.quantize_embeddings:
            overrides[EMBEDDING] = self._of_tables(own, rounded)
        tables = () if self.quantize_embeddings else (EMBEDDING,)
        return Scheme(
            own, overrides, (*NEVER_ROUNDED, *tables, *(self.exclude_module_types or ())), self.submodules or (),
            strict=True, checked=self.submodules or (),
            target=AMPERE.target if self.tensorrt else "", residuals=not self.tensorrt,
        )  # fmt: skip

    def _of_tables(self, own: LayerScheme, rounded: Grid) -> LayerScheme:
        """The weights of look-up tables are asymmetric, but for TensorRT."""
        assert own.weights is not None
        weights = own.weights if self.tensorrt else replace(own.weights, symmetric=False, narrow=False)
        outputs = rounded if self.quantize_embedding_activations and not self.tensorrt else None
        return LayerScheme(weights, None, outputs, per_channel=False)

    @property
    def _of_activations(self) -> dict[str, Any]:
        reduced = {"reduce_range": True} if self.reduce_range else {}
        return {**reduced, **(self.activation_qconfig_kwargs or {})}

    @property
    def meaningless(self) -> str:
        given = (("activations", self.activation_qconfig_kwargs), ("weights", self.weight_qconfig_kwargs))
        return told((part, _kwargs(kwargs)) for part, kwargs in given)


def _kwargs(given: dict[str, Any] | None) -> dict[str, Any]:
    return {"kwargs": given or {}}


class QuantizeAct(TimedAct):
    """Fake quantization from the first step of a modifier on."""

    def __init__(self, modifier: Quantizing) -> None:
        super().__init__(modifier.called, modifier.span)
        self.modifier = modifier
        self.scheme = _scheme_of(modifier)
        self._observing = self._normalizing = True

    @property
    def warning(self) -> str:
        return self.modifier.meaningless

    def boundaries(self, trainee: Trainee) -> Iterable[int]:
        return (self._first(trainee),)

    def shape(self, trainee: Trainee, spec: Spec, step: int) -> Spec:
        rounded = trainee.quantization if step >= self._first(trainee) else ""
        return replace(super().shape(trainee, spec, step), quantization=rounded)

    def final_from(self, trainee: Trainee) -> int:
        return self._first(trainee)

    def _first(self, trainee: Trainee) -> int:
        """The last step at the latest, so that a run ends as it was asked to."""
        return min(trainee.step_at(max(self.span.start, 0.0)), trainee.total - 1)

    def before_step(self, trainee: Trainee, step: int) -> None:
        epoch = trainee.epoch_at(step)
        self.before(trainee, max(epoch, self.span.start) if step == self._first(trainee) else epoch)

    def begin(self, trainee: Trainee, epoch: float) -> None:
        trainee.quantize(self.scheme)

    def update(self, trainee: Trainee, epoch: float) -> None:
        modifier = self.modifier
        if self._observing and _reached(modifier.disable_quantization_observer_epoch, epoch):
            self._observing = False
            trainee.stop_observing()
        if self._normalizing and _reached(modifier.freeze_bn_stats_epoch, epoch):
            self._normalizing = False
            trainee.freeze_normalization()

    def state(self) -> dict[str, Any]:
        return {**super().state(), "observing": self._observing, "normalizing": self._normalizing}

    def restore(self, state: dict[str, Any], trainee: Trainee) -> None:
        super().restore(state, trainee)
        self._observing, self._normalizing = state["observing"], state["normalizing"]


def _scheme_of(modifier: Quantizing) -> Scheme:
    try:
        return modifier.scheme_of()
    except OptionError as error:
        raise OptionError(f"{modifier.called}: {error}") from None


def _reached(at: float | None, epoch: float) -> bool:
    return at is not None and at != NEVER and epoch >= at


# -- By shares of a run, for runs without epochs of a recipe: what the flags of `finetune` ask for.


@dataclass(frozen=True)
class TrainQuantized(Modifier):
    """Round weights and activations from a share of the run on, and deliver integers.

    - !quantization
      scheme: int8
      begin: 0.7
      freeze: 0.9
    """

    name: ClassVar[str] = "quantization"
    scheme: str = "int8"
    begin: float = 0.7
    freeze: float = 0.9
    learn_scales: bool = False

    def __post_init__(self) -> None:
        if self.scheme != "int8":
            raise OptionError(f"quantize is int8 in training, not {self.scheme!r:.40}")
        if not 0 <= self.begin < self.freeze <= 1:
            raise OptionError(
                f"begin and freeze are shares of the run, and begin comes first, not {self.begin} and {self.freeze}"
            )

    def start(self, run: Run) -> Act:
        return TrainQuantizedAct(self, run.total)


class TrainQuantizedAct(Act):
    """Fake quantization from a step on, with ranges that stand still from a later one on."""

    def __init__(self, options: TrainQuantized, total: int) -> None:
        self._first = min(round(options.begin * total), total - 1)
        self._still = max(round(options.freeze * total), self._first + 1)
        self._learned = options.learn_scales

    def boundaries(self, trainee: Trainee) -> Iterable[int]:
        return (self._first,)

    def shape(self, trainee: Trainee, spec: Spec, step: int) -> Spec:
        if step < self._first:
            return spec
        return replace(spec, quantization=trainee.quantization, learned_scales=self._learned)

    def final_from(self, trainee: Trainee) -> int:
        return self._first

    def before_step(self, trainee: Trainee, step: int) -> None:
        if step == self._first:
            trainee.quantize(Scheme())
        elif step == self._still:
            trainee.stop_observing()
