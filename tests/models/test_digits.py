from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest

from models.digits import accuracy, held_out_half, training_half

pytest.importorskip("onnxruntime")
# Not by importing it: that takes longer than the tests of this module, in every process that collects them.
pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")


def test_the_shipped_network_has_the_accuracy_that_the_readme_states(digits_cnn: Path) -> None:
    measured = f"{100 * accuracy(str(digits_cnn)):.2f} %"
    assert measured == "98.55 %"
    assert measured in (digits_cnn.parent / "README.md").read_text(encoding="utf-8")


def test_the_shipped_network_is_small_and_valid(digits_cnn: Path) -> None:
    assert digits_cnn.stat().st_size < 300_000
    model = onnx.load(digits_cnn)
    onnx.checker.check_model(model, full_check=True)
    assert [o.version for o in model.opset_import] == [17]


def test_the_halves_share_no_image() -> None:
    trained, held_out = ({image.tobytes() for image in half()[0]} for half in (training_half, held_out_half))
    assert len(held_out) == 898
    assert not trained & held_out
