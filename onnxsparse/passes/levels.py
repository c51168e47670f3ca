"""Holding a model to the levels of a device.

1. The zeros of all layers together are within the device's tolerance of the level: the one that was named, else the one
   that the file records, else the nearest of TABLE. A level that the limits put out of reach counts as reached when
   every layer stands at its limit, and that is said.
2. Every layer has the zeros that the plan or the record promises (which `verify` has checked); excluded ones are dense.
3. No pruned convolution is sparser than the device can use, beyond the half per cent that sparsities are rounded by;
   or than it was before, as the file records.
4. No pruned layer, and no output of one, is zero altogether, but for outputs that were so before.
What stays dense is held to neither: it may have zeros of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from onnxsparse.allocations.energy import HIGHEST
from onnxsparse.errors import OptionError
from onnxsparse.graph.convolution import convolution_of
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Weight
from onnxsparse.passes.inspect import count_zeros
from onnxsparse.passes.layers import counts
from onnxsparse.passes.matrices import Matrix
from onnxsparse.passes.recorded import readable, recorded_level
from onnxsparse.passes.rule import read_sparsity
from onnxsparse.passes.verify import Checked
from onnxsparse.patterns import parse as parse_pattern
from onnxsparse.patterns.unstructured import empty_outputs
from onnxsparse.targets import Target

TABLE = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
ROUNDING = 0.005
NEARLY_DENSE = 0.01
PLACES = 3


@dataclass(frozen=True)
class Held:
    """The layers after the check; remarks, and what is wrong with the network as a whole."""

    checked: tuple[Checked, ...]
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


def hold(model: Model, checked: Sequence[Checked], target: Target, level: float | None) -> Held:
    """Check everything that `verify` itself does not know of."""
    record = readable(model)
    before = record.before if record is not None else {}
    known = [_layer(one, target, before) if counts(one.expected.weight) else one for one in checked]
    layers = [one for one in known if counts(one.expected.weight)]
    notes, faults = _network(layers, target, level if level is not None else _recorded(model))
    return Held(tuple(known), tuple(notes), tuple(faults))


def _recorded(model: Model) -> float | None:
    try:
        return read_sparsity(recorded_level(model) or None)
    except OptionError:
        return None


def bound_of(weight: Weight, target: Target | None) -> float | None:
    """The density below which zeros of a weight gain nothing."""
    layer = convolution_of(weight.uses[0]) if target is not None and weight.uses else None
    return target.target_density(layer) if target is not None and layer is not None else None


def wasted(zeros: int, size: int, bound: float | None) -> int | None:
    """Zeros beyond what the device can use."""
    return None if bound is None else max(0, zeros - math.floor((1 - bound) * size + 0.5))


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
    empty = empty_outputs_of(Matrix(one.expected.name, one.expected.weight, one.expected.weight.uses[0]))
    shown = ", ".join(map(str, empty[:PLACES])) + (" ..." if len(empty) > PLACES else "")
    return f"{len(empty)} outputs are zero altogether ({shown})" if len(empty) > before else ""


def empty_outputs_of(matrix: Matrix) -> list[int]:
    """The outputs of a weight, through all groups, that have no number but zero; masks in the graph count."""
    zero = matrix.whole().is_zero()
    for mask in matrix.use.masks:
        zero = zero | matrix.use.matrix(~mask.stored())
    return [group * zero.shape[1] + out for group, out in empty_outputs(np.asarray(zero))]


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
