"""Detection scenes made from the images of a package, for where there are no photographs: labels and boxes are exact.

    notes = make_scenes(configuration["dataset"], source="/usr/share/datasets/fashion-mnist")

1. A scene has a random grey level with noise and one to four items, of .19 to .46 of its side, later ones in front.
   Each stays at least half visible; its box is the tight one of the whole item.
2. Items come from Fashion-MNIST's four idx files in a folder (plain or .gz), or from the digits of scikit-learn; those
   of the test scenes are none of the training scenes'.
3. For a dataset of type `cls` each image is one item that fills it.
4. Files go where `dataset:` says. What is there is left as it is. A folder of images gets its name when it is whole,
   and holds its annotations, too: a run that was killed before it wrote them beside is completed by the next.
5. Same source, counts, size and seed, same files.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.data.batch import Array
from models.data.dataset_section import PARTS, Where, data_of
from models.data.image_files import pillow
from onnxsparse.errors import MissingExtraError, OptionError, OutputError, brief
from onnxsparse.files import write_text

DIGITS = "digits"
COUNTS = (10_000, 500)
SIZES = {"coco": 96, "cls": 32}
SMALLEST, LARGEST = 18 / 96, 44 / 96
"""Sides of an item by the side of the scene."""
VISIBLE = 0.5
KEPT = ".annotations"
FASHION = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
IDX = {"train": "train", "test": "t10k"}


@dataclass(frozen=True)
class Items:
    """Small grey images with a class each, bright on black."""

    images: Array
    labels: Array
    names: Sequence[str]


def make_scenes(
    section: Mapping[str, Any],
    source: str = DIGITS,
    counts: tuple[int, int] = COUNTS,
    size: int | None = None,
    seed: int = 0,
) -> list[str]:
    """Write what the parts of a `dataset:` section ask for and is not there; say what was made."""
    if min(counts) < 1:
        raise OptionError(f"the number of scenes is at least 1, for training and for the test, not {brief(counts)}")
    wheres = {part: data_of(section, part) for part in PARTS}
    _demand_apart(wheres)
    notes = []
    for place, (part, where) in enumerate(wheres.items()):
        side = size or SIZES[where.kind]
        if side < 16:
            raise OptionError(f"scenes are at least 16 pixels wide, not {side}")
        notes.append(_made(part, where, source, counts[place], side, [seed, place]))
    return notes


def _demand_apart(wheres: Mapping[str, Where]) -> None:
    for name, paths in (
        ("image_dir", [os.path.realpath(where.files.folder) for where in wheres.values()]),
        ("meta_file", [os.path.realpath(where.meta_file) for where in wheres.values()]),
    ):
        if len(set(paths)) < len(paths):
            raise OptionError(f"dataset: train and test have one {name}, {paths[0]}; scenes need one for each")


def _made(part: str, where: Where, source: str, count: int, size: int, seed: Sequence[int]) -> str:
    folder, meta = where.files.folder, where.meta_file
    if os.path.exists(meta):
        if os.path.isdir(folder):
            return f"{part}: {meta} and {folder} are there and stay as they are"
        raise OutputError(f"{meta} is there, but its images {folder} are not; move it away to have scenes made")
    kept = os.path.join(folder, KEPT)
    occupied = os.path.lexists(folder) and (not os.path.isdir(folder) or bool(os.listdir(folder)))
    if os.path.isfile(kept):  # asked after: another run may have finished in between
        _write(meta, Path(kept).read_text(encoding="utf-8"))
        return f"{part}: wrote {meta} for the scenes in {folder}"
    if occupied:
        raise OutputError(f"{folder} is there, but {meta} is not; move it away to have scenes made")
    items = read_items(source, part)
    with _folder(folder) as unfinished:
        draw = _draw_scenes if where.kind == "coco" else _draw_items
        text = draw(items, unfinished, count, size, np.random.default_rng(seed))
        Path(unfinished, KEPT).write_text(text, encoding="utf-8")
    found = Path(kept).read_text(encoding="utf-8")
    _write(meta, found)
    if found != text:
        return f"{part}: took the scenes that another run made in {folder} meanwhile"
    what = "scenes with exact boxes" if where.kind == "coco" else "images"
    return f"{part}: made {count:,} {what} of {size}x{size} from {source} in {folder}, and {meta}"


def _write(path: str, text: str) -> None:
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error
    try:
        write_text(path, text, overwrite=False)
    except OutputError:
        if not os.path.isfile(path) or Path(path).read_text(encoding="utf-8") != text:
            raise  # what another run has written of the same scenes is as good


@contextmanager
def _folder(folder: str) -> Iterator[str]:
    """A folder beside, which gets its name at the end; of a run that was killed nothing stays for good.

    Where another run has made the same meanwhile, that one stays.
    """
    above, name = os.path.split(os.path.abspath(folder))
    mark = f".{name}-scenes-"
    unfinished = os.path.join(above, f"{mark}{os.getpid()}")
    try:
        os.makedirs(above, exist_ok=True)
        for left in os.listdir(above):
            if left.startswith(mark) and not _alive(left[len(mark) :]):
                shutil.rmtree(os.path.join(above, left))
        os.mkdir(unfinished)
        yield unfinished
        try:
            os.rename(unfinished, folder)
        except OSError:
            if not os.path.isfile(os.path.join(folder, KEPT)):
                raise
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _alive(process: str) -> bool:
    if not process.isdigit() or int(process) == os.getpid():
        return False
    with suppress(ProcessLookupError, OverflowError):
        with suppress(PermissionError):
            os.kill(int(process), 0)
        return True
    return False


# -- where items come from


def read_items(source: str, part: str) -> Items:
    """The items for the scenes of a part."""
    if source == DIGITS:
        return _digits(part)
    if not os.path.isdir(source):
        raise OptionError(f"--scenes takes a folder of Fashion-MNIST's idx files, or {DIGITS}, not {brief(source)}")
    images, labels = (
        _idx(os.path.join(source, f"{IDX[part]}-{name}-ubyte")) for name in ("images-idx3", "labels-idx1")
    )
    if images.ndim != 3 or labels.shape != images.shape[:1] or not len(labels) or labels.max() >= len(FASHION):
        raise OptionError(f"{source} has images {images.shape} and labels {labels.shape}, not those of Fashion-MNIST")
    return Items(images, labels.astype(np.int64), FASHION)


def _digits(part: str) -> Items:
    try:
        from models.digits import held_out_half, training_half

        images, labels = training_half() if part == "train" else held_out_half()
    except ImportError:
        raise MissingExtraError("scenes of digits need scikit-learn: pip install scikit-learn") from None
    return Items((images[:, 0] * 255).astype(np.uint8), labels, [str(digit) for digit in range(10)])


def _idx(path: str) -> Array:
    """The array of bytes in a file of that format: two zeros, the type, the number of axes, their sizes, the bytes."""
    found = next((name for name in (path, f"{path}.gz") if os.path.isfile(name)), None)
    if found is None:
        raise OptionError(f"there is no {path} and no {os.path.basename(path)}.gz")
    try:
        with (gzip.open if found.endswith(".gz") else open)(found, "rb") as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise OptionError(f"cannot read {found}: {error}") from error
    axes = data[3] if data[:3] == b"\0\0\x08" and len(data) > 3 else 0
    shape = [int.from_bytes(data[4 * one + 4 : 4 * one + 8], "big") for one in range(axes)]
    if not axes or len(data) != 4 + 4 * axes + int(np.prod(shape)):
        raise OptionError(f"{found} is not a file of idx with bytes, or not whole")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


# -- scenes


def _draw_scenes(items: Items, folder: str, count: int, size: int, random: np.random.Generator) -> str:
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        scene, found = _scene(items, size, random)
        name = f"{number:06d}.png"
        _save(scene, os.path.join(folder, name))
        images.append({"id": number, "file_name": name, "height": size, "width": size})
        for label, (x, y, width, height) in found:
            entry = {"id": len(annotations) + 1, "image_id": number, "category_id": label + 1, "iscrowd": 0}
            annotations.append({**entry, "bbox": [x, y, width, height], "area": width * height})
    categories = [{"id": place, "name": name} for place, name in enumerate(items.names, 1)]
    return json.dumps({"images": images, "annotations": annotations, "categories": categories})


def _draw_items(items: Items, folder: str, count: int, size: int, random: np.random.Generator) -> str:
    lines = []
    for number in range(1, count + 1):
        item = int(random.integers(len(items.labels)))
        name = f"{number:06d}.png"
        _save(_resized(items.images[item], size), os.path.join(folder, name))
        lines.append(f"{name} {items.labels[item]}\n")
    return "".join(lines)


def _save(pixels: Array, path: str) -> None:
    pillow().fromarray(pixels).save(path, compress_level=1)


def _resized(item: Array, side: int) -> Array:
    library = pillow()
    return np.asarray(library.fromarray(np.ascontiguousarray(item)).resize((side, side), library.Resampling.BILINEAR))


Placed = tuple[int, tuple[int, int, int, int]]


def _scene(items: Items, size: int, random: np.random.Generator) -> tuple[Array, list[Placed]]:
    """An image, and the class and box x, y, width, height of each of its items."""
    scene = random.integers(0, 256) + random.normal(0, random.uniform(2, 20), (size, size))
    front = np.zeros((size, size), np.int8)
    wholes: list[int] = []
    placed: list[Placed] = []
    for _ in range(int(random.integers(1, 5))):
        found = _place(items, front, wholes, random)
        if found is None:
            continue
        label, left, top, item, mask = found
        window = slice(top, top + item.shape[0]), slice(left, left + item.shape[1])
        scene[window] = np.where(mask, item, scene[window])
        wholes.append(int(mask.sum()))
        front[window] = np.where(mask, len(wholes), front[window])
        placed.append((label, (left, top, item.shape[1], item.shape[0])))
    return np.clip(np.rint(scene), 0, 255).astype(np.uint8), placed


def _place(
    items: Items, front: Array, wholes: Sequence[int], random: np.random.Generator
) -> tuple[int, int, int, Array, Array] | None:
    """An item with its place, such that those behind it stay visible; None where ten places do not do."""
    size = len(front)
    chosen = int(random.integers(len(items.labels)))
    side = int(random.integers(round(SMALLEST * size), round(LARGEST * size) + 1))
    item = _resized(items.images[chosen], side)
    rows, columns = (np.flatnonzero((item > BLACK).any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        return None
    item = item[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    mask = item > BLACK
    for _ in range(10):
        top, left = (int(random.integers(size - one + 1)) for one in item.shape)
        hidden = front.copy()
        hidden[top : top + item.shape[0], left : left + item.shape[1]][mask] = 0
        seen = np.bincount(hidden.ravel(), minlength=len(wholes) + 1)[1:]
        if all(one >= VISIBLE * whole for one, whole in zip(seen, wholes)):
            return int(items.labels[chosen]), left, top, item, mask
    return None


BLACK = 12  # what is darker belongs to the background of an item
