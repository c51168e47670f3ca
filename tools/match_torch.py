"""Matches the parameters of many networks, exported in many ways, and writes down how often that was right.

    python tools/match_torch.py [TABLE.md] [NET ...]

Every match is tried: new numbers at half of the places of a parameter, in the module, and in the tensor that the match
names, as `layout` says; the module and onnxruntime, which reads the tensor as an input, have to agree on the outputs
again. Parameters of one tensor are changed together. New numbers, because a mask on a bias of zeros shows nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import logging
import os
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch.nn.utils import parametrizations, parametrize, prune

import onnxsparse as osp
from onnxsparse.engines.torch.entries import bare, entries
from onnxsparse.engines.torch.match import Match, Matched

BUILD = importlib.import_module("tests.engines.torch.nets").build
MORE_NETS = importlib.import_module("tests.engines.torch.more_nets")
MAIN = ("resnet18", "encoder", "mixed")
NETS = (*MAIN, *MORE_NETS.MORE)
OPSETS = range(13, 21)
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Way:
    """A way to export; `kind` is the type of the numbers, `after` what another tool does to the file."""

    dynamo: bool
    fold: bool
    training: bool
    opset: int
    trained: bool = True
    wrapper: str = ""
    kind: str = "float32"
    after: str = ""

    @property
    def title(self) -> str:
        words = ["dynamo" if self.dynamo else "TorchScript", "folded" if self.fold else "plain"]
        words += ["training" if self.training else "eval", "trained" if self.trained else "new"]
        words += [word for word in (self.wrapper, self.after, self.kind if self.kind != "float32" else "") if word]
        return ", ".join(words)


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


def ways(net: str) -> Iterator[Way]:
    both = (False, True)
    opsets = OPSETS if net in MAIN else (17,)
    for fold, training, opset, trained in itertools.product(both, both, opsets, both):
        yield Way(False, fold, training, opset, trained)
    for fold, training, opset, trained in itertools.product(both, both, (18, 20) if net in MAIN else (18,), both):
        yield Way(True, fold, training, opset, trained)
    for dynamo, fold, trained in itertools.product(both, both, both):
        yield Way(dynamo, fold, False, 18, trained, after="optimized by onnxruntime")
    for dynamo, trained in itertools.product(both, both):
        yield Way(dynamo, True, False, 18, trained, kind="float16")
        yield Way(dynamo, True, False, 21 if dynamo else 20, trained, after="Q/DQ")
    for dynamo, wrapper in itertools.product(both, WRAPPERS):
        yield Way(dynamo, True, False, 18, True, wrapper)


# -- networks


def network(net: str, way: Way) -> tuple[Any, Any]:
    module, x = BUILD(net) if net in MAIN else MORE_NETS.build_more(net)
    if way.trained:
        train(module, x)
    elif net in MAIN:
        for part in module.modules():
            if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
                part.reset_parameters()
    if way.wrapper in CHANGED:
        WRAPPERS[way.wrapper](module)
    kind = getattr(torch, way.kind)
    return module.to(kind).train(way.training), x.to(kind) if x.is_floating_point() else x


def train(module: Any, x: Any) -> None:
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    for _ in range(4):
        loss = module(x if not x.is_floating_point() else torch.randn(x.shape)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _weights(module: Any) -> list[tuple[Any, str]]:
    kinds = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)
    plain = [one for one in module.modules() if type(one) in kinds or isinstance(one, kinds[1])]
    tied = Counter(
        id(one.weight) for one in (*plain, *(x for x in module.modules() if isinstance(x, torch.nn.Embedding)))
    )
    return [(one, "weight") for one in plain[1:] if tied[id(one.weight)] == 1]


def _pruned(module: Any) -> None:
    for owner, name in _weights(module):
        prune.l1_unstructured(owner, name, 0.5)


def _normed(module: Any) -> None:
    for owner, name in _weights(module):
        parametrizations.weight_norm(owner, name)


class Halved(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    def forward(self, weight: Any) -> Any:
        return 0.5 * weight


def _parametrized(module: Any) -> None:
    for owner, name in _weights(module):
        parametrize.register_parametrization(owner, name, Halved())


def _distributed(module: Any) -> Any:
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return torch.nn.parallel.DistributedDataParallel(module)


class Outer(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A user's own module around the network."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Any) -> Any:
        return self.net(x)


CHANGED = ("pruned", "weight norm", "parametrized")
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "pruned": _pruned,
    "weight norm": _normed,
    "parametrized": _parametrized,
    "DistributedDataParallel": _distributed,
    "torch.compile": lambda net: torch.compile(net, backend="eager"),
    "another module around": Outer,
    "exported inside of another module": lambda net: net,
}


# -- files


def export(module: Any, x: Any, way: Way, path: Path) -> None:
    mode = torch.onnx.TrainingMode.TRAINING if way.training else torch.onnx.TrainingMode.EVAL
    script = {"dynamo": False, "do_constant_folding": way.fold, "training": mode}
    options: dict[str, Any] = {"dynamo": True, "optimize": way.fold, "external_data": False} if way.dynamo else script
    module = Outer(module) if way.wrapper == "exported inside of another module" else module
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
            torch.onnx.export(module.train(way.training), (x,), str(path), opset_version=way.opset, **options)
    finally:
        logging.disable(logging.NOTSET)
    if way.after == "Q/DQ":
        onnx.save(quantized(onnx.load(path)), str(path))
    elif way.after:
        optimized(path)


def optimized(path: Path) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path.with_suffix(".basic.onnx"))
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    path.with_suffix(".basic.onnx").replace(path)


def quantized(model: onnx.ModelProto) -> onnx.ModelProto:
    """With every stored matrix rounded by QuantizeLinear and DequantizeLinear before it is used, as QAT does."""
    model.opset_import[0].version = max(model.opset_import[0].version, 21)
    model.ir_version = max(model.ir_version, 10)
    graph = model.graph
    stored = {one.name: one for one in graph.initializer if len(one.dims) > 1}
    nodes = []
    for index, node in enumerate(graph.node):
        if node.op_type in ("Conv", "Gemm", "MatMul") and node.input[1] in stored:
            name, scale = node.input[1], f"scale_{index}"
            largest = float(np.abs(numpy_helper.to_array(stored[name])).max())
            graph.initializer.append(numpy_helper.from_array(np.array(4 * largest / 32767, np.float32), scale))
            graph.initializer.append(numpy_helper.from_array(np.array(0, np.int16), f"zero_{index}"))
            nodes.append(helper.make_node("QuantizeLinear", [name, scale, f"zero_{index}"], [f"q_{index}"]))
            nodes.append(helper.make_node("DequantizeLinear", [f"q_{index}", scale, f"zero_{index}"], [f"d_{index}"]))
            node.input[1] = f"d_{index}"
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return model


# -- the trial of a match


class Trial:
    """A module, and its file with the matched tensors as inputs."""

    def __init__(self, path: Path, module: Any, x: Any, way: Way, match: Match) -> None:
        self.module, self.x, self.match, self.way = bare(module), x, match, way
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
        self.module.train(self.way.training)
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


def run(net: str, way: Way, folder: Path) -> Outcome:
    outcome, path = Outcome(net, way), folder / "net.onnx"
    try:
        module, x = network(net, way)
        export(module, x, way, path)
    except Exception as error:  # the exporter has no such operator at that opset, or onnxruntime no such model
        outcome.problem = f"not exported: {type(error).__name__}: {error}".splitlines()[0][:160]
        return outcome
    whole = module if way.wrapper in ("", *CHANGED) else WRAPPERS[way.wrapper](module)
    match = osp.torch.match(path, whole)
    outcome.refused, outcome.folded = match.refused, len(match.folded)
    with torch.no_grad():
        return Trial(path, whole, x, way, match).outcome(outcome)


# -- the table


def table(outcomes: Sequence[Outcome]) -> str:
    tried = [one for one in outcomes if not one.problem]
    total = counts(tried)
    version, matched = torch.__version__.partition("+")[0], total["right"] + total["unseen"] + total["wrong"]
    left = Counter(one.problem.partition(":")[0] for one in outcomes if one.problem)
    lines = [
        "# Parameters of torch modules in their exports",
        "",
        f"Written by `tools/match_torch.py` with torch {version}, onnx {onnx.__version__}. In {len(tried)} exports of",
        f"{len({one.net for one in tried})} networks, **{total['wrong']} of {matched} matched tensors are wrong**.",
        "",
        "A match is tried by writing new numbers at half of the places of a parameter, in the module and, as the match",
        "says, in the file: both have to give the same outputs again. *right* are those where the outputs changed as",
        "well, *unseen* those where they did not (what is added before a normalization), or which are computed from",
        "several parameters. *folded* batch normalizations have no tensor of their own any more. What is not certain",
        "is refused; *uncounted* are the counters of batch normalizations, which no file holds. *new* networks are as",
        "they were made: biases are zero, scales one, copied layers equal. The first three were tried at opsets 13 to",
        "20, all others at 17 and 18.",
        "",
        *(f"* {count} exports {reason}" for reason, count in sorted(left.items())),
        "",
        *listed("network", tried, lambda one: one.net),
        "",
        *listed("export", tried, lambda one: one.way.title),
        "",
        "| why a tensor was refused | times |",
        "|---|---|",
        *(f"| {reason} | {count} |" for reason, count in reasons(tried).most_common()),
    ]
    return "\n".join(lines) + "\n"


def counts(outcomes: Sequence[Outcome]) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in outcomes:
        counted = sum("num_batches_tracked" in name for name in one.refused)
        found.update(exports=1, right=one.right, unseen=one.unseen, folded=one.folded, wrong=len(one.wrong))
        found.update(refused=len(one.refused) - counted, uncounted=counted)
    return found


def listed(what: str, outcomes: Sequence[Outcome], key: Callable[[Outcome], str]) -> Iterator[str]:
    columns = ("exports", "right", "unseen", "folded", "refused", "uncounted", "wrong")
    yield f"| {what} | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for name in dict.fromkeys(key(one) for one in outcomes):
        found = counts([one for one in outcomes if key(one) == name])
        yield f"| {name} | {' | '.join(str(found[column]) for column in columns)} |"


def reasons(outcomes: Sequence[Outcome]) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in outcomes:
        for name, reason in one.refused.items():
            if "num_batches_tracked" not in name:
                found[re.sub(r"'[^']*'(, '[^']*')*( and \d+ more)?", "'...'", reason)] += 1
    return found


def main() -> None:
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # which the older exporter cannot write
    warnings.simplefilter("ignore")
    nets = sys.argv[2:] or NETS
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for net in nets:
            for way in ways(net):
                begun = time.perf_counter()
                outcomes.append(run(net, way, Path(folder)))
                told(outcomes[-1], time.perf_counter() - begun)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(table(outcomes), encoding="utf-8")
    sys.exit(any(one.wrong for one in outcomes))


def told(one: Outcome, seconds: float) -> None:
    refused = {name: reason for name, reason in one.refused.items() if "num_batches_tracked" not in name}
    numbers = (
        f"{one.right} right, {one.unseen} unseen, {one.folded} folded, {len(refused)} refused, {len(one.wrong)} wrong"
    )
    print(f"{one.net} {one.way.opset} {one.way.title}: {one.problem or numbers} ({seconds:.1f} s)", flush=True)
    for name, reason in refused.items():
        print(f"    {name}: {reason}")
    if one.wrong:
        print(f"    WRONG {one.wrong}")


if __name__ == "__main__":
    main()
