"""Label-free training: what a detector is asked to say is what another one of the same kind says.

Three parts: the mean squared error of the logits, a loss on the teacher's probabilities, and smooth L1 of the
locations. The last two are weighted by the teacher's best probability of an object, as there is far more background.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from models.detection.decoding import Outputs
from models.detection.losses import quality_focal
from models.detection.retina_post import flat
from onnxsparse.dialects.msbench.builders import Total

BETA = 1 / 9
"""Where smooth L1 of a location turns from a square into a line."""


def one_stage(outputs: Outputs, taught: Outputs, total: Total) -> dict[str, Any]:
    """Losses of (class, location) of each level against the teacher's."""
    anchors = sum(loc.shape[1] // 4 * loc.shape[2] * loc.shape[3] for _, loc in outputs)
    each = sum(cls[0].numel() for cls, _ in outputs) // anchors
    (cls, wanted), (loc, place) = (
        tuple(flat(of, at, width) for of in (outputs, taught)) for at, width in ((0, each), (1, 4))
    )
    probability = wanted.sigmoid()
    best = probability.max(1).values
    rows, weight = (max(total(value), 1e-6) for value in (float(len(cls)), float(best.sum())))
    return {
        "logits": functional.mse_loss(cls, wanted, reduction="sum") / (rows * each),
        "classes": quality_focal(cls, probability).sum() / weight,
        "places": _places(loc, place, best) / weight,
    }


def second_stage(answer: tuple[Any, Any], wanted: tuple[Any, Any], total: Total) -> dict[str, Any]:
    """Losses of the class (R, C) and location of regions against the teacher's, for the same regions."""
    (cls, loc), (logits, places) = answer, wanted
    probability = logits.softmax(-1)
    objects = probability[:, 1:]
    best = objects.max(1).values if len(cls) else probability.new_zeros(0)
    boxes = loc.shape[1] // 4
    share = best[:, None] if boxes == 1 else torch.cat([torch.zeros_like(best)[:, None], objects], 1)
    rows, weight = (max(total(value), 1e-6) for value in (float(len(cls)), float(best.sum())))
    entropy = functional.kl_div(cls.log_softmax(-1), probability, reduction="sum")
    return {
        "region_logits": functional.mse_loss(cls, logits, reduction="sum") / (rows * cls.shape[1]),
        "region_classes": entropy / rows,
        "region_places": _places(loc.reshape(-1, 4), places.reshape(-1, 4), share.reshape(-1)) / weight,
    }


def _places(loc: Any, wanted: Any, weight: Any) -> Any:
    return (functional.smooth_l1_loss(loc, wanted, reduction="none", beta=BETA).sum(-1) * weight).sum()
