"""What the data files of a result are called, what they may replace, and what their checksums are for."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse.cli import main
from onnxsparse.errors import ModelError, OutputError
from tests.messages import refusing

RULE: dict[str, Any] = {"pattern": "2:4"}


def model(folder: Path, name: str, locations: Sequence[str], checksums: bool = False, seed: int = 0) -> Path:
    """A chain of products whose weights lie in these files, one after the other where they share one."""
    folder.mkdir(parents=True, exist_ok=True)
    random, data = np.random.default_rng(seed), dict[str, bytes]()
    stored, nodes = [], []
    for number, location in enumerate(locations):
        weight = random.standard_normal((16, 16)).astype(np.float32)
        tensor = TensorProto(name=f"w{number}", data_type=1, dims=weight.shape, data_location=TensorProto.EXTERNAL)
        offset = len(data.get(location, b""))
        data[location] = data.get(location, b"") + weight.tobytes() + b"gap"
        for key, value in (("location", location), ("offset", str(offset)), ("length", str(weight.nbytes))):
            tensor.external_data.add(key=key, value=value)
        stored.append(tensor)
        nodes.append(helper.make_node("MatMul", [f"x{number}", tensor.name], [f"x{number + 1}"]))
    for location, content in data.items():
        (folder / location).parent.mkdir(parents=True, exist_ok=True)
        (folder / location).write_bytes(content)
    for tensor, location in zip(stored, locations):
        if checksums:
            tensor.external_data.add(key="checksum", value=hashlib.sha1(data[location]).hexdigest())
    ends = [helper.make_tensor_value_info(f"x{end}", 1, ["n", 16]) for end in (0, len(locations))]
    graph, opset = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored), helper.make_opsetid("", 17)
    made = helper.make_model(graph, ir_version=8, opset_imports=[opset])
    (folder / name).write_bytes(made.SerializeToString())
    return folder / name


def entries(path: Path, key: str = "location") -> list[str]:
    proto = ModelProto.FromString(path.read_bytes())
    return [one.value for tensor in proto.graph.initializer for one in tensor.external_data if one.key == key]


def arrays(path: Path) -> list[np.ndarray]:
    return [numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer]


def files(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def without_names(path: Path) -> bytes:
    """A model without what its data files are called, and without what it says of the dense file."""
    proto = ModelProto.FromString(path.read_bytes())
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = ""
    kept = [entry for entry in proto.metadata_props if not entry.key.endswith("input_digest")]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    return proto.SerializeToString()


# -- names


@pytest.mark.parametrize("name", ["sparse.onnx", "sparse", "sparse.pb", "a b.onnx", "späße.onnx"])
@pytest.mark.parametrize("location", ["w.bin", "deep/er/w.bin", "m.onnx.data", "./w.bin"])
def test_one_data_file_is_called_as_the_result(name: str, location: str, tmp_path: Path) -> None:
    dense = model(tmp_path / "in", "m.onnx", [location, location])
    (tmp_path / "out").mkdir()
    osp.prune(dense, output=tmp_path / "out" / name, **RULE)
    assert sorted(files(tmp_path / "out")) == sorted([name, f"{name}.data"])
    assert entries(tmp_path / "out" / name) == [f"{name}.data"] * 2
    assert entries(tmp_path / "out" / name, "offset") == entries(dense, "offset")
    assert all((array == 0).mean() == 0.5 for array in arrays(tmp_path / "out" / name))


@pytest.mark.parametrize(
    ("locations", "kept"),
    [
        (["a", "b"], ["a", "b"]),
        (["a.bin", "sub/a.bin", "a.bin"], ["a.bin", "sub/a.bin", "a.bin"]),
        (["weights/a", "weights/b"], ["weights/a", "weights/b"]),
        (["m.onnx.data/a", "m.onnx.data/sub/b"], ["a", "sub/b"]),
        (["./a", "sub/../b"], ["a", "b"]),
    ],
)
def test_several_are_kept_in_a_folder_called_so(locations: list[str], kept: list[str], tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    dense = model(tmp_path / "in", "m.onnx", locations)
    before = files(tmp_path / "in")
    osp.prune(dense, output=tmp_path / "in" / "s.onnx", **RULE)
    assert entries(tmp_path / "in" / "s.onnx") == [f"s.onnx.data/{name}" for name in kept]
    after = files(tmp_path / "in")
    assert {name: after[name] for name in before} == before
    assert sorted(set(after) - set(before)) == sorted({"s.onnx", *(f"s.onnx.data/{name}" for name in kept)})
    for location, name in zip(locations, kept):  # the same split: sizes, and what lies between the tensors
        old = before[os.path.normpath(location)]
        assert len(after[f"s.onnx.data/{name}"]) == len(old)
        assert after[f"s.onnx.data/{name}"][-3:] == b"gap"
    assert osp.verify(tmp_path / "in" / "s.onnx").report.ok


def test_two_ways_to_one_file_are_one_data_file(tmp_path: Path) -> None:
    """Also through a link: bytes that two tensors share are pruned once, and stay shared."""
    dense = model(tmp_path, "m.onnx", ["w.bin"])
    (tmp_path / "link.bin").symlink_to("w.bin")
    proto = ModelProto.FromString(dense.read_bytes())
    twin = proto.graph.initializer.add()
    twin.CopyFrom(proto.graph.initializer[0])
    twin.name = "v"
    twin.external_data[0].value = "link.bin"
    proto.graph.node.append(helper.make_node("MatMul", ["x1", "v"], ["y"]))
    proto.graph.output[0].name = "y"
    dense.write_bytes(proto.SerializeToString())
    osp.prune(dense, output=tmp_path / "s.onnx", **RULE)
    assert entries(tmp_path / "s.onnx") == ["s.onnx.data", "s.onnx.data"]
    first, second = arrays(tmp_path / "s.onnx")
    assert (first == second).all()
    assert (first == 0).sum() == 128


@pytest.mark.parametrize("command", ["prune", "mask", "fold", "write_back"])
def test_two_results_are_the_same_but_for_the_name_of_the_data(command: str, tmp_path: Path) -> None:
    if command == "write_back":
        pytest.importorskip("torch")
    dense = model(tmp_path, "m.onnx", ["w.bin", "w.bin"])
    for name in ("a.onnx", "b.onnx", "a.onnx"):
        out = tmp_path / name
        if command == "prune":
            osp.prune(dense, output=out, overwrite=True, **RULE)
        elif command == "mask":
            osp.insert_masks(dense, output=out, overwrite=True, **RULE)
        elif command == "fold":
            osp.fold_masks(dense, output=out, overwrite=True)
        else:
            osp.torch.write_back(osp.torch.to_module(dense), dense, output=out, overwrite=True)
    first, second = tmp_path / "a.onnx", tmp_path / "b.onnx"
    assert first.read_bytes() != second.read_bytes()
    assert without_names(first) == without_names(second)
    assert (tmp_path / "a.onnx.data").read_bytes() == (tmp_path / "b.onnx.data").read_bytes()


@pytest.mark.parametrize("locations", [["m.onnx.data"] * 2, ["m.onnx.data/a", "m.onnx.data/deep/b"], []])
def test_discarded_masks_under_the_old_name_give_the_old_bytes(locations: list[str], tmp_path: Path) -> None:
    """Of a model whose data has its name, as exporters give it; any other data gets that name."""
    dense = model(tmp_path / "in", "m.onnx", locations or ["w"])
    if not locations:
        whole = onnx.load(dense)
        shutil.rmtree(tmp_path / "in")
        (tmp_path / "in").mkdir()
        onnx.save(whole, dense)
    (tmp_path / "out").mkdir()
    osp.insert_masks(dense, output=tmp_path / "masked.onnx", **RULE)
    osp.fold_masks(tmp_path / "masked.onnx", output=tmp_path / "out" / "m.onnx", discard=True)
    assert files(tmp_path / "out") == files(tmp_path / "in")


def test_discarded_masks_of_a_model_whose_data_had_another_name(tmp_path: Path) -> None:
    dense = model(tmp_path / "in", "m.onnx", ["w.bin"])
    (tmp_path / "out").mkdir()
    osp.insert_masks(dense, output=tmp_path / "masked.onnx", **RULE)
    osp.fold_masks(tmp_path / "masked.onnx", output=tmp_path / "out" / "m.onnx", discard=True)
    assert without_names(tmp_path / "out" / "m.onnx") == without_names(dense)
    assert (tmp_path / "out" / "m.onnx.data").read_bytes() == (tmp_path / "in" / "w.bin").read_bytes()


def test_an_opened_model_is_written_twice(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    dense = model(tmp_path, "m.onnx", ["w.bin"])
    opened = osp.load(dense)
    module = osp.torch.to_module(opened)
    for name in ("a.onnx", "b.onnx"):
        osp.torch.write_back(module, opened, output=tmp_path / name)
    assert (tmp_path / "a.onnx.data").read_bytes() == (tmp_path / "b.onnx.data").read_bytes()
    assert entries(tmp_path / "b.onnx") == ["b.onnx.data"]


def test_a_name_that_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    dense = model(tmp_path, "m.onnx", ["w.bin"])
    with refusing(OutputError):
        osp.prune(dense, output=os.fsdecode(os.fsencode(tmp_path) + b"/\xff.onnx"), **RULE)
    assert sorted(files(tmp_path)) == ["m.onnx", "w.bin"]


# -- what is in the way


def refused(source: Path, output: Path, match: str) -> None:
    """Nothing is written, whether something may be replaced or not."""
    folder = source.parent
    before = files(folder)
    for overwrite in (False, True) if not output.exists() else (True,):
        with pytest.raises(OutputError, match=match):
            osp.prune(source, output=output, overwrite=overwrite, **RULE)
    assert files(folder) == before


def test_a_name_that_something_else_has_is_refused(tmp_path: Path) -> None:
    one, several = model(tmp_path, "m.onnx", ["w.bin"]), model(tmp_path, "n.onnx", ["a", "b"])
    (tmp_path / "s.onnx.data").write_bytes(b"precious")
    refused(one, tmp_path / "s.onnx", "in the way")
    refused(several, tmp_path / "s.onnx", "in the way of the folder")
    (tmp_path / "t.onnx.data").mkdir()
    (tmp_path / "t.onnx.data" / "b").write_bytes(b"precious")
    refused(one, tmp_path / "t.onnx", "in the way")
    refused(several, tmp_path / "t.onnx", "in the way")


@pytest.mark.parametrize("locations", [["s.onnx.data"], ["s.onnx.data/a", "s.onnx.data/b"]])
def test_data_that_the_model_itself_reads_is_not_replaced_by_another_result(
    locations: list[str], tmp_path: Path
) -> None:
    source = model(tmp_path, "m.onnx", locations)
    refused(source, tmp_path / "s.onnx", "data of the model")
    shutil.copy(source, tmp_path / "s.onnx")
    refused(source, tmp_path / "s.onnx", "data of the model")


def test_a_link_in_the_way_is_not_followed_out_of_the_folder(tmp_path: Path) -> None:
    source = model(tmp_path / "in", "m.onnx", ["w.bin"])
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "in" / "s.onnx.data").symlink_to(tmp_path / "victim")
    refused(source, tmp_path / "in" / "s.onnx", "outside")
    (tmp_path / "in" / "t.onnx.data").symlink_to("m.onnx")
    refused(source, tmp_path / "in" / "t.onnx", "in the way")


def test_an_empty_folder_of_a_killed_run_is_not_in_the_way(tmp_path: Path) -> None:
    source = model(tmp_path, "m.onnx", ["w.bin"])
    (tmp_path / "s.onnx.data").mkdir()
    (tmp_path / "s.onnx.data" / ".onnxsparse-00000000-000000000000.part").write_bytes(b"half")
    osp.prune(source, output=tmp_path / "s.onnx", **RULE)
    assert osp.verify(tmp_path / "s.onnx").report.ok


def test_what_is_in_the_way_is_said_before_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = model(tmp_path, "m.onnx", ["w.bin"])
    (tmp_path / "s.onnx.data").write_bytes(b"precious")
    command = ["finetune", str(source), "-o", str(tmp_path / "s.onnx"), "--pattern", "2:4", "--data", "nowhere.npz"]
    assert main(command) == 2
    assert "in the way" in capsys.readouterr().err


def test_a_report_is_not_called_as_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = model(tmp_path, "m.onnx", ["w.bin"]), tmp_path / "s.onnx"
    assert main(["prune", str(source), "-o", str(out), "--pattern", "2:4", "--json", f"{out}.data"]) == 2
    assert "another file of this command" in capsys.readouterr().err
    assert not out.exists()


# -- what is replaced, and what is left


def test_overwriting_replaces_what_the_old_result_named_and_leaves_the_rest(tmp_path: Path) -> None:
    one, several = model(tmp_path / "one", "m.onnx", ["w"]), model(tmp_path / "more", "m.onnx", ["a", "b", "c"])
    fewer, out = model(tmp_path / "fewer", "m.onnx", ["a", "b"]), tmp_path / "out" / "s.onnx"
    out.parent.mkdir()
    osp.prune(several, output=out, **RULE)
    third = (out.parent / "s.onnx.data" / "c").read_bytes()
    (out.parent / "s.onnx.data" / "other").write_bytes(b"of somebody")
    report = osp.prune(fewer, output=out, overwrite=True, **RULE).report
    assert [note for note in report.notes if os.path.join("s.onnx.data", "c") in note]
    assert not any("other" in note for note in report.notes)
    assert (out.parent / "s.onnx.data" / "c").read_bytes() == third
    assert osp.verify(out).report.ok
    with refusing(OutputError):  # the folder would have to go
        osp.prune(one, output=out, overwrite=True, **RULE)
    assert osp.verify(out).report.ok


def test_data_of_a_result_without_data_is_left_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = model(tmp_path, "m.onnx", ["w"]), tmp_path / "s.onnx"
    osp.prune(source, output=out, **RULE)
    data = (tmp_path / "s.onnx.data").read_bytes()
    onnx.save(onnx.load(source), tmp_path / "whole.onnx")
    assert main(["prune", str(tmp_path / "whole.onnx"), "-o", str(out), "--pattern", "2:4", "--overwrite"]) == 0
    assert (tmp_path / "s.onnx.data").read_bytes() == data
    said = " ".join(capsys.readouterr().out.split())
    assert "s.onnx names no more was left" in said
    assert said.count("s.onnx.data") == 1


def test_in_place_the_data_gets_the_name_and_the_old_file_stays(tmp_path: Path) -> None:
    path = model(tmp_path, "m.onnx", ["w.bin"])
    before = files(tmp_path)
    report = osp.prune(path, output=path, overwrite=True, **RULE).report
    assert [note for note in report.notes if "w.bin" in note]
    assert files(tmp_path)["w.bin"] == before["w.bin"]
    assert entries(path) == ["m.onnx.data"]
    assert osp.verify(path).report.ok
    again = osp.prune(path, output=path, overwrite=True, pattern="unstructured", sparsity=0.9).report
    assert not any("no more" in note for note in again.notes)
    assert osp.verify(path).report.ok


def test_a_link_to_a_model_keeps_model_and_data_together(tmp_path: Path) -> None:
    path = model(tmp_path / "a", "m.onnx", ["w.bin"])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "l.onnx").symlink_to(path)
    report = osp.prune(path, output=tmp_path / "b" / "l.onnx", overwrite=True, **RULE).report
    assert "is a link into another folder" in report.notes[-1]
    assert [entry.name for entry in (tmp_path / "b").iterdir()] == ["l.onnx"]
    assert entries(path) == ["m.onnx.data"]
    assert osp.verify(path).report.ok


# -- other models of the folder


@pytest.mark.parametrize("where", ["beside", "above", "far above", "through a link"])
def test_data_that_another_model_reads_is_not_replaced(where: str, tmp_path: Path) -> None:
    folder = tmp_path / "x" / "y"
    path = model(folder, "m.onnx", ["m.onnx.data"])
    proto = ModelProto.FromString(path.read_bytes())
    reader = {"beside": folder, "above": tmp_path / "x", "far above": tmp_path, "through a link": folder}[where]
    location = os.path.relpath(folder / "m.onnx.data", reader)
    if where == "through a link":
        location = "other.bin"
        (folder / "other.bin").symlink_to("m.onnx.data")
    proto.graph.initializer[0].external_data[0].value = location
    (reader / "other.onnx").write_bytes(proto.SerializeToString())
    before = files(tmp_path)
    with refusing(OutputError):
        osp.prune(path, output=path, overwrite=True, **RULE)
    assert files(tmp_path) == before
    osp.prune(path, output=folder / "s.onnx", **RULE)
    assert files(tmp_path).items() >= before.items()


def test_models_that_read_other_data_or_are_none_are_not_in_the_way(tmp_path: Path) -> None:
    path = model(tmp_path, "m.onnx", ["m.onnx.data"])
    model(tmp_path, "n.onnx", ["n.onnx.data"])
    model(tmp_path / "sub", "o.onnx", ["m.onnx.data"])
    (tmp_path / "damaged.onnx").write_bytes(b"\x3a\xff\xff\xff m.onnx.data")
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "again.onnx").symlink_to("m.onnx")
    osp.prune(path, output=path, overwrite=True, **RULE)
    assert osp.verify(path).report.ok


def test_a_folder_of_a_thousand_models_is_looked_through_quickly(tmp_path: Path) -> None:
    path = model(tmp_path, "m.onnx", ["m.onnx.data"])
    other = model(tmp_path, "other.onnx", [f"other{number}" for number in range(50)])
    for number in range(1000):
        os.link(other, tmp_path / f"copy{number}.onnx")
    began = time.process_time()
    osp.prune(path, output=path, overwrite=True, **RULE)
    assert time.process_time() - began < 5


# -- bytes with several names


def shared(folder: Path, kinds: Sequence[tuple[int, int, Sequence[int]]]) -> Path:
    """Biases (offset, length) of one data file, each added once."""
    folder.mkdir(exist_ok=True)
    path = model(folder, "m.onnx", ["w.bin"])
    proto = ModelProto.FromString(path.read_bytes())
    at = "x1"
    for number, (offset, length, dims) in enumerate(kinds):
        tensor = TensorProto(name=f"b{number}", data_type=1, dims=dims, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "b.bin"), ("offset", str(offset)), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
        proto.graph.initializer.append(tensor)
        proto.graph.node.append(helper.make_node("Add", [at, tensor.name], [f"y{number}"]))
        at = f"y{number}"
    (folder / "b.bin").write_bytes(np.arange(64, dtype=np.float32).tobytes())
    proto.graph.output[0].name = at
    path.write_bytes(proto.SerializeToString())
    return path


def written(path: Path, numbers: dict[str, float], output: Path | None = None) -> ModelProto | None:
    """The model with these numbers in all places of the named tensors."""
    opened = osp.load(path)
    for tensor in opened.flow.stores.homes:
        if tensor.name in numbers:
            value = np.full(tensor.size, numbers[tensor.name], np.float32)
            tensor.edit = lambda value=value: iter([value])  # type: ignore[misc]
    if output is None:
        return opened.take_proto()
    from onnxsparse.files import Staged

    with Staged() as staged:
        opened.save(str(output), True, staged)
        staged.commit()
    return None


@pytest.mark.parametrize("in_memory", [True, False])
def test_bytes_with_two_names_are_written_once(in_memory: bool, tmp_path: Path) -> None:
    path = shared(tmp_path, [(0, 64, [16]), (0, 64, [16]), (64, 64, [16])])
    out = None if in_memory else tmp_path / "s.onnx"
    for numbers in ({"b0": 5.0}, {"b1": 5.0}, {"b0": 5.0, "b1": 5.0}):
        made = written(path, numbers, out) or onnx.load(tmp_path / "s.onnx")
        found = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
        assert (found["b0"] == 5).all()
        assert (found["b1"] == 5).all()
        assert (found["b2"] == np.arange(16, 32)).all()


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize(
    ("second", "numbers", "match"),
    [
        ((0, 64, [16]), {"b0": 5.0, "b1": 6.0}, "are the same bytes"),
        ((32, 64, [16]), {"b0": 5.0}, "share some of their bytes"),
        ((0, 64, [1, 16]), {"b0": 5.0}, "share some of their bytes"),
    ],
)
def test_bytes_that_would_be_written_differently_are_refused(
    second: Any, numbers: dict[str, float], match: str, in_memory: bool, tmp_path: Path
) -> None:
    path = shared(tmp_path, [(0, 64, [16]), second])
    with pytest.raises(ModelError, match=match):
        written(path, numbers, None if in_memory else tmp_path / "s.onnx")
    assert not (tmp_path / "s.onnx").exists()


def test_a_module_with_one_parameter_for_two_names_goes_back(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = shared(tmp_path, [(0, 64, [16]), (0, 64, [16])])
    module = osp.torch.to_module(path)
    with torch.no_grad():
        module.b0.fill_(7)
    osp.torch.write_back(module, path, output=tmp_path / "s.onnx")
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(tmp_path / "s.onnx").graph.initializer}
    assert (found["b0"] == 7).all()
    assert (found["b1"] == 7).all()


# -- checksums


@pytest.mark.parametrize("locations", [["w.bin", "w.bin"], ["a", "b"]])
def test_checksums_are_those_of_the_new_files(locations: list[str], tmp_path: Path) -> None:
    path = model(tmp_path, "m.onnx", locations, checksums=True)
    for command in (osp.prune, osp.insert_masks):
        out = tmp_path / f"{command.__name__}.onnx"
        command(path, output=out, **RULE)
        sums = [hashlib.sha1((tmp_path / location).read_bytes()).hexdigest() for location in entries(out)]
        assert entries(out, "checksum") == sums
    assert entries(tmp_path / "prune.onnx", "checksum") != entries(path, "checksum")
    assert osp.verify(tmp_path / "prune.onnx").report.ok


def test_only_tensors_that_had_a_checksum_get_one(tmp_path: Path) -> None:
    path = model(tmp_path, "m.onnx", ["a", "b"], checksums=True)
    proto = ModelProto.FromString(path.read_bytes())
    del proto.graph.initializer[1].external_data[3]
    path.write_bytes(proto.SerializeToString())
    osp.prune(path, output=tmp_path / "s.onnx", **RULE)
    digest = hashlib.sha1((tmp_path / "s.onnx.data" / "a").read_bytes()).hexdigest()
    assert entries(tmp_path / "s.onnx", "checksum") == [digest]


COMMANDS: dict[str, Any] = {
    "inspect": lambda path, out: osp.inspect(path),
    "plan": lambda path, out: osp.plan(path, pattern="unstructured", sparsity=0.5, allocation="global"),
    "prune": lambda path, out: osp.prune(path, output=out, **RULE),
    "prune in memory": lambda path, out: osp.prune(path, **RULE),
    "mask": lambda path, out: osp.insert_masks(path, output=out, **RULE),
    "fold": lambda path, out: osp.fold_masks(path, output=out),
    "verify": lambda path, out: osp.verify(path, **RULE),
    "compare": lambda path, out: osp.compare(path, path),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_data_that_is_not_what_the_checksum_says_is_refused(command: str, tmp_path: Path) -> None:
    if command == "compare":
        pytest.importorskip("onnxruntime")
    path = model(tmp_path, "m.onnx", ["w.bin"], checksums=True)
    COMMANDS[command](path, tmp_path / "good.onnx")
    data = bytearray((tmp_path / "w.bin").read_bytes())
    data[100] ^= 1
    (tmp_path / "w.bin").write_bytes(data)
    with refusing(ModelError) as caught:
        COMMANDS[command](path, tmp_path / "s.onnx")
    assert "'w0'" in str(caught.value)
    assert not (tmp_path / "s.onnx").exists()


def test_a_damaged_data_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = model(tmp_path, "m.onnx", ["w.bin"], checksums=True)
    (tmp_path / "w.bin").write_bytes(bytes((tmp_path / "w.bin").stat().st_size))
    assert main(["verify", str(path), "--pattern", "2:4"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_checksum_in_capitals_is_the_same(tmp_path: Path) -> None:
    path = model(tmp_path, "m.onnx", ["w.bin"], checksums=True)
    proto = ModelProto.FromString(path.read_bytes())
    entry = proto.graph.initializer[0].external_data[3]
    entry.value = entry.value.upper()
    path.write_bytes(proto.SerializeToString())
    assert osp.inspect(path).report.rows


def test_without_checksums_nothing_is_digested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digested(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("a digest was made")

    path = model(tmp_path, "m.onnx", ["w.bin"])
    monkeypatch.setattr(hashlib, "sha1", digested)
    osp.prune(path, output=tmp_path / "s.onnx", **RULE)
    osp.verify(tmp_path / "s.onnx")


def test_a_data_file_is_read_for_its_checksum_once_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxsparse.graph import storage

    seen: list[str] = []
    real = storage.sha1_of
    monkeypatch.setattr(storage, "sha1_of", lambda path: seen.append(os.path.basename(path)) or real(path))
    path = model(tmp_path, "m.onnx", ["w.bin"] * 4, checksums=True)
    osp.verify(path, **RULE)
    assert seen == ["w.bin"]
