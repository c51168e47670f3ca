"""The size of all gradients together, and the factor that limits it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.optimizers.blocks import sum_of_squares
from onnxsparse.values import Array


def norm(gradients: Iterable[Array]) -> float:
    """The 2-norm of all elements of all gradients, in the order given; not finite when one of them is not."""
    return math.sqrt(sum(sum_of_squares(np.reshape(gradient, -1)) for gradient in gradients))


def finite(gradients: Iterable[Array]) -> bool:
    """Whether all elements are numbers; a sum says so, unless large ones overflow in it."""
    with np.errstate(all="ignore"):
        return all(
            math.isfinite(np.add.reduce(np.reshape(gradient, -1))) or math.isfinite(norm((gradient,)))
            for gradient in gradients
        )


def clip_factor(gradients: Iterable[Array], limit: float) -> float:
    """What to multiply gradients with so that their norm is at most `limit`; nan when one of them is not finite."""
    if not limit > 0.0:
        raise OptionError(f"the limit of the gradients' norm is a number above 0, not {limit}")
    size = norm(gradients)
    if not math.isfinite(size):
        return math.nan
    return 1.0 if size <= limit else limit / size
