"""What happens around the files: neighbours, odd terminals, closed pipes, and the same bytes every time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs.builders import CASES
from graphs.expectations import EVERYTHING, is_masked_copy, row_of, values
from graphs.oracles import indices, keep_n_of_m, scores_of

from tests.cases import for_each

cli: Any = pytest.importorskip("onnxsparse.cli")
osp: Any = pytest.importorskip("onnxsparse")
ALLOW = ["--allow", ",".join(EVERYTHING)]
RULE = ["--pattern", "2:4", *ALLOW]


def start(arguments: list[str], repository: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "onnxsparse", *arguments],
        capture_output=True,
        cwd=repository,
        env={**os.environ, **environment},
        timeout=600,
        check=False,
    )


def one_line(err: bytes) -> bool:
    return (
        b"Traceback" not in err
        and b"internal error" not in err
        and len([line for line in err.splitlines() if line.strip()]) == 1
    )


@pytest.mark.parametrize("pattern", [["2:4"], ["unstructured", "--sparsity", "0.7", "--allocation", "global"]])
def test_same_bytes_whatever_the_hash_seed(pattern: list[str], tmp_path: Path, repository: Path) -> None:
    source = CASES["decorated"].build().write(tmp_path)
    made = []
    for seed in ("0", "1", "4242"):
        target = tmp_path / f"{seed}.onnx"
        done = start(
            ["prune", str(source), "-o", str(target), "--pattern", *pattern, *ALLOW], repository, PYTHONHASHSEED=seed
        )
        assert done.returncode == 0, done.stderr
        made.append(target.read_bytes())
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("name", ["name_not_ascii", "name_with_quotes", "decorated"])
def test_a_terminal_of_ascii(name: str, tmp_path: Path, repository: Path) -> None:
    source = CASES[name].build().write(tmp_path)
    for command in (["inspect", str(source)], ["prune", str(source), "-o", str(tmp_path / "o.onnx"), *RULE]):
        done = start(command, repository, LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
        assert done.returncode == 0, done.stderr[-600:]


def test_a_pipe_that_closes_early(tmp_path: Path, repository: Path) -> None:
    source = CASES["identity_chain_of_150"].build().write(tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "onnxsparse", "inspect", str(source)],
        stdout=writer,
        stderr=subprocess.PIPE,
        cwd=repository,
        timeout=600,
        check=False,
    )
    os.close(writer)
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


@pytest.mark.parametrize("spoilt", ["folder", "beside nothing", "the model", "the output"])
def test_json_that_cannot_be_written(spoilt: str, tmp_path: Path, capfd: Any) -> None:
    """Known before the work: then nothing is written at all."""
    source = CASES["conv_of_256"].build().write(tmp_path)
    before, out = source.read_bytes(), tmp_path / "o.onnx"
    target = {"folder": tmp_path, "beside nothing": tmp_path / "no" / "r.json", "the model": source, "the output": out}
    code = cli.main(["prune", str(source), "-o", str(out), "--pattern", "2:4", "--json", str(target[spoilt])])
    assert code == 2
    assert one_line(capfd.readouterr().err.encode())
    assert source.read_bytes() == before
    assert not out.exists()


@pytest.mark.parametrize("command", [["inspect"], ["verify", "--pattern", "2:4"]])
def test_a_report_never_replaces_the_model(command: list[str], tmp_path: Path, capfd: Any) -> None:
    source = CASES["conv_of_256"].build().write(tmp_path)
    before = source.read_bytes()
    for name in (source, tmp_path / "." / source.name):
        assert cli.main([command[0], str(source), *command[1:], "--json", str(name)]) == 2
        assert one_line(capfd.readouterr().err.encode())
        assert source.read_bytes() == before


@pytest.mark.parametrize("which", ["a", "b.data"])
def test_a_report_or_model_never_replaces_external_data(which: str, tmp_path: Path) -> None:
    """Neither the report nor the output may take the name of a file that the model reads."""
    source = CASES["external_many_files"].build().write(tmp_path)
    before = (tmp_path / which).read_bytes()
    cli.main(["inspect", str(source), "--json", str(tmp_path / which)])
    assert (tmp_path / which).read_bytes() == before
    cli.main(["prune", str(source), "-o", str(tmp_path / which), "--pattern", "2:4", "--overwrite"])
    assert (tmp_path / which).read_bytes() == before


def test_output_is_a_folder(tmp_path: Path, capfd: Any) -> None:
    source = CASES["conv_of_256"].build().write(tmp_path)
    (tmp_path / "folder").mkdir()
    assert cli.main(["prune", str(source), "-o", str(tmp_path / "folder"), "--pattern", "2:4", "--overwrite"]) == 2
    assert one_line(capfd.readouterr().err.encode())
    assert not list((tmp_path / "folder").iterdir())


def test_data_of_another_model_is_not_overwritten(tmp_path: Path, capfd: Any) -> None:
    """The target folder holds a file of the name that the data had."""
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    source = CASES["external_one_file"].build().write(tmp_path / "in")
    (tmp_path / "out" / "w.bin").write_bytes(b"precious")
    code = cli.main(["prune", str(source), "-o", str(tmp_path / "out" / "model.onnx"), "--pattern", "2:4"])
    assert (tmp_path / "out" / "w.bin").read_bytes() == b"precious"
    if code == 0:
        assert osp.verify(tmp_path / "out" / "model.onnx", pattern="2:4").report.ok
    else:
        assert code == 2
        assert one_line(capfd.readouterr().err.encode())
        assert [one.name for one in (tmp_path / "out").iterdir()] == ["w.bin"]


def test_writing_twice_leaves_as_many_files(tmp_path: Path) -> None:
    source = CASES["external_many_files"].build().write(tmp_path)
    command = ["prune", str(source), "-o", str(tmp_path / "o.onnx"), "--pattern", "2:4", "--overwrite"]
    assert cli.main(command) == 0
    first = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
    assert cli.main(command) == 0
    assert {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()} == first


def test_a_model_reached_through_a_link(tmp_path: Path) -> None:
    """The data is beside the link, as the runtime looks for it, or beside the file; never half of each."""
    (tmp_path / "real").mkdir()
    source = CASES["external_one_file"].build().write(tmp_path / "real")
    (tmp_path / "link.onnx").symlink_to(source)
    code = cli.main(["verify", str(tmp_path / "link.onnx"), "--pattern", "2:4"])
    assert code in (1, 2)


def test_no_temporary_files_stay(tmp_path: Path) -> None:
    source = CASES["many_kinds_in_one"].build().write(tmp_path)
    assert cli.main(["prune", str(source), "-o", str(tmp_path / "o.onnx"), *RULE]) == 0
    assert cli.main(["mask", str(source), "-o", str(tmp_path / "m.onnx"), *RULE]) == 0
    assert cli.main(["fold", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "f.onnx")]) == 0
    assert sorted(one.name for one in tmp_path.iterdir()) == ["f.onnx", "m.onnx", "model.onnx", "o.onnx"]


def test_mask_then_discard_by_file_is_the_same_file(tmp_path: Path) -> None:
    for name in ("decorated", "unknown_fields_everywhere", "function_in_function", "training_information", "opset_6"):
        source = CASES[name].build().write(tmp_path)
        assert cli.main(["mask", str(source), "-o", str(tmp_path / "m.onnx"), *RULE, "--overwrite"]) == 0
        target = tmp_path / "d.onnx"
        assert cli.main(["fold", str(tmp_path / "m.onnx"), "-o", str(target), "--discard", "--overwrite"]) == 0
        assert target.read_bytes() == source.read_bytes(), name


def test_the_order_of_fields_in_the_file_survives(tmp_path: Path) -> None:
    """A file that was not written by protobuf's C++: opset first, graph before the version. Only values may change."""
    whole = CASES["matmul_right"].build().model
    pieces = [onnx.ModelProto(), onnx.ModelProto(), onnx.ModelProto()]
    pieces[0].opset_import.extend(whole.opset_import)
    pieces[1].graph.CopyFrom(whole.graph)
    pieces[2].ir_version = whole.ir_version
    content = b"".join(piece.SerializeToString() for piece in pieces)
    (tmp_path / "model.onnx").write_bytes(content)
    assert cli.main(["prune", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "o.onnx"), *RULE]) == 0
    made = onnx.load(str(tmp_path / "o.onnx"))
    assert osp.verify(made, pattern="2:4", allow=EVERYTHING).report.ok
    ours = sum(one.ByteSize() + 2 for one in made.metadata_props)
    assert abs((tmp_path / "o.onnx").stat().st_size - len(content)) <= ours + 8


def test_graph_in_two_pieces(tmp_path: Path) -> None:
    """Protobuf lets a message come in several pieces that are merged: half of the graph here, half there."""
    built = CASES["equal_tensors_under_two_names"].build()
    first, second = onnx.ModelProto(), onnx.ModelProto()
    first.CopyFrom(built.model)
    second.graph.initializer.append(built.model.graph.initializer[1])
    del first.graph.initializer[1]
    (tmp_path / "model.onnx").write_bytes(first.SerializeToString() + second.SerializeToString())
    code = cli.main(["prune", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "o.onnx"), *RULE])
    if code == 0:
        assert osp.verify(tmp_path / "o.onnx", pattern="2:4", allow=EVERYTHING).report.ok
        made = onnx.load(str(tmp_path / "o.onnx"))
        assert [one.name for one in made.graph.initializer] == ["v", "w"]
    else:
        assert code == 2
        assert not (tmp_path / "o.onnx").exists()


def test_ties_fall_in_the_stored_order_even_where_k_runs_otherwise() -> None:
    """Stored (8, 2, 6), summed over (1, 0): among equals the earlier stored element falls."""
    built = CASES["transpose_then_reshape_merges_k"].build()
    wanted = built.expected[0]
    w = np.ones(wanted.shape, np.float32)
    built.model.graph.initializer[0].raw_data = w.tobytes()
    after = values(osp.prune(built.model, pattern="2:4", allow=EVERYTHING).model, wanted)
    keep = keep_n_of_m(scores_of(w), wanted.uses[0].rows(indices(wanted.shape)), 2, 4)
    assert is_masked_copy(w, after, keep, wanted.zero) == ""


@pytest.mark.parametrize("profile", ["tensorrt", "asp", "cusparselt-fp16", "cusparselt-int8", "cutlass-fp16"])
def test_every_profile_gives_a_verdict(profile: str) -> None:
    """The pattern holds; whether the device may use it differs, and a no has its reason."""
    built = CASES["conv_of_256"].build()
    pruned = osp.prune(built.model, pattern="2:4").model
    row = row_of(osp.verify(pruned, target=f"ampere:{profile}").report, built.expected[0])
    assert row.status == "holds" or (row.status == "unchecked" and row.reason)
    assert all(use.may_use or use.remark or row.reason for use in row.uses)


def test_reports_agree_about_zeros(tmp_path: Path) -> None:
    built = CASES["conv_of_256"].build()
    pruned = osp.prune(built.model, pattern="2:4")
    counts = {row_of(one.report, built.expected[0]).zeros for one in (pruned, osp.inspect(pruned.model))}
    assert counts == {int((values(pruned.model, built.expected[0]) == 0).sum())}


def test_a_model_in_memory_whose_data_is_elsewhere() -> None:
    """A ModelProto has no folder: its external data cannot be found, and that is said."""
    built = CASES["external_one_file"].build()
    for call in (osp.prune, osp.insert_masks, osp.verify):
        with pytest.raises(osp.OnnxSparseError) as caught:
            call(built.model, pattern="2:4")
        assert caught.value.exit_code == 2


@pytest.mark.parametrize("nonsense", [None, 17, b"bytes", ["list"], object(), ""])
def test_what_is_neither_path_nor_model(nonsense: object) -> None:
    with pytest.raises((osp.OnnxSparseError, TypeError)):
        osp.inspect(nonsense)


@for_each(
    "options",
    [
        {},
        {"pattern": "2:4", "sparsity": 0.5},
        {"pattern": "unstructured"},
        {"pattern": "unstructured", "sparsity": float("nan")},
        {"pattern": "unstructured", "sparsity": -1},
        {"pattern": "2:4", "score": "nonsense"},
        {"pattern": "2:4", "allocation": "nonsense"},
        {"pattern": "2:4", "allow": ["nonsense"]},
        {"pattern": "2:4", "include": ["nonsense"]},
        {"pattern": "2:4", "exclude": ["nonsense"]},
        {"target": "nonsense"},
        {"pattern": "2:4", "score": "random", "seed": -1},
    ],
)
def test_options_that_mean_nothing_raise_our_errors(options: dict[str, Any]) -> None:
    built = CASES["conv_of_256"].build()
    before = built.model.SerializeToString()
    with pytest.raises(osp.OnnxSparseError) as caught:
        osp.prune(built.model, **options)
    assert caught.value.exit_code == 2
    assert len(str(caught.value).splitlines()) == 1
    assert built.model.SerializeToString() == before


def test_strict_raises_and_writes_nothing(tmp_path: Path) -> None:
    built = CASES["many_kinds_in_one"].build()
    with pytest.raises(osp.OnnxSparseError) as caught:
        osp.prune(built.model, output=tmp_path / "o.onnx", pattern="2:4", strict=True)
    assert caught.value.exit_code == 1
    assert not list(tmp_path.iterdir())
