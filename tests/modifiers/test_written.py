"""What is written of a modifier is what the class of that name takes in SparseML 1.8.0."""

from __future__ import annotations

import dataclasses

from onnxsparse.recipes import Recipe
from onnxsparse.recipes.writing import options_of, tag_of
from tests.cases import for_each
from tests.modifiers.test_options import KNOWN, made

GRADUAL = "init_sparsity final_sparsity inter_func leave_enabled mask_type params update_frequency"
THEIRS: dict[str, str] = {
    "ACDCPruningModifier": (
        "compression_sparsity global_sparsity leave_enabled mask_type momentum_buffer_reset params "
        "update_frequency"
    ),
    "ConstantPruningModifier": "params update_frequency",
    "DistillationModifier": "distill_output_keys hardness teacher_input_keys temperature update_frequency",
    "EpochRangeModifier": "",
    "GMPruningModifier": GRADUAL + " global_sparsity phased score_type",
    "GlobalMagnitudePruningModifier": GRADUAL,
    "GradualParamModifier": "final_val init_val inter_func params_strict params update_frequency",
    "LayerPruningModifier": "layers update_frequency",
    "LayerThinningModifier": "param_group_dependency_map strict structure_type update_epochs",
    "LearningRateFunctionModifier": "cycle_epochs final_lr init_lr lr_func param_groups update_frequency",
    "LearningRateModifier": "constant_logging init_lr lr_class lr_kwargs update_frequency",
    "LegacyQuantizationModifier": (
        "activation_bits activation_qconfig_kwargs custom_quantizable_module_types "
        "disable_quantization_observer_epoch exclude_batchnorm exclude_module_types freeze_bn_stats_epoch "
        "model_fuse_fn_kwargs model_fuse_fn_name num_calibration_steps quantize_conv_activations "
        "quantize_embedding_activations quantize_embeddings quantize_linear_activations reduce_range submodules "
        "tensorrt weight_bits weight_qconfig_kwargs"
    ),
    "MFACPruningModifier": GRADUAL + (
        " available_devices damp fisher_block_size global_sparsity grad_sampler_kwargs grads_device num_grads "
        "num_pages use_gradient_buffering"
    ),
    "MagnitudePruningModifier": GRADUAL,
    "MovementPruningModifier": GRADUAL,
    "OBSPruningModifier": GRADUAL + (
        " damp fisher_block_size global_sparsity grad_sampler_kwargs num_grads num_recomputations"
    ),
    "PerLayerDistillationModifier": (
        "epsilon gain normalize project_features student_layer_names teacher_layer_names update_frequency"
    ),
    "PowerpropagationModifier": "alpha strict params",
    "QuantizationModifier": (
        "disable_quantization_observer_epoch freeze_bn_stats_epoch ignore model_fuse_fn_kwargs model_fuse_fn_name "
        "num_calibration_steps scheme scheme_overrides strict"
    ),
    "RigLPruningModifier": (
        "final_sparsity global_sparsity grad_sampler_kwargs init_update_fraction leave_enabled mask_type "
        "momentum_buffer_reset num_grads sparsity_strategy params update_frequency"
    ),
    "SetLearningRateModifier": "constant_logging learning_rate param_groups",
    "SetParamModifier": "params_strict val params",
    "SetWeightDecayModifier": "constant_logging param_groups weight_decay",
    "SparsificationLoggingModifier": "update_frequency",
    "StructuredPruningModifier": GRADUAL + " param_groups",
    "TopKASTPruningModifier": (
        "active_weight_decay backward_sparsity forward_sparsity global_sparsity leave_enabled mask_type params "
        "update_frequency"
    ),
    "TrainableParamsModifier": "params_strict trainable params",
}  # fmt: skip
"""The arguments of the classes in sparseml.pytorch.sparsification, but start_epoch and end_epoch, which all take."""
NEWER = {
    "AWQModifier", "GPTQModifier", "GroupQuantizationModifier", "SmoothQuantModifier", "SparseGPTModifier",
    "WandaPruningModifier",
}  # fmt: skip
"""Of the newer form, which has no tags."""


def theirs(name: str) -> set[str]:
    return {"start_epoch", "end_epoch", *THEIRS[name].split()}


def test_all_modifiers_that_have_a_tag_there_are_here() -> None:
    assert set(THEIRS) == set(KNOWN) - NEWER


@for_each("name", sorted(THEIRS))
def test_nothing_is_written_that_was_not_asked_for_and_that_sparseml_does_not_take(name: str) -> None:
    assert set(options_of(made(name))) <= theirs(name)


@for_each("name", sorted(THEIRS))
def test_what_sparseml_takes_is_known_here(name: str) -> None:
    assert theirs(name) <= {field.name for field in dataclasses.fields(KNOWN[name])}


def test_what_was_asked_for_is_written() -> None:
    options = {
        "LearningRateFunctionModifier": ("constant_logging", True),
        "SetParamModifier": ("constant_logging", True),
        "LegacyQuantizationModifier": ("strict", False),
        "EpochRangeModifier": ("update_frequency", 0.5),
        "DistillationModifier": ("teacher", "dense.onnx"),
    }
    for name, (option, value) in options.items():
        modifier = made(name, **{option: value})
        assert options_of(modifier)[option] == value
        assert Recipe.load(str(Recipe((modifier,)))).modifiers == (modifier,)
        assert tag_of(modifier) == name.removeprefix("Legacy")
