"""The command line: `main(argv)` runs one command, returns the exit code, and never lets a traceback out.

0   done, or the verification holds
1   a verification failed, or something was left out under --strict (then nothing is written)
2   the user's mistake: one line on stderr says what, where, and what to do
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, NoReturn

from onnxsparse.engines.processes import demand_alone, launched, speaks
from onnxsparse.errors import OnnxSparseError, OptionError, Stopped, command_line, nearest
from onnxsparse.version import __version__

COMMANDS = {
    "inspect": "list every weight, how it is used and what holds it back",
    "plan": "write down what prune would do, to read, edit and pass to --plan",
    "analyze": "tell what zeros cost the outputs, weight by weight and level by level, and where to spend them",
    "channels": "list which channels of the weights may change places, and what blocks the others",
    "permute": "put channels in an order in which N:M pruning costs less; the outputs stay the same",
    "prune": "write zeros into the weights, by a pattern or for a device",
    "mask": "insert mask-multiply nodes; the weights stay as they are",
    "fold": "fold every mask into its weight and remove the nodes",
    "verify": "prove that the zeros fit a pattern, a device or a plan",
    "finetune": "prune, and train what is left on data, with or without labels",
    "recipe": "check a recipe, or show what it does when",
    "levels": "train all levels of a device in one run, and leave a verified file of each",
    "quantize": "make weights and values integers, with scales from samples; every zero stays a zero",
    "oneshot": "prune and round at once by a recipe, from samples: SparseGPT, Wanda, GPTQ",
    "compare": "run a dense and a sparse model and measure how far the outputs are",
    "list": "show every plug-in of every kind with its options",
}

MODULES = {"finetune": "training", "levels": "training", "recipe": "recipe"}
"""Where a command is; the others are in `commands`."""

DISTRIBUTED, WRITES = "finetune", ("plan", "permute", "prune", "mask", "fold", "levels", "quantize", "oneshot")
"""What several processes do together, and what two of them would write twice."""

PAIRED = ("--dim", "--state", "--batch-axis")
"""Options of the form NAME=VALUE, which take one word each."""

LONGEST_LINE = 1000


class Parser(ArgumentParser):
    """One line for a mistake, without the usage block."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(f"{message}; see `{self.prog} --help`")


def build_parser(names: Sequence[str] = tuple(COMMANDS)) -> ArgumentParser:
    """The parser of all commands, or of some: a command's options are only built when it is called."""
    parser = Parser("onnxsparse", description="Makes ONNX models sparse and proves that the zeros fit the hardware.")
    parser.add_argument("--version", action="version", version=f"onnxsparse {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name in COMMANDS:
        command = commands.add_parser(
            name, help=COMMANDS[name], description=COMMANDS[name][:1].upper() + COMMANDS[name][1:] + "."
        )
        if name in names:
            module = importlib.import_module(f"onnxsparse.cli.{MODULES.get(name, 'commands')}")
            command.set_defaults(run=module.add_arguments(name, command))
            _add_shared(command)
    return parser


def _add_shared(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("output").add_mutually_exclusive_group()
    group.add_argument("-q", "--quiet", action="store_true", help="print nothing but what is wrong")
    group.add_argument("-v", "--verbose", action="store_true", help="name every layer and every weight")
    parser.add_argument("--debug", action="store_true", help=SUPPRESS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    return guarded("onnxsparse", _run, argv)


def guarded(program: str, run: Callable[[list[str]], int], argv: Sequence[str] | None) -> int:
    """The exit code of a program: whatever goes wrong in it, and whatever signal ends it, is one line."""
    words = list(sys.argv[1:] if argv is None else argv)
    _print_anything()
    if launched() > 1:  # that another process is gone is said in one line, not in those of torch's libraries
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    with command_line(), _stopping_cleanly():
        code = _code_of(program, run, words)
    if code and argv is None and launched() > 1:
        _end_at_once(code)
    return code


def _end_at_once(code: int) -> NoReturn:
    """Without the interpreter's own end: what waits for a process that is gone may abort it there, loudly."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _code_of(program: str, run: Callable[[list[str]], int], words: list[str]) -> int:
    fail = partial(_fail, program, words)
    try:
        return run(words)
    except OnnxSparseError as error:
        return fail(error.exit_code, str(error))
    except KeyboardInterrupt:
        return fail(130, "interrupted; nothing was written")
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except MemoryError:
        return fail(2, "not enough memory for this model")
    except RecursionError:
        return fail(2, "the model is nested too deep")
    except OSError as error:
        return fail(2, f"{error.filename or 'file'}: {error.strerror or error}")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    except Exception as error:  # a defect of ours still gives one line; --debug shows the rest
        return fail(2, f"internal error ({type(error).__name__}: {error}); please report it with the model")


def _not_taken(name: str, words: Sequence[str], unknown: Sequence[str]) -> str:
    """What is left over on the command line, and the likely reason."""
    pairs = next((option for option in PAIRED if option in words), None) if "=" in unknown[0] else None
    hint = f"; several of {pairs} have commas between them, or {pairs} before each" if pairs else ""
    return f"unrecognized arguments: {' '.join(unknown)[:200]}{hint}; see `onnxsparse {name}{' ' * bool(name)}--help`"


def _run(words: list[str]) -> int:
    name = next((word for word in words if not word.startswith("-")), "")
    if name and name not in COMMANDS:
        raise OptionError(f"unknown command {name[:40]!r}{nearest(name, COMMANDS) or ' (see `onnxsparse --help`)'}")
    parser = build_parser((name,) if name else ())
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        raise OptionError(_not_taken(name, words, unknown))
    if not arguments.command:
        parser.print_help()
        return 0
    from onnxsparse.cli.arguments import check_report_target  # the help of the program does not wait for options

    check_report_target(arguments)
    reports = getattr(arguments, "json", None) not in (None, "-")
    if arguments.command in WRITES or (reports and arguments.command != DISTRIBUTED):
        demand_alone(arguments.command)
    code: int = arguments.run(arguments)
    return code


def _fail(program: str, words: list[str], code: int, message: str) -> int:
    if "--debug" in words:
        import traceback

        traceback.print_exc()
    with suppress(ValueError):  # whoever ends the others as soon as one fails would end the one that says why
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not speaks():
        return code
    with suppress(OSError):  # nobody can be told
        print(f"{program}: {_one_line(message)}", file=sys.stderr, flush=True)  # noqa: T201 - the one line
    return code


def _one_line(message: str) -> str:
    """Names from a file may hold anything; what cannot be printed is spelled out."""
    text = " ".join(message.split())
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return shown if len(shown) <= LONGEST_LINE else shown[:LONGEST_LINE] + " ..."


def _print_anything() -> None:
    """A name that the terminal cannot show is spelled out instead of ending the command."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for the rest of the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _stopping_cleanly() -> Iterator[None]:
    """SIGTERM ends the process through the cleanup of half-written files; after that, at once."""

    def stop(number: int, _: FrameType | None) -> NoReturn:
        raise Stopped(128 + number)

    before: dict[int, Any] = {}
    with suppress(ValueError):  # not in the main thread: the caller handles signals
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


__all__ = ["COMMANDS", "Namespace", "Parser", "build_parser", "guarded", "main"]
