"""Models of other frameworks as modules. Each is made here where its exporter is installed."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from tests.engines.torch.running import Array, apply, assert_equal, assert_same, numbers, runtime, to_module
from tests.engines.torch.running import without_gradient as idle

pytestmark = pytest.mark.filterwarnings("ignore")


def checked(source: Any, feeds: dict[str, Array], weights: int) -> None:
    """As the runtime computes it, with this many trainable matrices, each of which learns."""
    module = assert_same(source, feeds, 1e-4)
    assert sum(sum(size > 1 for size in one.shape) > 1 for one in module.parameters()) == weights
    assert not idle(module, feeds)


@pytest.fixture
def keras(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(os.environ, "KERAS_BACKEND", "torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pytest.importorskip("keras")
    found.utils.set_random_seed(0)
    return found


def test_keras_images(keras: Any, tmp_path: Path) -> None:
    layers = keras.layers
    x = inputs = layers.Input((16, 16, 3))
    for width in (8, 16):
        x = layers.Conv2D(width, 3, strides=2, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.SeparableConv2D(12, 3, padding="same", activation="silu")(x)
    outputs = layers.Dense(5)(layers.GlobalAveragePooling2D()(x))
    exported(keras.Model(inputs, outputs), numbers(2, 16, 16, 3), tmp_path, 5)


def test_keras_words(keras: Any, tmp_path: Path) -> None:
    layers = keras.layers
    x = inputs = layers.Input((12,), dtype="int32")
    x = layers.Embedding(40, 24)(x)
    x = x + layers.MultiHeadAttention(4, 6)(x, x)
    x = layers.Dense(16, activation="gelu")(layers.Conv1D(20, 3)(x))
    outputs = layers.Dense(3)(layers.GlobalMaxPooling1D()(x))
    words = np.random.default_rng(0).integers(0, 40, (2, 12)).astype(np.int32)
    exported(keras.Model(inputs, outputs), words, tmp_path, 8)


def exported(net: Any, x: Array, tmp_path: Path, weights: int) -> None:
    path = tmp_path / "keras.onnx"
    net(x)
    net.export(str(path), format="onnx", verbose=False)
    name = to_module(path).onnx_names["inputs"][0]
    checked(path, {name: x}, weights)


def test_jax(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    jax2onnx = pytest.importorskip("jax2onnx")
    nnx = pytest.importorskip("flax.nnx")
    rngs = nnx.Rngs(0)
    conv, attention = nnx.Conv(4, 16, (3, 3), rngs=rngs), nnx.MultiHeadAttention(4, 16, decode=False, rngs=rngs)
    norm, out = nnx.LayerNorm(16, rngs=rngs), nnx.Linear(16, 7, rngs=rngs)

    class Net(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.conv, self.attention, self.norm, self.out = conv, attention, norm, out

        def __call__(self, x: Any) -> Any:
            x = jax.nn.gelu(self.conv(x)).reshape(x.shape[0], -1, 16)
            return self.out(self.norm(x + self.attention(x)).mean(1))

    proto = jax2onnx.to_onnx(Net(), [jax.ShapeDtypeStruct((2, 6, 6, 4), np.float32)])
    checked(proto, {proto.graph.input[0].name: numbers(2, 6, 6, 4)}, 6)


@pytest.mark.parametrize("classes", [2, 3])
def test_scikit_learn_classifiers(classes: int) -> None:
    sklearn = pytest.importorskip("sklearn.neural_network")
    skl2onnx = pytest.importorskip("skl2onnx")
    x, y = numbers(60, 6), np.arange(60) % classes
    net = sklearn.MLPClassifier((16, 8), max_iter=20, random_state=0).fit(x, y)
    proto = skl2onnx.to_onnx(net, x[:1], options={"zipmap": False})
    feeds = {"X": x[:5]}
    module = assert_same(proto, feeds)
    assert sum(one.dim() > 1 for one in module.parameters()) >= 3
    assert not [name for name in idle(module, feeds) if "coefficient" in name]
    labels, rows = apply(to_module(skl2onnx.to_onnx(net, x[:1])), feeds)
    assert np.array_equal(labels, net.predict(x[:5]))
    likely = net.predict_proba(x[:5])
    assert np.allclose([[float(one) for one in row.values()] for row in rows], likely, atol=1e-5)


def test_a_scikit_learn_pipeline() -> None:
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    linear = pytest.importorskip("sklearn.linear_model")
    pipeline = pytest.importorskip("sklearn.pipeline")
    skl2onnx = pytest.importorskip("skl2onnx")
    x = numbers(40, 6)
    for model, y in ((linear.Ridge(), x @ numbers(6)), (linear.LogisticRegression(), np.arange(40) % 3)):
        whole = pipeline.make_pipeline(preprocessing.StandardScaler(), model).fit(x, y)
        proto = skl2onnx.to_onnx(whole, x[:1], options={"zipmap": False} if y.dtype == int else None)
        for got, wanted in zip(apply(to_module(proto), {"X": x}), runtime(proto, {"X": x})):
            assert_equal(got, wanted)
