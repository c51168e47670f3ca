"""Distillation by layers in a user's loop: what layers of a teacher give is learned, as SparseML's modifier does it.

    task + gain * sum over pairs of layers of mean((projected - taught)^2) / (mean(taught^2) + epsilon)

1. What layers give is recorded by hooks, of the module while it trains. Without names the layers are all Conv2d and
   Linear of the module, and of the teacher. A teacher that is an ONNX file gives the values of its layers, which go by
   the names that they have in a file, as more outputs.
2. `projected` is what a layer gives times a matrix without a bias, which for images is a convolution of 1x1. Every pair
   has one, whatever the shapes. They are made when the first loss comes by, and train as one more group of the
   optimizer, which the optimizer's state dict leaves out; their numbers are in that of the manager.
3. The teacher `self` is a copy of the module as it was when the manager got it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from onnx import ValueInfoProto

from onnxsparse.acts.layer_pairs import values_of
from onnxsparse.dialects.sparseml.distillation import Teacher, arguments_of
from onnxsparse.engines.torch.convert import to_module
from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OptionError, nearest
from onnxsparse.graph.edit import copied
from onnxsparse.graph.model import Model
from onnxsparse.planning.names import matcher
from onnxsparse.recipes.modifiers.distillation import SELF
from onnxsparse.recipes.modifiers.layer_distillation import PerLayerDistillationModifier

PROJECTIONS = "distillation_projection_params"
"""The key of SparseML's states and of the optimizer's group."""
IMAGES = 4
"""The rank of what layers give to images."""
KINDS = ("Conv2d", "Linear")
Layers = dict[str, Any]


class LayerTeacher(Teacher):
    """Whoever's layers are learned from; `train` gets the projections as soon as there are some."""

    def __init__(
        self, options: PerLayerDistillationModifier, given: Any, module: Any, train: Callable[[Sequence[Any]], None]
    ) -> None:
        super().__init__(options, given, module)
        self._layers, self._train = options, train
        self._projections: dict[str, Any] = {}
        self._waiting: Mapping[str, Any] = {}
        self._ours: dict[str, Any] = {}
        self._theirs: dict[str, Any] = {}
        self._hooks: list[Any] = []
        if self.disabled:
            return
        said = self._layers
        ours = said.student_layer_names or said.teacher_layer_names
        theirs = said.teacher_layer_names or said.student_layer_names
        first = layers_of(module, ours, f"{said.called}: student_layer_names: the module")
        held, where = self._file() if self._given != SELF else None, f"{said.called}: teacher_layer_names: the teacher"
        self._outputs: list[str] = []
        if held is None:
            self._ready = self._made()
            second = layers_of(self._ready, theirs, where)
        else:
            self._ready, second, self._outputs = _of_file(held, theirs, where)
        self._pairs = self._paired(first, second)
        self._hooks = _record(first, module, self._ours, module)
        if held is None:
            _record(second, self._ready, self._theirs, None)

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()

    @property
    def rest(self) -> float:
        return 1.0

    def loss(self, task: Any, outputs: Any, inputs: Any) -> Any:
        missing = next((name for name, _ in self._pairs if name not in self._ours), None)
        if missing is not None or inputs is None:
            raise OptionError(
                f"{self._layers.called}: the layer {missing or self._pairs[0][0]} has given nothing since the last "
                "loss: call the module in training mode before loss_update"
            )
        arguments, named = arguments_of(inputs)
        with torch().no_grad():
            given = self._ready(*arguments, **named)
        if self._outputs:
            self._theirs = dict(zip(self._outputs, given if isinstance(given, tuple) else (given,)))
        if self._layers.project_features and not self._projections:
            self._project()
        total = 0.0
        for ours, theirs in self._pairs:
            total = total + self._distance(ours, self._theirs[theirs])
        self._ours.clear()
        return task + self._layers.gain * total

    def _distance(self, name: str, theirs: Any) -> Any:
        ours = self._ours[name]
        projection = self._projections.get(name)
        if projection is not None:
            ours = projection(ours.to(projection.weight.dtype))
        if ours.shape != theirs.shape:
            raise OptionError(
                f"{self._layers.called}: the layer {name} gives {list(ours.shape)} and that of the teacher "
                f"{list(theirs.shape)}; take layers of the same sizes, or project_features for other channels"
            )
        found = (ours - theirs).square().mean()
        return found / (theirs.square().mean() + self._layers.epsilon) if self._layers.normalize else found

    def _project(self) -> None:
        """In the order of the pairs: random numbers are those that SparseML would draw."""
        for ours, theirs in self._pairs:
            self._projections[ours] = _projection(self._ours[ours], self._theirs[theirs])
        self._train([one.weight for one in self._projections.values()])
        if self._waiting:
            self.load(self._waiting)

    def _paired(self, ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[str, str]]:
        if len(ours) != len(theirs) or not ours:
            raise OptionError(
                f"{self._layers.called}: {len(ours)} layers of the module and {len(theirs)} of the teacher are no "
                "pairs; name as many in student_layer_names as in teacher_layer_names"
            )
        return list(zip(ours, theirs))

    # -- what the state of a manager holds

    def state(self) -> dict[str, Any]:
        return {name: {"weight": one.weight.detach().clone()} for name, one in self._projections.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take projections over, now or when there are some."""
        self._waiting = state
        for name, one in self._projections.items():
            given = state.get(name, {}).get("weight")
            if not torch().is_tensor(given) or given.shape != one.weight.shape:
                raise OptionError(
                    f"the state has no projection of the layer {name} with the shape {list(one.weight.shape)}; it is "
                    "that of another recipe or module"
                )
            with torch().no_grad():
                one.weight.copy_(given)


def layers_of(module: Any, names: Sequence[str] | None, where: str) -> list[str]:
    """The layers of a module by name: plain names are of any module in it, `re:` of layers with weights."""
    known: Layers = {name: one for name, one in module.named_modules() if name}
    plain = {name: torch().nn.utils.parametrize.type_before_parametrizations(one) for name, one in known.items()}
    if names is None:
        wanted = tuple(getattr(torch().nn, kind) for kind in KINDS)
        return [name for name, kind in plain.items() if kind in wanted]
    found: dict[str, None] = {}
    for name in names:
        matches = matcher(name, where)
        weighty = [one for one in known if getattr(known[one], "weight", None) is not None and matches(one)]
        chosen = weighty if name.startswith("re:") else [one for one in known if one == name]
        if not chosen:
            raise OptionError(f"{where} has no layer {name:.60}{nearest(name, list(known))}")
        found.update(dict.fromkeys(chosen))
    return list(found)


def _of_file(held: Any, names: Sequence[str] | None, where: str) -> tuple[Any, list[str], list[str]]:
    """A module that also gives what layers of an ONNX model give, the names of these values, and of all its outputs."""
    model = Model.open(held) if isinstance(held, str) else Model.over(copied(held))
    values = values_of(model, names, where)
    graph = model.proto.graph
    known = {one.name for one in graph.output}
    graph.output.extend(ValueInfoProto(name=one) for one in dict.fromkeys(values) if one not in known)
    return to_module(model).eval(), values, [one.name for one in graph.output]


def _record(names: Sequence[str], module: Any, into: Layers, training: Any) -> list[Any]:
    """Hooks that note what layers give; of a module that trains only what they give then."""
    layers = dict(module.named_modules())

    def hook_of(name: str, layer: Any) -> Callable[..., None]:
        def note(one: Any, _: Any, output: Any) -> None:
            # Copies of the module have the same hooks.
            if one is layer and (training is None or (training.training and torch().is_grad_enabled())):
                into[name] = output

        noting: Callable[..., None] = torch()._disable_dynamo(note)
        return noting

    return [layers[name].register_forward_hook(hook_of(name, layers[name])) for name in names]


def _projection(ours: Any, theirs: Any) -> Any:
    nn = torch().nn
    if ours.dim() == IMAGES:
        made = nn.Conv2d(ours.shape[1], theirs.shape[1], kernel_size=1, bias=False)
    else:
        made = nn.Linear(ours.shape[-1], theirs.shape[-1], bias=False)
    return made.to(ours.device)


# -- The projections' group in an optimizer, which its state dict leaves out, as in SparseML: a state that was saved
# before there was such a group, or without it, fits.


def add_group(optimizer: Any, weights: Sequence[Any]) -> None:
    optimizer.add_param_group({PROJECTIONS: True, "params": list(weights)})
    optimizer.register_state_dict_post_hook(_left_out)
    optimizer.register_load_state_dict_pre_hook(_put_in)


def _places(groups: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    return (place for place, group in enumerate(groups) if PROJECTIONS in group)


def _left_out(_: Any, state: dict[str, Any]) -> dict[str, Any]:
    groups = [group for group in state["param_groups"] if PROJECTIONS not in group]
    kept = {number for group in groups for number in group["params"]}
    moments = {number: one for number, one in state["state"].items() if number in kept}
    return {**state, "param_groups": groups, "state": moments}


def _put_in(optimizer: Any, state: dict[str, Any]) -> dict[str, Any] | None:
    """The optimizer's own groups of projections, with what it remembers of them."""
    groups, moments = list(state["param_groups"]), dict(state["state"])
    fresh = 1 + max((number for group in groups for number in group["params"]), default=-1)
    for place in _places(optimizer.param_groups):
        own = optimizer.param_groups[place]
        numbers = list(range(fresh, fresh + len(own["params"])))
        groups.insert(place, {**own, "params": numbers})
        moments.update({n: optimizer.state[one] for n, one in zip(numbers, own["params"]) if one in optimizer.state})
        fresh += len(numbers)
    return {**state, "param_groups": groups, "state": moments}
