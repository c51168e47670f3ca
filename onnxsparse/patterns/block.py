"""The block pattern."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from onnxsparse.errors import OptionError
from onnxsparse.patterns.cells import CellPattern
from onnxsparse.patterns.pattern import Shape4


@dataclass(frozen=True)
class Block(CellPattern):
    """Blocks of R outputs by C inputs of the reduction are zero as a whole; ragged edges stay dense."""

    name: ClassVar[str] = "block"
    syntax: ClassVar[str] = "block:RxC"
    example: ClassVar[str] = "block:4x1"
    outputs: int = field(metadata={"option": False})
    inputs: int = field(metadata={"option": False})

    def __post_init__(self) -> None:
        if self.outputs < 1 or self.inputs < 1:
            raise OptionError(f"{self.text} has an empty block")

    @classmethod
    def read(cls, text: str) -> Block | None:
        word, _, size = text.partition(":")
        if word != cls.name:
            return None
        match = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,6})", size)
        if match is None:
            raise OptionError(f"{text[:60]!r} is not a {word}: write {cls.syntax}, for example {cls.example}")
        return cls(int(match[1]), int(match[2]))

    @property
    def text(self) -> str:
        return f"{self.name}:{self.outputs}x{self.inputs}"

    def cell(self, shape: Shape4) -> Shape4:
        return (1, self.outputs, self.inputs, 1)
