"""Processes for the jobs of a calibration, and BLAS on one thread in all of them.

1. The order in which a matrix product is summed depends on the number of threads of BLAS. It is one, here and in every
   process, whatever the machine has and the environment says: more cores are used by doing several jobs at a time.
2. The processes are joblib's: those of this machine, or whatever the caller configured with `joblib.parallel_config`,
   such as a cluster of Dask or Ray.
3. Jobs of less than `SMALL` work together are done here, where no cluster is configured: to start processes and to send
   them their numbers takes a second or two.
4. Without joblib all is done here; a number of processes that was asked for is refused then.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from threadpoolctl import threadpool_limits

from onnxsparse.errors import MissingExtraError, OutputError
from onnxsparse.solvers import jobs

SMALL = 5e10
"""Multiplications and additions, some seconds of one core."""


@contextmanager
def one_thread() -> Iterator[None]:
    """BLAS, and what else numpy calls, on one thread while the block runs."""
    with threadpool_limits(limits=1):
        yield


def _pinned(function: Callable[..., Any], job: Sequence[Any]) -> Any:
    """A job in a process of its own."""
    with one_thread():
        return function(*job)


class Workers:
    """So many processes; all cores where no number is given."""

    def __init__(self, count: int | None = None) -> None:
        try:
            self._joblib: Any = importlib.import_module("joblib")
        except ImportError:
            if count is not None and count > 1:
                raise MissingExtraError("--workers needs joblib: pip install 'onnxsparse[workers]'") from None
            self._joblib, count = None, 1
        self._asked = count
        self._configured = self._joblib is not None and _is_configured(self._joblib)
        self.count = 1 if self._joblib is None else count or self._cores()

    def _cores(self) -> int:
        """All that this process may use; with a cluster as many as that has."""
        if self._configured:
            return int(self._joblib.effective_n_jobs()) or 1
        return int(self._joblib.cpu_count())

    def width(self, work: float) -> int:
        return self.count if self._configured or work >= SMALL else 1

    def each(self, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The function of every job, in their order; arrays go to the processes without a file in between."""
        options = {} if self._configured else {"max_nbytes": None}
        count = None if self._configured and self._asked is None else self.count
        call = self._joblib.delayed(_pinned)
        try:
            return list(self._joblib.Parallel(n_jobs=count, **options)(call(function, job) for job in jobs))
        except Exception as error:  # loky has a type for each way in which a process may end
            if type(error).__name__ not in ("TerminatedWorkerError", "BrokenProcessPool", "KilledWorker"):
                raise
            raise OutputError(
                "a process of --workers was ended from outside, perhaps for want of memory; take fewer"
            ) from error


def _is_configured(joblib: Any) -> bool:
    """Whether the caller chose where jobs run."""
    backend, count = joblib.parallel.get_active_backend()
    return count not in (None, 1) or type(backend).__name__ != "LokyBackend"


@contextmanager
def working(count: int | None) -> Iterator[Workers]:
    """One thread for BLAS here, and processes for jobs, while the block runs."""
    workers = Workers(count)
    with one_thread(), jobs.running(workers):
        yield workers


__all__ = ["Workers", "one_thread", "working"]
