"""Opening training data: a file, a folder, arrays or a function becomes samples or a stream."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Union

import numpy as np

from onnxsparse.data.array_files import open_npy
from onnxsparse.data.field import Field
from onnxsparse.data.images import Images, images_in
from onnxsparse.data.samples import Samples
from onnxsparse.data.sources import InMemory, NpyFolder, Npz, NpzFolder, Source, file_names
from onnxsparse.data.stream import Stream, by_name
from onnxsparse.data.user_functions import import_function, names_function, running, told
from onnxsparse.errors import OptionError

Data = Union[Samples, Stream]


def open_data(
    source: Any,
    fields: Sequence[Field],
    labels: str | None = None,
    want_labels: bool = False,
    numbers: bool | None = False,
) -> Data:
    """Open training data for the inputs of a model, and look at its first samples.

    `source` is a path (`.npz`, `.npy`, a folder of either), a mapping of arrays, one array for the only input, a
    loader of batches, one of polygraphy, a CalibrationDataReader of onnxruntime, `Images`, a function without arguments
    that gives any of these, or `module:function`. `labels` names the array of the labels; without a name they are
    looked for under the usual ones. With `want_labels` they have to be there.
    """
    if isinstance(source, Images):
        return _looked_at(Samples(source.source(fields), fields, labels, want_labels, numbers=numbers))
    if hasattr(source, "get_next"):
        return _called(_batches_of(source), "the reader", fields, labels, want_labels, numbers)
    if isinstance(source, (str, os.PathLike)):
        text = str(os.fspath(source))
        if not text:
            raise OptionError("the path of the data is empty; name a file, a folder or module:function")
        if not os.path.exists(text) and names_function(text):
            return _called(import_function(text), text, fields, labels, want_labels, numbers)
        return _looked_at(Samples(_source_at(text, fields), fields, labels, want_labels, numbers=numbers))
    if callable(source) and not isinstance(source, Mapping):
        return _called(source, getattr(source, "__name__", "the function"), fields, labels, want_labels, numbers)
    if hasattr(source, "input_metadata") and hasattr(source, "__getitem__"):
        return _called(lambda: _numbered(source, fields), "the loader", fields, labels, want_labels, numbers)
    if _is_loader(source):
        return _called(lambda: source, "the loader", fields, labels, want_labels, numbers)
    return _in_memory(source, "the data", fields, labels, want_labels, numbers)


def _numbered(loader: Any, fields: Sequence[Field]) -> Iterator[Any]:
    """The batches of a DataLoader of polygraphy, by number; one that knows no inputs is told those of the model."""
    if loader.input_metadata is None and not getattr(loader, "user_input_metadata", None):
        shapes = {field.name: tuple(size or 1 for size in field.shape or ()) for field in fields}
        loader.input_metadata = {field.name: (field.numpy, shapes[field.name]) for field in fields}
    try:
        for number in count():
            yield loader[number]
    except IndexError:  # how such a loader says that it has no more
        return


def _is_loader(source: Any) -> bool:
    """Batches one after the other, such as a loader of torch."""
    return hasattr(source, "__iter__") and not isinstance(source, (Mapping, tuple)) and not hasattr(source, "shape")


def _batches_of(reader: Any) -> Callable[[], list[Any]]:
    """What a CalibrationDataReader of onnxruntime gives, as often as it is asked for: it gives each batch once."""
    found: list[Any] = []

    def batches() -> list[Any]:
        while (batch := reader.get_next()) is not None:
            found.append(batch)
        return found

    return batches


def _called(
    function: Any, name: str, fields: Sequence[Field], labels: str | None, want: bool, numbers: bool | None
) -> Data:
    """What a function returns whole are samples; what it yields, and what any loader of batches does, is a stream."""
    with running(name):
        made = function()
        if hasattr(made, "get_next"):
            function = _batches_of(made)
            made = function()
    if isinstance(made, (Mapping, tuple, np.ndarray)):
        return _in_memory(made, name, fields, labels, want, numbers)
    return Stream(function, made, name, fields, labels, want, numbers)


def _in_memory(
    arrays: Any, called: str, fields: Sequence[Field], labels: str | None, want: bool, numbers: bool | None
) -> Samples:
    return _looked_at(
        Samples(InMemory(by_name(arrays, fields, labels, called), called), fields, labels, want, numbers=numbers)
    )


def _looked_at(samples: Samples) -> Samples:
    samples.look_through()
    return samples


def _source_at(path: str, fields: Sequence[Field]) -> Source:
    try:
        if os.path.isdir(path):
            return _folder(path, fields)
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {told(error)}") from error
    if path.endswith(".npy") and os.path.isfile(path):
        return InMemory(_only(path, fields), path)
    return Npz(_demand_file(path))


def _demand_file(path: str) -> str:
    try:
        if stat.S_ISREG(os.stat(path).st_mode):
            return path
    except PermissionError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from error
    except (OSError, ValueError):  # it is not there, or no path at all
        pass
    raise OptionError(
        f"{path} is neither a file nor a folder; pass an .npz, an .npy, a folder of them or module:function"
    )


def _only(path: str, fields: Sequence[Field]) -> Mapping[str, Any]:
    needed = [field for field in fields if not field.optional]
    if len(needed) == 1:
        return {needed[0].name: open_npy(path)}
    names = ", ".join(field.name for field in fields)
    raise OptionError(f"{path} is one array, but the model has inputs {names}; pass an .npz with their names")


def _folder(path: str, fields: Sequence[Field]) -> Source:
    files = sorted(file for file in os.listdir(path) if not file.startswith("."))
    packed = [file for file in files if file.endswith(".npz")]
    single = [file for file in files if file.endswith(".npy")]
    named = {name for field in fields for name in file_names(field.name)}
    if packed and named.intersection(single):
        raise OptionError(f"{path} holds the inputs as .npy and files that end in .npz; keep one kind in the folder")
    if packed:
        return NpzFolder(path, packed)
    if single:
        return NpyFolder(path, single)
    image = next(images_in(path), "")
    if image:
        return Images(path).source(fields)
    raise OptionError(f"{path} holds neither .npz nor .npy files, nor images")
