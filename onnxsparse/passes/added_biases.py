"""Calibration with --add-bias: of a copy of the model in which layers without a bias have one, and the way back.

1. The copy shares the files of the model, so that nothing large is read twice. Its new biases are zeros, so that it
   computes what the model computes.
2. Masks, numbers and reasons that were found in the copy are those of the file, tensor by tensor. A bias that is zero
   in the end is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from onnxsparse.calibration.new_biases import NewBias, NewBiases, new_biases, put_biases
from onnxsparse.calibration.new_numbers import Read
from onnxsparse.calibration.stored_numbers import in_kind
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.graph.stores import keys
from onnxsparse.math.values import Array
from onnxsparse.passes.calibrate import Calibrated, named_states
from onnxsparse.passes.delivery import in_model
from onnxsparse.planning.plan import Plan, PlanRow
from onnxsparse.planning.stored_params import StoredParam, vector_param, weight_param

NAMED = 5
"""So many new biases are named in a note; the rows and the JSON name all."""


@dataclass(frozen=True, eq=False)
class WithBiases:
    """A model, and the copy in which every layer that can has a bias."""

    file: Model
    model: Model
    new: NewBiases

    def of_file(self, found: Calibrated) -> Calibrated:
        """What was found in the copy, as it is to be delivered."""
        kept, added = self._tensors(), dict[str, Array]()
        tags, reads = dict[str, StoredParam](), dict[str, Any]()
        for tag in found.numbers:
            tensor = found.tags[tag].tensor
            home = kept.get(tensor)
            if home is None:
                added[tensor.name] = in_kind(found.numbers[tag], tensor.kind)
            else:
                tags[home.tag], reads[home.tag] = home, partial(found.numbers.__getitem__, tag)
        biases = tuple(self.new.filled(added))
        plan = in_model(self.file, found.plan)
        plan = replace(plan, rows=tuple(self._row(row, found, biases) for row in plan.rows))
        return replace(found, plan=plan, numbers=Read(reads), tags=tags, biases=biases)

    def _tensors(self) -> dict[StoredTensor, StoredParam]:
        """The stored tensors of the copy that the file has, too, as those of the file."""
        weights = {weight.tensor: weight for weight in self.file.weights if weight.uses}
        stores = self.file.flow.stores
        params = {
            key: weight_param(weights[tensor]) if tensor in weights else vector_param(tensor, stores.homes[tensor].tag)
            for tensor, key in keys(stores).items()
        }
        return {tensor: params[key] for tensor, key in keys(self.model.flow.stores).items() if key in params}

    def _row(self, row: PlanRow, found: Calibrated, biases: Sequence[NewBias]) -> PlanRow:
        """A row that was refitted, with what became of its bias."""
        if row.name not in found.swept:
            return row
        name, why = next((one.name for one in biases if one.weight == row.name), ""), self.new.reasons.get(row.name, "")
        if row.name in self.new.made and not name and not found.swept[row.name].fell_back:
            why = "it would be zero"
        said = f"bias '{name}' created" if name else f"no bias created: {why}" if why else ""
        return replace(row, reason="; ".join(filter(None, [row.reason, said])))


def with_biases(model: Model, plan: Plan) -> WithBiases:
    """A model, and its copy with biases of zeros for the layers of a plan."""
    with named_states(model):
        found = new_biases(model, plan)
    copy = model.another()
    put_biases(copy.proto, found.made.values())
    return WithBiases(model, copy, found)


def told_of_bias(bias: NewBias) -> dict[str, Any]:
    """What the JSON says of a new bias."""
    facts = {"name": bias.name, "weight": bias.weight, "node": bias.node}
    return {**facts, "size": bias.numbers.size, "dtype": bias.kind}


def said_of_biases(biases: Sequence[NewBias]) -> str:
    """The same of all of them, in words."""
    if not biases:
        return "no bias was created: no layer without one could get one, or gains by it"
    more = f" and {len(biases) - NAMED} more" if len(biases) > NAMED else ""
    names = ", ".join(f"'{one.name}'" for one in biases[:NAMED]) + more
    return f"{len(biases)} {'bias was' if len(biases) == 1 else 'biases were'} created: {names}"


__all__ = ["WithBiases", "said_of_biases", "told_of_bias", "with_biases"]
