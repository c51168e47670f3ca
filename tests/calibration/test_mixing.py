"""Samples mixed from samples: blends and splices, alike in all inputs, and the same for the same seed and step."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onnxsparse.calibration.mixing import LEAST, mixed

COUNT, SIZE = 6, 5


def numbered(*shape: int) -> np.ndarray:
    """Samples of which each holds its own number everywhere."""
    rows = np.arange(COUNT, dtype=np.float32).reshape(-1, *(1,) * len(shape))
    return np.broadcast_to(rows, (COUNT, *shape)).copy()


@given(st.integers(0, 2**31), st.integers(0, 500))
def test_a_blend_lies_between_two_samples(seed: int, step: int) -> None:
    made = mixed({"x": numbered(3, 4)}, ["x"], COUNT, SIZE, seed, 2 * step)["x"]
    assert made.shape == (SIZE, 3, 4)
    assert made.dtype == np.float32
    assert ((made >= 0) & (made <= (COUNT - 1) * (1 + 1e-6))).all()
    assert np.allclose(made, made[:, :1, :1])


@given(st.integers(0, 2**31), st.integers(0, 500))
def test_a_splice_is_a_box_of_one_sample_in_another(seed: int, step: int) -> None:
    made = mixed({"x": numbered(3, 9, 12)}, ["x"], COUNT, SIZE, seed, 2 * step + 1)["x"]
    for sample in made:
        assert (sample == sample[:1]).all()  # an axis as short as channels is never cut
        values, counts = np.unique(sample[0], return_counts=True)
        assert len(values) <= 2
        parts = [sample[0] == value for value in values]
        boxes = [np.ptp(np.argwhere(part), axis=0) + 1 for part in parts]
        assert any(np.prod(box) == count for box, count in zip(boxes, counts))


@given(st.integers(0, 2**31), st.integers(0, 500))
def test_a_mask_is_cut_where_its_words_are(seed: int, step: int) -> None:
    words = numbered(10).astype(np.int64)
    arrays = {"ids": words, "mask": words, "wide": words.reshape(COUNT, 1, 1, 10), "shared": np.arange(3)}
    made = mixed(arrays, ["ids", "mask", "wide"], COUNT, SIZE, seed, step)
    assert (made["ids"] == made["mask"]).all()
    assert (made["ids"] == made["wide"].reshape(SIZE, 10)).all()
    assert made["ids"].dtype == np.int64
    assert made["shared"] is arrays["shared"]


def test_what_comes_follows_from_the_seed_and_the_step() -> None:
    arrays = {"x": np.random.default_rng(0).standard_normal((COUNT, 1, LEAST, LEAST)).astype(np.float32)}
    before = arrays["x"].copy()
    batches = [mixed(arrays, ["x"], COUNT, SIZE, seed, step)["x"] for seed in (0, 1) for step in (0, 1, 2)]
    again = [mixed(arrays, ["x"], COUNT, SIZE, seed, step)["x"] for seed in (0, 1) for step in (0, 1, 2)]
    assert all((one == other).all() for one, other in zip(batches, again))
    assert all((one != other).any() for at, one in enumerate(batches) for other in batches[:at])
    assert (arrays["x"] == before).all()
