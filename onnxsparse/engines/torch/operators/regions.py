"""Region operators of detectors as torch functions: RoiAlign and NonMaxSuppression."""

from __future__ import annotations

import torch

from onnxsparse.engines.torch.operators.values import Real, Tensor, real


def RoiAlign(
    X: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    """Each box in cells, each cell from samples between the pixels; a box at a time, as each has its own samples."""
    half = coordinate_transformation_mode == "half_pixel"
    places = rois * spatial_scale - (0.5 if half else 0.0)
    found = []
    for box, image in zip(places, batch_indices.tolist()):
        x = _samples(box[0], box[2], output_width, sampling_ratio, half)
        y = _samples(box[1], box[3], output_height, sampling_ratio, half)
        found.append(_pooled(X[image], y, x, mode))
    return torch.stack(found) if found else X.new_zeros((0, X.shape[1], output_height, output_width))


def _samples(first: Tensor, last: Tensor, cells: int, ratio: int, half: bool) -> Tensor:
    """(cells, samples): where they lie along one side of the box."""
    length = last - first if half else (last - first).clamp(min=1)
    count = ratio or max(int((length / cells).ceil()), 1)
    steps = torch.arange(cells * count, device=first.device, dtype=first.dtype) + 0.5
    return (first + steps * (length / (cells * count))).reshape(cells, count)


def _pooled(image: Tensor, y: Tensor, x: Tensor, mode: str) -> Tensor:
    rows, row_weights = _neighbours(y.flatten(), image.shape[1])
    columns, column_weights = _neighbours(x.flatten(), image.shape[2])
    seen = image[:, rows[:, :, None, None], columns] * row_weights[:, :, None, None] * column_weights
    shape = (image.shape[0], y.shape[0], y.shape[1], 2, x.shape[0], x.shape[1], 2)
    parts = seen.permute(0, 1, 2, 3, 4).reshape(shape)
    if mode == "max":
        return parts.amax((2, 3, 5, 6))
    return parts.sum((3, 6)).mean((2, 4))


def _neighbours(places: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The two pixels around each place and their weights, none for places outside."""
    inside = (places >= -1) & (places <= size)
    places = places.clamp(0, size - 1)
    low = places.floor().clamp(max=size - 1)
    upper = places - low
    pixels = torch.stack([low, (low + 1).clamp(max=size - 1)], 1).long()
    return pixels, torch.stack([1 - upper, upper], 1) * inside[:, None]


def NonMaxSuppression(
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Real | None = None,
    iou_threshold: Real | None = None,
    score_threshold: Real | None = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    """Rows of image, class, box: the best first, without those that overlap a better one."""
    most = 0 if max_output_boxes_per_class is None else int(real(max_output_boxes_per_class))
    limit = 0.0 if iou_threshold is None else real(iou_threshold)
    found = []
    for image in range(scores.shape[0]):
        corners = _corners(boxes[image], center_point_box)
        for label in range(scores.shape[1]):
            row = scores[image, label]
            least = None if score_threshold is None else real(score_threshold)
            found += [[image, label, box] for box in _kept(corners, row, most, limit, least)]
    return torch.tensor(found, dtype=torch.int64, device=boxes.device).reshape(-1, 3)


def _corners(boxes: Tensor, centered: int) -> Tensor:
    if centered:
        x, y, width, height = boxes.unbind(-1)
        return torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], -1)
    one, other = boxes[:, :2], boxes[:, 2:]
    return torch.cat([torch.minimum(one, other), torch.maximum(one, other)], -1)


def _kept(corners: Tensor, scores: Tensor, most: int, limit: float, least: float | None) -> list[int]:
    order = torch.sort(scores, descending=True, stable=True).indices
    if least is not None:
        order = order[scores[order] > least]
    kept: list[int] = []
    while order.numel() and len(kept) < most:
        best, order = order[0], order[1:]
        kept.append(int(best))
        order = order[_overlap(corners[best], corners[order]) <= limit]
    return kept


def _overlap(box: Tensor, others: Tensor) -> Tensor:
    sides = torch.minimum(box[2:], others[:, 2:]) - torch.maximum(box[:2], others[:, :2])
    shared = sides.clamp(min=0).prod(-1)
    areas = (others[:, 2:] - others[:, :2]).prod(-1) + (box[2:] - box[:2]).prod()
    return shared / (areas - shared).clamp(min=1e-30)
