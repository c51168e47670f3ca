"""A model directory of Hugging Face, here all-MiniLM-L6-v2, exported with its weights in a file beside it."""

from __future__ import annotations

import re
import sys
from typing import Any

import sklearn.datasets

from tools.frameworks.samples import FOLDER, save

directory = sys.argv[2]

# <page>
import onnx
from transformers import AutoModel, AutoTokenizer

import onnxsparse as osp

tokenizer = AutoTokenizer.from_pretrained(directory)
net = AutoModel.from_pretrained(directory, attn_implementation="eager")
length = {"padding": "max_length", "max_length": 24, "truncation": True}  # the file takes sentences of this length
example = dict(tokenizer(["one sentence", "and another one"], return_tensors="pt", **length))
del example["token_type_ids"]

found = osp.torch.export(net, example)
print(*found.notes, sep="\n")
assert found.model is not None
beside: dict[str, Any] = {"save_as_external_data": True, "location": "minilm.weights"}
onnx.save(found.model, str(FOLDER / "minilm.onnx"), **beside)
# </page>

makers: list[Any] = [
    getattr(sklearn.datasets, f"load_{one}")
    for one in ("digits", "wine", "iris", "breast_cancer", "diabetes", "linnerud")
]
words = " ".join(maker().DESCR for maker in makers).split()
sentences = [" ".join(words[start : start + 16]) for start in range(0, len(words), 8)]
sentences = [re.sub(r"[^A-Za-z0-9 ,.()-]", "", one) for one in sentences]
tokens = tokenizer(sentences, return_tensors="np", **length)
arrays = {name: tokens[name] for name in ("input_ids", "attention_mask")}
held = len(sentences) // 5
save(
    FOLDER / "minilm.onnx",
    {name: one[held:] for name, one in arrays.items()},
    {name: one[:held] for name, one in arrays.items()},
)
