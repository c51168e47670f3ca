"""Checking that every operator of a model has a torch function, before any work is done.

1. Opsets 6 to the last one that the operators were held against.
2. A graph that computes with integers in place of weights is refused as a whole: its float original trains.
3. All unknown operators are named in one error, with their nodes and a way out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx import FunctionProto, ModelProto, NodeProto

from onnxsparse.engines.fake_quantization import is_fake
from onnxsparse.engines.rounding import computes_with_integers
from onnxsparse.engines.torch import library, operators
from onnxsparse.errors import ModelError
from onnxsparse.graph.attributes import label
from onnxsparse.graph.edit import bodies, functions_of

FIRST_OPSET, LAST_OPSET = 6, 28
_NCHWC = "com.microsoft.nchwc."


def function_key(node: NodeProto) -> tuple[str, str, str]:
    return node.domain, node.op_type, getattr(node, "overload", "")


def domain_of(node: NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


def opsets_of(proto: ModelProto | FunctionProto) -> dict[str, int]:
    return {"" if one.domain == "ai.onnx" else one.domain: one.version for one in proto.opset_import}


def demand_support(proto: ModelProto) -> None:
    """Raise for whatever cannot be converted."""
    opset = opsets_of(proto).get("", LAST_OPSET)
    if not FIRST_OPSET <= opset <= LAST_OPSET:
        way = "convert it with onnx.version_converter first"
        raise ModelError(f"the model has opset {opset}; torch takes {FIRST_OPSET} to {LAST_OPSET}: {way}")
    unknown: dict[str, list[str]] = {}
    quantized: dict[str, list[str]] = {}
    for node, opsets in _reached(proto):
        if computes_with_integers(node):
            quantized.setdefault(node.op_type, []).append(label(node))
        elif not _known(node, opsets):
            name = f"{node.domain}.{node.op_type}" if domain_of(node) else node.op_type
            unknown.setdefault(name, []).append(label(node))
    if quantized:
        raise ModelError(
            f"the model is quantized to integers ({_listed(quantized)}), which do not train; "
            "start from the float model it was made from"
        )
    if any(name.startswith(_NCHWC) for name in unknown):
        raise ModelError(
            f"onnxruntime saved the model in blocks of one kind of processor ({_listed(unknown)}); take the model from "
            "before, or save it with ORT_ENABLE_EXTENDED"
        )
    if unknown:
        raise ModelError(
            f"torch has no function for {_listed(unknown)}; cut the model before that with "
            "onnx.utils.extract_model, or export it without"
        )


def may_take(proto: ModelProto) -> bool:
    """Whether nothing is known that torch would refuse; without torch only what is quantized is known."""
    if not library.available():
        return not any(computes_with_integers(node) for node, _ in _reached(proto))
    try:
        demand_support(proto)
    except ModelError:
        return False
    return True


def _known(node: NodeProto, opsets: dict[str, int]) -> bool:
    domain = domain_of(node)
    if is_fake(node) or (domain == "" and node.op_type in (*operators.CONTROL, "Constant")):
        return True
    return operators.find(domain, node.op_type, opsets.get(domain, LAST_OPSET)) is not None


def _reached(proto: ModelProto) -> Iterator[tuple[NodeProto, dict[str, int]]]:
    """All nodes, with the opsets that hold for them; those of local functions where they are called."""
    functions, seen = functions_of(proto), set()
    pending: list[tuple[Iterable[NodeProto], dict[str, int]]] = [(proto.graph.node, opsets_of(proto))]
    while pending:
        nodes, opsets = pending.pop(0)
        for node in nodes:
            key = function_key(node)
            if key not in functions:
                yield node, opsets
                pending += [(body.node, opsets) for body in bodies(node)]
            elif key not in seen:
                seen.add(key)
                pending.append((functions[key].node, opsets_of(functions[key])))


def _listed(found: dict[str, list[str]]) -> str:
    return "; ".join(f"{name} ({_nodes(nodes)})" for name, nodes in sorted(found.items()))


def _nodes(nodes: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in nodes[:3])
    rest = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return f"{'nodes' if len(nodes) > 1 else 'node'} {shown}{rest}"
