"""How long a recipe of a thousand lines takes to be read, in seconds of CPU time.

    python tools/bench/bench_reading.py [LINES]

It tells the first time, with everything that has to be imported for it, and the best of several. Every modifier, list,
variable, expression and alias that users write stands in it.
"""

from __future__ import annotations

import sys
import time

from onnxsparse.recipes import Recipe

HEAD = """\
version: 1.1.0
num_epochs: 100
init_lr: 8e-5
mask_type: 2:4
layers: &layers ['re:encoder.*weight', 'head.weight']
training_modifiers:
  - !EpochRangeModifier
      start_epoch: 0.0
      end_epoch: eval(num_epochs)
"""
BLOCKS = (
    """\
{name}_modifiers:
  - !GMPruningModifier
      params:
        - re:blocks.{number}[.].*weight
        - blocks.{number}.proj.weight
      init_sparsity: 0.05
      final_sparsity: 0.85
      start_epoch: eval(num_epochs * 0.1)
      end_epoch: eval(num_epochs * 0.6)
      update_frequency: 1e-2
      mask_type: unstructured

""",
    """\
{name}_modifiers:
  - !MagnitudePruningModifier
      params: *layers
      init_sparsity: 0.0
      final_sparsity: 0.5
      start_epoch: {number}
      end_epoch: eval(num_epochs - 1)
      update_frequency: 0.5
      mask_type: eval(mask_type)

""",
    """\
{name}_modifiers:
  - !LearningRateFunctionModifier
      start_epoch: 0.0
      end_epoch: eval(num_epochs)
      lr_func: linear
      init_lr: eval(init_lr)
      final_lr: 0

""",
)


def thousand(lines: int = 1000) -> str:
    """A recipe of so many lines."""
    text, number = HEAD, 0
    while text.count("\n") < lines:
        text += BLOCKS[number % len(BLOCKS)].format(name=f"group_{number}", number=number % 40)
        number += 1
    return text


def seconds(text: str) -> float:
    begin = time.process_time()
    Recipe.load(text)
    return time.process_time() - begin


def main() -> None:
    text = thousand(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    first = seconds(text)
    best = min(seconds(text) for _ in range(9))
    modifiers = len(Recipe.load(text).modifiers)
    print(f"{text.count(chr(10))} lines, {modifiers} modifiers: {first:.3f} s the first time, {best:.3f} s at best")


if __name__ == "__main__":
    main()
