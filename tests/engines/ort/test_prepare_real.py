"""Models of other people become graphs to train: what they compute is checked inside `prepare`, sample by sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from onnx.helper import tensor_dtype_to_np_dtype

from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.prepare import Prepared, prepare
from onnxsparse.graph.model import Model
from tests.real.test_real_models import FEEDS
from tools.fetch_models import default_folder, fetch

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training"),
]

BATCH, SAMPLES = 4, 8
STATES = ("state", "h", "c")
INTEGER_ONLY = "ddddocr-1.6.1/common_old"
ONE_AT_A_TIME = {"silero-vad-6.2.3/silero_vad_16k_sequence"}  # its first axis is time
OTHER_RATE = {
    "silero-vad-6.2.3/silero_vad",
    "silero-vad-6.2.3/silero_vad_op18_ifless",
}  # half the weights are for 8 kHz
TAPPED = {
    "rapidocr-onnxruntime-1.4.4/ch_PP-OCRv4_det_infer": 1,
    "rapidocr-onnxruntime-1.4.4/ch_PP-OCRv4_rec_infer": 1,
    "rapidocr-onnxruntime-1.4.4/ch_ppocr_mobile_v2.0_cls_infer": 1,
    "nudenet-3.4.2/320n": 1,
    "magika-1.0.3/model": 1,
    "basic-pitch-0.4.0/nmp": 3,
    "ddddocr-1.6.1/common_det": 6,
}


@pytest.fixture(scope="session")
def collection() -> Path:
    folder = default_folder()
    assert len(list(fetch(folder))) == 15
    return folder


@pytest.fixture(params=[name for name in FEEDS if name != INTEGER_ONLY])
def key(request: pytest.FixtureRequest, collection: Path) -> str:
    if not (collection / f"{request.param}.onnx").exists():
        pytest.skip("made by tools/export_models.py, which needs torch")
    return str(request.param)


def tagged(path: Path) -> tuple[ModelProto, set[str]]:
    """The model with a tag on every weight of floats."""
    model, tags = Model.open(path), set()
    for number, weight in enumerate(model.weights):
        if "float" in weight.tensor.kind and not weight.refusal:
            weight.tensor.proto.doc_string = f"onnxsparse:{number}"
            tags.add(weight.tensor.proto.doc_string)
    return model.take_proto(), tags


def samples(proto: ModelProto, shapes: dict[str, object]) -> dict[str, np.ndarray]:
    stored = {tensor.name for tensor in proto.graph.initializer}
    generator = np.random.Generator(np.random.Philox(key=1))
    found = {}
    for value in proto.graph.input:
        if value.name not in stored:
            dtype = tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            found[value.name] = drawn(generator, value.name, shapes[value.name], dtype)
    return found


def drawn(generator: np.random.Generator, name: str, shape: object, dtype: np.dtype) -> np.ndarray:
    if not isinstance(shape, tuple):
        return np.asarray(shape, dtype)
    full = shape if name in STATES else (SAMPLES, *shape[1:])
    if dtype.kind == "f":
        return (generator.standard_normal(full) * (name not in STATES)).astype(dtype)
    return np.ones(full, dtype) if name == "attention_mask" else generator.integers(0, 200, full).astype(dtype)


def test_real_models_become_graphs_to_train(key: str, collection: Path) -> None:
    proto, tags = tagged(collection / f"{key}.onnx")
    made = prepare(proto, tags, samples(proto, FEEDS[key]), BATCH)
    onnx.checker.check_model(made.model, full_check=True)
    assert made.batch == (1 if key in ONE_AT_A_TIME else BATCH)
    assert len(made.weights) == (len(tags) // 2 if key in OTHER_RATE else len(tags))
    assert set(made.weights.values()) | set(made.unreached) == tags
    assert holds_still(made)
    if "silero" not in key:
        assert sum(signal.kind == "tap" for signal in made.signals) == TAPPED.get(key, 0)


def holds_still(made: Prepared) -> bool:
    """Every value has one type and shape, the operator set and names are what training takes."""
    values = (*made.model.graph.value_info, *made.model.graph.output, *made.model.graph.input)
    fixed = all(dim.HasField("dim_value") for value in values for dim in value.type.tensor_type.shape.dim)
    names = [node.name for node in made.model.graph.node]
    known = {value.name for value in values}
    told = all(name in known for node in made.model.graph.node for name in node.output if name)
    versions = {entry.domain: entry.version for entry in made.model.opset_import}
    return fixed and told and len(set(names)) == len(names) and 13 <= versions[""] <= 21
