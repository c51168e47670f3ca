"""AmbaLevelPruneScheduler: sparsity levels of Ambarella's chips, one stage of the training for each.

1. Before the training, each layer's sparsity at each level is found (the allocation `energy`, in the pattern `alive`),
   or read from `sparse_analysis.json` in `output_dir`, where that is there, was made for the same settings and network
   (see `analysis`), and no new analysis is wanted; or from MSBench's own tables (see `published_files`). Where nothing
   but `prune_model` says the shape of a module's input, that is done at its first call.
2. At the first iteration of a stage the masks of its level are chosen and the learning rate begins again; at its last
   one the zeros are folded into the weights and `global_sparse_rate_<level>` is written into `save_dir`.
3. A loop that begins in the middle gets the masks of its stage, from `mask_dict` where that is given: masks by layer,
   or a checkpoint of a level, whose tables count, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxsparse import patterns, targets
from onnxsparse.allocations.energy import Energy
from onnxsparse.data.field import as_array
from onnxsparse.dialects.msbench import analysis, published_files
from onnxsparse.dialects.msbench.analysis import as_csv, statistics
from onnxsparse.dialects.msbench.configuration import PATHS, Configuration, count, table
from onnxsparse.dialects.msbench.layer_rates import rates_by_key
from onnxsparse.dialects.msbench.published_files import Tables
from onnxsparse.dialects.msbench.schedulers.scheduler import BaseScheduler, Goal
from onnxsparse.errors import OptionError, PlanError, nearest
from onnxsparse.files import make_folder, write_text
from onnxsparse.math.values import Array
from onnxsparse.planning.stored_params import Candidate
from onnxsparse.schedules import Stages
from onnxsparse.train.layers import Measured

if TYPE_CHECKING:
    from onnxsparse.dialects.msbench.masking import When

REPORT = "sparse_report"
ANALYSED_SPARSE = (
    "the network is sparse already, and is analysed as it is now: its zeros count as the first to go; to "
    "go on by the analysis of the dense network name its output_dir, and set do_sparse_analysis to False"
)
NO_SHAPE = (
    "how large the inputs of the layers are depends on those of the module: give default_input_shape, such as [1, 3, "
    "224, 224], or a batch as default_input_custom in the configuration, or curr_input_shape to prune_model"
)


class AmbaLevelPruneScheduler(BaseScheduler):
    """A level after the other, each trained for a while."""

    level_pattern = "alive"
    has_levels = True

    def _configure(self, config: Configuration) -> None:
        super()._configure(config)
        kwargs = self.kwargs
        if not self.generator.masks or self.generator.pattern != "unstructured":
            raise OptionError("AmbaLevelPruneScheduler needs NormalMaskGenerator and FakeSparse, of single numbers")
        self.levels = table(kwargs["sparsity_table"])
        self.stages = Stages(count(kwargs["total_iters"], "total_iters", 1), len(self.levels))
        if kwargs["prun_algo"] not in (0, 1):
            raise OptionError(f"prun_algo is 0 (uniform) or 1 (by energy), not {kwargs['prun_algo']!r:.40}")
        if not isinstance(kwargs["prun_hw_aware"] or "", str):
            raise OptionError(f"prun_hw_aware is the name of a chip, such as cv22, not {kwargs['prun_hw_aware']!r:.40}")
        self.chip = kwargs["prun_hw_aware"] or ""
        self.device = targets.parse(f"amba:{self.chip}" if self.chip else "amba")
        self.allocation = Energy(
            float(kwargs["prun_algo_tuning"]),
            float(kwargs["prune_tolerance_max"]),
            float(kwargs["prune_tolerance_min"]),
            bool(kwargs["dw_no_prune"]),
            kwargs["prun_algo"] == 0,
        )
        self.verbosity = max(self.verbosity, 2 if kwargs["verbose"] else 0)
        if kwargs["sparse_rate_tolerance"] < 0:
            raise OptionError(f"sparse_rate_tolerance is a share from 0, not {kwargs['sparse_rate_tolerance']:g}")
        _demand_shape(kwargs["default_input_shape"])
        self._pattern, self._stage = patterns.parse("alive"), -1

    def _begin(self) -> None:
        network = self._network
        if 0 < self.levels[-1] < 1:
            self._remark(f"sparsity_table is in per cent: {self.levels[-1]:g} is less than one per cent")
        for folder in (self.kwargs[name] for name in PATHS):
            if folder and not self._silent:
                make_folder(folder)  # now, and not when a level is trained
        network.use({site.key: "mask" for site in self.prunable})
        self._names = {site.key: site.name for site in network.sites}
        self._tables: dict[str, list[dict[str, Any]]] = {}
        self._drops: list[dict[str, int]] = []
        self._measured: dict[str, Measured] = {}
        self._shape, self._custom = (self.kwargs[name] for name in ("default_input_shape", "default_input_custom"))
        self._published: Tables | None = None
        given = self._mask_dict()
        if not network.is_torch or self._shape is not None or self._custom is not None:
            self._look_at_network()
        self._given = self._masks_given(given)
        network.set_masks(self._given)
        self._take_init_lr()
        if self.kwargs["lr_scheduler"] is not None:
            self.set_lr_scheduler(self.kwargs["lr_scheduler"])
        elif not network.is_torch and network.options.lr_schedule == "constant":
            self.set_lr_scheduler("cosine")

    def prune_model(self, model: Any, iteration: int, curr_input_shape: Any = None) -> Any:
        """What has to be done before an iteration; multiply-accumulates are those of an input of this shape."""
        self._demand("prune_model", model)
        if curr_input_shape is not None:
            shape = [int(size) for size in curr_input_shape] if hasattr(curr_input_shape, "__iter__") else []
            _demand_shape(shape or str(curr_input_shape), "curr_input_shape")
            if shape != self._shape or self._custom is not None:
                self._shape, self._custom, self._measured = shape, None, {}
        if not self._drops:
            self._look_at_network()
        return super().prune_model(model, iteration)

    def get_prune_step(self) -> int:
        """The iteration at which the stage of `iteration` began."""
        return self.stages.begin(self.stages.at(self.iteration))

    get_last_prune_step = get_prune_step

    # -- which layer at which level

    def _look_at_network(self) -> None:
        """Sizes of the layers, and how sparse each is at each level."""
        if self._network.is_torch and self._shape is None and self._custom is None:
            raise OptionError(NO_SHAPE)
        self._measured = self._network.measure(self._shape, self._custom)
        self._drops = self._read_analysis() or self._analysed()

    def _sizes(self) -> dict[str, Measured]:
        """Sizes and multiply-accumulates for the input shape of now."""
        self._measured = self._measured or self._network.measure(self._shape, self._custom)
        return self._measured

    def _mask_dict(self) -> Any:
        """The masks that were given; of a checkpoint of a level those in it, whose tables count, too."""
        given = self.kwargs["mask_dict"]
        if isinstance(given, (str, os.PathLike)):
            given = published_files.load_checkpoint(os.fspath(given))
        if not published_files.is_checkpoint(given):
            return given
        self._published = published_files.tables_of(given, len(self.levels))
        return given.get("mask_dict") or published_files.masks_of(given, [site.name for site in self.prunable])

    def _analysed(self) -> list[dict[str, int]]:
        dense, parts, levels = self._dense, self._network.parts, [level / 100 for level in self.levels]
        found = self._network.candidates(self._measured, self.device, lambda site: site.key in dense)
        together: dict[str, list[Candidate]] = {}  # a file that holds a part of the network is at the level by itself
        for one in found:
            together.setdefault(parts.get(one.name, ""), []).append(one)
        each = [self.allocation.allocate_levels(several, levels, self._pattern) for several in together.values()]
        made = [{key: drop for drops in at for key, drop in drops.items()} for at in zip(*each)]
        for level, drops in zip(self.levels, made):
            self._look_at(level, drops)
        self._drops = [dict(drops) for drops in made]
        self._write_analysis(made)
        return self._drops

    def _look_at(self, level: float, drops: Mapping[str, int]) -> None:
        """Say how near the network comes to a level."""
        size = sum(site.size for site in self._network.sites)
        reached = 100 * sum(drops.values()) / max(size, 1)
        self._say(1, f"level {level:g}: network sparsity {reached:.2f} %")
        for site in self._network.sites:
            self._say(2, f"  {site.name}: {100 * drops[site.key] / max(site.size, 1):.0f} %")
        if abs(reached - level) <= 100 * float(self.kwargs["sparse_rate_tolerance"]):
            return
        zeros = sum(site.size - np.count_nonzero(self._network.weight(site.key)) for site in self._network.sites)
        if 100 * zeros / max(size, 1) > level:
            self._remark(f"level {level:g} is passed already: the network has {100 * zeros / size:.2f} % zeros")
        else:
            self._remark(
                f"level {level:g} is out of reach with these limits and exclusions: {reached:.2f} % is nearest"
            )

    def _read_analysis(self) -> list[dict[str, int]] | None:
        folder, masked = self.kwargs["output_dir"], bool(self.kwargs["mask_dict"])
        path = os.path.join(str(folder), analysis.NAME) if folder else ""
        ours = os.path.exists(path) and not self.kwargs["msbench_names"]
        if self._published is None and folder and not self.kwargs["do_sparse_analysis"] and not ours:
            there = published_files.are_there(str(folder), self.chip)
            self._published = published_files.read(str(folder), self.chip, len(self.levels)) if there else None
        if self._published is not None:
            return self._drops_published(self._published)
        if not folder or self.kwargs["do_sparse_analysis"] or not os.path.exists(path):
            if analysis.goes_on(self._network, False, self.levels[0]):
                self._remark(ANALYSED_SPARSE)
            return None
        tables, known = analysis.read_tables(path, self.levels)
        wanted = self._made_for()
        if analysis.goes_on(self._network, masked, self.levels[0]):
            wanted[analysis.WEIGHTS] = known.get(analysis.WEIGHTS)
        differs = analysis.difference(tables, self.levels, known, wanted)
        if differs:
            self._remark(f"{path} was made for something else, and is made anew: {differs}")
            return None
        return [self._drops_of(tables[f"{level:g}"]) for level in self.levels]

    def _drops_published(self, tables: Tables) -> list[dict[str, int]]:
        """What MSBench's tables say of the layers; those that they do not name stay dense."""
        named = rates_by_key(self._network.sites, tables.rates, tables.path)
        left = [site.name for site in self.prunable if site.key not in named]
        if left:
            self._remark(
                f"{tables.path} does not name {', '.join(left[:3])}{' ...' if left[3:] else ''}: they stay dense"
            )
        found = []
        for place, level in enumerate(self.levels):
            shares = rates_by_key(self._network.sites, tables.at(place), tables.path)
            sites = [
                (site, 0.0 if site.key in self._dense else shares.get(site.key, 0.0)) for site in self._network.sites
            ]
            found.append({site.key: self._pattern.drop_count(site.shape4, share) for site, share in sites})
            self._look_at(level, found[-1])
        return found

    def _as_published(self) -> Tables:
        """The rates of all layers at all levels, as MSBench has them."""
        if self._published is not None:
            return self._published
        rates = {
            site.name: [round(100 * drops[site.key] / max(site.size, 1)) / 100 for drops in self._drops]
            for site in self._network.sites
        }
        bounds = {
            site.name: site.convolution and self.device.target_density(site.convolution) for site in self._network.sites
        }
        caps = {name: 1.0 if bound is None else 1 - bound for name, bound in bounds.items()}
        return Tables(rates, range(len(self.levels)), caps, "")

    def _made_for(self) -> dict[str, Any]:
        return analysis.made_for(self._network, self._measured, self._dense, self.device.text, self.allocation)

    def _drops_of(self, shares: Mapping[str, float]) -> dict[str, int]:
        sites = self._network.sites
        return {one.key: self._pattern.drop_count(one.shape4, shares[one.name] / 100) for one in sites}

    def _write_analysis(self, made: Any) -> None:
        folder = self.kwargs["output_dir"]
        if not folder or not self._writes():
            return
        sizes = {site.key: site.size for site in self._network.sites}
        if self.kwargs["msbench_names"]:
            now = self._as_published()
            reached = [round(sum(drops.values()) / max(sum(sizes.values()), 1), 6) for drops in self._drops]
            published_files.write(str(folder), now.rates, reached, now.caps, self.chip)
            return
        shares = [
            {self._names[key]: round(100 * drop / max(sizes[key], 1)) for key, drop in drops.items()} for drops in made
        ]
        levels = {f"{level:g}": row for level, row in zip(self.levels, shares)}
        analysis.write_tables(str(folder), levels, self._made_for())

    # -- stages

    def _prune(self, iteration: int) -> None:
        stage = self.stages.at(iteration)
        if self.stages.begins(iteration) or stage != self._stage:
            self._enter(stage, self.stages.begins(iteration))
        if self.stages.ends(iteration):
            self._leave(stage, iteration)

    def share_of(self, key: str) -> float | None:
        """That of the stage, as its table has it, until a rate is set in it."""
        if key in self.rates.shares or self._stage < 0:
            return self.rates.shares.get(key)
        site = next(one for one in self._network.sites if one.key == key)
        per_cent: int = round(100 * self._drops[self._stage][key] / max(site.size, 1))
        return per_cent / 100

    def _enter(self, stage: int, first: bool) -> None:
        resumed, self._stage = self._stage < 0 and not first, stage
        self.rates.shares.clear()
        self._network.pruned = self.levels[-1] / 100
        if resumed and self._given:
            self._take_given(stage)
        else:
            self._mask(self._drops[stage], self._pattern)
        if first and self._restarts is not None:
            self._restarts.restart()
        if not self._network.is_torch:
            self._network.restart(self.stages.length(stage))
        self._say(1, f"stage {stage + 1} of {len(self.levels)}: level {self.levels[stage]:g}")

    def _leave(self, stage: int, iteration: int) -> None:
        """Zeros in the weights, and a checkpoint of them."""
        network, level = self._network, self.levels[stage]
        if network.is_torch:
            network.settle()
        self._keep_promise()
        rows = self._tables[f"{level:g}"] = statistics(network, self._sizes(), self.device)
        self._write_report()
        if self.kwargs["save_dir"] and self._writes():
            make_folder(str(self.kwargs["save_dir"]))
            theirs = bool(self.kwargs["msbench_names"])
            name = f"global_sparse_rate_{level / 100 if theirs else f'{level:g}'}"
            path = os.path.join(str(self.kwargs["save_dir"]), name)
            facts: dict[str, Any] = {"prune_step": stage, "iteration": iteration, "level": level, "layers": rows}
            if theirs:
                now = self._as_published()
                matrix = {layer: list(rates) for layer, rates in now.rates.items()}
                facts = {"prune_step": stage, "sparse_matrix": matrix, "desire_index_table": list(now.steps)}
            written = network.save(path, facts, published_files.SUFFIX if theirs else "")
            self._say(1, f"written: {written}")

    def _write_report(self) -> None:
        folder = self.kwargs["output_dir"]
        if folder and self._writes():
            if self.kwargs["msbench_names"]:
                write_text(os.path.join(str(folder), published_files.REPORT), as_csv(self._tables), True)
                return
            path = os.path.join(str(folder), REPORT)
            write_text(f"{path}.json", json.dumps(self._tables, indent=2) + "\n", True)
            write_text(f"{path}.csv", as_csv(self._tables), True)

    def statistics(self) -> list[dict[str, Any]]:
        """Numbers, non-zero ones and MACs of every layer as it is now, and of all."""
        return statistics(self._demand("statistics"), self._sizes(), self.device)

    # -- masks in a graph, without a training

    def set_moment(self, moment: When, shapes: Mapping[str, list[int]] | None) -> None:
        """A target says the chip, and sizes of dynamic axes the shapes of inputs; an analysis is read, not written."""
        self._silent = True
        chip = _chip_of(moment.target)
        if chip and self.chip not in ("", chip):
            raise OptionError(f"prun_hw_aware says {self.chip}, and --target {chip}: leave one out")
        kwargs = self.kwargs
        folder = None if kwargs["do_sparse_analysis"] else kwargs["output_dir"]
        shape, custom = kwargs["default_input_shape"], kwargs["default_input_custom"]
        shape = dict(shapes) if shapes and shape is None and custom is None else shape
        self._with_arguments(
            prun_hw_aware=chip or self.chip, output_dir=folder, save_dir=None, default_input_shape=shape
        )
        if moment.level is not None and moment.level not in self.levels:
            raise OptionError(
                f"--level {moment.level:g} is not in the sparsity_table: {', '.join(f'{one:g}' for one in self.levels)}"
            )

    def _iteration_of(self, moment: When) -> int:
        if moment.level is not None:
            return self.stages.begin(self.levels.index(moment.level))
        return self.stages.total - 1 if moment.iteration is None else moment.iteration

    def level_of_moment(self) -> float | None:
        return self.levels[self._stage] if self._stage >= 0 else None

    def take_masks(self, masks: Mapping[str, Array]) -> None:
        """What is pruned stays so: no level drops less of a layer than its mask did, unless the record says it."""
        super().take_masks(masks)
        gone = {key: int(keep.size - np.count_nonzero(keep)) for key, keep in masks.items() if key not in self._dense}
        self._drops = [{key: max(drop, gone.get(key, 0)) for key, drop in drops.items()} for drops in self._drops]

    def fits(self, facts: Mapping[str, Any]) -> bool:
        drops, keys = facts.get("drops"), {site.key for site in self._network.sites}
        whole = isinstance(drops, list) and len(drops) == len(self.levels)
        return whole and all(isinstance(one, Mapping) and set(one) == keys for one in drops or ())

    # -- what it goes on from

    def facts(self) -> dict[str, Any]:
        return {"stage": self._stage, "drops": self._drops, "tables": self._tables}

    def resume(self, facts: Mapping[str, Any]) -> None:
        self._stage, self._tables = int(facts["stage"]), dict(facts["tables"])
        self._drops = [{key: int(count) for key, count in drops.items()} for drops in facts["drops"]]

    def _masks_given(self, given: Any) -> dict[str, Array]:
        if not given:
            return {}
        if not isinstance(given, Mapping):
            raise OptionError(f"mask_dict is a mapping of masks by layer, not {given!r:.60}")
        keys = {name: site.key for site in self.prunable for name in (site.key, *site.names)}
        found = {}
        for name, mask in given.items():
            plain = str(name)[len("module.") :] if str(name).startswith("module.") else str(name)
            if plain not in keys:
                raise PlanError(f"mask_dict: the network has no prunable layer '{plain}'{nearest(plain, keys)}")
            found[keys[plain]] = self._mask_of(keys[plain], mask)
        return found

    def _mask_of(self, key: str, mask: Any) -> Array:
        """A mask of one layer: 0 and 1, or True and False, in the shape of the weight."""
        shape = next(site.shape for site in self.prunable if site.key == key)
        array = as_array(mask, self._names[key], "mask_dict")
        if array.shape != shape:
            raise PlanError(
                f"mask_dict: the mask of {self._names[key]} has shape {list(array.shape)}, not {list(shape)}"
            )
        if not np.isin(array, (0, 1)).all():
            raise PlanError(f"mask_dict: the mask of {self._names[key]} holds numbers other than 0 and 1")
        kept: Array = array != 0
        return kept

    def _take_given(self, stage: int) -> None:
        """The masks that were given; other layers get theirs chosen, and another level than the stage's is said."""
        given, drops = self._given, self._drops[stage]
        self._mask(drops, self._pattern, [site for site in self.prunable if site.key not in given])
        self._network.set_masks(given)
        if len(given) < len(self.prunable):
            self._remark(f"mask_dict names {len(given)} of {len(self.prunable)} layers; the others' masks are chosen")
        dropped = {key: int(mask.size - np.count_nonzero(mask)) for key, mask in given.items()}
        other = [key for key, count in dropped.items() if abs(count - drops[key]) > 1]
        if other:
            key = other[0]
            self._remark(
                f"mask_dict is of another level than {self.levels[stage]:g} in {len(other)} layers: it drops "
                f"{dropped[key]} numbers of {self._names[key]}, the level {drops[key]}"
            )

    def _level(self) -> float | None:
        return self.levels[max(self._stage, 0)] / 100 if self._stage >= 0 else None

    def _target(self) -> str | None:
        return self.device.text

    def _goal(self) -> Goal | None:
        """As much as the last level drops, which limits may make less than its name."""
        last, sites = len(self.levels) - 1, self._network.sites
        if self._stage == last:
            return None
        whole = sum(self._drops[last].values()) / sum(site.size for site in sites) if self._drops else 1.0
        begins = f"it begins at iteration {self.stages.begin(last)}"
        return Goal(f"level {self.levels[last]:g}", whole, sites, begins)

    def _end(self) -> tuple[str, int]:
        return "total_iters", self.stages.total

    def _take_init_lr(self) -> None:
        """Where no rate was said, levels begin at this one; a scheduler of torch has rates of its own."""
        network, rate = self._network, self.kwargs["init_lr"]
        if rate is None or network.is_torch or network.options.lr == rate:
            return
        if isinstance(rate, list):
            raise OptionError(f"an ONNX model trains at one rate, so init_lr is a number, not {rate!r:.40}")
        if network.options.lr is None:
            network.options = replace(network.options, lr=rate)
        else:
            self._remark(f"init_lr {rate:g} has no effect beside lr={network.options.lr:g}, at which each level begins")


def _chip_of(target: str | None) -> str:
    """The chip in `amba:cv22`; none in `amba`."""
    if target is None:
        return ""
    name, _, chip = target.partition(":")
    if name != "amba":
        raise OptionError(f"AmbaLevelPruneScheduler prunes for --target amba or amba:CHIP, not {target!r:.40}")
    targets.parse(target)
    return chip


def _demand_shape(shape: Any, name: str = "default_input_shape") -> None:
    """Sizes of the input, or of each input by its name."""
    for one in shape.values() if isinstance(shape, Mapping) else [] if shape is None else [shape]:
        if not isinstance(one, list) or not all(type(size) is int and size > 0 for size in one):
            raise OptionError(f"{name} is a list of sizes such as [1, 3, 224, 224], not {shape!r:.60}")
