"""Exceptions: all that can go wrong, as one tree. The command line turns it into one line and an exit code.

    OnnxSparseError              exit 2: something the user can change
    |-- ModelError               the file is not a model we can open, or its content is broken
    |-- OptionError              an option, pattern, name or value that means nothing
    |-- PlanError                a plan, masks file or recipe that does not fit the model
    |-- OutputError              the result cannot be written where it should go
    |-- MissingExtraError        the command needs an optional package
    |-- StoppedError             exit 130: interrupted; it says what is left of the run
    |-- LeftOutError             exit 1: --strict, and something was left out; nothing was written
    `-- ProofError               exit 1: the result is not what was promised; nothing was written

`Stopped` is no error: it is how a signal ends the process, past whatever catches the `sys.exit` of a user's function.

A verification that does not hold is a result, not an error: see `Report.ok`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class OnnxSparseError(Exception):
    """The root. Its message is one line: what is wrong, where, and what to do.

    Messages are written with options as flags, `--exclude stem`. Who calls from Python reads arguments in their place,
    `exclude="stem"`; a command line reads what is written: see `command_line` and `as_flags`.
    """

    exit_code = 2

    def __str__(self) -> str:
        return spelled(super().__str__())

    @property
    def as_flags(self) -> str:
        """The message for a command line of one's own, with options as flags."""
        return super().__str__()


class ModelError(OnnxSparseError):
    """The file is not a model we can open, or its content is broken."""


class OptionError(OnnxSparseError):
    """An option, pattern, name or value that means nothing."""


class PlanError(OnnxSparseError):
    """A plan, masks file or recipe that does not fit the model."""


class OutputError(OnnxSparseError):
    """The result cannot be written where it should go."""


class MissingExtraError(OnnxSparseError):
    """The command needs an optional package that is not installed."""


class StoppedError(OnnxSparseError):
    """A run was interrupted."""

    exit_code = 130


class LeftOutError(OnnxSparseError):
    """--strict was given and something was left out, so nothing was written."""

    exit_code = 1


class ProofError(OnnxSparseError):
    """What was to be written was evaluated and is not what was promised, so nothing was written."""

    exit_code = 1


class Stopped(SystemExit):
    """A signal ends the process; the code is 128 and its number."""


_IN_PYTHON = [True]


@contextmanager
def command_line() -> Iterator[None]:
    """Whatever is said inside is read by somebody who typed flags."""
    before = _IN_PYTHON[0]
    _IN_PYTHON[0] = False
    try:
        yield
    finally:
        _IN_PYTHON[0] = before


def spelled(message: str) -> str:
    """A message that names options by their flags, as whoever called us spells them."""
    if not _IN_PYTHON[0] or "--" not in message:
        return message
    from onnxsparse.options import in_python  # only where something is said: the package is imported without it

    return in_python(message)


LONG, MANY = 200, 2000  # beyond these no spelling is compared: it would take longer than it helps


def nearest(word: str, known: Iterable[str], count: int = 3) -> str:
    """Return ` (did you mean ...?)` for a misspelt word, or an empty string."""
    likely = [name for name in known if len(name) <= LONG][:MANY]
    close = difflib.get_close_matches(word[:LONG], likely, n=count, cutoff=0.5)
    return f" (did you mean {', '.join(close)}?)" if close else ""


def absent(name: str) -> str:
    """What to say of a file that is not there, or of a stub, which SparseML would have fetched."""
    if name.startswith("zoo:"):
        return f"{name:.80} is a SparseZoo stub, and nothing is fetched from there; save it as a file and name that"
    return f"there is no file {name:.100}"


def brief(value: object) -> str:
    """What was given in place of what was asked for, in one short line, whatever its class makes of that."""
    try:
        text = repr(value)
    except Exception:  # a class of the user's may raise anything
        text = f"a {type.__dict__['__name__'].__get__(type(value))}"
    return one_line(text)[:60]


def one_line(value: object) -> str:
    """A text in one line that a terminal shows as it is: without breaks, escapes and other half of characters."""
    try:
        text = str.__str__(value if isinstance(value, str) else str(value))
    except Exception:  # as above
        return "(it has no text)"
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())
