"""The examples of the recipe document that can be run, with the layers of the digits network for its names."""

from __future__ import annotations

SAMPLE = """
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
SINGLE = {
    "epochs": "!EpochRangeModifier\n        start_epoch: 0.0\n        end_epoch: 25.0",
    "constant": "!ConstantPruningModifier\n        params: __ALL__",
    "gradual": """!GMPruningModifier
        params: [%s]
        init_sparsity: 0.05
        final_sparsity: 0.8
        start_epoch: 5.0
        end_epoch: 20.0
        update_frequency: 1.0""",
    "set rate": "!SetLearningRateModifier\n        start_epoch: 5.0\n        learning_rate: 0.1",
    "rate": """!LearningRateModifier
        start_epoch: 0.0
        end_epoch: 25.0
        lr_class: MultiStepLR
        lr_kwargs:
            gamma: 0.9
            milestones: [2.0, 5.5, 10.0]
        init_lr: 0.1""",
    "trainable": "!TrainableParamsModifier\n      params: __ALL__",
    "decay": "!SetWeightDecayModifier\n        start_epoch: 5.0\n        weight_decay: 0.0",
}


def examples(weights: list[str], layer: str) -> dict[str, str]:
    """By name, with tensors and a layer of a model in place of those of the document."""
    named = {"sample": SAMPLE % ", ".join(f"'{name}'" for name in weights)}
    for name, text in SINGLE.items():
        written = text.replace("%s", f"'{layer}'")
        named[name] = f"modifiers:\n    - {written}\n"
    return named
