"""What masks cost: renewed while training, beside `np.copyto` of the same numbers; or put into a graph, and folded.

    OMP_NUM_THREADS=1 python tools/bench/bench_masks.py [--millions 10] [--repeats 5] [--markdown]
    OMP_NUM_THREADS=1 python tools/bench/bench_masks.py --weights 3000 [--markdown]

A renewal scores the weights, chooses, writes float masks and zeros the weights. Every number is the least CPU time of
several runs from the same start: weights that an optimizer has moved, hidden ones too, under the masks of before.
`--weights` makes models with that many small weights, and twice as many, and has their masks put in, folded and
dropped, from file to file: CPU seconds, and how much more twice as many take.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import onnxsparse as osp
from onnxsparse import patterns, scores
from onnxsparse.sparsers.mask_updates import Choice, exchange, renew

Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]
MAGNITUDE = scores.parse("magnitude")


class Layout(NamedTuple):
    """Stored axes, and which of them are group, out, in and tap."""

    sizes: tuple[int, ...]
    roles: tuple[tuple[int, ...], ...]

    @property
    def order(self) -> list[int]:
        return [axis for role in self.roles for axis in role]

    def matrix(self, flat: Array) -> Array:
        shape = [int(np.prod([self.sizes[axis] for axis in role], dtype=int)) for role in self.roles]
        return flat.reshape(self.sizes).transpose(self.order).reshape(shape)

    def restore(self, matrix: Array) -> Array:
        return matrix.reshape([self.sizes[axis] for axis in self.order]).transpose(np.argsort(self.order)).reshape(-1)


class Case(NamedTuple):
    """A line of the table: the sparsity before and the one that is asked for."""

    pattern: str
    before: float | None
    after: float | None
    share: float = 0.0

    @property
    def name(self) -> str:
        if self.after is None:
            return self.pattern
        step = f"{self.pattern} {self.before:.0%} to {self.after:.0%}"
        return f"{step}, {self.share:.0%} exchanged" if self.share else step


CASES = [
    Case("unstructured", 0.0, 0.8),
    Case("unstructured", 0.78, 0.8),
    Case("unstructured", 0.8, 0.8),
    Case("unstructured", 0.8, 0.7),
    Case("2:4", None, None),
    Case("block:4x1", 0.78, 0.8),
    Case("filter", 0.48, 0.5),
    Case("unstructured", 0.8, 0.8, 0.1),
]


class Weight(NamedTuple):
    """The numbers of a weight and its mask at the start, the arrays that are renewed, and how it is chosen."""

    start: Array
    kept: Array
    number: Array
    mask: Array
    choice: Choice

    def rewind(self) -> None:
        np.copyto(self.number, self.start)
        np.copyto(self.mask, self.kept)


def one_tensor(millions: float) -> list[Layout]:
    """All numbers in one linear layer."""
    return [Layout((int(millions * 1e6) // 1024, 1024), ((), (0,), (1,), ()))]


def many_tensors(millions: float) -> list[Layout]:
    """About fifty tensors: 3x3 and 1x1 convolutions, linear layers, matrix products, depthwise and small ones."""
    scale = float(np.sqrt(millions / 10))
    wide, small = (max(8, int(width * scale) // 8 * 8) for width in (256, 64))
    conv3 = Layout((wide, wide, 3, 3), ((), (0,), (1,), (2, 3)))
    conv1 = Layout((2 * wide, wide, 1, 1), ((), (0,), (1,), (2, 3)))
    product = Layout((2 * wide, 4 * wide), ((), (1,), (0,), ()))
    linear = Layout((wide, wide), ((), (0,), (1,), ()))
    stem = Layout((small, small, 3, 3), ((), (0,), (1,), (2, 3)))
    depthwise = Layout((wide, 1, 3, 3), ((0,), (), (1,), (2, 3)))
    return [conv3] * 10 + [conv1] * 10 + [product] * 5 + [linear] * 10 + [stem] * 10 + [depthwise] * 5


def main() -> None:
    """Print the tables."""
    options = _options()
    if options.weights:
        _graphs(options)
        return
    for layouts in (one_tensor(options.millions), many_tensors(options.millions)):
        size = sum(int(np.prod(layout.sizes)) for layout in layouts)
        print(f"{size / 1e6:.1f} million numbers in {len(layouts)} tensors")
        _line(options.markdown, "case", "ms", "copyto x")
        if options.markdown:
            _line(True, "---", "---:", "---:")
        for case in CASES:
            spent, copied = _measured(
                case, [_weight(layout, case, seed) for seed, layout in enumerate(layouts)], options
            )
            _line(options.markdown, case.name, f"{spent * 1e3:.1f}", f"{spent / copied:.1f}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--millions", type=float, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--weights", type=int, default=0, help="measure mask and fold of so many weights instead")
    parser.add_argument("--markdown", action="store_true")
    return parser.parse_args()


def _weight(layout: Layout, case: Case, seed: int) -> Weight:
    """A weight under the mask of before, moved since."""
    generator, size = np.random.default_rng(seed), int(np.prod(layout.sizes))
    number, mask = generator.standard_normal(size, dtype=np.float32), np.full(size, 1, np.float32)
    renew(number, mask, _choice(layout, case.pattern, case.before))
    number += 0.01 * generator.standard_normal(size, dtype=np.float32)
    return Weight(number.copy(), mask.copy(), number, mask, _choice(layout, case.pattern, case.after))


def _choice(layout: Layout, text: str, sparsity: float | None) -> Choice:
    pattern = patterns.parse(text)
    shape = layout.matrix(np.empty(layout.sizes, np.float32).reshape(-1)).shape
    return Choice(pattern, MAGNITUDE, pattern.drop_count(shape, sparsity), layout.matrix, layout.restore)


def _measured(case: Case, weights: list[Weight], options: argparse.Namespace) -> tuple[float, float]:
    """The time to renew all weights, and to copy them."""

    def work() -> None:
        for weight in weights:
            if case.share:
                exchange(weight.number, weight.mask, weight.start, weight.choice, case.share)
            else:
                renew(weight.number, weight.mask, weight.choice)

    def copy() -> None:
        for weight in weights:
            np.copyto(weight.number, weight.start)

    return _least(work, weights, options.repeats), _least(copy, weights, options.repeats)


def _least(work: Callable[[], None], weights: list[Weight], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        for weight in weights:
            weight.rewind()
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


# -- masks in a graph


def _chain(count: int) -> onnx.ModelProto:
    """One layer after the other."""
    nodes = [make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(count)]
    return _whole(nodes, [f"x{count}"], count)


def _fan(count: int) -> onnx.ModelProto:
    """All layers side by side, and every result an output."""
    nodes = [make_node("MatMul", ["x0", f"w{i}"], [f"y{i}"]) for i in range(count)]
    return _whole(nodes, [f"y{i}" for i in range(count)], count)


def _tied(count: int) -> onnx.ModelProto:
    """One weight that so many layers read."""
    nodes = [make_node("MatMul", [f"x{i}", "w0"], [f"x{i + 1}"]) for i in range(count)]
    return _whole(nodes, [f"x{count}"], 1)


def _whole(nodes: list[onnx.NodeProto], outputs: list[str], weights: int) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    numbers = random.standard_normal((weights, 16, 16), dtype=np.float32)
    stored = [onnx.numpy_helper.from_array(number, f"w{i}") for i, number in enumerate(numbers)]
    ends = [make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 16]) for name in ["x0", *outputs]]
    graph = make_graph(nodes, "graph", ends[:1], ends[1:], stored)
    return make_model(graph, ir_version=8, opset_imports=[make_opsetid("", 17)])


def _graphs(options: argparse.Namespace) -> None:
    few, many = options.weights, 2 * options.weights
    _line(options.markdown, "case", f"{few}, s", f"{many}, s", "x")
    if options.markdown:
        _line(True, "---", "---:", "---:", "---:")
    for name, made in (("chain", _chain), ("side by side", _fan), ("one weight, many readers", _tied)):
        spent = [_cycle(made(count), options.repeats) for count in (few, many)]
        for (step, one), two in zip(spent[0].items(), spent[1].values()):
            _line(options.markdown, f"{name}: {step}", f"{one:.2f}", f"{two:.2f}", f"{two / one:.2f}")


def _cycle(model: onnx.ModelProto, repeats: int) -> dict[str, float]:
    """The least CPU time of each step."""
    with tempfile.TemporaryDirectory() as folder:
        dense, masked, out = (os.path.join(folder, name) for name in ("dense.onnx", "masked.onnx", "out.onnx"))
        onnx.save(model, dense)
        steps: dict[str, Callable[[], object]] = {
            "mask": lambda: osp.insert_masks(dense, output=masked, pattern="2:4", overwrite=True),
            "fold": lambda: osp.fold_masks(masked, output=out, overwrite=True),
            "fold --discard": lambda: osp.fold_masks(masked, output=out, discard=True, overwrite=True),
        }
        return {name: min(_seconds(step) for _ in range(repeats)) for name, step in steps.items()}


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _line(markdown: bool, *cells: str) -> None:
    padded = [cell.ljust(width) for cell, width in zip(cells, (48, 8, 9, 5))]
    print("| " + " | ".join(padded) + " |" if markdown else "  ".join(padded), flush=True)


if __name__ == "__main__":
    main()
