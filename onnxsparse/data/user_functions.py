"""Importing functions that the user names as `module:function`. A name from a file never comes here."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from onnxsparse.errors import OnnxSparseError, OptionError, Stopped, nearest

NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def names_function(text: str) -> bool:
    """Whether a text has the form `module:function`."""
    return NAME.fullmatch(text) is not None


def import_function(text: str) -> Callable[..., Any]:
    """The function of a module that can be imported from here; the current folder comes first, as with `python -m`."""
    module, _, name = text.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except Stopped:
        raise
    except (Exception, SystemExit) as error:
        raise OptionError(f"{text}: the module {module} cannot be imported: {told(error)}{_hint(module)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise OptionError(f"{text}: {module} has no '{name}'{nearest(name, _functions(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise OptionError(f"{text} is not a function")
    checked: Callable[..., Any] = found
    return checked


def _hint(module: str) -> str:
    if module.endswith(".py"):
        return f" (name the module as `import` does: {module[:-3]})"
    return ""


def _functions(module: Any) -> list[str]:
    return [name for name, value in vars(module).items() if callable(value)] if hasattr(module, "__dict__") else []


@contextmanager
def running(called: str) -> Iterator[None]:
    """Whatever a function of the user's raises is one line with the place of it."""
    try:
        yield
    except (OnnxSparseError, Stopped):
        raise
    except (Exception, SystemExit) as error:
        raise OptionError(f"{called} failed: {told(error)}{_place(error)}") from error


def told(error: BaseException) -> str:
    """The kind and the message of an error, on one line."""
    message = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _place(error: BaseException) -> str:
    """The last line outside this package and whatever is installed: the user's own, as a rule."""
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    own = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(sys.base_prefix)]
    found = (own or frames)[-1:]
    return f" ({os.path.basename(found[0].filename)}, line {found[0].lineno})" if found else ""
