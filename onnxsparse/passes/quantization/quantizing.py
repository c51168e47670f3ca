"""One model on its way to integers: its float graph, what is rounded in it by which scheme, and the scales.

    int8       weights and the values between layers, whose ranges samples tell
    w8, w4     weights alone (see `weight_only`)
    dynamic    weights, and values by the range that each run has (see `dynamic`)

1. The float graph is a copy; what is rounded in it is decided before anything is run.
2. Any part of that can be written, as often as it is asked for: so layers are tried one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from onnxsparse.calibration import observers
from onnxsparse.calibration.feeding import Feeds
from onnxsparse.engines.inference import Feed
from onnxsparse.errors import ModelError, OptionError, brief, nearest
from onnxsparse.graph.edit import copied
from onnxsparse.graph.model import Model
from onnxsparse.math.quantization import QParams
from onnxsparse.options import Names, Path
from onnxsparse.passes.quantization.dynamic import dynamic_weights, write_dynamic
from onnxsparse.passes.quantization.float_graph import float_graph
from onnxsparse.passes.quantization.given_scales import Fitting, fitting, scales_of
from onnxsparse.passes.quantization.placement import MOVES, needed, quantization_of
from onnxsparse.passes.quantization.qdq import write_qdq
from onnxsparse.passes.quantization.refining import EQUALIZED, Refinements, first
from onnxsparse.passes.quantization.values import key
from onnxsparse.passes.quantization.weight_only import layer_scheme, params_of, raised, vanishing, weights_of
from onnxsparse.planning.graph_layers import missed
from onnxsparse.planning.names import NameFilter, named
from onnxsparse.planning.quantization import AMPERE, ONNXRUNTIME, Quantization, Scheme

SCHEMES = ("int8", "w8", "w4")
TARGETS = {"": ONNXRUNTIME, "ampere": AMPERE, "vnni": replace(ONNXRUNTIME, target="vnni")}
LARGEST = 2**31 - 1
NOT_FLOAT32 = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


@dataclass(frozen=True)
class Asked:
    """How a model is to be quantized."""

    scheme: str = "int8"
    target: str = ""
    dynamic: bool = False
    block: int | None = None
    asymmetric: bool = False
    per_tensor: bool = False
    observer: str = "minmax"
    reduce_range: bool = False
    scales: Path | None = None
    refine: str | None = None
    include: Names = ()
    exclude: Names = ()

    def __post_init__(self) -> None:
        for option, value, known in (
            ("scheme", self.scheme, SCHEMES),
            ("target", self.target, tuple(TARGETS)),
        ):
            if value not in known:
                words = [word for word in known if word]
                raise OptionError(
                    f"--{option} is one of {', '.join(words)}, not {brief(value)}{nearest(str(value), words)}"
                )
        observers.parse(self.observer)
        _ = self.refinements
        self._demand_sense()

    def _demand_sense(self) -> None:
        """What is said of values means nothing where these are not rounded, or only when the model runs."""
        if self.dynamic and self.scheme != "int8":
            raise OptionError(f"--dynamic rounds values as well as weights, and --scheme {self.scheme} weights alone")
        own = {"--block": self.block is not None, "--asymmetric": self.asymmetric}
        alone = next((flag for flag, given in own.items() if given), "")
        if alone and not self.weights_alone:
            raise OptionError(f"{alone} is for weights alone: pass --scheme w4 or w8 too")
        idle = {
            "--target": bool(self.target),
            "--observer": self.observer != "minmax",
            "--reduce-range": self.reduce_range and not self.dynamic,
            "--per-tensor": self.per_tensor and self.dynamic,
            "--scales": self.scales is not None,
            "--refine": self.refine is not None and self.dynamic,
        }
        flag = next((flag for flag, given in idle.items() if given), "")
        if flag and not self.samples_needed:
            said = "--dynamic" if self.dynamic else f"--scheme {self.scheme}"
            raise OptionError(f"{flag} means nothing with {said}; leave one of the two out")
        if self.per_tensor and self.layers.layers.block:
            raise OptionError(
                "--per-tensor is one scale for the whole weight, and weights of 4 bits, or with --block, have one for "
                "each block; leave it out, or pass --scheme w8 without --block"
            )

    @property
    def weights_alone(self) -> bool:
        return self.scheme != "int8"

    @property
    def samples_needed(self) -> bool:
        """Whether the ranges of values have to be known."""
        return not self.weights_alone and not self.dynamic

    @property
    def refinements(self) -> Refinements:
        """What is done beyond finding ranges; scales that are given are those of the channels as they are."""
        chosen = Refinements() if self.dynamic else Refinements.parse(self.refine, self.weights_alone)
        return replace(chosen, equalize=False) if self.scales is not None else chosen

    @property
    def layers(self) -> Scheme:
        """What is rounded on which grid."""
        if self.weights_alone:
            layer = layer_scheme(int(self.scheme[1:]), self.block, not self.asymmetric)
            return Scheme(replace(layer, per_channel=not self.per_tensor))
        scheme = TARGETS[self.target]
        weights = scheme.layers.weights
        assert weights is not None
        layer = replace(
            scheme.layers, weights=replace(weights, reduced=self.reduce_range), per_channel=not self.per_tensor
        )
        return replace(scheme, layers=layer)

    @property
    def text(self) -> str:
        """In words, for the report."""
        kind = "dynamic int8" if self.dynamic else self.scheme + " asymmetric" * self.asymmetric
        block = self.layers.layers.block
        scales = f"blocks of {block}" if block else "per tensor" if self.per_tensor else "per channel"
        words = [kind + (f" for {self.target}" if self.target else ""), scales]
        given = [] if self.scales is None else ["given scales"]
        return ", ".join([*words, *given, *([self.observer] if self.samples_needed and not given else [])])


@dataclass(frozen=True)
class AskedByScheme(Asked):
    """What a scheme asks for, layer by layer."""

    by: Scheme = ONNXRUNTIME
    chosen: Refinements = field(default_factory=Refinements)

    @classmethod
    def of(cls, by: Scheme, chosen: Refinements) -> AskedByScheme:
        """What a scheme rounds; weights alone where it rounds no activations."""
        layers = [by.layers, *by.overrides.values()]
        bits = min((one.weights.bits for one in layers if one.weights is not None), default=8)
        alone = all(one.inputs is one.outputs is None for one in layers)
        return cls(f"w{4 if bits <= 4 else 8}" if alone else "int8", by=by, chosen=chosen)

    @property
    def refinements(self) -> Refinements:
        return self.chosen

    @property
    def layers(self) -> Scheme:
        return self.by

    @property
    def text(self) -> str:
        return f"{'weights alone' if self.weights_alone else 'int8'}, by a recipe"


class Quantizing:
    """The float graph, what is rounded in it, and the scales as far as they are known."""

    def __init__(self, model: Model, asked: Asked) -> None:
        demand_possible(model)
        self.asked = asked
        self.proto, self.notes = float_graph(model)
        self.float_model = Model.over(copied(self.proto))
        self.quantization = self._chosen(self._whole())
        self.notes = [*self.notes, *raised(self.proto, self.quantization)]
        self.notes += needed(self.proto, self.quantization)
        if not self.quantization.weights:
            raise OptionError(f"there is nothing to quantize: {self._why_nothing()}")
        _demand_finite(self.proto, self.quantization)
        self.params: dict[str, QParams] = {}
        self.unscaled = () if not asked.samples_needed else tuple(one.name for one in self.quantization.observed)
        """Values whose range only samples tell."""
        self.refined: list[str] = []
        """What was done to the weights and biases that were written last."""
        self.text = asked.text
        """What the metadata says of it."""
        self._first: list[Feed] = []
        if asked.scales is not None:
            self._take(fitting(self.proto, self.quantization, scales_of(asked.scales)))

    def _whole(self) -> Quantization:
        if self.asked.dynamic:
            return dynamic_weights(self.proto, self.asked.layers)
        if self.asked.weights_alone:
            return weights_of(self.proto, self.asked.layers)
        return quantization_of(self.proto, self.asked.layers)

    def _chosen(self, found: Quantization) -> Quantization:
        """Without the layers that `--include` and `--exclude` leave in float."""
        names = NameFilter(_listed(self.asked.include), _listed(self.asked.exclude))
        weights = self.float_model.weights
        why = names.choose([named(weight) for weight in weights])
        reasons = {weight.tensor.name: why[weight.name] for weight in weights if why[weight.name]}
        gone = {reader: reasons[one.name] for one in found.weights if one.name in reasons for reader, _ in one.readers}
        left = found.without(gone)
        return replace(left, left={**left.left, **gone})

    def _why_nothing(self) -> str:
        reasons = list(dict.fromkeys(self.quantization.left.values()))
        kinds = {weight.tensor.kind for weight in self.float_model.weights} - {"float32"}
        if reasons:
            return "; ".join(reasons[:3])
        if kinds:
            said = f"its weights are {', '.join(sorted(kinds))}"
            return f"{said}, and float32 is what is quantized; convert the model first"
        unmet = missed(replace(self.asked.layers, strict=False), self.proto)
        return "; ".join(unmet[:3]) or "no Conv, Gemm or MatMul has a constant weight"

    def _take(self, given: Fitting) -> None:
        """Keep the scales that are given."""
        self.params, self.unscaled = given.params, given.missing
        grids = {name: params.grid for name, params in given.params.items()}
        values = tuple(replace(one, grid=grids.get(one.like or one.name, one.grid)) for one in self.quantization.values)
        self.quantization = replace(self.quantization, values=values)
        told = f"--scales gives {len(given.params)} of the scales"
        if given.unknown:
            told += f", and {len(given.unknown)} that nothing here has: {_some(given.unknown)}"
        self.notes = [*self.notes, told]

    def observe(self, feeds: Feeds | None) -> None:
        """The scales of all values, by what samples say of them, and those of the weights by their numbers."""
        self._first = [] if feeds is None else first(feeds)
        scaled = self.asked.refinements.scaled(self.proto, self.quantization, feeds or (), self._first)
        self.notes, self.text = [*self.notes, *scaled], ", ".join([self.text, *[EQUALIZED] * bool(scaled)])
        if feeds is not None and self.unscaled:
            found = observers.observed(self.proto, self.quantization, feeds, self.asked.observer)
            self.params.update({name: params for name, params in found.items() if name not in self.params})
        weights = params_of(self.proto, self.quantization)
        self.notes = [*self.notes, *vanishing(self.proto, weights)]
        self.params.update({name: params for name, params in weights.items() if name not in self.params})
        for name, params in self.params.items():
            if not np.isfinite(params.scale).all():
                raise ModelError(f"the range of '{name}' is infinite or NaN, for which there is no scale")

    @property
    def moves(self) -> set[str]:
        """The nodes that only move numbers, by their first outputs."""
        return {key(node) for node in self.proto.graph.node if node.op_type in (*MOVES, "Concat")}

    def written(self, quantization: Quantization) -> ModelProto:
        """A copy of the float graph with this rounded in it, refined where there are samples."""
        proto, params = copied(self.proto), dict(self.params)
        if self._first:
            params, self.refined = self.asked.refinements.refined(proto, quantization, params, self._first)
        write = write_dynamic if self.asked.dynamic else write_qdq
        write(proto, quantization, params)
        return proto


def demand_possible(model: Model) -> None:
    """What cannot be quantized as it is, in one line that says what to do."""
    if model.file_size > LARGEST:
        raise ModelError("the model is over 2 GB, and is quantized in one message of protobuf, which holds no more")
    if model.flow.mask_sites:
        raise OptionError("masks are in the graph: fold them into the weights first (`onnxsparse fold`)")
    for value in model.proto.graph.input:
        kind = value.type.tensor_type.elem_type
        if kind in NOT_FLOAT32:
            word = TensorProto.DataType.Name(kind).lower()
            raise OptionError(f"the input '{value.name}' is {word}: convert the model to float32, and quantize that")


def _demand_finite(proto: ModelProto, quantization: Quantization) -> None:
    """What becomes integers is numbers."""
    names = {name for one in quantization.weights for name in (one.name, one.bias)}
    for tensor in proto.graph.initializer:
        if tensor.name in names and not np.isfinite(numpy_helper.to_array(tensor)).all():
            raise ModelError(
                f"'{tensor.name}' holds numbers that are infinite or NaN, for which there is no scale: mend it, or "
                "leave its layer in float with --exclude"
            )


def _some(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more


def _listed(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
