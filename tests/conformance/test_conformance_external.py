"""Weights in other files: pruned where they lie, in the layout they had, the source untouched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs.builders import CASES, Built
from graphs.expectations import is_masked_copy, keep_mask, values
from graphs.files import differences
from graphs.oracles import keep_global, scores_of

osp: Any = pytest.importorskip("onnxsparse")
EXTERNAL = [name for name in CASES if CASES[name].build().files]


@pytest.mark.parametrize("name", EXTERNAL)
def test_external_data_is_pruned_in_its_own_layout(name: str, tmp_path: Path) -> None:
    """As many files, under the result's name, with the same offsets and lengths, the bytes between the tensors
    untouched; the source stays as it was."""
    built, source, target = prepare(name, tmp_path)
    content = {one.name: one.read_bytes() for one in source.parent.iterdir()}
    osp.prune(source, output=target, pattern="2:4")
    assert {one.name: one.read_bytes() for one in source.parent.iterdir()} == content
    made = onnx.load(str(target), load_external_data=False)
    for wanted in built.expected:
        before, after = values(built.model, wanted, source.parent), values(made, wanted, target.parent)
        assert is_masked_copy(before, after, keep_mask(wanted, 2, 4), wanted.zero) == ""
    names = called(built, target.name)
    assert everything_in(target.parent) == sorted([target.name, *names.values()])
    assert differences(relocated(built.model, names), made, []) == []
    for location, name in names.items():
        outside = ~covered(built.model, location, len(built.files[location]))
        first, last = (
            np.frombuffer(path.read_bytes(), np.uint8) for path in (tmp_path / "in" / location, tmp_path / "out" / name)
        )
        assert np.array_equal(first[outside], last[outside])


def called(built: Built, target: str) -> dict[str, str]:
    """What the data files of a result are called."""
    single = len(built.files) == 1
    return {location: f"{target}.data" if single else f"{target}.data/{location}" for location in built.files}


def everything_in(folder: Path) -> list[str]:
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())


def relocated(model: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for tensor in made.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = names[entry.value]
    return made


def prepare(name: str, folder: Path) -> tuple[Built, Path, Path]:
    (folder / "in").mkdir()
    (folder / "out").mkdir()
    built = CASES[name].build()
    return built, built.write(folder / "in"), folder / "out" / "model.onnx"


def covered(model: onnx.ModelProto, location: str, size: int) -> np.ndarray:
    """Which bytes of the file belong to a tensor."""
    taken = np.zeros(size, bool)
    for stored in model.graph.initializer:
        entry = {pair.key: pair.value for pair in stored.external_data}
        if entry["location"] == location:
            taken[int(entry["offset"]) : int(entry["offset"]) + 1024] = True
    return taken


@pytest.mark.parametrize("name", EXTERNAL)
def test_beside_the_source_nothing_of_it_is_overwritten(name: str, tmp_path: Path) -> None:
    """OUT in the folder of MODEL: the dense data must survive, the sparse data needs another name."""
    built = CASES[name].build()
    source = built.write(tmp_path)
    content = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    osp.prune(source, output=tmp_path / "sparse.onnx", pattern="2:4")
    assert {name: (tmp_path / name).read_bytes() for name in content} == content
    made = onnx.load(str(tmp_path / "sparse.onnx"), load_external_data=False)
    for wanted in built.expected:
        before, after = values(built.model, wanted, tmp_path), values(made, wanted, tmp_path)
        assert is_masked_copy(before, after, keep_mask(wanted, 2, 4), wanted.zero) == ""


@pytest.mark.parametrize("name", EXTERNAL)
def test_in_place_with_leave(name: str, tmp_path: Path) -> None:
    """The data gets the name of the result; what had another one is left as it was, and said."""
    built = CASES[name].build()
    source = built.write(tmp_path)
    before = [values(built.model, wanted, tmp_path) for wanted in built.expected]
    report = osp.prune(source, output=source, pattern="2:4", overwrite=True).report
    assert all(any(location in note for note in report.notes) for location in built.files)
    assert all((tmp_path / location).read_bytes() == data for location, data in built.files.items())
    made = onnx.load(str(source), load_external_data=False)
    for wanted, dense in zip(built.expected, before):
        assert is_masked_copy(dense, values(made, wanted, tmp_path), keep_mask(wanted, 2, 4), wanted.zero) == ""
    assert everything_in(tmp_path) == sorted([source.name, *built.files, *called(built, source.name).values()])
    after = {name: (tmp_path / name).read_bytes() for name in everything_in(tmp_path)}
    again = osp.prune(source, output=source, pattern="2:4", overwrite=True).report
    assert {name: (tmp_path / name).read_bytes() for name in everything_in(tmp_path)} == after
    assert not any("no more" in note for note in again.notes)


@pytest.mark.parametrize("name", EXTERNAL)
def test_verify_reads_external_data(name: str, tmp_path: Path) -> None:
    _, source, target = prepare(name, tmp_path)
    assert not osp.verify(source, pattern="2:4").report.ok
    osp.prune(source, output=target, pattern="2:4")
    assert osp.verify(target, pattern="2:4").report.ok
    again = tmp_path / "out" / "again.onnx"
    osp.prune(target, output=again, pattern="2:4")
    assert osp.verify(again).report.ok


def test_external_unstructured_and_global_stream_alike(tmp_path: Path) -> None:
    built, source, target = prepare("external_many_files", tmp_path)
    osp.prune(source, output=target, pattern="unstructured", sparsity=0.7, allocation="global")
    made = onnx.load(str(target), load_external_data=False)
    keeps = keep_global([scores_of(one.real) for one in built.expected], 0.7)
    for wanted, keep in zip(built.expected, keeps):
        before, after = values(built.model, wanted, source.parent), values(made, wanted, target.parent)
        assert is_masked_copy(before, after, keep, wanted.zero) == ""
