"""A user's torch module, in the user's own loop, as what is trained: its parameters, masks and optimizer.

1. Masks are parametrizations of the module's own parameters, which stay the objects that the optimizer holds.
   State dicts keep their names.
2. The optimizer is the user's: its groups have the rates and decays, and its moments are cleared where a mask changes.
   Without one, as where a recipe is applied at once, rates and decays mean nothing.
3. A parameter that is tied has several names and is one parameter. In a module made of an ONNX file a weight also
   answers to the names of its layer there.
4. `__ALL_PRUNABLE__` are the weights of linear layers, convolutions and look-up tables; in a module made of an ONNX
   file those that such an operator reads.
5. What wrappers for several devices or compilers put before a name does not count.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from onnxsparse.acts.act import TimedAct
from onnxsparse.acts.params import ALL, ALL_PRUNABLE, REGULAR, Param, compiled
from onnxsparse.acts.trainee import Groups, Trainee
from onnxsparse.engines.torch import quantized_module, thinning
from onnxsparse.engines.torch.attach import demand_free
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.mask_to_param import layers_as_model
from onnxsparse.engines.torch.parametrization import PATTERNS, clear_moments, mask_of, put_mask_on, take_mask_off, zero
from onnxsparse.engines.torch.skipped_layers import named_modules, put_back, skip
from onnxsparse.errors import OptionError, PlanError, nearest
from onnxsparse.graph.model import Model
from onnxsparse.math.param import View
from onnxsparse.math.values import Array
from onnxsparse.planning.names import Named, layers_of_node, names_of_node
from onnxsparse.planning.quantization import Scheme
from onnxsparse.train.grad_sampler import GradSampler
from onnxsparse.train.quantized_layers import layers_of

LOG = logging.getLogger("onnxsparse")
PRUNABLE = ("Linear", "_ConvNd", "Embedding", "Conv1D")
MOMENTA = ("momentum_buffer", "exp_avg")
PRUNED_FROM = 0.05
"""From this share of zeros on SparseML counts a parameter as pruned, and not where nothing else is left."""
OPERATORS = ("Conv", "ConvTranspose", "Einsum", "Gather", "Gemm", "MatMul")
WEIGHT = "weight"
NO_SAMPLER = "gradients of samples need modify(..., grad_sampler={'data_loader_builder': ..., 'loss_function': ...})"
Calls = list[Any]  # nodes of torch.fx
Homes = list[tuple[Any, str]]  # the modules a parameter stands in, and its name there


class ModuleTrainee(Trainee):
    """The parameters of a module in a user's loop."""

    def __init__(self, module: Any, loggers: Any = None, optimizer: Any = None) -> None:
        super().__init__()
        self.module = demand_free(module)
        found = params_of(self.module)
        bare = next((param.name for param, tensor, _ in found if tensor.is_meta), None)
        if bare is not None:
            raise OptionError(f"the parameter {bare} has no numbers yet, it is on the device meta; load them first")
        self.params = [param for param, _, _ in found]
        self._tensors = {param.tag: tensor for param, tensor, _ in found}
        self._homes: dict[str, Homes] = {param.tag: homes for param, _, homes in found}
        self._masked: dict[str, None] = {}
        self._remembered: set[str] = set()
        self._acts: list[TimedAct] = []
        self.loggers = loggers
        self.optimizer = optimizer
        self.per_epoch = 1
        self.learn_scales = False
        self.scaler: Any = None
        """What stands for the optimizer in the loop; a GradScaler multiplies its gradients."""
        self.calibrate: Callable[[], None] | None = None
        """Runs the module on samples, for the first ranges of what it computes."""
        self.sampler: GradSampler | None = None
        """What gives samples to take gradients of, and their loss, where the loop's owner has it."""
        self.rates_set: list[float] | None = None

    def meet(self, optimizer: Any, per_epoch: float) -> None:
        """The optimizer, and how many of its steps make an epoch; gradients that add up make it no whole number."""
        is_new = optimizer is not self.optimizer
        self.optimizer, self.per_epoch = optimizer, cast(int, per_epoch)
        if is_new:
            self._train_scales()

    def demand(self, act: TimedAct) -> None:
        self._paths(act)
        if self.optimizer is not None:  # before there is one, samples may still come
            act.demand_samples(self.has_samples)
        count = 0 if self.optimizer is None else len(self.optimizer.param_groups)
        for place in act.groups() or () if count else ():
            if not 0 <= place < count:
                raise OptionError(
                    f"{act.where}: param_groups: the optimizer has {count} groups, and none is number {place}; they "
                    "are counted from 0"
                )

    def admit(self, act: TimedAct) -> None:
        super().admit(act)
        self.attach(act.masked())
        self._remembered.update(param.tag for param in act.remembered())
        self._acts.append(act)

    # -- masks

    def attach(self, params: Iterable[Param]) -> None:
        """Open masks, so that the module keeps its form from now on."""
        for param in params:
            if param.tag not in self._masked:
                tensor, homes = self._tensors[param.tag], self._homes[param.tag]
                keep = torch().ones(tensor.shape, dtype=torch().bool, device=tensor.device)
                for owner, name in homes:
                    put_mask_on(owner, name, keep)
                self._masked[param.tag] = None

    def detach(self) -> None:
        """The module without masks, with zeros where they were; what is rounded stays so, to be exported."""
        quantized_module.thaw_normalization(self.module)
        if self._masked:
            self.module.__dict__[PATTERNS] = self._final_patterns()
        for tag in self._masked:
            for owner, name in self._homes[tag]:
                take_mask_off(owner, name)
        self._masked = {}

    def settle(self) -> None:
        """Zeros at all masked places, whatever the optimizer did to them."""
        for tag in self._masked:
            zero(self._tensors[tag], self._keep(tag))
            for owner, name in self._homes[tag]:
                mask_of(owner, name).dense = None  # those of the next step
        quantized_module.settle(self.module)

    def numbers(self, param: Param) -> Array:
        if param.tag in self._masked:
            zero(self._tensors[param.tag], self._keep(param.tag))
        return cast(Array, numbers_of(self._tensors[param.tag]))

    def hidden_numbers(self, param: Param) -> Array:
        return cast(Array, numbers_of(self._tensors[param.tag]))

    def count(self, param: Param) -> int:
        return int(torch().count_nonzero(self._tensors[param.tag]))

    def mask(self, param: Param) -> Array | None:
        if param.tag not in self._masked:
            return None
        return cast(Array, self._keep(param.tag).cpu().numpy().reshape(-1))

    def put(self, param: Param, keep: Array) -> None:
        self.renewals[param.tag] += 1
        self.attach([param])
        tensor = self._tensors[param.tag]
        made = torch().from_numpy(np.ascontiguousarray(keep.reshape(param.shape))).to(tensor.device)
        changed = not bool(torch().equal(made, self._keep(param.tag)))
        self._show(param.tag, made)
        zero(tensor, made)
        if param.tag in self._remembered:
            return
        if tensor.grad is not None:  # it came before the mask
            zero(tensor.grad, made)
        if changed:
            self._clear(tensor, made)

    def release(self, param: Param) -> None:
        self.renewals[param.tag] += 1
        if param.tag in self._masked:
            self.settle()
            self._show(param.tag, torch().ones_like(self._keep(param.tag)))

    def mask_tensor(self, act: TimedAct, param: Param) -> Any:
        """A copy of the mask that an act has on a parameter, as a tensor of bools."""
        mine, whole = self.own_mask(act, param), self._keep(param.tag)
        return whole.clone() if mine is None else torch().from_numpy(mine.reshape(param.shape).copy()).to(whole.device)

    def _show(self, tag: str, keep: Any) -> None:
        for owner, name in self._homes[tag]:
            mask_of(owner, name).keep = keep

    def _keep(self, tag: str) -> Any:
        owner, name = self._homes[tag][0]
        return mask_of(owner, name).keep

    # -- whole layers

    def skip_layers(self, act: TimedAct) -> None:
        skip(self.module, self._paths(act))

    def put_back_layers(self, act: TimedAct) -> None:
        put_back(self.module, self._paths(act))

    def _paths(self, act: TimedAct) -> list[str]:
        """Where the layers of an act are in the module."""
        return layers_in(self.module, act.layers(), f"{act.where}: layers") if act.layers() else []

    def thin(
        self, act: TimedAct, group: Sequence[Param], dependents: Sequence[Param], outputs: bool, strict: bool
    ) -> None:
        self._demand_final(act, group)
        counted = [one for one in group if outputs or not self._is_depthwise(one)]
        if not counted:
            return
        zeros = [thinning.unused(self._owner(one), self._tensors[one.tag], outputs) for one in counted]
        gone = zeros[0]
        for param, own in zip(counted, zeros):
            if len(own) != len(gone):
                raise OptionError(f"{act.where}: {param.name} has {len(own)} channels, {counted[0].name} {len(gone)}")
            if strict and not torch().equal(own, zeros[0]):
                raise OptionError(
                    f"{act.where}: other channels of {param.name} are zero than of {counted[0].name}; prune them "
                    "together (param_groups of a StructuredPruningModifier), or say strict: false"
                )
            gone = gone & own.to(gone.device)
        if bool(gone.all()):  # a layer without channels is none
            gone[0] = False
        if bool(gone.any()):
            self._cut_all(act, group, dependents, outputs, ~gone)

    def take_sizes(self, names: Iterable[str]) -> None:
        """Some parameters are as large as those of the state that is loaded next."""
        known = {name: param.tag for param in self.params for name in param.names}
        thinning.take_sizes_from_state(self.module, [known[name] for name in names if name in known])

    def _cut_all(
        self, act: TimedAct, group: Sequence[Param], dependents: Sequence[Param], outputs: bool, keep: Any
    ) -> None:
        cuts = [*((one, outputs) for one in group), *((one, not outputs) for one in dependents)]
        found: dict[tuple[str, int], tuple[Param, int, Any]] = {}
        for param, side in cuts:
            owner, tensor = self._owner(param), self._tensors[param.tag]
            if getattr(owner, "groups", 1) > 1 and not thinning.is_depthwise(owner):
                raise OptionError(f"{act.where}: {param.name} is a convolution in groups, which keeps its channels")
            side = side or self._is_depthwise(param)  # its only channels are its outputs
            axis = thinning.axis_of(owner, tensor, side)
            wide = thinning.widened(keep, tensor.shape[axis])
            if wide is None:
                raise OptionError(
                    f"{act.where}: {param.name} has {tensor.shape[axis]} places for {len(keep)} channels of "
                    f"{group[0].name}"
                )
            found[param.tag, axis] = param, axis, wide
        self._demand_biases(act, [param for param, axis, _ in found.values()], outputs, group, dependents)
        for param, axis, wide in found.values():
            self._cut(param, axis, wide)

    def _cut(self, param: Param, axis: int, keep: Any) -> None:
        tensor, homes, before = self._tensors[param.tag], self._homes[param.tag], param.shape
        host = keep.cpu().numpy()
        if param.tag in self._masked:
            whole = self._keep(param.tag)
            left = whole.index_select(axis, torch().nonzero(keep.to(whole.device)).reshape(-1))
        self.shared.thin(param.tag, before, axis, host)
        thinning.cut(homes[0][0], tensor, axis, keep, self.optimizer)
        for owner, _ in homes[1:]:
            thinning.settle_sizes(owner, tensor)
        if param.tag in self._masked:
            for owner, name in homes:
                mask_of(owner, name).keep = left
        matrix, restore = views_of(homes[0][0], tensor) or (None, None)
        for name, value in (("shape", tuple(tensor.shape)), ("matrix", matrix), ("restore", restore)):
            object.__setattr__(param, name, value)  # acts hold the same object

    def _demand_final(self, act: TimedAct, group: Sequence[Param]) -> None:
        """What still prunes counts by the sizes that there were."""
        tags = {param.tag: param.name for param in group}
        for other in self._acts:
            last = other.span.end
            for param in other.masked() if other.clock.active and last >= 0 else ():
                if param.tag in tags:
                    raise OptionError(
                        f"{act.where}: {param.name} is still being pruned, until epoch {last:g}; thin it from then on"
                    )

    def _demand_biases(
        self, act: TimedAct, cuts: Sequence[Param], outputs: bool, group: Sequence[Param], dependents: Sequence[Param]
    ) -> None:
        """A layer that loses outputs has a bias that loses as many."""
        named = {name for param in (*group, *dependents) for name in param.names}
        for param in cuts:
            loses = (param in group) == outputs or self._is_depthwise(param)
            name = f"{param.name.rpartition('.')[0]}.bias".lstrip(".")
            owner = self._owner(param)
            if loses and param.name.endswith(WEIGHT) and getattr(owner, "bias", None) is not None and name not in named:
                raise OptionError(f"{act.where}: {name} is missing among the dependents of {group[0].name}")

    def _owner(self, param: Param) -> Any:
        return self._homes[param.tag][0][0]

    def _is_depthwise(self, param: Param) -> bool:
        return self._tensors[param.tag].dim() > 1 and thinning.is_depthwise(self._owner(param))

    # -- fake quantization

    def quantize(self, scheme: Scheme) -> None:
        layers = self._round(scheme)
        self._train_scales()
        if layers and self.calibrate is not None:
            with quantized_module.calibrating(self.module):
                self.calibrate()

    def _round(self, scheme: Scheme) -> Sequence[quantized_module.Layer]:
        """Fake quantization on layers, and beside it what the zeros of the module are, for those who export it."""
        layers, _ = layers_of(self.module, scheme)
        quantized_module.put_on(self.module, layers, self.learn_scales)
        stage = quantized_module.stage_of(self.module)
        assert stage is not None
        stage.patterns.update(self._final_patterns())
        return layers

    def _final_patterns(self) -> dict[str, str]:
        """By the name of a parameter, the pattern that its zeros have in the end."""
        goals = {tag: goal for act in self._acts for tag, goal in act.final_masks().items() if goal.stays}
        pruned = [param for param in self.params if param.tag in goals]
        return {name: goals[param.tag].pattern.text for param in pruned for name in param.names}

    def stop_observing(self) -> None:
        self.agree()
        quantized_module.stop_observing(self.module)

    def freeze_normalization(self) -> None:
        quantized_module.freeze_normalization(self.module)

    def agree(self) -> None:
        """Ranges are the same in all processes."""
        quantized_module.averaged_over_processes(self.module)

    def scales(self) -> dict[str, Any]:
        """All scales and ranges, as tensors by name; none where nothing is rounded."""
        return quantized_module.state_of(self.module)

    def take_scales(self, scales: Mapping[str, Any], schemes: Iterable[Scheme]) -> None:
        """Be rounded by these schemes, with the scales that another module had; not at all without any."""
        if not scales:
            learned = {one for _, some in quantized_module.learned_scales(self.module) for one in some}
            for group in self._groups(None):
                group["params"][:] = [one for one in group["params"] if one not in learned]
            quantized_module.take_off(self.module)
            return
        for scheme in schemes:
            self._round(scheme)
        quantized_module.load(self.module, scales)
        self._train_scales()

    def _train_scales(self) -> None:
        """Scales that are learned move with the weights that they belong to, by the same settings."""
        for weight, scales in quantized_module.learned_scales(self.module) if self.learn_scales else ():
            for group in self._groups(None):
                known = set(group["params"])
                if weight in known:
                    group["params"].extend(scale for scale in scales if scale not in known)

    # -- numbers and moments

    def gradient(self, param: Param) -> Array | None:
        found = self._tensors[param.tag].grad
        return None if found is None else cast(Array, numbers_of(found / scale_of(self.scaler, self.optimizer)))

    def scale_gradient(self, param: Param, factors: Array) -> None:
        gradient = self._tensors[param.tag].grad
        if gradient is not None:
            gradient *= torch().from_numpy(factors.reshape(param.shape)).to(gradient)

    def dense_gradient(self, param: Param) -> Array | None:
        heard = [mask_of(*home).dense for home in self._homes[param.tag]] if param.tag in self._masked else []
        found = [one for one in heard if one is not None]
        return cast(Array, numbers_of(averaged(sum(found[1:], found[0])))) if found else self.gradient(param)

    def watch(self, params: Sequence[Param]) -> None:
        wanted = {param.tag for param in params}
        for tag in self._masked:
            for owner, name in self._homes[tag]:
                mask_of(owner, name).watched = tag in wanted

    @contextmanager
    def opened(self, params: Sequence[Param]) -> Iterator[None]:
        kept = {param.tag: self._keep(param.tag) for param in params if param.tag in self._masked}
        for tag, keep in kept.items():
            zero(self._tensors[tag], keep)
            self._show(tag, torch().ones_like(keep))
        try:
            yield
        finally:
            for tag, keep in kept.items():
                self._show(tag, keep)

    @property
    def has_samples(self) -> bool:
        return self.sampler is not None

    def sample_gradients(
        self, params: Sequence[Param], count: int, options: Mapping[str, Any] | None = None
    ) -> Iterator[Mapping[str, Array]]:
        if self.sampler is None:
            raise OptionError(NO_SAMPLER)
        tensors = {param.tag: self._tensors[param.tag] for param in params}
        for found in self.sampler.gradients(self.module, tensors, count, options):
            yield {tag: numbers_of(one) for tag, one in found.items()}

    def fill(self, param: Param, value: float | Sequence[float] | Array) -> None:
        tensor = self._tensors[param.tag]
        made = torch().as_tensor(value, dtype=tensor.dtype, device=tensor.device).reshape(-1)
        with torch().no_grad():
            tensor.copy_(made.expand(tensor.numel()).reshape(tensor.shape))

    def forget(self, param: Param) -> None:
        tensor = self._tensors[param.tag]
        self._clear(tensor, torch().zeros(tensor.shape, dtype=torch().bool, device=tensor.device))

    def forget_momentum(self) -> None:
        """Of optimizers that have one, known by its name in torch as in SparseML; those of Adam's kind have none."""
        for state in getattr(self.optimizer, "state", {}).values():
            if torch().is_tensor(state.get("momentum_buffer")):
                state["momentum_buffer"].zero_()

    def forget_masked_momentum(self, param: Param) -> None:
        """As SparseML has it: of Adam's kind the first moment alone."""
        tensor = self._tensors[param.tag]
        state = getattr(self.optimizer, "state", {}).get(tensor, {})
        for name in MOMENTA:
            if torch().is_tensor(state.get(name)):
                zero(state[name], self._keep(param.tag))

    def discard_gradients(self) -> None:
        for tensor in self._tensors.values():
            tensor.grad = None

    def _clear(self, tensor: Any, keep: Any) -> None:
        if hasattr(self.optimizer, "state"):
            clear_moments(self.optimizer, tensor, keep)

    def held(self, param: Param) -> bool:
        return not self._tensors[param.tag].requires_grad

    def hold(self, param: Param, still: bool) -> None:
        self._tensors[param.tag].requires_grad_(not still)
        if still:
            self._tensors[param.tag].grad = None

    # -- the optimizer

    def rates(self, groups: Groups) -> list[float]:
        return [float(group["lr"]) for group in self._groups(groups)]

    def set_rates(self, rates: Sequence[float], groups: Groups) -> None:
        chosen = self._groups(groups)
        for place, group in enumerate(chosen):
            rate = rates[min(place, len(rates) - 1)]  # a group that came later goes by the last one
            if torch().is_tensor(group["lr"]):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self.rates_set = self.rates(None)

    def set_decay(self, decay: float, groups: Groups) -> None:
        for group in self._groups(groups):
            group["weight_decay"] = decay

    def _groups(self, groups: Groups) -> list[Any]:
        known = [] if self.optimizer is None else self.optimizer.param_groups
        return list(known) if groups is None else [known[place] for place in groups if known]

    # -- what is told

    def tell(self, epoch: float) -> None:
        figures = self._figures()
        for name, value in figures.items():
            LOG.info("epoch %g: %s %.4f", epoch, name, value)
        for one in self.loggers if isinstance(self.loggers, (list, tuple)) else [self.loggers]:
            if callable(getattr(one, "log_scalar", None)):
                for name, value in {**figures, **self._sparseml_figures()}.items():
                    one.log_scalar(tag=name, value=value, step=epoch)
            elif callable(one):
                for name, value in figures.items():
                    one(name, value, epoch)

    def _zeros(self, param: Param) -> int:
        return int((self._tensors[param.tag] == 0).sum())

    def _figures(self) -> dict[str, float]:
        prunable = [param for param in self.params if param.prunable]
        return {f"sparsity/{param.name}": self._zeros(param) / max(1, param.size) for param in prunable}

    def _sparseml_figures(self) -> dict[str, float]:
        """The zeros of every parameter, and the share of the pruned ones, by the tags that SparseML has for them."""
        found: dict[str, float] = {}
        for param in self.params:
            zeros, tag = self._zeros(param), f"SparsificationPruning/SparseParameters/{param.name}"
            found.update({f"{tag}/count": zeros, f"{tag}/percent": zeros / max(1, param.size)})
        shares = [share for tag, share in found.items() if tag.endswith("/percent")]
        pruned = sum(PRUNED_FROM <= share < 1.0 for share in shares)
        return {"SparsificationSummaries/PrunedParameters/percent": pruned / max(1, len(shares)), **found}


def scale_of(scaler: Any, optimizer: Any) -> float:
    """What a GradScaler has multiplied gradients with that it has not divided by it yet; torch has no other way to ask
    whether `unscale_` was called."""
    if not hasattr(scaler, "get_scale"):
        return 1.0
    state = getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), {})
    return 1.0 if getattr(state.get("stage"), "name", "") == "UNSCALED" else float(scaler.get_scale())


# -- the parameters of a module


def params_of(module: Any) -> list[tuple[Param, Any, Homes]]:
    """Every parameter once, with the tensor, and everywhere that it stands."""
    named: dict[Any, list[tuple[str, Any, str]]] = {}
    for prefix, owner in named_modules(module):
        for name, tensor in owner._parameters.items():
            if tensor is not None:
                named.setdefault(tensor, []).append((f"{prefix}.{name}" if prefix else name, owner, name))
    calls = _calls(module)
    traced = _traced(module, calls)
    return [
        (_param(tensor, places, traced, calls), tensor, [(owner, name) for _, owner, name in places])
        for tensor, places in named.items()
    ]


def _param(
    tensor: Any, places: list[tuple[str, Any, str]], traced: Mapping[str, tuple[View, View]], calls: Mapping[str, Calls]
) -> Param:
    owner = places[0][1]
    names = tuple(bare(one) for one, _, _ in places)
    views = next((traced[one] for one, _, _ in places if one in traced), None)
    prunable = views is not None or any(_is_weight(one, local) for _, one, local in places)
    matrix, restore = views or views_of(owner, tensor) or (None, None)
    layers = [name.rpartition(".")[0] for name in names if name.endswith(WEIGHT) and "." in name]
    slashes = [layer.replace(".", "/") for layer in layers]
    read = dict.fromkeys(call for one, _, _ in places if one in traced for call in calls[one])
    nodes = [call.meta["onnx"][1] for call in read if "onnx" in call.meta]
    layers = [*layers, *slashes, *(layer for node in nodes for layer in layers_of_node(node))]
    own = tuple(dict.fromkeys(name for node in nodes for name in names_of_node(node)))
    answers = Named(names[0], names, own, tuple(dict.fromkeys(layers)), of=frozenset(read or filter(None, layers)))
    return Param(
        tag=names[0],
        name=names[0],
        shape=tuple(tensor.shape),
        names=names,
        layers=(*answers.nodes, *answers.layers),
        prunable=prunable,
        matrix=matrix,
        restore=restore,
        numbers=lambda: numbers_of(tensor),
        named=answers,
    )


def layers_in(module: Any, wanted: str | Sequence[str], where: str) -> list[str]:
    """The paths of the modules that the entries of a modifier mean, `re:` from the start of a name; never the root."""
    known = {bare(path): (path, one) for path, one in named_modules(module) if path}
    entries, found = [wanted] if isinstance(wanted, str) else list(wanted), list[str]()
    for entry in entries:
        if entry.upper() == ALL:
            raise OptionError(f"{where}: {ALL} would leave nothing of the model; name layers, or {ALL_PRUNABLE}")
        if entry.upper() == ALL_PRUNABLE:
            hits = [name for name, (_, one) in known.items() if _is_weight(one, WEIGHT)]
        elif entry.startswith(REGULAR):
            pattern = compiled(entry[len(REGULAR) :], where)
            hits = [name for name in known if pattern.match(name)]
        else:
            hits = [entry] if entry in known else []
        if not hits:
            raise OptionError(f"{where}: {entry[:80]!r} is no layer of the model{nearest(entry, known)}")
        found += [known[name][0] for name in hits]
    return list(dict.fromkeys(found))


def bare(name: str) -> str:
    """Without the steps that wrappers and compilers add."""
    return ".".join(step for step in name.split(".") if step not in ("_orig_mod", "_fsdp_wrapped_module"))


def numbers_of(tensor: Any) -> Any:
    """As float32 on the host, flat; of a plain float32 parameter the very memory."""
    return tensor.detach().float().cpu().contiguous().numpy().reshape(-1)


def averaged(tensor: Any) -> Any:
    """Over all processes, where there are several: a wrapper does so with gradients of parameters only."""
    distributed = importlib.import_module("torch.distributed")
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() < 2:
        return tensor
    made = tensor.clone()
    distributed.all_reduce(made)
    return made / distributed.get_world_size()


def _kinds(owner: Any) -> list[str]:
    return [kind.__name__ for kind in type(owner).__mro__]


def _is_weight(owner: Any, name: str) -> bool:
    return name == WEIGHT and any(kind in PRUNABLE for kind in _kinds(owner))


def views_of(owner: Any, tensor: Any) -> tuple[View, View] | None:
    """Of a matrix its first axis counts the outputs; convolutions know their groups."""
    kinds, shape = _kinds(owner), tuple(tensor.shape)
    if "_ConvNd" in kinds and len(shape) > 2:
        return (_transposed if owner.transposed else _forward)(shape, owner.groups)
    if "Conv1D" in kinds and len(shape) == 2:
        return _swapped(shape)
    return _forward(shape, 1) if len(shape) == 2 else None


def _forward(shape: tuple[int, ...], groups: int) -> tuple[View, View]:
    four = (groups, shape[0] // groups, shape[1], -1)
    return lambda flat: flat.reshape(four), lambda view: view.reshape(-1)


def _transposed(shape: tuple[int, ...], groups: int) -> tuple[View, View]:
    """Inputs first."""
    four = (groups, shape[0] // groups, shape[1], -1)
    return (
        lambda flat: flat.reshape(four).transpose(0, 2, 1, 3),
        lambda view: view.transpose(0, 2, 1, 3).reshape(-1),
    )


def _swapped(shape: tuple[int, ...]) -> tuple[View, View]:
    return _transposed((shape[0], shape[1], 1), 1)


def _traced(module: Any, calls: Mapping[str, Calls]) -> dict[str, tuple[View, View]]:
    """The weights that operators read in modules of a graph, as the plan of an ONNX model sees them."""
    if not calls:
        return {}
    try:
        model = Model.over(layers_as_model(module, {path: path for path in calls}))
    except PlanError:
        return {}
    found = {weight.tensor.name: weight.uses[0] for weight in model.weights if weight.uses and not weight.refusal}
    return {name: (use.matrix, use.restore) for name, use in found.items()}


def _calls(module: Any) -> dict[str, Calls]:
    """By parameter the operators that read it in modules of a graph; those of a file know their names there."""
    found: dict[str, Calls] = {}
    for prefix, part in module.named_modules():
        if isinstance(part, torch().fx.GraphModule):
            start, known = f"{prefix}." if prefix else "", dict(module.named_parameters(remove_duplicate=False))
            for node in part.graph.nodes:
                readers = [user for user in node.users if _operator(user) in OPERATORS] if node.op == "get_attr" else []
                if readers and f"{start}{node.target}" in known:
                    found.setdefault(f"{start}{node.target}", []).extend(readers)
    return found


def _operator(call: Any) -> str:
    return str(call.meta.get("onnx", ("",))[0] or getattr(call.target, "__name__", ""))
