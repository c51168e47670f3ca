"""Training data from files, folders and arrays: what is taken, what is converted, and what is refused in one line."""

from __future__ import annotations

import errno
import os
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from onnxsparse.data import LABELS, Field, Samples, check_labels, open_data
from onnxsparse.data import sources as rooms
from onnxsparse.errors import OptionError
from tests.messages import refusing

IMAGE = Field("image", "float32", (None, 3, 4))
IDS = Field("model/ids:0", "int64", (None, None))
GENERATOR = np.random.Generator(np.random.Philox(key=7))
IMAGES = GENERATOR.standard_normal((10, 3, 4)).astype(np.float32)
TOKENS = GENERATOR.integers(0, 100, (10, 6))
CLASSES = np.arange(10) % 3
BOTH = {"image": IMAGES, "model/ids:0": TOKENS, "labels": CLASSES, "more": np.zeros(3)}
ROWS = np.array([9, 0, 4, 4])


def opened(source, fields=(IMAGE,), **options) -> Samples:
    samples = open_data(source, fields, **options)
    assert isinstance(samples, Samples)
    return samples


def refused(source, fields=(IMAGE,), **options) -> str:
    with pytest.raises(OptionError) as caught:
        open_data(source, fields, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def shards(folder: Path, save=np.savez) -> Path:
    for number, part in enumerate((slice(0, 3), slice(3, 4), slice(4, 10))):
        save(folder / f"part-{number}.npz", **{name: array[part] for name, array in BOTH.items() if name != "more"})
    return folder


def named_files(folder: Path) -> Path:
    for name, array in BOTH.items():
        np.save(folder / (name.replace("/", "_").replace(":", "_") + ".npy"), array)
    return folder


def whole(folder: Path, save=np.savez) -> Path:
    save(folder / "data.npz", **BOTH)
    return folder / "data.npz"


PLACES = {
    "mapping": lambda folder: BOTH,
    "npz": whole,
    "packed npz": lambda folder: whole(folder, np.savez_compressed),
    "folder of npz": shards,
    "folder of packed npz": lambda folder: shards(folder, np.savez_compressed),
    "folder of npy": named_files,
    "text path": lambda folder: str(whole(folder)),
    "function": lambda folder: lambda: BOTH,
}


@pytest.mark.parametrize("place", PLACES)
def test_every_place_gives_the_same_samples(place: str, tmp_path: Path) -> None:
    samples = opened(PLACES[place](tmp_path), (IMAGE, IDS))
    batch = samples.take(ROWS)
    assert samples.count == 10
    assert samples.has_labels
    assert list(batch) == ["image", "model/ids:0", LABELS]
    for name, array in (("image", IMAGES), ("model/ids:0", TOKENS), (LABELS, CLASSES)):
        assert np.array_equal(batch[name], array[ROWS])
        assert batch[name].flags.c_contiguous
        assert batch[name].flags.writeable
        assert batch[name].dtype == array.dtype
    assert not samples.notes
    assert samples.fingerprint == opened(BOTH, (IMAGE, IDS)).fingerprint


@pytest.mark.parametrize("place", PLACES)
def test_every_place_names_what_is_missing(place: str, tmp_path: Path) -> None:
    message = refused(PLACES[place](tmp_path), (Field("images", "float32", (None, 3, 4)),))
    assert "'images'" in message
    assert "for an input of the model (it has image" in message


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("save", ["npy", "npz"])
def test_one_array_of_any_layout(order: str, save: str, tmp_path: Path) -> None:
    array = np.asarray(IMAGES, order=order)
    path = tmp_path / f"one.{save}"
    (np.save if save == "npy" else lambda to, it: np.savez(to, image=it))(path, array)
    samples = opened(path)
    assert np.array_equal(samples.take(ROWS)["image"], IMAGES[ROWS])
    assert np.array_equal(samples.take(np.arange(10))["image"], IMAGES)
    assert samples.fingerprint == opened({"image": IMAGES}).fingerprint


def test_what_is_read_by_rows_costs_no_memory(tmp_path: Path) -> None:
    np.savez(tmp_path / "large.npz", image=np.zeros((50000, 3, 4), np.float32), other=np.zeros(1 << 20))
    opened(tmp_path / "large.npz").take(ROWS)  # what is imported for it is no part of it
    tracemalloc.start()
    opened(tmp_path / "large.npz").take(ROWS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000


def test_one_array_for_the_only_input(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", IMAGES)
    assert opened(tmp_path / "one.npy").count == opened(IMAGES).count == 10
    assert "inputs image, model/ids:0" in refused(tmp_path / "one.npy", (IMAGE, IDS))
    assert "dictionaries" in refused(IMAGES, (IMAGE, IDS))


# -- samples and what is the same for all of them


def test_an_array_of_the_whole_declared_shape_is_the_same_for_every_sample() -> None:
    fields = (IMAGE, Field("table", "float32", (5, 2)), Field("rate", "float32", ()), Field("ids", "int64", (1, 6)))
    table = np.ones((5, 2), np.float32)
    samples = opened({"image": IMAGES, "table": table, "rate": np.float32(3), "ids": TOKENS[:1]}, fields)
    batch = samples.take(ROWS)
    assert samples.shared == ("table", "rate", "ids")
    assert [array.shape for array in batch.values()] == [(4, 3, 4), (5, 2), (), (1, 6)]
    assert len(samples.notes) == 3
    assert "'table'" in samples.notes[0]


def test_a_leading_one_in_the_model_does_not_limit_the_samples() -> None:
    samples = opened({"image": IMAGES}, (Field("image", "float32", (1, 3, 4)),))
    assert samples.count == 10
    assert samples.take(ROWS)["image"].shape == (4, 3, 4)
    assert not samples.shared


def test_a_single_sample_is_a_sample() -> None:
    samples = opened({"image": IMAGES[:1]}, (Field("image", "float32", (1, 3, 4)),))
    assert (samples.count, samples.shared) == (1, ())


# -- numbers


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ("int32", "int64"),
        ("uint8", "int32"),
        ("float16", "float32"),
        ("bool", "float32"),
        ("bool", "int64"),
        (">f4", "float32"),
    ],
)
def test_widening_is_silent(found: str, wanted: str) -> None:
    array = (np.arange(20).reshape(10, 2) % 2).astype(found)
    samples = opened({"x": array}, (Field("x", wanted, (None, 2)),))
    taken = samples.take(ROWS)["x"]
    assert taken.dtype == np.dtype(wanted)
    assert taken.dtype.isnative
    assert np.array_equal(taken, array[ROWS])
    assert not samples.notes


def test_rounding_is_mentioned() -> None:
    samples = opened({"image": IMAGES.astype(np.float64)})
    assert np.array_equal(samples.take(ROWS)["image"], IMAGES[ROWS])
    assert "rounded to float32" in samples.notes[0]


@pytest.mark.parametrize(
    ("found", "wanted", "words"),
    [
        ("uint8", "float32", "255"),
        ("int64", "float32", "normalized"),
        ("float32", "int64", ".astype('int64')"),
        ("int64", "int32", ".astype('int32')"),
        ("int64", "bool", ".astype('bool')"),
        ("U3", "float32", "plain numbers"),
        ("float32", "bfloat16", "cannot hold"),
        ("float32", "object", "cannot hold"),
    ],
)
def test_other_conversions_are_the_users(found: str, wanted: str, words: str) -> None:
    message = refused({"x": np.ones((4, 2)).astype(found)}, (Field("x", wanted, (None, 2)),))
    assert words in message
    assert "'x'" in message


@pytest.mark.parametrize("shape", [(10, 3), (10, 3, 5), (10, 3, 4, 1), (), (10,)])
def test_wrong_shapes(shape: tuple[int, ...]) -> None:
    message = refused({"image": np.zeros(shape, np.float32)})
    assert f"{list(shape)}, the model takes [samples, 3, 4]" in message
    assert "any" in refused({"model/ids:0": TOKENS[0]}, (IDS,))


def test_unequal_counts() -> None:
    assert "10 samples of 'image', but 9 of 'model/ids:0'" in refused({**BOTH, "model/ids:0": TOKENS[:9]}, (IMAGE, IDS))
    assert "but 9 of 'the labels'" in refused({**BOTH, "labels": CLASSES[:9]}, labels="labels")


def test_a_model_that_does_not_say_how_many_axes() -> None:
    free = (Field("x", "float32", None),)
    assert opened({"x": IMAGES}, free).take(ROWS)["x"].shape == (4, 3, 4)
    assert opened({"x": IMAGES[:, 0, 0]}, free).count == 10
    assert "shape [], the model takes [samples, ...]" in refused({"x": np.float32(1)}, free)


def test_no_samples() -> None:
    assert "no samples" in refused({"image": IMAGES[:0]})
    assert "first axis" in refused({"x": np.float32(1)}, (Field("x", "float32", ()),))


def test_an_empty_file_and_an_empty_folder(tmp_path: Path) -> None:
    np.savez(tmp_path / "none.npz", image=IMAGES[:0])
    assert "no samples" in refused(tmp_path / "none.npz")
    (tmp_path / "folder").mkdir()
    assert "neither .npz nor .npy" in refused(tmp_path / "folder")
    assert "neither a file nor a folder" in refused(tmp_path / "nothing.npz")


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite(odd: float) -> None:
    array = IMAGES.copy()
    array[7, 1, 2] = odd
    assert "in sample 7" in refused({"image": array})
    assert "holds NaN or infinity" in refused({"image": np.full((2, 3, 4), 1e300)})


WIDE = (Field("x", "float32", (None, 1000)),)


@pytest.mark.parametrize("place", ["file", "mapping"])
def test_what_is_not_finite_is_found_anywhere(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.ones((500, 1000), np.float32)
    array[333, 7] = np.nan
    np.savez(tmp_path / "data.npz", x=array)
    data = {"x": array} if place == "mapping" else tmp_path / "data.npz"
    assert "holds NaN or infinity in sample 333;" in refused(data, WIDE)
    monkeypatch.setattr(Samples.look_through, "__defaults__", (1000,))
    samples = opened(data, WIDE)
    samples.take(np.array([3, 332]))
    for rows in ([3, 333, 1], [333]):
        with refusing(OptionError):
            samples.take(np.array(rows))
    with refusing(OptionError):
        samples.look_through(1 << 30)


def test_what_is_the_same_for_all_samples_is_finite_too() -> None:
    fields = (IMAGE, Field("table", "float32", (2,)))
    message = refused({"image": IMAGES, "table": np.array([1, np.inf], np.float32)}, fields)
    assert "'table'" in message
    assert "sample" not in message


@pytest.mark.parametrize("odd", [np.nan, np.inf, 1e300])
def test_labels_that_are_not_finite(odd: float) -> None:
    labels = np.ones(100)
    labels[77] = odd
    data = {"x": np.ones((100, 2), np.float32), "labels": labels}
    with refusing(OptionError):
        open_data(data, [Field("x", "float32", (None, 2))], want_labels=True, numbers=True)


# -- fingerprints


@pytest.mark.parametrize("sample", [0, 1, 123, 499])
def test_every_sample_counts(sample: int) -> None:
    array, labels = np.ones((500, 1000), np.float32), np.zeros(500, np.int64)
    same = opened({"x": array, "labels": labels}, WIDE).fingerprint
    other, kinds = array.copy(), labels.copy()
    other[sample, 999] = 2
    kinds[sample] = 1
    found = [opened({"x": x, "labels": y}, WIDE).fingerprint for x, y in ((other, labels), (array, kinds))]
    assert len({same, *found}) == 3
    assert opened({"x": array.copy(), "labels": labels.copy()}, WIDE).fingerprint == same


def test_of_large_data_many_samples_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxsparse.data import samples

    array = np.zeros((100_000, 2), np.float32)
    monkeypatch.setattr(samples, "CHEAP", 400_000)
    taken: list[int] = []
    take = Samples.take
    monkeypatch.setattr(Samples, "take", lambda self, rows: taken.extend(rows.tolist()) or take(self, rows))
    wide = (Field("x", "float32", (None, 2)),)
    found = open_data({"x": array}, wide)
    taken.clear()
    first = found.fingerprint
    assert samples.SPREAD <= len(set(taken)) == len(taken) < 2 * samples.SPREAD
    assert max(taken) == 99_999
    array[taken[1234], 1] = 1
    assert open_data({"x": array}, wide).fingerprint != first


# -- labels


def test_labels_are_found_by_name_or_under_the_usual_ones() -> None:
    samples = opened({"image": IMAGES, "y": CLASSES.astype(np.uint8)}, want_labels=True)
    assert samples.take(ROWS)[LABELS].dtype == np.int64
    assert opened({"image": IMAGES, "kind": CLASSES}, labels="kind").has_labels
    assert not opened({"image": IMAGES, "kind": CLASSES}).has_labels
    assert not opened({"image": IMAGES, "y": IMAGES}, (IMAGE, Field("y", "float32", (None, 3, 4)))).has_labels


def test_labels_that_nobody_asked_for_may_be_anything() -> None:
    for odd in (np.ones(10), np.ones(3, np.int64), np.int64(3)):
        samples = opened({"image": IMAGES, "labels": odd})
        assert not samples.has_labels
        assert "'labels'" in samples.notes[0]


def test_labels_that_are_wanted() -> None:
    assert "no array 'labels'" in refused({"image": IMAGES}, want_labels=True)
    assert "did you mean kinds" in refused({"image": IMAGES, "kinds": CLASSES}, labels="kind")
    assert "float64" in refused({"image": IMAGES, "labels": CLASSES * 1.0}, want_labels=True)
    assert "shape []" in refused({"image": IMAGES, "labels": np.int64(1)}, want_labels=True)


def test_a_model_with_an_input_of_that_name() -> None:
    field = Field(LABELS, "int64", (None,))
    samples = opened({"image": IMAGES, "labels": CLASSES}, (IMAGE, field), want_labels=True)
    assert list(samples.take(ROWS)) == ["image", "labels"]
    assert samples.has_labels
    assert "leave 'y' out" in refused({"image": IMAGES, "labels": CLASSES, "y": CLASSES}, (IMAGE, field), labels="y")


@pytest.mark.parametrize("label", [-1, 3, 255, -101])
def test_labels_that_are_no_class(label: int) -> None:
    kinds = np.arange(70000) % 3
    kinds[[5, 69000]] = -100, label
    samples = opened({"x": np.zeros((70000, 1), np.float32), "labels": kinds}, (Field("x", "float32", (None, 1)),))
    with pytest.raises(OptionError, match=f"label {label} of sample 69000 .* 3 classes"):
        check_labels(samples, 3)


def test_labels_that_are_classes() -> None:
    check_labels(opened(BOTH), 3)
    check_labels(opened({"image": IMAGES, "labels": np.tile(CLASSES[:, None], 5)}), 3)
    with refusing(OptionError):
        check_labels(opened({"image": IMAGES}), 3)
    with refusing(OptionError):
        check_labels(opened({"image": IMAGES, "labels": np.full(10, -100)}), 3)


# -- files that are not what they should be


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}] * 10, dtype=object)
    np.savez(tmp_path / "data.npz", image=objects)
    np.save(tmp_path / "image.npy", objects, allow_pickle=True)
    for path in (tmp_path / "data.npz", tmp_path / "image.npy"):
        assert "plain arrays" in refused(path)
    assert "plain numbers" in refused({"image": objects})


def test_fields_and_foreign_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "fields.npz", image=np.zeros(10, [("a", "f4")]))
    assert "plain numbers" in refused(tmp_path / "fields.npz")
    (tmp_path / "text.npz").write_text("hello")
    assert "damaged" in refused(tmp_path / "text.npz")
    (tmp_path / "text.npy").write_bytes(b"")
    assert "damaged" in refused(tmp_path / "text.npy")
    np.save(tmp_path / "array.npy", IMAGES)
    os.rename(tmp_path / "array.npy", tmp_path / "array.npz")
    assert "name it .npy" in refused(tmp_path / "array.npz")
    with zipfile.ZipFile(tmp_path / "zip.npz", "w") as file:
        file.writestr("image.npy", "hello")
    assert "damaged" in refused(tmp_path / "zip.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_truncated_files(save, tmp_path: Path) -> None:
    path = whole(tmp_path, save)
    data = path.read_bytes()
    for length in range(0, len(data), 97):
        path.write_bytes(data[:length])
        assert "damaged" in refused(path)
    np.save(tmp_path / "image.npy", IMAGES)
    data = (tmp_path / "image.npy").read_bytes()
    (tmp_path / "image.npy").write_bytes(data[:-1])
    assert "damaged" in refused(tmp_path / "image.npy")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_flipped_bytes_never_end_in_a_traceback(save, tmp_path: Path) -> None:
    path = whole(tmp_path, save)
    data = path.read_bytes()
    for place in range(0, len(data), 13):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
        with suppress(OptionError):
            opened(path, (IMAGE, IDS)).take(ROWS)


@pytest.mark.parametrize("name", ["data.npz", "data.npy"])
def test_files_that_may_not_be_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).write_bytes(b"")

    def deny(path, *rest, **more):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as denied:
        denied.setattr("builtins.open", deny)
        assert refused(tmp_path / name) == f"{tmp_path / name} cannot be read: Permission denied"
    with monkeypatch.context() as denied:
        denied.setattr(os, "stat", deny)
        assert "cannot be read: Permission denied" in refused(tmp_path / "data.npz")


def test_an_empty_path() -> None:
    assert refused("") == "the path of the data is empty; name a file, a folder or module:function"


# -- folders


def test_files_follow_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, value in (("b", 1), ("a", 0), ("c", 2)):
        np.savez(tmp_path / f"{name}.npz", x=np.full((2, 1), value, np.float32))
    (tmp_path / ".hidden.npz").write_text("no array")
    samples = opened(tmp_path, (Field("x", "float32", (None, 1)),))
    assert samples.take(np.arange(6))["x"].ravel().tolist() == [0, 0, 1, 1, 2, 2]
    with pytest.raises(IndexError):
        samples.take(np.array([6]))


def test_files_that_do_not_go_together(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", image=IMAGES)
    np.savez(tmp_path / "b.npz", image=IMAGES[:, :2])
    assert "does not go on" in refused(tmp_path)
    np.savez(tmp_path / "b.npz", other=IMAGES)
    assert "unlike" in refused(tmp_path)
    np.save(tmp_path / "image.npy", IMAGES)
    assert "keep one kind" in refused(tmp_path)


def test_packed_files_are_kept_only_while_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards(tmp_path, np.savez_compressed)
    monkeypatch.setattr(rooms, "CACHE", 300)
    folder = rooms.NpzFolder(str(tmp_path), sorted(os.listdir(tmp_path)), limit=300)
    samples = Samples(folder, (IMAGE,))
    assert np.array_equal(samples.take(ROWS)["image"], IMAGES[ROWS])
    assert folder._shelf._held <= 300 or len(folder._shelf._loaded) == 1
    assert "numpy.savez is faster" in samples.notes[0]


def test_two_inputs_of_one_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a_b.npy", TOKENS)
    fields = (Field("a/b", "int64", (None, 6)), Field("a:b", "int64", (None, 6)))
    assert "both 'a/b' and 'a:b'" in refused(tmp_path, fields)


def test_a_name_leads_nowhere_else(tmp_path: Path) -> None:
    np.save(tmp_path / "secret.npy", IMAGES)
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "x.npy", IMAGES)
    assert "no array" in refused(tmp_path / "data", (Field("../secret", "float32", (None, 3, 4)),))
    assert "no array" in refused(tmp_path / "data", (Field("x" * 500, "float32", (None, 3, 4)),))


class Tensor:
    """What a tensor of another framework looks like."""

    def __init__(self, array, steps=("detach", "cpu", "numpy")):
        self._array, self._steps = array, steps
        if steps:
            setattr(self, steps[0], lambda: Tensor(array, steps[1:]) if steps[1:] else array)


class Stubborn:
    def numpy(self):
        raise TypeError("Got unsupported ScalarType\nBFloat16")


def test_tensors_of_other_frameworks() -> None:
    assert np.array_equal(opened({"image": Tensor(IMAGES)}).take(ROWS)["image"], IMAGES[ROWS])
    assert opened({"image": IMAGES.tolist()}).count == 10
    assert "unsupported ScalarType BFloat16" in refused({"image": Stubborn()})
    assert "dictionaries" in refused(3)
    assert "dictionaries" in refused(None)


def test_labels_may_be_numbers() -> None:
    path = {"x": np.zeros((3, 2), np.float32), "labels": np.array([0.5, 1, 2])}
    samples = open_data(path, [Field("x", "float32", (None, 2))], want_labels=True, numbers=True)
    found = samples.take(np.array([0, 2]))["labels"]
    assert found.dtype == np.float32
    assert found.tolist() == [0.5, 2.0]
    with refusing(OptionError):
        open_data(path, [Field("x", "float32", (None, 2))], want_labels=True)


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("rows", [4, 40_000])
def test_a_stored_array_that_is_not_what_was_saved(folder: bool, rows: int, tmp_path: Path) -> None:
    array = np.arange(rows * 10, dtype=np.float32).reshape(rows, 10)
    np.savez(tmp_path / "a.npz", x=array)
    path = tmp_path if folder else tmp_path / "a.npz"
    open_data(path, (Field("x", "float32", (None, 10)),))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[data.find(array.tobytes()) + 20 * rows] ^= 4
    (tmp_path / "a.npz").write_bytes(data)
    with refusing(OptionError):
        open_data(path, (Field("x", "float32", (None, 10)),))


def test_labels_beyond_all_whole_numbers() -> None:
    x, labels = np.zeros((3, 2), np.float32), np.array([0, 2**64 - 1, 1], np.uint64)
    with refusing(OptionError):
        open_data({"x": x, "labels": labels}, (Field("x", "float32", (None, 2)),), want_labels=True)


def test_labels_that_are_of_no_use_are_told_of_in_good_order() -> None:
    arrays = {"x": np.zeros((3, 2), np.float32), "labels": np.zeros(3, np.float32)}
    (note,) = open_data(arrays, (Field("x", "float32", (None, 2)),)).notes
    assert note.startswith("'labels' of the data is not used as labels: they are float32, not the numbers of classes")
