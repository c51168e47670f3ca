"""docs/migrating_from_asp.md and tools/asp_toy.py do what they say; the block without torch runs with all pages."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import onnxsparse as osp
from onnxsparse import cli
from onnxsparse.dialects.asp import ASP
from onnxsparse.dialects.asp.eligible import KINDS
from tools import asp_toy

PAGE = "migrating_from_asp.md"
pytestmark = [
    pytest.mark.filterwarnings("ignore:the channels stay"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the exporter
]


def text(repository: Path) -> str:
    return (repository / "docs" / PAGE).read_text(encoding="utf-8")


def test_what_it_shows_works(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python torch\n(.*?)^```$", text(repository), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, PAGE, "exec"), names)


def test_every_call_and_every_kind_of_layer_is_on_it(repository: Path) -> None:
    page = text(repository)
    calls = [name for name, one in vars(ASP).items() if not name.startswith("_") and name != "of"]
    assert len(calls) == 9
    assert not [name for name in calls if f"{name}(" not in page]
    arguments = inspect.signature(ASP.init_model_for_pruning).parameters
    assert not [name for name in arguments if name not in page]
    assert not [kind for kind in KINDS if f"`{kind}`" not in page and kind[:-2] + "1d`" not in page]


def test_the_defaults_are_those_of_apex() -> None:
    found = {name: one.default for name, one in inspect.signature(ASP.init_model_for_pruning).parameters.items()}
    assert list(found.items())[1:3] == [("mask_calculator", "m4n2_1d"), ("verbosity", 3)]
    assert list(found) == [
        "model", "mask_calculator", "verbosity", "whitelist", "allowed_layer_names", "disallowed_layer_names",
        "allow_recompute_mask", "custom_layer_dict", "allow_permutation", "example_inputs",
    ]  # fmt: skip
    assert (found["allow_recompute_mask"], found["allow_permutation"], found["allowed_layer_names"]) == (
        False,
        True,
        None,
    )
    assert found["whitelist"] == ("Linear", "Conv1d", "Conv2d", "Conv3d", "MultiheadAttention")
    saving = inspect.signature(ASP.set_permutation_saving_params).parameters
    assert {name: one.default for name, one in saving.items()} == {
        "allow_permutation": True, "save_permutation_graph": False, "permutation_output_dir": ".",
    }  # fmt: skip


def test_the_toy_comes_to_a_file_that_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asp_toy.main([str(tmp_path), "--steps", "3"]) == 0
    said = capsys.readouterr().out
    assert "sparsity is on" in said
    assert said.count("holds, 50% zeros") == 4
    assert cli.main(["verify", str(tmp_path / "asp_toy.onnx"), "--target", "ampere:asp"]) == 0
    state = torch.load(tmp_path / "asp_toy.pth", weights_only=True)["model"]
    assert sum(name.endswith("_mma_mask") for name in state) == 4


def test_a_target_finds_what_was_left_dense(tmp_path: Path) -> None:
    """What the page says of layers that are not in the whitelist."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    ASP.init_model_for_pruning(model, verbosity=0, disallowed_layer_names=["2"], allow_permutation=False)
    ASP.of(model).compute_sparse_masks()
    torch.onnx.export(model, (torch.randn(1, 64),), str(tmp_path / "m.onnx"), dynamo=False)
    assert not osp.verify(tmp_path / "m.onnx", target="ampere:asp").report.ok
    assert osp.verify(tmp_path / "m.onnx", target="ampere:asp", exclude="2.weight").report.ok
