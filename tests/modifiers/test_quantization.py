"""What the options of both generations of QuantizationModifier ask for, and when it happens."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from onnxsparse.errors import OptionError
from onnxsparse.math.quantization import ACTIVATIONS, SYMMETRIC_ACTIVATIONS, WEIGHTS, Grid
from onnxsparse.planning.quantization import LayerScheme, Scheme
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.modifiers.quantization import LegacyQuantizationModifier, QuantizationModifier

DEFAULT = LayerScheme(WEIGHTS, ACTIVATIONS)
TABLE = LayerScheme(WEIGHTS, None, per_channel=False)
ROUNDED = replace(DEFAULT, outputs=ACTIVATIONS)


def newer(**options: Any) -> Scheme:
    return QuantizationModifier(**options).scheme_of()


def older(**options: Any) -> Scheme:
    return LegacyQuantizationModifier(**options).scheme_of()


# -- the newer options


@pytest.mark.parametrize("scheme", [None, "default", "deepsparse", {}, {"input_activations": {}, "weights": {}}])
def test_without_more_weights_are_symmetric_and_inputs_asymmetric(scheme: Any) -> None:
    found = newer(scheme=scheme)
    assert (found.layers, found.target, found.residuals) == (DEFAULT, "", True)
    assert found.of(["a.b"], ("Linear",)) == DEFAULT
    assert found.asked(["a.b"], ("Embedding", "Gather")) == TABLE


SAVED = {"input_activations": {"symmetric": True}, "target_hardware": "tensorrt"}


@pytest.mark.parametrize("scheme", ["tensorrt", SAVED])
def test_for_tensorrt_everything_is_symmetric(scheme: Any) -> None:
    found = newer(scheme=scheme)
    assert (found.target, found.residuals) == ("ampere", False)
    assert found.layers == LayerScheme(WEIGHTS, SYMMETRIC_ACTIVATIONS)


@pytest.mark.parametrize(
    ("scheme", "wanted"),
    [
        ({"weights": {"num_bits": 4, "strategy": "channel"}}, LayerScheme(Grid(4, narrow=True))),
        ({"weights": {"num_bits": 8, "symmetric": False}}, LayerScheme(Grid(8, symmetric=False))),
        ({"weights": {"strategy": "tensor"}}, LayerScheme(per_channel=False)),
        ({"weights": None}, LayerScheme(None)),
        ({"weights": "null", "input_activations": "None"}, LayerScheme(None, None)),
        ({"output_activations": {"num_bits": 8, "symmetric": True}}, LayerScheme(outputs=SYMMETRIC_ACTIVATIONS)),
        (
            {"input_activations": {"kwargs": {"reduce_range": True}}},
            LayerScheme(inputs=replace(ACTIVATIONS, reduced=True)),
        ),
        ({"weights": {"kwargs": {"quant_min": -64, "quant_max": 63}}}, LayerScheme(Grid(8, reduced=True))),
        ({"weights": {"kwargs": {"quant_min": -128}}}, LayerScheme(Grid(8))),
        (
            {"input_activations": {"kwargs": {"quant_min": -128, "quant_max": 127}}},
            LayerScheme(inputs=Grid(symmetric=False)),
        ),
    ],
)
def test_parts_of_a_scheme(scheme: dict[str, Any], wanted: LayerScheme) -> None:
    assert newer(scheme=scheme).layers == wanted
    assert newer(scheme_overrides={"a": scheme}).of(["a.b"]) == wanted


def test_overrides_by_name_and_by_type() -> None:
    found = newer(
        scheme={"weights": {"num_bits": 6}},
        scheme_overrides={"head": "default", "Conv2d": "tensorrt", "Embedding": {"weights": {"symmetric": False}}},
        ignore=["first", "ReLU"],
    )
    six = LayerScheme(Grid(6, narrow=True))
    assert found.of(["head.conv"], ("Conv2d", "Conv")) == six
    assert found.of(["conv"], ("Conv2d", "Conv")) == LayerScheme(inputs=SYMMETRIC_ACTIVATIONS)
    assert found.of(["table"], ("Embedding",)) == LayerScheme(Grid(8, symmetric=False), None, per_channel=False)
    assert found.of(["first.conv"], ("Conv2d",)) is None
    assert set(found.checked or ()) == {"head", "Conv2d", "Embedding", "first", "ReLU"}
    assert found.strict


def test_a_look_up_table_has_as_many_scales_as_are_asked_for() -> None:
    rows = {"Embedding": {"weights": {"strategy": "channel"}, "input_activations": None}}
    assert newer(scheme_overrides=rows).asked([], ("Embedding",)) == LayerScheme(WEIGHTS, None)
    assert newer(ignore=["Embedding"]).of([], ("Embedding",)) is None


def test_what_nobody_wrote_may_be_missing_in_a_model() -> None:
    assert newer().missed([(["conv"], ["Conv2d"])]) == []
    with pytest.raises(OptionError, match="'head' is no layer"):
        newer(ignore=["head"]).missed([(["conv"], ["Conv2d"])])
    assert len(newer(ignore=["head"], strict=False).missed([(["conv"], ["Conv2d"])])) == 1


@pytest.mark.parametrize(
    ("scheme", "says"),
    [
        ({"weights": {"num_bits": 1}}, "weights have 2 to 8 bits, not 1"),
        ({"weights": {"num_bits": 16}}, "weights have 2 to 8 bits, not 16"),
        ({"input_activations": {"num_bits": 4}}, "activations have 8 bits, which QuantizeLinear rounds to, not 4"),
        ({"weights": {"kwargs": {"quant_min": 5}}}, "weights of 8 bits have no integers from 5 to 127"),
    ],
)
def test_what_has_no_form_is_refused_before_anything_runs(scheme: dict[str, Any], says: str) -> None:
    for options in ({"scheme": scheme}, {"scheme_overrides": {"a": scheme}}):
        with pytest.raises(OptionError, match=f"!QuantizationModifier: {says}"):
            QuantizationModifier(**options).act()


@pytest.mark.parametrize(
    ("part", "arguments", "says"),
    [
        ("weights", {"kwargs": {"averaging_constant": 0.1, "reduce_range": False}}, "averaging_constant of weights"),
        ("weights", {"kwargs": {"observer": "HistogramObserver"}}, "observer of weights"),
        ("input_activations", {"strategy": "channel"}, "strategy 'channel' of input_activations"),
        ("weights", {"kwargs": {"observer": "torch.quantization.MovingAverageMinMaxObserver"}}, ""),
    ],
)
def test_what_means_nothing_is_said(part: str, arguments: dict[str, Any], says: str) -> None:
    told = QuantizationModifier(scheme={part: arguments}).act().warning
    assert told == (f"{says}: it means nothing here" if says else "")


# -- the older options


def test_the_older_options_round_outputs_and_tables_too() -> None:
    found = older()
    assert (found.layers, found.target) == (DEFAULT, "")
    for kinds in (("Linear", "Gemm"), ("Conv2d", "Conv"), ("Conv1d", "Conv")):
        assert found.of(["a"], kinds) == ROUNDED
    assert found.of(["a"], ("Embedding",)) == LayerScheme(Grid(symmetric=False), None, ACTIVATIONS, per_channel=False)
    assert found.of(["a"], ("Softmax",)) is None
    assert found.of(["a"], ("QuantizableMatMul", "MatMul")) == DEFAULT


@pytest.mark.parametrize(
    ("options", "kind", "wanted"),
    [
        ({"quantize_linear_activations": False}, "Linear", DEFAULT),
        ({"quantize_linear_activations": False}, "Conv2d", ROUNDED),
        ({"quantize_conv_activations": False}, "Conv2d", DEFAULT),
        ({"quantize_embedding_activations": False}, "Embedding", replace(TABLE, weights=Grid(symmetric=False))),
        ({"tensorrt": True}, "Linear", LayerScheme(WEIGHTS, SYMMETRIC_ACTIVATIONS)),
        ({"tensorrt": True}, "Embedding", TABLE),
        ({"weight_bits": 4, "quantize_linear_activations": False}, "Linear", LayerScheme(Grid(4, narrow=True))),
        ({"reduce_range": True, "quantize_conv_activations": False}, "Conv2d",
         LayerScheme(inputs=replace(ACTIVATIONS, reduced=True))),
        ({"weight_qconfig_kwargs": {"reduce_range": True}, "quantize_conv_activations": False}, "Conv2d",
         LayerScheme(replace(WEIGHTS, reduced=True))),
        ({"exclude_module_types": ["SiLU"], "custom_quantizable_module_types": ["SiLU"]}, "SiLU", None),
        ({"custom_quantizable_module_types": ["SiLU"]}, "SiLU", LayerScheme(None, ACTIVATIONS)),
        ({"exclude_module_types": ["Linear"]}, "Linear", None),
    ],
)  # fmt: skip
def test_the_older_options(options: dict[str, Any], kind: str, wanted: LayerScheme | None) -> None:
    assert older(**options).of(["a"], (kind,)) == wanted


def test_embeddings_may_stay_float() -> None:
    assert older(quantize_embeddings=False).of(["a"], ("Embedding",)) is None


def test_submodules_have_to_be_there_and_excluded_types_do_not() -> None:
    found = older(submodules=["bert.encoder"], exclude_module_types=["LayerNorm"])
    assert found.of(["bert.encoder.layer.0.query"], ("Linear",)) == ROUNDED
    assert found.of(["classifier"], ("Linear",)) is None
    assert found.missed([(["bert.encoder.layer.0.query"], ["Linear"])]) == []
    with pytest.raises(OptionError, match=r"submodules: 'bert\.encoder' is no layer"):
        found.missed([(["encoder.layer.0.query"], ["Linear"])])


def test_older_arguments_that_mean_nothing_are_said() -> None:
    act = LegacyQuantizationModifier(activation_qconfig_kwargs={"averaging_constant": 0.2}).act()
    assert act.warning == "averaging_constant of activations: it means nothing here"
    with pytest.raises(OptionError, match="activations have 8 bits"):
        LegacyQuantizationModifier(activation_bits=4).act()


# -- when


class Paper:
    """What an act asks of what is trained, in words."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def quantize(self, scheme: Scheme) -> None:
        self.heard.append("quantize")

    def stop_observing(self) -> None:
        self.heard.append("stop")

    def freeze_normalization(self) -> None:
        self.heard.append("freeze")


def heard(act: Any, trainee: Paper, epochs: list[float]) -> dict[float, list[str]]:
    """What happens before the steps at some epochs, where anything does."""
    found = {}
    for epoch in epochs:
        trainee.heard = []
        act.before(trainee, epoch)
        if trainee.heard:
            found[epoch] = trainee.heard
    return found


STEPS = [step / 4 for step in range(24)]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"start_epoch": 2.5, "disable_quantization_observer_epoch": 3.1, "freeze_bn_stats_epoch": 4},
         {2.5: ["quantize"], 3.25: ["stop"], 4.0: ["freeze"]}),
        ({}, {0.0: ["quantize"]}),
        ({"disable_quantization_observer_epoch": -1, "freeze_bn_stats_epoch": 0}, {0.0: ["quantize", "freeze"]}),
        ({"start_epoch": 1, "freeze_bn_stats_epoch": 1, "disable_quantization_observer_epoch": 1},
         {1.0: ["quantize", "stop", "freeze"]}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cls", [QuantizationModifier, LegacyQuantizationModifier])
def test_each_happens_once_at_its_epoch(cls: type, options: dict[str, Any], wanted: dict[float, list[str]]) -> None:
    assert heard(cls(**options).act(), Paper(), STEPS) == wanted


class Steps(Paper):
    """Three epochs of two steps, stepped by our own loop."""

    total = 6

    def epoch_at(self, step: int) -> float:
        return step / 2

    def step_at(self, epoch: float) -> int:
        return math.ceil(epoch * 2)


@pytest.mark.parametrize(("start", "first"), [(-1, 0), (0.5, 1), (0.6, 2), (2.5, 5), (2.6, 5), (3, 5), (30, 5)])
def test_a_run_begins_at_the_last_step_at_the_latest(start: float, first: int) -> None:
    act, trainee = QuantizationModifier(start_epoch=start).act(), Steps()
    assert list(act.boundaries(trainee)) == [first]  # type: ignore[arg-type]
    for step in range(trainee.total):
        act.before_step(trainee, step)  # type: ignore[arg-type]
        assert trainee.heard == (["quantize"] if step >= first else [])


def test_a_run_that_goes_on_does_not_begin_again() -> None:
    modifier = QuantizationModifier(start_epoch=1, disable_quantization_observer_epoch=2, freeze_bn_stats_epoch=4)
    act, again, trainee = modifier.act(), modifier.act(), Paper()
    assert set(heard(act, trainee, STEPS[:12])) == {1.0, 2.0}
    again.restore(act.state(), trainee)  # type: ignore[arg-type]
    assert heard(again, trainee, STEPS[12:]) == {4.0: ["freeze"]}


def test_stages_move_all_epochs() -> None:
    later = QuantizationModifier(start_epoch=-1, disable_quantization_observer_epoch=2.5, freeze_bn_stats_epoch=3)
    assert heard(later.advanced(2).act(), Paper(), STEPS) == {2.0: ["quantize"], 4.5: ["stop"], 5.0: ["freeze"]}


def test_both_generations_have_one_tag() -> None:
    text = "modifiers:\n- !QuantizationModifier {start_epoch: 1, %s}\n"
    for options, cls in (("ignore: [a]", QuantizationModifier), ("submodules: [a]", LegacyQuantizationModifier)):
        (found,) = Recipe.load(text % options).driven().modifiers
        assert type(found) is cls
