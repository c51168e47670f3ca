"""Models of other people as modules: the same outputs, every weight a parameter, a gradient in every executed one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from onnxsparse.errors import ModelError
from onnxsparse.torch import to_module, write_back
from tests.engines.torch.running import Array, assert_same, runtime, without_gradient
from tests.messages import refusing
from tests.real import walk
from tests.real.test_real_models import FEEDS
from tools.fetch_models import default_folder, fetch

pytestmark = [pytest.mark.network, pytest.mark.slow]

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
QUANTIZED = "ddddocr-1.6.1/common_old"
TWO_RATES = ("silero_vad", "silero_vad_op18_ifless")  # half of their weights serve another rate of samples
# logarithms of what is almost nothing; a sigmoid that the runtime rounds near 0 (float64 sides with torch); halves
DETECTOR = "rapidocr-onnxruntime-1.4.4/ch_PP-OCRv4_det_infer"
LOOSE = {"basic-pitch-0.4.0/nmp": 2e-4, DETECTOR: 5e-4, "silero-vad-6.2.3/silero_vad_half": 2e-3}


@pytest.fixture(scope="session")
def collection() -> Path:
    folder = default_folder()
    assert len(list(fetch(folder))) == 15
    return folder


@pytest.fixture(params=[name for name in FEEDS if name != QUANTIZED])
def path(request: pytest.FixtureRequest, collection: Path) -> Path:
    found = collection / f"{request.param}.onnx"
    if not found.exists():
        pytest.skip("made by tools/export_models.py, which needs torch")
    return found


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def feeds_of(path: Path) -> dict[str, Array]:
    """Noise, words, or what the table says."""
    generator, found = np.random.default_rng(1), {}  # with another seed, gates may be shut
    proto = onnx.load(path)
    stored = {one.name for one in proto.graph.initializer}
    for entry in proto.graph.input:
        if entry.name in stored:
            continue
        wanted = FEEDS[name_of(path)][entry.name]
        kind = onnx.helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type)
        if not isinstance(wanted, tuple):
            found[entry.name] = np.array(wanted, kind)
        elif np.issubdtype(kind, np.floating):
            found[entry.name] = generator.standard_normal(wanted).astype(kind)
        else:
            found[entry.name] = generator.integers(0, 2 if "mask" in entry.name else 200, wanted).astype(kind)
    return found


def test_the_same_outputs_and_a_gradient_in_every_matrix(path: Path) -> None:
    feeds = feeds_of(path)
    module = assert_same(path, feeds, LOOSE.get(name_of(path), 5e-5))
    leaves = [leaf for operand in walk.operands(walk.load(path)) for leaf in operand.leaves]
    weights = {name for name, tensor in leaves if tensor.data_type in FLOATS}
    assert weights <= {name for _, name in module.onnx_names["tensors"].values()}
    idle = without_gradient(module, feeds)
    assert len(idle) < len(weights) if path.stem in TWO_RATES else not idle


def test_trained_numbers_go_back(path: Path, tmp_path: Path) -> None:
    module, feeds = to_module(path), feeds_of(path)
    write_back(module, path, output=tmp_path / "same.onnx")
    assert (tmp_path / "same.onnx").read_bytes() == path.read_bytes()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.01)
    write_back(module, path, output=tmp_path / "trained.onnx")
    for got, wanted in zip(runtime(tmp_path / "trained.onnx", feeds), runtime(path, feeds)):
        assert got.shape == wanted.shape
    assert_same(tmp_path / "trained.onnx", feeds, 5e-3)


def test_a_quantized_model_is_refused(collection: Path) -> None:
    with refusing(ModelError):
        to_module(collection / f"{QUANTIZED}.onnx")
