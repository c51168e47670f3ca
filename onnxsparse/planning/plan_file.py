"""A plan as a YAML file: written, read by a person, edited, and taken back.

Every weight is an entry; what a person may change is `pattern` (a pattern, or `dense`) and `sparsity`. Counts follow
from these two. The digest of each tensor tells whether the plan was made for the same numbers.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from onnxsparse import patterns
from onnxsparse.errors import OnnxSparseError, PlanError, nearest
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Weight
from onnxsparse.patterns import Pattern
from onnxsparse.planning.plan import Plan, PlanRow, does_not_fit
from onnxsparse.planning.rule import Rule, read_sparsity
from onnxsparse.planning.stored_params import SLAB
from onnxsparse.report.rows import DENSE
from onnxsparse.version import __version__

VERSION = 1
LARGEST = 1 << 25
_KEYS = ("name", "layers", "shape", "dtype", "pattern", "sparsity", "reason", "chosen", "crc32")
CALIBRATION = ("score", "solver", "allocation", "sensitivity", "engine", "budget")
_HEAD = """# What onnxsparse would do to each weight. Edit `pattern` ("2:4", unstructured, dense) and `sparsity`, then
# onnxsparse prune MODEL -o OUT --plan THIS_FILE{data}
"""


def write_plan(plan: Plan, model: Model) -> str:
    """The plan as the text of a YAML file."""
    import yaml  # a fifth of the package's import time, for the commands that meet a plan file

    entries = [_entry(row) for row in plan.rows]
    document = {
        "onnxsparse_plan": VERSION,
        "version": __version__,
        "target": plan.rule.target.text if plan.rule.target else None,
        "score": plan.rule.score.text,
        "sparsity": plan.rule.sparsity,
        **({"tie_equal": True} if plan.rule.ties else {}),
        **({"calibration": dict(plan.calibration)} if plan.calibration else {}),
        "input_sha256": model.sha256(),
        "weights": entries,
    }
    head = _HEAD.format(data=" --data SAMPLES" if plan.calibration else "")
    return head + yaml.dump(document, sort_keys=False, allow_unicode=True, width=100_000, default_flow_style=None)


def _entry(row: PlanRow) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": row.name,
        "layers": ", ".join(row.weight.layers),
        "shape": list(row.weight.shape),
        "dtype": row.weight.tensor.kind,
        "pattern": row.pattern.text if row.pattern else DENSE,
        "sparsity": row.sparsity,
        "reason": row.reason,
        "chosen": True if row.chosen else None,
        "crc32": digest(row.weight) if row.weight.tensor.readable else None,
    }
    return {key: value for key, value in entry.items() if value not in (None, "")}


def digest(weight: Weight) -> str:
    """A checksum of a weight's stored numbers."""
    crc, tensor = 0, weight.tensor
    for start in range(0, tensor.size, SLAB):
        crc = zlib.crc32(tensor.read(start, min(start + SLAB, tensor.size)).data, crc)
    return f"{crc:08x}"


@dataclass(frozen=True)
class Promise:
    """One entry of a plan file, read and checked on its own."""

    name: str
    pattern: Pattern | None
    sparsity: float | None
    shape: tuple[int, ...] | None
    reason: str
    chosen: bool
    crc32: str


@dataclass(frozen=True)
class PlanFile:
    path: str
    target: str
    score: str
    sparsity: float | None
    entries: tuple[Promise, ...]
    ties: bool = False
    """Whether weights that are copies of one another have one mask."""
    calibration: Mapping[str, Any] = field(default_factory=dict)
    """What decided it, where samples did."""


def read_plan(path: str) -> PlanFile:
    """Read a plan file; an error says where it is wrong."""
    document = _load(path)
    if not isinstance(document, Mapping) or not isinstance(document.get("weights"), list):
        raise PlanError(
            f"{path} is not an onnxsparse plan: it has no list of `weights` (write one with `onnxsparse plan`)"
        )
    found = document.get("onnxsparse_plan")
    if found != VERSION or isinstance(found, bool):
        raise PlanError(f"{path}: `onnxsparse_plan: {VERSION}` expected, found {str(found)[:40]}")
    if any(isinstance(document.get(key), (list, dict)) for key in ("target", "score", "sparsity")):
        raise PlanError(f"{path}: target, score and sparsity each take one value")
    ties = document.get("tie_equal")
    if ties not in (None, True, False):
        raise PlanError(f"{path}: tie_equal is true or false, not {str(ties)[:40]}")
    entries = tuple(_promise(entry, index, path) for index, entry in enumerate(document["weights"], 1))
    level = read_sparsity(document.get("sparsity"))
    names = [entry.name for entry in entries]
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise PlanError(f"{path}: weight '{twice}' stands there twice")
    target, score = str(document.get("target") or ""), str(document.get("score") or "magnitude")
    return PlanFile(path, target, score, level, entries, bool(ties), _calibration(document, path))


def _calibration(document: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """What decided it: words, and numbers of samples."""
    found = document.get("calibration") or {}
    wanted = {**dict.fromkeys(CALIBRATION, str), "samples": int, "seed": int}
    if not isinstance(found, Mapping):
        raise PlanError(f"{path}: calibration is a mapping, not {str(found)[:40]}")
    for key, value in found.items():
        if key not in wanted:
            raise PlanError(f"{path}: calibration has an unknown key {str(key)[:40]!r}{nearest(str(key), wanted)}")
        if isinstance(value, bool) or not isinstance(value, wanted[key]):
            kind = "a word" if wanted[key] is str else "a whole number"
            raise PlanError(f"{path}: {key} of the calibration is {kind}, not {str(value)[:40]}")
    return dict(found)


def _load(path: str) -> Any:
    import yaml

    from onnxsparse.planning.plain_yaml import SAFE, WrittenTwiceError, read_yaml

    try:
        if os.path.getsize(path) > LARGEST:
            raise PlanError(f"{path} is larger than {LARGEST >> 20} MB, more than any plan is")
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise PlanError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{path} is not a text in UTF-8") from error
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=SAFE)):
            raise PlanError(f"{path} uses a YAML alias (*name); write the value out")
        return read_yaml(text)
    except PlanError:
        raise
    except WrittenTwiceError as error:
        raise PlanError(f"{path}, {error}; take one of the two out") from error
    except Exception as error:  # tags whose values do not fit them raise whatever their constructor raises
        raise PlanError(f"{path} is not valid YAML: {' '.join(str(error).split())[:200]}") from error


def _promise(entry: Any, index: int, path: str) -> Promise:
    where = f"{path}, weight {index}"
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), (str, int)):
        raise PlanError(f"{where} has no name")
    wrong = next((key for key, value in entry.items() if key != "shape" and isinstance(value, (list, dict))), None)
    if wrong is not None:
        raise PlanError(f"{where}: {str(wrong)[:40]} is a list or a mapping; one value is expected")
    unknown = next((key for key in entry if key not in _KEYS), None)
    if unknown is not None:
        raise PlanError(
            f"{where} ('{entry['name']}') has an unknown key {str(unknown)[:40]!r}{nearest(str(unknown), _KEYS)}"
        )
    try:
        pattern = _pattern(entry.get("pattern"))
        sparsity = read_sparsity(entry.get("sparsity")) if pattern and pattern.takes_sparsity else None
    except OnnxSparseError as error:
        raise PlanError(f"{where} ('{entry['name']}'): {error}") from error
    if pattern and pattern.takes_sparsity and sparsity is None:
        raise PlanError(f"{where} ('{entry['name']}'): pattern {pattern.text} needs a sparsity")
    return Promise(
        str(entry["name"]),
        pattern,
        sparsity,
        _shape(entry, where),
        str(entry.get("reason") or ""),
        bool(entry.get("chosen")),
        str(entry.get("crc32") or ""),
    )


def _pattern(text: Any) -> Pattern | None:
    if text is None:
        raise PlanError("has no pattern (write `dense` to leave it alone)")
    return None if str(text).strip() == DENSE else patterns.parse(str(text))


def _shape(entry: Mapping[str, Any], where: str) -> tuple[int, ...] | None:
    shape = entry.get("shape")
    if shape is None:
        return None
    if not isinstance(shape, list) or not all(isinstance(dim, int) for dim in shape):
        raise PlanError(f"{where} ('{entry['name']}'): a shape is a list of whole numbers")
    return tuple(shape)


def plan_from_file(file: PlanFile, model: Model, rule: Rule) -> tuple[Plan, list[str]]:
    """The plan that a file describes for a model, and remarks where the model is not the one it was made for."""
    weights = {weight.name: weight for weight in model.weights}
    promised = {entry.name: entry for entry in file.entries}
    for name in promised:
        if name not in weights:
            raise PlanError(f"{file.path}: the model has no weight '{name}'{nearest(name, weights)}")
    for entry in file.entries:
        if entry.pattern is not None:
            rule.demand_score(entry.pattern)
    rows = tuple(_planned(promised.get(weight.name), weight, file.path) for weight in model.weights)
    return Plan(rows, rule, calibration=file.calibration), _remarks(rows, promised)


def _planned(entry: Promise | None, weight: Weight, path: str) -> PlanRow:
    name = weight.name
    if entry is None:
        return PlanRow(weight, reason=f"not in {path}", advice="add it to the plan to prune it")
    if entry.shape is not None and entry.shape != weight.shape:
        raise PlanError(
            f"{path}: weight '{name}' has shape {list(entry.shape)} in the plan and {list(weight.shape)} in the model"
        )
    if entry.pattern is None:
        # A reason is the plan's own word; without one somebody wrote `dense` there.
        reason = entry.reason or "dense in the plan"
        return PlanRow(weight, reason=reason, chosen=entry.chosen or not entry.reason)
    if weight.refusal:
        raise PlanError(f"{path}: weight '{name}' cannot be pruned: {weight.refusal}")
    misfit = does_not_fit(weight, entry.pattern)
    if misfit:
        raise PlanError(f"{path}: weight '{name}' cannot have {entry.pattern.text}: {misfit.text}")
    return PlanRow(weight, entry.pattern, entry.pattern.drop_count(weight.uses[0].shape4, entry.sparsity))


def _remarks(rows: tuple[PlanRow, ...], promised: Mapping[str, Promise]) -> list[str]:
    other = [row.name for row in rows if row.pattern and _changed(row, promised.get(row.name))]
    if not other:
        return []
    return [f"{len(other)} planned weights hold other numbers than when the plan was written (the first: '{other[0]}')"]


def _changed(row: PlanRow, entry: Promise | None) -> bool:
    return entry is not None and bool(entry.crc32) and entry.crc32 != digest(row.weight)


def with_masks(plan: Plan, masks: Mapping[str, Any], path: str) -> Plan:
    """A plan whose rows are the given masks (arrays by tensor name, non-zero = keep)."""
    known = {row.name for row in plan.rows}
    for name in masks:
        if name not in known:
            raise PlanError(f"{path}: the model has no weight '{name}'{nearest(name, known)}")
    return Plan(tuple(_masked(row, masks, path, plan.rule) for row in plan.rows), plan.rule)


def _masked(row: PlanRow, masks: Mapping[str, Any], path: str, rule: Rule) -> PlanRow:
    if row.chosen:
        return row
    if row.name not in masks:
        return PlanRow(row.weight, reason=f"{path} has no mask for it", chosen=True)
    if row.weight.refusal:
        raise PlanError(f"{path}: weight '{row.name}' cannot be pruned: {row.weight.refusal}")
    if getattr(masks, "sizes", {}).get(row.name, 0) > 16 * row.weight.tensor.size + (1 << 16):
        raise PlanError(
            f"{path}: the mask of '{row.name}' is larger than one of numbers or of true and false can be for its "
            f"{row.weight.tensor.size} elements"
        )
    mask = masks[row.name]
    if not isinstance(mask, np.ndarray):
        raise PlanError(f"{path}: the mask of '{row.name}' is no NumPy array")
    if mask.dtype.kind not in "biuf":
        raise PlanError(
            f"{path}: the mask of '{row.name}' is of type {mask.dtype}; a mask is of numbers or of true and false"
        )
    if mask.shape != row.weight.shape:
        raise PlanError(
            f"{path}: the mask of '{row.name}' has shape {list(mask.shape)}, the weight {list(row.weight.shape)}"
        )
    if mask.dtype.kind == "f" and np.isnan(mask).any():
        place = [int(axis) for axis in np.argwhere(np.isnan(mask))[0]]
        raise PlanError(f"{path}: the mask of '{row.name}' holds NaN, first at {place}, which is neither keep nor drop")
    keep = mask.reshape(-1) != 0
    pattern = rule.pattern or patterns.parse("unstructured")
    drop = (
        int(keep.size - keep.sum())
        if pattern.name == "unstructured"
        else pattern.drop_count(row.use.shape4, rule.sparsity or 0.0)
    )
    broken = pattern.violations(row.use.matrix(~keep), drop)
    if broken:
        raise PlanError(f"{path}: the mask of '{row.name}' breaks {pattern.text} in {broken.count} places")
    return replace(row, pattern=pattern, drop=drop, reason="", advice="", words=(), keep=keep)
