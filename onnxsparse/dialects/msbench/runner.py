"""Sparse training runner: a training from a job file, in steps that are named as United Perception's are.

1. The start state is the first of these that exists: the newest checkpoint in save_dir (with auto_resume), the one of
   the command line, saver.resume_model, saver.pretrain_model, the model itself. A saver.pretrain_model that is not
   there is named, and left out: published files have a placeholder in its place.
2. A checkpoint holds the iteration, the network with its optimizer, where the rate is, and where the scheduler is: a
   run that is killed and started again ends with the same bytes.
3. EMA is off while a network is made sparse; of a dense checkpoint with an EMA state that is what is loaded, with a
   note.
4. Times of the rate are of the whole stage: its milestones count from the first iteration, the warm-up included.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnxsparse import checkpoints, losses, rates
from onnxsparse.data import LABELS, Samples, open_data
from onnxsparse.data.samples import Order
from onnxsparse.dialects.msbench import scheduler_of
from onnxsparse.dialects.msbench.act import Schedule
from onnxsparse.dialects.msbench.checks import (
    as_of_run,
    decisive,
    demand_fitting,
    demand_same,
    run_facts,
    why_not,
)
from onnxsparse.dialects.msbench.configuration import PATHS, Configuration, Part, count, read
from onnxsparse.dialects.msbench.job import Job, read_job
from onnxsparse.dialects.msbench.schedulers.admm import ADMMScheduler
from onnxsparse.dialects.msbench.start_state import (
    demand_place,
    filled,
    is_onnx,
    learns,
    numbers_in,
    other_than,
    read_state,
    start_of,
)
from onnxsparse.dialects.msbench.trainer_section import TOTALS, WITHOUT_LAYERS, demand_period, on_length
from onnxsparse.engines.processes import demand_alone
from onnxsparse.errors import OptionError
from onnxsparse.files import make_folder
from onnxsparse.graph.model import Model
from onnxsparse.losses import CrossEntropy
from onnxsparse.math.values import Array
from onnxsparse.planning.model_inputs import fields_of
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.modifiers.training import TASKS
from onnxsparse.report.rows import Report
from onnxsparse.train.batches import Feeding
from onnxsparse.train.loop import Run
from onnxsparse.train.measure import Measure
from onnxsparse.train.objective import axes_of
from onnxsparse.train.stepped_model import LoopOptions, SteppedModel
from onnxsparse.train.task import Task

STEPS = (
    "build_model", "build_ema", "load_ckpt", "resume_model_from_fp", "prepare_sparse_model", "build_trainer",
    "resume_model_from_sparse", "sparse_post_process", "train",
)  # fmt: skip
RESULT = "sparse.onnx"


class SparseRunner:
    """One training; a subclass may change a step."""

    def __init__(
        self, config: str, start: str = "", evaluate: bool = False, quiet: bool = False, others: Sequence[str] = ()
    ) -> None:
        self.job: Job = read_job(config, others)
        self.start, self.evaluates, self.quiet = start, evaluate, quiet
        self.iteration = 0
        self.found: checkpoints.Checkpoint | None = None
        self.holds, self.lost, self.wrong = True, "", ""
        self.notes: list[str] = list(self.job.notes)

    def run(self) -> dict[str, float]:
        """All steps in their order; the figures of the sparse network on the test data."""
        demand_alone("a training by a configuration")
        for note in self.notes:
            self.say(f"note: {note}")
        for step in STEPS[:-1]:
            getattr(self, step)()
        if not self.evaluates:
            self.train()
            self.export()
        return self.evaluate()

    # -- the steps

    def build_model(self) -> None:
        """The ONNX model: the one that is named, or the dense checkpoint where that is one."""
        self._look_at_pretrained()
        job = self.job
        known = (job.model, job.pretrained, job.resume, self.start)
        path = next((one for one in known if is_onnx(one)), "")
        if not path and self.lost:
            raise OptionError(f"{self.lost}, and nothing else says which model: name an ONNX file as `model`")
        if not path:
            raise OptionError("nothing says which model: name an ONNX file as `model`, or as saver.pretrain_model")
        if self.lost:
            self._note(f"{self.lost}: the run goes on without it, from what there is")
            if self.quiet:
                sys.stderr.write(f"note: {self.notes[-1]}\n")
        self.source, self.opened = path, Model.open(path)
        self.samples = self._data(job.train, "data.train")
        self.tested = self._data(job.test, "data.test") if job.test else None
        demand_fitting(job, self.opened, self.samples, not self.evaluates)
        if self.tested is not None:
            demand_fitting(job, self.opened, self.tested, False)
        self.order = Order(self.samples.count, job.batch, job.seed)
        self._time_rate()
        self._smooth_labels()
        for note in self._on_length():
            self.say(f"note: {note}")

    def _time_rate(self) -> None:
        """A warm-up in epochs as iterations, and milestones as epochs behind the warm-up, as our rates have them."""
        options, per_epoch = dict(self.job.options), self.order.per_epoch
        steps = max(float(options.get("warm_up", 0)), float(int(self.job.warm_up_epochs * per_epoch)))
        if steps:
            options["warm_up"] = steps
        rate = rates.parse(options.get("lr_schedule") or "constant")
        if isinstance(rate, rates.MultiStep) and steps >= 1:
            at = "+".join(f"{max(epoch - steps / per_epoch, 0.0):.9f}" for epoch in rate.epochs)
            options["lr_schedule"] = f"{rate.name}:at={at},by={rate.by}"
        self.job = replace(self.job, options=options)

    def _smooth_labels(self) -> None:
        """The label smoothing of a network's own loss, where the job trains with cross-entropy."""
        job, loss = self.job, self.job.options.get("loss")
        if not job.smoothing:
            return
        classes = self.samples.has_labels and not self.samples.numbers
        if loss == CrossEntropy.name or (loss is None and classes):
            text = f"{CrossEntropy.name}:smoothing={job.smoothing}"
            losses.parse(text)
            self.job = replace(job, options={**job.options, "loss": text})
            self._note(f"{job.smoothed_by}: the loss is {text}")
        else:
            used = loss or "of the outputs of the dense model, as there are no labels of classes"
            self._note(f"{job.smoothed_by}: not used, the loss is {used}")

    def build_ema(self) -> None:
        """There is none while a network is made sparse; that a configuration asks for it is a note."""
        self.ema = None

    def _look_at_pretrained(self) -> None:
        """A dense checkpoint that is named and is not there counts as not named."""
        if self.job.pretrained and not os.path.exists(self.job.pretrained):
            self.lost = f"saver.pretrain_model {self.job.pretrained} does not exist"
            self.job = replace(self.job, pretrained="")

    def load_ckpt(self) -> None:
        """Find the start state; numbers of a dense checkpoint are loaded when the network is there."""
        job, folder = self.job, os.path.join(self.job.save_dir, "state")
        notes: list[str] = []
        named = self.evaluates and self.start  # what is named is what is evaluated
        self.found = checkpoints.newest(folder, notes) if os.path.isdir(folder) and not named else None
        if self.found is not None and not job.auto_resume:
            raise OptionError(f"{folder} holds checkpoints; set saver.auto_resume to go on, or take another save_dir")
        self.begin = start_of(job, self.start, self._learns, self.opened)
        if self.begin.source != self.source:
            self.source, self.opened = self.begin.source, Model.open(self.begin.source)
        self.decisive = decisive(job, self.total, self.opened, self.begin.named, self.samples)
        if self.begin.note:
            self._note(self.begin.note)
        if self.found is not None:
            facts = run_facts(self.found)
            demand_same(job.save_dir, facts.get("decisive"), self.decisive, self.begin.named, self.evaluates)
            self.say(f"start: iteration {facts['iteration']} of {folder}")
            return
        self.say(f"start: {self.begin.named or self.source}")

    def resume_model_from_fp(self) -> None:
        """The network that trains, with the numbers of the dense checkpoint, or of another start state."""
        dense, numbers = self._dense_model()
        self.model = model = SteppedModel(dense, LoopOptions(**self.job.options), self.source)
        trained = set(model.trains)
        self.leans = bool(numbers) and (self._learns or not other_than(self.opened, numbers) <= trained)
        if numbers and self.found is None:
            self._say_left(trained - set(numbers))
        if self.begin.first and self.found is None:
            self._take_over(model, trained)

    def prepare_sparse_model(self) -> None:
        """The scheduler, with the iterations of the trainer, and the network made ready for it."""
        config = self._with_totals(self.job.sparsity)
        config = replace(config, leaf_module=tuple(self.get_leaf_module(config.leaf_module)))
        self.scheduler = scheduler_of(self._to_look_at(config) if self.evaluates else config)
        if self.found is not None:
            facts = run_facts(self.found).get("scheduler", {})
            self.scheduler.order_of_checkpoint = str(facts.get("order", ""))
        self.model = self.scheduler.prepare_sparse_model(self.model)

    def get_leaf_module(self, names: Sequence[str]) -> Sequence[str]:
        """What stays as it is, by the names of `leaf_module`: in an ONNX model nodes, scopes or operators, no classes.

        Space2Depth and FrozenBatchNorm2d, which published files name, are arithmetic in an ONNX model, without layers.
        """
        return [name for name in names if name not in WITHOUT_LAYERS]

    def _to_look_at(self, config: Configuration) -> Configuration:
        """The same without anything that is written; for a file, what is sparse in it is sparse by itself."""
        if self.found is None:
            return read({"scheduler": {"type": "BaseScheduler"}})
        kwargs = {name: one for name, one in config.scheduler.kwargs.items() if name not in PATHS}
        return replace(config, scheduler=Part(config.scheduler.type, {**kwargs, **dict.fromkeys(PATHS)}))

    def _dense_model(self) -> tuple[Model, Mapping[str, Array]]:
        """The dense model, and the numbers that were put into it."""
        path, leans = self.begin.dense, self.found is not None and run_facts(self.found).get("leans")
        if not path and self.lost and leans:
            raise OptionError(
                f"{self.lost}, and the run in {self.job.save_dir} began with it: it cannot go on without it"
            )
        if not path or (self.found is not None and not os.path.exists(path) and not leans):
            return self.opened, {}
        numbers = self._read_state(path)
        return filled(self.opened, numbers), numbers

    def _take_over(self, model: SteppedModel, trained: set[str]) -> None:
        """The numbers of a start state, where the dense model is there to be learned from."""
        path = self.begin.first
        numbers = numbers_in(path) if is_onnx(path) else self._read_state(path)
        self._say_left(set(model.load(numbers)))
        fixed = other_than(model.model, numbers) - trained
        if fixed:
            self._note(
                f"{len(fixed)} tensors of {path} do not train here, and stay those of the dense model: {min(fixed)}"
            )

    def _say_left(self, left: set[str]) -> None:
        self.say(
            f"{len(left)} tensors are not in the checkpoint and stay as they are" if left else "all tensors loaded"
        )

    def build_trainer(self) -> None:
        """Optimizer and rate are those of the options already; here it is said how long an epoch is."""
        self.model.per_epoch = self.order.per_epoch
        self.model.length = self.total

    def resume_model_from_sparse(self) -> None:
        """Where the run of a checkpoint is; a training takes over the rest of it when its loop begins."""
        self.model.begin_with(self.samples.take(self.order.rows(0)))
        if self.found is None:
            return
        facts = run_facts(self.found)
        self.iteration = int(facts["iteration"])
        if self.evaluates:
            self.model.restore(self.found.arrays, facts["network"])
            self.scheduler.resume(facts["scheduler"])

    def sparse_post_process(self) -> None:
        """What the scheduler wants to know of the trainer."""
        scheduler, model = self.scheduler, self.model
        if isinstance(scheduler, ADMMScheduler):
            scheduler.before_run(model, self.order.per_epoch, self.total)
        if self.evaluates and self.found is None:
            model.use({})  # what is sparse in the file is sparse
        elif not self.evaluates and self.found is None:
            scheduler.init_optimizer()
            if 0 in scheduler.graph_changes():  # no segment of the run comes before it
                scheduler.prune_model(model, 0)
        if self.job.options.get("lr_schedule"):
            scheduler.set_lr_scheduler(self.job.options["lr_schedule"])

    def train(self) -> None:
        """The one loop, from where the run is."""
        model, folder = self.model, os.path.join(self.job.save_dir, "state")
        run = Run(self._task(), model, folder=folder, every=self.job.every)
        run.train(None if self.found is None else as_of_run(self.found))
        self.iteration = run.step

    def _task(self) -> Task:
        """The configuration as a recipe and a plan; all samples train, as the published runner has it."""
        job, model = self.job, self.model
        schedule = Schedule(self.scheduler, model, {"decisive": self.decisive, "leans": self.leans}, self._stepped)
        training = replace(model.options.training, steps=self.total, batch=job.batch, train_bn=model.options.train_bn)
        feeding = Feeding(self.samples, job.batch, job.seed, hold=False)
        recipe = Recipe((training, schedule))
        return Task(model.model, recipe, model.plan, model.params, self.samples, feeding, model.spec().objective)

    def _stepped(self, done: int, loss: float) -> None:
        """What is said where a checkpoint is due."""
        if done % self.job.every == 0 or done == self.total:
            rate = self.scheduler.compute_sparse_rate(self.model)
            self.say(f"iteration {done} of {self.total}: loss {loss:.4g}, zeros {100 * rate:.2f} %")

    # -- what belongs to them

    @property
    def total(self) -> int:
        job, per_epoch = self.job, self.order.per_epoch
        if job.iterations is not None:
            return job.iterations
        if job.epochs is None:
            given = self.job.sparsity.scheduler.kwargs.get(TOTALS.get(self.job.sparsity.scheduler.type, ""))
            if given is None:
                raise OptionError("nothing says how long to train: trainer.max_epoch or trainer.max_iter")
            return count(given, "how many iterations", 1)
        return max(1, round(job.epochs * per_epoch))

    def _on_length(self) -> list[str]:
        """Who says how long the training is, where that may be another than one thinks."""
        job, name = self.job, TOTALS.get(self.job.sparsity.scheduler.type, "")
        if name and job.epochs is None and job.iterations is None and job.given_total is None:
            default = f"{self.total} iterations, the default of {name}"
            return [f"nothing says how long to train (trainer.max_epoch, trainer.max_iter): {default}"]
        return on_length(job.sparsity.scheduler, job.given_total, self.total, job.t_max, job.epochs)

    def _with_totals(self, config: Configuration) -> Configuration:
        """Total iterations come from the trainer; the rate's period has to fit them."""
        name, job = TOTALS.get(config.scheduler.type), self.job
        if name is None:
            return config
        table = config.scheduler.kwargs.get("sparsity_table")
        if table is not None:
            demand_period(job.t_max, len(table), job.epochs)
        kwargs = dict(config.scheduler.kwargs)
        if table is not None and kwargs["default_input_shape"] is None and kwargs["default_input_custom"] is None:
            sample = self.samples.take(self.order.rows(0)[:1])
            kwargs["default_input_custom"] = {name: array for name, array in sample.items() if name != LABELS}
        if job.epochs is not None or job.iterations is not None:
            kwargs[name] = self.total
        return replace(config, scheduler=Part(config.scheduler.type, kwargs))

    def export(self) -> str:
        """The sparse model, proven, with its record; and whether the file as it is written holds."""
        path, shape = os.path.join(self.job.save_dir, RESULT), self.scheduler.kwargs.get("default_input_shape")
        make_folder(self.job.save_dir)

        def look(report: Report, model: Model) -> Report:
            """What does not hold is delivered all the same, and said."""
            self.wrong = why_not(model, path, shape)
            return report

        written: str = self.scheduler.export_checked(path, look)
        self.say(f"written: {written}")
        self.holds = not self.wrong
        if self.wrong:
            sys.stderr.write(f"{written} DOES NOT HOLD: {self.wrong}\n")
        return written

    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy on the test data, and the share of zeros."""
        figures = {"zeros": self.scheduler.compute_sparse_rate(self.model)}
        if self.tested is not None:
            classes = self.tested.has_labels and not self.tested.numbers
            task = self.model.spec().objective.task
            names = ["loss", "accuracy"] if classes else ["loss"]
            measure = Measure(self.tested, names, self.job.batch, axes_of(self.opened), task)
            figures.update(measure(self.model.answering()))
        self.say(", ".join(f"{name} {value:.4f}" for name, value in figures.items()))
        return figures

    def _data(self, path: str, name: str) -> Samples:
        if not path:
            raise OptionError(f"{name} is missing: arrays in an .npz, by the names of the model's inputs, with labels")
        task = self.job.task
        found = open_data(path, fields_of(self.opened), self.job.labels, task in TASKS, task in ("mse", "bce", "l1"))
        if not isinstance(found, Samples):
            raise OptionError(f"{name}: arrays are needed, an .npz or a folder of them, not a function")
        return found

    def _read_state(self, path: str) -> dict[str, Array]:
        """Numbers by name, of an .npz or of a checkpoint of torch, that fit the model."""
        numbers, remarks = read_state(path)
        for remark in remarks:
            self._note(remark)
        demand_place(path, numbers, self.opened)
        return numbers

    @property
    def _learns(self) -> bool:
        return learns(self.job.options, self.samples.has_labels)

    def _note(self, note: str) -> None:
        self.notes.append(note)
        self.say(f"note: {note}")

    def say(self, line: str) -> None:
        if not self.quiet:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


__all__ = ["STEPS", "SparseRunner"]
