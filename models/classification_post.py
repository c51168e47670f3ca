"""Losses and answers of a classifier, `base_cls_postprocess` of a `net:` section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import kl_div, log_softmax

from models.data.batch import Batch
from models.sections import Section
from onnxsparse.dialects.msbench.builders import Total
from onnxsparse.errors import OptionError

LOSSES = ("cross_entropy", "label_smooth_ce")


class ClassificationPost:
    """Cross-entropy against labels, of which a share goes to all classes alike."""

    def __init__(self, smoothing: float, num_classes: int | None) -> None:
        self.smoothing, self.num_classes = smoothing, num_classes

    def losses(self, logits: Any, batch: Batch, total: Total) -> dict[str, Any]:
        """The mean over the images of the whole batch; what is returned is this process's part of it."""
        labels = np.concatenate([np.asarray(one).reshape(-1) for one in batch.labels]).astype(np.int64)
        if len(labels) and not 0 <= labels.min() <= labels.max() < logits.shape[1]:
            wrong = labels[(labels < 0) | (labels >= logits.shape[1])][0]
            raise OptionError(f"a label is {wrong}, and the network has {logits.shape[1]} classes, 0 and up")
        lost = torch.nn.functional.cross_entropy(
            logits, torch.from_numpy(labels).to(logits.device), label_smoothing=self.smoothing, reduction="sum"
        )
        return {"cls_loss": lost / total(len(labels))}

    def teach(self, logits: Any, taught: Any, total: Total) -> dict[str, Any]:
        """Kullback-Leibler divergence from what another network says."""
        lost = kl_div(log_softmax(logits, 1), log_softmax(taught, 1), reduction="sum", log_target=True)
        return {"cls_loss": lost / total(len(logits))}

    def answers(self, logits: Any, batch: Batch) -> Sequence[Any]:
        """For each image the scores of its classes."""
        return list(logits.detach().cpu().numpy())


def make(kwargs: Mapping[str, Any], _strides: Sequence[int]) -> ClassificationPost:
    """The post_process of a classifier's `net:`."""
    section = Section("net: base_cls_postprocess", kwargs)
    kind, options = section.typed("cls_loss", LOSSES, "cross_entropy")
    classes = options.whole("num_classes", 0, 0) or None
    smoothing = options.number("smooth_ratio", 0.1, 0.0) if kind == "label_smooth_ce" else 0.0
    if smoothing >= 1:
        options.refuse("smooth_ratio", "a number from 0 to below 1", smoothing)
    options.end()
    section.end()
    return ClassificationPost(smoothing, classes)
