"""The output of every command: its report is shown, written as JSON, and its verdict becomes the exit code."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout

from onnxsparse import progress
from onnxsparse.cli.arguments import check_report_target
from onnxsparse.engines.processes import speaks
from onnxsparse.errors import OutputError, Stopped, StoppedError
from onnxsparse.files import write_text
from onnxsparse.report.rows import Report, to_json


def finish(report: Report, arguments: Namespace) -> int:
    """Show and save the report; return 0 when it holds, else 1."""
    target = getattr(arguments, "json", None)
    if target == "-":
        as_far_as_read(lambda: print(to_json(report), end="", flush=True))  # noqa: T201 - this is the output
    else:
        from onnxsparse.report.terminal import show

        as_far_as_read(lambda: show(report, arguments.verbose - arguments.quiet))
    if target and target != "-":
        check_report_target(arguments)  # again: the command may have written a file of that name
        write_text(target, to_json(report), overwrite=True)
    return 0 if report.ok else 1


def as_far_as_read(write: Callable[[], None]) -> None:
    """A reader that has seen enough (`| head`) changes nothing about the verdict."""
    try:
        write()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise OutputError(f"cannot write to standard output: {error.strerror}") from error


@contextmanager
def watched(arguments: Namespace) -> Iterator[None]:
    """Show a progress bar on a terminal while the block runs; elsewhere, with `--verbose`, lines now and then."""
    if arguments.quiet or not (sys.stderr.isatty() or arguments.verbose):
        yield
        return
    if not sys.stderr.isatty():
        with progress.listening(_lines()):
            yield
        return
    from rich.console import Console
    from rich.progress import Progress, TaskID

    with ExitStack() as stack:
        bar = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
        tasks: dict[str, TaskID] = {}

        def listen(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        stack.enter_context(progress.listening(listen))
        yield


def _lines() -> progress.Listener:
    """Writes a line where enough time has passed since the one before, or since the start."""
    from onnxsparse.cli.training import APART

    last = [time.monotonic()]

    def listen(stage: str, done: int, total: int) -> None:
        if time.monotonic() - last[0] >= APART:
            last[0] = time.monotonic()
            sys.stderr.write(f"{stage}: {done} of {total}\n")
            sys.stderr.flush()

    return listen


@contextmanager
def interruptible(arguments: Namespace) -> Iterator[None]:
    """What an interrupted run leaves, in words."""
    try:
        yield
    except KeyboardInterrupt:
        raise StoppedError(f"interrupted; {_left(arguments)}") from None
    except Stopped:
        if speaks():
            sys.stderr.write(f"onnxsparse: stopped by a signal; {_left(arguments)}\n")
        raise


def _left(arguments: Namespace) -> str:
    if arguments.checkpoint:
        return f"go on with --checkpoint {arguments.checkpoint} --resume"
    return "nothing was kept (with --checkpoint DIR the state would be)"


@contextmanager
def calibrating(arguments: Namespace) -> Iterator[None]:
    """Around a command that may take samples: what functions of the user's print goes to the errors, and whoever ends a
    calibration is told how to go on."""
    if getattr(arguments, "data", None) is None:
        yield
        return
    kept = interruptible(arguments) if hasattr(arguments, "checkpoint") else nullcontext()
    with kept, redirect_stdout(sys.stderr):
        yield
