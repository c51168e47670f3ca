"""LightGBM and XGBoost: trees, by onnxmltools."""

from __future__ import annotations

from tools.frameworks.samples import FOLDER, digits, save

x, y, x_test, y_test = digits()

# <page>
import lightgbm
import onnxmltools
import xgboost
from onnxmltools.convert.common.data_types import FloatTensorType

inputs = [("x", FloatTensorType([None, 64]))]
trees = lightgbm.LGBMClassifier(n_estimators=20, verbose=-1).fit(x, y)
proto = onnxmltools.convert_lightgbm(trees, initial_types=inputs, zipmap=False)
onnxmltools.utils.save_model(proto, str(FOLDER / "lightgbm.onnx"))

boosted = xgboost.XGBClassifier(n_estimators=20).fit(x, y)
proto = onnxmltools.convert_xgboost(boosted, initial_types=inputs)
onnxmltools.utils.save_model(proto, str(FOLDER / "xgboost.onnx"))
# </page>

for file in ("lightgbm", "xgboost"):
    save(FOLDER / f"{file}.onnx", x, x_test, labels=y_test)
