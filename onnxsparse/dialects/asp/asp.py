"""ASP's calls on the class: they act on all models that were initialised and are still there, in that order.

1. A model whose masks are on and cannot be computed again stays as it is while others are computed; where that is so of
   all of them the call is refused.
2. An optimizer belongs to the models of which it holds a parameter.
3. `ASP.of(model)` has the same calls for one model.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from onnxsparse.dialects.asp import permutation_lib
from onnxsparse.dialects.asp.eligible import AspError, Selection
from onnxsparse.dialects.asp.pruned_model import Calculator, PrunedModel
from onnxsparse.engines.torch.attach import bare_module, demand_free
from onnxsparse.errors import OnnxSparseError, OptionError, brief

WHITELIST = ("Linear", "Conv1d", "Conv2d", "Conv3d", "MultiheadAttention")
OF_TRAINED_MODELS = ("Linear", "Conv2d", "MultiheadAttention")
_MODELS: list[PrunedModel] = []


class ASP:
    """Automatic sparsity: two lines in a training loop of torch."""

    _record_to: ClassVar[str | None] = None

    @classmethod
    def init_model_for_pruning(
        cls,
        model: Any,
        mask_calculator: Calculator = "m4n2_1d",
        verbosity: int = 3,
        whitelist: Sequence[type | str] = WHITELIST,
        allowed_layer_names: Sequence[str] | None = None,
        disallowed_layer_names: Sequence[str] = (),
        allow_recompute_mask: bool = False,
        custom_layer_dict: Mapping[type, Sequence[str]] | None = None,
        allow_permutation: bool = True,
        example_inputs: Any = None,
    ) -> None:
        """Put open masks beside the weights of a model; nothing becomes zero before `compute_sparse_masks`.

        Arguments:
            model: the module that you train; what wraps it for several devices or compiles it does not count.
            mask_calculator: `m4n2_1d`, `m4n2_2d_best`, `m4n2_2d_greedy`, or these with any other m and n; or a function
                from a tensor to its mask.
            verbosity: 0 for silence, 1 for what is odd, 2 for what is done, 3 for every layer.
            whitelist: classes of layers, of torch or derived from those; or their names in torch.nn.
            allowed_layer_names: no other layers than these.
            disallowed_layer_names: not these.
            allow_recompute_mask: keep what is under the masks, on the CPU, so that they can be computed again.
            custom_layer_dict: parameters of other classes, such as {CustomLinear: ["weight"]}.
            allow_permutation: permute channels before the first masks, so that these keep more.
            example_inputs: a tensor, or a tuple of them, by which channels are followed; without them by tracing.
        """
        bare = demand_free(model)
        if cls._known(bare):
            raise AspError("ASP was initialized with this model already; call init_model_for_pruning once")
        chosen = Selection.of(whitelist, custom_layer_dict, allowed_layer_names, disallowed_layer_names)
        options = allow_recompute_mask, allow_permutation, example_inputs, cls._record_to
        _MODELS.append(PrunedModel(bare, mask_calculator, chosen, verbosity, *options))

    @classmethod
    def init_optimizer_for_pruning(cls, optimizer: Any) -> None:
        """Keep masked places at zero in each step of an optimizer."""
        models = cls._models("init_optimizer_for_pruning")
        cls._demand_optimizer(optimizer)
        moved = [one for one in models if one.is_moved_by(optimizer)] or models[-1:]
        for one in [one for one in moved if not one.follows(optimizer)] or moved:
            one.init_optimizer_for_pruning(optimizer)

    @classmethod
    def compute_sparse_masks(cls) -> None:
        """Choose masks and write the zeros; again where `allow_recompute_mask` is set."""
        for one in cls._changeable("compute_sparse_masks"):
            one.compute_sparse_masks()

    @classmethod
    def restore_pruned_weights(cls) -> None:
        """Dense again, with the numbers that were under the masks."""
        for one in cls._changeable("restore_pruned_weights"):
            one.restore_pruned_weights()

    @classmethod
    def is_sparsity_enabled(cls) -> bool:
        """Whether masks are on, in all models that have some."""
        on = [one.is_sparsity_enabled() for one in cls._alive() if one.weights]
        return bool(on) and all(on)

    @classmethod
    def prune_trained_model(cls, model: Any, optimizer: Any, *, example_inputs: Any = None) -> None:
        """All of it for a trained model: 2:4 in Linear, Conv2d and MultiheadAttention, and the optimizer keeps it."""
        cls.init_model_for_pruning(
            model, "m4n2_1d", verbosity=2, whitelist=OF_TRAINED_MODELS, example_inputs=example_inputs
        )
        one = cls.of(model)
        try:
            cls._demand_optimizer(optimizer)
            one.init_optimizer_for_pruning(optimizer)
            one.compute_sparse_masks()
        except OnnxSparseError:
            one.remove()
            raise

    @classmethod
    def already_init_asp_model(cls) -> bool:
        """Whether there is a model that was initialised."""
        return bool(cls._alive())

    @classmethod
    def set_permutation_saving_params(
        cls, allow_permutation: bool = True, save_permutation_graph: bool = False, permutation_output_dir: str = "."
    ) -> None:
        """Whether channels are permuted, and the folder in which the permutation of a model is recorded."""
        if not isinstance(permutation_output_dir, (str, os.PathLike)) or "\0" in os.fspath(permutation_output_dir):
            raise OptionError(f"permutation_output_dir is a folder, not {brief(permutation_output_dir)}")
        cls._record_to = os.fspath(permutation_output_dir) if save_permutation_graph else None
        for one in cls._alive():
            one.allow_permutation, one.record_to = allow_permutation, cls._record_to

    set_identical_seed = staticmethod(permutation_lib.set_identical_seed)

    @classmethod
    def of(cls, model: Any) -> PrunedModel:
        """The same calls for one model that was initialised."""
        found = cls._known(bare_module(model))
        if not found:
            raise AspError("ASP was not initialized with this model; call init_model_for_pruning first")
        return found[0]

    # -- the models

    @classmethod
    def _alive(cls) -> list[PrunedModel]:
        if len(_MODELS) > 1:  # one that is gone may hang in a circle of references, and would be counted
            gc.collect()
        _MODELS[:] = [one for one in _MODELS if one.is_alive]
        return list(_MODELS)

    @classmethod
    def _known(cls, bare: Any) -> list[PrunedModel]:
        return [one for one in _MODELS if one.is_of(bare)]

    @classmethod
    def _models(cls, call: str) -> list[PrunedModel]:
        found = cls._alive()
        if not found:
            raise AspError(f"{call} comes after init_model_for_pruning: call that first")
        return found

    @classmethod
    def _demand_optimizer(cls, optimizer: Any) -> None:
        if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
            raise OptionError(
                f"an optimizer of torch is expected, not a {type(optimizer).__name__:.60}; where one is around another "
                "hand over the one inside"
            )

    @classmethod
    def _changeable(cls, call: str) -> list[PrunedModel]:
        """Those whose masks may change; where there are none, the ones that say so."""
        models = cls._models(call)
        return [one for one in models if not one.is_fixed] or models
