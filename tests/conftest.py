"""What all tests share: one thread, and no property that fails by the clock: nothing depends on the machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

# A busy machine is slow, not wrong.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


SENT = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGCHLD")


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """Signals do what they do in a shell's foreground, here and in the processes that a test starts.

    What a shell starts in the background ignores SIGINT, under nohup SIGHUP, and both are handed on to children: Python
    then has no KeyboardInterrupt. So are blocked signals. Only while a test runs that sends some: the other tests
    stay as whoever started them wants it.
    """
    numbers = {getattr(signal, name) for name in SENT if hasattr(signal, name)}
    usual = {number: signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL for number in numbers}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers) if hasattr(signal, "pthread_sigmask") else set()
    yield
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for number, handler in before.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def digits_cnn(repository: Path) -> Path:
    """The small trained network that ships with the project."""
    return repository / "models" / "digits_cnn.onnx"
