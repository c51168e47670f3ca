"""Training of a network by a configuration, float or sparse, in steps that are named as United Perception's are.

1. `runner: base` trains the float network and leaves `ckpt_latest.pth` ({"model": state dict}); `runner: sparse` starts
   from it, and leaves ONNX files that are verified, one set for each level.
2. A checkpoint in `save_dir/state` holds the network, the optimizer, the masks and where the run is. One that is killed
   and started again ends with the same bytes.
   A signal that ends it waits for the end of the step, as in every run of one process, so that nothing is lost.
3. In several processes each has the same network and masks; the first one measures, writes and speaks.
4. EMA is off. Of a checkpoint that has an EMA state that is what is loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from onnxsparse import checkpoints, progress
from onnxsparse.dialects.msbench import scheduler_of
from onnxsparse.dialects.msbench.builders import Builders
from onnxsparse.dialects.msbench.checks import digests_of, masks_digest, still_decisive
from onnxsparse.dialects.msbench.configuration import Part
from onnxsparse.dialects.msbench.network_job import read_network_job
from onnxsparse.dialects.msbench.network_levels import Delivered, deliver, show_levels, shown, write_network
from onnxsparse.dialects.msbench.network_start import (
    BEST,
    LATEST,
    STATE,
    loaded,
    start_of_network,
)
from onnxsparse.dialects.msbench.trainer_section import WITHOUT_LAYERS, RateOfStage, demand_period, on_length
from onnxsparse.engines.processes import Processes, launched
from onnxsparse.engines.torch.distributed import LostError, meet
from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OptionError, one_line
from onnxsparse.files import check_target, make_folder, write_text
from onnxsparse.report.history import History, Moment
from onnxsparse.train.checkpointing import Stopping
from onnxsparse.train.network_loop import NETWORK, NetworkLoop, Plan, load_numbers, numbers_of, optimizer_of, part_of

GO_ON = "start all of them again to go on from the newest checkpoint"
STEPS = (
    "build_model", "build_ema", "load_ckpt", "resume_model_from_fp", "prepare_sparse_model", "build_trainer",
    "resume_model_from_sparse", "sparse_post_process", "train",
)  # fmt: skip
SCHEDULER = "scheduler/"
KEPT = 2
"""How many checkpoints stay, unless only_save_latest says one."""


class NetworkRunner:
    """One training of a network; a subclass may change a step."""

    def __init__(
        self,
        path: str,
        config: Mapping[str, Any],
        builders: Builders,
        start: str = "",
        evaluate: bool = False,
        quiet: bool = False,
        whole: bool = False,
    ) -> None:
        self.job, self.builders = read_network_job(path, config), builders
        self.start, self.evaluates, self.quiet, self.whole = start, evaluate, quiet, whole
        self.processes: Processes = Processes() if launched() == 1 else meet("cpu")
        self.scheduler: Any = None
        self.delivered: list[Delivered] = []
        self.history = History({"config": os.path.basename(path), "seed": self.job.seed})
        self.notes: list[str] = list(self.job.notes)
        self._sum, self._since, self._best = 0.0, 0, dict[str, Any]()

    @property
    def holds(self) -> bool:
        """Whether every file that was written verifies."""
        return not any(one.wrong for one in self.delivered)

    def run(self) -> dict[str, float]:
        """All steps in their order; the figures of the network on the test data."""
        try:
            return self._run()
        except LostError as error:
            raise LostError(f"another process of this run is gone, or cannot be reached; {GO_ON}") from error

    def _run(self) -> dict[str, float]:
        for note in self.notes:
            self.say(f"note: {note}")
        for step in STEPS[:-1]:
            getattr(self, step)()
        if self.evaluates:
            figures = self.evaluate()
            self.say(", ".join(f"{name} {value:.4f}" for name, value in figures.items()))
            return figures
        self.train()
        for line in show_levels(self.delivered):
            self.say(line)
        return dict(self.history.rows[-1].metrics) if self.history.rows else {}

    # -- the steps

    def build_model(self) -> None:
        """The network of `net:`, and the images of `dataset:`."""
        job, builders = self.job, self.builders
        self.network = builders.network(job.net, job.seed)
        self.samples = None if self.evaluates else builders.dataset(job.dataset, "train", job.seed)
        if self.samples is not None and self.samples.classes > self.network.classes:
            raise OptionError(
                f"dataset.train has labels of {self.samples.classes} classes, and the network knows "
                f"{self.network.classes}: set num_classes of net"
            )
        self.tested = builders.dataset(job.dataset, "test", job.seed) if "test" in job.dataset else None
        if self.tested is not None:
            self._main = builders.evaluator(job.dataset, self.tested).main
        elif self.evaluates:
            raise OptionError("dataset.test is missing: nothing says which images to evaluate with")

    def build_ema(self) -> None:
        """There is none; that a configuration asks for it is a note."""
        self.ema = None

    def load_ckpt(self) -> None:
        """Find where to start."""
        job = self.job
        self.begin = start_of_network(job, self.start, self.evaluates)
        for note in self.begin.notes:
            self._note(note)
            if self.quiet and self.processes.first:
                sys.stderr.write(f"note: {note}\n")
        found, dense = self.begin.found, self.begin.dense
        used = found is not None or job.distills or self.begin.numbers == dense
        self.decisive = digests_of(job, self.samples, dense if used else "")
        if found is None:
            self.batch = 0 if self.samples is None else self.samples.batch * self.processes.count
            return
        folder = os.path.dirname(found.path)
        self.decisive = still_decisive(folder, found.facts.get("decisive"), self.decisive, dense, self.evaluates)
        self.batch = int(found.facts["batch"])
        if not self.evaluates and self.batch < self.processes.count:
            raise OptionError(
                f"the run has {self.batch} images in a batch, too few for {self.processes.count} processes"
            )
        self.say(f"start: iteration {found.step} of {folder}")

    def resume_model_from_fp(self) -> None:
        """The numbers of the float network, or of another start; and the network to learn from."""
        path = self.begin.numbers or ("" if self.evaluates else self.begin.dense)
        if path:
            for note in loaded(self.builders, self.network, path):
                self._note(note)
            self.say(f"start: {path}" if self.begin.numbers else f"dense network: {path}")
        self.teacher = None
        if self.job.distills and not self.evaluates:
            self.teacher = self._teacher()

    def _teacher(self) -> Any:
        if not self.begin.dense:
            raise OptionError(
                "loss.type distill learns from the float network, and saver.pretrain_model, which names it, does not "
                "exist: train it first (runner: base)"
            )
        teacher = self.builders.network(self.job.net, self.job.seed)
        loaded(self.builders, teacher, self.begin.dense)
        return teacher.eval().requires_grad_(False)

    def prepare_sparse_model(self) -> None:
        """The scheduler of `sparsity`, with as many iterations as the trainer says; none of a float network."""
        config = self.job.sparsity
        if config is None or self.evaluates:
            return
        self._demand_export()
        config = replace(config, leaf_module=tuple(self.get_leaf_module(config.leaf_module)))
        kwargs = dict(config.scheduler.kwargs)
        if "total_iters" in kwargs:
            epochs = None if self.job.iterations else self.job.epochs
            demand_period(self.job.t_max, len(kwargs["sparsity_table"]), epochs)
            kwargs["total_iters"] = self.total
            if kwargs["default_input_shape"] is None and kwargs["default_input_custom"] is None:
                kwargs["default_input_custom"] = [self.example()]
        if "total_iterations" in kwargs:
            kwargs["total_iterations"] = self.total
        for note in on_length(config.scheduler, self.job.given_total, self.total, self.job.t_max, self.job.epochs):
            self._note(note)
        if self.quiet:
            kwargs["verbosity"] = 0
        self.scheduler = scheduler_of(replace(config, scheduler=Part(config.scheduler.type, kwargs)))
        if not self.processes.first:
            self.scheduler.verbosity = -1  # not even notes: the first one says the same
        self.scheduler.prepare_sparse_model(self.network)

    def get_leaf_module(self, names: Sequence[str]) -> Sequence[str]:
        """What stays dense, by the names of `leaf_module`: paths and classes of modules."""
        return [name for name in names if name not in WITHOUT_LAYERS]

    def build_trainer(self) -> None:
        """Optimizer, rate and the loop."""
        if self.evaluates or self.samples is None:
            return
        job = self.job
        scale = float(self.batch) if job.scaled else 1.0
        rate = RateOfStage(float(job.optimizer[1]["lr"]), job.schedule, job.warm_up, self.per_epoch, scale)
        told = f"{rate.base:g} * {self.batch} images = {rate.base * scale:g}" if job.scaled else f"{rate.base:g}"
        self.say(f"training: {self.total} iterations of {self.batch} images, lr {told}")

        def rate_at(step: int) -> float:
            """The rate begins again with every stage."""
            begin, end = self._stage_of(step)
            return rate.at(step - begin, end - begin)

        if self.processes.first:  # what cannot be written is said before anything trains
            checkpoints.claim(os.path.join(job.save_dir, STATE))
            check_target(os.path.join(job.save_dir, LATEST), overwrite=True)
        made = Plan(self.total, self.batch, rate_at, optimizer_of(*job.optimizer), job.clip, self.teacher)
        self.loop = NetworkLoop(self.network, self.samples, made, self.processes)

    def resume_model_from_sparse(self) -> None:
        """Where the run of a checkpoint is."""
        found = self.begin.found
        if self.scheduler is not None:
            self.scheduler.init_optimizer(self.loop.optimizer)
        if found is None:
            return
        if self.evaluates:
            load_numbers(self.network, part_of(found.arrays, NETWORK))
            return
        facts = found.facts
        if self.scheduler is not None:
            arrays = {name: torch().from_numpy(one) for name, one in part_of(found.arrays, SCHEDULER).items()}
            self.scheduler.load_state_dict({**facts["scheduler"], "arrays": arrays})
        self.loop.restore(found.arrays, facts)
        self.history = History.from_facts(facts["history"])
        self._sum, self._since, self._best = float(facts["sum"]), int(facts["since"]), dict(facts["best"])
        self.delivered = [Delivered(**one) for one in facts["delivered"]]

    def sparse_post_process(self) -> None:
        """Every process has the same network, or the run ends here."""
        if not self.evaluates:
            self.processes.demand_alike({"network at the start": masks_digest(numbers_of(self.network))})

    def train(self) -> None:
        """The one loop, from where the run is."""
        stopping = Stopping(self.processes.count == 1)
        with stopping.until_saved():
            for loss in self.loop.run(self._before):
                self._sum, self._since = self._sum + loss, self._since + 1
                asked = stopping.asked
                self._after(asked)
                if asked:
                    break

    def _after(self, asked: bool) -> None:
        """What follows a step: figures, the files of a stage, a checkpoint, also where one is asked for."""
        loop, job = self.loop, self.job
        progress.advance("training", loop.step, self.total)
        ends = self._stage_of(loop.step - 1)[1] == loop.step
        tests = loop.step % (job.test_every * self._unit) == 0 or ends
        saves = loop.step % (job.save_every * self._unit) == 0 or loop.step == self.total or asked
        if tests or saves:
            loop.settle()
        if tests:
            self._measure()
        if ends and self.scheduler is not None:
            self._deliver()
        if saves or tests:
            self.save(saves)

    # -- what belongs to them

    @property
    def per_epoch(self) -> int:
        assert self.samples is not None
        return int(self.samples.per_epoch(self.batch))

    @property
    def total(self) -> int:
        job = self.job
        if job.iterations is not None:
            return job.iterations
        assert job.epochs is not None
        return max(1, round(job.epochs * self.per_epoch))

    @property
    def _unit(self) -> int:
        """What frequencies count: epochs, or iterations where these say how long the training is."""
        return 1 if self.job.iterations is not None and self.job.epochs is None else self.per_epoch

    def example(self) -> Any:
        """One image to look at the network with, as a batch."""
        samples = self.tested or self.samples
        assert samples is not None
        batch = next(iter(samples.epoch(0, 1)))
        return torch().from_numpy(batch.image[:1].copy())

    def exported(self) -> Any:
        """The image that files are exported with: of `export.size`, or as large as the example."""
        image = self.example()
        if self.job.export_size is None:
            return image
        height, width = self.job.export_size
        resized = image.new_zeros((*image.shape[:2], height, width))
        part = image[..., :height, :width]
        resized[..., : part.shape[2], : part.shape[3]] = part
        return resized

    def _demand_export(self) -> None:
        """What the network cannot be exported for is said before anything trains."""
        image, size = self.exported(), self.job.export_size
        height, width = image.shape[2:]
        part = "test" if self.tested is not None else "train"
        why = (
            ""
            if size
            else f", the size of the first batch of dataset.{part}; export: {{size: [height, width]}} says another"
        )
        self.say(f"exported at {height} x {width}{why}")
        if size is None:
            return
        try:
            with torch().no_grad():
                self.network.eval()(image)
        except RuntimeError as error:
            reason = one_line(error)[:200]
            raise OptionError(f"export.size: the network does not run at {height} x {width}: {reason}") from error
        finally:
            self.network.train()

    def _stage_of(self, step: int) -> tuple[int, int]:
        """The first step of a stage, and the one behind its last."""
        stages = getattr(self.scheduler, "stages", None)
        if stages is None:
            return 0, self.total
        at = stages.at(step)
        return stages.begin(at), stages.begin(at) + stages.length(at)

    def _before(self, step: int) -> None:
        if self.scheduler is None:
            return
        self.scheduler.prune_model(self.network, step)
        if self.processes.count > 1 and self._stage_of(step)[0] == step:
            self.processes.demand_alike({"masks": masks_digest(self.scheduler.network.masks())})

    def _measure(self) -> None:
        """Figures of the network as it is; the best one is kept."""
        loop, zeros = self.loop, None if self.scheduler is None else self.scheduler.compute_sparse_rate()
        figures: dict[str, float] = {} if self.tested is None else self.evaluate()
        loss = self._sum / max(self._since, 1)
        self._sum, self._since = 0.0, 0
        self.history.add(Moment(loop.step / self.per_epoch, loop.step, loss, zeros, loop.rate, metrics=figures))
        said = [f"loss {loss:.4g}", *([f"zeros {100 * zeros:.2f} %"] if zeros is not None else [])]
        said += [f"{name} {value:.4f}" for name, value in shown(figures).items()]
        self.say(f"iteration {loop.step} of {self.total}: {', '.join(said)}")
        if self.job.saves_best and figures:
            self._keep_best(figures)

    def _keep_best(self, figures: Mapping[str, float]) -> None:
        """The best of a stage: of levels that come later the earlier ones would always be better."""
        stage, value = self._stage_of(self.loop.step - 1)[0], figures[self._main]
        if self._best.get("stage") != stage or value > self._best["value"]:
            self._best = {"stage": stage, "value": value}
            self._write_network(BEST)

    def evaluate(self) -> dict[str, float]:
        """The figures of the evaluator; the first process measures all of the test data."""
        found: dict[str, float] = self.processes.told(self._evaluated)
        return found

    def _evaluated(self) -> dict[str, float]:
        assert self.tested is not None
        evaluator = self.builders.evaluator(self.job.dataset, self.tested)
        self.network.eval()
        for batch in self.tested.epoch(0, self.tested.batch):
            evaluator.add(batch, self.network.answers(batch))
        self.network.train()
        return {name: float(value) for name, value in evaluator.figures().items()}

    def _deliver(self) -> None:
        """The files of a stage; the first process writes them."""
        row = self.history.rows[-1]
        self.scheduler.promise_masks()
        made = self.processes.told(
            lambda: deliver(
                self.scheduler, self.builders, self.exported(), self.job.save_dir, self.whole, row, self.samples
            ).facts()
        )
        found = Delivered(**made)
        self.delivered = [one for one in self.delivered if one.name != found.name] + [found]
        for path in found.files:
            self.say(f"written: {path}")
        if found.wrong and self.processes.first:
            sys.stderr.write(f"{found.wrong}\n")

    def save(self, checkpoint: bool = True) -> None:
        """A checkpoint to go on from, the network for other tools, and the history."""
        arrays, facts = self.loop.state()
        if self.scheduler is not None:
            state = self.scheduler.state_dict()
            arrays.update({f"{SCHEDULER}{name}": one.cpu().numpy() for name, one in state.pop("arrays").items()})
            facts["scheduler"] = state
        if not self.processes.first:
            return
        make_folder(self.job.save_dir)
        self.history.write(os.path.join(self.job.save_dir, "history"), lambda path, text: write_text(path, text, True))
        if not checkpoint:
            return
        facts.update(
            decisive=self.decisive, history=self.history.to_facts(), sum=self._sum, since=self._since, best=self._best,
            delivered=[one.facts() for one in self.delivered],
        )  # fmt: skip
        folder = os.path.join(self.job.save_dir, STATE)
        self._write_network(LATEST)  # before: a run that goes on from its last checkpoint has nothing more to write
        checkpoints.save(folder, self.loop.step, arrays, facts)
        checkpoints.clean(folder, 1 if self.job.only_latest else KEPT)

    def _write_network(self, name: str) -> None:
        if self.processes.first:
            write_network(os.path.join(self.job.save_dir, name), self.network, self.loop.step)

    def _note(self, note: str) -> None:
        self.notes.append(note)
        self.say(f"note: {note}")

    def say(self, line: str) -> None:
        if not self.quiet and self.processes.first:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


__all__ = ["STEPS", "NetworkRunner"]
