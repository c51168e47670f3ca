"""Holds the torch functions of the operators against the node tests that come with onnx, and writes the result down.

    python tools/bench/conformance_torch.py [TABLE.md]

Counted are the cases of one node, of an operator that there is a function for, with float32 in and out. Each failure
has to have its reason in REASONS.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnxsparse.engines.processes import end_unless_alone
from onnxsparse.engines.rounding import computes_with_integers
from onnxsparse.engines.torch import operators
from onnxsparse.engines.torch.convert import to_module
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.supported_operators import domain_of

REASONS = {
    "test_bernoulli*": "random numbers of another generator",
    **dict.fromkeys(
        ("test_castlike_*INT4*", "test_castlike_*INT2*", "test_castlike_FLOAT4E2M1*"),
        "torch has no tensors of this type",
    ),
    "test_resize_downsample_scales_*_align_corners": "corners are those of the output's whole size, "
    "as in torch, onnxruntime and the text of the schema; the case counts with a fraction",
    "test_training_dropout*": "Dropout is the identity here, also where the node asks for training",
}
# What these expect in onnx 1.19, the last one for Python 3.9, was put right later.
CORRECTED = ("test_attention_*_qk_matmul_bias*", "test_attention_*_qk_matmul_softcap*", "test_l2normalization_axis_0")
if tuple(int(part) for part in onnx.__version__.split(".")[:2]) < (1, 23):
    REASONS.update(dict.fromkeys(CORRECTED, "a newer onnx expects something else of the same case"))
TOLERANCE = 2e-4  # of the output's range: some expected numbers are written with four digits
_NARROW = {name: name for name in ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")}


@dataclass(frozen=True)
class Outcome:
    name: str
    operator: str
    problem: str  # empty where the outputs agree

    @property
    def reason(self) -> str:
        return next((text for pattern, text in REASONS.items() if fnmatch(self.name, pattern)), "")


def cases() -> Iterator[Any]:
    """The cases that count."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        found = collect_testcases(None)
    yield from (case for case in found if _counts(case.model))


def _counts(model: Any) -> bool:
    graph = model.graph
    return len(graph.node) == 1 and _ours(graph.node[0]) and _float(graph.input) and _float(graph.output)


def _ours(node: onnx.NodeProto) -> bool:
    domain = domain_of(node)
    if computes_with_integers(node):
        return False
    control = domain == "" and node.op_type in operators.CONTROL
    return control or (domain, node.op_type) in operators.table()


def _float(entries: Any) -> bool:
    return any(entry.type.tensor_type.elem_type == TensorProto.FLOAT for entry in entries)


def run(case: Any) -> Outcome:
    operator = case.model.graph.node[0].op_type
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Outcome(case.name, operator, _compared(case))
    except Exception as error:  # whatever it is, it is the result of the case
        problem = f"{type(error).__name__}: {error}".splitlines()[0].split(". ")[0]
        return Outcome(case.name, operator, problem)


def _compared(case: Any) -> str:
    module = to_module(case.model)
    for inputs, outputs in case.data_sets:
        with torch().no_grad():
            found = module(*(_tensor(value) for value in inputs))
        found = found if isinstance(found, tuple) else (found,)
        for entry, got, wanted in zip(case.model.graph.output, found, outputs):
            problem = difference(got, _array(wanted))
            if problem:
                return f"output '{entry.name}': {problem}"
    return ""


def _tensor(value: Any) -> Any:
    if isinstance(value, list):
        return [_tensor(one) for one in value]
    array = _array(value)
    if array is None:
        return None
    array = np.array(array)
    if array.dtype.name in _NARROW:
        return torch().from_numpy(array.view(f"i{array.itemsize}")).view(getattr(torch(), _NARROW[array.dtype.name]))
    return torch().from_numpy(array)


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return value


def difference(got: Any, wanted: Any) -> str:
    """What is different, in words; numbers may differ by a part of the output's range."""
    if isinstance(wanted, list):
        return next((text for one, other in zip(got, wanted) if (text := difference(one, other))), "")
    mine = got.detach().numpy()
    if mine.shape != wanted.shape or mine.dtype != wanted.dtype:
        return f"{mine.dtype}{list(mine.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
    if not wanted.size or np.array_equal(mine, wanted):
        return ""
    exact, own = wanted.astype(np.float64), mine.astype(np.float64)
    finite = np.isfinite(exact)
    if not np.array_equal(exact[~finite], own[~finite], equal_nan=True):
        return "infinities or NaN in other places"
    largest = np.abs(exact[finite]).max(initial=1e-3)
    worst = float(np.abs(exact - own)[finite].max(initial=0) / largest)
    return f"off by {worst:.1e} of the range" if not worst <= TOLERANCE else ""


def table(outcomes: list[Outcome]) -> str:
    failed = [one for one in outcomes if one.problem]
    passed = len(outcomes) - len(failed)
    lines = [
        "# The operators in torch, against the node tests of onnx",
        "",
        f"Written by `tools/bench/conformance_torch.py` with onnx {onnx.__version__}.",
        "Of the cases with one node, of an operator that has a function, with float32 in and out,",
        f"**{passed} of {len(outcomes)} pass ({passed / len(outcomes):.1%})**.",
        "",
        "| case that fails | operator | what is different | reason |",
        "|---|---|---|---|",
        *(f"| `{one.name}` | {one.operator} | {one.problem} | {one.reason or 'NOT EXPLAINED'} |" for one in failed),
        "",
        "| operator | cases | pass |",
        "|---|---|---|",
    ]
    for name in sorted({one.operator for one in outcomes}):
        own = [one for one in outcomes if one.operator == name]
        lines.append(f"| {name} | {len(own)} | {sum(not one.problem for one in own)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    end_unless_alone("conformance_torch")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch().set_num_threads(1)
    outcomes = [run(case) for case in cases()]
    failed = [one for one in outcomes if one.problem]
    for one in failed:
        print(f"{one.name:60} {one.problem}")
    print(f"{len(outcomes) - len(failed)} of {len(outcomes)} pass")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(table(outcomes), encoding="utf-8")
    sys.exit(any(not one.reason for one in failed))


if __name__ == "__main__":
    main()
