"""Fine-tuning helps on models as other people exported them: less loss than right after pruning, outputs nearer by.

`tools/bench/bench_real.py` does the same for all of them, and says how much.
"""

from __future__ import annotations

import pytest

from onnxsparse.engines.ort import library
from onnxsparse.engines.torch import library as torch_library
from tools.bench import bench_parity
from tools.bench.bench_real import measured
from tools.fetch_models import default_folder, fetch

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training"),
]

MODELS = ("silero_vad_16k_op15", "silero_vad", "ch_ppocr_mobile_v2.0_cls_infer")


@pytest.mark.parametrize("name", MODELS)
def test_fine_tuning_helps(name: str) -> None:
    path = next(path for path in fetch(default_folder()) if path.stem == name)
    row = measured(path, steps=50, pattern="")
    assert row.startswith("| + "), row


ALIKE = ("320n", "model", "silero_vad", "silero_vad_16k_op15", "silero_vad_op18_ifless", "silero_vad_16k_sequence",
         "ch_PP-OCRv4_det_infer", "ch_PP-OCRv4_rec_infer", "ch_ppocr_mobile_v2.0_cls_infer", "nmp")  # fmt: skip


@pytest.mark.skipif(not torch_library.available(), reason="needs torch beside onnxruntime-training")
@pytest.mark.parametrize("name", ALIKE)
def test_both_engines_find_the_same_loss(name: str) -> None:
    path = next(path for path in fetch(default_folder()) if path.stem == name)
    found = bench_parity.losses(path)
    assert found.apart <= bench_parity.ALIKE, found
