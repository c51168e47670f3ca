"""Files that a training of a network leaves: checkpoints of torch, exports of each level, and the table of levels."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from onnxsparse.dialects.msbench.builders import Builders
from onnxsparse.dialects.msbench.checks import why_not
from onnxsparse.engines.torch.library import torch
from onnxsparse.files import Staged, make_folder, put
from onnxsparse.graph.model import Model
from onnxsparse.report.history import Moment


@dataclass(frozen=True)
class Delivered:
    """The files of one level, what was measured of it, and what does not hold in them."""

    name: str
    asked: float | None
    zeros: float
    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    files: Sequence[str] = ()
    wrong: str = ""

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def deliver(
    scheduler: Any, builders: Builders, image: Any, folder: str, whole: bool, row: Moment, dataset: Any
) -> Delivered:
    """Export each part with its record, verify it, and have the builders write what belongs beside it."""
    network, level = scheduler.network, scheduler.level_of_moment()
    name = "sparse" if level is None else f"level-{level:g}"
    nets = [one.name for one in network.module.nets]
    ends = {one: f".net{at}.onnx" if nets[1:] else ".onnx" for at, one in enumerate(nets, 1)}
    files = {one: os.path.join(folder, name + end) for one, end in ends.items()}
    make_folder(folder)
    network.export_parts(files, image)
    more = builders.finish(network.plain_copy().eval(), files, image, os.path.join(folder, name), whole, dataset)
    wrong = {path: why_not(Model.open(path), path, None) for path in files.values()}
    said = "; ".join(f"{path} DOES NOT HOLD: {reason}" for path, reason in wrong.items() if reason)
    zeros = scheduler.compute_sparse_rate()
    return Delivered(name, level, zeros, row.loss or 0.0, dict(row.metrics), [*files.values(), *more], said)


def write_network(path: str, network: Any, iteration: int) -> None:
    """The plain network as a checkpoint of torch: {"model": state dict}, tensors alone."""
    make_folder(os.path.dirname(os.path.abspath(path)))
    held = io.BytesIO()
    state = {key: one.detach().cpu().clone() for key, one in network.state_dict().items()}
    torch().save({"model": state, "iteration": iteration}, held)
    with Staged(True) as staged:
        with staged.create(path) as file:
            put(file, held.getbuffer())
        staged.commit()


SHOWN = ("top1", "top5", "mAP", "mAP50")


def shown(figures: Mapping[str, float]) -> dict[str, float]:
    """Those that one looks at: COCO's evaluation has a dozen, which all are in the history."""
    return {name: one for name, one in figures.items() if name in SHOWN} or dict(figures)


def show_levels(delivered: Sequence[Delivered]) -> Iterator[str]:
    """A table: what was asked for, what came, and the file."""
    if not delivered:
        return
    names = list(dict.fromkeys(name for one in delivered for name in shown(one.metrics)))
    rows = [["", "asked", "zeros", "loss", *names, "", "file"]]
    for one in delivered:
        asked = "" if one.asked is None else f"{one.asked:g} %"
        metrics = [f"{one.metrics[name]:.4f}" if name in one.metrics else "" for name in names]
        verdict = "DOES NOT HOLD" if one.wrong else "holds"
        rows.append([one.name, asked, f"{100 * one.zeros:.2f} %", f"{one.loss:.4g}", *metrics, verdict, _nets(one)])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    yield ""
    yield from ("  ".join(cell.rjust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def _nets(one: Delivered) -> str:
    """The files of the network itself, of one part or of several, without what belongs beside them."""
    exported = re.compile(rf"{re.escape(one.name)}(\.net\d+)?\.onnx")
    return ", ".join(name for name in map(os.path.basename, one.files) if exported.fullmatch(name))
