"""The examples of the recipe document that can be run, with the layers of the digits network for its names."""

from __future__ import annotations

from tests.recipes.sparseml import EXAMPLES, SAMPLE_OF

LAYER = "blocks.1.conv"
"""The layer that the document prunes where it prunes one."""
NAMES = {
    "epochs": "EpochRangeModifier",
    "constant": "ConstantPruningModifier",
    "gradual": "GMPruningModifier",
    "set rate": "SetLearningRateModifier",
    "rate": "LearningRateModifier",
    "trainable": "TrainableParamsModifier",
    "decay": "SetWeightDecayModifier",
}


def examples(weights: list[str], layer: str) -> dict[str, str]:
    """By name, with tensors and a layer of a model in place of those of the document."""
    named = {"sample": SAMPLE_OF % ", ".join(f"'{name}'" for name in weights)}
    for name, modifier in NAMES.items():
        text, _ = EXAMPLES[modifier]
        named[name] = f"modifiers:\n{text.replace(LAYER, layer)}"
    return named
