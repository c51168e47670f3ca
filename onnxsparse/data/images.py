"""A folder of images as samples of a model's only input: found, scaled, cut and normalized, as they are asked for.

1. Files of the usual kinds, in the folder and in those below, in the order of their paths.
2. An image is scaled until it covers the size, and what is too long on one side is cut off evenly.
3. An input of bytes gets pixels as they are. One of floats gets (pixel / 255 - mean) / std, which only the user knows.
Pillow reads them, of the extra `images`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxsparse.data.field import Field
from onnxsparse.data.sources import Source
from onnxsparse.data.user_functions import told
from onnxsparse.errors import MissingExtraError, OptionError, brief
from onnxsparse.math.values import Array

KINDS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
LAYOUTS = ("NCHW", "NHWC")
UNSAID = (
    "says nothing of what a model of floats is to see of its pixels: pass --mean and --std, such as --mean 0 --std 1 "
    "for numbers from 0 to 1"
)


@dataclass(frozen=True)
class Images:
    """A folder of images, and how they become numbers as far as the user said it."""

    folder: str
    resize: tuple[int, int] | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    layout: str = ""

    def arrays(self, fields: Sequence[Field], samples: int | None) -> dict[str, Array]:
        """The first images, or all of them, in memory."""
        found = self.source(fields)
        return {name: found.column(name)[slice(samples)] for name in found.names}

    def source(self, fields: Sequence[Field]) -> ImageFolder:
        needed = [field for field in fields if not field.optional]
        if len(needed) != 1:
            names = ", ".join(field.name for field in needed)
            raise OptionError(
                f"{self.folder} holds images, but the model has inputs {names}; pass arrays of all of them"
            )
        return ImageFolder(self, needed[0])


def as_images(
    given: Sequence[Any], resize: Any = None, mean: Any = None, std: Any = None, layout: str | None = None
) -> list[Any]:
    """Data as it was given; folders of images with what was said of them."""
    folders = [isinstance(one, (str, os.PathLike)) and _holds_images(os.fspath(one)) for one in given]
    said = {"--resize": resize, "--mean": mean, "--std": std, "--layout": layout}
    flag = next((flag for flag, value in said.items() if value is not None), None)
    if flag is not None and not any(folders):
        empty = next((one for one in given if isinstance(one, (str, os.PathLike)) and _is_empty(os.fspath(one))), None)
        why = "which the data is not" if empty is None else f"and {os.fspath(empty)} holds none"
        raise OptionError(f"{flag} is for a folder of images, {why}")
    if layout is not None and layout not in LAYOUTS:
        raise OptionError(f"--layout is one of {', '.join(LAYOUTS)}, not {brief(layout)}")
    scale = _numbers(std, "--std")
    if any(one <= 0 for one in scale):
        raise OptionError(f"--std is what pixels are divided by, so above 0, not {brief(std)}")
    middle = _numbers(mean, "--mean")
    for option, numbers in (("--mean", middle), ("--std", scale)):
        if any(abs(one) > 1 for one in numbers):
            raise OptionError(
                f"{option} is of pixels between 0 and 1, and {max(numbers, key=abs):g} looks like one of pixels up to "
                "255: divide --mean and --std by 255"
            )
    form = _size(resize), middle, scale, layout or ""
    return [Images(os.fspath(one), *form) if found else one for one, found in zip(given, folders)]


def _holds_images(path: str) -> bool:
    """Whether it is a folder of images, and not of arrays."""
    if not os.path.isdir(path) or any(file.endswith((".npz", ".npy")) for file in os.listdir(path)):
        return False
    return bool(next(images_in(path), ""))


def _is_empty(path: str) -> bool:
    """Whether it is a folder without arrays, and so without images where it holds none."""
    return os.path.isdir(path) and not any(file.endswith((".npz", ".npy")) for file in os.listdir(path))


def images_in(folder: str) -> Iterator[str]:
    """The paths of all images in a folder and below, in their order."""
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file in sorted(files):
            if file.lower().endswith(KINDS) and not file.startswith("."):
                yield os.path.join(path, file)


def _size(given: Any) -> tuple[int, int] | None:
    if given is None:
        return None
    parts = given.lower().split("x") if isinstance(given, str) else given
    try:
        height, width = (int(part) for part in parts)
    except (TypeError, ValueError):
        height = width = 0
    if not (0 < height < 1 << 16 and 0 < width < 1 << 16):
        raise OptionError(f"--resize is HxW, such as 224x224, not {brief(given)}")
    return height, width


def _numbers(given: Any, option: str) -> tuple[float, ...]:
    if given is None:
        return ()
    parts = given.split(",") if isinstance(given, str) else [given] if isinstance(given, (int, float)) else given
    try:
        found = tuple(float(part) for part in parts)
    except (TypeError, ValueError):
        found = ()
    if not found or not np.isfinite(found).all():
        raise OptionError(f"{option} is a number, or one for each channel with commas between them, not {brief(given)}")
    return found


class ImageFolder(Source):
    """The images of a folder as the array of one input."""

    def __init__(self, images: Images, field: Field) -> None:
        super().__init__(images.folder)
        self._field, self._images = field, images

    @property
    def names(self) -> Sequence[str]:
        return [self._field.name]

    def column(self, name: str) -> Pixels:
        return Pixels(self._images, self._field)


class Pixels:
    """Images as an array with the samples first; each is read when it is asked for."""

    def __init__(self, images: Images, field: Field) -> None:
        self._reader = _pillow()
        self._paths, self._images = list(images_in(images.folder)), images
        self._layout, channels, size = _form(images, field)
        if field.dtype not in ("uint8", "float32", "float16", "float64"):
            raise OptionError(f"the input '{field.name}' takes {field.dtype}, which images are not; pass arrays")
        self._floats, self._channels = field.dtype != "uint8", channels
        if self._floats and not (images.mean or images.std):
            raise OptionError(f"{images.folder} {UNSAID}")
        self._size = size or self._of_first()
        sizes = (channels, *self._size) if self._layout == "NCHW" else (*self._size, channels)
        self.shape, self.dtype = (len(self._paths), *sizes), np.dtype(np.float32 if self._floats else np.uint8)
        self._mean, self._std = (
            self._each(one, option) for one, option in ((images.mean, "mean"), (images.std, "std"))
        )

    def __getitem__(self, rows: Any) -> Array:
        wanted = np.arange(len(self._paths))[slice(None) if rows is Ellipsis else rows]
        out = np.empty((len(wanted), *self.shape[1:]), self.dtype)
        for place, row in enumerate(wanted):
            out[place] = self._read(self._paths[int(row)])
        return out

    def _read(self, path: str) -> Array:
        try:
            with self._reader.open(path) as image:
                pixels = np.asarray(self._fitted(image.convert("L" if self._channels == 1 else "RGB")))
        except Exception as error:  # Pillow raises what it likes for a damaged file
            raise OptionError(f"{path} cannot be read as an image: {told(error)}") from error
        pixels = pixels.reshape(*self._size, self._channels)
        if self._floats:
            pixels = ((pixels / np.float32(255) - self._mean) / self._std).astype(np.float32)
        return pixels.transpose(2, 0, 1) if self._layout == "NCHW" else pixels

    def _fitted(self, image: Any) -> Any:
        """Scaled until it covers the size, and cut in its middle."""
        height, width = self._size
        scale = max(height / image.height, width / image.width)
        sizes = max(width, round(image.width * scale)), max(height, round(image.height * scale))
        if (image.width, image.height) != sizes:
            image = image.resize(sizes, self._reader.Resampling.BILINEAR)
        left, top = (sizes[0] - width) // 2, (sizes[1] - height) // 2
        return image.crop((left, top, left + width, top + height))

    def _of_first(self) -> tuple[int, int]:
        """Where neither the model nor the user says a size, images have to be of one already."""
        sizes = set()
        for path in self._paths:
            with self._reader.open(path) as image:
                sizes.add((image.height, image.width))
            if len(sizes) > 1:
                raise OptionError(f"the images of {self._images.folder} have different sizes; pass --resize HxW")
        return next(iter(sizes))

    def _each(self, numbers: tuple[float, ...], option: str) -> Array:
        found = numbers or ((0.0,) if option == "mean" else (1.0,))
        if len(found) not in (1, self._channels):
            raise OptionError(f"--{option} has {len(found)} numbers, and the model takes {self._channels} channels")
        return np.asarray(found, np.float32)


def _form(images: Images, field: Field) -> tuple[str, int, tuple[int, int] | None]:
    """The layout, the channels, and the size where anybody says one."""
    shape = field.shape
    if shape is None or len(shape) != 4:
        shown = "of unknown shape" if shape is None else f"{list(shape)}"
        raise OptionError(f"the input '{field.name}' is {shown}, and no image with channels; pass arrays")
    last = shape[3] in (1, 3) and shape[1] not in (1, 3)
    layout = images.layout or ("NHWC" if last else "NCHW")
    channels, height, width = (shape[1], *shape[2:]) if layout == "NCHW" else (shape[3], *shape[1:3])
    if channels not in (1, 3, None):
        raise OptionError(f"the input '{field.name}' has {channels} channels as {layout}; images have 1 or 3")
    declared = (height, width) if height and width else None
    if images.resize and declared and images.resize != declared:
        raise OptionError(
            f"images are to be {images.resize[0]}x{images.resize[1]} (--resize), but the model takes {height}x{width}"
        )
    return layout, channels or 3, images.resize or declared


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise MissingExtraError("a folder of images needs Pillow: pip install 'onnxsparse[images]'") from None
