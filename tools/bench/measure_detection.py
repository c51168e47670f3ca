"""What bench_detection.py asks of one detector; prints JSON. Started in the folder that the configuration's paths mean.

    python tools/bench/measure_detection.py scenes CONFIG --source FOLDER [--counts 10000 500]
    python tools/bench/measure_detection.py trained CONFIG --folder FOLDER [--opts KEY=VALUE ...]
    python tools/bench/measure_detection.py one-shot CONFIG --dense CKPT [--opts KEY=VALUE ...] [--batches 100]

`trained` measures the newest network of a run three times: in torch; its exported parts in the runtime, with
post-processing in numpy; and the one file with NMS inside. It also looks at every zero of the files. `one-shot` prunes
by the scheduler of the configuration, and measures the network as it is and after batches of training images went
through it without a step, which sets the statistics of batch normalization anew.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402 - after the number of threads
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402
from onnx import numpy_helper  # noqa: E402

from models.data.batch import Batch, Detections  # noqa: E402
from models.data.scenes import make_scenes  # noqa: E402
from models.evaluation.coco_api import CocoApi  # noqa: E402
from models.evaluation.coco_map import CocoMap  # noqa: E402
from models.networks.network import TwoStage  # noqa: E402
from models.workflow import Workflow  # noqa: E402
from onnxsparse.dialects.msbench import configuration, scheduler_of  # noqa: E402
from onnxsparse.dialects.msbench.configuration import Part  # noqa: E402
from onnxsparse.dialects.msbench.network_job import NetworkJob, read_network_job  # noqa: E402
from onnxsparse.dialects.msbench.overrides import overridden  # noqa: E402

Array = np.ndarray[Any, Any]
COMPARED = 16
"""Images on which outputs are compared number by number."""


class Detector:
    """A network of a configuration, with the test images."""

    def __init__(self, path: str, words: Sequence[str], numbers: str) -> None:
        self.job: NetworkJob = read_network_job(path, overridden(configuration.load(path), words))
        self.builders = Workflow()
        self.network = self.builders.network(self.job.net, self.job.seed)
        self.builders.load(self.network, torch.load(numbers, weights_only=True)["model"])
        self.network.eval()
        self.images: Any = self.builders.dataset(self.job.dataset, "test", self.job.seed)

    def batches(self, size: int) -> Iterator[Batch]:
        yield from self.images.epoch(0, size)

    def figures(self, answers: Sequence[tuple[Batch, Sequence[Detections]]]) -> dict[str, float]:
        """mAP in numpy; and mAP50 of pycocotools on the same answers."""
        coco = self.images.source.coco
        found: dict[str, float] = {}
        for kind, name in ((CocoMap, ""), (CocoApi, "pycocotools_")):
            evaluator = kind(coco)
            for batch, answer in answers:
                evaluator.add(batch, answer)
            found.update({f"{name}{key}": float(value) for key, value in evaluator.figures().items()})
        return {key: found[key] for key in ("mAP50", "mAP", "pycocotools_mAP50", "pycocotools_mAP")}

    def in_torch(self) -> dict[str, float]:
        return self.figures([(batch, self.network.answers(batch)) for batch in self.batches(50)])


# -- files


def session(path: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class Parts:
    """The exported parts of a network, with decoding in numpy between and behind them."""

    def __init__(self, detector: Detector, paths: Sequence[str]) -> None:
        self.network, self.sessions = detector.network, [session(path) for path in paths]
        self.farthest = 0.0

    def answers(self, batch: Batch, compare: bool) -> Sequence[Detections]:
        first = self._run(0, batch.image, compare)
        levels = self.network.levels
        outputs = [(first[2 * at], first[2 * at + 1]) for at in range(levels)]
        if not isinstance(self.network, TwoStage):
            return list(self.network.post.answers(outputs, batch))
        rois = self.network.rois(outputs, batch)
        features = [torch.from_numpy(one) for one in first[2 * levels :]]
        cls, loc = self._run(1, self.network.pre.pool(features, rois).numpy(), compare)
        return list(self.network.post.answers(cls, loc, rois, batch))

    def _run(self, part: int, given: Array, compare: bool) -> list[Array]:
        one = self.sessions[part]
        found: list[Array] = one.run(None, {one.get_inputs()[0].name: np.ascontiguousarray(given)})
        if compare:
            with torch.no_grad():
                wanted = flat(self.network.nets[part].module(torch.from_numpy(given)))
            away = [float(np.abs(mine - theirs.numpy()).max(initial=0)) for mine, theirs in zip(found, wanted)]
            self.farthest = max([self.farthest, *away])
        return found


def flat(value: Any) -> list[Any]:
    """The tensors of nested sequences."""
    return [value] if isinstance(value, torch.Tensor) else [one for part in value for one in flat(part)]


def of_whole(batch: Batch, one: Any) -> list[Detections]:
    """What the file with NMS inside says; its boxes are in pixels of the network."""
    boxes, scores, labels = one.run(["boxes", "scores", "labels"], {"image": batch.image})
    height, width = batch.scales[0]
    return [Detections(boxes / np.asarray([width, height, width, height], np.float32), scores, labels)]


def layers_of(path: str) -> Iterator[tuple[str, Array]]:
    """The weights of a file's convolutions and matrices, (outputs, inputs, ...)."""
    graph = onnx.load(path).graph
    arrays = {one.name: one for one in graph.initializer}
    seen: set[str] = set()
    for node in graph.node:
        if node.op_type not in ("Conv", "Gemm", "MatMul") or node.input[1] not in arrays or node.input[1] in seen:
            continue
        seen.add(node.input[1])
        array = numpy_helper.to_array(arrays[node.input[1]])
        turned = node.op_type == "MatMul" or (
            node.op_type == "Gemm" and not any(one.name == "transB" and one.i for one in node.attribute)
        )
        yield node.input[1], array.T if turned else array


def two_of_four(paths: Sequence[str]) -> tuple[int, int]:
    """How many layers the rule of AmpereScheduler takes, and how many of them are 2:4."""
    eligible = held = 0
    for path in paths:
        for _, weight in layers_of(path):
            if weight.shape[0] % 8 == 0 and weight.shape[1] % 16 == 0:
                groups = np.moveaxis(weight, 1, -1).reshape(-1, 4)
                eligible += 1
                held += bool((np.count_nonzero(groups, axis=1) <= 2).all())
    return eligible, held


def share_of_zeros(network: Any) -> float:
    """Over the weights of convolutions and matrices, each counted once however often it is used."""
    kinds = (torch.nn.Conv2d, torch.nn.Linear)
    weights = {id(one.weight): one.weight for one in network.modules() if isinstance(one, kinds)}
    return float(sum(int((one == 0).sum()) for one in weights.values()) / sum(one.numel() for one in weights.values()))


def trained(given: argparse.Namespace) -> dict[str, Any]:
    detector = Detector(given.config, given.opts, os.path.join(given.folder, "ckpt_latest.pth"))
    found: dict[str, Any] = dict(detector.in_torch())
    wholes = sorted(Path(given.folder).glob("*.whole.onnx"))
    if not wholes:
        return found
    name = wholes[0].name[: -len(".whole.onnx")]
    several = len(detector.network.nets) > 1
    paths = [str(wholes[0].with_name(f"{name}{f'.net{at}' if several else ''}.onnx"))
             for at in range(1, len(detector.network.nets) + 1)]  # fmt: skip
    parts, whole = Parts(detector, paths), session(str(wholes[0]))
    by_numpy, by_file = [], []
    for at, batch in enumerate(detector.batches(1)):
        by_numpy.append((batch, parts.answers(batch, at < COMPARED)))
        by_file.append((batch, of_whole(batch, whole)))
    eligible, held = two_of_four(paths)
    return {
        **found,
        "numpy_mAP50": detector.figures(by_numpy)["mAP50"],
        "file_mAP50": detector.figures(by_file)["mAP50"],
        "distance": parts.farthest,
        "eligible": eligible,
        "two_of_four": held,
        "zeros": share_of_zeros(detector.network),
        "files": [*paths, str(wholes[0])],
    }


# -- at once


def one_shot(given: argparse.Namespace) -> dict[str, Any]:
    detector = Detector(given.config, given.opts, given.dense)
    job, network = detector.job, detector.network
    assert job.sparsity is not None
    kwargs = dict(job.sparsity.scheduler.kwargs)
    if "total_iters" in kwargs:
        kwargs.update(total_iters=1, default_input_custom=[torch.from_numpy(next(detector.batches(1)).image)])
    scheduler = scheduler_of(replace(job.sparsity, scheduler=Part(job.sparsity.scheduler.type, kwargs)))
    network = scheduler.prepare_sparse_model(network)
    scheduler.init_optimizer(torch.optim.SGD(network.parameters(), lr=0.0))
    scheduler.prune_model(network, 0)
    network = detector.network = scheduler.export_sparse_model(network).eval()
    found: dict[str, Any] = {"zeros": share_of_zeros(network), **detector.in_torch()}
    norms = [one for one in network.modules() if isinstance(one, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean of all batches
        norm.train()
    images: Any = detector.builders.dataset(job.dataset, "train", job.seed)
    with torch.no_grad():
        for at, batch in enumerate(images.epoch(0, images.batch)):
            if at == given.batches:
                break
            network(torch.from_numpy(batch.image))
    network.eval()
    again = detector.in_torch()
    return {**found, "estimated_mAP50": again["mAP50"], "estimated_mAP": again["mAP"]}


def scenes(given: argparse.Namespace) -> dict[str, Any]:
    section = configuration.load(given.config)["dataset"]
    return {"notes": make_scenes(section, given.source, tuple(given.counts))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    every = {name: commands.add_parser(name) for name in ("scenes", "trained", "one-shot")}
    for one in every.values():
        one.add_argument("config")
        one.add_argument("--opts", nargs="*", default=[], metavar="KEY=VALUE")
    every["scenes"].add_argument("--source", required=True)
    every["scenes"].add_argument("--counts", nargs=2, type=int, default=[10_000, 500])
    every["trained"].add_argument("--folder", required=True)
    every["one-shot"].add_argument("--dense", required=True)
    every["one-shot"].add_argument("--batches", type=int, default=100)
    given = parser.parse_args()
    torch.set_num_threads(1)
    run = {"scenes": scenes, "trained": trained, "one-shot": one_shot}[given.command]
    print(json.dumps(run(given)))


if __name__ == "__main__":
    main()
