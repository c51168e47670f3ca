"""Soft masks and thresholds in a graph: nodes that make a weight sparse, written, recognized, and folded.

    soft threshold   relu(w - t) - relu(-w - t), where t = sigmoid(s): sign(w) relu(|w| - t)             (STR)
    hard threshold   w (|w| > t)                                                                         (FCPTS)
    soft mask        w sigmoid((log(p) - log(1 - p) + noise) temperature)                                 (ProbMask)

1. They are written with operators that trainers have gradients of: no Sign; 1 / (1 + exp(-s)), which no runtime rounds
   to 0 too early. The threshold `s` and the probabilities `p` are initializers, so that anybody's trainer can learn
   them.
2. They are found by what they compute, whoever wrote them: all that reads a stored weight is a few element-wise nodes
   with constants, and one result of the weight's shape leaves them. Nodes with a threshold are told by the numbers that
   they make of other weights, too; a soft mask by being a sigmoid of numbers that are stored. A product with a constant
   is none of these.
3. To fold is to store the very numbers that the nodes give, and to take the nodes out.
What it does not do: look for nodes in bodies or functions, or fold where any reader gets the weight itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Callable

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper
from onnx.helper import make_attribute, make_node

from onnxsparse.errors import OptionError, ProofError
from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.constant_operators import Call, UnclearError, results
from onnxsparse.graph.constants import Constant, Known, NoNumbersError, Stored
from onnxsparse.graph.edit import (
    FreshNames,
    Outputs,
    Unread,
    all_names,
    bodies,
    insert_nodes,
    remove_nodes,
    rename_reads,
)
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.graph.weights import Weight
from onnxsparse.math.values import Array
from onnxsparse.passes.model_pass import Changed, Pass
from onnxsparse.planning.record import recount

SOFT, HARD, DRAWN = "soft-threshold", "hard-threshold", "probabilistic"
KINDS = ("float32", "float64", "float16")
ELEMENTWISE = frozenset((
    "Identity", "Cast", "CastLike", "Where", "Clip", "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Neg", "Abs",
    "Sign", "Exp", "Log", "Reciprocal", "Relu", "Sigmoid", "Not", "And", "Or", "Less", "LessOrEqual", "Greater",
    "GreaterOrEqual", "Sqrt",
))  # fmt: skip
BENDING = frozenset(("Relu", "Abs", "Sign", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Clip"))
LARGEST_EXPONENT, TINY, PROBES = 60.0, 1e-20, 257
MOST_NODES, MOST_READ = 40, 1 << 28
NO_PLACE = "it does not stand in the main graph (of IR version 4 or later), beside which initializers can train"


@dataclass(frozen=True, eq=False)
class Form:
    """How one weight is to be made sparse: the kind, and its arrays by role."""

    tensor: StoredTensor
    kind: str
    arrays: Mapping[str, Array]


# -- writing


class InsertSoft(Pass):
    """Writes forms into the graph, before everything that reads their weights."""

    def __init__(self, forms: Sequence[Form]) -> None:
        self._forms = forms

    def call(self, model: Model) -> Changed:
        graph, names, fresh = model.proto.graph, dict[str, str](), FreshNames(all_names(model.proto))
        weights = [model.flow.consumers(form.tensor) for form in self._forms]
        made = {output: at for at, node in enumerate(graph.node, 1) for output in node.output}
        written: dict[int, list[NodeProto]] = {}
        for form in self._forms:
            writer = _Writer(form, fresh)
            names[form.tensor.name] = _WRITERS[form.kind](writer, form.tensor.name)
            written.setdefault(made.get(form.tensor.name, 0), []).extend(writer.nodes)
            graph.initializer.extend(writer.tensors)
        rename_reads(graph.node, names)
        for at in sorted(written, reverse=True):
            insert_nodes(graph, at, written[at])
        model.forget()
        return Changed(dict.fromkeys(weights, ""))


class _Writer:
    """The nodes of one form, and its stored numbers."""

    def __init__(self, form: Form, fresh: FreshNames) -> None:
        self._form, self._fresh = form, fresh
        self._dtype = np.dtype(form.tensor.kind)
        self.nodes: list[NodeProto] = []
        self.tensors: list[TensorProto] = []

    def node(self, operator: str, *inputs: str) -> str:
        name = self._fresh(f"{self._form.tensor.name}_{operator.lower()}")
        self.nodes.append(make_node(operator, list(inputs), [name], self._fresh(f"{name}_node")))
        return name

    def stored(self, role: str, array: Array) -> str:
        name = self._fresh(f"{self._form.tensor.name}_{role}")
        self.tensors.append(numpy_helper.from_array(np.asarray(array, self._dtype), name))
        return name

    def role(self, role: str) -> str:
        return self.stored(role, self._form.arrays[role])

    def number(self, role: str, value: float) -> str:
        return self.stored(role, np.array(value))

    def cast(self, name: str) -> str:
        made = self.node("Cast", name)
        self.nodes[-1].attribute.append(make_attribute("to", self._form.tensor.proto.data_type))
        return made

    def logistic(self, exponent: str) -> str:
        """1 / (1 + exp(x)); x is cut so that neither exp nor its gradient leaves the numbers."""
        cut = self.node("Min", exponent, self.number("largest", LARGEST_EXPONENT))
        return self.node("Reciprocal", self.node("Add", self.node("Exp", cut), self.number("one", 1.0)))


def _write_soft(writer: _Writer, weight: str) -> str:
    threshold = writer.logistic(writer.node("Neg", writer.role("threshold")))
    above = writer.node("Relu", writer.node("Sub", weight, threshold))
    below = writer.node("Relu", writer.node("Sub", writer.node("Neg", weight), threshold))
    return writer.node("Sub", above, below)


def _write_hard(writer: _Writer, weight: str) -> str:
    threshold = writer.logistic(writer.node("Neg", writer.role("threshold")))
    above = writer.node("Greater", writer.node("Abs", weight), threshold)
    return writer.node("Mul", weight, writer.cast(above))


def _write_drawn(writer: _Writer, weight: str) -> str:
    one, tiny = writer.number("one", 1.0), writer.number("tiny", TINY)
    score = writer.node("Min", writer.node("Max", writer.role("score"), writer.number("zero", 0.0)), one)
    keep = writer.node("Log", writer.node("Add", score, tiny))
    drop = writer.node("Log", writer.node("Add", writer.node("Sub", one, score), tiny))
    exponent = writer.node("Sub", writer.node("Sub", drop, keep), writer.role("noise"))
    return writer.node("Mul", weight, writer.logistic(writer.node("Mul", exponent, writer.role("temperature"))))


_WRITERS: dict[str, Callable[[_Writer, str], str]] = {SOFT: _write_soft, HARD: _write_hard, DRAWN: _write_drawn}


def why_not_soft(model: Model, weight: Weight) -> str:
    """Why a weight cannot have a form; nothing where it can."""
    tensor = weight.tensor
    home = model.flow.stores.homes[tensor]
    if home.container is not model.proto.graph or model.proto.ir_version < 4:
        return NO_PLACE
    if tensor.kind not in KINDS:
        return f"it is stored as {tensor.kind}; thresholds and probabilities are computed in {', '.join(KINDS)}"
    if weight.twins or weight.overlaps:
        return "other tensors have the same bytes"
    return "it is itself an output of the graph" if Outputs().has(home.container, tensor.name) else ""


def given(form: Form, numbers: Array) -> Array:
    """What the nodes of a form make of a weight."""
    names = FreshNames({form.tensor.name})
    writer = _Writer(form, names)
    last = _WRITERS[form.kind](writer, form.tensor.name)
    known: dict[str, Known] = {one.name: Constant.literal(numpy_helper.to_array(one)) for one in writer.tensors}
    known[form.tensor.name] = Constant.literal(np.asarray(numbers, np.dtype(form.tensor.kind)))
    return _evaluated(writer.nodes, known, last, 17)


def _evaluated(nodes: Iterable[NodeProto], known: dict[str, Known], last: str, opset: int) -> Array:
    for node in nodes:
        values = [known[name] if name else None for name in node.input]
        found = results(Call(node.op_type, values, Attributes(node, {}), opset, 1))
        known[node.output[0]] = found[0]
    value = known[last]
    assert isinstance(value, Constant)
    return np.asarray(value.numbers())


# -- finding


@dataclass(frozen=True, eq=False)
class SoftSite:
    """A weight behind nodes that make it sparse: the kind, the nodes, what leaves them, and the stored numbers."""

    weight: Weight
    kind: str
    nodes: tuple[NodeProto, ...]
    result: str
    leaves: Mapping[str, StoredTensor]
    opset: int

    @property
    def tensor(self) -> StoredTensor:
        return self.weight.tensor

    def numbers(self, given: Array | None = None) -> Array:
        """What the readers get, of the stored numbers or of others."""
        known: dict[str, Known] = {name: Constant.of(Stored(one)) for name, one in self.leaves.items()}
        known[self.tensor.name] = Constant.of(Stored(self.tensor)) if given is None else Constant.literal(given)
        return _evaluated(self.nodes, known, self.result, self.opset)

    def parameters(self) -> dict[str, Array]:
        """What is trained beside the weight, by role: the threshold's `s`, or the probabilities."""
        if self.kind != DRAWN:
            return {"threshold": np.full(1, self._exponent(threshold_of(self)), np.float32)}
        whole = [one.read().reshape(one.shape) for one in self.leaves.values() if one.shape == self.tensor.shape]
        inside = sorted(whole, key=lambda array: float(np.maximum(np.abs(array - 0.5) - 0.5, 0).max(initial=0)))
        return {"score": np.asarray(inside[0], np.float32)}

    def _exponent(self, level: float) -> float:
        """s, as it is stored where a single number is that."""
        stored = [float(one.read().reshape(-1)[0]) for one in self.leaves.values() if one.size == 1]
        near = [one for one in stored if abs(1 / (1 + np.exp(min(-one, LARGEST_EXPONENT))) - level) <= 1e-6 * level]
        return near[0] if near else _logit(level)


def _logit(level: float) -> float:
    return -LARGEST_EXPONENT if level <= np.exp(-LARGEST_EXPONENT) else float(np.log(level) - np.log1p(-level))


def soft_sites(model: Model) -> list[SoftSite]:
    """Every weight of the main graph that is made sparse by nodes."""
    graph = model.proto.graph
    if not any(node.op_type in BENDING | {"Sigmoid", "Exp"} for node in graph.node):
        return []
    return _Search(model).found()


class _Search:
    """The nodes of the main graph that compute with constants alone, and what leaves them."""

    def __init__(self, model: Model) -> None:
        self._model, graph = model, model.proto.graph
        homes = model.flow.stores.homes
        own = {one.name: one for one, home in homes.items() if home.container is graph and one.readable}
        overridden = {entry.name for entry in graph.input}
        self._stored = {name: one for name, one in own.items() if name not in overridden}
        self._made: dict[str, NodeProto] = {}
        self._readers: dict[str, list[NodeProto]] = {}
        self._outputs = {entry.name for entry in graph.output}
        self._in_bodies: set[str] = set()
        self._opset = max((one.version for one in model.proto.opset_import if one.domain in ("", "ai.onnx")), default=1)
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
            self._in_bodies.update(_read_in_bodies(node))
            if self._computes(node):
                self._made[node.output[0]] = node

    def _computes(self, node: NodeProto) -> bool:
        plain = node.domain in ("", "ai.onnx") and node.op_type in ELEMENTWISE and len(node.output) == 1
        return plain and all(not name or name in self._stored or name in self._made for name in node.input)

    def found(self) -> list[SoftSite]:
        sites = []
        for name, tensor in self._stored.items():
            if tensor.kind in KINDS and 0 < tensor.size <= MOST_READ and tensor.shape:
                site = self._site(name, tensor)
                if site is not None:
                    sites.append(site)
        return sites

    def _site(self, name: str, tensor: StoredTensor) -> SoftSite | None:
        inside, leaving = self._behind(name)
        if len(inside) > MOST_NODES:  # not all of its readers were looked at
            return None
        if len(leaving) != 1 or not inside or leaving[0] == name:
            return None
        result = leaving[0]
        nodes = self._before(result)
        if result in self._outputs or len(nodes) > MOST_NODES:
            return None
        leaves = {one: self._stored[one] for node in nodes for one in node.input if one in self._stored and one != name}
        weight = self._model.flow.consumers(tensor)
        site = SoftSite(weight, "", tuple(nodes), result, leaves, self._opset)
        kind = _kind(site, name, inside)
        return SoftSite(weight, kind, tuple(nodes), result, leaves, self._opset) if kind else None

    def _behind(self, name: str) -> tuple[dict[str, NodeProto], list[str]]:
        """The nodes that compute with a tensor, by their results, and the results that others read."""
        inside: dict[str, NodeProto] = {}
        leaving, waiting = [], [name]
        while waiting and len(inside) <= MOST_NODES:
            here = waiting.pop()
            for node in self._readers.get(here, ()):
                made = node.output[0] if node.output else ""
                if self._made.get(made) is not node:
                    leaving.append(here)
                elif made not in inside:
                    inside[made] = node
                    waiting.append(made)
            if here in self._outputs or here in self._in_bodies:
                leaving.append(here)
        return inside, list(dict.fromkeys(leaving))

    def _before(self, result: str) -> list[NodeProto]:
        """All nodes that a result is made by, in order."""
        wanted, waiting = set[str](), [result]
        while waiting:
            name = waiting.pop()
            if name in self._made and name not in wanted:
                wanted.add(name)
                waiting += self._made[name].input
        return [node for made, node in self._made.items() if made in wanted]


def _read_in_bodies(node: NodeProto) -> set[str]:
    found = set[str]()
    for body in bodies(node):
        found.update(entry.name for entry in body.output)
        for inner in body.node:
            found.update(inner.input)
            found |= _read_in_bodies(inner)
    return found


def _kind(site: SoftSite, name: str, inside: Mapping[str, NodeProto]) -> str:
    """What nodes compute; nothing where it is none of the known forms."""
    try:
        if any(node.op_type in BENDING for node in inside.values()):
            return _of_threshold(site)
        last = inside[site.result]
        if len(inside) == 1 and last.op_type == "Mul" and name in last.input and last.input[0] != last.input[1]:
            return DRAWN if _is_soft_mask(site, next(one for one in last.input if one != name)) else ""
    except (UnclearError, NoNumbersError, KeyError):
        return ""
    return ""


def _is_soft_mask(site: SoftSite, factor: str) -> bool:
    """A sigmoid of stored numbers, at least one for each of the weight's; a constant as it is stored is none."""
    made = {node.output[0]: node for node in site.nodes}
    whole = any(one.shape == site.tensor.shape for one in site.leaves.values())
    operators = {node.op_type for node in site.nodes}
    if factor not in made or not whole or not ("Sigmoid" in operators or {"Exp", "Reciprocal"} <= operators):
        return False
    mask = site.numbers(np.ones(site.tensor.shape, np.dtype(site.tensor.kind)))
    return mask.shape == site.tensor.shape and bool(((mask >= 0) & (mask <= 1)).all())


def _of_threshold(site: SoftSite) -> str:
    """Whether nodes put a threshold to a weight, by what they make of it and of others."""
    stored = site.tensor.read().reshape(site.tensor.shape)
    largest = float(np.abs(stored).max(initial=0))
    if not np.isfinite(largest):
        return ""
    level = threshold_of(site)
    reach = np.linspace(-1, 1, min(PROBES, stored.size), dtype=np.float64) * 3 * (max(largest, level) or 1)
    other = np.resize(reach, stored.shape).astype(stored.dtype)
    for kind in (SOFT, HARD):
        if all(_follows(kind, level, one, site.numbers(one)) for one in (stored, other)):
            return kind
    return ""


def threshold_of(site: SoftSite) -> float:
    """What a soft threshold takes from large numbers, or the level below which a hard one leaves nothing."""
    shape, dtype = site.tensor.shape, np.dtype(site.tensor.kind)
    above = [float(np.abs(one).max(initial=0)) for one in _scalars(site)]
    for level in above:
        if _jumps_at(site, level, shape, dtype):
            return level
    return 0.0


def _scalars(site: SoftSite) -> list[Array]:
    """Every single number on the way: one of them is the threshold."""
    known: dict[str, Known] = {name: Constant.of(Stored(one)) for name, one in site.leaves.items()}
    found = []
    for node in site.nodes:
        if all(not name or name in known for name in node.input):
            values = [known[name] if name else None for name in node.input]
            made = results(Call(node.op_type, values, Attributes(node, {}), site.opset, 1))[0]
            known[node.output[0]] = made
            found += [made.numbers()] if made.size == 1 and made.kind in KINDS else []
    stored = [one.read() for one in site.leaves.values() if one.size == 1 and one.kind in KINDS]
    return [*reversed(found), *stored]


def _jumps_at(site: SoftSite, level: float, shape: Sequence[int], dtype: np.dtype[np.generic]) -> bool:
    """Whether what lies just below a level is zero, and what lies well above is not."""
    spread = np.resize(np.array([level * 0.5, -level * 0.5, level * 2 + 1e-3]), shape).astype(dtype)
    made = site.numbers(spread)
    if made.shape != tuple(shape):
        return False
    below = np.abs(spread) <= level
    return bool((made[below] == 0).all() and (made[~below] != 0).all())


def _follows(kind: str, level: float, numbers: Array, made: Array) -> bool:
    """Whether results are those of a threshold, to what the type of the numbers can tell."""
    if made.shape != numbers.shape:
        return False
    sizes = np.abs(numbers).astype(np.float64)
    fine = 4 * float(np.finfo(numbers.dtype).eps) * max(float(sizes.max(initial=0)), level)
    soft = np.sign(numbers) * np.maximum(sizes - level, 0)
    if kind == SOFT:
        return bool((np.abs(made - soft) <= fine).all())
    clear = np.abs(sizes - level) > fine
    wanted = np.where(sizes > level, numbers, 0)
    return bool((made[clear] == wanted[clear]).all())


# -- folding


class FoldSoft(Pass):
    """Stores what the nodes give, or with `discard` leaves the weights alone, and takes the nodes out."""

    def __init__(self, sites: Sequence[SoftSite], discard: bool = False) -> None:
        self._sites, self._discard = sites, discard

    def call(self, model: Model) -> Changed:
        changed = Changed({site.weight: self._obstacle(site) for site in self._sites})
        done = [site for site in self._sites if site.weight not in changed.left]
        graph = model.proto.graph
        for site in done:
            if not self._discard:
                made = site.numbers().reshape(-1) + np.dtype(site.tensor.kind).type(0)  # -0.0 becomes +0.0
                site.tensor.edit = _Numbers(made)
        rename_reads(graph.node, {site.result: site.tensor.name for site in done})
        for site in done:
            own = [node for node in site.nodes if node.output[0] == site.result]
            read = [name for node in own for name in node.input]
            remove_nodes(graph, own)
            Unread(model.proto).remove(name for name in read if name != site.tensor.name)
        return changed

    def _obstacle(self, site: SoftSite) -> str:
        weight = site.weight
        if weight.twins or weight.overlaps:
            return "other tensors have the same bytes"
        try:
            whole = self._discard or bool(np.isfinite(site.numbers()).all())
        except (UnclearError, NoNumbersError) as error:
            return str(error)
        return "" if whole else "what its nodes make of it is no finite number"


def as_folded(model: Model) -> Model | None:
    """A model to look at, with thresholds and soft masks folded as they are now; None where it has none.

    The model that is given must not be used afterwards, if there are some.
    """
    sites = soft_sites(model)
    if not sites:
        return None
    folded = FoldSoft(sites)(model)
    recount(model, {weight.name: zeros_made(weight.tensor) for weight in folded.weights})
    return Model.over(model.take_proto())


class _Numbers:
    """New numbers of a tensor."""

    def __init__(self, flat: Array) -> None:
        self.flat = flat

    def __call__(self) -> Iterator[Array]:
        yield self.flat


def zeros_made(tensor: StoredTensor) -> int:
    """How many numbers are zero in what is to be stored."""
    flat = tensor.edit.flat if isinstance(tensor.edit, _Numbers) else tensor.read()
    return int(flat.size - np.count_nonzero(flat))


def demand_written(model: Model, forms: Sequence[Form]) -> None:
    """Nodes that were written are found again for what they are, and compute what was promised."""
    found = {site.tensor.name: site for site in soft_sites(model)}
    for form in forms:
        site = found.get(form.tensor.name)
        numbers = form.tensor.read().reshape(form.tensor.shape)
        if site is None or site.kind != form.kind:
            raise ProofError(f"the nodes of '{form.tensor.name}' are not what they should be; nothing was written")
        if not np.array_equal(site.numbers(), given(form, numbers)):
            raise ProofError(f"the nodes of '{form.tensor.name}' make other numbers of it; nothing was written")


def form_of(tensor: StoredTensor, kind: str, arrays: Mapping[str, Array]) -> Form:
    """A form of one of the known kinds."""
    if kind not in _WRITERS:
        raise OptionError(f"no nodes are known for the sparser {kind!r:.40} (known: {', '.join(_WRITERS)})")
    return Form(tensor, kind, arrays)
