"""One model under ASP: its masks, the optimizers whose steps keep them, and what is put away to be brought back.

1. Parameters stay what they are, plain and under their names: zeros are written into them. So a model can be exported,
   compiled or saved at any time, and there is nothing to finish.
2. Before each step of an optimizer gradients are zero at masked places, also those that a closure computes; after it
   weights and moments are.
3. Masks are computed of the dense numbers; what is under them is put away where `allow_recompute_mask` asks for it.
4. Of several processes that were joined the first one's masks are those of all: each of them has to make the call.
5. Channels are permuted once, before the first masks.
6. The model is not kept alive; of layers that are gone nothing is held either.
"""

from __future__ import annotations

import re
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Union, cast

import numpy as np

from onnxsparse import patterns
from onnxsparse.channel_classes.permutation import Permutation
from onnxsparse.dialects.asp.eligible import AspError, PrunedWeight, Selection, pruned_weights
from onnxsparse.dialects.asp.mask_buffers import keep_from_wrappers
from onnxsparse.dialects.asp.permutation import permute_module
from onnxsparse.engines.processes import is_first_joined
from onnxsparse.engines.torch.distributed import joined, meet
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.parametrization import array_of, clear_moments, zero
from onnxsparse.engines.torch.permute.proof import Inputs
from onnxsparse.errors import OptionError, brief, one_line
from onnxsparse.patterns.nm import NM, NOfM
from onnxsparse.scores import Magnitude
from onnxsparse.sparsers.mask_updates import Choice

Calculator = Union[str, Callable[[Any], Any]]
SEED = 0
NOTHING_KEPT = "what is under the masks was not kept; pass allow_recompute_mask=True to init_model_for_pruning"


class PrunedModel:
    """The calls of ASP for one model; `left_dense` says why a layer stays dense, `permutation` what moved."""

    def __init__(
        self,
        model: Any,
        mask_calculator: Calculator,
        selection: Selection,
        verbosity: int = 3,
        allow_recompute_mask: bool = False,
        allow_permutation: bool = True,
        example_inputs: Any = None,
        record_to: str | None = None,
    ) -> None:
        self._model: Callable[[], Any] = weakref.ref(model)
        self.verbosity = _verbosity(verbosity)
        self._function = mask_calculator if callable(mask_calculator) else None
        self.pattern = NM(2, 4) if callable(mask_calculator) else pattern_of(mask_calculator)
        self._recomputes, self._is_permuted = allow_recompute_mask, False
        self.allow_permutation = allow_permutation
        self._example_inputs = None if example_inputs is None else Inputs.of(example_inputs)
        self.record_to, self.permutation = record_to, Permutation({})
        self._optimizers: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        known = None if self._function else self.pattern
        self._weights, self.left_dense = pruned_weights(model, selection, known, allow_recompute_mask)
        keep_from_wrappers(model)
        self._say_layers(selection.unknown(model))

    def _say_layers(self, unknown: list[str]) -> None:
        for name in unknown:
            self._say(1, f"no layer is called {name!r:.80}")
        for path, reason in self.left_dense.items():
            self._say(2, f"{path} stays dense: {reason}")
        for weight in self._weights:
            self._say(3, f"{weight.path} {list(weight.parameter.shape)} gets a mask, which is open as yet")
        if not self._weights:
            self._say(1, "no layer gets a mask: none of those that are meant fits")

    def _say(self, verbosity: int, line: str) -> None:
        if self.verbosity >= verbosity and is_first_joined():
            sys.stderr.write(f"ASP: {line}\n")

    # -- what there is

    @property
    def weights(self) -> list[PrunedWeight]:
        """Those whose layers are there."""
        return [weight for weight in self._weights if weight.buffers]

    @property
    def is_alive(self) -> bool:
        return self._model() is not None or bool(self.weights)

    def is_of(self, model: Any) -> bool:
        return self._model() is model

    @property
    def masks(self) -> dict[str, Any]:
        """A tensor of bools for each parameter that has a mask, True = keep."""
        return {weight.path: weight.keep.clone() for weight in self.weights}

    @property
    def is_fixed(self) -> bool:
        """Whether masks are on that can be neither computed again nor taken back."""
        return not self._recomputes and self._is_masked

    @property
    def _is_masked(self) -> bool:
        return any(weight.is_masked for weight in self.weights)

    def is_sparsity_enabled(self) -> bool:
        """Whether masks are on."""
        on = {weight.path: weight.is_masked for weight in self.weights}
        if any(on.values()) and not all(on.values()) and self._function is None:
            left = next(path for path, masked in on.items() if not masked)
            raise AspError(
                f"some layers are sparse and {left} is not: the state that was loaded is of other layers; compute the "
                "masks again, or load the state of this model"
            )
        return any(on.values())

    # -- masks

    def compute_sparse_masks(self) -> None:
        """Choose the masks by the dense numbers as they are now, and write the zeros."""
        if self.is_fixed:
            raise AspError(f"the masks are there already, and {NOTHING_KEPT}")
        if self.allow_permutation and not self._is_permuted and not self._is_masked:
            self._permute()
        masks, together = [self._mask_of(weight) for weight in self.weights], meet("cpu") if joined() > 1 else None
        if together is not None:
            together.made_same(masks)
        for weight, keep in zip(self.weights, masks):
            self._put(weight, keep)
            if together is not None:
                together.made_same([one.stash for one in weight.buffers if one.stash is not None])
            zeros = 1 - int(keep.sum()) / max(1, keep.numel())
            self._say(2, f"{weight.path} {list(keep.shape)}: {zeros:.2%} zeros")

    def restore_pruned_weights(self) -> None:
        """Dense again: what is masked gets the numbers back that it had when the masks were computed."""
        if self.is_fixed:
            raise AspError(f"the dense weights cannot be brought back: {NOTHING_KEPT}")
        for weight in self.weights:
            self._put(weight, torch().ones_like(weight.keep))
            self._say(2, f"{weight.path} is dense again")

    def _put(self, weight: PrunedWeight, keep: Any) -> None:
        weight.put(keep)
        for optimizer in self._optimizers:
            clear_moments(optimizer, weight.parameter, weight.keep)

    def _permute(self) -> None:
        model, inputs = self._model(), self._example_inputs
        self._is_permuted, self._example_inputs = True, None
        if model is None or not self.weights:
            return
        names, along_inputs = [weight.path for weight in self.weights], f"{self.pattern.n}:{self.pattern.m}"
        optimizers = list(self._optimizers)
        self.permutation, reason = permute_module(
            model, names, along_inputs, SEED, inputs, optimizers=optimizers, record_to=self.record_to
        )
        if reason:
            warnings.warn(f"the channels stay in their order: {reason}", stacklevel=4)
            return
        kept = self.permutation.facts["kept"]
        self._say(
            2,
            f"channels permuted in {len(self.permutation.tensors)} parameters and buffers: {along_inputs} keeps "
            f"{kept['after']:.2%} of the magnitudes, {kept['before']:.2%} before",
        )

    def _mask_of(self, weight: PrunedWeight) -> Any:
        dense = weight.dense()
        if self._function is not None:
            return _calculated(self._function, weight.path, dense)
        numbers = array_of(dense).reshape(-1)
        if not np.isfinite(numbers).all():
            raise AspError(f"parameter '{weight.path}' holds NaN or infinity, by which nothing can be ranked")
        drop = self.pattern.drop_count(weight.matrix(numbers).shape, 0.0)
        keep = Choice(self.pattern, Magnitude(), drop, weight.matrix, weight.restore).keep(numbers)
        return torch().from_numpy(np.ascontiguousarray(keep)).reshape(dense.shape).to(dense.device)

    # -- steps of an optimizer

    def init_optimizer_for_pruning(self, optimizer: Any) -> None:
        """Keep gradients, weights and moments at masked places at zero in each step of an optimizer, from now on."""
        if optimizer in self._optimizers:
            raise AspError("ASP is around the steps of this optimizer already; call init_optimizer_for_pruning once")
        if not self.is_moved_by(optimizer):
            raise AspError("the optimizer holds no parameter of the model; make it of model.parameters() of this model")
        self._warn_of_moments(optimizer)
        self._optimizers[optimizer] = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def _warn_of_moments(self, optimizer: Any) -> None:
        """Whether they are of before the permutation or of after it nobody can tell."""
        model, names = self._model(), self.permutation.tensors
        moved = [] if model is None else [one for name, one in model.named_parameters() if name in names]
        held = [part for one in moved for part in optimizer.state.get(one, {}).values()]
        if any(torch().is_tensor(part) and part.dim() for part in held):
            warnings.warn(
                "the channels were permuted before this optimizer was handed over: what it remembers of steps before "
                "is in the former order; call init_optimizer_for_pruning before the first masks",
                stacklevel=3,
            )

    def is_moved_by(self, optimizer: Any) -> bool:
        """Whether it holds a parameter of the model; of two optimizers one may hold none that is masked."""
        held, model = _held(optimizer), self._model()
        own = [] if model is None else model.parameters()
        return any(one in held for one in own) or any(weight.parameter in held for weight in self.weights)

    def follows(self, optimizer: Any) -> bool:
        return optimizer in self._optimizers

    def _masked_of(self, optimizer: Any) -> Iterator[tuple[Any, Any]]:
        """Parameters of an optimizer, and their masks, open ones too: to ask which those are would make a GPU wait."""
        held = _held(optimizer)
        for weight in self.weights:
            parameter = weight.parameter
            if parameter in held:
                weight.demand_shape()
                yield parameter, weight.keep

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """The closure is the first argument behind the optimizer itself, or has its name."""
        self._mask_gradients(optimizer)
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._masking(args[1], optimizer), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._masking(kwargs["closure"], optimizer)}
        return None

    def _masking(self, closure: Callable[[], Any], optimizer: Any) -> Callable[[], Any]:
        """An optimizer that searches has moved the weights before it asks again."""

        def evaluated() -> Any:
            for parameter, keep in self._masked_of(optimizer):
                zero(parameter, keep)
            found = closure()
            self._mask_gradients(optimizer)
            return found

        return evaluated

    def _mask_gradients(self, optimizer: Any) -> None:
        for parameter, keep in self._masked_of(optimizer):
            if parameter.grad is not None:
                zero(parameter.grad, keep)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        for parameter, keep in self._masked_of(optimizer):
            zero(parameter, keep)
            clear_moments(optimizer, parameter, keep)

    def remove(self) -> None:
        """Take masks and hooks off: the plain model, with the zeros that it has. ASP does not know it any more."""
        for hooks in self._optimizers.values():
            for hook in hooks:
                hook.remove()
        self._optimizers.clear()
        for weight in self.weights:
            weight.remove()
        self._weights, self._model = [], _GONE


def _verbosity(given: Any) -> int:
    if not isinstance(given, int):
        raise OptionError(f"verbosity is a number from 0 to 3, not {brief(given)}")
    return given


def _held(optimizer: Any) -> set[Any]:
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}


_GONE: Callable[[], Any] = lambda: None  # noqa: E731 - what a weak reference to nothing gives


def _calculated(function: Callable[[Any], Any], path: str, dense: Any) -> Any:
    try:
        mask = torch().as_tensor(function(dense.clone()), device=dense.device)
    except Exception as error:  # whatever a function of the user's raises
        raise OptionError(
            f"mask_calculator failed for {path}: {type(error).__name__}: {one_line(error)[:200]}"
        ) from error
    if mask.shape != dense.shape:
        raise OptionError(
            f"the mask that was calculated for {path} is {list(mask.shape)}, the weight {list(dense.shape)}"
        )
    return mask != 0


SUFFIXES = {"1d": "", "2d_best": ":transposable", "2d_greedy": ":transposable-greedy"}


def pattern_of(name: Any) -> NOfM:
    """`m4n2_1d` keeps 2 of every 4 inputs, the 2d ones also 2 of every 4 outputs."""
    match = re.fullmatch(r"m([0-9]{1,6})n([0-9]{1,6})_(\w+)", name) if isinstance(name, str) else None
    if match is None or match[3] not in SUFFIXES:
        raise AspError(
            "mask_calculator is m4n2_1d, m4n2_2d_best, m4n2_2d_greedy, these with any other m and n, or a function, "
            f"not {brief(name)}"
        )
    return cast(NOfM, patterns.parse(f"{int(match[2])}:{int(match[1])}{SUFFIXES[match[3]]}"))
