"""The report of a quantization: for each weight what became of it, and what all of it came to."""

from __future__ import annotations

import platform
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnx import ModelProto

from onnxsparse import patterns
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Weight
from onnxsparse.passes.quantization.values import key
from onnxsparse.planning.quantization import Quantization, QuantizedWeight
from onnxsparse.planning.recorded import Recorded, readable
from onnxsparse.planning.rows import of_one_run, plain_row, sparse_bytes, totals_of, with_macs
from onnxsparse.planning.stored_params import count_zeros
from onnxsparse.report.rows import DENSE, Report, Row

QUANTIZED, FLOAT = "quantized", "float"
CPU = "/proc/cpuinfo"
PACKED_UP_TO = 1 << 28
"""Bytes of a file up to which it is said how large it is in an archive: packing more takes longer than it tells."""


def quantization_report(
    model: Model, quantization: Quantization, called: str, title: str, notes: Sequence[str], output: str | None
) -> Report:
    """Of a float model, before its weights are integers."""
    own = {weight.name: weight for weight in quantization.weights}
    known = readable(model)
    found = [_row(weight, own.get(weight.tensor.name), known) for weight in model.weights]
    rows, sized = with_macs(with_reasons(found, model.weights, model.proto, quantization.left), model.weights, model)
    remarks = (*notes, *of_one_run(model, rows))
    totals = totals_of(rows, model, {QUANTIZED}, sized)
    return Report("quantize", called, title, tuple(rows), totals, True, output or "", remarks)


def with_reasons(
    rows: Sequence[Row], weights: Sequence[Weight], proto: ModelProto, left: Mapping[str, str]
) -> tuple[Row, ...]:
    """The rows with the reasons of those that stay float; `left` has them by nodes."""
    readers, named = _readers(proto), {weight.name: weight for weight in weights}

    def why(row: Row) -> str:
        said = [row.reason, _why_float(named[row.name], readers, left)] if row.name in named else [row.reason]
        return "; float: ".join(filter(None, said))

    return tuple(row if row.quantized else replace(row, reason=why(row)) for row in rows)


def _row(weight: Weight, found: QuantizedWeight | None, known: Recorded | None) -> Row:
    row, zeros = plain_row(weight, FLOAT if found is None else QUANTIZED), count_zeros(weight)
    row = replace(row, zeros=zeros, zeros_before=zeros, pattern=_pattern(weight, known))
    if found is None:
        return row
    pattern = None if row.pattern == DENSE else patterns.parse(row.pattern)
    whole = -(-row.size * found.grid.bits // 8)
    size = sparse_bytes(pattern, weight.uses[0].shape4, row.size, zeros or 0, whole) if weight.uses else whole
    return replace(row, quantized=how(found), bytes_sparse=size)


def how(weight: QuantizedWeight) -> str:
    """The integers, and how many numbers share a scale."""
    if weight.block:
        return f"{weight.grid.text}, blocks of {weight.block}"
    return f"{weight.grid.text}, {'per tensor' if weight.axis is None else f'axis {weight.axis}'}"


def _pattern(weight: Weight, known: Recorded | None) -> str:
    text = known.pruned.get(weight.name, (DENSE, 0))[0] if known else DENSE
    try:
        return text if text == DENSE else patterns.parse(text).text
    except OptionError:  # of a plug-in that is not installed
        return DENSE


def _readers(proto: ModelProto) -> dict[str, list[str]]:
    """The nodes that read a name, by their first outputs."""
    found: dict[str, list[str]] = {}
    for node in proto.graph.node:
        for name in node.input:
            found.setdefault(name, []).append(key(node))
    return found


def _why_float(weight: Weight, readers: Mapping[str, Sequence[str]], left: Mapping[str, str]) -> str:
    told = [left[one] for one in _nodes_of(weight, readers) if one in left]
    if told:
        return told[0]
    if weight.tensor.kind != "float32":
        return f"it is {weight.tensor.kind}, and float32 is what is quantized"
    if weight.scope:
        return "it stands in a body or function of the graph"
    if not weight.uses:
        return "no layer reads it as a weight"
    if weight.tensor.name not in weight.uses[0].source.input:
        return f"it reaches {weight.uses[0].op} through other nodes, and what is computed stays float"
    return f"{weight.uses[0].op} reads it, which is not quantized"


def layers_left(model: Model, quantization: Quantization) -> dict[str, str]:
    """Why layers that have no weight of their own are not quantized, by their first outputs."""
    readers = _readers(model.proto)
    weighted = {node for weight in model.weights for node in _nodes_of(weight, readers)}
    return {name: reason for name, reason in quantization.left.items() if name not in weighted}


def _nodes_of(weight: Weight, readers: Mapping[str, Sequence[str]]) -> list[str]:
    return [*readers.get(weight.tensor.name, ()), *(key(use.source) for use in weight.uses)]


def with_sizes(report: Report, before: Model, after: Model) -> Report:
    """The report with the sizes of both models, plain and zipped."""
    sizes = {"file_bytes_before": before.file_size, "file_bytes": after.file_size}
    small = max(sizes.values()) <= PACKED_UP_TO
    packed = {"zipped_bytes_before": _packed(before), "zipped_bytes": _packed(after)} if small else {}
    return replace(report, details={**report.details, **sizes, **packed})


def _packed(model: Model) -> int:
    return len(zlib.compress(model.copy_proto().SerializeToString()))


def saturation_note(full_range: bool) -> list[str]:
    """What is said on a CPU that adds products of 8 bits in 16, where the whole range of both is used."""
    if not full_range or platform.machine() not in ("x86_64", "AMD64"):
        return []
    try:
        with open(CPU, encoding="utf-8") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return []
    words = ("avx512_vnni", "avx_vnni", "amx_int8")
    if not flags or any(word in flags.split() for word in words):
        return []
    return ["this CPU has neither VNNI nor AMX, and may saturate sums of 8-bit products: --reduce-range avoids that"]
