"""Recipes as users of SparseML have them: every form its guide shows, and what each has to come to."""

from __future__ import annotations

from typing import Any

SAMPLE_OF = """\
version: 0.1.0
modifiers:
    - !EpochRangeModifier
        start_epoch: 0.0
        end_epoch: 70.0

    - !LearningRateModifier
        start_epoch: 0
        end_epoch: -1.0
        update_frequency: -1.0
        init_lr: 0.005
        lr_class: MultiStepLR
        lr_kwargs: {'milestones': [43, 60], 'gamma': 0.1}

    - !GMPruningModifier
        start_epoch: 0
        end_epoch: 40
        update_frequency: 1.0
        init_sparsity: 0.05
        final_sparsity: 0.85
        mask_type: unstructured
        params: [%s]
"""
SAMPLE = SAMPLE_OF % "'sections.0.0.conv1.weight', 'sections.0.0.conv2.weight', 'sections.0.0.conv3.weight'"
EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "EpochRangeModifier": (
        """\
     - !EpochRangeModifier
        start_epoch: 0.0
        end_epoch: 25.0
""",
        {"start_epoch": 0.0, "end_epoch": 25.0},
    ),
    "ConstantPruningModifier": (
        """\
    - !ConstantPruningModifier
        params: __ALL__
""",
        {"params": "__ALL__"},
    ),
    "GMPruningModifier": (
        """\
    - !GMPruningModifier
        params: ['blocks.1.conv']
        init_sparsity: 0.05
        final_sparsity: 0.8
        start_epoch: 5.0
        end_epoch: 20.0
        update_frequency: 1.0
""",
        {"params": ("blocks.1.conv",), "init_sparsity": 0.05, "final_sparsity": 0.8, "mask_type": "unstructured"},
    ),
    "QuantizationModifier": (
        """\
    - !QuantizationModifier
        start_epoch: 0.0
""",
        {"start_epoch": 0.0},
    ),
    "SetLearningRateModifier": (
        """\
    - !SetLearningRateModifier
        start_epoch: 5.0
        learning_rate: 0.1
""",
        {"start_epoch": 5.0, "learning_rate": 0.1},
    ),
    "LearningRateModifier": (
        """\
     - !LearningRateModifier
        start_epoch: 0.0
        end_epoch: 25.0
        lr_class: MultiStepLR
        lr_kwargs:
            gamma: 0.9
            milestones: [2.0, 5.5, 10.0]
        init_lr: 0.1
""",
        {"lr_kwargs": {"gamma": 0.9, "milestones": (2.0, 5.5, 10.0)}, "init_lr": 0.1},
    ),
    "TrainableParamsModifier": (
        """\
    - !TrainableParamsModifier
      params: __ALL__
""",
        {"params": "__ALL__", "trainable": True},
    ),
    "SetWeightDecayModifier": (
        """\
    - !SetWeightDecayModifier
        start_epoch: 5.0
        weight_decay: 0.0
""",
        {"start_epoch": 5.0, "weight_decay": 0.0},
    ),
}
PAGE = f"""\
<!--
A licence, with a line

---

that is no fence.
-->

---
{SAMPLE}---

# A page about the recipe

---

- and a list
"""
LONG = """\
<!-- licence -->
---
# General
num_epochs: &epochs 52
init_lr: 8e-5
final_lr: 0
pruning_start: eval(num_epochs * 2 / 13)
pruning_end: eval(pruning_start + (num_epochs - qat) // 2)
qat: 12
final_sparsity: 0.8
mask_type: 2:4
layers:
  - encoder.layer.0.weight
  - re:encoder.layer.*.attention.weight
__metadata__:
  made_by: hand

training_modifiers:
  - !EpochRangeModifier
      start_epoch: 0.0
      end_epoch: *epochs

  - !LearningRateFunctionModifier
      start_epoch: 0.0
      end_epoch: eval(num_epochs)
      lr_func: linear
      init_lr: eval(init_lr)
      final_lr: eval(final_lr)

pruning_modifiers:
  - !GMPruningModifier &gmp
      params: eval(layers)
      init_sparsity: 0
      final_sparsity: eval(final_sparsity)
      start_epoch: eval(pruning_start)
      end_epoch: eval(pruning_end)
      update_frequency: 1e-2
      log_types: __ALL__
  - !MagnitudePruningModifier
      <<: *gmp
      params:
        - 'block.eval(qat - 10).weight'
      final_sparsity: 0.5
      mask_type: eval(mask_type)

quantization_modifiers:
  - !QuantizationModifier
      start_epoch: eval(num_epochs - qat)
      freeze_bn_stats_epoch: eval(num_epochs - qat + 1)

regularization_modifiers:
  - !SetWeightDecayModifier
      start_epoch: 0.0
      weight_decay: 0.0
---
"""
STAGED = """\
version: 1.1.0
sparsity: 0.5
epochs: 4

dense_stage:
  epochs: 2
  dense_modifiers:
    - !EpochRangeModifier
        start_epoch: 0
        end_epoch: eval(epochs)

sparse_stage:
  start: 2
  sparse_modifiers:
    - !ConstantPruningModifier
        start_epoch: eval(start)
        params: __ALL_PRUNABLE__
  more_modifiers:
    - !GMPruningModifier
        start_epoch: eval(start)
        end_epoch: eval(start + epochs)
        update_frequency: 0.5
        init_sparsity: 0.05
        final_sparsity: eval(sparsity)
        params: __ALL_PRUNABLE__
"""
NEWER = """\
target_sparsity: 0.5
prune_stage:
  run_type: train
  pruning_modifiers:
    MagnitudePruningModifier:
      targets: ['re:.*weight']
      init_sparsity: 0.0
      final_sparsity: eval(target_sparsity)
      start: 0.0
      end: 3.0
      update: 0.5
      update_scheduler: linear
      mask_structure: block_1,4
finish_stage:
  keeping_modifiers:
    ConstantPruning:
      targets: __ALL__
      start: 3
"""
