"""Distributed training: several processes train one model, started by torchrun or joined by the user's own script.

1. Gradients are averaged once for every update, in buckets, in the same order everywhere. A parameter that one process
   did not use counts as zeros there, and one that none used has no gradient: nobody waits for what never comes.
2. What decides (losses, masks, what a checkpoint holds) goes around as numbers and bytes.
3. The first process to fail says so to all others, in the store where they met.
4. A process that is gone is one clear error in those that wait for it.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import numpy as np

from onnxsparse.engines.processes import Processes, speak_by
from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OnnxSparseError, OptionError
from onnxsparse.math.values import Array

Arrays = Mapping[str, Array]
PATIENCE = timedelta(hours=2)
BUCKET = 1 << 23
"""Numbers that are sent at once."""
LOOK = 0.05
_HERE = "onnxsparse/here"
_GONE = (
    "another process of this run is gone, or cannot be reached; start all of them again, with --resume and the same "
    "--checkpoint folder where there is one"
)
_LOST = ("connection", "peer", "gloo", "nccl", "timeout", "timed out", "socket", "store")


class LostError(OnnxSparseError):
    """Another process of the run is gone."""


class Together(Processes):
    """One of several processes; `group` takes numbers on the host."""

    def __init__(self, group: Any) -> None:
        self._group, self._net = group, _distributed()
        self.rank, self.count = self._net.get_rank(), self._net.get_world_size()

    def total(self, number: float) -> float:
        found = torch().tensor([number], dtype=torch().float64)
        with reaching():
            self._net.all_reduce(found, group=self._group)
        return float(found)

    def mean(self, number: float) -> float:
        return self.total(number) / self.count

    def largest(self, numbers: Sequence[float]) -> list[float]:
        found = torch().tensor(list(numbers), dtype=torch().float64)
        with reaching():
            self._net.all_reduce(found, self._net.ReduceOp.MAX, group=self._group)
        return [float(one) for one in found]

    def told(self, make: Callable[[], Any]) -> Any:
        return self.handed(lambda: ({}, make()))[1]

    def handed(self, make: Callable[[], tuple[Arrays, Any]]) -> tuple[Arrays, Any]:
        arrays, facts = make() if self.first else ({}, None)
        table = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
        table, facts = json.loads(self._bytes(json.dumps([table, facts]).encode()))
        if self.first:
            for array in arrays.values():
                self._array(np.array(array))
            return arrays, facts
        return {name: self._array(np.empty(shape, np.dtype(dtype))) for name, dtype, shape in table}, facts

    def demand_alike(self, facts: Mapping[str, str]) -> None:
        own = torch().tensor([_digest(text) for text in facts.values()], dtype=torch().int64)
        found = [torch().empty_like(own) for _ in range(self.count)]
        with reaching():
            self._net.all_gather(found, own, group=self._group)
        other = [name for place, name in enumerate(facts) if len({int(one[place]) for one in found}) > 1]
        if other:
            raise OptionError(
                f"the processes of this run do not have the same {' and '.join(other)}; give each of them the same "
                "model, options and data"
            )

    def meet(self) -> None:
        with reaching():
            self._net.barrier(group=self._group)

    def made_same(self, tensors: Iterable[Any]) -> None:
        """Give tensors the numbers that the first process has."""
        with reaching(), torch().no_grad():
            for tensor in tensors:
                sent = tensor.detach()
                host = sent if sent.device.type == "cpu" else sent.cpu()
                bits = host.view(torch().uint8) if host.dtype == torch().bool else host
                self._net.broadcast(bits, 0, group=self._group)
                if host is not sent:
                    sent.copy_(host)

    def average_gradients(self, parameters: Sequence[Any]) -> None:
        """Make the gradients the means over all processes."""
        there = torch().tensor([float(one.grad is not None) for one in parameters])
        with reaching():
            self._net.all_reduce(there, group=self._group)
        used = [one for one, count in zip(parameters, there.tolist()) if count]
        for one in used:
            if one.grad is None:
                one.grad = torch().zeros_like(one)
        self.average([one.grad for one in used])

    def average(self, tensors: Sequence[Any]) -> None:
        """Make tensors the means over all processes."""
        with reaching(), torch().no_grad():
            sent = [self._sent(bucket) for bucket in _buckets(tensors)]
            for bucket, flat, work in sent:
                work.wait()
                parts = (flat / self.count).to(bucket[0].device).split([one.numel() for one in bucket])
                for one, part in zip(bucket, parts):
                    one.copy_(part.view_as(one))

    def _sent(self, bucket: list[Any]) -> tuple[list[Any], Any, Any]:
        flat = torch().cat([one.reshape(-1) for one in bucket])
        if flat.device.type not in ("cuda", "xpu"):
            flat = flat.cpu()
        group = self._group if flat.device.type == "cpu" else None
        return bucket, flat, self._net.all_reduce(flat, group=group, async_op=True)

    def _bytes(self, data: bytes) -> bytes:
        size = torch().tensor([len(data)])
        self.made_same([size])
        sent = np.frombuffer(data, np.uint8).copy() if self.first else np.empty(int(size), np.uint8)
        return bytes(self._array(sent))

    def _array(self, array: Any) -> Any:
        if array.size:
            self.made_same([torch().from_numpy(array.reshape(-1).view(np.uint8))])
        return array


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def _buckets(tensors: Sequence[Any]) -> Iterator[list[Any]]:
    """Tensors one after the other, as many together as are sent at once."""
    bucket: list[Any] = []
    size = 0
    for one in tensors:
        if bucket and size + one.numel() > BUCKET:
            yield bucket
            bucket, size = [], 0
        bucket.append(one)
        size += one.numel()
    if bucket:
        yield bucket


def meet(device: str) -> Together:
    """Join the other processes; those of a launcher meet here, those of the user's script have met."""
    net = _distributed()
    if not net.is_initialized():
        _begin(net, device)
    found = Together(None if net.get_backend() == "gloo" else net.new_group(backend="gloo", timeout=PATIENCE))
    found.meet()
    return found


def own_device(device: str) -> str:
    """Of a kind of device each process of a machine has its own."""
    return f"{device}:{os.environ.get('LOCAL_RANK', '0')}" if device in ("cuda", "xpu") else device


def joined() -> int:
    """How many processes the user's script has joined; 1 where it did not."""
    net = torch().distributed
    return int(net.get_world_size()) if net.is_available() and net.is_initialized() else 1


def find_store(patience: timedelta = PATIENCE) -> tuple[Any, int, int]:
    """Where the processes of a launcher meet, which of them this is, and how many they are."""
    rendezvous = importlib.import_module("torch.distributed.rendezvous").rendezvous
    store, rank, count = next(rendezvous("env://", timeout=patience))
    store.set_timeout(patience)
    speak_by(lambda: _is_first_to_fail(store, rank))
    return store, rank, count


def _begin(net: Any, device: str) -> None:
    with reaching():
        store, rank, count = find_store()
        store = net.PrefixStore(gathered(store, rank, count), store)
        backend = "gloo" if device.partition(":")[0] in ("cpu", "mps") else None
        net.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=PATIENCE)
    atexit.register(_end)


def gathered(store: Any, rank: int, count: int) -> str:
    """Wait for all processes; return a name that these have together, and none before them.

    A launcher that starts again may keep its store, with all that the processes before said in it. So each says who it
    is, and they have met when all have seen the same. In short looks, so that a signal ends it, and so does one that
    failed on its way here.
    """
    store.set(f"{_HERE}/{rank}", uuid.uuid4().hex)
    store.add(_HERE, 1)
    begun, seen = time.monotonic(), ""
    while True:
        if store.add(_HERE, 0) >= count:
            found = b"".join(store.get(f"{_HERE}/{one}") for one in range(count))
            name = f"onnxsparse/{hashlib.sha256(found).hexdigest()}"
            if store.add(name, int(name != seen)) == count:
                return name
            seen = name
        if store.add(_failed(), 0) or time.monotonic() - begun > PATIENCE.total_seconds():
            raise LostError(_GONE)
        time.sleep(LOOK)


def _failed() -> str:
    return f"onnxsparse/failed/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def _is_first_to_fail(store: Any, rank: int) -> bool:
    try:
        return bool(store.add(_failed(), 1) == 1)
    except RuntimeError:  # the store is gone with the process that kept it: the first one, or its launcher
        kept_by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return os.environ.get("LOCAL_RANK") == "0" if kept_by_launcher else rank == 1


def _end() -> None:
    with suppress(Exception, SystemExit):  # a signal that comes now finds the process at its end already
        torch().distributed.destroy_process_group()


@contextmanager
def reaching() -> Iterator[None]:
    """Whoever is not there any more is missed in one line."""
    try:
        yield
    except RuntimeError as error:
        if not any(word in str(error).lower() for word in _LOST):
            raise
        raise LostError(_GONE) from error


def _distributed() -> Any:
    net = torch().distributed
    if not net.is_available():
        raise OptionError("this build of torch has no torch.distributed; run without torchrun")
    return net
