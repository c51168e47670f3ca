"""How near onnxruntime's integer kernels are to what a quantized file says, layer by layer and in the whole network.

    python tools/bench/bench_quantize_layers.py MODEL.onnx --data SAMPLES.npy [--target ampere] [--samples 64] [-v]

1. The model is quantized after training, by the least and greatest number of each value on the samples.
2. A *layer* is what lies between two QuantizeLinear nodes of values. Each is cut out, and run on the integers that the
   whole network has there: with all of the runtime's optimizations, and as it is written, in floats with rounding and
   biases in 32 bits. What comes out are integers; they have to be equal, or one step apart.
3. The whole network is run both ways, too: how far its outputs move, in parts of their standard deviation.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, NodeProto, ValueInfoProto
from onnx.helper import make_tensor_value_info

from onnxsparse.calibration.collecting import collect
from onnxsparse.calibration.statistics import Range
from onnxsparse.engines.inference import Session
from onnxsparse.graph.edit import CONTROL_FLOW, copied, reads
from onnxsparse.graph.model import Model
from onnxsparse.math.quantization import from_range, of_weight
from onnxsparse.passes.quantization.float_graph import float_graph
from onnxsparse.passes.quantization.placement import quantization_of
from onnxsparse.passes.quantization.qdq import stored, write_qdq
from onnxsparse.passes.quantization.values import key
from onnxsparse.planning.quantization import AMPERE, ONNXRUNTIME, Scheme

Array = Any
Feed = Mapping[str, Array]


class Layer(NamedTuple):
    """One layer: its operators, how many of its integers are equal, and how many steps apart the others are."""

    name: str
    operators: str
    equal: float
    apart: int


def quantized(model: ModelProto | str, feeds: Sequence[Feed], scheme: Scheme = ONNXRUNTIME) -> ModelProto:
    """A model after training, by the ranges of its values on some feeds."""
    proto, _ = float_graph(Model.open(model))
    found = quantization_of(proto, scheme)
    known = collect(proto, [value.name for value in found.observed], feeds, lambda _: Range())
    params = {
        value.name: from_range(known[value.name].low, known[value.name].high, value.grid) for value in found.observed
    }
    params.update((one.name, of_weight(stored(proto, one.name), one.grid, one.axis)) for one in found.weights)
    write_qdq(proto, found, params)
    return proto


def layers_of(proto: ModelProto, feed: Feed) -> Iterator[Layer]:
    """Every layer of a quantized graph, on the integers that the network has before it."""
    made = {name: node for node in proto.graph.node for name in node.output}
    kept = {tensor.name: tensor for tensor in proto.graph.initializer}
    ends = [node.output[0] for node in proto.graph.node if node.op_type == "QuantizeLinear"]
    values = Session(_giving(proto, ends), optimized=False).run(dict(feed))
    fed = {**values, **feed}
    for end in ends:
        nodes, inputs = _between(end, made, {*ends, *feed})
        if not set(inputs) & set(ends):
            continue  # the quantization of an input of the model
        cut = ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
        cut.graph.name = "layer"
        cut.graph.node.extend(node for node in proto.graph.node if key(node) in nodes)
        if any(node.op_type in CONTROL_FLOW for node in cut.graph.node):
            continue  # onnxruntime 1.19 ends the process over a body that reads what is moved behind DequantizeLinear
        cut.graph.initializer.extend(
            kept[name] for name in {one for node in cut.graph.node for one in reads(node)} & set(kept)
        )
        for name in inputs:
            kind = onnx.helper.np_dtype_to_tensor_dtype(fed[name].dtype)
            cut.graph.input.append(make_tensor_value_info(name, kind, fed[name].shape))
        cut.graph.output.append(ValueInfoProto(name=end))
        given = {name: fed[name] for name in inputs}
        want = Session(cut, optimized=False).run(given)[end].astype(np.int64)
        got = Session(cut).run(given)[end].astype(np.int64)
        names = Counter(node.op_type for node in cut.graph.node if not node.op_type.endswith("uantizeLinear"))
        yield Layer(end, " ".join(sorted(names)), float((want == got).mean()), int(np.abs(want - got).max(initial=0)))


def _between(end: str, made: Mapping[str, NodeProto], ends: set[str]) -> tuple[set[str], list[str]]:
    """The nodes (by their first outputs) before an end, and the integers or inputs that they begin with."""
    nodes, inputs, waiting = set[str](), dict[str, None](), [end]
    while waiting:
        node = made[waiting.pop()]
        if key(node) in nodes:
            continue
        nodes.add(key(node))
        for name in reads(node):
            if name in ends:
                inputs[name] = None
            elif name in made:
                waiting.append(name)
    return nodes, list(inputs)


def _giving(proto: ModelProto, names: Sequence[str]) -> ModelProto:
    copy = copied(proto)
    copy.graph.output.extend(ValueInfoProto(name=name) for name in names)
    return copy


def moved(proto: ModelProto, feed: Feed) -> dict[str, float]:
    """How far the outputs of the whole network move with optimizations, in parts of their standard deviation."""
    plain, fast = Session(proto, optimized=False).run(dict(feed)), Session(proto).run(dict(feed))
    return {name: float(np.abs(plain[name] - fast[name]).max() / (plain[name].std() + 1e-12)) for name in plain}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", required=True, help="an .npy file for the first input")
    parser.add_argument("--target", choices=("", "ampere"), default="")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("-v", "--verbose", action="store_true", help="every layer")
    asked = parser.parse_args(argv)
    name = next(one.name for one in onnx.load(asked.model).graph.input)
    feed = {name: np.load(asked.data)[: asked.samples].astype(np.float32)}
    proto = quantized(asked.model, [feed], AMPERE if asked.target else ONNXRUNTIME)
    layers = list(layers_of(proto, feed))
    for layer in layers if asked.verbose else [one for one in layers if one.equal < 0.999 or one.apart > 1]:
        print(f"{layer.name[:48]:48} {layer.operators:24} {100 * layer.equal:8.4f} % equal, {layer.apart} steps apart")
    worst = min(layers, key=lambda one: one.equal)
    held = all(one.equal >= 0.999 and one.apart <= 1 for one in layers)
    said = "all hold" if held else "NOT all hold"
    counts = f"{len(layers)} layers, the least equal {100 * worst.equal:.4f} %"
    print(f"onnxruntime {onnxruntime.__version__}: {counts}, {said}")
    for output, distance in moved(proto, feed).items():
        print(f"whole network: '{output}' moves by {distance:.4f} standard deviations at most")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
