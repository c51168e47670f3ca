"""Passes in a row over one model, in one process, with one report; to copy and change.

    python tools/graph_passes.py model.onnx -o sparse.onnx mask=2:4 train=data.npz fold verify=ampere
    python tools/graph_passes.py model.onnx -o sparse.onnx prune=unstructured,0.8 verify --json report.json

A pass is NAME or NAME=WHAT. WHAT is a pattern (with a level: unstructured,0.8), a device, or a plan (.yaml); of `train`
an .npz as tools/train_with_artifacts.py takes it; without labels in it, the model that was read teaches. OUT is written
when all is done. Exit codes: 0 done, 1 something does not hold (nothing is written), 2 a mistake to mend.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the script runs from anywhere

import onnxsparse as osp
from tools.train_with_artifacts import batches, train

DEVICES = ("ampere", "amba")
PASSES: dict[str, Any] = {"prune": osp.prune, "mask": osp.insert_masks, "fold": osp.fold_masks, "verify": osp.verify}


def rule(text: str) -> dict[str, Any]:
    """The options of a command that WHAT stands for."""
    name, _, level = text.partition(",")
    kind = "plan" if name.endswith((".yaml", ".yml")) else "target" if name.split(":")[0] in DEVICES else "pattern"
    return {**({kind: name} if name else {}), **({"sparsity": level} if level else {})}


def taught(dense: ModelProto, path: str) -> dict[str, np.ndarray]:
    """The data, with the outputs of the dense model where they hold no labels."""
    import onnxruntime

    data = dict(np.load(path))
    feeds = {one.name: data[one.name] for one in dense.graph.input if one.name in data}
    if 0 < len(feeds) == len(data):
        session = onnxruntime.InferenceSession(dense.SerializeToString(), providers=["CPUExecutionProvider"])
        pieces = batches(dense, np.arange(len(next(iter(feeds.values())))), 32)
        data[""] = np.concatenate([session.run(None, {k: v[rows] for k, v in feeds.items()})[0] for rows in pieces])
    return data


def run(given: argparse.Namespace, reports: list[dict[str, Any]]) -> int:
    dense = model = onnx.load(given.model)
    for word in given.passes:
        name, _, what = word.partition("=")
        if name == "train":
            model = onnx.load_from_string(train(model, taught(dense, what)))
            continue
        report = (result := PASSES[name](model, **rule(what))).report
        reports.append({**dataclasses.asdict(report), "pass": word})
        wrong = [*report.faults, *(f"{row.name}: {row.reason}" for row in report.rows if row.status == "violated")]
        print(f"{word}: {report.totals.done} of {report.totals.weights} weights", *wrong, sep="\n  ")
        if not report.ok:
            return 1
        model = result.model or model
    onnx.save(model, f"{given.output}.part")
    os.replace(f"{given.output}.part", given.output)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run passes over an ONNX model, one after the other.")
    parser.add_argument("model", metavar="MODEL", help="the .onnx file")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="the .onnx file to write")
    parser.add_argument("passes", metavar="PASS", nargs="+", help=f"{', '.join((*PASSES, 'train'))}, each with =WHAT")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the reports of all passes as JSON")
    given = parser.parse_args(argv)
    unknown = [word for word in given.passes if word.partition("=")[0] not in (*PASSES, "train")]
    if unknown or (os.path.exists(given.output) and not given.overwrite):
        parser.error(f"unknown pass {unknown[0]}" if unknown else f"{given.output} exists; pass --overwrite")
    reports: list[dict[str, Any]] = []
    if given.json and (given.json.is_dir() or not given.json.parent.is_dir() or given.json == Path(given.output)):
        parser.error(f"--json {given.json}: name another file, in a folder that is there")
    try:
        code = run(given, reports)
        if given.json:
            given.json.write_text(json.dumps({"ok": code == 0, "passes": reports}, indent=2), encoding="utf-8")
    except Exception as error:  # onnx, numpy and the runtime have too many kinds of them to name
        print("graph_passes:", *str(error).split(), file=sys.stderr)
        return getattr(error, "exit_code", 2)
    return code


if __name__ == "__main__":
    sys.exit(main())
