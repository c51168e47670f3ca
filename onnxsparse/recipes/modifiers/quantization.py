"""Quantization-aware training: QuantizationModifier in both generations of its options, and the act they make.

A modifier says what is asked (`scheme_of`), and its act when: from its first step on weights and activations are
rounded, from `disable_quantization_observer_epoch` on ranges stand still, from `freeze_bn_stats_epoch` on the
statistics of normalizations do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from onnxsparse.acts.act import Act, Run, TimedAct
from onnxsparse.acts.trainee import Trainee
from onnxsparse.engines.engine import Spec
from onnxsparse.errors import OptionError, nearest
from onnxsparse.planning.quantization import Scheme
from onnxsparse.recipes.modifiers.modifier import (
    NEVER,
    Modifier,
    Scheduled,
    WrongOptionError,
    demand_between,
    demand_from,
)

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

    def check(self) -> None:
        if self.end_epoch != NEVER:
            raise WrongOptionError("end_epoch", "quantization does not end, so it is -1")
        for option in EPOCHS:
            epoch = getattr(self, option)
            if epoch not in (None, NEVER) and not epoch >= max(self.start_epoch, 0):
                raise WrongOptionError(option, f"{epoch} lies before the start_epoch of {self.start_epoch}")
        demand_from("num_calibration_steps", self.num_calibration_steps or 0, 0)

    def scheme_of(self) -> Scheme:
        """What is rounded, and how."""
        return Scheme()

    def act(self) -> TimedAct:
        return QuantizeAct(self)

    def times_after(self, epochs: float) -> dict[str, Any]:
        later = {option: getattr(self, option) for option in EPOCHS if getattr(self, option) not in (None, NEVER)}
        return {**super().times_after(epochs), **{option: epoch + epochs for option, epoch in later.items()}}


SCHEMES = ("default", "deepsparse", "tensorrt")
PARTS = ("input_activations", "weights", "output_activations")
ARGUMENTS = ("num_bits", "symmetric", "strategy", "kwargs")
WORDS_FOR_NOTHING = ("null", "None")


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
        object.__setattr__(self, "scheme", _without_words(self.scheme))
        if self.scheme_overrides is not None:
            overrides = {name: _without_words(scheme) for name, scheme in self.scheme_overrides.items()}
            object.__setattr__(self, "scheme_overrides", overrides)
        for option, scheme in (
            ("scheme", self.scheme),
            *(("scheme_overrides", one) for one in (self.scheme_overrides or {}).values()),
        ):
            _check_scheme(option, scheme)


def _without_words(scheme: Any) -> Any:
    """SparseML writes a part of a scheme that is not there as the text `null`, and reads `None` as that, too."""
    if not isinstance(scheme, dict):
        return scheme
    return {part: None if arguments in WORDS_FOR_NOTHING else arguments for part, arguments in scheme.items()}


def _check_scheme(option: str, scheme: Any) -> None:
    if isinstance(scheme, str) and scheme not in SCHEMES:
        hint = nearest(scheme, SCHEMES) or f" (known: {', '.join(SCHEMES)})"
        raise WrongOptionError(option, f"{scheme!r:.40} is no scheme{hint}")
    for part, arguments in scheme.items() if isinstance(scheme, dict) else ():
        if part not in PARTS and (hint := nearest(part, PARTS)):
            raise WrongOptionError(option, f"a scheme has no {part!r:.40}{hint}")
        if part not in PARTS:
            continue  # what a scheme does not know was passed over, ever
        if arguments is not None and not isinstance(arguments, dict):
            raise WrongOptionError(option, f"{part} is null or has {', '.join(ARGUMENTS)}")
        for name in set(arguments or ()) - set(ARGUMENTS):
            if hint := nearest(str(name), ARGUMENTS):
                raise WrongOptionError(option, f"{part} has no {name!r:.40}{hint}")


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


class QuantizeAct(TimedAct):
    """Fake quantization from the first step of a modifier on."""

    def __init__(self, modifier: Quantizing) -> None:
        super().__init__(modifier.called, modifier.span)
        self.modifier = modifier
        self.scheme = modifier.scheme_of()
        self._observing = self._normalizing = True

    def boundaries(self, trainee: Trainee) -> Iterable[int]:
        return (self._first(trainee),)

    def shape(self, trainee: Trainee, spec: Spec, step: int) -> Spec:
        rounded = trainee.quantization if step >= self._first(trainee) else ""
        return replace(super().shape(trainee, spec, step), quantization=rounded)

    def final_from(self, trainee: Trainee) -> int:
        return self._first(trainee)

    def _first(self, trainee: Trainee) -> int:
        return trainee.step_at(max(self.span.start, 0.0))

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
