"""scikit-learn: a pipeline with a neural network, by skl2onnx."""

from __future__ import annotations

from tools.frameworks.samples import FOLDER, digits, save

x, y, x_test, y_test = digits()

# <page>
import skl2onnx
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

model = make_pipeline(StandardScaler(), MLPClassifier((128, 64), max_iter=60, random_state=0))
model.fit(x, y)
proto = skl2onnx.to_onnx(model, x[:1], options={"zipmap": False})
(FOLDER / "sklearn.onnx").write_bytes(proto.SerializeToString())
# </page>

save(FOLDER / "sklearn.onnx", x, x_test, labels=y_test)
