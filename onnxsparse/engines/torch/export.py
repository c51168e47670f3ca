"""Exporting a torch module as an ONNX file whose tensors are its parameters: by which exporter, with which options.

1. What is exported is a copy in evaluation, without masks. Nothing is folded: batch normalizations stay nodes, and
   weights keep their names and layouts.
2. The newer exporter (dynamo) comes first, the older one (TorchScript) where that fails or loses names.
3. The first axis becomes the batch where the module gives the same for each sample of a batch twice as large.
4. Every parameter is looked for in the file by its numbers; what would not find its way back is said.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
from onnx import ModelProto

from onnxsparse.engines.torch.attach import bare_module
from onnxsparse.engines.torch.library import attention_in_parts, torch
from onnxsparse.engines.torch.match.match import match
from onnxsparse.engines.torch.parametrization import all_masks, take_mask_off
from onnxsparse.engines.torch.permute.export import quietly
from onnxsparse.engines.torch.permute.proof import Inputs, UnprovenError, copied
from onnxsparse.engines.torch.quantized_module import stage_of
from onnxsparse.errors import OptionError, OutputError, one_line
from onnxsparse.graph.model import Model
from onnxsparse.graph.torch_match import SAME, Match

OWN = ("model", "args", "f", "kwargs", "training", "export_params", "do_constant_folding", "optimize", "external_data")
"""What of torch's own arguments is decided here."""
LARGE = 2 << 30
"""How many bytes one file of ONNX holds (protobuf's limit); what is larger has its tensors in files beside it."""
LISTED = 4
CLOSE = 1e-4
DECIDED = "Converting a tensor to a Python boolean"
"""What torch warns of where it traces an `if` that asks the data."""


@dataclass(frozen=True)
class Exported:
    """How a module was exported: by `exporter`, dynamo or torchscript, and which tensor each parameter is (`match`).

    `lost` are the parameters that are not in the file under their own names, with the reason; `notes` says in lines
    for people what to know of the file. `model` is the model where no path was given.
    """

    exporter: str
    match: Match
    lost: Mapping[str, str]
    notes: tuple[str, ...]
    model: ModelProto | None = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        """Whether every parameter is in the file under its own name and in its own layout."""
        return not self.lost


@contextlib.contextmanager
def exporting() -> Iterator[None]:
    """Torch's exporters without what they print, draw or leave switched on."""
    with quietly(), torch().no_grad(), torch().random.fork_rng([]), attention_in_parts():
        yield


def exported(module: Any, inputs: Inputs, options: Mapping[str, Any], folder: str) -> tuple[Model, Exported]:
    """The best of what torch's exporters make of a module; their files lie in `folder`."""
    if given := next((name for name in OWN if name in options), None):
        raise OptionError(f"{given} is said by osp.torch.export itself; other arguments of torch.onnx.export are taken")
    plain = _plain_copy(module)
    device = next((one.device for one in plain.parameters()), torch().device("cpu"))
    call = _Call.of(plain, inputs.mapped(lambda one: one.detach().to(device) if torch().is_tensor(one) else one))
    made, reasons = _attempts(plain, call, options, folder)
    if not made:
        raise OutputError(f"torch cannot export the module: {'; '.join(reasons)}")
    best = min(made, key=lambda one: (len(one.lost), not one.dynamic))
    others = [one for one in made if one is not best]
    fewer = [one for one in others if len(one.lost) > len(best.lost)]
    reasons += [f"{one.exporter} keeps the names of fewer parameters" for one in fewer]
    notes = (*_of_the_way(best, call, reasons), *_of_the_match(best, plain))
    return best.model, Exported(best.exporter, best.match, best.lost, notes)


def _plain_copy(module: Any) -> Any:
    inner = bare_module(module)
    if stage_of(inner) is not None:
        raise OptionError("the module is rounded by a recipe; export it with osp.torch.export_quantized")
    for name, one in (*inner.named_parameters(), *inner.named_buffers()):
        if torch().nn.parameter.is_lazy(one):
            raise OptionError(f"'{name}' of the module has no shape yet; run it once first")
        if one.is_meta:
            raise OptionError(f"'{name}' of the module has no numbers yet (it is on 'meta'); load its weights first")
    try:
        made = copied(inner)
    except UnprovenError as error:
        raise OptionError(f"the module cannot be exported: {error}") from None
    for _, owner, name in list(all_masks(made)):
        take_mask_off(owner, name)
    return made


# -- what the module is called with, by which names, and whether the first axis is one of samples


@dataclass(frozen=True)
class _Call:
    """The inputs of an export, and the names of the graph's inputs and outputs; `fixed` says why the batch is."""

    inputs: Inputs
    names: tuple[str, ...]
    outputs: tuple[str, ...]
    batch: int = 0
    fixed: str = ""

    @classmethod
    def of(cls, module: Any, inputs: Inputs) -> _Call:
        with exporting():
            try:
                outputs = inputs.call(module)
            except Exception as error:  # whatever a user's module raises
                raise OptionError(
                    f"the module does not run on the example: {type(error).__name__}: {one_line(error)[:200]}"
                ) from None
            own = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
            names = _unused(_input_names(module, inputs), own, "_in")
            found = cls(inputs, names, _unused(_output_names(outputs), {*own, *names}, "_out"))
            return found._doubled(module, outputs)

    def _doubled(self, module: Any, outputs: Any) -> _Call:
        """Twice as many samples, as exporters take a size of 1 for a constant; where that is the same computation."""
        batch = next((len(one) for one in _tensors((self.inputs.args, self.inputs.kwargs)) if one.dim()), 0)
        if not batch:
            return replace(self, fixed="no input has an axis")
        twice = self.inputs.mapped(lambda one: torch().cat([one, one.flip(0)]) if _has(one, batch) else one)
        try:
            seen = _tensors(twice.call(module))
        except Exception as error:  # whatever a user's module raises
            return replace(self, fixed=f"the module does not run on {2 * batch} samples: {one_line(error)[:120]}")
        pairs = list(zip(seen, _tensors(outputs)))
        grown = any(one.shape != first.shape for one, first in pairs)
        if not grown or not all(_same(one, first, batch) for one, first in pairs):
            return replace(self, fixed="samples of one batch change one another's outputs, or its first axis is none")
        return replace(self, inputs=twice, batch=2 * batch)

    def dynamic(self, module: Any, dynamo: bool) -> dict[str, Any]:
        """The option that makes the first axis of each input that has the batch a dynamic one."""
        if not dynamo:
            tensors = zip(self.names, _tensors(list(_bound(module, self.inputs).values())))
            return {"dynamic_axes": {name: {0: "batch"} for name, one in tensors if _has(one, self.batch)}}
        batch = torch().export.Dim("batch")
        tree = torch().utils._pytree.tree_map
        shapes = tree(lambda one: {0: batch} if _has(one, self.batch) else None, _bound(module, self.inputs))
        return {"dynamic_shapes": shapes}


def _has(one: Any, batch: int) -> bool:
    return bool(torch().is_tensor(one) and one.dim() and one.shape[0] == batch)


def _same(one: Any, first: Any, batch: int) -> bool:
    """Whether a tensor of twice as many samples begins with that of the first ones, whatever axis they lie along."""
    if one.dim() != first.dim():
        return False
    axes = [axis for axis, size in enumerate(first.shape) if one.shape[axis] != size]
    if len(axes) > 1 or any(first.shape[axis] != batch for axis in axes):
        return False
    begun = one.narrow(axes[0], 0, batch) if axes else one
    reach = float(first.abs().max()) if first.numel() and first.is_floating_point() else 1.0
    return bool(torch().allclose(begun.double(), first.double(), CLOSE, CLOSE * reach, equal_nan=True))


def _tensors(tree: Any) -> list[Any]:
    return [one for one in torch().utils._pytree.tree_leaves(tree) if torch().is_tensor(one)]


def _bound(module: Any, inputs: Inputs) -> dict[str, Any]:
    """The values of forward's arguments, by their names."""
    return dict(inspect.signature(module.forward).bind(*inputs.args, **inputs.kwargs).arguments)


def _input_names(module: Any, inputs: Inputs) -> list[str]:
    found = []
    for name, value in _bound(module, inputs).items():
        tensors = _tensors(value)
        found += [name] if torch().is_tensor(value) else [f"{name}_{index}" for index in range(len(tensors))]
    return found


def _output_names(outputs: Any) -> list[str]:
    if torch().is_tensor(outputs):
        return ["output"]
    if isinstance(outputs, Mapping) and all(torch().is_tensor(one) for one in outputs.values()):
        return [str(name) for name in outputs]
    if hasattr(outputs, "_fields") and all(torch().is_tensor(one) for one in outputs):
        return [str(name) for name in outputs._fields]
    return [f"output_{index}" for index in range(len(_tensors(outputs)))]


def _unused(names: Sequence[str], taken: set[str], more: str) -> tuple[str, ...]:
    """In a graph a name is that of one tensor."""
    return tuple(f"{name}{more}" if name in taken else name for name in names)


# -- the exporters


@dataclass(frozen=True)
class _Attempt:
    exporter: str
    dynamic: bool
    model: Model
    match: Match
    lost: Mapping[str, str]
    decided: int
    """How often the data decided what the older exporter, which follows one path, wrote down."""


def _attempts(module: Any, call: _Call, options: Mapping[str, Any], folder: str) -> tuple[list[_Attempt], list[str]]:
    """What exporters made, until one has lost nothing; and why others made nothing."""
    made: list[_Attempt] = []
    reasons: list[str] = []
    for dynamo in (True, False) if options.get("dynamo") is None else (bool(options["dynamo"]),):
        found, reason = _first_that_works(module, call, {**options, "dynamo": dynamo}, folder)
        reasons += [reason] if reason else []
        made += found
        if found and not found[0].lost and not reason:
            break
    return made, reasons


def _first_that_works(module: Any, call: _Call, options: Mapping[str, Any], folder: str) -> tuple[list[_Attempt], str]:
    """With a dynamic batch, else without; nothing, and why, where neither works."""
    reason, title = "", _TITLES[options["dynamo"]]
    given = "dynamic_axes" in options or "dynamic_shapes" in options
    for dynamic in (True, False) if call.batch and not given else (False,):
        try:
            return [_attempt(module, call, options, dynamic, folder)], reason
        except Exception as error:  # whatever an exporter raises
            reason = f"{title}{' with a dynamic batch' * dynamic} failed: {_said(error)}"
    return [], reason


def _said(error: BaseException) -> str:
    """What was first wrong; the newer exporter wraps that in advice of many lines."""
    while error.__cause__ is not None:
        error = error.__cause__
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {one_line(first)[:160]}"


_TITLES = {True: "dynamo", False: "torchscript"}


def _attempt(module: Any, call: _Call, options: Mapping[str, Any], dynamic: bool, folder: str) -> _Attempt:
    dynamo = options["dynamo"]
    file = os.path.join(folder, f"{_TITLES[dynamo]}{dynamic:d}.onnx")
    size = sum(one.nbytes for one in (*module.parameters(), *module.buffers()))
    plain = (
        {"optimize": False, "external_data": size >= LARGE, "verbose": False}
        if dynamo
        else {"do_constant_folding": False, "training": torch().onnx.TrainingMode.PRESERVE}
    )
    asked = {"input_names": call.names, "output_names": call.outputs, **plain, **options}
    asked.update(call.dynamic(module, dynamo) if dynamic else {})
    with exporting(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch().onnx.export(module, call.inputs.args, file, kwargs=dict(call.inputs.kwargs) or None, **asked)
    model = Model.open(file) if size >= LARGE else Model.over(_parted(onnx.load(file), module))
    found, asked_data = (
        match(model, module),
        sum(DECIDED in str(one.message) and not one.filename.startswith(torch().__path__[0]) for one in said),
    )
    return _Attempt(_TITLES[dynamo], dynamic, model, found, _lost(found, module), asked_data)


def _parted(proto: ModelProto, module: Any) -> ModelProto:
    """A tensor of its own for each parameter: TorchScript's exporter stores equal ones once, and adds an Identity."""
    own = dict((*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)))
    stored = {one.name: one for one in proto.graph.initializer}
    for node in [one for one in proto.graph.node if one.op_type == "Identity" and one.input[0] in stored]:
        name, source = node.output[0], node.input[0]
        if name in own and own[name] is not own.get(source) and list(own[name].shape) == list(stored[source].dims):
            proto.graph.initializer.add().CopyFrom(stored[source])
            proto.graph.initializer[-1].name = name
            proto.graph.node.remove(node)
    return proto


# -- the way back


def _lost(found: Match, module: Any) -> dict[str, str]:
    """Why a parameter is not in the file under its own name; of tied ones each has a name that is."""
    lost = {}
    for path, _ in module.named_parameters():
        name = path.replace("parametrizations.", "").rpartition(".original")[0] if ".original" in path else path
        if name != path:
            lost[name] = "it is computed by a parametrization, and the file holds the result only"
        elif name in found.folded:
            lost[name] = f"it is part of '{found.folded[name]}', into which its batch normalization was folded"
        elif name in found.refused:
            lost[name] = found.refused[name]
        elif name in found or name in found.aliases:
            one = found[name]
            if one.tensor not in {name, *_also(found, name)} or one.layout != SAME:
                lost[name] = f"it is '{one.tensor}' in the file" + ("" if one.layout == SAME else f", {one.layout}")
    return lost


def _also(found: Match, name: str) -> list[str]:
    first = found.aliases.get(name, name)
    return [first, *(alias for alias, owner in found.aliases.items() if owner == first)]


def _of_the_way(best: _Attempt, call: _Call, reasons: Sequence[str]) -> Iterator[str]:
    if reasons:
        yield f"exported by {best.exporter}; {'; '.join(reasons)}"
    if best.decided:
        yield f"the file goes the way of the example: in {best.decided} places the data decide how the module goes on"
    if call.fixed:
        yield f"the batch has a fixed size: {call.fixed}"


def _of_the_match(best: _Attempt, module: Any) -> Iterator[str]:
    for reason in dict.fromkeys(best.lost.values()):
        names = [name for name, said in best.lost.items() if said == reason]
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        yield f"{', '.join(names[:LISTED])}{more} would not come back by name: {reason}"
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for alias, name in [one for one in best.match.aliases.items() if one[0] in parameters]:
        yield f"{alias} and {name} are one parameter, and one tensor of the file"
    for name, one in best.match.matched.items():
        if one.copies:
            others = ", ".join(f"'{copy.tensor}'" for copy in one.copies)
            yield f"{name} lies in the file more than once ({others}); what is trained there may differ in each copy"


__all__ = ["Exported", "exported", "exporting"]
