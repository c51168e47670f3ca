"""Top-k accuracy of a classification, the evaluator `imagenet`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.data.batch import Batch


class Accuracy:
    """Share of images whose class is among the k that score highest; answers are scores, one for each class.

    Of equal scores the lower class comes first; a score that is no number comes last, and is never right.
    """

    def __init__(self, topk: Sequence[int] = (1, 5)) -> None:
        self._topk = sorted(set(topk))
        self._right = np.zeros(len(self._topk), np.int64)
        self._count = 0
        self.main = f"top{self._topk[0]}"

    def add(self, batch: Batch, answers: Sequence[Any]) -> None:
        if not len(batch):
            return
        scores = np.stack([np.asarray(one, np.float64).reshape(-1) for one in answers])
        labels = np.asarray([int(one[0]) for one in batch.labels])
        known = labels < scores.shape[1]
        of_label = np.where(known, scores[np.arange(len(labels)), np.where(known, labels, 0)], np.nan)[:, None]
        before = (scores > of_label) | ((scores == of_label) & (np.arange(scores.shape[1]) < labels[:, None]))
        place = np.where(np.isnan(of_label[:, 0]), np.iinfo(np.int64).max, before.sum(axis=1))
        self._right += [(place < k).sum() for k in self._topk]
        self._count += len(labels)

    def figures(self) -> dict[str, float]:
        return {f"top{k}": float(right / max(self._count, 1)) for k, right in zip(self._topk, self._right)}
