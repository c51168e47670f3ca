"""The proof of a permutation, in a process of its own: outputs of a model are kept, and those of another held to them.

    python -m onnxsparse.engines.ort.worker onnxsparse.passes.permutation_process FOLDER

Three jobs, one after the other, so that one model at a time is in memory:

    reference   the model as it is runs on random inputs of every case, and its outputs are stored in the folder; how
                far apart they are for other inputs
    check       a permuted model runs on the same inputs; how far its outputs are
    noise       the model as it is again: as before, which tells random outputs; and without the runtime's optimizations
                and with inputs moved by their last bits: how far apart outputs are where nothing but rounding differs

A permutation reorders sums, so floats differ in their last bits; whole numbers, words and places of infinity have to
be the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from onnxsparse.engines.inference import MOST_ELEMENTS, NUMPY_TYPES, Feed, Session, sizes_of
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.math.values import Array
from onnxsparse.passes.compare_process import answered

KINDS = ("normal", "uniform", "sparse")
"""Inputs of every shape: normal numbers, numbers from 0 to 1, and few large ones among zeros."""
NUDGES = {2: 2e-3, 4: 2e-6, 8: 1e-14}
"""How far inputs are moved for the noise, relative, by the bytes of a number."""

Stage = Callable[..., None]
Case = Mapping[str, Any]


def main(folder: str) -> int:
    return answered(folder, lambda job, stage: done(folder, job, stage))


def done(folder: str, job: Mapping[str, Any], stage: Stage) -> dict[str, Any]:
    """The result of a job; arrays of the reference are in the folder."""
    return _JOBS[job["job"]](folder, job, stage)


def _reference(folder: str, job: Mapping[str, Any], stage: Stage) -> dict[str, Any]:
    """Which cases the model runs, and how its outputs depend on them; the last error where it runs none."""
    stage(f"loading {job['called']}")
    session, ran, error = Session(job["model"]), [], None
    names: list[str] = []
    for place, case in enumerate(job["cases"]):
        try:
            outputs = _outputs(session, case, job, stage, place)
        except ModelError as found:
            error = found
            continue
        named: dict[str, Any] = {f"o{at}": array for at, (_, array) in enumerate(outputs)}
        np.savez(_stored(folder, place), **named)
        ran.append(place)
        names = [name for name, _ in outputs]
    if error is not None and not ran:
        raise error
    shapes = [job["cases"][place]["shapes"] for place in ran]
    why = "" if error is None else error.as_flags
    return {
        "ran": ran,
        "error": why,
        "outputs": [_spread(folder, ran, shapes, at, name) for at, name in enumerate(names)],
    }


def _spread(folder: str, ran: Sequence[int], shapes: Sequence[Any], at: int, name: str) -> dict[str, Any]:
    """How far apart an output is for several inputs, as far as sizes are the same; without inputs, its elements."""
    arrays: list[Array] = []
    for place in ran:
        with np.load(_stored(folder, place)) as stored:
            arrays.append(stored[f"o{at}"] if f"o{at}" in stored else np.empty(0))
    first, *others = arrays
    pairs = [
        (first, other) if shape == shapes[0] else _cropped(first, other) for other, shape in zip(others, shapes[1:])
    ]
    if not others or not shapes[0]:
        pairs = [(first, np.roll(first, 1))]
    furthest = max((distance(*pair) for pair in pairs), key=lambda one: float(one["most"]))
    return {"output": name, "kind": furthest["kind"], "spread": furthest["most"], "holds": _content(arrays)}


def _cropped(one: Array, other: Array) -> tuple[Array, Array]:
    """What two arrays of the same rank have in common."""
    if one.ndim != other.ndim:
        return one, other
    common = tuple(slice(min(sizes)) for sizes in zip(one.shape, other.shape))
    return one[common], other[common]


def _content(arrays: Sequence[Array]) -> str:
    """What an output holds for all inputs, in a word."""
    if not any(array.size for array in arrays):
        return "empty"
    if all(array.dtype.kind in "fc" for array in arrays):
        if all(np.isnan(array).all() for array in arrays):
            return "NaN"
        if not any(np.isfinite(array).any() for array in arrays):
            return "infinite"
    return "the same"


def _check(folder: str, job: Mapping[str, Any], stage: Stage) -> dict[str, Any]:
    stage("loading the permuted model")
    session = Session(job["model"])
    return {"distances": list(_distances(session, folder, job, stage))}


def _noise(folder: str, job: Mapping[str, Any], stage: Stage) -> dict[str, Any]:
    stage(f"loading {job['called']} again")
    again = list(_distances(Session(job["model"]), folder, job, stage))
    stage(f"loading {job['called']} without optimizations")
    found = list(_distances(Session(job["model"], optimized=False), folder, job, stage))
    for nudge in (1, 2):
        found += _distances(Session(job["model"]), folder, {**job, "nudge": nudge}, stage)
    return {"distances": found, "again": again}


_JOBS: dict[str, Callable[[str, Mapping[str, Any], Stage], dict[str, Any]]] = {
    "reference": _reference,
    "check": _check,
    "noise": _noise,
}


def _distances(session: Session, folder: str, job: Mapping[str, Any], stage: Stage) -> Iterator[dict[str, Any]]:
    for place in job["ran"]:
        outputs = _outputs(session, job["cases"][place], job, stage, place)
        with np.load(_stored(folder, place)) as stored:
            known = [stored[f"o{at}"] for at in range(len(stored.files))]
        if len(known) != len(outputs):
            yield {"case": place, "output": session.outputs[0], **WHOLLY}
            continue
        for one, (name, array) in zip(known, outputs):
            yield {"case": place, "output": name, **distance(one, array)}


WHOLLY = {"kind": "other", "most": 1e300, "mean": 1e300}


def distance(one: Array, other: Array) -> dict[str, Any]:
    """How far one output is from another of the same name, against its own scale; 0 is equal.

    `most` is the largest difference of an element from what it was, over that and the usual size of an element;
    `mean` the norm of the differences over that of the output. Of what is no float, the share that differs.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return WHOLLY
    if one.dtype.kind not in "fc":
        apart = float((one != other).mean()) if one.size else 0.0
        return {"kind": "whole", "most": apart, "mean": apart}
    kind = one.dtype.name
    a, b = (part.reshape(-1).astype(np.complex128 if part.dtype.kind == "c" else np.float64) for part in (one, other))
    finite = np.isfinite(a) & np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if not (finite | same).all():
        return {**WHOLLY, "kind": kind}
    a, b = a[finite], b[finite]
    far, size = np.abs(a - b), np.abs(a)
    usual = float(np.median(size[size > 0])) if size.any() else 1.0
    most = float((far / (size + usual)).max(initial=0.0))
    norm = float(np.sqrt((size * size).sum()))
    mean = float(np.sqrt((far * far).sum())) / (norm or 1.0)
    return {"kind": kind, "most": most, "mean": mean}


def _stored(folder: str, place: int) -> str:
    return os.path.join(folder, f"reference-{place}.npz")


def _outputs(session: Session, case: Case, job: Mapping[str, Any], stage: Stage, place: int) -> list[tuple[str, Array]]:
    """The arrays of all outputs, each with the name of its output."""
    feed = _feed(session, case, job)
    stage(f"running {job['called']} on {sizes_of(feed)}", place)
    found = session.run(feed)
    return [(name, leaf) for name in session.outputs for leaf in _leaves(found[name])]


def _leaves(value: Any) -> Iterator[Array]:
    """The arrays in an output: of a sequence its elements, of a map its values in the order of the keys."""
    if isinstance(value, Mapping):
        yield from _leaves([value[key] for key in sorted(value)])
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _leaves(one)
    elif value is not None:
        array: Array = np.asarray(value)
        yield array.astype(str) if array.dtype.kind == "O" else array


# -- inputs


def _feed(session: Session, case: Case, job: Mapping[str, Any]) -> Feed:
    generator = np.random.Generator(np.random.Philox(key=job["seed"], counter=case["number"]))
    feed = {name: _drawn(generator, name, kind, case, job["limits"].get(name, 2)) for name, kind, _ in session.inputs}
    nudge = job.get("nudge", 0)
    return {name: _nudged(array, nudge) for name, array in feed.items()} if nudge else feed


def _drawn(generator: np.random.Generator, name: str, kind: str, case: Case, limit: int) -> Array:
    dtype, sizes = NUMPY_TYPES.get(kind), case["shapes"][name]
    if dtype is None:
        raise OptionError(f"input '{name}' is of type {kind}, which cannot be made up; pass --unproven")
    if int(np.prod(sizes, dtype=np.float64)) > MOST_ELEMENTS:
        raise OptionError(f"input '{name}' of shape {list(sizes)} is too large to make up; pass a smaller --dim")
    if not dtype.startswith("float"):
        whole: Array = generator.integers(0, limit if dtype in ("int32", "int64") else 2, sizes).astype(dtype)
        return whole
    drawn = generator.standard_normal(sizes)
    if case["kind"] == "uniform":
        drawn = generator.random(sizes)
    elif case["kind"] == "sparse":
        drawn = np.where(generator.random(sizes) < 0.1, 3 * drawn, 0.0)
    return np.asarray(drawn).astype(dtype)


def _nudged(array: Array, nudge: int) -> Array:
    """Floats in which the last bits are others."""
    if array.dtype.kind != "f":
        return array
    signs = np.random.default_rng(nudge).choice([-1.0, 1.0], array.shape)
    return np.asarray(array * (1 + NUDGES[array.dtype.itemsize] * signs), array.dtype)


__all__ = ["KINDS", "distance", "done", "main"]
