"""Levels of Ambarella's chips, one stage of the training for each.

1. Before the training, each layer's sparsity at each level is found (the allocation `energy`, in the pattern `alive`),
   or read from `sparse_analysis.json` in `output_dir`, where that is there and no new analysis is wanted.
2. At the first iteration of a stage the masks of its level are chosen and the learning rate begins again; at its last
   one the zeros are folded into the weights and `global_sparse_rate_<level>` is written into `save_dir`.
3. A loop that begins in the middle gets the masks of its stage, from `mask_dict` where that is given.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxsparse import patterns, targets
from onnxsparse.allocations.energy import Energy
from onnxsparse.dialects.msbench.configuration import Configuration, count, load, table
from onnxsparse.dialects.msbench.schedulers.scheduler import BaseScheduler
from onnxsparse.errors import OptionError, PlanError, nearest
from onnxsparse.graph.output import write_text
from onnxsparse.loops.statistics import as_csv, statistics
from onnxsparse.schedules.stages import Stages
from onnxsparse.values import Array

ANALYSIS, REPORT = "sparse_analysis.json", "sparse_report"
VERSION = 1


class AmbaLevelPruneScheduler(BaseScheduler):
    """A level after the other, each trained for a while."""

    level_pattern = "alive"

    def _configure(self, config: Configuration) -> None:
        super()._configure(config)
        kwargs = self.kwargs
        if not self.generator.masks or self.generator.pattern != "unstructured":
            raise OptionError("AmbaLevelPruneScheduler needs NormalMaskGenerator and FakeSparse, of single numbers")
        self.levels = table(kwargs["sparsity_table"])
        self.stages = Stages(count(kwargs["total_iters"], "total_iters", 1), len(self.levels))
        if kwargs["prun_algo"] not in (0, 1):
            raise OptionError(f"prun_algo is 0 (uniform) or 1 (by energy), not {kwargs['prun_algo']!r:.40}")
        self.chip = str(kwargs["prun_hw_aware"] or "")
        self.device = targets.parse(f"amba:{self.chip}" if self.chip else "amba")
        self.allocation = Energy(
            float(kwargs["prun_algo_tuning"]),
            float(kwargs["prune_tolerance_max"]),
            float(kwargs["prune_tolerance_min"]),
            bool(kwargs["dw_no_prune"]),
            kwargs["prun_algo"] == 0,
        )
        self.verbosity = max(self.verbosity, 2 if kwargs["verbose"] else 0)
        self._pattern, self._stage = patterns.parse("alive"), -1

    def _begin(self) -> None:
        network = self._network
        network.use({site.key: "mask" for site in self.prunable})
        self._measured = network.measure(self.kwargs["default_input_shape"], self.kwargs["default_input_custom"])
        self._names = {site.key: site.name for site in network.sites}
        self._drops = self._read_analysis() or self._analysed()
        self._tables: dict[str, list[dict[str, Any]]] = {}
        self._given = self._masks_given(self.kwargs["mask_dict"])
        if self._given:
            network.set_masks(self._given)
        if self.kwargs["lr_scheduler"] is not None:
            self.set_lr_scheduler(self.kwargs["lr_scheduler"])
        elif not network.is_torch and network.options.lr_schedule == "constant":
            self.set_lr_scheduler("cosine")

    # -- which layer at which level

    def _analysed(self) -> list[dict[str, int]]:
        dense = self._dense
        found = self._network.candidates(self._measured, self.device, lambda site: site.key in dense)
        made = self.allocation.allocate_levels(found, [level / 100 for level in self.levels], self._pattern)
        for level, drops in zip(self.levels, made):
            self._look_at(level, drops)
        self._write_analysis(made)
        return [dict(drops) for drops in made]

    def _look_at(self, level: float, drops: Mapping[str, int]) -> None:
        """Say how near the network comes to a level."""
        size = sum(site.size for site in self._network.sites)
        reached = 100 * sum(drops.values()) / max(size, 1)
        self._say(1, f"level {level:g}: network sparsity {reached:.2f} %")
        for site in self._network.sites:
            self._say(2, f"  {site.name}: {100 * drops[site.key] / max(site.size, 1):.0f} %")
        if abs(reached - level) > 100 * float(self.kwargs["sparse_rate_tolerance"]):
            self._note(f"level {level:g} is out of reach with these limits and exclusions: {reached:.2f} % at most")

    def _read_analysis(self) -> list[dict[str, int]] | None:
        folder = self.kwargs["output_dir"]
        path = os.path.join(str(folder), ANALYSIS) if folder else ""
        if not folder or self.kwargs["do_sparse_analysis"] or not os.path.exists(path):
            return None
        found = load(path)
        tables = found.get("levels") if isinstance(found, Mapping) else None
        if not isinstance(tables, Mapping):
            raise PlanError(f"{path} is no analysis of ours; remove it, or set do_sparse_analysis to True")
        missing = next((level for level in self.levels if f"{level:g}" not in tables), None)
        if missing is not None:
            raise PlanError(f"{path} has no level {missing:g}; set do_sparse_analysis to True to make it anew")
        return [self._drops_of(tables[f"{level:g}"], path) for level in self.levels]

    def _drops_of(self, shares: Mapping[str, Any], path: str) -> dict[str, int]:
        keys = {name: key for key, name in self._names.items()}
        for name in shares:
            if name not in keys:
                raise PlanError(f"{path}: the network has no layer '{name}'{nearest(str(name), keys)}")
        given = {keys[name]: float(share) for name, share in shares.items()}
        shapes = {site.key: site.shape4 for site in self._network.sites}
        return {key: self._pattern.drop_count(shape, given.get(key, 0.0) / 100) for key, shape in shapes.items()}

    def _write_analysis(self, made: Any) -> None:
        folder = self.kwargs["output_dir"]
        if not folder:
            return
        sizes = {site.key: site.size for site in self._network.sites}
        shares = [
            {self._names[key]: round(100 * drop / max(sizes[key], 1)) for key, drop in drops.items()} for drops in made
        ]
        levels = {f"{level:g}": row for level, row in zip(self.levels, shares)}
        os.makedirs(str(folder), exist_ok=True)
        text = json.dumps({"onnxsparse_analysis": VERSION, "device": self.device.text, "levels": levels}, indent=2)
        write_text(os.path.join(str(folder), ANALYSIS), text + "\n", True)

    # -- stages

    def _prune(self, iteration: int) -> None:
        stage = self.stages.at(iteration)
        if self.stages.begins(iteration) or stage != self._stage:
            self._enter(stage, self.stages.begins(iteration))
        if self.stages.ends(iteration):
            self._leave(stage, iteration)

    def _enter(self, stage: int, first: bool) -> None:
        resumed, self._stage = self._stage < 0 and not first, stage
        self._network.pruned = self.levels[-1] / 100
        if not (resumed and self._given):
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
        rows = self._tables[f"{level:g}"] = statistics(network, self._measured, self.device)
        self._write_report()
        if self.kwargs["save_dir"]:
            os.makedirs(str(self.kwargs["save_dir"]), exist_ok=True)
            path = os.path.join(str(self.kwargs["save_dir"]), f"global_sparse_rate_{level:g}")
            facts = {"prune_step": stage, "iteration": iteration, "level": level, "layers": rows}
            self._say(1, f"written: {network.save(path, facts)}")

    def _write_report(self) -> None:
        folder = self.kwargs["output_dir"]
        if folder:
            path = os.path.join(str(folder), REPORT)
            write_text(f"{path}.json", json.dumps(self._tables, indent=2) + "\n", True)
            write_text(f"{path}.csv", as_csv(self._tables), True)

    def statistics(self) -> list[dict[str, Any]]:
        """Numbers, non-zero ones and MACs of every layer as it is now, and of all."""
        return statistics(self._demand("statistics"), self._measured, self.device)

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
            found[keys[plain]] = np.asarray(mask.cpu() if hasattr(mask, "cpu") else mask) != 0
        shapes = {site.key: site.shape for site in self.prunable}
        for key, mask in found.items():
            if mask.shape != shapes[key]:
                raise PlanError(f"mask_dict: the mask of {self._names[key]} has shape {list(mask.shape)}")
        return found

    def _level(self) -> float | None:
        return self.levels[max(self._stage, 0)] / 100 if self._stage >= 0 else None

    def _target(self) -> str | None:
        return self.device.text
