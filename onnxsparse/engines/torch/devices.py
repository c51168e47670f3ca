"""Where the tensors are, and in which precision they are multiplied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import ModelError, OptionError

PRECISIONS = ("float32", "bfloat16", "float16")


@contextmanager
def in_words(doing: str) -> Iterator[None]:
    """What torch cannot do, in one line."""
    try:
        yield
    except torch().OutOfMemoryError as error:
        raise OptionError(
            f"the memory of the device is not enough to {doing}; take a smaller --batch-size, and --accumulate to make "
            "up for it"
        ) from error
    except (RuntimeError, IndexError, ValueError) as error:
        said = str(error).strip().splitlines()
        raise ModelError(f"torch cannot {doing}: {said[0] if said else type(error).__name__}") from error


def device_of(text: str) -> Any:
    """A device by the name that torch has for it, once it was seen to be there."""
    try:
        device = torch().device(text)
        if device.type != "meta":
            torch().zeros(1, device=device).cpu()
            return device
    except Exception:  # each kind of device says in its own way that it is not there
        device = None
    why = "'meta' holds no numbers" if device is not None else f"there is no device {text!r:.40} here"
    raise OptionError(f"{why}; --device is one of {', '.join(here())}")


def here() -> list[str]:
    """The devices of this machine."""
    found = ["cpu"]
    for kind in ("cuda", "xpu"):
        library = getattr(torch(), kind, None)
        if library is not None and library.is_available():
            found += [kind, *(f"{kind}:{number}" for number in range(library.device_count()))]
    return [*found, "mps"] if torch().backends.mps.is_available() else found


def narrowed(device: Any, precision: str) -> Any:
    """Within this, matrices are multiplied in half precision, and what needs more is not."""
    if precision == "float32":
        return torch().autocast(device.type, enabled=False)
    return torch().autocast(device.type, dtype=getattr(torch(), precision))
