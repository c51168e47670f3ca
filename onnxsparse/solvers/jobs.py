"""Independent jobs of the mathematics: one after the other, or in the processes of whoever has some.

    with running(workers): ...          # what is inside of the block has `workers` do its jobs
    results = each(function, jobs, work)  # function(*job) of every job, in their order

What comes out is the same bytes either way: a job sees nothing but its arguments, and how work is cut into jobs does
not depend on how many processes there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol


class Runner(Protocol):
    """Who has processes."""

    def width(self, work: float) -> int:
        """How many jobs are done at a time, when they have so much work together: multiplications and additions."""

    def each(self, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The function of every job, in their order."""


_runner: ContextVar[Runner | None] = ContextVar("onnxsparse_jobs", default=None)


@contextmanager
def running(runner: Runner) -> Iterator[None]:
    """Have the jobs of the block done by a runner."""
    token = _runner.set(runner)
    try:
        yield
    finally:
        _runner.reset(token)


def width(work: float) -> int:
    """How many jobs of so much work together are done at a time."""
    runner = _runner.get()
    return 1 if runner is None else runner.width(work)


def each(function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], work: float) -> list[Any]:
    """The function of every job, in their order; `work` is that of all of them."""
    runner = _runner.get()
    if runner is None or len(jobs) < 2 or runner.width(work) == 1:
        return [function(*job) for job in jobs]
    return runner.each(function, jobs)


__all__ = ["Runner", "each", "running", "width"]
