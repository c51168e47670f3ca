"""A batch of images with what is known of them, and what a detector says of an image.

1. Arrays are those of numpy; whoever trains makes tensors of them.
2. Boxes are x1, y1, x2, y2 in pixels of the image as the network sees it, before padding. Of an answer they are in
   pixels of the image file.
3. Classes count from 1 in detection, as 0 is the background; in classification from 0.
4. `seeds` are one number for each image, by the seed of the run, the epoch and the place of the image in the dataset:
   whatever is drawn at random for an image is drawn by it, so no draw depends on workers, batches or processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Batch:
    """Images of one shape, padded at the right and at the bottom."""

    image: Array
    """(N, C, H, W), float32."""
    keys: Sequence[int]
    """The place of each image in its dataset."""
    seeds: Sequence[int]
    labels: Sequence[Array] = ()
    """For each image the classes of its boxes, int64; of a classification one number each, in arrays of one."""
    boxes: Sequence[Array] = ()
    """For each image (G, 4), float32."""
    ignored: Sequence[Array] = ()
    """For each image (I, 4): regions of crowds, which count neither as an object nor as background."""
    sizes: Sequence[tuple[int, int]] = ()
    """Height and width of each image before padding."""
    scales: Sequence[tuple[float, float]] = ()
    """Pixels of the network by pixels of the file, along the height and the width."""
    ids: Sequence[Any] = ()
    """What each image is called in the annotations."""

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class Detections:
    """What is found in one image, the best first."""

    boxes: Array = field(default_factory=lambda: np.zeros((0, 4), np.float32))
    scores: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    labels: Array = field(default_factory=lambda: np.zeros(0, np.int64))
