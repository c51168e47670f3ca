"""Building the training graph in a subprocess, and finding the operator that crashes onnxruntime-training."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.helper import make_tensor_value_info

import onnxsparse
from onnxsparse.engines.engine import Spec
from onnxsparse.engines.ort import library, worker
from onnxsparse.engines.ort.assemble import generate
from onnxsparse.engines.ort.jobs import ERROR, failure, run_worker, write_job
from onnxsparse.engines.ort.rewrites.rewrite import View
from onnxsparse.engines.ort.session import Session
from onnxsparse.engines.ort.shapes import infer_shapes
from onnxsparse.errors import OutputError
from onnxsparse.graph.edit import Writer, reads, reduce_to
from onnxsparse.math.values import Array

# -- Having a training graph built: the worker runs apart, so that a crash of the engine is an error and not the end.
#
# 1. A folder that holds a graph of the same job and samples is used again: a resumed run trains the very same graph.
# 2. A graph of which a byte is not what it was is made anew, with a note.
# 3. Where the engine dies, the operator it dies of is looked for, and the graph is cut there.

MANIFEST = "manifest.json"
SEAL, BLOCK = "seal", 1 << 20
CUTS = 3
"""Operators at most that a graph is cut at because the engine died of them."""
WANT_OF_MEMORY = -9
MAKING = ".making-"


def build(
    folder: str, spec: Spec, model: ModelProto, samples: Mapping[str, Array], origin: str, check: bool = False
) -> dict[str, Any]:
    """Make and prove the graph of a job in `folder`, unless it is there; returns what is known of it."""
    library.training()
    digest = spec.digest(origin, onnxsparse.__version__, _of_samples(samples))
    known = manifest(folder)
    damage = "" if check or not os.path.isdir(folder) else _damage(folder, known)
    if known is not None and known.get("digest") == digest and not check and not damage:
        return known
    with _working_dir(folder) as working_dir:
        made = {**_made(working_dir, spec, model, samples, check), "digest": digest}
        paths = {name: os.path.join(working_dir, name) for name in sorted(os.listdir(working_dir)) if name != MANIFEST}
        made["files"] = {name: _of_file(path) for name, path in paths.items() if os.path.isfile(path)}
        made[SEAL] = _seal(made)
        _mark(working_dir, made)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(working_dir, folder)
    note = f"the training graph in {folder} was damaged ({damage}) and was made anew"
    return {**made, "notes": [*made["notes"], note]} if damage else made


@contextmanager
def _working_dir(folder: str) -> Iterator[str]:
    """A place beside a folder: a worker that outlives this process writes into nothing that counts."""
    for left in glob.glob(f"{glob.escape(folder)}{MAKING}*"):
        shutil.rmtree(left, ignore_errors=True)
    working_dir = f"{folder}{MAKING}{os.getpid()}"
    try:
        yield working_dir
    except OSError as error:
        raise OutputError(f"cannot write the training graph to {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(working_dir, ignore_errors=True)


def _of_samples(samples: Mapping[str, Array]) -> str:
    """A digest of what a graph is proven and scaled with."""
    found = hashlib.sha256()
    for name, array in sorted(samples.items()):
        found.update(f"{name} {array.dtype} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _of_file(path: str) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(BLOCK), b""):
            found.update(block)
    return found.hexdigest()


def _seal(known: Mapping[str, Any]) -> str:
    plain = {name: value for name, value in known.items() if name != SEAL}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _damage(folder: str, known: Mapping[str, Any] | None) -> str:
    """What is not as it was written; '' where all is."""
    if known is None or known.get(SEAL) != _seal(known):
        return f"{MANIFEST} has changed"
    for name, digest in known["files"].items():
        try:
            if _of_file(os.path.join(folder, name)) != digest:
                return f"{name} has changed"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return ""


def _made(folder: str, spec: Spec, model: ModelProto, samples: Mapping[str, Array], check: bool) -> dict[str, Any]:
    """Have the graph made and proven in a folder of its own, and keep what training needs of it."""
    deadly: list[Culprit] = []
    while True:
        job = {"spec": json.loads(spec.to_json()), "check": check, "deadly": [one.node for one in deadly]}
        write_job(folder, job, model, samples)
        status = run_worker(folder, "trial", os.path.abspath(folder))
        made = manifest(folder)
        if not status and made is not None:
            break
        found = _died_of(folder, status)
        if found is None or found in deadly or len(deadly) == CUTS:
            raise failure(folder, status, f"{found.operator} '{found.node}'" if found else "")
        deadly.append(found)
    for name in ("model.onnx", "samples.npz", "job.json", "log", "stage", ASIDE_MODEL, ASIDE_FEED, ASIDE_NAMES):
        os.unlink(os.path.join(folder, name))
    return {**made, "notes": [*made["notes"], *map(_cut_note, deadly)]}


def manifest(folder: str) -> dict[str, Any] | None:
    """What is known of the graph in a folder, where one was finished."""
    try:
        with open(os.path.join(folder, MANIFEST), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _died_of(folder: str, status: int) -> Culprit | None:
    """The operator that the engine died of, where it did."""
    if status in (0, 1, WANT_OF_MEMORY, worker.NO_SPACE) or os.path.exists(os.path.join(folder, ERROR)):
        return None
    return find_culprit(
        folder, lambda count: run_worker(folder, "building", os.path.abspath(folder), str(count)) not in (0, 1)
    )


def _cut_note(found: Culprit) -> str:
    return f"the engine dies of {found.operator} '{found.node}': the graph is cut there and matched on both sides"


def _mark(folder: str, content: Mapping[str, Any]) -> None:
    with open(os.path.join(folder, MANIFEST + ".part"), "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(os.path.join(folder, MANIFEST + ".part"), os.path.join(folder, MANIFEST))


# -- Which operator the engine dies of: ever shorter parts of a training graph, each in a process of its own.
#
#     python -m onnxsparse.engines.ort.worker building FOLDER COUNT
#
# builds the gradients of the first COUNT nodes of the graph that a trial has set aside in the folder, and takes a step.
# Its loss is the sum of the means of all that these nodes give and none of them reads. The parent halves the range
# until one node is left: with the nodes before it the engine lives, with it, it dies.

ASIDE_MODEL, ASIDE_FEED, ASIDE_NAMES = "assembled.onnx", "feed.npz", "assembled.json"
TRIES = 12


@dataclass(frozen=True)
class Culprit:
    """The operator, and the name of the node in the rewritten graph."""

    operator: str
    node: str


def find_culprit(folder: str, dies: Callable[[int], bool]) -> Culprit | None:
    """The node without which the engine lives; `dies` tries the first so many nodes. None if that cannot be told."""
    try:
        nodes = onnx.load(os.path.join(folder, ASIDE_MODEL)).graph.node
    except (OSError, ValueError):
        return None
    lives, kills = 0, len(nodes)
    if not dies(kills):
        return None
    for _ in range(TRIES):
        if kills - lives <= 1:
            break
        middle = (lives + kills) // 2
        lives, kills = (lives, middle) if dies(middle) else (middle, kills)
    return Culprit(nodes[kills - 1].op_type, nodes[kills - 1].name)


def attempt(folder: str, count: int) -> None:
    """Build the gradients of the first nodes, and take a step."""
    with open(os.path.join(folder, ASIDE_NAMES), encoding="utf-8") as file:
        names = json.load(file)
    model = onnx.load(os.path.join(folder, ASIDE_MODEL))
    trained = shorten(model, count, set(names["trained"].values()) | set(names["anchors"]))
    if not trained:
        return
    stored = {tensor.name for tensor in model.graph.initializer}
    frozen = [name for name in names["frozen"].values() if name in stored]
    with np.load(os.path.join(folder, ASIDE_FEED), allow_pickle=False) as arrays:
        feed = {name: arrays[f"a{place}"] for place, name in enumerate(names["fed"])}
    with tempfile.TemporaryDirectory(prefix="onnxsparse-") as work:
        generate(model, trained, frozen, [], work)
        Session(work, {"trained": {name: name for name in trained}, "frozen": {}}).step(feed)


def shorten(model: ModelProto, count: int, trained: set[str]) -> list[str]:
    """Leave the first nodes, with a loss of all that they give; returns the trained tensors that a gradient reaches."""
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in model.graph.node[:count]]
    read = {name for node in nodes for name in reads(node)}
    loose = [name for node in nodes for name in node.output if name and name not in read]
    _hold(model, nodes, [ValueInfoProto(name=name) for name in loose])
    infer_shapes(model)
    view = View.of(model, trained)
    ends = [name for name in loose if name in view.gradients]
    if not ends:
        return []
    writer = Writer(model.graph, view.opset)
    means = [writer.node("ReduceMean", name, keepdims=0) for name in ends]
    total = means[0]
    for mean in means[1:]:
        total = writer.node("Add", total, mean)
    _hold(model, [*nodes, *writer.nodes], [make_tensor_value_info(total, TensorProto.FLOAT, [])])
    reduce_to(model, [total])
    infer_shapes(model)
    return sorted(trained & View.of(model, trained).gradients)


def _hold(model: ModelProto, nodes: Sequence[NodeProto], outputs: Sequence[ValueInfoProto]) -> None:
    del model.graph.node[:], model.graph.output[:]
    model.graph.node.extend(nodes)
    model.graph.output.extend(outputs)


def main(folder: str, count: str) -> int:
    attempt(folder, int(count))
    return 0
