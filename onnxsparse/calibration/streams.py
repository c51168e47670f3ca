"""A model run piece by piece on all samples, with stored tensors replaced on the way.

1. A piece holds the nodes up to a value that is asked for, and the stored tensors that these read; nothing else of the
   model is in memory. What follows from stored tensors alone (Constant, Identity, DequantizeLinear of weights) is
   computed in each piece that reads it, so that a tensor can be replaced until the last node has read it.
2. What later nodes read is kept between two pieces: in memory up to a size, on the disk beyond it.
3. Nothing is fused and all runs on one thread: the numbers are those of the operators, and repeat bit for bit.
"""

from __future__ import annotations

import os
import shutil
from collections import ChainMap, Counter
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper
from onnx.helper import make_tensor_value_info, np_dtype_to_tensor_dtype

from onnxsparse.engines.inference import Session
from onnxsparse.engines.working_dirs import temporary
from onnxsparse.errors import ModelError, OutputError
from onnxsparse.files import make_folder
from onnxsparse.graph.edit import RANDOM, every_tensor, reads
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.math.values import Array

ACTIVATIONS = ".activations"
HELD = 1 << 30
"""Bytes of values between two pieces that are held in memory; what is more lies on the disk."""


class Cut:
    """The main graph of a model as nodes that run, and constants that each piece takes for itself."""

    def __init__(self, model: Model) -> None:
        self.model, graph = model, model.proto.graph
        self._stored = {tensor.name: tensor for tensor in graph.initializer}
        self._sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
        self._computed: dict[str, NodeProto] = {}
        self.nodes: list[NodeProto] = []
        for node in graph.node:
            if self._constant(node):
                self._computed.update({name: node for name in node.output if name})
            else:
                self.nodes.append(node)
        self.place = {name: place for place, node in enumerate(self.nodes) for name in node.output if name}
        self.last = {name: place for place, node in enumerate(self.nodes) for name in reads(node)}

    def _constant(self, node: NodeProto) -> bool:
        known = all(self.is_constant(name) for name in reads(node))
        return known and node.op_type not in RANDOM and (bool(node.input) or node.op_type == "Constant")

    def is_constant(self, name: str) -> bool:
        """Whether a value follows from stored tensors alone."""
        return name in self._stored or name in self._computed or name in self._sparse

    @cached_property
    def readers(self) -> Counter[str]:
        """How many inputs of nodes, and outputs of the model, each value is."""
        graph = self.model.proto.graph
        found = Counter(name for node in graph.node for name in reads(node))
        found.update(value.name for value in graph.output)
        return found

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """The stored tensors of the main graph that can change: no other tensor has the same bytes of a data file."""
        stores = self.model.flow.stores
        shared = stores.sharing(every_tensor(self.model.proto))
        homes = stores.homes.items()
        return {tensor.name: tensor for tensor, home in homes if not home.scope and tensor not in shared}

    def reading(self, name: str) -> list[NodeProto]:
        """The nodes that run which read a value."""
        return [node for node in self.nodes if name in reads(node)]

    def dequantised(self, name: str) -> NodeProto | None:
        """The node that makes a constant of stored integers."""
        node = self._computed.get(name)
        return node if node is not None and node.op_type == "DequantizeLinear" else None

    def constants(self) -> Iterator[str]:
        return iter({**self._stored, **self._computed, **self._sparse})

    def constant(self, name: str) -> Array:
        """The numbers of a constant, computed where it is not stored as it is."""
        piece = self.piece(0, 0, {}, [name], {}, [name])
        if name in self._stored:
            return numpy_helper.to_array(piece.graph.initializer[0])
        return np.asarray(Session(piece, optimized=False).run({})[name])

    def piece(
        self,
        start: int,
        stop: int,
        given: Mapping[str, Array],
        outputs: Iterable[str],
        replaced: Mapping[str, Array],
        wanted: Iterable[str] = (),
    ) -> ModelProto:
        """The nodes from `start` to before `stop` as a model of its own; with constants that are wanted beside."""
        nodes = self.nodes[start:stop]
        constants, stored = self._needed([*wanted, *(name for node in nodes for name in reads(node))])
        proto = ModelProto(ir_version=self.model.proto.ir_version)
        proto.opset_import.extend(self.model.proto.opset_import)
        proto.functions.extend(self.model.proto.functions)
        proto.graph.name = "piece"
        proto.graph.node.extend(constants + nodes)
        names = [name for name in stored if name not in replaced]
        proto.graph.initializer.extend(self._stored[name] for name in names if name in self._stored)
        proto.graph.sparse_initializer.extend(self._sparse[name] for name in names if name in self._sparse)
        self.model.complete(proto)
        self._replace(proto, replaced)
        for name, value in given.items():
            kind = np_dtype_to_tensor_dtype(value.dtype)
            proto.graph.input.append(make_tensor_value_info(name, kind, [None] * value.ndim))
        proto.graph.output.extend(ValueInfoProto(name=name) for name in outputs)
        return proto

    def _needed(self, names: Iterable[str]) -> tuple[list[NodeProto], list[str]]:
        """The constant nodes behind some names, in their order, and the stored tensors behind those."""
        pending, nodes, stored = list(names), dict[str, NodeProto](), dict[str, None]()
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in self._computed:
                node = self._computed[name]
                nodes[node.output[0]] = node
                pending.extend(reads(node))
            elif self.is_constant(name):
                stored[name] = None
        order = {name: place for place, name in enumerate(self._computed)}
        return [nodes[name] for name in sorted(nodes, key=order.__getitem__)], sorted(stored)

    def _replace(self, proto: ModelProto, replaced: Mapping[str, Array]) -> None:
        """Other numbers for initializers, which the piece left out, and for Constant nodes, which it has."""
        made = {node.output[0] for node in proto.graph.node if node.op_type == "Constant"}
        read = {name for node in proto.graph.node for name in reads(node)}
        kept = [node for node in proto.graph.node if node.op_type != "Constant" or node.output[0] not in replaced]
        if len(kept) != len(proto.graph.node):
            kept = [NodeProto.FromString(node.SerializeToString()) for node in kept]
            del proto.graph.node[:]
            proto.graph.node.extend(kept)
        for name in replaced:
            if name in read or name in made:
                proto.graph.initializer.append(self._typed(name, replaced[name]))

    def _typed(self, name: str, array: Array) -> TensorProto:
        """Numbers as a tensor; those of bfloat16 come as their bits."""
        stored = self._stored.get(name)
        if stored is not None and stored.data_type == TensorProto.BFLOAT16:
            raw = np.ascontiguousarray(array, np.uint16).tobytes()
            return TensorProto(name=name, data_type=TensorProto.BFLOAT16, dims=array.shape, raw_data=raw)
        return numpy_helper.from_array(np.asarray(array, order="C"), name)


class Stream:
    """All samples on their way through a model; `replaced` are the new numbers of stored tensors, by name."""

    def __init__(
        self,
        cut: Cut,
        feeds: Iterable[Mapping[str, Array]],
        store: Store,
        replaced: MutableMapping[str, Array] | None = None,
    ) -> None:
        self.cut, self._store, self._done = cut, store, 0
        self.replaced: MutableMapping[str, Array] = {} if replaced is None else replaced
        self._kept = [{name: store.put(np.asarray(array)) for name, array in feed.items()} for feed in feeds]

    @property
    def done(self) -> int:
        """How many nodes have run."""
        return self._done

    def fork(self, replaced: Mapping[str, Array]) -> Stream:
        """All batches from here on with other numbers; what is kept so far is shared, and stays."""
        fork = Stream(self.cut, (), Shared(self._store))
        fork._done, fork.replaced = self._done, ChainMap(dict(replaced), self.replaced)
        fork._kept = [dict(kept) for kept in self._kept]
        return fork

    def given(self, stop: int) -> Iterator[dict[str, Array]]:
        """What the nodes from here to before `stop` read of what is kept, batch by batch."""
        read = {name for node in self.cut.nodes[self._done : stop] for name in reads(node)}
        for kept in self._kept:
            yield {name: self._store.get(kept[name]) for name in sorted(read & set(kept))}

    def values(self, names: Sequence[str]) -> Iterator[dict[str, Array]]:
        """Some values, batch by batch; the nodes before them have run then, as the model is now."""
        self.ready(names)
        for kept in self._kept:
            yield {name: self._store.get(kept[name]) for name in names}

    def ready(self, names: Sequence[str]) -> None:
        """Run all nodes before some values."""
        self.run_to(max((self.cut.place.get(name, -1) for name in names), default=-1) + 1, names)

    def run_to(self, stop: int, wanted: Iterable[str] = ()) -> None:
        """Run the nodes before `stop`; what is wanted, and what later nodes read, is kept."""
        if stop <= self._done:
            return
        keep = {*wanted, *(name for name, last in self.cut.last.items() if last >= stop)}
        nodes = self.cut.nodes[self._done : stop]
        made = [name for node in nodes for name in node.output if name]
        read = sorted({name for node in nodes for name in reads(node)} - set(made))
        outputs, session = [name for name in made if name in keep], None
        for kept in self._kept:
            given = {name: self._store.get(kept[name]) for name in read if name in kept}
            if session is None and outputs:
                piece = self.cut.piece(self._done, stop, given, outputs, self.replaced)
                session = Session(piece, optimized=False)
            found = session.run(given) if session is not None else {}
            for name in [name for name in kept if name not in keep]:
                self._store.drop(kept.pop(name))
            kept.update({name: self._store.put(_array(name, found[name])) for name in outputs})
        self._done = stop


def _array(name: str, value: object) -> Array:
    if not isinstance(value, np.ndarray):
        raise ModelError(f"the value '{name}' between two layers is a list or a map, which calibration cannot keep")
    return value


class Constants(Mapping[str, Array]):
    """What is stored in the main graph of a model, by name; read when it is asked for."""

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self._known: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._known:
            self._known[name] = self._cut.constant(name)
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._cut.is_constant(name)

    def __iter__(self) -> Iterator[str]:
        return self._cut.constants()

    def __len__(self) -> int:
        return sum(1 for _ in self._cut.constants())


class Store:
    """Values of streams: in memory up to a size, beyond it in files of a folder."""

    def __init__(self, folder: str | None = None, held: int = HELD) -> None:
        self.folder, self._left, self._files = folder, held, 0
        self.nbytes = 0
        """Of all that is kept."""

    def put(self, array: Array) -> Array | str:
        """What `get` gives the array back for."""
        self.nbytes += array.nbytes
        if self.folder is None or array.nbytes <= self._left:
            self._left -= array.nbytes
            return array
        self._files += 1
        path = os.path.join(self.folder, f"{self._files}.npy")
        try:
            np.save(path, array, allow_pickle=False)
        except OSError as error:
            raise OutputError(f"cannot write to the folder {self.folder}: {error.strerror or error}") from error
        return path

    def get(self, kept: Array | str) -> Array:
        return np.asarray(np.load(kept, allow_pickle=False)) if isinstance(kept, str) else kept

    def drop(self, kept: Array | str) -> None:
        if isinstance(kept, str):
            self.nbytes -= np.load(kept, mmap_mode="r", allow_pickle=False).nbytes
            os.unlink(kept)
        else:
            self.nbytes -= kept.nbytes
            self._left += kept.nbytes


def bytes_between(cut: Cut, feeds: Sequence[Mapping[str, Array]], places: Iterable[int]) -> int:
    """The most bytes of values between two pieces that end at such nodes, by a run on the first batch."""
    store, most = Store(), 0
    stream = Stream(cut, feeds[:1], store)
    for place in sorted(set(places)):
        stream.run_to(place)
        most = max(most, store.nbytes)
    return most * len(feeds)


@contextmanager
def activations(parent: str | None) -> Iterator[str]:
    """A folder for values between two pieces, gone afterwards; in one that this process has locked, or a temporary
    one."""
    if parent is None:
        with temporary() as folder:
            yield folder
        return
    folder = os.path.join(parent, ACTIVATIONS)
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    make_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def demand_space(folder: str, nbytes: int) -> None:
    """An error where values between two pieces have no room."""
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise OutputError(
            f"values between two layers take about {_size(nbytes)} on the disk, and {folder} has {_size(free)} left: "
            "pass fewer --samples, or a --checkpoint folder on a larger disk"
        )


def _size(nbytes: float) -> str:
    return f"{nbytes / 1e9:.1f} GB"


class Shared(Store):
    """Reads what another store keeps; its own values are in memory, and go with the last that reads them."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def get(self, kept: Array | str) -> Array:
        return self._store.get(kept)

    def drop(self, kept: Array | str) -> None:
        """Nothing: it may be of the other."""


__all__ = ["Constants", "Cut", "Store", "Stream", "activations", "bytes_between", "demand_space"]
