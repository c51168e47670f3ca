"""spox: a graph written by hand in Python, here with the numbers of a network of scikit-learn."""

from __future__ import annotations

from tools.frameworks.samples import FOLDER, digits, save

x, y, x_test, y_test = digits()

# <page>
import numpy as np
import onnx
import spox.opset.ai.onnx.v17 as op
from sklearn.neural_network import MLPClassifier
from spox import Tensor, argument, build

trained = MLPClassifier((128, 64), max_iter=60, random_state=0).fit(x, y)

images = argument(Tensor(np.float32, ("N", 64)))
values = images
for number, (weight, bias) in enumerate(zip(trained.coefs_, trained.intercepts_)):
    values = op.relu(values) if number else values
    values = op.add(op.matmul(values, op.const(weight.astype("f4"))), op.const(bias.astype("f4")))
onnx.save(build({"images": images}, {"logits": values}), str(FOLDER / "spox.onnx"))
# </page>

save(FOLDER / "spox.onnx", x, x_test, labels=y_test)
