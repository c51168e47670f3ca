"""`levels`: trains all sparsity levels of a device in one run, and delivers a verified file of each.

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
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from onnxsparse.acts import weights
from onnxsparse.checkpoints import MARK, claim
from onnxsparse.engines.engine import Engine
from onnxsparse.engines.processes import demand_alone
from onnxsparse.engines.working_dirs import claimed
from onnxsparse.errors import MissingExtraError, OnnxSparseError, OptionError, OutputError
from onnxsparse.files import clear_folder, make_folder, write_text
from onnxsparse.graph.external import ENDING, own_data
from onnxsparse.graph.model import Model, Source
from onnxsparse.passes.delivery import deliver, target_of, untrained
from onnxsparse.passes.device_levels import Exceeded, exceeded
from onnxsparse.passes.verify import Expectation, held_to
from onnxsparse.planning.plan import Plan, candidates
from onnxsparse.planning.rule import Rule
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.modifiers.levels import Levels, read_levels
from onnxsparse.recipes.modifiers.pruning import CALIBRATED, Pruning
from onnxsparse.report.history import draw_levels
from onnxsparse.report.rows import Report, Totals
from onnxsparse.train.engine_choice import Means, met
from onnxsparse.train.evaluation import Evaluation
from onnxsparse.train.loop import Run
from onnxsparse.train.outcome import Outcome, Watcher
from onnxsparse.train.start import against
from onnxsparse.train.task import Task, ask, digest_of, metric_list

RUN, TABLE = ".run", "levels.json"
COLUMNS = ("level", "sparsity", "parameters", "nonzero", "macs", "macs_left", "verified", "file")
TOLD = ("out of reach", "is passed")
UNMEASURED = "nothing was measured of the levels: accuracy needs --eval-data"
GLANCED = "the figures are of the samples held out from --data; those of others need --eval-data"


def leveled(
    source: Source,
    recipe: Recipe,
    levels: str,
    folder: str,
    *,
    data: Any,
    labels: str | None = None,
    until: str | Sequence[str] | None = None,
    eval_data: Any = None,
    metrics: Sequence[Any] = (),
    epochs: float | None = None,
    steps: int | None = None,
    dims: Mapping[str, int] | None = None,
    engine: str = "auto",
    overwrite: bool = False,
    watch: Watcher | None = None,
) -> tuple[Report, str]:
    """Train through all levels; the report, and the folder with a file of each."""
    demand_alone("levels")
    processes, device = met(engine, None)
    if processes.count > 1:  # the user's own script joined them
        raise OptionError("levels trains in one process; start it without torchrun")
    means = Means(engine, device, None, None, processes)
    task = ask(
        source, recipe, data, labels=labels, eval_data=eval_data, metrics=metric_list(metrics), means=means,
        dims=dims, until=until,
    )  # fmt: skip
    task, stages = _through(task, levels, epochs, steps)
    kept = Folder(folder, _short(task.digest))
    if kept.is_done(overwrite):
        return kept.report(task, ["all levels were there already"]), folder
    kept.take(overwrite)
    working_dir = os.path.join(folder, RUN)
    with claimed(working_dir, MARK):
        engines, evaluation = task.engines(working_dir), Evaluation(task)
        run = Run(task, engines, evaluation, working_dir, True, watch)
        with closing(run.stages()) as trained:
            for place in trained:
                _hand_over(task, stages[place], run.engine, evaluation, source, folder, kept)
        outcome = run.outcome()
        said = [*task.notes, *evaluation.notes, *outcome.notes]
        notes = [note for note in dict.fromkeys(said) if "holds no checkpoint" not in note]
        if not all(map(kept.has, stages)):
            raise OnnxSparseError(f"the training diverged before all levels were there; use a lower --lr ({notes[-1]})")
        notes += kept.finish(task, stages, outcome, evaluation)
        report = kept.report(task, notes)
    shutil.rmtree(working_dir, ignore_errors=True)
    return report, folder


@dataclass(frozen=True)
class Level:
    """A stage of the run: the level in per cent, the plan that it comes to, and whether its own zeros pass it."""

    level: float
    plan: Plan
    beyond: Exceeded | None

    @property
    def file(self) -> str:
        return f"level-{self.level:g}.onnx"

    @property
    def reached(self) -> float:
        """The level that the network is held to, as a share."""
        return self.beyond.share if self.beyond else self.level / 100


def _through(task: Task, text: str, epochs: float | None, steps: int | None) -> tuple[Task, list[Level]]:
    """The task with a stage for each level, in the place of its pruning."""
    levels, per_epoch = read_levels(text), task.feeding.per_epoch
    if steps is None and per_epoch is None:
        raise OptionError("nobody knows how long an epoch of a function's data is: pass --steps, for each level")
    each = steps if steps is not None else max(1, round((epochs or 1.0) * (per_epoch or 1)))
    training = replace(task.training, epochs=None, steps=each * len(levels))
    recipe = Recipe((training, task.objective, task.recipe.only(Pruning), Levels(text)))
    counts = _drops(task, levels)
    by_tag = {tag: [count[row.name] for count in counts] for tag, row in task.planned.items()}
    pruning = task.recipe.only(Pruning)
    asked = pruning.init == CALIBRATED
    why = against(task, pruning) if asked else ""
    notes = (*task.notes, f"levels start plainly pruned: {why}") if why else task.notes
    made = replace(task, recipe=recipe, levels=by_tag, calibrates=asked and not why, notes=notes)
    digest = json.dumps([digest_of(made), text, [sorted(count.items()) for count in counts]])
    return replace(made, digest=digest), [_level(task.plan, level, drops) for level, drops in zip(levels, counts)]


def _drops(task: Task, levels: Sequence[float]) -> list[Mapping[str, int]]:
    """How many units of each weight go at each level."""
    rule = task.plan.rule
    found, shares = candidates(task.model, task.plan.rows, rule), [level / 100 for level in levels]
    assert rule.pattern is not None
    if hasattr(rule.allocation, "allocate_levels"):
        made: list[Mapping[str, int]] = rule.allocation.allocate_levels(found, shares, rule.pattern)
    else:
        made = [rule.allocation.allocate(found, share, rule.pattern) for share in shares]
    leaders = {row.name: row.tied.name for row in task.plan.planned if row.tied is not None}
    return [{**drops, **{copy: drops[leader] for copy, leader in leaders.items()}} for drops in made]


def _level(plan: Plan, level: float, drops: Mapping[str, int]) -> Level:
    beyond = exceeded(plan, drops, level)
    own = {row.name: replace(row, drop=drops[row.name], cut=None) for row in plan.planned}
    rows = tuple(own.get(row.name, row) for row in plan.rows)
    rows = tuple(row if row.tied is None else replace(row, tied=own[row.tied.name]) for row in rows)
    rule = replace(plan.rule, sparsity=beyond.share if beyond else level / 100)
    return Level(level, Plan(rows, rule), beyond)


# -- a level


def _hand_over(
    task: Task, stage: Level, engine: Engine, evaluation: Evaluation, source: Source, folder: str, kept: Folder
) -> None:
    """Write the file of a level, verify it, and note its figures."""
    arrays = task.with_copies({tag: weights.baked(engine, tag) for tag in weights.stored(engine)})
    target = target_of(os.path.join(folder, stage.file), source, True)
    checked: list[Report] = []

    def check(report: Report, written: Model) -> Report:
        checked.append(_verified(stage, written))
        return report

    with task.model.restored():
        report = deliver(task.model, stage.plan, arrays, task.every, target, check=check).report
    totals, rest = report.totals, untrained(stage.plan, arrays, task.every)
    figures = {
        "level": stage.level,
        "sparsity": round(totals.zeros / max(totals.elements, 1), 6),
        "parameters": totals.elements,
        "nonzero": totals.elements - totals.zeros,
        "macs": totals.macs,
        "macs_left": totals.macs_left,
        "verified": checked[0].ok,
        "file": stage.file,
        "metrics": {name: float(value) for name, value in evaluation(engine, rest).items()},
        "notes": ([stage.beyond.text] if stage.beyond else [])
        + _remarks(checked[0], stage.level, stage.beyond is None),
    }
    kept.note(stage, figures)


def _verified(stage: Level, written: Model) -> Report:
    """The file of a level against its plan and the rules of the device."""
    known = {weight.name: weight for weight in written.weights}
    expected = tuple(replace(row, weight=known[row.name]) for row in stage.plan.rows)
    target = stage.plan.rule.target
    rule = Rule.make(target=target.text if target else None, level=100 * stage.reached if stage.beyond else stage.level)
    return held_to(written, "", Expectation(expected, rule, rule.text))


def _remarks(checked: Report, level: float, with_sparsity: bool) -> list[str]:
    """The network's sparsity, and why a level does not hold."""
    if checked.ok:
        return [note for note in checked.notes if with_sparsity and "network sparsity" in note]
    broken = [row.name for row in checked.rows if row.status == "violated"]
    layers = [f"{len(broken)} layers do not hold (the first: '{broken[0]}')"] if broken else []
    return [f"level {level:g} does not hold: {fault}" for fault in (*checked.faults, *layers)]


# -- the folder


@dataclass(frozen=True)
class Folder:
    """The folder of the levels of one run, which `run` names: what is there, and what is written into it."""

    path: str
    run: str

    def is_done(self, overwrite: bool) -> bool:
        """Whether this very run is finished there; one of another run is refused."""
        make_folder(self.path)
        known = self._table()
        if known is None or overwrite:
            return False
        if known.get("run") != self.run:
            raise OutputError(f"{self.path} holds the levels of another run; choose another folder, or --overwrite")
        return True

    def take(self, overwrite: bool) -> None:
        """Make the folder that of this run; with `overwrite`, remove what an earlier run left, and nothing else."""
        working_dir, known = os.path.join(self.path, RUN), self._table()
        if overwrite and (known is not None or os.path.isdir(working_dir)):
            self._clear(known or {})
        if known is None and not os.path.isdir(working_dir) and os.listdir(self.path):
            raise OutputError(f"{self.path} holds other things; name a new folder, or an empty one")
        claim(working_dir)

    def _clear(self, known: Mapping[str, Any]) -> None:
        shutil.rmtree(os.path.join(self.path, RUN), ignore_errors=True)
        names = [TABLE, "levels.csv", "levels.png", "levels.history.csv", "levels.recipe.yaml"]
        for name in [*(os.path.basename(str(row.get("file", ""))) for row in known.get("levels", [])), *names]:
            path = os.path.join(self.path, name)
            if name and os.path.isfile(path):
                for data in own_data(path):
                    os.unlink(data)
                clear_folder(path + ENDING)
                os.unlink(path)

    def note(self, stage: Level, figures: Mapping[str, Any]) -> None:
        """The figures of a level that is delivered: a run that is resumed behind it knows them from there."""
        write_text(self._figures(stage), json.dumps(figures, indent=2) + "\n", True)

    def has(self, stage: Level) -> bool:
        return os.path.exists(self._figures(stage)) and os.path.exists(os.path.join(self.path, stage.file))

    def _figures(self, stage: Level) -> str:
        return os.path.join(self.path, RUN, f"level-{stage.level:g}.figures")

    def finish(self, task: Task, stages: Sequence[Level], outcome: Outcome, evaluation: Evaluation) -> list[str]:
        """Write what is said of all levels together, the table last; returns what is to be known of it."""
        rows = [json.loads(_text(self._figures(stage))) for stage in stages]
        notes = [] if evaluation.each_epoch else [GLANCED]
        path = os.path.join(self.path, "levels")
        write_text(f"{path}.csv", _csv(rows), True)
        write_text(f"{path}.history.csv", outcome.history.to_csv(), True)
        write_text(f"{path}.recipe.yaml", task.recipe.to_yaml(), True)
        try:
            draw_levels(f"{path}.png", rows, _shown(rows), outcome.dense.get(_shown(rows) or ""))
        except MissingExtraError as error:
            notes.append(f"no levels.png: {error}")
        dense = {name: float(value) for name, value in outcome.dense.items()}
        table = {"run": self.run, "model": task.name, "dense": dense, "levels": rows}
        write_text(f"{path}.json", json.dumps(table, indent=2) + "\n", True)
        return notes

    def report(self, task: Task, notes: Sequence[str]) -> Report:
        table = self._table()
        assert table is not None
        target, ok = task.plan.rule.target, all(row["verified"] for row in table["levels"])
        details: dict[str, object] = {"dense": table["dense"], "levels": table["levels"]}
        return Report(
            "levels", table["model"], target.text if target else "", (), Totals(), ok, self.path,
            (*notes, *_said(table)), details=details,
        )  # fmt: skip

    def _table(self) -> dict[str, Any] | None:
        path = os.path.join(self.path, TABLE)
        if not os.path.exists(path):
            return None
        try:
            found = json.loads(_text(path))
        except ValueError:
            return None
        return found if isinstance(found, dict) and "run" in found else None


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
