"""Control flow in the copy: branches that the samples take, loops without end, sequences that mean Split or Concat."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper
from onnx.helper import make_node

from onnxsparse.engines.ort.canonical import fold
from onnxsparse.engines.ort.draft import Draft
from onnxsparse.engines.ort.library import Feed, Runner
from onnxsparse.engines.ort.shapes import Shaped, shapes_of
from onnxsparse.errors import ModelError
from onnxsparse.graph.attributes import attributes
from onnxsparse.graph.edit import FreshNames, bodies, called, defined, downstream, extracted, reads, rename_reads
from onnxsparse.graph.initializers import stored_of

# -- If nodes are replaced by the branch that the samples take.
#
# 1. The conditions of all If nodes of the main graph are computed for several feeds.
# 2. Where they agree, the branch's nodes stand in the place of the node, under new names; then ones inside come to
#    light.
# 3. Where they agree because of what the samples hold, others may differ: that is noted.
# 4. Where they differ the node stays, and is noted: data decides, and the graph has to be cut there.


def take_branches(draft: Draft) -> None:
    """Inline every branch on which the first few feeds agree: building a gradient through If ends the process (1.19.2),
    and Loop and Scan have none."""
    feeds, samples = draft.feeds(), draft.samples
    count = min(len(feeds) * draft.width, samples.count) * samples.unit
    undecided: set[str] = set()
    by_data = downstream(draft.graph, [value.name for value in draft.graph.input], sizes=False)
    while True:
        pending = [node for node in draft.graph.node if node.op_type == "If" and node.output[0] not in undecided]
        if not pending:
            return
        taken = _conditions(draft, sorted({node.input[0] for node in pending}), feeds)
        nodes: list[NodeProto] = []
        for node in draft.graph.node:
            if node.op_type != "If" or node.output[0] in undecided:
                nodes.append(node)
            elif taken[node.input[0]] is None:
                nodes.append(node)
                undecided.add(node.output[0])
                draft.note(f"the branch of {called(node)} depends on the sample")
            else:
                nodes += _inlined(draft, node, bool(taken[node.input[0]]))
                if node.input[0] in by_data:
                    draft.note(_guess(node, bool(taken[node.input[0]]), count))
        draft.place(nodes)


def _guess(node: NodeProto, taken: bool, count: int) -> str:
    one, other = ("then", "else") if taken else ("else", "then")
    looked = f"all {count} samples looked at take" if count > 1 else "the sample looked at takes"
    return f"{looked} the {one} branch of {called(node)}: only that one trains, not the {other} branch"


def _conditions(draft: Draft, names: list[str], feeds: Sequence[Feed]) -> dict[str, bool | None]:
    stored = draft.tensors()
    asked = [name for name in names if name not in stored]
    seen: dict[str, set[bool]] = {name: set() for name in names}
    for name in set(names) - set(asked):
        seen[name].add(bool(numpy_helper.to_array(stored[name]).reshape(-1)[0]))
    if asked:
        runner = Runner(extracted(draft.model, asked))
        for feed in feeds:
            for name, value in runner(feed).items():
                seen[name].add(bool(np.asarray(value).reshape(-1)[0]))
    return {name: next(iter(values)) if len(values) == 1 else None for name, values in seen.items()}


def _inlined(draft: Draft, node: NodeProto, taken: bool) -> list[NodeProto]:
    """The nodes of the branch, and an Identity for each output."""
    key = "then_branch" if taken else "else_branch"
    branch = next(attribute.g for attribute in node.attribute if attribute.name == key)
    names = FreshNames.of(draft.graph)
    table = {name: names(name) for name in sorted(defined(branch))}
    nodes = list(branch.node)
    for inner in nodes:
        for index, name in enumerate(inner.output):
            inner.output[index] = table.get(name, name)
    rename_reads(nodes, table)
    ends = [
        make_node("Identity", [table.get(value.name, value.name)], [name])
        for value, name in zip(branch.output, node.output)
        if name
    ]
    for inner in nodes:
        inner.name = names(inner.name or inner.op_type)
    return nodes + ends


# -- Loops that would never come to their end are refused before anything is run.
#
# 1. A Loop goes round as often as its trip count says, where its condition is true from the beginning and no round can
#    change it. Both are known where they are stored.
# 2. Where a round computes the condition nobody knows, and it is run.

MOST_ROUNDS = 1 << 24
"""Rounds that may take minutes, and not the rest of a life."""

Numbers = dict[str, int]


def refuse_endless(draft: Draft) -> None:
    """Refuse a Loop that would not end: the runtime has no limit of rounds and cannot be interrupted."""
    _refuse_endless(draft.graph, {})


def _refuse_endless(graph: GraphProto, around: Numbers) -> None:
    """Say which Loop would not end; `around` are the numbers that are stored in the graphs around this one."""
    numbers = _stored_in(graph, around)
    for node in graph.node:
        if node.op_type == "Loop" and node.domain in ("", "ai.onnx"):
            rounds = numbers.get(node.input[0], 0) if node.input[0] else math.inf
            begins = not node.input[1] or numbers.get(node.input[1]) == 1
            if begins and rounds > MOST_ROUNDS and _never_stops(next(bodies(node)), numbers):
                often = "without end" if rounds == math.inf else f"{rounds:,} times"
                raise ModelError(f"{called(node)} goes round {often}, and nothing in it can stop it")
        for body in bodies(node):
            _refuse_endless(body, numbers)


def _stored_in(graph: GraphProto, around: Numbers) -> Numbers:
    """Whole numbers and flags in sight, by name."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        tensor = stored_of(node) if node.op_type == "Constant" and node.domain in ("", "ai.onnx") else None
        if tensor is not None:
            tensors[node.output[0]] = tensor
    hidden = defined(graph)
    numbers = {name: number for name, number in around.items() if name not in hidden}
    fed = {value.name for value in graph.input}
    numbers.update({name: _number(tensor) for name, tensor in tensors.items() if name not in fed and _is_one(tensor)})
    for node in graph.node:
        if node.op_type == "Identity" and node.input[0] in numbers:
            numbers[node.output[0]] = numbers[node.input[0]]
    return numbers


def _is_one(tensor: TensorProto) -> bool:
    kinds = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
    return tensor.data_type in kinds and math.prod(tensor.dims) == 1


def _number(tensor: TensorProto) -> int:
    return int(numpy_helper.to_array(tensor).reshape(-1)[0])


def _never_stops(body: GraphProto, around: Numbers) -> bool:
    """Whether the condition that a round hands on is the one it was given, or is always true."""
    numbers, given, handed = _stored_in(body, around), body.input[1].name, body.output[0].name
    renamed = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity"}
    for _ in renamed:
        handed = renamed.get(handed, handed)
    return handed == given or numbers.get(handed) == 1


# -- Sequences of tensors that are only a way to say Split, Concat or a single tensor.
#
# 1. Elements that SequenceAt takes out of SplitToSequence come out of a Split.
# 2. An element that SequenceAt takes out of SequenceConstruct is the tensor that went in; ConcatFromSequence of one is
#    a Concat.
# 3. Other sequences stay. Shapes have to be fixed: how many parts there are depends on them.


def without_sequences(draft: Draft) -> None:
    """Sequences of fixed length as Split and Concat, folded again: the engine (1.19.2) has no gradient for them."""
    if not any(node.op_type in ("SplitToSequence", "SequenceConstruct") for node in draft.graph.node):
        return
    work = _Sequences(draft)
    nodes = [made for node in draft.graph.node for made in work.written(node)]
    if work.changed:
        draft.place(nodes)
        fold(draft)


class _Sequences:
    def __init__(self, draft: Draft) -> None:
        self.draft, self.stored, self.names = draft, draft.tensors(), FreshNames.of(draft.graph)
        self.shapes = shapes_of(draft.model, [])
        self.elements: dict[str, list[str]] = {}  # of sequences that are no more
        self.changed = False

    def written(self, node: NodeProto) -> list[NodeProto]:
        """The nodes in place of this one."""
        made = [node]
        if node.op_type == "SplitToSequence" and self._plain(node.output[0]):
            made = self._split(node) or made
        elif node.op_type == "SequenceConstruct" and self._plain(node.output[0]):
            self.elements[node.output[0]] = list(node.input)
            made = []
        elif node.input and node.input[0] in self.elements:
            made = [self._taken(node)]
        self.changed |= made != [node]
        return made

    def _plain(self, sequence: str) -> bool:
        """Whether all that reads the sequence can do without it."""
        readers = [node for node in self.draft.graph.node if sequence in reads(node)]
        ends = {value.name for value in self.draft.graph.output}
        return sequence not in ends and all(self._understood(node) for node in readers)

    def _understood(self, node: NodeProto) -> bool:
        if any(True for _ in bodies(node)):
            return False
        if node.op_type == "SequenceAt":
            return node.input[1] in self.stored
        return node.op_type == "ConcatFromSequence" and not attributes(node).get("new_axis", 0)

    def _split(self, node: NodeProto) -> list[NodeProto]:
        given = attributes(node)
        shaped = self.shapes.get(node.input[0])
        sizes = _lengths(shaped, given.get("axis", 0), self._length(node))
        if sizes is None or (len(node.input) < 2 and not given.get("keepdims", 1)):
            return []
        names = [self.names(f"{node.output[0]}_{number}") for number in range(len(sizes))]
        lengths = self.names("split")
        self.draft.graph.initializer.append(numpy_helper.from_array(np.array(sizes, np.int64), lengths))
        self.elements[node.output[0]] = names
        return [make_node("Split", [node.input[0], lengths], names, axis=given.get("axis", 0))]

    def _length(self, node: NodeProto) -> list[int] | int | None:
        """Of the parts, each or all; 1 where it is not said."""
        if len(node.input) < 2 or not node.input[1]:
            return 1
        stored = self.stored.get(node.input[1])
        found: list[int] | int | None = None if stored is None else numpy_helper.to_array(stored).tolist()
        return found

    def _taken(self, node: NodeProto) -> NodeProto:
        elements = self.elements[node.input[0]]
        if node.op_type == "SequenceAt":
            place = int(numpy_helper.to_array(self.stored[node.input[1]]).reshape(-1)[0])
            return make_node("Identity", [elements[place]], [node.output[0]])
        return make_node("Concat", elements, [node.output[0]], axis=attributes(node)["axis"])


def _lengths(shaped: Shaped | None, axis: int, sizes: list[int] | int | None) -> list[int] | None:
    """Lengths of the parts; one number is the length of all but perhaps the last."""
    if isinstance(sizes, list):
        return sizes
    if sizes is None or shaped is None or shaped.sizes is None:
        return None
    whole = shaped.sizes[axis]
    return [min(sizes, whole - start) for start in range(0, whole, sizes)]
