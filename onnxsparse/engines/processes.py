"""Data-parallel processes that train one model together: the interface, and the case of a single process.

1. Each runs the same program on its own share of every batch. What may differ between machines is decided by the first
   one, and told to the others.
2. The first one alone writes files and speaks. Of an error the first one to meet it speaks, and the others are silent.
3. What is not made for several processes ends in one line where a launcher started several.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from onnxsparse.errors import OptionError

if TYPE_CHECKING:  # who starts the program asks here, before anything large is loaded
    from onnxsparse.math.values import Array

_PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher such as torchrun says to each process."""


class Processes:
    """One process alone; what it would tell the others, it knows."""

    rank, count = 0, 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def mean(self, number: float) -> float:
        """The mean of what each process has."""
        return number

    def total(self, number: float) -> float:
        """The sum of what each process has."""
        return number

    def largest(self, numbers: Sequence[float]) -> list[float]:
        """Of each number the largest that any process has."""
        return list(numbers)

    def told(self, make: Callable[[], Any]) -> Any:
        """What the first process makes, for JSON: the others do not make it."""
        return make()

    def handed(self, make: Callable[[], tuple[Mapping[str, Array], Any]]) -> tuple[Mapping[str, Array], Any]:
        """Arrays and facts that the first process makes."""
        return make()

    def demand_alike(self, facts: Mapping[str, str]) -> None:
        """Every process has to be given the same, whose names these are; called by all of them at the same place."""

    def meet(self) -> None:
        """Go on when all are here."""


def launched() -> int:
    """How many processes a launcher started; 1 where there was none."""
    known = all(os.environ.get(name, "") for name in _PLACE)
    count = os.environ["WORLD_SIZE"] if known else "1"
    return int(count) if count.isdigit() else 1


def is_first() -> bool:
    """Whether this process may write and speak."""
    return launched() == 1 or os.environ["RANK"] == "0"


def is_first_joined() -> bool:
    """The same where the user's own script may have joined the processes; torch is not imported to find out."""
    if "torch" in sys.modules:
        net = importlib.import_module("torch.distributed")
        if net.is_available() and net.is_initialized():
            return bool(net.get_rank() == 0)
    return is_first()


def demand_alone(what: str) -> None:
    """Whatever is one process's work is not done by several at once: they would write the same files.

    `WORLD_SIZE` alone counts here: launchers that say no more than that start several processes, too.
    """
    count = os.environ.get("WORLD_SIZE", "")
    if count.isdigit() and int(count) > 1:
        raise OptionError(
            f"{what} runs in one process, and WORLD_SIZE says that {count} were started; start it without torchrun, or "
            "with WORLD_SIZE unset"
        )


def end_unless_alone(program: str) -> None:
    """For scripts: one line, and exit code 2, where several processes were started."""
    try:
        demand_alone(program)
    except OptionError as error:
        if speaks():
            sys.stderr.write(f"{program}: {error}\n")
        sys.exit(error.exit_code)


QUICKLY = timedelta(seconds=10)
_claims: list[Callable[[], bool]] = []


def speak_by(claim: Callable[[], bool]) -> None:
    """How a process that failed finds out whether it is the one that says so."""
    _claims[:] = [claim]


def speaks() -> bool:
    """Whether this process says what went wrong: of several that fail, one does."""
    if not _claims and launched() > 1:
        with suppress(Exception):  # without torch, or without the others, there is nothing to claim
            importlib.import_module("onnxsparse.engines.torch.distributed").find_store(QUICKLY)
    return _claims[0]() if _claims else is_first()
