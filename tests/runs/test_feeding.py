"""Batches, the probe, and what is said of epochs that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsparse.data import Field, open_data
from onnxsparse.errors import OptionError
from onnxsparse.train.batches import Feeding
from tests.messages import refusing

X, SHARED, SCALAR = Field("x", "float32", (None, 2)), Field("shared", "float32", (3,)), Field("one", "float32", ())


def arrays(count: int) -> dict[str, np.ndarray]:
    return {"x": np.arange(2 * count, dtype=np.float32).reshape(count, 2)}


def feeding(count: int = 100, batch: int = 8, asked: int | None = None, data=None, fields=(X,)) -> Feeding:
    return Feeding(open_data(arrays(count) if data is None else data, fields), batch, 0, asked)


def rows_of(batch) -> list[int]:
    return (batch.arrays["x"][:, 0] / 2).astype(int).tolist()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 32))
def test_samples_that_measure_do_not_train(count: int, batch: int) -> None:
    made = feeding(count, batch)
    measured = {row for one in made.probe() for row in rows_of(one)}
    trained = {row for step in range(2 * made.per_epoch) for row in rows_of(made.batch(step))}
    assert not measured & trained or count == 1
    assert len(measured) >= min(32, count // 2)
    assert all(len(rows_of(one)) == batch for one in made.probe())
    assert sorted({row for one in made.everything() for row in one.rows}) == list(range(count))
    assert all(np.array_equal(one.rows, rows_of(one)) for one in (*made.everything(), made.batch(3)))


def test_batches_are_those_of_their_step() -> None:
    one, other = feeding(), feeding()
    found = [rows_of(one.batch(step)) for step in range(30)]
    assert [rows_of(other.batch(step)) for step in reversed(range(30))] == found[::-1]


@pytest.mark.parametrize(("asked", "said"), [(None, ""), (8, ""), (9, "more than once"), (4, "is 0.5 of one")])
def test_epochs_that_do_not_fit_the_data_are_said(asked: int | None, said: str) -> None:
    made = feeding(100, 8, asked)  # 32 of the 100 samples measure
    assert made.per_epoch == asked or (asked is None and made.per_epoch == 8)
    assert all(said and said in note for note in made.notes)
    assert len(made.notes) == bool(said)


def loader(*sizes: int, shared: bool = False):
    def yielded():
        start = 0
        for size in sizes:
            found = {"x": np.arange(2 * start, 2 * (start + size), dtype=np.float32).reshape(size, 2)}
            more = {"shared": np.ones(3, np.float32), "one": np.float32(2)} if shared else {}
            yield {**found, **more}
            start += size

    return yielded


@pytest.mark.parametrize(("asked", "said"), [(10, 0), (11, 0), (9, 1), (12, 1), (None, 0)])
def test_epochs_that_do_not_fit_a_function_are_said_when_its_first_pass_is_over(asked: int | None, said: int) -> None:
    made = feeding(data=loader(256, 50, 34), asked=asked)  # the first 256 measure, 84 are left: 10 and a half batches
    for step in range(10):
        made.batch(step)
    assert not made.notes
    for step in range(10, 40):
        made.batch(step)
    assert len(made.notes) == said
    assert all("do not fit the data" in note for note in made.notes)


def test_what_all_samples_share_is_never_cut() -> None:
    made = feeding(batch=3, data=loader(5, 300, shared=True), fields=(X, SHARED, SCALAR))
    for batch in (*made.probe(), made.batch(0), made.batch(20)):
        assert batch.arrays["shared"].tolist() == [1, 1, 1]
        assert batch.arrays["one"] == 2
        assert batch.arrays["x"].shape == (3, 2)
    first = made.first(10)
    assert first["shared"].shape == (3,)
    assert first["x"].shape == (12, 2)


def test_batches_larger_than_the_data_are_refused_and_few_samples_are_said() -> None:
    with refusing(OptionError):
        feeding(100, 69)
    assert feeding(100, 68).per_epoch == 1
    assert any("only 40 samples along the first axis, of which 20 measure" in note for note in feeding(40, 8).notes)
