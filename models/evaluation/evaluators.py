"""The evaluator that `dataset.test.dataset.kwargs.evaluator` names: `imagenet` or `COCO`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from models.data.batches import Images
from models.data.coco import Coco, read_coco
from models.data.dataset_section import CocoImages, evaluator_of
from models.data.image_files import demand_file
from models.evaluation.accuracy import Accuracy
from models.evaluation.coco_api import CocoApi
from models.evaluation.coco_map import CocoMap
from models.sections import Section

KINDS = ("imagenet", "COCO")
BACKENDS: Mapping[str, type[CocoMap] | type[CocoApi]] = {"numpy": CocoMap, "pycocotools": CocoApi}


def read_evaluator(section: Mapping[str, Any], dataset: Images) -> Accuracy | CocoMap | CocoApi:
    """What a `dataset:` section says of the evaluation of its test images."""
    found = evaluator_of(section)
    kind, options = found.typed("evaluator", KINDS)
    options.where = f"evaluator {kind}"
    detection = isinstance(dataset.source, CocoImages)
    if detection != (kind == "COCO"):
        found.refuse("evaluator.type", f"{'COCO' if detection else 'imagenet'} for images of this type", kind)
    evaluator = _coco(options, dataset) if detection else _accuracy(options)
    options.end()
    return evaluator


def _accuracy(options: Section) -> Accuracy:
    topk = options.wholes("topk", [1, 5], least=1)
    options.has("num_classes")
    if not topk:
        options.refuse("topk", "a list such as [1, 5]", topk)
    return Accuracy(topk)


def _coco(options: Section, dataset: Images) -> CocoMap | CocoApi:
    assert isinstance(dataset.source, CocoImages)
    types = options.any("iou_types", ["bbox"])
    if types != ["bbox"]:
        options.refuse("iou_types", "[bbox]", types)
    coco = _truth(options, dataset.source.coco)
    return BACKENDS[options.word("backend", tuple(BACKENDS), "numpy")](coco)


def _truth(options: Section, images: Coco) -> Coco:
    """The annotations that are evaluated against; of another file where `gt_file` is one."""
    path = options.any("gt_file", images.path)
    if not isinstance(path, str) or os.path.realpath(path) == os.path.realpath(images.path):
        return images if isinstance(path, str) else options.refuse("gt_file", "a path", path)
    demand_file(path, f"{options.where}.gt_file")
    coco = read_coco(path)
    if list(coco.categories) != list(images.categories):
        options.refuse("gt_file", f"a file with the categories of {images.path}", path)
    return coco
