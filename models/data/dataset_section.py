"""The `dataset:` section of a configuration: images, transforms, batches and evaluation, built from what it says.

    dataset:
      train: {dataset: {type: coco, kwargs: {meta_file, image_reader, transformer}}, batch_sampler, dataloader}
      test: {dataset: {type: coco, kwargs: {..., evaluator}}}
      batch_sampler, dataloader       where both parts have the same

1. Paths are relative to the working directory. A folder or file that is missing is said before anything is trained.
2. What is not known is refused by its name; `pin_memory` and `source` are known, and change nothing here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from models.data.batch import Array
from models.data.batches import Images, Source
from models.data.coco import Coco, read_coco
from models.data.image_files import MODES, READERS, ImageFiles, demand_file, demand_folder
from models.data.image_lists import ImageList, read_list
from models.data.transforms import Sample, transforms
from models.sections import Section

PARTS = ("train", "test")
KINDS = ("coco", "cls")


@dataclass(frozen=True)
class CocoImages:
    """Images with boxes; those without an object are left out of training."""

    coco: Coco
    files: ImageFiles
    places: Array
    detection = True

    @property
    def classes(self) -> int:
        return int(self.coco.classes.max(initial=0))

    @property
    def categories(self) -> Mapping[int, Mapping[str, Any]]:
        named = zip(self.coco.categories, self.coco.category_names)
        return {label: {"id": one, "name": name} for label, (one, name) in enumerate(named, 1)}

    def sample(self, place: int) -> Sample:
        height, width = self.coco.sizes[place]
        boxes, labels, ignored = self.coco.boxes(place)
        return Sample(self.files.read(self.coco.names[place], (int(height), int(width))), labels, boxes, ignored)

    def name(self, place: int) -> Any:
        return self.coco.ids[place]

    def annotations(self) -> Sequence[Any]:
        coco = self.coco
        return (
            list(coco.names),
            coco.sizes,
            list(coco.categories),
            coco.begins,
            coco.classes,
            coco.corners,
            coco.crowd,
        )


@dataclass(frozen=True)
class ListedImages:
    """Images with a class each."""

    listed: ImageList
    files: ImageFiles
    places: Array
    detection = False

    @property
    def classes(self) -> int:
        return self.listed.classes

    @property
    def categories(self) -> Mapping[int, Mapping[str, Any]]:
        return {}

    def sample(self, place: int) -> Sample:
        return Sample(self.files.read(self.listed.names[place]), self.listed.labels[place : place + 1])

    def name(self, place: int) -> Any:
        return self.listed.names[place]

    def annotations(self) -> Sequence[Any]:
        return (self.listed.names, self.listed.labels)


@dataclass(frozen=True)
class Where:
    """Where the data of a part lies, and of what kind it is."""

    kind: str
    meta_file: str
    files: ImageFiles
    kwargs: Section


def read_dataset(section: Mapping[str, Any], part: str, seed: int) -> Images:
    """The images of a part, `train` or `test`, of a `dataset:` section."""
    whole = _whole(section)
    chosen = whole.part(part)
    chosen.has("dataset")
    where = data_of(section, part)
    source = _source(where, part == "train")
    images = Images(
        source,
        transforms(where.kwargs.any("transformer"), f"{where.kwargs.where}.transformer", where.files.color_mode),
        batch=1,
        seed=seed,
        training=part == "train",
    )
    where.kwargs.end()
    images = _sampled(images, _either(whole, chosen, "batch_sampler"))
    images = _loaded(images, _either(whole, chosen, "dataloader"), where.kind)
    chosen.end()
    return images


def evaluator_of(section: Mapping[str, Any]) -> Section:
    """What the test part says of its data, with an `evaluator` of {type, kwargs}."""
    kwargs = data_of(section, "test").kwargs
    kwargs.any("evaluator")
    return kwargs


def data_of(section: Mapping[str, Any], part: str) -> Where:
    """Where a part's data lies; nothing is read, or demanded to be there."""
    chosen = _whole(section).part(part)
    chosen.any("dataset")
    kind, kwargs = chosen.typed("dataset", KINDS)
    for known in ("evaluator", "source", "transformer"):
        kwargs.has(known)
    meta_file = _path(kwargs, "meta_file")
    reader, options = kwargs.typed("image_reader", READERS)
    files = ImageFiles(_path(options, "image_dir"), options.word("color_mode", MODES, "RGB"), reader == "fs_opencv")
    options.end()
    return Where(kind, meta_file, files, kwargs)


def _whole(section: Mapping[str, Any]) -> Section:
    whole = Section("dataset", section)
    for known in (*PARTS, "batch_sampler", "dataloader"):
        whole.has(known)
    whole.end()
    return whole


def _either(whole: Section, chosen: Section, name: str) -> Section:
    """Where batch_sampler or dataloader stand: in the part, or beside the parts."""
    return chosen if chosen.has(name) else whole


def _path(options: Section, name: str) -> str:
    found = options.any(name)
    if not isinstance(found, str) or not found or "\0" in found:
        options.refuse(name, "a path", found)
    return os.path.normpath(found)


def _source(where: Where, training: bool) -> Source:
    demand_file(where.meta_file, f"{where.kwargs.where}.meta_file")
    demand_folder(where.files.folder, f"{where.kwargs.where}.image_reader.image_dir")
    if where.kind == "cls":
        listed = read_list(where.meta_file)
        return ListedImages(listed, where.files, np.arange(len(listed.names)))
    coco = read_coco(where.meta_file)
    places = coco.with_objects() if training else np.arange(len(coco.ids))
    if not len(places):
        where.kwargs.refuse("meta_file", "a file with objects to train with", where.meta_file)
    return CocoImages(coco, where.files, places)


def _sampled(images: Images, section: Section) -> Images:
    kind, options = section.typed("batch_sampler", ("base", "aspect_ratio_group"))
    images = replace(images, batch=options.whole("batch_size"))
    if options.has("sampler"):
        _, inner = options.typed("sampler", ("dist",))
        inner.end()
    if kind == "aspect_ratio_group":
        limits = _limits(options)
        if isinstance(images.source, CocoImages):
            sizes = images.source.coco.sizes[images.source.places]
            images = replace(images, groups=np.searchsorted(limits, sizes[:, 0] / sizes[:, 1], side="right"))
        else:
            section.refuse("batch_sampler", "of type base for a dataset of type cls", kind)
    options.end()
    return images


def _limits(options: Section) -> list[float]:
    found = options.any("aspect_grouping", [1])
    listed = isinstance(found, Sequence) and not isinstance(found, str)
    if not listed or any(isinstance(one, bool) or not isinstance(one, (int, float)) for one in found):
        options.refuse("aspect_grouping", "a list of ratios of height to width", found)
    return sorted(float(one) for one in found)


def _loaded(images: Images, section: Section, kind: str) -> Images:
    _, options = section.typed("dataloader", ("base", "cls_base"))
    options.flag("pin_memory", False)
    workers = options.whole("num_workers", 0, least=0)
    alignment = options.whole("alignment", 1)
    options.end()
    return replace(images, workers=min(workers, 64), alignment=alignment if kind == "coco" else 1)
