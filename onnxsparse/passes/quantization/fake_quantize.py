"""Fake quantization put into the copy of a float graph that trains: behind weights and values, for chosen readers."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper
from onnx.helper import make_node

from onnxsparse.engines.fake_quantization import FakeQuantize, import_domain
from onnxsparse.errors import OptionError
from onnxsparse.graph.edit import FreshNames, all_names, keep
from onnxsparse.planning.quantization import Quantization, QuantizedWeight, Reader


def keys_of(quantization: Quantization) -> dict[str, str]:
    """What each weight and each value with a scale of its own is called among live arrays."""
    names = [*(one.name for one in quantization.observed), *(one.name for one in quantization.weights)]
    return {name: f"quantized:{place}" for place, name in enumerate(dict.fromkeys(names))}


def insert_fake_quantization(proto: ModelProto, quantization: Quantization, learned: bool = False) -> None:
    """Change a copy of the float graph, in place; until scales are written into an engine nothing of it is true."""
    writer = _Writer(proto, keys_of(quantization))
    for weight in quantization.weights:
        writer.weight(weight, learned)
    own = {one.name for one in quantization.observed}
    for value in quantization.values:
        key = writer.keys[value.like or value.name]
        said = FakeQuantize(key, value.grid, value.name in own, learned)
        writer.behind(value.name, writer.scale(said, ()), said, value.readers)
    writer.place()
    import_domain(proto)


class _Writer:
    def __init__(self, proto: ModelProto, keys: dict[str, str]) -> None:
        self.keys = keys
        self._graph, self._fresh = proto.graph, FreshNames(all_names(proto))
        self._stored = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._by_output = {name: node for node in proto.graph.node for name in node.output if name}
        self._scales: dict[str, str] = {}
        self._behind: dict[str, list[NodeProto]] = {}

    def weight(self, weight: QuantizedWeight, learned: bool) -> None:
        if weight.block:
            raise OptionError(
                f"'{weight.name}' would have a scale for every {weight.block} numbers, which nothing trains with"
            )
        shape = [1] * len(self._stored[weight.name].dims)
        if weight.axis is not None:
            shape[weight.axis] = self._stored[weight.name].dims[weight.axis]
        said = FakeQuantize(self.keys[weight.name], weight.grid, learned=learned)
        self.behind(weight.name, self.scale(said, tuple(shape)), said, weight.readers)

    def scale(self, said: FakeQuantize, shape: tuple[int, ...]) -> str:
        """A stored scale, once; its doc string is the name of the live array, as for what trains."""
        if said.key not in self._scales:
            name = self._scales[said.key] = self._fresh(said.scale.replace(":", "_").replace("/", "_"))
            tensor = numpy_helper.from_array(np.full(shape, 0.5, np.float32), name)
            tensor.doc_string = said.scale
            self._graph.initializer.append(tensor)
        return self._scales[said.key]

    def behind(self, name: str, scale: str, said: FakeQuantize, readers: tuple[Reader, ...]) -> None:
        node = make_node("Identity", [name, scale], [self._fresh(f"{name}_rounded")], self._fresh(f"{name}_rounding"))
        said.write(node)
        self._behind.setdefault(name, []).append(node)
        for output, slot in readers:
            reader = self._by_output[output]
            assert reader.input[slot] == name
            reader.input[slot] = node.output[0]

    def place(self) -> None:
        """Each behind what it reads; those of inputs and stored tensors come first."""
        made = {name for node in self._graph.node for name in node.output}
        placed = [node for name, some in self._behind.items() if name not in made for node in some]
        for node in self._graph.node:
            placed.append(node)
            placed += [one for name in node.output for one in self._behind.get(name, ())]
        keep(self._graph.node, placed)
