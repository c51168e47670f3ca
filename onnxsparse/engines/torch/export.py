"""Exporting a torch module as an ONNX file whose tensors are its parameters: by which exporter, with which options.

1. What is exported is a copy in evaluation, without masks. Nothing is folded: batch normalizations stay nodes, and
   weights keep their names and layouts.
2. The newer exporter (dynamo) comes first, the older one (TorchScript) where that fails or loses names.
3. The first axis becomes the batch where the module gives the same for each sample of a batch twice as large.
4. Every parameter is looked for in the file by its numbers; what would not find its way back is said.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
from onnx import ModelProto

from onnxsparse.engines.torch import convert
from onnxsparse.engines.torch.attach import bare_module
from onnxsparse.engines.torch.example import CLOSE, Example, fresh, of_tensors, stored
from onnxsparse.engines.torch.library import attention_in_parts, torch
from onnxsparse.engines.torch.match.match import match
from onnxsparse.engines.torch.parameters import TABLE
from onnxsparse.engines.torch.parametrization import all_masks, take_mask_off
from onnxsparse.engines.torch.permute.export import quietly
from onnxsparse.engines.torch.permute.proof import CLOSE as PRECISIONS
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
HUGE = 1 << 30
SIZE_DECIDES = "forward goes on differently with the size of the batch"
DECIDED = ("Converting a tensor to a Python boolean",)
"""What torch warns of where it traces an `if` that asks the data."""
READ = ("Converting a tensor to a Python", "Converting a tensor to a NumPy", "Iterating over a tensor", "as constants")
"""What torch warns of where it traces Python that reads numbers, or sizes."""


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
    with exporting():
        example = Example.of(
            plain, inputs.mapped(lambda one: one.detach().to(device) if torch().is_tensor(one) else one)
        )
    made, reasons = _attempts(plain, example, options, folder)
    if not made:
        raise OutputError(f"torch cannot export the module: {'; '.join(reasons)}")
    best = min(made, key=lambda one: (one.differs, len(one.lost), not one.dynamic))
    others = [one for one in made if one is not best]
    fewer = [one for one in others if len(one.lost) > len(best.lost)]
    reasons += [f"{one.exporter} keeps the names of fewer parameters" for one in fewer]
    notes = (*_of_the_way(best, example, reasons), *_of_the_match(best, plain))
    return best.model, Exported(best.exporter, best.match, best.lost, notes)


def _plain_copy(module: Any) -> Any:
    if isinstance(module, torch().jit.ScriptModule):
        raise OptionError("a scripted or traced module is no source to export; take the module that it was made from")
    inner = bare_module(module)
    if stage_of(inner) is not None:
        raise OptionError("the module is rounded by a recipe; export it with osp.torch.export_quantized")
    _demand_numbers(inner)
    try:
        made = copied(inner)
    except UnprovenError as error:
        raise OptionError(f"the module cannot be exported: {error}") from None
    for _, owner, name in list(all_masks(made)):
        take_mask_off(owner, name)
    compiled = [(owner, *one) for owner in made.modules() for one in owner.named_children() if _is_compiled(one[1])]
    for owner, name, child in compiled:
        setattr(owner, name, bare_module(child))
    return made


def _demand_numbers(inner: Any) -> None:
    for name, one in (*inner.named_parameters(), *inner.named_buffers()):
        if torch().nn.parameter.is_lazy(one):
            raise OptionError(f"'{name}' of the module has no shape yet; run it once first")
        if one.is_meta:
            raise OptionError(f"'{name}' of the module has no numbers yet (it is on 'meta'); load its weights first")


def _is_compiled(module: Any) -> bool:
    return hasattr(module, "_orig_mod")


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
    differs: bool
    """Whether the file gives other outputs than the module."""
    read: int
    """How often Python read numbers or sizes there, which are constants of the file then."""
    most: int


def _attempts(
    module: Any, example: Example, options: Mapping[str, Any], folder: str
) -> tuple[list[_Attempt], list[str]]:
    """What exporters made, until one has lost nothing; and why others made nothing."""
    made: list[_Attempt] = []
    reasons: list[str] = []
    for dynamo in (True, False) if options.get("dynamo") is None else (bool(options["dynamo"]),):
        found, reason = _first_that_works(module, example, {**options, "dynamo": dynamo}, folder)
        reasons += [reason] if reason else []
        made += found
        if SIZE_DECIDES in reason:  # what this exporter found the other may not see
            example = replace(example, twice=None)
        if found and not found[-1].lost and not reason:
            break
    return made, reasons


def _first_that_works(
    module: Any, example: Example, options: Mapping[str, Any], folder: str
) -> tuple[list[_Attempt], str]:
    """With a dynamic batch, else without; and why not."""
    made: list[_Attempt] = []
    reason, title = "", _TITLES[options["dynamo"]]
    given = "dynamic_axes" in options or "dynamic_shapes" in options
    for dynamic in (True, False) if example.twice is not None and not given else (False,):
        way = f"{title}{' with a dynamic batch' * dynamic}"
        try:
            made.append(_attempt(module, example, options, dynamic, folder))
        except _FixedBatchError:
            reason = f"{title} found that {SIZE_DECIDES}"
            continue
        except Exception as error:  # whatever an exporter raises
            reason = f"{way} failed: {_said(error)}"
            continue
        if not made[-1].differs:
            break
        reason = f"{way} makes a file that gives other outputs than the module"
    return made, reason


def _said(error: BaseException) -> str:
    """What was first wrong; the newer exporter wraps that in advice of many lines."""
    while error.__cause__ is not None:
        error = error.__cause__
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {one_line(first)[:160]}"


_TITLES = {True: "dynamo", False: "torchscript"}


def _attempt(module: Any, example: Example, options: Mapping[str, Any], dynamic: bool, folder: str) -> _Attempt:
    dynamo = options["dynamo"]
    file = os.path.join(folder, f"{_TITLES[dynamo]}{dynamic:d}.onnx")
    size = sum(one.nbytes for one in stored(module))
    plain = (
        {"optimize": False, "external_data": size >= LARGE, "verbose": False}
        if dynamo
        else {"do_constant_folding": False, "training": torch().onnx.TrainingMode.PRESERVE}
    )
    asked = {"input_names": example.names, "output_names": example.outputs, **plain, **options}
    asked.update(example.dynamic(module, dynamo) if dynamic else {})
    called, given, kwargs = _as_exporters_take_it(module, example, options, dynamic)
    with exporting(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        program = torch().onnx.export(called, given, file, kwargs=kwargs, **asked)
    model = Model.open(file) if size >= LARGE else Model.over(_parted(onnx.load(file), module))
    if dynamic and not _has_dynamic_axis(model.proto):
        raise _FixedBatchError
    own = [str(one.message) for one in said if not one.filename.startswith(torch().__path__[0])]
    decided, read = (sum(any(words in one for words in some) for one in own) for some in (DECIDED, READ))
    found = match(model, module)
    differs = size < LARGE and _differs(model, module, example)
    return _Attempt(
        _TITLES[dynamo], dynamic, model, found, _lost(found, module), decided, differs, read, _most(program)
    )


class _FixedBatchError(Exception):
    """The exporter wrote one size of the batch, though it was asked for any."""


def _has_dynamic_axis(proto: ModelProto) -> bool:
    shapes = [one.type.tensor_type.shape.dim for one in proto.graph.input]
    return any(dims and dims[0].dim_param for dims in shapes)


def _most(program: Any) -> int:
    """The largest batch for which the newer exporter followed what forward does; 0 where that is any."""
    ranges = program.exported_program.range_constraints if hasattr(program, "exported_program") else {}
    uppers = [str(one.upper) for name, one in ranges.items() if str(name).startswith("s")]
    return min((int(one) for one in uppers if one.isdigit() and int(one) < HUGE), default=0)


def _differs(model: Model, module: Any, example: Example) -> bool:
    """Whether the file, run as a module, gives other outputs for the example; what has no module here is believed."""
    if not example.expected:
        return False
    tensors = example.tensors(module)
    try:
        made = convert.to_module(model)
        with exporting():
            outputs = made(*(tensors[name].cpu() for name in getattr(made, TABLE)["inputs"]))
    except Exception:  # an operator, a type or a size that only a runtime takes
        return False
    kinds = {str(one.dtype).partition(".")[2] for one in (*stored(module), *tensors.values())}
    close = max(PRECISIONS.get(kind, CLOSE) for kind in kinds)
    return not example.gives(outputs if isinstance(outputs, tuple) else (outputs,), close)


def _as_exporters_take_it(
    module: Any, example: Example, options: Mapping[str, Any], dynamic: bool
) -> tuple[Any, tuple[Any, ...], dict[str, Any] | None]:
    """The module, its arguments and its keywords; a dynamic axis needs a batch of more than one sample."""
    first = dynamic or any(_has_first_axis(options.get(name)) for name in ("dynamic_axes", "dynamic_shapes"))
    inputs = example.twice if first and example.twice is not None else example.inputs
    if options.get("dynamic_shapes") is not None:  # these follow the arguments of forward as it is
        return fresh(module), inputs.args, dict(inputs.kwargs) or None
    return *of_tensors(module, example, inputs), None


def _has_first_axis(axes: Any) -> bool:
    if isinstance(axes, Mapping):
        return 0 in axes or any(map(_has_first_axis, axes.values()))
    return isinstance(axes, (list, tuple)) and (0 in axes or any(map(_has_first_axis, axes)))


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
            lost[name] = _computed(found, name)
        elif name in found.folded:
            lost[name] = f"it is part of '{found.folded[name]}', into which its batch normalization was folded"
        elif name in found.refused:
            lost[name] = found.refused[name]
        elif name in found or name in found.aliases:
            one = found[name]
            if one.tensor not in {name, *_also(found, name)} or one.layout != SAME:
                lost[name] = f"it is '{one.tensor}' in the file" + ("" if one.layout == SAME else f", {one.layout}")
    return lost


def _computed(found: Match, name: str) -> str:
    way_out = "torch.nn.utils.parametrize.remove_parametrizations before the export keeps it"
    if name in found:
        return f"it is computed by a parametrization, and the file holds the result only; {way_out}"
    return f"it is computed by a parametrization, and the file holds the parts that it is computed of; {way_out}"


def _also(found: Match, name: str) -> list[str]:
    first = found.aliases.get(name, name)
    return [first, *(alias for alias, owner in found.aliases.items() if owner == first)]


def _of_the_way(best: _Attempt, example: Example, reasons: Sequence[str]) -> Iterator[str]:
    if reasons:
        yield f"exported by {best.exporter}; {'; '.join(reasons)}"
    if best.differs:
        yield "the file gives other outputs for the example than the module; do not use it before you know why"
    if best.decided:
        where = _places(best.decided)
        yield f"the file goes the way of the example: in {where} the data decide how the module goes on"
    if best.read > best.decided:
        where = _places(best.read - best.decided)
        yield f"in {where} Python reads numbers or sizes: those of the example are constants of the file"
    if best.most:
        yield f"the batch is at most {best.most}: with more samples forward goes on differently, and the file does not"
    if example.fixed or not best.dynamic:
        yield f"the batch has a fixed size{example.fixed and f': {example.fixed}'}"
    inputs = {one.name for one in best.model.proto.graph.input}
    if unused := [name for name in example.names if name not in inputs]:
        yield f"{', '.join(unused)}: no input of the file, as forward does not use it"
    yield from example.notes


def _places(number: int) -> str:
    return f"{number} place{'s' * (number > 1)}"


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
