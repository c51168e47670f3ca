"""Groups of channels in an ONNX graph, as a recipe's map of dependencies names them, checked against channel classes.

1. The weights that a group is called by have their channels in one class: by their outputs, or by their inputs.
2. All weights that give or read channels of the class are in the map, and so is each normalization in between. Biases,
   depthwise convolutions and whatever else has one number for each channel go along by themselves.
3. What the graph does not let go is refused by its name, before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnxsparse.acts.params import Param, find, find_some
from onnxsparse.channel_classes.classes import ChannelClass, Channels, Member
from onnxsparse.errors import OptionError, PlanError
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.math.values import Array
from onnxsparse.passes.permuting import channels_of
from onnxsparse.passes.thin import (
    ALONE,
    GIVES,
    READS,
    Roles,
    blocking,
    places_in,
    readers_of,
    roles_of,
    thinned,
    zeros_in,
)

Numbers = Callable[[StoredTensor], Array]


@dataclass(frozen=True, eq=False)
class ChannelGroup:
    """Channels of one class, and the weights that say which of them are unused."""

    name: str
    channels: ChannelClass
    counted: tuple[Member, ...]
    readers: tuple[Member, ...]

    def unused(self, where: str, numbers: Numbers, strict: bool) -> Array:
        """The channels that are zero in all weights of the group; not all of them."""
        zeros = [zeros_in(self.channels, one, numbers(one.tensor)) for one in self.counted]
        for one, own in zip(self.counted, zeros):
            if strict and not np.array_equal(own, zeros[0]):
                raise OptionError(
                    f"{where}: other channels of {one.name} are zero than of {self.name}; prune them together "
                    "(param_groups of a StructuredPruningModifier), or say strict: false"
                )
        return _not_all(np.logical_and.reduce(zeros))

    def unread(self, numbers: Numbers) -> Array:
        """The channels that are zero in all weights of the group, and read by none."""
        own = [zeros_in(self.channels, one, numbers(one.tensor)) for one in (*self.counted, *self.readers)]
        return _not_all(np.logical_and.reduce(own))

    def keeps(self, gone: Array) -> dict[StoredTensor, Array]:
        """By tensor, what is left without some of the channels."""
        found: dict[StoredTensor, Array] = {}
        for member in self.channels.members:
            keep = ~places_in(member, self.channels.channels[gone])
            found[member.tensor] = keep & found.get(member.tensor, np.True_)
        return found


def found_again(group: ChannelGroup, model: Model, channels: Channels) -> ChannelGroup | None:
    """The same group in a copy of the model with other numbers; None where its layers are not there any more."""
    members = {(one.name, one.axes): one for one in channels.members}
    counted = [members[one.name, one.axes] for one in group.counted if (one.name, one.axes) in members]
    alike = (one for one in channels.classes if all(np.isin(each.labels, one.channels).all() for each in counted))
    classes = [*alike] if counted else []
    if not classes:
        return None
    return ChannelGroup(group.name, classes[0], tuple(counted), readers_of(classes[0], roles_of(model)))


def _not_all(gone: Array) -> Array:
    if gone.all():  # a layer without channels is none
        gone[0] = False
    return gone


@dataclass(frozen=True, eq=False)
class GroupMap:
    """A map of dependencies in a model: which weights are thinned together, and what depends on them."""

    model: Model
    params: Sequence[Param]
    outputs: bool
    where: str

    def groups(self, dependents: Mapping[tuple[str, ...], Sequence[str]]) -> tuple[list[ChannelGroup], list[str]]:
        """The groups, and the names of dependents that the model does not have."""
        channels, roles, missing = channels_of(self.model), roles_of(self.model), list[str]()
        by_name = {tensor.name: tensor for tensor in self.model.flow.stores.homes}
        by_tag = {home.tag: tensor for tensor, home in self.model.flow.stores.homes.items()}
        made = []
        for names, others in dependents.items():
            group = [by_tag[one.tag] for one in find(self.params, names, self.where)]
            known = [by_name[name] for name in others if name in by_name]
            found, unknown = find_some(self.params, [name for name in others if name not in by_name], self.where)
            missing += unknown
            named = [*known, *(by_tag[one.tag] for one in found)]
            made.append(self._group(channels, roles, group, named))
        self._try(made)
        return made, list(dict.fromkeys(missing))

    def _try(self, groups: Sequence[ChannelGroup]) -> None:
        """What the graph has against fewer channels is known before anything runs."""
        kept = {one.channels.number: np.arange(one.channels.size) > 0 for one in groups}
        try:
            thinned(self.model, kept)
        except PlanError as error:
            raise self._refused(str(error)) from None

    def _group(
        self, channels: Channels, roles: Roles, group: Sequence[StoredTensor], named: Sequence[StoredTensor]
    ) -> ChannelGroup:
        first, side = group[0].name, GIVES if self.outputs else READS
        own = [self._member(channels, roles, tensor, side) for tensor in group]
        one = self._class(channels, own[0])
        for member in own[1:]:
            if member not in one.members or not np.isin(member.labels, one.channels).all():
                raise self._refused(f"{member.name} has other channels than {first}: they are no group")
        why = blocking(self.model, channels, one)
        if why:
            raise self._refused(f"the channels of {first} cannot be taken out: {why}")
        self._demand_all(one, roles, group, named)
        self._demand_own(one, roles, [tensor for tensor in named if tensor not in group], first)
        counted = [member for member in own if roles[member.tensor, member.axes[-1]] == side]
        return ChannelGroup(first, one, tuple(counted or own), readers_of(one, roles))

    def _member(self, channels: Channels, roles: Roles, tensor: StoredTensor, side: str) -> Member:
        found = [
            member
            for member in channels.by_tensor.get(tensor, ())
            if roles.get((tensor, member.axes[-1])) in (side, ALONE)
        ]
        if not found:
            what = "outputs" if self.outputs else "inputs"
            raise self._refused(f"the {what} of {tensor.name} stay where they are: no layer is known to go by them")
        return found[0]

    def _class(self, channels: Channels, member: Member) -> ChannelClass:
        own = np.unique(member.labels)
        touched = [one for one in channels.classes if np.isin(own, one.channels).any()]
        if len(touched) == 1 and np.isin(own, touched[0].channels).all():
            return touched[0]
        why = channels.why(member)
        if not why:
            why = f"they are in {len(touched)} groups of a convolution or of a cut, which keep their channels"
        raise self._refused(f"the channels of {member.name} cannot be taken out: {why}")

    def _demand_all(
        self, one: ChannelClass, roles: Roles, group: Collection[StoredTensor], named: Collection[StoredTensor]
    ) -> None:
        """All that gives or reads the channels is in the map."""
        first, known = next(iter(group)).name, {*group, *named}
        found = [(one.tensor, roles.get((one.tensor, one.axes[-1]), "")) for one in one.members]
        for tensor, role in found:
            if role == GIVES and self.outputs and tensor not in group:
                raise self._refused(
                    f"{tensor.name} gives the same channels as {first} (their results are added), and keeps them: name "
                    "it in the group"
                )
            if role == READS and not self.outputs and tensor not in group:
                raise self._refused(f"{tensor.name} reads the same channels as {first}, and is not in the group")
        for tensor, role in found:
            if role in (GIVES, READS) and tensor not in known:
                raise self._refused(f"{tensor.name} is missing among the dependents of {first}")
        self._demand_normalizations({member.tensor for member in one.members}, known, first)

    def _demand_normalizations(
        self, members: Collection[StoredTensor], known: Collection[StoredTensor], first: str
    ) -> None:
        stored = {tensor.name: tensor for tensor in members}
        given = {tensor.name for tensor in known}
        for node in self.model.proto.graph.node:
            if node.op_type == "BatchNormalization" and node.input[1] in stored and not given & set(node.input[1:]):
                raise self._refused(f"{node.input[1]}, of a normalization, is missing among the dependents of {first}")

    def _demand_own(self, one: ChannelClass, roles: Roles, named: Iterable[StoredTensor], first: str) -> None:
        """What is named has the channels."""
        side = READS if self.outputs else GIVES
        for tensor in named:
            own = [roles.get((tensor, member.axes[-1]), "") for member in one.members if member.tensor is tensor]
            if not own or (any(one is tensor for one, _ in roles) and not {side, ALONE, ""} & set(own)):
                verb = "read" if self.outputs else "give"
                raise self._refused(f"{tensor.name} does not {verb} the channels of {first}")

    def demand_free(self, groups: Iterable[ChannelGroup]) -> None:
        """What reads the channels can be set to zero."""
        by_tag = {param.tag: param for param in self.params}
        homes = self.model.flow.stores.homes
        for one in groups:
            for member in (*one.counted, *one.readers):
                param = by_tag.get(homes[member.tensor].tag)
                if param is None or param.refusal:
                    why = param.refusal if param is not None else "it does not train"
                    raise self._refused(f"{member.name} of the channels of {one.name} cannot be set to zero: {why}")

    def _refused(self, why: str) -> OptionError:
        return OptionError(f"{self.where}: {why}")


__all__ = ["ChannelGroup", "GroupMap", "found_again"]
