"""Checkpoints of a calibration: what the gradients said, each curve, and the masks and numbers of each swept layer.

1. Each is a checkpoint of its own (`onnxsparse.checkpoints`): arrays and a manifest in JSON, in a folder that has its
   name only when it is whole. Whatever ends the process, all that were finished are there.
2. Activations are not kept: on resume the model runs through what is done, with the numbers that were found then.
3. A folder with checkpoints of another model, plan, samples, options or version is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np

from onnxsparse import checkpoints
from onnxsparse.allocations.curves import Curve
from onnxsparse.calibration.layers import CalibratedLayer
from onnxsparse.calibration.new_numbers import NewNumbers
from onnxsparse.calibration.sensitivity import Blocks, Sensitivity
from onnxsparse.calibration.sweep import Swept
from onnxsparse.engines.working_dirs import claimed
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.version import __version__

SENSITIVITY = "sensitivity"


class Saves:
    """What is done, by name; without a folder nothing is kept. `notes` say what was damaged."""

    def __init__(
        self, folder: str | None, job: str, found: Sequence[checkpoints.Checkpoint] = (), notes: Sequence[str] = ()
    ) -> None:
        self._folder, self._job, self.notes = folder, job, tuple(notes)
        self._found = {str(one.facts["what"]): one for one in found}
        self._next = max((one.step for one in found), default=-1) + 1

    def find(self, what: str) -> checkpoints.Checkpoint | None:
        return self._found.get(what)

    def keep(self, what: str, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> checkpoints.Checkpoint | None:
        """Save something that is done."""
        if self._folder is None:
            return None
        path = checkpoints.save(self._folder, self._next, arrays, {**facts, "what": what, "job": self._job})
        self._next += 1
        self._found[what] = checkpoints.open_checkpoint(path, whole=False)
        return self._found[what]

    # -- what gradients say

    def sensitivity(self, layers: Sequence[CalibratedLayer]) -> Sensitivity | None:
        found = self.find(SENSITIVITY)
        if found is None:
            return None
        rows = {layers[int(name.split()[1])]: array for name, array in found.arrays.items() if name.startswith("rows")}
        probes = dict[tuple[CalibratedLayer, int], list[list[list[Array]]]]()
        for name in (name for name in found.arrays if name.startswith("probe")):  # in the order of all places
            layer, which, batch, draw, _ = map(int, name.split()[1:])
            batches = probes.setdefault((layers[layer], which), [])
            _grown(_grown(batches, batch), draw).append(found.arrays[name])
        positions = dict[tuple[CalibratedLayer, int], list[list[Array]]]()
        for name in (name for name in found.arrays if name.startswith("positions")):
            layer, which, batch, _ = map(int, name.split()[1:])
            _grown(positions.setdefault((layers[layer], which), []), batch).append(found.arrays[name])
        facts = found.facts
        shares = {layers[int(number)]: share for number, share in facts["shares"].items()}
        return Sensitivity(rows, probes, facts["unreached"], facts["engine"], tuple(facts["notes"]), shares, positions)

    def keep_sensitivity(self, layers: Sequence[CalibratedLayer], known: Sensitivity) -> None:
        places = {layer: number for number, layer in enumerate(layers)}
        arrays = {f"rows {places[layer]}": array for layer, array in known.rows.items()}
        for (layer, which), batches in known.probes.items():
            arrays.update({f"probe {places[layer]} {which} {at}": block for at, block in _numbered(batches)})
        for (layer, which), weights in known.positions.items():
            start = f"positions {places[layer]} {which}"
            arrays.update(
                {f"{start} {at} {block}": one for at, own in enumerate(weights) for block, one in enumerate(own)}
            )
        facts: dict[str, Any] = {"unreached": dict(known.unreached), "engine": known.engine, "notes": [*known.notes]}
        facts["shares"] = {str(places[layer]): share for layer, share in known.shares.items()}
        self.keep(SENSITIVITY, arrays, facts)

    # -- curves

    def curves(self, layers: Sequence[CalibratedLayer]) -> dict[CalibratedLayer, Curve]:
        found = {layer: self.find(f"curve {number}") for number, layer in enumerate(layers)}
        return {layer: _curve(one) for layer, one in found.items() if one is not None}

    def keep_curve(self, number: int, curve: Curve) -> None:
        facts = {"name": curve.name, "size": curve.size, "shares": curve.shares, "errors": curve.errors}
        self.keep(f"curve {number}", {}, facts)

    # -- layers

    def swept(self, what: str, layer: CalibratedLayer, numbers: NewNumbers) -> Swept | None:
        """A layer as it was swept, its numbers among the new ones."""
        found = self.find(what)
        if found is None:
            return None
        facts = found.facts
        for name in facts["numbers"]:
            numbers.known(name, partial(found.arrays.__getitem__, f"numbers {name}"))
        masks = {name: _unpacked(found.arrays[f"mask {name}"], size) for name, size in facts["masks"].items()}
        solved = tuple(facts["solved"])
        return Swept(
            layer,
            masks,
            facts["error"],
            facts["unfitted"],
            facts["fell_back"],
            solved,
            facts["done"],
            facts["still"],
            facts["rows"],
            facts["products"],
        )

    def keep_swept(self, what: str, swept: Swept, numbers: NewNumbers) -> None:
        """Save a layer and what changed with it; its numbers are read from there from now on."""
        names = numbers.taken()
        if self._folder is None:
            return
        arrays = {f"numbers {name}": numbers[name] for name in names}
        arrays.update({f"mask {name}": np.packbits(mask) for name, mask in swept.masks.items()})
        facts = {
            "error": swept.error,
            "unfitted": swept.unfitted,
            "fell_back": bool(swept.fell_back),
            "done": swept.done,
            "still": swept.still,
            "rows": swept.rows,
            "products": swept.products,
        }
        sizes = {name: mask.size for name, mask in swept.masks.items()}
        made = self.keep(
            what,
            arrays,
            {
                **facts,
                "fell_back": bool(swept.fell_back),
                "solved": list(swept.solved),
                "numbers": names,
                "masks": sizes,
            },
        )
        assert made is not None
        for name in names:
            numbers.known(name, partial(made.arrays.__getitem__, f"numbers {name}"))


def _curve(found: checkpoints.Checkpoint) -> Curve:
    facts = found.facts
    return Curve(facts["name"], facts["size"], tuple(facts["shares"]), tuple(facts["errors"]))


def _grown(lists: list[Any], place: int) -> list[Any]:
    """The list at a place of a list of lists, which grows as far."""
    lists.extend([] for _ in range(place + 1 - len(lists)))
    found: list[Any] = lists[place]
    return found


def _numbered(batches: Sequence[Sequence[Blocks]]) -> Iterator[tuple[str, Array]]:
    for batch, draws in enumerate(batches):
        for draw, blocks in enumerate(draws):
            for number, block in enumerate(blocks):
                yield f"{batch} {draw} {number}", block


def _unpacked(bits: Array, size: int) -> Array:
    found: Array = np.unpackbits(bits, count=size).view(bool)
    return found


@contextmanager
def saves(
    folder: str | None, resume: bool, job: Callable[[], Sequence[str]], feeds: Sequence[Mapping[str, Array]]
) -> Iterator[Saves]:
    """What is kept in a folder, which no other process may use meanwhile; `job` says what has to be the same."""
    if folder is None:
        if resume:
            raise OptionError("--resume goes on with what --checkpoint kept; name that folder")
        yield Saves(None, "")
        return
    with ExitStack() as stack:
        checkpoints.claim(folder)
        stack.enter_context(claimed(folder))
        yield Saves(folder, *_found(folder, resume, _digest(job(), feeds)))


def _found(folder: str, resume: bool, job: str) -> tuple[str, list[checkpoints.Checkpoint], list[str]]:
    notes: list[str] = []
    found = checkpoints.all_whole(folder, notes)
    if found and not resume:
        raise OptionError(f"{folder} holds checkpoints of a run; pass --resume to go on with it, or another folder")
    if any(one.facts.get("job") != job for one in found):
        raise OptionError(
            f"{folder} holds checkpoints of another run (another model, plan, samples, options or version); pass the "
            "same options, or another folder"
        )
    return job, found, notes


def _digest(job: Sequence[str], feeds: Sequence[Mapping[str, Array]]) -> str:
    digest = hashlib.sha256("\n".join([__version__, *job]).encode())
    for feed in feeds:
        for name, array in sorted(feed.items()):
            digest.update(f"\n{name}\0{array.dtype.str}\0{array.shape}\0".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


__all__ = ["Saves", "saves"]
