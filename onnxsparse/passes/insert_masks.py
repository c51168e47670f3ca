"""Putting `Mul(weight, mask)` before everything else that reads a stored float tensor.

1. One Mul per stored tensor, whatever its uses; the weight's own numbers stay as they are.
2. The mask is stored where the weight is: an initializer beside an initializer, a Constant beside a Constant.
3. Everything that read the weight reads the product, in bodies and QuantizeLinear too; names are new and unique.
4. Integer tensors have no Mul: they are left, with the reason.
5. Insert, then `fold --discard`, gives the same bytes.
What it does not do: change a weight, an existing name, or anything that does not read the weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from onnx import FunctionProto, GraphProto, NodeProto, TensorProto
from onnx.helper import make_node

from onnxsparse.errors import OnnxSparseError, OptionError
from onnxsparse.graph.attributes import IdentityKey
from onnxsparse.graph.edit import FreshNames, Outputs, all_names, insert_nodes, rename_reads
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import FLOAT_KINDS, StoredTensor
from onnxsparse.graph.stores import Home
from onnxsparse.math.values import Array
from onnxsparse.passes.model_pass import Changed, Pass
from onnxsparse.planning.given_masks import kept_by
from onnxsparse.planning.plan import Plan, PlanRow

FORMS = ("mul", "bool", "uint8", "where")
WHERE_SINCE = 9
_DATA_TYPES = {"bool": TensorProto.BOOL, "where": TensorProto.BOOL, "uint8": TensorProto.UINT8}


@dataclass(frozen=True, eq=False)
class Inserted:
    """What comes with one mask: the renamed reads, and the nodes that go in behind node number `at`."""

    home: Home
    old: str
    new: str
    nodes: list[NodeProto]
    mask: TensorProto | None
    at: int


class InsertMasks(Pass):
    """Inserts the masks of a plan into a model's graph."""

    def __init__(self, plan: Plan, form: str = "mul") -> None:
        if form not in FORMS:
            raise OptionError(f"--form is one of {', '.join(FORMS)}, not {form!r:.40}")
        self._plan, self._form = plan, form

    def refusal(self, model: Model) -> OnnxSparseError | None:
        opset = max((one.version for one in model.proto.opset_import if one.domain in ("", "ai.onnx")), default=0)
        if self._form == "where" and 0 < opset < WHERE_SINCE:
            return OptionError(
                f"--form where needs opset {WHERE_SINCE}, not the model's {opset}; use mul, bool or uint8"
            )
        return None

    def call(self, model: Model) -> Changed:
        _Insertion(model, self._plan, self._form).insert()
        return Changed({row.weight: "" for row in self._plan.planned})


class _Insertion:
    """The names, nodes and tensors of all masks, and where they go."""

    def __init__(self, model: Model, plan: Plan, form: str) -> None:
        self._model, self._plan, self._form = model, plan, form
        self._fresh = FreshNames(all_names(model.proto))
        self._places: dict[IdentityKey, dict[str, int]] = {}

    def insert(self) -> None:
        by_container: dict[IdentityKey, list[Inserted]] = {}
        for row in self._plan.planned:
            made = self._prepared(row)
            by_container.setdefault(IdentityKey(made.home.container), []).append(made)
        for mine in by_container.values():
            container = mine[0].home.container
            rename_reads(container.node, {one.old: one.new for one in mine})
            for one in sorted(mine, key=lambda one: one.at, reverse=True):
                insert_nodes(container, one.at, one.nodes)
                if one.mask is not None:
                    assert isinstance(container, GraphProto)
                    container.initializer.append(one.mask)
        self._model.forget()

    def _prepared(self, row: PlanRow) -> Inserted:
        tensor = row.weight.tensor
        home = self._model.flow.stores.homes[tensor]
        mask = _mask_proto(row, self._plan, self._form)
        mask.name = self._fresh(f"{tensor.name}_mask")
        product = self._fresh(f"{tensor.name}_masked")
        nodes = self._nodes(tensor, mask, product)
        if self._as_initializer(home):
            return Inserted(home, tensor.name, product, nodes, mask, 0)
        constant = make_node("Constant", [], [mask.name], name=self._fresh(f"{tensor.name}_mask_constant"))
        constant.attribute.add(name="value", type=4).t.CopyFrom(mask)
        return Inserted(home, tensor.name, product, [constant, *nodes], None, self._after(home, tensor.name))

    def _after(self, home: Home, name: str) -> int:
        """Right after the node that makes the weight; at the start where none does."""
        places = self._places.get(IdentityKey(home.container))
        if places is None:
            made = enumerate(home.container.node, 1)
            places = self._places[IdentityKey(home.container)] = {
                output: at for at, node in made for output in node.output
            }
        return places.get(name, 0)

    def _as_initializer(self, home: Home) -> bool:
        """Before IR 4 an initializer has to be an input as well, so a Constant is the quieter way."""
        return home.node is None and self._model.proto.ir_version >= 4 and not isinstance(home.container, FunctionProto)

    def _nodes(self, tensor: StoredTensor, mask: TensorProto, product: str) -> list[NodeProto]:
        name = self._fresh(f"{tensor.name}_apply_mask")
        if self._form == "mul":
            return [make_node("Mul", [tensor.name, mask.name], [product], name=name)]
        if self._form == "where":
            return self._where(tensor, mask.name, product, name)
        cast = self._fresh(f"{tensor.name}_mask_cast")
        return [
            make_node("Cast", [mask.name], [cast], name=self._fresh(f"{cast}_node"), to=tensor.proto.data_type),
            make_node("Mul", [tensor.name, cast], [product], name=name),
        ]

    def _where(self, tensor: StoredTensor, mask: str, product: str, name: str) -> list[NodeProto]:
        zero = self._fresh(f"{tensor.name}_mask_zero")
        constant = make_node("Constant", [], [zero], name=self._fresh(f"{zero}_node"))
        value = TensorProto(data_type=tensor.proto.data_type, raw_data=bytes(tensor.dtype.itemsize))
        constant.attribute.add(name="value", type=4).t.CopyFrom(value)
        return [constant, make_node("Where", [mask, tensor.name, zero], [product], name=name)]


def _mask_proto(row: PlanRow, plan: Plan, form: str) -> TensorProto:
    keep = kept_by(row, plan.rule.score)
    kind = row.weight.tensor
    data_type = _DATA_TYPES.get(form, kind.proto.data_type)
    return TensorProto(dims=kind.shape, data_type=data_type, raw_data=_mask_numbers(keep, kind, form).tobytes())


def _mask_numbers(keep: Array, tensor: StoredTensor, form: str) -> Array:
    if form != "mul":
        return keep.astype(np.uint8)
    one = np.uint16(0x3F80) if tensor.kind == "bfloat16" else tensor.dtype.type(1)
    return keep.astype(tensor.dtype) * one


def maskable(model: Model, plan: Plan) -> Plan:
    """The plan with the weights left out that no Mul can mask."""
    outputs = Outputs()
    return Plan(tuple(_or_left(model, row, outputs) for row in plan.rows), plan.rule)


def _or_left(model: Model, row: PlanRow, outputs: Outputs) -> PlanRow:
    reason = why_not_maskable(model, row, outputs)
    return (
        replace(row, pattern=None, drop=0, reason=reason, advice="prune writes its zeros directly") if reason else row
    )


def why_not_maskable(model: Model, row: PlanRow, outputs: Outputs) -> str:
    tensor = row.weight.tensor
    home = model.flow.stores.homes[tensor]
    if row.pattern is None:
        return ""
    if tensor.kind not in FLOAT_KINDS:
        return f"it is stored as {tensor.kind}, and a mask is multiplied with floats only"
    if row.weight.twins:
        return f"its bytes in the data file are also those of '{row.weight.twins[0].name}'"
    if outputs.has(home.container, tensor.name):
        return "it is itself an output of the graph, which a mask would not reach"
    if home.node is not None and any(attribute.ref_attr_name for attribute in home.node.attribute):
        return "it is handed to a function as an attribute, so no node of its own can mask it"
    if not tensor.name or (home.node is not None and tensor.name not in home.node.output):
        return "it has no name of its own in the graph"
    return ""
