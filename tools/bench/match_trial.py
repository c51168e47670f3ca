"""The trial of a match: new numbers in the module, and in the file where the match says, give the same outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch.nn.utils import parametrize

from onnxsparse.engines.torch.match.candidates import bare, entries
from onnxsparse.graph.torch_match import Match, Matched
from tools.bench.match_ways import Way

Array = np.ndarray[Any, Any]


@dataclass
class Outcome:
    net: str
    way: Way
    problem: str = ""
    right: int = 0
    unseen: int = 0
    folded: int = 0
    wrong: list[str] = field(default_factory=list)
    refused: Mapping[str, str] = field(default_factory=dict)


class Trial:
    """A module, and its file with the matched tensors as inputs."""

    def __init__(self, path: Path, module: Any, x: Any, way: Way, match: Match) -> None:
        self.module, self.x, self.match, self.training = bare(module), x, match, way.training
        for part in self.module.modules():
            if (
                parametrize.is_parametrized(part)
                and hasattr(part.parametrizations, "weight")
                and hasattr(part.parametrizations.weight, "original0")
            ):
                parametrize.remove_parametrizations(part, "weight")
        self.entries = {entry.name: entry for entry in entries(module)}
        self.stored, model = opened(onnx.load(path), {one.tensor for row in match.values() for one in rows(row)})
        self.session = session(model)
        self.close = {"float16": 2e-2}.get(way.kind, 1e-2 if way.after == "Q/DQ" else 1e-3)
        self.generator = np.random.Generator(np.random.Philox(key=1))

    def outcome(self, result: Outcome) -> Outcome:
        before = self.mine()
        if self.training and apart(self.theirs({}), before) > self.close:
            self.training = False  # the newer exporter writes batch normalizations as they are in eval mode
            before = self.mine()
        if apart(self.theirs({}), before) > self.close:
            result.problem = "the outputs differ before anything is changed"
            return result
        for group in self.groups():
            self.judge(group, before, result)
        return result

    def judge(self, group: Sequence[str], before: list[Array], result: Outcome) -> None:
        state = [(one, one.clone()) for name in group for one in self.entries[name].values]
        feeds = self.change(group)
        if feeds is None:
            result.unseen += len(group)
            return
        mine, theirs = self.mine(), self.theirs(feeds)
        for tensor, numbers in state:
            tensor.copy_(numbers)
        if apart(theirs, mine) > self.close:
            result.wrong += group
        elif apart(mine, before) > 10 * max(apart(theirs, mine), 1e-6):
            result.right += len(group)
        else:
            result.unseen += len(group)

    def groups(self) -> Iterator[list[str]]:
        """Parameters that lie in the same tensors."""
        waiting = list(self.match)
        while waiting:
            group = [waiting.pop(0)]
            tensors = {one.tensor for one in rows(self.match[group[0]])}
            for name in list(waiting):
                own = {one.tensor for one in rows(self.match[name])}
                if own & tensors:
                    tensors |= own
                    group.append(name)
                    waiting.remove(name)
            yield group

    def change(self, group: Sequence[str]) -> dict[str, Array] | None:
        """New numbers in the module; those of the file, as inputs."""
        feeds: dict[str, Array] = {}
        done: set[tuple[str, int]] = set()
        for name in group:
            entry, places = self.entries[name], rows(self.match[name])
            if self.match[name].how == "folded batch norm" and len(entry.shape) == 1:
                return None  # a function of several parameters
            known = next((one for one in places if (one.tensor, one.start) in done), None)
            if known is not None:
                flat = feeds[known.tensor].reshape(-1)
                entry.values[0].copy_(torch.from_numpy(np.ascontiguousarray(flat[known.places()])))
            else:
                positive = any(self.entries[one].local == "running_var" for one in group)
                self.draw(entry, self.match[name], feeds, positive)
                done |= {(one.tensor, one.start) for one in places}
        return feeds

    def draw(self, entry: Any, matched: Matched, feeds: dict[str, Array], positive: bool) -> None:
        keep = np.asarray(self.generator.random(entry.shape) < 0.5)
        zeros = matched.how == "folded batch norm" or len(entry.values) > 1
        noise = np.asarray(self.generator.standard_normal(entry.shape) * size(entry))
        noise = np.zeros(entry.shape) if zeros else np.abs(noise) if positive else noise
        for value in entry.values:
            value.copy_(torch.where(torch.from_numpy(keep), value, torch.from_numpy(noise).to(value.dtype)))
        for one in rows(matched):
            array = feeds.setdefault(one.tensor, self.stored[one.tensor].copy())
            flat = array.reshape(-1)
            spots = one.places()
            flat[spots] = np.where(keep, flat[spots], noise.astype(array.dtype))

    def mine(self) -> list[Array]:
        state = {name: one.clone() for name, one in self.module.state_dict().items() if "running" in name}
        self.module.train(self.training)
        leaves = torch.utils._pytree.tree_leaves(self.module(self.x))
        self.module.load_state_dict(state, strict=False)
        return [one.double().numpy() for one in leaves]

    def theirs(self, feeds: Mapping[str, Array]) -> list[Array]:
        names = [one.name for one in self.session.get_inputs()]
        given = {**self.stored, **feeds}
        all_of_them = {name: given[name] if name in given else self.x.numpy() for name in names}
        return [one.astype(np.float64) for one in self.session.run(None, all_of_them)]


def rows(matched: Matched) -> tuple[Matched, ...]:
    return (matched, *matched.copies)


def size(entry: Any) -> float:
    return max(float(entry.values[0].double().square().mean().sqrt()), 0.1)


def apart(one: Sequence[Array], other: Sequence[Array]) -> float:
    found = [float(np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-9)) for a, b in zip(one, other)]
    return max(found) if len(one) == len(other) and not np.isnan(found).any() else float("inf")


def opened(model: onnx.ModelProto, names: set[str]) -> tuple[dict[str, Array], onnx.ModelProto]:
    """The numbers of stored tensors, and the model with them as inputs."""
    graph, stored = model.graph, {}
    for node in list(graph.node):
        if node.op_type == "Constant" and node.output[0] in names:
            value = next(one.t for one in node.attribute if one.name == "value")
            graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(value), node.output[0]))
            graph.node.remove(node)
    for one in list(graph.initializer):
        if one.name in names:
            stored[one.name] = np.array(numpy_helper.to_array(one))
            graph.input.append(helper.make_tensor_value_info(one.name, one.data_type, list(one.dims)))
            graph.initializer.remove(one)
    assert set(stored) == names, sorted(names - set(stored))
    return stored, model


def session(model: onnx.ModelProto) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
