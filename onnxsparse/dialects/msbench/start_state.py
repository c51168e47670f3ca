"""Initial weights of a training: the dense model, a checkpoint's parameters loaded into it, and their checks.

1. The dense model is `saver.pretrain_model`, or `model` as it is. It is the one to learn from, wherever a training
   starts: a network that is sparse already is no teacher, least of all its own.
2. Numbers are found by the names of stored tensors; of an average (EMA) in a checkpoint that is what counts. Where
   nothing is learned from the dense model, a start state takes its place; an ONNX file then as a whole.
3. A checkpoint of which most has no place in the model, or whose normalizations the export folded, is refused: what
   would train is a mixture of two networks. A head that was replaced is none, and a part of a network is none.
4. Exporters store tensors once that are equal, as the scales and biases of a net that was not trained are, and name the
   others by Identity. A checkpoint that has other numbers for them has no place for these.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zipfile import BadZipFile

import numpy as np
from onnx import NodeProto

from onnxsparse.dialects.msbench.job import Job
from onnxsparse.dialects.msbench.layer_rates import NAME
from onnxsparse.dialects.msbench.published_files import load_numbers
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import FLOAT_KINDS, StoredTensor
from onnxsparse.math.values import Array
from onnxsparse.planning.stored_params import as_float32, vector_param
from onnxsparse.planning.trainable import send_back
from onnxsparse.train.stepped_model import LoopOptions, SteppedModel

DIVERGENCES = ("distill", "kl")
EMA, STATES = ("ema", "ema_state_dict"), ("model", "state_dict", "model_state_dict")
AVERAGED = "the checkpoint has an EMA state: that is loaded as the start; EMA itself is ignored"
LEFT_OUT = (
    f"the checkpoint has what MSBench's modules hold beside weights ({NAME}), which is left out: the zeros in its "
    "weights count, and masks or thresholds that were not made part of them do not"
)
COUNTER, STATISTIC = "num_batches_tracked", "running_var"


@dataclass(frozen=True)
class Start:
    """An ONNX file; numbers for all of it, which is the dense model then; and numbers for what trains in it."""

    source: str
    dense: str = ""
    first: str = ""
    note: str = ""

    @property
    def named(self) -> str:
        """The file of numbers that decides how a training ends."""
        return self.first or self.dense


def is_onnx(path: str) -> bool:
    return path.lower().endswith(".onnx")


def learns(options: Mapping[str, Any], has_labels: bool) -> bool:
    """Whether the dense model's outputs are learned from."""
    loss = options.get("loss")
    return loss in DIVERGENCES or bool(options.get("hardness")) or (loss is None and not has_labels)


def start_of(job: Job, given: str, learning: bool, opened: Model) -> Start:
    """Where to start, of what the command line and the configuration say; `opened` is the model that these name."""
    first = given or job.resume
    dense = "" if is_onnx(job.pretrained) else job.pretrained
    known = next((one for one in (job.pretrained, job.model) if is_onnx(one)), "")
    if not first:
        return Start(known, dense)
    if not is_onnx(first):
        return Start(known, dense, first) if learning else Start(known, first)
    if not learning or not known:
        return Start(first)
    if first == known:
        return Start(known, dense, first if dense else "")
    if not os.path.isfile(first) or _same_network(known, first, job.options, opened):
        return Start(known, dense, first)
    return Start(first, note=f"{first} is another network than {known}, so it learns from itself as it is")


def _same_network(known: str, other: str, options: Mapping[str, Any], opened: Model) -> bool:
    """Whether two files are one network: nothing but what trains may be other numbers."""
    ours = opened if opened.path == known else Model.open(known)
    theirs, trained = Model.open(other), set(SteppedModel(ours, LoopOptions(**options)).trains)
    if [_wired(node) for node in ours.proto.graph.node] != [_wired(node) for node in theirs.proto.graph.node]:
        return False
    left, right = homes(ours), homes(theirs)
    alike = [(one.name, one.kind, one.shape) for one in left] == [(one.name, one.kind, one.shape) for one in right]
    return alike and all(np.array_equal(a.read(), b.read()) for a, b in zip(left, right) if a.name not in trained)


def _wired(node: NodeProto) -> tuple[Any, ...]:
    """A node without the numbers that it holds."""
    held = node.op_type == "Constant"
    said = () if held else tuple(one.SerializeToString(deterministic=True) for one in node.attribute)
    return (node.domain, node.op_type, tuple(node.input), tuple(node.output), said)


def homes(model: Model) -> list[StoredTensor]:
    """All stored tensors, in the order of the file."""
    _ = model.weights
    return list(model.flow.stores.homes)


def numbers_in(path: str) -> dict[str, Array]:
    """The floats in an ONNX file, by name."""
    return {one.name: as_float32(one) for one in homes(Model.open(path)) if one.kind in FLOAT_KINDS}


def named_numbers(path: str) -> dict[str, Array]:
    """The same with all names that exporters gave to a tensor, which they store once where several are equal."""
    found = numbers_in(path)
    merged = _merged(Model.open(path))
    return {**found, **{name: found[one] for name, one in merged.items() if one in found}}


# -- checkpoints


def read_state(path: str) -> tuple[dict[str, Array], list[str]]:
    """Numbers by name, of an .npz or of a checkpoint of torch; and remarks on what was left out of it."""
    if not os.path.exists(path):
        raise OptionError(f"{path} does not exist")
    if path.lower().endswith(".npz"):
        return _arrays_in(path), []
    state, averaged = _state_of(load_numbers(path))
    named = {_bare(str(name)): one for name, one in state.items() if hasattr(one, "detach")}
    plain = {name: one.detach().float().numpy() for name, one in named.items() if NAME not in name.split(".")}
    return plain, [AVERAGED] * averaged + [LEFT_OUT] * (len(plain) < len(named))


def _arrays_in(path: str) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, EOFError, ValueError, BadZipFile) as error:
        raise ModelError(f"{path} is no .npz of arrays of numbers, as numpy.savez writes them") from error


def _state_of(loaded: Any) -> tuple[Mapping[str, Any], bool]:
    """The state dict in a checkpoint; the averaged one where there is one."""
    if not isinstance(loaded, Mapping):
        raise ModelError("the checkpoint is no mapping of tensors")
    for names, averaged in ((EMA, True), (STATES, False)):
        for name in names:
            inner = loaded.get(name)
            if isinstance(inner, Mapping):
                deeper = next((inner[one] for one in (*EMA, *STATES) if isinstance(inner.get(one), Mapping)), inner)
                return deeper, averaged
    return loaded, False


def _bare(name: str) -> str:
    return name[len("module.") :] if name.startswith("module.") else name


def filled(model: Model, numbers: Mapping[str, Array]) -> Model:
    """The model with other numbers, wherever a tensor of that name and shape is stored."""
    tags = {one.name: vector_param(one, one.name) for one in homes(model) if one.kind in FLOAT_KINDS}
    fitting = {name: numbers[name] for name, one in tags.items() if _fits(numbers, name, one.tensor.shape)}
    with model.restored():
        send_back({name: np.asarray(array, np.float32) for name, array in fitting.items()}, tags)
        return Model.open(model.copy_proto())


def other_than(model: Model, numbers: Mapping[str, Array]) -> set[str]:
    """The names of stored tensors that hold something else than these numbers."""
    fitting = [one for one in homes(model) if one.kind in FLOAT_KINDS and _fits(numbers, one.name, one.shape)]
    return {one.name for one in fitting if not np.array_equal(as_float32(one), numbers[one.name])}


def _fits(numbers: Mapping[str, Array], name: str, shape: tuple[int, ...]) -> bool:
    return name in numbers and numbers[name].shape == shape


def demand_place(path: str, numbers: Mapping[str, Array], model: Model) -> None:
    """Enough of a checkpoint is in the model, and no part of it is there in another form."""
    source = model.path
    stored = {one.name: one.shape for one in homes(model) if one.kind in FLOAT_KINDS and one.size > 1}
    given = [name for name in numbers if name.rpartition(".")[2] != COUNTER]
    merged = {name: one for name, one in _merged(model).items() if name in numbers and name not in stored}
    _demand_apart(path, numbers, str(source), merged)
    placed = {name for name in given if name in merged or (name in stored and numbers[name].shape == stored[name])}
    stored.update({name: stored.get(one, ()) for name, one in merged.items()})
    folded = [name for name in given if name.endswith(STATISTIC) and name not in stored]
    unfilled = [name for name, shape in stored.items() if len(shape) > 1 and name not in placed]
    if not placed:
        why = "the checkpoint has none of the model's tensors under their names"
    elif folded and unfilled:
        why = f"the export folded normalizations ({folded[0]} is not in it)"
    elif 2 * len(placed) < len(given):
        why = "they have other names or shapes there"
    else:
        return
    raise ModelError(
        f"{path} does not fit {source}: {len(placed)} of {len(given)} tensors of the checkpoint and of {len(stored)} "
        f"of the model are the same ones; {why}; export the module that has loaded the checkpoint, or export without "
        "folding (do_constant_folding=False, training=PRESERVE after .eval(); docs/torch.md)"
    )


def _merged(model: Model) -> dict[str, str]:
    """The names that are given to a stored tensor by Identity, and its own."""
    found: dict[str, str] = {}
    stored = {tensor.name for tensor in model.proto.graph.initializer}
    for node in model.proto.graph.node:
        if node.op_type == "Identity" and (node.input[0] in stored or node.input[0] in found):
            found[node.output[0]] = found.get(node.input[0], node.input[0])
    return found


def _demand_apart(path: str, numbers: Mapping[str, Array], source: str, merged: Mapping[str, str]) -> None:
    """What the file has only once has the same numbers in the checkpoint."""
    split = [
        (name, one)
        for name, one in merged.items()
        if one not in numbers or not np.array_equal(numbers[name], numbers[one], equal_nan=True)
    ]
    if split:
        name, one = split[0]
        more = " and so on" if len(split) > 1 else ""
        raise ModelError(
            f"{path} does not fit {source}: {len(split)} tensors that have numbers of their own in the checkpoint have "
            f"none in the file, where '{name}' is '{one}'{more}: the exporter stores equal tensors once, and they were "
            "equal when it ran, as in a net that was not trained yet; load the checkpoint into the module and export "
            "that, in the same way"
        )
