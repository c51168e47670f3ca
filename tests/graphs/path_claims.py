"""The commands on a random graph, and what the runtime says of their claims.

Every command may refuse: a row that stays dense, a mask that is left, an error of our own. What it claims must be so at
every operator, in every call, as `runtime_judge` sees it.
"""

from __future__ import annotations

import dataclasses
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

import onnxsparse as osp

from .case import Array
from .expectations import EVERYTHING
from .random_paths import RandomCase
from .runtime_judge import (
    Judge,
    Reached,
    Seen,
    Slot,
    array_of,
    close,
    every_graph,
    matrix,
    outputs_of,
    same,
    stored_of,
    zero_at,
)

PATTERNS: Sequence[Mapping[str, Any]] = (
    {"pattern": "2:4"},
    {"pattern": "2:4"},
    {"pattern": "2:4"},
    {"pattern": "1:4"},
    {"pattern": "1:4"},
    {"pattern": "2:4:transposable"},
    {"pattern": "unstructured", "sparsity": 0.5},
    {"pattern": "block:1x4", "sparsity": 0.5},
    {"pattern": "block:2x2", "sparsity": 0.5},
    {"pattern": "filter", "sparsity": 0.5},
)
FIXED = ("2:4", "1:4", "2:4:transposable")
FORMS = ("mul", "bool", "uint8", "where")
ASKED = {"allow": EVERYTHING}


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A claim that is not so: the command, what kind of thing is wrong, and the details."""

    command: str
    kind: str
    text: str

    @property
    def cause(self) -> str:
        return f"{self.command}: {self.kind}"

    def __str__(self) -> str:
        return f"{self.cause}: {self.text}"


def wrong_claims(case: RandomCase, options: Mapping[str, Any] | None = None) -> list[Wrong]:
    """Everything that the commands say of a case and that is not so."""
    with tempfile.TemporaryDirectory() as folder:
        return _Claims(case, Path(folder), options).all()


class _Claims:
    def __init__(self, case: RandomCase, folder: Path, options: Mapping[str, Any] | None) -> None:
        self.case, self.folder = case, folder
        dice = random.Random(f"claims/{case.seed}")
        self.options = dict(options or dice.choice(PATTERNS))
        self.form = dice.choice(FORMS)
        self.found: list[Wrong] = []
        path = case.write(folder)
        self.source: Any = path if case.files else case.model
        self.whole = onnx.load(path) if case.files else case.model
        self.judge = Judge(self.whole, case.feeds)
        self.values = self.judge.values(self.whole)
        self.before = self.judge.run(self.values)
        self._reached: dict[tuple[str, ...], list[Reached]] = {}

    def all(self) -> list[Wrong]:
        pruned = self._pruned()
        self._verified()
        folded = self._folded()
        if pruned is not None:
            self._masked(pruned, folded is not None and any("no masks" in note for note in folded.report.notes))
        return self.found

    # -- running a command

    def _run(self, command: str, function: Any, *given: Any, **options: Any) -> Any:
        try:
            return function(*given, **options)
        except osp.OnnxSparseError:
            return None
        except Exception as error:  # a traceback is what is looked for
            self._wrong(command, f"traceback {type(error).__name__}", str(error)[:200])
            return None

    def _wrong(self, command: str, kind: str, text: str) -> None:
        if not any((one.command, one.kind) == (command, kind) for one in self.found):
            self.found.append(Wrong(command, kind, text))

    def _loaded(self, result: Any) -> ModelProto:
        return onnx.load(result.path) if result.path else result.model

    def _to(self, name: str) -> dict[str, Any]:
        """Where the result goes: to memory, or beside the model where it has data files."""
        if not self.case.files:
            return {}
        (self.folder / name).mkdir()
        return {"output": self.folder / name / "model.onnx"}

    def _twins(self, name: str) -> tuple[str, ...]:
        """The names that share the bytes of a stored tensor."""
        places = {
            one.name: tuple((e.key, e.value) for e in one.external_data) for one in self.case.model.graph.initializer
        }
        own = places.get(name)
        return tuple(other for other, place in places.items() if place and place == own) if own else (name,)

    def reached(self, name: str, alone: bool = False) -> list[Reached]:
        names = (name,) if alone else tuple(one for one in self._twins(name) if one in self.values)
        if names not in self._reached:
            with np.errstate(all="ignore"):
                self._reached[names] = self.judge.reached(self.values, names)
        return self._reached[names]

    # -- prune

    def _pruned(self) -> Any:
        result = self._run("prune", osp.prune, self.source, **self.options, **ASKED, **self._to("pruned"))
        if result is None:
            return None
        done = [row.name for row in result.report.rows if row.status == "pruned"]
        written = self._loaded(result)
        self._nothing_else("prune", written, done)
        values = self.judge.values(written)
        after = self.judge.run({**self.values, **values})
        for name in done:
            if name in self.values:
                self._pruned_at_slots(name, after, next(r for r in result.report.rows if r.name == name))
        self._no_silence({row.name for row in result.report.rows})
        self._verified_result(result, done, written)
        self._verified_damage(result, written, values)
        self._moved_outputs(result, done, after)
        return result, done, values, after

    def _nothing_else(self, command: str, written: ModelProto, done: Sequence[str]) -> None:
        old, new = stored_of(self.whole), stored_of(written)
        if list(old) != list(new):
            self._wrong(command, "stored tensors come or go", f"{list(old)} -> {list(new)}")
            return
        allowed = {twin for name in done for twin in self._twins(name)}
        for name, tensor in old.items():
            if name not in allowed and not _equal(array_of(tensor), array_of(new[name])):
                self._wrong(command, "a tensor changed that is not reported", name)
        if _skeleton(self.whole) != _skeleton(written):
            self._wrong(command, "the graph changed", "")

    def _pruned_at_slots(self, name: str, after: Sequence[Seen], row: Any) -> None:
        for slot, numbers, rel, old in self._slots(name, after):
            blank = zero_at(slot, numbers[0], numbers[1])
            moved = ~((numbers[0] == old) | ((numbers[0] != numbers[0]) & (old != old)))
            if (rel & moved & ~blank).any():
                self._wrong("prune", "a number is neither the old one nor zero", _where(name, slot))
            self._holds("prune", name, slot, blank, rel, moved, row)

    def _slots(self, name: str, seen: Sequence[Seen], alone: bool = False) -> Any:
        """Every slot and step that a tensor reaches: the numbers and zero points, what depends on it, the old ones."""
        for run, reached in enumerate(self.reached(name, alone)):
            for slot in self.judge.slots:
                for step, rel in enumerate(reached.elements[slot.shown]):
                    if rel.any():
                        zeros = [seen[run].shown[point][step] for point in slot.zeros]
                        numbers = seen[run].shown[slot.shown][step]
                        yield slot, (numbers, zeros), rel, self.before[run].shown[slot.shown][step]

    def _holds(self, command: str, name: str, slot: Slot, blank: Array, rel: Array, moved: Array, row: Any) -> None:
        pattern = str(self.options["pattern"])
        if pattern == "unstructured":
            whole = rel.size == self.values[name].size and rel.all()
            if command == "prune" and whole and blank.sum() < (row.zeros or 0):
                self._wrong(command, "fewer zeros at an operator than reported", f"{_where(name, slot)}")
            return
        seen = [matrix(slot, part) for part in (blank, rel, moved)]
        if seen[0] is None:
            return
        broken = _broken(pattern, *seen)
        if broken:
            self._wrong(
                command,
                f"{pattern.split(':')[0] if pattern[0] == 'b' else pattern} is broken at an operator",
                f"{_where(name, slot)}: {broken} units",
            )

    def _no_silence(self, rows: set[str]) -> None:
        for name, array in self.values.items():
            if name[0] != "w" or name in rows or array.size < 16:
                continue
            for slot, numbers, *_ in self._slots(name, self.before, alone=True):
                if slot.op == "Gather" and self._known_at_run_time(slot):
                    continue  # whatever runs through a network is picked from by Gather
                if not np.any(numbers[0]):
                    continue  # numbers that were all rounded to zero may as well be a mask of zeros
                self._wrong("prune", "a weight has no row", _where(name, slot))

    def _known_at_run_time(self, slot: Slot) -> bool:
        first, second = (run.shown[slot.shown] for run in self.before)
        return len(first) != len(second) or not all(map(same, first, second))

    def _verified_result(self, result: Any, done: Sequence[str], written: ModelProto) -> None:
        """What was pruned must hold when it is asked for again."""
        source = result.path or written
        asked = {key: value for key, value in self.options.items() if key != "sparsity"}
        own = self._run("verify", osp.verify, source)
        if own is not None and done and not own.report.ok:
            self._wrong("verify", "what prune wrote does not hold by its own record", _bad(own))
        if ":" in asked["pattern"] and asked["pattern"][0] in "12":
            again = self._run("verify", osp.verify, source, **asked, **ASKED)
            if again is not None:
                status = {row.name: row.status for row in again.report.rows}
                if any(status.get(name) != "holds" for name in done):
                    self._wrong("verify", "what prune wrote does not hold by its rule", _bad(again))

    def _moved_outputs(self, result: Any, done: Sequence[str], after: Sequence[Seen]) -> None:
        """An output that shows a weight moves with it; the row says so."""
        for name in done:
            row = next(row for row in result.report.rows if row.name == name)
            for at in self.judge.shown_by(self._twins(name)):
                old, new = ([run.outputs[at] for run in runs] for runs in (self.before, after))
                if not all(map(same, old, new)) and not row.others:
                    self._wrong("prune", "an output that shows the weight moved without a word", f"{name}: output {at}")

    # -- verify

    def _verified_damage(self, result: Any, written: ModelProto, values: Mapping[str, Array]) -> None:
        """One dropped number is put back: whatever holds now must hold at every operator."""
        if self.case.files or self.options["pattern"] not in FIXED:
            return
        dice = random.Random(f"damage/{self.case.seed}")
        for name in sorted(values):
            lost = np.flatnonzero(values[name] != self.values[name])
            if name[0] != "w" or not lost.size:
                continue
            changed, tensor = ModelProto(), stored_of(written)[name]
            changed.CopyFrom(written)
            numbers = np.array(values[name]).reshape(-1)
            for at in dice.sample(lost.tolist(), min(3, len(lost))):
                numbers[at] = self.values[name].reshape(-1)[at]
            damaged = stored_of(changed)[name]
            kind = damaged.name
            damaged.CopyFrom(numpy_helper.from_array(numbers.reshape(tensor.dims).astype(array_of(tensor).dtype), kind))
            seen = self.judge.run({**self.values, **values, name: numbers.reshape(values[name].shape)})
            report = self._run("verify", osp.verify, changed, pattern=self.options["pattern"], **ASKED)
            for row in report.report.rows if report else ():
                if row.status == "holds" and row.name == name:
                    for slot, shown, rel, _ in self._slots(name, seen):
                        blank = zero_at(slot, shown[0], shown[1])
                        self._holds("verify of a damaged file", name, slot, blank, rel, np.zeros_like(blank), row)

    def _verified(self) -> None:
        """`holds` is said only of what does, whether or not it was pruned by this tool."""
        if self.options["pattern"] not in FIXED:
            return
        result = self._run("verify", osp.verify, self.source, pattern=self.options["pattern"], **ASKED)
        if result is None:
            return
        for row in result.report.rows:
            if row.status == "holds" and row.name in self.values:
                for slot, numbers, rel, _ in self._slots(row.name, self.before, alone=True):
                    blank = zero_at(slot, numbers[0], numbers[1])
                    self._holds("verify", row.name, slot, blank, rel, np.zeros_like(blank), row)

    # -- fold

    def _folded(self) -> Any:
        result = self._run("fold", osp.fold_masks, self.source, **self._to("folded"))
        if result is None:
            return None
        done = [row.name for row in result.report.rows if row.status == "folded"]
        self._same_outputs(
            "fold", result, [one.outputs for one in self.before], f"folded {', '.join(done) or 'nothing'}"
        )
        self._run("fold", osp.fold_masks, self.source, discard=True, **self._to("discarded"))
        return result

    def _same_outputs(self, command: str, result: Any, wanted: Sequence[list[Any]], text: str) -> None:
        made = self._loaded(result)
        try:
            onnx.checker.check_model(made)
            outputs = outputs_of(made, self.case.feeds)
        except Exception as error:
            self._wrong(command, "the result does not run", f"{text}: {str(error)[:160]}")
            return
        for first, second in zip(wanted, outputs):
            for at, (old, new) in enumerate(zip(first, second)):
                if not close(old, new):
                    self._wrong(command, _difference(old, new), f"output {at}, {text}")

    # -- mask

    def _masked(self, pruned: Any, plain: bool) -> None:
        """Outputs as pruned; folded again the bytes of pruning, discarded those of the model."""
        result = self._run(
            "mask", osp.insert_masks, self.source, **self.options, **ASKED, form=self.form, **self._to("masked")
        )
        if result is None:
            return
        done = [row.name for row in result.report.rows if row.status == "masked"]
        known = [name for name in done if name in self.values]
        after = self.judge.run({**self.values, **{name: pruned[2][name] for name in known}})
        self._same_outputs("mask", result, [one.outputs for one in after], f"masked {', '.join(done) or 'nothing'}")
        source = result.path or result.model
        folded = self._run("fold of mask", osp.fold_masks, source, **self._to("masked_folded"))
        bytes_count = plain and not self.case.files
        if folded is not None and bytes_count and set(done) == set(pruned[1]):
            self._same_bytes("fold of mask", folded.model, pruned[0].model, "other bytes than prune")
        if folded is not None and not plain:
            self._same_outputs("fold of mask", folded, [one.outputs for one in after], f"masked {', '.join(done)}")
        dropped = self._run("discard of mask", osp.fold_masks, source, discard=True, **self._to("masked_dropped"))
        if dropped is not None and bytes_count:
            self._same_bytes("discard of mask", dropped.model, self.whole, "other bytes than the model")

    def _same_bytes(self, command: str, made: ModelProto, wanted: ModelProto, kind: str) -> None:
        if made.SerializeToString() != wanted.SerializeToString():
            self._wrong(command, kind, "")


def _broken(pattern: str, blank: Array, rel: Array, moved: Array) -> int:
    """How many units of a pattern are not as the pattern wants them, seen as (group, out, in, tap)."""
    if pattern in ("2:4", "1:4"):
        n, m = map(int, pattern.split(":"))
        whole = blank.shape[2] // m * m
        cut = [part[:, :, :whole].reshape(*part.shape[:2], -1, m, part.shape[3]) for part in (blank, rel)]
        return int((((~cut[0]).sum(axis=3) > n) & cut[1].any(axis=3)).sum())
    if pattern == "2:4:transposable":
        return sum(_crowded(blank, rel, axis) for axis in (2, 4))
    if pattern == "filter":
        return int(((moved & rel).any(axis=(2, 3)) & ~blank.all(axis=(2, 3))).sum())
    rows, along = map(int, pattern.partition(":")[2].split("x"))
    outs, ins = blank.shape[1] // rows * rows, blank.shape[2] // along * along
    cut = [
        part[:, :outs, :ins].reshape(part.shape[0], outs // rows, rows, ins // along, along, part.shape[3])
        for part in (blank, rel, moved)
    ]
    return int(((cut[2] & cut[1]).any(axis=(2, 4)) & ~cut[0].all(axis=(2, 4))).sum())


def _crowded(blank: Array, rel: Array, axis: int) -> int:
    """How many columns (axis 2) or rows (axis 4) of 4 x 4 blocks hold more than 2 numbers."""
    group, outs, ins, tap = blank.shape
    used, own = (
        part[:, : outs // 4 * 4, : ins // 4 * 4].reshape(group, outs // 4, 4, ins // 4, 4, tap)
        for part in (~blank, rel)
    )
    return int(((used.sum(axis=axis) > 2) & own.any(axis=axis)).sum())


def _difference(old: Any, new: Any) -> str:
    if old.shape != new.shape or old.dtype != new.dtype:
        return "an output has another shape or type"
    if old.dtype.kind == "f" and not np.array_equal(np.isfinite(old), np.isfinite(new)):
        return "NaN or infinity made or lost"
    return "an output changed"


def _where(name: str, slot: Slot) -> str:
    return f"{name} at input {slot.index} of {slot.node}"


def _bad(result: Any) -> str:
    return "; ".join(f"{row.name}: {row.status} {row.reason}" for row in result.report.rows if row.status != "holds")


def _equal(first: Array, second: Array) -> bool:
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()


def _skeleton(model: ModelProto) -> bytes:
    """The model without what is stored, and without what the metadata records."""
    bare = ModelProto()
    bare.CopyFrom(model)
    del bare.metadata_props[:]
    for graph in every_graph(bare):
        tensors = list(getattr(graph, "initializer", ()))
        tensors += [one.t for node in graph.node if node.op_type == "Constant" for one in node.attribute]
        for tensor in tensors:
            for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "external_data"):
                tensor.ClearField(field)
            tensor.ClearField("data_location")
    return bare.SerializeToString(deterministic=True)
