"""What a loop says to SparseML's manager: steps and epochs, its optimizer and teacher, and samples for calibration.

`calibration_dataloader` gives batches, as many as the recipe's `num_calibration_steps` says, or all of them;
`calibration_function(batch, module=module)` runs one. Without it the module takes the first entry of a batch or, where
a batch is a mapping, its entries by name.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OptionError, absent, brief
from onnxsparse.passes.sources import proto_of
from onnxsparse.recipes.modifiers.distillation import DISABLE, SELF
from onnxsparse.recipes.modifiers.modifier import FARTHEST
from onnxsparse.recipes.modifiers.quantization import Quantizing

UNUSED = "num_calibration_steps is 0: the calibration_dataloader is not used"
MISSING = (
    "num_calibration_steps asks for samples and there are none: pass calibration_dataloader; until then ranges are "
    "those of the first batches that train"
)


def demand_steps(steps_per_epoch: Any) -> None:
    if not _is_number(steps_per_epoch) or not 0 < steps_per_epoch < FARTHEST:
        raise OptionError(f"steps_per_epoch is a number above 0, and below {FARTHEST:g}, not {steps_per_epoch!r:.40}")


def demand_accumulation(count: Any) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise OptionError(f"accumulation is a whole number from 1: the backward passes of one step, not {count!r:.40}")


def epoch_of(epoch: Any) -> float:
    """Where a loop begins; without a number at 0, and at infinity, which -1 is too, where the recipe is over."""
    if epoch is None:
        return 0.0
    if not _is_number(epoch) or math.isnan(epoch) or (epoch < 0 and epoch != -1) or FARTHEST <= epoch < math.inf:
        raise OptionError(f"epoch is a number from 0, or -1 where the recipe is over, not {epoch!r:.40}")
    return math.inf if epoch == -1 else float(epoch)


def demand_optimizer(optimizer: Any, module: Any) -> None:
    if not hasattr(optimizer, "param_groups"):
        raise OptionError(f"an optimizer of torch is expected, not a {type(optimizer).__name__}")
    own = set(module.parameters()) if hasattr(module, "parameters") else set()
    if own and not any(one in own for group in optimizer.param_groups for one in group["params"]):
        raise OptionError(
            "the optimizer has none of the module's parameters; make it of model.parameters() of this module"
        )


def demand_teacher(teacher: Any) -> None:
    if isinstance(teacher, (str, os.PathLike)) and teacher not in (SELF, DISABLE):
        if not os.path.isfile(teacher):
            raise OptionError(f"the teacher: {absent(os.fspath(teacher))}")
    elif not isinstance(teacher, str) and not callable(teacher) and proto_of(teacher) is None:
        raise OptionError(
            f"a teacher is '{SELF}', '{DISABLE}', a module or the path of an ONNX file, not {brief(teacher):.40}"
        )


def _is_number(value: Any) -> bool:
    """Also those of numpy."""
    if isinstance(value, (bool, str)) or value is None:
        return False
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


# -- samples


def calibration_of(
    modifiers: Iterable[Quantizing], module: Any, batches: Any, function: Any
) -> tuple[Callable[[], None] | None, list[str]]:
    """What runs the module, if something is to, and what has to be said."""
    asked = [one.num_calibration_steps for one in modifiers]
    if function is not None and not callable(function):
        raise OptionError(f"calibration_function is called with a batch and module=, not {brief(function):.40}")
    if not asked or batches is None:
        return None, [MISSING] if any(asked) else []
    if not isinstance(batches, Iterable):
        raise OptionError(f"calibration_dataloader gives batches, and a {type(batches).__name__} does not")
    if asked[0] == 0:
        return None, [UNUSED]
    return lambda: _run(module, itertools.islice(batches, asked[0]), function or _forward), []


def _run(module: Any, batches: Iterable[Any], function: Callable[..., Any]) -> None:
    device = next((one.device for one in module.parameters()), torch().device("cpu"))
    count = 0
    for batch in batches:
        function(_on(device, batch), module=module)
        count += 1
    if not count:
        raise OptionError("calibration_dataloader is empty; it has to give at least one batch")


def _on(device: Any, batch: Any) -> Any:
    if torch().is_tensor(batch):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: _on(device, one) for name, one in batch.items()}
    return [_on(device, one) for one in batch] if isinstance(batch, (list, tuple)) else batch


def _forward(batch: Any, module: Any) -> None:
    first = batch[0] if isinstance(batch, Sequence) and not isinstance(batch, str) else batch
    if isinstance(first, Mapping):
        module(**first)
    elif isinstance(first, (list, tuple)):
        module(*first)
    else:
        module(first)
