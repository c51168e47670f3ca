"""JAX: a network of flax, by jax2onnx."""

from __future__ import annotations

from tools.frameworks.samples import FOLDER, digits, save

x, y, x_test, y_test = digits()

# <page>
import jax2onnx
import numpy as np
import onnx
import optax
from flax import nnx

rngs = nnx.Rngs(0)
net = nnx.Sequential(
    nnx.Conv(1, 32, (3, 3), rngs=rngs),
    nnx.relu,
    lambda images: nnx.max_pool(images, window_shape=(2, 2), strides=(2, 2)),
    nnx.Conv(32, 64, (3, 3), padding="VALID", rngs=rngs),
    nnx.relu,
    lambda images: images.reshape(images.shape[0], 256),
    nnx.Linear(256, 64, rngs=rngs),
    nnx.relu,
    nnx.Linear(64, 10, rngs=rngs),
)
optimizer = nnx.Optimizer(net, optax.adamw(2e-3), wrt=nnx.Param)


@nnx.jit
def train(net, optimizer, images, labels):  # type: ignore[no-untyped-def]
    def loss(net):  # type: ignore[no-untyped-def]
        return optax.softmax_cross_entropy_with_integer_labels(net(images), labels).mean()

    optimizer.update(net, nnx.grad(loss)(net))


draw = np.random.default_rng(0)
for _ in range(400):
    batch = draw.integers(0, len(x), 64)
    train(net, optimizer, x[batch].reshape(-1, 8, 8, 1), y[batch])

model = jax2onnx.to_onnx(net, [("B", 8, 8, 1)], opset=21)  # what the engine that trains reads
onnx.save(model, str(FOLDER / "jax.onnx"))
# </page>

save(FOLDER / "jax.onnx", x.reshape(-1, 8, 8, 1), x_test.reshape(-1, 8, 8, 1), labels=y_test)
