"""What stays dense by default: weights under their words, fixed mathematics, and output layers.

Weights that are fixed mathematics, such as a filter bank or a Fourier basis, are recognised by their numbers: to prune
one is to break the model. An output layer is one whose results reach a graph output without another layer in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import FunctionProto, GraphProto, NodeProto

from onnxsparse.graph.attributes import IdentityKey, text
from onnxsparse.graph.edit import bodies
from onnxsparse.graph.model import Model
from onnxsparse.graph.operators import REFUSED, slots_of
from onnxsparse.graph.storage import FLOAT_KINDS
from onnxsparse.graph.weights import Use, Weight
from onnxsparse.math.values import Array, Reading, Values
from onnxsparse.planning.stored_params import WeightParam

SMALL = 256
SAMPLE = 1 << 13
STEM_CHANNELS = 4
EMBEDDING = "Embedding"
DEPTHWISE = "depthwise"


def words_of(param: WeightParam) -> dict[str, str]:
    """Every word that holds a weight back, with what was seen."""
    weight = param.weight
    found = {
        "basis": _basis(param),
        "tied-embedding": _tied(weight),
        "embedding": _embedding(weight),
        "stem": next((_stem(use) for use in weight.uses if _stem(use)), ""),
        DEPTHWISE: _depthwise(weight),
        "small": f"{weight.tensor.size} elements" if weight.tensor.size < SMALL else "",
    }
    return {word: seen for word, seen in found.items() if seen}


def _basis(param: WeightParam) -> str:
    if param.tensor.kind not in FLOAT_KINDS or param.use.family in (EMBEDDING, "Recurrent"):
        return ""
    if not _may_be_fixed(param):
        return ""
    name = recognise(param.whole().real())
    return f"looks like a {name}" if name else ""


def _may_be_fixed(param: WeightParam) -> bool:
    """Rule out nearly every trained weight by its first numbers: reading all of them would cost more than pruning."""
    _, _, inputs, taps = param.shape4
    if inputs == 1 and taps > 1:
        return True
    length = param.shape[-1]
    count = min(param.tensor.size, max(SAMPLE, length))
    sample = Values(param.tensor.read(0, count - count % length), Reading(param.tensor.kind)).real()
    return sample.size > 0 and may_be_fixed(sample.reshape(-1, length))


def _embedding(weight: Weight) -> str:
    return "a lookup table" if weight.uses and all(use.family == EMBEDDING for use in weight.uses) else ""


def _tied(weight: Weight) -> str:
    families = {use.family == EMBEDDING for use in weight.uses}
    return "a lookup table that another layer multiplies with" if families == {True, False} else ""


def _stem(use: Use) -> str:
    group, _, inputs, _ = use.shape4
    if use.family != "Conv" or group != 1 or inputs >= STEM_CHANNELS:
        return ""
    return f"a convolution with {inputs} input channel{'s' if inputs > 1 else ''}"


def _depthwise(weight: Weight) -> str:
    """Under every pattern: a network whose depthwise layers lost 90 % was tuned to 3.4 points less than without."""
    deep = any(u.family in ("Conv", "ConvTranspose") and u.shape4[0] > 1 and u.shape4[2] == 1 for u in weight.uses)
    return "a depthwise convolution" if deep else ""


# -- Recognising weights that are fixed mathematics, not learned: to prune one is to break the model.
#
# Each test looks for a property that trained weights do not have by accident:
#
#     selection       every row has one non-zero, and the non-zeros are equal (identity, one-hot, channel shuffle)
#     counting        a row 0, 1, 2, ... (the projection of a distribution onto its mean)
#     interpolation   non-negative rows of few non-zeros that add up to the same number (resize matrices)
#     kernel          channel by channel the same separable, symmetric, non-negative kernel (blur, bilinear)
#     filterbank      non-negative rows, each one unimodal bump on a contiguous support (mel, triangular)
#     transform       rows of cosines and sines under a window (DFT, STFT, CQT)
#     linear phase    a long symmetric one-channel filter (low-pass)


LARGEST = 1 << 24
LONG = 16


@np.errstate(invalid="ignore")  # a signalling NaN warns when it is cast or compared
def recognise(matrix: Array) -> str:
    """Name the fixed matrix that a weight (group, out, in, tap) is, or return an empty string."""
    if matrix.size < 4 or matrix.size > LARGEST:
        return ""
    data = np.asarray(matrix, np.float64)
    if not np.isfinite(data).all() or not data.any():
        return ""
    rows = data.transpose(0, 1, 3, 2).reshape(-1, data.shape[2]) if data.shape[3] == 1 else _signals(data)
    for test, name in _TESTS:
        if test(data, rows):
            return name
    return ""


@np.errstate(invalid="ignore")
def may_be_fixed(rows: Array) -> bool:
    """A cheap look at the first rows in memory: fixed matrices have one sign, or their rows oscillate."""
    if rows.min() >= 0 or rows.max() <= 0:
        return True
    return _some_oscillate(rows) or _some_oscillate(rows.T)


def _some_oscillate(rows: Array) -> bool:
    some = rows[:: max(1, len(rows) // 8)][:8]
    return rows.shape[1] >= 2 * LONG and _narrow(some.astype(np.float64), 0.8)


def _signals(data: Array) -> Array:
    """A convolution's filters as rows: taps are time when there is one input channel."""
    group, out, inputs, taps = data.shape
    return data.reshape(group * out, inputs * taps)


def _selection(_: Array, rows: Array) -> bool:
    if min(rows.shape) < 2:
        return False
    nonzero = rows != 0
    values = rows[nonzero]
    lone = (nonzero.sum(axis=1) == 1).all() or ((nonzero.sum(axis=0) == 1).all() and (nonzero.sum(axis=1) > 0).all())
    return bool(lone and np.ptp(values) == 0)


def _counting(data: Array, _: Array) -> bool:
    flat = data.reshape(-1)
    return data.shape[1] == data.shape[3] == 1 and flat.size >= 4 and bool((flat == np.arange(flat.size)).all())


def _interpolation(data: Array, rows: Array) -> bool:
    return data.shape[3] == 1 and (_interpolates(rows) or _interpolates(rows.T))


def _interpolates(rows: Array) -> bool:
    if min(rows.shape) < 4 or (rows < 0).any():
        return False
    sums, counts = rows.sum(axis=1), (rows != 0).sum(axis=1)
    sparse = counts.max() <= max(4, rows.shape[1] // 4) and counts.min() >= 1
    return bool(sparse and np.ptp(sums) <= 1e-4 * sums.max())


def _kernel(data: Array, _: Array) -> bool:
    side = round(data.shape[3] ** 0.5)
    if data.shape[3] < 4 or side * side != data.shape[3] or (data < 0).any():
        return False
    channelwise = data.any(axis=3).sum(axis=2).max() == 1
    if not channelwise:
        return False
    kernels = data.reshape(-1, side, side)
    used = kernels[kernels.reshape(len(kernels), -1).any(axis=1)]
    if len(used) < 2 or np.count_nonzero(used[0]) < side:
        return False
    same = np.abs(used - used[0]).max() <= 1e-6 * used[0].max()
    symmetric = np.allclose(used[0], used[0][::-1, ::-1], rtol=1e-6) and np.allclose(used[0], used[0].T, rtol=1e-6)
    return bool(same and symmetric and np.linalg.matrix_rank(used[0], tol=1e-6 * used[0].max()) == 1)


def _filterbank(data: Array, rows: Array) -> bool:
    return data.shape[3] == 1 and (_bumps(rows) or _bumps(rows.T))


def _bumps(rows: Array) -> bool:
    if rows.shape[0] < 8 or rows.shape[1] < LONG or (rows < 0).any():
        return False
    used = rows[rows.any(axis=1)]
    if len(used) < 8 or (used != 0).mean() > 0.5:
        return False
    rises = np.diff(np.concatenate([np.zeros((len(used), 1)), used, np.zeros((len(used), 1))], axis=1), axis=1)
    signs = np.sign(np.where(np.abs(rises) <= 1e-9 * used.max(), 0, rises))
    return all(_unimodal(row[row != 0]) for row in signs)


def _unimodal(signs: Array) -> bool:
    return int((np.diff(signs) != 0).sum()) <= 1


def _transform(data: Array, rows: Array) -> bool:
    if data.shape[2] != 1 and data.shape[3] != 1:
        return False
    return _oscillates(rows) or (data.shape[3] == 1 and _oscillates(rows.T))


def _oscillates(rows: Array) -> bool:
    if rows.shape[0] < 8 or rows.shape[1] < 2 * LONG:
        return False
    used = rows[np.abs(rows).max(axis=1) > 1e-6 * np.abs(rows).max()]
    return len(used) >= 0.75 * len(rows) and _narrow(used, 0.92)


def _narrow(rows: Array, share: float) -> bool:
    """Every row that is not empty has nearly all its energy in one narrow band, and the bands differ."""
    used = rows[rows.any(axis=1)]
    if not len(used):
        return False
    power = np.abs(np.fft.rfft(used, n=4 * rows.shape[1], axis=1)) ** 2
    power /= power.sum(axis=1, keepdims=True)
    peaks = power.argmax(axis=1)
    shares = [power[row, max(0, peak - 12) : peak + 13].sum() for row, peak in enumerate(peaks)]
    return bool(min(shares) > share and len(np.unique(peaks)) >= len(used) // 4)


def _linear_phase(data: Array, rows: Array) -> bool:
    if data.shape[0] * data.shape[1] > 4 or data.shape[2] != 1 or rows.shape[1] < LONG:
        return False
    return bool(np.abs(rows - rows[:, ::-1]).max() <= 1e-5 * np.abs(rows).max())


_TESTS: tuple[tuple[Callable[[Array, Array], bool], str], ...] = (
    (_counting, "counting row"),
    (_selection, "selection matrix"),
    (_interpolation, "interpolation matrix"),
    (_kernel, "fixed resampling kernel"),
    (_filterbank, "filterbank"),
    (_transform, "cosine and sine transform"),
    (_linear_phase, "linear-phase filter"),
)


# -- The output layers of a model: those whose results reach a graph output without another layer in between.
#
# 1. A layer is a node that reads a weight. What moves, scales or squashes its results on the way does not count;
#    neither does a layer whose weight is fixed mathematics.
# 2. Where the results of different layers are added up, as around a residual block, none of them is the output alone:
#    zeros in one leave the output the others.
# 3. Bodies of If, Loop and Scan are walked with the names around them, local functions once for each call.
# What it does not do: look at numbers, or at shapes.


SUMS = frozenset(
    ("Add", "Sub", "Sum", "Mean", "Max", "Min", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
)
SIZES = frozenset(("Shape", "Size"))


@dataclass(frozen=True)
class Reached:
    """What a value is made of: the layers (nodes) that come last before it, and whether any comes at all."""

    last: frozenset[IdentityKey] = frozenset()
    learned: bool = False


NOTHING = Reached()
Names = dict[str, Reached]


def heads_of(model: Model, fixed: Callable[[Weight], bool]) -> set[Weight]:
    """The weights that are output layers; none where the model has no other layers."""
    weights = [weight for weight in model.weights if weight.uses]
    readers: dict[IdentityKey, list[Weight]] = {}
    for weight in weights:
        for use in weight.uses:
            readers.setdefault(IdentityKey(use.source), []).append(weight)
    passing = {node for node, read in readers.items() if all(map(fixed, read))}
    reached = _Walk(model, set(readers) - passing, passing).outputs()
    found = {weight for node in reached for weight in readers[node]}
    return found if any(weight not in found for weight in weights) else set()


class _Walk:
    """One walk over a model, in the order of its nodes."""

    def __init__(self, model: Model, layers: set[IdentityKey], passing: set[IdentityKey]) -> None:
        self._proto, self._layers, self._passing = model.proto, layers, passing
        self._functions = {(text(f.domain), text(f.name)): f for f in model.proto.functions}

    def outputs(self) -> frozenset[IdentityKey]:
        names: Names = {}
        self._nodes(self._proto.graph.node, names)
        return _together([names.get(entry.name, NOTHING) for entry in self._proto.graph.output]).last

    def _nodes(self, nodes: Iterable[NodeProto], names: Names) -> None:
        for node in nodes:
            results = self._results(node, [names.get(name, NOTHING) for name in node.input], names)
            for name, result in zip(node.output, results):
                names[name] = result

    def _results(self, node: NodeProto, given: list[Reached], names: Names) -> Sequence[Reached]:
        function = self._functions.get((text(node.domain), text(node.op_type)))
        if function is not None:
            return self._call(function, given)
        inner = [self._body(graph, node, given, names) for graph in bodies(node)]
        if inner:
            return [_together(parts) for parts in zip(*inner)]
        return [self._result(node, given)] * len(node.output)

    def _result(self, node: NodeProto, given: list[Reached]) -> Reached:
        key = IdentityKey(node)
        if key in self._layers:
            return Reached(frozenset((key,)), True)
        if node.op_type in SIZES:
            return NOTHING
        together = _together(given)
        mixes = _mixes(node) and key not in self._passing
        if mixes or (node.op_type in SUMS and len({one for one in given if one.learned}) > 1):
            return Reached(frozenset(), together.learned)
        return together

    def _call(self, function: FunctionProto, given: list[Reached]) -> Sequence[Reached]:
        names: Names = dict(zip(function.input, given))
        self._nodes(function.node, names)
        return [names.get(name, NOTHING) for name in function.output]

    def _body(self, graph: GraphProto, node: NodeProto, given: list[Reached], names: Names) -> list[Reached]:
        """What the outputs of a body are made of, in the places of the node's own outputs."""
        inner, loop = dict(names), node.op_type == "Loop"
        states = given[2:] if loop else given
        entries = list(graph.input)[2:] if loop else list(graph.input)
        inner.update({entry.name: NOTHING for entry in graph.input})
        inner.update({entry.name: state for entry, state in zip(entries, states)})
        self._nodes(graph.node, inner)
        results = [inner.get(entry.name, NOTHING) for entry in graph.output]
        return results[1:] if loop else results


def _mixes(node: NodeProto) -> bool:
    """A product of two run-time values, or with packed numbers: what comes before it is not the output."""
    kind = ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
    packed = kind in REFUSED and kind[1] not in ("GatherND", "GatherElements")
    return packed or any(slot.family != "Embedding" for slot in slots_of(*kind))


def _together(given: Iterable[Reached]) -> Reached:
    parts = list(given)
    return Reached(frozenset().union(*(part.last for part in parts)), any(part.learned for part in parts))
