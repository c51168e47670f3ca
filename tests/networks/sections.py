"""`net:` sections of the three documented networks, narrow where no count of weights is asked."""

from __future__ import annotations

from typing import Any

Part = dict[str, Any]


def part(name: str, kind: str, prev: str = "", **kwargs: Any) -> Part:
    return {"name": name, "type": kind, **({"prev": prev} if prev else {}), "kwargs": kwargs}


def backbone(kind: str, layers: list[int], norm: str = "solo_bn", **kwargs: Any) -> Part:
    strides = [2 ** (layer + 1) for layer in layers]
    common = {"out_layers": layers, "out_strides": strides, "normalize": {"type": norm}}
    return part("backbone", kind, **common, initializer={"method": "msra"}, **kwargs)


def classifier(kind: str = "resnet18", classes: int = 10, planes: int = 64, **kwargs: Any) -> list[Part]:
    loss = {"type": "label_smooth_ce", "kwargs": {"smooth_ratio": 0.1, "num_classes": classes}}
    return [
        backbone(kind, [4], **{"width": 0.125, "frozen_layers": [], **kwargs}),
        part("head", "sparse_base_cls_head", num_classes=classes, in_plane=planes, input_feature_idx=-1),
        part("post_process", "base_cls_postprocess", cls_loss=loss),
    ]


def neck(planes: int, start: int, strides: list[int], **kwargs: Any) -> Part:
    common = {"outplanes": planes, "start_level": start, "num_level": len(strides), "out_strides": strides}
    return part("neck", "FPN", "backbone", **common, upsample="nearest", initializer={"method": "xavier"}, **kwargs)


def retina(planes: int = 16, classes: int = 11, anchors: int = 2, **kwargs: Any) -> list[Part]:
    bn = {"type": "solo_bn"}
    head = {"feat_planes": planes, "num_classes": classes, "num_anchors": anchors, "num_level": 5}
    start = {"initializer": {"method": "normal", "std": 0.01}, "init_prior": 0.01, "class_activation": "sigmoid"}
    cfg = {
        "cls_loss": {"type": "quality_focal_loss", "kwargs": {"gamma": 2.0}},
        "loc_loss": {"type": "iou_loss", "kwargs": {"loss_type": "giou", "loss_weight": 1.0}},
        "anchor_generator": {"type": "hand_craft", "kwargs": {"anchor_ratios": [1], "anchor_scales": [6, 8]}},
        "roi_supervisor": {"type": "atss", "kwargs": {"top_n": 18}},
        "roi_predictor": {
            "type": "base",
            "kwargs": {
                "pre_nms_score_thresh": 0.05, "pre_nms_top_n": 1000, "post_nms_top_n": 1000, "roi_min_size": 0,
                "merger": {"type": "retina", "kwargs": {"top_n": 100, "nms": {"type": "naive", "nms_iou_thresh": 0.5}}},
            },
        },
    }  # fmt: skip
    return [
        backbone("resnet18", [2, 3, 4], **{"width": 0.125, "frozen_layers": [0, 1], **kwargs}),
        neck(planes, 3, [8, 16, 32, 64, 128], downsample="conv", normalize=bn),
        part("roi_head", "RetinaHeadWithBN", "neck", **head, **start, normalize=bn),
        part("post_process", "retina_post", "roi_head", num_classes=classes, cfg=cfg),
    ]


def faster(planes: int = 16, classes: int = 11, hidden: int = 32, **kwargs: Any) -> list[Part]:
    pooling = {"method": "roialignpool", "pool_size": 7, "sampling_ratio": 0}
    bbox_norm = {"means": [0, 0, 0, 0], "stds": [0.1, 0.1, 0.2, 0.2]}
    rpn = {"feat_planes": planes, "num_classes": 2, "num_anchors": 3, "class_activation": "sigmoid", "num_level": 5}
    fc_cfg = {"class_activation": "softmax", "roipooling": pooling, "share_location": False}
    return [
        backbone("resnet50", [1, 2, 3, 4], **{"norm": "msbench_freeze_bn", "width": 0.125, **kwargs}),
        neck(planes, 2, [4, 8, 16, 32, 64], downsample="pool"),
        part("roi_head", "NaiveRPN", "neck", **rpn, initializer={"method": "normal", "std": 0.01}),
        part("rpn_post_process", "rpn_post", "roi_head", num_classes=2, cfg=_rpn_cfg()),
        part("bbox_head_pre_process", "BboxFC_Pre", cfg=_pre_cfg(bbox_norm, pooling)),
        part(
            "bbox_head", "BboxFC", "neck",
            feat_planes=hidden, num_classes=classes, initializer={"method": "msra"}, cfg=fc_cfg,
        ),
        part("bbox_head_post_process", "bbox_post", cfg=_bbox_cfg(bbox_norm)),
    ]  # fmt: skip


def _rpn_cfg() -> dict[str, Any]:
    def predictor(before: int) -> dict[str, Any]:
        nms = {"type": "naive", "nms_iou_thresh": 0.7}
        tops = {"pre_nms_score_thresh": 0.0, "pre_nms_top_n": before, "post_nms_top_n": 1000, "roi_min_size": 0}
        merger = {"type": "rpn", "kwargs": {"top_n": 1000}}
        return {"roi_predictor": {"type": "base", "kwargs": {**tops, "nms": nms, "merger": merger}}}

    return {
        "cls_loss": {"type": "sigmoid_cross_entropy"},
        "loc_loss": {"type": "l1_loss"},
        "anchor_generator": {"type": "hand_craft", "kwargs": {"anchor_ratios": [0.5, 1, 2], "anchor_scales": [8]}},
        "roi_supervisor": {
            "type": "rpn",
            "kwargs": {"allowed_border": -1, "matcher": _matcher(0.7, 0.3, True), "sampler": _sampler(256, 0.5)},
        },
        "train": predictor(2000),
        "test": predictor(1000),
    }


def _pre_cfg(bbox_norm: Any, pooling: Any) -> dict[str, Any]:
    kwargs = {"bbox_normalize": bbox_norm, "matcher": _matcher(0.5, 0.5, False), "sampler": _sampler(512, 0.25)}
    return {
        "bbox_supervisor": {"type": "faster", "kwargs": kwargs},
        "fpn": {"fpn_levels": [0, 1, 2, 3], "base_scale": 56},
        "roipooling": pooling,
    }


def _bbox_cfg(bbox_norm: Any) -> dict[str, Any]:
    nms = {"type": "naive", "nms_iou_thresh": 0.5}
    kwargs = {"bbox_normalize": bbox_norm, "share_location": False, "nms": nms, "bbox_score_thresh": 0.0, "top_n": 100}
    return {
        "cls_loss": {"type": "softmax_cross_entropy", "kwargs": {"class_dim": -1}},
        "loc_loss": {"type": "l1_loss"},
        "share_location": False,
        "bbox_normalize": bbox_norm,
        "bbox_predictor": {"type": "faster", "kwargs": kwargs},
    }


def _matcher(positive: float, negative: float, low: bool) -> dict[str, Any]:
    shares = {"positive_iou_thresh": positive, "negative_iou_thresh": negative, "ignore_iou_thresh": 0.5}
    quality = {"allow_low_quality_match": low, "low_quality_thresh": negative}
    return {"type": "max_iou", "kwargs": {**shares, **quality}}


def _sampler(count: int, share: float) -> dict[str, Any]:
    return {"type": "naive", "kwargs": {"batch_size": count, "positive_percent": share}}
