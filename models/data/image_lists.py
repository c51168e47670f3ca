"""Lists of images for classification, as ImageNet's: a line for each image, `path label`, labels from 0.

A path may hold spaces: the label is what stands behind the last one. Empty lines are passed over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.data.batch import Array
from models.data.image_files import leaves_folder
from onnxsparse.errors import OptionError, brief


@dataclass(frozen=True)
class ImageList:
    """The names of images and the class of each."""

    names: list[str]
    labels: Array

    @property
    def classes(self) -> int:
        """How many classes there are at least."""
        return int(self.labels.max()) + 1


def read_list(path: str) -> ImageList:
    names: list[str] = []
    labels: list[int] = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    name, label = _entry(line, f"{path}, line {number}")
                    names.append(name)
                    labels.append(label)
    except UnicodeDecodeError:
        raise OptionError(f"{path} is not a text in UTF-8") from None
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror}") from error
    if not names:
        raise OptionError(f"{path} names no images; it has a line `path label` for each")
    return ImageList(names, np.asarray(labels, np.int64))


def _entry(line: str, where: str) -> tuple[str, int]:
    name, _, label = line.strip().rpartition(" ") if "\t" not in line else line.strip().rpartition("\t")
    if not name or not (label.isascii() and label.isdigit()) or len(label) > 9:
        raise OptionError(f"{where} is {brief(line.strip())}, not `path label` with a whole number from 0")
    if leaves_folder(name.strip()):
        raise OptionError(f"{where}: {brief(name)} leads out of image_dir; paths in a list are relative to it")
    return name.strip(), int(label)
