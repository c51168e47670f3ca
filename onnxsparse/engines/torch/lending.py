"""Tensors as arrays on the host, live as far as that is possible.

On the CPU an array is the tensor's own memory. From another device it is a copy, which is sent back, if it was handed
out, before the tensor is used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.math.values import Array


def on_host(tensor: Any) -> bool:
    """Whether numpy can use the memory of a tensor."""
    return bool(tensor.device.type == "cpu")


class Lending(Mapping[str, Array]):
    """Arrays by the keys of tensors; `handed` are those that somebody may have written into."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.tensors = tensors
        self.handed: set[str] = set()
        self._lent: dict[str, Array] = {}

    def __getitem__(self, key: str) -> Array:
        array = self.own(key)
        self.handed.add(key)
        return array

    def own(self, key: str) -> Array:
        """The array, for what does the same in all processes."""
        tensor = self.tensors[key].detach()
        if on_host(tensor):
            array: Array = tensor.numpy()
            return array
        if key not in self._lent:
            self._lent[key] = tensor.to("cpu", copy=True).numpy()
        return self._lent[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def send(self) -> None:
        """What was handed out is what the tensors are."""
        with torch().no_grad():
            for key, array in self._lent.items():
                self.tensors[key].copy_(torch().from_numpy(array))
        self._lent.clear()
