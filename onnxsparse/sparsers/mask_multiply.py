"""The weight times a mask of zeros and ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError, nearest
from onnxsparse.sparsers.renewal import Choice
from onnxsparse.sparsers.sparser import Arrays, Moment, Sparser, chosen
from onnxsparse.values import Array

STORAGES = {"float": np.float32, "uint8": np.uint8, "bool": np.bool_}


@dataclass(frozen=True)
class MaskMultiply(Sparser):
    """The weight times its mask; pruned places get no gradient."""

    name: ClassVar[str] = "mask"
    storage: str = "float"

    def __post_init__(self) -> None:
        if self.storage not in STORAGES:
            hint = nearest(self.storage, list(STORAGES))
            raise OptionError(f"a mask is stored as {', '.join(STORAGES)}, not as {self.storage[:40]!r}{hint}")

    @property
    def text(self) -> str:
        return self.name if self.storage == "float" else f"{self.name}:storage={self.storage}"

    def feed(self, weight: Array, trained: Arrays, mask: Array, moment: Moment) -> dict[str, Array]:
        return {"mask": (mask != 0).astype(STORAGES[self.storage])}

    def effective(self, weight: Array, trained: Arrays, frozen: Arrays) -> Array:
        return np.where(frozen["mask"] != 0, weight, weight.dtype.type(0))

    def gradient(
        self, weight: Array, trained: Arrays, frozen: Arrays, upstream: Array
    ) -> tuple[Array, dict[str, Array]]:
        return self.effective(upstream, trained, frozen), {}

    def keep(self, weight: Array, trained: Arrays, mask: Array, choice: Choice | None = None) -> Array:
        return mask != 0 if choice is None else chosen(choice, self.bake(weight, trained, mask))
