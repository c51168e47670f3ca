"""Matches that are tried on the outputs: new numbers in the module, and in the file where the match says."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

import onnxsparse as osp
from onnxsparse.graph.torch_match import Match
from tools.bench import match_torch as trials
from tools.bench.match_trial import Outcome, Trial
from tools.bench.match_ways import Way

NEW, TRAINED = False, True
CASES = [
    # what the older exporter folds of a bias of zeros is stored with all other zeros
    ("attention", Way(False, True, False, 17, NEW), ("cross.in_proj_bias", *(f"{one}.bias" for one in (
        "cross.out_proj", "own.out_proj", "norm")))),
    ("attention", Way(False, False, True, 17, NEW), ()),
    ("transformer", Way(False, True, False, 17, NEW), ()),
    ("scaled", Way(False, True, False, 17, NEW), ()),
    # what is never called is nowhere
    ("unused", Way(False, True, False, 17, NEW),
     ("never.weight", "never.bias", "never_norm.weight", "never_norm.bias")),
    ("unused", Way(False, False, True, 17, TRAINED),
     ("never.weight", "never.bias", "never_norm.weight", "never_norm.bias")),
    ("tied", Way(False, True, False, 17, NEW), ()),
    ("tied", Way(False, True, False, 18, TRAINED, "pruned"), ()),
    ("tied", Way(False, True, False, 18, TRAINED, "DistributedDataParallel"), ()),
    # the direction of a normalized weight is not the weight
    ("tied", Way(False, True, False, 18, TRAINED, "weight norm"), ("two.weight", "scorer.weight")),
    ("recurrent", Way(False, True, False, 17, NEW), ()),
    ("recurrent", Way(False, True, False, 18, TRAINED, after="optimized by onnxruntime"), ()),
    ("grouped", Way(False, False, False, 17, NEW), ()),
    ("mixed", Way(False, True, False, 20, TRAINED, after="Q/DQ"), ()),
    ("mixed", Way(False, True, False, 18, TRAINED, kind="float16"), ()),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("net", "way", "refused"), CASES, ids=lambda one: getattr(one, "title", None) or str(one)[:20])
def test_what_is_found_is_right(net: str, way: Way, refused: tuple[str, ...], tmp_path: Path) -> None:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        outcome = trials.run(net, way, tmp_path)
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    assert not outcome.problem
    assert not outcome.wrong
    assert outcome.right > 0
    assert {name for name in outcome.refused if "num_batches_tracked" not in name} == set(refused)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("net", trials.NETS)
def test_all_ways(net: str, tmp_path: Path) -> None:
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        wrong = [(way.title, one.wrong) for way in trials.ways(net) if (one := trials.run(net, way, tmp_path)).wrong]
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert not wrong


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_match_is_seen(tmp_path: Path) -> None:
    """The trial itself: two biases of the same shape, exchanged."""
    way = Way(False, False, False, 17, TRAINED)
    module, x = trials.network("transformer", way)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        trials.export(module, x, way, tmp_path / "net.onnx")
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    match = osp.torch.match(tmp_path / "net.onnx", module)
    one, other = (f"encoder.layers.{index}.norm1.bias" for index in (0, 1))
    swapped = Match({**match, one: match[other], other: match[one]})
    with torch.no_grad():
        found = Trial(tmp_path / "net.onnx", module, x, way, swapped).outcome(Outcome("", way))
    assert found.wrong == [one, other]
