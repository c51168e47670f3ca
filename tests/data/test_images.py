"""A folder of images as samples: found, scaled, cut and normalized, and refused where something is not said."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxsparse.data import Field, open_data
from onnxsparse.data.images import as_images
from onnxsparse.errors import MissingExtraError, OptionError
from tests.messages import refusing

Image = pytest.importorskip("PIL.Image")

FIRST = Field("x", "float32", (None, 3, 4, 6))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two pictures of other sizes, one in a folder below; and a text."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    Image.new("RGB", (12, 8), (255, 0, 51)).save(folder / "b.png")
    Image.new("L", (6, 6), 102).save(folder / "more" / "a.PNG")
    (folder / "notes.txt").write_text("no image")
    return folder


def taken(folder: Path, field: Field = FIRST, **said: Any) -> np.ndarray:
    samples = open_data(as_images([str(folder)], **said)[0], [field])
    return next(iter(samples.through(8)))[field.name]


def test_floats_are_normalized_by_channel(photos: Path) -> None:
    found = taken(photos, mean="0.5,0,0.2", std=[0.5, 1, 0.5])
    assert found.shape == (2, 3, 4, 6)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0, :, 0, 0], [1, 0, 0], atol=1e-6)
    np.testing.assert_allclose(found[1, :, 0, 0], [-0.2, 0.4, 0.4], atol=1e-6)


def test_bytes_stay_bytes(photos: Path) -> None:
    found = taken(photos, Field("x", "uint8", (None, 4, 6, 3)))
    assert found.shape == (2, 4, 6, 3)
    assert found[0, 0, 0].tolist() == [255, 0, 51]


def test_gray_images_where_the_model_takes_one_channel(photos: Path) -> None:
    assert taken(photos, Field("x", "uint8", (None, 1, 4, 4)))[1, 0, 0, 0] == 102


def test_an_image_covers_the_size_and_its_middle_is_kept(tmp_path: Path) -> None:
    """Twice as wide as high: a quarter is cut off on either side."""
    image = Image.new("RGB", (8, 4))
    image.paste((200, 0, 0), (2, 0, 6, 4))
    image.save(tmp_path / "wide.png")
    found = taken(tmp_path, Field("x", "uint8", (None, 3, None, None)), resize="4x4")
    assert found.shape == (1, 3, 4, 4)
    assert (found[0, 0] == 200).all()


def test_a_folder_of_arrays_stays_one(photos: Path) -> None:
    np.save(photos / "x.npy", np.zeros((3, 3, 4, 6), np.float32))
    assert taken(photos).shape == (3, 3, 4, 6)


def test_what_is_not_said_or_does_not_fit(photos: Path) -> None:
    free = Field("x", "float32", (None, 3, None, None))
    for field, said in (
        (FIRST, {}), (FIRST, {"mean": "a"}), (FIRST, {"std": 0}), (FIRST, {"mean": [0.5, 0.5]}),
        (FIRST, {"mean": 0, "resize": "4"}), (FIRST, {"mean": 0, "resize": (8, 8)}), (FIRST, {"layout": "CHWN"}),
        (free, {"mean": 0}), (Field("x", "float32", (None, 4)), {"mean": 0}),
        (Field("x", "int64", (None, 3, 4, 6)), {}),
        (Field("x", "float32", (None, 5, 4, 6)), {"mean": 0}), (FIRST, {"mean": "123,116,103", "std": 58}),
        (FIRST, {"mean": 0.5, "std": 58}),
    ):  # fmt: skip
        with refusing(OptionError):
            taken(photos, field, **said)
    with refusing(OptionError):
        open_data(as_images([str(photos)], mean=0)[0], [FIRST, Field("y", "float32", (None, 1))])


def test_an_empty_folder(tmp_path: Path) -> None:
    with refusing(OptionError):
        taken(tmp_path, mean=0)


def test_a_damaged_image(photos: Path) -> None:
    (photos / "b.png").write_bytes(b"\x89PNG and no more")
    with refusing(OptionError):
        taken(photos, mean=0)


def test_without_pillow(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = importlib.import_module

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("PIL"):
            raise ImportError(name)
        return known(name, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    with refusing(MissingExtraError):
        taken(photos, mean=0)
