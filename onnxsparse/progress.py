"""Progress reporting of long work. Silent unless somebody listens; the command line does, on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]

_listener: ContextVar[Listener | None] = ContextVar("onnxsparse_progress", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener(stage, done, total)` while the block runs."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class Counter:
    """Counts one stage of the work."""

    def __init__(self, stage: str, total: int) -> None:
        self._stage, self._total, self._done = stage, total, 0

    def add(self, count: int) -> None:
        self._done += count
        advance(self._stage, self._done, self._total)


def advance(stage: str, done: int, total: int) -> None:
    """Say that `done` of `total` are done."""
    listener = _listener.get()
    if listener is not None:
        listener(stage, done, total)
