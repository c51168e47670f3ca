"""Annotations in COCO's json: images, boxes, categories.

1. Category ids may have gaps: classes are 1..C in the ascending order of ids, and answers are mapped back.
2. A file of a million annotations is read without keeping its polygons: of each annotation a row of numbers remains.
3. For training, boxes are cut at the edges of their image and those without an area are dropped; regions of crowds
   (`iscrowd`) are apart. For evaluation everything stays as the file says.
"""

from __future__ import annotations

import gc
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from models.data.batch import Array
from models.data.image_files import leaves_folder
from onnxsparse.errors import OptionError, brief, one_line

COLUMNS = 6  # x, y, width, height, area, iscrowd


@dataclass(frozen=True)
class Coco:
    """The content of a file; annotations are in the order of their images, and in one image in that of the file."""

    path: str
    ids: Sequence[Any]
    names: Sequence[str]
    sizes: Array
    """(N, 2): height and width."""
    categories: Sequence[Any]
    """The ids of the categories, ascending."""
    category_names: Sequence[str]
    begins: Array
    """Where the annotations of each image begin, and where those of the last one end."""
    classes: Array
    """For each annotation the class, from 1."""
    corners: Array
    """(A, 4), float64: x, y, width, height, as the file says."""
    areas: Array
    crowd: Array

    def of(self, image: int) -> slice:
        """The annotations of an image."""
        return slice(int(self.begins[image]), int(self.begins[image + 1]))

    def boxes(self, image: int) -> tuple[Array, Array, Array]:
        """Boxes x1, y1, x2, y2 of objects, their classes, and the regions of crowds."""
        rows = self.of(image)
        boxes, usable = self._inside(rows, np.broadcast_to(self.sizes[image], (rows.stop - rows.start, 2)))
        crowd = self.crowd[rows]
        objects, regions = usable & ~crowd, usable & crowd
        return boxes[objects].astype(np.float32), self.classes[rows][objects], boxes[regions].astype(np.float32)

    def with_objects(self) -> Array:
        """The places of the images that have an object to learn from."""
        image = np.repeat(np.arange(len(self.ids)), np.diff(self.begins))
        _, usable = self._inside(slice(None), self.sizes[image])
        found: Array = np.unique(image[usable & ~self.crowd])
        return found

    def _inside(self, rows: slice, sizes: Array) -> tuple[Array, Array]:
        """Boxes cut at the edges of their images, and which of them have an area."""
        corners = self.corners[rows]
        boxes = np.concatenate([corners[:, :2], corners[:, :2] + corners[:, 2:]], axis=1)
        boxes = np.clip(boxes, 0, np.concatenate([sizes[:, ::-1], sizes[:, ::-1]], axis=1))
        return boxes, (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])


def read_coco(path: str) -> Coco:
    rows = _Rows()
    collecting = gc.isenabled()
    gc.disable()  # it would walk all objects again and again while they are made
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file, object_hook=rows.take)
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path} is not valid json: {one_line(error)[:200]}") from error
    finally:
        if collecting:
            gc.enable()
    return _Reading(path, found, rows).coco()


class _Rows:
    """Takes annotations out of a json while it is parsed, as numbers in arrays."""

    def __init__(self) -> None:
        self.numbers = array("d")
        self.images: list[Any] = []
        self.categories: list[Any] = []
        self.wrong = ""

    def take(self, found: dict[str, Any]) -> Any:
        if "image_id" not in found or "category_id" not in found:
            return None if "counts" in found else found  # the second is a mask, run-length encoded
        try:
            x, y, width, height = found["bbox"]
            area = found.get("area", width * height)
            self.numbers.extend((x, y, width, height, area, bool(found.get("iscrowd", 0))))
        except (KeyError, TypeError, ValueError):
            self._note(found)
            del self.numbers[len(self.images) * COLUMNS :]
            self.numbers.extend([0.0] * COLUMNS)
        self.images.append(found["image_id"])
        self.categories.append(found["category_id"])
        return None

    def _note(self, found: dict[str, Any]) -> None:
        said = f"annotation {len(self.images) + 1} (id {brief(found.get('id'))}) has the bbox"
        self.wrong = self.wrong or f"{said} {brief(found.get('bbox'))}, not [x, y, width, height]"


class _Reading:
    """Checks what a json holds, and puts it in order."""

    def __init__(self, path: str, found: Any, rows: _Rows) -> None:
        self.path, self.rows = path, rows
        if not isinstance(found, Mapping):
            self.refuse("is not a mapping of images, annotations and categories")
        self.images, self.categories = (self._entries(found, name) for name in ("images", "categories"))
        annotations = found.get("annotations", [])
        if not isinstance(annotations, list) or len(annotations) != len(rows.images) or any(annotations):
            self.refuse("has `annotations` that are not all mappings with image_id, category_id and bbox")
        if rows.wrong:
            self.refuse(rows.wrong)

    def refuse(self, why: str) -> NoReturn:
        raise OptionError(f"{self.path}{'' if why.startswith(('is ', 'has ')) else ':'} {why}")

    def _entries(self, found: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
        entries = found.get(name)
        if not isinstance(entries, list) or not entries:
            self.refuse(f"has no {name}")
        for place, entry in enumerate(entries, 1):
            if not isinstance(entry, Mapping) or not isinstance(entry.get("id"), (int, str)):
                self.refuse(f"entry {place} of {name} has no id")
        if len({entry["id"] for entry in entries}) < len(entries):
            self.refuse(f"has an id twice among its {name}")
        return entries

    def coco(self) -> Coco:
        images = self.images
        try:
            categories = sorted(self.categories, key=lambda entry: entry["id"])
        except TypeError:
            self.refuse("has category ids that are partly numbers, partly texts")
        numbers = np.frombuffer(self.rows.numbers, np.float64).reshape(-1, COLUMNS)
        if not np.isfinite(numbers).all():
            self.refuse(
                f"annotation {int(np.argmin(np.isfinite(numbers).all(axis=1))) + 1} has a bbox that is infinite"
            )
        image = self._places([entry["id"] for entry in images], self.rows.images, "image")
        kind = self._places([entry["id"] for entry in categories], self.rows.categories, "category")
        order = np.argsort(image, kind="stable")
        return Coco(
            path=self.path,
            ids=[entry["id"] for entry in images],
            names=[self._name(entry) for entry in images],
            sizes=np.asarray([self._size(entry) for entry in images], np.int64),
            categories=[entry["id"] for entry in categories],
            category_names=[str(entry.get("name", entry["id"])) for entry in categories],
            begins=np.concatenate([[0], np.cumsum(np.bincount(image, minlength=len(images)))]),
            classes=kind[order] + 1,
            corners=numbers[order, :4],
            areas=numbers[order, 4],
            crowd=numbers[order, 5] != 0,
        )

    def _places(self, ids: list[Any], given: list[Any], what: str) -> Array:
        places = {name: place for place, name in enumerate(ids)}
        try:
            return np.fromiter((places[name] for name in given), np.int64, len(given))
        except (KeyError, TypeError):
            wrong = next(
                row for row, name in enumerate(given) if not isinstance(name, (int, str)) or name not in places
            )
            self.refuse(f"annotation {wrong + 1} names the {what} {brief(given[wrong])}, which the file does not have")

    def _name(self, entry: Mapping[str, Any]) -> str:
        name = entry.get("file_name")
        if not isinstance(name, str) or not name:
            self.refuse(f"image {brief(entry['id'])} has no file_name")
        if leaves_folder(name):
            self.refuse(f"image {brief(entry['id'])}: {brief(name)} leads out of image_dir; names are relative to it")
        return name

    def _size(self, entry: Mapping[str, Any]) -> tuple[int, int]:
        height, width = entry.get("height"), entry.get("width")
        if not isinstance(height, int) or not isinstance(width, int) or min(height, width) < 1:
            self.refuse(f"image {brief(entry['id'])} has no height and width in whole pixels")
        return height, width
