"""Batches of images, in an order and with draws that depend on the seed, the epoch and the image alone.

1. While training the order is shuffled for each epoch; with aspect grouping a batch over all processes has images of
   one group as far as a group fills batches, and the rests of the groups make the last ones. What is left of an epoch,
   less than a batch, is dropped. A test takes all images, the last batch as short as it is.
2. Each process reads its share of every batch alone, and pads it at the right and at the bottom to the size that the
   whole batch needs, a multiple of `alignment`. A share may be empty at the end of a test.
3. Workers are threads: Pillow decodes and resizes without Python's lock. They read ahead, and what they make are the
   same bytes for any number of them. An error in one is raised where its batch would be handed out.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from models.data.batch import Array, Batch
from models.data.transforms import Sample, Transform
from onnxsparse.errors import OptionError

Size = tuple[int, int]
Agree = Callable[[Size], Size]
AHEAD = 2
"""How many images each worker is ahead with, beside those of the batch that is waited for."""


class Source(Protocol):
    """Where images come from, by their place."""

    @property
    def places(self) -> Array:
        """The places of the images that are used."""

    @property
    def classes(self) -> int:
        """How many classes its labels are of, at least."""

    @property
    def detection(self) -> bool:
        """Whether images have boxes, and may so be of different sizes in a batch."""

    @property
    def categories(self) -> Mapping[int, Mapping[str, Any]]:
        """Id and name of the category of each label; of images without boxes none."""

    def sample(self, place: int) -> Sample: ...

    def name(self, place: int) -> Any:
        """What the image is called in the annotations."""

    def annotations(self) -> Sequence[Any]:
        """All that is known of the images, as arrays and lists."""


@dataclass(frozen=True)
class Images:
    """The images of a part of a dataset: `Dataset` of the builders."""

    source: Source
    transforms: Sequence[Transform]
    batch: int
    seed: int
    training: bool
    groups: Array | None = None
    """For each of the source's places the group of its aspect ratio."""
    alignment: int = 1
    workers: int = 0

    @property
    def size(self) -> int:
        return len(self.source.places)

    @property
    def classes(self) -> int:
        return self.source.classes

    @property
    def categories(self) -> Mapping[int, Mapping[str, Any]]:
        return self.source.categories

    @property
    def fingerprint(self) -> str:
        """A digest of the annotations."""
        digest = hashlib.sha256()
        for one in self.source.annotations():
            digest.update(one.tobytes() if isinstance(one, np.ndarray) else repr(one).encode())
        return digest.hexdigest()

    def per_epoch(self, batch: int) -> int:
        if self.training and batch > self.size:
            raise OptionError(f"the dataset has {self.size} images to train with, fewer than a batch of {batch}")
        return self.size // batch if self.training else -(-self.size // batch)

    def epoch(
        self, number: int, batch: int, rank: int = 0, processes: int = 1, begin: int = 0, agree: Agree | None = None
    ) -> Iterator[Batch]:
        order = self._order(number, batch)
        shares = [
            np.array_split(order[first : first + batch], processes)[rank]
            for first in range(begin * batch, self.per_epoch(batch) * batch, batch)
        ]
        for share, samples in self._read(shares, number):
            yield self._batch(share, samples, number, agree or (lambda size: size))

    def _order(self, number: int, batch: int) -> Array:
        """Places of images, batch after batch."""
        places = self.source.places
        if not self.training:
            return places if self.groups is None else places[np.argsort(self.groups, kind="stable")]
        random = np.random.default_rng([self.seed, number])
        order = random.permutation(len(places))
        if self.groups is None:
            return places[order]
        grouped = [order[self.groups[order] == group] for group in np.unique(self.groups)]
        full = [one[: len(one) // batch * batch].reshape(-1, batch) for one in grouped]
        rests = np.concatenate([one[len(one) // batch * batch :] for one in grouped])
        rests = random.permutation(rests)[: len(rests) // batch * batch].reshape(-1, batch)
        return np.asarray(places[random.permutation(np.concatenate([*full, rests])).reshape(-1)])

    def _read(self, shares: Sequence[Array], number: int) -> Iterator[tuple[Array, list[Sample]]]:
        if not self.workers:
            for share in shares:
                yield share, [self.one(int(place), number) for place in share]
            return
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="images")
        try:
            yield from self._read_ahead(pool, shares, number)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _read_ahead(
        self, pool: ThreadPoolExecutor, shares: Sequence[Array], number: int
    ) -> Iterator[tuple[Array, list[Sample]]]:
        places = iter([int(place) for share in shares for place in share])
        waiting: deque[Future[Sample]] = deque()
        for share in shares:
            while len(waiting) < len(share) + AHEAD * self.workers:
                place = next(places, None)
                if place is None:
                    break
                waiting.append(pool.submit(self.one, place, number))
            yield share, [waiting.popleft().result() for _ in share]

    def one(self, place: int, number: int) -> Sample:
        """An image as the network sees it in an epoch, before padding."""
        sample = self.source.sample(place)
        random = np.random.default_rng([self.seed, number, place])
        for transform in self.transforms:
            sample = transform(sample, random)
        return sample

    def _batch(self, share: Array, samples: Sequence[Sample], number: int, agree: Agree) -> Batch:
        sizes = [(sample.image.shape[1], sample.image.shape[2]) for sample in samples]
        if not self.source.detection and len(set(sizes)) > 1:
            raise OptionError(
                f"images of a batch are {sizes[0]} and {next(one for one in sizes if one != sizes[0])} pixels: "
                "transformer needs a crop or a resize to one size, such as torch_center_crop"
            )
        height, width = agree(self._padded(sizes))
        image = np.zeros((len(samples), 3, height, width), np.float32)
        for into, sample in zip(image, samples):
            into[:, : sample.image.shape[1], : sample.image.shape[2]] = sample.image
        keys = [int(place) for place in share]
        return Batch(
            image=image,
            keys=keys,
            seeds=[seed_of(self.seed, number, place) for place in keys],
            labels=[sample.labels for sample in samples],
            boxes=[sample.boxes for sample in samples],
            ignored=[sample.ignored for sample in samples],
            sizes=sizes,
            scales=[sample.scale for sample in samples],
            ids=[self.source.name(place) for place in keys],
        )

    def _padded(self, sizes: Sequence[Size]) -> Size:
        if not sizes:
            return self.alignment, self.alignment
        height, width = (-(-max(side) // self.alignment) * self.alignment for side in zip(*sizes))
        return height, width


def seed_of(seed: int, number: int, place: int) -> int:
    """What draws for an image begin with, beside those of its transforms."""
    words = np.random.SeedSequence([seed, number, place, 1]).generate_state(2)
    return int(words[0]) << 31 | int(words[1]) >> 1
