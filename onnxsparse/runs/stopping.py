"""A signal that ends a run waits for the end of the step, so that its state can be saved first.

1. SIGINT, SIGTERM and SIGHUP wait while steps are made, for the end of one; at any other time they do what they always
   do.
2. A second one does not wait.
3. Only where there is something to save into, in the main thread, and in a run of one process: of several, those that
   wait for each other would wait for one that has ended.
4. What is ignored stays ignored, as a shell has it for what it starts in the background, and nohup for SIGHUP.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class Stopping:
    """What waits for the end of a step."""

    def __init__(self, wanted: bool) -> None:
        self._wanted, self._waiting, self._process = wanted, 0, 0
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether a signal waits."""
        return bool(self._waiting)

    @contextmanager
    def until_saved(self) -> Iterator[None]:
        """Signals that come in here wait for its end."""
        self._take_over()
        try:
            yield
        finally:
            self._give_back()
            if self._waiting:
                signal.raise_signal(self._waiting)

    def _take_over(self) -> None:
        self._waiting, self._process = 0, os.getpid()
        for name in NAMES if self._wanted else ():
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) not in (signal.SIG_IGN, None):
                try:
                    self._before[number] = signal.signal(number, self._wait)
                except ValueError:  # not in the main thread: whoever called us sees to signals
                    return

    def _wait(self, number: int, _: FrameType | None) -> None:
        if not self._waiting and self._process == os.getpid():  # a worker that began in a step has nothing to save
            self._waiting = number
            return
        self._give_back()
        signal.raise_signal(number)

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
