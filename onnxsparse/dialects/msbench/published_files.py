"""MSBench's own files of an analysis and of a level: tables as text, and checkpoints of torch.

1. `dict_prun_table.txt` is the text of a mapping {layer: [rate at every step of the search]}; `desrie_prun_table.txt`
   has seven lines, of which the last three are a list each, with an entry for every level: the step of the search, the
   sparsity of the network, the energy. A layer's rate at a level is the one at that step.
   `hw_aware_sparsity_table_<chip>.txt` is {layer: [the highest rate that the chip can use]}.
2. They are read by patterns of text, up to a size: nothing in them is evaluated. Numbers may be written as NumPy's.
3. Checkpoints, `global_sparse_rate_0.3.pth.tar`, hold model, prune_step, sparse_matrix (the mapping) and
   desire_index_table (the steps); the masks are the zeros of the model.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxsparse.dialects.msbench.configuration import LARGEST
from onnxsparse.engines.torch import library
from onnxsparse.errors import PlanError
from onnxsparse.files import make_folder, write_text

DICT, DESIRED, CHIP, REPORT = (
    "dict_prun_table.txt",
    "desrie_prun_table.txt",
    "hw_aware_sparsity_table_{}.txt",
    "pruner_report.csv",
)
SUFFIX = ".pth.tar"
SEARCHED = "search table, index and network_sparsification"
WANTED = "desire table, index, network sparsification and network energy"
_ENTRY = re.compile(r"\s*(?:'([^'\n]*)'|\"([^\"\n]*)\")\s*:\s*\[([^\[\]]*)\]\s*(,|$)")
_NUMPY = re.compile(r"\b(?:np|numpy)\.(?:float|int)\d*\(([^()]*)\)")
_GLOBAL = re.compile(r"\bGLOBAL (\S+)")
"""What a checkpoint names beside numbers, in torch's message."""
_WAY = "remove the file, or set do_sparse_analysis to True"


@dataclass(frozen=True)
class Tables:
    """The rates of layers at the steps of a search, the step of each level, and what the chip can use of each layer."""

    rates: Mapping[str, Sequence[float]]
    steps: Sequence[int]
    caps: Mapping[str, float]
    path: str

    def at(self, level: int) -> dict[str, float]:
        """The rates of all layers at a level, by its place."""
        step = self.steps[level]
        return {name: min(found[step], self.caps.get(name, 1.0)) for name, found in self.rates.items()}


def are_there(folder: str, chip: str) -> bool:
    """Whether MSBench's analysis is in a folder."""
    names = [DICT, DESIRED, *([CHIP.format(chip)] if chip else [])]
    return all(os.path.isfile(os.path.join(folder, name)) for name in names)


def read(folder: str, chip: str, levels: int) -> Tables:
    """The analysis in a folder, for so many levels."""
    path = os.path.join(folder, DICT)
    caps = os.path.join(folder, CHIP.format(chip)) if chip else ""
    highest = {name: found[0] for name, found in _mapping(caps).items()} if caps else {}
    return checked(Tables(_mapping(path), _steps(os.path.join(folder, DESIRED)), highest, path), levels)


def checked(tables: Tables, levels: int) -> Tables:
    """The same where all levels are in it, and rates are rates."""
    if len(tables.steps) != levels:
        raise PlanError(f"{tables.path}: it is of {len(tables.steps)} levels, and sparsity_table has {levels}; {_WAY}")
    for name, rates in [*tables.rates.items(), *((name, [cap]) for name, cap in tables.caps.items())]:
        wrong = next((rate for rate in rates if not 0 <= rate <= 1), None)
        if wrong is not None:
            raise PlanError(f"{tables.path}: '{name}' has the rate {wrong:g}, which is none from 0 to 1; {_WAY}")
    short = next((name for name, rates in tables.rates.items() if len(rates) <= max(tables.steps)), None)
    if short is not None or min(tables.steps) < 0:
        raise PlanError(
            f"{tables.path}: '{short or next(iter(tables.rates), '')}' has no rate at one of the steps "
            f"{', '.join(map(str, tables.steps))} that its levels name; {_WAY}"
        )
    return tables


def _text(path: str) -> str:
    try:
        if os.path.getsize(path) > LARGEST:
            raise PlanError(f"{path} is larger than {LARGEST >> 20} MB, more than any analysis is")
        with open(path, encoding="utf-8") as file:
            return _NUMPY.sub(r"\1", file.read())
    except OSError as error:
        raise PlanError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{path} is not a text in UTF-8; {_WAY}") from error


def _mapping(path: str) -> dict[str, list[float]]:
    """{'layer': [numbers]}, as text."""
    text = _text(path).strip()
    inside, at = text[1:-1].strip(), 0
    found: dict[str, list[float]] = {}
    while text[:1] == "{" and text[-1:] == "}" and at < len(inside):
        entry = _ENTRY.match(inside, at)
        if entry is None:
            break
        name, at = entry[1] if entry[1] is not None else entry[2], entry.end()
        if name in found:
            raise PlanError(f"{path}: the layer '{name}' is there twice; {_WAY}")
        found[name] = _numbers(entry[3], path)
    if not found or at < len(inside) or not all(found.values()):
        raise PlanError(f"{path} is no table of MSBench, which is the text of a mapping of layers to lists; {_WAY}")
    return found


def _steps(path: str) -> list[int]:
    lines = _text(path).splitlines()
    lists = [re.fullmatch(r"\s*\[([^\[\]]*)\]\s*", line) for line in lines[4:7]]
    steps = _numbers(lists[0][1], path) if len(lists) == 3 and lists[0] else []
    if not steps or not all(lists) or any(step != int(step) for step in steps):
        raise PlanError(f"{path} is no table of MSBench: its fifth line is the list of the levels' steps; {_WAY}")
    return [int(step) for step in steps]


def _numbers(text: str, path: str) -> list[float]:
    parts = [part.strip() for part in text.split(",")]
    try:
        found = [float(part) for part in (parts if parts[-1] else parts[:-1])]
    except ValueError:
        found = [math.nan]
    if not all(map(math.isfinite, found)):
        raise PlanError(f"{path}: a list of numbers is expected, not [{text.strip()[:40]}]; {_WAY}")
    return found


def write(
    folder: str, rates: Mapping[str, Sequence[float]], reached: Sequence[float], caps: Mapping[str, float], chip: str
) -> None:
    """The same files, with a step of the search for every level, and no energies, which nobody reads again."""
    make_folder(folder)
    steps = list(range(len(reached)))
    lines = [SEARCHED, steps, list(reached), WANTED, steps, list(reached), [0.0] * len(steps)]
    write_text(os.path.join(folder, DICT), str({name: list(one) for name, one in rates.items()}), True)
    write_text(os.path.join(folder, DESIRED), "".join(f"{line}\n" for line in lines), True)
    if chip:
        write_text(os.path.join(folder, CHIP.format(chip)), str({name: [cap] for name, cap in caps.items()}), True)


# -- checkpoints


def is_checkpoint(given: Any) -> bool:
    return isinstance(given, Mapping) and isinstance(given.get("model"), Mapping) and "prune_step" in given


def load_numbers(path: str) -> Any:
    """What is in a checkpoint of torch; nothing in it is run."""
    try:
        return library.torch().load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise PlanError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # whatever torch raises for what is no checkpoint, or more than numbers
        if type(error).__module__.startswith("onnxsparse"):
            raise
        named = _GLOBAL.search(str(error))
        why = f"it holds a {named[1]:.80}; save its state dict alone" if named else "torch.save did not write it so"
        raise PlanError(f"{path} is no checkpoint of numbers: {why}") from error


def load_checkpoint(path: str) -> Mapping[str, Any]:
    """A checkpoint of a level."""
    try:
        found = load_numbers(path)
    except PlanError as error:
        raise PlanError(f"mask_dict: {error}") from error
    if not is_checkpoint(found):
        raise PlanError(f"mask_dict: {path} is no checkpoint of a level, which holds model and prune_step")
    checkpoint: Mapping[str, Any] = found
    return checkpoint


def masks_of(checkpoint: Mapping[str, Any], layers: Sequence[str]) -> dict[str, Any]:
    """What is kept of the layers of a network: all that is not zero in the model of a checkpoint."""
    held = checkpoint["model"]
    state = {name[len("module.") :] if str(name).startswith("module.") else name: one for name, one in held.items()}
    found = {name: state[f"{name}.weight"] != 0 for name in layers if f"{name}.weight" in state}
    if not found:
        raise PlanError(
            f"mask_dict: the model of the checkpoint has no layer of this network, such as '{next(iter(layers), '')}'"
        )
    return found


def tables_of(checkpoint: Mapping[str, Any], levels: int) -> Tables | None:
    """The tables in a checkpoint; None in one that has none."""
    matrix, steps = checkpoint.get("sparse_matrix"), checkpoint.get("desire_index_table")
    if matrix is None or steps is None:
        return None
    try:
        rates = {str(name): [float(rate) for rate in row] for name, row in matrix.items()}
        return checked(Tables(rates, [int(step) for step in steps], {}, "mask_dict"), levels)
    except (TypeError, ValueError, AttributeError) as error:
        raise PlanError("mask_dict: sparse_matrix is a mapping of layers to lists of rates") from error
