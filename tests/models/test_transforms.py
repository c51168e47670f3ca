from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.data.transforms import Sample, transforms
from onnxsparse.errors import OptionError

TENSOR = {"type": "to_tensor"}


def one(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": kind, "kwargs": kwargs}


def applied(sample: Sample, *entries: dict[str, Any], seed: int = 0, color_mode: str = "RGB") -> Sample:
    random = np.random.default_rng(seed)
    for transform in transforms([*entries, TENSOR], "transformer", color_mode):
        sample = transform(sample, random)
    return sample


def drawn(height: int, width: int, box: tuple[int, int, int, int]) -> Sample:
    """A white rectangle on black."""
    x1, y1, x2, y2 = box
    image = np.zeros((height, width, 3), np.uint8)
    image[y1:y2, x1:x2] = 255
    return Sample(image, np.asarray([3]), np.asarray([box], np.float32))


BOXED = [
    [one("flip", flip_p=0.5)],
    [one("keep_ar_resize", scales=[30, 41], max_size=70, separate_wh=True)],
    [one("fix_output_resize", scales=[50, 70], max_size=99)],
    [one("crop", means=[0, 0, 0], scale=64, crop_prob=0.5)],
    [one("stitch_expand", expand_ratios=2.0, expand_prob=1.0)],
    [
        one("stitch_expand"),
        one("crop", means=[0.0] * 3),
        one("flip", flip_p=0.5),
        one("fix_output_resize", scales=[64, 64]),
    ],
]


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(BOXED), st.integers(0, 1000))
def test_what_is_drawn_stays_in_its_box(data: st.DataObject, entries: list[dict[str, Any]], seed: int) -> None:
    height, width = data.draw(st.integers(30, 60)), data.draw(st.integers(30, 60))
    x1, y1 = data.draw(st.integers(0, width - 12)), data.draw(st.integers(0, height - 12))
    box = (x1, y1, data.draw(st.integers(x1 + 8, width)), data.draw(st.integers(y1 + 8, height)))
    made = applied(drawn(height, width, box), *entries, seed=seed)
    assert len(made.labels) == len(made.boxes) >= 1
    bright = made.image[0] > 0.5
    inside = np.zeros_like(bright)
    for left, top, right, bottom in made.boxes:
        assert 0 <= left < right <= bright.shape[1]
        assert 0 <= top < bottom <= bright.shape[0]
        filled = slice(round(top), max(round(bottom), 1)), slice(round(left), max(round(right), 1))
        inside[max(round(top) - 1, 0) : round(bottom) + 1, max(round(left) - 1, 0) : round(right) + 1] = True
        assert bright[filled].mean() > 0.7
    if not any(entry["type"] in ("crop", "stitch_expand") for entry in entries):
        assert (~bright | inside).all()  # of what was cut, a part may remain whose centre does not


def test_crowds_go_with_the_image_and_are_cut() -> None:
    sample = Sample(
        np.zeros((40, 80, 3), np.uint8),
        np.asarray([1]),
        np.asarray([[10, 10, 20, 20]], np.float32),
        np.asarray([[0, 0, 80, 40]], np.float32),
    )
    flipped = applied(sample, one("flip", flip_p=1))
    assert flipped.boxes.tolist() == [[60, 10, 70, 20]]
    cut = applied(sample, one("crop", means=[0.0], crop_prob=0.0))
    assert cut.image.shape == (3, 40, 40)
    assert cut.ignored.tolist() == [[0, 0, 40, 40]]


@pytest.mark.parametrize(
    ("size", "options", "wanted"),
    [
        ((480, 640), {"scales": [800], "max_size": 1333}, (800, 1067)),
        ((400, 1200), {"scales": [800], "max_size": 1333}, (444, 1333)),
        ((640, 480), {"scales": [240]}, (320, 240)),
    ],
)
def test_the_ratio_of_the_sides_stays(size: Any, options: Any, wanted: Any) -> None:
    sample = drawn(*size, (0, 0, size[1], size[0]))
    made = applied(sample, one("keep_ar_resize", separate_wh=True, **options))
    assert made.image.shape[1:] == wanted
    assert made.boxes.tolist() == [[0, 0, wanted[1], wanted[0]]]
    assert made.scale == (wanted[0] / size[0], wanted[1] / size[1])


def test_a_box_that_no_crop_holds_is_padded_to_a_square() -> None:
    made = applied(drawn(20, 40, (0, 0, 40, 20)), one("crop", means=[255, 0, 0], crop_prob=1.0))
    assert made.image.shape == (3, 40, 40)
    assert made.image[:, 30, 5].tolist() == [1, 0, 0]
    assert made.boxes.tolist() == [[0, 0, 40, 20]]


def test_classification_of_the_published_kind() -> None:
    sample = Sample(np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8), np.asarray([1]))
    jitter = one("torch_color_jitter", brightness=0.2, contrast=0.2, saturation=0.2, hue=0.1)
    train = [one("torch_random_resized_crop", size=24, scale=[0.08, 1]), one("torch_random_horizontal_flip"), jitter]
    assert applied(sample, *train).image.shape == (3, 24, 24)
    assert np.array_equal(applied(sample, *train).image, applied(sample, *train).image)
    assert not np.array_equal(applied(sample, *train).image, applied(sample, *train, seed=1).image)
    assert applied(sample, one("torch_resize", size=32), one("torch_center_crop", size=28)).image.shape == (3, 28, 28)
    assert applied(sample, one("torch_resize", size=32)).image.shape == (3, 32, 48)
    assert applied(sample, one("torch_center_crop", size=[70, 20])).image.shape == (3, 70, 20)


def test_jitter_moves_colors_only_as_far_as_it_says() -> None:
    grey = Sample(np.full((4, 4, 3), 100, np.uint8), np.asarray([1]))
    levels = [
        applied(grey, one("color_jitter", brightness=32, prob=1.0), seed=seed).image[0, 0, 0] * 255
        for seed in range(40)
    ]
    assert 68 <= min(levels) < 80 < 120 < max(levels) <= 132
    still = applied(grey, one("color_jitter", brightness=32, contrast=[0.5, 1.5], hue=18, prob=0.0)).image
    assert np.allclose(still * 255, 100)
    red = Sample(np.full((1, 1, 3), (255, 0, 0), np.uint8), np.asarray([1]))
    for seed in range(10):
        turned = applied(red, one("color_jitter", hue=18, prob=1.0), seed=seed).image[:, 0, 0] * 255
        assert turned[0] == 255
        assert max(turned[1:]) <= 255 * 18 / 60 + 6


def test_blue_comes_first_where_a_configuration_says_so() -> None:
    red = Sample(np.full((2, 2, 3), (255, 0, 0), np.uint8), np.asarray([1]))
    normalize = transforms([TENSOR, one("normalize", mean=[0.0, 0.0, 0.5], std=[1, 1, 0.5])], "transformer", "BGR")
    for transform in normalize:
        red = transform(red, np.random.default_rng(0))
    assert red.image[:, 0, 0].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([one("flipp", flip_p=0.5)], "did you mean flip"),
        ([one("flip", flip=0.5)], "flip_p"),
        ([one("flip", flip_p=1.5)], "probability"),
        ([TENSOR, one("flip", flip_p=0.5)], "before to_tensor"),
        ([one("normalize", mean=[0], std=[1]), TENSOR], "after to_tensor"),
        ([TENSOR, one("normalize", mean=[0, 0], std=[1])], "1 or 3 numbers"),
        ([TENSOR, one("normalize", mean=[0], std=[0])], "above 0"),
        ([one("flip", flip_p=0.5)], "no to_tensor"),
        ([one("fix_output_resize", scales=[5]), TENSOR], "height, width"),
        ([one("stitch_expand", expand_ratios=3), TENSOR], "at most 2"),
        ([one("torch_resize", size="big"), TENSOR], "size"),
        ([one("torch_color_jitter", hue=0.7), TENSOR], "at most 0.5"),
        ("flip", "a list"),
        ([], "a list"),
    ],
)
def test_what_is_not_known_is_refused(entries: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        transforms(entries, "dataset.train: transformer")
