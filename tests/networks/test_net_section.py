"""The `net:` section: what it builds, what it refuses, and the weights of public checkpoints."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

torch = pytest.importorskip("torch")

from models.data.batch import Batch
from models.evaluation.accuracy import Accuracy
from models.networks.net_section import build
from models.workflow import Workflow
from onnxsparse.errors import OptionError, PlanError
from tests.messages import refusing
from tests.networks.sections import classifier, faster, part, retina

Change = Callable[[list[dict[str, Any]]], Any]
NETS = [classifier, retina, faster]
CONFIGS = Path(__file__).parents[2] / "models" / "configs"


def total(number: float) -> float:
    return number


@pytest.mark.parametrize("section", NETS)
def test_weights_are_called_alike_in_the_network_and_in_its_parts(section: Any) -> None:
    net = build(section(), 0)
    names = [name for one in net.nets for name in one.module.state_dict()]
    assert sorted(names) == sorted(net.state_dict())
    assert {name.split(".")[0] for name in names} <= {"backbone", "head", "neck", "roi_head", "bbox_head"}


@pytest.mark.parametrize("section", NETS)
def test_initial_weights_depend_on_the_seed_alone(section: Any) -> None:
    torch.manual_seed(1)
    one, draw = build(section(), 7).state_dict(), torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(draw, torch.rand(1)), "what others draw does not move"
    other, third = build(section(), 7).state_dict(), build(section(), 8).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["backbone.conv1.weight"], third["backbone.conv1.weight"])


def says_the_same(net: Any, other: Callable[[Any, Any], Any]) -> None:
    """What `other` makes of each part of a network answers as the part does."""
    for one in net.eval().nets:
        given = one.examples(torch.randn(1, 3, 64, 80))
        found = torch.utils._pytree.tree_leaves(one.module(*given))
        again = torch.utils._pytree.tree_leaves(other(one.module, given)(*given))
        assert len(found) == len(again) == len(one.outputs)
        assert all(torch.equal(a, b) for a, b in zip(found, again))
    assert not any(layer.training for layer in net.modules()), "a part is made in the mode of its network"


@pytest.mark.parametrize("section", NETS)
def test_every_part_is_traced_by_itself(section: Any) -> None:
    says_the_same(build(section(), 0), lambda module, _: torch.fx.symbolic_trace(module))


@pytest.mark.parametrize(
    "section", [pytest.param(classifier, marks=pytest.mark.slow), retina, pytest.param(faster, marks=pytest.mark.slow)]
)
def test_every_part_is_exported_by_itself(section: Any) -> None:
    says_the_same(build(section(), 0), lambda module, given: torch.export.export(module, given).module())


def test_the_two_parts_of_a_two_stage_network_meet_at_features() -> None:
    first, second = build(faster(), 0).nets
    assert list(first.outputs[-4:]) == ["feature_0", "feature_1", "feature_2", "feature_3"]
    assert (list(second.inputs), list(second.outputs)) == (["pooled"], ["cls", "loc"])


def test_a_classifier_smooths_labels_and_ranks_classes() -> None:
    net = build(classifier(classes=4), 0).eval()
    batch = Batch(np.ones((2, 3, 32, 32), np.float32), [0, 1], [0, 1], labels=[np.array([3]), np.array([1])])
    logits = net(torch.ones(2, 3, 32, 32))
    wanted = torch.nn.functional.cross_entropy(logits, torch.tensor([3, 1]), label_smoothing=0.1)
    assert torch.allclose(net.losses(batch, total)["cls_loss"], wanted)
    half = net.losses(batch, lambda number: 2 * number)["cls_loss"]
    assert torch.allclose(2 * half, wanted), "parts of two processes add up"
    figures = Accuracy([1, 2])
    figures.add(batch, net.answers(batch))
    ranks = (logits > logits.gather(1, torch.tensor([[3], [1]]))).sum(1)
    assert figures.figures() == {"top1": (ranks < 1).float().mean().item(), "top2": (ranks < 2).float().mean().item()}
    assert net.teach(batch, net, total)["cls_loss"].item() == pytest.approx(0, abs=1e-6)


def supervisor(net: Any) -> Any:
    return net[4]["kwargs"]["cfg"]["bbox_supervisor"]["kwargs"]


REFUSED: dict[str, tuple[Any, Change]] = {
    "a type": (classifier, lambda net: net[0].update(type="resnet81")),
    "a kwarg": (classifier, lambda net: net[0]["kwargs"].update(frozen_layer=[0])),
    "a key of a part": (classifier, lambda net: net[0].update(kwarg={})),
    "a normalization": (classifier, lambda net: net[0]["kwargs"].update(normalize={"type": "solo_ln"})),
    "an initializer": (classifier, lambda net: net[0]["kwargs"].update(initializer={"method": "msrb"})),
    "layers": (classifier, lambda net: net[0]["kwargs"].update(out_layers=[3, 5])),
    "frozen": (classifier, lambda net: net[0]["kwargs"].update(frozen_layers=[5])),
    "strides": (classifier, lambda net: net[0]["kwargs"].update(out_strides=[16])),
    "a text": (classifier, lambda net: net[0]["kwargs"].update(out_layers="4")),
    "width": (classifier, lambda net: net[0]["kwargs"].update(width=0)),
    "channels": (classifier, lambda net: net[1]["kwargs"].update(in_plane=512)),
    "classes": (classifier, lambda net: net[1]["kwargs"].update(num_classes=11)),
    "a feature": (classifier, lambda net: net[1]["kwargs"].update(input_feature_idx=1)),
    "a missing word": (classifier, lambda net: net[1]["kwargs"].update(num_class=net[1]["kwargs"].pop("num_classes"))),
    "a loss": (classifier, lambda net: net[2]["kwargs"]["cls_loss"].update(type="label_smooth")),
    "smoothing": (classifier, lambda net: net[2]["kwargs"]["cls_loss"]["kwargs"].update(smooth_ratio=1)),
    "an order": (classifier, lambda net: net.insert(1, part("neck", "FPN")) or net.pop(2)),
    "an end": (classifier, lambda net: net.pop()),
    "two names": (classifier, lambda net: net[1].update(name="backbone")),
    "no name": (classifier, lambda net: net[1].update(name="the head")),
    "a taken name": (classifier, lambda net: net[1].update(name="train")),
    "prev": (classifier, lambda net: net[1].update(prev="bacbone")),
    "a level": (retina, lambda net: net[2]["kwargs"].update(num_level=4)),
    "levels": (retina, lambda net: net[1]["kwargs"].update(num_level=2)),
    "strides of a pyramid": (retina, lambda net: net[1]["kwargs"].update(out_strides=[4, 8, 16, 32, 64])),
    "sampling": (retina, lambda net: net[1]["kwargs"].update(upsample="bicubic")),
    "a prior": (retina, lambda net: net[2]["kwargs"].update(init_prior=1.0)),
    "another prev": (retina, lambda net: net[2].update(prev="backbone")),
    "anchors": (retina, lambda net: net[2]["kwargs"].update(num_anchors=3)),
    "pooling": (faster, lambda net: net[5]["kwargs"]["cfg"]["roipooling"].update(method="roipool")),
    "scores by softmax": (retina, lambda net: net[2]["kwargs"].update(class_activation="softmax")),
    "scores by sigmoid": (faster, lambda net: net[5]["kwargs"]["cfg"].update(class_activation="sigmoid")),
    "other bins": (faster, lambda net: net[4]["kwargs"]["cfg"].update(roipooling={"pool_size": 5})),
    "locations": (faster, lambda net: net[5]["kwargs"]["cfg"].update(share_location=True)),
    "other deltas": (faster, lambda net: supervisor(net).update(bbox_normalize={"stds": [0.1, 0.1, 0.1, 0.1]})),
    "a flag": (faster, lambda net: net[5]["kwargs"]["cfg"].update(share_location="no")),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_is_unknown_is_refused_by_name(case: str) -> None:
    section, change = REFUSED[case]
    net = copy.deepcopy(section())
    change(net)
    with refusing(OptionError):
        build(net, 0)


def test_what_does_not_fit_in_memory_is_refused() -> None:
    net = retina()
    net[1]["kwargs"].update(outplanes=10**12)
    with pytest.raises(OptionError, match="more than fits in memory"):
        build(net, 0)


def test_a_section_is_a_list() -> None:
    with refusing(OptionError):
        build({"backbone": "resnet18"}, 0)  # type: ignore[arg-type]
    with refusing(OptionError):
        build([], 0)


def public(net: Any) -> dict[str, Any]:
    """The weights of a classifier under torchvision's names."""
    state = {re.sub(r"^(backbone|head)\.", "", name): torch.randn_like(one.float()) for name, one in net.items()}
    return {name: one.long() if name.endswith("tracked") else one for name, one in state.items()}


@pytest.mark.parametrize("wrapped", [lambda x: x, lambda x: {"state_dict": {f"module.{k}": v for k, v in x.items()}}])
def test_weights_of_public_checkpoints_load_by_their_names(wrapped: Any) -> None:
    net = build(classifier(), 0)
    given = public(net.state_dict())
    assert {"conv1.weight", "layer1.0.bn2.running_var", "layer2.0.downsample.0.weight", "fc.bias"} <= set(given)
    assert Workflow().load(net, wrapped(given)) == []
    assert torch.equal(net.state_dict()["backbone.layer3.0.downsample.1.bias"], given["layer3.0.downsample.1.bias"])
    assert torch.equal(net.state_dict()["head.fc.weight"], given["fc.weight"])


def test_own_names_load_whatever_wraps_them() -> None:
    net, other = build(classifier(), 0), build(classifier(), 1)
    assert Workflow().load(net, {"epoch": 3, "model": other.state_dict()}) == []
    assert all(torch.equal(one, other.state_dict()[name]) for name, one in net.state_dict().items())


def test_what_is_left_out_and_what_stays_is_said() -> None:
    net = build(classifier(), 0)
    given = public(net.state_dict())
    del given["conv1.weight"], given["fc.bias"]
    said = Workflow().load(net, {**given, "aux.weight": torch.zeros(2)})
    assert said == [
        "1 tensors of the checkpoint are not in the network and left out: aux.weight",
        "2 tensors are not in the checkpoint and stay as they are initialised: backbone.conv1.weight, head.fc.bias",
    ]


def test_statistics_of_a_trained_normalization_load_into_a_frozen_one() -> None:
    given = public(build(classifier(), 0).state_dict())
    frozen = classifier()
    frozen[0]["kwargs"]["normalize"] = {"type": "msbench_freeze_bn"}
    net = build(frozen, 1)
    assert Workflow().load(net, given) == []
    assert torch.equal(net.state_dict()["backbone.bn1.running_mean"], given["bn1.running_mean"])


def test_the_last_layer_of_a_public_checkpoint_is_left_out_where_it_has_other_classes() -> None:
    net = build(classifier(), 0)
    before, given = net.state_dict()["head.fc.weight"].clone(), public(build(classifier(classes=12), 0).state_dict())
    assert Workflow().load(net, given) == [
        "2 tensors of the checkpoint are not in the network and left out: fc.weight, fc.bias",
        "2 tensors are not in the checkpoint and stay as they are initialised: head.fc.weight, head.fc.bias",
    ]
    assert torch.equal(net.state_dict()["head.fc.weight"], before)
    assert torch.equal(net.state_dict()["backbone.conv1.weight"], given["conv1.weight"])


def test_weights_of_another_network_are_refused() -> None:
    net = build(classifier(), 0)
    with refusing(PlanError):
        Workflow().load(net, build(classifier(classes=12), 0).state_dict())
    with refusing(PlanError):
        Workflow().load(net, {"encoder.weight": torch.zeros(2)})
    with refusing(PlanError):
        Workflow().load(net, {"epoch": 3})


SIZES = {
    "res18": 11_689_512,
    "res18_small": 703_386,
    "retinanet-r18-improve": 19_485_416,
    "retinanet-r18-improve_small": 1_217_964,
    "faster_rcnn_r50_fpn_1x": 41_704_036,
    "faster_rcnn_r50_fpn_1x_small": 2_611_286,
}


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.stem)
def test_the_documented_configurations_build(path: Path) -> None:
    """A sparse one builds the network of its float one, from whose checkpoint it starts."""
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    with torch.device("meta"):
        count = sum(one.numel() for one in build(found["net"], 0).parameters())
    kind, source = found["runtime"]["runner"]["type"], found["saver"].get("pretrain_model", "")
    name = path.stem if kind == "base" else Path(source).parent.name
    assert count == SIZES[name]
    assert (kind == "sparse") == ("sparsity" in found) == ("_sparse" in path.stem)
    assert found["saver"]["save_dir"] == f"checkpoints/{path.stem}"
