"""Values of a configuration that the command line says otherwise, as `--opts trainer.max_iter=10`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnxsparse.errors import OptionError
from onnxsparse.planning.plain_yaml import read_yaml


def overridden(found: Any, words: Sequence[str]) -> Any:
    """A configuration with other values, each as `trainer.max_iter=10`; values are read as YAML, places are numbers."""
    for word in words:
        path, mark, text = word.partition("=")
        if not mark or not all(path.split(".")):
            raise OptionError(f"--opts takes values such as trainer.max_iter=10, not {word!r:.60}")
        found = _put(found, path.split("."), _value(path, text), path)
    return found


def _value(path: str, text: str) -> Any:
    try:
        return read_yaml(text)
    except Exception as error:  # as of a file: tags raise whatever their constructor raises
        raise OptionError(f"--opts {path}: {text!r:.60} is no value in YAML") from error


def _put(found: Any, path: Sequence[str], value: Any, whole: str) -> Any:
    if not path:
        return value
    first, rest = path[0], path[1:]
    if isinstance(found, list):
        if not first.isdigit() or int(first) >= len(found):
            raise OptionError(f"--opts {whole}: {first!r:.40} is no place in a list of {len(found)}")
        return [_put(one, rest, value, whole) if at == int(first) else one for at, one in enumerate(found)]
    if found is not None and not isinstance(found, Mapping):
        raise OptionError(f"--opts {whole}: there is nothing called {first!r:.40} in {found!r:.40}")
    return {**(found or {}), first: _put((found or {}).get(first), rest, value, whole)}
