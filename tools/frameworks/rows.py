"""What onnxsparse makes of a model and its samples: found, pruned, fine-tuned, verified, and how far outputs moved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import onnxsparse as osp
from onnxsparse.errors import OnnxSparseError

Array = np.ndarray[Any, Any]
Row = dict[str, Any]
LEVELS: dict[str, dict[str, Any]] = {
    "2:4": {"pattern": "2:4"},
    "80 %": {"pattern": "unstructured", "sparsity": 0.8},
}
NAMED = 2


def treated(path: Path, steps: int, batch: int, until: str = "") -> Row:
    """The row of a model, whose samples lie beside it: `.train.npz`, and `.test.npz`, with labels where there are."""
    train, test = (loaded(path.with_suffix(f".{part}.npz")) for part in ("train", "test"))
    labels = test.pop("labels", None)
    report, proto = osp.inspect(path).report, onnx.load(str(path), load_external_data=False)
    dense = outputs(path, test)
    training = {"steps": steps, "batch_size": batch, **({"until": until} if until else {})}
    levels = {name: level(path, rule, train, test, labels, dense, training) for name, rule in LEVELS.items()}
    return {
        "weights": report.totals.weights,
        "elements": report.totals.elements,
        "names": [one.name for one in report.rows][:NAMED],
        "opset": ", ".join(f"{one.domain} {one.version}".strip() for one in proto.opset_import),
        "operators": len(proto.graph.node),
        "producer": f"{proto.producer_name} {proto.producer_version}".strip(),
        "labelled": labels is not None,
        "dense": measured(dense, dense, labels),
        "levels": levels,
        "stays": stays(osp.prune(path, **LEVELS["2:4"]).report),
        "steps": steps,
    }


def loaded(path: Path) -> dict[str, Array]:
    with np.load(path) as file:
        return dict(file)


def level(
    path: Path, rule: Mapping[str, Any], train: Mapping[str, Array], test: Mapping[str, Array], labels: Array | None,
    dense: Array, training: Mapping[str, Any],
) -> Row:  # fmt: skip
    """One-shot and trained at one level, each file verified."""
    name = "".join(one for one in "-".join(map(str, rule.values())) if one.isalnum())
    pruned, tuned = (path.with_name(f"{path.stem}.{name}.{kind}.onnx") for kind in ("pruned", "tuned"))
    report = osp.prune(path, output=pruned, overwrite=True, **rule).report
    found: Row = {
        "share": sum(one.size for one in report.rows if one.status == "pruned") / max(report.totals.elements, 1),
        "pruned": measured(outputs(pruned, test), dense, labels),
        "verified": osp.verify(pruned).report.ok,
    }
    try:
        trained = osp.finetune(path, data=dict(train), output=tuned, overwrite=True, **training, **rule)
    except OnnxSparseError as error:
        return {**found, "why": f"not trained: {error}"}
    found["verified"] = found["verified"] and osp.verify(tuned).report.ok
    if not trained.report.details["trained"]:
        return {**found, "why": "; ".join(trained.report.notes[:1])}
    return {**found, "tuned": measured(outputs(tuned, test), dense, labels)}


def outputs(path: Path, arrays: Mapping[str, Array]) -> Array:
    """The first output of floats for all samples, one row each."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = next(one.name for one in session.get_outputs() if one.type == "tensor(float)")
    inputs = {one.name: one.shape for one in session.get_inputs()}
    count = len(next(arrays[one] for one in inputs if arrays[one].ndim))
    step = 1 if any(shape and shape[0] == 1 for shape in inputs.values()) else count
    parts = ([start, start + step] for start in range(0, count, step))
    return np.concatenate(
        [session.run([name], {one: _part(arrays[one], count, *part) for one in inputs})[0] for part in parts]
    )


def _part(array: Array, count: int, start: int, stop: int) -> Array:
    """These samples, along whichever of the first two axes they lie."""
    axis = next((axis for axis in range(array.ndim) if array.shape[axis] == count), None)
    return array if axis is None else np.take(array, range(start, min(stop, count)), axis)


def measured(found: Array, dense: Array, labels: Array | None) -> dict[str, float]:
    """How far outputs are from the dense ones, as a part of those, and how many labels they give."""
    scale = float(np.sqrt(np.mean(np.square(dense, dtype=np.float64)))) or 1.0
    apart = float(np.sqrt(np.mean(np.square(found - dense, dtype=np.float64)))) / scale
    if labels is None:
        return {"distance": apart}
    return {"distance": apart, "accuracy": float((found.argmax(1) == labels).mean())}


def stays(report: Any) -> list[str]:
    """What 2:4 left dense, by the reason."""
    reasons: dict[str, list[str]] = {}
    for row in report.rows:
        if row.status != "pruned":
            words = ", ".join(row.words) or row.reason.partition(" (")[0]
            reasons.setdefault(words, []).append(row.name)
    return [f"{words}: {_listed(names)}" for words, names in reasons.items()]


def _listed(names: list[str]) -> str:
    """A name in short: those of subgraphs repeat the path to them."""
    short = [f"`{name if len(name) < 28 else '…' + name[-26:]}`" for name in names]
    return short[0] if len(short) == 1 else f"{short[0]} and {len(short) - 1} more"
