"""Keras: `model.export`, and tf2onnx for a function of TensorFlow."""

from __future__ import annotations

from tools.frameworks.samples import FOLDER, digits, save

x, y, x_test, y_test = digits()

# <page>
import keras
import tensorflow as tf
import tf2onnx
from keras import layers

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        layers.Input((8, 8, 1)),
        layers.Conv2D(32, 3, padding="same", use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.MaxPooling2D(),
        layers.Conv2D(64, 3, activation="relu"),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(10),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss)
model.fit(x.reshape(-1, 8, 8, 1), y, epochs=20, batch_size=64, verbose=0)

model.export(str(FOLDER / "keras.onnx"), format="onnx", verbose=False)

function = tf.function(lambda images: tf.nn.softmax(model(images, training=False)))
signature = [tf.TensorSpec((None, 8, 8, 1), tf.float32, name="images")]
tf2onnx.convert.from_function(function, signature, opset=17, output_path=str(FOLDER / "tf2onnx.onnx"))
# </page>

for file in ("keras", "tf2onnx"):
    save(FOLDER / f"{file}.onnx", x.reshape(-1, 8, 8, 1), x_test.reshape(-1, 8, 8, 1), labels=y_test)
