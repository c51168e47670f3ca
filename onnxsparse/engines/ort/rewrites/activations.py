"""Activations for the training graph, by the function body of the ONNX standard where the engine is right about that.

With p = max(x, 0) and n = min(x, 0), so that x = p + n, the others are

    PRelu = p + slope n            Elu = p + alpha (exp(n) - 1)
    Selu = gamma (p + alpha (exp(n) - 1))
    Softplus(x) = log(1 + exp(x)) = p + log(1 + exp(-|x|))
    HardSigmoid(x) = clip(alpha x + beta, 0, 1)        HardSwish(x) = x clip(x / 6 + 1/2, 0, 1)
    Swish(x) = x sigmoid(alpha x)

At zero the derivative of p is 0 and that of n is 1: that of the whole is the one from below, which for Elu with
alpha = 1 is the one from above, too. The engine halves the gradient of a maximum of equals and drops that of |x|: the
derivative of Softplus is 1/2 there.
"""

from __future__ import annotations

from typing import Any, ClassVar

import onnx.defs
from onnx import FunctionProto, NodeProto, TensorProto, TypeProto, numpy_helper
from onnx.helper import get_attribute_value, make_tensor_type_proto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View
from onnxsparse.graph.attributes import attributes
from onnxsparse.graph.edit import Writer

_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


class StandardBody(Rewrite):
    """The function body that the ONNX standard gives an operator: one attribute or input after another filled in.

    onnx 1.16, the oldest that is supported, has these, and the engine (1.19.2) differentiates them right.
    """

    # Not taken from the standard, each for what was found when it was tried:
    # Elu, Selu: the body takes exp of every x; from x = 89 on the gradient is no number, where Where drops the branch.
    # Softplus: the body is log(1 + exp(x)), which overflows there.
    # HardSigmoid, HardSwish: right, but the gradients of Max and Min are several nodes each, that of Clip is one.
    # PRelu has a body from opset 16 on only, MeanVarianceNormalization and LayerNormalization one that runs from 18 on;
    # Swish has one since onnx 1.19. GroupNormalization: right, in 26 nodes, and the shapes are computed in each step.
    operators: ClassVar[tuple[str, ...]] = ("Celu", "Mish", "Softsign", "ThresholdedRelu", "Shrink")

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        schema: Any = onnx.defs.get_schema(node.op_type, view.opset)
        body = _body(schema, node, view)
        given = {name: entry.default_value for name, entry in schema.attributes.items() if entry.default_value.name}
        given.update({entry.name: entry for entry in node.attribute})
        names = {"": "", **dict(zip(body.input, node.input)), **dict(zip(body.output, node.output))}
        for inner in body.node:
            if inner.op_type == "CastLike":  # all is float32 in the copy, and there is no CastLike before opset 15
                names[inner.output[0]] = names[inner.input[0]]
                continue
            entries = [(one.name, given[one.ref_attr_name] if one.ref_attr_name else one) for one in inner.attribute]
            values = {name: get_attribute_value(entry) for name, entry in entries}
            if inner.op_type == "Constant":
                value = values.popitem()[1]
                array = numpy_helper.to_array(value) if isinstance(value, TensorProto) else value
                names[inner.output[0]] = writer.constant(array)
                continue
            made = [names.setdefault(name, writer.fresh(name.lower())) for name in inner.output]
            writer.many(inner.op_type, *(names.get(name, "") for name in inner.input), to=made, **values)
        return None


def _body(schema: Any, node: NodeProto, view: View) -> FunctionProto:
    """The newest body of an operator; some are made for the node, and for the types of its inputs."""
    if schema.has_function:
        text = schema.get_function_with_opset_version(schema.function_opset_versions[-1])
    else:
        kinds = [make_tensor_type_proto(view.types[name], None) if name else TypeProto() for name in node.input]
        text = schema.get_context_dependent_function_with_opset_version(
            schema.context_dependent_function_opset_versions[-1],
            node.SerializeToString(),
            [one.SerializeToString() for one in kinds],
        )
    found: FunctionProto = FunctionProto.FromString(text)
    return found


class Clip(StandardBody):
    """Left to the engine where the bounds are fixed: it gives no gradient to the bounds of Clip."""

    operators = ("Clip",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if not any(name in view.gradients for name in node.input[1:]):
            return None
        return super().write(node, view, writer)


class BelowZero(Rewrite):
    """The identity above zero and something else below it; the slope of PRelu has any shape and may be trained."""

    operators = ("PRelu", "Elu", "Selu")

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        x, given = node.input[0], attributes(node)
        above = writer.node("Relu", x)
        below = writer.node("Clip", x, "", writer.constant(0.0))
        if node.op_type == "PRelu":
            writer.node("Add", above, writer.node("Mul", below, node.input[1]), to=node.output[0])
            return None
        selu = node.op_type == "Selu"
        curve = writer.node("Sub", writer.node("Exp", below), writer.constant(1.0))
        curve = writer.node("Mul", curve, writer.constant(given.get("alpha", _SELU_ALPHA if selu else 1.0)))
        gamma = given.get("gamma", _SELU_GAMMA) if selu else 1.0
        writer.node("Mul", writer.node("Add", above, curve), writer.constant(gamma), to=node.output[0])
        return None


class HardSigmoid(Rewrite):
    """HardSigmoid and HardSwish: clipped straight lines."""

    operators = ("HardSigmoid", "HardSwish")

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        x, given, swish = node.input[0], attributes(node), node.op_type == "HardSwish"
        alpha, beta = (1 / 6, 0.5) if swish else (given.get("alpha", 0.2), given.get("beta", 0.5))
        line = writer.node("Add", writer.node("Mul", x, writer.constant(alpha)), writer.constant(beta))
        to = None if swish else node.output[0]
        clipped = writer.node("Clip", line, writer.constant(0.0), writer.constant(1.0), to=to)
        if swish:
            writer.node("Mul", x, clipped, to=node.output[0])
        return None


class Softplus(Rewrite):
    """Written so that nothing overflows."""

    operators = ("Softplus",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        x = node.input[0]
        smaller = writer.node("Exp", writer.node("Neg", writer.node("Abs", x)))
        smooth = writer.node("Log", writer.node("Add", smaller, writer.constant(1.0)))
        writer.node("Add", writer.node("Max", x, writer.constant(0.0)), smooth, to=node.output[0])
        return None


class Swish(Rewrite):
    """An operator of opset 24, younger than the engine."""

    operators = ("Swish",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        line = writer.node("Mul", node.input[0], writer.constant(attributes(node).get("alpha", 1.0)))
        writer.node("Mul", node.input[0], writer.node("Sigmoid", line), to=node.output[0])
        return None
