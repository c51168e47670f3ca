"""Files that somebody writes to while they are read end in one line, never in a signal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onnxsparse.data import Field, Samples, array_files, open_data
from onnxsparse.data.array_files import Stored
from onnxsparse.data.sources import NpzFolder
from onnxsparse.errors import OptionError
from tests.messages import refusing

X = (Field("x", "float32", (None, 16)),)
COUNT = 20_000


def rows(seed: int = 0, count: int = COUNT) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 16)).astype(np.float32)


def npz(folder: Path) -> tuple[Path, Path]:
    np.savez(folder / "data.npz", x=rows())
    return folder / "data.npz", folder / "data.npz"


def npy(folder: Path) -> tuple[Path, Path]:
    np.save(folder / "data.npy", rows())
    return folder / "data.npy", folder / "data.npy"


def parts(folder: Path) -> tuple[Path, Path]:
    for name in "ab":
        np.savez(folder / f"{name}.npz", x=rows())
    return folder, folder / "b.npz"


def cut(path: Path) -> None:
    os.truncate(path, 1000)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def rewritten(path: Path) -> None:
    (np.save if path.suffix == ".npy" else lambda to, it: np.savez(to, x=it))(path, rows(1))
    os.utime(path, (1, 1))


@pytest.mark.parametrize("change", [cut, emptied, rewritten])
@pytest.mark.parametrize("place", [npz, npy, parts])
def test_a_file_that_is_written_to(place, change, tmp_path: Path) -> None:
    path, file = place(tmp_path)
    samples = open_data(path, X)
    wanted = np.array([3, samples.count - 1])
    before = samples.take(wanted)["x"]
    assert np.array_equal(before[1], rows()[-1])
    change(file)
    with refusing(OptionError) as caught:
        samples.take(wanted)
    assert str(file) in str(caught.value)


CUT = """
import os, sys, numpy as np
from onnxsparse.data import Field, open_data
from onnxsparse.errors import OptionError
samples = open_data(sys.argv[1], [Field("x", "float32", (None, 16))])
os.truncate(sys.argv[1], 1000)
try:
    samples.take(np.array([samples.count - 1]))
except OptionError as error:
    print("said:", error)
"""


def test_no_signal_ends_the_process(tmp_path: Path, repository: Path) -> None:
    path, _ = npy(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    done = subprocess.run([sys.executable, "-c", CUT, str(path)], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "said:" in done.stdout


@pytest.mark.parametrize("replace", [os.unlink, lambda path: os.replace(path.with_suffix(".new"), path)])
@pytest.mark.skipif(os.name == "nt", reason="open files stay")
def test_a_file_that_goes_is_read_to_the_end(replace, tmp_path: Path) -> None:
    path, _ = npz(tmp_path)
    path.with_suffix(".new").write_bytes(b"other")
    samples = open_data(path, X)
    replace(path)
    assert np.array_equal(samples.take(np.array([5]))["x"], rows()[5:6])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_few_files_are_open_at_a_time(save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "OPEN", 2)
    monkeypatch.setattr(array_files, "SMALL", 0)
    for number in range(5):
        save(tmp_path / f"{number}.npz", x=np.full((2, 16), number, np.float32))
    samples = Samples(NpzFolder(str(tmp_path), sorted(os.listdir(tmp_path)), limit=1), X)
    for _ in range(2):
        assert samples.take(np.arange(10))["x"][:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    rewritten(tmp_path / "0.npz")
    with refusing(OptionError):
        samples.take(np.arange(10))


@pytest.mark.parametrize("dtype", ["f4", ">f4", "i8", "bool"])
@pytest.mark.parametrize("shape", [(50, 3), (50,), (50, 0), (0, 3), ()])
def test_rows_of_a_file(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    array = (np.random.default_rng(2).random(shape) * 9).astype(dtype)
    (tmp_path / "raw").write_bytes(b"head" + array.tobytes())
    found = Stored(str(tmp_path / "raw"), 4, array.dtype, array.shape)
    assert np.array_equal(found[...], array)
    assert found[...].dtype == array.dtype
    if shape and shape[0]:
        for wanted in ([], [7], [3, 4, 5, 1, 0, 1, 1, 2, 49], [49, 48, 47], list(range(50))):
            assert np.array_equal(found[np.array(wanted, np.int64)], array[np.array(wanted, np.int64)])
        assert np.array_equal(found[10:20:3], array[10:20:3])
        for outside in (-1, 50):
            with pytest.raises(IndexError):
                found[np.array([outside])]
