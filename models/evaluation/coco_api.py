"""COCO's mean average precision by pycocotools, for who wants the reference itself: `backend: pycocotools`."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Sequence
from typing import Any

from models.data.batch import Array, Batch, Detections
from models.data.coco import Coco
from models.evaluation.coco_map import Found, summary
from onnxsparse.errors import MissingExtraError


class CocoApi:
    """The same evaluator as `CocoMap`."""

    main = "mAP"

    def __init__(self, coco: Coco) -> None:
        try:
            self._library = importlib.import_module("pycocotools.coco").COCO
            self._evaluation = importlib.import_module("pycocotools.cocoeval").COCOeval
        except ImportError:
            raise MissingExtraError(
                "backend: pycocotools needs that package: pip install 'onnxsparse[detection]'"
            ) from None
        self._coco, self._found = coco, Found(coco)

    def add(self, batch: Batch, answers: Sequence[Detections]) -> None:
        self._found.add(batch, answers)

    def figures(self) -> dict[str, float]:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress and a table
            truth, found = self._loaded(self._truth()), self._loaded(self._detections())
            evaluation = self._evaluation(truth, found, "bbox")
            evaluation.evaluate()
            evaluation.accumulate()
        precision: Array = evaluation.eval["precision"]
        recall: Array = evaluation.eval["recall"]
        return summary(precision[..., -1].transpose(2, 3, 0, 1), recall.transpose(1, 2, 3, 0))

    def _loaded(self, annotations: list[dict[str, Any]]) -> Any:
        coco = self._library()
        images = [{"id": name} for name in self._coco.ids]
        categories = [{"id": name} for name in self._coco.categories]
        coco.dataset = {"images": images, "categories": categories, "annotations": annotations}
        coco.createIndex()
        return coco

    def _truth(self) -> list[dict[str, Any]]:
        coco = self._coco
        rows = [(image, row) for image in range(len(coco.ids)) for row in range(*coco.of(image).indices(1 << 62))]
        return [
            {
                "id": row + 1,  # an annotation called 0 counts as none in pycocotools
                "image_id": coco.ids[image],
                "category_id": coco.categories[coco.classes[row] - 1],
                "bbox": coco.corners[row].tolist(),
                "area": float(coco.areas[row]),
                "iscrowd": int(coco.crowd[row]),
            }
            for image, row in rows
        ]

    def _detections(self) -> list[dict[str, Any]]:
        return [
            {
                "id": row + 1,
                "image_id": self._coco.ids[image],
                "category_id": self._coco.categories[label - 1],
                "bbox": corners.tolist(),
                "area": float(corners[2] * corners[3]),
                "score": float(score),
                "iscrowd": 0,
            }
            for row, (image, label, score, corners) in enumerate(zip(*self._found.whole()))
        ]
