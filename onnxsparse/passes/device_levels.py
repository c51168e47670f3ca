"""The sparsity levels of a device: whether a model holds one, and which it exceeds before it is trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onnxsparse.allocations.energy import HIGHEST
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.passes.pattern_check import Checked
from onnxsparse.patterns import parse as parse_pattern
from onnxsparse.planning.layers import bound_of, counts, wasted
from onnxsparse.planning.plan import Plan
from onnxsparse.planning.recorded import readable, recorded_level
from onnxsparse.planning.rule import read_sparsity
from onnxsparse.planning.stored_params import count_zeros, empty_outputs_of, weight_param
from onnxsparse.targets import Target

# -- Checking a model against the levels of a device.
#
# 1. The zeros of all layers together are within the device's tolerance of the level: the one that was named, else the
#    one that the file records, else the nearest of TABLE. A level that the limits put out of reach counts as reached
#    when every layer stands at its limit, and that is said.
# 2. Every layer has the zeros that the plan or the record promises (which `verify` has checked); excluded ones are
#    dense.
# 3. No pruned convolution is sparser than the device can use, beyond the half per cent that sparsities are rounded by;
#    or than it was before, as the file records.
# 4. No pruned layer, and no output of one, is zero altogether, but for outputs that were so before.
# What stays dense is held to neither: it may have zeros of its own.


TABLE = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
ROUNDING = 0.005
NEARLY_DENSE = 0.01
PLACES = 3


@dataclass(frozen=True)
class LevelCheck:
    """The layers after the check; remarks, and what is wrong with the network as a whole."""

    checked: tuple[Checked, ...]
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


def check_level(model: Model, checked: Sequence[Checked], target: Target, level: float | None) -> LevelCheck:
    """Check everything that `verify` itself does not know of."""
    record = readable(model)
    before = record.before if record is not None else {}
    known = [_layer(one, target, before) if counts(one.expected.weight) else one for one in checked]
    layers = [one for one in known if counts(one.expected.weight)]
    notes, faults = _network(layers, target, level if level is not None else _recorded(model))
    return LevelCheck(tuple(known), tuple(notes), tuple(faults))


def _recorded(model: Model) -> float | None:
    try:
        return read_sparsity(recorded_level(model) or None)
    except OptionError:
        return None


def _layer(one: Checked, target: Target, before: Mapping[str, tuple[int, int]]) -> Checked:
    weight = one.expected.weight
    zeros = one.zeros if one.zeros is not None else count_zeros(weight) or 0
    bound = bound_of(weight, target)
    found = replace(one, zeros=zeros, target_density=bound, wasted=wasted(zeros, weight.tensor.size, bound))
    if one.expected.pattern is None:
        return replace(found, fault=_dense_fault(found))
    empty, own = before.get(one.expected.name, (0, 0))
    return replace(found, fault=_density_fault(found, target, own) or _empty_fault(found, empty))


def _dense_fault(one: Checked) -> str:
    """A layer that shall stay dense is."""
    share = (one.zeros or 0) / max(one.expected.weight.tensor.size, 1)
    return f"excluded, and yet {100 * share:.1f} % zeros" if one.expected.chosen and share >= NEARLY_DENSE else ""


def _density_fault(one: Checked, target: Target, before: int) -> str:
    size, bound = one.expected.weight.tensor.size, one.target_density
    density = 1 - (one.zeros or 0) / max(size, 1)
    if bound is None or density >= bound - ROUNDING or (one.zeros or 0) <= before:
        return ""
    return f"density {density:.3f} is below the target density {bound:.3f} of {target.text}: {one.wasted} wasted zeros"


def _empty_fault(one: Checked, before: int) -> str:
    if not one.zeros:
        return ""
    if one.zeros == one.expected.weight.tensor.size:
        return "the whole layer is zero"
    empty = empty_outputs_of(weight_param(one.expected.weight))
    shown = ", ".join(map(str, empty[:PLACES])) + (" ..." if len(empty) > PLACES else "")
    return f"{len(empty)} outputs are zero altogether ({shown})" if len(empty) > before else ""


def _network(layers: Sequence[Checked], target: Target, level: float | None) -> tuple[list[str], list[str]]:
    """Remarks on the sparsity of the whole, and what is wrong with it."""
    size = sum(one.expected.weight.tensor.size for one in layers)
    share = sum(one.zeros or 0 for one in layers) / max(size, 1)
    wanted = level if level is not None else min(TABLE, key=lambda one: abs(one - share))
    said = f"network sparsity {100 * share:.2f} %, level {100 * wanted:g} %"
    assert target.tolerance is not None
    if abs(share - wanted) <= target.tolerance:
        return [said], []
    if share < wanted and all(_at_its_limit(one) for one in layers):
        return [f"{said}: out of reach of {target.text}, every layer stands at its limit"], []
    return [], [f"{said}: more than {100 * target.tolerance:g} % apart"]


def _at_its_limit(one: Checked) -> bool:
    """Whether no whole per cent more may go."""
    if one.expected.pattern is None:
        return True
    weight = one.expected.weight
    size, shape4 = weight.tensor.size, weight.uses[0].shape4
    caps = [HIGHEST / 100, parse_pattern("alive").drop_count(shape4, 1.0) / max(size, 1)]
    caps += [1 - one.target_density] if one.target_density is not None else []
    limit = max(0, math.floor(100 * min(caps) + 1e-9))
    return (one.zeros or 0) >= math.floor(limit / 100 * size + 0.5)


# -- Levels that a model has passed before they are trained: zeros of its own are more than the level asks for.


@dataclass(frozen=True)
class Exceeded:
    """What the network comes to in place of the level, as a share, and the words for that."""

    share: float
    text: str


def exceeded(plan: Plan, drops: Mapping[str, int], level: float) -> Exceeded | None:
    """Whether a level, in per cent, is passed by the zeros of a dense model's plan; `drops` are those of the level."""
    target = plan.rule.target
    layers = [row for row in plan.rows if counts(row.weight)]
    size = max(sum(row.weight.tensor.size for row in layers), 1)
    zeros = {row.name: count_zeros(row.weight) or 0 for row in layers}
    own = sum(zeros.values()) / size
    share = sum(max(zero, drops.get(name, 0)) for name, zero in zeros.items()) / size
    if target is None or target.tolerance is None or share - level / 100 <= target.tolerance or not own:
        return None
    if own > level / 100:
        return Exceeded(share, f"level {level:g} is passed already: the model has {100 * own:.2f} % zeros")
    together = f"{100 * share:.2f} % with the {100 * own:.2f} % that the model has"
    return Exceeded(share, f"level {level:g} is passed by its zeros: {together}")
