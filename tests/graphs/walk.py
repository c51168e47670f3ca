"""One model of `CASES` on its way through every command; each station is made once, when a property first asks for it.

A station is what a command returned. Who wants to spoil a model takes a copy (`copy_of`): all properties of a case look
at the same stations.
"""

from __future__ import annotations

import tempfile
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import onnxsparse as osp

from .builders import CASES, Built
from .case import Array, Expected
from .expectations import EVERYTHING, values
from .running import run


class Walk:
    """What becomes of one model. `changed` says which commands wrote into the model that they were given."""

    def __init__(self, name: str) -> None:
        self.name, self.family = name, CASES[name].family
        self.built: Built = CASES[name].build()
        self.bytes = self.built.model.SerializeToString()
        self.changed: list[str] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @cached_property
    def source(self) -> Any:
        """A path where there is external data, else the model itself."""
        if not self.built.files:
            return self.built.model
        self._folder = tempfile.TemporaryDirectory()
        return self.built.write(Path(self._folder.name))

    def end(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def ask(self, command: str, source: Any = None, **options: Any) -> Any:
        """A command on a model (of `source`, else the case's own), which must stay as it was."""
        given = self.source if source is None else source
        before = given.SerializeToString() if isinstance(given, onnx.ModelProto) else b""
        result = getattr(osp, command)(given, **options)
        if isinstance(given, onnx.ModelProto) and given.SerializeToString() != before:
            self.changed.append(command)
        return result

    # -- stations

    @cached_property
    def inspected(self) -> Any:
        return self.ask("inspect").report

    @cached_property
    def pruned(self) -> Any:
        """2:4."""
        return self.by("2:4")

    @cache  # noqa: B019 - a walk lives as long as its test
    def by(self, pattern: str, sparsity: float | None = None, allocation: str | None = None) -> Any:
        """Pruned by any rule."""
        given = {"sparsity": sparsity, "allocation": allocation}
        return self.ask("prune", pattern=pattern, allow=EVERYTHING, **{k: v for k, v in given.items() if v is not None})

    @cached_property
    def masked(self) -> Any:
        return self.ask("insert_masks", pattern="2:4", allow=EVERYTHING)

    @cached_property
    def folded(self) -> Any:
        """Masked, then folded."""
        return self.ask("fold_masks", self.masked.model)

    @cached_property
    def discarded(self) -> Any:
        """Masked, then bared again."""
        return self.ask("fold_masks", self.masked.model, discard=True)

    @cached_property
    def folded_as_it_came(self) -> Any:
        """For models in which somebody left masks."""
        return self.ask("fold_masks")

    @cached_property
    def verified(self) -> Any:
        """The dense model, held against 2:4."""
        return self.ask("verify", pattern="2:4", allow=EVERYTHING).report

    @cached_property
    def verified_after(self) -> Any:
        """The pruned one."""
        return self.ask("verify", self.pruned.model, pattern="2:4", allow=EVERYTHING).report

    # -- what stands in them

    def before(self, wanted: Expected) -> Array:
        return values(self.built.model, wanted)

    def outputs(self, model: onnx.ModelProto) -> list[Array]:
        return run(model, self.built)

    @cached_property
    def dense_outputs(self) -> list[Array]:
        return self.outputs(self.built.model)


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def without_record(model: onnx.ModelProto) -> onnx.ModelProto:
    """As a trainer writes it that knows nothing of metadata."""
    copy = copy_of(model)
    del copy.metadata_props[:]
    return copy


def same(first: list[Array], second: list[Array]) -> bool:
    return len(first) == len(second) and all(np.array_equal(a, b) for a, b in zip(first, second))
