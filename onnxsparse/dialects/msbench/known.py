"""What MSBench's configurations know: the types of each part, and the keyword arguments of each type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOT_PRUNED = ("no_prune_keyword", "no_prune_layer")
SWITCHES = ("mask_is_static", "weight_correction")

GENERATORS: Mapping[str, tuple[str, ...]] = {
    "NormalMaskGenerator": (*SWITCHES, "structured", "func"),
    "NMMaskGenerator": SWITCHES,
    "FPGMMaskGenerator": (*SWITCHES, "structured", "func"),
    "NuclearMaskGenerator": (*SWITCHES, "structured", "func"),
    "ProbMaskGenerator": ("tau",),
    "STRMaskGenerator": (),
    "FCPTSMaskGenerator": (),
}
SPARSERS: Mapping[str, tuple[str, ...]] = {
    "FakeSparse": SWITCHES,
    "DefaultFakeSparse": SWITCHES,
    "ProbMaskFakeSparse": (),
    "STRFakeSparse": ("sInit_value",),
    "FCPTSFakeSparse": ("sInit_value",),
}
SCHEDULERS: Mapping[str, Mapping[str, Any]] = {
    "BaseScheduler": {},
    "STRScheduler": {},
    "AmbaLevelPruneScheduler": {
        "total_iters": 10000,
        "sparsity_table": (30, 40, 50, 60, 70, 80, 90),
        "prun_algo": 1,
        "prun_algo_tuning": 0.5,
        "prun_hw_aware": "",
        "dw_no_prune": False,
        "do_sparse_analysis": True,
        "output_dir": None,
        "save_dir": None,
        "sparse_rate_tolerance": 0.015,
        "default_input_shape": None,
        "default_input_custom": None,
        "lr_scheduler": None,
        "mask_dict": None,
        "prune_tolerance_max": 1.0,
        "prune_tolerance_min": 1.0,
        "init_lr": None,
        "verbose": False,
    },
    "AmpereScheduler": {
        "mask_calculator": "m4n2_1d",
        "verbosity": 0,
        "whitelist": None,
        "allow_recompute_mask": False,
        "allow_permutation": False,
    },
    "ADMMScheduler": {"iters_per_epoch": None, "max_iters": None, "rho": 1e-4},
    "ProbMaskPruneScheduler": {
        "prune_rate": None,
        "total_iterations": None,
        "warmup_iteration_stamps": None,
        "finetune_iteration_stamps": None,
        "start_prune_rate": 0.0,
        "seed": 0,
    },
}
"""The keyword arguments of each scheduler, with their defaults; all take NOT_PRUNED and `verbosity` beside them."""

NUMBERS = ("prun_algo_tuning", "sparse_rate_tolerance", "prune_tolerance_max", "prune_tolerance_min", "init_lr")
PATHS = ("output_dir", "save_dir")
ARRAYS = ("mask_dict", "default_input_custom")
"""What holds arrays that are no lists of numbers."""
SHARED: Mapping[str, Any] = {"no_prune_keyword": "", "no_prune_layer": "", "verbosity": 0}
PARTS = ("mask_generator", "fake_sparse", "scheduler")
KEYS = (*PARTS, "leaf_module", "fuse_bn", "sparsity")
TARGET = ("target_sparsity", "uniform")
"""What a `sparsity` entry says inside a configuration."""
