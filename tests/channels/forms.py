"""One form of an operator in a small graph: any order of its channels keeps the outputs, and what can move does."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.reference
from onnx import helper

from onnxsparse.channel_classes.classes import Channels
from tests.channels import judge, subject
from tests.channels.net import Array, Net, Trap


def held(net: Net, *outputs: str, move: str = "", stay: str = "") -> Channels:
    """Judged by the runtime. `move`, `stay`: weights whose columns, along what their reader sums over, do or do not."""
    return _demanded(net.trap(*outputs, move=move, stay=stay), runtime=True)


def held_by_reference(net: Net, *outputs: str, move: str = "", stay: str = "") -> Channels:
    """Judged by the reference implementation, for what the runtime of the tests has no kernel for."""
    outs = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(net.nodes, "net", net.inputs, outs, net.initializers)
    imports = [helper.make_opsetid("", net.opset)]
    imports += [helper.make_opsetid(domain, version) for domain, version in net.domains.items()]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10, functions=net.functions)
    kinds = [float_info(name) for name in outputs]
    for info, kind in zip(model.graph.output, kinds):
        info.CopyFrom(kind)
    trap = Trap("", model, net.feeds, tuple(move.split()), tuple(stay.split()), net.reductions)
    return _demanded(trap, runtime=False)


def float_info(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)


def _demanded(trap: Trap, runtime: bool) -> Channels:
    moved: set[str] = set()
    for seed in range(3):
        permuted = subject.randomly_permuted(trap.model, seed)
        wrong = _wrong(trap, permuted.model, runtime)
        assert not wrong, wrong
        assert judge.same_bytes(trap.model, subject.moved_back(permuted)), "the inverse gives other bytes"
        moved |= judge.moved(trap.model, permuted.model, trap.reductions)
    assert not moved & {*trap.must_stay}, f"moved: {sorted(moved & {*trap.must_stay})}"
    assert moved >= {*trap.must_move}, f"did not move: {sorted({*trap.must_move} - moved)}"
    return permuted.channels


def _wrong(trap: Trap, permuted: onnx.ModelProto, runtime: bool) -> list[str]:
    if runtime:
        return judge.judge(trap.model, permuted, trap.feeds, exact=False)
    wrong = judge.changed_structure(trap.model, permuted) + judge.changed_numbers(trap.model, permuted)
    before, after = (_by_reference(model, trap.feeds) for model in (trap.model, permuted))
    far = [judge.relative_distance(*pair) for pair in zip(before, after)]
    return wrong + [f"differs by {distance:.2g} of its scale" for distance in far if distance > 3e-5]


def _by_reference(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    ran = onnx.reference.ReferenceEvaluator(model).run(None, dict(feeds))
    return [np.asarray(one) for one in ran]
