"""Networks' layers: shapes, counts of weights, frozen parts, shared convolutions, tracing and export."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from models.networks import bbox_head, classifier_head, fpn, resnet, retina_head, rpn_head
from models.networks.normalization import FrozenBatchNorm2d, Normalize
from models.sections import Section


def backbone(kind: str = "resnet18", layers: list[int] | None = None, norm: str = "solo_bn", **kwargs: Any) -> Any:
    common = {"out_layers": layers or [2, 3, 4], "normalize": {"type": norm}}
    return resnet.make(kind, Section("net: backbone", {**common, "width": 0.125, **kwargs}))


def neck(**kwargs: Any) -> Any:
    return fpn.make(Section("net: neck", {"outplanes": 16, "num_level": 5, **kwargs}), [16, 32, 64], [8, 16, 32])


def head(kind: str = "RetinaHeadWithBN", levels: int = 5) -> Any:
    kwargs = {"feat_planes": 16, "num_classes": 4, "num_anchors": 2}
    return retina_head.make(kind, Section("net: roi_head", kwargs), [16] * levels)


def features(count: int = 5, planes: int = 16) -> list[Any]:
    return [torch.randn(2, planes, 12 >> level or 1, 13 >> level or 1) for level in range(count)]


@pytest.mark.parametrize(("kind", "count"), [("resnet18", 11_689_512), ("resnet50", 25_557_032)])
def test_the_public_networks_have_as_many_weights(kind: str, count: int) -> None:
    with torch.device("meta"):
        made = resnet.ResNet(kind, [4], [], nn.BatchNorm2d)
        top = classifier_head.ClassifierHead(made.out_planes[0], 1000, -1)
    assert sum(one.numel() for part in (made, top) for one in part.parameters()) == count


@pytest.mark.parametrize("kind", ["resnet18", "resnet34", "resnet50", "resnet101"])
def test_features_have_the_planes_and_strides_that_are_said(kind: str) -> None:
    made = backbone(kind, [1, 2, 3, 4])
    found = made.eval()(torch.randn(1, 3, 64, 96))
    assert [one.shape[1] for one in found] == made.out_planes
    assert [(64 // one.shape[2], 96 // one.shape[3]) for one in found] == [(s, s) for s in made.out_strides]


def test_layers_behind_the_last_one_that_is_used_are_not_built() -> None:
    assert not any("layer4" in name for name, _ in backbone(layers=[2, 3]).named_parameters())


def test_frozen_layers_neither_learn_nor_count_statistics() -> None:
    made = backbone(frozen_layers=[0, 1]).train()
    before = {name: one.clone() for name, one in made.state_dict().items()}
    sum(one.sum() for one in made(torch.randn(2, 3, 32, 32))).backward()
    after = made.state_dict()
    moved = {name for name, one in before.items() if not torch.equal(one, after[name])}
    learns = {name for name, one in made.named_parameters() if one.grad is not None}
    assert {name.split(".")[0] for name in moved | learns} == {"layer2", "layer3", "layer4"}
    assert not made.bn1.training
    assert made.layer2.training


def test_frozen_normalization_is_that_of_eval_mode_to_the_bit() -> None:
    torch.manual_seed(0)
    trained, x = nn.BatchNorm2d(5), torch.randn(3, 5, 4, 4)
    trained.weight.data.normal_(), trained.bias.data.normal_()
    trained(x * 3 + 1)
    frozen = FrozenBatchNorm2d(5)
    frozen.load_state_dict({name: one for name, one in trained.state_dict().items() if "num_" not in name})
    assert torch.equal(frozen.train()(x), trained.eval()(x))
    assert set(frozen.state_dict()) == {"weight", "bias", "running_mean", "running_var"}
    assert not list(frozen.parameters())


def test_frozen_normalization_is_a_leaf_where_its_class_is_named() -> None:
    class Tracer(torch.fx.Tracer):  # type: ignore[misc, unused-ignore]
        def is_leaf_module(self, m: Any, name: str) -> bool:
            return type(m).__name__ == "FrozenBatchNorm2d" or super().is_leaf_module(m, name)

    graph = Tracer().trace(backbone(norm="msbench_freeze_bn"))
    called = [node.target for node in graph.nodes if node.op == "call_module"]
    assert "bn1" in called
    assert "layer1.0.bn2" in called


@pytest.mark.parametrize("kind", ["resnet18", "resnet50"])
def test_blocks_may_begin_as_their_shortcuts(kind: str) -> None:
    made, frozen = (backbone(kind, norm=norm, zero_init_residual=True) for norm in ("solo_bn", "freeze_bn"))
    block, x = made.layer2[1], torch.rand(2, made.out_planes[0], 4, 4)
    assert torch.equal(block(x), x)
    block(x).sum().backward()
    last = (block.bn3 if kind == "resnet50" else block.bn2).weight
    assert bool(last.grad.any()), "and what is beside the shortcut learns"
    assert not torch.equal(frozen.layer2[1](x), x), "frozen, it would be nothing for ever"


@pytest.mark.parametrize("norm", ["freeze_bn", "msbench_freeze_bn"])
def test_both_names_of_frozen_normalization_mean_the_same(norm: str) -> None:
    assert type(Normalize(Section("normalize", {"type": norm}))(4)) is FrozenBatchNorm2d


@pytest.mark.parametrize("down", ["pool", "conv"])
@pytest.mark.parametrize("up", ["nearest", "bilinear"])
def test_a_pyramid_halves_from_level_to_level(down: str, up: str) -> None:
    made = neck(downsample=down, upsample=up, start_level=3)
    sizes = [(13, 11), (7, 6), (4, 3)]
    given = [torch.randn(1, planes, *size) for planes, size in zip((16, 32, 64), sizes)]
    found = made(given)
    assert [tuple(one.shape[1:]) for one in found] == [(16, *size) for size in [*sizes, (2, 2), (1, 1)]]
    assert hasattr(made, f"p6_{down}")
    assert made.out_strides == [8, 16, 32, 64, 128]


def test_pooled_levels_of_a_pyramid_are_every_second_pixel() -> None:
    made = neck(downsample="pool")
    found = made([torch.randn(1, planes, size, size) for planes, size in ((16, 16), (32, 8), (64, 4))])
    assert torch.equal(found[3], found[2][:, :, ::2, ::2])


def test_a_shared_head_is_the_same_layers_run_once_a_level() -> None:
    torch.manual_seed(0)
    made, given = head().eval(), features()
    for norms in made.cls_tower.norms:
        for norm in norms:
            norm.running_mean.normal_()
    found = made(given)
    for level, (cls, loc) in enumerate(found):
        x = given[level]
        for place, conv in enumerate(made.cls_tower.convs):
            x = torch.relu(made.cls_tower.norms[level][place](conv(x)))
        assert torch.equal(cls, made.cls_pred(x))
        assert loc.shape[1] == 2 * 4
        assert cls.shape[1] == 2 * 3
    assert sum(one.ndim == 4 for one in made.parameters()) == 2 * 4 + 2


def test_under_fx_a_shared_convolution_is_one_module_called_for_every_level() -> None:
    class Of(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.neck, self.roi_head = neck(), head()

        def forward(self, a: Any, b: Any, c: Any) -> Any:
            return self.roi_head(self.neck([a, b, c]))

    called = [node.target for node in torch.fx.symbolic_trace(Of()).graph.nodes if node.op == "call_module"]
    assert called.count("roi_head.cls_tower.convs.0") == 5
    assert called.count("roi_head.cls_tower.norms.3.0") == 1


def test_a_new_head_says_background_everywhere() -> None:
    scores = torch.cat([cls.sigmoid().flatten() for cls, _ in head("RetinaHead")(features())])
    assert (scores - 0.01).abs().max() < 0.005


def test_proposals_have_one_class_and_four_numbers_for_each_anchor() -> None:
    kwargs = {"feat_planes": 8, "num_classes": 2, "num_anchors": 3, "class_activation": "sigmoid"}
    made = rpn_head.make(Section("net: roi_head", kwargs), [16] * 5)
    assert [(cls.shape[1], loc.shape[1]) for cls, loc in made(features())] == [(3, 12)] * 5


@pytest.mark.parametrize(("shared", "numbers"), [(False, 20), (True, 4)])
def test_the_second_stage_has_a_box_for_each_class_or_one_for_all(shared: bool, numbers: int) -> None:
    cfg = {"share_location": shared, "roipooling": {"pool_size": 3}}
    kwargs = {"feat_planes": 8, "num_classes": 5, "initializer": {"method": "msra"}, "cfg": cfg}
    made = bbox_head.make(Section("net: bbox_head", kwargs), [6] * 4)
    cls, loc = made(torch.randn(7, 6, 3, 3))
    assert (cls.shape, loc.shape) == ((7, 5), (7, numbers))
