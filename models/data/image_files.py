"""Reading image files with Pillow, as pixels of RGB.

1. A name in a list or a json stays inside `image_dir`: an absolute one, or one that leaves it by `..`, is refused.
   Links in the folder are followed, as large datasets are often folders of links.
2. An image is read as it is stored. Where the annotations give its size, and only the image turned as its EXIF data
   says has that size, it is turned; `fs_opencv` turns images of unknown size, too, as OpenCV does.
3. Of 16 bits the upper 8 are taken, as OpenCV does. Transparency is left out.
4. Nothing here writes; the first image that cannot be read ends the run with its name.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.data.batch import Array
from onnxsparse.errors import MissingExtraError, OptionError, one_line

READERS = ("fs_opencv", "fs_pillow")
MODES = ("RGB", "BGR")


@dataclass(frozen=True)
class ImageFiles:
    """A folder of images; `color_mode` is the order of the channels that a network is given."""

    folder: str
    color_mode: str = "RGB"
    turn: bool = False

    def read(self, name: str, size: tuple[int, int] | None = None) -> Array:
        """The pixels (H, W, 3) as bytes; an error where they are not of the height and width that are given."""
        path = os.path.join(self.folder, name)
        try:
            with pillow().open(path) as image:
                pixels = self._pixels(image, size)
        except FileNotFoundError:
            raise OptionError(f"there is no image {path}; what is in the list has to be in image_dir") from None
        except Exception as error:  # Pillow raises what it likes for a damaged file
            raise OptionError(f"{path} cannot be read as an image: {one_line(error)[:200]}") from error
        if size is not None and pixels.shape[:2] != size:
            found = f"{pixels.shape[0]}x{pixels.shape[1]}"
            raise OptionError(f"{path} is {found}, and the annotations say {size[0]}x{size[1]} (height x width)")
        return pixels

    def _pixels(self, image: Any, size: tuple[int, int] | None) -> Array:
        stored, deep = (image.height, image.width), image.mode.startswith("I;16") or image.format == "PNG"
        if stored != size and (self.turn or size is not None):
            image = importlib.import_module("PIL.ImageOps").exif_transpose(image)
        if image.mode[0] in "IF":  # more than 8 bits, which `convert` would cut off at 255
            if not deep:
                raise ValueError(f"grey of 32 bits ({image.mode}) has no white; store it as 8 or 16 bits")
            image = pillow().fromarray((np.asarray(image) >> 8).astype(np.uint8))
        return np.asarray(image.convert("RGB"))


def pillow() -> Any:
    """The module PIL.Image."""
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise MissingExtraError("images need Pillow: pip install 'onnxsparse[detection]'") from None


def leaves_folder(name: str) -> bool:
    """Whether a name would lead out of the folder it belongs in, or is none at all."""
    parts = name.replace("\\", "/")
    if not name or "\0" in name or parts.startswith("/") or os.path.isabs(name) or os.path.splitdrive(name)[0]:
        return True
    return ".." in parts and os.path.normpath(parts).split("/")[0] == ".."


def demand_folder(folder: str, where: str) -> None:
    if not os.path.isdir(folder):
        raise OptionError(f"{where}: {_no(folder)} folder {folder:.200}; {WHAT_TO_DO}")


def demand_file(path: str, where: str) -> None:
    if not os.path.isfile(path):
        raise OptionError(f"{where}: {_no(path)} file {path:.200}; {WHAT_TO_DO}")


def _no(path: str) -> str:
    return "this is no" if os.path.exists(path) else "there is no"


WHAT_TO_DO = (
    "put the data there (paths are relative to the working directory), or pass --scenes to have detection scenes made"
)
