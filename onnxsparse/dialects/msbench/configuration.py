"""Reading MSBench's configurations: from a mapping, a YAML or JSON file, or a preset, checked word by word.

1. A configuration is a mapping with `scheduler` or `mask_generator`; or a larger one that has such a mapping under
   `sparsity`.
2. A part is {type, kwargs}; without a type the scheduler is the plain one, and without kwargs there are none.
3. The text None is no value: YAML has another word for it, and published files write it.
4. What is not known is an error that names the nearest known words.
"""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Union

import numpy as np

from onnxsparse.errors import OptionError, nearest
from onnxsparse.planning.plain_yaml import WrittenTwiceError, read_yaml

Source = Union[Mapping[str, Any], str, "os.PathLike[str]"]
PRESETS = ("amba", "ampere", "str", "probmask")
DEEPEST, MOST, LARGEST = 30, 100_000, 1 << 22
_FILES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Part:
    """One of the three parts."""

    type: str = ""
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.type)


@dataclass(frozen=True)
class Configuration:
    """A checked configuration."""

    scheduler: Part
    mask_generator: Part = Part()
    fake_sparse: Part = Part()
    leaf_module: tuple[str, ...] = ()
    fuse_bn: bool = False
    target_sparsity: float | None = None
    uniform: bool = True


def preset(name: str) -> dict[str, Any]:
    """The recommended configuration of that name, to be filled in."""
    if name not in PRESETS:
        raise OptionError(f"no preset is called {name!r:.60}{nearest(name, PRESETS)} (known: {', '.join(PRESETS)})")
    text = resources.files(__package__).joinpath("presets", f"{name}.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = read_yaml(text)
    return found


def read(source: Source) -> Configuration:
    """The configuration that a mapping, a file or the name of a preset holds."""
    found = source if isinstance(source, Mapping) else _from_text(source)
    return checked(plain(section(found)))


def load(path: str) -> Any:
    """What a YAML or JSON file says; anchors and merge keys of YAML are resolved."""
    try:
        if os.path.getsize(path) > LARGEST:
            raise OptionError(f"{path} is larger than {LARGEST >> 20} MB, more than any configuration is")
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"{path} is not a text in UTF-8") from error
    try:
        return read_json(text) if path.lower().endswith(".json") else read_yaml(text)
    except WrittenTwiceError as error:
        raise OptionError(f"{path}: {error}; leave one out") from error
    except Exception as error:  # tags whose values do not fit them raise whatever their constructor raises
        raise OptionError(f"{path} is not valid: {' '.join(str(error).split())[:200]}") from error


def _from_text(source: Any) -> Any:
    if not isinstance(source, (str, os.PathLike)):
        raise OptionError(f"a configuration is a mapping, a file or a preset, not {source!r:.60}")
    name = os.fspath(source)
    if isinstance(source, str) and not name.lower().endswith(_FILES) and not os.path.exists(name):
        return preset(name)
    return load(name)


def plain(value: Any) -> Any:
    """Plain mappings and lists, of a size that one can look at."""
    return _Plain()(value)


class _Plain:
    """Plain mappings and lists, with None for the text of that name; anchors can make a small file a very large one.

    Numbers of NumPy are those of Python, and so are arrays of them, but for those that are masks or inputs.
    """

    def __init__(self) -> None:
        self._left = MOST

    def __call__(self, value: Any, depth: int = 0, arrays: bool = False) -> Any:
        self._left -= 1
        if depth > DEEPEST or self._left < 0:
            raise OptionError("the configuration is nested too deep, or holds too much")
        if isinstance(value, Mapping):
            return {str(key): self(one, depth + 1, arrays or key in ARRAYS) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self(one, depth + 1, arrays) for one in value]
        if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not arrays):
            return value.tolist()
        return None if isinstance(value, str) and value.strip() == "None" else value


def section(found: Any) -> Mapping[str, Any]:
    """The configuration itself, or the one inside a larger one."""
    if not isinstance(found, Mapping):
        raise OptionError(f"a configuration is a mapping with {', '.join(PARTS)}, not {found!r:.60}")
    inner = found.get("sparsity")
    _demand_training("the configuration", found)
    for name in ("sparse", "sparsity"):
        _demand_training(f"section `{name}`", found.get(name))
    if isinstance(inner, Mapping) and any(part in inner for part in PARTS):
        return inner
    if not any(part in found for part in PARTS):
        hint = _meant(found)
        raise OptionError(f"the configuration has none of {', '.join(PARTS)}{hint}")
    return found


def _demand_training(called: str, found: Any) -> None:
    """Post-training reconstruction has the same three parts, and keys of its own."""
    said = [key for key in RECONSTRUCTION if isinstance(found, Mapping) and key in found]
    if said:
        raise OptionError(
            f"{called} is one of post-training reconstruction ({', '.join(said)}): it fits the layers of a masked "
            "network to outputs of the dense one on a few samples, without training, which nothing here does; leave "
            "these keys out to train with its mask generator, sparser and scheduler"
        )


def _meant(found: Mapping[str, Any]) -> str:
    """A misspelt section that holds a configuration, before whatever else is nearly known."""
    inside = [key for key, one in found.items() if isinstance(one, Mapping) and any(part in one for part in PARTS)]
    if inside:
        return f", and no section `sparsity`; {str(inside[0])!r:.60} has them (did you mean sparsity?)"
    return next((hint for key in found if (hint := nearest(str(key), PARTS))), "")


def checked(found: Mapping[str, Any]) -> Configuration:
    for key in found:
        if key not in KEYS:
            raise OptionError(f"the configuration has an unknown key {key!r:.60}{_hint(key, KEYS)}")
    target = _mapping(found.get("sparsity"), "sparsity")
    for key in target:
        if key not in TARGET:
            raise OptionError(f"sparsity has an unknown key {key!r:.60}{_hint(key, TARGET)}")
    generator = _typed(_part(found, "mask_generator"), "mask_generator", GENERATORS)
    own, wanted = generator.kwargs.get(OWN_TARGET), target.get("target_sparsity")
    if own is not None and wanted is not None:
        raise OptionError(f"how much goes is said twice: {OWN_TARGET} of {generator.type}, and target_sparsity")
    wanted = own if wanted is None else wanted
    return Configuration(
        _scheduler(_part(found, "scheduler")),
        Part(generator.type, {key: value for key, value in generator.kwargs.items() if key != OWN_TARGET}),
        _typed(_part(found, "fake_sparse"), "fake_sparse", SPARSERS),
        tuple(words(_class_names(found.get("leaf_module")), "leaf_module")),
        switch(found.get("fuse_bn"), "fuse_bn"),
        None if wanted is None else share(wanted, "target_sparsity" if own is None else OWN_TARGET),
        switch(target.get("uniform"), "uniform", True),
    )


def _class_names(value: Any) -> Any:
    """The runner that this comes from has classes there in place of their names."""
    several = value if isinstance(value, (list, tuple)) else None
    return value if several is None else [one.__name__ if isinstance(one, type) else one for one in several]


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise OptionError(f"{name} is a mapping, not {value!r:.60}")
    return value


def _part(found: Mapping[str, Any], name: str) -> Part:
    entry = _mapping(found.get(name), name)
    wrong = next((key for key in entry if key not in ("type", "kwargs")), None)
    if wrong is not None:
        raise OptionError(f"{name} has an unknown key {wrong!r:.60}{_hint(wrong, ('type', 'kwargs'))}")
    return Part(str(entry.get("type") or ""), _mapping(entry.get("kwargs"), f"{name}.kwargs"))


def _typed(part: Part, name: str, types: Mapping[str, Sequence[str]]) -> Part:
    if not part.type:
        if part.kwargs:
            raise OptionError(f"{name} has kwargs but no type (known: {', '.join(types)})")
        return part
    if part.type not in types:
        raise OptionError(f"{name} does not know the type {part.type!r:.60}{_hint(part.type, types)}")
    _demand_known(part, types[part.type])
    return part


def _scheduler(part: Part) -> Part:
    kind = part.type or "BaseScheduler"
    if kind not in SCHEDULERS:
        raise OptionError(f"scheduler does not know the type {kind!r:.60}{_hint(kind, SCHEDULERS)}")
    defaults = {**SHARED, **SCHEDULERS[kind]}
    _demand_known(Part(kind, part.kwargs), list(defaults))
    given = {key: value for key, value in part.kwargs.items() if value is not None}
    for key, value in given.items():
        if isinstance(defaults.get(key), bool):
            given[key] = switch(value, key)
        elif key in NUMBERS:
            for one in value if key == INIT_LR and isinstance(value, list) else [value]:
                number(one, key)
        elif key in PATHS:
            given[key] = path_text(value, key) or None
    return Part(kind, {**defaults, **given})


def _demand_known(part: Part, names: Sequence[str]) -> None:
    for key in part.kwargs:
        if key not in names:
            raise OptionError(f"{part.type} has no argument {key!r:.60}{_hint(key, names)}")


def _hint(word: Any, names: Any) -> str:
    return nearest(str(word), names) or (f" (known: {', '.join(names)})" if names else "")


# -- values


def words(value: Any, name: str) -> list[str]:
    """Comma-separated words or a list of them, without those that are empty and would match everything."""
    if value is None:
        return []
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise OptionError(f"{name} is a text with commas, or a list of texts, not {value!r:.60}")
    found = [part.strip() for part in parts]
    return [word[len("module.") :] if word.startswith("module.") else word for word in found if word]


def switch(value: Any, name: str, default: bool = False) -> bool:
    """True or False; texts and 0 and 1 are read as what they say."""
    if value is None:
        return default
    said = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    word = str(value).strip().lower()
    if not isinstance(value, (bool, int, str)) or word not in said:
        raise OptionError(f"{name} is True or False, not {value!r:.60}")
    return said[word]


def share(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        meant = f"; {value:g} per cent is {value / 100:g}" if _is_number(value) and 1 <= value < 100 else ""
        raise OptionError(f"{name} is a share from 0 to below 1, not {value!r:.60}{meant}")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def number(value: Any, name: str) -> float:
    """Any number that is finite."""
    if not _is_number(value) or not math.isfinite(value):
        raise OptionError(f"{name} is a number, not {value!r:.60}")
    return float(value)


def path_text(value: Any, name: str) -> str:
    """The path of a file or folder; nothing where none is given."""
    if value is None:
        return ""
    if not isinstance(value, (str, os.PathLike)) or isinstance(os.fspath(value), bytes):
        raise OptionError(f"{name} is the path of a file or folder, not {value!r:.60}")
    return os.fspath(value)


def iteration_of(given: Any) -> int:
    """A whole number of Python or NumPy, or a tensor that holds one."""
    try:
        found = -1 if isinstance(given, (bool, np.bool_)) else operator.index(given)
    except TypeError:
        found = -1
    if found < 0:
        raise OptionError(f"an iteration is a whole number from 0, not {given!r:.40}")
    return found


def count(value: Any, name: str, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name} is a whole number from {least}, not {value!r:.60}")
    return value


def table(value: Any) -> tuple[float, ...]:
    """Levels in per cent: ascending, from 0 to below 100."""
    found = list(value) if isinstance(value, (list, tuple)) else []
    right = all(isinstance(one, (int, float)) and not isinstance(one, bool) and 0 <= one < 100 for one in found)
    if not found or not right or any(a >= b for a, b in zip(found, found[1:])):
        raise OptionError(
            f"sparsity_table is a list of levels that ascend, each from 0 to below 100, not {value!r:.80}"
        )
    return tuple(found)


# -- What MSBench's configurations know: the types of each part, and the keyword arguments of each type.


INIT_LR = "init_lr"
"""A number, or one for each group of the optimizer."""
NOT_PRUNED = ("no_prune_keyword", "no_prune_layer")
SWITCHES = ("mask_is_static", "weight_correction")
OWN_TARGET = "sparsity"
"""What a generator of masks may say itself: the share of every layer."""

GENERATORS: Mapping[str, tuple[str, ...]] = {
    "NormalMaskGenerator": (*SWITCHES, "structured", "func", OWN_TARGET),
    "NMMaskGenerator": SWITCHES,
    "FPGMMaskGenerator": (*SWITCHES, "structured", "func", OWN_TARGET),
    "NuclearMaskGenerator": (*SWITCHES, "structured", "func", OWN_TARGET),
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
        INIT_LR: None,
        "verbose": False,
        "msbench_names": False,
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

NUMBERS = ("prun_algo_tuning", "sparse_rate_tolerance", "prune_tolerance_max", "prune_tolerance_min", INIT_LR)
PATHS = ("output_dir", "save_dir")
ARRAYS = ("mask_dict", "default_input_custom")
"""What holds arrays that are no lists of numbers."""
SHARED: Mapping[str, Any] = {"no_prune_keyword": "", "no_prune_layer": "", "verbosity": 0}
PARTS = ("mask_generator", "fake_sparse", "scheduler")
KEYS = (*PARTS, "leaf_module", "fuse_bn", "sparsity")
RECONSTRUCTION = ("reconstruction", "cali_batchsize", "sparse_analysis", "set_sparsity", "USE_ERK")
"""What configurations of MSBench's post-training sparsity say beside the three parts."""
TARGET = ("target_sparsity", "uniform")
"""What a `sparsity` entry says inside a configuration."""


# -- YAML and JSON as plain values; what a text says twice is an error, as nobody knows which of the two is meant.


def read_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise WrittenTwiceError(f"{twice!r:.60} is there twice in one object")
    return found
