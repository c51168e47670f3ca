"""Data sets of the networks on which calibrated pruning is measured: images, rows of images, reviews and questions.

A data set is what a network takes, by the names of its inputs, and labels. `write` draws from its training part what
pruning may see (three draws of 256 samples, and 6,000 for tuning, all without labels) and keeps the test part beside.
"""

from __future__ import annotations

import csv
import gzip
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, Any]
DRAWS, SAMPLES, TUNING, TESTED = 3, 256, 6_000, 10_000
PADDING, UNKNOWN = 0, 1


@dataclass(frozen=True)
class Dataset:
    """What a network takes, by the names of its inputs, and labels; of training and of testing."""

    train: Arrays
    labels: Any
    test: Arrays
    test_labels: Any


@dataclass(frozen=True)
class Sources:
    """Where the files of the data sets lie, as their packages hold them; None where one is not there."""

    fashion: Path | None = None
    digits: Path | None = None
    reviews: Path | None = None
    questions: Path | None = None


# -- images


def opened(folder: Path, name: str) -> bytes:
    """A file of the MNIST format, zipped or not."""
    if (plain := folder / name).exists():
        return plain.read_bytes()
    with gzip.open(folder / f"{name}.gz") as file:
        return file.read()


def images(folder: Path, kind: str, mean: float, deviation: float) -> tuple[Any, Any]:
    """Images as float arrays (N, 1, 28, 28), normalized, and their labels."""
    pixels = np.frombuffer(opened(folder, f"{kind}-images-idx3-ubyte"), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    labels = np.frombuffer(opened(folder, f"{kind}-labels-idx1-ubyte"), np.uint8, offset=8).astype(np.int64)
    return (pixels.astype(np.float32) / np.float32(255) - np.float32(mean)) / np.float32(deviation), labels


def pictures(folder: Path, mean: float, deviation: float) -> Dataset:
    (train, labels), (test, right) = (images(folder, kind, mean, deviation) for kind in ("train", "t10k"))
    return Dataset({"x": train}, labels, {"x": test}, right)


def fashion(sources: Sources) -> Dataset:
    return pictures(found(sources.fashion, "--fashion"), 0.286, 0.353)


def digits(sources: Sources) -> Dataset:
    return pictures(found(sources.digits, "--digits"), 0.1307, 0.3081)


def channels_last(sources: Sources) -> Dataset:
    """Fashion-MNIST as TensorFlow wants it: channels behind height and width."""
    data = fashion(sources)
    train, test = ({"x": np.ascontiguousarray(part["x"].transpose(0, 2, 3, 1))} for part in (data.train, data.test))
    return Dataset(train, data.labels, test, data.test_labels)


# -- text


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+|[.!?,]", text.lower().replace("<br />", " "))


def tokens(texts: Iterable[list[str]], vocabulary: dict[str, int], length: int) -> Any:
    """The first words of each text as numbers, filled up with padding."""
    ids = np.full((len(list(texts)), length), PADDING, np.int64)
    for row, text in zip(ids, texts):
        numbers = [vocabulary.get(word, UNKNOWN) for word in text[:length]]
        row[: len(numbers)] = numbers
    return ids


def vocabulary_of(texts: Iterable[list[str]], size: int) -> dict[str, int]:
    """The most frequent words, those of one frequency in the order of the alphabet."""
    counts = Counter(word for text in texts for word in text)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: size - 2]
    return {word: at + 2 for at, word in enumerate(frequent)}


def reviews(sources: Sources, length: int = 64, size: int = 8_000, test: int = 4_000) -> Dataset:
    """Movie reviews, good or bad, by their first words."""
    csv.field_size_limit(sys.maxsize)
    with found(sources.reviews, "--reviews").open(encoding="utf8", errors="replace", newline="") as file:
        rows = sorted({(row["text"], int(row["label"])) for row in csv.DictReader(file)})
    split = shuffled(rows)
    texts, labels = [words(text) for text, _ in split], np.array([label for _, label in split])
    ids = tokens(texts, vocabulary_of(texts[test:], size), length)
    return Dataset({"ids": ids[test:]}, labels[test:], {"ids": ids[:test]}, labels[:test])


def questions(sources: Sources, length: int = 24, size: int = 4_000, test: int = 800) -> Dataset:
    """Questions of TREC and the six kinds of their answers; each question once. With the mask that BERT takes."""
    lines = found(sources.questions, "--questions").read_text(encoding="latin-1").splitlines()
    rows = sorted({tuple(reversed(line.split(" ", 1))) for line in lines if ":" in line.split(" ", 1)[0]})
    split, kinds = shuffled(rows), sorted({kind.partition(":")[0] for _, kind in rows})
    texts = [words(text) for text, _ in split]
    labels = np.array([kinds.index(kind.partition(":")[0]) for _, kind in split])
    ids = tokens(texts, vocabulary_of(texts[test:], size), length)
    masked = {"input_ids": ids, "attention_mask": (ids != PADDING).astype(np.int64)}
    train, held = ({name: array[part] for name, array in masked.items()} for part in (slice(test, None), slice(test)))
    return Dataset(train, labels[test:], held, labels[:test])


def shuffled(rows: list[Any]) -> list[Any]:
    return [rows[at] for at in np.random.default_rng(0).permutation(len(rows))]


def found(path: Path | None, flag: str) -> Path:
    if path is None or not path.exists():
        raise SystemExit(f"{flag} has to name where its data set lies; it is {path}")
    return path


DATASETS: dict[str, Callable[[Sources], Dataset]] = {
    "fashion": fashion,
    "digits": digits,
    "channels_last": channels_last,
    "reviews": reviews,
    "questions": questions,
}


# -- what pruning sees


def write(data: Dataset, name: str, folder: Path) -> dict[str, Any]:
    """The files of a data set, made where they are not there yet; their names relative to the folder."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    parts = {f"calib_{draw}": chosen(data, SAMPLES, draw) for draw in range(DRAWS)}
    parts |= {"finetune": chosen(data, TUNING, DRAWS), "test": {key: one[:TESTED] for key, one in data.test.items()}}
    for part, arrays in parts.items():
        if not (path := folder / "data" / f"{name}_{part}.npz").exists():
            np.savez(path, **arrays)
    np.save(folder / "data" / f"{name}_labels.npy", data.test_labels[:TESTED])
    return {
        "calibration": [f"data/{name}_calib_{draw}.npz" for draw in range(DRAWS)],
        "finetune": f"data/{name}_finetune.npz",
        "test": f"data/{name}_test.npz",
        "labels": f"data/{name}_labels.npy",
    }


def chosen(data: Dataset, count: int, draw: int) -> Arrays:
    """Samples of the training part, drawn without repetition; all of them where there are fewer."""
    places = np.random.default_rng(draw).permutation(len(data.labels))[:count]
    return {name: array[places] for name, array in data.train.items()}
