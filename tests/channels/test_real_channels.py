"""Models from the packages of other people, every channel class in a random or in the best order: the same outputs.

`python -m pytest -m network tests/channels` fetches them into a cache.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxsparse as osp
from tests.channels import judge, net, subject
from tests.channels.net import Array
from tests.real import test_real_models as real
from tests.real import walk
from tools.fetch_models import default_folder, fetch

pytestmark = [pytest.mark.network, pytest.mark.slow]

# file -> the least share of its weights of which the columns can move
LEAST = {
    "rapidocr-onnxruntime-1.4.4/ch_PP-OCRv4_det_infer": 0.94,
    "rapidocr-onnxruntime-1.4.4/ch_PP-OCRv4_rec_infer": 0.96,
    "rapidocr-onnxruntime-1.4.4/ch_ppocr_mobile_v2.0_cls_infer": 0.82,  # the rest is depthwise
    "basic-pitch-0.4.0/nmp": 0.005,  # a fixed filterbank, and layers of few channels
    "silero-vad-6.2.3/silero_vad": 0.40,  # LSTM weights whose gates are cut and joined in the graph
    "silero-vad-6.2.3/silero_vad_16k_op15": 0.54,
    "silero-vad-6.2.3/silero_vad_16k_sequence": 0.56,
    "silero-vad-6.2.3/silero_vad_half": 0.54,
    "silero-vad-6.2.3/silero_vad_op18_ifless": 0.60,
    "silero-vad-6.2.3/silero_vad_openvino_16k": 0.56,
}

OF_ONE_INPUT = ("silero-vad-6.2.3/silero_vad", "silero-vad-6.2.3/silero_vad_op18_ifless")
"""They run with a sampling rate of 16,000 or 8,000 alone, which no random input has."""


@pytest.fixture(scope="module")
def collection() -> Path:
    folder = default_folder()
    assert len(list(fetch(folder))) == 15
    return folder


@pytest.fixture(params=real.FEEDS)
def path(request: pytest.FixtureRequest, collection: Path) -> Path:
    found = collection / f"{request.param}.onnx"
    if not found.exists():
        pytest.skip("made by tools/export_models.py, which needs torch")
    return found


def test_random_orders_keep_the_outputs(path: Path) -> None:
    model = onnx.load(path)
    feeds = feeds_of(model, real.FEEDS[real.key(path)])
    permuted = subject.randomly_permuted(model, 0, shapes={name: values.shape for name, values in feeds.items()})
    assert not judge.judge(model, permuted.model, feeds, exact=False)
    assert judge.same_bytes(model, subject.moved_back(permuted))
    assert moved_share(model, permuted.model) >= LEAST.get(real.key(path), 0.95)


def test_a_searched_order_is_proven_and_gains(path: Path) -> None:
    """The whole command: nothing is rolled back, and 2:4 keeps more of the weights."""
    model = onnx.load(path)
    permuted = osp.permute(path, unproven=real.key(path) in OF_ONE_INPUT).model
    assert permuted is not None
    assert not judge.judge(model, permuted, feeds_of(model, real.FEEDS[real.key(path)]), exact=False)
    assert kept(permuted) > kept(model)


def kept(model: onnx.ModelProto) -> float:
    """What 2:4 keeps of all weights."""
    rows = (walk.rows(one, walk.real(one, model)) for one in walk.operands(model))
    return sum(judge.kept_of_rows(each.reshape(-1, each.shape[-1])) for each in rows)


def feeds_of(model: onnx.ModelProto, wanted: dict[str, object]) -> dict[str, Array]:
    dice = np.random.default_rng(0)
    return {one.name: real._feed(one.type, wanted[one.name], dice) for one in net.session(model).get_inputs()}


def moved_share(model: onnx.ModelProto, permuted: onnx.ModelProto) -> float:
    """The share of the weights that have another order along their reduction."""
    moved = whole = 0
    for one, other in zip(walk.operands(model), walk.operands(permuted)):
        was, now = (walk.rows(each, walk.real(each, of)) for each, of in ((one, model), (other, permuted)))
        rows = [judge._ordered(each.reshape(-1, each.shape[-1])) for each in (was, now)]
        whole += was.size
        moved += 0 if np.array_equal(*rows) else was.size
    return moved / whole
