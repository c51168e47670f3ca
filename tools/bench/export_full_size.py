"""Exports a network of models/configs with the numbers of its initializers, as a runner does, for bench_full_size.py.

    python tools/bench/export_full_size.py CONFIG --size 320x320 --folder FOLDER [--samples 4]

FOLDER gets a file for each part that is traced, of a detector one of all with its post-processing, and beside each of
them an .npz with samples for its inputs. Files of post-processing alone hold no weights, and get no samples.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402 - after the path
import torch  # noqa: E402

from models.workflow import Workflow  # noqa: E402
from onnxsparse.dialects.msbench import build_sparse_scheduler, configuration  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("config")
    parser.add_argument("--size", default="320x320", help="height and width of the image")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.folder.mkdir(parents=True, exist_ok=True)
    height, width = (int(side) for side in given.size.split("x"))
    images = np.random.default_rng(0).standard_normal((given.samples, 3, height, width), np.float32)
    image = torch.from_numpy(images[:1].copy())
    builders, scheduler = Workflow(), build_sparse_scheduler({"scheduler": {"type": "BaseScheduler"}})
    network = builders.network(configuration.load(given.config)["net"], 0).eval()
    for name, one in network.named_parameters():
        if name.endswith("cls_pred.bias"):
            torch.nn.init.zeros_(one)  # as initialized, nothing is likely enough to be an answer
    network = scheduler.prepare_sparse_model(network)
    names = [net.name for net in network.nets]
    files = {name: str(given.folder / f"{name}.onnx") for name in names}
    scheduler.network.export_parts(files, image)
    builders.finish(network, files, image, str(given.folder / "detector"), True)
    for net in network.nets:
        with torch.no_grad():
            inputs = net.examples(image)
        arrays = dict(zip(net.inputs, (images,) if net.name == names[0] else (one.numpy() for one in inputs)))
        np.savez(given.folder / f"{net.name}.npz", **arrays)
    if (whole := given.folder / "detector.whole.onnx").exists():
        np.savez(whole.with_suffix(".npz"), image=images)


if __name__ == "__main__":
    main()
