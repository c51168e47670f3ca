"""If nodes are replaced by the branch that the samples take.

1. The conditions of all If nodes of the main graph are computed for several feeds.
2. Where they agree, the branch's nodes stand in the place of the node, under new names; then ones inside come to light.
3. Where they agree because of what the samples hold, others may differ: that is noted.
4. Where they differ the node stays, and is noted: data decides, and the graph has to be cut there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, numpy_helper
from onnx.helper import make_node

from onnxsparse.engines.ort.draft import Draft, called
from onnxsparse.engines.ort.reach import downstream, part
from onnxsparse.engines.ort.runner import Feed, Runner
from onnxsparse.engines.ort.scopes import Names, defined, rename


def take_branches(draft: Draft, feeds: Sequence[Feed], count: int) -> None:
    """Inline every branch on which all feeds, of `count` samples together, agree."""
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
        runner = Runner(part(draft.model, asked))
        for feed in feeds:
            for name, value in runner(feed).items():
                seen[name].add(bool(np.asarray(value).reshape(-1)[0]))
    return {name: next(iter(values)) if len(values) == 1 else None for name, values in seen.items()}


def _inlined(draft: Draft, node: NodeProto, taken: bool) -> list[NodeProto]:
    """The nodes of the branch, and an Identity for each output."""
    key = "then_branch" if taken else "else_branch"
    branch = next(attribute.g for attribute in node.attribute if attribute.name == key)
    names = Names(draft.graph)
    table = {name: names.fresh(name) for name in sorted(defined(branch))}
    nodes = list(branch.node)
    _redefine(nodes, table)
    rename(nodes, table)
    ends = [
        make_node("Identity", [table.get(value.name, value.name)], [name])
        for value, name in zip(branch.output, node.output)
        if name
    ]
    _label(nodes, names)
    return nodes + ends


def _redefine(nodes: Sequence[NodeProto], table: dict[str, str]) -> None:
    for node in nodes:
        for index, name in enumerate(node.output):
            node.output[index] = table.get(name, name)


def _label(nodes: Sequence[NodeProto], names: Names) -> None:
    for node in nodes:
        node.name = names.fresh(node.name or node.op_type)
