"""Exported detectors: parts with the promise of the whole network, post-processing, and one file of all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime")

import onnxsparse as osp
from models.data.batch import Batch, Detections
from models.data.coco import Coco
from models.evaluation.coco_map import CocoMap
from models.export.whole import joined
from models.networks.net_section import build
from models.workflow import Workflow
from onnxsparse.dialects.msbench import build_sparse_scheduler, preset
from onnxsparse.errors import ModelError
from onnxsparse.graph.model import Model
from tests.networks.sections import backbone, classifier, faster, retina

SHAPE = (64, 96)
SIZE = (50, 90)
FILES = {
    "one stage": ["net", "post", "whole"],
    "two stages": ["net", "bbox_head", "proposals", "post", "whole"],
}


def two_stages() -> Any:
    """With a backbone of few layers, whose normalizations can be settled."""
    return [backbone("resnet18", [1, 2, 3, 4], width=0.125, frozen_layers=[]), *faster()[1:]]


SECTIONS = {"one stage": retina, "two stages": two_stages}


def pruned(kind: str, section: Any) -> tuple[Any, Any]:
    """With normalizations and scores as training would leave them: a new network answers nothing."""
    config = preset(kind)
    if kind == "amba":
        table = {"total_iters": 1, "sparsity_table": [50], "default_input_shape": [1, 3, *SHAPE]}
        config["scheduler"]["kwargs"].update(table)
    scheduler = build_sparse_scheduler(config)
    net = scheduler.prepare_sparse_model(build(section(), 0))
    if kind == "ampere":
        scheduler.init_optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    scheduler.prune_model(net, 0)
    with torch.no_grad():
        settle(net)
    return scheduler, net.eval()


def settle(net: Any) -> None:
    images = torch.randn(6, 3, 128, 192, generator=torch.Generator().manual_seed(1))
    for one in net.modules():
        if isinstance(one, torch.nn.BatchNorm2d):
            one.momentum = 1.0
    net.nets[0].module(images)
    for part in net.eval().nets:
        spread(part, part.examples(images[:1, :, : SHAPE[0], : SHAPE[1]]))


def spread(part: Any, given: Any) -> None:
    """Scores about -1 +- 1.5 and offsets about 0 +- .5, of all levels together."""
    outputs = torch.utils._pytree.tree_leaves(part.module(*given))
    for kind, width, bias in (("cls", 1.5, -1.0), ("loc", 0.5, 0.0)):
        found = torch.cat([one.flatten() for name, one in zip(part.outputs, outputs) if name.startswith(kind)])
        for name, one in part.module.named_parameters():
            if f"{kind}_pred" in name:
                one.mul_(width / found.std()) if one.dim() > 1 else one.fill_(bias)


@pytest.fixture(scope="module", params=[("one stage", "amba"), ("two stages", "ampere")], ids=" ".join)
def exported(request: Any, tmp_path_factory: Any) -> tuple[str, Any, dict[str, str]]:
    """The network and the files of it, by what they are."""
    name, kind = request.param
    scheduler, net = pruned(kind, SECTIONS[name])
    path = str(tmp_path_factory.mktemp("exported") / "level")
    parts = {one.name: f"{path}.{one.name}.onnx" for one in net.nets}
    image = torch.zeros(1, 3, *SHAPE)
    scheduler.export_parts(net, image, parts)
    net = scheduler.export_sparse_model(net)
    dataset = SimpleNamespace(categories={1: {"id": 3, "name": "Käfer"}})
    written = Workflow().finish(net, parts, image, path, True, dataset)
    assert sorted([*parts.values(), *written]) == sorted(f"{path}.{one}.onnx" for one in FILES[name])
    return name, net, {one: f"{path}.{one}.onnx" for one in FILES[name]}


def test_files_that_answer_in_labels_say_which_classes_these_are(exported: tuple[str, Any, dict[str, str]]) -> None:
    told = {one: Model.open(path).metadata.get("onnxsparse.classes") for one, path in exported[2].items()}
    assert {one for one, text in told.items() if text} == {"post", "whole"}
    assert json.loads(told["post"] or "") == json.loads(told["whole"] or "") == {"1": {"id": 3, "name": "Käfer"}}


def batch(size: tuple[int, int], seed: int = 0) -> Batch:
    image = np.random.default_rng(seed).normal(size=(1, 3, *SHAPE)).astype(np.float32)
    return Batch(image, [0], [0], sizes=[size], scales=[(1.0, 1.0)], ids=[0])


def run(path: str, feeds: dict[str, Any]) -> dict[str, Any]:
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3  # an input with a default makes a warning
    session = onnxruntime.InferenceSession(path, quiet, providers=["CPUExecutionProvider"])
    inputs = (*session.get_inputs(), *session.get_overridable_initializers())
    taken = {one.name: feeds[one.name] for one in inputs}
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, taken)))


def checked(path: str) -> dict[str, tuple[str, int]]:
    """What a file holds of its own record, by weight."""
    report = osp.verify(path).report
    assert report.ok, report.faults
    return {row.name: (row.status, row.zeros) for row in report.rows if "Conv" in str(row.uses) or row.zeros}


def test_every_file_that_has_weights_holds_what_it_records(exported: Any) -> None:
    _, net, files = exported
    parts = [checked(files[part.name]) for part in net.nets]
    for part, rows in zip(net.nets, parts):
        assert "holds" in {status for status, _ in rows.values()}
        assert rows.keys() <= part.module.state_dict().keys()
    assert checked(files["whole"]) == {name: row for rows in parts for name, row in rows.items()}


def test_parts_answer_as_torch_does(exported: Any) -> None:
    _, net, files = exported
    image = torch.from_numpy(batch(SHAPE).image)
    for part in net.nets:
        given = part.examples(image)
        with torch.no_grad():
            expected = torch.utils._pytree.tree_leaves(part.module(*given))
        answers = run(files[part.name], {name: one.numpy() for name, one in zip(part.inputs, given)})
        assert list(answers) == list(part.outputs)
        for one, other in zip(answers.values(), expected):
            np.testing.assert_allclose(one, other.numpy(), atol=1e-4 * max(1, float(other.abs().max())))


def decoded(name: str, net: Any, files: dict[str, str], given: Batch) -> Detections:
    """What decoding in numpy makes of the outputs that the runtime gives of the parts."""
    outputs = run(files["net"], {"image": given.image})
    levels = [(outputs[f"cls_{at}"], outputs[f"loc_{at}"]) for at in range(net.levels)]
    if name == "one stage":
        return net.post.answers(levels, given)[0]
    rois = net.rois(levels, given)
    features = [torch.from_numpy(outputs[one]) for one in outputs if one.startswith("feature")]
    second = run(files["bbox_head"], {"pooled": net.pre.pool(features, rois).numpy()})
    return net.post.answers(second["cls"], second["loc"], rois, given)[0]


@pytest.mark.parametrize("seed", range(2))
def test_the_whole_file_answers_as_decoding_in_numpy_does(exported: Any, seed: int) -> None:
    name, net, files = exported
    given = batch(SIZE, seed)
    expected = decoded(name, net, files, given)
    answers = run(files["whole"], {"image": given.image, "size": np.array(SIZE, np.float32)})
    assert len(expected.scores) > 20
    np.testing.assert_allclose(answers["scores"], expected.scores, atol=1e-4)
    np.testing.assert_allclose(answers["boxes"], expected.boxes, atol=1e-3)
    np.testing.assert_array_equal(answers["labels"], expected.labels)


@pytest.mark.parametrize("seed", range(2))
def test_the_whole_file_finds_what_the_network_finds(exported: Any, seed: int) -> None:
    """Boxes whose scores are as near to each other as torch is to the runtime may change places, or suppress others."""
    _, net, files = exported
    given = batch(SIZE, seed)
    expected = net.answers(given)[0]
    answers = run(files["whole"], {"image": given.image, "size": np.array(SIZE, np.float32)})
    apart = np.abs(answers["boxes"][:, None] - expected.boxes[None]).max(-1)
    apart[answers["labels"][:, None] != expected.labels[None]] = np.inf
    assert (apart.min(0) < 1e-3).mean() >= 0.95
    assert len(expected.scores) == len(answers["scores"])


def test_mean_average_precision_is_the_same_of_torch_numpy_and_the_whole_file(exported: Any) -> None:
    """The truth is every third box that the network finds, moved: more than half of what is found is wrong."""
    name, net, files = exported
    given = [replace(batch(SIZE, seed), ids=[seed]) for seed in range(4)]
    by_torch = [net.answers(one)[0] for one in given]
    by_numpy = [decoded(name, net, files, one) for one in given]
    whole = [run(files["whole"], {"image": one.image, "size": np.array(SIZE, np.float32)}) for one in given]
    by_file = [Detections(one["boxes"], one["scores"], one["labels"]) for one in whole]
    figures = [mean_precision(answers, by_torch, given) for answers in (by_torch, by_numpy, by_file)]
    assert 0.05 < figures[0] < 0.95
    assert figures[1:] == pytest.approx(figures[:1] * 2, abs=0.002)


def mean_precision(answers: list[Detections], truth: list[Detections], given: list[Batch]) -> float:
    boxes = [one.boxes[::3] + np.float32(1.5) for one in truth]
    corners = np.concatenate([np.concatenate([one[:, :2], one[:, 2:] - one[:, :2]], 1) for one in boxes])
    begins = np.cumsum([0, *map(len, boxes)])
    labels, numbers = np.concatenate([one.labels[::3] for one in truth]), list(range(len(truth)))
    nothing = np.zeros(len(labels), bool)
    sizes, names, categories = np.full((len(truth), 2), SIZE), [""] * len(truth), list(range(1, 11))
    coco = Coco(
        "truth.json", numbers, names, sizes, categories, [""] * 10, begins, labels, corners,
        corners[:, 2] * corners[:, 3], nothing,
    )  # fmt: skip
    evaluator = CocoMap(coco)
    for one, found in zip(given, answers):
        evaluator.add(one, [found])
    return evaluator.figures()["mAP50"]


def test_files_run_one_after_the_other_by_names(exported: Any) -> None:
    name, _, files = exported
    given = batch(SHAPE)
    tensors = {"image": given.image, "size": np.array(SHAPE, np.float32)}
    order = ["net", "post"] if name == "one stage" else ["net", "proposals", "bbox_head", "post"]
    for one in order:
        tensors.update(run(files[one], tensors))
    whole = run(files["whole"], {"image": given.image, "size": tensors["size"]})
    for one, other in whole.items():
        np.testing.assert_allclose(other, tensors[one], atol=1e-4)


def test_shared_weights_are_stored_once(exported: Any) -> None:
    _, net, files = exported
    stored = [one.name for one in onnx.load(files["whole"]).graph.initializer]
    own = [name for name, one in net.named_parameters() if one.dim() > 1]
    assert sorted(name for name in stored if name in own) == sorted(own)
    assert len(stored) == len(set(stored))
    assert {row.name for row in osp.inspect(files["whole"]).report.rows} == set(own)


def test_shapes_in_the_whole_file_are_right(exported: Any) -> None:
    proto = onnx.load(exported[2]["whole"])
    onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)


def test_two_parts_with_weights_of_one_name_are_refused(exported: Any) -> None:
    part = onnx.load(exported[2]["net"])
    with pytest.raises(ModelError, match="two parts have a weight called"):
        joined([part, part], ["cls_0"], "twice")


def test_a_part_promises_its_own_layers_alone(exported: Any) -> None:
    _, net, files = exported
    for part in net.nets:
        metadata = {one.key: one.value for one in onnx.load(files[part.name]).metadata_props}
        plan = json.loads(metadata["onnxsparse.plan"])
        assert {*plan["pruned"], *plan["dense"]} <= part.module.state_dict().keys()


def test_a_classifier_has_nothing_behind_it(tmp_path: Path) -> None:
    net = build(classifier(), 0)
    assert Workflow().finish(net, {}, torch.zeros(1, 3, 64, 64), str(tmp_path / "level"), True) == []
    assert list(tmp_path.iterdir()) == []
