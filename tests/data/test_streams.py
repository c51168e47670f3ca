"""Functions that yield training data: batches of one size, pass after pass, and from any batch on."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsparse.data import LABELS, Field, Samples, Stream, check_labels, open_data
from onnxsparse.errors import OptionError, Stopped
from tests.cases import for_each
from tests.messages import refusing

X = Field("x", "float32", (None, 1))
Y = Field("y", "int64", (None,))


def pieces(*sizes: int):
    """A function that yields numbered samples in pieces of these sizes."""

    def loader():
        start = 0
        for size in sizes:
            rows = np.arange(start, start + size)
            start += size
            yield {"x": rows[:, None].astype(np.float32), "labels": rows % 3}

    return loader


def stream_of(function, fields=(X,), **options) -> Stream:
    found = open_data(function, fields, **options)
    assert isinstance(found, Stream)
    return found


def refused(function, fields=(X,), **options) -> str:
    with pytest.raises(OptionError) as caught:
        stream_of(function, fields, **options).batch(3, 4)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def numbers(batch) -> list[int]:
    return [int(value) for value in batch["x"].ravel()]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.integers(1, 12), st.lists(st.integers(0, 9), max_size=6))
def test_batches_are_what_is_yielded_in_order(sizes: list[int], rows: int, steps: list[int]) -> None:
    stream, total = stream_of(pieces(*sizes)), sum(sizes)
    for step in [0, *steps]:
        batch = stream.batch(step, rows)
        assert numbers(batch) == [number % total for number in range(step * rows, (step + 1) * rows)]
        assert batch[LABELS].tolist() == [number % 3 for number in numbers(batch)]
        assert batch["x"].shape == (rows, 1)
        assert batch["x"].flags.c_contiguous


def test_the_function_is_called_once_for_each_pass() -> None:
    calls = []

    def loader():
        calls.append(1)
        return pieces(4, 4)()

    stream = stream_of(loader)
    for step in range(4):
        stream.batch(step, 4)
    assert (len(calls), stream.passes) == (2, 2)


def test_resuming_gives_what_would_have_come() -> None:
    through = stream_of(pieces(5, 3, 6))
    late = [numbers(through.batch(step, 4)) for step in range(8)][5:]
    resumed = stream_of(pieces(5, 3, 6))
    assert [numbers(resumed.batch(step, 4)) for step in range(5, 8)] == late
    assert resumed.fingerprint == through.fingerprint
    assert resumed.fingerprint != stream_of(pieces(4, 4, 6)).fingerprint


def test_a_probe_is_kept_from_training() -> None:
    stream = stream_of(pieces(3, 4, 5))
    assert numbers(stream.probe(5)) == [0, 1, 2, 3, 4]
    assert [numbers(stream.batch(step, 4)) for step in range(3)] == [[5, 6, 7, 8], [9, 10, 11, 5], [6, 7, 8, 9]]
    assert not stream.notes


@pytest.mark.parametrize("count", [7, 8, 100])
def test_a_probe_of_everything_is_trained_on(count: int) -> None:
    stream = stream_of(pieces(3, 4))
    assert numbers(stream.probe(count)) == list(range(7))
    assert numbers(stream.batch(0, 3)) == [0, 1, 2]
    assert "too few samples" in stream.notes[-1]


@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.integers(1, 12))
def test_one_pass_from_end_to_end(sizes: list[int], rows: int) -> None:
    stream, total = stream_of(pieces(*sizes)), sum(sizes)
    stream.probe(2)
    stream.batch(0, 3)
    found = [numbers(batch) for batch in stream.through(rows)]
    assert found == [list(range(start, min(start + rows, total))) for start in range(0, total, rows)]
    whole = open_data({"x": np.arange(total, dtype=np.float32)[:, None]}, (X,))
    assert [numbers(batch) for batch in whole.through(rows)] == found


def test_a_loader_as_it_is() -> None:
    rows = np.arange(6, dtype=np.float32)[:, None]
    stream = stream_of([(rows[:4], np.arange(4)), (rows[4:], np.arange(2))])
    assert numbers(stream.batch(1, 5)) == [5, 0, 1, 2, 3]
    used_up = stream_of(pieces(4, 4)())
    with refusing(OptionError):
        used_up.batch(2, 4)
    with refusing(OptionError):
        used_up.probe(2)


def test_other_forms_of_what_is_yielded() -> None:
    rows = np.arange(6, dtype=np.float32)[:, None]
    kinds = np.arange(6)
    for made in (
        [(rows, kinds)],
        iter([[rows, kinds]]),
        [{"x": rows, "labels": kinds, "more": "text"}],
    ):
        stream = stream_of(lambda made=made: made)
        assert numbers(stream.batch(0, 6)) == list(range(6))
        assert stream.has_labels
    assert numbers(stream_of(lambda: [rows]).batch(0, 2)) == [0, 1]
    assert not stream_of(lambda: [rows]).has_labels


@pytest.mark.parametrize("made", [{"x": np.ones((3, 1), np.float32)}, (np.ones((3, 1), np.float32), np.arange(3))])
def test_what_is_returned_whole_can_be_asked_for_any_sample(made) -> None:
    found = open_data(lambda: made, (X,))
    assert isinstance(found, Samples)
    assert found.count == 3


def test_shared_arrays_of_a_stream() -> None:
    table = Field("table", "float32", (2, 2))

    def loader():
        for size in (3, 2, 4):
            yield {"x": np.zeros((size, 1), np.float32), "table": np.eye(2, dtype=np.float32)}

    stream = stream_of(loader, (X, table))
    assert stream.shared == ("table",)
    for step in range(3):
        assert stream.batch(step, 4)["table"].shape == (2, 2)


def failing():
    yield {"x": np.zeros((2, 1), np.float32)}
    raise KeyError("no such column\nreally")


def leaving():
    sys.exit(3)


@for_each(
    ("function", "words"),
    [
        (failing, "failing failed: KeyError"),
        (leaving, "leaving failed: SystemExit: 3"),
        (lambda: 3, "gives int"),
        (lambda: None, "gives NoneType"),
        (list, "yields no samples"),
        (lambda: [3], "gives int"),
        (lambda: [(1, 2, 3)], "gives tuple of 3"),
        (lambda: ["text"], "gives str"),
        (lambda: [{"z": 1}], "no array 'x'"),
        (lambda: [{"x": np.zeros((0, 1), np.float32)}], "no samples"),
        (lambda: [{"x": np.full((2, 1), np.nan, np.float32)}], "NaN"),
        (lambda: [{"x": np.zeros((2, 2), np.float32)}], "shape [2, 2]"),
        (lambda: [{"x": np.zeros((2, 1), np.uint8)}], "255"),
        (lambda argument: [], "failed: TypeError"),
        (pieces, "gives function"),
    ],
)
def test_functions_that_fail(function, words: str) -> None:
    assert words in refused(function)


def test_the_place_of_a_failure_is_named() -> None:
    assert "(test_streams.py, line " in refused(failing)


def test_a_generator_that_is_used_up() -> None:
    made = pieces(4, 4)()
    assert "every call has to begin anew" in refused(lambda: made)


def test_samples_of_different_shapes() -> None:
    field = Field("x", "float32", (None, None))
    message = refused(lambda: [{"x": np.zeros((3, n), np.float32)} for n in (5, 6)], (field,))
    assert "[5] and of [6]" in message


def test_labels_are_checked_as_they_come() -> None:
    stream = stream_of(pieces(4, 4), want_labels=True)
    check_labels(stream, 3)
    stream.batch(5, 4)
    check_labels(stream, 2)
    with refusing(OptionError):
        stream.batch(0, 4)
    with refusing(OptionError):
        check_labels(stream_of(lambda: [np.zeros((3, 1), np.float32)]), 3)
    assert "no array 'labels'" in refused(lambda: [{"x": np.zeros((3, 1), np.float32)}], want_labels=True)


# -- functions by name


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder to work in, with modules that are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield lambda name, text: (tmp_path / f"{name}.py").write_text(text)
    for name in set(sys.modules) - before:
        del sys.modules[name]


GOOD = "import numpy as np\ndef loader():\n    yield {'x': np.zeros((3, 1), np.float32)}\nsize = 3\n"


def test_a_function_of_a_module_in_the_current_folder(module) -> None:
    module("my_first_loader", GOOD)
    assert stream_of("my_first_loader:loader").batch(0, 5)["x"].shape == (5, 1)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my_second_loader:loadr", "did you mean loader"),
        ("my_second_loader:size", "not a function"),
        ("my_lost_loader:loader", "ModuleNotFoundError"),
        ("my_second_loader.py:loader", "name the module as `import` does: my_second_loader"),
        ("my_broken_loader:loader", "SyntaxError"),
        ("my_leaving_loader:loader", "SystemExit"),
        ("my second:loader", "neither a file nor a folder"),
        ("my_second_loader", "neither a file nor a folder"),
    ],
)
def test_names_that_lead_nowhere(name: str, words: str, module) -> None:
    module("my_second_loader", GOOD)
    module("my_broken_loader", "def loader(:\n")
    module("my_leaving_loader", "import sys\nsys.exit()\n")
    assert words in refused(name)


def test_a_file_goes_before_a_function_of_its_name(module, tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    assert "holds neither" in refused("a:b")


def test_what_is_not_finite_is_found_wherever_it_is_yielded() -> None:
    def loader():
        for number in range(5):
            rows = np.ones((4, 1), np.float32)
            rows[2] = np.nan if number == 3 else 1
            yield {"x": rows}

    with refusing(OptionError):
        stream_of(loader).batch(3, 4)


@pytest.mark.parametrize("used", [None, 2, 30])
def test_labels_that_all_leave_their_sample_out(used: int | None) -> None:
    labels = np.full(40, -100)
    if used is not None:
        labels[used] = 1
    stream = stream_of(lambda: ({"x": np.ones((4, 1)), "labels": labels[at : at + 4]} for at in range(0, 40, 4)))
    check_labels(stream, 3)
    if used == 2:
        stream.probe(8)
        stream.batch(11, 4)
    elif used == 30:
        stream.batch(11, 4)
        with refusing(OptionError):
            stream.probe(8)
    else:
        with refusing(OptionError):
            stream.batch(11, 4)


def test_a_signal_ends_a_function_but_its_own_exit_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leaving(error):
        def loader():
            yield {"x": np.ones((4, 1), np.float32)}
            raise error

        return loader

    with refusing(OptionError):
        stream_of(leaving(SystemExit(3))).batch(3, 4)
    for error in (Stopped(143), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            stream_of(leaving(error)).batch(3, 4)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stopped_on_import.py").write_text("from onnxsparse.errors import Stopped\nraise Stopped(143)\n")
    with pytest.raises(Stopped):
        open_data("stopped_on_import:loader", (X,))


def test_a_function_that_yields_only_once() -> None:
    calls = []

    def once():
        calls.append(1)
        return iter([{"x": np.zeros((300, 1), np.float32)}] if len(calls) == 1 else [])

    stream = open_data(once, (Field("x", "float32", (None, 1)),))
    stream.probe(256)
    with refusing(OptionError):
        stream.probe(256)
