"""Random graphs between stored tensors and the nodes that use them: masks with paths of their own, twins, functions
called twice, bodies, shuffles and quantization, in all orders.

A graph is made from one integer, and from the steps that are left out of it. The runtime takes every graph that
`valid_case` hands out; what a tool may say of it is judged by `runtime_judge`.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Callable

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper

from .case import Array, codes, untied
from .random_ends import end, numbers, read
from .random_masks import cast, dequantized, factor, fake_quantized, kept, masked
from .random_moves import join, move, reshape, unsqueeze
from .random_scopes import KINDS, LOCAL, Building, Scope, Shape, Val, info, numpy_kind, stored_tensor

DEEPEST = 2
OPSETS = (6, 8, 8, 9, 10, 11, 12, 13, 13, 17, 17, 17, 17, 18, 21)


@dataclasses.dataclass(frozen=True)
class RandomCase:
    """A model, what to feed it (each entry is one run), its data files, and the steps that it is made of."""

    seed: str
    model: onnx.ModelProto
    feeds: Sequence[Mapping[str, Array]]
    files: Mapping[str, bytes]
    steps: tuple[str, ...]
    tags: frozenset[str]

    def write(self, folder: Path) -> Path:
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        path = folder / "model.onnx"
        path.write_bytes(self.model.SerializeToString())
        return path


def make_case(seed: str, dropped: Collection[str] = ()) -> RandomCase:
    """The graph of a seed; `dropped` are steps that are left out."""
    return _Whole(seed, dropped).case()


class _Whole:
    def __init__(self, seed: str, dropped: Collection[str]) -> None:
        self.build = Building(seed, dropped)
        self.dice = self.build.dice
        self.main = Scope(self.build, "graph")
        self.weights: list[Val] = []
        self.files: dict[str, bytes] = {}

    def case(self) -> RandomCase:
        dice = self.dice.at("whole")
        self.build.opset = dice.choice(OPSETS)
        for number in range(dice.choice([1, 1, 1, 2, 2])):
            if number == 0 or self.dice.wants(f"w{number}"):
                self._weight(number)
        if not self.main.results:
            end(self.main, self.weights[0], "last")
        return self._case()

    def _weight(self, number: int) -> None:
        dice = self.dice.at(f"w{number}")
        stored = _stored(self.main, dice, number)
        self.weights.append(stored)
        names = [stored]
        if dice.random() < 0.12 and self.dice.wants(f"w{number}/twin"):
            names.append(self._twin(stored, dice))
        for use in range(dice.choice([1, 1, 2, 2, 3])):
            if use == 0 or self.dice.wants(f"w{number}/u{use}"):
                go(self, self.main, names[use % len(names)], f"w{number}/u{use}", 0)
        if self.dice.wants(f"w{number}/bare", 0.2):
            read(self.main, names[-1], f"w{number}/bare")

    def _twin(self, stored: Val, dice: random.Random) -> Val:
        """Another name for the same bytes of a data file, or for a stretch of them that begins a row later."""
        self.build.tags.add("twins")
        first = self._moved_out(stored)
        if first is None:
            return stored
        name = self.build.name("w")
        made = TensorProto(name=name, data_type=first.data_type, dims=first.dims)
        row = stored.size // stored.shape[0] * np.dtype(numpy_kind(stored.kind)).itemsize
        late = row if dice.random() < 0.2 and stored.shape[0] > 1 else 0
        if late:
            made.dims[0] -= 1
            self.build.tags.add("overlap")
        self._outside(made, "weights.bin", late, len(self.files["weights.bin"]) - late)
        self.main.stored.append(made)
        return Val(name, tuple(made.dims), stored.kind)

    def _moved_out(self, stored: Val) -> TensorProto | None:
        """The tensor, with its bytes in the data file."""
        found = next((one for one in self.main.stored if one.name == stored.name), None)
        if found is None or self.files:
            return None
        self.files["weights.bin"] = found.raw_data
        self._outside(found, "weights.bin", 0, len(found.raw_data))
        return found

    def _outside(self, made: TensorProto, location: str, offset: int, length: int) -> None:
        made.ClearField("raw_data")
        made.data_location = TensorProto.EXTERNAL
        del made.external_data[:]
        for key, value in (("location", location), ("offset", offset), ("length", length)):
            made.external_data.add(key=key, value=str(value))

    def _case(self) -> RandomCase:
        outputs = [self.main.own(one) for one in self.main.results]
        inputs = [
            helper.make_tensor_value_info(name, KINDS[kind], np.shape(values[0]))
            for name, (kind, values) in self.build.inputs.items()
        ]
        for one in self.main.stored:
            if one.name[0] == "w" and self.dice.at(f"given/{one.name}").random() < 0.04:
                self.build.tags.add("default of an input")
                inputs.append(helper.make_tensor_value_info(one.name, one.data_type, one.dims))
        whole = helper.make_graph(self.main.nodes, "random", inputs, [info(one) for one in outputs], self.main.stored)
        if self.dice.wants("stale", 0.12):
            whole.value_info.extend(self._stale())
        used = [helper.make_opsetid("", self.build.opset)]
        if self.build.functions:
            used.append(helper.make_opsetid(LOCAL, 1))
        made = helper.make_model(whole, opset_imports=used, ir_version=8, functions=self.build.functions)
        if self.build.opset >= 19:
            made.ir_version = 9
        feeds = [{name: values[turn] for name, (_, values) in self.build.inputs.items()} for turn in range(2)]
        tags = frozenset({*self.build.tags, f"opset {self.build.opset}"})
        return RandomCase(self.dice.seed, made, feeds, self.files, tuple(self.dice.taken), tags)

    def _stale(self) -> list[onnx.ValueInfoProto]:
        """Shapes of values as another tool left them: turned, flat, or of other sizes."""
        self.build.tags.add("stale value_info")
        dice = self.dice.at("stale")
        outputs = {one.name for one in self.main.results}
        known = [one for one in self.main.made if one.rank > 1 and one.name not in outputs and one.kind != "bool"]
        found = []
        for value in dice.sample(known, min(len(known), 3)):
            shape = list(value.shape)
            if dice.random() < 0.6:
                shape.reverse()
            else:
                shape[0], shape[-1] = shape[0] * 2, max(shape[-1] // 2, 1)
            found.append(helper.make_tensor_value_info(value.name, KINDS[value.kind], shape))
        return found


# -- what is stored

SHAPES: Sequence[Shape] = (
    (8, 8),
    (8, 8),
    (8, 8),
    (4, 8),
    (8, 4),
    (12, 8),
    (16, 4),
    (8, 6),
    (64,),
    (32,),
    (1, 8, 4),
    (2, 8, 4),
    (8, 4, 3),
    (4, 8, 1, 1),
    (8, 4, 2, 2),
    (4, 4, 3, 3),
)
STORED_KINDS = ("float32",) * 11 + ("int8", "int8", "int8", "uint8", "uint8", "whole", "whole", "float16", "float64")


def _stored(scope: Scope, dice: random.Random, number: int) -> Val:
    shape = dice.choice(SHAPES)
    kind = dice.choice(STORED_KINDS)
    values = weight_values(dice, shape, kind)
    if kind == "whole":
        scope.build.tags.add("whole numbers in floats")
        kind = "float32"
    return scope.constant(values, "w", kind)


def weight_values(dice: random.Random, shape: Shape, kind: str) -> Array:
    seed = dice.randrange(1000)
    if kind in ("int8", "uint8"):
        return codes(*shape, unsigned=kind == "uint8", seed=seed)
    if kind == "whole":
        return codes(*shape, seed=seed).astype(np.float32)
    values = (untied(*shape, seed=seed) / 4).astype(numpy_kind(kind))
    draw = dice.random()
    if draw < 0.2:
        values = np.where(kept(dice, shape), values, 0).astype(values.dtype)
    elif draw < 0.24:
        values.reshape(-1)[dice.randrange(values.size)] = dice.choice([np.nan, np.inf])
    return values


# -- steps


def steps_of(whole: _Whole, scope: Scope, value: Val, path: str, depth: int, most: int = 4) -> Val:
    count = whole.dice.at(f"{path}/steps").randint(0, most)
    for number in range(count):
        if whole.dice.wants(f"{path}/s{number}"):
            value = _step(whole, scope, value, f"{path}/s{number}", depth)
    return value


def _step(whole: _Whole, scope: Scope, value: Val, path: str, depth: int) -> Val:
    dice = whole.dice.at(path)
    draw = dice.random()
    opset = scope.build.opset
    if draw < 0.1 and depth < DEEPEST:
        return _wrapped(whole, scope, value, path, depth)
    if draw < 0.45 or value.kind == "bool":
        return move(scope, value, dice)
    if value.kind in ("int8", "uint8"):
        return _on_integers(scope, value, path, dice)
    if value.kind not in ("float32", "float64", "float16"):
        return cast(scope, value, "float32")
    if draw < 0.72:
        return masked(scope, path, value)
    if draw < 0.79:
        return factor(scope, path, value)
    if draw < 0.89 and opset >= 10 and value.kind == "float32":
        return fake_quantized(scope, value, dice)
    if draw < 0.93:
        return _other_type(scope, value, dice)
    if draw < 0.97:
        return _met(scope, value, path, dice)
    return _not_followed(whole, scope, value, path, dice)


def _other_type(scope: Scope, value: Val, dice: random.Random) -> Val:
    kind = dice.choice(["float64", "float16", "float32", "int8", "uint8", "float16"])
    whole = "whole numbers in floats" in scope.build.tags
    return cast(scope, value, kind if whole or kind not in ("int8", "uint8") else "float64")


def _on_integers(scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    draw = dice.random()
    if draw < 0.45 and scope.build.opset >= 10:
        return dequantized(scope, value, dice)
    if draw < 0.6:
        return cast(scope, value, "float32")
    if draw < 0.75 and value.kind == "uint8" and scope.build.opset >= 9:
        return masked(scope, path, value)
    scope.build.tags.add("mask before DequantizeLinear")
    low = masked(scope, path, cast(scope, value, "float32"))
    return cast(scope, scope.add("Round", [low], "float32", low.shape) if scope.build.opset >= 11 else low, value.kind)


def _met(scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    """A weight that meets an input of the model."""
    scope.build.tags.add("met a run-time value")
    shape = value.shape if scope.build.opset < 7 or dice.random() < 0.4 else dice.choice([(), value.shape[-1:]])
    x = scope.runtime(f"{path}/met", numbers(shape, value.kind), value.kind)
    op = dice.choice(["Mul", "Mul", "Add", "Div"])
    return scope.add(op, [value, x], value.kind, value.shape)


def _not_followed(whole: _Whole, scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    draw = dice.random()
    if draw < 0.4:
        return scope.add(dice.choice(["Neg", "Abs", "Relu"]), [value], value.kind, value.shape)
    if draw < 0.7 and value.rank and value.size < 1000 and value.kind == "float32":
        other = scope.constant(weight_values(dice, value.shape, "float32"), "w")
        axis = dice.randrange(value.rank)
        return join(scope, dice.choice([[value, other], [other, value]]), axis)
    if value.kind == "float32":
        other = scope.constant(weight_values(dice, value.shape, "float32"), "w")
        return scope.add(dice.choice(["Add", "Sub"]), [value, other], value.kind, value.shape)
    return scope.own(value)


# -- a path and its end


def go(whole: _Whole, scope: Scope, value: Val, path: str, depth: int) -> None:
    """Some steps, then an operator, a reader, or a function or body in which the path goes on."""
    value = steps_of(whole, scope, value, path, depth)
    if depth < DEEPEST and whole.dice.wants(f"{path}/fork", 0.12):
        go(whole, scope, value, f"{path}/fork", depth + 1)
    if depth < DEEPEST and whole.dice.wants(f"{path}/wrap", 0.3):
        _ending(whole, scope, value, f"{path}/wrap", depth)
    elif whole.dice.wants(f"{path}/read", 0.08):
        read(scope, value, f"{path}/read")
    else:
        end(scope, value, f"{path}/end")


def _ending(whole: _Whole, scope: Scope, value: Val, path: str, depth: int) -> None:
    draw = whole.dice.at(f"{path}/kind").random()
    chosen: Callable[[_Whole, Scope, Val, str, int], None]
    if draw < 0.5 and scope.build.opset >= 9:
        chosen = _calls
    elif draw < 0.66:
        chosen = _branches
    elif draw < 0.83 and scope.build.opset >= 8:
        chosen = _loop
    elif scope.build.opset >= 8:
        chosen = _scan
    else:
        chosen = _branches
    chosen(whole, scope, value, path, depth)


def _calls(whole: _Whole, scope: Scope, value: Val, path: str, depth: int) -> None:
    """A local function that is called once, twice or three times, with this weight or another one like it."""
    whole.build.tags.add("function")
    dice = whole.dice.at(path)
    inner = Scope(whole.build, "function", scope)
    formal = Val(_formal(whole, value, path), value.shape, value.kind)
    ends_inside = dice.random() < 0.6
    if ends_inside:
        go(whole, inner, formal, f"{path}/in", depth + 1)
        outputs = inner.results
    else:
        outputs = [steps_of(whole, inner, formal, f"{path}/in", depth + 1)]
    function = inner.function(formal, outputs)
    for number in range(dice.choice([1, 2, 2, 2, 3])):
        if number and not whole.dice.wants(f"{path}/call{number}"):
            continue
        own = whole.dice.at(f"{path}/arg{number}")
        given = value
        if number and own.random() < 0.3 and value.size < 1000 and value.kind != "bool":
            given = scope.constant(weight_values(own, value.shape, value.kind), "w", value.kind)
        for at, result in enumerate(scope.call(function, inner, given, outputs, number)):
            if ends_inside:
                scope.emit(result)
            else:
                go(whole, scope, result, f"{path}/after{number}.{at}", depth + 1)


def _formal(whole: _Whole, value: Val, path: str) -> str:
    """A name of its own, or that of a tensor outside, which means something else within the function."""
    same = whole.dice.at(f"{path}/formal").random() < 0.2
    return value.name if same else whole.build.name("p")


def _condition(scope: Scope, path: str) -> Val:
    if scope.build.dice.at(f"{path}/known").random() < 0.15:
        return scope.constant(np.array(scope.build.dice.at(f"{path}/known").random() < 0.1), "i", "bool")
    return scope.runtime(f"{path}/condition", lambda own: np.array(own.random() < 0.5), "bool")


def _branches(whole: _Whole, scope: Scope, value: Val, path: str, depth: int) -> None:
    """If: both branches use the weight, each in its way, or one does."""
    whole.build.tags.add("If")
    condition = _condition(scope, path)
    bodies = [Scope(whole.build, "body", scope) for _ in range(2)]
    go(whole, bodies[0], value, f"{path}/then", depth + 1)
    if whole.dice.wants(f"{path}/else", 0.6):
        go(whole, bodies[1], value, f"{path}/else", depth + 1)
    taken = [bodies[0].results, bodies[1].results]
    bodies[0].results = [*taken[0], *(_blank(bodies[0], one) for one in taken[1])]
    bodies[1].results = [*(_blank(bodies[1], one) for one in taken[0]), *taken[1]]
    graphs = [body.graph([], body.results) for body in bodies]
    outputs = [(one.kind, one.shape) for one in bodies[0].results]
    given = {"then_branch": graphs[0], "else_branch": graphs[1]}
    for made in scope.many("If", [condition], outputs, **given):
        scope.emit(made)


def _blank(scope: Scope, value: Val) -> Val:
    return scope.constant(np.zeros(value.shape, numpy_kind(value.kind)), "b", value.kind)


def _loop(whole: _Whole, scope: Scope, value: Val, path: str, depth: int) -> None:
    """Loop: the weight is a state that is handed on, or read from around; it may be used again behind the loop."""
    whole.build.tags.add("Loop")
    dice = whole.dice.at(path)
    body = Scope(whole.build, "body", scope)
    turn, going = Val(whole.build.name("t"), (), "int64"), Val(whole.build.name("t"), (), "bool")
    state = Val(whole.build.name("t"), value.shape, value.kind)
    go(whole, body, state if dice.random() < 0.7 else value, f"{path}/in", depth + 1)
    handed = state
    if whole.dice.wants(f"{path}/changed", 0.15) and value.kind == "float32":
        handed = masked(body, f"{path}/changed", state)
    kept_going, handed = body.own(going), body.own(handed)
    graph = body.graph([turn, going, state], [])
    graph.output.extend([info(kept_going), info(handed), *(info(body_own) for body_own in _owned(body, graph))])
    trips = 2
    inputs = [scope.constant(np.array(trips), "i", "int64"), scope.constant(np.array(True), "i", "bool"), value]
    outs = [(value.kind, value.shape), *((one.kind, (trips, *one.shape)) for one in body.results)]
    final, *rest = scope.many("Loop", inputs, outs, body=graph)
    for made in rest:
        scope.emit(made)
    if whole.dice.wants(f"{path}/out", 0.5):
        whole.build.tags.add("handed out by a Loop")
        go(whole, scope, final, f"{path}/out", depth + 1)


def _owned(body: Scope, graph: onnx.GraphProto) -> list[Val]:
    made = [body.own(one) for one in body.results]
    del graph.node[:]
    graph.node.extend(body.nodes)
    return made


def _scan(whole: _Whole, scope: Scope, value: Val, path: str, depth: int) -> None:
    """Scan over an input of the model, with the weight as a state; in opset 8 with batches and `sequence_lens`."""
    old = scope.build.opset < 9
    whole.build.tags.add("Scan of opset 8" if old else "Scan")
    body = Scope(whole.build, "body", scope)
    state, item = Val(whole.build.name("t"), value.shape, value.kind), Val(whole.build.name("t"), (2,), "float32")
    go(whole, body, state if whole.dice.at(path).random() < 0.7 else value, f"{path}/in", depth + 1)
    handed = body.own(state)
    results = [body.own(one) for one in body.results]
    graph = body.graph([state, item], [])
    graph.output.extend(info(one) for one in (handed, *results))
    lead: Shape = (1,) if old else ()
    x = scope.runtime(f"{path}/scanned", numbers((*lead, 3, 2), "float32"), "float32")
    start = unsqueeze(scope, value, 0) if old else value
    inputs: list[Val | str] = ["", start, x] if old else [start, x]
    outs = [(value.kind, (*lead, *value.shape)), *((one.kind, (*lead, 3, *one.shape)) for one in results)]
    final, *rest = scope.many("Scan", inputs, outs, body=graph, num_scan_inputs=1)
    for made in rest:
        scope.emit(made)
    if whole.dice.wants(f"{path}/out", 0.4):
        whole.build.tags.add("handed out by a Scan")
        go(whole, scope, final, f"{path}/out", depth + 1)


# -- functions and bodies that hand a value back


def _wrapped(whole: _Whole, scope: Scope, value: Val, path: str, depth: int) -> Val:
    draw = whole.dice.at(f"{path}/kind").random()
    if draw < 0.35 and scope.build.opset >= 9:
        return _called(whole, scope, value, path, depth)
    if draw < 0.5:
        return _chosen(whole, scope, value, path, depth)
    if draw < 0.7 and scope.build.opset >= 8:
        return _collected(whole, scope, value, path, depth)
    if draw < 0.85 and scope.build.opset >= 17 and value.rank:
        return _mapped(whole, scope, value, path, depth)
    return _by_rows(whole, scope, value, path, depth)


def _called(whole: _Whole, scope: Scope, value: Val, path: str, depth: int) -> Val:
    whole.build.tags.add("function")
    inner = Scope(whole.build, "function", scope)
    formal = Val(_formal(whole, value, path), value.shape, value.kind)
    output = steps_of(whole, inner, formal, f"{path}/in", depth + 1)
    function = inner.function(formal, [output])
    result = scope.call(function, inner, value, [output], 0)[0]
    if whole.dice.wants(f"{path}/again", 0.5):
        other = scope.call(function, inner, value, [output], 1)[0]
        end(scope, other, f"{path}/again")
    return result


def _chosen(whole: _Whole, scope: Scope, value: Val, path: str, depth: int) -> Val:
    """If hands out the weight, masked or not, or another one."""
    whole.build.tags.add("handed out by an If")
    bodies = [Scope(whole.build, "body", scope) for _ in range(2)]
    results = [bodies[0].own(value), bodies[1].own(value)]
    if value.kind == "float32" and whole.dice.wants(f"{path}/masked", 0.5):
        results[0] = masked(bodies[0], f"{path}/masked", value)
    elif value.size < 1000 and value.kind in ("float32", "int8", "uint8"):
        other = weight_values(whole.dice.at(f"{path}/other"), value.shape, value.kind)
        results[1] = bodies[1].constant(other, "w", value.kind)
    graphs = [body.graph([], [result]) for body, result in zip(bodies, results)]
    given = {"then_branch": graphs[0], "else_branch": graphs[1]}
    return scope.many("If", [_condition(scope, path)], [(value.kind, value.shape)], **given)[0]


def _collected(whole: _Whole, scope: Scope, value: Val, path: str, depth: int) -> Val:
    """A Loop of one step that hands out the weight, as its state or as what it collects."""
    whole.build.tags.add("handed out by a Loop")
    body = Scope(whole.build, "body", scope)
    turn, going = Val(whole.build.name("t"), (), "int64"), Val(whole.build.name("t"), (), "bool")
    state = Val(whole.build.name("t"), value.shape, value.kind)
    changed = (
        masked(body, f"{path}/m", state) if value.kind == "float32" and whole.dice.wants(f"{path}/m", 0.4) else state
    )
    outputs = [body.own(going), body.own(state), body.own(changed)]
    graph = body.graph([turn, going, state], [])
    graph.output.extend(info(one) for one in outputs)
    inputs = [scope.constant(np.array(1), "i", "int64"), scope.constant(np.array(True), "i", "bool"), value]
    outs = [(value.kind, value.shape), (value.kind, (1, *value.shape))]
    final, rows = scope.many("Loop", inputs, outs, body=graph)
    return final if whole.dice.at(path).random() < 0.4 else reshape(scope, rows, value.shape)


def _mapped(whole: _Whole, scope: Scope, value: Val, path: str, depth: int) -> Val:
    """SequenceMap over a sequence of the weight."""
    whole.build.tags.add("handed out by SequenceMap")
    body = Scope(whole.build, "body", scope)
    item = Val(whole.build.name("t"), value.shape, value.kind)
    hidden = value.kind == "float32" and whole.dice.wants(f"{path}/m", 0.5)
    result = masked(body, f"{path}/m", item) if hidden else item
    graph = body.graph([item], [result])
    sequence = scope.add("SequenceConstruct", [value], value.kind, ())
    mapped = scope.add("SequenceMap", [sequence], value.kind, (), body=graph)
    scope.made = scope.made[:-2]
    index = scope.constant(np.array(0), "i", "int64")
    return scope.add("SequenceAt", [mapped, index], value.kind, value.shape)


def _by_rows(whole: _Whole, scope: Scope, value: Val, path: str, depth: int) -> Val:
    """A Scan over the rows of the weight that puts them together again."""
    if value.rank < 2 or scope.build.opset < 9:
        return scope.own(value)
    whole.build.tags.add("handed out by a Scan")
    body = Scope(whole.build, "body", scope)
    item = Val(whole.build.name("t"), value.shape[1:], value.kind)
    result = item
    if value.kind == "float32" and whole.dice.wants(f"{path}/m", 0.5):
        result = masked(body, f"{path}/m", item)
    graph = body.graph([item], [result])
    return scope.many("Scan", [value], [(value.kind, value.shape)], body=graph, num_scan_inputs=1)[0]


__all__ = ["NodeProto", "RandomCase", "cast", "make_case", "stored_tensor"]
