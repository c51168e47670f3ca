"""A model whose large stored floats lie in a file beside: copies of it are small, and processes map the same file.

1. Tensors of float32, of `LARGE` elements and more, that the main graph stores go into the file; all else stays in the
   model.
2. A copy that is to be run is written beside that file and loaded from there: so the numbers are in memory once.
3. The folder is temporary, and gone with the object.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, numpy_helper

from onnxsparse.engines.inference import Session
from onnxsparse.engines.working_dirs import temporary
from onnxsparse.errors import OutputError
from onnxsparse.graph.edit import copied, keep
from onnxsparse.graph.initializers import constants_as_initializers
from onnxsparse.math.values import Array

LARGE = 1 << 12
DATA, PAGE = "weights.data", 4096
"""The file, and the multiples at which numbers begin in it: processes map whole pages."""


@dataclass(frozen=True)
class Place:
    """Where in the file a tensor is."""

    offset: int
    dims: tuple[int, ...]

    def array(self, path: str) -> Array:
        """The numbers, mapped from the file."""
        return np.memmap(path, "<f4", "r", self.offset, tuple(self.dims))

    def reference(self, name: str) -> TensorProto:
        """A tensor whose numbers are there."""
        made = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=self.dims)
        made.data_location = TensorProto.EXTERNAL
        for key, value in (("location", DATA), ("offset", self.offset), ("length", 4 * math.prod(self.dims))):
            made.external_data.add(key=key, value=str(value))
        return made


class LightModel:
    """`proto` is a whole model with references into the file `data`; `places` are what they refer to."""

    def __init__(self, proto: ModelProto) -> None:
        self._temporary = ExitStack()
        self.folder = self._temporary.enter_context(temporary())
        self.data = os.path.join(self.folder, DATA)
        self.places: dict[str, Place] = {}
        self.proto, self._count = _without_stored(proto), 0
        stored = [*proto.graph.initializer, *_taken(self.proto.graph.initializer)]
        try:
            with open(self.data, "wb") as file:
                self.proto.graph.initializer.extend(self._put(tensor, file) for tensor in stored)
        except OSError as error:
            raise OutputError(f"cannot write to the folder {self.folder}: {error.strerror or error}") from error

    def _put(self, tensor: TensorProto, file: IO[bytes]) -> TensorProto:
        if tensor.data_type != TensorProto.FLOAT or math.prod(tensor.dims) < LARGE:
            return tensor
        file.write(bytes(-file.tell() % PAGE))
        place = self.places[tensor.name] = Place(file.tell(), tuple(tensor.dims))
        file.write(tensor.raw_data or numpy_helper.to_array(tensor).astype("<f4").tobytes())
        return place.reference(tensor.name)

    def giving(self, names: Iterable[str]) -> str:
        """The path of a copy whose outputs are these values."""
        copy = copied(self.proto)
        known = {value.name: value for value in copy.graph.output}
        keep(copy.graph.output, [known.get(name) or ValueInfoProto(name=name) for name in names])
        self._count += 1
        path = os.path.join(self.folder, f"model_{self._count}.onnx")
        with open(path, "wb") as file:
            file.write(copy.SerializeToString())
        return path

    def session(self, names: Iterable[str], optimized: bool = True) -> Session:
        """The model in the runtime, with these values as outputs."""
        return Session(self.giving(names), optimized, "the model")


def _without_stored(proto: ModelProto) -> ModelProto:
    """A copy whose initializers are those that stood in Constant nodes."""
    made = ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    graph = proto.graph
    made.graph.name = graph.name
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(made.graph, field).extend(getattr(graph, field))
    constants_as_initializers(made.graph)
    return made


def _taken(field: Any) -> list[TensorProto]:
    """The tensors of a field, which has none afterwards."""
    taken = [TensorProto.FromString(tensor.SerializeToString()) for tensor in field]
    del field[:]
    return taken


@contextmanager
def lent(path: str, folder: str) -> Iterator[None]:
    """Meanwhile a file is in another folder. It is moved: a second link to weights is refused by onnx, as an attack."""
    target = os.path.join(folder, os.path.basename(path))
    shutil.move(path, target)
    try:
        yield
    finally:
        shutil.move(target, path)
