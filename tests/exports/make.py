"""Exports small networks with the exporter of each framework, so that tests hold the names that these really write.

    python tests/exports/make.py keras|keras2|tf1|torch|paddle

Each word needs its framework, in an environment of its own: `tensorflow-cpu tf_keras tf2onnx`, `torch onnxscript`,
`paddlepaddle paddle2onnx`. The files lie beside this script, with the versions that wrote them in their metadata.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OPSET = 17


def keras() -> None:
    """By Keras 3, which comes with TensorFlow."""
    import keras as library

    _keras(library, "keras.onnx", "keras")


def keras2() -> None:
    """By Keras 2, which is `tf_keras` today."""
    import tf_keras as library

    _keras(library, "keras2.onnx", "tf_keras")


def _keras(library: Any, name: str, package: str) -> None:
    """A model in a model, convolutions with a normalization behind them, and two layers whose last names are alike."""
    import tensorflow as tf
    import tf2onnx

    layers = library.layers

    def block(given: Any, number: int, filters: int) -> Any:
        found = layers.Conv2D(filters, 3, padding="same", name=f"block{number}_conv")(given)
        found = layers.BatchNormalization(name=f"block{number}_norm")(found)
        return layers.ReLU(name=f"block{number}_relu")(found)

    inner_in = library.Input((8, 8, 8), name="inner_in")
    inner = library.Model(inner_in, block(layers.Conv2D(8, 1, name="conv")(inner_in), 2, 12), name="backbone")
    given = library.Input((8, 8, 4), name="images")
    found = inner(block(given, 1, 8))
    found = layers.Conv2D(12, 3, use_bias=False, name="conv")(found)
    found = layers.DepthwiseConv2D(3, name="depthwise")(found)
    found = layers.GlobalAveragePooling2D(name="pool")(found)
    found = layers.Dense(16, activation="relu", name="hidden")(found)
    model = library.Model(given, layers.Dense(10, name="head")(found), name="net")
    signature = (tf.TensorSpec((None, 8, 8, 4), tf.float32, name="images"),)
    proto, _ = tf2onnx.convert.from_keras(model, input_signature=signature, opset=OPSET)
    write(proto, name, "tensorflow-cpu", package, "tf2onnx")


def tf1() -> None:
    """Variable scopes, as networks of TensorFlow 1 and SparseML's mnist_net have them."""
    import tensorflow as tf
    import tf2onnx

    v1 = tf.compat.v1
    v1.disable_resource_variables()

    def conv(given: Any, scope: str, size: int, outputs: int, side: int) -> Any:
        with v1.variable_scope(scope):
            kernel = v1.get_variable("kernel", (size, size, int(given.shape[-1]), outputs))
            bias = v1.get_variable("bias", (outputs,), initializer=v1.random_normal_initializer())
            made = v1.nn.conv2d(given, kernel, strides=(1, side, side, 1), padding="SAME", name="convolution")
            return v1.nn.relu(v1.nn.bias_add(made, bias, name="BiasAdd"), name="Relu")

    graph = tf.Graph()
    with graph.as_default(), v1.Session(graph=graph) as session:
        given = v1.placeholder(tf.float32, (2, 8, 8, 3), name="images")
        with v1.variable_scope("mnist_net_1"):
            found = given
            for number in range(2):
                with v1.variable_scope(f"conv0_{number}"):
                    for part in range(2):
                        found = conv(found, f"conv_{part}", 3, 8, 1 + part)
            with v1.variable_scope("fc"):
                flat = v1.reshape(found, (2, -1))
                kernel = v1.get_variable("kernel", (int(flat.shape[-1]), 10))
                logits = v1.nn.bias_add(v1.matmul(flat, kernel, name="MatMul"), v1.get_variable("bias", (10,)))
        logits = v1.identity(logits, name="logits")
        session.run(v1.global_variables_initializer())
        constant = v1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), ["logits"])
    proto, _ = tf2onnx.convert.from_graph_def(
        constant, input_names=["images:0"], output_names=["logits:0"], opset=OPSET
    )
    write(proto, "tf1.onnx", "tensorflow-cpu", "tf2onnx")


def torch() -> None:
    """One module by both exporters: lists in lists, attention, a recurrence, and a module that is called twice."""
    import onnx
    import torch as library

    nn = library.nn

    class Attention(nn.Module):
        """Its products are direct children of its own path, beside the layers in it."""

        def __init__(self, size: int) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
            self.mix = nn.Parameter(library.randn(size, size))
            self.back = nn.Parameter(library.randn(size, size))

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(x).chunk(3, -1)
            return self.out((q @ k.transpose(1, 2)).softmax(-1) @ v @ self.mix @ self.back)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(4, 16, 3, padding=1)
            steps = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(2)]
            self.sections = nn.ModuleList(steps)
            self.attn = Attention(16)
            self.rnn = nn.LSTM(16, 8, batch_first=True)
            self.head = nn.Linear(8, 10)

        def forward(self, x: Any) -> Any:
            x = self.stem(x)
            for section in self.sections:
                x = section(x)
            x = self.attn(x.flatten(2).transpose(1, 2))
            return self.head(self.rnn(x)[0].mean(1))

    library.manual_seed(0)
    net, sample = Net().eval(), library.randn(2, 4, 4, 4)
    for dynamo in (False, True):
        path = HERE / f"torch_{'dynamo' if dynamo else 'script'}.onnx"
        more: dict[str, Any] = {"external_data": False, "opset_version": 18} if dynamo else {"opset_version": OPSET}
        library.onnx.export(
            net, (sample,), str(path), dynamo=dynamo, input_names=["x"], output_names=["logits"], **more
        )
        proto = onnx.load(str(path))
        for node in proto.graph.node:  # without the lines of the module's source, and where it lay
            kept = [one for one in node.metadata_props if one.key in ("namespace", "pkg.torch.onnx.name_scopes")]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
        del proto.graph.metadata_props[:]
        write(proto, path.name, "torch", *(["onnxscript"] if dynamo else []))


def paddle() -> None:
    """Convolutions and linear layers by Paddle's own exporter."""
    import onnx
    import paddle as library

    nn = library.nn

    class Net(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2D(4, 16, 3)
            self.body = nn.Sequential(nn.Conv2D(16, 16, 3), nn.BatchNorm2D(16), nn.ReLU())
            self.hidden, self.head = nn.Linear(16, 32), nn.Linear(32, 10)

        def forward(self, x: Any) -> Any:
            found = self.body(self.stem(x)).mean([2, 3])
            return self.head(nn.functional.relu(self.hidden(found)))

    net = Net()
    net.eval()
    spec = [library.static.InputSpec([2, 4, 8, 8], "float32", "x")]
    library.onnx.export(net, str(HERE / "paddle"), input_spec=spec, opset_version=OPSET)
    write(onnx.load(str(HERE / "paddle.onnx")), "paddle.onnx", "paddlepaddle", "paddle2onnx")


def write(proto: Any, name: str, *packages: str) -> None:
    import onnx

    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, {one: version(one) for one in packages})
    onnx.save(proto, str(HERE / name))


if __name__ == "__main__":
    for word in sys.argv[1:]:
        {"keras": keras, "keras2": keras2, "tf1": tf1, "torch": torch, "paddle": paddle}[word]()
