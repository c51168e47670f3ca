"""Names of tensors in a module: as in the file, dots as steps into it, without what Python or torch cannot take."""

from __future__ import annotations

import keyword
import re

from onnxsparse.engines.torch.library import torch

_FOREIGN = re.compile(r"[^0-9A-Za-z_.]+")


class Targets:
    """The names given out in one module, each once; none is the beginning of another's path."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._folders: set[str] = set()
        self._blank = torch().fx.GraphModule(torch().nn.Module(), torch().fx.Graph())

    def fresh(self, name: str) -> str:
        wanted = self._path(name)
        found, count = wanted, 1
        while not self._free(found):
            flat = wanted.replace(".", "_")
            found, count = (flat if count == 1 and flat != wanted else f"{flat}_{count}"), count + 1
        self._taken.add(found)
        self._folders.update(_folders(found))
        return found

    def _free(self, path: str) -> bool:
        return not {path} & self._taken and not {path} & self._folders and not self._taken & set(_folders(path))

    def _path(self, name: str) -> str:
        steps = [step for step in _FOREIGN.sub("_", name).split(".") if step] or ["tensor"]
        taken = (keyword.iskeyword(step) or hasattr(self._blank, step) for step in steps)
        return ".".join(f"{step}_" if unfit else step for step, unfit in zip(steps, taken))


def _folders(path: str) -> list[str]:
    steps = path.split(".")
    return [".".join(steps[:depth]) for depth in range(1, len(steps))]
