"""One training loop in torch, run under SparseML 1.8 or under onnxsparse, and everything it leaves after each step.

    python sparseml_steps.py OUTPUT.pt [CASE ...]        in an environment that has SparseML

writes for every case what it is after each step: parameters, buffers, masks, momenta, rates, decays, which parameters
train, which modifiers have begun and ended. Nothing of onnxsparse is imported here.
"""

from __future__ import annotations

import copy
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
import yaml
from torch import nn

PER_EPOCH = 4
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=1e-2),
}


@dataclass(frozen=True)
class Case:
    """A recipe's modifiers in flow style, and the loop around it."""

    modifiers: tuple[str, ...]
    optimizer: str = "momentum"
    epochs: float = 3
    beyond: int = 1
    """Steps behind the last epoch."""
    begin: float = 0.0
    groups: bool = False
    """Whether biases are a parameter group of their own."""
    net: str = "convolutions"
    extras: tuple[str, ...] = field(default=())
    """Of `teacher`, `sampler`, `sparse` (a model with zeros)."""
    finished: bool = True
    """Whether `finalize` leaves the same: it does not where no step came behind the end."""
    between: bool = True
    """Whether weights and masks are compared between steps, and not only losses and the end: SparseML leaves there what
    trains, and not what the model computes with."""
    numbers: bool = True
    """Whether numbers are compared, and not only when something is rounded, and when ranges and statistics move."""
    close: float = 0.0
    """How far a number may lie off, relative to the largest of its tensor, where sums are added in another order."""

    @property
    def recipe(self) -> str:
        """With an option in each line: SparseML reads no tag before a brace."""
        return "modifiers:\n" + "\n".join(_lines(one) for one in self.modifiers)


def _lines(modifier: str) -> str:
    name, _, options = modifier.partition(" ")
    found = [f"        {key}: {_flow(value)}\n" for key, value in yaml.safe_load(options).items()]
    return f"    - !{name}\n{''.join(found)}"


def _flow(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=999).replace("...\n", "").strip()


def gradual(name: str = "GMPruningModifier", **changes: Any) -> str:
    options = {
        "params": "__ALL_PRUNABLE__",
        "init_sparsity": 0.05,
        "final_sparsity": 0.8,
        "start_epoch": 0.0,
        "end_epoch": 2.0,
        "update_frequency": 0.5,
        **changes,
    }
    return f"{name} {{{', '.join(f'{key}: {value}' for key, value in options.items())}}}"


def alternating(**changes: Any) -> Case:
    options = {
        "params": "__ALL_PRUNABLE__",
        "compression_sparsity": 0.7,
        "start_epoch": 0,
        "end_epoch": 8,
        "update_frequency": 2,
        **changes,
    }
    optimizer = options.pop("optimizer", "momentum")
    begin = options.pop("begin", 0.0)
    text = f"ACDCPruningModifier {{{', '.join(f'{key}: {value}' for key, value in options.items())}}}"
    return Case((text,), optimizer, epochs=10, begin=begin)


SECOND_ORDER = "num_grads: 8, fisher_block_size: {}, damp: {}"
RANGE = "EpochRangeModifier {start_epoch: 0.0, end_epoch: 3.0}"
SET_RATE = "SetLearningRateModifier {start_epoch: %s, learning_rate: %s}"

CASES: dict[str, Case] = {
    # -- rates, decays, parameters
    "range": Case((RANGE, "EpochRangeModifier {start_epoch: 0.6, end_epoch: 2.3}")),
    "set rate": Case((RANGE, SET_RATE % (-1.0, 0.05), SET_RATE % (1.3, 0.02))),
    "set rate of a group": Case(
        (RANGE, "SetLearningRateModifier {start_epoch: 1.0, learning_rate: 0.02, param_groups: [1]}"), groups=True
    ),
    "exponential": Case(
        (
            RANGE,
            (
                "LearningRateModifier {start_epoch: 0.0, end_epoch: 3.0, lr_class: ExponentialLR, lr_kwargs: {gamma: "
                "0.5},"
                " init_lr: 0.1}"
            ),
        )
    ),
    "steps": Case(
        (
            RANGE,
            (
                "LearningRateModifier {start_epoch: 0.5, end_epoch: 3.0, lr_class: StepLR, lr_kwargs: {step_size: 1.0, "
                "gamma: 0.5}, init_lr: 0.1}"
            ),
        )
    ),
    "milestones": Case(
        (
            RANGE,
            (
                "LearningRateModifier {start_epoch: 1.0, end_epoch: -1.0, lr_class: MultiStepLR, lr_kwargs: "
                "{milestones: "
                "[1.5, 2.3], gamma: 0.1}, init_lr: 0.08}"
            ),
        ),
        groups=True,
    ),
    "restarts": Case(
        (
            RANGE,
            (
                "LearningRateModifier {start_epoch: 0.0, end_epoch: 3.0, lr_class: CosineAnnealingWarmRestarts, "
                "lr_kwargs: {lr_min: 0.001, cycle_epochs: 2}, init_lr: 0.1}"
            ),
        )
    ),
    "linear": Case(
        (
            RANGE,
            (
                "LearningRateFunctionModifier {start_epoch: 0.0, end_epoch: 2.5, lr_func: linear, init_lr: 0.1, "
                "final_lr: 0.001}"
            ),
        )
    ),
    "cosine": Case(
        (
            RANGE,
            (
                "LearningRateFunctionModifier {start_epoch: 0.5, end_epoch: 3.0, lr_func: cosine, init_lr: 0.01, "
                "final_lr: 0.1}"
            ),
        ),
        "adam",
    ),
    "cyclic": Case(
        (
            RANGE,
            (
                "LearningRateFunctionModifier {start_epoch: 0.0, end_epoch: 3.0, lr_func: cyclic_linear, cycle_epochs: "
                "1.25, init_lr: 0.1, final_lr: 0.0}"
            ),
        )
    ),
    "warm-up, then down": Case(
        (
            RANGE,
            (
                "LearningRateFunctionModifier {start_epoch: 0.0, end_epoch: 1.0, lr_func: linear, init_lr: 1e-4, "
                "final_lr: 0.1}"
            ),
            (
                "LearningRateFunctionModifier {start_epoch: 1.0, end_epoch: 3.0, lr_func: cosine, init_lr: 0.1, "
                "final_lr: 0.0}"
            ),
        ),
        groups=True,
    ),
    "rates of groups": Case(
        (
            RANGE,
            (
                "LearningRateFunctionModifier {start_epoch: 0.0, end_epoch: 3.0, lr_func: linear, init_lr: 0.1, "
                "final_lr: 0.001, param_groups: [0]}"
            ),
            (
                "LearningRateFunctionModifier {start_epoch: 1.0, end_epoch: 3.0, lr_func: cosine, init_lr: 0.05, "
                "final_lr: 0.002, param_groups: [1]}"
            ),
        ),
        groups=True,
    ),
    "decay": Case((RANGE, "SetWeightDecayModifier {start_epoch: 1.25, weight_decay: 0.01}"), groups=True),
    "decay of a group": Case(
        (RANGE, "SetWeightDecayModifier {start_epoch: -1.0, weight_decay: 0.02, param_groups: [0]}"), groups=True
    ),
    "held": Case(
        (
            RANGE,
            "TrainableParamsModifier {params: ['re:.*bias'], trainable: false, start_epoch: 0.0, end_epoch: 1.5}",
            "TrainableParamsModifier {params: ['0.weight'], trainable: false, start_epoch: 1.0, end_epoch: -1.0}",
        )
    ),
    "all held": Case(
        (
            RANGE,
            "TrainableParamsModifier {params: ['re:(0|1|3).*'], trainable: false, start_epoch: -1.0, end_epoch: 2.0}",
        ),
        "adam",
    ),
    "set": Case(
        (RANGE, "SetParamModifier {params: [8.bias], val: [0.5, 0.25, -1.0, 0.0], start_epoch: 1.0, end_epoch: -1.0}")
    ),
    "led": Case(
        (
            RANGE,
            (
                "GradualParamModifier {params: [8.bias], init_val: [0.0, 0.0, 0.0, 0.0], final_val: [1.0, 0.5, -1.0, "
                "0.1],"
                " start_epoch: 0.5, end_epoch: 2.5, update_frequency: 0.3, inter_func: linear}"
            ),
        )
    ),
    # -- magnitude
    **{
        f"gradual, {how}": Case((RANGE, gradual(inter_func=how)), optimizer)
        for how, optimizer in (("linear", "sgd"), ("cubic", "momentum"), ("inverse_cubic", "adam"))
    },
    "magnitude": Case((RANGE, gradual("MagnitudePruningModifier", update_frequency=-1.0)), "adamw"),
    "together": Case((RANGE, gradual("GlobalMagnitudePruningModifier")), "nesterov"),
    "global": Case((RANGE, gradual(global_sparsity=True)), "momentum"),
    "drifting": Case((RANGE, gradual(update_frequency=0.3, start_epoch=0.3, end_epoch=1.9)), "momentum"),
    "drifting less": Case((RANGE, gradual(update_frequency=0.7, end_epoch=2.6)), "adam"),
    "at once": Case((RANGE, gradual(start_epoch=-1.0, end_epoch=3.0)), "momentum"),
    "not left": Case((RANGE, gradual(leave_enabled=False, end_epoch=1.5)), "momentum"),
    "from what is there": Case((RANGE, gradual(init_sparsity="__FROM_PARAM__")), extras=("sparse",)),
    "levels by name": Case((RANGE, gradual(params="[]", final_sparsity="{0.6: ['0.weight'], 0.9: ['re:6.*']}"))),
    "two, one behind the other": Case(
        (
            RANGE,
            gradual(params="['0.weight', '6.weight']", end_epoch=1.0, update_frequency=0.25, final_sparsity=0.5),
            gradual(params="['0.weight', '6.weight']", start_epoch=1.5, init_sparsity=0.5, end_epoch=2.5),
        )
    ),
    "blocks of four": Case((RANGE, gradual(mask_type="block4")), "momentum"),
    "blocks of 1 by 4": Case((RANGE, gradual(mask_type="[1, 4]")), "adam"),
    "blocks of 4 by 1": Case((RANGE, gradual(mask_type="[4, 1]"))),
    "blocks of whole outputs": Case((RANGE, gradual(mask_type="[1, -1]", params="['3.weight', '6.weight']"))),
    "2:4": Case((RANGE, gradual(mask_type='"2:4"', init_sparsity=0.5, final_sparsity=0.5)), net="matrices"),
    "2:4 in a jump": Case(
        (RANGE, gradual(mask_type='"2:4"', init_sparsity=0.0, final_sparsity=0.5, end_epoch=0.5, update_frequency=1.0)),
        "adam",
        net="matrices",
    ),
    "embeddings": Case((RANGE, gradual()), "adam", net="tokens"),
    "resumed": Case((RANGE, gradual(update_frequency=1.0)), begin=1.5),
    "resumed between steps": Case((RANGE, gradual(update_frequency=0.3)), begin=0.6),
    "resumed behind the end": Case((RANGE, gradual(end_epoch=1.5)), begin=2.25),
    "no step behind the end": Case((gradual(end_epoch=3.0),), beyond=0, finished=False),
    "three steps behind the end": Case((RANGE, gradual(end_epoch=3.0)), beyond=3),
    "kept": Case((RANGE, "ConstantPruningModifier {params: __ALL_PRUNABLE__}"), extras=("sparse",)),
    "kept for a while": Case(
        (RANGE, "ConstantPruningModifier {params: __ALL__, start_epoch: 0.5, end_epoch: 2.0}"),
        "adam",
        extras=("sparse",),
    ),
    "kept behind": Case(
        (
            RANGE,
            gradual(leave_enabled=False, end_epoch=1.0, update_frequency=0.25),
            "ConstantPruningModifier {params: __ALL_PRUNABLE__, start_epoch: 1.0, end_epoch: -1.0}",
        )
    ),
    # -- AC/DC
    "alternating": alternating(),
    "alternating, each by itself": alternating(global_sparsity=False, optimizer="nesterov"),
    "alternating from 1": alternating(start_epoch=1, end_epoch=9, update_frequency=1),
    "alternating, an odd number": alternating(end_epoch=7, update_frequency=3),
    "alternating, momentum kept": alternating(momentum_buffer_reset=False),
    "alternating with adam": alternating(optimizer="adam"),
    "alternating in blocks": alternating(mask_type="block4", global_sparsity=False),
    "alternating, not left": alternating(leave_enabled=False, end_epoch=6),
    "alternating, resumed": alternating(begin=2.5),
    "alternating, resumed while dense": alternating(begin=5.25),
    # -- structured
    "filters": Case((RANGE, gradual("StructuredPruningModifier", mask_type="filter", final_sparsity=0.5))),
    "channels": Case(
        (RANGE, gradual("StructuredPruningModifier", mask_type="channel", final_sparsity=0.5, params="['3.weight']")),
        "adam",
    ),
    "filters of a group": Case(
        (
            RANGE,
            gradual(
                "StructuredPruningModifier",
                mask_type="filter",
                final_sparsity=0.5,
                params="['0.weight', '3.weight']",
                param_groups="[['0.weight', '3.weight']]",
            ),
        )
    ),
    # -- distillation
    "taught": Case((RANGE, "DistillationModifier {hardness: 0.6, temperature: 3.0}"), extras=("teacher",)),
    "taught for a while": Case(
        (RANGE, "DistillationModifier {start_epoch: 0.5, end_epoch: 2.0}"), "adam", extras=("teacher",)
    ),
    "taught and pruned": Case((RANGE, gradual(), "DistillationModifier {hardness: 1.0}"), extras=("teacher",)),
    "taught by layers": Case(
        (
            RANGE,
            (
                "PerLayerDistillationModifier {gain: 0.01, student_layer_names: ['3', '6'], teacher_layer_names: ['3', "
                "'6'],"
                " project_features: false}"
            ),
        ),
        extras=("teacher",),
        close=1e-4,
    ),
    # -- when values are rounded, and when ranges and statistics stand still; by the older options, because SparseML's
    # class for the newer ones fails with a torch as new as this
    "rounded": Case(
        (
            RANGE,
            (
                "QuantizationModifier {start_epoch: 1.0, disable_quantization_observer_epoch: 1.75, "
                "freeze_bn_stats_epoch: "
                "2.25, reduce_range: false}"
            ),
        ),
        numbers=False,
    ),
    "rounded at once": Case(
        (RANGE, "QuantizationModifier {start_epoch: -1, disable_quantization_observer_epoch: 2, tensorrt: true}"),
        numbers=False,
    ),
    "rounded behind pruning": Case(
        (
            RANGE,
            gradual(end_epoch=1.0, update_frequency=0.25),
            (
                "QuantizationModifier {start_epoch: 1.5, disable_quantization_observer_epoch: 2.5, "
                "quantize_linear_activations: false}"
            ),
        ),
        net="matrices",
        numbers=False,
    ),
    # -- gradients
    "movement": Case((RANGE, gradual("MovementPruningModifier"))),
    "movement in blocks": Case(
        (RANGE, gradual("MovementPruningModifier", mask_type="block4", start_epoch=0.5, params="['3.weight']")), "adam"
    ),
    "movement in blocks of a matrix": Case(
        (RANGE, gradual("MovementPruningModifier", mask_type="block4", start_epoch=0.5)), "adam", net="matrices"
    ),
    "movement, drifting": Case((RANGE, gradual("MovementPruningModifier", update_frequency=0.3)), "sgd"),
    "movement, resumed": Case((RANGE, gradual("MovementPruningModifier")), begin=1.25),
    "obs, diagonal": Case(
        (RANGE, gradual("OBSPruningModifier", num_grads=8, update_frequency=1.0)), extras=("sampler",), close=1e-5
    ),
    "obs, blocks": Case(
        (RANGE, gradual("OBSPruningModifier", num_grads=8, fisher_block_size=6, damp="1e-5", update_frequency=1.0)),
        extras=("sampler",),
        close=1e-4,
    ),
    "obs, recomputed": Case(
        (
            RANGE,
            gradual(
                "OBSPruningModifier",
                num_grads=8,
                fisher_block_size=4,
                damp="1e-4",
                num_recomputations=3,
                global_sparsity=False,
                update_frequency=1.0,
            ),
        ),
        extras=("sampler",),
        close=1e-4,
    ),
    "obs, block4": Case(
        (
            RANGE,
            gradual(
                "OBSPruningModifier",
                num_grads=8,
                fisher_block_size=8,
                damp="1e-4",
                mask_type="block4",
                params="['1.weight', '3.weight']",
                update_frequency=1.0,
            ),
        ),
        net="matrices",
        extras=("sampler",),
        close=1e-4,
    ),
    "obs beside adam": Case(
        (RANGE, gradual("OBSPruningModifier", num_grads=8, update_frequency=1.0)),
        "adam",
        extras=("sampler",),
        close=1e-5,
    ),
    # without normalizations: the bias before one has gradients of rounding alone, of which Adam makes whole steps
    "obs in blocks beside adam": Case(
        (RANGE, gradual("OBSPruningModifier", num_grads=8, fisher_block_size=6, damp="1e-5", update_frequency=1.0)),
        "adam",
        net="matrices",
        extras=("sampler",),
        close=1e-4,
    ),
    "m-fac": Case(
        (RANGE, gradual("MFACPruningModifier", num_grads=2, fisher_block_size=6, start_epoch=1.0, end_epoch=2.5)),
        close=1e-4,
    ),
    "m-fac, sampled": Case(
        (RANGE, gradual("MFACPruningModifier", num_grads=8, fisher_block_size=12, damp=0.0001, update_frequency=1.0)),
        extras=("sampler",),
        close=1e-4,
    ),
    # -- sets that move
    **{
        f"rigl, {how}": Case(
            (
                RANGE,
                (
                    "RigLPruningModifier {params: __ALL_PRUNABLE__, final_sparsity: 0.7, start_epoch: 0.0, end_epoch: "
                    "4.0,"
                    f" update_frequency: 0.5, sparsity_strategy: {how}}}"
                ),
            ),
            optimizer,
            extras=("sampler",),
            finished=False,
        )
        for how, optimizer in (("uniform", "sgd"), ("erdos_renyi", "adam"), ("erdos_renyi_kernel", "momentum"))
    },
    "top-kast": Case(
        (
            RANGE,
            (
                "TopKASTPruningModifier {params: __ALL_PRUNABLE__, forward_sparsity: 0.8, backward_sparsity: 0.5, "
                "start_epoch: 0.0, end_epoch: 2.0, update_frequency: 0.5}"
            ),
        ),
        "sgd",
        between=False,
    ),
    "top-kast at every step": Case(
        (
            RANGE,
            (
                "TopKASTPruningModifier {params: __ALL_PRUNABLE__, forward_sparsity: 0.8, backward_sparsity: 0.5, "
                "start_epoch: 0.5, end_epoch: 2.0, update_frequency: -1.0, global_sparsity: false, "
                "active_weight_decay: "
                "0.01}"
            ),
        ),
        "sgd",
        between=False,
    ),
    # not compared by numbers: its first step takes gradients of weights for those of roots, its last one the reverse
    "powers": Case(
        (RANGE, "PowerpropagationModifier {params: __ALL_PRUNABLE__, alpha: 2.0, start_epoch: 0.5, end_epoch: 2.0}"),
        "sgd",
        numbers=False,
    ),
    # -- layers
    "layers left out": Case((RANGE, "LayerPruningModifier {layers: ['3'], start_epoch: 1.0, end_epoch: -1.0}")),
    "layers left out for a while": Case(
        (RANGE, "LayerPruningModifier {layers: ['3'], start_epoch: 0.5, end_epoch: 2.0}"), "adam"
    ),
    "thinned": Case(
        (
            RANGE,
            gradual(
                "StructuredPruningModifier",
                mask_type="filter",
                init_sparsity=0.25,
                final_sparsity=0.5,
                params="['0.weight']",
                end_epoch=1.5,
                leave_enabled=False,
            ),
            (
                "LayerThinningModifier {param_group_dependency_map: {'0.weight': ['0.bias', '1.weight', '1.bias', "
                "'1.running_mean', '1.running_var', '3.weight']}, start_epoch: 2.0}"
            ),
        ),
        "momentum",
    ),
}


# -- the loop


class Tokens(nn.Module):
    """Tokens, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix, self.head = nn.Embedding(20, 8), nn.Linear(8, 12), nn.Linear(12, 4)

    def forward(self, x: Any) -> Any:
        return self.head(torch.relu(self.mix(self.table(x).mean(1))))


def made(case: Case, seed: int = 0) -> tuple[Any, Any]:
    """The module, and its optimizer."""
    torch.manual_seed(seed)
    net = NETS[case.net]()
    if "sparse" in case.extras:
        with torch.no_grad():
            for place, weight in enumerate(one for one in net.parameters() if one.ndim > 1):
                weight[torch.rand(weight.shape) < 0.2 + 0.1 * place] = 0
    named = list(net.named_parameters())
    params: Any = [one for _, one in named]
    if case.groups:
        biases = [one for name, one in named if name.endswith("bias")]
        params = [{"params": [one for name, one in named if not name.endswith("bias")]}, {"params": biases, "lr": 0.03}]
    return net, OPTIMIZERS[case.optimizer](params)


NETS: dict[str, Callable[[], Any]] = {
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 12),
        nn.ReLU(),
        nn.Linear(12, 4),
    ),
    "matrices": lambda: nn.Sequential(nn.Flatten(), nn.Linear(100, 8), nn.ReLU(), nn.Linear(8, 4)),
    "tokens": Tokens,
}


def batch(case: Case, step: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1000 + step)
    labels = torch.randint(0, 4, (8,), generator=generator)
    if case.net == "tokens":
        return torch.randint(0, 20, (8, 5), generator=generator), labels
    return torch.randn((8, 4, 5, 5), generator=generator), labels


def sampler(case: Case) -> dict[str, Any]:
    """Batches with arguments, named arguments and labels; the same ones whenever they are asked for."""

    def build(*_: Any, **__: Any) -> Any:
        def batches() -> Any:
            for step in range(8):
                inputs, labels = batch(case, 500 + step)
                yield [inputs], {}, labels

        return batches

    return {"data_loader_builder": build, "loss_function": nn.functional.cross_entropy}


def run(
    case: Case, manager: Any, times: Callable[[Any], Any], ranges: Callable[[Any], dict[str, Any]]
) -> list[dict[str, Any]]:
    """What is there after each step, and after `finalize`; `ranges` are those of a module's quantization."""
    net, optimizer = made(case)
    named: dict[str, Any] = {}
    if "teacher" in case.extras:
        named["distillation_teacher"] = made(case, 1)[0]
    if "sampler" in case.extras:
        named["grad_sampler"] = sampler(case)
    wrapped = manager.modify(net, optimizer, steps_per_epoch=PER_EPOCH, epoch=case.begin, **named)
    clock = around(case)
    found = []
    seen = around_numbers(net, ranges)
    for step in range(round(case.begin * PER_EPOCH), round(case.epochs * PER_EPOCH) + case.beyond):
        inputs, labels = batch(case, step)
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = nn.functional.cross_entropy(outputs, labels)
        if "teacher" in case.extras:
            loss = manager.loss_update(
                loss, net, optimizer, clock(step), PER_EPOCH, student_outputs=outputs, student_inputs=inputs
            )
        loss.backward()
        wrapped.step()
        if not case.numbers:
            before, seen = seen, around_numbers(net, ranges)
            found.append({"times": times(manager), "moves": moves(before, seen)})
            continue
        told = {"times": times(manager), "loss": float(loss)}
        found.append({**state(net, optimizer, case), "masks": masks(manager), **told} if case.between else told)
    manager.finalize(net)
    if not case.numbers:
        return found
    return [*found, state(net, optimizer, case)] if case.finished else found


def around_numbers(net: Any, ranges: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    statistics = {name: one for name, one in net.state_dict().items() if name.endswith("running_mean")}
    return {
        kind: {name: one.clone() for name, one in some.items()}
        for kind, some in (("statistics", statistics), ("ranges", ranges(net)))
    }


def moves(before: dict[str, Any], after: dict[str, Any]) -> dict[str, bool]:
    """Whether something is rounded, and what changed in a step."""
    changed = {
        kind: any(not torch.equal(one, other) for one, other in zip(before[kind].values(), after[kind].values()))
        for kind in after
    }
    return {**changed, "rounds": bool(after["ranges"])}


def around(case: Case) -> Callable[[int], float]:
    return lambda step: float(step // PER_EPOCH) + step % PER_EPOCH / PER_EPOCH


def state(net: Any, optimizer: Any, case: Case) -> dict[str, Any]:
    """Of the loop's own groups: SparseML adds one for the projections of PerLayerDistillationModifier."""
    groups = optimizer.param_groups[: 2 if case.groups else 1]
    tensors = {name: one.detach().clone() for name, one in net.state_dict().items()}
    momenta = [
        {name: one.detach().clone() for name, one in sorted(optimizer.state[param].items()) if torch.is_tensor(one)}
        if param in optimizer.state
        else {}
        for group in groups
        for param in group["params"]
    ]
    return {
        "tensors": tensors,
        "momenta": momenta,
        "rates": [float(group["lr"]) for group in groups],
        "decays": [float(group["weight_decay"]) for group in groups],
        "trains": sum(one.requires_grad for one in net.parameters()),
    }


def masks(manager: Any) -> list[dict[str, Any]]:
    """Of each modifier that has some, by parameter; not of those that leave none, and no open ones."""
    left = {type(one).__name__ for one in manager.iter_modifiers() if getattr(one, "leave_enabled", False)}
    found = []
    for key, some in sorted(manager.state_dict().items(), key=lambda pair: str(pair[0].partition("-")[0])):
        masks = {name: mask.bool() for name, mask in some.items() if torch.is_tensor(mask) and "mask" in name}
        own = {name: mask.clone() for name, mask in masks.items() if not mask.all()}
        if own and key.partition("-")[0] in left:
            found.append(own)
    return found


if __name__ == "__main__":
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    import sparseml.pytorch.sparsification  # noqa: F401 (the modifiers are known by this)
    from sparseml.pytorch.optim import ScheduledModifierManager

    def begun(manager: Any) -> list[Any]:
        return [(type(one).__name__, one.started, one.ended) for one in manager.iter_modifiers()]

    def ranges(net: Any) -> dict[str, Any]:
        return {name: one for name, one in net.state_dict().items() if name.endswith(("min_val", "max_val"))}

    torch.set_num_threads(1)
    chosen = sys.argv[2:] or list(CASES)
    done: dict[str, Any] = {}
    for name in chosen:
        try:
            manager = ScheduledModifierManager.from_yaml(CASES[name].recipe)
            done[name] = run(copy.copy(CASES[name]), manager, begun, ranges)
        except Exception:
            done[name] = traceback.format_exc()
    torch.save(done, sys.argv[1])
