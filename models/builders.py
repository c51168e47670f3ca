"""Models of the size of well-known networks, with seeded random weights: what the benchmarks and large tests run on.

    python models/builders.py FOLDER [resnet50 bert external single ...]

| name     | what it is                                                         | file                  |
|----------|--------------------------------------------------------------------|-----------------------|
| resnet50 | ResNet-50 with the normalisation folded: Conv, Relu, Add, Gemm      | 102 MB                |
| bert     | the encoder of BERT-base: MatMul, Add, LayerNormalization, Softmax  | 340 MB                |
| external | a chain of 60 MatMul of 4096 x 4096: one billion weights            | 4.03 GB external data |
| single   | the same with 28 and a head, in one file close to protobuf's limit  | 1.90 GB               |

The last two are written tensor by tensor and never held in memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, save

Array = np.ndarray[Any, Any]
OPSET = 17
IR_VERSION = 8
WIDTH = 4096


class Builder:
    """Collects the nodes and weights of one graph; every weight is drawn from one seeded stream."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def weight(self, name: str, shape: tuple[int, ...], fan_in: int) -> str:
        return self.constant(name, draw(self.random, shape, fan_in))

    def constant(self, name: str, array: Array) -> str:
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def zeros(self, name: str, size: int) -> str:
        return self.constant(name, np.zeros(size, np.float32))

    def node(self, kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [f"{name}.out"], name, **attributes))
        return f"{name}.out"

    def model(self, name: str, inputs: list[Any], outputs: list[Any]) -> ModelProto:
        return wrap(helper.make_graph(self.nodes, name, inputs, outputs, self.weights))


def draw(random: np.random.Generator, shape: tuple[int, ...], fan_in: int) -> Array:
    """Normal numbers with the variance that keeps a signal's size through a layer and a Relu."""
    numbers: Array = random.standard_normal(shape, np.float32)
    return numbers * np.float32(np.sqrt(2.0 / fan_in))


def wrap(graph: GraphProto) -> ModelProto:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    model.producer_name = "onnxsparse models/builders.py"
    return model


def floats(name: str, shape: list[Any]) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


# --- ResNet-50 -----------------------------------------------------------------------------------


def resnet50(seed: int = 0) -> ModelProto:
    """25,530,472 numbers: stages of 3, 4, 6 and 3 bottlenecks, the stride on the 3 x 3 convolution."""
    build = Builder(seed)
    x = build.node("Relu", [_conv(build, "stem", "x", 3, 64, 7, 2)], "stem.relu")
    x = build.node("MaxPool", [x], "stem.pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            x = _bottleneck(build, f"stage{stage + 1}.block{block}", x, channels, 64 << stage, stride)
            channels = 256 << stage
    x = build.node("Flatten", [build.node("GlobalAveragePool", [x], "average")], "flatten")
    head = [x, build.weight("head.weight", (1000, 2048), 2048), build.zeros("head.bias", 1000)]
    build.node("Gemm", head, "head", transB=1)
    return build.model("resnet50", [floats("x", ["N", 3, 224, 224])], [floats("head.out", ["N", 1000])])


def _bottleneck(build: Builder, name: str, x: str, inputs: int, middle: int, stride: int) -> str:
    outputs = 4 * middle
    y = build.node("Relu", [_conv(build, f"{name}.reduce", x, inputs, middle, 1, 1)], f"{name}.reduce.relu")
    y = build.node("Relu", [_conv(build, f"{name}.spatial", y, middle, middle, 3, stride)], f"{name}.spatial.relu")
    y = _conv(build, f"{name}.expand", y, middle, outputs, 1, 1)
    if inputs != outputs or stride != 1:
        x = _conv(build, f"{name}.shortcut", x, inputs, outputs, 1, stride)
    return build.node("Relu", [build.node("Add", [y, x], f"{name}.add")], f"{name}.relu")


def _conv(build: Builder, name: str, x: str, inputs: int, outputs: int, kernel: int, stride: int) -> str:
    weight = build.weight(f"{name}.weight", (outputs, inputs, kernel, kernel), inputs * kernel * kernel)
    pads, strides = [kernel // 2] * 4, [stride, stride]
    operands = [x, weight, build.zeros(f"{name}.bias", outputs)]
    return build.node("Conv", operands, name, kernel_shape=[kernel, kernel], pads=pads, strides=strides)


# --- BERT-base -----------------------------------------------------------------------------------


def bert(seed: int = 0, layers: int = 12, hidden: int = 768, heads: int = 12, vocabulary: int = 0) -> ModelProto:
    """85,054,464 numbers in the encoder; with `vocabulary`, an embedding in front whose input is token numbers."""
    build = Builder(seed)
    build.constant("split.shape", np.array([0, 0, heads, hidden // heads], np.int64))
    build.constant("merge.shape", np.array([0, 0, hidden], np.int64))
    build.constant("scale", np.array(np.sqrt(hidden // heads), np.float32))
    x, source = "x", floats("x", ["N", "S", hidden])
    if vocabulary:
        source = helper.make_tensor_value_info("x", TensorProto.INT64, ["N", "S"])
        table = build.weight("embedding.weight", (vocabulary, hidden), hidden)
        x = build.node("Gather", [table, "x"], "embedding")
    for layer in range(layers):
        x = _encoder_layer(build, f"layer{layer}", x, hidden)
    return build.model("bert", [source], [floats(x, ["N", "S", hidden])])


def _encoder_layer(build: Builder, name: str, x: str, hidden: int) -> str:
    attended = _linear(
        build, f"{name}.attention.output", _attention(build, f"{name}.attention", x, hidden), hidden, hidden
    )
    x = _normalised(build, f"{name}.attention", attended, x, hidden)
    inner = build.node("Relu", [_linear(build, f"{name}.up", x, hidden, 4 * hidden)], f"{name}.up.relu")
    return _normalised(build, f"{name}.output", _linear(build, f"{name}.down", inner, 4 * hidden, hidden), x, hidden)


def _attention(build: Builder, name: str, x: str, hidden: int) -> str:
    query = _heads(build, f"{name}.query", x, hidden, [0, 2, 1, 3])
    key = _heads(build, f"{name}.key", x, hidden, [0, 2, 3, 1])
    value = _heads(build, f"{name}.value", x, hidden, [0, 2, 1, 3])
    scores = build.node("Div", [build.node("MatMul", [query, key], f"{name}.scores"), "scale"], f"{name}.scaled")
    mixed = build.node("MatMul", [build.node("Softmax", [scores], f"{name}.softmax", axis=-1), value], f"{name}.mix")
    joined = build.node("Transpose", [mixed], f"{name}.join", perm=[0, 2, 1, 3])
    return build.node("Reshape", [joined, "merge.shape"], f"{name}.merge")


def _heads(build: Builder, name: str, x: str, hidden: int, perm: list[int]) -> str:
    split = build.node("Reshape", [_linear(build, name, x, hidden, hidden), "split.shape"], f"{name}.split")
    return build.node("Transpose", [split], f"{name}.heads", perm=perm)


def _linear(build: Builder, name: str, x: str, inputs: int, outputs: int) -> str:
    product = build.node("MatMul", [x, build.weight(f"{name}.weight", (inputs, outputs), inputs)], name)
    return build.node("Add", [product, build.zeros(f"{name}.bias", outputs)], f"{name}.add")


def _normalised(build: Builder, name: str, x: str, residual: str, hidden: int) -> str:
    total = build.node("Add", [x, residual], f"{name}.residual")
    gain = build.constant(f"{name}.norm.weight", np.ones(hidden, np.float32))
    operands = [total, gain, build.zeros(f"{name}.norm.bias", hidden)]
    return build.node("LayerNormalization", operands, f"{name}.norm", axis=-1)


# --- models too large to hold --------------------------------------------------------------------


def chain_widths(layers: int, head: int | None = None) -> list[tuple[int, int]]:
    return [(WIDTH, WIDTH)] * layers + ([(WIDTH, head)] if head else [])


def chain_graph(widths: list[tuple[int, int]]) -> GraphProto:
    """MatMul, Relu, MatMul, Relu ...; the weights are left out."""
    build, x = Builder(0), "x"
    for layer, _ in enumerate(widths):
        product = build.node("MatMul", [x, f"layer{layer}.weight"], f"layer{layer}")
        x = build.node("Relu", [product], f"layer{layer}.relu")
    return helper.make_graph(
        build.nodes, "chain", [floats("x", ["N", widths[0][0]])], [floats(x, ["N", widths[-1][1]])]
    )


def chain_arrays(widths: list[tuple[int, int]], seed: int) -> Iterator[tuple[str, Array]]:
    random = np.random.default_rng(seed)
    for layer, shape in enumerate(widths):
        yield f"layer{layer}.weight", draw(random, shape, shape[0])


def write_external(path: Path, layers: int = 60, seed: int = 0) -> None:
    """A model whose weights stand in `<name>.data` beside it; 60 layers make one billion weights, 4.03 GB."""
    widths = chain_widths(layers)
    graph, data = chain_graph(widths), path.with_name(path.name + ".data")
    with data.open("wb") as stream:
        for name, array in chain_arrays(widths, seed):
            graph.initializer.append(_external_tensor(name, array, data.name, stream.tell()))
            stream.write(array.data)
    save(wrap(graph), str(path))


def _external_tensor(name: str, array: Array, location: str, offset: int) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", array.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def write_single(path: Path, layers: int = 28, head: int = 1280, seed: int = 0) -> None:
    """One file with all weights inside, 1.90 GB as called here. The bytes are those protobuf would write."""
    widths = chain_widths(layers, head)
    graph = chain_graph(widths)
    start = GraphProto(name=graph.name, node=graph.node).SerializeToString()
    end = GraphProto(input=graph.input, output=graph.output).SerializeToString()
    envelope = wrap(GraphProto())
    envelope.ClearField("graph")
    opsets = ModelProto(opset_import=envelope.opset_import).SerializeToString()
    envelope.ClearField("opset_import")
    prefixes = [_tensor_prefix(f"layer{layer}.weight", shape) for layer, shape in enumerate(widths)]
    length = len(start) + len(end) + sum(len(p) + 4 * k * n for p, (k, n) in zip(prefixes, widths))
    with path.open("wb") as stream:
        stream.write(envelope.SerializeToString() + _tagged(7, length) + start)
        _write_tensors(stream, prefixes, widths, seed)
        stream.write(end + opsets)


def _write_tensors(stream: BinaryIO, prefixes: list[bytes], widths: list[tuple[int, int]], seed: int) -> None:
    for prefix, (_, array) in zip(prefixes, chain_arrays(widths, seed)):
        stream.write(prefix)
        stream.write(array.data)


def _tensor_prefix(name: str, shape: tuple[int, int]) -> bytes:
    """All of an initializer in a graph (field 5) up to the bytes of its raw_data (field 9)."""
    size = 4 * shape[0] * shape[1]
    facts: bytes = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape).SerializeToString()
    facts += _tagged(9, size)
    return _tagged(5, len(facts) + size) + facts


def _tagged(field: int, length: int) -> bytes:
    """Protobuf's key of a field that holds bytes, and their length in groups of seven bits."""
    out = bytearray([field << 3 | 2])
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)


def write_resnet50(path: Path) -> None:
    save(resnet50(), str(path))


def write_bert(path: Path) -> None:
    save(bert(), str(path))


WRITERS: dict[str, Callable[[Path], None]] = {
    "resnet50": write_resnet50,
    "bert": write_bert,
    "external": write_external,
    "single": write_single,
}


def build(name: str, folder: Path) -> Path:
    """Write the model of that name, unless it is there already."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        WRITERS[name](path)
    return path


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for name in sys.argv[2:] or list(WRITERS):
        print(build(name, Path(sys.argv[1])))


if __name__ == "__main__":
    main()
