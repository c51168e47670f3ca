"""What the engine raises, in words: its own types say where in its sources it was."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from onnxsparse.errors import ModelError, OnnxSparseError
from onnxsparse.math.values import Array

LONGEST = 200
SHOWN = 3
_NODE = re.compile(r"running (\w+) node\. Name:'([^']*)'")
_NOISE = (
    r"\[ONNXRuntimeError\] : \d+ : (?:[A-Z_]+ : )?(?:Exception during initialization: )?",
    r".*Status Message: ",
    r".*?/\S+?\.(?:cc|h|cpp|cu):\d+ (?:.*?::.*?\)(?: const)? )?",  # a place in its sources, and a function of C++
)


LOAD = "; if it was made by another version, begin anew in an empty folder"
LOOK = "; correct these samples or leave them out"


@contextmanager
def told(doing: str, advice: str) -> Iterator[None]:
    """An error of the engine becomes one line; our own and those of the system stay as they are."""
    try:
        yield
    except (OnnxSparseError, MemoryError, OSError):
        raise
    except Exception as error:  # the engine raises types of its own for each kind of refusal
        raise ModelError(f"the training engine cannot {doing}: {short(error)}{advice}") from error


def batch_of(rows: Array | None) -> str:
    """A batch in words."""
    if rows is None or not len(rows):
        return "a batch of the data"
    some = ", ".join(map(str, rows[:SHOWN].tolist()))
    return f"the batch of samples {some}{', ...' if len(rows) > SHOWN else ''} (counted from 0)"


def short(error: object) -> str:
    """What an engine's message says, and of which node."""
    text = " ".join(str(error).split())
    node = _NODE.search(text)
    for noise in _NOISE:
        text = re.sub(noise, "", text, count=1)
    name = f" '{node[2]}'" if node and node[2] else ""
    return (f"{node[1]}{name}: " if node else "") + text[:LONGEST]
