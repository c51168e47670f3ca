"""What selecting, erasing and checking cost, as multiples of `np.copyto` of the same array.

    OMP_NUM_THREADS=1 python tools/bench/bench_kernels.py [--megabytes 64] [--repeats 5] [--only TEXT] [--markdown]

Every number is the least CPU time of several runs; arrays are at least as large as asked, the destination was touched.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from onnxsparse import patterns, scores
from onnxsparse.math.values import Reading, Values

Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]
MAGNITUDE = scores.parse("magnitude")


class Case(NamedTuple):
    """A stored layout: how many elements per leading row, and the (group, out, in, tap) view of the flat array."""

    name: str
    row: int
    view: Callable[[Array], Array]
    prune_bar: float = 10


LAYOUTS = [
    Case("Linear (N, 4096)", 4096, lambda flat: flat.reshape(1, -1, 4096, 1)),
    Case("Linear (N, 4095) ragged", 4095, lambda flat: flat.reshape(1, -1, 4095, 1)),
    Case("MatMul (K, 4096)", 4096 * 64, lambda flat: flat.reshape(1, -1, 4096, 1).transpose(0, 2, 1, 3)),
    Case("MatMul (K, 50257)", 50257 * 4, lambda flat: flat.reshape(1, -1, 50257, 1).transpose(0, 2, 1, 3)),
    Case("Conv 1x1 (O, 512, 1, 1)", 512, lambda flat: flat.reshape(1, -1, 512, 1)),
    Case("Conv 3x3 (O, 512, 3, 3)", 512 * 9, lambda flat: flat.reshape(1, -1, 512, 9), 15),
    Case("Conv 3x3 (O, 6, 3, 3) ragged", 54, lambda flat: flat.reshape(1, -1, 6, 9), 15),
    Case(
        "Conv 3x3 (3, 3, I, 512) HWIO", 9 * 512 * 4, lambda flat: flat.reshape(1, 9, -1, 512).transpose(0, 3, 2, 1), 15
    ),
]
DATA = ["random", "-3..3", "all equal", "zeros"]


def main() -> None:
    """Print the table."""
    options = _options()
    _line(
        options.markdown,
        "layout",
        "kind",
        "data",
        "pattern",
        "prune x",
        "select x",
        "check x",
        "check dense x",
        "ns",
        "bar",
    )
    for kind, data, case, pattern in _cases():
        if options.only not in pattern:
            continue
        flat = _numbers(case.row, options.megabytes, kind, data)
        cells = _measured(case.view(flat), kind, pattern, options.repeats)
        _line(options.markdown, case.name, kind, data, pattern, *cells, f"{case.prune_bar:.0f}x, 3x")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", metavar="TEXT", default="", help="patterns that this is a part of")
    parser.add_argument("--markdown", action="store_true")
    return parser.parse_args()


def _cases() -> Iterator[tuple[str, str, Case, str]]:
    for case in LAYOUTS:
        yield from (("float32", data, case, "2:4") for data in DATA)
        yield "float16", "random", case, "2:4"
    for kind in ("bfloat16", "float64", "int8"):
        yield kind, "random", LAYOUTS[0], "2:4"
    for pattern in ("1:2", "4:8", "5:32", "unstructured", "block:4x1", "filter"):
        yield "float32", "random", LAYOUTS[0], pattern
    for data in DATA:
        yield "float32", data, LAYOUTS[5], "unstructured"
    for case in (LAYOUTS[0], LAYOUTS[2], LAYOUTS[5]):
        yield from (("float32", "random", case, f"2:4:transposable{way}") for way in ("", "-greedy"))
    yield from (("float32", "random", LAYOUTS[0], f"{ratio}:transposable") for ratio in ("4:8", "8:16"))


def _numbers(row: int, megabytes: int, kind: str, data: str) -> Array:
    dtype = Reading(kind).stored_dtype
    count = -(-megabytes * (1 << 20) // dtype.itemsize // row) * row
    generator = np.random.default_rng(0)
    if data == "random":
        numbers = generator.standard_normal(count, dtype=np.float32) * (40 if kind == "int8" else 1)
    elif data == "-3..3":
        numbers = generator.integers(-3, 4, count).astype(np.float32)
    else:
        numbers = np.full(count, 1.5 if data == "all equal" else 0, np.float32)
    return (numbers.view(np.uint32) >> np.uint32(16)).astype(np.uint16) if kind == "bfloat16" else numbers.astype(dtype)


def _measured(view: Array, kind: str, text: str, repeats: int) -> list[str]:
    pattern, values = patterns.parse(text), Values(view, Reading(kind))
    drop = pattern.drop_count(view.shape, 0.7)
    out = np.empty_like(view)
    out[...] = 1
    flat, target = view.ravel(order="K"), out.ravel(order="K").copy()
    copy = _seconds(lambda: np.copyto(target, flat), repeats)
    prune = _seconds(lambda: pattern.prune(values, MAGNITUDE, drop, out), repeats)
    select = _seconds(lambda: pattern.select(values, MAGNITUDE, drop), repeats)
    check = _seconds(lambda: pattern.check(Values(out, Reading(kind)), drop), repeats)
    dense = _seconds(lambda: pattern.check(values, drop), repeats)
    ratios = [f"{seconds / copy:.2f}" for seconds in (prune, select, check, dense)]
    return [*ratios, f"{prune / view.size * 1e9:.2f}"]


def _seconds(work: Callable[[], object], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def _line(markdown: bool, *cells: str) -> None:
    widths = (30, 9, 10, 23) + (9,) * 6
    padded = [cell.ljust(width) for cell, width in zip(cells, widths)]
    print("| " + " | ".join(padded) + " |" if markdown else "  ".join(padded), flush=True)


if __name__ == "__main__":
    main()
