"""`levels`: all levels of a device in one run, and a verified file of each.

1. The level of each layer is decided once, on the dense model. Each stage of the run trains one level.
2. When a level is trained its file is written, proven and verified, with its figures beside it in the run's own folder.
   Only then may a checkpoint be taken behind it. So a run that is killed at any point, and started again, goes on and
   ends with the same files.
3. The table is written last; a folder that has it is done.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onnxsparse import targets
from onnxsparse.api import Result, verify
from onnxsparse.checkpoints import MARK, claim
from onnxsparse.engines.engine import Engine
from onnxsparse.engines.processes import demand_alone
from onnxsparse.engines.rooms import claimed
from onnxsparse.errors import MissingExtraError, OnnxSparseError, OptionError, OutputError
from onnxsparse.graph.external import ENDING, own_data
from onnxsparse.graph.model import Source
from onnxsparse.graph.output import make_folder, write_text
from onnxsparse.graph.unfinished import clear_folder
from onnxsparse.modifiers.levels import Levels, read_levels
from onnxsparse.modifiers.pruning import Pruning
from onnxsparse.options import Names, Path
from onnxsparse.passes.delivery import called, deliver, target_of
from onnxsparse.passes.passed import passed
from onnxsparse.passes.plan import Plan, candidates
from onnxsparse.passes.request import path_of
from onnxsparse.passes.taken import taken
from onnxsparse.passes.trainable import trainables
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.flags import asked_of, recipe_of
from onnxsparse.report.plot import draw_levels
from onnxsparse.report.rows import Report, Totals
from onnxsparse.runs import weights
from onnxsparse.runs.job import Watcher
from onnxsparse.runs.run import Run
from onnxsparse.train.engine_choice import Means, met
from onnxsparse.tuning import Tuning

RUN, TABLE = ".run", "levels.json"
COLUMNS = ("level", "sparsity", "parameters", "nonzero", "macs", "macs_left", "verified", "file")
TOLD = ("out of reach", "is passed")
UNMEASURED = "nothing was measured of the levels: accuracy needs --eval-data"
GLANCED = "the figures are of the samples held out from --data; those of others need --eval-data"


def levels(
    source: Source,
    *,
    data: Any,
    output: Path,
    levels: str | Sequence[float] = "30,40,50,60,70,80,90",
    target: str = "amba",
    allocation: str | None = None,
    labels: str | None = None,
    eval_data: Any = None,
    metrics: Sequence[Any] = (),
    epochs: float | None = None,
    steps: int | None = None,
    dims: Mapping[str, int] | None = None,
    include: Names = (),
    exclude: Names = (),
    allow: Names = (),
    engine: str = "auto",
    loss: str | None = None,
    hardness: float | None = None,
    temperature: float | None = None,
    batch_size: int | None = None,
    optimizer: str | None = None,
    lr: float | None = None,
    lr_schedule: str | None = None,
    warm_up: float | None = None,
    weight_decay: float | None = None,
    clip: float | None = None,
    train_bn: bool | None = None,
    seed: int | None = None,
    overwrite: bool = False,
    watch: Callable[[dict[str, Any]], None] | None = None,
) -> Result:
    """Train a model through all levels of a device, and leave a verified file of each.

    Arguments:
        source: the model: a path, its bytes, a ModelProto, or another model in memory; it is never changed.
        data: an .npz with one array for each input, first axis = samples; a folder of such files; an .npy for each
            input; or module:function, a function that yields dictionaries of arrays; or a mapping of arrays, or
            such a function. Example: data="samples.npz"
        output: the folder for a file of each level, the table and the picture: a new one, an empty one, or that of
            a run to go on with. Example: output="levels"
        levels: the levels in per cent, ascending (default 30,40,50,60,70,80,90). Example: levels="50,70,90"
        target: amba (default) or amba:CHIP. Example: target="amba:cv22"
        allocation: how a level is shared out (default energy). Example: allocation="erk"
        labels: the array of the labels (default: labels, label, targets, target or y). Example: labels="classes"
        eval_data: arrays to measure each level on, and the dense model (default: the samples held out). Example:
            eval_data="held_out.npz"
        metrics: what is measured: loss, accuracy, top-5, r2, mae, mse, agreement, distance, or module:function,
            called as f(outputs, batch) for each batch (default: by the data); or such a function. Example:
            metrics=["accuracy"]
        epochs: how long each level is trained (default 1). Example: epochs=2
        steps: how long each level is trained, in optimizer steps. Default: None. Example: steps=2000
        dims: the size of a dynamic dimension, such as dims={"height": 224}, or dims={"x.2": 224} for one without a
            name; asked for where the model does not say it. Default: None. Example: dims={"height": 224}
        include: only these: tensor or layer names, globs, re:PATTERN, operator kinds. Default: (). Example:
            include="head"
        exclude: all but these, in the same forms. Default: (). Example: exclude="stem"
        allow: prune what stays dense by default: embedding, tied-embedding, stem, depthwise, small, basis, output.
            Default: (). Example: allow="stem,output"
        engine: ort: onnxruntime-training; torch; or auto (default): the first, or torch where that is not
            installed, does not take the model, or lacks what is asked for. Example: engine="torch"
        loss: distill (default) or kl from the dense model; cross-entropy, mse, bce or l1 against labels. Example:
            loss="cross-entropy"
        hardness: the share of the distillation beside a loss against labels (default 0.7; 0 beside a recipe that
            sets learning rates or has a DistillationModifier). Example: hardness=0.5
        temperature: how much kl softens both models (default 2). Example: temperature=4
        batch_size: samples for one step (default 32). Example: batch_size=64
        optimizer: relative (default), adamw, adam, sgd, nesterov, with options such as sgd:momentum=0.8. Example:
            optimizer="adamw"
        lr: the highest learning rate of every level (default: by how much is pruned). Example: lr=0.001
        lr_schedule: how the rate goes within each level: cosine (default), constant, linear, step, .... Example:
            lr_schedule="linear"
        warm_up: at the beginning of each level: a share of it, or steps (default 0.05). Example: warm_up=0.1
        weight_decay: how much weights decay (default 0); biases never do. Example: weight_decay=0.01
        clip: the longest gradient, as a 2-norm over all weights (default: any). Example: clip=1.0
        train_bn: update the statistics of batch normalization (default: frozen). Example: train_bn=True
        seed: for the order of the samples (default 0). Example: seed=1
        overwrite: begin anew: what an earlier run left in the folder is removed, and nothing else. Default: False.
            Example: overwrite=True
        watch: called with every row of the history. Default: None. Example: watch=print
    """
    asked = asked_of({**locals(), "epochs": None, "steps": None})
    if targets.parse(target).tolerance is None:
        raise OptionError(f"levels needs --target amba or amba:CHIP: {target:.60} has none; finetune trains for it")
    text = levels if isinstance(levels, str) else ",".join(f"{one:g}" for one in levels)
    folder = path_of(output, "output")
    recipe = recipe_of({**asked, "sparsity": read_levels(text)[-1] / 100})
    return _Leveling(taken(source), recipe, text, folder, engine, dims, overwrite).go(
        {"data": data, "labels": labels, "eval_data": eval_data, "metrics": metrics}, epochs, steps, watch
    )


class _Leveling:
    """One call of `levels`, step by step."""

    def __init__(
        self,
        source: Source,
        recipe: Recipe,
        levels: str,
        folder: str,
        engine: str,
        dims: Mapping[str, int] | None,
        overwrite: bool,
    ) -> None:
        self._source, self._folder, self._overwrite = source, folder, overwrite
        self._levels, self._text, self._dims, self._engine = read_levels(levels), levels, dims, engine
        self._recipe = recipe
        self._notes: list[str] = []

    def go(self, data: Mapping[str, Any], epochs: float | None, steps: int | None, watch: Watcher | None) -> Result:
        tuning = self._tuning(data, epochs, steps)
        job_digest = self._prepared(tuning)
        if job_digest is None:
            return Result(self._report(tuning), self._folder)
        room = os.path.join(self._folder, RUN)
        with claimed(room, MARK):
            job = replace(
                tuning.job(room, room, True, False, watch),
                modifiers=[tuning.training, tuning.objective, Levels(self._text)],
                levels={tag: [counts[row.name] for counts in self._counts] for tag, row in tuning.planned.items()},
                milestone=lambda stage, engine: self._hand_over(tuning, stage, engine),
                digest=job_digest,
            )
            outcome = Run(job).go()
            said = [note for note in (*tuning.notes, *outcome.notes) if "holds no checkpoint" not in note]
            self._notes += [note for note in said if note not in self._notes]
            if not all(map(self._known, self._levels)):
                raise OnnxSparseError(
                    f"the training diverged before all levels were there; use a lower --lr ({self._notes[-1]})"
                )
            report = self._finished(tuning, outcome)
        shutil.rmtree(os.path.join(self._folder, RUN), ignore_errors=True)
        return Result(report, self._folder)

    # -- before

    def _tuning(self, data: Mapping[str, Any], epochs: float | None, steps: int | None) -> Tuning:
        """The run's frame: everything of `finetune` but its pruning."""
        demand_alone("levels")
        processes, device = met(self._engine, None)
        if processes.count > 1:  # the user's own script joined them
            raise OptionError("levels trains in one process; start it without torchrun")
        means = Means(self._engine, device, None, None, processes)
        tuning = Tuning(self._source, self._recipe, None, None, None, False, means, self._dims)
        tuning.open(data["data"], data["labels"], data["eval_data"], data["metrics"])
        training, per_epoch = tuning.training, tuning.feeding.per_epoch
        if steps is None and per_epoch is None:
            raise OptionError("nobody knows how long an epoch of a function's data is: pass --steps, for each level")
        each = steps if steps is not None else max(1, round((epochs or 1.0) * (per_epoch or 1)))
        tuning.training = replace(training, epochs=None, steps=each * len(self._levels))
        pruning = self._recipe.only(Pruning)
        tuning.recipe = Recipe((tuning.training, tuning.objective, pruning, Levels(self._text)))
        self._counts = self._decided(tuning)
        self._passed = [passed(tuning.plan, drops, level) for drops, level in zip(self._counts, self._levels)]
        return tuning

    def _decided(self, tuning: Tuning) -> list[Mapping[str, int]]:
        """How many units of each weight go at each level."""
        rule = tuning.plan.rule
        found = candidates(tuning.model, tuning.plan.rows, rule)
        assert rule.pattern is not None
        shares = [level / 100 for level in self._levels]
        if hasattr(rule.allocation, "allocate_levels"):
            made: list[Mapping[str, int]] = rule.allocation.allocate_levels(found, shares, rule.pattern)
            return made
        return [rule.allocation.allocate(found, share, rule.pattern) for share in shares]

    def _prepared(self, tuning: Tuning) -> str | None:
        """The digest of this run; None where it is done already."""
        digest = json.dumps([tuning.digest(), self._text, [sorted(counts.items()) for counts in self._counts]])
        make_folder(self._folder)
        known = self._read(TABLE)
        if known is not None and not self._overwrite:
            if known.get("run") != _short(digest):
                raise OutputError(
                    f"{self._folder} holds the levels of another run; choose another folder, or --overwrite"
                )
            self._notes.append("all levels were there already")
            return None
        if self._overwrite and (known is not None or os.path.isdir(os.path.join(self._folder, RUN))):
            self._clear()
        if known is None and not os.path.isdir(os.path.join(self._folder, RUN)) and os.listdir(self._folder):
            raise OutputError(f"{self._folder} holds other things; name a new folder, or an empty one")
        claim(os.path.join(self._folder, RUN))
        self._digest = _short(digest)
        return digest

    def _clear(self) -> None:
        """Remove what an earlier run left, and nothing else."""
        shutil.rmtree(os.path.join(self._folder, RUN), ignore_errors=True)
        known = self._read(TABLE) or {}
        names = [TABLE, "levels.csv", "levels.png", "levels.history.csv", "levels.recipe.yaml"]
        for name in [*(os.path.basename(str(row.get("file", ""))) for row in known.get("levels", [])), *names]:
            path = os.path.join(self._folder, name)
            if name and os.path.isfile(path):
                for data in own_data(path):
                    os.unlink(data)
                clear_folder(path + ENDING)
                os.unlink(path)

    # -- a level

    def _hand_over(self, tuning: Tuning, stage: int, engine: Engine) -> None:
        """Write the file of a level, verify it, and note its figures."""
        level = self._levels[stage]
        path = os.path.join(self._folder, f"level-{level:g}.onnx")
        arrays = {tag: weights.baked(engine, tag) for tag in weights.stored(engine)}
        report = self._written(tuning, stage, arrays, path)
        rule = tuning.plan.rule
        target = rule.target.text if rule.target else None
        beyond = self._passed[stage]
        checked = verify(path, target=target, level=100 * beyond.share if beyond else level, dims=self._dims).report
        totals = report.totals
        figures = {
            "level": level,
            "sparsity": round(totals.zeros / max(totals.elements, 1), 6),
            "parameters": totals.elements,
            "nonzero": totals.elements - totals.zeros,
            "macs": totals.macs,
            "macs_left": totals.macs_left,
            "verified": checked.ok,
            "file": os.path.basename(path),
            "metrics": {name: float(value) for name, value in _measured(tuning, engine).items()},
            "notes": ([beyond.text] if beyond else []) + _remarks(checked, level, beyond is None),
        }
        write_text(self._sidecar(level), json.dumps(figures, indent=2) + "\n", True)

    def _written(self, tuning: Tuning, stage: int, arrays: Mapping[str, Any], path: str) -> Report:
        fresh = Tuning(self._source, self._recipe, None, None, None, False, tuning.means, self._dims)
        model, counts = fresh.model, self._counts[stage]
        rows = tuple(replace(row, drop=counts[row.name], cut=None) if row.pattern else row for row in fresh.plan.rows)
        beyond = self._passed[stage]
        plan = Plan(rows, replace(fresh.plan.rule, sparsity=beyond.share if beyond else self._levels[stage] / 100))
        tags = trainables(model, fresh.plan, tuning.training.train_bn)
        return deliver(model, plan, arrays, tags, target_of(path, self._source, True)).report

    def _sidecar(self, level: float) -> str:
        return os.path.join(self._folder, RUN, f"level-{level:g}.figures")

    def _known(self, level: float) -> bool:
        return os.path.exists(self._sidecar(level)) and os.path.exists(
            os.path.join(self._folder, f"level-{level:g}.onnx")
        )

    # -- after

    def _finished(self, tuning: Tuning, outcome: Any) -> Report:
        rows = [json.loads(_text(self._sidecar(level))) for level in self._levels]
        self._notes += [] if tuning.measure.each_epoch else [GLANCED]
        path = os.path.join(self._folder, "levels")
        write_text(f"{path}.csv", _csv(rows), True)
        write_text(f"{path}.history.csv", outcome.history.to_csv(), True)
        write_text(f"{path}.recipe.yaml", tuning.recipe.to_yaml(), True)
        try:
            draw_levels(f"{path}.png", rows, _shown(rows), outcome.dense.get(_shown(rows) or ""))
        except MissingExtraError as error:
            self._notes.append(f"no levels.png: {error}")
        dense = {name: float(value) for name, value in outcome.dense.items()}
        table = {"run": self._digest, "model": called(self._source), "dense": dense, "levels": rows}
        write_text(f"{path}.json", json.dumps(table, indent=2) + "\n", True)
        return self._report(tuning)

    def _report(self, tuning: Tuning) -> Report:
        table = self._read(TABLE)
        assert table is not None
        rule = tuning.plan.rule
        ok = all(row["verified"] for row in table["levels"])
        notes = (*self._notes, *_said(table))
        details: dict[str, object] = {"dense": table["dense"], "levels": table["levels"]}
        target = rule.target.text if rule.target else ""
        return Report("levels", table["model"], target, (), Totals(), ok, self._folder, notes, details=details)

    def _read(self, name: str) -> dict[str, Any] | None:
        path = os.path.join(self._folder, name)
        if not os.path.exists(path):
            return None
        try:
            found = json.loads(_text(path))
        except ValueError:
            return None
        return found if isinstance(found, dict) and "run" in found else None


def _remarks(checked: Report, level: float, with_sparsity: bool) -> list[str]:
    """The network's sparsity, and why a level does not hold."""
    if checked.ok:
        return [note for note in checked.notes if with_sparsity and "network sparsity" in note]
    broken = [row.name for row in checked.rows if row.status == "violated"]
    layers = [f"{len(broken)} layers do not hold (the first: '{broken[0]}')"] if broken else []
    return [f"level {level:g} does not hold: {fault}" for fault in (*checked.faults, *layers)]


def _measured(tuning: Tuning, engine: Engine) -> Mapping[str, float]:
    return tuning.measure(tuning.seen(engine, rest=()))  # what a level leaves as it is, is written as it is


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    names = sorted({name for row in rows for name in row["metrics"]})
    lines = [",".join([*COLUMNS, *names])]
    for row in rows:
        cells = [row[one] for one in COLUMNS] + [row["metrics"].get(name, "") for name in names]
        lines.append(",".join("" if cell is None else str(cell) for cell in cells))
    return "\n".join(lines) + "\n"


def _said(table: Mapping[str, Any]) -> list[str]:
    """What is to be known of a table: levels that are no such ones, and that nothing was measured."""
    rows = table["levels"]
    found = [note for row in rows for note in row["notes"] if not row["verified"] or any(one in note for one in TOLD)]
    return found if _shown(rows) else [*found, UNMEASURED]


def _shown(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The metric that a picture shows, if anything was measured."""
    names = [name for row in rows for name in row["metrics"]]
    return "accuracy" if "accuracy" in names else names[0] if names else None


def _short(digest: str) -> str:
    return hashlib.sha256(digest.encode()).hexdigest()[:16]


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


__all__ = ["levels"]
