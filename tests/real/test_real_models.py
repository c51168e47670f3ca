"""Real models, as other frameworks wrote them: every weight is listed, and what is pruned runs and holds its pattern.

`python -m pytest -m network tests/real` fetches them into a cache. The exported ones need torch: tools/export_models.py
makes them, and they are skipped where it has not run.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxsparse as osp
from tests.real import walk
from tools.fetch_models import default_folder, fetch

pytestmark = [pytest.mark.network, pytest.mark.slow]

SPEECH = {"input": (1, 576), "state": (2, 1, 128), "sr": 16000, "h": (1, 1, 128), "c": (1, 1, 128)}
TOKENS = {"input_ids": (1, 16), "attention_mask": (1, 16)}
# file -> what to feed: a shape, or the number itself
FEEDS: dict[str, dict[str, object]] = {
    "rapidocr-onnxruntime-1.4.4/ch_PP-OCRv4_det_infer": {"x": (1, 3, 64, 96)},
    "rapidocr-onnxruntime-1.4.4/ch_PP-OCRv4_rec_infer": {"x": (1, 3, 48, 160)},
    "rapidocr-onnxruntime-1.4.4/ch_ppocr_mobile_v2.0_cls_infer": {"x": (1, 3, 48, 192)},
    "nudenet-3.4.2/320n": {"images": (1, 3, 320, 320)},
    "magika-1.0.3/model": {"bytes": (1, 2048)},
    "basic-pitch-0.4.0/nmp": {"serving_default_input_2:0": (1, 43844, 1)},
    "ddddocr-1.6.1/common": {"input1": (1, 1, 64, 160)},
    "ddddocr-1.6.1/common_det": {"images": (1, 3, 416, 416)},
    "ddddocr-1.6.1/common_old": {"input1": (1, 1, 64, 160)},
    "silero-vad-6.2.3/silero_vad": SPEECH,
    "silero-vad-6.2.3/silero_vad_16k_op15": SPEECH,
    "silero-vad-6.2.3/silero_vad_16k_sequence": {**SPEECH, "input": (4, 576)},
    "silero-vad-6.2.3/silero_vad_half": SPEECH,
    "silero-vad-6.2.3/silero_vad_op18_ifless": SPEECH,
    "silero-vad-6.2.3/silero_vad_openvino_16k": SPEECH,
    "exported/efficientnet_lite0_torchscript": {"x": (1, 3, 224, 224)},
    "exported/efficientnet_lite0_dynamo": {"x": (1, 3, 224, 224)},
    "exported/minilm_torchscript": TOKENS,
    "exported/minilm_dynamo": TOKENS,
}
# file -> the least share of its weights that is pruned by default, for 2:4 and unstructured; 0.99 for those not named.
# What stays dense: depthwise convolutions, stems, embeddings (minilm), fixed filterbanks (basic-pitch, silero), and
# LSTM weights whose gates are cut and put together again in the graph (silero).
LEAST: dict[str, tuple[float, float]] = {
    "rapidocr-onnxruntime-1.4.4/ch_PP-OCRv4_det_infer": (0.95, 0.95),
    "rapidocr-onnxruntime-1.4.4/ch_PP-OCRv4_rec_infer": (0.97, 0.97),
    "rapidocr-onnxruntime-1.4.4/ch_ppocr_mobile_v2.0_cls_infer": (0.82, 0.82),
    "basic-pitch-0.4.0/nmp": (0.42, 0.42),
    "silero-vad-6.2.3/silero_vad": (0.36, 0.36),
    "silero-vad-6.2.3/silero_vad_16k_op15": (0.35, 0.35),
    "silero-vad-6.2.3/silero_vad_16k_sequence": (0.78, 0.78),
    "silero-vad-6.2.3/silero_vad_half": (0.35, 0.35),
    "silero-vad-6.2.3/silero_vad_op18_ifless": (0.84, 0.84),
    "silero-vad-6.2.3/silero_vad_openvino_16k": (0.35, 0.35),
    "exported/efficientnet_lite0_torchscript": (0.96, 0.96),
    "exported/efficientnet_lite0_dynamo": (0.96, 0.96),
    "exported/minilm_torchscript": (0.47, 0.47),
    "exported/minilm_dynamo": (0.47, 0.47),
}


@pytest.fixture(scope="session")
def collection() -> Path:
    folder = default_folder()
    assert len(list(fetch(folder))) == 15
    return folder


@pytest.fixture(params=FEEDS)
def model_file(request: pytest.FixtureRequest, collection: Path) -> Path:
    path = collection / f"{request.param}.onnx"
    if not path.exists():
        pytest.skip("made by tools/export_models.py, which needs torch")
    return path


def test_inspect_lists_every_weight_matrix(model_file: Path) -> None:
    rows = osp.inspect(model_file).report.rows
    expected = Counter(stored_names(walk.operands(walk.load(model_file))))
    assert not expected - Counter(row.name for row in rows)
    assert all(row.reason for row in rows if row.status == "dense")


@pytest.mark.parametrize("pattern", ["2:4", "unstructured"])
def test_what_is_pruned_runs_and_holds_its_pattern(model_file: Path, pattern: str, tmp_path: Path) -> None:
    out = tmp_path / "sparse.onnx"
    sparsity = {} if pattern == "2:4" else {"sparsity": 0.7}
    report = osp.prune(model_file, pattern=pattern, output=out, **sparsity).report
    assert run(out, FEEDS[key(model_file)])
    done = {row.name for row in report.rows if row.status == "pruned"}
    dense, sparse = walk.load(model_file), walk.load(out)
    for before, after in zip(walk.operands(dense), walk.operands(sparse)):
        was, now = walk.rows(before, walk.real(before, dense)), walk.rows(after, walk.real(after, sparse))
        if not all(name in done for name, _ in before.leaves):
            assert np.array_equal(was, now), before.leaves[0][0]
            continue
        assert_only_zeroed(was, now)
        if pattern == "2:4":
            assert_two_largest_of_four(was, now)
        else:
            assert_share_dropped(was, now, 0.7, scaled=before.leaves[0][1].data_type in INTEGERS)
    assert share_of(dense, done) >= LEAST.get(key(model_file), (0.99, 0.99))[pattern == "unstructured"]


INTEGERS = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)


def stored_names(found: list[walk.Operand]) -> list[str]:
    return [name for name, _ in {id(t): (name, t) for operand in found for name, t in operand.leaves}.values()]


def assert_only_zeroed(was: np.ndarray, now: np.ndarray) -> None:
    assert np.array_equal(now[now != 0], was[now != 0])


def assert_two_largest_of_four(was: np.ndarray, now: np.ndarray) -> None:
    whole = was.shape[-1] // 4 * 4
    assert np.array_equal(was[..., whole:], now[..., whole:])
    before, after = (np.sort(np.abs(a[..., :whole].reshape(-1, 4)), axis=1) for a in (was, now))
    assert not after[:, :2].any()
    assert np.array_equal(before[:, 2:], after[:, 2:])


def assert_share_dropped(was: np.ndarray, now: np.ndarray, share: float, scaled: bool) -> None:
    drop = int(np.floor(share * was.size + 0.5))
    assert np.count_nonzero(now == 0) == max(drop, np.count_nonzero(was == 0))
    lost = (now == 0) & (was != 0)
    if lost.any() and not scaled:
        assert np.abs(was[lost]).max() <= np.abs(now[now != 0]).min()


def share_of(model: onnx.ModelProto, names: set[str]) -> float:
    """The share of all weight elements that lies in the named tensors."""
    found = {id(t): (name, np.prod(t.dims)) for o in walk.operands(model) for name, t in o.leaves}.values()
    return float(sum(size for name, size in found if name in names) / sum(size for _, size in found))


def key(model_file: Path) -> str:
    return f"{model_file.parent.name}/{model_file.stem}"


def run(path: Path, wanted: dict[str, object]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    return session.run(None, {i.name: _feed(i.type, wanted[i.name], random) for i in session.get_inputs()})


def _feed(kind: str, wanted: object, random: np.random.Generator) -> np.ndarray:
    if not isinstance(wanted, tuple):
        return np.array(wanted, np.int64)
    if kind == "tensor(float)":
        return random.standard_normal(wanted, np.float32)
    return random.integers(0, 2, wanted).astype(np.int32 if kind == "tensor(int32)" else np.int64)
